//! Conversion of Events between `events.k8s.io/v1` and the core `v1`, the stored version.
//!
//! Both versions have the same fields, but some under other names.

use serde_json::Value;

use crate::kinds::defaults::set_default;

/// The fields of an Event that have different names in the core group and in events.k8s.io.
const FIELDS: &[(&str, &str)] = &[
    ("involvedObject", "regarding"),
    ("message", "note"),
    ("source", "deprecatedSource"),
    ("firstTimestamp", "deprecatedFirstTimestamp"),
    ("lastTimestamp", "deprecatedLastTimestamp"),
    ("count", "deprecatedCount"),
    ("reportingComponent", "reportingController"),
];

/// Converts an Event to the core `v1`, and adds the fields that Go always encodes. Fields with core names stay.
pub(crate) fn to_core(object: &mut Value) {
    object["apiVersion"] = "v1".into();
    rename(object, FIELDS.iter().map(|&(core, new)| (new, core)));
    set_default(object, "/reportingComponent", "".into());
    set_default(object, "/reportingInstance", "".into());
    for time in ["firstTimestamp", "lastTimestamp", "eventTime"] {
        set_default(object, &format!("/{time}"), Value::Null);
    }
}

/// Converts an Event to `events.k8s.io/v1`.
pub(crate) fn to_new(object: &mut Value) {
    rename(object, FIELDS.iter().copied());
    let Some(object) = object.as_object_mut() else { return };
    object.retain(|field, value| {
        !matches!(field.as_str(), "reportingController" | "reportingInstance") || *value != ""
    });
}

fn rename<'a>(object: &mut Value, fields: impl Iterator<Item = (&'a str, &'a str)>) {
    let Some(object) = object.as_object_mut() else { return };
    for (from, to) in fields {
        if let Some(value) = object.remove(from) {
            object.insert(to.to_owned(), value);
        }
    }
}
