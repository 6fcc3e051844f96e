//! The command line: flags, environment variables, errors and exit codes.
//!
//! Most flags have an environment variable, `LISTWATCH_<FLAG>`. The flag wins, then the variable, then the default.
//!
//! ```text
//! run, plan, crd, rbac, manifests, replay, completion   the commands of these names
//! get                                                   `get` and `watch`; format and screen print the answers
//! embedded/                                             what needs the embedded API server: apiserver, demo, new, types, bundle, scorecard, lens; and
//!                                                       stage, for `--demo`
//! connection, log, env, trace, output_file              flags that commands share
//! failure, terminal                                     exit codes, and lines on standard error
//! ```

mod completion;
mod connection;
mod crd;
#[cfg_attr(not(feature = "developer"), path = "not_embedded.rs")]
mod embedded;
mod env;
mod failure;
mod format;
mod get;
mod log;
mod manifests;
mod output_file;
mod plan;
mod rbac;
mod replay;
mod run;
mod screen;
mod terminal;
mod trace;

use std::{
    io::{self, Write},
    process::ExitCode,
};

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand, error::ErrorKind};

use failure::{EXIT_USAGE, Failure, complain, reported};

/// Errors of clap that are none: `--help`, `--version`, and a command line without arguments.
const ANSWERS: [ErrorKind; 3] =
    [ErrorKind::DisplayHelp, ErrorKind::DisplayVersion, ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand];

const EXAMPLES: &str = "  listwatch crd | kubectl apply -f -    install the custom resources
  listwatch run mywebserver             run the operator, here or in a Pod
  listwatch plan mywebserver            show what it would write now
  listwatch run mywebserver -n web      only in one namespace
  source <(listwatch completion bash)   complete commands and flags by the Tab key";

#[derive(Debug, Parser)]
#[command(
    name = "listwatch",
    version,
    about = "A Kubernetes operator that lists and watches over plain HTTPS",
    after_help = format!("A flag marked [env: …] may be given as that environment variable; the flag wins.\n\nExamples:\n{}{EXAMPLES}", embedded::EXAMPLES),
    arg_required_else_help = true
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Run(Box<run::RunArgs>),
    Crd(crd::CrdArgs),
    Plan(Box<plan::PlanArgs>),
    Manifests(manifests::ManifestsArgs),
    Rbac(Box<rbac::RbacArgs>),
    Get(Box<get::GetArgs>),
    Watch(Box<get::WatchArgs>),
    Replay(replay::ReplayArgs),
    #[command(flatten)]
    Embedded(embedded::EmbeddedCommand),
    Completion(completion::CompletionArgs),
    /// Print the version
    Version,
}

/// Parses the command line, runs the command, and turns the result into an exit code.
fn main() -> ExitCode {
    let command = env::adapt(Cli::command());
    let cli = match command.try_get_matches().and_then(|matches| Cli::from_arg_matches(&matches)) {
        Ok(cli) => cli,
        Err(answer) if ANSWERS.contains(&answer.kind()) => answer.exit(),
        Err(error) => {
            let error = one_line(&error.to_string());
            complain(&format!("{error}{}; {}", env::named_by(&error), remedy(&error)));
            return ExitCode::from(EXIT_USAGE);
        }
    };
    let result = match cli.command {
        Command::Run(run) => run::main(*run),
        Command::Crd(crd) => crd::main(&crd),
        Command::Plan(plan) => return ExitCode::from(plan::main(*plan)),
        Command::Manifests(args) => manifests::main(args),
        Command::Rbac(rbac) => rbac::main(*rbac),
        Command::Get(get) => get::get(*get),
        Command::Watch(watch) => get::watch(*watch),
        Command::Replay(replay) => replay::main(replay),
        Command::Embedded(command) => command.main(),
        Command::Completion(completion) => completion::main(&completion, Cli::command()),
        Command::Version => version(),
    };
    ExitCode::from(reported(result))
}

fn version() -> Result<(), Failure> {
    Ok(writeln!(io::stdout(), "listwatch {}", env!("CARGO_PKG_VERSION"))?)
}

/// An error of clap and its suggestion, without the usage. Every error is one line, also in the log of a Pod.
fn one_line(error: &str) -> String {
    let lines = error.trim_start_matches("error: ").lines().map(str::trim);
    let lines = lines.filter(|line| !line.is_empty()).take_while(|line| !line.starts_with("Usage:"));
    // clap suggests to pass every unknown flag as a value.
    let lines =
        lines.filter(|line| !line.starts_with("For more information") && !line.starts_with("tip: to pass"));
    let lines: Vec<_> = lines.collect();
    // A line that ends in a colon begins a list.
    lines.join("; ").replace(":; ", ": ")
}

/// The advice after a usage error: usually, the command that shows the help.
fn remedy(error: &str) -> String {
    if error.contains("'--fault <FAULT>'") {
        return "see listwatch apiserver --fault help".to_owned();
    }
    if let Some(word) = get::after_curl()
        && error.starts_with(&format!("unexpected argument '{word}'"))
    {
        return format!("write --curl={word}");
    }
    let is_left_out = |name: &str| error.starts_with(&format!("unrecognized subcommand '{name}'"));
    if embedded::LEFT_OUT.into_iter().any(is_left_out) {
        return "this is a build for production, without it: `cargo run` in the sources has it".to_owned();
    }
    let is_word = error.starts_with("unexpected argument '") && !error.starts_with("unexpected argument '-");
    match env::typed().nth(1) {
        Some(name) if is_word && ["get", "watch"].contains(&&*name) => {
            "a name follows a slash: RESOURCE/NAME".to_owned()
        }
        Some(name) if Cli::command().find_subcommand(&name).is_some() => {
            format!("see listwatch {name} --help")
        }
        Some(_) | None => "see listwatch --help".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_build_for_production_names_the_command_that_it_lacks() {
        let wrong = Cli::command().try_get_matches_from(["listwatch", "demo", "--exit"]).err();
        let remedy = wrong.map(|error| remedy(&one_line(&error.to_string())));
        let is_named = remedy.is_some_and(|remedy| remedy.starts_with("this is a build for production"));
        assert_eq!(is_named, embedded::LEFT_OUT.contains(&"demo"));
    }
}
