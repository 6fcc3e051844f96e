//! JSON patches (json_patch), and server-side apply: the owners and conflicts (managed_fields), the merge (typed_value), and sets of fields (field_set).

pub(crate) mod json_patch;
pub(crate) mod managed_fields;
pub(crate) mod typed_value;
pub(crate) mod field_set;
