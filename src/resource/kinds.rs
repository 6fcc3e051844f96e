//! The few built-in kinds that we read and write, with only the fields that we use.
//!
//! A field of a `spec` that is named here is ours, and is kept as we want it: some are here only to be kept absent
//! ([`Present`]). A field that is not named stays on the server, untouched. Of lists and maps that are shared with others
//! only our items are ours: see [`super::diff`].
//! What the API server leaves out when it is empty is left out here, too: a patch cannot change what is not there.
//! Lists that nearly always have one or two items are kept in place (`SmallVec`): thousands of objects are held, and each
//! allocation has its price in time and memory.

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de::IgnoredAny};
use smallvec::SmallVec;
use smol_str::SmolStr;

use super::{Annotations, Labels, ObjectMeta, Resource};

/// `apps/v1` Deployment: keeps that many Pods of that template running.
/// See <https://kubernetes.io/docs/reference/kubernetes-api/workload-resources/deployment-v1/>.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Deployment {
    /// Name, labels, owners, versions.
    #[serde(deserialize_with = "without_annotations")]
    pub metadata: ObjectMeta,
    /// What is asked for.
    #[serde(default)]
    pub spec: DeploymentSpec,
    /// What the Deployment controller reports.
    #[serde(default, skip_serializing)]
    pub status: DeploymentStatus,
}

impl Resource for Deployment {
    const GROUP: &'static str = "apps";
    const VERSION: &'static str = "v1";
    const PLURAL: &'static str = "deployments";
    const KIND: &'static str = "Deployment";
    const IMMUTABLE: Option<&'static str> = Some("/spec/selector/");

    fn metadata(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn is_like(&self, desired: &Self) -> bool {
        self.spec == desired.spec && self.metadata.is_like(&desired.metadata)
    }
}

/// The only annotations that we look at are a Service's.
fn without_annotations<'de, D: Deserializer<'de>>(deserializer: D) -> Result<ObjectMeta, D::Error> {
    let metadata = ObjectMeta::deserialize(deserializer)?;
    Ok(ObjectMeta { annotations: Annotations::default(), ..metadata })
}

/// What a Deployment asks for.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct DeploymentSpec {
    /// How many Pods.
    pub replicas: i32,
    /// Which Pods are its own; cannot be changed.
    pub selector: LabelSelector,
    /// What each Pod is like.
    pub template: PodTemplate,
    /// Whether somebody holds back its rollouts. Only read.
    #[serde(skip_serializing)]
    pub paused: bool,
}

/// A label selector. We use its equality half.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct LabelSelector {
    /// The labels that are asked for, each with its value.
    pub match_labels: Labels,
    /// The other half.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub match_expressions: Option<Present>,
}

/// What Pods are made from.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct PodTemplate {
    /// The Pods' labels.
    pub metadata: PodMeta,
    /// The Pods' content.
    pub spec: PodSpec,
}

/// Metadata of a [`PodTemplate`].
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct PodMeta {
    /// The Pods' labels.
    pub labels: Labels,
}

/// The content of a Pod, as far as we set it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PodSpec {
    /// What runs, by name.
    pub containers: SmallVec<[Container; 1]>,
    /// Whether the Pod gets credentials for the API server. The API server takes "absent" for yes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub automount_service_account_token: Option<bool>,
    /// What holds for all containers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub security_context: Option<PodSecurityContext>,
}

/// What holds for all containers of a Pod.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PodSecurityContext {
    /// Which system calls are let through.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seccomp_profile: Option<SeccompProfile>,
}

/// Which system calls are let through.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SeccompProfile {
    /// `RuntimeDefault`, `Unconfined` or `Localhost`.
    pub r#type: SmolStr,
    /// A file on the node, for `Localhost`.
    #[serde(rename = "localhostProfile", skip_serializing_if = "Option::is_none")]
    pub localhost_profile: Option<Present>,
}

/// One container of a Pod.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Container {
    /// Unique in the Pod.
    pub name: SmolStr,
    /// What to run.
    pub image: SmolStr,
    /// Where it listens.
    #[serde(skip_serializing_if = "SmallVec::is_empty")]
    pub ports: SmallVec<[ContainerPort; 1]>,
    /// When it may be sent requests.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub readiness_probe: Option<Probe>,
    /// What it may do.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub security_context: Option<SecurityContext>,
}

/// A port that a container listens on: all its fields, because the list is owned whole.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ContainerPort {
    /// What a Service's `targetPort` can call it.
    pub name: SmolStr,
    /// 1 to 65535.
    pub container_port: i32,
    /// `TCP`, `UDP` or `SCTP`.
    pub protocol: SmolStr,
    /// The same port on the node; 0 where there is none.
    #[serde(skip_serializing_if = "is_unset")]
    pub host_port: i32,
    /// The node's address for it.
    #[serde(rename = "hostIP", skip_serializing_if = "SmolStr::is_empty")]
    pub host_ip: SmolStr,
}

fn is_unset(port: &i32) -> bool {
    *port == 0
}

/// Asks whether a container is well. How it asks is ours; how often, and how long it waits, is not.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Probe {
    /// By opening a connection.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tcp_socket: Option<TcpSocket>,
    /// By a request. A probe has one of the four.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub http_get: Option<Present>,
    /// By running a command.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exec: Option<Present>,
    /// By a gRPC health check.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub grpc: Option<Present>,
}

/// Where to connect to.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TcpSocket {
    /// Number or name of the port.
    pub port: Port,
    /// Another host than the Pod.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub host: Option<Present>,
}

/// A port by number or by name (`IntOrString`).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Port {
    /// 1 to 65535.
    Number(i32),
    /// As in [`ContainerPort::name`].
    Name(SmolStr),
}

/// What a container may do: all of it is ours, because one field of somebody else's (`privileged: true`) makes ours
/// invalid.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct SecurityContext {
    /// Whether a process can gain more rights than its parent (set-user-ID programs).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub allow_privilege_escalation: Option<bool>,
    /// All other fields.
    #[serde(flatten)]
    pub others: BTreeMap<SmolStr, Present>,
}

/// What the Deployment controller reports.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct DeploymentStatus {
    /// The `metadata.generation` that the rest is about.
    pub observed_generation: i64,
    /// Pods that exist, old and new.
    pub replicas: i32,
    /// Pods of the present template.
    pub updated_replicas: i32,
    /// Pods that pass their readiness probe.
    pub ready_replicas: i32,
    /// Pods ready for `minReadySeconds`.
    pub available_replicas: i32,
    /// `Available`, `Progressing`, `ReplicaFailure`.
    pub conditions: SmallVec<[DeploymentCondition; 2]>,
}

/// One line of [`DeploymentStatus::conditions`].
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct DeploymentCondition {
    /// `Available`, `Progressing` or `ReplicaFailure`.
    pub r#type: SmolStr,
    /// `True`, `False` or `Unknown`.
    pub status: SmolStr,
    /// Why, for programs.
    pub reason: SmolStr,
    /// Why, for people.
    pub message: SmolStr,
}

/// `v1` Service: one address for the Pods that a selector names.
/// See <https://kubernetes.io/docs/reference/kubernetes-api/service-resources/service-v1/>.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Service {
    /// Name, labels, owners, versions.
    pub metadata: ObjectMeta,
    /// What is asked for.
    #[serde(default)]
    pub spec: ServiceSpec,
}

impl Resource for Service {
    const GROUP: &'static str = "";
    const VERSION: &'static str = "v1";
    const PLURAL: &'static str = "services";
    const KIND: &'static str = "Service";

    fn metadata(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn is_like(&self, desired: &Self) -> bool {
        self.spec == desired.spec && self.metadata.is_like(&desired.metadata)
    }
}

/// What a Service asks for.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ServiceSpec {
    /// `ClusterIP`, `NodePort`, `LoadBalancer` or `ExternalName`.
    pub r#type: SmolStr,
    /// Which Pods answer.
    #[serde(skip_serializing_if = "Labels::is_empty")]
    pub selector: Labels,
    /// Where it listens.
    #[serde(skip_serializing_if = "SmallVec::is_empty")]
    pub ports: SmallVec<[ServicePort; 1]>,
    /// From where a `LoadBalancer` may be reached. It alone may have them, and no other type takes them away.
    #[serde(rename = "loadBalancerSourceRanges", skip_serializing_if = "Option::is_none")]
    pub load_balancer_source_ranges: Option<Present>,
}

/// A port that a Service listens on: all its fields, because the list is owned whole.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ServicePort {
    /// Unique in the Service.
    #[serde(default)]
    pub name: SmolStr,
    /// Where the Service listens.
    pub port: i32,
    /// Where the Pods listen.
    pub target_port: Port,
    /// `TCP`, `UDP` or `SCTP`.
    #[serde(default)]
    pub protocol: SmolStr,
    /// The same on each node; 0 where there is none.
    #[serde(default, skip_serializing_if = "is_unset")]
    pub node_port: i32,
    /// What is spoken there.
    #[serde(default, skip_serializing_if = "SmolStr::is_empty")]
    pub app_protocol: SmolStr,
}

/// A field that must not be there: what it has is not kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Present;

impl<'de> Deserialize<'de> for Present {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Present, D::Error> {
        IgnoredAny::deserialize(deserializer).map(|_| Present)
    }
}

impl Serialize for Present {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_bool(true)
    }
}
