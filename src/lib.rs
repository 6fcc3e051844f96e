//! listwatch

pub mod resource;

pub mod client;
