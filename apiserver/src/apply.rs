//! Server-side apply, in three files: the owners and conflicts, the sets of fields, and the merge.

pub(crate) mod managed_fields;
pub(crate) mod typed_value;
pub(crate) mod field_set;
