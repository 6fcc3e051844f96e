//! Timestamps in objects, and ages: `2026-11-21T07:14:34Z`.
//!
//! The clock is based on tokio's, so in a test that pauses and advances time, ages and deadlines move with it.

use std::time::{Duration, SystemTime};

use listwatch_formats::time::parse_time;
use serde_json::Value;
use tokio::time::Instant;

/// 9999-12-31T23:59:59Z, in seconds since the epoch.
const LAST_SECS: u64 = 253_402_300_799;

/// A time in the future has the age `0s` up to here: apimachinery/pkg/util/duration.HumanDuration allows for clocks that differ.
const AHEAD_MAX: Duration = Duration::from_secs(2);

/// Wall-clock time that stops when tokio's clock is paused.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    started: SystemTime,
    at: Instant,
}

impl Clock {
    /// A clock that shows `started` now.
    pub(crate) fn new(started: SystemTime) -> Clock {
        Clock { started, at: Instant::now() }
    }

    pub(crate) fn now(&self) -> SystemTime {
        self.started + self.at.elapsed()
    }

    /// metav1.Time: whole seconds.
    pub(crate) fn time(&self) -> String {
        self.time_in(Duration::ZERO)
    }

    /// At most [`LAST_SECS`], because RFC 3339 has four digits for a year.
    pub(crate) fn time_in(&self, later: Duration) -> String {
        let last = SystemTime::UNIX_EPOCH + Duration::from_secs(LAST_SECS);
        let then = self.now().checked_add(later).map_or(last, |then| then.min(last));
        humantime::format_rfc3339_seconds(then).to_string()
    }

    /// metav1.MicroTime: exactly six decimal places.
    pub(crate) fn micro_time(&self) -> String {
        humantime::format_rfc3339_micros(self.now()).to_string()
    }

    /// The time since a timestamp. `None` if it cannot be parsed.
    pub(crate) fn since(&self, timestamp: &Value) -> Option<Duration> {
        let then = parse_time(timestamp.as_str()?).ok()?;
        Some(self.now().duration_since(then).unwrap_or_default())
    }

    /// The age column: `<unknown>` without a timestamp, `<invalid>` if it is in the future.
    pub(crate) fn age(&self, timestamp: &Value) -> String {
        let then = timestamp.as_str().and_then(|text| parse_time(text).ok());
        match then.map(|then| self.now().duration_since(then)) {
            None => "<unknown>".to_owned(),
            Some(Ok(age)) => human_duration(age),
            Some(Err(ahead)) if ahead.duration() < AHEAD_MAX => "0s".to_owned(),
            Some(Err(_)) => "<invalid>".to_owned(),
        }
    }
}

/// The rounding of kubectl: the older, the coarser. See apimachinery/pkg/util/duration.HumanDuration.
pub(crate) fn human_duration(age: Duration) -> String {
    let secs = age.as_secs();
    let (mins, hours) = (secs / 60, secs / 3600);
    let two = |big: u64, unit: &str, small: u64, small_unit: &str| match small {
        0 => format!("{big}{unit}"),
        small => format!("{big}{unit}{small}{small_unit}"),
    };
    match secs {
        0..120 => format!("{secs}s"),
        120..600 => two(mins, "m", secs % 60, "s"),
        600..10_800 => format!("{mins}m"),
        10_800..28_800 => two(hours, "h", mins % 60, "m"),
        28_800..172_800 => format!("{hours}h"),
        172_800..691_200 => two(hours / 24, "d", hours % 24, "h"),
        691_200..63_072_000 => format!("{}d", hours / 24),
        63_072_000..252_288_000 => two(hours / 24 / 365, "y", (hours / 24) % 365, "d"),
        _ => format!("{}y", hours / 24 / 365),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_are_rounded_as_kubectl_does() {
        let shown = |secs| human_duration(Duration::from_secs(secs));
        assert_eq!(shown(0), "0s");
        assert_eq!(shown(119), "119s");
        assert_eq!(shown(120), "2m");
        assert_eq!(shown(125), "2m5s");
        assert_eq!(shown(3600), "60m");
        assert_eq!(shown(3 * 3600 + 60), "3h1m");
        assert_eq!(shown(2 * 86_400 + 3600), "2d1h");
    }

    /// A Pod with a grace period of thousands of years ended the task of the controllers.
    #[tokio::test]
    async fn no_time_is_later_than_the_year_9999() {
        let clock = Clock::new(SystemTime::UNIX_EPOCH);
        assert_eq!(clock.time_in(Duration::from_secs(1 << 30)), "2004-01-10T13:37:04Z");
        for secs in [300_000_000_000, i64::MAX as u64, u64::MAX] {
            assert_eq!(clock.time_in(Duration::from_secs(secs)), "9999-12-31T23:59:59Z");
        }
    }
}
