//! The rules: each finds one mistake of a client. What a correct client does now and then is no finding, so each has a limit.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    time::{Duration, SystemTime},
};

use listwatch_scorecard::retries_max;
use serde_json::Value;

use super::{
    recording::{Effect, Event, Recording, Request, Write, between, field, milliseconds},
    why::{self, Relation, Source, Why},
};

/// The requests that are counted together came within this time.
const WINDOW: Duration = Duration::from_secs(60);

/// Writes of one object, each after the event of the one before, that are a loop. An operator that converges has fewer.
const LOOP_WRITES: usize = 10;

/// A write that comes later after an event has another cause, such as a timer.
const REACTION_MAX: Duration = Duration::from_secs(1);

/// Writes of one field in turn by two clients: three of each.
const UNDO_WRITES: usize = 6;

/// Writes of one object without a change. An operator that applies at each event has some while a Deployment rolls out: the idiom of kube-rs.
const USELESS_WRITES: usize = 20;

/// Lists of the same objects. A watch makes all but the first needless.
const LISTS: usize = 10;

/// Reads of an object that does not change meanwhile. A leader reads its Lease every two seconds, which is not counted.
const READS: usize = 20;

/// Conflicts on one object. Some are normal: they are how clients notice each other.
const CONFLICTS: usize = 5;

/// How long a watch may be closed until it is opened again. client-go opens it at once, or after a second.
const REOPEN_MAX: Duration = Duration::from_secs(5);

/// How long an object that is being deleted may have the client's finalizer, without a write. A Pod has 30 s to end.
const CLEANUP_MAX: Duration = Duration::from_secs(30);

/// How soon a client that has seen two children deletes the one that it does not want, and how long after that it would replace it.
const SURPLUS_MAX: Duration = Duration::from_secs(10);

/// How often a server sends a bookmark. kube-apiserver: about once a minute.
const BOOKMARK_SECS: u64 = 60;

/// Entries of a finding that are shown.
const ENTRIES_MAX: usize = 6;

/// How bad a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// A mistake.
    Problem,
    /// Something that costs little, shows only in an outage, or may be meant.
    Note,
}

/// A mistake of a client.
#[derive(Clone, Debug)]
pub struct Finding {
    /// The name of the rule: `wakes-itself`.
    pub rule: &'static str,
    /// How bad it is.
    pub severity: Severity,
    /// `operator-1 (Go-http-client/2.0)`
    pub client: String,
    /// What the client does.
    pub text: String,
    /// Why, as far as the recording shows it, and what to do.
    pub cause: String,
    /// Some of the requests and events that show it.
    pub entries: Vec<Entry>,
    /// How often it happened.
    pub count: usize,
}

/// A request or an event that shows a mistake.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The `n` of the entry in [`document`](crate::document()).
    pub number: u64,
    /// `+0.283s  watch #6: MODIFIED pages.example.com/default/a, version 69`
    pub text: String,
}

/// What one client did.
pub(crate) struct Case<'a> {
    pub(crate) recording: &'a Recording,
    pub(crate) client: &'a str,
    requests: Vec<&'a Request>,
    pub(crate) writes: Vec<Why<'a>>,
}

/// What a rule finds.
struct Found {
    severity: Severity,
    text: String,
    cause: String,
    entries: Vec<Entry>,
    count: usize,
}

type Rule = fn(&Case<'_>) -> Vec<Found>;

/// The worst first.
const RULES: [(&str, Rule); 13] = [
    ("wakes-itself", wakes_itself),
    ("undo-each-other", undo_each_other),
    ("takes-away", takes_away),
    ("watch-not-reopened", watch_not_reopened),
    ("forbidden", forbidden),
    ("retries-without-pause", retries_without_pause),
    ("changes-nothing", changes_nothing),
    ("conflicts", conflicts),
    ("lists-again", lists_again),
    ("reads-again", reads_again),
    ("creates-twice", creates_twice),
    ("keeps-its-finalizer", keeps_its_finalizer),
    ("watch-options", watch_options),
];

impl<'a> Case<'a> {
    pub(crate) fn of(recording: &'a Recording, client: &'a str) -> Case<'a> {
        let requests = recording.requests.iter().filter(|request| request.client == client).collect();
        Case { recording, client, requests, writes: why::writes(recording, client) }
    }

    /// The worst first, and of one rule the most frequent.
    pub(crate) fn findings(&self) -> Vec<Finding> {
        let mut findings = Vec::new();
        for (rule, find) in RULES {
            let mut found = find(self);
            found.sort_by_key(|found| std::cmp::Reverse(found.count));
            findings.extend(found.into_iter().map(|Found { severity, text, cause, entries, count }| {
                Finding { rule, severity, client: self.client.to_owned(), text, cause, entries, count }
            }));
        }
        findings
    }

    /// The requests by what they are about, without those that are about nothing.
    fn grouped<K: Ord>(&self, key: impl Fn(&Request) -> Option<K>) -> BTreeMap<K, Vec<&'a Request>> {
        let mut groups: BTreeMap<K, Vec<&Request>> = BTreeMap::new();
        for request in self.requests.iter().copied() {
            if let Some(key) = key(request) {
                groups.entry(key).or_default().push(request);
            }
        }
        groups
    }

    /// The lines and ends of the client's watches.
    fn events(&self) -> impl Iterator<Item = (&'a Event, &'a Request)> {
        let recording = self.recording;
        let watches =
            recording.events.iter().filter_map(move |event| Some((event, recording.request(event.watch)?)));
        watches.filter(move |(_, watch)| watch.client == self.client)
    }

    /// The latest moment at which the client surely ran.
    fn alive(&self) -> SystemTime {
        let last = [
            self.requests.last().map(|request| request.received),
            self.events().map(|(event, _)| event.time).max(),
            self.recording.runs_until,
        ];
        last.into_iter().flatten().max().unwrap_or(SystemTime::UNIX_EPOCH)
    }

    fn watches(&self) -> impl Iterator<Item = &'a Request> {
        self.requests.iter().copied().filter(|request| request.is_watch() && request.status == 200)
    }

    /// The end of each watch that has ended, by its id.
    fn ends(&self) -> BTreeMap<u64, &'a Event> {
        self.events().filter(|(event, _)| event.ends_watch()).map(|(end, watch)| (watch.id, end)).collect()
    }

    /// A finding about requests.
    fn found(&self, requests: &[&Request], text: String, cause: &str) -> Found {
        Found {
            severity: Severity::Problem,
            text,
            cause: cause.to_owned(),
            entries: self.request_entries(requests),
            count: requests.len(),
        }
    }

    fn request_entries<'s>(&'s self, requests: impl IntoIterator<Item = &'s &'s Request>) -> Vec<Entry> {
        requests.into_iter().take(ENTRIES_MAX).map(|request| self.request_entry(request)).collect()
    }

    fn request_entry(&self, request: &Request) -> Entry {
        let Request { id, method, target, status, .. } = request;
        let effect = match request.effect {
            Effect::Changed(at) if self.recording.writes[at].changed.is_empty() => String::new(),
            Effect::Changed(at) => format!(", changed {}", short(&self.recording.writes[at].changed)),
            Effect::Nothing => ", changed nothing".to_owned(),
            Effect::Unknown if request.list_version > 0 => format!(", version {}", request.list_version),
            Effect::Unknown => String::new(),
        };
        let text = format!("{}  #{id} {method} {target}: {status}{effect}", self.at(request.received));
        Entry { number: request.number(), text }
    }

    fn event_entry(&self, event: &Event) -> Entry {
        let Event { watch, event: what, object, version, .. } = event;
        let about = match event.meaning() {
            "" => format!(" {object}, version {version}"),
            meaning => format!(": {meaning}"),
        };
        let text = format!("{}  watch #{watch}: {what}{about}", self.at(event.time));
        Entry { number: event.number(), text }
    }

    /// `+1.204s`
    fn at(&self, time: SystemTime) -> String {
        format!("+{:.3}s", between(self.recording.start(), time).as_secs_f64())
    }
}

/// The first paths, and how many more there are.
pub(crate) fn short(paths: &[String]) -> String {
    let shown = paths.iter().take(3).map(String::as_str).collect::<Vec<_>>().join(", ");
    if paths.len() > 3 { format!("{shown} and {} more", paths.len() - 3) } else { shown }
}

/// Write → event → write, again and again.
fn wakes_itself(case: &Case<'_>) -> Vec<Found> {
    let mut objects: BTreeMap<&str, Vec<&Why>> = BTreeMap::new();
    for why in case.writes.iter().filter(|why| why.write.is_some()) {
        objects.entry(&why.object).or_default().push(why);
    }
    let mut all = Vec::new();
    for (object, writes) in objects {
        let writes = longest_echo(&writes);
        if writes.len() < LOOP_WRITES {
            continue;
        }
        let mut pauses: Vec<Duration> =
            writes.windows(2).filter_map(|pair| echo(pair[0], pair[1])).map(|(_, took)| took).collect();
        pauses.sort();
        // The first may have added what the others change.
        let mut changed: BTreeSet<&String> = paths(writes[1]).collect();
        for write in &writes[2..] {
            changed = changed.intersection(&paths(write).collect()).copied().collect();
        }
        let changed: Vec<String> = changed.into_iter().cloned().collect();
        let what = if changed.is_empty() { "something".to_owned() } else { short(&changed) };
        let mut entries = Vec::new();
        for pair in writes.windows(2).take(ENTRIES_MAX / 2) {
            entries.push(case.request_entry(pair[0].request));
            entries.extend(echo(pair[0], pair[1]).map(|(event, _)| case.event_entry(event)));
        }
        let requests: Vec<&Request> = writes.iter().map(|why| why.request).collect();
        let pause = milliseconds(pauses[pauses.len() / 2]);
        all.push(Found {
            severity: Severity::Problem,
            text: format!("writes {object} {}, each time woken by the event of its own write before", often(&requests)),
            cause: format!("each write changes {what}, so a watch sends a new event, and the next write follows {pause} later (median); write only if something differs, or ignore events that show nothing new"),
            entries,
            count: writes.len(),
        });
    }
    all
}

/// The longest row of writes, each woken by the one before.
fn longest_echo<'s, 'a>(writes: &'s [&'s Why<'a>]) -> &'s [&'s Why<'a>] {
    let rows = writes.chunk_by(|first, second| echo(first, second).is_some());
    rows.max_by_key(|row| row.len()).unwrap_or_default()
}

fn paths<'a>(why: &Why<'a>) -> impl Iterator<Item = &'a String> {
    why.write.into_iter().flat_map(|write| &write.changed)
}

/// The event of the first write that woke the second, and how long this took, if nothing else did.
fn echo<'a>(first: &Why<'a>, second: &Why<'a>) -> Option<(&'a Event, Duration)> {
    let (before, after) = (first.write?, second.write?);
    let own = second
        .causes
        .iter()
        .find(|cause| cause.relation == Relation::Same && cause.event.version == before.version)?;
    let is_about_more = after.changed.iter().any(|path| !path.starts_with(".status"));
    // A status that follows a rollout is written often. A spec is not.
    let is_else = |source| source == Source::Other || source == Source::Controller && !is_about_more;
    let is_alone =
        !second.causes.iter().any(|cause| cause.relation != Relation::Unrelated && is_else(cause.source));
    let is_same = after.changed.iter().any(|path| before.changed.contains(path)) || before.changed.is_empty();
    (is_alone && is_same && own.took <= REACTION_MAX).then_some((own.event, own.took))
}

/// `14 times in 2.1 s`
fn often(requests: &[&Request]) -> String {
    match requests {
        [first, .., last] => {
            let secs = between(first.received, last.received).as_secs_f64();
            format!("{} times in {secs:.1} s", requests.len())
        }
        _ => "once".to_owned(),
    }
}

/// Two clients set one field to two values, in turn.
fn undo_each_other(case: &Case<'_>) -> Vec<Found> {
    let mut fields: BTreeMap<(&str, &str), Vec<&Write>> = BTreeMap::new();
    for write in &case.recording.writes {
        for path in &write.changed {
            fields.entry((write.object.as_str(), path.as_str())).or_default().push(write);
        }
    }
    let (mut all, judged) = (Vec::new(), case.recording.clients());
    for ((object, path), writes) in fields {
        let writes = longest_turns(&writes, path);
        // Of two clients that are judged, the first gets the finding.
        let first = judged.iter().find(|client| writes.iter().take(2).any(|write| write.client == **client));
        if writes.len() < UNDO_WRITES || first.is_none_or(|first| first != case.client) {
            continue;
        }
        let own = usize::from(writes[0].client != case.client);
        let (own, other) = (writes[own], writes[1 - own]);
        let name = writer(other);
        let value = |write: &Write| match field(&write.value, path) {
            _ if object.starts_with("secrets/") => "a value".to_owned(),
            None => "nothing".to_owned(),
            Some(value) => value.to_string(),
        };
        let requests: Vec<&Request> =
            writes.iter().filter_map(|write| case.recording.request(write.request)).collect();
        let text = format!("and {name} undo each other: {path} of {object}, {} times", writes.len());
        let (one, two) = (value(own), value(other));
        let cause = format!(
            "{} sets it to {one}, {name} to {two}, in turn; let only one of them own the field",
            own.client
        );
        all.push(case.found(&requests, text, &cause));
    }
    all
}

/// The longest row of writes in which two clients set a field in turn, each always to the same value.
fn longest_turns<'s, 'a>(writes: &'s [&'a Write], path: &str) -> &'s [&'a Write] {
    let value = |at: usize| field(&writes[at].value, path);
    let (mut longest, mut from) = (0..0, 0);
    for at in 1..=writes.len() {
        let is_other = at < writes.len() && writes[at].client != writes[at - 1].client;
        let is_again = || writes[at].client == writes[at - 2].client && value(at) == value(at - 2);
        if is_other && (at < from + 2 || is_again()) {
            continue;
        }
        if at - from > longest.len() {
            longest = from..at;
        }
        from = if is_other { at - 1 } else { at };
    }
    &writes[longest]
}

/// A label, an annotation or a finalizer: `label`, `team`.
type Mark = (&'static str, String);

/// The marks of each object, and the write that was the last to set each. `None`: it was set before the recording.
type Marks<'a> = BTreeMap<&'a str, BTreeMap<Mark, Option<&'a Write>>>;

/// Which marks there are at the end. Each that a write removes goes to `lost`, with the write that set it.
fn marks<'a>(recording: &'a Recording, mut lost: impl FnMut(&'a Write, Mark, &'a Write)) -> Marks<'a> {
    let mut objects = Marks::new();
    for write in &recording.writes {
        let before = objects.remove(&*write.object);
        let mut marks = BTreeMap::new();
        for (what, field) in [("label", "labels"), ("annotation", "annotations"), ("finalizer", "finalizers")]
        {
            let (value, path) = (&write.value["metadata"][field], format!(".metadata.{field}"));
            let keys = value.as_object().into_iter().flat_map(|marks| marks.keys().map(String::as_str));
            for key in keys.chain(value.as_array().into_iter().flatten().filter_map(Value::as_str)) {
                let mark = (what, key.to_owned());
                let is_path = |changed: &String| *changed == path || *changed == format!("{path}.{key}");
                let former = before.as_ref().map(|before| before.get(&mark));
                let is_set = match what {
                    _ if write.event == "ADDED" => true,
                    // The path names the list alone.
                    "finalizer" => matches!(former, Some(None)),
                    _ => write.changed.iter().any(is_path),
                };
                let setter = if is_set { Some(write) } else { former.flatten().copied().flatten() };
                marks.insert(mark, setter);
            }
        }
        for (mark, setter) in before.into_iter().flatten().filter(|(mark, _)| !marks.contains_key(mark)) {
            if let Some(setter) = setter {
                lost(write, mark, setter);
            }
        }
        if write.event != "DELETED" {
            objects.insert(&write.object, marks);
        }
    }
    objects
}

/// An update without a label or an annotation that another client had set. A patch names what it removes, so that is meant. So may be a mark with
/// the client's own domain, such as `example.com/restart`: it is an order. So may be a finalizer, of the same operator before it was restarted.
/// An annotation without a domain may be an order if the update removes nothing else.
fn takes_away(case: &Case<'_>) -> Vec<Found> {
    let groups: BTreeSet<&str> =
        case.requests.iter().filter_map(|request| request.group()).map(registered).collect();
    let may_be_meant = |(what, key): &Mark| {
        let is_own = |(domain, _)| groups.contains(registered(domain));
        *what == "finalizer" || key.split_once('/').is_some_and(is_own)
    };
    let is_order = |(what, key): &Mark, write: &Write| {
        let removed = write.changed.iter().filter(|path| field(&write.value, path).is_none());
        *what == "annotation" && !key.contains('/') && removed.count() == 1
    };
    let mut taken: BTreeMap<(&str, Mark, Severity), Vec<[&Write; 2]>> = BTreeMap::new();
    marks(case.recording, |write, mark, setter| {
        let is_own = |request: &Request| request.client == case.client && request.method == "PUT";
        let is_own = case.recording.request(write.request).is_some_and(is_own);
        if is_own && setter.client != case.client && !may_be_meant(&mark) {
            let severity = if is_order(&mark, write) { Severity::Note } else { Severity::Problem };
            taken.entry((&write.object, mark, severity)).or_default().push([setter, write]);
        }
    });
    let found = taken.into_iter().map(|((object, (what, key), severity), taken)| {
        let requests = taken.iter().filter_map(|[_, update]| case.recording.request(update.request));
        let requests: Vec<&Request> = requests.collect();
        let unless = match severity {
            Severity::Problem => "",
            Severity::Note => "unless it was an order to the client: ",
        };
        let setter = taken[0][0];
        let name = writer(setter);
        let text = format!("updates {object} without the {what} {key}, which {name} had set, {}", often(&requests));
        let cause = format!("{unless}a PUT replaces the whole object; change what was read, and keep what is not yours, or send a patch of the own fields");
        let mut found = Found { severity, ..case.found(&requests, text, &cause) };
        let setter = case.recording.request(setter.request);
        found.entries.splice(..0, setter.map(|setter| case.request_entry(setter)));
        found
    });
    found.collect()
}

/// `fluxcd.io` of `kustomize.toolkit.fluxcd.io`. Below `k8s.io` are groups of many owners.
fn registered(domain: &str) -> &str {
    match domain.rmatch_indices('.').nth(1) {
        Some((at, _)) if !domain.ends_with("k8s.io") => &domain[at + 1..],
        _ => domain,
    }
}

/// Who made a write, in words.
fn writer(write: &Write) -> &str {
    if write.client.is_empty() { "a controller of the server" } else { &write.client }
}

/// A watch that the server ended, and nobody opened again.
fn watch_not_reopened(case: &Case<'_>) -> Vec<Found> {
    let alive = case.alive();
    let of_kind = |request: &Request| {
        (request.is_watch() && request.status == 200 && !request.target.contains("fieldSelector"))
            .then(|| request.resource.clone())
    };
    let ends = case.events().filter(|(event, _)| event.event == "END");
    let ends: BTreeMap<u64, (&Event, &Request)> = ends.map(|end| (end.0.watch, end)).collect();
    let mut all = Vec::new();
    for (resource, watches) in case.grouped(of_kind) {
        let ends: Option<Vec<_>> = watches.iter().map(|watch| ends.get(&watch.id)).collect();
        let Some((end, watch)) = ends.and_then(|ends| ends.into_iter().max_by_key(|(end, _)| end.time))
        else {
            continue;
        };
        let is_tried = case.requests.iter().any(|request| {
            request.received >= end.time
                && request.resource == resource
                && request.method == "GET"
                && request.name.is_empty()
        });
        let deaf = between(end.time, alive);
        if !is_tried && deaf >= REOPEN_MAX {
            all.push(Found {
                severity: Severity::Problem,
                text: format!("watches {resource} no longer: the watch ended, and was not opened again in the {:.0} s that the client still ran", deaf.as_secs_f64()),
                cause: "the server ends each watch after a while, which is no failure; open it again, from the last version".to_owned(),
                entries: vec![case.request_entry(watch), case.event_entry(end)],
                count: 1,
            });
        }
    }
    all
}

/// What it asks for, and may not.
fn forbidden(case: &Case<'_>) -> Vec<Found> {
    let refused = case.grouped(|request| {
        let what = || (request.verb(), with_part(request.resource.clone(), request, "/"));
        (request.status == 403 && !request.resource.is_empty()).then(what)
    });
    let found = refused.into_iter().map(|((verb, resource), requests)| {
        let text = format!("may not {verb} {resource}: 403, {}", often(&requests));
        let cause =
            format!("a Role needs the verb {verb} for {resource}, or an admission webhook refuses it");
        case.found(&requests, text, &cause)
    });
    found.collect()
}

/// With the subresource of a request: `pods/log`, `pods/default/a status`.
fn with_part(what: String, request: &Request, between: &str) -> String {
    if request.subresource.is_empty() { what } else { what + between + &request.subresource }
}

/// One request that fails, sent again too often.
fn retries_without_pause(case: &Case<'_>) -> Vec<Found> {
    let failed = case.grouped(|request| {
        let path = request.target.split('?').next().unwrap_or_default();
        let what = || (request.method.clone(), path.to_owned(), request.status);
        (request.status >= 400 && request.status != 409).then(what)
    });
    let found = failed.into_iter().filter_map(|((method, path, status), requests)| {
        let (first, last) = (requests.first()?, requests.last()?);
        let secs = between(first.received, last.received).as_secs_f64();
        if f64::from(u32::try_from(requests.len()).unwrap_or(u32::MAX)) <= retries_max(secs) {
            return None;
        }
        let text = format!("sends {method} {path} {}, though each gets a {status}", often(&requests));
        let cause = "it tries again without pauses that grow; double the pause after each failure, and heed Retry-After";
        Some(case.found(&requests, text, cause))
    });
    found.collect()
}

/// Updates that are accepted, and change nothing.
fn changes_nothing(case: &Case<'_>) -> Vec<Found> {
    let useless = case.grouped(|request| {
        let what = || (request.verb(), with_part(request.object(), request, " "));
        (request.effect == Effect::Nothing).then(what)
    });
    let found = useless.into_iter().filter_map(|((verb, object), requests)| {
        let requests = burst(&requests, USELESS_WRITES)?;
        let second = case.writes.iter().find(|why| why.request.id == requests[1].id)?;
        let woken = match second.causes.first() {
            None => "no event came before the second".to_owned(),
            Some(cause) => format!("the second came after {}", cause.words(case.recording)),
        };
        let text = format!("{} {object} {}, and nothing changes", does(verb), often(requests));
        let cause = format!("{woken}; compare with the object in the cache, and write only a difference");
        Some(case.found(requests, text, &cause))
    });
    found.collect()
}

/// `patches`
fn does(verb: &str) -> String {
    if verb.ends_with("ch") { format!("{verb}es") } else { format!("{verb}s") }
}

/// The most requests within [`WINDOW`], if they are as many as `least`.
fn burst<'s, 'a>(requests: &'s [&'a Request], least: usize) -> Option<&'s [&'a Request]> {
    let (mut from, mut most) = (0, 0..0);
    for to in 0..requests.len() {
        while between(requests[from].received, requests[to].received) > WINDOW {
            from += 1;
        }
        if to + 1 - from > most.len() {
            most = from..to + 1;
        }
    }
    (most.len() >= least).then(|| &requests[most])
}

/// Writes that are refused because the object is another one by now, or exists.
fn conflicts(case: &Case<'_>) -> Vec<Found> {
    // A patch gets a 409 for a field of another manager, or for a version in its body, which is not recorded.
    let has_version = |request: &Request| ["PUT", "POST"].contains(&&*request.method) && request.writes();
    let refused = case.grouped(|request| {
        (request.status == 409 && has_version(request)).then(|| (request.verb(), request.object()))
    });
    let mut written: BTreeMap<&str, Vec<&Write>> = BTreeMap::new();
    for write in &case.recording.writes {
        written.entry(&write.object).or_default().push(write);
    }
    // The last write, if the client itself made it, and had the answer.
    let own = |refused: &Request| {
        let writes = written.get(&*refused.object())?;
        let last = writes.iter().rfind(|write| write.time <= refused.answered)?;
        case.recording.request(last.request).filter(|own| {
            own.client == case.client
                && own.answered <= refused.received
                && (own.method == "POST" || refused.method != "POST")
        })
    };
    let found = refused.into_iter().filter_map(|((verb, object), requests)| {
        let requests = burst(&requests, CONFLICTS)?;
        let own = requests.iter().filter_map(|refused| own(refused)).count();
        let cause = if own * 2 > requests.len() {
            "its copy of the object is older than its last write, which had been answered: a cache that lags, or an old variable; take the object from the answer, or wait for its event"
        } else if verb == "create" {
            "it exists, or its namespace is being deleted; wait for the event of the create, or read the object, before you create it again"
        } else {
            "the update has an old resourceVersion; read the object again before the next attempt, or send a patch of the own fields"
        };
        let with = if own > 0 { format!(", {own} of them with its own last write") } else { String::new() };
        let text = format!("{} {object} {}, and each gets a 409 Conflict{with}", does(verb), often(requests));
        Some(case.found(requests, text, cause))
    });
    found.collect()
}

/// The same list, though no watch has ended, or lists of objects that an open watch has.
fn lists_again(case: &Case<'_>) -> Vec<Found> {
    let ends = case.ends();
    let has_selector = |watch: &Request| watch.has_query("labelSelector") || watch.has_query("fieldSelector");
    let watches: Vec<&Request> = case.watches().filter(|watch| !has_selector(watch)).collect();
    let is_watched = |list: &Request| {
        watches.iter().any(|watch| {
            watch.resource == list.resource
                && (watch.namespace.is_empty() || watch.namespace == list.namespace)
                && watch.answered <= list.received
                && ends.get(&watch.id).is_none_or(|end| end.time > list.received)
        })
    };
    let is_whole = |list: &Request| list.is_list() && list.status == 200 && !list.has_query("continue");
    // Another watch, such as one with a selector, starts from the version of a list of its own. An audit log has no versions: there, the last list
    // before the watch counts.
    let (mut begins, mut last) = (BTreeSet::new(), BTreeMap::new());
    let is_part = |request: &&&Request| request.is_watch() && request.status == 200 || is_whole(request);
    for request in case.requests.iter().filter(is_part) {
        if !request.is_watch() {
            let begin = (selection(request), request.list_version.to_string());
            last.entry(begin).or_insert_with(Vec::new).push(request.id);
            continue;
        }
        let version = request.query("resourceVersion").unwrap_or_default();
        begins.extend(
            [version, "0"].into_iter().find_map(|version| {
                last.get_mut(&(selection(request), version.to_owned())).and_then(Vec::pop)
            }),
        );
    }
    let lists = case.grouped(|request| {
        if !is_whole(request) {
            return None;
        }
        let selection = selection(request);
        if !is_watched(request) {
            return Some((false, selection));
        }
        (!begins.contains(&request.id)).then(|| (true, request.object()))
    });
    let broken = case.events().filter(|(event, _)| event.ends_watch() || event.event == "ERROR");
    let broken: Vec<(&Event, &Request)> = broken.collect();
    let found = lists.into_iter().filter_map(|((is_watched, what), requests)| {
        let is_excused = |pair: &[&Request]| {
            let mut ends = broken.iter().filter(|(_, watch)| watch.resource == pair[0].resource);
            ends.any(|(end, _)| (pair[0].received..pair[1].received).contains(&end.time))
        };
        let needless = requests.windows(2).filter(|pair| !is_excused(pair)).map(|pair| pair[1]);
        let needless: Vec<&Request> = needless.collect();
        let needless = burst(&needless, LISTS)?;
        let selections: BTreeSet<String> = needless.iter().map(|list| selection(list)).collect();
        let with = if selections.len() > 1 { format!(" with {} selectors", selections.len()) } else { String::new() };
        let (although, cause) = if is_watched {
            ("its watch of them is open", "the watch has these objects; keep them in a cache, with an index by what is looked for")
        } else {
            ("no watch has ended", "a list costs the server most of all requests; list once, and watch from the version of the list")
        };
        let text = format!("lists {what} {}{with}, although {although}", often(needless));
        // The watch may ask for the metadata alone, which the recording does not show.
        let severity = if is_watched && selections.len() > 1 { Severity::Note } else { Severity::Problem };
        Some(Found { severity, ..case.found(needless, text, cause) })
    });
    found.collect()
}

/// `configmaps/default, labelSelector=a`
fn selection(request: &Request) -> String {
    let query = request.target.split_once('?').map_or("", |(_, query)| query);
    let selectors = query
        .split('&')
        .filter(|pair| pair.starts_with("labelSelector=") || pair.starts_with("fieldSelector="));
    let object = request.object();
    std::iter::once(&*object).chain(selectors).collect::<Vec<_>>().join(", ")
}

/// The same object, though nobody has written it.
fn reads_again(case: &Case<'_>) -> Vec<Found> {
    let reads = case.grouped(|request| {
        let is_lease = request.resource.starts_with("leases.");
        let is_read = request.verb() == "get" && !request.resource.is_empty() && !is_lease;
        (is_read && request.status == 200).then(|| request.object())
    });
    let found = reads.into_iter().filter_map(|(object, requests)| {
        let written = case.recording.writes.iter().filter(|write| write.object == object);
        let written: Vec<SystemTime> = written.map(|write| write.time).collect();
        let is_same = |one: &&Request, next: &&Request| {
            !written.iter().any(|time| (one.received..=next.received).contains(time))
        };
        let of_state = requests.chunk_by(is_same).filter_map(|requests| burst(requests, READS));
        let requests = of_state.max_by_key(|requests| requests.len())?;
        let text = format!("reads {object} {}, while it does not change", often(requests));
        Some(case.found(requests, text, "watch it, and read it from the cache"))
    });
    found.collect()
}

/// Two equal children of one owner: the client made the second before it was sent the event of the first, and deletes one as soon as it knows both.
/// A client that wants several, or replaces one, does not. Neither does one that follows a change of the owner.
fn creates_twice(case: &Case<'_>) -> Vec<Found> {
    let mut deletes: BTreeMap<&str, &Request> = BTreeMap::new();
    let mut children: BTreeMap<(&str, &str), Vec<(&Request, &Write)>> = BTreeMap::new();
    for why in &case.writes {
        if why.request.method == "DELETE" && why.request.status < 300 {
            deletes.entry(&why.object).or_insert(why.request);
        }
        let Some(write) = why.write.filter(|write| write.event == "ADDED") else { continue };
        // Their values are not recorded.
        if why.request.resource == "secrets" {
            continue;
        }
        let mut owners = write.value["metadata"]["ownerReferences"].as_array().into_iter().flatten();
        if let Some(owner) = owners.find(|owner| owner["controller"] == true) {
            let key = (owner["uid"].as_str().unwrap_or_default(), &*why.request.resource);
            children.entry(key).or_default().push((why.request, write));
        }
    }
    let mut all = Vec::new();
    for ((owner, _), creates) in children {
        for (at, pair) in creates.windows(2).enumerate() {
            let [(first, one), (second, other)] = [pair[0], pair[1]];
            let delete = match (deletes.get(&*one.object), deletes.get(&*other.object)) {
                (Some(delete), None) | (None, Some(delete)) => *delete,
                (Some(_), Some(_)) | (None, None) => continue,
            };
            let mut events = case.events().map(|(event, _)| event);
            let Some(seen) = events.find(|event| event.object == one.object) else { continue };
            let is_blind = first.answered <= second.received && second.received < seen.time;
            let is_surplus =
                delete.received >= seen.time && between(seen.time, delete.received) <= SURPLUS_MAX;
            let is_followed =
                creates.get(at + 2).is_some_and(|(next, _)| next.received <= delete.received + SURPLUS_MAX);
            let is_change = |write: &&Write| {
                write.value["metadata"]["uid"] == owner
                    && (second.received..=delete.received).contains(&write.time)
                    && write.changed.iter().any(|path| !path.starts_with(".status"))
            };
            if !is_blind
                || !is_surplus
                || is_followed
                || content(one) != content(other)
                || case.recording.writes.iter().any(|write| is_change(&write))
            {
                continue;
            }
            let mut entries = case.request_entries([&first, &second]);
            entries.extend([case.event_entry(seen), case.request_entry(delete)]);
            all.push(Found {
                severity: Severity::Note,
                text: format!("creates {} and an equal child of the same owner, {}, before it was sent the event of the first, and deletes one of them", one.object, other.object),
                cause: "its cache did not have the first one yet; give the child a name that follows from its owner, so that the second create gets a 409, or wait for the event of the first".to_owned(),
                entries,
                count: 1,
            });
        }
    }
    all
}

/// An object without what the server sets, and without its name.
fn content(write: &Write) -> String {
    let mut value = Value::clone(&write.value);
    let labels = value["metadata"]["labels"].take();
    value["metadata"] = labels;
    value["status"] = Value::Null;
    let name = write.object.rsplit('/').next().unwrap_or_default();
    let mut text = value.to_string().replace(name, "");
    // The admission plugin ServiceAccount adds it to each Pod.
    for volume in value["spec"]["volumes"].as_array().into_iter().flatten() {
        if let Some(token) = volume["name"].as_str().filter(|name| name.starts_with("kube-api-access-")) {
            text = text.replace(token, "");
        }
    }
    text
}

/// An object that is being deleted, as the client was told, has a finalizer of the client, and nothing happens. The client may wait for something
/// outside of the cluster, which no request shows.
fn keeps_its_finalizer(case: &Case<'_>) -> Vec<Found> {
    let (alive, ends) = (case.alive(), case.ends());
    if !case.watches().any(|watch| !ends.contains_key(&watch.id)) {
        return Vec::new();
    }
    // The server adds these for its own controllers.
    let is_of_server =
        |key: &str| ["foregroundDeletion", "orphan"].contains(&key) || key.starts_with("kubernetes.io/");
    let mut own: BTreeMap<&str, (String, &Write)> = BTreeMap::new();
    for (object, marks) in marks(case.recording, |_, _, _| {}) {
        let mut finalizers = marks.into_iter().filter_map(|((what, key), setter)| {
            let setter = setter.filter(|setter| setter.client == case.client)?;
            (what == "finalizer" && !is_of_server(&key)).then_some((key, setter))
        });
        own.extend(finalizers.next().map(|finalizer| (object, finalizer)));
    }
    let last: BTreeMap<&str, &Write> =
        case.recording.writes.iter().map(|write| (&*write.object, write)).collect();
    let is_deletion = |write: &Write| !write.value["metadata"]["deletionTimestamp"].is_null();
    own.retain(|object, _| last.get(object).is_some_and(|last| is_deletion(last)));
    let mut told: BTreeMap<&str, &Event> = BTreeMap::new();
    for (event, _) in case.events() {
        // An older event is of an earlier object of this name.
        let is_own = own.get(&*event.object).is_some_and(|(_, setter)| event.version > setter.version);
        if is_own && case.recording.write_of(event).is_some_and(is_deletion) {
            told.entry(&event.object).or_insert(event);
        }
    }
    let mut acts: BTreeMap<&str, &Request> = BTreeMap::new();
    for why in &case.writes {
        let causes = why.causes.iter().map(|cause| &*cause.event.object);
        for object in causes.chain([&*why.object]) {
            if told.get(object).is_some_and(|told| told.time < why.request.received) {
                acts.insert(object, why.request);
            }
        }
    }
    let found = told.into_iter().filter_map(|(object, told)| {
        let ((key, setter), act) = (&own[object], acts.get(object).copied());
        let idle = between(act.map_or(told.time, |act| act.received), alive);
        let uid = &last[object].value["metadata"]["uid"];
        // The client may wait for the end of a child, or for what another client does with it.
        let changes = |child: &&Write| {
            let mut owners = child.value["metadata"]["ownerReferences"].as_array().into_iter().flatten();
            let is_new = between(child.time, alive) < CLEANUP_MAX;
            owners.any(|owner| owner["uid"] == *uid) && (is_new || child.event != "DELETED" && is_deletion(child))
        };
        if idle < CLEANUP_MAX || last.values().any(changes) {
            return None;
        }
        let set = case.recording.request(setter.request).map(|set| case.request_entry(set));
        let act = act.map(|act| case.request_entry(act));
        Some(Found {
            severity: Severity::Note,
            text: format!("keeps its finalizer {key} on {object}, which is being deleted, and has written nothing for it in the last {:.0} s", idle.as_secs_f64()),
            cause: "its cleanup hangs, or it may wait for something that no request shows; remove the finalizer when there is nothing left to clean up, and say in the status what is awaited".to_owned(),
            entries: set.into_iter().chain([case.event_entry(told)]).chain(act).collect(),
            count: 1,
        })
    });
    found.collect()
}

/// Watches without bookmarks, or without an end, of a client that acts on them. A client that only looks, such as curl, starts again when it
/// likes, and so does a person with kubectl. A watch that asks for a short time may end before its first bookmark.
fn watch_options(case: &Case<'_>) -> Vec<Found> {
    if case.writes.is_empty() || case.client.contains("kubectl/") {
        return Vec::new();
    }
    let options = [
        (
            "allowWatchBookmarks",
            "without bookmarks, a quiet watch resumes from an old version, gets a 410, and lists all again",
        ),
        (
            "timeoutSeconds",
            "without a timeout of its own, the server ends the watch after 30 to 60 minutes, and a connection that has silently broken is noticed late",
        ),
    ];
    let found = options.into_iter().filter_map(|(option, cause)| {
        let is_without = |request: &&&Request| {
            let timeout_secs = request.query("timeoutSeconds").and_then(|secs| secs.parse::<u64>().ok());
            let is_short = timeout_secs.is_some_and(|secs| secs <= BOOKMARK_SECS);
            request.is_watch() && request.status == 200 && !request.has_query(option) && !is_short
        };
        let requests: Vec<&Request> = case.requests.iter().filter(is_without).copied().collect();
        let kinds: BTreeSet<&String> = requests.iter().map(|request| &request.resource).collect();
        let kinds: Vec<String> = kinds.into_iter().cloned().collect();
        let text = format!("watches {} without {option}", short(&kinds));
        (!kinds.is_empty()).then(|| Found { severity: Severity::Note, ..case.found(&requests, text, cause) })
    });
    found.collect()
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Finding { rule, client, text, .. } = self;
        write!(f, "{rule}: {client} {text}")
    }
}
