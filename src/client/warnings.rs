//! The server's warnings, each reported once: deprecated APIs, unknown fields.
//!
//! ```text
//! Warning: 299 - "v1 Endpoints is deprecated in v1.33+; use discovery.k8s.io/v1 EndpointSlice"
//! ```
//!
//! Nothing in this file does I/O. See <https://kubernetes.io/blog/2020/09/03/warnings/>.

use std::{collections::HashSet, sync::Mutex};

use reqwest::header::{HeaderMap, WARNING};

use crate::locked;

/// Different texts that are remembered as logged. Enough for every deprecated field that one program uses.
const TEXTS_MAX: usize = 256;

/// The warnings that were logged.
#[derive(Default)]
pub(super) struct Warnings {
    logged: Mutex<HashSet<String>>,
}

impl Warnings {
    /// The warnings in these headers that have not been logged yet.
    pub(super) fn new_in(&self, headers: &HeaderMap) -> Vec<String> {
        let mut logged = locked(&self.logged);
        if logged.len() > TEXTS_MAX {
            logged.clear();
        }
        let texts = headers.get_all(WARNING).iter().filter_map(|value| value.to_str().ok()).map(text_of);
        texts.filter(|text| logged.insert(text.clone())).collect()
    }
}

/// `text` out of `299 - "text"`.
fn text_of(value: &str) -> String {
    match (value.find('"'), value.rfind('"')) {
        (Some(start), Some(end)) if start < end => value[start + 1..end].replace("\\\"", "\""),
        (Some(_) | None, Some(_) | None) => value.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn warnings_are_unquoted() {
        assert_eq!(text_of(r#"299 - "unknown field \"spec.x\"""#), r#"unknown field "spec.x""#);
        for odd in ["odd", "299 - \""] {
            assert_eq!(text_of(odd), odd);
        }
    }

    #[test]
    fn texts_are_forgotten_before_there_are_too_many() {
        let warnings = Warnings::default();
        for number in 0..TEXTS_MAX {
            let texts = (0..3).map(|text| (WARNING, format!("{number}.{text}").parse().expect("a header")));
            assert_eq!(warnings.new_in(&texts.collect()).len(), 3);
        }
        let known = locked(&warnings.logged).len();
        assert!(known <= TEXTS_MAX + 3, "{known}");
    }
}
