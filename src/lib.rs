//! listwatch: a Kubernetes operator, and the small library it stands on, that talk to the API server over plain HTTPS.
//!
//! List, then `watch=1&resourceVersion=…`, one JSON line per event. No generated client: that protocol is what this
//! crate is about, and its source is meant to be read.
//!
//! # One event's journey
//!
//! Somebody edits a Deployment that belongs to a `MyWebserver`. Eight files, from bytes to the write that answers:
//!
//! ```text
//! bytes on the socket ─► line ─► event ─► Store ─► Queue ─► Operator::applied ─► API write
//!    client/http.rs   watch/decode.rs  store.rs  queue.rs   operators/mywebserver.rs
//!    client.rs        watch.rs                   controller.rs
//! ```
//!
//! 1. [`client`] has a watch open: an HTTP answer that never ends. Its `client/http.rs` hands out pieces of it.
//! 2. [`watch::decode`] cuts the pieces into lines, and reads a line as a [`watch::decode::WatchEvent`].
//! 3. [`watch`] decides what the line means, in [`watch::Machine::line`]: MODIFIED, so the object is as it says, and
//!    the watch has come as far as its version.
//! 4. [`store`] keeps the object, if it is newer than what it has, and says what changed.
//! 5. [`controller`] asks whose key that is, the owner's, and puts it into the [`queue`]: once, however many events
//!    there are. A worker takes the key and looks up what is there *now*.
//! 6. [`operators::mywebserver`] computes what the object asks for, compares, and writes what differs.
//! 7. [`cluster`] sends the write through the client, and tells the Stores its answer at once.
//!
//! # The chapters
//!
//! Each top-level file is a chapter; a folder beside it holds its footnotes. They are declared below in reading order.
//! An arrow means "uses": `cli → operators → controller → cluster → {watch → client, store}`, `controller → queue`.
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
//!
//! What is on the wire has Kubernetes' own words: resourceVersion, BOOKMARK, 410 Expired.
//!
//! # What always holds
//!
//! - [`resource`], [`watch::decode`], [`watch::Machine`], [`store`] and [`backoff`] name no socket and await nothing.
//! - Only `client/http.rs` connects; only [`admin`] and the embedded API server listen.
//! - Only operators write to the cluster, and only through a [`cluster::Cluster`]; Events go beside it, to be read by people.
//! - A task belongs to somebody who ends it; stopping is dropping; no lock is held across an `.await`.
//! - Every buffer, retry and wait has a limit, a constant with its unit, reason and source; queues and Stores are as
//!   long as there are objects.
//! - Tokens, passwords and keys are never logged, printed or part of an error.
//!
//! # Features
//!
//! `apiserver` (on by default): an API server in this process, for `listwatch demo`, the examples and the tests. The
//! production image is built without it.

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
pub mod operators;

// Being a good citizen.
pub mod admin;
pub mod shutdown;
pub mod cli;

// The other side of the wire.
#[cfg(feature = "apiserver")]
pub mod apiserver;
