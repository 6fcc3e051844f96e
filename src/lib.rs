//! listwatch

#[cfg(feature = "apiserver")]
pub mod apiserver;
pub mod resource;
