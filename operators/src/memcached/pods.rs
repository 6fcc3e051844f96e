//! The Pods of a Memcached: their names, and which of them are ready.

use listwatch::resource::{
    ObjectMeta,
    kinds::{Pod, WorkloadCondition},
    without_annotations,
};
use serde::{Deserialize, Deserializer};

/// `v1` Pod, with its metadata and whether it is ready: a watch of many Pods takes little memory.
#[derive(Debug, Deserialize)]
pub struct PodReadiness {
    /// Name, labels, owners, versions.
    #[serde(deserialize_with = "without_annotations")]
    pub metadata: ObjectMeta,
    #[serde(rename = "status", default, deserialize_with = "is_ready")]
    is_ready: bool,
}

impl PodReadiness {
    /// Whether the Pod serves, and is not being deleted.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.is_ready && !self.metadata.is_terminating()
    }
}

/// The condition `Ready` of a Pod's status.
fn is_ready<'de, D: Deserializer<'de>>(deserializer: D) -> Result<bool, D::Error> {
    #[derive(Deserialize)]
    struct PodConditions {
        #[serde(default)]
        conditions: Vec<WorkloadCondition>,
    }
    let status = PodConditions::deserialize(deserializer)?;
    Ok(status.conditions.iter().any(|one| one.r#type == "Ready" && one.status == "True"))
}

listwatch::kind!(PodReadiness: Pod);

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn only_pods_that_are_ready_and_stay_are_nodes() {
        let is_ready = |status: &str, deleted: Option<&str>| {
            let conditions =
                json!([{"type": "Initialized", "status": "True"}, {"type": "Ready", "status": status}]);
            let metadata = json!({"name": "p", "resourceVersion": "1", "deletionTimestamp": deleted});
            let node = json!({"metadata": metadata, "status": {"conditions": conditions}});
            serde_json::from_value::<PodReadiness>(node).expect("a Pod").is_ready()
        };
        assert!(is_ready("True", None));
        assert!(!is_ready("False", None));
        assert!(!is_ready("True", Some("2026-11-22T12:00:00Z")));
        let pending =
            json!({"metadata": {"name": "p", "resourceVersion": "1"}, "status": {"phase": "Pending"}});
        assert!(!serde_json::from_value::<PodReadiness>(pending).expect("a Pod").is_ready());
    }
}
