//! Faults on demand: makes the server fail in a chosen way, as API servers sometimes do, for tests of clients.
//!
//! ```text
//! $ listwatch apiserver --fault too-many-requests,path=/deployments,times=3
//! $ echo cut-watches,path=/pods | kubectl create --raw /listwatch/faults -f -
//! server.fault(Fault::CutWatches.on("GET", "/pods"));
//! ```
//!
//! A [`Fault`] is the kind of failure. A [`Planned`] adds the requests that it applies to, and how often. The flag and
//! the request body use the same syntax; [`help`] describes it. Each fault is implemented at the place of its effect:
//! for requests in `http/server.rs`, for watches in `verbs/watch.rs`, for the whole server (restart, backup, history)
//! in `state.rs`.
//!
//! A request that a fault holds waits for its release. A test waits for it at `/listwatch/faults/held`, does what it wants to
//! do at this point, such as killing the client, and releases it with a DELETE. Others release requests one by one, or refuse them.

use std::{
    collections::BTreeMap,
    fmt, mem,
    num::NonZeroUsize,
    ops::RangeInclusive,
    str::FromStr,
    sync::{Arc, Mutex, Weak},
    time::Duration,
};

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method, header::CONTENT_TYPE};
use tokio::sync::{Notify, oneshot, watch};

use serde_json::json;

use crate::{
    authorization::{self, Rule, Verb},
    request::{Query, Request, ResourcePath},
    status::{StatusError, details, qualified},
    storage::lock,
};

/// The path at which administrators list, plan and end faults.
pub(crate) const PATH: &str = "/listwatch/faults";

/// The path at which administrators wait for held requests, and release them.
pub(crate) const HELD_PATH: &str = "/listwatch/faults/held";

/// The annotation that [`Fault::Meddle`] changes.
pub const MEDDLED: &str = "listwatch/meddled";

/// The user of this change.
pub const MEDDLER: &str = "meddler";

/// Most planned faults at a time. One more drops the oldest.
const FAULTS_MAX: usize = 100;

/// Largest number in a fault. Leave the number out for no limit.
const NUMBER_MAX: u64 = 1_000_000_000;

/// Shortest interval of bookmarks.
const BOOKMARKS_EVERY_MIN: Duration = Duration::from_millis(10);

/// A failure. See [`ApiServer::fault`](super::ApiServer::fault).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Watches end cleanly, as they do after their `timeoutSeconds`.
    EndWatches,
    /// Watches are cut in the middle of a line, as by a crash or a proxy.
    CutWatches,
    /// Watches end with an ERROR event, 410 `Expired`, as after a too old version.
    ExpireWatches,
    /// The same with the reason `Gone`, as from servers before 1.18.
    GoneWatches,
    /// Watches send nothing more and do not end: a half-open connection.
    StallWatches,
    /// Watches end cleanly at the next event and do not send it, as for a client that is too slow.
    DropSlowWatches,
    /// Watches send each change this much later, or up to twice as much: an API server whose cache is behind.
    LateWatches(Duration),
    /// Watches send no bookmarks.
    NoBookmarks,
    /// Watches that allow bookmarks send one in this interval, instead of one a minute.
    BookmarksEvery(Duration),
    /// Lists with `resourceVersion=0` show the state at this version, as from an API server whose cache is behind.
    StaleLists(u64),
    /// Streaming lists are refused with 422, as by default from 1.27 to 1.31 and in 1.33.
    NoStreamingLists,
    /// `sendInitialEvents` and its `resourceVersionMatch` are ignored, as by servers before 1.19, and by some aggregated API
    /// servers.
    IgnoreStreamingLists,
    /// Watch streams are sent in chunks of at most this many bytes.
    ChunkBytes(usize),
    /// Requests get this answer, whatever they ask for.
    Answer {
        /// The HTTP status.
        status: u16,
        /// The body, sent as JSON if it starts with a brace, as HTML if with `<`.
        body: String,
        /// The header `Retry-After`.
        retry_after_secs: Option<u64>,
    },
    /// Requests that these rules do not allow are forbidden (403), in the words of RBAC.
    Forbidden(Vec<Rule>),
    /// Requests are answered after a delay.
    Delay(Duration),
    /// Requests get no answer, and their bodies are not read.
    Silence,
    /// The second half of each list comes this much later; of a streaming list, all but the first event.
    SlowLists(Duration),
    /// Requests take effect, then the stream or connection breaks before the answer is sent.
    LoseAnswer,
    /// Writes wait until [`ApiServer::release_held`](super::ApiServer::release_held), then take effect. If the client
    /// disconnects meanwhile, they do not.
    Hold,
    /// Requests take effect, and their answers wait until [`ApiServer::release_held`](super::ApiServer::release_held).
    HoldAnswer,
    /// Just before an update, another client changes an annotation of the object, so an old resourceVersion gets a 409.
    Meddle,
    /// Writes are refused by an admission webhook.
    Deny {
        /// Its name.
        webhook: String,
        /// Its explanation.
        message: String,
        /// The HTTP status, which a webhook may choose.
        code: u16,
    },
    /// Creates are refused because the ResourceQuota of this name is used up.
    Quota(String),
    /// The history is dropped: the next resume, and the next page of a list, get a 410.
    ExpireHistory,
    /// All connections are closed and the history is dropped. The objects stay.
    Restart,
    /// The objects are saved for `Restore`. Clients notice nothing.
    Backup,
    /// As `Restart`, but objects and versions return to the last `Backup`, or to the start of the server.
    Restore,
}

/// The requests or watches that a fault can apply to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Scope {
    /// Watches: the fault ends them, at once or after some lines.
    Ends(Ending),
    /// Watches, as long as the fault is planned.
    Watches,
    /// Requests with these methods.
    Requests(&'static [&'static str]),
    /// The whole server, at once.
    Server,
}

impl Scope {
    /// The keys that all faults with this scope have.
    fn keys(self) -> &'static [&'static str] {
        match self {
            Scope::Ends(_) => &["path", "times", "user", "lines"],
            Scope::Watches => &["path", "times", "user"],
            Scope::Requests(_) => &["path", "times", "method", "user", "nth"],
            Scope::Server => &[],
        }
    }

    /// The heading of these faults in the help text.
    fn heading(self) -> &'static str {
        match self {
            Scope::Ends(_) => {
                "End all open watches; with lines=N, each new watch after N lines. Also path=PART, times=N, user=NAME:"
            }
            Scope::Watches => "Watches. Also path=PART (of path and query), times=N, user=NAME:",
            Scope::Requests(_) => {
                "Requests. Also path=PART, times=N, method=GET, user=NAME, nth=N (only the N-th one that matches):"
            }
            Scope::Server => "The whole server, at once:",
        }
    }
}

const METHODS: &[&str] = &["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"];
const WRITES: &[&str] = &["POST", "PUT", "PATCH", "DELETE"];

impl Fault {
    fn scope(&self) -> Scope {
        match self {
            Fault::EndWatches => Scope::Ends(Ending::Clean),
            Fault::CutWatches => Scope::Ends(Ending::MidLine),
            Fault::ExpireWatches => Scope::Ends(Ending::Expired),
            Fault::GoneWatches => Scope::Ends(Ending::Gone),
            Fault::StallWatches
            | Fault::DropSlowWatches
            | Fault::LateWatches(_)
            | Fault::NoBookmarks
            | Fault::BookmarksEvery(_)
            | Fault::NoStreamingLists
            | Fault::IgnoreStreamingLists
            | Fault::ChunkBytes(_) => Scope::Watches,
            Fault::Answer { .. }
            | Fault::Forbidden(_)
            | Fault::Delay(_)
            | Fault::Silence
            | Fault::LoseAnswer
            | Fault::HoldAnswer => Scope::Requests(METHODS),
            Fault::Hold | Fault::Deny { .. } => Scope::Requests(WRITES),
            Fault::Meddle => Scope::Requests(&["PUT", "PATCH"]),
            Fault::Quota(_) => Scope::Requests(&["POST"]),
            Fault::StaleLists(_) | Fault::SlowLists(_) => Scope::Requests(&["GET"]),
            Fault::ExpireHistory | Fault::Restart | Fault::Backup | Fault::Restore => Scope::Server,
        }
    }

    /// The error of a request that the rules of the fault do not allow.
    pub(crate) fn forbids(&self, request: &Request, user: Option<&str>, verb: Verb) -> Option<StatusError> {
        match self {
            Fault::Forbidden(rules) => authorization::check(request, user, Some(rules), verb).err(),
            _ => None,
        }
    }

    fn methods(&self) -> &'static [&'static str] {
        match self.scope() {
            Scope::Requests(methods) => methods,
            Scope::Ends(_) | Scope::Watches | Scope::Server => METHODS,
        }
    }

    /// Limits the fault to requests with this method (empty: any) whose path and query contain this text.
    #[must_use]
    pub fn on(self, method: &str, path: &str) -> Planned {
        Planned::from(self).on(method, path)
    }

    /// Limits how many requests or watches the fault applies to.
    #[must_use]
    pub fn times(self, times: u64) -> Planned {
        Planned::from(self).times(times)
    }

    /// Limits the fault to the requests of this user, or of those whose names begin so: `operator-*`.
    #[must_use]
    pub fn by(self, user: &str) -> Planned {
        Planned::from(self).by(user)
    }

    /// Limits the fault to the n-th request that matches; 1 is the first.
    #[must_use]
    pub fn nth(self, nth: u64) -> Planned {
        Planned::from(self).nth(nth)
    }
}

/// A fault, and the requests that it applies to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Planned {
    pub(crate) fault: Fault,
    method: String,
    path: String,
    /// `jane`, or the beginning of names: `operator-*`. Empty: any user.
    user: String,
    /// How often it still applies. `None`: until faults are ended.
    times: Option<u64>,
    /// How many requests that match it still lets pass.
    passes: u64,
    /// Applies to watches that open later; each ends after this many lines.
    after_lines: Option<u64>,
    /// As the user wrote it, for the list of faults.
    text: String,
}

impl From<Fault> for Planned {
    fn from(fault: Fault) -> Planned {
        let text = format!("{fault:?}");
        let (method, path, user) = (String::new(), String::new(), String::new());
        Planned { fault, method, path, user, times: None, passes: 0, after_lines: None, text }
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

    /// See [`Fault::by`].
    #[must_use]
    pub fn by(mut self, user: &str) -> Planned {
        user.clone_into(&mut self.user);
        self
    }

    /// See [`Fault::nth`].
    #[must_use]
    pub fn nth(mut self, nth: u64) -> Planned {
        self.passes = nth.saturating_sub(1);
        self.times(1)
    }

    /// Applies to watches that open from now on, and ends each after this many lines. Open watches go on. Only for
    /// faults that end watches.
    #[must_use]
    pub fn after_lines(mut self, lines: u64) -> Planned {
        self.after_lines = Some(lines);
        self
    }

    /// Whether the fault takes effect at once and is not kept.
    #[must_use]
    pub fn is_momentary(&self) -> bool {
        match self.fault.scope() {
            Scope::Ends(_) => self.after_lines.is_none(),
            Scope::Watches | Scope::Requests(_) => false,
            Scope::Server => true,
        }
    }

    /// Whether the fault applies to the whole server, at once.
    #[must_use]
    pub fn is_for_server(&self) -> bool {
        self.fault.scope() == Scope::Server
    }

    /// Whether the fault applies to requests, and whether its rules forbid this one.
    fn is_for(&self, request: &Request, user: Option<&str>) -> bool {
        let is_allowed = matches!(self.fault, Fault::Forbidden(_))
            && self.fault.forbids(request, user, Verb::OfMethod).is_none();
        matches!(self.fault.scope(), Scope::Requests(_)) && !is_allowed
    }

    fn is_by(&self, user: Option<&str>) -> bool {
        let user = user.unwrap_or_default();
        match self.user.strip_suffix('*') {
            Some(begin) => user.starts_with(begin),
            None => self.user.is_empty() || user == self.user,
        }
    }

    /// Whether the fault is about a request of this user.
    fn fits(&self, method: &str, target: &str, user: Option<&str>) -> bool {
        let is_watch = target.contains("watch=");
        let path = target.split('?').next().unwrap_or_default();
        let is_collection = || ResourcePath::parse(path).is_some_and(|path| path.name.is_none());
        let is_fitting = match self.fault {
            Fault::StaleLists(_) => target.contains("resourceVersion=0") && !is_watch && is_collection(),
            Fault::SlowLists(_) => {
                is_collection() && (!is_watch || target.contains("sendInitialEvents=true"))
            }
            _ => true,
        };
        self.is_by(user)
            && is_fitting
            && self.fault.methods().contains(&method)
            && (self.method.is_empty() || self.method == method)
            && target.contains(&self.path)
    }

    /// Whether the fault applies to a request of this user. If so, counts the request.
    fn take(&mut self, method: &Method, target: &str, user: Option<&str>) -> bool {
        let applies = self.times != Some(0) && self.fits(method.as_str(), target, user);
        if applies && self.passes > 0 {
            self.passes -= 1;
            return false;
        }
        if applies && let Some(times) = &mut self.times {
            *times -= 1;
        }
        applies
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

type Make = fn(&Values) -> Result<Fault, String>;

/// The faults by name: their keys with defaults, their help text and their constructor.
#[rustfmt::skip]
const NAMED: [(&str, &str, &str, Make); 35] = [
    ("end-watches", "", "watches end cleanly", |_| Ok(Fault::EndWatches)),
    ("cut-watches", "", "watches are cut in the middle of a line", |_| Ok(Fault::CutWatches)),
    ("expire-watches", "", "watches end with an ERROR event, 410 Expired", |_| Ok(Fault::ExpireWatches)),
    ("gone-watches", "", "watches end with an ERROR event, 410 Gone, as before 1.18", |_| Ok(Fault::GoneWatches)),
    ("stall-watches", "", "watches send nothing more and do not end", |_| Ok(Fault::StallWatches)),
    ("drop-slow-watches", "", "new watches end instead of sending their next event", |_| Ok(Fault::DropSlowWatches)),
    ("late-watches", "time=1s", "new watches send changes this much later, as from a cache that is behind", |keys| Ok(Fault::LateWatches(keys.time("time")?))),
    ("no-bookmarks", "", "new watches send no bookmarks", |_| Ok(Fault::NoBookmarks)),
    ("bookmarks", "every=1s", "new watches send bookmarks in this interval, instead of every minute", bookmarks),
    ("no-streaming-lists", "", "sendInitialEvents is refused with 422, as by default in 1.27 to 1.31 and 1.33", |_| Ok(Fault::NoStreamingLists)),
    ("ignore-streaming-lists", "", "sendInitialEvents is ignored, as before 1.19", |_| Ok(Fault::IgnoreStreamingLists)),
    ("chunks", "bytes=1", "new watches are sent in chunks of at most this many bytes", |keys| Ok(Fault::ChunkBytes(keys.number("bytes", 1..=1_000_000)?))),
    ("slow", "time=1s", "requests are answered after a delay", |keys| Ok(Fault::Delay(keys.time("time")?))),
    ("silence", "", "requests get no answer, and their bodies are not read", |_| Ok(Fault::Silence)),
    ("lose-answer", "", "requests take effect, but the connection breaks before the answer", |_| Ok(Fault::LoseAnswer)),
    ("hold-answer", "", "requests take effect, and their answers wait for DELETE /listwatch/faults/held", |_| Ok(Fault::HoldAnswer)),
    ("hold", "", "writes wait for DELETE /listwatch/faults/held, then take effect", |_| Ok(Fault::Hold)),
    ("meddle", "", "just before an update, another client changes an annotation of the object", |_| Ok(Fault::Meddle)),
    ("slow-lists", "time=2s", "half of a list comes this much later; of a streaming list, all but the first event", |keys| Ok(Fault::SlowLists(keys.time("time")?))),
    ("stale-lists", "version=1", "lists with resourceVersion=0 are as old as this version", |keys| Ok(Fault::StaleLists(keys.number("version", 1..=u64::MAX)?))),
    ("unauthorized", "", "401, as for an expired token", |_| Ok(refused(StatusError::unauthorized()))),
    ("forbidden", "rules=[]", "403, unless these rules of a Role allow the request", forbidden),
    ("too-many-requests", "retry-after=1", "429 in plain text, as from an overloaded server", too_many_requests),
    ("initializing", "", "429, as for the first watches of a new CRD: add path=/widgets?watch", |_| Ok(refused(initializing()))),
    ("unavailable", "retry-after=1", "503, as from a server that shuts down", unavailable),
    ("internal-error", "", "500 InternalError", |_| Ok(refused(StatusError::new(500, "InternalError", "Internal error occurred: a fault on demand", None)))),
    ("html", "status=502", "an HTML page, as from a proxy", html),
    ("expired", "", "410 Expired as the HTTP status", |_| Ok(refused(StatusError::expired("The resourceVersion for the provided list is too old.")))),
    ("gone", "", "410 Gone as the HTTP status, as before 1.18", |_| Ok(refused(gone("too old resource version".to_owned())))),
    ("deny", "webhook=deny.example.com,message=no,code=403", "writes are denied by an admission webhook", deny),
    ("quota", "name=full", "creates exceed a quota", |keys| Ok(Fault::Quota(keys.text("name")))),
    ("expire-history", "", "the history is dropped: the next resume gets a 410", |_| Ok(Fault::ExpireHistory)),
    ("restart", "", "all connections are closed and the history is dropped", |_| Ok(Fault::Restart)),
    ("backup", "", "all objects are saved for restore", |_| Ok(Fault::Backup)),
    ("restore", "", "a restart with the objects and versions of the last backup, or of the start", |_| Ok(Fault::Restore)),
];

fn bookmarks(keys: &Values) -> Result<Fault, String> {
    let every = keys.time("every")?;
    if every < BOOKMARKS_EVERY_MIN {
        return Err(format!("every={}: must be {BOOKMARKS_EVERY_MIN:?} or more", keys.text("every")));
    }
    Ok(Fault::BookmarksEvery(every))
}

fn forbidden(keys: &Values) -> Result<Fault, String> {
    let text = keys.text("rules");
    let rules = yaml_serde::from_str(&text).map_err(|error| {
        let example = r#"[{apiGroups: [""], resources: [pods], verbs: [get, list]}]"#;
        format!("rules={text}: {error}; write the rules of a Role, such as {example}")
    });
    Ok(Fault::Forbidden(rules?))
}

fn too_many_requests(keys: &Values) -> Result<Fault, String> {
    let body = "Too many requests, please try again later.\n".to_owned();
    let retry_after_secs = Some(keys.number("retry-after", 0..=NUMBER_MAX)?);
    Ok(Fault::Answer { status: 429, body, retry_after_secs })
}

/// Until the watch cache of a resource is filled.
fn initializing() -> StatusError {
    let details = json!({"retryAfterSeconds": 1});
    StatusError::new(429, "TooManyRequests", "storage is (re)initializing", Some(details))
}

fn unavailable(keys: &Values) -> Result<Fault, String> {
    let error = StatusError::new(503, "ServiceUnavailable", "apiserver is shutting down", None);
    let body = format!("{}\n", error.into_status());
    let retry_after_secs = Some(keys.number("retry-after", 0..=NUMBER_MAX)?);
    Ok(Fault::Answer { status: 503, body, retry_after_secs })
}

fn html(keys: &Values) -> Result<Fault, String> {
    let status = keys.number("status", 200..=599)?;
    let title = http::StatusCode::from_u16(status).map(|status| status.to_string()).unwrap_or_default();
    let body = format!(
        "<html>\r\n<head><title>{title}</title></head>\r\n<body>\r\n<center><h1>{title}</h1></center>\r\n\
         <hr><center>nginx</center>\r\n</body>\r\n</html>\r\n"
    );
    Ok(Fault::Answer { status, body, retry_after_secs: None })
}

fn deny(keys: &Values) -> Result<Fault, String> {
    let code = keys.number("code", 400..=599)?;
    Ok(Fault::Deny { webhook: keys.text("webhook"), message: keys.text("message"), code })
}

fn refused(error: StatusError) -> Fault {
    let retry_after_secs = error.retry_after_secs();
    Fault::Answer { status: error.code, body: format!("{}\n", error.into_status()), retry_after_secs }
}

/// The request of another client just before an update.
pub(crate) fn meddling(update: &Request, version: u64) -> Request {
    let of_subresource =
        ResourcePath::parse(&update.path).and_then(|path| path.subresource).unwrap_or_default();
    let path = update.path.strip_suffix(&format!("/{of_subresource}")).unwrap_or(&update.path).to_owned();
    let patch = json!({"metadata": {"annotations": {MEDDLED: version.to_string()}}});
    Request {
        id: 0,
        method: Method::PATCH,
        target: path.clone(),
        path,
        query: Query::parse(""),
        headers: HeaderMap::from_iter([(
            CONTENT_TYPE,
            HeaderValue::from_static("application/merge-patch+json"),
        )]),
        body: patch.to_string().into(),
        can_upgrade: false,
        user: Some(MEDDLER.to_owned()),
    }
}

/// The error of an admission webhook that denies an object, in the words of controller-runtime's `Denied`. The API
/// server adds a prefix to the message: apiserver/pkg/admission/plugin/webhook/errors.
pub(crate) fn denied(webhook: &str, message: &str, code: u16) -> StatusError {
    let message = format!("admission webhook {webhook:?} denied the request: {message}");
    let reason = if code == 403 { "Forbidden" } else { "" };
    StatusError::new(code, reason, message, None)
}

/// The error for an object that exceeds a quota.
pub(crate) fn exceeds_quota(request: &Request, quota: &str) -> StatusError {
    let name = request.name_in_body();
    let path = ResourcePath::parse(&request.path);
    let (plural, group) = path.map(|path| (path.plural, path.group)).unwrap_or_default();
    let resource = qualified(&plural, &group);
    let counted = if group.is_empty() { plural.clone() } else { format!("count/{resource}") };
    let message = format!(
        "{resource} {name:?} is forbidden: exceeded quota: {quota}, requested: {counted}=1, used: {counted}=1, \
         limited: {counted}=1"
    );
    StatusError::not_allowed(message, details(&name, &group, &plural))
}

/// The error of a held request that is refused.
fn refusal(status: u16) -> StatusError {
    match status {
        409 => StatusError::new(409, "Conflict", "the object has been modified: a fault on demand", None),
        500 => StatusError::went_wrong("a fault on demand"),
        _ => StatusError::new(status, "", "a fault on demand", None),
    }
}

/// As [`StatusError::expired`], in the words of servers before 1.18.
pub(crate) fn gone(message: String) -> StatusError {
    StatusError::new(410, "Gone", message, None)
}

impl FromStr for Planned {
    type Err = String;

    /// `cut-watches`, `too-many-requests,retry-after=2,path=/pods,times=3`.
    fn from_str(text: &str) -> Result<Planned, String> {
        let text = text.trim();
        let (name, rest) = text.split_once(',').unwrap_or((text, ""));
        let name = name.trim_end();
        let Some((_, defaults, _, make)) = NAMED.iter().find(|(known, ..)| *known == name) else {
            return Err(match similar(name) {
                Some(similar) => format!("{name:?} is not a fault; a similar one is {similar}"),
                None => {
                    format!("{name:?} is not a fault; there are {}", NAMED.map(|(name, ..)| name).join(", "))
                }
            });
        };
        let (given, defaults) = (Values::parse(rest)?, Values::parse(defaults)?);
        let values = Values([&given.0[..], &defaults.0].concat());
        let fault = make(&values)?;
        let number = |key, min| values.get(key).map(|_| values.number(key, min..=NUMBER_MAX)).transpose();
        let (times, after_lines, nth) = (number("times", 1)?, number("lines", 0)?, number("nth", 1)?);
        let common = fault.scope().keys();
        let known: Vec<&str> = defaults.0.iter().map(|(key, _)| *key).chain(common.iter().copied()).collect();
        if let Some((unknown, _)) = given.0.iter().find(|(key, _)| !known.contains(key)) {
            return Err(match known[..] {
                [] => format!("{name} takes no {unknown:?}: it takes nothing"),
                _ => format!("{name} takes no {unknown:?}, but {}", known.join(", ")),
            });
        }
        if let Some(key) = common.iter().find(|key| given.get(key) == Some("")) {
            return Err(format!("{key}= has no value: give one, or leave {key}= out"));
        }
        let (path, user) = (values.text("path"), values.text("user"));
        let method = values.text("method").to_uppercase();
        let methods = fault.methods();
        if !method.is_empty() && !methods.contains(&method.as_str()) {
            return Err(format!("method={method}: {name} applies to {}", methods.join(", ")));
        }
        if times.is_some() && nth.is_some() {
            return Err("give times=N or nth=N, not both".to_owned());
        }
        let planned =
            Planned { fault, method, path, user, times, passes: 0, after_lines, text: text.to_owned() };
        Ok(match nth {
            Some(nth) => planned.nth(nth),
            None => planned,
        })
    }
}

/// Least similarity of a misspelt name to a suggestion: Jaro, from 0 to 1. clap has the same limit for flags.
const SIMILAR_MIN: f64 = 0.7;

/// The most similar name.
fn similar(name: &str) -> Option<&'static str> {
    let measured = NAMED.iter().map(|(known, ..)| (strsim::jaro(name, known), *known));
    let (similarity, most) = measured.max_by(|one, other| one.0.total_cmp(&other.0))?;
    (similarity > SIMILAR_MIN).then_some(most)
}

/// `key=value,key=value`. A part without `=` belongs to the value before it, so messages can contain commas.
struct Values<'a>(Vec<(&'a str, String)>);

impl Values<'_> {
    fn parse(text: &str) -> Result<Values<'_>, String> {
        let mut values: Vec<(&str, String)> = Vec::new();
        for part in text.split(',').filter(|_| !text.is_empty()) {
            match (part.split_once('='), values.last_mut()) {
                (Some((key, value)), _) => {
                    let key = key.trim();
                    if values.iter().any(|(before, _)| *before == key) {
                        return Err(format!("{key} is given twice"));
                    }
                    values.push((key, value.trim().to_owned()));
                }
                (None, Some((_, value))) => {
                    value.push(',');
                    value.push_str(part);
                }
                (None, None) => return Err(format!("{part:?} should be KEY=VALUE")),
            }
        }
        Ok(Values(values))
    }

    fn get(&self, key: &str) -> Option<&str> {
        self.0.iter().find(|(known, _)| *known == key).map(|(_, value)| value.as_str())
    }

    fn text(&self, key: &str) -> String {
        self.get(key).unwrap_or_default().to_owned()
    }

    fn number<T>(&self, key: &str, range: RangeInclusive<T>) -> Result<T, String>
    where
        T: FromStr + PartialOrd + fmt::Display,
    {
        let text = self.text(key);
        let number = text.parse().ok().filter(|number| range.contains(number));
        number.ok_or_else(|| {
            format!("{key}={text}: must be a number from {} to {}", range.start(), range.end())
        })
    }

    fn time(&self, key: &str) -> Result<Duration, String> {
        let text = self.text(key);
        humantime::parse_duration(&text).map_err(|_| {
            format!("{key}={text}: is not a time: write a number and a unit, such as 500ms or 2s")
        })
    }
}

/// Help for users: the syntax, and the name and effect of each fault, by scope.
#[must_use]
pub fn help() -> String {
    let mut text =
        "A fault is NAME,KEY=VALUE,… Each KEY=VALUE is optional; the defaults are shown.\n".to_owned();
    let mut before = "";
    for (name, defaults, help, make) in &NAMED {
        let fault = Values::parse(defaults).and_then(|defaults| make(&defaults));
        let heading = fault.expect("valid defaults: a test parses them all").scope().heading();
        if heading != before {
            text.push_str(&format!("\n{heading}\n"));
            before = heading;
        }
        let comma = if defaults.is_empty() { "" } else { "," };
        text.push_str(&format!("  {:<31}  {help}\n", format!("{name}{comma}{defaults}")));
    }
    text
}

/// Parses the body of a request: one fault per line, or several separated by `;`. Lines with `#` in front are comments.
pub(crate) fn parse_lines(body: &[u8]) -> Result<Vec<Planned>, String> {
    let text = std::str::from_utf8(body).map_err(|_| "the body is not text".to_owned())?;
    let lines = text.lines().enumerate().filter(|(_, line)| !line.trim_start().starts_with('#'));
    let mut planned = Vec::new();
    for (number, line) in lines {
        for fault in line.split(';').filter(|fault| !fault.trim().is_empty()) {
            planned.push(fault.parse().map_err(|error| format!("line {}: {error}", number + 1))?);
        }
    }
    if planned.is_empty() {
        return Err("the body names no fault; POST help for a list".to_owned());
    }
    Ok(planned)
}

/// How a fault ends a watch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    Clean,
    MidLine,
    Expired,
    Gone,
}

/// How a server handles `sendInitialEvents`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StreamingLists {
    Served,
    Refused,
    Ignored,
}

/// The faults of one watch.
#[derive(Debug)]
pub(crate) struct Course {
    target: String,
    user: Option<String>,
    /// The faults that were planned when the watch opened. The latest has precedence.
    faults: Vec<Planned>,
    effect: Mutex<Option<Effect>>,
    changed: Notify,
}

/// The effect of a fault on an open watch.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Effect {
    Stall,
    End(Ending),
}

impl Course {
    pub(crate) fn effect(&self) -> Option<Effect> {
        *lock(&self.effect)
    }

    /// Waits until [`Course::effect`] may have changed.
    pub(crate) async fn changed(&self) {
        self.changed.notified().await;
    }

    fn change(&self, effect: Option<Effect>) {
        *lock(&self.effect) = effect;
        self.changed.notify_one();
    }

    fn has(&self, fault: &Fault) -> bool {
        self.faults.iter().any(|planned| planned.fault == *fault)
    }

    /// The number of lines after which the watch ends, and how it ends.
    pub(crate) fn ends_after(&self) -> Option<(u64, Ending)> {
        self.faults.iter().rev().find_map(|planned| match planned.fault.scope() {
            Scope::Ends(ending) => Some((planned.after_lines?, ending)),
            Scope::Watches | Scope::Requests(_) | Scope::Server => None,
        })
    }

    /// How late a fault makes the watch.
    pub(crate) fn late(&self) -> Option<Duration> {
        self.faults.iter().rev().find_map(|planned| match planned.fault {
            Fault::LateWatches(late) => Some(late),
            _ => None,
        })
    }

    pub(crate) fn is_dropped_if_slow(&self) -> bool {
        self.has(&Fault::DropSlowWatches)
    }

    pub(crate) fn has_bookmarks(&self) -> bool {
        !self.has(&Fault::NoBookmarks)
    }

    /// The interval of bookmarks, if a fault sets it.
    pub(crate) fn bookmarks_every(&self) -> Option<Duration> {
        self.faults.iter().rev().find_map(|planned| match planned.fault {
            Fault::BookmarksEvery(every) => Some(every),
            _ => None,
        })
    }

    pub(crate) fn streaming_lists(&self) -> StreamingLists {
        if self.has(&Fault::NoStreamingLists) {
            return StreamingLists::Refused;
        }
        if self.has(&Fault::IgnoreStreamingLists) { StreamingLists::Ignored } else { StreamingLists::Served }
    }

    pub(crate) fn chunk_bytes(&self) -> Option<NonZeroUsize> {
        self.faults.iter().rev().find_map(|planned| match planned.fault {
            Fault::ChunkBytes(bytes) => NonZeroUsize::new(bytes),
            _ => None,
        })
    }
}

/// The faults of a server.
#[derive(Debug, Default)]
pub(crate) struct Faults {
    state: Mutex<State>,
    held: watch::Sender<Held>,
}

/// The requests that wait for their release, by id: in the order of their arrival.
type Held = BTreeMap<u64, (HeldRequest, oneshot::Sender<Release>)>;

/// How a held request goes on: to its effect, or refused with a status.
type Release = Result<(), u16>;

/// A request that a fault holds. See [`ApiServer::held_requests`](super::ApiServer::held_requests).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeldRequest {
    /// As [`RequestRecord::id`](super::RequestRecord::id).
    pub id: u64,
    /// Empty without a known token.
    pub user: String,
    /// `POST`, …
    pub method: String,
    /// Path and query.
    pub target: String,
    /// As the client has sent it.
    pub body: Bytes,
}

#[derive(Debug, Default)]
struct State {
    planned: Vec<Planned>,
    open: Vec<Weak<Course>>,
}

impl Faults {
    /// Plans a fault for watches or requests. It applies to open watches at once.
    pub(crate) fn plan(&self, mut planned: Planned) {
        let mut state = lock(&self.state);
        let effect = match planned.fault.scope() {
            Scope::Ends(ending) if planned.after_lines.is_none() => Some(Effect::End(ending)),
            Scope::Watches if planned.fault == Fault::StallWatches => Some(Effect::Stall),
            Scope::Ends(_) | Scope::Watches | Scope::Requests(_) | Scope::Server => None,
        };
        if effect.is_some() {
            for course in state.open.iter().filter_map(Weak::upgrade) {
                if planned.take(&Method::GET, &course.target, course.user.as_deref()) {
                    course.change(effect);
                }
            }
        }
        if planned.is_momentary() || planned.times == Some(0) {
            return;
        }
        if state.planned.len() == FAULTS_MAX {
            state.planned.remove(0);
        }
        state.planned.push(planned);
    }

    /// Ends all faults. Stalled watches go on.
    pub(crate) fn end(&self) {
        let mut state = lock(&self.state);
        state.planned.clear();
        for course in state.open.iter().filter_map(Weak::upgrade) {
            course.change(None);
        }
        drop(state);
        self.release();
    }

    /// Ends a fault: the watches that it stalls go on, and so do the requests that it holds. Returns whether it was planned.
    pub(crate) fn end_one(&self, text: &str) -> bool {
        let mut state = lock(&self.state);
        let all = mem::take(&mut state.planned).into_iter();
        let (ended, others): (Vec<_>, Vec<_>) = all.partition(|planned| planned.text == text);
        state.planned = others;
        // Another fault may stall or hold them as well.
        let goes_on = |faults: &[Fault], method: &str, target: &str, user: Option<&str>| {
            let is_by =
                |planned: &Planned| faults.contains(&planned.fault) && planned.fits(method, target, user);
            ended.iter().any(is_by) && !state.planned.iter().any(is_by)
        };
        for course in state.open.iter().filter_map(Weak::upgrade) {
            if goes_on(&[Fault::StallWatches], "GET", &course.target, course.user.as_deref()) {
                course.change(None);
            }
        }
        let is_held = |held: &HeldRequest| {
            !goes_on(&[Fault::Hold, Fault::HoldAnswer], &held.method, &held.target, Some(&held.user))
        };
        self.held.send_modify(|held| held.retain(|_, (request, _)| is_held(request)));
        !ended.is_empty()
    }

    /// Holds a request until it is released, or refused with an error. A client that disconnects drops this future, and so the request.
    pub(crate) async fn hold(&self, request: &Request) -> Result<(), StatusError> {
        let Request { id, ref method, ref target, ref body, .. } = *request;
        let (user, body) = (request.user.clone().unwrap_or_default(), body.clone());
        let held = HeldRequest { id, user, method: method.to_string(), target: target.clone(), body };
        let (sender, release) = oneshot::channel();
        self.held.send_modify(|all| _ = all.insert(id, (held, sender)));
        let _leaves = Leaves { faults: self, id };
        // Released with all others, it is dropped.
        release.await.unwrap_or(Ok(())).map_err(refusal)
    }

    pub(crate) fn is_holding(&self) -> bool {
        !self.held.borrow().is_empty()
    }

    /// The held requests, oldest first.
    pub(crate) fn held_requests(&self) -> Vec<HeldRequest> {
        self.held.borrow().values().map(|(request, _)| request.clone()).collect()
    }

    /// Waits until the number of held requests is as wanted. Returns them, oldest first: `POST /api/v1/namespaces/default/pods`.
    pub(crate) async fn held(&self, wanted: impl Fn(usize) -> bool) -> Vec<String> {
        let mut changes = self.held.subscribe();
        // The sender is ours, so it is not closed.
        let _ = changes.wait_for(|held| wanted(held.len())).await;
        drop(changes);
        let held = self.held_requests().into_iter();
        held.map(|HeldRequest { method, target, .. }| format!("{method} {target}")).collect()
    }

    /// Lets the held requests go on.
    pub(crate) fn release(&self) {
        self.held.send_modify(BTreeMap::clear);
    }

    /// Lets a held request go on. Whether it is held.
    pub(crate) fn release_one(&self, id: u64, release: Release) -> bool {
        let mut is_held = false;
        self.held.send_modify(|held| {
            let request = held.remove(&id);
            is_held = request.is_some_and(|(_, sender)| sender.send(release).is_ok());
        });
        is_held
    }

    /// Whether a fault may still apply to a request.
    pub(crate) fn is_planned(&self) -> bool {
        !lock(&self.state).planned.is_empty()
    }

    /// The planned faults, one per line.
    pub(crate) fn list(&self) -> String {
        let planned = &lock(&self.state).planned;
        if planned.is_empty() {
            return "none planned\n".to_owned();
        }
        planned.iter().map(|planned| format!("{planned}\n")).collect()
    }

    /// The faults of a watch that opens now.
    pub(crate) fn of_watch(&self, target: &str, user: Option<&str>) -> Arc<Course> {
        let mut state = lock(&self.state);
        let mut faults = Vec::new();
        for planned in &mut state.planned {
            let is_for_watches = matches!(planned.fault.scope(), Scope::Ends(_) | Scope::Watches);
            if is_for_watches && planned.take(&Method::GET, target, user) {
                faults.push(planned.clone());
            }
        }
        state.planned.retain(|planned| planned.times != Some(0));
        let is_stalled = faults.iter().any(|planned| planned.fault == Fault::StallWatches);
        let effect = Mutex::new(is_stalled.then_some(Effect::Stall));
        let (target, user) = (target.to_owned(), user.map(str::to_owned));
        let course = Arc::new(Course { target, user, faults, effect, changed: Notify::new() });
        state.open.retain(|open| open.strong_count() > 0);
        state.open.push(Arc::downgrade(&course));
        course
    }

    /// The fault of a request: the first planned one that applies. Those that apply to a later one count it also.
    pub(crate) fn of_request(&self, request: &Request, user: Option<&str>) -> Option<Fault> {
        let mut state = lock(&self.state);
        let mut found = None;
        for planned in state.planned.iter_mut().filter(|planned| planned.is_for(request, user)) {
            let is_due = found.is_none() || planned.passes > 0;
            if is_due && planned.take(&request.method, &request.target, user) {
                found = Some(planned.fault.clone());
            }
        }
        state.planned.retain(|planned| planned.times != Some(0));
        found
    }

    /// The error of an apply or a PUT that creates its object, if a fault forbids the create.
    pub(crate) fn forbid_create(&self, request: &Request, user: Option<&str>) -> Option<StatusError> {
        lock(&self.state).planned.iter_mut().find_map(|planned| {
            let error = planned.fault.forbids(request, user, Verb::Create)?;
            planned.take(&request.method, &request.target, user).then_some(error)
        })
    }
}

/// Removes a request from the held ones when it is released or dropped.
struct Leaves<'a> {
    faults: &'a Faults,
    id: u64,
}

impl Drop for Leaves<'_> {
    fn drop(&mut self) {
        self.faults.held.send_modify(|held| _ = held.remove(&self.id));
    }
}

/// The error of a stream or connection that a fault breaks.
#[derive(Debug)]
pub struct Cut;

impl fmt::Display for Cut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("cut on demand")
    }
}

impl std::error::Error for Cut {}
