//! The log: lines on standard error, as text on a terminal and as JSON otherwise.
//!
//! ```text
//! {"timestamp":"…","level":"INFO","message":"synced","watch":"services in all namespaces","objects":3,"target":"listwatch::cluster"}
//! ```

use std::{
    env,
    ffi::OsString,
    io::{self, IsTerminal},
};

use tracing::Level;
use tracing_subscriber::{
    Layer,
    filter::Targets,
    fmt,
    layer::SubscriberExt,
    registry,
    util::{SubscriberInitExt, TryInitError},
};

use crate::runtime::RuntimeError;

/// The format of the lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "cli", derive(clap::ValueEnum))]
pub(crate) enum Format {
    Text,
    Json,
}

/// Sends log lines to standard error from now on. The variable `RUST_LOG` has the levels, such as
/// `info,listwatch::watch=trace`; without it, the level is info. An error if there is a log already.
///
/// ```
/// listwatch::log::start().expect("the first log");
/// listwatch::log::start().expect_err("a second log");
/// ```
pub fn start() -> Result<(), RuntimeError> {
    let filter = match env::var("RUST_LOG") {
        Ok(levels) if !levels.is_empty() => {
            levels.parse().map_err(|error| RuntimeError::Config(format!("RUST_LOG: {levels:?}: {error}")))?
        }
        Ok(_) | Err(_) => Targets::new().with_default(Level::INFO),
    };
    start_with(filter, None).map_err(|error| RuntimeError::Config(format!("start the log: {error}")))
}

/// Sends the lines that the filter accepts to standard error from now on.
pub(crate) fn start_with(filter: Targets, format: Option<Format>) -> Result<(), TryInitError> {
    let is_terminal = io::stderr().is_terminal();
    let for_them = if is_terminal { Format::Text } else { Format::Json };
    let layer = match format.unwrap_or(for_them) {
        Format::Text => {
            let is_colored = is_colored(is_terminal, env::var_os("NO_COLOR"));
            fmt::layer().with_writer(io::stderr).with_ansi(is_colored).boxed()
        }
        Format::Json => fmt::layer().json().flatten_event(true).with_writer(io::stderr).boxed(),
    };
    registry().with(layer.with_filter(filter)).try_init()
}

/// On a terminal, unless somebody wants it plain: <https://no-color.org>.
pub(crate) fn is_colored(is_terminal: bool, no_color: Option<OsString>) -> bool {
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
