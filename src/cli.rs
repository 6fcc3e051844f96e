//! The command line: flags, environment variables, errors and exit codes.
//!
//! Each flag has an environment variable, `LISTWATCH_<FLAG>`. The flag wins, then the variable, then the default.

mod completion;
mod crd;
#[cfg_attr(not(feature = "apiserver"), path = "cli/not_embedded.rs")]
mod embedded;
mod env;
mod get;
mod log;
mod replay;
mod run;
mod screen;
mod trace;
mod yaml;

use std::{
    fmt,
    io::{self, Write},
    path::PathBuf,
    process::ExitCode,
    time::Duration,
};

use clap::{Args, CommandFactory, FromArgMatches, Parser, Subcommand, error::ErrorKind};

use crate::{
    client::{Client, Config, Env, Error, Options},
    shutdown::{self, ShutdownError, Stop},
};

/// The exit code of a usage error: the same command would fail again.
const EXIT_USAGE: u8 = 2;

/// Largest `--request-timeout`. A request with its retries must end before its watch counts as stuck.
const REQUEST_TIMEOUT_MAX: Duration = Duration::from_secs(300);
/// The exit code after a second signal: the one that a shell reports for SIGTERM.
const EXIT_AT_ONCE: u8 = 143;

/// Errors of clap that are none: `--help`, `--version`, and a command line without arguments.
const ANSWERS: [ErrorKind; 3] =
    [ErrorKind::DisplayHelp, ErrorKind::DisplayVersion, ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand];

const EXAMPLES: &str = "  listwatch crd | kubectl apply -f -    install the custom resources
  listwatch run mywebserver             run the operator, here or in a Pod
  listwatch run -n web -n shop          only in two namespaces
  source <(listwatch completion bash)   complete commands and flags by the Tab key";

#[derive(Debug, Parser)]
#[command(
    name = "listwatch",
    version,
    about = "A Kubernetes operator that lists and watches over plain HTTPS",
    after_help = format!("Each flag has an environment variable, LISTWATCH_<FLAG>; the flag wins.\n\nExamples:\n{}{EXAMPLES}", embedded::EXAMPLES),
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
    Get(Box<get::GetArgs>),
    Watch(Box<get::WatchArgs>),
    Replay(replay::ReplayArgs),
    #[command(flatten)]
    Embedded(embedded::EmbeddedCommand),
    Completion(completion::CompletionArgs),
    /// Print the version
    Version,
}

/// Why a command failed.
enum Failure {
    /// The command line or the configuration is invalid.
    Usage(String),
    /// An error that may pass.
    Runtime(String),
    /// The reader of standard output has closed it.
    ClosedPipe,
    /// A second signal.
    AtOnce,
}

/// A client of this server. Does not connect yet.
fn client(config: Config) -> Result<Client, Failure> {
    Client::new(config).map_err(|error| Failure::Usage(error.to_string()))
}

impl Failure {
    /// The message of a usage or runtime error.
    fn message(&self) -> &str {
        match self {
            Failure::Usage(message) | Failure::Runtime(message) => message,
            Failure::ClosedPipe | Failure::AtOnce => "",
        }
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        Failure::Runtime(error.to_string())
    }
}

/// An error of writing to standard output.
impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Failure {
        match error.kind() {
            io::ErrorKind::BrokenPipe => Failure::ClosedPipe,
            _ => Failure::Runtime(format!("write to standard output: {error}")),
        }
    }
}

impl From<ShutdownError> for Failure {
    fn from(error: ShutdownError) -> Failure {
        match error {
            ShutdownError::AtOnce => Failure::AtOnce,
            ShutdownError::Start(_) | ShutdownError::Signals(_) => Failure::Runtime(error.to_string()),
        }
    }
}

/// Parses the command line, runs the command, and turns the result into an exit code.
pub fn main() -> ExitCode {
    let command = env::adapt(Cli::command());
    let cli = match command.try_get_matches().and_then(|matches| Cli::from_arg_matches(&matches)) {
        Ok(cli) => cli,
        Err(answer) if ANSWERS.contains(&answer.kind()) => answer.exit(),
        Err(error) => {
            let error = one_line(&error.to_string());
            complain(format_args!("{error}{}; {}", env::named_by(&error), remedy(&error)));
            return ExitCode::from(EXIT_USAGE);
        }
    };
    let result = match cli.command {
        Command::Run(run) => run::main(*run),
        Command::Crd(crd) => crd::main(&crd),
        Command::Get(get) => get::get(*get),
        Command::Watch(watch) => get::watch(*watch),
        Command::Replay(replay) => replay::main(replay),
        Command::Embedded(command) => command.main(),
        Command::Completion(completion) => completion::main(&completion, Cli::command()),
        Command::Version => version(),
    };
    let (message, code) = match result {
        Ok(()) | Err(Failure::ClosedPipe) => return ExitCode::SUCCESS,
        Err(Failure::AtOnce) => return ExitCode::from(EXIT_AT_ONCE),
        Err(Failure::Usage(message)) => (message, ExitCode::from(EXIT_USAGE)),
        Err(Failure::Runtime(message)) => (message, ExitCode::FAILURE),
    };
    complain(format_args!("{message}{}", env::named_by(&message)));
    code
}

fn version() -> Result<(), Failure> {
    Ok(writeln!(io::stdout(), "listwatch {}", env!("CARGO_PKG_VERSION"))?)
}

/// Writes an error to standard error. `eprintln!` would panic if that fails, and so change the exit code.
fn complain(message: fmt::Arguments<'_>) {
    let _ = writeln!(io::stderr(), "listwatch: {message}");
}

/// Runs `work` to its end. A signal asks it to stop.
fn until_signal<F: Future<Output = Result<(), Failure>>>(
    work: impl FnOnce(Stop) -> F,
) -> Result<(), Failure> {
    shutdown::run(work)?
}

/// An error of clap and its suggestion, without the usage. Every error is one line, also in the log of a Pod.
fn one_line(error: &str) -> String {
    let lines = error.trim_start_matches("error: ").lines().map(str::trim);
    let lines = lines.filter(|line| !line.is_empty()).take_while(|line| !line.starts_with("Usage:"));
    // clap suggests to pass every unknown flag as a value.
    let lines =
        lines.filter(|line| !line.starts_with("For more information") && !line.starts_with("tip: to pass"));
    let lines: Vec<_> = lines.collect();
    lines.join("; ")
}

/// The advice after a usage error: usually, the command that shows the help.
fn remedy(error: &str) -> String {
    if error.contains("'--fault <FAULT>'") {
        return "see listwatch apiserver --fault help".to_owned();
    }
    let is_left_out = |name: &str| error.starts_with(&format!("unrecognized subcommand '{name}'"));
    if embedded::LEFT_OUT.into_iter().any(is_left_out) {
        return "this is a build for production, without it: `cargo run` in the sources has it".to_owned();
    }
    match std::env::args().nth(1) {
        Some(name) if Cli::command().find_subcommand(&name).is_some() => {
            format!("see listwatch {name} --help")
        }
        Some(_) | None => "see listwatch --help".to_owned(),
    }
}

/// Flags for the address of the API server and the credentials.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Connection")]
struct ConnectionFlags {
    /// kubeconfig file to use. Without it: $KUBECONFIG, then the Pod's service account, then ~/.kube/config
    #[arg(long, value_name = "FILE", env = "LISTWATCH_KUBECONFIG")]
    kubeconfig: Option<PathBuf>,
    /// Context of the kubeconfig to use instead of its current one
    #[arg(long, value_name = "NAME", env = "LISTWATCH_CONTEXT")]
    context: Option<String>,
    /// Cluster of the kubeconfig to use instead of the context's
    #[arg(long, value_name = "NAME", env = "LISTWATCH_CLUSTER")]
    cluster: Option<String>,
    /// User of the kubeconfig to use instead of the context's
    #[arg(long, value_name = "NAME", env = "LISTWATCH_USER")]
    user: Option<String>,
    /// User to impersonate, if RBAC allows that: name or system:serviceaccount:NAMESPACE:NAME
    #[arg(long = "as", value_name = "USER", env = "LISTWATCH_AS")]
    act_as: Option<String>,
    /// Directory with token, ca.crt and namespace to use as the Pod's service account
    #[arg(long, value_name = "DIR", env = "LISTWATCH_SERVICE_ACCOUNT_DIR", conflicts_with = "kubeconfig")]
    service_account_dir: Option<PathBuf>,
    /// Longest time of one request, except for watches: 30s, 1m
    #[arg(long, value_name = "TIME", env = "LISTWATCH_REQUEST_TIMEOUT", default_value = "30s", value_parser = parse_time)]
    request_timeout: Duration,
}

/// A switch that may have a value, on the command line or in the environment.
fn parse_switch(text: &str) -> Result<bool, &'static str> {
    match text.to_ascii_lowercase().as_str() {
        "true" | "yes" | "on" | "1" => Ok(true),
        "false" | "no" | "off" | "0" => Ok(false),
        _ => Err("is neither true nor false, nor yes, no, on, off, 1 or 0"),
    }
}

fn parse_time(text: &str) -> Result<Duration, String> {
    match humantime::parse_duration(text) {
        Ok(time) if time.is_zero() => Err("must be longer than nothing, such as 30s".to_owned()),
        Ok(time) if time > REQUEST_TIMEOUT_MAX => Err("must be 5m at most, such as 30s".to_owned()),
        Ok(time) => Ok(time),
        Err(_) => Err("is no time: write a number and a unit, such as 30s or 2m".to_owned()),
    }
}

impl ConnectionFlags {
    /// The server and the credentials of these flags.
    fn config(self) -> Result<Config, Failure> {
        let names = [
            ("context", &self.context),
            ("cluster", &self.cluster),
            ("user", &self.user),
            // `--as "$USER_NAME"` with an unset variable must not mean "do not impersonate".
            ("as", &self.act_as),
        ];
        for (flag, name) in names {
            if name.as_ref().is_some_and(|name| name.trim().is_empty()) {
                return Err(Failure::Usage(format!("--{flag} is empty: give a name, or leave the flag out")));
            }
        }
        let options = Options {
            kubeconfig: self.kubeconfig,
            context: self.context,
            cluster: self.cluster,
            user: self.user,
            act_as: self.act_as,
            service_account_dir: self.service_account_dir,
            request_timeout: Some(self.request_timeout),
        };
        Config::load(&options, &Env::from_process()).map_err(|error| Failure::Usage(error.to_string()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_switch_has_the_values_of_go_and_of_yaml() {
        let words = [
            (Ok(true), ["true", "True", "yes", "on", "1"]),
            (Ok(false), ["false", "FALSE", "no", "off", "0"]),
        ];
        for (expected, words) in words {
            words.iter().for_each(|word| assert_eq!(parse_switch(word), expected, "{word}"));
        }
        assert!(["", "2", "t", "maybe"].iter().all(|word| parse_switch(word).is_err()));
    }

    #[test]
    fn a_build_for_production_names_the_command_that_it_lacks() {
        let wrong = Cli::command().try_get_matches_from(["listwatch", "demo", "--exit"]).err();
        let remedy = wrong.map(|error| remedy(&one_line(&error.to_string())));
        let is_named = remedy.is_some_and(|remedy| remedy.starts_with("this is a build for production"));
        assert_eq!(is_named, embedded::LEFT_OUT.contains(&"demo"));
    }
}
