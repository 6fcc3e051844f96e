//! Objects in protobuf: the embedded server decodes what kube-apiserver encodes.

use std::{collections::BTreeMap, env, fs, path::PathBuf, process::Command};

use expect_test::expect_file;
use regex::Regex;
use reqwest::Method;
use serde_json::{Map, Value, json};

use crate::fixture::{Fixture, Kind, PROTOBUF, my_webservers, on};

/// Each of these objects leads to the same object, whether its body is in protobuf or in JSON. kube-apiserver encodes them in a dry run.
#[tokio::test]
async fn an_object_in_protobuf_equals_the_same_in_json() {
    on(&[Kind::Real], async |real| {
        let embedded = Fixture::start(Kind::Embedded).await;
        for (path, object) in objects() {
            let path = format!("{path}?dryRun=All");
            let created = real.try_create(&path, &object).await;
            assert_eq!(created.status, 201, "{}", created.body);
            let encoded = real.create_in_protobuf(&path, &object).await;
            let in_protobuf = embedded.send(Method::POST, &path, PROTOBUF, encoded).await;
            let in_json = embedded.try_create(&path, &created.body).await;
            assert_eq!(in_json.status, 201, "{}", in_json.body);
            let [in_protobuf, in_json] = [in_protobuf.body, in_json.body].map(|mut object| {
                let metadata = object["metadata"].as_object_mut().unwrap();
                metadata
                    .retain(|field, _| !["creationTimestamp", "managedFields", "uid"].contains(&&**field));
                // The time of each write.
                if let Some(time) = object.pointer_mut("/status/lastPhaseTransitionTime") {
                    time.take();
                }
                object
            });
            assert_eq!(in_protobuf, in_json);
        }
    })
    .await;
}

/// Objects with most types of fields, and the paths of their collections.
fn objects() -> Vec<(&'static str, Value)> {
    let metadata = json!({"name": "x", "labels": {"app": "x"}, "annotations": {"empty": ""}, "ownerReferences": [
        {"apiVersion": "v1", "kind": "ConfigMap", "name": "o", "uid": "u", "controller": false}]});
    let pod = json!({"metadata": {"labels": {"app": "x"}}, "spec": {
        "containers": [{
            "name": "c", "image": "nginx:1", "args": ["", "a"], "ports": [{"name": "http", "containerPort": 80}],
            "env": [
                {"name": "A", "value": "a"},
                {"name": "B", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k", "optional": false}}},
                {"name": "C", "valueFrom": {"resourceFieldRef": {"resource": "limits.cpu", "divisor": "1m"}}},
            ],
            "envFrom": [{"prefix": "P_", "configMapRef": {"name": "c"}}],
            "resources": {"limits": {"cpu": "1500m", "memory": "64Mi"}, "requests": {"cpu": "0"}},
            "livenessProbe": {"httpGet": {"port": "http", "httpHeaders": [{"name": "H", "value": "v"}]}},
            "readinessProbe": {"tcpSocket": {"port": 80}, "initialDelaySeconds": 3},
            "lifecycle": {"preStop": {"sleep": {"seconds": 1}}},
            "securityContext": {"runAsUser": 0, "runAsNonRoot": false, "capabilities": {"drop": ["ALL"]}},
            "volumeMounts": [{"name": "s", "mountPath": "/s", "readOnly": true}],
        }],
        "volumes": [
            {"name": "s", "secret": {"secretName": "s", "defaultMode": 256, "items": [{"key": "k", "path": "p"}]}},
            {"name": "e", "emptyDir": {"sizeLimit": "1Gi"}},
            {"name": "p", "projected": {"sources": [
                {"serviceAccountToken": {"path": "t"}},
                {"downwardAPI": {"items": [{"path": "l", "fieldRef": {"fieldPath": "metadata.labels"}}]}}]}},
            {"name": "v", "ephemeral": {"volumeClaimTemplate": {"spec": {
                "accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}}}},
        ],
        "affinity": {"podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [
            {"weight": 1, "podAffinityTerm": {"topologyKey": "zone", "labelSelector": {"matchExpressions": [
                {"key": "app", "operator": "In", "values": ["x"]}]}}}]}},
        "tolerations": [{"operator": "Exists", "effect": "NoExecute", "tolerationSeconds": -1}],
        "topologySpreadConstraints": [{"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "ScheduleAnyway"}],
    }});
    let mut once = pod.clone();
    once["spec"]["restartPolicy"] = "Never".into();
    let selector = json!({"matchLabels": {"app": "x"}});
    let storage = json!({"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}});
    let with = |fields: Value| {
        let mut object = json!({"metadata": metadata});
        object.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        object
    };
    vec![
        ("/api/v1/namespaces", with(json!({}))),
        ("/api/v1/nodes", with(json!({"spec": {"taints": [{"key": "k", "effect": "NoSchedule"}]}}))),
        (
            "/api/v1/namespaces/default/configmaps",
            with(json!({"data": {"a": ""}, "binaryData": {"b": "/w=="}})),
        ),
        ("/api/v1/namespaces/default/secrets", with(json!({"data": {"a": "/w=="}, "immutable": false}))),
        ("/api/v1/namespaces/default/serviceaccounts", with(json!({"imagePullSecrets": [{"name": "s"}]}))),
        (
            "/api/v1/namespaces/default/services",
            with(json!({"spec": {"selector": {"app": "x"}, "clusterIP": "None",
                "ports": [{"name": "a", "port": 80, "targetPort": "http"}, {"name": "b", "port": 81}]}})),
        ),
        ("/api/v1/namespaces/default/persistentvolumeclaims", with(json!({"spec": storage}))),
        (
            "/api/v1/namespaces/default/endpoints",
            with(json!({"subsets": [{"addresses": [{"ip": "10.1.0.1", "nodeName": "n"}],
                "ports": [{"name": "http", "port": 80, "appProtocol": "http"}]}]})),
        ),
        (
            "/api/v1/persistentvolumes",
            with(json!({"spec": {"capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"],
                "csi": {"driver": "d.example.com", "volumeHandle": "h"}}})),
        ),
        (
            "/api/v1/namespaces/default/replicationcontrollers",
            with(json!({"spec": {"replicas": 0, "selector": {"app": "x"}, "template": pod}})),
        ),
        (
            "/apis/apps/v1/namespaces/default/daemonsets",
            with(json!({"spec": {"selector": selector, "template": pod}})),
        ),
        (
            "/apis/networking.k8s.io/v1/namespaces/default/ingresses",
            with(json!({"spec": {"rules": [{"http": {"paths": [{"path": "/", "pathType": "Prefix",
                "backend": {"service": {"name": "x", "port": {"name": "http"}}}}]}}]}})),
        ),
        (
            "/apis/apps/v1/namespaces/default/deployments",
            with(json!({"spec": {"replicas": 0, "selector": selector, "template": pod,
                "strategy": {"rollingUpdate": {"maxSurge": "25%", "maxUnavailable": 0}}}})),
        ),
        (
            "/apis/apps/v1/namespaces/default/statefulsets",
            with(
                json!({"spec": {"serviceName": "x", "selector": selector, "template": pod, "volumeClaimTemplates": [
                {"metadata": {"name": "data"}, "spec": storage}]}}),
            ),
        ),
        (
            "/apis/apps/v1/namespaces/default/controllerrevisions",
            with(json!({"revision": 1, "data": {"spec": {"a": [1, null]}}})),
        ),
        (
            "/apis/batch/v1/namespaces/default/jobs",
            with(
                json!({"spec": {"manualSelector": true, "selector": selector, "template": once, "podFailurePolicy":
                {"rules": [{"action": "Ignore", "onExitCodes": {"operator": "In", "values": [1, 2]}}]}}}),
            ),
        ),
        (
            "/apis/batch/v1/namespaces/default/cronjobs",
            with(json!({"spec": {"schedule": "0 3 * * *", "jobTemplate": {"spec": {"template": once}}}})),
        ),
        (
            "/apis/policy/v1/namespaces/default/poddisruptionbudgets",
            with(json!({"spec": {"maxUnavailable": "50%", "selector": {}}})),
        ),
        (
            "/apis/coordination.k8s.io/v1/namespaces/default/leases",
            with(json!({"spec": {"holderIdentity": "h", "renewTime": "2026-01-02T03:04:05.000006Z"}})),
        ),
        (
            "/apis/events.k8s.io/v1/namespaces/default/events",
            with(
                json!({"eventTime": "2026-01-02T03:04:05.000006Z", "reportingController": "r", "reason": "R",
                "reportingInstance": "r-0", "action": "A", "type": "Normal", "note": "n",
                "regarding": {"apiVersion": "v1", "kind": "ConfigMap", "namespace": "default", "name": "c"}}),
            ),
        ),
        (
            "/api/v1/namespaces/default/events",
            with(
                json!({"involvedObject": {"namespace": "default"}, "firstTimestamp": "2026-01-02T03:04:05Z", "count": 2}),
            ),
        ),
        ("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", other_crd()),
        (
            "/apis/rbac.authorization.k8s.io/v1/clusterroles",
            with(json!({"rules": [{"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]}],
                "aggregationRule": {"clusterRoleSelectors": [{"matchLabels": {"a": "b"}}]}})),
        ),
        (
            "/apis/rbac.authorization.k8s.io/v1/namespaces/default/rolebindings",
            with(
                json!({"roleRef": {"kind": "ClusterRole", "name": "x"}, "subjects": [{"kind": "User", "name": "u"}]}),
            ),
        ),
        (
            "/apis/autoscaling/v2/namespaces/default/horizontalpodautoscalers",
            with(
                json!({"spec": {"maxReplicas": 3, "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment",
                "name": "x"}, "metrics": [{"type": "Pods", "pods": {"metric": {"name": "m"},
                "target": {"type": "AverageValue", "averageValue": "500m"}}}]}}),
            ),
        ),
        (
            "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices",
            with(json!({"addressType": "IPv4", "ports": [{"port": 80}], "endpoints": [
                {"addresses": ["10.1.0.1"], "conditions": {"ready": false}, "targetRef": {"kind": "Pod", "name": "p"}}]})),
        ),
        (
            "/apis/networking.k8s.io/v1/namespaces/default/networkpolicies",
            with(json!({"spec": {"podSelector": {}, "ingress": [{"ports": [{"port": "http"}],
                "from": [{"ipBlock": {"cidr": "10.0.0.0/8"}}]}]}})),
        ),
        (
            "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations",
            with(
                json!({"webhooks": [{"name": "x.example.com", "admissionReviewVersions": ["v1"], "sideEffects": "None",
                "clientConfig": {"url": "https://example.com/", "caBundle": ""}, "rules": [{"apiGroups": ["x.example.com"],
                "apiVersions": ["v1"], "resources": ["x"], "operations": ["CREATE"]}]}]}),
            ),
        ),
        (
            "/apis/storage.k8s.io/v1/storageclasses",
            with(
                json!({"provisioner": "example.com/p", "parameters": {"a": "b"}, "allowVolumeExpansion": false}),
            ),
        ),
        ("/apis/scheduling.k8s.io/v1/priorityclasses", with(json!({"value": -1, "globalDefault": false}))),
    ]
}

/// The CRD of MyWebservers under another name, with the forms of a schema that can also be a boolean.
fn other_crd() -> Value {
    let text =
        my_webservers().to_string().replace("mywebserver", "mycache").replace("MyWebserver", "MyCache");
    let mut crd: Value = serde_json::from_str(&text).unwrap();
    let schema = &mut crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"];
    schema["properties"]["more"] = json!({"type": "object", "additionalProperties": true});
    schema["properties"]["texts"] = json!({"type": "object", "additionalProperties": {"type": "string"}});
    schema["properties"]["list"] =
        json!({"type": "array", "maxItems": 2, "items": {"type": "number", "maximum": 1.5}});
    crd
}

/// The directories with a `generated.proto` and a `types.go` for the definitions, in the order of the documents in `schemas.rs`: of
/// two messages with the same name, the first has the short one.
const PACKAGES: [&str; 24] = [
    "apimachinery@VERSION/pkg/apis/meta/v1",
    "api@VERSION/core/v1",
    "api@VERSION/apps/v1",
    "api@VERSION/batch/v1",
    "api@VERSION/policy/v1",
    "api@VERSION/coordination/v1",
    "api@VERSION/networking/v1",
    "api@VERSION/events/v1",
    "apiextensions-apiserver@VERSION/pkg/apis/apiextensions/v1",
    "api@VERSION/admissionregistration/v1",
    "kube-aggregator@VERSION/pkg/apis/apiregistration/v1",
    "api@VERSION/authentication/v1",
    "api@VERSION/authorization/v1",
    "api@VERSION/autoscaling/v2",
    "api@VERSION/autoscaling/v1",
    "api@VERSION/certificates/v1",
    "api@VERSION/discovery/v1",
    "api@VERSION/flowcontrol/v1",
    "api@VERSION/node/v1",
    "api@VERSION/rbac/v1",
    "api@VERSION/resource/v1",
    "api@VERSION/scheduling/v1",
    "api@VERSION/storage/v1",
    "apimachinery@VERSION/pkg/runtime",
];

/// A field of a message: `repeated Container containers = 2;`.
struct Field {
    message: String,
    name: String,
    number: String,
}

/// The text of these files in all packages, each with its package: `core.v1`. Empty without the version of kube-apiserver in Go's module cache.
async fn sources(real: &Fixture, files: &[&str]) -> Vec<(String, String)> {
    let version = real.raw("/version").await.body["gitVersion"].as_str().unwrap().replace("v1.", "v0.");
    let modules = go_modules().join("k8s.io");
    if !modules.join(format!("api@{version}")).exists() {
        assert!(env::var_os("CI").is_none(), "CI needs k8s.io/api {version} in {}", modules.display());
        return Vec::new();
    }
    let source = |package: &&str| {
        let dir = modules.join(package.replace("VERSION", &version));
        let text = files.iter().filter_map(|file| fs::read_to_string(dir.join(file)).ok()).collect();
        let name: Vec<&str> = package.rsplitn(3, '/').take(2).collect();
        (format!("{}.{}", name[1], name[0]), text)
    };
    PACKAGES.iter().map(source).collect()
}

fn definitions() -> Map<String, Value> {
    serde_json::from_str(include_str!("../../src/schema/openapi.json")).unwrap()
}

/// Types by package and name: `core.v1.Pod`.
type Types<T> = BTreeMap<String, T>;

/// The package of a definition: `events.v1` for `events.v1.Event`, and the first one that has the type for `Event`.
fn package_of<T>(definition: &str, packages: &[(String, String)], types: &Types<T>) -> String {
    let has = |package: &&String| types.contains_key(&format!("{package}.{definition}"));
    let of_short = || packages.iter().map(|(package, _)| package).find(has).cloned();
    let of_long = definition.rsplit_once('.').map(|(package, _)| package.to_owned());
    of_long.or_else(of_short).unwrap_or_else(|| panic!("no package has {definition}"))
}

/// Compares `src/schema/protobuf_fields.txt` with the source of Kubernetes in Go's module cache, in the version of kube-apiserver.
/// For a new version, `UPDATE_EXPECT=1` writes the file.
#[tokio::test]
async fn the_numbers_of_fields_equal_those_in_the_source_of_kubernetes() {
    on(&[Kind::Real], async |real| {
        let sources = sources(real, &["generated.proto"]).await;
        if sources.is_empty() {
            return;
        }
        let mut messages = Types::new();
        for (package, proto) in &sources {
            read_messages(proto, package, &mut messages);
        }
        let mut lines = BTreeMap::new();
        for (definition, schema) in &definitions() {
            let is_union = definition.starts_with("JSONSchemaPropsOr");
            // Others have a form of their own in JSON, such as Time.
            if schema["properties"].is_object() || is_union {
                let package = package_of(definition, &sources, &messages);
                write_fields(definition, &package, schema["properties"].as_object(), &messages, &mut lines);
            }
        }
        let text: String = lines
            .iter()
            .map(|(message, fields): (_, &Vec<String>)| format!("{message}: {}\n", fields.join(" ")))
            .collect();
        expect_file!["../../src/schema/protobuf_fields.txt"].assert_eq(&text);
    })
    .await;
}

/// A field of a struct: `Replicas *int32 `json:"replicas,omitempty"`.
struct GoField {
    go_type: String,
    tag: String,
}

/// Compares `src/schema/go_pointer_fields.txt` in the same way.
#[tokio::test]
async fn the_fields_that_go_encodes_although_they_are_zero_equal_those_in_the_source() {
    on(&[Kind::Real], async |real| {
        let sources = sources(real, &["types.go", "types_jsonschema.go"]).await;
        if sources.is_empty() {
            return;
        }
        let mut structs = Types::<Vec<GoField>>::new();
        for (package, go) in &sources {
            read_structs(go, package, &mut structs);
        }
        let mut text = String::new();
        for (definition, schema) in &definitions() {
            let Some(properties) = schema["properties"].as_object() else { continue };
            let package = package_of(definition, &sources, &structs);
            let last = definition.rsplit('.').next().unwrap();
            let mut fields = Vec::new();
            zero_fields(&format!("{package}.{last}"), &structs, &mut fields);
            let required = schema["required"].as_array();
            fields.retain(|field| {
                let kind = properties.get(field).map_or(&Value::Null, |schema| &schema["type"]);
                let is_scalar = ["boolean", "integer", "number", "string"].iter().any(|one| kind == one);
                is_scalar && !required.is_some_and(|all| all.contains(&json!(field)))
            });
            fields.sort();
            if !fields.is_empty() {
                text += &format!("{definition}: {}\n", fields.join(" "));
            }
        }
        expect_file!["../../src/schema/go_pointer_fields.txt"].assert_eq(&text);
    })
    .await;
}

fn read_structs(go: &str, package: &str, structs: &mut Types<Vec<GoField>>) {
    let start = Regex::new(r"^type (\w+) struct \{").unwrap();
    let line = Regex::new(r#"^\t(?:\w+ +)?(\S+) +`.*json:"([^"]*)""#).unwrap();
    let mut fields = &mut Vec::new();
    for text in go.lines() {
        if let Some(start) = start.captures(text) {
            fields = structs.entry(format!("{package}.{}", &start[1])).or_default();
        } else if let Some(field) = line.captures(text) {
            fields.push(GoField { go_type: field[1].to_owned(), tag: field[2].to_owned() });
        }
    }
}

/// The names in JSON of the fields that are pointers, or have no `omitempty`.
fn zero_fields(name: &str, structs: &Types<Vec<GoField>>, fields: &mut Vec<String>) {
    for GoField { go_type, tag } in structs.get(name).into_iter().flatten() {
        let (json_name, options) = tag.split_once(',').unwrap_or((tag, ""));
        if options == "inline" {
            let (package, _) = name.rsplit_once('.').unwrap();
            zero_fields(&format!("{package}.{go_type}"), structs, fields);
        } else if go_type.starts_with('*') || !options.starts_with("omit") {
            fields.push(json_name.to_owned());
        }
    }
}

fn go_modules() -> PathBuf {
    let output = Command::new("go").args(["env", "GOMODCACHE"]).output();
    output.map_or_else(|_| PathBuf::new(), |output| String::from_utf8(output.stdout).unwrap().trim().into())
}

fn read_messages(proto: &str, package: &str, messages: &mut Types<Vec<Field>>) {
    let start = Regex::new(r"^message (\w+) \{").unwrap();
    let line = Regex::new(r"^  (?:optional |repeated )?(?:map<.*>|(?:\w*\.)*(\w+)) (\w+) = (\d+);").unwrap();
    let mut fields = &mut Vec::new();
    for text in proto.lines() {
        if let Some(start) = start.captures(text) {
            fields = messages.entry(format!("{package}.{}", &start[1])).or_default();
        } else if let Some(field) = line.captures(text) {
            let text = |at| field.get(at).map_or("", |one| one.as_str()).to_owned();
            fields.push(Field { message: text(1), name: text(2), number: text(3) });
        }
    }
}

/// Writes the fields of a message by their names in JSON. All properties in OpenAPI must have a number.
fn write_fields(
    definition: &str,
    package: &str,
    properties: Option<&Map<String, Value>>,
    messages: &Types<Vec<Field>>,
    lines: &mut BTreeMap<String, Vec<String>>,
) {
    let last = definition.rsplit('.').next().unwrap();
    let Some(properties) = properties else {
        let fields = &messages[&format!("{package}.{last}")];
        let line = fields.iter().map(|field| format!("{}={}", field.name, field.number));
        lines.insert(definition.to_owned(), line.collect());
        return;
    };
    let mut found = Found { package, properties, messages, missing: properties.keys().collect() };
    found.missing.retain(|property| !["apiVersion", "kind"].contains(&property.as_str()));
    let line = found.line(last, lines);
    assert!(found.missing.is_empty(), "{definition} has no {:?}", found.missing);
    lines.insert(definition.to_owned(), line);
}

/// The properties of one definition that have been found.
struct Found<'a> {
    package: &'a str,
    properties: &'a Map<String, Value>,
    messages: &'a Types<Vec<Field>>,
    missing: Vec<&'a String>,
}

impl Found<'_> {
    /// The fields of a message, and of those whose fields belong to the same object.
    fn line(&mut self, message: &str, lines: &mut BTreeMap<String, Vec<String>>) -> Vec<String> {
        let full_name = format!("{}.{message}", self.package);
        let fields = self.messages.get(&full_name).unwrap_or_else(|| panic!("{full_name}: unknown message"));
        let mut line = Vec::new();
        for Field { message, name, number } in fields {
            if let Some(property) = self.properties.keys().find(|property| has_name(name, property)) {
                self.missing.retain(|missing| *missing != property);
                line.push(format!("{property}={number}"));
                continue;
            }
            let inline = self.line(message, lines);
            lines.entry(message.clone()).or_insert(inline);
            line.push(format!("+{message}={number}"));
        }
        line
    }
}

/// Whether a field has this name in JSON: `$ref` for `ref`, `x-kubernetes-map-type` for `xKubernetesMapType`, `uid` for `uID`.
fn has_name(field: &str, property: &str) -> bool {
    let kebab = Regex::new("[A-Z]").unwrap().replace_all(field, "-$0").to_lowercase();
    [format!("${field}"), kebab, field.to_owned()].iter().any(|name| name.eq_ignore_ascii_case(property))
}
