//! The health of a watch, for `/livez`, `/readyz` and the log; after a 403, with the RBAC verbs to grant.

#[cfg(feature = "webhook")]
use std::pin::pin;
use std::{mem, sync::Mutex, time::Duration};

use humantime::FormattedDuration;
use tokio::{sync::Notify, time::Instant};
use tracing::{info, warn};

use crate::{
    client::{Collection, Error},
    locked,
    metrics::WatchMetrics,
};

/// How late a watch may be before it counts as stuck: a machine under load is slow, not dead.
const GRACE: Duration = Duration::from_secs(30);
/// How long a watch fails for another reason before the objects that wait for it say so in their status. Most failures end sooner, and
/// each object would be written twice.
const FAILURE_GRACE: Duration = Duration::from_secs(60);
/// How long a watch fails before that is logged again. Each later line comes after twice the time.
const REMINDER_FIRST: Duration = Duration::from_secs(5 * 60);
/// Longest time between two such lines: a day has 26 of them.
const REMINDER_MAX: Duration = Duration::from_secs(60 * 60);

/// The state of one watch.
#[derive(Debug)]
pub struct Health {
    /// The watched collection, for people: `deployments in all namespaces, labels app=web`.
    what: String,
    state: Mutex<Progress>,
    /// The first list is complete.
    synced: Notify,
    metrics: Option<WatchMetrics>,
}

#[derive(Debug)]
struct Progress {
    /// When the watch will have made progress, or given up waiting. `None`: it waits for other lists.
    due: Option<Instant>,
    outage: Option<Outage>,
    is_synced: bool,
    has_ended: bool,
    /// When the last bytes came, or the watch began.
    heard: Instant,
    /// How the last request ended.
    end: Option<&'static str>,
    /// Why the present list began, until it is complete.
    list: Option<&'static str>,
}

/// A watch that fails.
#[derive(Debug)]
struct Outage {
    /// Why it failed the last time.
    problem: String,
    /// Whether a permission is missing.
    is_forbidden: bool,
    since: Instant,
    /// When the next reminder is logged.
    remind_at: Instant,
    /// How long after that the next one follows.
    next_reminder: Duration,
}

/// Marks a watch as ended when dropped, also by a panic.
#[must_use]
pub(crate) struct Ended<'a>(&'a Health);

impl Drop for Ended<'_> {
    fn drop(&mut self) {
        locked(&self.0.state).has_ended = true;
    }
}

impl Health {
    /// For a watch that is about to begin.
    #[must_use]
    pub fn new(what: String) -> Health {
        Health {
            what,
            state: Mutex::new(Progress {
                due: Some(Instant::now() + GRACE),
                outage: None,
                is_synced: false,
                has_ended: false,
                heard: Instant::now(),
                end: None,
                list: None,
            }),
            synced: Notify::new(),
            metrics: None,
        }
    }

    /// Counts here.
    pub(crate) fn measured_by(self, metrics: WatchMetrics) -> Health {
        Health { metrics: Some(metrics), ..self }
    }

    /// The watched collection, for people.
    #[must_use]
    pub fn what(&self) -> &str {
        &self.what
    }

    /// The watch will make progress within this time.
    pub(super) fn set_deadline(&self, time: Duration) {
        locked(&self.state).due = Some(Instant::now() + time);
    }

    /// The watch may wait for any time, such as for other lists.
    pub(super) fn clear_deadline(&self) {
        locked(&self.state).due = None;
    }

    /// Bytes of a watch or a page of a list came.
    pub(super) fn heard(&self) {
        locked(&self.state).heard = Instant::now();
    }

    /// A line is complete.
    pub(super) fn heard_line(&self, bytes: usize) {
        self.metrics.iter().for_each(|metrics| metrics.line(bytes));
    }

    /// A list of the whole collection begins, or is tried again.
    pub(super) fn list_begins(&self) {
        let mut state = locked(&self.state);
        let reason = state.end.unwrap_or("Start");
        state.list.get_or_insert(reason);
    }

    /// A request has ended.
    pub(super) fn ended(&self, reason: &'static str) {
        locked(&self.state).end = Some(reason);
        self.metrics.iter().for_each(|metrics| metrics.ended(reason));
    }

    /// The time since the last bytes.
    pub(crate) fn silence(&self) -> Duration {
        locked(&self.state).heard.elapsed()
    }

    /// `stuck`, `failing`, `listing` or `synced`.
    pub(crate) fn state(&self) -> &'static str {
        match () {
            () if self.is_stuck() => "stuck",
            () if self.problem().is_some() => "failing",
            () if self.is_synced() => "synced",
            () => "listing",
        }
    }

    /// The watch is open, or a list was read.
    pub(super) fn succeeded(&self) {
        if let Some(outage) = locked(&self.state).outage.take() {
            info!(watch = self.what, lasted = %outage.lasted(Instant::now()), "watching again");
        }
    }

    /// The watch failed. Logged once for each problem, not for each attempt, and again while it lasts. Returns whether a
    /// permission is missing since now.
    pub(super) fn failed(&self, problem: String, is_forbidden: bool) -> bool {
        let now = Instant::now();
        let mut state = locked(&self.state);
        let outage = state.outage.get_or_insert_with(|| Outage::new(now));
        if outage.reminds(now) {
            warn!(watch = self.what, problem, lasted = %outage.lasted(now), "still failing");
        } else if outage.problem != problem {
            warn!(watch = self.what, problem, "cannot watch; trying again");
        }
        outage.problem = problem;
        let was_forbidden = mem::replace(&mut outage.is_forbidden, is_forbidden);
        is_forbidden && !was_forbidden
    }

    /// The last problem of a watch that has failed because a permission is missing.
    pub(crate) fn forbidden(&self) -> Option<String> {
        let state = locked(&self.state);
        state.outage.as_ref().filter(|outage| outage.is_forbidden).map(|outage| outage.problem.clone())
    }

    /// A list is complete: the Store has this many objects.
    pub(super) fn list_ends(&self, objects: usize) {
        let mut state = locked(&self.state);
        if let (Some(reason), Some(metrics)) = (state.list.take(), &self.metrics) {
            metrics.listed(reason);
        }
        if !mem::replace(&mut state.is_synced, true) {
            info!(watch = self.what, objects, "synced");
            self.synced.notify_waiters();
        }
    }

    /// Waits until the first list is complete.
    #[cfg(feature = "webhook")]
    pub(crate) async fn until_synced(&self) {
        let mut synced = pin!(self.synced.notified());
        // Before the look, so that a list that is complete meanwhile counts.
        synced.as_mut().enable();
        if !self.is_synced() {
            synced.await;
        }
    }

    /// Whether the first list is complete.
    #[must_use]
    pub fn is_synced(&self) -> bool {
        locked(&self.state).is_synced
    }

    /// Why the watch fails, if it does.
    #[must_use]
    pub(crate) fn problem(&self) -> Option<String> {
        locked(&self.state).outage.as_ref().map(|outage| outage.problem.clone())
    }

    /// Why the watch fails, if it is forbidden, or has failed for a minute.
    pub(crate) fn lasting_problem(&self) -> Option<String> {
        let state = locked(&self.state);
        let lasts = |outage: &&Outage| outage.is_forbidden || outage.since.elapsed() >= FAILURE_GRACE;
        state.outage.as_ref().filter(lasts).map(|outage| outage.problem.clone())
    }

    pub(crate) fn ended_when_dropped(&self) -> Ended<'_> {
        Ended(self)
    }

    /// Whether the watch has made no progress in time, or has ended.
    #[must_use]
    pub fn is_stuck(&self) -> bool {
        let state = locked(&self.state);
        state.has_ended || state.due.is_some_and(|due| Instant::now() > due + GRACE)
    }
}

/// The error of a list or watch, and what to do about it.
pub(super) fn problem(error: &Error, collection: &Collection) -> String {
    let plural = &collection.resource;
    let group = match collection.group() {
        "" => "\"\"",
        group => group,
    };
    if error.is_forbidden() {
        return format!(
            "{error}; grant the verbs list and watch on the resource {plural} of API group {group}"
        );
    }
    if error.is_missing_kind() {
        let command = match collection.install {
            "" => String::new(),
            command => format!(": {command}"),
        };
        return format!("{error}; install the CustomResourceDefinition {plural}.{group}{command}");
    }
    error.to_string()
}

impl Outage {
    fn new(now: Instant) -> Outage {
        Outage {
            problem: String::new(),
            is_forbidden: false,
            since: now,
            remind_at: now + REMINDER_FIRST,
            next_reminder: REMINDER_FIRST,
        }
    }

    /// Whether a reminder is due.
    fn reminds(&mut self, now: Instant) -> bool {
        if now < self.remind_at {
            return false;
        }
        self.next_reminder = REMINDER_MAX.min(self.next_reminder * 2);
        self.remind_at = now + self.next_reminder;
        true
    }

    /// `5m 3s`
    fn lasted(&self, now: Instant) -> FormattedDuration {
        humantime::format_duration(Duration::from_secs(now.duration_since(self.since).as_secs()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::captured_log::CapturedLog;

    #[test]
    fn an_outage_is_logged_again_after_five_minutes_and_then_less_and_less_often() {
        let begun = Instant::now();
        let mut outage = Outage::new(begun);
        let attempts = (0..=24 * 60).map(|minutes| begun + Duration::from_secs(minutes * 60));
        let reminded: Vec<_> = attempts.filter(|now| outage.reminds(*now)).collect();
        let times: Vec<_> = reminded.iter().map(|now| outage.lasted(*now).to_string()).collect();
        assert_eq!(times[..5], ["5m", "15m", "35m", "1h 15m", "2h 15m"]);
        assert_eq!(times.len(), 26);
    }

    #[tokio::test(start_paused = true)]
    async fn an_outage_is_logged_at_its_start_at_each_new_problem_now_and_then_and_at_its_end() {
        let log = CapturedLog::start();
        let health = Health::new("pods".to_owned());
        for (problem, minutes) in [("cut", 1), ("cut", 1), ("403", 3), ("403", 1)] {
            health.failed(problem.to_owned(), false);
            tokio::time::advance(Duration::from_secs(60 * minutes)).await;
        }
        health.failed("403".to_owned(), false);
        health.succeeded();
        health.succeeded();
        let log = log.text();
        let lines: Vec<_> = log.lines().filter_map(|line| line.split_once("health: ")).collect();
        let lines: Vec<_> = lines.into_iter().map(|(_, line)| line).collect();
        assert_eq!(
            lines,
            [
                "cannot watch; trying again watch=\"pods\" problem=\"cut\"",
                "cannot watch; trying again watch=\"pods\" problem=\"403\"",
                "still failing watch=\"pods\" problem=\"403\" lasted=5m",
                "watching again watch=\"pods\" lasted=6m",
            ],
            "{log}"
        );
    }

    #[test]
    fn a_missing_permission_is_new_once_in_each_outage() {
        let health = Health::new("services".to_owned());
        for _ in 0..2 {
            assert!(!health.failed("500".to_owned(), false));
            assert_eq!(health.forbidden(), None);
            assert!(health.failed("403: list".to_owned(), true));
            assert!(!health.failed("403: watch".to_owned(), true));
            assert_eq!(health.forbidden().as_deref(), Some("403: watch"));
            health.succeeded();
        }
    }

    /// `/livez` fails for it, and the process is restarted.
    #[tokio::test(start_paused = true)]
    async fn a_watch_is_stuck_when_it_is_late_or_has_ended_but_not_while_other_lists_are_read() {
        let after = async |secs| tokio::time::advance(Duration::from_secs(secs)).await;
        let health = Health::new("services".to_owned());
        assert_eq!(health.what(), "services");
        health.set_deadline(Duration::from_secs(100));
        after(130).await;
        assert!(!health.is_stuck());
        after(1).await;
        assert!(health.is_stuck());
        health.clear_deadline();
        after(3600).await;
        assert!(!health.is_stuck());
        health.set_deadline(Duration::ZERO);
        assert!(!health.is_stuck());
        drop(health.ended_when_dropped());
        assert!(health.is_stuck());
    }
}
