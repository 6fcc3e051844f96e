//! The built-in kinds that several operators use, with only the fields that we read and write. A kind that only one operator
//! uses is declared, in the same way, in its `types.rs`.
//!
//! We own each field of a `spec` that is declared here, and keep it as desired. Some fields are declared only to be
//! kept absent ([`Present`]). All other fields stay unchanged on the server. In lists and maps that we share with other
//! writers, we own only our items: see [`super::diff`]. Fields that the API server omits when empty are omitted here,
//! too: a patch cannot change an absent field. Lists with usually one or two items are stored inline (`SmallVec`): the
//! Store holds thousands of objects, and each allocation costs time and memory.

mod config;
mod pod;

use std::collections::BTreeMap;

use serde::{
    Deserialize, Deserializer, Serialize, Serializer,
    de::{DeserializeOwned, IgnoredAny},
};
use smallvec::SmallVec;
use smol_str::SmolStr;

use super::{
    LabelSelector, Labels, ObjectMeta, Resource,
    annotations::{Decoded, without_annotations},
    diff::{Merge, MergeRule},
};
pub use config::{ConfigMap, Secret};
pub use pod::Pod;

/// `apps/v1` Deployment: keeps a number of Pods of one template running.
/// See <https://kubernetes.io/docs/reference/kubernetes-api/workload-resources/deployment-v1/>.
///
/// `C` has the fields of a container that we own. Another operator owns others, with a type of its own.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Deployment<C = Container> {
    /// Name, labels, owners, versions.
    #[serde(deserialize_with = "without_annotations")]
    pub metadata: ObjectMeta,
    /// The desired state.
    #[serde(default)]
    pub spec: DeploymentSpec<C>,
    /// The state that the Deployment controller reports.
    #[serde(default, skip_serializing)]
    pub status: DeploymentStatus,
}

/// A type with the fields of a container that an operator owns.
pub trait ContainerType: DeserializeOwned + Default + PartialEq + Send + Sync + 'static {}

impl<C: DeserializeOwned + Default + PartialEq + Send + Sync + 'static> ContainerType for C {}

impl<C: ContainerType> Resource for Deployment<C> {
    const GROUP: &'static str = "apps";
    const VERSION: &'static str = "v1";
    const PLURAL: &'static str = "deployments";
    const KIND: &'static str = "Deployment";
    const MERGE: &'static [MergeRule] = &[
        ("/spec/template/metadata/labels", Merge::Shared),
        ("/spec/template/spec/containers", Merge::SharedBy(&["name"])),
        (
            "/spec/template/spec/containers/*/readinessProbe",
            Merge::OneOf(&["exec", "grpc", "httpGet", "tcpSocket"]),
        ),
        ("/spec/template/spec/containers/*/ports/*/protocol", Merge::Defaulted),
    ];

    fn metadata(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn is_immutable(&self, path: &str) -> bool {
        path.starts_with("/spec/selector/")
    }

    fn is_like(&self, desired: &Self) -> bool {
        self.spec == desired.spec && self.metadata.is_like(&desired.metadata)
    }
}

/// The desired state of a [`Deployment`].
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, bound(deserialize = "C: Deserialize<'de> + Default"))]
pub struct DeploymentSpec<C = Container> {
    /// The number of Pods.
    pub replicas: i32,
    /// Selects its Pods. Immutable.
    pub selector: LabelSelector,
    /// The template of each Pod.
    pub template: PodTemplate<C>,
    /// Whether its rollouts are paused. We never write this field.
    #[serde(skip_serializing)]
    pub paused: bool,
}

/// The template from which Pods are created.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, bound(deserialize = "C: Deserialize<'de> + Default"))]
pub struct PodTemplate<C = Container> {
    /// The labels of the Pods.
    pub metadata: PodMeta,
    /// The `spec` of the Pods.
    pub spec: PodSpec<C>,
}

/// Metadata of a [`PodTemplate`].
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct PodMeta {
    /// The labels of the Pods.
    #[serde(skip_serializing_if = "Labels::is_empty")]
    pub labels: Labels,
}

/// The `spec` of a Pod, with only the fields that we set.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PodSpec<C = Container> {
    /// The containers, each with a unique name.
    pub containers: SmallVec<[C; 1]>,
    /// Whether the Pod gets credentials for the API server. The default of an absent field is true.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub automount_service_account_token: Option<bool>,
    /// Security settings for all containers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub security_context: Option<PodSecurityContext>,
}

/// Security settings for all containers of a Pod.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PodSecurityContext {
    /// The system calls that are allowed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seccomp_profile: Option<SeccompProfile>,
}

/// The system calls that are allowed.
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
    /// The image to run.
    pub image: SmolStr,
    /// The ports on which it listens.
    #[serde(skip_serializing_if = "SmallVec::is_empty")]
    pub ports: SmallVec<[ContainerPort; 1]>,
    /// Decides when the container gets requests.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub readiness_probe: Option<Probe>,
    /// The privileges of the container.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub security_context: Option<SecurityContext>,
}

/// A port that a container listens on, with all its fields, because we own the whole list.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ContainerPort {
    /// The name for the `targetPort` of a Service.
    pub name: SmolStr,
    /// 1 to 65535.
    pub container_port: i32,
    /// `TCP`, `UDP` or `SCTP`. Empty: the API server sets `TCP`.
    #[serde(skip_serializing_if = "SmolStr::is_empty")]
    pub protocol: SmolStr,
    /// The port on the node; 0 if there is none.
    #[serde(skip_serializing_if = "is_unset")]
    pub host_port: i32,
    /// The address of the node for `hostPort`.
    #[serde(rename = "hostIP", skip_serializing_if = "SmolStr::is_empty")]
    pub host_ip: SmolStr,
}

fn is_unset(port: &i32) -> bool {
    *port == 0
}

/// A probe of a container. We own its handler, but neither its period nor its timeout.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Probe {
    /// Opens a connection.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tcp_socket: Option<TcpSocket>,
    /// Sends an HTTP request. A probe has one of these four handlers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub http_get: Option<Present>,
    /// Runs a command.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exec: Option<Present>,
    /// Sends a gRPC health check.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub grpc: Option<Present>,
}

/// The target of a TCP probe.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TcpSocket {
    /// Number or name of the port.
    pub port: Port,
    /// A host other than the Pod.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub host: Option<Present>,
}

/// A port by number or by name (`IntOrString`).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Port {
    /// 1 to 65535; 0 if it is not set.
    Number(i32),
    /// As in [`ContainerPort::name`].
    Name(SmolStr),
}

impl Default for Port {
    fn default() -> Port {
        Port::Number(0)
    }
}

impl Port {
    fn is_unset(&self) -> bool {
        *self == Port::default()
    }
}

/// The privileges of a container. We own all fields, because a field of another writer (`privileged: true`) can make
/// ours invalid.
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

/// The capabilities of a container: the rights of root that it has.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Capabilities {
    /// Those taken away.
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    pub drop: Box<[SmolStr]>,
    /// Those added.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub add: Option<Present>,
}

/// The state that the Deployment controller reports.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct DeploymentStatus {
    /// The `metadata.generation` that this status describes.
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

/// `v1` Service: one address for all Pods that match a selector.
/// See <https://kubernetes.io/docs/reference/kubernetes-api/service-resources/service-v1/>.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Service {
    /// Name, labels, owners, versions. Of the annotations, only [`SOURCE_RANGES`] is kept, without its value.
    #[serde(deserialize_with = "with_source_ranges")]
    pub metadata: ObjectMeta,
    /// The desired state.
    #[serde(default)]
    pub spec: ServiceSpec,
}

crate::kind!(Service, "", "v1", "services", {
    const MERGE: &'static [MergeRule] = &[
        ("/metadata/annotations/service.beta.kubernetes.io~1load-balancer-source-ranges", Merge::Owned),
        ("/spec/type", Merge::Defaulted),
        ("/spec/ports/*/protocol", Merge::Defaulted),
        ("/spec/ports/*/targetPort", Merge::Defaulted),
        // A Service of another type than `ClusterIP` has one. It goes with that type.
        ("/spec/ports/*/nodePort", Merge::Defaulted),
    ];

    fn is_like(&self, desired: &Self) -> bool {
        self.spec == desired.spec && self.metadata.is_like(&desired.metadata)
    }
});

/// The annotation of a Service that was once the only form of its `spec.loadBalancerSourceRanges`, and is as invalid with
/// another type.
pub const SOURCE_RANGES: &str = "service.beta.kubernetes.io/load-balancer-source-ranges";

fn with_source_ranges<'de, D: Deserializer<'de>>(deserializer: D) -> Result<ObjectMeta, D::Error> {
    #[derive(Deserialize)]
    struct SourceRanges {
        #[serde(rename = "service.beta.kubernetes.io/load-balancer-source-ranges")]
        present: Option<Present>,
    }
    let metadata = Decoded::<SourceRanges>::deserialize(deserializer)?;
    Ok(metadata.with(|ranges| ranges.present.map(|Present| (SOURCE_RANGES, "")).into_iter().collect()))
}

/// The desired state of a [`Service`].
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ServiceSpec {
    /// `ClusterIP`, `NodePort`, `LoadBalancer` or `ExternalName`. Empty: the API server sets `ClusterIP`.
    #[serde(skip_serializing_if = "SmolStr::is_empty")]
    pub r#type: SmolStr,
    /// Selects the Pods that get the requests.
    #[serde(skip_serializing_if = "Labels::is_empty")]
    pub selector: Labels,
    /// The ports on which it listens.
    #[serde(skip_serializing_if = "SmallVec::is_empty")]
    pub ports: SmallVec<[ServicePort; 1]>,
    /// The client addresses that a `LoadBalancer` accepts. No other type may have this field, but a change of the type
    /// does not remove it.
    #[serde(rename = "loadBalancerSourceRanges", skip_serializing_if = "Option::is_none")]
    pub load_balancer_source_ranges: Option<Present>,
}

/// A port that a Service listens on, with all its fields, because we own the whole list.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ServicePort {
    /// Unique in the Service.
    #[serde(default)]
    pub name: SmolStr,
    /// The port of the Service.
    pub port: i32,
    /// The port of the Pods. Not set: the API server sets the port of the Service.
    #[serde(default, skip_serializing_if = "Port::is_unset")]
    pub target_port: Port,
    /// `TCP`, `UDP` or `SCTP`. Empty: the API server sets `TCP`.
    #[serde(default, skip_serializing_if = "SmolStr::is_empty")]
    pub protocol: SmolStr,
    /// The port on each node; 0 if there is none, or if the API server chooses it.
    #[serde(default, skip_serializing_if = "is_unset")]
    pub node_port: i32,
    /// The application protocol.
    #[serde(default, skip_serializing_if = "SmolStr::is_empty")]
    pub app_protocol: SmolStr,
}

/// A field that must be absent. Its value is not kept.
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

/// `v1` Namespace.
/// See <https://kubernetes.io/docs/reference/kubernetes-api/cluster-resources/namespace-v1/>.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Namespace {
    /// Name, labels, versions.
    #[serde(deserialize_with = "without_annotations")]
    pub metadata: ObjectMeta,
    /// The state that the API server reports.
    #[serde(default, skip_serializing)]
    pub status: NamespaceStatus,
}

crate::kind!(Namespace, "", "v1", "namespaces");

/// The state of a [`Namespace`].
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct NamespaceStatus {
    /// `Active`, or `Terminating`: it accepts no new objects.
    pub phase: SmolStr,
}
