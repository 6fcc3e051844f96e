//! What a page is sent: all so far, and then what is new. The record of a server is read on from where it was read to; a proxy marks what is new.
//! All is bounded, and the oldest is forgotten.

use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
    time::{Duration, Instant, SystemTime},
};

use listwatch_apiserver::{ApiServer, REQUESTS_MAX};
use listwatch_scorecard::{EVENTS_MAX, Journal};
use serde_json::{Value, json};

use crate::{
    Recording, Report, document,
    recording::{Recorder, WRITES_MAX},
};

/// Most entries that a new page is sent.
const ENTRIES_MAX: usize = REQUESTS_MAX + EVENTS_MAX + WRITES_MAX;

/// A pause lasts so many times as long as what it follows.
pub(super) const PAUSES: u32 = 10;

/// Most requests, events and writes that a report judges: the latest. 10,000 writes of 1,000 objects take a second or two.
const JUDGED_MAX: usize = 10_000;

/// When a report is made again although nothing is new: some rules wait for time.
const REPORT_AGE_MAX: Duration = Duration::from_secs(5);

/// Who records what a page shows.
pub(super) enum Source {
    Server(Arc<ApiServer>),
    Proxy(Arc<Recorder>),
}

/// Reads the record.
#[derive(Default)]
pub(super) struct Reader {
    recording: Recording,
    requests: u64,
    events: u64,
    version: u64,
    has_changed: bool,
    /// When the last report was begun.
    reported: Option<Instant>,
}

/// An entry of the document, as JSON.
pub(super) struct Entry {
    number: u64,
    text: String,
    /// It comes again when it ends.
    is_open: bool,
}

/// What a page can know.
pub(super) struct News {
    start: String,
    /// Which controls there are.
    offer: Value,
    /// An entry that came again is empty.
    entries: VecDeque<String>,
    /// How many were dropped before them.
    dropped: u64,
    /// The positions of the open ones, by number.
    open: HashMap<u64, u64>,
    /// How many of the dropped a page would show.
    forgotten: usize,
    report: Arc<str>,
    controls: Arc<str>,
    /// Why there is no more.
    pub(super) end: Option<String>,
}

/// What a page knows.
#[derive(Default)]
pub(super) struct Seen {
    /// How many entries there were. `None`: it knows nothing.
    entries: Option<u64>,
    report: Arc<str>,
    controls: Arc<str>,
    pub(super) has_end: bool,
}

impl Source {
    pub(super) fn now(&self) -> SystemTime {
        match self {
            Source::Server(server) => server.now(),
            Source::Proxy(_) => SystemTime::now(),
        }
    }
}

impl Reader {
    /// Reads what is new.
    pub(super) fn entries(&mut self, source: &Source) -> Vec<Entry> {
        let has_news = match source {
            Source::Server(server) => self.read_on(server),
            Source::Proxy(recorder) => match recorder.news() {
                Some(mut news) => {
                    news.started = self.recording.started.or(news.started);
                    self.recording = news;
                    true
                }
                None => false,
            },
        };
        if !has_news {
            return Vec::new();
        }
        self.has_changed = true;
        let start = self.start(source.now());
        let entries = document::entries(&self.recording, start);
        let entries = entries.into_iter().map(|entry| Entry {
            number: entry["n"].as_u64().unwrap_or_default(),
            is_open: entry["kind"] == "request" && entry["took"].is_null(),
            text: entry.to_string(),
        });
        entries.collect()
    }

    /// Returns whether there is anything new.
    fn read_on(&mut self, server: &ApiServer) -> bool {
        let journal = self.journal(server);
        let has_news =
            !journal.requests.is_empty() || !journal.writes.is_empty() || !journal.events.is_empty();
        if has_news {
            self.recording.forget(REQUESTS_MAX, WRITES_MAX, EVENTS_MAX);
            self.recording.append(&journal);
        }
        has_news
    }

    /// When the times begin: it stays when the first requests are forgotten.
    pub(super) fn start(&mut self, now: SystemTime) -> SystemTime {
        let is_empty = self.recording.requests.is_empty();
        let start = if is_empty { now } else { self.recording.start() };
        *self.recording.started.get_or_insert(start)
    }

    /// Events come first: their writes and watches are then recorded, and so are the writes of the requests.
    fn journal(&mut self, server: &ApiServer) -> Journal {
        let (events, requests);
        let before = [self.events, self.requests];
        (events, self.events) = server.events_since(self.events);
        (requests, self.requests) = server.requests_since(self.requests);
        // Nobody reads while no page is open, and the server keeps the latest alone.
        let dropped = |before: u64, now: u64, read: usize| {
            usize::try_from(now - before).unwrap_or(usize::MAX).saturating_sub(read)
        };
        let forgotten = &mut self.recording.forgotten;
        forgotten.events += dropped(before[0], self.events, events.len());
        forgotten.requests += dropped(before[1], self.requests, requests.len());
        let writes = server.writes_since(self.version);
        self.version = writes.last().map_or(self.version, |write| write.version);
        Journal { requests, writes, events, log: String::new() }
    }

    /// What a report is made of, if there is a reason for one. It is a copy, so that others can read on meanwhile.
    pub(super) fn judged(&mut self, now: SystemTime) -> Option<Recording> {
        let is_old = self.reported.is_none_or(|began| began.elapsed() > REPORT_AGE_MAX);
        if !self.has_changed && !is_old {
            return None;
        }
        (self.reported, self.has_changed) = (Some(Instant::now()), false);
        let mut recent = self.recording.recent(JUDGED_MAX);
        recent.runs_until = Some(now);
        Some(recent)
    }
}

impl News {
    pub(super) fn new(start: SystemTime, offer: Value) -> News {
        News {
            start: humantime::format_rfc3339_micros(start).to_string(),
            offer,
            entries: VecDeque::new(),
            dropped: 0,
            open: HashMap::new(),
            forgotten: 0,
            report: "null".into(),
            controls: "null".into(),
            end: None,
        }
    }

    /// Takes a report. Returns whether it says anything new.
    pub(super) fn judge(&mut self, report: &Report) -> bool {
        let report = report.json().to_string();
        let is_new = *report != *self.report;
        if is_new {
            self.report = report.into();
        }
        is_new
    }

    /// Adds what is new. Returns whether anything is.
    pub(super) fn add(&mut self, entries: Vec<Entry>, controls: &str) -> bool {
        let has_news = !entries.is_empty() || *controls != *self.controls;
        for Entry { number, text, is_open } in entries {
            let former = self.open.remove(&number).and_then(|at| at.checked_sub(self.dropped));
            if let Some(former) = former.and_then(|at| self.entries.get_mut(usize::try_from(at).ok()?)) {
                former.clear();
            }
            if is_open {
                self.open.insert(number, self.total());
            }
            self.entries.push_back(text);
        }
        let surplus = self.entries.len().saturating_sub(ENTRIES_MAX);
        self.forgotten += self.entries.drain(..surplus).filter(|text| !text.is_empty()).count();
        self.dropped += surplus as u64;
        if *controls != *self.controls {
            self.controls = controls.into();
        }
        has_news
    }

    /// How many entries there were.
    fn total(&self) -> u64 {
        self.dropped + self.entries.len() as u64
    }

    /// The server-sent events with what a page does not know. Empty: it knows all.
    pub(super) fn since(&self, seen: &mut Seen) -> String {
        let (mut text, total) = (String::new(), self.total());
        let mut event = |name: &str, data: &str| text += &format!("event: {name}\ndata: {data}\n\n");
        match seen.entries.replace(total) {
            None => {
                event("recording", &self.document(&self.offer));
                seen.report = Arc::clone(&self.report);
            }
            Some(known) if known < total => event("entries", &self.entries_since(known)),
            Some(_) => {}
        }
        if self.report != seen.report {
            event("report", &self.report);
            seen.report = Arc::clone(&self.report);
        }
        if self.controls != seen.controls {
            event("controls", &self.controls);
            seen.controls = Arc::clone(&self.controls);
        }
        if let Some(why) = self.end.as_ref().filter(|_| !seen.has_end) {
            event("end", &json!({"why": why}).to_string());
            seen.has_end = true;
        }
        text
    }

    /// All so far. Without controls, it is `null`.
    pub(super) fn document(&self, controls: &Value) -> String {
        let News { start, forgotten, report, .. } = self;
        let entries = self.entries_since(0);
        format!(
            r#"{{"start":"{start}","forgotten":{forgotten},"entries":{entries},"report":{report},"controls":{controls}}}"#
        )
    }

    /// `[{…},{…}]`
    fn entries_since(&self, known: u64) -> String {
        let from = usize::try_from(known.saturating_sub(self.dropped)).unwrap_or(usize::MAX);
        let entries = self.entries.range(from.min(self.entries.len())..);
        let entries: Vec<&str> = entries.map(String::as_str).filter(|text| !text.is_empty()).collect();
        format!("[{}]", entries.join(","))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A page that was opened late had a gap, and did not say so.
    #[tokio::test]
    async fn what_the_server_dropped_before_it_was_read_is_forgotten() {
        let server = ApiServer::in_process(&listwatch_apiserver::Options::default(), SystemTime::now());
        let request = || http::Request::get("/version").body(http_body_util::Empty::<bytes::Bytes>::new());
        for _ in 0..3 {
            server.answer(request().expect("a request")).await.expect("an answer");
        }
        server.forget_requests();
        server.answer(request().expect("a request")).await.expect("an answer");
        let mut reader = Reader::default();
        assert!(reader.read_on(&server));
        assert_eq!((reader.recording.requests.len(), reader.recording.forgotten.requests), (1, 3));
    }
}
