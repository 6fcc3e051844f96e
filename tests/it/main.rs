//! The contract of the operator, against the embedded API server and, with `KUBEBUILDER_ASSETS`, a real one.
//!
//! ```text
//! export KUBEBUILDER_ASSETS=…      # etcd, kube-apiserver, kube-controller-manager
//! cargo test --test it
//! ```

#![allow(clippy::unwrap_used, reason = "a test that cannot go on says where")]
#![allow(unreachable_pub, reason = "nobody reaches into a test binary")]

// The stage.
mod hands;
mod operator;
mod plane;
mod proxy;
mod tls;
mod webhook;
mod world;

// What the operator does with a MyWebserver.
mod conflict;
mod create;
mod delete;
mod drift;
mod drift_fuzz;
mod events;
mod pods;
mod refused;
mod restart;
mod update;

// What holds for every operator.
mod controller;

// What it takes from the wire.
mod allocations;
mod any_bytes;
mod crowd;
mod lists;
mod selector;
mod soak;
mod traps;
mod watch;
mod wire;

// What goes wrong on the way there, and behind it.
mod network;
mod outage;

// How it is installed and started.
mod apiserver;
mod cli;
mod docs;
mod log;
mod manifests;
