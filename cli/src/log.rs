//! The flags of the log.

use clap::Args;
use listwatch::log::{self, Format, parse_level};
use tracing::Level;
use tracing_subscriber::filter::Targets;

#[derive(Args, Debug)]
#[command(next_help_heading = "Log")]
pub(super) struct Log {
    /// error, warn, info, debug or trace; or by module: info,listwatch::watch=trace. Without it: info; warn for demo and apiserver; error for get and watch
    #[arg(long, value_name = "LEVEL", env = "LISTWATCH_LOG_LEVEL", value_parser = parse_level)]
    log_level: Option<Targets>,
    /// Log more: -v is debug, -vv is trace; one more v each for demo
    #[arg(short, long, action = clap::ArgAction::Count, env = "LISTWATCH_VERBOSE", value_parser = parse_verbose)]
    pub(super) verbose: u8,
    /// text or json. Without it: text on a terminal, json otherwise
    #[arg(long, value_name = "FORMAT", env = "LISTWATCH_LOG_FORMAT")]
    log_format: Option<Format>,
    /// Logged at the level debug, whatever the other levels are.
    #[arg(skip)]
    pub(super) also: Option<&'static str>,
}

/// clap counts the flags and hands us the count, as the variable does.
fn parse_verbose(text: &str) -> Result<u8, String> {
    text.parse().map_err(|_| "is not 1 for debug or 2 for trace; --log-level takes levels by name".to_owned())
}

impl Log {
    /// Sends log lines to standard error from now on; by default the lines of the level `by_default` and worse.
    pub(super) fn start(self, by_default: Level) {
        let ours = |level, others| Targets::new().with_default(others).with_target("listwatch", level);
        let filter = match (self.verbose, self.log_level) {
            (0, Some(filter)) => filter,
            (0, None) => ours(by_default, Level::WARN),
            (1, _) => ours(Level::DEBUG, Level::WARN),
            (_, _) => ours(Level::TRACE, Level::DEBUG),
        };
        let filter = match self.also {
            Some(target) => filter.with_target(target, Level::DEBUG),
            None => filter,
        };
        log::start_with(filter, self.log_format).expect("each command starts the log once");
    }
}
