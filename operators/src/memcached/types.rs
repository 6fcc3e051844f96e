//! The types of Memcached: its spec and status, and its CustomResourceDefinition.

use listwatch::{
    crd::{self, column, wide},
    resource::{Condition, ObjectMeta, only_paused},
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use smol_str::SmolStr;

use crate::pod_settings::PodSettings;

/// Most Pods of one Memcached. A client connects to each of them.
const SIZE_MAX: i32 = 100;
/// Least and most memory for items, in MiB. With less, a slab class gets no page of its own.
const MEMORY_MB_MIN: i32 = 16;
const MEMORY_MB_MAX: i32 = 65_536;

/// The custom resource.
#[derive(Clone, Debug, Deserialize)]
pub struct Memcached {
    /// Name, labels, owners, versions.
    #[serde(deserialize_with = "only_paused::<_, Memcached>")]
    pub metadata: ObjectMeta,
    /// The desired cache.
    pub spec: MemcachedSpec,
    /// The status that this operator has written.
    #[serde(default)]
    pub status: MemcachedStatus,
}

listwatch::kind!(Memcached, "cache.example.com", "v1alpha1", "memcacheds", {
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
    /// Where the Pods run, and what else they may use. Memory here replaces the limit that follows from memoryMb.
    #[serde(flatten)]
    pub pods: PodSettings,
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
    #[schemars(schema_with = "crd::conditions")]
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

listwatch::reported!(Memcached, MemcachedStatus);

/// The whole definition.
#[must_use]
pub fn definition() -> Value {
    // The name of a Service, which begins with a letter.
    let metadata = json!({
        "type": "object",
        "properties": {"name": {"type": "string", "maxLength": 63, "pattern": "^[a-z]([-a-z0-9]*[a-z0-9])?$"}},
    });
    let description =
        "A cache: a Deployment of memcached and a headless Service, both with the name of the object.";
    crd::of::<Memcached, MemcachedSpec>("memcached", description)
        .schema(|schema| schema["properties"]["metadata"] = metadata)
        .status::<MemcachedStatus>()
        .columns([
            column("Size", "integer", ".spec.size"),
            column("Memory", "integer", ".spec.memoryMb"),
            wide("Nodes", "string", ".status.nodes"),
        ])
        .scale(".spec.size")
        .value()
}
