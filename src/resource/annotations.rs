//! Annotations, and metadata with or without them.
//!
//! Annotations can be large, and most kinds do not use them. So a kind can leave them out when it is decoded:
//! `#[serde(deserialize_with = "without_annotations")]`, or all but one: `"only_paused::<_, Page>"`.

use std::{collections::BTreeMap, fmt, marker::PhantomData};

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use smol_str::SmolStr;

use super::{ObjectMeta, Resource, labels::Pairs};

/// The annotation of `kubectl apply`, which repeats the whole object, also the data of a Secret. Its value is never kept,
/// but its name is: a patch must not add annotations as if there were none.
const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// A sorted map of annotations. The value of `kubectl.kubernetes.io/last-applied-configuration` is left out.
/// See <https://kubernetes.io/docs/concepts/overview/working-with-objects/annotations/>.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Annotations(Box<[(SmolStr, Box<str>)]>);

impl Annotations {
    /// The value of `key`.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<&str> {
        self.iter().find(|(name, _)| *name == key).map(|(_, value)| value)
    }

    /// No annotations.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The bytes that they take in memory, about: many small ones take more than their text.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.0.iter().map(|entry| size_of_val(entry) + entry.0.len() + entry.1.len()).sum()
    }

    /// All of them, by key.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(key, value)| (&**key, &**value))
    }
}

impl<'a> FromIterator<(&'a str, &'a str)> for Annotations {
    fn from_iter<I: IntoIterator<Item = (&'a str, &'a str)>>(annotations: I) -> Annotations {
        let sorted: BTreeMap<&str, &str> = annotations.into_iter().collect();
        let kept = |(key, value)| (SmolStr::from(key), if key == LAST_APPLIED { "" } else { value }.into());
        Annotations(sorted.into_iter().map(kept).collect())
    }
}

impl fmt::Debug for Annotations {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.iter()).finish()
    }
}

impl Serialize for Annotations {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.iter())
    }
}

impl<'de> Deserialize<'de> for Annotations {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Annotations, D::Error> {
        deserializer.deserialize_map(Pairs("a map of annotations", &[], PhantomData))
    }
}

/// Decodes metadata without their annotations, for a kind that does not use them. Its desired objects must have none, either:
/// a patch would replace the annotations of other writers.
pub fn without_annotations<'de, D: Deserializer<'de>>(deserializer: D) -> Result<ObjectMeta, D::Error> {
    Ok(ObjectMeta { annotations: Annotations::default(), ..ObjectMeta::deserialize(deserializer)? })
}

/// Decodes metadata with no annotation but [`ObjectMeta::is_paused`], for a kind that an operator serves.
pub fn only_paused<'de, D: Deserializer<'de>, K: Resource>(deserializer: D) -> Result<ObjectMeta, D::Error> {
    let (paused, metadata) = (paused::<K>(), ObjectMeta::deserialize(deserializer)?);
    let annotations = metadata.annotations.iter().filter(|(name, _)| *name == paused).collect();
    Ok(ObjectMeta { annotations, ..metadata })
}

/// The annotation with which a user pauses the operator of an object.
pub(crate) fn paused<K: Resource>() -> String {
    format!("{}/paused", K::GROUP)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_value_comes_out_as_it_went_in() {
        let json = r#"{"a/b":"1=2:3","empty":"","note":"zwölf\nc=1:d\u0000"}"#;
        let annotations: Annotations = serde_json::from_str(json).expect("annotations");
        assert_eq!(annotations.get("a/b"), Some("1=2:3"));
        assert_eq!(annotations.get("empty"), Some(""));
        assert_eq!(annotations.get("c"), None);
        assert_eq!(serde_json::to_string(&annotations).expect("JSON"), json);
        assert_eq!(annotations, annotations.iter().collect());
    }

    #[test]
    fn of_the_annotation_of_kubectl_apply_only_the_name_is_kept() {
        let json = format!(r#"{{"a":"1","{LAST_APPLIED}":"{{}}"}}"#);
        let annotations: Annotations = serde_json::from_str(&json).expect("annotations");
        assert_eq!(annotations, [("a", "1"), (LAST_APPLIED, "")].into_iter().collect());
    }

    #[test]
    fn a_kind_can_leave_its_annotations_out() {
        let json = r#"{"name":"web","resourceVersion":"1","annotations":{"a":"1"}}"#;
        let metadata: ObjectMeta = serde_json::from_str(json).expect("metadata");
        assert_eq!(metadata.annotations.get("a"), Some("1"));
        let without = without_annotations(&mut serde_json::Deserializer::from_str(json)).expect("metadata");
        assert_eq!(without, ObjectMeta { annotations: Annotations::default(), ..metadata });
    }
}
