//! Faults on demand: what a test asks the server to do wrong, and what real ones do now and then.
//!
//! ```text
//! $ listwatch apiserver --fault too-many-requests,path=/deployments,times=3
//! $ echo cut-watches,path=/pods | kubectl create --raw /listwatch/faults -f -
//! server.fault(Fault::CutWatches.on("GET", "/pods"));
//! ```
//!
//! A [`Fault`] says what goes wrong; a [`Planned`] also says for whom, and how often. One text stands for it in the flag
//! and in the body of the request; [`names`] lists what can be written. What each fault does is beside what it is done
//! to: to a request in `serve.rs`, to a stream in `watch.rs`.

use std::{
    ffi::OsStr,
    fmt,
    num::NonZeroUsize,
    ops::RangeInclusive,
    str::FromStr,
    sync::{Arc, Mutex, Weak},
    time::Duration,
};

use clap::{
    Command,
    builder::{PossibleValuesParser, TypedValueParser},
    error::{ContextKind, ContextValue},
};
use http::Method;
use serde_json::{Value, json};
use tokio::sync::Notify;

use super::{
    kinds::resource_name,
    lock,
    refusal::Refusal,
    request::{Path, Request},
};

/// Faults are listed, planned and ended here, by an administrator.
pub(super) const PATH: &str = "/listwatch/faults";

/// Most faults that wait for somebody at a time; then the oldest is forgotten. Nobody keeps an eye on more.
const FAULTS_MAX: usize = 100;

/// Largest number that can be written. Who wants more wants no end, and leaves it out.
const NUMBER_MAX: u64 = 1_000_000_000;

/// Something that goes wrong. See [`ApiServer::fault`](super::ApiServer::fault).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Watches end cleanly, as they do after their `timeoutSeconds`.
    EndWatches,
    /// Watches are cut in the middle of a line, as by a crash or a proxy.
    CutWatches,
    /// Watches end with an ERROR event, 410 `Expired`, as where the version was too old.
    ExpireWatches,
    /// The same with the reason `Gone`, as servers before 1.18 said.
    GoneWatches,
    /// Watches send nothing more and do not end: a half-open connection.
    StallWatches,
    /// Watches end cleanly as soon as there is an event for them, which they do not send: the client was too slow.
    DropSlowWatches,
    /// Watches have no bookmarks.
    NoBookmarks,
    /// Who asks for a streaming list is refused with 422, as by servers before 1.32.
    NoStreamingLists,
    /// `sendInitialEvents` is not understood and means nothing, as to servers before 1.27.
    IgnoreStreamingLists,
    /// Watch streams are sent in pieces of at most this many bytes.
    ChunkBytes(usize),
    /// Requests are answered with this instead, whatever they ask.
    Answer {
        /// The HTTP status.
        status: u16,
        /// The body, sent as JSON if it starts with a brace, as HTML if with `<`.
        body: String,
        /// The header `Retry-After`.
        retry_after_secs: Option<u64>,
    },
    /// Requests are answered only after a while.
    Delay(Duration),
    /// Requests are neither read to their end nor answered.
    Silence,
    /// Requests take effect, then the stream or connection breaks before the answer.
    LoseAnswer,
    /// Writes are refused by an admission webhook.
    Deny {
        /// Its name.
        webhook: String,
        /// Its explanation.
        message: String,
        /// The HTTP status, which a webhook may choose.
        code: u16,
    },
    /// Creates are refused as a ResourceQuota of this name is used up.
    Quota(String),
    /// The history is forgotten: the next resume, and the next page of a list, is answered with 410.
    ExpireHistory,
    /// All connections are closed and the history is forgotten; what is stored stays.
    Restart,
    /// What is stored is remembered for `Restore`. It harms nobody.
    Backup,
    /// As `Restart`, and everything is as it was at the last `Backup`, or at the start, the versions too.
    Restore,
}

/// What a fault meets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Meets {
    /// Watches, at once or after some lines; then it is over for them.
    Ends(Ending),
    /// Watches, from now on.
    Watches,
    Requests,
    /// Requests that are no reads.
    Writes,
    Creates,
    /// The server, at once.
    Server,
}

impl Meets {
    fn methods(self) -> &'static [&'static str] {
        match self {
            Meets::Ends(_) | Meets::Watches | Meets::Requests | Meets::Server => {
                &["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"]
            }
            Meets::Writes => &["POST", "PUT", "PATCH", "DELETE"],
            Meets::Creates => &["POST"],
        }
    }
}

impl Fault {
    fn meets(&self) -> Meets {
        match self {
            Fault::EndWatches => Meets::Ends(Ending::Clean),
            Fault::CutWatches => Meets::Ends(Ending::MidLine),
            Fault::ExpireWatches => Meets::Ends(Ending::Expired),
            Fault::GoneWatches => Meets::Ends(Ending::Gone),
            Fault::StallWatches
            | Fault::DropSlowWatches
            | Fault::NoBookmarks
            | Fault::NoStreamingLists
            | Fault::IgnoreStreamingLists
            | Fault::ChunkBytes(_) => Meets::Watches,
            Fault::Answer { .. } | Fault::Delay(_) | Fault::Silence | Fault::LoseAnswer => Meets::Requests,
            Fault::Deny { .. } => Meets::Writes,
            Fault::Quota(_) => Meets::Creates,
            Fault::ExpireHistory | Fault::Restart | Fault::Backup | Fault::Restore => Meets::Server,
        }
    }

    /// Only for requests of this method (empty: of any) with this in their path and query.
    #[must_use]
    pub fn on(self, method: &str, path: &str) -> Planned {
        Planned::from(self).on(method, path)
    }

    /// Only so often.
    #[must_use]
    pub fn times(self, times: u64) -> Planned {
        Planned::from(self).times(times)
    }
}

/// A fault, and whom it is to meet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Planned {
    pub(super) fault: Fault,
    method: String,
    path: String,
    /// `None`: until faults are ended.
    times: Option<u64>,
    /// Not the watches that are open now but those that open, each after that many lines.
    after_lines: Option<u64>,
    /// As it was written, to be listed.
    text: String,
}

impl From<Fault> for Planned {
    fn from(fault: Fault) -> Planned {
        let text = format!("{fault:?}");
        Planned { fault, method: String::new(), path: String::new(), times: None, after_lines: None, text }
    }
}

impl Planned {
    /// See [`Fault::on`].
    #[must_use]
    pub fn on(mut self, method: &str, path: &str) -> Planned {
        (self.method, self.path) = (method.to_owned(), path.to_owned());
        self
    }

    /// See [`Fault::times`].
    #[must_use]
    pub fn times(mut self, times: u64) -> Planned {
        self.times = Some(times);
        self
    }

    /// Not the watches that are open now but those that are opened from now on, each after that many lines. Only for
    /// faults that end watches.
    #[must_use]
    pub fn after_lines(mut self, lines: u64) -> Planned {
        self.after_lines = Some(lines);
        self
    }

    /// Whether it is only for what is there now.
    #[must_use]
    pub fn is_momentary(&self) -> bool {
        match self.fault.meets() {
            Meets::Ends(_) => self.after_lines.is_none(),
            Meets::Server => true,
            Meets::Watches | Meets::Requests | Meets::Writes | Meets::Creates => false,
        }
    }

    /// Whether it is for the whole server, at once.
    #[must_use]
    pub fn is_for_server(&self) -> bool {
        self.fault.meets() == Meets::Server
    }

    /// Whether this is for a request; then it is used up by one.
    fn take(&mut self, method: &Method, target: &str) -> bool {
        let is_for_it = self.fault.meets().methods().contains(&method.as_str())
            && self.times != Some(0)
            && (self.method.is_empty() || self.method == method.as_str())
            && target.contains(&self.path);
        if is_for_it && let Some(times) = &mut self.times {
            *times -= 1;
        }
        is_for_it
    }
}

impl fmt::Display for Planned {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.text)?;
        match self.times {
            Some(left) => write!(f, "  ({left} left)"),
            None => Ok(()),
        }
    }
}

/// A fault by name: what can be said of it beside for whom, what it is, how it is made.
struct Named {
    name: &'static str,
    keys: &'static str,
    help: &'static str,
    make: fn(&mut Keys) -> Result<Fault, String>,
}

macro_rules! named {
    ($($name:literal $keys:literal $help:literal $make:expr;)*) => {
        [$(Named { name: $name, keys: $keys, help: $help, make: $make }),*]
    };
}

#[rustfmt::skip]
const NAMED: [Named; 25] = named! {
    "end-watches" "" "watches end cleanly" |_| Ok(Fault::EndWatches);
    "cut-watches" "" "watches are cut in the middle of a line" |_| Ok(Fault::CutWatches);
    "expire-watches" "" "watches end with an ERROR event, 410 Expired" |_| Ok(Fault::ExpireWatches);
    "gone-watches" "" "the same with the reason Gone, as before 1.18" |_| Ok(Fault::GoneWatches);
    "stall-watches" "" "watches send nothing more and do not end" |_| Ok(Fault::StallWatches);
    "drop-slow-watches" "" "new watches end instead of sending their next event" |_| Ok(Fault::DropSlowWatches);
    "no-bookmarks" "" "new watches have no bookmarks" |_| Ok(Fault::NoBookmarks);
    "no-streaming-lists" "" "sendInitialEvents is refused with 422, as before 1.32" |_| Ok(Fault::NoStreamingLists);
    "ignore-streaming-lists" "" "sendInitialEvents means nothing, as before 1.27" |_| Ok(Fault::IgnoreStreamingLists);
    "chunks" "bytes=1" "new watches send at most so many bytes at a time" |keys| Ok(Fault::ChunkBytes(keys.number("bytes", 1..=1_000_000)?.unwrap_or(1)));
    "slow" "time=1s" "requests are answered after so long" |keys| Ok(Fault::Delay(keys.time("time", "1s")?));
    "silence" "" "requests are neither read to their end nor answered" |_| Ok(Fault::Silence);
    "lose-answer" "" "requests take effect, and the answer is lost" |_| Ok(Fault::LoseAnswer);
    "too-many-requests" "retry-after=1" "429 in plain text, as of a server with too much to do" too_many_requests;
    "unavailable" "retry-after=1" "503, as of a server that shuts down" unavailable;
    "internal-error" "" "500" |_| Ok(refused(internal_error()));
    "html" "status=502" "a page of HTML, as of a proxy" html;
    "expired" "" "410 Expired as HTTP status" |_| Ok(refused(Refusal::expired("The resourceVersion for the provided list is too old.")));
    "gone" "" "410 Gone as HTTP status, as before 1.18" |_| Ok(refused(gone("too old resource version".to_owned())));
    "deny" "webhook=deny.example.com,message=no,code=403" "writes are denied by an admission webhook" deny;
    "quota" "name=full" "creates exceed a quota" |keys| Ok(Fault::Quota(keys.text("name", "full")));
    "expire-history" "" "what happened before now is forgotten: 410 for who resumes" |_| Ok(Fault::ExpireHistory);
    "restart" "" "connections are closed and the history is forgotten" |_| Ok(Fault::Restart);
    "backup" "" "what is stored is remembered for restore" |_| Ok(Fault::Backup);
    "restore" "" "a restart with what was stored, and the versions, at the last backup or the start" |_| Ok(Fault::Restore);
};

fn too_many_requests(keys: &mut Keys) -> Result<Fault, String> {
    let body = "Too many requests, please try again later.\n".to_owned();
    Ok(Fault::Answer { status: 429, body, retry_after_secs: Some(keys.retry_after()?) })
}

fn unavailable(keys: &mut Keys) -> Result<Fault, String> {
    let mut fault = refused(Refusal::status(503, "ServiceUnavailable", "apiserver is shutting down", None));
    if let Fault::Answer { retry_after_secs, .. } = &mut fault {
        *retry_after_secs = Some(keys.retry_after()?);
    }
    Ok(fault)
}

fn html(keys: &mut Keys) -> Result<Fault, String> {
    let status = keys.number("status", 200..=599)?.unwrap_or(502);
    let title = http::StatusCode::from_u16(status).map(|status| status.to_string()).unwrap_or_default();
    let body = format!(
        "<html>\r\n<head><title>{title}</title></head>\r\n<body>\r\n<center><h1>{title}</h1></center>\r\n\
         <hr><center>nginx</center>\r\n</body>\r\n</html>\r\n"
    );
    Ok(Fault::Answer { status, body, retry_after_secs: None })
}

fn deny(keys: &mut Keys) -> Result<Fault, String> {
    let webhook = keys.text("webhook", "deny.example.com");
    let code = keys.number("code", 400..=599)?.unwrap_or(403);
    Ok(Fault::Deny { webhook, message: keys.text("message", "no"), code })
}

fn refused(refusal: Refusal) -> Fault {
    let (status, retry_after_secs) = (refusal.code, refusal.retry_after_secs());
    Fault::Answer { status, body: format!("{}\n", refusal.into_status()), retry_after_secs }
}

fn internal_error() -> Refusal {
    Refusal::status(500, "InternalError", "Internal error occurred: a fault on demand", None)
}

/// An object that an admission webhook does not let pass, in the words of controller-runtime's `Denied`. The API server
/// puts its own before the message: apiserver/pkg/admission/plugin/webhook/errors.
pub(super) fn denied(webhook: &str, message: &str, code: u16) -> Refusal {
    let message = format!("admission webhook {webhook:?} denied the request: {message}");
    let reason = if code == 403 { "Forbidden" } else { "" };
    Refusal::status(code, reason, message, None)
}

/// An object for which a quota has no room.
pub(super) fn exceeds_quota(request: &Request, quota: &str) -> Refusal {
    let body: Value = serde_json::from_slice(&request.body).unwrap_or_default();
    let name = body["metadata"]["name"].as_str().unwrap_or_default();
    let (plural, group) = match Path::parse(&request.path) {
        Some(path) => (path.plural, path.group),
        None => (String::new(), String::new()),
    };
    let resource = resource_name(&plural, &group);
    let counted = if group.is_empty() { plural.clone() } else { format!("count/{resource}") };
    let message = format!(
        "{resource} {name:?} is forbidden: exceeded quota: {quota}, requested: {counted}=1, used: {counted}=1, \
         limited: {counted}=1"
    );
    let mut details = json!({"name": name, "kind": plural});
    if !group.is_empty() {
        details["group"] = group.into();
    }
    Refusal::status(403, "Forbidden", message, Some(details))
}

/// As [`Refusal::expired`], in the words of servers before 1.18.
pub(super) fn gone(message: String) -> Refusal {
    Refusal::status(410, "Gone", message, None)
}

impl FromStr for Planned {
    type Err = String;

    /// `cut-watches`, `too-many-requests,retry-after=2,path=/pods,times=3`.
    fn from_str(text: &str) -> Result<Planned, String> {
        let text = text.trim();
        let (name, rest) = text.split_once(',').unwrap_or((text, ""));
        let name = name.trim_end();
        let Some(named) = NAMED.iter().find(|named| named.name == name) else {
            let all: Vec<&str> = NAMED.iter().map(|named| named.name).collect();
            return Err(match similar(name) {
                Some(similar) => format!("{name:?} is no fault; a similar one is {similar}"),
                None => format!("{name:?} is no fault; there are {}", all.join(", ")),
            });
        };
        let mut keys = Keys::parse(rest)?;
        let fault = (named.make)(&mut keys)?;
        let common: &[&str] = match fault.meets() {
            Meets::Ends(_) => &["path", "times", "lines"],
            Meets::Watches => &["path", "times"],
            Meets::Requests | Meets::Writes | Meets::Creates => &["path", "times", "method"],
            Meets::Server => &[],
        };
        let (path, method) = (keys.text("path", ""), keys.text("method", "").to_uppercase());
        let (times, after_lines) =
            (keys.number("times", 1..=NUMBER_MAX)?, keys.number("lines", 0..=NUMBER_MAX)?);
        keys.check(name, named.keys, common)?;
        if let Some(key) = common.iter().find(|key| keys.get(key) == Some("")) {
            return Err(format!("{key}= says nothing: give a value, or leave it out"));
        }
        let methods = fault.meets().methods();
        if !method.is_empty() && !methods.contains(&method.as_str()) {
            return Err(format!("method={method}: {name} meets {}", methods.join(", ")));
        }
        Ok(Planned { fault, method, path, times, after_lines, text: text.to_owned() })
    }
}

/// The name that is most like this, as clap finds it for a misspelt flag.
fn similar(name: &str) -> Option<String> {
    let names = PossibleValuesParser::new(NAMED.iter().map(|named| named.name));
    let error = names.parse_ref(&Command::default(), None, OsStr::new(name)).err()?;
    match error.get(ContextKind::SuggestedValue) {
        Some(ContextValue::String(similar)) => Some(similar.clone()),
        Some(_) | None => None,
    }
}

/// `key=value,key=value`, and which of them were asked for. What follows a comma and has no `=` belongs to the value
/// before it, so that messages may have commas.
struct Keys {
    given: Vec<(String, String)>,
}

impl Keys {
    fn parse(text: &str) -> Result<Keys, String> {
        let mut given: Vec<(String, String)> = Vec::new();
        for part in text.split(',').filter(|_| !text.is_empty()) {
            match (part.split_once('=').map(|(key, value)| (key.trim(), value.trim())), given.last_mut()) {
                (Some((key, value)), _) => {
                    if given.iter().any(|(before, _)| before == key) {
                        return Err(format!("{key} is given twice"));
                    }
                    given.push((key.to_owned(), value.to_owned()));
                }
                (None, Some((_, value))) => {
                    value.push(',');
                    value.push_str(part);
                }
                (None, None) => return Err(format!("{part:?} should be KEY=VALUE")),
            }
        }
        Ok(Keys { given })
    }

    fn get(&self, key: &str) -> Option<&str> {
        self.given.iter().find(|(given, _)| given == key).map(|(_, value)| value.as_str())
    }

    fn text(&self, key: &str, default: &str) -> String {
        self.get(key).unwrap_or(default).to_owned()
    }

    fn number<T>(&self, key: &str, range: RangeInclusive<T>) -> Result<Option<T>, String>
    where
        T: FromStr + PartialOrd + fmt::Display,
    {
        let Some(text) = self.get(key) else { return Ok(None) };
        match text.parse() {
            Ok(number) if range.contains(&number) => Ok(Some(number)),
            Ok(_) | Err(_) => {
                Err(format!("{key}={text}: must be a number from {} to {}", range.start(), range.end()))
            }
        }
    }

    fn retry_after(&self) -> Result<u64, String> {
        Ok(self.number("retry-after", 0..=NUMBER_MAX)?.unwrap_or(1))
    }

    fn time(&self, key: &str, default: &str) -> Result<Duration, String> {
        let text = self.get(key).unwrap_or(default);
        humantime::parse_duration(text)
            .map_err(|_| format!("{key}={text}: is no time: write a number and a unit, such as 500ms or 2s"))
    }

    /// Refuse what nobody asked for.
    fn check(&self, name: &str, own: &str, common: &[&str]) -> Result<(), String> {
        let own = own.split(',').filter_map(|key| key.split_once('=')).map(|(key, _)| key);
        let known: Vec<&str> = own.chain(common.iter().copied()).collect();
        let Some((unknown, _)) = self.given.iter().find(|(key, _)| !known.contains(&key.as_str())) else {
            return Ok(());
        };
        Err(match known[..] {
            [] => format!("{name} takes no {unknown:?}: it takes nothing"),
            _ => format!("{name} takes no {unknown:?}, but {}", known.join(", ")),
        })
    }
}

/// How a fault is written; and every name and what it does, under headings that say for whom. For people.
#[must_use]
pub fn names() -> String {
    let mut text =
        "A fault is NAME,KEY=VALUE,… Every KEY=VALUE may be left out; the values shown are the defaults.\n\n"
            .to_owned();
    let mut before = "";
    for Named { name, keys, help, make } in &NAMED {
        let fault =
            make(&mut Keys { given: Vec::new() }).expect("a fault by its defaults: a test makes them all");
        let heading = heading(fault.meets());
        if heading != before {
            let gap = if before.is_empty() { "" } else { "\n" };
            text.push_str(&format!("{gap}{heading}\n"));
            before = heading;
        }
        let name = if keys.is_empty() { (*name).to_owned() } else { format!("{name},{keys}") };
        text.push_str(&format!("  {name:<31}  {help}\n"));
    }
    text
}

fn heading(meets: Meets) -> &'static str {
    match meets {
        Meets::Ends(_) => {
            "Ends of open watches; with lines=N not of these but of each to come, after N lines. Also path=PART, times=N:"
        }
        Meets::Watches => "Watches. Also path=PART (of path and query), times=N:",
        Meets::Requests | Meets::Writes | Meets::Creates => "Requests. Also path=PART, times=N, method=GET:",
        Meets::Server => "The whole server, at once:",
    }
}

/// The body of a request to plan some: one in each line, or with `;` between. A line that starts with `#` is a comment.
pub(super) fn parse_lines(body: &[u8]) -> Result<Vec<Planned>, String> {
    let text = std::str::from_utf8(body).map_err(|_| "the body is no text".to_owned())?;
    let lines = text.lines().enumerate().filter(|(_, line)| !line.trim_start().starts_with('#'));
    let mut planned = Vec::new();
    for (number, line) in lines {
        for fault in line.split(';').filter(|fault| !fault.trim().is_empty()) {
            planned.push(fault.parse().map_err(|error| format!("line {}: {error}", number + 1))?);
        }
    }
    if planned.is_empty() {
        return Err("the body names no fault; POST help for what there is".to_owned());
    }
    Ok(planned)
}

/// How a watch ends that is made to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ending {
    Clean,
    MidLine,
    Expired,
    Gone,
}

/// What a server thinks of `sendInitialEvents`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StreamingLists {
    Served,
    Refused,
    Ignored,
}

/// What is to go wrong with one watch.
#[derive(Debug)]
pub(super) struct Course {
    target: String,
    /// That were there before the watch. The last word counts.
    faults: Vec<Planned>,
    now: Mutex<Now>,
    changed: Notify,
}

/// What goes wrong with an open watch at the moment.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Now {
    pub(super) is_stalled: bool,
    pub(super) ending: Option<Ending>,
}

impl Course {
    pub(super) fn now(&self) -> Now {
        *lock(&self.now)
    }

    /// Waits until [`Course::now`] may be another.
    pub(super) async fn changed(&self) {
        self.changed.notified().await;
    }

    fn change(&self, now: Now) {
        *lock(&self.now) = now;
        self.changed.notify_one();
    }

    fn has(&self, fault: &Fault) -> bool {
        self.faults.iter().any(|planned| planned.fault == *fault)
    }

    /// After how many lines it ends, and how.
    pub(super) fn ends_after(&self) -> Option<(u64, Ending)> {
        self.faults.iter().rev().find_map(|planned| match planned.fault.meets() {
            Meets::Ends(ending) => Some((planned.after_lines?, ending)),
            Meets::Watches | Meets::Requests | Meets::Writes | Meets::Creates | Meets::Server => None,
        })
    }

    pub(super) fn is_dropped_if_slow(&self) -> bool {
        self.has(&Fault::DropSlowWatches)
    }

    pub(super) fn has_bookmarks(&self) -> bool {
        !self.has(&Fault::NoBookmarks)
    }

    pub(super) fn streaming_lists(&self) -> StreamingLists {
        if self.has(&Fault::NoStreamingLists) {
            return StreamingLists::Refused;
        }
        if self.has(&Fault::IgnoreStreamingLists) { StreamingLists::Ignored } else { StreamingLists::Served }
    }

    pub(super) fn chunk_bytes(&self) -> Option<NonZeroUsize> {
        self.faults.iter().rev().find_map(|planned| match planned.fault {
            Fault::ChunkBytes(bytes) => NonZeroUsize::new(bytes),
            _ => None,
        })
    }
}

/// The faults of a server.
#[derive(Debug, Default)]
pub(super) struct Faults(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    planned: Vec<Planned>,
    open: Vec<Weak<Course>>,
}

impl Faults {
    /// Plan a fault for watches or requests. Open watches meet it at once.
    pub(super) fn plan(&self, mut planned: Planned) {
        let mut state = lock(&self.0);
        let now = match planned.fault.meets() {
            Meets::Ends(ending) if planned.after_lines.is_none() => {
                Some(Now { ending: Some(ending), ..Now::default() })
            }
            Meets::Watches if planned.fault == Fault::StallWatches => {
                Some(Now { is_stalled: true, ..Now::default() })
            }
            Meets::Ends(_)
            | Meets::Watches
            | Meets::Requests
            | Meets::Writes
            | Meets::Creates
            | Meets::Server => None,
        };
        if let Some(now) = now {
            for course in state.open.iter().filter_map(Weak::upgrade) {
                if planned.take(&Method::GET, &course.target) {
                    course.change(now);
                }
            }
            if now.ending.is_some() {
                return;
            }
        }
        if planned.times == Some(0) {
            return;
        }
        if state.planned.len() == FAULTS_MAX {
            state.planned.remove(0);
        }
        state.planned.push(planned);
    }

    /// From now on nothing goes wrong; what is stalled goes on.
    pub(super) fn end(&self) {
        let mut state = lock(&self.0);
        state.planned.clear();
        for course in state.open.iter().filter_map(Weak::upgrade) {
            course.change(Now::default());
        }
    }

    /// One line for each that is planned.
    pub(super) fn list(&self) -> String {
        let planned = &lock(&self.0).planned;
        if planned.is_empty() {
            return "none planned\n".to_owned();
        }
        planned.iter().map(|planned| format!("{planned}\n")).collect()
    }

    /// What is to go wrong with a watch that is opened now.
    pub(super) fn of_watch(&self, target: &str) -> Arc<Course> {
        let mut state = lock(&self.0);
        let mut faults = Vec::new();
        for planned in &mut state.planned {
            let is_for_watches = matches!(planned.fault.meets(), Meets::Ends(_) | Meets::Watches);
            if is_for_watches && planned.take(&Method::GET, target) {
                faults.push(planned.clone());
            }
        }
        state.planned.retain(|planned| planned.times != Some(0));
        let is_stalled = faults.iter().any(|planned| planned.fault == Fault::StallWatches);
        let now = Mutex::new(Now { is_stalled, ending: None });
        let course = Arc::new(Course { target: target.to_owned(), faults, now, changed: Notify::new() });
        state.open.retain(|open| open.strong_count() > 0);
        state.open.push(Arc::downgrade(&course));
        course
    }

    /// What is to go wrong with a request: the first fault that is for it.
    pub(super) fn of_request(&self, method: &Method, target: &str) -> Option<Fault> {
        let mut state = lock(&self.0);
        let found = state.planned.iter_mut().find_map(|planned| {
            let is_for_requests =
                matches!(planned.fault.meets(), Meets::Requests | Meets::Writes | Meets::Creates);
            (is_for_requests && planned.take(method, target)).then(|| planned.fault.clone())
        });
        state.planned.retain(|planned| planned.times != Some(0));
        found
    }
}

/// A stream or connection that breaks on demand.
#[derive(Debug)]
pub struct Cut;

impl fmt::Display for Cut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("cut on demand")
    }
}

impl std::error::Error for Cut {}
