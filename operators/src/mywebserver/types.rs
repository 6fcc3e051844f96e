//! The types of MyWebserver: metadata, spec, status, and the CustomResourceDefinition that `listwatch crd` prints.

use listwatch::{
    crd::{self, column, wide},
    resource::{
        Condition, Labels, ObjectMeta,
        kinds::{Deployment, DeploymentStatus, EnvVar},
        only_paused,
    },
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use smol_str::SmolStr;

use crate::pod_settings::{self, PodSettings};

/// Longest name of a MyWebserver: its Service is called `mws-<name>`, and a Service's name has at most 63 characters.
const NAME_LENGTH_MAX: usize = 59;

/// Most replicas that the CRD allows: an Endpoints object, which proxies and Ingress controllers still read, holds 1,000
/// addresses, and the others would get no traffic. See
/// <https://kubernetes.io/docs/concepts/services-networking/service/#over-capacity-endpoints>. Objects that were created
/// with an older CRD keep their replicas.
const REPLICAS_MAX: i32 = 1000;

/// An image reference: `[HOST[:PORT]/]REPOSITORY[:TAG][@DIGEST]`. The kubelet parses it with
/// <https://pkg.go.dev/github.com/distribution/reference>. This pattern allows a little more, so that it refuses no image
/// that runs.
pub(super) const IMAGE_PATTERN: &str = concat!(
    r"^([^/@\s]+/)?",
    r"[a-z0-9]([a-z0-9._/-]*[a-z0-9])?",
    r"(:[A-Za-z0-9_][A-Za-z0-9_.-]*)?",
    r"(@[A-Za-z0-9+._-]+:[0-9a-fA-F]+)?$",
);

/// The custom resource.
#[derive(Clone, Debug, Deserialize)]
pub struct MyWebserver {
    /// Name, labels, owners, versions.
    #[serde(deserialize_with = "only_paused::<_, MyWebserver>")]
    pub metadata: ObjectMeta,
    /// The desired web server.
    pub spec: MyWebserverSpec,
    /// The status that this operator has written.
    #[serde(default)]
    pub status: MyWebserverStatus,
}

listwatch::kind!(MyWebserver, "k8sobjects.gsa.com", "v2", "mywebservers", {
    const INSTALL: &'static str = "listwatch crd mywebserver | kubectl apply -f -";
});

/// The desired web server.
#[derive(Clone, Debug, PartialEq, Deserialize, JsonSchema)]
pub struct MyWebserverSpec {
    /// Container image of the web server, as for `docker pull`: `[HOST[:PORT]/]REPOSITORY[:TAG][@DIGEST]`, the repository in
    /// lower case. A new image is rolled out Pod by Pod.
    #[schemars(with = "String", length(min = 1, max = 4096), regex(pattern = IMAGE_PATTERN))]
    pub image: SmolStr,
    /// TCP port of the web server and of its Service. 1 to 65535, default 80.
    #[serde(default = "MyWebserverSpec::default_port")]
    #[schemars(range(min = 1, max = 65535))]
    pub port: i32,
    /// Number of replicas, default 1, at most 1000. 0 stops the web server and keeps its Service.
    #[serde(default = "MyWebserverSpec::default_replicas")]
    #[schemars(range(min = 0, max = REPLICAS_MAX))]
    pub replicas: i32,
    /// Environment variables of the web server, as in the spec of a container.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "pod_settings::env")]
    pub env: Vec<EnvVar>,
    /// Where the Pods run, and what they may use.
    #[serde(flatten)]
    pub pods: PodSettings,
}

impl MyWebserverSpec {
    fn default_port() -> i32 {
        80
    }

    fn default_replicas() -> i32 {
        1
    }
}

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

listwatch::reported!(MyWebserver, MyWebserverStatus);

/// `spec` of `v1`. Conversion between versions only changes `apiVersion`, and prunes what the other does not name: so v1
/// names all fields of v2, or writing through v1 would lose them.
#[derive(JsonSchema)]
#[schemars(description = "The desired web server.")]
#[allow(dead_code, reason = "only its schema is used: we read every object as v2")]
struct SpecV1 {
    /// Container image of the web server, as for `docker pull`: `[HOST[:PORT]/]REPOSITORY[:TAG][@DIGEST]`, the repository in
    /// lower case. A new image is rolled out Pod by Pod.
    #[schemars(with = "String", length(min = 1, max = 4096), regex(pattern = IMAGE_PATTERN))]
    image: SmolStr,
    /// TCP port of the web server and of its Service. 1 to 65535, default 80.
    #[serde(default = "MyWebserverSpec::default_port")]
    #[schemars(range(min = 1, max = 65535))]
    port: i32,
    /// Number of replicas, if it was set through v2 or `kubectl scale`; otherwise 1. At most 1000.
    #[schemars(with = "i32", range(min = 0, max = REPLICAS_MAX))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    replicas: Option<i32>,
    /// Environment variables of the web server, as in the spec of a container.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "pod_settings::env")]
    env: Vec<EnvVar>,
    /// Where the Pods run, and what they may use.
    #[serde(flatten)]
    pods: PodSettings,
}

/// The whole definition.
#[must_use]
pub fn definition() -> Value {
    // In the schema, not as a rule over the whole object: that would also block the status of objects that are older.
    let metadata = json!({
        "type": "object",
        "properties": {"name": {
            "type": "string", "maxLength": NAME_LENGTH_MAX, "pattern": "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$",
        }},
    });
    let description =
        "A web server: a Deployment of its image and a Service on its port, both named mws-<name>.";
    crd::of::<MyWebserver, MyWebserverSpec>("mywebserver", description)
        .schema(|schema| schema["properties"]["metadata"] = metadata)
        .status::<MyWebserverStatus>()
        .short_names(&["myweb", "mws"])
        .columns([
            column("Replicas", "integer", ".spec.replicas"),
            column("Available", "integer", ".status.availableReplicas"),
            column("Image", "string", ".spec.image"),
            wide("Port", "integer", ".spec.port"),
        ])
        .scale(".spec.replicas")
        .older_version("v1", |schema| schema["properties"]["spec"] = crd::schema_of::<SpecV1>())
        .value()
}
