//! Server-side apply and managedFields are the same on the embedded API server as on kube-apiserver.
//!
//! A script of requests in, a transcript of answers out. kube-apiserver 1.36.3 wrote the expected transcripts.

use std::fmt::Write as _;

use expect_test::{ExpectFile, expect_file};
use listwatch_control_plane::eventually;
use reqwest::Method;
use serde_json::{Value, json};

use crate::{
    contract::Webhook,
    fixture::{Answer, Fixture, Kind, on},
    go_terms::without_go_terms,
};

/// A fixture with the custom resource `gadgets`, and the transcript of the answers.
struct Story<'a> {
    fixture: &'a Fixture,
    transcript: String,
}

impl<'a> Story<'a> {
    async fn start(fixture: &'a Fixture) -> Story<'a> {
        let story = Story { fixture, transcript: String::new() };
        fixture.install(&story.crd()).await;
        story
    }

    /// Each fixture has its own API group, because all share one kube-apiserver.
    fn group(&self) -> String {
        format!("{}.example.com", self.fixture.namespace)
    }

    fn gadgets(&self) -> String {
        format!("/apis/{}/v1/namespaces/{}/gadgets", self.group(), self.fixture.namespace)
    }

    fn crd(&self) -> Value {
        let text = json!({"type": "string"});
        let number = json!({"type": "integer"});
        let port = json!({"type": "object", "required": ["port"], "properties": {"port": number, "name": text,
            "protocol": {"type": "string", "default": "TCP"}}});
        let condition =
            json!({"type": "object", "required": ["type"], "properties": {"type": text, "status": text}});
        let schema = json!({"type": "object", "properties": {
            "spec": {"type": "object", "properties": {
                "size": number, "color": {"type": "string", "default": "red"},
                "ports": {"type": "array", "items": port, "x-kubernetes-list-type": "map",
                    "x-kubernetes-list-map-keys": ["port", "protocol"]},
                "tags": {"type": "array", "items": text, "x-kubernetes-list-type": "set"},
                "args": {"type": "array", "items": text},
                "ref": {"type": "object", "x-kubernetes-map-type": "atomic", "properties": {"a": text, "b": text}},
                "limits": {"type": "object", "additionalProperties": text},
                "groups": {"type": "object", "additionalProperties": {"type": "object", "properties": {"n": number}}},
                "free": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}}},
            "status": {"type": "object", "properties": {"phase": text, "conditions": {"type": "array",
                "items": condition, "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]}}}}});
        let group = self.group();
        json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
            "metadata": {"name": format!("gadgets.{group}")}, "spec": {
                "group": group, "scope": "Namespaced", "names": {"plural": "gadgets", "kind": "Gadget"},
                "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": schema},
                    "subresources": {"status": {}, "scale": {"specReplicasPath": ".spec.size",
                        "statusReplicasPath": ".status.size"}}}]}})
    }

    /// The gadget `g` with this spec, to apply.
    fn gadget(&self, spec: Value) -> Value {
        json!({"apiVersion": format!("{}/v1", self.group()), "kind": "Gadget", "metadata": {"name": "g"}, "spec": spec})
    }

    async fn call(&mut self, method: Method, path: &str, content_type: &str, body: &Value) -> Value {
        let answer = self.fixture.send(method, path, content_type, body.to_string().into_bytes()).await;
        let Answer { status, body, .. } = answer;
        assert!((200..300).contains(&status), "{path}: {status} {body}");
        body
    }

    /// Sends a request, and adds its answer to the transcript.
    async fn send(
        &mut self,
        what: &str,
        method: Method,
        path: &str,
        content_type: &str,
        body: &str,
    ) -> Value {
        let answer = self.fixture.send(method, path, content_type, body.into()).await;
        let Answer { status, warnings, body: answer } = answer;
        writeln!(self.transcript, "# {what}: {status}").unwrap();
        for warning in warnings {
            writeln!(self.transcript, "  {warning}").unwrap();
        }
        if answer["kind"] == "Status" {
            writeln!(
                self.transcript,
                "  {}",
                without_go_terms(answer["message"].as_str().unwrap_or_default()).replace('\n', "\n  ")
            )
            .unwrap();
            let mut causes = Vec::new();
            for cause in answer["details"]["causes"].as_array().into_iter().flatten() {
                let (reason, field) = (&cause["reason"], &cause["field"]);
                causes.push(format!("  cause: {reason} {field} {}", cause["message"]));
            }
            // Conflicts with several managers come in any order.
            causes.sort();
            causes.iter().for_each(|cause| writeln!(self.transcript, "{cause}").unwrap());
            return answer;
        }
        for part in ["spec", "status", "data"] {
            if !answer[part].is_null() {
                writeln!(self.transcript, "  {part}: {}", answer[part]).unwrap();
            }
        }
        let mut entries: Vec<String> = Vec::new();
        for entry in answer["metadata"]["managedFields"].as_array().into_iter().flatten() {
            let word = |field: &str| entry[field].as_str().unwrap_or_default().to_owned();
            let mut paths = Vec::new();
            flatten(&entry["fieldsV1"], "", &mut paths);
            let time = if entry["time"].is_string() { "" } else { " without time" };
            let subresource = word("subresource");
            let what = if subresource.is_empty() { String::new() } else { format!(" {subresource}") };
            let (manager, operation) = (word("manager"), word("operation"));
            entries.push(format!("  {manager} {operation}{what}{time}: {}", paths.join(" ")));
        }
        // The server sorts them by time, in seconds.
        entries.sort();
        entries.iter().for_each(|entry| writeln!(self.transcript, "{entry}").unwrap());
        answer
    }

    async fn apply(&mut self, what: &str, query: &str, object: &Value) -> Value {
        let path = format!("{}/g?fieldManager={query}", self.gadgets());
        self.send(what, Method::PATCH, &path, APPLY, &object.to_string()).await
    }

    async fn merge(&mut self, what: &str, path: &str, patch: Value) -> Value {
        let path = format!("{}/{path}", self.gadgets());
        self.send(what, Method::PATCH, &path, MERGE, &patch.to_string()).await
    }

    fn compare(self, expected: &ExpectFile) {
        expected.assert_eq(&self.transcript.replace(&self.fixture.namespace, "NS"));
    }
}

const JSON: &str = "application/json";
const APPLY: &str = "application/apply-patch+yaml";
const MERGE: &str = "application/merge-patch+json";
const SERVERS: [Kind; 2] = [Kind::Embedded, Kind::Real];

fn version(object: &Value) -> &Value {
    &object["metadata"]["resourceVersion"]
}

/// Collects the paths of a `fieldsV1`, such as `spec.ports[{"port":80}].name`.
fn flatten(fields: &Value, before: &str, paths: &mut Vec<String>) {
    let map = fields.as_object().unwrap();
    if map.is_empty() || map.contains_key(".") {
        paths.push(before.trim_start_matches('.').to_owned());
    }
    for (element, below) in map.iter().filter(|(element, _)| *element != ".") {
        let (prefix, name) = element.split_at(2);
        let path = if prefix == "f:" { format!("{before}.{name}") } else { format!("{before}[{name}]") };
        flatten(below, &path, paths);
    }
}

#[tokio::test]
async fn apply_makes_its_manager_the_owner_of_the_applied_fields() {
    on(&SERVERS, async |fixture| {
        let mut story = Story::start(fixture).await;
        let mut all = story.gadget(json!({"size": 1, "ports": [{"port": 80, "name": "http"}, {"port": 81, "protocol": "UDP"}],
            "tags": ["b", "a"], "args": ["x"], "ref": {"a": "1"}, "limits": {"cpu": "1"}, "groups": {"g": {"n": 1}},
            "free": {"q": {"w": [1]}, "e": null}}));
        all["metadata"]["labels"] = json!({"l": "1"});
        all["metadata"]["annotations"] = json!({"a": "b"});
        all["metadata"]["finalizers"] = json!(["example.com/f"]);
        let created = story.apply("alice creates", "alice", &all).await;
        let again = story.apply("alice applies the same again", "alice", &all).await;
        assert_eq!(again, created, "nothing changes, not even a time");

        let size = |size: u8| json!({"size": size});
        story.apply("bob applies the same size", "bob", &story.gadget(size(1))).await;
        let mut other = story.gadget(json!({"size": 2, "ports": [{"port": 80, "name": "web"}], "args": ["y"], "ref": {"b": "1"}}));
        story.apply("bob applies other values", "bob", &other).await;
        other["spec"]["ports"] = json!([{"port": 82}, {"port": 80, "name": "web"}]);
        other["spec"]["tags"] = json!(["c"]);
        story.apply("bob applies with force", "bob&force=true", &other).await;
        story.apply("alice applies only a port", "alice", &story.gadget(json!({"ports": [{"port": 80}]}))).await;
        story.apply("bob applies nothing", "bob", &story.gadget(json!({}))).await;
        story.compare(&expect_file!["data/apply/owners.txt"]);
    })
    .await;
}

#[tokio::test]
async fn every_write_updates_managed_fields() {
    on(&SERVERS, async |fixture| {
        let mut story = Story::start(fixture).await;
        let mut new = story.gadget(json!({"size": 1, "tags": ["x"], "ports": [{"port": 1}]}));
        new["metadata"]["labels"] = json!({"a": "b"});
        new["status"] = json!({"phase": "ignored"});
        let gadgets = story.gadgets();
        let mut created = story.send("create", Method::POST, &gadgets, JSON, &new.to_string()).await;
        created["spec"] = json!({"size": 2});
        story.send("replace", Method::PUT, &format!("{gadgets}/g?fieldManager=putter"), JSON, &created.to_string()).await;
        let patch = json!([{"op": "add", "path": "/spec/args", "value": ["a"]}, {"op": "remove", "path": "/metadata/labels"}]);
        let path = format!("{gadgets}/g?fieldManager=patcher");
        story.send("JSON patch", Method::PATCH, &path, "application/json-patch+json", &patch.to_string()).await;
        let merged = story.merge("merge patch", "g", json!({"spec": {"limits": {"m": "2"}, "groups": {"h": {"n": 2}}}})).await;
        let same = story.merge("the same merge patch by another manager", "g?fieldManager=late", json!({"spec": {"limits": {"m": "2"}}})).await;
        assert_eq!(version(&same), version(&merged));

        let status = json!({"status": {"phase": "a", "conditions": [{"type": "R", "status": "T"}]}, "spec": {"size": 9}});
        story.merge("status", "g/status?fieldManager=controller", status).await;
        let mut applied = story.gadget(json!({"size": 9}));
        applied["metadata"]["labels"] = json!({"q": "1"});
        applied["status"] = json!({"phase": "b"});
        let path = format!("{gadgets}/g/status?fieldManager=alice");
        story.send("apply the status", Method::PATCH, &path, APPLY, &applied.to_string()).await;
        let path = format!("{path}&force=true");
        story.send("with force", Method::PATCH, &path, APPLY, &applied.to_string()).await;
        story.apply("a status outside of the subresource", "alice&force=true", &applied).await;
        story.merge("scale", "g/scale?fieldManager=scaler", json!({"spec": {"replicas": 7}})).await;
        story.apply("apply against the scaler", "alice", &story.gadget(json!({"size": 8}))).await;

        story.merge("managedFields cleared", "g", json!({"metadata": {"managedFields": [{}]}})).await;
        story.merge("an update without tracking", "g", json!({"spec": {"size": 3}})).await;
        story.apply("an apply starts tracking", "alice", &story.gadget(json!({"size": 3}))).await;
        story.apply("apply against ancient-changes", "alice", &story.gadget(json!({"size": 4}))).await;
        story.merge("managedFields emptied", "g", json!({"metadata": {"managedFields": []}})).await;
        for number in 0..12 {
            let path = format!("g?fieldManager=m{number}");
            let patch = json!({"spec": {"limits": {format!("k{number}"): "1"}}});
            story.call(Method::PATCH, &format!("{}/{path}", story.gadgets()), MERGE, &patch).await;
        }
        let path = format!("{gadgets}/g");
        let last = story.call(Method::GET, &path, JSON, &Value::Null).await;
        let managers = last["metadata"]["managedFields"].as_array().unwrap();
        assert_eq!(managers.iter().filter(|entry| entry["operation"] == "Update").count(), 10);
        assert!(managers.iter().any(|entry| entry["manager"] == "ancient-changes"), "{last}");
        story.compare(&expect_file!["data/apply/marks.txt"]);
    })
    .await;
}

#[tokio::test]
async fn invalid_applies_are_refused() {
    on(&SERVERS, async |fixture| {
        let mut story = Story::start(fixture).await;
        let with = |field: &str, value: Value| {
            let mut gadget = story.gadget(json!({}));
            gadget[field] = value;
            gadget
        };
        let named = |field: &str, value: Value| {
            let mut gadget = story.gadget(json!({}));
            gadget["metadata"][field] = value;
            gadget
        };
        let group = story.group();
        let long = "x".repeat(129);
        let mut cases = vec![
            ("no manager", "", with("spec", json!({}))),
            ("a manager that is too long", &*long, with("spec", json!({}))),
            ("a manager with a tab", "a%09b", with("spec", json!({}))),
            ("a list", "a", json!([1])),
            ("a string", "a", json!("hello")),
            ("no apiVersion", "a", with("apiVersion", Value::Null)),
            ("no kind", "a", with("kind", Value::Null)),
            ("another kind", "a", with("kind", json!("Widget"))),
            ("another version", "a", with("apiVersion", json!(format!("{group}/v2")))),
            ("another name", "a", named("name", json!("h"))),
            ("no name", "a", with("metadata", json!({}))),
            ("another namespace", "a", named("namespace", json!("kube-system"))),
            ("managedFields", "a", named("managedFields", json!([{"manager": "x"}]))),
            ("empty managedFields", "a", named("managedFields", json!([]))),
            ("a uid of a missing object", "a", named("uid", json!("abc"))),
            ("an unknown field", "a", with("spec", json!({"bogus": 1}))),
            ("unknown metadata", "a", named("bogus", json!(1))),
            ("a duplicate item", "a", with("spec", json!({"ports": [{"port": 1}, {"port": 1}]}))),
            ("a duplicate member", "a", with("spec", json!({"tags": ["a", "a"]}))),
            ("an item without its key", "a", with("spec", json!({"ports": [{"name": "x"}]}))),
            ("a string for a number", "a", with("spec", json!({"size": "x"}))),
            ("a number for a string", "a", with("spec", json!({"color": 1}))),
            ("a map for a list", "a", with("spec", json!({"ports": {"a": 1}}))),
            ("a list for a map", "a", with("spec", json!([]))),
        ];
        let after = [
            ("another uid", "a", named("uid", json!("abc"))),
            ("an old version", "a", named("resourceVersion", json!("1"))),
        ];
        for (what, query, object) in cases.drain(..) {
            story.apply(what, query, &object).await;
        }
        let gadget = story.gadget(json!({}));
        let path = format!("{}/g/status?fieldManager=a", story.gadgets());
        story.send("the status of a missing object", Method::PATCH, &path, APPLY, &gadget.to_string()).await;
        let dry = story.apply("a dry run", "a&dryRun=All", &gadget).await;
        assert_eq!(version(&dry), &Value::Null);
        story.apply("a valid apply", "a", &gadget).await;
        for (what, query, object) in after {
            story.apply(what, query, &object).await;
        }
        story.merge("force without apply", "g?force=true", json!({})).await;
        story.compare(&expect_file!["data/apply/refused.txt"]);
    })
    .await;
}

#[tokio::test]
async fn built_in_lists_are_merged_by_their_keys() {
    on(&SERVERS, async |fixture| {
        let mut story = Story::start(fixture).await;
        let path = |what: &str| format!("{}?fieldManager=", fixture.path(what));
        let container = json!({"name": "c", "image": "nginx", "ports": [{"containerPort": 80}],
            "env": [{"name": "A", "value": "1"}], "resources": {"limits": {"cpu": "1"}}});
        let mut web = json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web"}, "spec": {
            "replicas": 2, "selector": {"matchLabels": {"a": "b"}},
            "template": {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [container],
                "volumes": [{"name": "v", "emptyDir": {}}]}}}});
        let deployment = path("deployments/web");
        let alice = format!("{deployment}alice");
        story.send("apply", Method::PATCH, &alice, APPLY, &web.to_string()).await;
        let scale = format!("{}scaler", path("deployments/web/scale"));
        story.send("scale", Method::PATCH, &scale, MERGE, r#"{"spec": {"replicas": 3}}"#).await;
        let patch = json!({"spec": {"template": {"spec": {"containers": [{"name": "c", "image": "nginx:2"}]}}}});
        let strategic = "application/strategic-merge-patch+json";
        story.send("strategic", Method::PATCH, &format!("{deployment}bob"), strategic, &patch.to_string()).await;
        story.send("conflicts", Method::PATCH, &alice, APPLY, &web.to_string()).await;
        web["spec"].as_object_mut().unwrap().remove("replicas");
        let pod = &mut web["spec"]["template"]["spec"];
        pod["containers"][0]["image"] = "nginx:2".into();
        pod["containers"][0]["env"] = json!([]);
        pod.as_object_mut().unwrap().remove("volumes");
        story.send("apply less", Method::PATCH, &alice, APPLY, &web.to_string()).await;

        web["metadata"]["name"] = "posted".into();
        let posted = path("deployments");
        story.send("create", Method::POST, &posted, JSON, &web.to_string()).await;
        for (resource, object) in [
            ("services", json!({"spec": {"selector": {"a": "b"}, "ports": [{"port": 80}]}})),
            ("configmaps", json!({"data": {"a": "1"}})),
            ("secrets", json!({"stringData": {"a": "1"}})),
        ] {
            let mut object = object;
            object["metadata"] = json!({"name": "n", "labels": {"x": "y"}});
            let made = fixture.try_create(&path(resource), &object).await.body;
            let fields = &made["metadata"]["managedFields"][0]["fieldsV1"];
            let mut paths = Vec::new();
            flatten(fields, "", &mut paths);
            writeln!(story.transcript, "# {resource}: {}", paths.join(" ")).unwrap();
        }
        story.compare(&expect_file!["data/apply/built_in.txt"]);
    })
    .await;
}

/// A controller cannot wait for the webhook that converts to the version of a manager.
#[tokio::test]
async fn a_controller_writes_an_object_with_managers_in_two_versions() {
    on(&[Kind::EmbeddedWithControllers], async |fixture| {
        let webhook = Webhook::start().await;
        let script = webhook.http.put(format!("{}/convert", webhook.url)).body(json!({"converts": true}).to_string());
        assert_eq!(script.send().await.unwrap().status(), 200);
        let version = |name: &str, field: &str| {
            let spec = json!({"type": "object", "properties": {field: {"type": "integer"}}});
            json!({"name": name, "served": true, "storage": name == "v1", "schema": {"openAPIV3Schema": {"type": "object",
                "properties": {"spec": spec}}}})
        };
        fixture.install(&json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
            "metadata": {"name": "turns.example.com"}, "spec": {"group": "example.com", "scope": "Namespaced",
            "names": {"plural": "turns", "kind": "Turn"}, "versions": [version("v1", "size"), version("v2", "length")],
            "conversion": {"strategy": "Webhook", "webhook": {"conversionReviewVersions": ["v1"],
            "clientConfig": {"url": format!("{}/convert", webhook.url), "caBundle": webhook.ca}}}}})).await;
        let owner = json!({"metadata": {"name": "owner"}});
        let owner = fixture.try_create(&fixture.path("configmaps"), &owner).await.body["metadata"]["uid"].take();
        let turn = |version: &str| format!("/apis/example.com/{version}/namespaces/{}/turns/t", fixture.namespace);
        let references = json!([{"apiVersion": "v1", "kind": "ConfigMap", "name": "owner", "uid": owner}]);
        for (version, field, references) in [("v1", "size", references), ("v2", "length", json!([]))] {
            let applied = json!({"apiVersion": format!("example.com/{version}"), "kind": "Turn",
                "metadata": {"name": "t", "ownerReferences": references}, "spec": {field: 1}});
            let path = format!("{}?fieldManager={version}", turn(version));
            let answer = fixture.send(Method::PATCH, &path, "application/apply-patch+yaml", applied.to_string().into()).await;
            assert!(answer.status < 300, "{}", answer.body);
        }
        // After a read of the stored version, no conversion is known.
        let read = fixture.raw(&turn("v1")).await.body;
        assert!(read["metadata"]["ownerReferences"].is_array(), "{read}");
        let options = json!({"propagationPolicy": "Orphan"}).to_string();
        fixture.send(Method::DELETE, &fixture.path("configmaps/owner"), "application/json", options.into()).await;
        let orphan = eventually("no owner", async || {
            let body = fixture.raw(&turn("v1")).await.body;
            body["metadata"]["ownerReferences"].is_null().then_some(body)
        })
        .await;
        assert_eq!(orphan["metadata"]["managedFields"].as_array().map(Vec::len), Some(2), "{orphan}");
    })
    .await;
}
