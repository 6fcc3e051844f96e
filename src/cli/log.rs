//! Where log lines go, and which.

use std::{
    env,
    ffi::OsString,
    io::{self, IsTerminal},
};

use clap::{Args, ValueEnum};
use tracing::{Level, level_filters::LevelFilter};
use tracing_subscriber::{
    Layer, filter::Targets, fmt, layer::SubscriberExt, registry, util::SubscriberInitExt,
};

#[derive(Args, Debug)]
#[command(next_help_heading = "Log")]
pub(super) struct Log {
    /// error, warn, info, debug or trace; or by module: info,listwatch::watch=trace. Without it: info, but warn for demo and apiserver
    #[arg(long, value_name = "LEVEL", env = "LISTWATCH_LOG_LEVEL", value_parser = parse_level)]
    log_level: Option<Targets>,
    /// More: -v is debug, -vv is trace
    #[arg(short, long, action = clap::ArgAction::Count, env = "LISTWATCH_VERBOSE", value_parser = parse_verbose)]
    verbose: u8,
    /// text or json. Without it: text on a terminal, json otherwise
    #[arg(long, value_name = "FORMAT", env = "LISTWATCH_LOG_FORMAT")]
    log_format: Option<Format>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Format {
    Text,
    Json,
}

/// A plain level is ours; of the libraries under us only warnings are of use.
fn parse_level(text: &str) -> Result<Targets, &'static str> {
    let text = if text.contains(['=', ',']) { text.to_owned() } else { format!("warn,listwatch={text}") };
    // A module without a level would be all of it, and the rest nothing: `info,listwatch`, `listwatch=`.
    let has_level = |part: &str| {
        let level = part.rsplit('=').next().unwrap_or_default();
        !level.is_empty() && level.parse::<LevelFilter>().is_ok()
    };
    let targets = if text.split(',').all(has_level) { text.parse().ok() } else { None };
    targets.ok_or("is not error, warn, info, debug, trace or MODULE=LEVEL,…")
}

/// clap counts the flags and hands us the count, as the variable does.
fn parse_verbose(text: &str) -> Result<u8, String> {
    text.parse().map_err(|_| "is not 1 for debug or 2 for trace; --log-level takes levels by name".to_owned())
}

impl Log {
    /// Sends log lines to standard error from now on; `by_default` those of that level and worse.
    pub(super) fn start(self, by_default: Level) {
        let ours = |level, others| Targets::new().with_default(others).with_target("listwatch", level);
        let filter = match (self.verbose, self.log_level) {
            (0, Some(filter)) => filter,
            (0, None) => ours(by_default, Level::WARN),
            (1, _) => ours(Level::DEBUG, Level::WARN),
            (_, _) => ours(Level::TRACE, Level::DEBUG),
        };
        let is_terminal = io::stderr().is_terminal();
        let for_them = if is_terminal { Format::Text } else { Format::Json };
        let layer = match self.log_format.unwrap_or(for_them) {
            Format::Text => {
                let is_colored = is_colored(is_terminal, env::var_os("NO_COLOR"));
                fmt::layer().with_writer(io::stderr).with_ansi(is_colored).boxed()
            }
            Format::Json => fmt::layer().json().flatten_event(true).with_writer(io::stderr).boxed(),
        };
        registry().with(layer.with_filter(filter)).init();
    }
}

/// On a terminal, unless somebody wants it plain: <https://no-color.org>.
fn is_colored(is_terminal: bool, no_color: Option<OsString>) -> bool {
    is_terminal && no_color.is_none_or(|value| value.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_has_colors_on_a_terminal_unless_no_color_has_a_value() {
        for (is_terminal, no_color, expected) in [
            (true, None, true),
            (true, Some(""), true),
            (true, Some("1"), false),
            (false, None, false),
            (false, Some(""), false),
        ] {
            let is_colored = is_colored(is_terminal, no_color.map(OsString::from));
            assert_eq!(is_colored, expected, "{is_terminal} {no_color:?}");
        }
    }
}
