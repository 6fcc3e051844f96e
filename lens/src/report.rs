//! Findings and writes, for people and for programs.

use std::{collections::HashMap, fmt::Write as _, time::Duration};

use serde_json::{Value, json};

use super::{
    findings::{Case, Entry, Finding, Severity, short},
    recording::{Effect, Forgotten, Recording, Request, between, milliseconds},
    why::{Relation, Since, Why},
};

/// Most lines of writes in the text. The JSON has all.
const LINES_MAX: usize = 40;

/// What a recording shows.
#[derive(Clone, Debug)]
pub struct Report {
    /// The worst first.
    pub findings: Vec<Finding>,
    /// The writes of the judged clients.
    writes: Vec<Value>,
    /// The judged clients.
    clients: Vec<String>,
    lines: Vec<Line>,
    /// The requests of the judged clients, if none of them writes.
    requests: Vec<String>,
    notes: Vec<String>,
}

/// Writes that are alike.
#[derive(Clone, Debug)]
struct Line {
    text: String,
    why: String,
    took: Vec<Duration>,
    count: usize,
}

impl Report {
    /// Judges all clients of a recording.
    #[must_use]
    pub fn of(recording: &Recording) -> Report {
        let clients = recording.clients();
        let mut report = Report {
            findings: Vec::new(),
            writes: Vec::new(),
            clients: clients.clone(),
            lines: Vec::new(),
            requests: Vec::new(),
            notes: notes(recording),
        };
        let mut known = HashMap::new();
        for client in &clients {
            let case = Case::of(recording, client);
            report.findings.extend(case.findings());
            for why in &case.writes {
                report.writes.push(written(recording, client, why));
                report.add(recording, why, &mut known);
            }
        }
        if report.writes.is_empty() {
            let judged = recording.requests.iter().filter(|request| clients.contains(&request.client));
            report.requests = judged.map(|request| asked(recording, request)).collect();
        }
        report.findings.sort_by_key(|finding| finding.severity);
        report
    }

    fn add(&mut self, recording: &Recording, why: &Why<'_>, known: &mut HashMap<(String, String), usize>) {
        let (mut text, reason) = (described(why), reason(recording, why));
        if self.clients.len() > 1 {
            text = format!("{}: {text}", why.request.client);
        }
        let at = *known.entry((text.clone(), reason.clone())).or_insert_with(|| {
            self.lines.push(Line { text, why: reason, took: Vec::new(), count: 0 });
            self.lines.len() - 1
        });
        self.lines[at].count += 1;
        self.lines[at].took.extend(why.causes.first().map(|cause| cause.took));
    }

    /// The report for people: the worst finding comes first.
    #[must_use]
    pub fn text(&self) -> String {
        let mut text = String::new();
        match self.findings.len() {
            0 => text.push_str("no findings\n"),
            count => _ = writeln!(text, "{}", counted(count, "finding")),
        }
        for (number, finding) in self.findings.iter().enumerate() {
            let note = if finding.severity == Severity::Note { " (note)" } else { "" };
            let _ = writeln!(text, "\n{}. {finding}{note}\n   {}", number + 1, finding.cause);
            for entry in &finding.entries {
                let _ = writeln!(text, "     {}", entry.text);
            }
        }
        let title = if self.requests.is_empty() { "writes, and why" } else { "requests" };
        let _ = writeln!(text, "\n{title}");
        for request in self.requests.iter().take(LINES_MAX) {
            let _ = writeln!(text, "  {request}");
        }
        for line in self.lines.iter().take(LINES_MAX) {
            let count = if line.count == 1 { String::new() } else { format!("{} × ", line.count) };
            let _ = writeln!(text, "  {count}{}\n      {}{}", line.text, line.why, after(&line.took));
        }
        let count = self.lines.len().max(self.requests.len());
        if let Some(left) = count.checked_sub(LINES_MAX).filter(|left| *left > 0) {
            let has_all = if self.requests.is_empty() { "json" } else { "html" };
            let _ = writeln!(text, "  and {left} more; --output {has_all} has all");
        }
        for note in &self.notes {
            let _ = writeln!(text, "\n{note}");
        }
        text
    }

    /// The report for programs.
    #[must_use]
    pub fn json(&self) -> Value {
        let findings = self.findings.iter().map(|finding| {
            let Finding { rule, severity, client, text, cause, entries, count } = finding;
            let entries = entries.iter().map(|Entry { number, text }| json!({"n": number, "text": text}));
            json!({"rule": rule, "severity": format!("{severity:?}").to_lowercase(), "client": client, "text": text,
                "cause": cause, "entries": entries.collect::<Vec<_>>(), "count": count})
        });
        json!({"tool": "listwatch lens", "version": env!("CARGO_PKG_VERSION"), "findings": findings.collect::<Vec<_>>(),
            "clients": self.clients, "writes": self.writes, "notes": self.notes})
    }
}

/// How sure the report is.
fn notes(recording: &Recording) -> Vec<String> {
    let mut notes = Vec::new();
    if recording.infers_events {
        notes.push(
            "The recording has no events: each open watch is taken to have sent the writes of its kind."
                .to_owned(),
        );
    }
    let Forgotten { requests, events, writes, watches_kept } = recording.forgotten;
    let kinds = [
        (requests, recording.requests.len() - watches_kept, "request"),
        (events, recording.events.len(), "event"),
        (writes, recording.writes.len(), "write"),
    ];
    let (mut latest, mut earlier) = (Vec::new(), Vec::new());
    for (forgotten, kept, kind) in kinds.into_iter().filter(|(forgotten, ..)| *forgotten > 0) {
        latest.push(counted(kept, kind));
        earlier.push(counted(forgotten, &format!("earlier {kind}")));
    }
    if !latest.is_empty() {
        let (latest, earlier) = (latest.join(" and "), earlier.join(" and "));
        notes.push(format!("This report is about the latest {latest}, without {earlier}."));
    }
    notes
}

/// `1 request`, `2 requests`
fn counted(count: usize, noun: &str) -> String {
    if count == 1 { format!("1 {noun}") } else { format!("{count} {noun}s") }
}

/// `+0.334 s  lesson: get /api/v1: 200`
fn asked(recording: &Recording, request: &Request) -> String {
    let after = between(recording.start(), request.received).as_secs_f64();
    format!("+{after:.3} s  {}: {} {}: {}", request.client, request.verb(), request.target, request.status)
}

/// `patch pages.example.com/default/a (status): .status.checks`
fn described(why: &Why<'_>) -> String {
    let request = why.request;
    let part =
        if request.subresource.is_empty() { String::new() } else { format!(" ({})", request.subresource) };
    let effect = match (request.status, why.write, request.effect) {
        (400.., ..) => format!(": refused with {}", request.status),
        (_, Some(write), _) if !write.changed.is_empty() => format!(": {}", short(&write.changed)),
        (_, None, Effect::Nothing) => ": nothing changed".to_owned(),
        _ => String::new(),
    };
    format!("{} {}{part}{effect}", request.verb(), why.object)
}

fn reason(recording: &Recording, why: &Why<'_>) -> String {
    let since = match why.since {
        Since::Start => "before this write",
        Since::Write => "since the client's last write to this object",
        Since::Cause => "since the cause of the client's last write to this object",
    };
    if why.is_named {
        let first = why.causes.first().map(|cause| cause.words(recording));
        let first = first.or_else(|| why.others.first().cloned()).unwrap_or_default();
        let more = match why.causes.len() + why.others.len() - 1 {
            0 => String::new(),
            more => format!(", and {more} more"),
        };
        return format!("{first}{more}: named by the client");
    }
    let Some(cause) = why.causes.first() else {
        return match (why.has_watch, why.is_retry) {
            (false, _) => "not known: this client has no watch".to_owned(),
            (true, true) => format!("likely tried again: no event came {since}, and that write was refused"),
            (true, false) => format!("likely a timer, or the start of the client: no event came {since}"),
        };
    };
    let words = cause.words(recording);
    match (cause.relation, why.events) {
        (Relation::Unrelated, _) => {
            format!("perhaps {words}, which no ownerReference connects with the written object, or a timer")
        }
        _ if why.can_share_cause_with(cause) => {
            format!("likely {words}, or the event that caused that write")
        }
        (_, 1) => format!("{words}: the only event {since}"),
        (..) => format!("likely {words}"),
    }
}

/// `; 3 ms after it`
fn after(took: &[Duration]) -> String {
    let mut took = took.to_owned();
    took.sort();
    match took.as_slice() {
        [] => String::new(),
        [one] => format!("; {} after it", milliseconds(*one)),
        all => format!("; {} after it (median)", milliseconds(all[all.len() / 2])),
    }
}

fn written(recording: &Recording, client: &str, why: &Why<'_>) -> Value {
    let request = why.request;
    let causes = why.causes.iter().map(|cause| {
        json!({"n": cause.event.number(), "watch": cause.event.watch, "event": cause.event.event, "object": cause.event.object,
            "resourceVersion": cause.event.version.to_string(), "text": cause.words(recording), "by": format!("{:?}", cause.source).to_lowercase(),
            "relation": format!("{:?}", cause.relation).to_lowercase(), "milliseconds": cause.took.as_secs_f64() * 1000.0})
    });
    let effect = match request.effect {
        Effect::Changed(_) => "changed",
        Effect::Nothing => "nothing",
        Effect::Unknown => "unknown",
    };
    json!({"n": request.number(), "client": client, "connection": request.connection, "request": request.id, "seconds": between(recording.start(), request.received).as_secs_f64(),
        "text": described(why), "verb": request.verb(), "object": why.object, "subresource": request.subresource, "status": request.status,
        "resourceVersion": why.write.map(|write| write.version.to_string()),
        "changed": why.write.map(|write| &write.changed), "effect": effect, "reason": reason(recording, why),
        "certain": why.is_named, "causes": causes.collect::<Vec<_>>(), "others": why.others})
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a failed unwrap names its line")]
mod tests {
    use super::*;

    /// The note followed from the first id: it counted a request without an answer, and an old watch that is kept hid what was left out.
    #[test]
    fn a_note_says_what_the_report_leaves_out_and_nothing_without_a_reason() {
        let mut text = String::new();
        for (id, target) in [(2, "/api/v1/pods?watch=1"), (3, "/version"), (4, "/version"), (5, "/version")] {
            text += &format!(
                r#"{{"id":{id},"received":"2026-01-02T03:04:0{id}Z","time":"2026-01-02T03:04:0{id}Z","method":"GET","target":"{target}","resource":"pods","user":"a","status":200}}"#
            );
            text +=
                &format!("\n{{\"watch\":2,\"time\":\"2026-01-02T03:04:1{id}Z\",\"event\":\"BOOKMARK\"}}\n");
        }
        let mut recording = Recording::read(&[(String::new(), text)]).unwrap();
        recording.infers_events = false;
        let note = |recording: &Recording| notes(recording).join("\n");
        assert_eq!(note(&recording), "");
        let left_out = "This report is about the latest 2 requests and 2 events, without 1 earlier request and 2 earlier events.";
        assert_eq!(note(&recording.recent(2)), left_out);
        recording.forget(1, 1, 1);
        let left_out = "This report is about the latest 1 request and 1 event, without 3 earlier requests and 3 earlier events.";
        assert_eq!(note(&recording), left_out);
    }
}
