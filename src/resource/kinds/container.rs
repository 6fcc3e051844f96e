//! The containers of a Pod.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use smol_str::SmolStr;

use super::{IntOrString, Json, parts};
use crate::resource::diff::{Merge, MergeRule};

/// The merge rules of a [`Container`].
pub(super) const CONTAINER: &[MergeRule] = &[
    ("/ports", Merge::Whole),
    ("/ports/*/protocol", Merge::Defaulted),
    ("/env", Merge::Whole),
    ("/env/*/valueFrom/fieldRef/apiVersion", Merge::Defaulted),
    ("/env/*/valueFrom/resourceFieldRef/divisor", Merge::Defaulted),
    ("/envFrom", Merge::Whole),
    ("/resources/limits/*", Merge::Quantity),
    ("/resources/requests/*", Merge::Quantity),
    ("/volumeMounts", Merge::Whole),
    ("/readinessProbe", Merge::Rules(PROBE)),
    ("/livenessProbe", Merge::Rules(PROBE)),
    ("/startupProbe", Merge::Rules(PROBE)),
    ("/lifecycle/postStart", Merge::Whole),
    ("/lifecycle/preStop", Merge::Whole),
    ("/lifecycle/postStart/httpGet/path", Merge::Defaulted),
    ("/lifecycle/postStart/httpGet/scheme", Merge::Defaulted),
    ("/lifecycle/preStop/httpGet/path", Merge::Defaulted),
    ("/lifecycle/preStop/httpGet/scheme", Merge::Defaulted),
    // A field of another writer, such as `privileged: true`, can make ours invalid.
    ("/securityContext", Merge::Whole),
];

/// A probe has one of these handlers, and its times.
const PROBE: &[MergeRule] = &[
    ("/exec", Merge::Owned),
    ("/grpc", Merge::Owned),
    ("/grpc/service", Merge::Defaulted),
    ("/httpGet", Merge::Owned),
    ("/httpGet/path", Merge::Defaulted),
    ("/httpGet/scheme", Merge::Defaulted),
    ("/tcpSocket", Merge::Owned),
];

parts! {
    /// One container of a Pod.
    /// See <https://kubernetes.io/docs/reference/kubernetes-api/workload-resources/pod-v1/#Container>.
    Container {
        /// Unique in the Pod.
        name: SmolStr,
        /// The image to run.
        image: SmolStr,
        /// `Always`, `IfNotPresent` or `Never`.
        image_pull_policy: SmolStr,
        /// The program, in place of the image's.
        command: Vec<SmolStr>,
        /// Its arguments.
        args: Vec<SmolStr>,
        /// Its directory.
        working_dir: SmolStr,
        /// Environment variables.
        env: Vec<EnvVar>,
        /// Environment variables from all keys of ConfigMaps and Secrets.
        env_from: Vec<EnvFromSource>,
        /// The ports on which it listens.
        ports: Vec<ContainerPort>,
        /// CPU and memory.
        resources: ResourceRequirements,
        /// Where the volumes are.
        volume_mounts: Vec<VolumeMount>,
        /// Decides when the container gets requests.
        readiness_probe: Option<Box<Probe>>,
        /// Decides when the container is restarted.
        liveness_probe: Option<Box<Probe>>,
        /// Decides when the other probes begin.
        startup_probe: Option<Box<Probe>>,
        /// Actions after the start and before the end.
        lifecycle: Option<Box<Lifecycle>>,
        /// The privileges of the container.
        security_context: Option<Box<SecurityContext>>,
        /// `Always` for a sidecar among the init containers.
        restart_policy: SmolStr,
        /// The file with its last words.
        termination_message_path: SmolStr,
        /// `File`, or `FallbackToLogsOnError`.
        termination_message_policy: SmolStr,
    }

    /// A port that a container listens on.
    ContainerPort {
        /// The name for the `targetPort` of a Service.
        name: SmolStr,
        /// 1 to 65535.
        container_port: i32,
        /// `TCP`, `UDP` or `SCTP`. The API server sets `TCP`.
        protocol: SmolStr,
        /// The port on the node.
        host_port: i32,
        /// The address of the node for `host_port`.
        #[serde(rename = "hostIP")]
        host_ip: SmolStr,
    }

    /// An environment variable.
    EnvVar {
        /// Its name.
        name: SmolStr,
        /// Its value. May contain `$(NAME)` of an earlier variable.
        value: SmolStr,
        /// The source of its value, in place of `value`.
        value_from: Option<Box<EnvVarSource>>,
    }

    /// The source of the value of an environment variable: one of these.
    EnvVarSource {
        /// A field of the Pod.
        field_ref: Option<ObjectFieldSelector>,
        /// A key of a Secret.
        secret_key_ref: Option<KeySelector>,
        /// A key of a ConfigMap.
        config_map_key_ref: Option<KeySelector>,
    }

    /// A field of the Pod.
    ObjectFieldSelector {
        /// The API server sets `v1`.
        api_version: SmolStr,
        /// `metadata.name`
        field_path: SmolStr,
    }

    /// A key of a ConfigMap or a Secret.
    KeySelector {
        /// The name of the object.
        name: SmolStr,
        /// The key.
        key: SmolStr,
        /// Whether the container starts without it.
        optional: Option<bool>,
    }

    /// All keys of a ConfigMap or a Secret as environment variables: one of these.
    EnvFromSource {
        /// Stands before each name.
        prefix: SmolStr,
        /// The ConfigMap.
        config_map_ref: Option<SourceRef>,
        /// The Secret.
        secret_ref: Option<SourceRef>,
    }

    /// A ConfigMap or a Secret.
    SourceRef {
        /// The name of the object.
        name: SmolStr,
        /// Whether the container starts without it.
        optional: Option<bool>,
    }

    /// CPU, memory and other resources.
    ResourceRequirements {
        /// The most that the container gets: `{"memory": "128Mi"}`.
        limits: BTreeMap<SmolStr, SmolStr>,
        /// What the node must have left.
        requests: BTreeMap<SmolStr, SmolStr>,
    }

    /// Where a volume is in the container.
    VolumeMount {
        /// The name of the volume.
        name: SmolStr,
        /// Its directory.
        mount_path: SmolStr,
        /// The file or directory of the volume that is mounted. Empty: all of it.
        sub_path: SmolStr,
        /// Whether the container cannot write it.
        read_only: bool,
    }

    /// A check of a container, with one of the four handlers.
    Probe {
        /// Opens a connection.
        tcp_socket: Option<TcpSocketAction>,
        /// Sends an HTTP request.
        http_get: Option<HttpGetAction>,
        /// Runs a command.
        exec: Option<ExecAction>,
        /// Sends a gRPC health check.
        grpc: Option<GrpcAction>,
        /// Time before the first check.
        initial_delay_seconds: Option<i32>,
        /// Time between two checks.
        period_seconds: Option<i32>,
        /// Time limit of a check.
        timeout_seconds: Option<i32>,
        /// Successes in a row after which it counts as passed.
        success_threshold: Option<i32>,
        /// Failures in a row after which it counts as failed.
        failure_threshold: Option<i32>,
    }

    /// Opens a connection.
    TcpSocketAction {
        /// Number or name.
        port: Option<IntOrString>,
        /// A host other than the Pod.
        host: SmolStr,
    }

    /// Sends an HTTP request.
    HttpGetAction {
        /// Number or name.
        port: Option<IntOrString>,
        /// The path. The API server sets `/`.
        path: SmolStr,
        /// `HTTP` or `HTTPS`. The API server sets `HTTP`.
        scheme: SmolStr,
        /// A host other than the Pod.
        host: SmolStr,
    }

    /// Runs a command in the container.
    ExecAction {
        /// Program and arguments.
        command: Vec<SmolStr>,
    }

    /// Sends a gRPC health check.
    GrpcAction {
        /// The port.
        port: i32,
        /// The service in the request.
        service: SmolStr,
    }

    /// Actions at the start and the end of a container.
    Lifecycle {
        /// After it was started.
        post_start: Option<LifecycleHandler>,
        /// Before it is stopped.
        pre_stop: Option<LifecycleHandler>,
    }

    /// One of these actions.
    LifecycleHandler {
        /// Runs a command.
        exec: Option<ExecAction>,
        /// Sends an HTTP request.
        http_get: Option<HttpGetAction>,
        /// Waits: `{"seconds": 5}`.
        sleep: Option<Json>,
    }

    /// The privileges of a container.
    SecurityContext {
        /// Whether a process can gain more rights than its parent (set-user-ID programs).
        allow_privilege_escalation: Option<bool>,
        /// The rights of root that it has.
        capabilities: Option<Capabilities>,
        /// Whether it has all rights on the node.
        privileged: Option<bool>,
        /// Whether the files of the image are read-only.
        read_only_root_filesystem: Option<bool>,
        /// Whether the kubelet refuses to run it as root.
        run_as_non_root: Option<bool>,
        /// The user.
        run_as_user: Option<i64>,
        /// The group.
        run_as_group: Option<i64>,
        /// The system calls that are allowed.
        seccomp_profile: Option<SeccompProfile>,
    }

    /// The rights of root that a container has.
    Capabilities {
        /// Those taken away.
        drop: Vec<SmolStr>,
        /// Those added.
        add: Vec<SmolStr>,
    }

    /// The system calls that are allowed.
    SeccompProfile {
        /// `RuntimeDefault`, `Unconfined` or `Localhost`.
        r#type: SmolStr,
        /// A file on the node, for `Localhost`.
        localhost_profile: SmolStr,
    }
}
