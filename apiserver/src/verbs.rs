//! The verbs: get, list, watch, create, update, patch, apply and delete, on the objects in the storage.

pub(crate) mod read;
pub(crate) mod watch;
pub(crate) mod write;
pub(crate) mod patch;
pub(crate) mod delete;
pub(crate) mod bind;
pub(crate) mod put_status;
pub(crate) mod store;
pub(crate) mod scale;
pub(crate) mod served_kinds;
pub(crate) mod table;
