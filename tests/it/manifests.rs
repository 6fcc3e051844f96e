//! What `manifests/` installs: it is what the code needs, and no more.

use std::{fs, path::Path};

use serde::Deserialize;
use serde_json::Value;

/// All documents of a file under `manifests/`.
pub fn read(file: &str) -> Vec<Value> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("manifests").join(file);
    let text = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    yaml_serde::Deserializer::from_str(&text).map(|document| Value::deserialize(document).unwrap()).collect()
}

/// The CustomResourceDefinition.
pub fn crd() -> Value {
    read("crd/mywebservers.yaml").remove(0)
}

/// What the operator may do, and its ServiceAccount, after the Namespace in which that is.
pub fn rbac() -> Vec<Value> {
    let mut objects = read("operator/namespace.yaml");
    objects.extend(read("operator/rbac.yaml"));
    objects
}
