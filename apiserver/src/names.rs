//! Validation of names and labels, with causes for a Status. And the random parts of names, and uids.

pub(crate) use listwatch_formats::names::{
    dns_1035_errors, label_errors, label_value_errors, path_segment_errors, qualified_name_errors,
    subdomain_errors,
};
use serde_json::Value;

use crate::status::Cause;

/// Converts errors into causes.
pub(crate) fn causes(field: &str, value: &str, errors: Vec<String>) -> impl Iterator<Item = Cause> {
    errors.into_iter().map(move |error| Cause::invalid(field, &value.into(), &error))
}

/// Validates a map of labels: of an object or a selector.
pub(crate) fn labels_errors(field: &str, labels: &Value) -> Vec<Cause> {
    let mut all = Vec::new();
    for (key, value) in labels.as_object().into_iter().flatten() {
        all.extend(causes(field, key, qualified_name_errors(key)));
        let value = value.as_str().unwrap_or_default();
        all.extend(causes(field, value, label_value_errors(value)));
    }
    all
}

/// The letters of random suffixes. They contain no vowels, so that they form no words.
pub(crate) const LETTERS: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";

/// Five random letters, as kube-apiserver appends them to `generateName`.
pub(crate) fn random_letters() -> String {
    (0..5).map(|_| char::from(LETTERS[fastrand::usize(..LETTERS.len())])).collect()
}

/// A random uid: RFC 9562, version 4.
pub(crate) fn uid() -> String {
    uuid::Builder::from_random_bytes(fastrand::u128(..).to_ne_bytes()).into_uuid().to_string()
}
