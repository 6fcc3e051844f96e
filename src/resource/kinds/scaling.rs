//! How many Pods there are: PodDisruptionBudget and HorizontalPodAutoscaler.

use serde::{Deserialize, Serialize};

use super::{IntOrString, Json, kinds, parts};
use crate::resource::{
    LabelSelector, ObjectMeta,
    diff::{Merge, MergeRule},
};

kinds! {
    /// `policy/v1` PodDisruptionBudget: how many Pods may be evicted at a time.
    /// See <https://kubernetes.io/docs/reference/kubernetes-api/policy-resources/pod-disruption-budget-v1/>.
    PodDisruptionBudget {
        /// The desired state.
        spec: PodDisruptionBudgetSpec,
    }

    /// `autoscaling/v2` HorizontalPodAutoscaler: sets the `replicas` of another object.
    /// See <https://kubernetes.io/docs/reference/kubernetes-api/workload-resources/horizontal-pod-autoscaler-v2/>.
    HorizontalPodAutoscaler {
        /// The desired state, such as `json!({"scaleTargetRef": …, "maxReplicas": 9, "metrics": […]}).into()`.
        spec: Json,
    }
}

crate::kind!(PodDisruptionBudget, "policy", "v1", "poddisruptionbudgets", {
    const MERGE: &'static [MergeRule] = &[
        ("/spec/selector", Merge::Whole),
        // It has one of the two.
        ("/spec/maxUnavailable", Merge::Owned),
        ("/spec/minAvailable", Merge::Owned),
    ];
});

crate::kind!(HorizontalPodAutoscaler, "autoscaling", "v2", "horizontalpodautoscalers");

parts! {
    /// The desired state of a [`PodDisruptionBudget`].
    PodDisruptionBudgetSpec {
        /// Selects the Pods.
        selector: LabelSelector,
        /// The number of Pods that may be away, or `20%`.
        max_unavailable: Option<IntOrString>,
        /// The number of Pods that must stay, in place of `max_unavailable`.
        min_available: Option<IntOrString>,
    }
}
