//! Decodes protobuf, in which client-go, controller-runtime and some commands of kubectl send objects of built-in kinds. Answers
//! are JSON, which these clients also accept.
//!
//! ```text
//! "k8s\0" and the message runtime.Unknown {typeMeta: {apiVersion: "v1", kind: "Namespace"}, raw: Namespace {metadata: {name: "x"}}}
//! {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "x"}}
//! ```
//!
//! A field of a message has a number instead of a name. `protobuf_fields.txt` has the numbers, and the definitions in
//! [`openapi`](crate::schema::openapi) the types. The test `tests/it/protobuf.rs` takes the numbers from `generated.proto` of
//! k8s.io/api, k8s.io/apimachinery and k8s.io/apiextensions-apiserver.
//!
//! The encoding: <https://protobuf.dev/programming-guides/encoding>

use std::{collections::HashMap, sync::LazyLock};

use base64::{Engine, prelude::BASE64_STANDARD};
use chrono::DateTime;
use serde_json::{Map, Value, json};

use crate::{
    schema::{
        encode::{MICRO_TIME, TIME},
        openapi::{definition, referred},
    },
    status::invalid_json,
};

/// The start of each object: apimachinery/pkg/runtime/serializer/protobuf.
const PREFIX: &[u8] = b"k8s\0";

/// Most messages inside each other, as in JSON. Only the schema in a CRD can contain itself.
const LEVELS_MAX: usize = 100;

/// The names of the fields of each message, by number. With a `+`, the field is a message whose fields belong to the object itself:
/// `EphemeralContainer: +EphemeralContainerCommon=1 targetContainerName=2`.
static FIELDS: LazyLock<HashMap<&str, HashMap<u64, &str>>> = LazyLock::new(|| {
    let lines = include_str!("protobuf_fields.txt").lines().filter_map(|line| line.split_once(": "));
    let number = |field: &'static str| {
        let (name, number) = field.split_once('=')?;
        Some((number.parse().ok()?, name))
    };
    lines.map(|(message, fields)| (message, fields.split(' ').filter_map(number).collect())).collect()
});

/// The types in a CRD that are a schema or, instead, a boolean or a list. OpenAPI cannot express them.
static UNION: LazyLock<Value> = LazyLock::new(|| {
    let schema = json!({"$ref": "#/components/schemas/JSONSchemaProps"});
    let list = |items: &Value| json!({"type": "array", "items": items});
    json!({"properties": {"schema": schema, "allows": {"type": "boolean"}, "jSONSchemas": list(&schema), "property": list(&json!({"type": "string"}))}})
});

/// Decodes an object. `name` is the definition of its kind.
pub(crate) fn decode(body: &[u8], name: &str) -> Result<Value, String> {
    let (type_meta, raw) = unknown(body)?;
    let mut object = Map::new();
    message(raw, name, definition(name), &mut object, LEVELS_MAX)?;
    for (number, field) in [(1, "apiVersion"), (2, "kind")] {
        object.insert(field.to_owned(), text(type_meta, number)?.into());
    }
    Ok(object.into())
}

/// `metadata.name` of an object of any kind.
pub(crate) fn name(body: &[u8]) -> Result<String, String> {
    let (_, raw) = unknown(body)?;
    text(bytes_of(raw, 1)?, 1)
}

/// The `typeMeta` and the `raw` of a runtime.Unknown.
fn unknown(body: &[u8]) -> Result<(&[u8], &[u8]), String> {
    let Some(unknown) = body.strip_prefix(PREFIX) else {
        return Err(format!("the body is not a Kubernetes protobuf message, which starts with {PREFIX:?}"));
    };
    Ok((bytes_of(unknown, 1)?, bytes_of(unknown, 2)?))
}

/// Adds the fields of a message to an object. Like Go, skips unknown fields.
fn message(
    bytes: &[u8],
    name: &str,
    schema: &Value,
    object: &mut Map<String, Value>,
    levels: usize,
) -> Result<(), String> {
    let levels = levels.checked_sub(1).ok_or("the object is nested too deeply")?;
    let names = FIELDS.get(name);
    let mut fields = Message(bytes);
    while let Some((number, wire)) = fields.next()? {
        let Some(&field) = names.and_then(|names| names.get(&number)) else { continue };
        if let Some(inline) = field.strip_prefix('+') {
            message(wire.bytes()?, inline, schema, object, levels)?;
            continue;
        }
        let schema = &schema["properties"][field];
        let of_map = &schema["additionalProperties"];
        let is_list = schema["type"] == "array";
        if is_list && let Value::Array(list) = object.entry(field).or_insert_with(|| json!([])) {
            list.push(value(wire, &schema["items"], levels)?);
        } else if of_map.is_object()
            && let Value::Object(map) = object.entry(field).or_insert_with(|| json!({}))
        {
            // A message with the key and the value, either of which may be missing if it is empty.
            let entry = wire.bytes()?;
            let item = find(entry, 2)?.unwrap_or(Wire::Bytes(b""));
            map.insert(text(entry, 1)?, value(item, of_map, levels)?);
        } else {
            object.insert(field.to_owned(), value(wire, schema, levels)?);
        }
    }
    Ok(())
}

fn value(wire: Wire, schema: &Value, levels: usize) -> Result<Value, String> {
    let Some(name) = referred(schema) else { return scalar(wire, schema, levels) };
    let bytes = wire.bytes()?;
    match name {
        "Quantity" => Ok(text(bytes, 1)?.into()),
        "IntOrString" if number(bytes, 1)? == 1 => Ok(text(bytes, 3)?.into()),
        "IntOrString" => Ok(number(bytes, 2)?.into()),
        "Time" => time(bytes, TIME),
        "MicroTime" => time(bytes, MICRO_TIME),
        "JSON" | "RawExtension" | "FieldsV1" => match bytes_of(bytes, 1)? {
            b"" => Ok(Value::Null),
            json => serde_json::from_slice(json).map_err(|error| invalid_json(&error)),
        },
        _ if name.starts_with("JSONSchemaPropsOr") => {
            let mut fields = Map::new();
            message(bytes, name, &UNION, &mut fields, levels)?;
            // Beside a schema, Go also sends the boolean.
            Ok(fields.remove("schema").or_else(|| fields.into_values().next()).unwrap_or_default())
        }
        _ => {
            let mut object = Map::new();
            message(bytes, name, definition(name), &mut object, levels)?;
            Ok(object.into())
        }
    }
}

fn scalar(wire: Wire, schema: &Value, levels: usize) -> Result<Value, String> {
    match (schema["type"].as_str(), wire) {
        // A list in a map is a message: `map<string, ExtraValue>`.
        (Some("array"), Wire::Bytes(bytes)) => {
            let (mut fields, mut items) = (Message(bytes), Vec::new());
            while let Some((_, wire)) = fields.next()? {
                items.push(value(wire, &schema["items"], levels)?);
            }
            Ok(items.into())
        }
        (Some("integer"), Wire::Number(number)) => Ok((number as i64).into()),
        (Some("boolean"), Wire::Number(number)) => Ok((number != 0).into()),
        (Some("number"), Wire::Number(bits)) => Ok(f64::from_bits(bits).into()),
        (Some("string"), Wire::Bytes(bytes)) if schema["format"] == "byte" => {
            Ok(BASE64_STANDARD.encode(bytes).into())
        }
        (Some("string"), Wire::Bytes(bytes)) => Ok(utf8(bytes)?.into()),
        _ => Err(WRONG_TYPE.to_owned()),
    }
}

/// A metav1.Time or MicroTime: seconds since 1970, and nanoseconds. An empty message is the zero time, which is null in JSON.
fn time(bytes: &[u8], format: &str) -> Result<Value, String> {
    if bytes.is_empty() {
        return Ok(Value::Null);
    }
    let (seconds, nanos) = (number(bytes, 1)?, number(bytes, 2)?);
    let time = u32::try_from(nanos).ok().and_then(|nanos| DateTime::from_timestamp(seconds, nanos));
    let time = time.ok_or_else(|| format!("no time: {seconds} seconds and {nanos} nanoseconds"))?;
    Ok(time.format(format).to_string().into())
}

fn utf8(bytes: &[u8]) -> Result<String, String> {
    String::from_utf8(bytes.to_vec()).map_err(|_| "a string is not valid UTF-8".to_owned())
}

/// The value of a field. Its type is in the definition.
#[derive(Clone, Copy)]
enum Wire<'a> {
    /// An integer, a boolean, or the bits of a double.
    Number(u64),
    /// A string, bytes or a message.
    Bytes(&'a [u8]),
}

const WRONG_TYPE: &str = "a field has a value of the wrong type";

impl<'a> Wire<'a> {
    fn bytes(self) -> Result<&'a [u8], String> {
        match self {
            Wire::Bytes(bytes) => Ok(bytes),
            Wire::Number(_) => Err(WRONG_TYPE.to_owned()),
        }
    }
}

/// The value of a field of a message. The last one counts.
fn find(message: &[u8], number: u64) -> Result<Option<Wire<'_>>, String> {
    let (mut fields, mut found) = (Message(message), None);
    while let Some((one, wire)) = fields.next()? {
        found = if one == number { Some(wire) } else { found };
    }
    Ok(found)
}

/// A message or bytes; empty if missing.
fn bytes_of(message: &[u8], number: u64) -> Result<&[u8], String> {
    find(message, number)?.map_or(Ok(b""), Wire::bytes)
}

/// A string; empty if missing.
fn text(message: &[u8], number: u64) -> Result<String, String> {
    utf8(bytes_of(message, number)?)
}

/// An integer; 0 if missing.
fn number(message: &[u8], number: u64) -> Result<i64, String> {
    match find(message, number)? {
        Some(Wire::Number(number)) => Ok(number as i64),
        Some(Wire::Bytes(_)) => Err(WRONG_TYPE.to_owned()),
        None => Ok(0),
    }
}

/// The rest of a message.
struct Message<'a>(&'a [u8]);

impl<'a> Message<'a> {
    /// The number and the value of the next field.
    fn next(&mut self) -> Result<Option<(u64, Wire<'a>)>, String> {
        if self.0.is_empty() {
            return Ok(None);
        }
        let tag = self.varint()?;
        let wire = match tag & 7 {
            0 => Wire::Number(self.varint()?),
            1 => Wire::Number(u64::from_le_bytes(*self.array()?)),
            2 => {
                let length = self.varint()?;
                Wire::Bytes(self.take(usize::try_from(length).unwrap_or(usize::MAX))?)
            }
            5 => Wire::Number(u32::from_le_bytes(*self.array()?).into()),
            other => return Err(format!("a field has the unknown wire type {other}")),
        };
        Ok(Some((tag >> 3, wire)))
    }

    /// Seven bits in each byte, the lowest first. The highest bit says whether more bytes follow.
    fn varint(&mut self) -> Result<u64, String> {
        let mut number = 0;
        for shift in (0..u64::BITS).step_by(7) {
            let [byte] = *self.array()?;
            number |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Ok(number);
            }
        }
        Err("a number has more than 64 bits".to_owned())
    }

    fn take(&mut self, length: usize) -> Result<&'a [u8], String> {
        let (taken, rest) = self.0.split_at_checked(length).ok_or("the message ends inside a field")?;
        self.0 = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<&'a [u8; N], String> {
        let (taken, rest) = self.0.split_first_chunk().ok_or("the message ends inside a field")?;
        self.0 = rest;
        Ok(taken)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a failed unwrap names its line")]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn varint(mut number: u64) -> Vec<u8> {
        let mut bytes = Vec::new();
        while number > 0x7f {
            bytes.push(number as u8 | 0x80);
            number >>= 7;
        }
        bytes.push(number as u8);
        bytes
    }

    fn integer(field: u64, value: i64) -> Vec<u8> {
        [varint(field << 3), varint(value as u64)].concat()
    }

    /// A field with a string or bytes.
    fn bytes(field: u64, value: impl AsRef<[u8]>) -> Vec<u8> {
        let value = value.as_ref();
        [varint(field << 3 | 2), varint(value.len() as u64), value.to_vec()].concat()
    }

    /// A field with a message.
    fn fields(field: u64, fields: &[Vec<u8>]) -> Vec<u8> {
        bytes(field, fields.concat())
    }

    fn body(kind: &str, object: &[Vec<u8>]) -> Vec<u8> {
        [PREFIX.to_vec(), fields(1, &[bytes(1, "v1"), bytes(2, kind)]), fields(2, object)].concat()
    }

    #[test]
    fn each_type_has_its_form_in_json() {
        let of = |kind: &str, object: &[Vec<u8>]| {
            let mut object = decode(&body(kind, object), kind).unwrap();
            let all = object.as_object_mut().unwrap();
            assert_eq!(all.remove("apiVersion"), Some("v1".into()));
            assert_eq!(all.remove("kind"), Some(kind.into()));
            object
        };
        let label = fields(11, &[bytes(1, "app"), bytes(2, "web")]);
        let managed = fields(17, &[fields(7, &[bytes(1, r#"{"f:data":{}}"#)])]);
        let metadata = fields(
            1,
            &[bytes(1, "x"), bytes(8, ""), fields(9, &[integer(1, 60)]), label, managed, integer(99, 1)],
        );
        assert_eq!(
            of("Secret", &[metadata.clone(), fields(2, &[bytes(1, "key"), bytes(2, [0xff])]), integer(5, 1)]),
            json!({
                "metadata": {"name": "x", "creationTimestamp": null, "deletionTimestamp": "1970-01-01T00:01:00Z",
                    "labels": {"app": "web"}, "managedFields": [{"fieldsV1": {"f:data": {}}}]},
                "data": {"key": "/w=="},
                "immutable": true,
            })
        );
        assert_eq!(name(&body("Unknown", &[metadata])), Ok("x".to_owned()));

        let probe = |port: &[Vec<u8>]| fields(1, &[fields(2, &[fields(2, port)])]);
        let limits = fields(8, &[fields(1, &[bytes(1, "cpu"), fields(2, &[bytes(1, "500m")])])]);
        let container = fields(
            2,
            &[
                bytes(3, "sh"),
                bytes(3, ""),
                limits,
                fields(10, &[probe(&[integer(1, 1), bytes(3, "http")])]),
                fields(11, &[probe(&[integer(1, 0), integer(2, 80)])]),
            ],
        );
        let volume = fields(1, &[bytes(1, "v"), fields(2, &[fields(2, &[])])]);
        assert_eq!(
            of("Pod", &[fields(2, &[volume, container, integer(25, -2)])])["spec"],
            json!({
                "volumes": [{"name": "v", "emptyDir": {}}],
                "containers": [{
                    "command": ["sh", ""],
                    "resources": {"limits": {"cpu": "500m"}},
                    "livenessProbe": {"httpGet": {"port": "http"}},
                    "readinessProbe": {"httpGet": {"port": 80}},
                }],
                "priority": -2,
            })
        );

        let renewed = fields(4, &[integer(1, 1), integer(2, 5_000)]);
        assert_eq!(of("Lease", &[fields(2, &[renewed])])["spec"]["renewTime"], "1970-01-01T00:00:01.000005Z");

        let string = || fields(1, &[bytes(5, "string")]);
        let double = |field: u64, value: f64| [varint(field << 3 | 1), value.to_le_bytes().to_vec()].concat();
        let schema = &[
            fields(24, &[string()]),
            fields(
                29,
                &[
                    bytes(1, "a"),
                    fields(
                        2,
                        &[fields(8, &[bytes(1, "[1]")]), fields(36, &[]), double(9, 1.5), double(11, 1.0)],
                    ),
                ],
            ),
            fields(30, &[integer(1, 1)]),
            fields(32, &[bytes(1, "a"), fields(2, &[bytes(2, "b")])]),
        ];
        assert_eq!(
            of("CustomResourceValidation", &[fields(1, schema)])["openAPIV3Schema"],
            json!({
                "items": {"type": "string"},
                "properties": {"a": {"default": [1], "example": null, "maximum": 1.5, "minimum": 1.0}},
                "additionalProperties": true,
                "dependencies": {"a": ["b"]},
            })
        );
    }

    #[test]
    fn invalid_bytes_are_refused() {
        let refused = |body: &[u8]| decode(body, "Namespace").unwrap_err();
        let of = |metadata: &[u8]| refused(&body("Namespace", &[metadata.to_vec()]));
        assert_eq!(
            refused(b"{}"),
            "the body is not a Kubernetes protobuf message, which starts with [107, 56, 115, 0]"
        );
        assert_eq!(refused(b"k8s\0\xff\xff"), "the message ends inside a field");
        assert_eq!(of(&[0x0a, 0x7f]), "the message ends inside a field");
        assert_eq!(of(&integer(1, 1)), "a field has a value of the wrong type");
        assert_eq!(of(&fields(1, &[integer(1, 1)])), "a field has a value of the wrong type");
        assert_eq!(of(&fields(1, &[bytes(1, [0xff])])), "a string is not valid UTF-8");
        assert_eq!(of(&[0x0b]), "a field has the unknown wire type 3");
        assert_eq!(of(&[0xff; 11]), "a number has more than 64 bits");
        let time = [integer(1, i64::MAX), integer(2, 0)];
        assert_eq!(
            of(&fields(1, &[fields(8, &time)])),
            "no time: 9223372036854775807 seconds and 0 nanoseconds"
        );
        let nested = (0..LEVELS_MAX).fold(Vec::new(), |schema, _| fields(27, &[schema]));
        let crd = body("CustomResourceValidation", &[fields(1, &[nested])]);
        assert_eq!(decode(&crd, "CustomResourceValidation").unwrap_err(), "the object is nested too deeply");
    }

    proptest! {
        #[test]
        fn random_bytes_do_not_panic(raw in proptest::collection::vec(any::<u8>(), 0..200)) {
            for kind in ["Pod", "CustomResourceDefinition", "Lease"] {
                let _ = decode(&body(kind, std::slice::from_ref(&raw)), kind);
            }
        }
    }
}
