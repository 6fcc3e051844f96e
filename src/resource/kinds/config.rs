//! ConfigMap and Secret: small files and settings for Pods. We own all their data.

use std::{collections::BTreeMap, fmt};

use serde::{Deserialize, Serialize};
use smol_str::SmolStr;

use super::kinds;
use crate::resource::{
    ObjectMeta,
    diff::{Merge, MergeRule},
};

kinds! {
    /// `v1` ConfigMap.
    /// See <https://kubernetes.io/docs/reference/kubernetes-api/config-and-storage-resources/config-map-v1/>.
    ConfigMap {
        /// The text of each key.
        data: BTreeMap<String, String>,
        /// Bytes that are not UTF-8, in base64. No key is in `data` as well.
        binary_data: BTreeMap<String, String>,
        /// Whether the data can never be changed again.
        immutable: bool,
    }
}

crate::kind!(ConfigMap, "", "v1", "configmaps", {
    const MERGE: &'static [MergeRule] =
        &[("/data", Merge::Owned), ("/binaryData", Merge::Owned), ("/immutable", Merge::Owned)];

    fn is_immutable(&self, path: &str) -> bool {
        self.immutable && !path.starts_with("/metadata/")
    }
});

/// `v1` Secret. `Debug` shows no value.
/// See <https://kubernetes.io/docs/reference/kubernetes-api/config-and-storage-resources/secret-v1/>.
#[derive(Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Secret {
    /// Name, labels, owners, versions.
    pub metadata: ObjectMeta,
    /// `Opaque`, `kubernetes.io/tls`, `kubernetes.io/dockerconfigjson`, …: which keys it must have. Never changes. Empty: the API
    /// server sets `Opaque`.
    #[serde(default, skip_serializing_if = "SmolStr::is_empty")]
    pub r#type: SmolStr,
    /// The bytes of each key, in base64.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub data: BTreeMap<String, String>,
    /// Whether the data can never be changed again.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub immutable: bool,
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Secret")
            .field("metadata", &self.metadata)
            .field("type", &self.r#type)
            .field("keys", &self.data.keys())
            .field("immutable", &self.immutable)
            .finish()
    }
}

crate::kind!(Secret, "", "v1", "secrets", {
    const MERGE: &'static [MergeRule] = &[("/data", Merge::Owned), ("/immutable", Merge::Owned)];

    fn is_immutable(&self, path: &str) -> bool {
        path == "/type" || self.immutable && !path.starts_with("/metadata/")
    }
});

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::resource::diff;

    fn config_map(object: serde_json::Value) -> ConfigMap {
        serde_json::from_value(object).expect("a ConfigMap")
    }

    #[test]
    fn a_key_that_is_no_longer_wanted_is_removed_and_what_others_note_stays() {
        let live = config_map(json!({
            "metadata": {
                "name": "c", "resourceVersion": "7", "creationTimestamp": "2026-11-22T06:39:00Z",
                "labels": {"team": "a"}, "annotations": {"note": "mine"},
                "ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": "n", "uid": "u"}],
            },
            "data": {"labels": "x", "containers": "y", "a/b": "z"},
            "binaryData": {"icon": "AAE="},
        }));
        let metadata = json!({"name": "c", "resourceVersion": ""});
        let desired = config_map(json!({"metadata": metadata, "data": {"labels": "new"}}));
        let expected = json!([
            {"op": "replace", "path": "/data/labels", "value": "new"},
            {"op": "remove", "path": "/data/a~1b"},
            {"op": "remove", "path": "/data/containers"},
            {"op": "remove", "path": "/binaryData"},
        ]);
        let mut operations = diff::operations(&diff::between(&live, &desired, &[]));
        operations.sort_by_key(|operation| {
            expected.as_array().and_then(|all| all.iter().position(|one| one == operation))
        });
        assert_eq!(json!(operations), expected);
        assert_eq!(
            diff::between(&config_map(json!({"metadata": metadata})), &ConfigMap::default(), &[]).len(),
            1
        );
    }

    #[test]
    fn no_value_of_a_secret_is_in_its_debug_text() {
        let secret = json!({
            "metadata": {"name": "s", "resourceVersion": "7", "annotations": {
                "kubectl.kubernetes.io/last-applied-configuration": "{\"stringData\":{\"password\":\"hunter2\"}}",
            }},
            "type": "Opaque",
            "data": {"password": "aHVudGVyMg=="},
        });
        let secret: Secret = serde_json::from_value(secret).expect("a Secret");
        let text = format!("{secret:?}");
        assert!(text.contains(r#"keys: ["password"]"#), "{text}");
        assert!(!text.contains("aHVudGVyMg") && !text.contains("hunter2"), "{text}");
    }
}
