//! The schedule of a CronJob: five fields or a descriptor, parsed as github.com/robfig/cron does, with its messages.
//!
//! ```text
//! */15 9-17 * * mon-fri
//! @daily
//! @every 1h30m
//! ```
//!
//! All times are in UTC: this crate has no database of time zones. The CronJob controller uses its own time zone or the one of the
//! CronJob. The longest pause is the same in each, but for the hour of daylight saving time.

use std::{
    ops::Range,
    time::{Duration, SystemTime},
};

use crate::time::parse_duration;

/// When a CronJob starts its Jobs.
#[derive(Debug, PartialEq)]
pub enum Schedule {
    /// At the times that match all fields.
    Fields(Fields),
    /// Again and again after this pause, in whole seconds.
    Every(Duration),
}

/// The values of each of the five fields, as bits, and [`ANY`].
#[derive(Debug, PartialEq)]
pub struct Fields {
    minutes: u64,
    hours: u64,
    dates: u64,
    months: u64,
    weekdays: u64,
}

/// The bit of a field that is `*`.
const ANY: u64 = 1 << 63;

/// The least and the greatest value of a field, and the names of its values.
struct Bounds {
    min: u64,
    max: u64,
    /// The name of `min`, and so on.
    names: &'static [&'static str],
}

const MINUTES: Bounds = Bounds { min: 0, max: 59, names: &[] };
const HOURS: Bounds = Bounds { min: 0, max: 23, names: &[] };
const DATES: Bounds = Bounds { min: 1, max: 31, names: &[] };
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
const SEARCH_DAYS_MAX: u64 = 5 * 366;

/// The days in which the longest pause is looked for, counted from the epoch: the years from 2024 to 2032, of which three are leap years.
const SAMPLE_DAYS: Range<u64> = 19_723..23_011;

const DAY_MINUTES: u64 = 24 * 60;

impl Schedule {
    /// Parses a schedule, as `ParseStandard` does.
    ///
    /// # Errors
    ///
    /// Where robfig/cron has an error.
    pub fn parse(text: &str) -> Result<Schedule, String> {
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
        let [minutes, hours, dates, months, weekdays] = fields[..] else {
            let (count, all) = (fields.len(), fields.join(" "));
            return Err(match text.is_empty() {
                true => "empty spec string".to_owned(),
                false => format!("expected exactly 5 fields, found {count}: [{all}]"),
            });
        };
        Ok(Schedule::Fields(Fields {
            minutes: values(minutes, &MINUTES)?,
            hours: values(hours, &HOURS)?,
            dates: values(dates, &DATES)?,
            months: values(months, &MONTHS)?,
            weekdays: values(weekdays, &WEEKDAYS)?,
        }))
    }

    /// The first time after `after`, if there is one.
    pub fn next(&self, after: SystemTime) -> Option<SystemTime> {
        let secs = after.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs();
        let at = |secs: u64| SystemTime::UNIX_EPOCH + Duration::from_secs(secs);
        let fields = match self {
            Schedule::Fields(fields) => fields,
            Schedule::Every(pause) => return Some(at(secs) + *pause),
        };
        // The next whole minute.
        let first = secs / 60 + 1;
        for day in first / DAY_MINUTES..first / DAY_MINUTES + SEARCH_DAYS_MAX {
            if fields.is_on(day)
                && let Some(minute) = fields.times().find(|minute| day * DAY_MINUTES + minute >= first)
            {
                return Some(at((day * DAY_MINUTES + minute) * 60));
            }
        }
        None
    }

    /// The longest pause between two times. `None`: there are no times.
    pub fn longest_pause(&self) -> Option<Duration> {
        let fields = match self {
            Schedule::Fields(fields) => fields,
            Schedule::Every(pause) => return Some(*pause),
        };
        let times: Vec<u64> = fields.times().collect();
        let (first, last) = (times.first()?, times.last()?);
        let mut longest = times.windows(2).map(|pair| pair[1] - pair[0]).max().unwrap_or_default();
        let days: Vec<u64> = SAMPLE_DAYS.filter(|day| fields.is_on(*day)).collect();
        for pair in days.windows(2) {
            longest = longest.max((pair[1] - pair[0]) * DAY_MINUTES + first - last);
        }
        (!days.is_empty()).then(|| Duration::from_secs(longest * 60))
    }
}

impl Fields {
    /// The minutes of a day that match.
    fn times(&self) -> impl Iterator<Item = u64> {
        (0..DAY_MINUTES).filter(|minute| has(self.hours, minute / 60) && has(self.minutes, minute % 60))
    }

    /// Whether a day, counted from the epoch, matches.
    fn is_on(&self, day: u64) -> bool {
        let (month, date) = month_and_date(day);
        // The first day of the epoch was a Thursday.
        let (in_dates, in_weekdays) = (has(self.dates, date), has(self.weekdays, (day + 4) % 7));
        // With both restricted, either of them is enough.
        let is_day = match (self.dates | self.weekdays) & ANY != 0 {
            true => in_dates && in_weekdays,
            false => in_dates || in_weekdays,
        };
        has(self.months, month) && is_day
    }
}

/// The month and the date of a day, counted from the epoch. A year begins in March here, so that its last day may be February 29th:
/// <https://howardhinnant.github.io/date_algorithms.html#civil_from_days>.
fn month_and_date(day: u64) -> (u64, u64) {
    const DAYS_OF_400_YEARS: u64 = 146_097;
    // From the first of March of the year 0.
    let day = (day + 719_468) % DAYS_OF_400_YEARS;
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let date = day - (153 * month + 2) / 5 + 1;
    (if month < 10 { month + 3 } else { month - 9 }, date)
}

fn has(bits: u64, value: u64) -> bool {
    bits & (1 << value) != 0
}

/// Parses a field: ranges with steps, separated by commas.
fn values(field: &str, bounds: &Bounds) -> Result<u64, String> {
    let mut ranges = field.split(',').filter(|range| !range.is_empty());
    ranges.try_fold(0, |bits, range| Ok(bits | range_of(range, bounds)?))
}

/// Parses `*`, `5`, `1-5`, `*/15`, `mon-fri` or `9-17/2`.
fn range_of(range: &str, bounds: &Bounds) -> Result<u64, String> {
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
    let any = if is_any { ANY } else { 0 };
    Ok((start..=end).step_by(step).fold(any, |bits, value| bits | (1 << value)))
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

    fn longest_pause(schedule: &str) -> Result<Option<Duration>, String> {
        Schedule::parse(schedule).map(|schedule| schedule.longest_pause())
    }

    #[test]
    fn the_longest_pause_is_between_the_two_most_distant_times() {
        const HOURS: u64 = 60;
        const DAYS: u64 = 24 * HOURS;
        for (schedule, minutes) in [
            ("* * * * *", 1),
            ("*/15 * * * *", 15),
            ("*/25 * * * *", 25),
            ("5,35 * * * *", 30),
            ("50/5 * * * *", 55),
            ("0 3 * * *", DAYS),
            ("0 3,15 * * *", 12 * HOURS),
            ("0 3,4 * * ?", 23 * HOURS),
            ("0 9-17 * * MON-FRI", 64 * HOURS),
            ("0 9-17/8 * * 1,2", 5 * DAYS + 16 * HOURS),
            ("0 3 1 * *", 31 * DAYS),
            ("0 3 31 * *", 61 * DAYS),
            ("0 3 1,15 * 0", 7 * DAYS),
            ("0 3 */1 * 0", 7 * DAYS),
            ("0 3 */2 * 0", 2 * DAYS),
            ("0 3 1 jan,jul *", 184 * DAYS),
            ("0 0 29 2 *", 1461 * DAYS),
            ("@hourly", HOURS),
            ("@midnight", DAYS),
            ("@weekly", 7 * DAYS),
            ("@monthly", 31 * DAYS),
            ("@yearly", 366 * DAYS),
            ("@every 1h30m", 90),
        ] {
            assert_eq!(longest_pause(schedule), Ok(Some(Duration::from_secs(minutes * 60))), "{schedule}");
        }
        for schedule in ["every night", "@every", "@every night", "", "0 0 x * *"] {
            assert!(longest_pause(schedule).is_err(), "{schedule}");
        }
    }

    #[test]
    fn a_schedule_with_a_day_that_no_month_has_has_no_times() {
        for schedule in ["0 0 31 2 *", "0 0 30,31 feb ?", "0 0 31 4,6,9,11 */1"] {
            assert_eq!(longest_pause(schedule), Ok(None), "{schedule}");
        }
        for schedule in ["0 0 29 2 *", "0 0 31 2 1", "0 0 31 */2 *", "@every 0s"] {
            assert!(longest_pause(schedule).is_ok_and(|pause| pause.is_some()), "{schedule}");
        }
    }
}
