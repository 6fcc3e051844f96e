//! Integration tests of the operator, with the embedded API server and, if `KUBEBUILDER_ASSETS` is set, a real one.
//!
//! ```text
//! export KUBEBUILDER_ASSETS=…      # etcd, kube-apiserver, kube-controller-manager
//! cargo test --test it
//! ```

#![allow(clippy::unwrap_used, reason = "a failed unwrap names its line")]
#![allow(unreachable_pub, reason = "no crate uses a test binary")]

/// The root of the repository. These tests are in the package `cli`, because cargo tells only the tests of a package where its program is.
const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/..");
/// A path at which nothing is, in the directory of these tests: any other path may exist on somebody's machine.
const ABSENT: &str = concat!(env!("CARGO_TARGET_TMPDIR"), "/absent");

// Servers, clients and fixtures.
mod bundle;
mod client;
mod operator;
mod proxy;
mod tls;
mod webhook;
mod webhooks;
mod fixture;

// How the operator handles a MyWebserver.
mod adopt;
mod conflict;
mod create;
mod delete;
mod drift;
mod drift_fuzz;
mod events;
mod leader;
mod pause;
mod pods;
mod refused;
mod restart;
mod shards;
mod update;
mod upgrade;

// The other operators.
mod in_process;
mod memcached;
mod memory;
mod database;
mod pod_settings;

// The controller with any operator.
mod controller;
mod copyrator;

// The process, with any controllers.
mod alerts;
mod metrics;
mod runtime;

// Lists, watches and their bytes.
mod allocations;
mod any_bytes;
mod connections;
mod thundering_herd;
mod lists;
mod merge;
mod selector;
mod soak;
mod watch_edge_cases;
mod watch;
mod malformed_responses;

// Failures of the network and of the control plane.
mod network;
mod outage;

// Commands, manifests, docs, source and logs.
mod apiserver;
mod cli;
mod clients;
mod curl;
mod course;
mod docs;
mod fields;
mod fixtures;
mod lens;
mod log;
mod manifests;
mod new;
mod plan;
mod scorecard;
mod slow_clients;
mod study;
mod types;
