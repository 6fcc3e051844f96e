//! JSON patches (RFC 6902), as kube-apiserver applies them: from clients and from webhooks.
//!
//! ```json
//! [{"op": "add", "path": "/metadata/labels/app", "value": "web"}]
//! ```

use std::fmt;

use json_patch::{AddOperation, PatchErrorKind, PatchOperation, ReplaceOperation};
use serde_json::Value;

use crate::json::size_and_depth;

/// Maximum size of the object that a JSON patch produces. kube-apiserver has another limit: the bytes that `copy`
/// operations add.
const PATCHED_BYTES_MAX: usize = 3 * 1024 * 1024;

/// Deepest nesting that a JSON patch may create. `serde_json`, which parses the bodies here and in our clients, stops
/// at 128 levels. Lists and watch events add some levels around an object.
const LEVELS_MAX: usize = 120;

/// Decodes the operations. A missing value means null, as in kube-apiserver.
pub(crate) fn decode(mut operations: Vec<Value>) -> serde_json::Result<Vec<PatchOperation>> {
    for operation in operations.iter_mut().filter_map(Value::as_object_mut) {
        operation.entry("value").or_insert(Value::Null);
    }
    serde_json::from_value(operations.into())
}

/// Why a patch cannot be applied.
pub(crate) enum PatchFailure {
    /// A test does not hold.
    Test(String),
    Other(String),
}

impl fmt::Display for PatchFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PatchFailure::Test(why) | PatchFailure::Other(why) => f.write_str(why),
        }
    }
}

/// Applies all operations, or fails.
pub(crate) fn apply(operations: &[PatchOperation], object: &mut Value) -> Result<(), PatchFailure> {
    for operation in operations {
        apply_operation(object, operation.clone()).map_err(|error| match (operation, &error.kind) {
            (PatchOperation::Test(_), _) => PatchFailure::Test(error.to_string()),
            (PatchOperation::Remove(_), PatchErrorKind::InvalidPointer) => {
                // The words of the Go library.
                let path = error.path.as_str();
                let why =
                    format!("remove operation does not apply: doc is missing path: {path:?}: missing value");
                PatchFailure::Other(why)
            }
            _ => PatchFailure::Other(error.to_string()),
        })?;
        // A copy can double the size and the depth, so thirty copies could fill the memory.
        let (bytes, depth) = size_and_depth(object);
        if bytes > PATCHED_BYTES_MAX || depth > LEVELS_MAX {
            return Err(PatchFailure::Other("the object becomes too large".to_owned()));
        }
    }
    Ok(())
}

/// Applies one operation. As in kube-apiserver, a missing field of a map can be replaced, and equals null in a test. RFC
/// 6902 forbids both.
fn apply_operation(object: &mut Value, operation: PatchOperation) -> Result<(), json_patch::PatchError> {
    let is_missing = |path: &str| {
        let parent = path.rsplit_once('/').and_then(|(parent, _)| object.pointer(parent));
        parent.is_some_and(Value::is_object) && object.pointer(path).is_none()
    };
    let operation = match operation {
        PatchOperation::Replace(ReplaceOperation { path, value }) if is_missing(path.as_str()) => {
            PatchOperation::Add(AddOperation { path, value })
        }
        PatchOperation::Test(test) if test.value.is_null() && is_missing(test.path.as_str()) => return Ok(()),
        other => other,
    };
    json_patch::patch(object, &[operation])
}
