//! A uid, kept as the UUID that it is: 16 bytes, where the text of 36 would need an allocation of its own.
//!
//! Every object has a uid, and every child also has its owner's. See
//! <https://kubernetes.io/docs/concepts/overview/working-with-objects/names/#uids>.

use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use smol_str::SmolStr;
use uuid::Uuid;

use super::labels::Piece;

/// `metadata.uid`: unique for ever.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Uid(Form);

#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Form {
    Uuid(Uuid),
    /// The API server hands out UUIDs, but an ownerReference may have any text as its uid.
    Text(SmolStr),
}

impl Uid {
    /// Not set.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Uid::default()
    }
}

impl From<&str> for Uid {
    fn from(text: &str) -> Uid {
        // Only the form in which it is written again.
        let uuid = Uuid::try_parse(text).ok();
        match uuid.filter(|uuid| uuid.hyphenated().encode_lower(&mut Uuid::encode_buffer()) == text) {
            Some(uuid) => Uid(Form::Uuid(uuid)),
            None => Uid(Form::Text(text.into())),
        }
    }
}

impl Default for Uid {
    fn default() -> Uid {
        Uid(Form::Text(SmolStr::default()))
    }
}

impl fmt::Display for Uid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Form::Uuid(uuid) => uuid.fmt(f),
            Form::Text(text) => text.fmt(f),
        }
    }
}

impl fmt::Debug for Uid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Serialize for Uid {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Uid {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Uid, D::Error> {
        Piece::deserialize(deserializer).map(|Piece(text)| Uid::from(&*text))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_uid_comes_out_as_it_went_in() {
        for text in ["00e4f4f5-13c0-44c5-98d6-3aca49e4a0b4", "00E4F4F5-13C0-44C5-98D6-3ACA49E4A0B4", "u1", ""]
        {
            let uid: Uid = serde_json::from_value(text.into()).expect("a uid");
            assert_eq!(uid.to_string(), text);
            assert_eq!(serde_json::to_value(&uid).expect("JSON"), text);
            assert_eq!(uid.is_empty(), text.is_empty());
        }
        assert_ne!(
            Uid::from("00e4f4f5-13c0-44c5-98d6-3aca49e4a0b4"),
            Uid::from("00E4F4F5-13C0-44C5-98D6-3ACA49E4A0B4")
        );
    }
}
