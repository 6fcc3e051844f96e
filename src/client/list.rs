//! Requests for many objects: one page of a list, limited in size, and the opening of a watch. After a page that is too
//! large, `watch/machine.rs` requests fewer objects.
//!
//! ```text
//! GET /apis/apps/v1/deployments?limit=100
//! GET /apis/apps/v1/deployments?limit=100&continue=eyJ2Ijoi…
//! GET /apis/apps/v1/deployments?watch=1&allowWatchBookmarks=true&timeoutSeconds=412&resourceVersion=1207
//! ```

use smol_str::SmolStr;
use tokio::sync::{Semaphore, SemaphorePermit};

use super::{
    Answer, Body, Client, JSON, OBJECT_BYTES_MAX, Request, collection_path, error::Error,
    error_answer::not_json,
};
use crate::resource::{Accept, Resource, Scope, list::RawPage};

/// Largest page of a list that is read. A page of 100 Deployments has some 0.5 MB. If a page is larger than this, the watch
/// asks for fewer objects on each page, down to one.
pub(super) const PAGE_BYTES_MAX: usize = 8 * 1024 * 1024;

/// Largest page with a single object: the largest object and the rest of the list, mainly the continue token.
pub(super) const PAGE_OF_ONE_BYTES_MAX: usize = OBJECT_BYTES_MAX + 64 * 1024;

/// Largest list that is read in one piece, largest answer to a request of unknown kind, and limit for all lists together
/// that are read at the same time. A quarter of the memory limit in `install/base/deployment.yaml`, 128 MiB, of which the
/// objects of the Stores may have a half.
pub(super) const LISTS_BYTES_MAX: usize = 32 * 1024 * 1024;

/// Largest answer that is read to [`Client::latest_version`]: the metadata of one object, as a rule 1 to 5 kB, but
/// annotations alone may have 256 KiB. If it is larger, the watch asks for a list instead.
pub const CHECK_BYTES_MAX: usize = 512 * 1024;

/// Such requests at a time: 8 MiB, and 16 of the 100 requests that a connection takes.
const CHECKS_MAX: usize = 16;

/// The bytes that a streaming list takes of [`Client::permit`].
pub(crate) const LIST_STREAM_BYTES: usize = PAGE_BYTES_MAX;

/// Which page of a list.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Page<'a> {
    /// A resourceVersion; the list is not older than that. `None`: the most recent. Used for the first page only.
    pub version: Option<&'a str>,
    /// The `metadata.continue` of the page before. Empty: the first page.
    pub continue_token: &'a str,
    /// Most objects on a page. 0: all of them on one page. A larger page than 8 MiB fails ([`Error::is_too_large`]); with a
    /// limit of 1 it may have 16 MiB, with 0 32 MiB.
    pub limit: u32,
}

/// A collection of objects, whose kind need not be known to this crate: the path and the selectors of its lists and watches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Collection {
    /// `/apis/apps/v1/namespaces/default/deployments`, percent-encoded.
    pub path: String,
    /// `deployments`, for errors and the log.
    pub resource: String,
    /// [`Resource::INSTALL`].
    pub install: &'static str,
    /// The namespace and the selectors.
    pub scope: Scope,
    /// Whole objects, or their metadata.
    pub accept: Accept,
}

/// A page of a list, not decoded yet.
pub(crate) struct PageBody {
    path: String,
    /// The name of the collection.
    name: String,
    answer: Answer,
}

impl PageBody {
    /// Frees the bytes of the page.
    pub(crate) fn read<T>(
        self,
        decode: impl FnOnce(&[u8]) -> Result<T, serde_json::Error>,
    ) -> Result<T, Error> {
        let Answer { headers, body, .. } = self.answer;
        decode(&body)
            .map_err(|error| not_json(&self.path, &headers, &body, "a list", &error).about("list", self.name))
    }
}

/// The version, the duration and the first events of a watch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WatchFrom<'a> {
    /// A resourceVersion: the watch sends the changes after it. Empty: the most recent.
    pub version: &'a str,
    /// The time after which the server ends the watch.
    pub timeout_secs: u32,
    /// The first events.
    pub mode: WatchMode,
}

/// The first events of a watch. Both modes ask for BOOKMARKs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WatchMode {
    /// Changes only.
    Changes,
    /// Every object, then a BOOKMARK with `k8s.io/initial-events-end`, then changes. Not every server supports this.
    InitialEvents,
}

/// A request that needs a permit. See [`Client::permit`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PermitFor {
    /// A list of at most so many bytes.
    List { bytes_max: usize },
    /// [`Client::latest_version`].
    Check,
}

/// A permit to send such a request, until dropped.
pub(crate) type Permit<'a> = SemaphorePermit<'a>;

/// The permits that are left.
pub(super) struct Permits {
    /// One for each byte of a list that may be read.
    lists: Semaphore,
    checks: Semaphore,
}

impl Default for Permits {
    fn default() -> Permits {
        Permits { lists: Semaphore::new(LISTS_BYTES_MAX), checks: Semaphore::new(CHECKS_MAX) }
    }
}

impl Page<'_> {
    /// A first page with one object.
    const ONE: Page<'static> = Page { version: None, continue_token: "", limit: 1 };

    /// The size limit of the page.
    pub fn bytes_max(&self) -> usize {
        match self.limit {
            0 => LISTS_BYTES_MAX,
            1 => PAGE_OF_ONE_BYTES_MAX,
            _ => PAGE_BYTES_MAX,
        }
    }

    fn ask(&self, request: &mut Request) {
        if self.limit > 0 {
            request.query.push(("limit", self.limit.to_string()));
        }
        if !self.continue_token.is_empty() {
            // The token has the version, and the server refuses a second one.
            request.query.push(("continue", self.continue_token.to_owned()));
        } else if let Some(version) = self.version.filter(|version| !version.is_empty()) {
            request.query.push(("resourceVersion", version.to_owned()));
            request.query.push(("resourceVersionMatch", "NotOlderThan".to_owned()));
        }
    }
}

impl Collection {
    /// The objects of a kind in a scope. Fails if the namespace cannot be a part of a path.
    pub fn of<K: Resource>(scope: &Scope) -> Result<Collection, Error> {
        let collection = Collection {
            path: String::new(),
            resource: K::PLURAL.to_owned(),
            install: K::INSTALL,
            scope: scope.clone(),
            accept: K::ACCEPT,
        };
        match collection_path::<K>(scope.namespace.as_deref()) {
            Ok(path) => Ok(Collection { path, ..collection }),
            Err(cause) => Err(cause.about("list", collection.name())),
        }
    }

    /// `deployments (all namespaces)`, for errors.
    fn name(&self) -> String {
        format!("{} ({})", self.resource, self.scope)
    }

    /// The API group; empty for the core group.
    pub(crate) fn group(&self) -> &str {
        self.path.strip_prefix("/apis/").and_then(|rest| rest.split('/').next()).unwrap_or_default()
    }

    /// The request for a page of the list.
    pub fn list_request(&self, page: &Page<'_>) -> Request {
        let mut request = Request::get(&*self.path);
        request.accept = match self.accept {
            Accept::Whole => JSON.into(),
            Accept::MetadataOnly => "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1".into(),
        };
        self.select(&mut request);
        page.ask(&mut request);
        request
    }

    /// The request of a watch.
    pub fn watch_request(&self, from: &WatchFrom<'_>) -> Request {
        let mut request = Request::get(&*self.path).accept(self.accept);
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
        self.select(&mut request);
        request
    }

    /// The request for the server's present version.
    pub fn check_request(&self) -> Request {
        // Without selectors: to find an object that matches, the server might have to read all of them.
        let scope = Scope { namespace: self.scope.namespace.clone(), ..Scope::default() };
        let any = Collection { scope, accept: Accept::MetadataOnly, ..self.clone() };
        any.list_request(&Page::ONE)
    }

    fn select(&self, request: &mut Request) {
        let Scope { labels, fields, .. } = &self.scope;
        for (name, selector) in [("labelSelector", labels), ("fieldSelector", fields)] {
            if !selector.is_empty() {
                request.query.push((name, selector.clone()));
            }
        }
    }
}

impl Client {
    /// Reads one page of a list. Sends the request again only after a 401.
    pub(crate) async fn list_page(
        &self,
        collection: &Collection,
        page: &Page<'_>,
    ) -> Result<PageBody, Error> {
        self.page_within(collection, collection.list_request(page), page.bytes_max()).await
    }

    /// Reads the server's present resourceVersion, by a list of one object of a kind, metadata only. Fails if that object has
    /// more than 512 KiB of metadata ([`Error::is_too_large`]).
    pub(crate) async fn latest_version(&self, collection: &Collection) -> Result<SmolStr, Error> {
        self.page_within(collection, collection.check_request(), CHECK_BYTES_MAX)
            .await?
            .read(|body| RawPage::from_json(body)?.version())
    }

    async fn page_within(
        &self,
        collection: &Collection,
        request: Request,
        bytes_max: usize,
    ) -> Result<PageBody, Error> {
        // Without retries: watches have a backoff of their own.
        let deadline = self.transport.config.request_timeout;
        match self.transport.call_once(&request, bytes_max, deadline).await {
            Ok(answer) => Ok(PageBody { path: request.path, name: collection.name(), answer }),
            Err(cause) => Err(cause.about("list", collection.name())),
        }
    }

    /// Opens a watch: `Ok` after the answer 200, before the first event. From then on there is no deadline.
    pub async fn watch<K: Resource>(&self, scope: &Scope, from: &WatchFrom<'_>) -> Result<Body, Error> {
        self.watch_of(&Collection::of::<K>(scope)?, from).await
    }

    /// The same, of a collection of any kind.
    pub(crate) async fn watch_of(
        &self,
        collection: &Collection,
        from: &WatchFrom<'_>,
    ) -> Result<Body, Error> {
        let request = collection.watch_request(from);
        let opened = self.transport.open(&request).await;
        let (_head, mut body) = opened.map_err(|cause| cause.about("watch", collection.name()))?;
        body.object = collection.name();
        Ok(body)
    }

    /// Waits until such a request may be sent, first come, first served. This limits the memory of all lists together, and the
    /// number of requests of a process that watches thousands of namespaces. Checks do not wait for lists, so that slow lists
    /// do not delay the resuming of watches.
    pub(crate) async fn permit(&self, request: PermitFor) -> Permit<'_> {
        let Permits { lists, checks } = &self.transport.permits;
        let permit = match request {
            PermitFor::List { bytes_max } => {
                let bytes = u32::try_from(bytes_max.min(LISTS_BYTES_MAX));
                lists.acquire_many(bytes.expect("32 MiB are fewer than 2^32 bytes")).await
            }
            PermitFor::Check => checks.acquire().await,
        };
        permit.expect("the semaphores are never closed")
    }
}
