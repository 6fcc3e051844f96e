//! Pods, and the templates from which they are created.

use serde::{Deserialize, Serialize};
use smol_str::SmolStr;

use super::{
    Container, Json, SeccompProfile, Volume, container::CONTAINER, kinds, parts, statuses, volume::VOLUME,
};
use crate::resource::{
    Annotations, LabelSelector, Labels, ObjectMeta,
    diff::{Merge, MergeRule},
};

/// The merge rules of a [`PodTemplate`].
pub(super) const POD_TEMPLATE: &[MergeRule] = &[("/spec", Merge::Rules(POD_SPEC))];

const POD_SPEC: &[MergeRule] = &[
    ("/containers", Merge::SharedBy(&["name"])),
    ("/containers/*", Merge::Rules(CONTAINER)),
    ("/initContainers", Merge::SharedBy(&["name"])),
    ("/initContainers/*", Merge::Rules(CONTAINER)),
    ("/volumes", Merge::SharedBy(&["name"])),
    ("/volumes/*", Merge::Whole),
    ("/volumes/*", Merge::Rules(VOLUME)),
    ("/securityContext/seccompProfile", Merge::Whole),
    ("/nodeSelector", Merge::Whole),
    ("/affinity", Merge::Whole),
    ("/tolerations", Merge::Whole),
    ("/topologySpreadConstraints", Merge::Whole),
];

kinds! {
    /// `v1` Pod.
    /// See <https://kubernetes.io/docs/reference/kubernetes-api/workload-resources/pod-v1/>.
    Pod {
        /// The desired state.
        spec: PodSpec,
        ;
        /// The state that the kubelet reports.
        status: PodStatus,
    }
}

crate::kind!(Pod, "", "v1", "pods", {
    const MERGE: &'static [MergeRule] = &[
        ("/spec", Merge::Rules(POD_SPEC)),
        // With `hostNetwork`, the API server sets it in a Pod, but not in a template.
        ("/spec/containers/*/ports/*/hostPort", Merge::Defaulted),
        ("/spec/initContainers/*/ports/*/hostPort", Merge::Defaulted),
    ];

    fn is_immutable(&self, path: &str) -> bool {
        path.starts_with("/spec/") && !path.ends_with("/image")
    }
});

parts! {
    /// The template from which Pods are created.
    PodTemplate {
        /// The labels and annotations of the Pods.
        metadata: TemplateMeta,
        /// The `spec` of the Pods.
        spec: PodSpec,
    }

    /// Metadata in a template.
    TemplateMeta {
        /// Only for the templates of claims.
        name: SmolStr,
        /// The labels of the new objects.
        labels: Labels,
        /// The annotations of the new objects.
        annotations: Annotations,
    }

    /// The `spec` of a Pod.
    PodSpec {
        /// The containers, each with a unique name.
        containers: Vec<Container>,
        /// Containers that run before them, one after the other, or beside them as sidecars.
        init_containers: Vec<Container>,
        /// The volumes, each with a unique name.
        volumes: Vec<Volume>,
        /// The ServiceAccount of the Pod.
        service_account_name: SmolStr,
        /// The old name of `service_account_name`. The API server sets both.
        service_account: SmolStr,
        /// Whether the Pod gets credentials for the API server. The default is true.
        automount_service_account_token: Option<bool>,
        /// Security settings for all containers.
        security_context: Option<Box<PodSecurityContext>>,
        /// The Secrets for private registries.
        image_pull_secrets: Vec<LocalObjectReference>,
        /// `Always`, `OnFailure` or `Never`.
        restart_policy: SmolStr,
        /// How long a shutdown may take.
        termination_grace_period_seconds: Option<i64>,
        /// The labels of the nodes on which it may run.
        node_selector: Labels,
        /// Nodes and other Pods near which it must run, or must not.
        affinity: Option<Json>,
        /// The taints of nodes on which it may still run.
        tolerations: Vec<Toleration>,
        /// How Pods are spread over zones and nodes.
        topology_spread_constraints: Vec<TopologySpreadConstraint>,
        /// The PriorityClass.
        priority_class_name: SmolStr,
        /// The RuntimeClass.
        runtime_class_name: SmolStr,
        /// The scheduler.
        scheduler_name: SmolStr,
        /// Where names are resolved.
        dns_policy: SmolStr,
        /// The node on which the Pod runs.
        node_name: SmolStr,
        /// Whether it has the network of the node.
        host_network: bool,
    }

    /// Security settings for all containers of a Pod.
    PodSecurityContext {
        /// Whether the kubelet refuses to run a container as root.
        run_as_non_root: Option<bool>,
        /// The user.
        run_as_user: Option<i64>,
        /// The group.
        run_as_group: Option<i64>,
        /// The group that can write the volumes.
        fs_group: Option<i64>,
        /// More groups.
        supplemental_groups: Vec<i64>,
        /// The system calls that are allowed.
        seccomp_profile: Option<SeccompProfile>,
    }

    /// An object in the same namespace.
    LocalObjectReference {
        /// Its name.
        name: SmolStr,
    }

    /// A taint of nodes on which a Pod may still run.
    Toleration {
        /// The key of the taint. Empty: any.
        key: SmolStr,
        /// `Equal`, the default, or `Exists`.
        operator: SmolStr,
        /// Its value, for `Equal`.
        value: SmolStr,
        /// `NoSchedule`, `PreferNoSchedule`, `NoExecute`; empty: all.
        effect: SmolStr,
        /// How long it may stay after `NoExecute`. `None`: for ever.
        toleration_seconds: Option<i64>,
    }

    /// How Pods are spread over zones or nodes.
    TopologySpreadConstraint {
        /// The most that two of them may differ by.
        max_skew: i32,
        /// The label of the nodes: `topology.kubernetes.io/zone`.
        topology_key: SmolStr,
        /// `DoNotSchedule` or `ScheduleAnyway`.
        when_unsatisfiable: SmolStr,
        /// The Pods that count. An empty selector means all, none means none.
        label_selector: Option<LabelSelector>,
    }
}

impl PodTemplate {
    /// A template of Pods with these labels.
    #[must_use]
    pub fn new(labels: Labels, spec: PodSpec) -> PodTemplate {
        let metadata = TemplateMeta { labels, ..TemplateMeta::default() };
        PodTemplate { metadata, spec, ..PodTemplate::default() }
    }
}

statuses! {
    /// The state of a Pod.
    PodStatus {
        /// `Pending`, `Running`, `Succeeded`, `Failed` or `Unknown`.
        phase: SmolStr,
        /// `PodScheduled`, `Initialized`, `ContainersReady`, `Ready`.
        conditions: Vec<WorkloadCondition>,
        /// The init containers.
        init_container_statuses: Vec<ContainerStatus>,
        /// The containers.
        container_statuses: Vec<ContainerStatus>,
    }

    /// The state of a container.
    ContainerStatus {
        /// Its name.
        name: SmolStr,
        /// Whether its readiness probe succeeds.
        ready: bool,
        /// Whether it has no startup probe, or one that has succeeded.
        started: bool,
        /// How often it was started again.
        restart_count: i32,
        /// The present state.
        state: ContainerState,
        /// The state before the last restart.
        last_state: ContainerState,
    }

    /// One of these states.
    ContainerState {
        /// It does not run yet.
        waiting: Option<ContainerStateDetails>,
        /// It runs.
        running: Option<ContainerStateDetails>,
        /// It has ended.
        terminated: Option<ContainerStateDetails>,
    }

    /// The details of a state. Each state has some of these fields.
    ContainerStateDetails {
        /// Why, for programs.
        reason: SmolStr,
        /// Why, for people.
        message: String,
        /// When it was started. `null` if the kubelet has lost the container.
        started_at: Option<SmolStr>,
        /// How it ended.
        exit_code: i32,
    }

    /// A condition that a controller or the kubelet reports.
    WorkloadCondition {
        /// Its name: `Available`.
        r#type: SmolStr,
        /// `True`, `False` or `Unknown`.
        status: SmolStr,
        /// Why, for programs.
        reason: SmolStr,
        /// Why, for people.
        message: SmolStr,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::resource::{diff, kinds::Deployment};

    /// A `hostPort` of somebody else stayed in a template: on each node, one Pod alone could run.
    #[test]
    fn the_port_of_the_node_is_the_api_servers_in_a_pod_and_ours_in_a_template() {
        let spec =
            |port: Value| json!({"hostNetwork": true, "containers": [{"name": "web", "ports": [port]}]});
        let [live, desired] =
            [json!({"containerPort": 80, "hostPort": 80}), json!({"containerPort": 80})].map(spec);
        let pod = |spec: &Value| {
            serde_json::from_value::<Pod>(
                json!({"metadata": {"name": "p", "resourceVersion": "1"}, "spec": spec}),
            )
            .expect("a Pod")
        };
        assert_eq!(diff::between(&pod(&live), &pod(&desired), &[]), []);
        let deployment = |spec: &Value| {
            let deployment = json!({"metadata": {"name": "d", "resourceVersion": "1"}, "spec": {"template": {"spec": spec}}});
            serde_json::from_value::<Deployment>(deployment).expect("a Deployment")
        };
        assert_eq!(
            diff::operations(&diff::between(&deployment(&live), &deployment(&desired), &[])),
            [
                json!({"op": "replace", "path": "/spec/template/spec/containers/0/ports", "value": [{"containerPort": 80}]})
            ]
        );
    }
}
