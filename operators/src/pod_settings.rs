//! The fields of a spec that the Pods of an operator get as they are: where they run, and what they may use.
//!
//! ```yaml
//! spec:
//!   tolerations: [{key: dedicated, operator: Exists}]   # becomes   spec.template.spec.tolerations
//!   resources: {requests: {cpu: 500m}}                  #           spec.template.spec.containers[*].resources
//! ```
//!
//! They are optional. Without one of them, the field of the child belongs to other writers, such as `kubectl edit`. So each child has
//! a note of the fields that it got: one that is removed from the spec is removed from the child ([`ObjectMeta::also_owning`]). The API
//! server checks the values, and the condition `Ready` has its answer.

use std::{collections::BTreeMap, mem};

use listwatch::resource::{Labels, ObjectMeta, Resource, kinds::*};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Value, json};
use smol_str::SmolStr;

/// Most items of a list, and longest text that is not a name.
const ITEMS_MAX: usize = 64;
const VALUE_LENGTH_MAX: usize = 4096;
/// A quantity: `0.5`, `500m`, `1Gi`, `1e3`. The API server cannot even read a child with another text.
const QUANTITY: &str = r"^[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([KMGTPE]i|[numkMGTPE]|[eE][+-]?[0-9]+)?$";
/// Longest name of an object, and longest key of a label: a domain, and after a slash a name.
const NAME_LENGTH_MAX: usize = 253;
const KEY_LENGTH_MAX: usize = 317;

/// A Pod of one container, without a token of the API server and with the seccomp profile of the container runtime.
pub(crate) fn pod_of(container: Container) -> PodSpec {
    let seccomp_profile =
        Some(SeccompProfile { r#type: "RuntimeDefault".into(), ..SeccompProfile::default() });
    PodSpec {
        containers: vec![container],
        automount_service_account_token: Some(false),
        security_context: Some(Box::new(PodSecurityContext {
            seccomp_profile,
            ..PodSecurityContext::default()
        })),
        ..PodSpec::default()
    }
}

/// Where the Pods run, and what they may use.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PodSettings {
    /// Labels of the nodes on which the Pods may run.
    #[serde(default, skip_serializing_if = "Labels::is_empty")]
    #[schemars(schema_with = "labels")]
    pub node_selector: Labels,
    /// Taints of nodes on which the Pods may still run.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "tolerations")]
    pub tolerations: Vec<Toleration>,
    /// Nodes and other Pods near which the Pods must run, or must not, as in the spec of a Pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "any_fields")]
    pub affinity: Option<Json>,
    /// How the Pods are spread over zones and nodes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "topology_spread_constraints")]
    pub topology_spread_constraints: Vec<TopologySpreadConstraint>,
    /// Name of the PriorityClass of the Pods.
    #[serde(default, skip_serializing_if = "SmolStr::is_empty")]
    #[schemars(with = "String", length(max = NAME_LENGTH_MAX))]
    pub priority_class_name: SmolStr,
    /// Names of Secrets for private registries.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "image_pull_secrets")]
    pub image_pull_secrets: Vec<LocalObjectReference>,
    /// CPU, memory and other resources of each container.
    #[serde(default, skip_serializing_if = "Resources::is_empty")]
    pub resources: Resources,
}

/// Resources of a container: the most that it gets, and what the node must have left.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Resources {
    /// The most that the container gets.
    #[serde(deserialize_with = "read_quantities", skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "quantities")]
    pub limits: BTreeMap<SmolStr, SmolStr>,
    /// What its node must have left.
    #[serde(deserialize_with = "read_quantities", skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "quantities")]
    pub requests: BTreeMap<SmolStr, SmolStr>,
}

impl Resources {
    fn is_empty(&self) -> bool {
        self.limits.is_empty() && self.requests.is_empty()
    }
}

impl PodSettings {
    /// Sets these fields in a template of Pods. `child`: the metadata of the object with the template, which is at this path in it.
    pub(super) fn apply<O: Resource>(&self, child: &mut ObjectMeta, path: &str, template: &mut PodTemplate) {
        let settings = self.clone();
        for container in &mut template.spec.containers {
            container.resources.limits.extend(settings.resources.limits.clone());
            container.resources.requests.extend(settings.resources.requests.clone());
        }
        template.spec = PodSpec {
            node_selector: settings.node_selector,
            tolerations: settings.tolerations,
            affinity: settings.affinity,
            topology_spread_constraints: settings.topology_spread_constraints,
            priority_class_name: settings.priority_class_name,
            image_pull_secrets: settings.image_pull_secrets,
            ..mem::take(&mut template.spec)
        };
        let set = json!(self);
        let paths = set.as_object().into_iter().flatten().map(|(field, _)| match &**field {
            "resources" => format!("{path}/spec/containers/*/resources"),
            field => format!("{path}/spec/{field}"),
        });
        child.also_owning::<O>(paths);
    }
}

/// A quantity may be a number: `cpu: 1`.
fn read_quantities<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<BTreeMap<SmolStr, SmolStr>, D::Error> {
    let quantities = BTreeMap::<SmolStr, Value>::deserialize(deserializer)?.into_iter();
    let text = |quantity: Value| quantity.as_str().map_or_else(|| quantity.to_string().into(), SmolStr::from);
    Ok(quantities.map(|(name, quantity)| (name, text(quantity))).collect())
}

/// A schema of texts, by any key.
fn texts(value_length_max: usize) -> Schema {
    json_schema!({
        "type": "object", "maxProperties": ITEMS_MAX,
        "additionalProperties": {"type": "string", "maxLength": value_length_max},
    })
}

pub(super) fn labels(_: &mut SchemaGenerator) -> Schema {
    texts(63)
}

pub(super) fn annotations(_: &mut SchemaGenerator) -> Schema {
    texts(VALUE_LENGTH_MAX)
}

fn quantities(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "object", "maxProperties": ITEMS_MAX,
        "additionalProperties": {
            "x-kubernetes-int-or-string": true, "anyOf": [{"type": "integer"}, {"type": "string"}], "pattern": QUANTITY,
        },
    })
}

/// What users write here is too deep for a schema: the API server prunes fields that a schema does not name, also fields of later versions.
fn any_fields(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"type": "object", "x-kubernetes-preserve-unknown-fields": true})
}

fn tolerations(_: &mut SchemaGenerator) -> Schema {
    list(
        &[],
        &json!({
            "key": {"type": "string", "maxLength": KEY_LENGTH_MAX},
            "operator": {"type": "string", "maxLength": 63},
            "value": {"type": "string", "maxLength": 63},
            "effect": {"type": "string", "maxLength": 63},
            "tolerationSeconds": {"type": "integer", "format": "int64"},
        }),
    )
}

fn topology_spread_constraints(_: &mut SchemaGenerator) -> Schema {
    let requirement = json!({
        "key": {"type": "string", "maxLength": KEY_LENGTH_MAX},
        "operator": {"type": "string", "maxLength": 63},
        "values": {"type": "array", "maxItems": ITEMS_MAX, "items": {"type": "string", "maxLength": 63}},
    });
    list(
        &["maxSkew", "topologyKey", "whenUnsatisfiable"],
        &json!({
            "maxSkew": {"type": "integer", "format": "int32"},
            "topologyKey": {"type": "string", "maxLength": KEY_LENGTH_MAX},
            "whenUnsatisfiable": {"type": "string", "maxLength": 63},
            "labelSelector": {
                "type": "object",
                "properties": {"matchLabels": texts(63), "matchExpressions": list(&["key", "operator"], &requirement)},
            },
            "matchLabelKeys": {
                "type": "array", "maxItems": ITEMS_MAX, "items": {"type": "string", "maxLength": KEY_LENGTH_MAX},
            },
            "minDomains": {"type": "integer", "format": "int32"},
            "nodeAffinityPolicy": {"type": "string", "maxLength": 63},
            "nodeTaintsPolicy": {"type": "string", "maxLength": 63},
        }),
    )
}

fn image_pull_secrets(_: &mut SchemaGenerator) -> Schema {
    list(&["name"], &json!({"name": {"type": "string", "maxLength": NAME_LENGTH_MAX}}))
}

/// The schema of `env`.
pub(super) fn env(_: &mut SchemaGenerator) -> Schema {
    let text = |length_max| json!({"type": "string", "maxLength": length_max});
    let object = |fields: Value| json!({"type": "object", "properties": fields});
    let key = object(
        json!({"name": text(NAME_LENGTH_MAX), "key": text(NAME_LENGTH_MAX), "optional": {"type": "boolean"}}),
    );
    let divisor = json!({"x-kubernetes-int-or-string": true});
    let from = object(json!({
        "configMapKeyRef": key,
        "secretKeyRef": key,
        "fieldRef": object(json!({"fieldPath": text(NAME_LENGTH_MAX), "apiVersion": text(63)})),
        "resourceFieldRef": object(json!({
            "resource": text(NAME_LENGTH_MAX), "containerName": text(63), "divisor": divisor,
        })),
    }));
    list(
        &["name"],
        &json!({"name": text(NAME_LENGTH_MAX), "value": text(VALUE_LENGTH_MAX), "valueFrom": from}),
    )
}

/// A schema of objects with these fields.
fn list(required: &[&str], fields: &Value) -> Schema {
    let mut items = json!({"type": "object", "properties": fields});
    if !required.is_empty() {
        items["required"] = json!(required);
    }
    json_schema!({"type": "array", "maxItems": ITEMS_MAX, "items": items})
}
