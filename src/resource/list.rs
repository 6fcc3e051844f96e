//! Decodes a page of a list, even if some of its objects do not match our types.
//!
//! An older schema may have allowed `port: "eighty"`. Such an object still exists: the other objects of the page must
//! be read, and its children must not count as orphans. So every object with readable metadata counts as present.
//!
//! ```json
//! {"kind": "DeploymentList", "metadata": {"resourceVersion": "1207", "continue": "eyJ2Ijoi…"}, "items": [{…}, {…}]}
//! ```

use std::sync::Arc;

use serde::{Deserialize, de::Error as _};
use serde_json::value::RawValue;
use smol_str::SmolStr;

use super::{ObjectMeta, Resource, from_json};

/// An object as the API server sent it, or its metadata alone.
#[derive(Debug)]
pub enum Found<K> {
    /// An object that decodes as a `K`.
    Readable(Arc<K>),
    /// The metadata of an object whose content does not decode as a `K`, or is not kept.
    Partial(Arc<Partial>),
}

/// The metadata of an object that exists: a PartialObjectMetadata, in the words of Kubernetes. Most are healthy objects of others, whose
/// content no operator needs.
#[derive(Clone, Debug)]
pub struct Partial {
    /// All that is known of it.
    pub metadata: ObjectMeta,
    /// Why there is no more: `invalid type: string "eighty", expected i32`.
    pub message: String,
    /// The same, for programs.
    pub cause: PartialCause,
}

/// Why only the metadata of an object is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PartialCause {
    /// It does not decode.
    Undecodable,
    /// It is too large.
    TooLarge,
    /// There was no room for so many bytes.
    NoRoom(usize),
    /// Nobody needs it.
    Unwanted,
}

impl<K> Clone for Found<K> {
    fn clone(&self) -> Found<K> {
        match self {
            Found::Readable(object) => Found::Readable(Arc::clone(object)),
            Found::Partial(partial) => Found::Partial(Arc::clone(partial)),
        }
    }
}

impl<K: Resource> Found<K> {
    /// Decodes one object. Fails only if the metadata are also unreadable.
    pub fn from_json(json: &str) -> Result<Found<K>, serde_json::Error> {
        match serde_json::from_str(json) {
            Ok(object) => Ok(Found::Readable(Arc::new(object))),
            Err(error) => {
                let JustMetadata { metadata } = serde_json::from_str(json)?;
                // Without line and column: the status contains this error, and writing the status moves the column. The
                // error would change, and the status would be written again.
                let place = format!(" at line {} column {}", error.line(), error.column());
                let message = error.to_string().replace(&place, "");
                Ok(Found::Partial(Arc::new(Partial { metadata, message, cause: PartialCause::Undecodable })))
            }
        }
    }

    /// Decodes the metadata alone of an object that is too large.
    pub(crate) fn without_content(json: &str, message: String) -> Result<Found<K>, serde_json::Error> {
        let JustMetadata { metadata } = serde_json::from_str(json)?;
        Ok(Found::Partial(Arc::new(Partial { metadata, message, cause: PartialCause::TooLarge })))
    }

    /// The metadata, which are readable in both cases.
    pub fn metadata(&self) -> &ObjectMeta {
        match self {
            Found::Readable(object) => object.metadata(),
            Found::Partial(partial) => &partial.metadata,
        }
    }

    /// The object, if it is readable.
    pub fn readable(&self) -> Option<&Arc<K>> {
        match self {
            Found::Readable(object) => Some(object),
            Found::Partial(_) => None,
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
    /// The resourceVersion of the list, the same on each of its pages. A watch continues from here.
    pub version: SmolStr,
    /// The continue token for the next page. Empty: this is the last page.
    pub continue_token: String,
    /// The objects, by namespace and name.
    pub items: Vec<Found<K>>,
}

/// A page whose objects are decoded one by one.
#[derive(Deserialize)]
pub(crate) struct RawPage<'a> {
    metadata: ListMeta,
    /// Go encodes some empty lists as `null`, but never omits them.
    #[serde(borrow, deserialize_with = "Option::deserialize")]
    items: Option<Vec<&'a RawValue>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ListMeta {
    resource_version: SmolStr,
    #[serde(default)]
    r#continue: String,
}

impl<K: Resource> List<K> {
    /// Decodes a page.
    ///
    /// Fails without `items` or a resourceVersion. Every list of a watchable kind has both, and `{"metadata":{}}` from
    /// a proxy must not pass for an empty list, as if all objects were deleted. The `kind` is not checked: usually it
    /// is `DeploymentList`, but a CRD may choose another `listKind`.
    pub fn from_json(json: &[u8]) -> Result<List<K>, serde_json::Error> {
        let page = RawPage::from_json(json)?;
        let items = page.items().map(Found::from_json).collect::<Result<_, _>>()?;
        Ok(List { version: page.version()?, continue_token: page.continue_token(), items })
    }
}

impl<'a> RawPage<'a> {
    pub(crate) fn from_json(json: &'a [u8]) -> Result<RawPage<'a>, serde_json::Error> {
        from_json(json)
    }

    /// The objects, as JSON.
    pub(crate) fn items(&self) -> impl Iterator<Item = &'a str> {
        self.items.iter().flatten().map(|item| item.get())
    }

    /// [`List::continue_token`].
    pub(crate) fn continue_token(self) -> String {
        self.metadata.r#continue
    }

    /// [`List::version`].
    pub(crate) fn version(&self) -> Result<SmolStr, serde_json::Error> {
        if self.metadata.resource_version.is_empty() {
            return Err(serde_json::Error::custom("the list has no resourceVersion"));
        }
        Ok(self.metadata.resource_version.clone())
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

    /// Such an answer once passed for an empty list, and all known objects counted as deleted.
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
