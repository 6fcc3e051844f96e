//! listwatch

pub mod resource;
pub mod client;
pub mod backoff;
pub mod store;
pub mod watch;
pub mod queue;
pub mod cluster;
pub mod controller;
pub mod operators;
