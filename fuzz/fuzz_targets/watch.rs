//! Fuzz target: a watch sends the bytes, cut at the place that the first two name.
#![no_main]

#[allow(dead_code)]
#[path = "../../tests/it/any_bytes/properties.rs"]
mod properties;

libfuzzer_sys::fuzz_target!(|input: (u16, &[u8])| properties::watch(input.1, input.0.into()));
