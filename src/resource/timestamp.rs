//! A time in an object's metadata, kept as a number: `"2026-11-22T06:39:00Z"`, in whole seconds and UTC.

use std::{
    fmt,
    num::NonZeroU64,
    time::{Duration, SystemTime},
};

use listwatch_formats::time::{TimestampError, parse_time};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use smol_str::SmolStr;

/// A time in whole seconds, from 1970 on; earlier times are read as 1970. In eight bytes, also as an `Option`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Timestamp(NonZeroU64);

impl From<SystemTime> for Timestamp {
    fn from(time: SystemTime) -> Timestamp {
        let since = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        Timestamp(NonZeroU64::MIN.saturating_add(since.as_secs()))
    }
}

impl From<Timestamp> for SystemTime {
    fn from(Timestamp(time): Timestamp) -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_secs(time.get() - NonZeroU64::MIN.get())
    }
}

impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        humantime::format_rfc3339_seconds((*self).into()).fmt(f)
    }
}

impl fmt::Debug for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Serialize for Timestamp {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Timestamp {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Timestamp, D::Error> {
        let text = SmolStr::deserialize(deserializer)?;
        match parse_time(&text) {
            Ok(time) => Ok(time.into()),
            // With a very long grace period, the API server computes a deletionTimestamp in the past.
            Err(TimestampError::OutOfRange) => Ok(SystemTime::UNIX_EPOCH.into()),
            Err(error) => Err(de::Error::custom(error)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_comes_out_as_it_went_in_and_is_ordered() {
        let read = |text: &str| serde_json::from_value::<Timestamp>(text.into()).expect("a time");
        let times =
            ["1970-01-01T00:00:00Z", "2026-11-22T06:39:00Z", "2026-11-22T06:39:01Z", "9999-12-31T23:59:59Z"];
        assert_eq!(times.map(|text| read(text).to_string()), times);
        assert!(times.map(read).is_sorted());
        assert_eq!(size_of::<Option<Timestamp>>(), 8);
        assert!(serde_json::from_value::<Timestamp>("yesterday".into()).is_err());
        // No list with such an object could be read.
        assert_eq!(read("1734-08-16T10:53:44Z").to_string(), times[0]);
    }
}
