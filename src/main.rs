//! The `listwatch` binary. What it can do is in `listwatch --help`, and in the library's `cli`.

use std::process::ExitCode;

fn main() -> ExitCode {
    listwatch::cli::main()
}
