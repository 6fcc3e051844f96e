//! [`Json`]: fields of any shape. As text they take as much memory as they have characters; as a [`Value`], with a map of its own for
//! each object, up to a hundred times as much, and others may write such fields.

use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer, ser::Error as _};
use serde_json::{Map, Value};

/// Any JSON value. The default is an object without fields.
///
/// ```
/// # use listwatch::resource::kinds::Json;
/// let rest: Json = [("hostUsers".to_owned(), false.into())].into_iter().collect();
/// assert_eq!(rest.value()["hostUsers"], false);
/// ```
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Json(Box<str>);

impl Json {
    /// The value, decoded again.
    #[must_use]
    pub fn value(&self) -> Value {
        self.decoded().expect("it was encoded from a value")
    }

    fn decoded(&self) -> Result<Value, serde_json::Error> {
        if self.0.is_empty() { Ok(Map::new().into()) } else { serde_json::from_str(&self.0) }
    }
}

impl From<Value> for Json {
    fn from(value: Value) -> Json {
        let is_empty = value.as_object().is_some_and(Map::is_empty);
        Json(if is_empty { Box::default() } else { value.to_string().into() })
    }
}

impl FromIterator<(String, Value)> for Json {
    fn from_iter<I: IntoIterator<Item = (String, Value)>>(fields: I) -> Json {
        Value::from_iter(fields).into()
    }
}

impl fmt::Debug for Json {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_empty() { "{}" } else { &self.0 })
    }
}

impl Serialize for Json {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.decoded().map_err(S::Error::custom)?.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Json {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Json, D::Error> {
        Value::deserialize(deserializer).map(Json::from)
    }
}
