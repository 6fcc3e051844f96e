//! `listwatch completion`: a script by which a shell completes commands and flags.

use std::io::{self, Write};

use clap::{Args, Command};
use clap_complete::{Shell, generate};

use super::failure::Failure;
use crate::study::discovery::built_in_names;

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
    generate(completion.shell, &mut command, "listwatch", &mut script);
    if completion.shell == Shell::Fish {
        // The generator completes no arguments without a flag.
        let names: Vec<_> = built_in_names().collect();
        let of = "__fish_listwatch_using_subcommand get watch";
        writeln!(script, "complete -c listwatch -n \"{of}\" -f -a \"{}\"", names.join(" "))?;
    }
    Ok(io::stdout().write_all(&script)?)
}
