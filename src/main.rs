//! The `listwatch` binary: `listwatch --help` lists its commands, and `cli` in the library has them.

use std::process::ExitCode;

fn main() -> ExitCode {
    listwatch::cli::main()
}
