//! The type of the status of a MyWebserver, for people and for `kubectl wait`. [`crate::children`] computes the conditions.
//!
//! ```yaml
//! status:
//!   observedGeneration: 2
//!   conditions:
//!   - {type: Ready, status: "False", reason: RolloutInProgress, message: 1 of 2 replicas are updated and available}
//! ```
//!
//! Generic tools read `Ready` and `observedGeneration`, and stop waiting if `Stalled` is true.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use smol_str::SmolStr;

use super::MyWebserver;
use crate::{
    crd,
    resource::{
        Condition, Labels,
        kinds::{Deployment, DeploymentStatus},
    },
};

/// The observed state of the web server.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct MyWebserverStatus {
    /// The latest metadata.generation that the operator has observed. -1: none yet.
    pub observed_generation: i64,
    /// Number of Pods, of the present and of older specs.
    pub replicas: i32,
    /// Number of Pods whose condition Ready is true.
    pub ready_replicas: i32,
    /// Number of Pods that have been ready for at least minReadySeconds.
    pub available_replicas: i32,
    /// Label selector of the Pods, for autoscalers: app.kubernetes.io/instance=web,…
    #[schemars(with = "String")]
    pub selector: SmolStr,
    /// Ready: all desired replicas have the latest spec and are available. Available: enough replicas are available.
    /// Progressing: a rollout is in progress or complete. Stalled: the rollout cannot proceed until a user acts. Mutated: an
    /// admission webhook or policy changes fields that the operator writes.
    #[schemars(schema_with = "crd::conditions")]
    pub conditions: Vec<Condition>,
}

impl Default for MyWebserverStatus {
    fn default() -> MyWebserverStatus {
        MyWebserverStatus {
            observed_generation: -1,
            replicas: 0,
            ready_replicas: 0,
            available_replicas: 0,
            selector: SmolStr::default(),
            conditions: Vec::new(),
        }
    }
}

impl MyWebserverStatus {
    /// The counts of a Deployment, if there is one, and the selector of its Pods.
    #[must_use]
    pub fn of(deployment: Option<&Deployment>, selector: &Labels) -> MyWebserverStatus {
        let nothing = DeploymentStatus::default();
        let rollout = deployment.map_or(&nothing, |deployment| &deployment.status);
        MyWebserverStatus {
            replicas: rollout.replicas,
            ready_replicas: rollout.ready_replicas,
            available_replicas: rollout.available_replicas,
            selector: selector.as_selector().into(),
            ..MyWebserverStatus::default()
        }
    }
}

crate::reported!(MyWebserver, MyWebserverStatus);
