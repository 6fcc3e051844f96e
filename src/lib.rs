//! listwatch: a Kubernetes operator, and the small library it stands on, that talk to the API server over plain HTTPS.
//!
//! List, then `watch=1&resourceVersion=…`, one JSON line per event. No generated client: that protocol is what this
//! crate is about, and its source is meant to be read.
//!
//! # One event's journey
//!
//! Somebody edits a Deployment that belongs to a `MyWebserver`. Nine files, from bytes to the write that answers:
//!
//! ```text
//! client/http.rs    a watch is open: an HTTP answer that never ends. Its bytes come in pieces, cut anywhere
//! watch/decode.rs   pieces become lines, a line becomes a WatchEvent: MODIFIED, and the object
//! watch.rs          what that means: the object is as it says, and the watch has come as far as its version
//! store.rs          the object is kept, if it is newer than what we have, and what changed is told
//! controller.rs     whose key is it? The owner's. It needs work
//! queue.rs          once, however many events there are; a worker takes the key, and looks up what is there now
//! operators/mywebserver.rs   what does the object ask for?
//! children.rs       is that child there, is it ours, what differs, what is to be written?
//! cluster.rs        the write goes out, and its answer into the Stores at once
//! ```
//!
//! Footnotes on the way: [`resource`] has the shape of objects and, in [`resource::diff`], how two are compared;
//! [`client`] makes a request from a verb and a path.
//!
//! # The chapters
//!
//! Each top-level file is a chapter; a folder beside it holds its footnotes. They are declared below in reading order.
//! An arrow means "uses": `cli → operators → {controller, children}`, `controller → {cluster, queue}`, `children → cluster`,
//! `cluster → {watch, client, store}`, `watch → {client, store}`.
//!
//! # Words
//!
//! | here | in client-go and controller-runtime | |
//! |---|---|---|
//! | [`client::Client`] | RESTClient | requests, typed or by path |
//! | [`watch::watch`] | Reflector | list, then watch, for ever |
//! | [`store::Store`] | Store, Indexer, cache | what is known, by key |
//! | [`cluster::Watch`] | SharedInformer | a share in a running watch |
//! | [`cluster::Cluster`] | Manager's cache and client | shared watches, and writes that are believed at once |
//! | [`resource::Key`] | ObjectKey, NamespacedName | namespace and name |
//! | [`resource::Scope`] | ListOptions | a namespace or all, and a label selector |
//! | [`queue::Queue`] | rate-limiting Workqueue | which keys need work |
//! | [`controller::Operator`] | Reconciler | what to do about an object |
//! | [`controller::Controller`] | Controller, Builder | ties them together |
//! | [`children::Owned`] | CreateOrUpdate, SetControllerReference | keeps the objects that ours own as they are wanted |
//!
//! What is on the wire has Kubernetes' own words: resourceVersion, BOOKMARK, 410 Expired.
//!
//! # What always holds
//!
//! - [`resource`], [`watch::decode`], [`watch::Machine`], [`store`] and [`backoff`] name no socket and await nothing.
//! - Only `client/http.rs` connects; only [`admin`] and the embedded API server listen.
//! - Only operators and [`children`] write to the cluster, and only through a [`cluster::Cluster`]; Events go beside it, to be read by people.
//! - A task belongs to somebody who ends it; stopping is dropping; no lock is held across an `.await`.
//! - Every buffer, retry and wait has a limit, a constant with its unit, reason and source; queues and Stores are as
//!   long as there are objects.
//! - Tokens, passwords and keys are never logged, printed or part of an error.
//!
//! # Features
//!
//! `apiserver` (on by default): an API server in this process, for `listwatch demo` and `listwatch apiserver`, the examples
//! and the tests; and a client that asks it without a connection, for simulations. The production image is built without it.

// What is talked about.
pub mod resource;

// Talking to the API server.
pub mod client;

// Hearing about changes.
pub mod watch;
pub mod store;
pub mod cluster;

// Acting on them.
pub mod queue;
pub mod backoff;
pub mod controller;
pub mod children;
pub mod operators;

// Being a good citizen.
pub mod admin;
pub mod shutdown;
pub mod cli;

// The other side of the wire.
#[cfg(feature = "apiserver")]
pub use listwatch_apiserver as apiserver;

/// Locks a mutex. None of our code panics while it holds one, and what each guards is whole at all times.
pub(crate) fn locked<T>(mutex: &std::sync::Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}
