//! Fuzz target: the bytes are read as a kubeconfig.
#![no_main]

#[allow(dead_code)]
#[path = "../../tests/it/any_bytes/properties.rs"]
mod properties;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| properties::kubeconfig(bytes));
