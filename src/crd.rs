//! CustomResourceDefinitions, made from the Rust types that read the objects.
//!
//! So a field's description, limits and default are written once, beside the field. The result is a structural
//! schema, without `$ref`: see
//! <https://kubernetes.io/docs/tasks/extend-kubernetes/custom-resources/custom-resource-definitions/#specifying-a-structural-schema>.

#[doc(inline)]
pub use listwatch_install::crd::{Crd, column, schema_of, wide};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};

use crate::resource::{
    Resource,
    conditions::{MESSAGE_LENGTH_MAX, REASON_LENGTH_MAX},
};

/// The definition of a kind, with the type of its `spec`. The methods of [`Crd`] add the rest:
///
/// ```
/// # use listwatch::{children::Conditions, crd, resource::ObjectMeta};
/// # #[derive(serde::Serialize, serde::Deserialize)] struct Page { metadata: ObjectMeta, spec: PageSpec }
/// # listwatch::kind!(Page, "example.com", "v1", "pages");
/// #[derive(serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
/// struct PageSpec {
///     /// Where the text is.
///     #[schemars(regex(pattern = "^https?://"))]
///     url: String,
/// }
/// let definition = crd::of::<Page, PageSpec>("page", "A text in a ConfigMap.")
///     .status::<Conditions>()
///     .short_names(&["pg"])
///     .columns([crd::column("URL", "string", ".spec.url")]);
/// assert!(definition.yaml().contains("description: Where the text is."));
/// # #[cfg(feature = "testing")]
/// listwatch::testing::crd_fits::<Page>(&definition.yaml());
/// ```
///
/// A kind that becomes `v2` is still served as `v1`. Between versions the API server only changes `apiVersion`, unless a webhook converts, and
/// drops the fields that a version does not name. So both have the same fields; only defaults, limits and descriptions may differ. The
/// operator reads and stores the version of its type:
///
/// ```
/// # use listwatch::{children::Conditions, crd, resource::ObjectMeta};
/// # #[derive(serde::Serialize, serde::Deserialize)] struct Page { metadata: ObjectMeta, spec: PageSpec }
/// # listwatch::kind!(Page, "example.com", "v2", "pages");
/// # #[derive(serde::Serialize, serde::Deserialize, schemars::JsonSchema)] struct PageSpec { url: String }
/// let definition = crd::of::<Page, PageSpec>("page", "A text in a ConfigMap.").status::<Conditions>();
/// let definition = definition.older_version("v1", |_schema| {});
/// # #[cfg(feature = "testing")]
/// listwatch::testing::crd_fits::<Page>(&definition.yaml());
/// ```
#[must_use]
pub fn of<K: Resource, Spec: JsonSchema>(singular: &str, description: &str) -> Crd {
    Crd::new([K::GROUP, K::VERSION, K::KIND, K::PLURAL], singular, description, schema_of::<Spec>())
}

/// `status.conditions`, as in `metav1.Condition`.
pub fn conditions(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "array",
        "x-kubernetes-list-type": "map",
        "x-kubernetes-list-map-keys": ["type"],
        "items": {
            "type": "object",
            "required": ["type", "status", "reason", "message", "lastTransitionTime"],
            "properties": {
                "type": {
                    "type": "string", "maxLength": 316,
                    "description": "Type of the condition: Ready, Available, Progressing, Stalled, Mutated.",
                    "pattern": "^([a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])$",
                },
                "status": {
                    "type": "string", "enum": ["True", "False", "Unknown"],
                    "description": "Status of the condition.",
                },
                "reason": {
                    "type": "string", "minLength": 1, "maxLength": REASON_LENGTH_MAX,
                    "description": "Machine-readable reason: one CamelCase word.",
                    "pattern": "^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$",
                },
                "message": {"type": "string", "maxLength": MESSAGE_LENGTH_MAX, "description": "Human-readable details."},
                "lastTransitionTime": {
                    "type": "string", "format": "date-time",
                    "description": "Time of the last change of status.",
                },
                "observedGeneration": {
                    "type": "integer", "format": "int64", "minimum": 0,
                    "description": "The metadata.generation for which the condition was computed.",
                },
            },
        },
    })
}
