//! listwatch: Kubernetes operators, and the small library that they use. It lists and watches with plain HTTPS requests.
//!
//! The library lists the objects of a kind once, and then watches from the version of the list, with `watch=1&resourceVersion=…`.
//! The watch sends one JSON line for each event. There is no generated client. The source is meant to be read.
//!
//! A Store with every Namespace, filled from the embedded API server:
//!
//! ```
//! # #[cfg(not(feature = "testing"))] fn main() {}
//! # #[cfg(feature = "testing")] #[tokio::main(flavor = "current_thread")] async fn main() {
//! use listwatch::{resource::{Scope, kinds::Namespace}, store::{Change, Store}};
//! use listwatch::{testing::TestServer, watch::{Health, Lists, watch}};
//!
//! let (server, synced) = (TestServer::start(&[]).await, std::sync::Arc::new(tokio::sync::Notify::new()));
//! let (store, waiting) = (Store::<Namespace>::default(), synced.clone());
//! let _listening = store.listen(move |change| if let Change::Synced = change { synced.notify_one() });
//! let (health, scope) = (Health::new("namespaces".to_owned()), Scope::default());
//! tokio::select! {
//!     () = watch(server.client.clone(), scope, Lists::Paged, &store, &health) => unreachable!("it runs until dropped"),
//!     () = waiting.notified() => println!("{:?}", store.keys()),
//! }
//! # assert_eq!(store.len(), 4);
//! # }
//! ```
//!
//! # The path of one event
//!
//! Somebody edits a Deployment that belongs to a `MyWebserver`. These steps lead from the bytes of the event to the
//! PATCH that corrects the Deployment:
//!
//! ```text
//! watch.rs                   follow() reads an open watch, and gives it up if it is silent for too long (Machine::silence_limit)
//! client/http.rs             Body::chunk waits for the next bytes: pieces, cut anywhere
//! watch/decode.rs            Lines: pieces become lines
//! watch.rs                   apply_line() calls the next four functions
//! store/kept.rs              Kept::weigh: an object that is too large is not decoded
//! watch/decode.rs            WatchEvent::from_json: MODIFIED, with the object
//! watch/machine.rs           Machine::line: the effect of MODIFIED is that the object is applied
//! store.rs                   the object replaces its older version, as far as the budget of store/kept.rs has room, and the listeners get a Change
//! cluster.rs                 a handle on shared watches passes the Change on, with its scope: Watch::listen has set it up
//! controller.rs              other_changed() finds the key of the owner by owner_of(), and adds it to the queue: controller/builder.rs has set it up
//! queue.rs                   the key waits once, however many events there are
//! controller.rs              a worker takes the key, and calls the operator with the present MyWebserver of its Store
//! controller/gates.rs        due(): it is ours, not being deleted, and not paused, so it is reconciled
//! mywebserver.rs (operators) reconcile() computes the desired() Deployment, and keeps it
//! children/reconcile.rs      keep() notes what becomes of it, for the report
//! children/keep.rs           correct() compares the live Deployment with the desired one, if this MyWebserver is its controller
//! resource/diff.rs           between() finds the differences, each with the desired and the present value
//! children/keep.rs           patch() sends nothing if admission alone made it differ, or if the correction must wait; else a JSON patch of the differences
//! cluster.rs                 Cluster::patch sends the patch, and puts the answer into the Store
//! client.rs                  Client::patch makes the request: PATCH, path, body; call() refuses it if this process does not lead
//! client/http.rs             call() sends the request, with credential, deadline and retries
//! ```
//!
//! These files also have a part in it. Most of them change the path only if something waits, fails or was deleted:
//!
//! ```text
//! watch/end.rs               how a watch ended; watch_of() in watch.rs sends the request that Machine::end chooses then
//! client/auth.rs             the credential of a request; client/request.rs has its path and headers, client/connections.rs its connection
//! client/retry.rs            which failed requests are sent again, and how soon
//! client/error_answer.rs     the error in an answer, with its Retry-After, at most a minute, for requests, watches and keys
//! backoff.rs                 how a pause grows after each failure; its limits are in watch.rs, queue.rs, cluster/events.rs and
//!                            children/refused_writes.rs; watch/machine.rs says when the failures of a watch are forgotten
//! client/leadership.rs       whether this process may write; leader.rs holds the Lease
//! client/dry_run.rs          in a plan, writes are only tried; controller/plan.rs reconciles each object once
//! client/tap.rs              shows requests and answers to `study`
//! causes.rs                  names in the requests of a reconcile the events that woke it, for `listwatch lens`
//! watch/health.rs            what the probes report of a watch
//! endpoints/probes.rs        whether the process is alive and ready
//! cluster/streams.rs         whether the watches that a key needs have synced
//! controller/finalizers.rs   adds and removes the finalizer of an object
//! resource/kinds             the types of common kinds, and with Resource::MERGE what an absent field or item means in a child
//! controller/workers.rs      when the key is reconciled again after a reconcile, and what the log says of a failure; apply() in
//!                            controller.rs reports it in the status
//! controller/deletions.rs    the cleanup after a deleted object; children/by_owner.rs deletes its children
//! correction_backoff.rs      pauses writes that another writer keeps reverting, or that differ each time
//! children/refused_writes.rs puts off the writes that the API server has refused, and no others
//! children/write.rs          the text that identifies a write: a new generation makes it another one; remembers the last write of each
//!                            child, and what admission changed in it
//! children/outcome.rs        Child: kept, awaited, not ours, failed, or without an owner
//! children/report.rs         finish() writes the status
//! children/events.rs         which Events a report has, and what all reports of one operator remember
//! cluster/events.rs          writes the Events: equal ones are a series, and all wait until there is no other request
//! children/status.rs         the trait of a kind with a status
//! children/unreconciled.rs   the reports without a reconcile: of an object that does not decode, or must wait
//! metrics.rs                 what each of them counts, and endpoints.rs serves
//! ```
//!
//! The 15 files of the first list have 5,300 lines without tests; 4,000 of the lines are code (neither blank nor comments).
//!
//! The answer to the PATCH goes into the Store. That change adds the key of the owner to the queue again. The second
//! reconcile finds no difference in the children, and writes nothing to them.
//! Later the watch sends the event of the PATCH. The Store already has that version, so nothing changes.
//!
//! # Crates
//!
//! ```text
//! src              this library, all that an operator depends on
//! operators        the operators of MyWebserver, Memcached, Database and CopyratorRule: they use this library and `formats` alone, as any other operator would
//! study            makes the wire visible: explains and records requests and answers for `listwatch get`, `watch` and `replay`, and for the lessons in `examples`
//! formats          parses texts as the Go code of Kubernetes does, for most of the other crates; `yaml` does so for YAML, and writes it
//! install          renders what is installed for an operator, its CRDs, roles, manifests and bundle, and the text of a plan; this library re-exports it
//! apiserver        the embedded API server, which knows nothing of this library
//! scorecard        finds the bugs of an operator in any language, by faults of that server
//! lens             shows what an operator in any language does, and why, from its requests and the events of its watches
//! cli              the binary: `run`, `get`, `watch`, … and the commands of developers: `demo`, `new`, `scorecard`, `lens`, …
//! ```
//!
//! # Chapters
//!
//! Each top-level file of a crate is a chapter, and the folder of the same name has its details. The modules are declared below in
//! reading order. An arrow means "uses"; small modules and indirect uses are left out:
//!
//! ```text
//! runtime ───► controller
//! controller ► children, queue
//! children ──► cluster
//! cluster ───► watch, client, store
//! watch ─────► client, store
//! webhook ───► controller, endpoints
//! ```
//!
//! All of them use [`resource`], the types of objects.
//!
//! # Glossary
//!
//! | here | in client-go and controller-runtime | |
//! |---|---|---|
//! | [`client::Client`] | RESTClient | requests, typed or by path |
//! | [`watch::watch`] | Reflector | lists, then watches, until dropped |
//! | [`watch::Machine`] | the loop of Reflector.ListAndWatch | decides which request comes next |
//! | [`store::Store`] | Store | the objects of one watch, by key |
//! | [`cluster::Index`] | Indexer | the objects of shared watches by owner, label or anything else |
//! | [`store::DeletionSource`] | DeletedFinalStateUnknown | whether a deletion came as an event, or was inferred from a list |
//! | [`cluster::Watch`] | SharedInformer | a handle on shared watches |
//! | [`cluster::Cluster`] | the cache and client of a Manager | shared watches, and writes whose answers go into the Stores |
//! | [`resource::Key`] | ObjectKey, NamespacedName | namespace and name |
//! | [`resource::Scope`] | ListOptions | one namespace or all, and selectors |
//! | [`queue::Queue`] | rate-limiting workqueue | the keys that must be reconciled |
//! | [`controller::Operator`] | Reconciler | reconciles one object |
//! | [`controller::Reconcile`] | Request, SetStatusCondition, EventRecorder | the object to reconcile; notes what becomes of its children, and writes the outcomes into conditions and Events |
//! | [`next::Next`] | Result | when the object is reconciled again |
//! | [`next::ReconcileError`] | error, or TerminalError | any error, and when to try again |
//! | [`controller::Builder`] | Builder | connects the watches of an operator with its queue |
//! | [`controller::Controller`] | Controller | ties watches, queue and Operator together |
//! | [`leader::LeaderElection`] | leaderelection.LeaderElectionConfig | of several processes, one writes |
//! | [`shard::Shard`] | | the objects that one of several processes reconciles |
//! | [`runtime::Runtime`] | Manager | runs controllers, with probes, metrics, Events and signals |
//! | [`metrics::Metrics`] | metrics.Registry | what the process counts |
//! | [`rbac::roles`] | `+kubebuilder:rbac` | the least roles of an operator, from what its controllers watch, keep and write |
//! | [`plan::Plan`] | kubectl diff | what the controllers would write now |
//! | `webhook::Webhooks` | webhook.Server, CustomValidator, CustomDefaulter | what the API server asks before it stores an object, and for its other versions |
//! | [`manifests::Installation`] | config/default of kubebuilder | everything to install for an operator |
//! | `correction_backoff` | | pauses writes that another writer keeps reverting, or that differ each time |
//! | `client::Permit` | | a permit of a semaphore: only a few lists run at a time |
//! | `client::Tap` | | sees each request and answer, for `study` |
//! | [`resource::diff::Merge`] | x-kubernetes-list-type, x-kubernetes-map-type | the fields that are ours as a whole, and the lists in which other writers have items of their own |
//! | [`children::Children`] | CreateOrUpdate | the children of one kind: creates and corrects them |
//!
//! Everything on the wire has its Kubernetes name: resourceVersion, BOOKMARK, 410 Expired.
//!
//! # Invariants
//!
//! - [`resource`], [`watch::decode`], [`watch::Machine`], [`store`] and [`backoff`] do no I/O.
//! - Only [`client`] connects; only `endpoints` (probes, metrics, debugging), `webhook` and the embedded API server listen.
//! - In an operator, only a [`controller::Operator`], [`children`] and the finalizers of [`controller`] write objects, and only through
//!   a [`cluster::Cluster`], as [`leader`] writes the Lease. Events (`cluster/events.rs`) go straight to the Client, because no operator reads them.
//! - Every task has an owner that ends it. Dropping a future stops its work. No `std::sync::Mutex` is locked across an
//!   `.await`.
//! - Every buffer, every request and every pause between attempts has a limit: a constant, whose comment gives the reason for
//!   the number. Watches and keys are tried again for ever. Queues and Stores grow with the number of objects, and hardly with the size
//!   of objects of others.
//! - Tokens, passwords and private keys are never logged, printed or part of an error.
//!
//! # Features
//!
//! None is on by default.
//!
//! - `schema`: the module `crd`, which makes a CustomResourceDefinition from the Rust types of a kind.
//! - `log`: the module `log`, a log on standard error.
//! - `bundle`: the command `bundle` of an operator, for the Operator Lifecycle Manager.
//! - `testing`: the module `testing`, which runs an operator on the embedded API server until it is quiet.
//! - `otel`: traces by OpenTelemetry, a span for each reconcile and each of its requests.
//! - `webhook`: the module `webhook`, which validates, defaults and converts objects, and looks after its certificates.
//!
//! To write another operator: `docs/your-operator.md` shows how.

// Objects and their keys.
pub mod resource;
pub mod shard;
pub mod rbac;

// What is counted and traced.
pub mod metrics;
mod causes;
#[cfg_attr(not(feature = "otel"), path = "not_traced.rs")]
pub mod traces;

// Requests to the API server.
pub mod client;

// Changes from the API server.
pub mod watch;
pub mod store;
pub mod cluster;

// Reconciling.
mod queue;
pub mod backoff;
pub mod next;
mod correction_backoff;
pub mod children;
pub mod controller;

// The process.
mod endpoints;
pub mod shutdown;
pub mod leader;
#[cfg(feature = "bundle")]
#[doc(inline)]
pub use listwatch_install::bundle;
#[doc(inline)]
pub use listwatch_install::manifests;
pub mod plan;
pub mod runtime;
#[cfg(feature = "webhook")]
pub mod webhook;
#[cfg(feature = "schema")]
pub mod crd;
#[cfg(feature = "log")]
pub mod log;

// The tests of an operator, and our own.
#[cfg(feature = "testing")]
pub mod testing;
#[cfg(test)]
mod captured_log;

/// Not for operators: for tests without a server, `study`, the binary, benchmarks, and servers in the process.
#[doc(hidden)]
pub mod advanced {
    pub use crate::{
        children::{outcome::Outcomes, pods::trouble, rollout_conditions::state, status::Unreadable},
        client::{
            config::REQUEST_TIMEOUT,
            in_process::{InProcess, InProcessAnswer},
            list::CHECK_BYTES_MAX,
            tap::{Step, Tap},
        },
        queue::{Queue, Urgency},
        runtime::variables::{address, checked, names_in},
    };
}

/// Locks a mutex. None of our code panics while it holds a lock, so poisoning is ignored.
#[doc(hidden)]
pub fn locked<T>(mutex: &std::sync::Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}
