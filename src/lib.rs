//! listwatch

pub mod admin;
#[cfg(feature = "apiserver")]
pub mod apiserver;
pub mod backoff;
pub mod cli;
pub mod client;
pub mod cluster;
pub mod controller;
pub mod operators;
pub mod queue;
pub mod resource;
pub mod shutdown;
pub mod store;
pub mod watch;
