//! listwatch

pub mod resource;
