//! How far apart the backups of a schedule are, at most. Nothing in this file does I/O.
//!
//! ```text
//! 0 3 * * *           a day
//! 0 9-17 * * mon-fri  64 hours: from Friday, 17:00, to Monday, 9:00
//! @every 90m          90 minutes
//! ```
//!
//! The CronJob controller decides when a backup begins, in its own time zone or the CronJob's, which this file does not need to know:
//! the longest pause between two times is the same in each, but for the hour of daylight saving time. The API server has checked the schedule.

use std::time::Duration;

/// The years in which the days of a schedule are looked for: three leap years. The first day is a Monday.
const YEARS: std::ops::RangeInclusive<u64> = 2024..=2032;

const MONTHS: [&str; 12] =
    ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"];
const WEEKDAYS: [&str; 7] = ["sun", "mon", "tue", "wed", "thu", "fri", "sat"];

/// The longest pause between two times of a schedule. `None`: it has no times, or is in no form that we know.
pub(super) fn longest_pause(schedule: &str) -> Option<Duration> {
    pause_of(schedule).flatten()
}

/// Whether a schedule has no times, as `0 0 31 2 *`. The API server accepts it, and the CronJob controller reports nothing.
pub(super) fn never_comes(schedule: &str) -> bool {
    pause_of(schedule) == Some(None)
}

/// The longest pause between two times, if there are two. `None`: the schedule is in no form that we know.
fn pause_of(schedule: &str) -> Option<Option<Duration>> {
    if let Some(pause) = schedule.strip_prefix("@every ") {
        return humantime::parse_duration(pause).ok().map(Some);
    }
    let fields = match schedule {
        "@yearly" | "@annually" => "0 0 1 1 *",
        "@monthly" => "0 0 1 * *",
        "@weekly" => "0 0 * * 0",
        "@daily" | "@midnight" => "0 0 * * *",
        "@hourly" => "0 * * * *",
        fields => fields,
    };
    let fields: Vec<&str> = fields.split_whitespace().collect();
    let [minutes, hours, dates, months, weekdays] = fields[..] else { return None };
    // With both restricted, either of them is enough.
    let is_either = !is_any(dates) && !is_any(weekdays);
    let (minutes, hours) = (values(minutes, 0, 59, &[])?, values(hours, 0, 23, &[])?);
    let (dates, months) = (values(dates, 1, 31, &[])?, values(months, 1, 12, &MONTHS)?);
    let weekdays = values(weekdays, 0, 6, &WEEKDAYS)?;
    let is_day = |date, weekday| match is_either {
        true => has(dates, date) || has(weekdays, weekday),
        false => has(dates, date) && has(weekdays, weekday),
    };

    let times: Vec<u64> =
        (0..24 * 60).filter(|time| has(hours, time / 60) && has(minutes, time % 60)).collect();
    let (first, last) = (times.first()?, times.last()?);
    let mut longest = times.windows(2).map(|pair| pair[1] - pair[0]).max().unwrap_or_default();
    let (mut day, mut before) = (0, None);
    for year in YEARS {
        for month in 1..=12 {
            for date in 1..=days_of(year, month) {
                if has(months, month) && is_day(date, (day + 1) % 7) {
                    let pause = before.map(|before| (day - before) * 24 * 60 + first - last);
                    longest = longest.max(pause.unwrap_or_default());
                    before = Some(day);
                }
                day += 1;
            }
        }
    }
    Some(before.map(|_| Duration::from_secs(longest * 60)))
}

fn days_of(year: u64, month: u64) -> u64 {
    match month {
        2 if year.is_multiple_of(4) => 29,
        2 => 28,
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    }
}

fn is_any(field: &str) -> bool {
    field.split(',').any(|part| matches!(part, "*" | "?" | "*/1" | "?/1"))
}

fn has(values: u64, value: u64) -> bool {
    values & (1 << value) != 0
}

/// The values of a field, as bits: `*`, `5`, `1-5`, `*/15`, `mon-fri`, and several of these.
fn values(field: &str, min: u64, max: u64, names: &[&str]) -> Option<u64> {
    let number = |text: &str| match names.iter().position(|name| name.eq_ignore_ascii_case(text)) {
        Some(at) => u64::try_from(at).ok().map(|at| min + at),
        None => text.parse().ok(),
    };
    let mut all = 0;
    for part in field.split(',').filter(|part| !part.is_empty()) {
        let (range, step) = part.split_once('/').unwrap_or((part, "1"));
        let (first, last) = match range.split_once('-') {
            _ if range.starts_with(['*', '?']) => (min, max),
            Some((first, last)) => (number(first)?, number(last)?),
            None if part.contains('/') => (number(range)?, max),
            None => (number(range)?, number(range)?),
        };
        let step = step.parse::<usize>().ok()?.max(1);
        (first..=last.min(max)).step_by(step).for_each(|value| all |= 1 << value);
    }
    Some(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_pause_is_that_between_the_most_distant_times() {
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
            assert_eq!(longest_pause(schedule), Some(Duration::from_secs(minutes * 60)), "{schedule}");
        }
        for schedule in ["every night", "@every", "@every night", "", "0 0 x * *"] {
            assert_eq!(pause_of(schedule), None, "{schedule}");
        }
    }

    #[test]
    fn a_schedule_with_a_day_that_no_month_has_never_comes() {
        for schedule in ["0 0 31 2 *", "0 0 30,31 feb ?", "0 0 31 4,6,9,11 */1"] {
            assert!(never_comes(schedule), "{schedule}");
        }
        // With both restricted, either of them is enough.
        for schedule in ["0 0 29 2 *", "0 0 31 2 1", "0 0 31 */2 *", "@every 0s", "every night"] {
            assert!(!never_comes(schedule), "{schedule}");
        }
    }
}
