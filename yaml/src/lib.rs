//! Reads YAML as kubectl and kube-apiserver do: by the rules of YAML 1.1 in [sigs.k8s.io/yaml], which differ from YAML 1.2. And
//! [writes](write()) it so that they read the same value.
//!
//! ```
//! let pod = listwatch_yaml::read("{on: yes, mode: 017, size: 1_000, name: 'yes'}")?;
//! assert_eq!(pod, serde_json::json!({"true": true, "mode": 15, "size": 1000, "name": "yes"}));
//! # Ok::<(), listwatch_yaml::Error>(())
//! ```
//!
//! The tag `!!str` makes a text of each value. `!!bool`, `!!int` and `!!float` take what YAML 1.2 has; others are refused.
//!
//! [sigs.k8s.io/yaml]: https://pkg.go.dev/sigs.k8s.io/yaml

mod write;

use std::fmt;

use serde::de::{self, DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};
pub use write::{is_printable, pretty, write};
/// What is not YAML, and where.
pub use yaml_serde::Error;

/// The first document; null if there is none.
///
/// # Errors
///
/// If it is not YAML, or has a value that JSON lacks, such as `.inf`.
pub fn read(text: &str) -> Result<Value, Error> {
    documents(text).next().unwrap_or(Ok(Value::Null))
}

/// All documents, of which some may be empty: null. The last one may be an error.
pub fn documents(text: &str) -> impl Iterator<Item = Result<Value, Error>> {
    yaml_serde::Deserializer::from_str(text).map(move |document| Reader(text).deserialize(document))
}

/// Reads one value of this text.
#[derive(Clone, Copy)]
struct Reader<'a>(&'a str);

impl<'a> DeserializeSeed<'a> for Reader<'a> {
    type Value = Value;

    fn deserialize<D: Deserializer<'a>>(self, yaml: D) -> Result<Value, D::Error> {
        yaml.deserialize_any(self)
    }
}

impl<'a> Visitor<'a> for Reader<'a> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value without a local tag")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    /// An empty stream is not a null for [`yaml_serde`].
    fn visit_none<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E: de::Error>(self, value: u64) -> Result<Value, E> {
        self.visit_i128(value.into())
    }

    fn visit_i128<E: de::Error>(self, value: i128) -> Result<Value, E> {
        i64::try_from(value).map_or_else(|_| self.visit_f64(value as f64), |value| Ok(value.into()))
    }

    fn visit_u128<E: de::Error>(self, value: u128) -> Result<Value, E> {
        self.visit_f64(value as f64)
    }

    /// Go writes a whole float without a decimal point.
    fn visit_f64<E: de::Error>(self, value: f64) -> Result<Value, E> {
        if !value.is_finite() {
            return Err(E::custom(format!("unsupported value: {value}")));
        }
        let is_whole = value.fract() == 0.0 && value.abs() < i64::MAX as f64;
        Ok(if is_whole { (value as i64).into() } else { value.into() })
    }

    fn visit_str<E>(self, text: &str) -> Result<Value, E> {
        Ok(text.into())
    }

    /// Only a scalar that is in the source as it is here can be unquoted, and so another value than this text.
    fn visit_borrowed_str<E: de::Error>(self, text: &'a str) -> Result<Value, E> {
        let before = &self.0[..text.as_ptr() as usize - self.0.as_ptr() as usize];
        if before.ends_with(['"', '\'']) {
            return Ok(text.into());
        }
        // In compact JSON, the last word would be the whole text before.
        if before.ends_with(char::is_whitespace) {
            let mut words = before.split_whitespace().rev().skip_while(|word| word.starts_with('&'));
            match words.next() {
                Some("!!binary") => return Err(E::custom("the tag !!binary is not supported")),
                // After a backslash, the line goes on in quotes.
                Some(word) if word == "!!str" || word.ends_with('\\') => return Ok(text.into()),
                Some(_) | None => {}
            }
        }
        match text {
            "y" | "Y" | "yes" | "Yes" | "YES" | "on" | "On" | "ON" => Ok(true.into()),
            "n" | "N" | "no" | "No" | "NO" | "off" | "Off" | "OFF" => Ok(false.into()),
            _ => match number(text) {
                Some(Number::Int(int)) => self.visit_i128(int),
                Some(Number::Float(float)) => self.visit_f64(float),
                None => Ok(text.into()),
            },
        }
    }

    fn visit_seq<A: SeqAccess<'a>>(self, mut items: A) -> Result<Value, A::Error> {
        let mut list = Vec::new();
        while let Some(item) = items.next_element_seed(self)? {
            list.push(item);
        }
        Ok(list.into())
    }

    /// Of a key that is there twice, the last value counts. A merge is in its place among the keys.
    fn visit_map<A: MapAccess<'a>>(self, mut entries: A) -> Result<Value, A::Error> {
        let mut map = Map::new();
        while let Some(key) = entries.next_key_seed(self)? {
            let value = entries.next_value_seed(self)?;
            match (key, value) {
                (Value::String(key), value) if key == "<<" => merge(&mut map, value)?,
                (Value::String(key), value) => _ = map.insert(key, value),
                (key @ (Value::Bool(_) | Value::Number(_)), value) => _ = map.insert(key.to_string(), value),
                (key @ (Value::Null | Value::Array(_) | Value::Object(_)), _) => {
                    return Err(de::Error::custom(format!("unsupported map key: {key}")));
                }
            }
        }
        Ok(map.into())
    }
}

/// Adds the fields of an object, or of several: of a field that is in more than one, the first counts.
fn merge<E: de::Error>(map: &mut Map<String, Value>, merged: Value) -> Result<(), E> {
    match merged {
        Value::Object(fields) => map.extend(fields),
        Value::Array(all) => {
            for fields in all.into_iter().rev() {
                merge(map, fields)?;
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {
            return Err(E::custom("map merge requires map or sequence of maps as the value"));
        }
    }
    Ok(())
}

enum Number {
    Int(i128),
    Float(f64),
}

/// A number that [`yaml_serde`] takes for text: it has underscores, is octal with a leading zero, or has an upper-case prefix.
fn number(text: &str) -> Option<Number> {
    if !text.starts_with(|first: char| first.is_ascii_digit() || "+-".contains(first)) {
        return None;
    }
    let plain = text.replace('_', "").to_ascii_lowercase();
    let digits = plain.strip_prefix(['+', '-']).unwrap_or(&plain);
    let (radix, digits) = match digits.get(..2) {
        Some("0x") => (16, &digits[2..]),
        Some("0o") => (8, &digits[2..]),
        Some("0b") => (2, &digits[2..]),
        _ if digits.starts_with('0') => (8, digits),
        _ => (10, digits),
    };
    if let (true, Ok(int)) =
        (digits.bytes().all(|digit| digit.is_ascii_alphanumeric()), u64::from_str_radix(digits, radix))
    {
        let int = i128::from(int);
        return Some(Number::Int(if plain.starts_with('-') { -int } else { int }));
    }
    let is_decimal = digits.bytes().all(|byte| b"0123456789.e+-".contains(&byte));
    plain.parse().ok().filter(|float: &f64| is_decimal && float.is_finite()).map(Number::Float)
}
