//! Times and durations in objects and URLs: `2026-11-21T07:14:34Z` and `1h30m`.

use std::time::{Duration, SystemTime};

/// Why a text is not a time.
pub use humantime::TimestampError;

/// The first second that RFC 3339 cannot name, counted from the epoch.
const YEAR_10000: u64 = 253_402_300_800;

/// Parses RFC 3339, also with an offset, which humantime does not accept.
///
/// # Errors
///
/// If it is not RFC 3339. A time before 1970 or after 9999 is [`TimestampError::OutOfRange`].
pub fn parse_time(text: &str) -> Result<SystemTime, TimestampError> {
    let Some((local, &[sign @ (b'+' | b'-'), h10, h1, b':', m10, m1])) = text.as_bytes().split_last_chunk()
    else {
        return humantime::parse_rfc3339(text);
    };
    if ![h10, h1, m10, m1].iter().chain(local.last()).all(u8::is_ascii_digit) {
        return Err(TimestampError::InvalidDigit);
    }
    let [hours, minutes] = [(h10, h1), (m10, m1)].map(|(tens, ones)| (tens - b'0') * 10 + (ones - b'0'));
    // Both ends are allowed: "some people do write offsets of 24 hours or 60 minutes", says time.Parse of Go.
    if hours > 24 || minutes > 60 {
        return Err(TimestampError::OutOfRange);
    }
    let offset = Duration::from_secs(u64::from(hours) * 3600 + u64::from(minutes) * 60);
    let local = humantime::parse_rfc3339(&format!("{}Z", &text[..local.len()]))?;
    let time = if sign == b'+' { local.checked_sub(offset) } else { local.checked_add(offset) };
    let range = SystemTime::UNIX_EPOCH..SystemTime::UNIX_EPOCH + Duration::from_secs(YEAR_10000);
    time.filter(|time| range.contains(time)).ok_or(TimestampError::OutOfRange)
}

/// Parses a duration such as `1h30m`, as Go programs write it; `0` needs no unit. `None` if it is malformed, or longer
/// than 292 years.
pub fn parse_duration(text: &str) -> Option<Duration> {
    let (mut rest, mut total) = (text, Duration::ZERO);
    while !rest.is_empty() && text != "0" {
        let unit_at = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let (number, behind) = rest.split_at(unit_at);
        let end = behind.find(|c: char| c.is_ascii_digit() || c == '.').unwrap_or(behind.len());
        let (unit, behind) = behind.split_at(end);
        let secs = match unit {
            "ns" => 1e-9,
            "us" | "µs" => 1e-6,
            "ms" => 1e-3,
            "s" => 1.0,
            "m" => 60.0,
            "h" => 3600.0,
            _ => return None,
        };
        let part = Duration::try_from_secs_f64(number.parse::<f64>().ok()? * secs).ok()?;
        total = total.checked_add(part)?;
        rest = behind;
    }
    let is_valid = !text.is_empty() && i64::try_from(total.as_nanos()).is_ok();
    is_valid.then_some(total)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_may_have_an_offset() {
        let utc = humantime::parse_rfc3339("2026-11-21T08:00:00Z");
        let same = ["2026-11-21T08:00:00Z", "2026-11-21T09:30:00+01:30", "2026-11-21T06:30:00.0-01:30"];
        assert_eq!(same.map(parse_time), [utc; 3]);
        for bad in [
            "2026-11-21T08:00:00",
            "2026-11-21 08:00:00+01:00",
            "2026-11-21T08:00:00+0x:00",
            "é+01:00",
            "2026-11-21T08:00:00Z+01:00",
        ] {
            assert!(parse_time(bad).is_err(), "{bad}");
        }
        for far in [
            "1734-08-16T10:53:44Z",
            "2026-11-21T08:00:00+25:00",
            "1734-08-16T10:53:44-00:30",
            "1970-01-01T00:30:00+01:00",
            "9999-12-31T23:30:00-01:00",
        ] {
            assert_eq!(parse_time(far), Err(TimestampError::OutOfRange), "{far}");
        }
    }
}
