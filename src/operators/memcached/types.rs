//! The types of Memcached: its spec and status, its CustomResourceDefinition, and the fields of its children that are not in
//! [`kinds`](crate::resource::kinds).

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use smallvec::SmallVec;
use smol_str::SmolStr;

use crate::{
    operators::crd_schema::{self, column, wide},
    resource::{
        Condition, Labels, ObjectMeta, Resource,
        kinds::{Capabilities, ContainerPort, Present, Probe, ServicePort},
        without_annotations,
    },
};

/// Most Pods of one Memcached. A client connects to each of them.
const SIZE_MAX: i32 = 100;
/// Least and most memory for items, in MiB. With less, a slab class gets no page of its own.
const MEMORY_MB_MIN: i32 = 16;
const MEMORY_MB_MAX: i32 = 65_536;

/// The custom resource.
#[derive(Clone, Debug, Deserialize)]
pub struct Memcached {
    /// Name, labels, owners, versions.
    #[serde(deserialize_with = "without_annotations")]
    pub metadata: ObjectMeta,
    /// The desired cache.
    pub spec: MemcachedSpec,
    /// The status that this operator has written.
    #[serde(default)]
    pub status: MemcachedStatus,
}

crate::kind!(Memcached, "cache.example.com", "v1alpha1", "memcacheds", {
    const INSTALL: &'static str = "listwatch crd memcached | kubectl apply -f -";
});

/// The desired cache.
#[derive(Clone, Debug, PartialEq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct MemcachedSpec {
    /// Number of Pods, at most 100. 0 stops all of them and keeps the Service.
    #[schemars(range(min = 0, max = SIZE_MAX))]
    pub size: i32,
    /// Memory for items in each Pod, in MiB: the flag -m of memcached. 16 to 65536, default 64. The memory limit of the
    /// container follows: an eighth and 32 MiB more.
    #[serde(default = "MemcachedSpec::default_memory_mb")]
    #[schemars(range(min = MEMORY_MB_MIN, max = MEMORY_MB_MAX))]
    pub memory_mb: i32,
}

impl MemcachedSpec {
    fn default_memory_mb() -> i32 {
        64
    }
}

/// The observed state of the cache.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct MemcachedStatus {
    /// The latest metadata.generation that the operator has observed. -1: none yet.
    pub observed_generation: i64,
    /// Names of the Pods that are ready, sorted.
    #[schemars(with = "Vec<String>")]
    pub nodes: Vec<SmolStr>,
    /// Number of Pods, of the present and of older specs.
    pub replicas: i32,
    /// Label selector of the Pods, for autoscalers: app.kubernetes.io/instance=cache,…
    #[schemars(with = "String")]
    pub selector: SmolStr,
    /// Ready: all desired Pods have the latest spec and are available. Available: enough Pods are available. Progressing: a
    /// rollout is in progress or complete. Stalled: the rollout cannot proceed until a user acts. Mutated: an admission
    /// webhook or policy changes fields that the operator writes.
    #[schemars(schema_with = "crd_schema::conditions")]
    pub conditions: Vec<Condition>,
}

impl Default for MemcachedStatus {
    fn default() -> MemcachedStatus {
        MemcachedStatus {
            observed_generation: -1,
            nodes: Vec::new(),
            replicas: 0,
            selector: SmolStr::default(),
            conditions: Vec::new(),
        }
    }
}

crate::reported!(Memcached, MemcachedStatus);

/// The fields of the container that we own.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct CacheContainer {
    /// Unique in the Pod.
    pub name: SmolStr,
    /// The image to run.
    pub image: SmolStr,
    /// The program and its arguments.
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    pub command: Box<[SmolStr]>,
    /// More arguments.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub args: Option<Present>,
    /// The port on which memcached listens.
    #[serde(skip_serializing_if = "SmallVec::is_empty")]
    pub ports: SmallVec<[ContainerPort; 1]>,
    /// Decides when the container is restarted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub liveness_probe: Option<Probe>,
    /// Decides when the Pod is a node.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub readiness_probe: Option<Probe>,
    /// The memory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resources: Option<Resources>,
    /// The privileges of the container.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub security_context: Option<CacheSecurity>,
}

/// The memory of the container. Limits and requests of other resources belong to other writers.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Resources {
    /// The container is killed when it takes more.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limits: Option<Limits>,
    /// The node has at least this much left.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub requests: Option<Limits>,
}

/// An amount of memory.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Limits {
    /// `104Mi`
    #[serde(skip_serializing_if = "SmolStr::is_empty")]
    pub memory: SmolStr,
}

/// The privileges of the container: those that the Pod Security Standard "restricted" allows.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct CacheSecurity {
    /// Whether a process can gain more rights than its parent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub allow_privilege_escalation: Option<bool>,
    /// The capabilities of root.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub capabilities: Option<Capabilities>,
    /// Whether the kubelet refuses to run the container as root.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub run_as_non_root: Option<bool>,
    /// The user.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub run_as_user: Option<i64>,
    /// All other fields.
    #[serde(flatten)]
    pub others: BTreeMap<SmolStr, Present>,
}

/// `v1` Service without an address of its own: its name resolves to the addresses of its Pods.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct HeadlessService {
    /// Name, labels, owners, versions.
    #[serde(deserialize_with = "without_annotations")]
    pub metadata: ObjectMeta,
    /// The desired state.
    #[serde(default)]
    pub spec: HeadlessSpec,
}

/// The desired state of a [`HeadlessService`].
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct HeadlessSpec {
    /// `ClusterIP`
    pub r#type: SmolStr,
    /// `None`. Immutable.
    #[serde(rename = "clusterIP")]
    pub cluster_ip: SmolStr,
    /// Selects the Pods.
    #[serde(skip_serializing_if = "Labels::is_empty")]
    pub selector: Labels,
    /// The port of memcached.
    #[serde(skip_serializing_if = "SmallVec::is_empty")]
    pub ports: SmallVec<[ServicePort; 1]>,
}

impl Resource for HeadlessService {
    const GROUP: &'static str = "";
    const VERSION: &'static str = "v1";
    const PLURAL: &'static str = "services";
    const KIND: &'static str = "Service";

    fn metadata(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn is_immutable(&self, path: &str) -> bool {
        path == "/spec/clusterIP"
    }

    fn is_like(&self, desired: &Self) -> bool {
        self.spec == desired.spec && self.metadata.is_like(&desired.metadata)
    }
}

/// The whole definition.
#[must_use]
pub fn definition() -> Value {
    // The name of a Service, which begins with a letter.
    let metadata = json!({
        "type": "object",
        "properties": {"name": {"type": "string", "maxLength": 63, "pattern": "^[a-z]([-a-z0-9]*[a-z0-9])?$"}},
    });
    let schema = crd_schema::object(
        "A cache: a Deployment of memcached and a headless Service, both with the name of the object.",
        &metadata,
        &crd_schema::schema_of::<MemcachedSpec>(),
        &crd_schema::status_of::<MemcachedStatus>(),
    );
    let columns = [
        column("Size", "integer", ".spec.size"),
        column("Memory", "integer", ".spec.memoryMb"),
        wide("Nodes", "string", ".status.nodes"),
    ];
    let mut version = crd_schema::version::<Memcached>(Memcached::VERSION, &schema, &columns);
    version["subresources"]["scale"] = crd_schema::scale(".spec.size");
    crd_schema::definition::<Memcached>("memcached", &[], &[version])
}
