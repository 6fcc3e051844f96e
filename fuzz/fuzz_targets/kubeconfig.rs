//! A kubeconfig holds these bytes.
#![no_main]

#[allow(dead_code)]
#[path = "../../tests/it/any_bytes/properties.rs"]
mod properties;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| properties::kubeconfig(bytes));
