//! Discovery: the groups, versions and resources of the server, and their OpenAPI schemas.
//!
//! ```text
//! GET /apis   Accept: application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList
//! {"kind":"APIGroupDiscoveryList","apiVersion":"apidiscovery.k8s.io/v2","items":[{"metadata":{"name":"apps"},"versions":[…]}]}
//! ```

use base64::{Engine, prelude::BASE64_STANDARD};
use ring::digest::{SHA256, digest};
use serde_json::{Map, Value, json};

use crate::{
    kinds::{Kind, Kinds, Source, group_version},
    schema::openapi,
};

/// The version of this server. Build metadata, as in `v1.33.1+k3s1`: with `-`, it would be a pre-release, which is older than 1.36.0,
/// and which the `kubeVersion` of a Helm chart, such as `>=1.25.0`, does not accept.
pub(crate) const GIT_VERSION: &str = "v1.36.0+listwatch";

/// The version in `/version`. It must be a semantic version, or `kubectl version` fails.
pub(crate) fn version() -> Value {
    json!({"major": "1", "minor": "36", "emulationMajor": "1", "emulationMinor": "36",
        "minCompatibilityMajor": "1", "minCompatibilityMinor": "35", "gitVersion": GIT_VERSION,
        "gitCommit": "", "gitTreeState": "", "buildDate": "1970-01-01T00:00:00Z", "goVersion": "none (Rust)",
        "compiler": "rustc", "platform": "linux/amd64"})
}

/// `/`: the paths of this server.
pub(crate) fn paths(kinds: &Kinds) -> Value {
    let fixed = [
        "/.well-known/openid-configuration",
        "/api",
        "/apis",
        "/healthz",
        "/livez",
        "/metrics",
        "/openapi/v2",
        "/openapi/v3",
        "/openid/v1/jwks",
        "/readyz",
        "/version",
    ];
    let mut paths: Vec<String> = fixed.map(str::to_owned).into();
    paths.extend(["/healthz", "/livez", "/readyz"].map(|path| format!("{path}/ping")));
    for group in kinds.groups() {
        let root = if group.is_empty() { "/api".to_owned() } else { format!("/apis/{group}") };
        paths.extend(kinds.versions(group).iter().map(|version| format!("{root}/{version}")));
        paths.push(root);
    }
    paths.sort();
    paths.dedup();
    json!({"paths": paths})
}

/// The verbs of a resource.
fn verbs(kind: &Kind) -> &'static [&'static str] {
    if kind.is_review() {
        return &["create"];
    }
    match kind.built_in() {
        "" => &["delete", "deletecollection", "get", "list", "patch", "create", "update", "watch"],
        "Namespace" => &["create", "delete", "get", "list", "patch", "update", "watch"],
        _ => &["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"],
    }
}

fn subresource_verbs(name: &str) -> &'static [&'static str] {
    match name {
        "finalize" => &["update"],
        "binding" | "eviction" | "token" => &["create"],
        "log" => &["get"],
        "exec" => &["create", "get"],
        _ => &["get", "patch", "update"],
    }
}

/// The kind of a subresource that has another one than its resource, with group and version if discovery names them.
fn subresource_kind(name: &str) -> Option<Value> {
    match name {
        "scale" => Some(json!({"group": "autoscaling", "version": "v1", "kind": "Scale"})),
        "binding" => Some(json!({"kind": "Binding"})),
        "eviction" => Some(json!({"group": "policy", "version": "v1", "kind": "Eviction"})),
        "exec" => Some(json!({"kind": "PodExecOptions"})),
        "token" => Some(json!({"group": "authentication.k8s.io", "version": "v1", "kind": "TokenRequest"})),
        _ => None,
    }
}

/// `/api` or `/apis` with all resources in one answer: aggregated discovery, which kubectl uses since 1.27.
pub(crate) fn aggregated(kinds: &Kinds, core: bool) -> Value {
    let mut items = Vec::new();
    for group in kinds.groups().iter().filter(|group| group.is_empty() == core) {
        let mut versions = Vec::new();
        for version in kinds.versions(group) {
            let of_version = kinds.in_group(group).filter(|kind| kind.version == version);
            let resources: Vec<Value> = of_version.map(|kind| aggregated_resource(kind)).collect();
            versions.push(json!({"version": version, "resources": resources, "freshness": "Current"}));
        }
        let metadata = if core { json!({}) } else { json!({"name": group}) };
        items.push(json!({"metadata": metadata, "versions": versions}));
    }
    json!({"kind": "APIGroupDiscoveryList", "apiVersion": "apidiscovery.k8s.io/v2", "metadata": {}, "items": items})
}

fn aggregated_resource(kind: &Kind) -> Value {
    let response_kind = json!({"group": kind.group, "version": kind.version, "kind": kind.kind});
    let mut resource = json!({"resource": kind.plural, "responseKind": response_kind,
        "scope": if kind.namespaced { "Namespaced" } else { "Cluster" },
        "singularResource": kind.singular, "verbs": verbs(kind)});
    add_names(&mut resource, kind);
    let subresources: Vec<Value> = kind
        .subresources()
        .into_iter()
        .map(|name| {
            let own = subresource_kind(name).unwrap_or_else(|| match kind.is_custom() {
                true => response_kind.clone(),
                false => json!({"kind": kind.kind}),
            });
            let field = |name: &str| own[name].as_str().unwrap_or_default();
            let response_kind =
                json!({"group": field("group"), "version": field("version"), "kind": own["kind"]});
            json!({"subresource": name, "responseKind": response_kind, "verbs": subresource_verbs(name)})
        })
        .collect();
    if !subresources.is_empty() {
        resource["subresources"] = subresources.into();
    }
    resource
}

fn add_names(resource: &mut Value, kind: &Kind) {
    for (field, names) in [("shortNames", &kind.short_names), ("categories", &kind.categories)] {
        if !names.is_empty() {
            resource[field] = names.clone().into();
        }
    }
}

/// `/api` without aggregation.
pub(crate) fn api_versions() -> Value {
    json!({"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": []})
}

/// `/apis` without aggregation.
pub(crate) fn groups(kinds: &Kinds) -> Value {
    let groups = kinds.groups().iter().filter(|group| !group.is_empty());
    let groups: Vec<Value> = groups.filter_map(|name| group_parts(kinds, name)).collect();
    json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": groups})
}

/// `/apis/GROUP`.
pub(crate) fn group(kinds: &Kinds, name: &str) -> Option<Value> {
    let mut group = group_parts(kinds, name)?;
    group["kind"] = "APIGroup".into();
    group["apiVersion"] = "v1".into();
    Some(group)
}

fn group_parts(kinds: &Kinds, name: &str) -> Option<Value> {
    let versions: Vec<Value> = kinds
        .versions(name)
        .iter()
        .map(|version| json!({"groupVersion": group_version(name, version), "version": version}))
        .collect();
    let preferred = versions.first()?.clone();
    Some(json!({"name": name, "versions": versions, "preferredVersion": preferred}))
}

/// `/api/v1`, `/apis/GROUP/VERSION`.
pub(crate) fn resources(kinds: &Kinds, group: &str, version: &str) -> Option<Value> {
    let mut resources = Vec::new();
    for kind in kinds.in_group(group).filter(|kind| kind.version == version) {
        let mut resource = json!({"name": kind.plural, "singularName": kind.singular, "namespaced": kind.namespaced,
            "kind": kind.kind, "verbs": verbs(kind)});
        add_names(&mut resource, kind);
        if !kind.is_review() {
            resource["storageVersionHash"] = storage_hash(kind).into();
        }
        resources.push(resource);
        for name in kind.subresources() {
            let mut resource = json!({"name": format!("{}/{name}", kind.plural), "singularName": "",
                "namespaced": kind.namespaced, "kind": kind.kind, "verbs": subresource_verbs(name)});
            if let (Some(Value::Object(own)), Some(resource)) =
                (subresource_kind(name), resource.as_object_mut())
            {
                resource.extend(own);
            }
            resources.push(resource);
        }
    }
    let custom = kinds.in_group(group).any(|kind| kind.is_custom());
    if resources.is_empty() {
        return None;
    }
    if !custom {
        resources.sort_by(|a, b| a["name"].as_str().cmp(&b["name"].as_str()));
    }
    let mut list = json!({"kind": "APIResourceList", "groupVersion": group_version(group, version), "resources": resources});
    // The core group, which is older than this field, omits it.
    if !group.is_empty() {
        list["apiVersion"] = "v1".into();
    }
    Some(list)
}

/// A hash of the version in which a kind is stored.
fn storage_hash(kind: &Kind) -> String {
    let text = match (&kind.source, kind.built_in()) {
        (Source::Custom(custom), _) => format!("{}/{}", custom.storage_api_version, kind.kind),
        (_, "Event") => "/v1/Event".to_owned(),
        (_, "CustomResourceDefinition") => "apiextensions.k8s.io/v1beta1/CustomResourceDefinition".to_owned(),
        (_, "HorizontalPodAutoscaler") => "autoscaling/v2/HorizontalPodAutoscaler".to_owned(),
        _ => format!("{}/{}/{}", kind.group, kind.version, kind.kind),
    };
    BASE64_STANDARD.encode(&digest(&SHA256, text.as_bytes()).as_ref()[..8])
}

/// `/openapi/v3`: the index of the documents.
pub(crate) fn openapi_index(kinds: &Kinds, revision: u64) -> Value {
    let mut paths = Map::new();
    for group in kinds.groups() {
        for version in kinds.versions(group) {
            let path =
                if group.is_empty() { format!("api/{version}") } else { format!("apis/{group}/{version}") };
            let url = format!("/openapi/v3/{path}?hash={revision}");
            paths.insert(path, json!({"serverRelativeURL": url}));
        }
    }
    json!({"paths": paths})
}

/// `/openapi/v2`: the definitions of all kinds, without paths.
pub(crate) fn openapi_v2(kinds: &Kinds) -> Value {
    let mut definitions = Map::new();
    for kind in kinds.groups().iter().flat_map(|group| kinds.in_group(group)) {
        let mut schema = kind.schema().clone();
        if kind.is_custom() {
            simplify(&mut schema);
        }
        // kubectl would refuse all other fields if there were any.
        let is_free = kind.is_custom() && kind.schema()["x-kubernetes-preserve-unknown-fields"] == true;
        let definition =
            if is_free { definition(kind, json!({"type": "object"})) } else { with_meta(kind, schema) };
        definitions.insert(definition_name(kind), definition);
    }
    openapi::add_definitions(&mut definitions);
    let mut definitions = Value::from(definitions);
    refer_to_definitions(&mut definitions);
    json!({"swagger": "2.0", "info": {"title": "Kubernetes", "version": "v1.36.0"}, "paths": {}, "definitions": definitions})
}

/// Removes what OpenAPI v2 or kubectl does not know: apiextensions-apiserver, `ToStructuralOpenAPIV2`.
fn simplify(schema: &mut Value) {
    let is_nullable = |schema: &Value| schema["nullable"] == true;
    let (nullable, is_free) = (is_nullable(schema), schema["x-kubernetes-preserve-unknown-fields"] == true);
    let of_values = is_nullable(&schema["additionalProperties"]);
    let properties = schema["properties"].as_object().into_iter().flatten();
    let of_null: Vec<String> =
        properties.filter(|(_, property)| is_nullable(property)).map(|(name, _)| name.clone()).collect();
    let Some(map) = schema.as_object_mut() else { return };
    ["allOf", "anyOf", "oneOf", "not", "nullable"].iter().for_each(|word| drop(map.remove(*word)));
    if nullable || is_free {
        ["items", "properties"].iter().for_each(|word| drop(map.remove(*word)));
    }
    let has_type = |of: &str| map.get("type").is_some_and(|found| found == of);
    if nullable || is_free && has_type("object") || has_type("array") && !map.contains_key("items") {
        map.remove("type");
    }
    if let Some(Value::Array(required)) = map.get_mut("required") {
        required.retain(|name| !of_values && !of_null.iter().any(|one| name == one));
        if required.is_empty() {
            map.remove("required");
        }
    }
    let properties = map.get_mut("properties").and_then(Value::as_object_mut);
    properties.into_iter().flatten().for_each(|(_, property)| simplify(property));
    for word in ["items", "additionalProperties"] {
        map.get_mut(word).into_iter().for_each(simplify);
    }
}

fn refer_to_definitions(schema: &mut Value) {
    match schema {
        Value::Object(map) => {
            for (word, value) in map {
                match value {
                    Value::String(text) if word == "$ref" => {
                        *text = text.replace("#/components/schemas/", "#/definitions/");
                    }
                    value => refer_to_definitions(value),
                }
            }
        }
        Value::Array(list) => list.iter_mut().for_each(refer_to_definitions),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

/// The descriptions of the fields that each kind has: apimachinery/pkg/apis/meta/v1.
const API_VERSION: &str = "APIVersion defines the versioned schema of this representation of an object. Servers should convert \
    recognized schemas to the latest internal value, and may reject unrecognized values. More info: \
    https://git.k8s.io/community/contributors/devel/sig-architecture/api-conventions.md#resources";
const KIND: &str = "Kind is a string value representing the REST resource this object represents. Servers may infer this from \
    the endpoint the client submits requests to. Cannot be updated. In CamelCase. More info: \
    https://git.k8s.io/community/contributors/devel/sig-architecture/api-conventions.md#types-kinds";

fn gvk(kind: &Kind) -> Value {
    json!({"group": kind.group, "version": kind.version, "kind": kind.kind})
}

/// `com.example.v1.Widget`
fn definition_name(kind: &Kind) -> String {
    let mut name: Vec<&str> = kind.group.split('.').filter(|part| !part.is_empty()).collect();
    name.reverse();
    name.extend([kind.version.as_str(), kind.kind.as_str()]);
    name.join(".")
}

fn definition(kind: &Kind, mut schema: Value) -> Value {
    schema["x-kubernetes-group-version-kind"] = json!([gvk(kind)]);
    schema
}

/// The definition of a kind, with the fields that each kind has.
fn with_meta(kind: &Kind, mut schema: Value) -> Value {
    let text = |text: &str| json!({"type": "string", "description": text});
    schema["properties"]["apiVersion"] = text(API_VERSION);
    schema["properties"]["kind"] = text(KIND);
    schema["properties"]["metadata"] = json!({"description": "Standard object's metadata.",
        "allOf": [{"$ref": "#/components/schemas/ObjectMeta"}]});
    definition(kind, schema)
}

/// `/openapi/v3/apis/GROUP/VERSION`, for `kubectl explain`. kubectl also checks here that the server validates fields.
pub(crate) fn openapi(kinds: &Kinds, group: &str, version: &str) -> Option<Value> {
    let (mut paths, mut schemas) = (Map::new(), Map::new());
    for kind in kinds.in_group(group).filter(|kind| kind.version == version) {
        let (gvk, name) = (gvk(kind), definition_name(kind));
        let content =
            json!({"application/json": {"schema": {"$ref": format!("#/components/schemas/{name}")}}});
        let answer = json!({"200": {"description": "OK", "content": content}});
        let operation = |verb: &str, action: &str| {
            json!({"operationId": format!("{verb}{}", kind.kind), "x-kubernetes-action": action,
                "x-kubernetes-group-version-kind": gvk, "responses": answer,
                "parameters": [{"name": "fieldValidation", "in": "query", "schema": {"type": "string"}}]})
        };
        let root =
            if group.is_empty() { format!("/api/{version}") } else { format!("/apis/{group}/{version}") };
        let place = if kind.namespaced { "/namespaces/{namespace}" } else { "" };
        let path = format!("{root}{place}/{}", kind.plural);
        paths.insert(
            format!("{path}/{{name}}"),
            json!({
            "get": operation("read", "get"), "patch": operation("patch", "patch"),
            "put": operation("replace", "put")}),
        );
        paths.insert(path, json!({"post": operation("create", "post")}));
        schemas.insert(name, with_meta(kind, kind.schema().clone()));
    }
    if paths.is_empty() {
        return None;
    }
    // The definitions that these schemas refer to.
    openapi::add_definitions(&mut schemas);
    Some(json!({"openapi": "3.0.0", "info": {"title": "Kubernetes", "version": "v1.36.0"}, "paths": paths,
        "components": {"schemas": schemas}}))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_is_no_pre_release() {
        let (number, build) = GIT_VERSION.split_once('+').unwrap_or((GIT_VERSION, ""));
        assert!(!number.contains('-') && !build.is_empty(), "{GIT_VERSION}");
    }
}
