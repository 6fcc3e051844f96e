//! Reading objects that may not be what we expect.
//!
//! An older schema may have let in `port: "eighty"`. Such an object is there all the same: its neighbours must be read,
//! and its children must not be taken for orphans. So whatever has readable metadata counts as present.
//!
//! ```json
//! {"kind": "DeploymentList", "metadata": {"resourceVersion": "1207", "continue": "eyJ2Ijoi…"}, "items": [{…}, {…}]}
//! ```

use serde::{Deserialize, de};
use serde_json::value::RawValue;
use smol_str::SmolStr;

use super::{ObjectMeta, Resource};

/// An object as it came from the API server. Short-lived, so its size does not matter.
#[derive(Debug)]
#[allow(
    clippy::large_enum_variant,
    reason = "boxing the rule for the sake of the exception costs an allocation"
)]
pub enum Decoded<K> {
    /// As it should be.
    Readable(K),
    /// There, but not readable as a `K`.
    Broken(Broken),
}

/// An object that exists but does not decode.
#[derive(Clone, Debug)]
pub struct Broken {
    /// What could be read.
    pub metadata: ObjectMeta,
    /// What could not: `invalid type: string "eighty", expected i32`.
    pub error: String,
}

impl<K: Resource> Decoded<K> {
    /// Reads one object. Fails only where not even metadata can be read.
    pub fn from_json(json: &str) -> Result<Decoded<K>, serde_json::Error> {
        match serde_json::from_str(json) {
            Ok(object) => Ok(Decoded::Readable(object)),
            Err(error) => {
                let JustMetadata { metadata } = serde_json::from_str(json)?;
                // Without the column: it moves when the status is written in which this is told, and so would be news.
                let place = format!(" at line {} column {}", error.line(), error.column());
                let error = error.to_string().replace(&place, "");
                Ok(Decoded::Broken(Broken { metadata, error }))
            }
        }
    }

    /// The metadata, which is readable either way.
    pub fn metadata(&self) -> &ObjectMeta {
        match self {
            Decoded::Readable(object) => object.metadata(),
            Decoded::Broken(broken) => &broken.metadata,
        }
    }
}

#[derive(Deserialize)]
struct JustMetadata {
    metadata: ObjectMeta,
}

/// One page of a list.
#[derive(Debug)]
pub struct List<K> {
    /// The version of the whole list, the same on each of its pages: where a watch goes on from.
    pub version: SmolStr,
    /// What to send back for the next page. Empty: this was the last.
    pub continue_token: String,
    /// The objects, by namespace and name.
    pub items: Vec<Decoded<K>>,
}

#[derive(Deserialize)]
#[serde(bound(deserialize = "T: Deserialize<'de>"))]
struct Page<T> {
    metadata: PageMeta,
    /// Go writes an empty list as `null` here and there, but never leaves it out.
    #[serde(deserialize_with = "Option::deserialize")]
    items: Option<Vec<T>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct PageMeta {
    resource_version: SmolStr,
    #[serde(default)]
    r#continue: String,
}

impl<K: Resource> List<K> {
    /// Reads a page. One pass where all its objects are readable, a second one where they are not.
    ///
    /// Fails without `items` or a resourceVersion, which every list has whose kind can be watched: a proxy's
    /// `{"metadata":{}}` must not pass for an empty list, as if all objects were gone. The `kind` is as a rule
    /// `DeploymentList`, but a CRD may name it otherwise.
    pub fn from_json(json: &[u8]) -> Result<List<K>, serde_json::Error> {
        let json = str::from_utf8(json).map_err(de::Error::custom)?;
        let (metadata, items) = match serde_json::from_str::<Page<K>>(json) {
            Ok(page) => (page.metadata, page.items.into_iter().flatten().map(Decoded::Readable).collect()),
            Err(_) => {
                let page: Page<&RawValue> = serde_json::from_str(json)?;
                let items: Result<_, _> =
                    page.items.into_iter().flatten().map(|item| Decoded::from_json(item.get())).collect();
                (page.metadata, items?)
            }
        };
        if metadata.resource_version.is_empty() {
            return Err(de::Error::custom("the list has no resourceVersion"));
        }
        Ok(List { version: metadata.resource_version, continue_token: metadata.r#continue, items })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resource::kinds::Service;

    fn read(json: &str) -> Result<usize, String> {
        let list = List::<Service>::from_json(json.as_bytes()).map_err(|error| error.to_string())?;
        Ok(list.items.len())
    }

    #[test]
    fn an_empty_list_has_items_and_a_version() {
        for items in ["[]", "null"] {
            let list =
                format!(r#"{{"kind":"ServiceList","metadata":{{"resourceVersion":"9"}},"items":{items}}}"#);
            assert_eq!(read(&list), Ok(0));
        }
    }

    /// It was, and then all that was known counted as deleted.
    #[test]
    fn an_object_without_items_or_version_is_no_empty_list() {
        for json in [
            "{}",
            r#"{"metadata":{}}"#,
            r#"{"metadata":{},"items":[]}"#,
            r#"{"metadata":{"resourceVersion":""},"items":[]}"#,
            r#"{"metadata":{"resourceVersion":"9"}}"#,
            r#"{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Success"}"#,
            r#"{"items":[]}"#,
        ] {
            assert!(read(json).is_err(), "{json}");
        }
    }
}
