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

/// The directories with a `generated.proto` for the definitions. Of two messages with the same name, the first counts.
const PACKAGES: [&str; 10] = [
    "apimachinery@VERSION/pkg/apis/meta/v1",
    "api@VERSION/core/v1",
    "api@VERSION/apps/v1",
    "api@VERSION/autoscaling/v1",
    "api@VERSION/batch/v1",
    "api@VERSION/coordination/v1",
    "api@VERSION/events/v1",
    "api@VERSION/networking/v1",
    "api@VERSION/policy/v1",
    "apiextensions-apiserver@VERSION/pkg/apis/apiextensions/v1",
];

/// A field of a message: `repeated Container containers = 2;`.
struct Field {
    message: String,
    name: String,
    number: String,
}

/// Compares `src/schema/protobuf_fields.txt` with the source of Kubernetes in Go's module cache, in the version of kube-apiserver.
/// For a new version, `UPDATE_EXPECT=1` writes the file.
#[tokio::test]
async fn the_numbers_of_fields_equal_those_in_the_source_of_kubernetes() {
    on(&[Kind::Real], async |real| {
        let version = real.raw("/version").await.body["gitVersion"].as_str().unwrap().replace("v1.", "v0.");
        let modules = go_modules().join("k8s.io");
        if !modules.join(format!("api@{version}")).exists() {
            assert!(env::var_os("CI").is_none(), "CI needs k8s.io/api {version} in {}", modules.display());
            return;
        }
        let mut messages = BTreeMap::new();
        for package in PACKAGES {
            let path = modules.join(package.replace("VERSION", &version)).join("generated.proto");
            read_messages(&fs::read_to_string(path).unwrap(), package.contains("/events/"), &mut messages);
        }
        let definitions: Map<String, Value> =
            serde_json::from_str(include_str!("../../src/schema/openapi.json")).unwrap();
        let mut lines = BTreeMap::new();
        for (definition, schema) in &definitions {
            match (&schema["properties"], definition.starts_with("JSONSchemaPropsOr")) {
                (Value::Object(properties), _) => write_fields(definition, properties, &messages, &mut lines),
                (_, true) => {
                    let line =
                        messages[definition].iter().map(|field| format!("{}={}", field.name, field.number));
                    lines.insert(definition.clone(), line.collect());
                }
                // A type with a form of its own in JSON, such as Time.
                _ => {}
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

fn go_modules() -> PathBuf {
    let output = Command::new("go").args(["env", "GOMODCACHE"]).output();
    output.map_or_else(|_| PathBuf::new(), |output| String::from_utf8(output.stdout).unwrap().trim().into())
}

fn read_messages(proto: &str, are_events: bool, messages: &mut BTreeMap<String, Vec<Field>>) {
    let start = Regex::new(r"^message (\w+) \{").unwrap();
    let line = Regex::new(r"^  (?:optional |repeated )?(?:map<.*>|(?:\w*\.)*(\w+)) (\w+) = (\d+);").unwrap();
    let mut fields: Option<&mut Vec<Field>> = None;
    for text in proto.lines() {
        if let Some(start) = start.captures(text) {
            let name = format!("{}{}", if are_events { "events.v1." } else { "" }, &start[1]);
            let is_new = !messages.contains_key(&name);
            let of_message = messages.entry(name).or_default();
            fields = is_new.then_some(of_message);
        } else if let (Some(fields), Some(field)) = (&mut fields, line.captures(text)) {
            let text = |at| field.get(at).map_or("", |one| one.as_str()).to_owned();
            fields.push(Field { message: text(1), name: text(2), number: text(3) });
        }
    }
}

/// Writes the fields of a message by their names in JSON. All properties in OpenAPI must have a number.
fn write_fields(
    message: &str,
    properties: &Map<String, Value>,
    messages: &BTreeMap<String, Vec<Field>>,
    lines: &mut BTreeMap<String, Vec<String>>,
) {
    let mut missing: Vec<&str> = properties.keys().map(String::as_str).collect();
    missing.retain(|property| !["apiVersion", "kind"].contains(property));
    let mut numbered = |field: &Field| {
        let name = json_names(&field.name).into_iter().find(|name| properties.contains_key(name))?;
        missing.retain(|property| *property != name);
        Some(format!("{name}={}", field.number))
    };
    let mut line = Vec::new();
    for field in &messages[message] {
        line.push(numbered(field).unwrap_or_else(|| {
            let inline = messages[&field.message].iter().map(|field| numbered(field).unwrap()).collect();
            lines.insert(field.message.clone(), inline);
            format!("+{}={}", field.message, field.number)
        }));
    }
    assert!(missing.is_empty(), "{message} has no {missing:?}");
    lines.insert(message.to_owned(), line);
}

/// The possible names in JSON: `ref`, `$ref`, and `x-kubernetes-map-type` for `xKubernetesMapType`.
fn json_names(name: &str) -> [String; 3] {
    let kebab = Regex::new("[A-Z]").unwrap().replace_all(name, "-$0").to_lowercase();
    [name.to_owned(), format!("${name}"), kebab]
}
