//! The types of CopyratorRule: its fields, its status, and the CustomResourceDefinition that `listwatch crd` prints.
//!
//! The fields are at the top level and have no `spec` around them, as in the article that introduced this kind.

use std::{collections::BTreeMap, fmt};

use listwatch::{
    crd::{self, column},
    resource::{
        Condition, LabelSelector, LabelSelectorOperator, LabelSelectorRequirement, ObjectMeta, Resource, Uid,
        only_paused,
    },
};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, de};
use serde_json::{Map, Value, json};
use smol_str::SmolStr;

use super::glob::Glob;

/// The names of a namespace, as a pattern.
const NAMESPACE_PATTERN: &str = "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$";
/// Most failures that the status lists.
pub const FAILURES_MAX: usize = 10;
/// Most objects and namespaces that [`Once`] names: less than half a megabyte.
const ONCE_SOURCES_MAX: usize = 1000;
const ONCE_NAMESPACES_MAX: usize = 5000;

/// The custom resource. Its fields may be unreadable, if the object is older than the schema.
#[derive(Clone, Debug, Deserialize)]
#[serde(from = "Wire")]
pub struct CopyratorRule {
    /// Name, labels, owners, versions.
    pub metadata: ObjectMeta,
    /// The fields, or why they are unreadable.
    pub spec: Result<CopyratorSpec, String>,
    /// The status that this operator has written.
    pub status: CopyratorStatus,
}

/// A rule as JSON.
#[derive(Deserialize)]
struct Wire {
    #[serde(deserialize_with = "only_paused::<_, CopyratorRule>")]
    metadata: ObjectMeta,
    #[serde(default)]
    status: Value,
    #[serde(flatten)]
    fields: Map<String, Value>,
}

impl From<Wire> for CopyratorRule {
    fn from(wire: Wire) -> CopyratorRule {
        CopyratorRule {
            metadata: wire.metadata,
            spec: CopyratorSpec::deserialize(Value::Object(wire.fields)).map_err(|error| error.to_string()),
            status: CopyratorStatus::deserialize(wire.status).unwrap_or_default(),
        }
    }
}

impl Resource for CopyratorRule {
    const GROUP: &'static str = "flant.com";
    const VERSION: &'static str = "v1";
    const PLURAL: &'static str = "copyrators";
    const KIND: &'static str = "CopyratorRule";
    const INSTALL: &'static str = "listwatch crd copyrator | kubectl apply -f -";

    fn metadata(&self) -> &ObjectMeta {
        &self.metadata
    }
}

/// Which objects are copied, and to which namespaces.
#[derive(Clone, Debug, PartialEq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct CopyratorSpec {
    /// The kind of the objects: configmap or secret. The operator copies Secrets only with the flag --copyrator-secrets.
    pub rule_type: RuleType,
    /// The labels of the objects to copy: either the labels themselves (copyrator: "true"), or matchLabels and
    /// matchExpressions. Required, unless allowAll is true.
    #[serde(default, deserialize_with = "read_selector", skip_serializing_if = "LabelSelector::is_empty")]
    #[schemars(schema_with = "selector")]
    pub selector: LabelSelector,
    /// Whether an empty selector is meant: it copies every object of the kind.
    #[serde(default)]
    pub allow_all: bool,
    /// The namespace of the objects to copy. Default: the namespace of the rule. Other namespaces must be allowed by the flag
    /// --copyrator-source-namespaces.
    #[schemars(schema_with = "namespace")]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<SmolStr>,
    /// Several namespaces of objects to copy, instead of namespace. Of objects with the same name, the oldest is copied.
    #[schemars(schema_with = "namespaces")]
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub namespaces: Vec<SmolStr>,
    /// The namespaces that get copies. Default: all. The namespace of the copied object never gets a copy, and kube-system and
    /// other kube-* namespaces only if include has their full name.
    #[serde(default)]
    pub target_namespaces: TargetNamespaces,
    /// The keys of the labels that the copies get from the copied object. The keys of the selector are never copied, nor those
    /// by which Kubernetes, Argo CD, Flux or Helm know their objects.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(with = "Vec<String>", length(max = 32), inner(length(min = 1, max = 317)))]
    pub copy_labels: Vec<SmolStr>,
    /// The keys of the annotations that the copies get from the copied object, but for those by which Kubernetes, Argo CD, Flux or Helm know
    /// their objects.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(with = "Vec<String>", length(max = 32), inner(length(min = 1, max = 317)))]
    pub copy_annotations: Vec<SmolStr>,
    /// The keys of the data that the copies get: ca.crt. Default: all. A Secret without a key that its type requires is copied as Opaque.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(with = "Vec<String>", length(max = 100), inner(length(min = 1, max = 253)))]
    pub keys: Vec<SmolStr>,
    /// The names of keys in the copies, by their names in the copied object: tls.crt: server.crt
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "names_of_keys")]
    pub rename: BTreeMap<SmolStr, SmolStr>,
    /// Always: copies that were changed or deleted come back. Once: an edited copy stays as it is until the content of the
    /// copied object changes, and a copy that is deleted once all copies are there stays away until that object changes.
    #[serde(default)]
    pub sync_policy: SyncPolicy,
    /// What happens if an object that is not a copy has the name of a copy. Skip: the object stays. Adopt: it becomes a copy, if
    /// it already has the same content. Overwrite: it becomes a copy, and loses its content. An object that a rule copies, that has
    /// a controller, or the label app.kubernetes.io/managed-by, always stays.
    #[serde(default)]
    pub conflict_policy: ConflictPolicy,
    /// What happens to the copies if the rule is deleted.
    #[serde(default)]
    pub deletion_policy: CopyratorDeletionPolicy,
}

/// The namespaces that get copies.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(default)]
pub struct TargetNamespaces {
    /// The labels of the namespaces: either the labels themselves, or matchLabels and matchExpressions. Default: any.
    #[serde(deserialize_with = "read_selector", skip_serializing_if = "LabelSelector::is_empty")]
    #[schemars(schema_with = "selector")]
    pub selector: LabelSelector,
    /// Names of namespaces. * stands for any characters, and ? for one. Default: all.
    #[schemars(schema_with = "globs")]
    pub include: Vec<Glob>,
    /// Names of namespaces that get no copies, also if include has them. * stands for any characters, and ? for one.
    #[schemars(schema_with = "globs")]
    pub exclude: Vec<Glob>,
}

/// The kind of the copied objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum RuleType {
    /// ConfigMaps.
    Configmap,
    /// Secrets.
    Secret,
}

/// How long a copy is kept like its source.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
pub enum SyncPolicy {
    /// As long as the rule exists.
    #[default]
    Always,
    /// Until the copy has been created.
    Once,
}

/// What happens to an object that is not a copy and has the name of one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
pub enum ConflictPolicy {
    /// It stays.
    #[default]
    Skip,
    /// It becomes a copy, if it has the same content.
    Adopt,
    /// It becomes a copy.
    Overwrite,
}

/// What happens to the copies of a deleted rule.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
pub enum CopyratorDeletionPolicy {
    /// They are deleted.
    #[default]
    Delete,
    /// They stay.
    Retain,
}

/// The observed state of the copies.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct CopyratorStatus {
    /// The latest metadata.generation that the operator has observed. -1: none yet.
    pub observed_generation: i64,
    /// Number of objects that are copied.
    pub sources: i64,
    /// Number of namespaces that get copies.
    pub namespaces: i64,
    /// Number of copies that are up to date.
    pub copies: i64,
    /// Number of copies that are missing or out of date because of a failure or a conflict.
    pub failed: i64,
    /// The first ten failures.
    #[schemars(length(max = FAILURES_MAX))]
    pub failures: Vec<CopyFailure>,
    /// With syncPolicy Once: the objects and the namespaces at the last time when all copies were there.
    pub once: Once,
    /// Ready: all copies are up to date. Stalled: some copy cannot be written until a user acts.
    #[schemars(schema_with = "crd::conditions")]
    pub conditions: Vec<Condition>,
}

impl Default for CopyratorStatus {
    fn default() -> CopyratorStatus {
        CopyratorStatus {
            observed_generation: -1,
            sources: 0,
            namespaces: 0,
            copies: 0,
            failed: 0,
            failures: Vec::new(),
            once: Once::default(),
            conditions: Vec::new(),
        }
    }
}

/// The objects and the namespaces at the last time when all copies were there. A copy of one of these objects that is missing
/// in one of these namespaces was deleted by somebody. Empty if there are too many.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Once {
    /// The copied objects: NAMESPACE/NAME@RESOURCEVERSION.
    #[schemars(length(max = ONCE_SOURCES_MAX))]
    pub sources: Vec<String>,
    /// The uids of the namespaces.
    #[schemars(with = "Vec<String>", length(max = ONCE_NAMESPACES_MAX))]
    pub namespaces: Vec<Uid>,
}

impl Once {
    /// Nothing, if there are too many for a status.
    #[must_use]
    pub fn new(sources: Vec<String>, namespaces: Vec<Uid>) -> Once {
        if sources.len() > ONCE_SOURCES_MAX || namespaces.len() > ONCE_NAMESPACES_MAX {
            return Once::default();
        }
        Once { sources, namespaces }
    }
}

/// A copy that is missing or out of date.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct CopyFailure {
    /// Its namespace.
    #[schemars(with = "String")]
    pub namespace: SmolStr,
    /// Its name.
    #[schemars(with = "String")]
    pub name: SmolStr,
    /// Why, for programs: one CamelCase word.
    #[schemars(with = "String")]
    pub reason: SmolStr,
    /// Why, for people.
    pub message: String,
}

fn namespace(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"type": "string", "maxLength": 63, "pattern": NAMESPACE_PATTERN})
}

fn namespaces(generator: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "array", "x-kubernetes-list-type": "set", "minItems": 1, "maxItems": 100, "items": namespace(generator),
    })
}

fn names_of_keys(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "object", "maxProperties": 100,
        "additionalProperties": {"type": "string", "maxLength": 253, "pattern": "^[-._a-zA-Z0-9]+$"},
    })
}

fn globs(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "array", "x-kubernetes-list-type": "set", "maxItems": 1000,
        "items": {"type": "string", "minLength": 1, "maxLength": 63, "pattern": "^[-a-z0-9*?]+$"},
    })
}

/// Reads a label selector, or the labels themselves, as far as the API server would accept a list with it.
fn read_selector<'de, D: Deserializer<'de>>(deserializer: D) -> Result<LabelSelector, D::Error> {
    #[derive(Default, Deserialize)]
    #[serde(rename_all = "camelCase", default, deny_unknown_fields)]
    struct Fields {
        match_labels: BTreeMap<SmolStr, SmolStr>,
        match_expressions: Vec<LabelSelectorRequirement>,
    }
    let mut fields = Map::deserialize(deserializer)?;
    if !fields.contains_key("matchLabels") && !fields.contains_key("matchExpressions") {
        fields = Map::from_iter([("matchLabels".to_owned(), Value::Object(fields))]);
    }
    let invalid = |error: &dyn fmt::Display| de::Error::custom(format_args!("selector: {error}"));
    let fields = Fields::deserialize(Value::Object(fields)).map_err(|error| invalid(&error))?;
    // Requirements, because the schema does not keep a comma out of a label, and `Labels` would take it as two.
    let labels = fields.match_labels.into_iter().map(|(key, value)| LabelSelectorRequirement {
        key,
        operator: LabelSelectorOperator::In,
        values: vec![value],
    });
    let match_expressions = labels.chain(fields.match_expressions).collect();
    let selector = LabelSelector { match_expressions, ..LabelSelector::default() };
    selector.validate().map_err(|error| invalid(&error))?;
    Ok(selector)
}

/// A label selector, or the labels themselves, which a structural schema can only leave open.
fn selector(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "object",
        "x-kubernetes-preserve-unknown-fields": true,
        "properties": {
            "matchLabels": {
                "type": "object", "additionalProperties": {"type": "string"},
                "description": "The labels, each with its value.",
            },
            "matchExpressions": {
                "type": "array",
                "description": "Requirements for labels, which must all be met.",
                "items": {
                    "type": "object",
                    "required": ["key", "operator"],
                    "properties": {
                        "key": {"type": "string", "description": "The key of the label."},
                        "operator": {
                            "type": "string", "enum": ["In", "NotIn", "Exists", "DoesNotExist"],
                            "description": "How the label must relate to the values.",
                        },
                        "values": {
                            "type": "array", "items": {"type": "string"},
                            "description": "The values of In and NotIn.",
                        },
                    },
                },
            },
        },
    })
}

/// The whole definition.
#[must_use]
pub fn definition() -> Value {
    let description = "Copies ConfigMaps or Secrets to other namespaces, and keeps the copies up to date.";
    // The fields stand beside `metadata`, not in a `spec`.
    let fields = |schema: &mut Value| {
        let mut outer = std::mem::replace(schema, crd::schema_of::<CopyratorSpec>());
        schema["description"] = outer["description"].take();
        for field in ["apiVersion", "kind", "metadata"] {
            schema["properties"][field] = outer["properties"][field].take();
        }
        schema["x-kubernetes-validations"] = json!([
            {
                // `dyn`, because the type of `selector` has no fields for the labels.
                "rule": "(has(self.selector) && size(dyn(self.selector)) > 0) || (has(self.allowAll) && self.allowAll)",
                "message": "selector is empty: give the labels of the objects to copy, or set allowAll to true to copy all of them",
            },
            {
                "rule": "!(has(self.namespace) && has(self.namespaces))",
                "message": "namespace and namespaces cannot both be set: leave one of them out",
            },
        ]);
    };
    crd::of::<CopyratorRule, CopyratorSpec>("copyrator", description)
        .schema(fields)
        .status::<CopyratorStatus>()
        .short_names(&["copyr"])
        .columns([
            column("Kind", "string", ".ruleType"),
            column("Sources", "integer", ".status.sources"),
            column("Copies", "integer", ".status.copies"),
            column("Failed", "integer", ".status.failed"),
        ])
        .value()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kubectl_get_shows_the_counts() {
        let definition = definition();
        let columns = definition["spec"]["versions"][0]["additionalPrinterColumns"].as_array();
        let names = columns.expect("columns").iter().filter(|column| column["priority"] != 1);
        let names: Vec<_> = names.map(|column| &column["name"]).collect();
        assert_eq!(names, ["Ready", "Kind", "Sources", "Copies", "Failed", "Age"]);
    }

    fn read(fields: Value) -> CopyratorRule {
        let mut rule = json!({
            "apiVersion": "flant.com/v1", "kind": "CopyratorRule",
            "metadata": {"name": "main-rule", "namespace": "default", "uid": "u", "resourceVersion": "7"},
        });
        rule.as_object_mut().expect("a rule").extend(fields.as_object().cloned().expect("fields"));
        serde_json::from_value(rule).expect("always readable")
    }

    #[test]
    fn the_rule_of_the_article_has_defaults_for_all_other_fields() {
        let rule =
            read(json!({"ruleType": "configmap", "selector": {"copyrator": "true"}, "namespace": "default"}));
        let spec = rule.spec.expect("readable");
        assert_eq!(spec.rule_type, RuleType::Configmap);
        assert_eq!(spec.namespace.as_deref(), Some("default"));
        assert_eq!(spec.target_namespaces, TargetNamespaces::default());
        assert!(!spec.allow_all && spec.namespaces.is_empty() && spec.copy_labels.is_empty());
        let policies = (spec.sync_policy, spec.conflict_policy, spec.deletion_policy);
        assert_eq!(policies, (SyncPolicy::Always, ConflictPolicy::Skip, CopyratorDeletionPolicy::Delete));
        assert_eq!(rule.status, CopyratorStatus::default());
    }

    #[test]
    fn labels_alone_are_match_labels() {
        let selector = |selector: Value| {
            let spec = read(json!({"ruleType": "configmap", "selector": selector})).spec;
            spec.map(|spec| spec.selector.to_string())
        };
        let expression = json!({"key": "tier", "operator": "In", "values": ["a", "b"]});
        for (fields, text) in [
            (json!({"copyrator": "true", "a/b": ""}), "a/b=,copyrator=true"),
            (json!({"matchLabels": {"copyrator": "true"}}), "copyrator=true"),
            (json!({"matchLabels": {"a": "b"}, "matchExpressions": [expression]}), "a=b,tier in (a,b)"),
            (json!({"matchLabels": {}, "matchExpressions": []}), ""),
        ] {
            assert_eq!(selector(fields).as_deref(), Ok(text));
        }
        for (fields, problem) in [
            (json!({"copyrator": true}), "selector: invalid type: boolean"),
            (json!({"matchLabels": {}, "a": "b"}), "selector: unknown field `a`"),
            (json!({"a b": "c"}), "\"a b\" is not a valid label key"),
            (json!({"a": "b,c=d"}), "\"b,c=d\" is not a valid label value"),
        ] {
            let error = selector(fields).expect_err("an error");
            assert!(error.contains(problem), "{error}");
        }
    }

    /// Its finalizer must still be removed.
    #[test]
    fn a_rule_with_unreadable_fields_or_status_is_still_a_rule() {
        let include = json!({"ruleType": "secret", "targetNamespaces": {"include": ["team-["]}});
        for (fields, problem) in [
            (json!({"ruleType": "pod"}), "unknown variant `pod`, expected `configmap` or `secret`"),
            (json!({"status": {"sources": "many"}}), "missing field `ruleType`"),
            (include, "\"team-[\" matches no namespace"),
        ] {
            let rule = read(fields);
            let error = rule.spec.expect_err("unreadable");
            assert!(error.contains(problem), "{error}");
            assert_eq!((&*rule.metadata.name, rule.status), ("main-rule", CopyratorStatus::default()));
        }
    }
}
