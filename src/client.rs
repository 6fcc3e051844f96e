//! Speaks to an API server: verb, path, answer.
//!
//! Each method is one HTTP request. What `curl` would send for `client.patch(&key, Part::Object, &Patch::Json(…))`:
//!
//! ```text
//! PATCH /apis/apps/v1/namespaces/default/deployments/web HTTP/2
//! accept: application/json
//! authorization: Bearer …
//! content-type: application/json-patch+json
//! user-agent: listwatch/0.1.0
//!
//! [{"op": "replace", "path": "/spec/replicas", "value": 3}]
//!
//! HTTP/2 200
//! content-type: application/json
//!
//! {"kind": "Deployment", "apiVersion": "apps/v1", "metadata": {…}, …}
//! ```
//!
//! Where the server is and who we are to it is in [`Config`]; connections, deadlines and repeats are in `http`. What did
//! not work is an [`Error`]: verb, object, cause. Watching, which is more than a request, is a chapter of its own.

mod auth;
mod config;
mod error;
mod exec;
mod http;
#[cfg(feature = "apiserver")]
mod in_process;
mod kubeconfig;

use std::{borrow::Cow, fmt, sync::Arc, time::SystemTime};

use ::http::{HeaderMap, Method};
use bytes::Bytes;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::{Value, json};
use smol_str::SmolStr;
use tokio::sync::SemaphorePermit;
use url::form_urlencoded::Serializer;

pub use config::{Config, Env, Options};
pub use error::Error;
#[cfg(feature = "apiserver")]
pub use in_process::{Answer as InProcessAnswer, InProcess};

use crate::resource::{Accept, Key, Meta, ObjectMeta, Resource, Scope, Uid, list::List};
use error::{Cause, not_json};
use http::{
    CHECK_BYTES_MAX, Chunks, LISTS_BYTES_MAX, OBJECT_BYTES_MAX, PAGE_BYTES_MAX, PAGE_OF_ONE_BYTES_MAX,
    Transport, VERSION_BYTES_MAX,
};

/// Everything, in JSON.
const JSON: &str = "application/json";

/// What may stand in a path as it is: the unreserved characters of RFC 3986.
const PATH_SEGMENT: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// A way to an API server. Clones share its connections.
#[derive(Clone)]
pub struct Client {
    transport: Arc<Transport>,
}

/// Which page of a list.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Page<'a> {
    /// A resourceVersion; the list is not older than that. `None`: the most recent. Counts for the first page only.
    pub version: Option<&'a str>,
    /// [`List::continue_token`] of the page before. Empty: the first page.
    pub continue_token: &'a str,
    /// Most objects on a page. 0: all of them on one. A page may have 8 MiB, with a limit of 1 16 MiB, with 0 32 MiB:
    /// otherwise the answer is not read ([`Error::is_too_large`]).
    pub limit: u32,
}

/// What counts in [`Client::turn`] for a list that comes as a stream, line by line.
pub(crate) const LIST_STREAM_BYTES: usize = PAGE_BYTES_MAX;

/// A request that waits for others of its kind. See [`Client::turn`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum InTurn {
    /// A list of at most so many bytes.
    List { bytes_max: usize },
    /// [`Client::latest_version`].
    Check,
}

/// The right to send such a request, until dropped.
pub(crate) type Turn<'a> = SemaphorePermit<'a>;

/// Where a watch begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WatchFrom<'a> {
    /// A resourceVersion: what happened after that. Empty: the most recent.
    pub version: &'a str,
    /// When the server is to end the watch.
    pub timeout_secs: u32,
    /// What comes first.
    pub mode: WatchMode,
}

/// What a watch sends first. Both ask for bookmarks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WatchMode {
    /// Changes alone, after a list.
    Changes,
    /// Every object there is, then a bookmark that says so, then changes. Not every server can.
    InitialEvents,
}

/// Which part of an object a patch is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// Everything but the status.
    Object,
    /// The status alone.
    Status,
    /// The number of replicas. The answer is an `autoscaling/v1` Scale: see [`Client::scale`].
    Scale,
}

/// A change to an object. `Debug` does not show it: it may be a Secret's.
#[derive(Clone)]
pub enum Patch {
    /// `application/json-patch+json`: operations, all or none of them.
    Json(Vec<Value>),
    /// `application/merge-patch+json`: what is named is set, `null` removes, lists are replaced.
    Merge(Value),
    /// `application/apply-patch+yaml`: server-side apply. The object is created where it is absent, and whatever this
    /// manager named before and does not any more is removed.
    Apply {
        /// In whose name; at most 128 bytes.
        manager: String,
        /// Whether to take fields from other managers. If not, theirs are a conflict.
        force: bool,
        /// apiVersion, kind, name, and the fields that this manager wants.
        object: Value,
    },
}

/// How to delete, and what only.
#[derive(Clone, Debug, Default)]
pub struct DeleteOptions {
    /// What becomes of the object's dependents. `None`: as the server does by default, mostly in the background.
    pub propagation: Option<Propagation>,
    /// Only the object with this uid; else 409.
    pub uid: Option<Uid>,
    /// Only the object in this resourceVersion; else 409.
    pub version: Option<SmolStr>,
}

/// What becomes of the dependents of a deleted object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum Propagation {
    /// They are deleted after it.
    Background,
    /// They are deleted before it.
    Foreground,
    /// They stay.
    Orphan,
}

/// `autoscaling/v1` Scale: how many replicas an object of whatever kind has.
#[derive(Clone, Debug, Deserialize)]
pub struct Scale {
    /// Name and versions of the object itself.
    pub metadata: ObjectMeta,
    /// What is asked for.
    #[serde(default)]
    pub spec: Replicas,
    /// What is there.
    #[serde(default)]
    pub status: Replicas,
}

/// A number of replicas. Go leaves out a zero.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
pub struct Replicas {
    /// How many.
    #[serde(default)]
    pub replicas: i32,
}

/// A request by its path, for what has no type here. `Debug` does not show the body.
#[derive(Clone)]
pub struct Request {
    /// `GET`, `POST`, …
    pub method: Method,
    /// As in a URL, percent-encoded: `/api/v1/namespaces/default/pods`. May have a query of its own.
    pub path: String,
    /// More of the query, not yet encoded.
    pub query: Vec<(&'static str, String)>,
    /// The media type to ask for.
    pub accept: Cow<'static, str>,
    /// The media type of the body.
    pub content_type: Cow<'static, str>,
    /// Empty: none.
    pub body: Bytes,
}

/// The head of an answer.
#[derive(Clone, Debug)]
pub struct Head {
    /// HTTP status code, 2xx.
    pub status: u16,
    /// HTTP headers.
    pub headers: HeaderMap,
}

/// An answer that says yes. One that says no is an [`Error`]. `Debug` does not show the body.
#[derive(Clone)]
pub struct Answer {
    /// HTTP status code, 2xx.
    pub status: u16,
    /// HTTP headers.
    pub headers: HeaderMap,
    /// The whole body.
    pub body: Bytes,
}

/// The body of a watch, as it comes. Dropped: the watch ends.
pub struct Body {
    chunks: Chunks,
    object: String,
}

/// How it shows that a connection is dead while nothing is sent on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Liveness {
    /// HTTP/2: the other side is asked every 30 s, and must answer.
    Asked,
    /// HTTP/1.1: only the kernel asks, and what acknowledges may be a proxy on the way.
    Unasked,
}

impl Client {
    /// A client for that server. Reads certificates, and does not connect.
    pub fn new(config: Config) -> Result<Client, Error> {
        let server = config.server.as_str().trim_end_matches('/').to_owned();
        let transport = Transport::new(config).map_err(|cause| cause.about("connect to", server))?;
        Ok(Client { transport: Arc::new(transport) })
    }

    /// What there is to expect of a watch that is silent.
    #[must_use]
    pub fn liveness(&self) -> Liveness {
        self.transport.liveness()
    }

    /// The address of the server, as a URL.
    #[must_use]
    pub fn server(&self) -> &str {
        self.transport.config().server.as_str().trim_end_matches('/')
    }

    /// Who we are, in words: `user admin of context local`. Never a secret.
    #[must_use]
    pub fn user(&self) -> String {
        self.transport.config().user.clone()
    }

    /// The namespace of the context or of the service account; `default` where neither says.
    #[must_use]
    pub fn namespace(&self) -> &str {
        &self.transport.config().namespace
    }

    /// The time of day, for what is written: timestamps.
    #[must_use]
    pub fn now(&self) -> SystemTime {
        self.transport.config().now()
    }

    /// The server's version: `v1.36.3`.
    pub async fn version(&self) -> Result<String, Error> {
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Version {
            git_version: String,
        }
        let version: Version = self
            .typed(Request::get("/version"), VERSION_BYTES_MAX, "a version")
            .await
            .map_err(|cause| cause.about("get", "/version"))?;
        Ok(version.git_version)
    }

    /// Reads one object.
    pub async fn get<K: Resource>(&self, key: &Key) -> Result<K, Error> {
        let wrong = |cause: Cause| cause.about("get", name::<K>(key));
        let request = Request::get(path::<K>(key).map_err(wrong)?).accept(accept_object::<K>());
        self.typed(request, OBJECT_BYTES_MAX, K::KIND).await.map_err(wrong)
    }

    /// Reads one page of a list. Repeats nothing but a 401.
    pub async fn list_page<K: Resource>(&self, scope: &Scope, page: &Page<'_>) -> Result<List<K>, Error> {
        self.list_within(scope, page, page.bytes_max()).await
    }

    /// Asks how far the server has come, by a list of one object of a kind, metadata only. Fails where that object has
    /// more metadata than is read ([`Error::is_too_large`]).
    pub(crate) async fn latest_version<K: Resource>(&self, scope: &Scope) -> Result<SmolStr, Error> {
        // Of any labels: to find one with ours, the server might have to look at all.
        let scope = Scope { labels: String::new(), ..scope.clone() };
        let one = Page { limit: 1, ..Page::default() };
        Ok(self.list_within::<Meta<K>>(&scope, &one, CHECK_BYTES_MAX).await?.version)
    }

    async fn list_within<K: Resource>(
        &self,
        scope: &Scope,
        page: &Page<'_>,
        bytes_max: usize,
    ) -> Result<List<K>, Error> {
        let wrong = |cause: Cause| cause.about("list", several::<K>(scope));
        let path = collection::<K>(scope.namespace.as_deref()).map_err(wrong)?;
        let mut request = Request::get(path).accept(match K::ACCEPT {
            Accept::Whole => JSON,
            Accept::MetadataOnly => "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1",
        });
        request.select(scope);
        if page.limit > 0 {
            request.query.push(("limit", page.limit.to_string()));
        }
        if !page.continue_token.is_empty() {
            // The token knows its version, and the server refuses to be told it twice.
            request.query.push(("continue", page.continue_token.to_owned()));
        } else if let Some(version) = page.version.filter(|version| !version.is_empty()) {
            request.query.push(("resourceVersion", version.to_owned()));
            request.query.push(("resourceVersionMatch", "NotOlderThan".to_owned()));
        }
        // Whoever lists to watch knows better when to come back.
        let deadline = self.transport.config().request_timeout;
        let answer = self.transport.call_once(&request, bytes_max, deadline).await;
        let Answer { headers, body, .. } = answer.map_err(wrong)?;
        List::from_json(&body)
            .map_err(|error| wrong(not_json(&request.path, &headers, &body, "a list", &error)))
    }

    /// Waits until such a request may be sent beside those that are being answered, first come, first served. This bounds
    /// their memory, and the requests of a process that watches thousands of namespaces. Lists that take long hold up no
    /// check, so that a watch that was cut is resumed.
    pub(crate) async fn turn(&self, request: InTurn) -> Turn<'_> {
        let turn = match request {
            InTurn::List { bytes_max } => {
                let bytes = u32::try_from(bytes_max.min(LISTS_BYTES_MAX));
                self.transport.lists.acquire_many(bytes.expect("32 MiB are fewer than 2^32 bytes")).await
            }
            InTurn::Check => self.transport.checks.acquire().await,
        };
        turn.expect("the semaphores are never closed")
    }

    /// Opens a watch: `Ok` with the answer 200, and before any event. There is no deadline from there on.
    pub async fn watch<K: Resource>(&self, scope: &Scope, from: &WatchFrom<'_>) -> Result<Body, Error> {
        let wrong = |cause: Cause| cause.about("watch", several::<K>(scope));
        let path = collection::<K>(scope.namespace.as_deref()).map_err(wrong)?;
        let mut request = Request::get(path).accept(accept_object::<K>());
        request.query.push(("watch", "1".to_owned()));
        request.query.push(("allowWatchBookmarks", "true".to_owned()));
        request.query.push(("timeoutSeconds", from.timeout_secs.to_string()));
        if !from.version.is_empty() {
            request.query.push(("resourceVersion", from.version.to_owned()));
        }
        match from.mode {
            WatchMode::Changes => {}
            WatchMode::InitialEvents => {
                request.query.push(("sendInitialEvents", "true".to_owned()));
                request.query.push(("resourceVersionMatch", "NotOlderThan".to_owned()));
            }
        }
        request.select(scope);
        let (_head, chunks) = self.transport.open(&request).await.map_err(wrong)?;
        Ok(Body { chunks, object: several::<K>(scope) })
    }

    /// Creates an object; 409 AlreadyExists where one of that name is there, whoever made it.
    pub async fn create<K: Resource + Serialize>(&self, object: &K) -> Result<K, Error> {
        #[derive(Serialize)]
        #[serde(rename_all = "camelCase")]
        struct Typed<'a, K> {
            api_version: String,
            kind: &'static str,
            #[serde(flatten)]
            object: &'a K,
        }
        let key = object.key();
        let wrong = |cause: Cause| cause.about("create", name::<K>(&key));
        let typed = Typed { api_version: K::api_version(), kind: K::KIND, object };
        let body = serde_json::to_vec(&typed).map_err(|error| wrong(Cause::Other(error.to_string())))?;
        let path = collection::<K>(key.namespace.as_deref()).map_err(wrong)?;
        let request = Request::get(path).accept(accept_object::<K>()).sends(Method::POST, JSON, body);
        self.typed(request, OBJECT_BYTES_MAX, K::KIND).await.map_err(wrong)
    }

    /// Changes an object, and answers with the whole of it.
    pub async fn patch<K: Resource>(&self, key: &Key, part: Part, patch: &Patch) -> Result<K, Error> {
        self.patch_as::<K, K>(key, part, patch, K::KIND).await
    }

    /// How many replicas an object has, whatever its kind.
    pub async fn scale<K: Resource>(&self, key: &Key) -> Result<Scale, Error> {
        let wrong = |cause: Cause| cause.about("get scale of", name::<K>(key));
        let request = Request::get(path::<K>(key).map_err(wrong)? + "/scale");
        self.typed(request, OBJECT_BYTES_MAX, "Scale").await.map_err(wrong)
    }

    /// Asks for that many replicas.
    pub async fn set_scale<K: Resource>(&self, key: &Key, replicas: u32) -> Result<Scale, Error> {
        let patch = Patch::Merge(json!({ "spec": { "replicas": replicas } }));
        self.patch_as::<K, Scale>(key, Part::Scale, &patch, "Scale").await
    }

    async fn patch_as<K: Resource, T: DeserializeOwned>(
        &self,
        key: &Key,
        part: Part,
        patch: &Patch,
        kind: &str,
    ) -> Result<T, Error> {
        let verb = match patch {
            Patch::Json(_) | Patch::Merge(_) => "patch",
            Patch::Apply { .. } => "apply",
        };
        let subresource = match part {
            Part::Object => "",
            Part::Status => "/status",
            Part::Scale => "/scale",
        };
        let wrong = |cause: Cause| cause.about(verb, name::<K>(key) + subresource);
        let (content_type, body) = match patch {
            Patch::Json(operations) => ("application/json-patch+json", serde_json::to_vec(operations)),
            Patch::Merge(object) => ("application/merge-patch+json", serde_json::to_vec(object)),
            Patch::Apply { object, .. } => ("application/apply-patch+yaml", serde_json::to_vec(object)),
        };
        let body = body.map_err(|error| wrong(Cause::Other(error.to_string())))?;
        let path = path::<K>(key).map_err(wrong)? + subresource;
        let mut request = Request::get(path).sends(Method::PATCH, content_type, body);
        if part != Part::Scale {
            request = request.accept(accept_object::<K>());
        }
        if let Patch::Apply { manager, force, .. } = patch {
            request.query.push(("fieldManager", manager.clone()));
            request.query.push(("force", force.to_string()));
        }
        self.typed(request, OBJECT_BYTES_MAX, kind).await.map_err(wrong)
    }

    /// Deletes an object, or marks it for deletion where it has finalizers: then the answer is the object, as it waits
    /// for them.
    pub async fn delete<K: Resource>(&self, key: &Key, options: &DeleteOptions) -> Result<Option<K>, Error> {
        #[derive(Deserialize)]
        struct Kind {
            #[serde(rename = "kind")]
            _kind: String,
        }
        let wrong = |cause: Cause| cause.about("delete", name::<K>(key));
        let path = path::<K>(key).map_err(wrong)?;
        let request = Request::get(path).sends(Method::DELETE, JSON, options.to_json());
        let answer = self.transport.call(&request, OBJECT_BYTES_MAX).await.map_err(wrong)?;
        if let Ok(object) = serde_json::from_slice::<K>(&answer.body) {
            return Ok(Some(object).filter(|object| object.metadata().is_terminating()));
        }
        // Otherwise it is a Status. A proxy's page of HTML says nothing of the object.
        serde_json::from_slice::<Kind>(&answer.body)
            .map_err(|error| not_json(&request.path, &answer.headers, &answer.body, "a Status", &error))
            .map_err(wrong)?;
        Ok(None)
    }

    /// Sends any request, and reads the whole answer, of at most 32 MiB.
    pub async fn send(&self, request: Request) -> Result<Answer, Error> {
        self.transport.call(&request, LISTS_BYTES_MAX).await.map_err(|cause| request.about(cause))
    }

    /// Whether no request waits for its answer. Streams do not count.
    pub(crate) fn is_idle(&self) -> bool {
        self.transport.is_idle()
    }

    /// Waits until no request waits for its answer.
    pub(crate) async fn idle(&self) {
        self.transport.idle().await;
    }

    /// Sends any request, and hands out the answer as it comes.
    pub async fn stream(&self, request: Request) -> Result<(Head, Body), Error> {
        match self.transport.open(&request).await {
            Ok((head, chunks)) => Ok((head, Body { chunks, object: request.path })),
            Err(cause) => Err(request.about(cause)),
        }
    }

    async fn typed<T: DeserializeOwned>(
        &self,
        request: Request,
        bytes_max: usize,
        kind: &str,
    ) -> Result<T, Cause> {
        let answer = self.transport.call(&request, bytes_max).await?;
        serde_json::from_slice(&answer.body)
            .map_err(|error| not_json(&request.path, &answer.headers, &answer.body, kind, &error))
    }
}

impl Page<'_> {
    /// Most bytes of the page that are read.
    pub(crate) fn bytes_max(&self) -> usize {
        match self.limit {
            0 => LISTS_BYTES_MAX,
            1 => PAGE_OF_ONE_BYTES_MAX,
            _ => PAGE_BYTES_MAX,
        }
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client")
            .field("server", &self.server())
            .field("user", &self.user())
            .finish_non_exhaustive()
    }
}

impl Request {
    /// `GET path`, asking for JSON.
    #[must_use]
    pub fn get(path: impl Into<String>) -> Request {
        Request {
            method: Method::GET,
            path: path.into(),
            query: Vec::new(),
            accept: JSON.into(),
            content_type: JSON.into(),
            body: Bytes::new(),
        }
    }

    fn accept(mut self, media_type: &'static str) -> Request {
        self.accept = media_type.into();
        self
    }

    /// The same path with another method, and a body.
    #[must_use]
    pub fn sends(mut self, method: Method, content_type: &'static str, body: Vec<u8>) -> Request {
        self.method = method;
        self.content_type = content_type.into();
        self.body = body.into();
        self
    }

    fn select(&mut self, scope: &Scope) {
        if !scope.labels.is_empty() {
            self.query.push(("labelSelector", scope.labels.clone()));
        }
    }

    /// Path and query, as they are sent.
    fn target(&self) -> String {
        if self.query.is_empty() {
            return self.path.clone();
        }
        let query = Serializer::new(String::new()).extend_pairs(&self.query).finish();
        let mark = if self.path.contains('?') { '&' } else { '?' };
        format!("{}{mark}{query}", self.path)
    }

    fn about(&self, cause: Cause) -> Error {
        cause.about(self.method.as_str().to_lowercase(), self.path.clone())
    }
}

impl fmt::Debug for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} ({} bytes)", self.method, self.path, self.body.len())
    }
}

impl fmt::Debug for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({} bytes)", self.status, self.body.len())
    }
}

impl fmt::Debug for Patch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Patch::Json(operations) => write!(f, "Json({} operations)", operations.len()),
            Patch::Merge(_) => f.write_str("Merge(…)"),
            Patch::Apply { manager, force, .. } => write!(f, "Apply({manager}, force: {force})"),
        }
    }
}

impl DeleteOptions {
    fn to_json(&self) -> Vec<u8> {
        let mut options = json!({ "apiVersion": "v1", "kind": "DeleteOptions" });
        if let Some(propagation) = self.propagation {
            options["propagationPolicy"] = json!(propagation);
        }
        if let Some(uid) = &self.uid {
            options["preconditions"]["uid"] = json!(uid);
        }
        if let Some(version) = &self.version {
            options["preconditions"]["resourceVersion"] = version.as_str().into();
        }
        options.to_string().into_bytes()
    }
}

impl Body {
    /// The next piece of the stream, cut anywhere. `None`: the server ended it. `Err`: it was cut.
    pub async fn chunk(&mut self) -> Result<Option<Bytes>, Error> {
        self.chunks.next().await.map_err(|cause| cause.about("watch", self.object.clone()))
    }
}

impl fmt::Debug for Body {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Body").field("object", &self.object).finish_non_exhaustive()
    }
}

/// `deployments/default/web`, for errors.
fn name<K: Resource>(key: &Key) -> String {
    format!("{}/{key}", K::PLURAL)
}

/// `deployments (all namespaces)`, for errors.
fn several<K: Resource>(scope: &Scope) -> String {
    format!("{} ({scope})", K::PLURAL)
}

fn accept_object<K: Resource>() -> &'static str {
    match K::ACCEPT {
        Accept::Whole => JSON,
        Accept::MetadataOnly => "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1",
    }
}

fn collection<K: Resource>(namespace: Option<&str>) -> Result<String, Cause> {
    Ok(K::collection_path(namespace.map(segment).transpose()?.as_deref()))
}

fn path<K: Resource>(key: &Key) -> Result<String, Cause> {
    Ok(format!("{}/{}", collection::<K>(key.namespace.as_deref())?, segment(&key.name)?))
}

/// A name as a part of a path. One that is empty, or climbs, would lead elsewhere: a delete without a name deletes all
/// there is, and `..` for a namespace reads every namespace.
fn segment(name: &str) -> Result<String, Cause> {
    match name {
        "" | "." | ".." => Err(Cause::Other(format!("{name:?} is no name"))),
        name => Ok(utf8_percent_encode(name, PATH_SEGMENT).to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resource::kinds::Deployment;

    #[test]
    fn a_name_stays_one_part_of_the_path() {
        let path = |namespace, name| {
            let path = path::<Deployment>(&Key::namespaced(namespace, name));
            path.map_err(|cause| cause.to_string())
        };
        let in_a = "/apis/apps/v1/namespaces/a/deployments";
        assert_eq!(path("a", "web.1-x"), Ok(format!("{in_a}/web.1-x")));
        assert_eq!(path("a", "x/../y?z#%"), Ok(format!("{in_a}/x%2F..%2Fy%3Fz%23%25")));
        for odd in ["", ".", ".."] {
            assert_eq!(path("a", odd), Err(format!("{odd:?} is no name")));
            assert_eq!(path(odd, "x"), Err(format!("{odd:?} is no name")));
        }
    }

    #[test]
    fn the_target_of_a_request_is_its_path_with_the_whole_query() {
        let mut request = Request::get("/api/v1/services");
        assert_eq!(request.target(), "/api/v1/services");
        request.query.push(("labelSelector", "app=web".to_owned()));
        assert_eq!(request.target(), "/api/v1/services?labelSelector=app%3Dweb");
        request.path += "?watch=1";
        assert_eq!(request.target(), "/api/v1/services?watch=1&labelSelector=app%3Dweb");
    }

    #[test]
    fn delete_options_name_only_what_is_asked_for() {
        let json = |options: DeleteOptions| String::from_utf8(options.to_json()).expect("text");
        assert_eq!(json(DeleteOptions::default()), r#"{"apiVersion":"v1","kind":"DeleteOptions"}"#);
        let options = DeleteOptions {
            propagation: Some(Propagation::Orphan),
            uid: Some("u".into()),
            version: Some("7".into()),
        };
        assert_eq!(
            json(options),
            r#"{"apiVersion":"v1","kind":"DeleteOptions","preconditions":{"resourceVersion":"7","uid":"u"},"propagationPolicy":"Orphan"}"#
        );
    }

    #[test]
    fn debug_shows_no_content() {
        let request = Request::get("/x").sends(Method::POST, JSON, b"secret".to_vec());
        let patches = [Patch::Merge(json!("secret")), Patch::Json(vec![json!("secret")])];
        assert_eq!(format!("{request:?} {patches:?}"), "POST /x (6 bytes) [Merge(…), Json(1 operations)]");
    }
}
