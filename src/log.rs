//! The log: lines on standard error, as text on a terminal and as JSON otherwise.
//!
//! ```text
//! {"timestamp":"…","level":"INFO","message":"synced","watch":"services in all namespaces","objects":3,"target":"listwatch::watch::health"}
//! ```

use std::{
    env,
    ffi::OsString,
    io::{self, IsTerminal},
    sync::OnceLock,
};

use tracing::{Level, level_filters::LevelFilter, warn};
use tracing_subscriber::{
    Layer, Registry,
    filter::Targets,
    fmt,
    layer::SubscriberExt,
    registry,
    reload::{self, Handle},
    util::{SubscriberInitExt, TryInitError},
};

/// Why the log did not start.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct LogError(String);

/// The format of the lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
#[allow(missing_docs, reason = "`--help` would show them")]
pub enum Format {
    Text,
    Json,
}

/// Sends log lines to standard error from now on. The variable `RUST_LOG` has the levels, such as
/// `info,listwatch::watch=trace`; without it, the level is info, and warn for OpenTelemetry. An error if there is a log already.
///
/// ```
/// listwatch::log::start().expect("the first log");
/// listwatch::log::start().expect_err("a second log");
/// ```
pub fn start() -> Result<(), LogError> {
    let filter = match env::var("RUST_LOG") {
        Ok(levels) if !levels.is_empty() => {
            levels.parse().map_err(|error| LogError(format!("RUST_LOG: {levels:?}: {error}")))?
        }
        Ok(_) | Err(_) => Targets::new().with_default(Level::INFO).with_target("opentelemetry", Level::WARN),
    };
    start_with(filter, None).map_err(|error| LogError(format!("start the log: {error}")))
}

/// Sends the lines that the filter accepts to standard error from now on.
pub fn start_with(filter: Targets, format: Option<Format>) -> Result<(), TryInitError> {
    let is_terminal = io::stderr().is_terminal();
    let for_them = if is_terminal { Format::Text } else { Format::Json };
    let layer = match format.unwrap_or(for_them) {
        Format::Text => {
            let is_colored = is_colored(is_terminal);
            fmt::layer().with_writer(io::stderr).with_ansi(is_colored).boxed()
        }
        Format::Json => fmt::layer().json().flatten_event(true).with_writer(io::stderr).boxed(),
    };
    let (filter, handle) = reload::Layer::new(filter);
    registry().with(layer.with_filter(filter)).try_init()?;
    // The first log is the only one.
    let _ = FILTER.set(handle);
    Ok(())
}

/// Which lines the log of this process has.
static FILTER: OnceLock<Handle<Targets, Registry>> = OnceLock::new();

/// Changes the levels of the log. An error if they are invalid, or the program has a log of its own.
pub(crate) fn set(levels: &str) -> Result<(), String> {
    let filter = parse_level(levels)?;
    let handle = FILTER.get().ok_or("cannot be set: this program has a log of its own")?;
    handle.reload(filter).map_err(|error| error.to_string())?;
    warn!(levels, "log levels changed");
    Ok(())
}

/// `debug`, or by module: `info,listwatch::watch=trace`. A plain level is ours; of the libraries under us only warnings are of use.
pub fn parse_level(text: &str) -> Result<Targets, &'static str> {
    let text = if text.contains(['=', ',']) { text.to_owned() } else { format!("warn,listwatch={text}") };
    // A module without a level would be all of it, and the rest nothing: `info,listwatch`, `listwatch=`.
    let has_level = |part: &str| {
        let level = part.rsplit('=').next().unwrap_or_default();
        !level.is_empty() && level.parse::<LevelFilter>().is_ok()
    };
    let targets = if text.split(',').all(has_level) { text.parse().ok() } else { None };
    targets.ok_or("is not error, warn, info, debug, trace or MODULE=LEVEL,…")
}

/// On a terminal that has colors, unless somebody wants it plain: <https://no-color.org>.
pub fn is_colored(is_terminal: bool) -> bool {
    is_colored_with(is_terminal, |name| env::var_os(name))
}

fn is_colored_with(is_terminal: bool, variable: impl Fn(&str) -> Option<OsString>) -> bool {
    let is_plain = variable("NO_COLOR").is_some_and(|value| !value.is_empty());
    is_terminal && !is_plain && variable("TERM").is_none_or(|value| value != "dumb")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_has_colors_on_a_terminal_unless_no_color_has_a_value_or_the_terminal_is_dumb() {
        for (is_terminal, no_color, term, expected) in [
            (true, None, None, true),
            (true, Some(""), Some("xterm"), true),
            (true, Some("1"), Some("xterm"), false),
            (true, None, Some("dumb"), false),
            (false, None, Some("xterm"), false),
            (false, Some(""), None, false),
        ] {
            let variable = |name: &str| match name {
                "NO_COLOR" => no_color.map(OsString::from),
                _ => term.map(OsString::from),
            };
            let is_colored = is_colored_with(is_terminal, variable);
            assert_eq!(is_colored, expected, "{is_terminal} {no_color:?} {term:?}");
        }
    }
}
