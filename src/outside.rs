//! The operators of the binary, compiled as a crate of their own: so each of them uses only what any operator can use. It does nothing.

#![allow(dead_code, missing_docs, unreachable_pub, unused_imports)]

// So `crate::children` in the files of the operators is `listwatch::children`.
use listwatch::*;

mod operators;

fn main() {}
