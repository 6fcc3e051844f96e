//! `listwatch completion`: a script by which a shell completes commands and flags.

use std::io::{self, Write};

use clap::{Arg, ArgAction, Args, Command};
use clap_complete::{Shell, generate};
use listwatch_study::discovery::built_in_names;

use super::failure::Failure;

/// Print a script that completes commands and flags in a shell
#[derive(Debug, Args)]
#[command(after_help = "Now, in this shell, or in the file that it reads at its start:\n\n  \
    bash   source <(listwatch completion bash)            in ~/.bashrc\n  \
    zsh    source <(listwatch completion zsh)             in ~/.zshrc, after compinit\n  \
    fish   listwatch completion fish | source             in ~/.config/fish/config.fish")]
pub(super) struct CompletionArgs {
    /// Which shell
    shell: Shell,
}

pub(super) fn main(completion: &CompletionArgs, mut command: Command) -> Result<(), Failure> {
    // In memory first, as the generator panics where it cannot write.
    let mut script = Vec::new();
    if completion.shell == Shell::Bash {
        let names: Vec<_> = command.get_subcommands().map(|command| command.get_name().to_owned()).collect();
        for name in names {
            command = command.mut_subcommand(name, |command| command.mut_args(without_optional_value));
        }
    }
    generate(completion.shell, &mut command, "listwatch", &mut script);
    if completion.shell == Shell::Fish {
        // The generator completes no arguments without a flag.
        let names: Vec<_> = built_in_names().collect();
        let of = "__fish_listwatch_using_subcommand get watch";
        writeln!(script, "complete -c listwatch -n \"{of}\" -f -a \"{}\"", names.join(" "))?;
    }
    Ok(io::stdout().write_all(&script)?)
}

/// The generator for bash offers the values of `--curl[=<FROM>]` after a space, where they would be the next argument.
fn without_optional_value(arg: Arg) -> Arg {
    if arg.is_require_equals_set() {
        arg.num_args(0).require_equals(false).action(ArgAction::SetTrue)
    } else {
        arg
    }
}
