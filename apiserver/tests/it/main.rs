//! Compares the answers of the embedded API server and kube-apiserver 1.36.
//!
//! The expected answers are from kube-apiserver. With `KUBEBUILDER_ASSETS`, a kube-apiserver gets the same requests again:
//!
//! ```text
//! export KUBEBUILDER_ASSETS=…      # etcd, kube-apiserver, kube-controller-manager, kubectl
//! cargo test --package listwatch-apiserver --test it
//! ```

#![allow(clippy::unwrap_used, reason = "a failed unwrap names its line")]
#![allow(unreachable_pub, reason = "no crate uses a test binary")]

mod fixture;
mod go_terms;

mod apply;
mod bad_input;
mod components;
mod contract;
mod forbidden;
mod kinds;
mod kubectl;
mod protobuf;
mod schemas;
mod webhook_port;
