//! Tests the fields of a spec that the Pods of an operator get. Each field of a child belongs to other writers until the spec has it, so an
//! upgrade from a version without these fields changes no Pod.

use listwatch_operators::BuiltIn;
use serde_json::{Map, Value, json};

use crate::{
    client::condition,
    database::wrote,
    fixture::{Fixture, Kind, on_each},
    in_process::{self, Running},
};

/// An operator, an object of it, and what its Pods get.
struct Story {
    operator: BuiltIn,
    /// The collection of the object.
    objects: &'static str,
    object: Value,
    /// The fields of the spec.
    settings: Value,
    /// What these fields set in a template of Pods, beside those that all operators have.
    sets: fn(&mut Value),
    /// The children with a template of Pods, and where it is. The first one has replicas.
    children: &'static [(&'static str, &'static str)],
}

/// The fields that all operators have.
fn settings(more: Value) -> Value {
    let mut settings = json!({
        "nodeSelector": {"disk": "ssd"},
        "tolerations": [{"key": "dedicated", "operator": "Exists"}],
        "topologySpreadConstraints": [{
            "maxSkew": 1, "topologyKey": "topology.kubernetes.io/zone", "whenUnsatisfiable": "ScheduleAnyway",
            "labelSelector": {"matchLabels": {"app": "web"}},
        }],
        "priorityClassName": "important",
        "imagePullSecrets": [{"name": "registry"}],
        "resources": {"limits": {"cpu": 2}, "requests": {"cpu": "1000m"}},
    });
    settings.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    settings
}

impl Story {
    fn path(&self) -> String {
        format!("{}/{}", self.objects, self.object["metadata"]["name"].as_str().unwrap())
    }

    /// The templates of Pods in the children.
    async fn templates(&self, fixture: &Fixture) -> Vec<Value> {
        let mut templates = Vec::new();
        for (child, at) in self.children {
            templates.push(fixture.get(child).await.pointer(at).unwrap().clone());
        }
        templates
    }

    /// Waits until the children have these templates.
    async fn until(&self, fixture: &Fixture, expected: &[Value]) {
        for ((child, at), expected) in self.children.iter().zip(expected) {
            fixture.until(child, |child| child.pointer(at) == Some(expected)).await;
        }
    }

    /// A template with these fields.
    fn with_settings(&self, template: &Value) -> Value {
        let mut template = template.clone();
        let spec = template["spec"].as_object_mut().unwrap();
        for (field, value) in settings(json!({})).as_object().unwrap() {
            if field != "resources" {
                spec.insert(field.clone(), value.clone());
            }
        }
        let resources = &mut template["spec"]["containers"][0]["resources"];
        (resources["limits"]["cpu"], resources["requests"]["cpu"]) = (json!("2"), json!("1"));
        (self.sets)(&mut template);
        template
    }

    /// Restarts the operator. It writes nothing but the answer to a change that comes after the start.
    async fn restart(&self, fixture: &Fixture, running: Running) -> Running {
        // What it writes last.
        let is_reported =
            |object: &Value| object["status"]["observedGeneration"] == object["metadata"]["generation"];
        fixture.until(&self.path(), is_reported).await;
        drop(running);
        fixture.transcript().await;
        let running = Running::start(fixture, self.operator);
        let (workload, _) = self.children[0];
        fixture.patch(workload, json!({"spec": {"replicas": 7}})).await;
        wrote(fixture, &[&format!("PATCH {workload} 200")]).await;
        running
    }

    async fn check(self, fixture: &Fixture) {
        let object = self.path();
        let running = Running::start(fixture, self.operator);
        fixture.create(self.objects, &self.object).await;
        fixture.until(&object, |object| condition(object, "Ready").is_some()).await;

        // What a user has edited before the spec had these fields.
        let affinity = json!({"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [
            {"labelSelector": {"matchLabels": {"app": "web"}}, "topologyKey": "kubernetes.io/hostname"},
        ]}});
        for (child, at) in self.children {
            let add = |path: &str, value: Value| json!({"op": "add", "path": format!("{at}/{path}"), "value": value});
            let edits = json!([
                add("spec/affinity", affinity.clone()),
                add("spec/tolerations", json!([{"key": "edited", "operator": "Exists"}])),
                add("metadata/labels/user", json!("stays")),
                add(
                    "metadata/annotations",
                    json!({"kubectl.kubernetes.io/restartedAt": "2026-11-27T21:00:00Z"})
                ),
            ]);
            fixture.edit(child, edits).await;
        }
        let edited = self.templates(fixture).await;
        let running = self.restart(fixture, running).await;
        assert_eq!(self.templates(fixture).await, edited);

        fixture.patch(&object, json!({"spec": self.settings})).await;
        let expected: Vec<_> = edited.iter().map(|template| self.with_settings(template)).collect();
        self.until(fixture, &expected).await;
        let (workload, at) = self.children[0];
        fixture.edit(workload, json!([{"op": "remove", "path": format!("{at}/spec/nodeSelector")}])).await;
        self.until(fixture, &expected).await;
        let running = self.restart(fixture, running).await;
        assert_eq!(self.templates(fixture).await, expected);

        let none: Map<_, _> =
            self.settings.as_object().unwrap().keys().map(|field| (field.clone(), Value::Null)).collect();
        fixture.patch(&object, json!({"spec": none})).await;
        let mut left = edited;
        for template in &mut left {
            template["spec"].as_object_mut().unwrap().remove("tolerations");
        }
        self.until(fixture, &left).await;
        for (child, _) in self.children {
            let annotations = fixture.get(child).await["metadata"]["annotations"].take();
            let is_note = |name: &String| name.ends_with("/owned-fields");
            assert!(!annotations.as_object().is_some_and(|all| all.keys().any(is_note)), "{annotations}");
        }
        drop(self.restart(fixture, running).await);
    }
}

async fn on_both(operator: BuiltIn, script: impl AsyncFn(&Fixture) + Copy + Send + 'static) {
    in_process::on(operator, &[Kind::InProcess, Kind::RealHttp1], script).await;
}

#[tokio::test]
async fn the_pods_of_a_database_get_the_fields_of_its_spec_and_lose_no_others() {
    on_both(BuiltIn::Database, async |fixture| {
        let labels = json!({"team": "shop", "app.kubernetes.io/name": "mine"});
        let story = Story {
            operator: BuiltIn::Database,
            objects: "databases",
            object: json!({
                "apiVersion": "app.example.com/v1", "kind": "Database", "metadata": {"name": "db"},
                "spec": {"size": 2, "version": "15", "backup": {"schedule": "0 3 * * *"}},
            }),
            settings: settings(json!({"podLabels": labels, "podAnnotations": {"example.com/note": "c"}})),
            sets: |template| {
                template["metadata"]["labels"]["team"] = json!("shop");
                template["metadata"]["annotations"]["example.com/note"] = json!("c");
            },
            children: &[
                ("statefulsets/db", "/spec/template"),
                ("cronjobs/db-backup", "/spec/jobTemplate/spec/template"),
            ],
        };
        story.check(fixture).await;
    })
    .await;
}

#[tokio::test]
async fn the_pods_of_a_memcached_get_the_fields_of_its_spec_and_lose_no_others() {
    on_both(BuiltIn::Memcached, async |fixture| {
        let story = Story {
            operator: BuiltIn::Memcached,
            objects: "memcacheds",
            object: json!({
                "apiVersion": "cache.example.com/v1alpha1", "kind": "Memcached", "metadata": {"name": "cache"},
                "spec": {"size": 3},
            }),
            settings: settings(json!({})),
            // Its memory stays.
            sets: |template| assert_eq!(template["spec"]["containers"][0]["resources"]["limits"]["memory"], "104Mi"),
            children: &[("deployments/cache", "/spec/template")],
        };
        story.check(fixture).await;
    })
    .await;
}

#[tokio::test]
async fn the_pods_of_a_mywebserver_get_the_fields_of_its_spec_and_lose_no_others() {
    on_both(BuiltIn::Mywebserver, async |fixture| {
        let env = json!([
            {"name": "GREETING", "value": "hello"},
            {"name": "PASSWORD", "valueFrom": {"secretKeyRef": {"name": "web", "key": "password"}}},
            {"name": "POD", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
        ]);
        let story = Story {
            operator: BuiltIn::Mywebserver,
            objects: "mywebservers",
            object: json!({
                "apiVersion": "k8sobjects.gsa.com/v2", "kind": "MyWebserver", "metadata": {"name": "web"},
                "spec": {"image": "nginx"},
            }),
            settings: settings(json!({"env": env})),
            sets: |template| {
                template["spec"]["containers"][0]["env"] = json!([
                    {"name": "GREETING", "value": "hello"},
                    {"name": "PASSWORD", "valueFrom": {"secretKeyRef": {"name": "web", "key": "password"}}},
                    {"name": "POD", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name", "apiVersion": "v1"}}},
                ]);
            },
            children: &[("deployments/mws-web", "/spec/template")],
        };
        story.check(fixture).await;
    })
    .await;
}

/// A conversion changes `apiVersion` alone, and what a version does not name is pruned.
#[tokio::test]
async fn a_mywebserver_that_is_written_through_v1_keeps_the_fields_of_v2() {
    in_process::on(BuiltIn::Mywebserver, &[Kind::InProcess, Kind::RealHttp1], async |fixture| {
        let env = json!([{"name": "GREETING", "value": "hello"}]);
        let affinity = json!({"nodeAffinity": {"any": {"field": [1]}}});
        let spec = settings(json!({"image": "nginx", "env": env, "affinity": affinity}));
        fixture.create_web("web", spec.clone()).await;
        let created = fixture.get("mywebservers/web").await;
        let path = fixture.path("mywebservers/web").replace("/v2/", "/v1/");
        let mut old =
            fixture.raw(&path).await.map(|text| serde_json::from_str::<Value>(&text).unwrap()).unwrap();
        old["spec"]["image"] = json!("nginx:1.29");
        fixture.send(http::Method::PUT, &path, "application/json", &old).await.unwrap();
        let mut expected = created["spec"].clone();
        expected["image"] = json!("nginx:1.29");
        assert_eq!(fixture.get("mywebservers/web").await["spec"], expected);
        for (field, value) in spec.as_object().unwrap() {
            assert!(field == "image" || expected[field] == *value, "{field}: {expected}");
        }
    })
    .await;
}

/// The API server answers 400 to it, not 422. The reason was `ReconcileFailed`.
#[tokio::test]
async fn a_field_that_the_api_server_cannot_decode_makes_an_invalid_spec() {
    on_each(async |fixture| {
        let affinity = json!({"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": "any"}});
        fixture.create_web("web", json!({"image": "nginx", "affinity": affinity})).await;
        let message = fixture.until_condition("web", "Ready", "False", "InvalidSpec").await;
        assert!(message.contains("400") && message.contains("nodeAffinity"), "{message}");
    })
    .await;
}
