//! The schedule of a CronJob: five fields or a descriptor, parsed as github.com/robfig/cron does, with its messages.
//!
//! ```text
//! */15 9-17 * * mon-fri
//! @daily
//! @every 1h30m
//! ```
//!
//! All times are in UTC. This server has no database of time zones.

use std::time::{Duration, SystemTime};

use listwatch_formats::time::parse_duration;

/// When a CronJob starts its Jobs.
#[derive(Debug, PartialEq)]
pub(crate) enum Schedule {
    Fields { minutes: Times, hours: Times, days: Times, months: Times, weekdays: Times },
    Every(Duration),
}

/// The values of a field, as bits, and whether the field is `*`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Times {
    bits: u64,
    is_any: bool,
}

/// The least and the greatest value of a field, and the names of its values.
struct Bounds {
    min: u64,
    max: u64,
    /// The name of `min`, and so on.
    names: &'static [&'static str],
}

const MINUTES: Bounds = Bounds { min: 0, max: 59, names: &[] };
const HOURS: Bounds = Bounds { min: 0, max: 23, names: &[] };
const DAYS: Bounds = Bounds { min: 1, max: 31, names: &[] };
const MONTHS: Bounds = Bounds {
    min: 1,
    max: 12,
    names: &["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"],
};
const WEEKDAYS: Bounds = Bounds { min: 0, max: 6, names: &["sun", "mon", "tue", "wed", "thu", "fri", "sat"] };

/// The five fields that each descriptor stands for.
const DESCRIPTORS: [(&str, &str); 7] = [
    ("@yearly", "0 0 1 1 *"),
    ("@annually", "0 0 1 1 *"),
    ("@monthly", "0 0 1 * *"),
    ("@weekly", "0 0 * * 0"),
    ("@daily", "0 0 * * *"),
    ("@midnight", "0 0 * * *"),
    ("@hourly", "0 * * * *"),
];

/// A schedule that has no time within five years has none: `0 0 31 2 *`.
const DAYS_MAX: u64 = 5 * 366;

const DAY: u64 = 86_400;

impl Schedule {
    pub(crate) fn parse(text: &str) -> Result<Schedule, String> {
        let mut text = text;
        if text.starts_with("TZ=") || text.starts_with("CRON_TZ=") {
            // kube-apiserver refuses a time zone in the schedule, after it has parsed the rest.
            let Some((_, rest)) = text.split_once(' ') else {
                return Err("invalid schedule format".to_owned());
            };
            text = rest.trim();
        }
        if let Some(duration) = text.strip_prefix("@every ") {
            let parsed = parse_duration(duration)
                .ok_or_else(|| format!("failed to parse duration {text}: invalid duration {duration:?}"))?;
            return Ok(Schedule::Every(Duration::from_secs(parsed.as_secs().max(1))));
        }
        if text.starts_with('@') {
            let known = DESCRIPTORS.iter().find(|(name, _)| *name == text);
            text = known.ok_or_else(|| format!("unrecognized descriptor: {text}"))?.1;
        }
        let fields: Vec<&str> = text.split_whitespace().collect();
        let [minutes, hours, days, months, weekdays] = fields[..] else {
            let (count, all) = (fields.len(), fields.join(" "));
            return Err(match text.is_empty() {
                true => "empty spec string".to_owned(),
                false => format!("expected exactly 5 fields, found {count}: [{all}]"),
            });
        };
        Ok(Schedule::Fields {
            minutes: times(minutes, &MINUTES)?,
            hours: times(hours, &HOURS)?,
            days: times(days, &DAYS)?,
            months: times(months, &MONTHS)?,
            weekdays: times(weekdays, &WEEKDAYS)?,
        })
    }

    /// The first time after `after`, if there is one.
    pub(crate) fn next(&self, after: SystemTime) -> Option<SystemTime> {
        let secs = after.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs();
        let at = |secs: u64| SystemTime::UNIX_EPOCH + Duration::from_secs(secs);
        let Schedule::Fields { minutes, hours, .. } = self else {
            let Schedule::Every(pause) = self else { return None };
            return Some(at(secs) + *pause);
        };
        // The next whole minute.
        let first = (secs / 60 + 1) * 60;
        for day in first / DAY..first / DAY + DAYS_MAX {
            if !self.is_on(day) {
                continue;
            }
            for minute in (first.max(day * DAY) - day * DAY) / 60..DAY / 60 {
                if hours.has(minute / 60) && minutes.has(minute % 60) {
                    return Some(at(day * DAY + minute * 60));
                }
            }
        }
        None
    }

    /// Whether a day, counted from the epoch, matches.
    fn is_on(&self, day: u64) -> bool {
        let Schedule::Fields { days, months, weekdays, .. } = self else { return true };
        // 2026-11-21T…
        let date = SystemTime::UNIX_EPOCH + Duration::from_secs(day * DAY);
        let date = humantime::format_rfc3339_seconds(date).to_string();
        let part = |range| date.get(range).and_then(|digits: &str| digits.parse().ok()).unwrap_or(0);
        // The first day of the epoch was a Thursday.
        let (in_days, in_weekdays) = (days.has(part(8..10)), weekdays.has((day + 4) % 7));
        let is_day = match days.is_any || weekdays.is_any {
            true => in_days && in_weekdays,
            false => in_days || in_weekdays,
        };
        months.has(part(5..7)) && is_day
    }
}

impl Times {
    fn has(self, value: u64) -> bool {
        self.bits & (1 << value) != 0
    }
}

/// Parses a field: ranges with steps, separated by commas.
fn times(field: &str, bounds: &Bounds) -> Result<Times, String> {
    let mut all = Times { bits: 0, is_any: false };
    for range in field.split(',').filter(|range| !range.is_empty()) {
        let (bits, is_any) = range_of(range, bounds)?;
        all.bits |= bits;
        all.is_any |= is_any;
    }
    Ok(all)
}

/// Parses `*`, `5`, `1-5`, `*/15`, `mon-fri` or `9-17/2`.
fn range_of(range: &str, bounds: &Bounds) -> Result<(u64, bool), String> {
    let parts: Vec<&str> = range.split('/').collect();
    let ends: Vec<&str> = parts[0].split('-').collect();
    let mut is_any = ends[0] == "*" || ends[0] == "?";
    let (start, mut end) = match ends[..] {
        _ if is_any => (bounds.min, bounds.max),
        [one] => (number(one, bounds)?, number(one, bounds)?),
        [first, last] => (number(first, bounds)?, number(last, bounds)?),
        _ => return Err(format!("too many hyphens: {range}")),
    };
    let step = match parts[..] {
        [_] => 1,
        [_, step] => {
            let step = number(step, &Bounds { names: &[], ..*bounds })?;
            if ends.len() == 1 {
                end = bounds.max;
            }
            is_any &= step <= 1;
            step
        }
        _ => return Err(format!("too many slashes: {range}")),
    };
    let (min, max) = (bounds.min, bounds.max);
    if start < min {
        return Err(format!("beginning of range ({start}) below minimum ({min}): {range}"));
    }
    if end > max {
        return Err(format!("end of range ({end}) above maximum ({max}): {range}"));
    }
    if start > end {
        return Err(format!("beginning of range ({start}) beyond end of range ({end}): {range}"));
    }
    if step == 0 {
        return Err(format!("step of range should be a positive number: {range}"));
    }
    let step = usize::try_from(step).unwrap_or(usize::MAX);
    Ok(((start..=end).step_by(step).fold(0, |bits, value| bits | (1 << value)), is_any))
}

/// Parses a value of a field, by name or by number.
fn number(text: &str, bounds: &Bounds) -> Result<u64, String> {
    if let Some(at) = bounds.names.iter().position(|name| text.eq_ignore_ascii_case(name)) {
        return Ok(bounds.min + at as u64);
    }
    let number: i64 = text.parse().map_err(|_| format!("failed to parse int from {text}"))?;
    u64::try_from(number).map_err(|_| format!("negative number ({number}) not allowed: {text}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn next(schedule: &str, after: &str) -> String {
        let after = humantime::parse_rfc3339(after).expect("a time");
        let schedule = Schedule::parse(schedule).expect("a schedule");
        schedule
            .next(after)
            .map_or("never".to_owned(), |at| humantime::format_rfc3339_seconds(at).to_string())
    }

    #[test]
    fn the_next_time_is_that_of_robfig_cron() {
        for (schedule, after, expected) in [
            ("*/15 * * * *", "2026-11-21T07:14:34Z", "2026-11-21T07:15:00Z"),
            ("*/15 * * * *", "2026-11-21T07:15:00Z", "2026-11-21T07:30:00Z"),
            ("0 3 * * *", "2026-12-31T03:00:00Z", "2027-01-01T03:00:00Z"),
            // A Saturday; then Monday to Friday.
            ("30 9-17/4 * * mon-fri", "2026-11-21T07:00:00Z", "2026-11-23T09:30:00Z"),
            // With both days restricted, either matches.
            ("0 0 1 * 0", "2026-11-21T07:00:00Z", "2026-11-22T00:00:00Z"),
            ("0 0 29 feb ?", "2026-11-21T07:00:00Z", "2028-02-29T00:00:00Z"),
            ("0 0 31 2 *", "2026-11-21T07:00:00Z", "never"),
            ("@weekly", "2026-11-21T07:00:00Z", "2026-11-22T00:00:00Z"),
            ("@every 1h30m", "2026-11-21T07:00:01Z", "2026-11-21T08:30:01Z"),
            ("5/20 * * * *", "2026-11-21T07:14:34Z", "2026-11-21T07:25:00Z"),
        ] {
            assert_eq!(next(schedule, after), expected, "{schedule}");
        }
    }
}
