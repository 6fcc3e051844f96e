//! JSON patches (RFC 6902), as kube-apiserver applies them: from clients and from webhooks.
//!
//! ```json
//! [{"op": "add", "path": "/metadata/labels/app", "value": "web"}]
//! ```

use std::fmt;

use json_patch::{
    AddOperation, PatchErrorKind, PatchOperation, RemoveOperation, ReplaceOperation,
    jsonptr::{Pointer, PointerBuf, Token},
};
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

/// Applies one operation. As in kube-apiserver, a missing field of a map can be replaced, and equals null in a test; and a
/// negative index counts from the end. RFC 6902 forbids all three.
fn apply_operation(object: &mut Value, mut operation: PatchOperation) -> Result<(), json_patch::PatchError> {
    if let PatchOperation::Move(moved) = &operation {
        // The index counts after the removal.
        let from = indexed(object, &moved.from, End::LastItem);
        let value = from.resolve(object).cloned().unwrap_or_default();
        json_patch::patch(object, &[PatchOperation::Remove(RemoveOperation { path: from })])?;
        operation = PatchOperation::Add(AddOperation { path: moved.path.clone(), value });
    }
    let is_missing = |path: &Pointer| {
        let parent = path.parent().and_then(|parent| parent.resolve(object).ok());
        parent.is_some_and(Value::is_object) && path.resolve(object).is_err()
    };
    match &mut operation {
        PatchOperation::Add(add) => add.path = indexed(object, &add.path, End::NewItem),
        PatchOperation::Copy(copy) => {
            copy.from = indexed(object, &copy.from, End::LastItem);
            copy.path = indexed(object, &copy.path, End::NewItem);
        }
        PatchOperation::Remove(remove) => remove.path = indexed(object, &remove.path, End::LastItem),
        PatchOperation::Replace(ReplaceOperation { path, value }) => {
            let path = indexed(object, path, End::LastItem);
            let value = std::mem::take(value);
            operation = match is_missing(&path) {
                true => PatchOperation::Add(AddOperation { path, value }),
                false => PatchOperation::Replace(ReplaceOperation { path, value }),
            };
        }
        PatchOperation::Test(test) => {
            test.path = indexed(object, &test.path, End::LastItem);
            if test.value.is_null() && is_missing(&test.path) {
                return Ok(());
            }
        }
        PatchOperation::Move(_) => {}
    }
    json_patch::patch(object, &[operation])
}

/// What the index -1 means at the end of a path.
#[derive(Clone, Copy, PartialEq)]
enum End {
    LastItem,
    /// After the last item.
    NewItem,
}

/// The path with indexes from the start in place of negative ones.
fn indexed(object: &Value, path: &Pointer, end: End) -> PointerBuf {
    let (mut found, mut value) = (PointerBuf::new(), Some(object));
    let last = path.count().saturating_sub(1);
    for (at, token) in path.tokens().enumerate() {
        let items = value.and_then(Value::as_array);
        let more = usize::from(at == last && end == End::NewItem);
        let from_end = token.encoded().strip_prefix('-').and_then(|number| number.parse::<usize>().ok());
        let index = items.zip(from_end).and_then(|(items, back)| (items.len() + more).checked_sub(back));
        let token = index.map_or_else(|| token.to_owned(), Token::from);
        found.push_back(token);
        value = value.and_then(|value| found.back().and_then(|token| child(value, token.decoded().as_ref())));
    }
    found
}

fn child<'a>(value: &'a Value, name: &str) -> Option<&'a Value> {
    match value {
        Value::Array(items) => items.get(name.parse::<usize>().ok()?),
        Value::Object(map) => map.get(name),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => None,
    }
}
