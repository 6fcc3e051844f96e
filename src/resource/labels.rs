//! Labels, kept as the text that a selector would be: `app=web,tier=front`.
//!
//! A map of a few short strings costs an allocation or two per entry; a label can hold neither `=` nor `,`, so one
//! sorted text holds them all in one allocation, and comparing two sets is comparing two texts.
//! See <https://kubernetes.io/docs/concepts/overview/working-with-objects/labels/#syntax-and-character-set>.

use std::{borrow::Cow, fmt, marker::PhantomData};

use serde::{
    Deserialize, Deserializer, Serialize, Serializer,
    de::{Error, MapAccess, Unexpected, Visitor},
};
use smallvec::SmallVec;

use super::{INSTANCE, MANAGED_BY, Resource};

/// A sorted set of `key=value`.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Labels(Box<str>);

impl Labels {
    /// Those of the children of an owner: its name in `app.kubernetes.io/instance`, and the name of its operator in
    /// `app.kubernetes.io/managed-by`.
    #[must_use]
    pub fn of<O: Resource>(owner: &O, operator: &str) -> Labels {
        [(INSTANCE, &*owner.metadata().name), (MANAGED_BY, operator)].into_iter().collect()
    }

    /// The value of `key`.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<&str> {
        self.iter().find(|(name, _)| *name == key).map(|(_, value)| value)
    }

    /// No labels.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// All of them, by key.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.split(',').filter_map(|label| label.split_once('='))
    }

    /// As an equality selector: `app=web,tier=front`.
    #[must_use]
    pub fn as_selector(&self) -> &str {
        &self.0
    }
}

/// A comma, or a `=` in a key, becomes `\u{fffd}`. So the API server refuses the label, as it would have done, and never sees two.
impl<'a> FromIterator<(&'a str, &'a str)> for Labels {
    fn from_iter<I: IntoIterator<Item = (&'a str, &'a str)>>(labels: I) -> Labels {
        let mut labels: SmallVec<[_; 8]> = labels.into_iter().collect();
        labels.sort_unstable();
        let length: usize = labels.iter().map(|(key, value)| key.len() + value.len() + "=,".len()).sum();
        let mut text = String::with_capacity(length.saturating_sub(",".len()));
        for (key, value) in labels {
            let comma = if text.is_empty() { "" } else { "," };
            text.extend([comma, &without(key, b",="), "=", &without(value, b",")]);
        }
        Labels(text.into())
    }
}

/// The text with `\u{fffd}` for each of these characters.
fn without<'a>(text: &'a str, refused: &[u8]) -> Cow<'a, str> {
    let is_refused = |c: char| u8::try_from(c).is_ok_and(|byte| refused.contains(&byte));
    if text.bytes().any(|byte| refused.contains(&byte)) {
        text.replace(is_refused, "\u{fffd}").into()
    } else {
        text.into()
    }
}

impl fmt::Debug for Labels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl Serialize for Labels {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.iter())
    }
}

impl<'de> Deserialize<'de> for Labels {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Labels, D::Error> {
        deserializer.deserialize_map(Pairs("a map of labels without `,` and `=`", &[',', '='], PhantomData))
    }
}

/// Decodes a map of strings without a copy of each: what an error expects, the characters that no string may have, and
/// the type of the result.
pub(super) struct Pairs<T>(pub(super) &'static str, pub(super) &'static [char], pub(super) PhantomData<T>);

impl<'de, T: for<'a> FromIterator<(&'a str, &'a str)>> Visitor<'de> for Pairs<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }

    /// The API server sends them sorted, so copying them is nearly always all there is to do.
    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<T, A::Error> {
        let mut pairs = SmallVec::<[(Piece<'de>, Piece<'de>); 8]>::new();
        while let Some(pair) = map.next_entry::<Piece<'de>, Piece<'de>>()? {
            for Piece(text) in [&pair.0, &pair.1] {
                if text.contains(self.1) {
                    return Err(A::Error::invalid_value(Unexpected::Str(text), &self));
                }
            }
            pairs.push(pair);
        }
        Ok(pairs.iter().map(|(key, value)| (&*key.0, &*value.0)).collect())
    }
}

/// A borrowed string where the JSON has no escapes in it, as in every label and uid.
#[derive(Deserialize)]
pub(super) struct Piece<'a>(#[serde(borrow)] pub(super) Cow<'a, str>);

#[cfg(test)]
mod tests {
    use super::*;

    /// A value that users choose made another label, also one that a selector asks for.
    #[test]
    fn a_comma_or_an_equals_sign_makes_no_second_label() {
        let labels: Labels = [("team", "a,b=c"), ("x=y,z", "1")].into_iter().collect();
        let labels: Vec<_> = labels.iter().collect();
        assert_eq!(labels, [("team", "a\u{fffd}b=c"), ("x\u{fffd}y\u{fffd}z", "1")]);
    }

    #[test]
    fn labels_are_sorted_whatever_order_they_come_in() {
        let labels: Labels =
            serde_json::from_str(r#"{"tier":"front","app":"web","empty":""}"#).expect("labels");
        assert_eq!(labels.as_selector(), "app=web,empty=,tier=front");
        assert_eq!(labels.get("app"), Some("web"));
        assert_eq!(labels.get("empty"), Some(""));
        assert_eq!(labels.get("ap"), None);
        assert_eq!(
            serde_json::to_string(&labels).expect("JSON"),
            r#"{"app":"web","empty":"","tier":"front"}"#
        );
        assert_eq!(labels, [("tier", "front"), ("empty", ""), ("app", "web")].into_iter().collect());
    }

    #[test]
    fn a_label_with_a_comma_or_an_equals_sign_is_refused_and_not_read_as_two() {
        for json in [r#"{"a":"b,c=d"}"#, r#"{"a=b":""}"#, r#"{"a":"b=c"}"#] {
            let error = serde_json::from_str::<Labels>(json).expect_err(json).to_string();
            assert!(error.contains("expected a map of labels without `,` and `=`"), "{json}: {error}");
        }
    }

    #[test]
    fn no_labels_are_an_empty_text() {
        let labels: Labels = serde_json::from_str("{}").expect("labels");
        assert!(labels.is_empty());
        assert_eq!(labels.iter().count(), 0);
    }
}
