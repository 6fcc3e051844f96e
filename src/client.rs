//! A client of the API server: one method for each kind of request.
//!
//! On the wire, `client.patch(&key, Part::Object, &Patch::Json(…))` is:
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
//! [`Config`] has the address and the credentials. [`http`] sends the requests, with deadlines and retries. An [`Error`] has
//! verb, object and cause. To list and watch for as long as the process runs, see [`watch`](crate::watch).

mod auth;
pub(crate) mod config;
mod connections;
mod curl;
mod dry_run;
mod error;
mod error_answer;
mod exec;
mod find_config;
mod http;
pub(crate) mod in_process;
mod kubeconfig;
mod leadership;
pub(crate) mod list;
mod no_answer;
mod request;
mod retry;
pub(crate) mod tap;
mod tls;
mod warnings;

use std::{
    fmt,
    sync::Arc,
    time::{Duration, SystemTime},
};

use ::http::{HeaderName, Method};
pub use listwatch_install::plan::PlannedWrite;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::{Value, json};
use smol_str::SmolStr;

use crate::{
    metrics::Metrics,
    resource::{Accept, Key, Resource, Uid, from_json},
};
pub use config::{Config, Env, Options};
pub use curl::CurlFrom;
pub(crate) use dry_run::DryRun;
use error::Cause;
pub use error::Error;
pub(crate) use error::is_denial;
use error_answer::not_json;
pub use http::Body;
pub(crate) use http::Liveness;
use http::Transport;
use in_process::InProcess;
pub(crate) use leadership::Leadership;

pub use list::{Collection, Page, WatchFrom, WatchMode};
pub(crate) use list::{LIST_STREAM_BYTES, PageBody, Permit, PermitFor};
pub use request::{Answer, Head, Request};
use tap::Tap;

/// The media type of whole objects.
const JSON: &str = "application/json";

/// Largest answer to `GET /version` that is read. The answer has a dozen short strings.
const VERSION_BYTES_MAX: usize = 64 * 1024;

/// Largest single object that is read, with the same limit as a line of a watch: etcd refuses objects above 1.5 MiB,
/// and JSON escapes can make an object six times as long.
const OBJECT_BYTES_MAX: usize = 16 * 1024 * 1024;

/// Most fields, items, maps and lists of a single object that is decoded, about. In memory, each may take a hundred times as much as its
/// text. A ConfigMap with 16,000 keys has three for each, with its managedFields.
const OBJECT_ENTRIES_MAX: usize = 64 * 1024;

/// The characters that are encoded in a path: all but the unreserved ones of RFC 3986.
const PATH_SEGMENT: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// A client of an API server. Clones share its connections.
#[derive(Clone)]
pub struct Client {
    transport: Arc<Transport>,
    leadership: Leadership,
    /// Writes are only tried.
    dry_run: Option<Arc<DryRun>>,
}

/// The part of an object that a patch changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// The object without its status.
    Object,
    /// The subresource `status`.
    Status,
}

/// A change to an object. It has no `Debug`: the object may be a Secret.
#[derive(Clone)]
pub enum Patch {
    /// `application/json-patch+json`: operations. The API server applies either all of them or none.
    Json(Vec<Value>),
    /// `application/merge-patch+json`: sets the fields of the patch, removes those that are `null`, replaces lists.
    Merge(Value),
}

/// Preconditions of a delete. The default has none.
#[derive(Clone, Debug, Default)]
pub struct DeleteOptions {
    /// Another uid is a 409.
    pub uid: Option<Uid>,
    /// Another resourceVersion is a 409.
    pub version: Option<SmolStr>,
}

impl Client {
    /// A client of the server in `config`. Reads certificates, and does not connect.
    pub fn new(config: Config) -> Result<Client, Error> {
        let server = config.server().to_owned();
        let transport = Transport::new(config).map_err(|cause| cause.about("connect to", server))?;
        Ok(Client { transport: Arc::new(transport), leadership: Leadership::always(), dry_run: None })
    }

    /// A client with the same connections that writes only while this leadership is held: otherwise, each write is an error, also one
    /// that has begun. [`Client::stream`], which is for reads, does not look.
    #[must_use]
    pub(crate) fn led_by(&self, leadership: Leadership) -> Client {
        Client { leadership, ..self.clone() }
    }

    /// A client with the same connections whose writes are dry runs, and these writes. What is written does not count as known.
    pub(crate) fn dry_running(&self) -> (Client, Arc<DryRun>) {
        let dry_run = Arc::<DryRun>::default();
        (Client { dry_run: Some(Arc::clone(&dry_run)), ..self.clone() }, dry_run)
    }

    /// Whether writes are only tried, for a plan.
    pub(crate) fn only_plans(&self) -> bool {
        self.dry_run.is_some()
    }

    /// Whether PINGs detect a dead connection, by the HTTP version of the last answer.
    #[must_use]
    pub(crate) fn liveness(&self) -> Liveness {
        self.transport.liveness()
    }

    /// What this client and all that use it count.
    #[must_use]
    pub fn metrics(&self) -> &Arc<Metrics> {
        &self.transport.metrics
    }

    /// The connections that work.
    pub(crate) fn connections(&self) -> usize {
        self.transport.connections.open()
    }

    /// Whether no request, apart from streams, waits for its answer.
    pub(crate) fn is_idle(&self) -> bool {
        *self.transport.calls.borrow() == 0
    }

    /// Waits until no request waits for its answer.
    pub(crate) async fn idle(&self) {
        // An error would mean that there is no sender; the transport has it.
        let _ = self.transport.calls.subscribe().wait_for(|calls| *calls == 0).await;
    }

    /// The address of the server, as a URL.
    #[must_use]
    pub fn server(&self) -> &str {
        self.transport.config.server()
    }

    /// The user, for logs: `user admin of context local`. Never a secret.
    #[must_use]
    pub fn user(&self) -> String {
        self.transport.config.user.clone()
    }

    /// The namespace of the context or of the service account; `default` without one.
    #[must_use]
    pub fn namespace(&self) -> &str {
        &self.transport.config.namespace
    }

    /// How long an answer may take.
    #[must_use]
    pub fn request_timeout(&self) -> Duration {
        self.transport.config.request_timeout()
    }

    /// The time of day, for timestamps in objects.
    #[must_use]
    pub(crate) fn now(&self) -> SystemTime {
        self.transport.config.now()
    }

    /// The server's version: `v1.36.3`.
    pub async fn version(&self) -> Result<String, Error> {
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct ServerVersion {
            git_version: String,
        }
        let version = self.typed(Request::get("/version"), VERSION_BYTES_MAX, "a version").await;
        let ServerVersion { git_version } = version.map_err(|cause| cause.about("get", "/version"))?;
        Ok(git_version)
    }

    /// Reads one object.
    pub async fn get<K: Resource>(&self, key: &Key) -> Result<K, Error> {
        let wrong = |cause: Cause| cause.about("get", name::<K>(key));
        let request = Request::get(path::<K>(key).map_err(wrong)?).accept(K::ACCEPT);
        self.typed(request, OBJECT_BYTES_MAX, K::KIND).await.map_err(wrong)
    }

    /// Creates an object; 409 AlreadyExists if any object of that name exists.
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
        let path = collection_path::<K>(key.namespace.as_deref()).map_err(wrong)?;
        let request = Request::get(path).accept(K::ACCEPT).sends(Method::POST, JSON, body);
        let created = self.typed(request, OBJECT_BYTES_MAX, K::KIND).await.map_err(wrong);
        self.wrote::<K, _>("create", &created);
        created
    }

    /// What the API server would store for an object, after defaults and admission, even if an object of that name exists: the
    /// object that is sent has a generated name. Nothing is created. See
    /// <https://kubernetes.io/docs/reference/using-api/api-concepts/#dry-run>.
    pub(crate) async fn create_dry_run<K: Resource + Serialize>(&self, object: &K) -> Result<K, Error> {
        let key = object.key();
        let wrong = |cause: Cause| cause.about("create", format!("{} (dry run)", name::<K>(&key)));
        let other = |error: serde_json::Error| wrong(Cause::Other(error.to_string()));
        let mut body = serde_json::to_value(object).map_err(other)?;
        (body["apiVersion"], body["kind"]) = (K::api_version().into(), K::KIND.into());
        body["metadata"]["name"] = Value::Null;
        body["metadata"]["generateName"] = format!("{}-", key.name).into();
        let path = collection_path::<K>(key.namespace.as_deref()).map_err(wrong)?;
        let replaced = format!("{path}/{}", key.name);
        let mut request = Request::post(path, &body);
        request.query.push(("dryRun", "All".into()));
        let mut created: Value = self.typed(request, OBJECT_BYTES_MAX, "object").await.map_err(wrong)?;
        dry_run::named(&mut created, key.name.as_str().into());
        if let Some(dry_run) = &self.dry_run {
            dry_run.replaces(replaced, &created);
        }
        from_json(created.to_string().as_bytes()).map_err(other)
    }

    /// Changes an object. Returns the whole object.
    pub async fn patch<K: Resource>(&self, key: &Key, part: Part, patch: &Patch) -> Result<K, Error> {
        let subresource = match part {
            Part::Object => "",
            Part::Status => "/status",
        };
        let wrong = |cause: Cause| cause.about("patch", name::<K>(key) + subresource);
        let path = path::<K>(key).map_err(wrong)? + subresource;
        let request = Request::get(path).accept(K::ACCEPT).patches(patch);
        let patched = self.typed(request, OBJECT_BYTES_MAX, K::KIND).await.map_err(wrong);
        self.wrote::<K, _>("patch", &patched);
        patched
    }

    /// Asks whether the API server would accept a change, after admission. Nothing is changed. See
    /// <https://kubernetes.io/docs/reference/using-api/api-concepts/#dry-run>.
    pub(crate) async fn patch_dry_run<K: Resource>(&self, key: &Key, patch: &Patch) -> Result<(), Error> {
        let wrong = |cause: Cause| cause.about("patch", name::<K>(key));
        let path = path::<K>(key).map_err(wrong)?;
        let mut request = Request::get(path).accept(K::ACCEPT).patches(patch);
        request.query.push(("dryRun", "All".into()));
        self.typed::<K>(request, OBJECT_BYTES_MAX, K::KIND).await.map(drop).map_err(wrong)
    }

    /// Deletes an object. If it has finalizers, the server only sets its deletionTimestamp; then the object is returned.
    pub async fn delete<K: Resource>(&self, key: &Key, options: &DeleteOptions) -> Result<Option<K>, Error> {
        #[derive(Deserialize)]
        struct Kind {
            #[serde(rename = "kind")]
            _kind: String,
        }
        let wrong = |cause: Cause| cause.about("delete", name::<K>(key));
        let path = path::<K>(key).map_err(wrong)?;
        let request = Request::get(path).sends(Method::DELETE, JSON, options.to_json::<K>());
        let answer = self.call(&request, OBJECT_BYTES_MAX).await.map_err(wrong);
        self.wrote::<K, _>("delete", &answer);
        let answer = answer?;
        if let Ok(object) = from_json::<K>(&answer.body) {
            return Ok(Some(object).filter(|object| object.metadata().is_terminating()));
        }
        // Otherwise the answer must be a Status. An HTML page of a proxy does not mean that the object was deleted.
        match from_json::<Kind>(&answer.body) {
            Ok(_) => Ok(None),
            Err(error) => {
                Err(wrong(not_json(&request.path, &answer.headers, &answer.body, "a Status", &error)))
            }
        }
    }

    /// Counts a write.
    fn wrote<K: Resource, T>(&self, verb: &str, answer: &Result<T, Error>) {
        let code = match answer {
            Ok(_) => Some(200),
            Err(error) => error.code(),
        };
        self.metrics().wrote(verb, &qualified(K::GROUP, K::PLURAL), code);
    }

    /// Sends a request and reads the whole answer. A write is given up when the leadership ends.
    async fn call(&self, request: &Request, bytes_max: usize) -> Result<Answer, Cause> {
        if let Some(dry_run) = &self.dry_run {
            // Boxed: it would take kilobytes in the future of each request.
            return Box::pin(dry_run.call(&self.transport, request, bytes_max)).await;
        }
        let answer = self.transport.call(request, bytes_max);
        if request.method == Method::GET {
            return answer.await;
        }
        tokio::select! {
            biased;
            () = self.leadership.changes(true) => Err(Cause::Other("this process does not lead (any more)".to_owned())),
            answer = answer => answer,
        }
    }

    async fn typed<T: DeserializeOwned>(
        &self,
        request: Request,
        bytes_max: usize,
        kind: &str,
    ) -> Result<T, Cause> {
        let Answer { headers, body, .. } = self.call(&request, bytes_max).await?;
        let entries: usize = b",{[".iter().map(|byte| memchr::memchr_iter(*byte, &body).count()).sum();
        if entries > OBJECT_ENTRIES_MAX {
            let cause = format!("{} has more than {OBJECT_ENTRIES_MAX} fields and items", request.path);
            return Err(Cause::TooLarge(cause));
        }
        from_json(&body).map_err(|error| not_json(&request.path, &headers, &body, kind, &error))
    }

    /// Sends any request and reads the whole answer, of at most 32 MiB.
    pub async fn send(&self, request: Request) -> Result<Answer, Error> {
        self.call(&request, list::LISTS_BYTES_MAX).await.map_err(|cause| request.about(cause))
    }

    /// Sends any request and returns the body of the answer as a stream.
    pub async fn stream(&self, request: Request) -> Result<(Head, Body), Error> {
        if self.only_plans() && request.method != Method::GET {
            return Err(
                request.about(Cause::Other("it is not planned, because its answer is a stream".to_owned()))
            );
        }
        self.transport.open(&request).await.map_err(|cause| request.about(cause))
    }

    /// Sends a request of another program with the credentials of this client, without a deadline, and returns any answer, also a refusal. For
    /// proxies: the headers of the request must have no `Authorization`. If this client acts as another user, the other program cannot.
    #[doc(hidden)]
    pub async fn forward(&self, mut request: Request) -> Result<(Head, Body), Error> {
        if !self.transport.config.impersonate.is_empty() {
            // Its `Impersonate-Group` would give that user the rights of the group.
            let is_other = |name: &&HeaderName| name.as_str().starts_with("impersonate-");
            let others: Vec<HeaderName> = request.headers.keys().filter(is_other).cloned().collect();
            for name in others {
                request.headers.remove(name);
            }
        }
        self.transport.forward(&request).await.map_err(|cause| request.about(cause))
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

impl DeleteOptions {
    fn to_json<K: Resource>(&self) -> Vec<u8> {
        let mut options = json!({ "apiVersion": "v1", "kind": "DeleteOptions" });
        // By default, the server orphans the dependents of a Job or a ReplicationController: `DefaultGarbageCollectionPolicy` in
        // kubernetes/pkg/registry. No operator here deletes a ReplicationController.
        if (K::GROUP, K::KIND) == ("batch", "Job") {
            options["propagationPolicy"] = "Background".into();
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

impl Request {
    /// Asks for an object, or for its metadata.
    fn accept(mut self, accept: Accept) -> Request {
        self.accept = match accept {
            Accept::Whole => JSON.into(),
            Accept::MetadataOnly => "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1".into(),
        };
        self
    }

    /// Sends a patch.
    pub(crate) fn patches(self, patch: &Patch) -> Request {
        let (content_type, body) = match patch {
            Patch::Json(operations) => ("application/json-patch+json", serde_json::to_vec(operations)),
            Patch::Merge(object) => ("application/merge-patch+json", serde_json::to_vec(object)),
        };
        self.sends(Method::PATCH, content_type, body.expect("JSON values are JSON"))
    }

    fn about(&self, cause: Cause) -> Error {
        cause.about(self.method.as_str().to_lowercase(), self.path.clone())
    }
}

/// `deployments/default/web`, for errors.
fn name<K: Resource>(key: &Key) -> String {
    format!("{}/{key}", K::PLURAL)
}

/// `deployments.apps`; `pods` of the core group.
pub(crate) fn qualified(group: &str, plural: &str) -> String {
    match group {
        "" => plural.to_owned(),
        group => format!("{plural}.{group}"),
    }
}

fn collection_path<K: Resource>(namespace: Option<&str>) -> Result<String, Cause> {
    Ok(K::collection_path(namespace.map(segment).transpose()?.as_deref()))
}

fn path<K: Resource>(key: &Key) -> Result<String, Cause> {
    Ok(format!("{}/{}", collection_path::<K>(key.namespace.as_deref())?, segment(&key.name)?))
}

/// A name as one segment of a path. An empty name, `.` and `..` are errors: a DELETE without a name would delete the whole
/// collection, and the namespace `..` would read every namespace.
fn segment(name: &str) -> Result<String, Cause> {
    match name {
        "" | "." | ".." => Err(Cause::Other(format!("{name:?} is not a name"))),
        name => Ok(utf8_percent_encode(name, PATH_SEGMENT).to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resource::kinds::{Deployment, Service};

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
            assert_eq!(path("a", odd), Err(format!("{odd:?} is not a name")));
            assert_eq!(path(odd, "x"), Err(format!("{odd:?} is not a name")));
        }
    }

    #[test]
    fn delete_options_name_only_what_is_asked_for() {
        let json = |options: DeleteOptions| String::from_utf8(options.to_json::<Service>()).expect("text");
        assert_eq!(json(DeleteOptions::default()), r#"{"apiVersion":"v1","kind":"DeleteOptions"}"#);
        let options = DeleteOptions { uid: Some("u".into()), version: Some("7".into()) };
        assert_eq!(
            json(options),
            r#"{"apiVersion":"v1","kind":"DeleteOptions","preconditions":{"resourceVersion":"7","uid":"u"}}"#
        );
    }

    #[test]
    fn debug_shows_no_content() {
        let request = Request::get("/x").sends(Method::POST, JSON, b"secret".to_vec());
        assert_eq!(format!("{request:?}"), "POST /x (6 bytes)");
    }
}
