//! Lines on standard error, and the width of a terminal.

use std::io::{self, IsTerminal, Write};

use listwatch::log;
use listwatch_study::wrap::wrap;
use listwatch_yaml::is_printable;
use terminal_size::{Width, terminal_size_of};

/// A line on standard error about an exchange. If standard error is closed, the line is dropped.
pub(super) fn note(text: &str) {
    let text = printable(text);
    let color = log::is_colored(io::stderr().is_terminal());
    let text = if color { format!("\x1b[2m{text}\x1b[0m") } else { text };
    let _ = writeln!(io::stderr(), "{text}");
}

/// Writes a line to standard error, broken between words at the width of a terminal. `eprintln!` would panic if that fails, and
/// so change the exit code.
pub(super) fn write_error(line: &str, indent: usize) {
    let width = terminal_size_of(io::stderr()).map_or(usize::MAX, |(Width(width), _)| width.into());
    let _ = writeln!(io::stderr(), "{}", wrap(&printable(line), width, indent));
}

/// A text without characters that could change what a terminal shows of the others, or worse: an API server has them from anybody.
pub(super) fn printable(text: &str) -> String {
    let text = text.replace("\r\n", "\n");
    text.chars().map(|c| if is_printable(c) { c } else { '\u{fffd}' }).collect()
}

/// The columns of the terminal on standard output, if it is one.
pub(super) fn width_of_stdout() -> Option<usize> {
    terminal_size_of(io::stdout()).map(|(Width(width), _)| width.into())
}
