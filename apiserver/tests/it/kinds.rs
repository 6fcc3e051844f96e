//! Compares all built-in kinds in the embedded server and in kube-apiserver: names, verbs, subresources and columns.
//!
//! `contract/kinds.txt` has one line for each resource and subresource. `UPDATE_EXPECT=1` writes it from kube-apiserver.
//!
//! ```text
//! apps/v1 daemonsets, daemonset, ds; DaemonSet of all; namespaced; create delete …; Name, Desired (integer), …
//! apps/v1 daemonsets/status; DaemonSet; get patch update
//! ```

use std::fmt::Write as _;

use expect_test::expect_file;
use listwatch_control_plane::eventually;
use reqwest::header::ACCEPT;
use serde_json::Value;

use crate::fixture::{Fixture, Kind, on};

/// What the embedded server does not serve.
const NOT_SERVED: [&str; 8] = [
    "v1 bindings,",
    "v1 componentstatuses,",
    "v1 nodes/proxy;",
    "v1 pods/attach;",
    "v1 pods/ephemeralcontainers;",
    "v1 pods/portforward;",
    "v1 pods/proxy;",
    "v1 services/proxy;",
];

const AGGREGATED: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";
const TABLE: &str = "application/json;g=meta.k8s.io;v=v1;as=Table";

#[tokio::test]
async fn every_built_in_kind_has_the_names_and_columns_of_kube_apiserver() {
    on(&[Kind::Real, Kind::Embedded], async |fixture| {
        let lines = lines(fixture).await;
        let file = concat!(env!("CARGO_MANIFEST_DIR"), "/contract/kinds.txt");
        if fixture.kind == Kind::Real {
            return expect_file![file].assert_eq(&lines);
        }
        let expected = std::fs::read_to_string(file).unwrap();
        let is_served = |line: &&str| !NOT_SERVED.iter().any(|one| line.starts_with(one));
        let expected: Vec<&str> = expected.lines().filter(is_served).collect();
        let lines: Vec<&str> = lines.lines().collect();
        check_lines(&expected, &lines);
    })
    .await;
}

/// Fails with the lines that differ.
fn check_lines(expected: &[&str], actual: &[&str]) {
    let missing: Vec<&&str> = expected.iter().filter(|line| !actual.contains(line)).collect();
    let surplus: Vec<&&str> = actual.iter().filter(|line| !expected.contains(line)).collect();
    assert!(missing.is_empty() && surplus.is_empty(), "expected: {missing:#?}\nactual: {surplus:#?}");
    assert_eq!(expected, actual, "the order");
}

async fn lines(fixture: &Fixture) -> String {
    let mut text = String::new();
    for root in ["/api", "/apis"] {
        for group in fixture.get_as(root, AGGREGATED).await["items"].as_array().unwrap() {
            let group_name = group["metadata"]["name"].as_str().unwrap_or_default();
            // The group of the fixture's CRD, and the groups of other tests.
            if !(root == "/api" || !group_name.contains('.') || group_name.ends_with(".k8s.io")) {
                continue;
            }
            for version in group["versions"].as_array().unwrap() {
                let version_name = version["version"].as_str().unwrap();
                let api = if root == "/api" {
                    version_name.to_owned()
                } else {
                    format!("{group_name}/{version_name}")
                };
                for resource in version["resources"].as_array().unwrap() {
                    let path = format!(
                        "{root}/{}/{}",
                        api.trim_start_matches('/'),
                        resource["resource"].as_str().unwrap()
                    );
                    of_resource(fixture, &api, &path, resource, &mut text).await;
                }
            }
        }
    }
    text
}

async fn of_resource(fixture: &Fixture, api: &str, path: &str, resource: &Value, text: &mut String) {
    let list = |value: &Value, separator: &str| -> String {
        let all = value.as_array().into_iter().flatten().map(|one| one.as_str().unwrap());
        all.collect::<Vec<_>>().join(separator)
    };
    let one = |field: &str| resource[field].as_str().unwrap();
    let names = [one("resource"), one("singularResource"), &list(&resource["shortNames"], ", ")].join(", ");
    let kind = resource["responseKind"]["kind"].as_str().unwrap();
    let categories = list(&resource["categories"], " ");
    let verbs = list(&resource["verbs"], " ");
    let mut columns = Vec::new();
    if verbs.contains("list") {
        let table = fixture.get_as(path, TABLE).await;
        for column in table["columnDefinitions"].as_array().unwrap() {
            let [name, kind] = ["name", "type"].map(|field| column[field].as_str().unwrap());
            let kind = if kind == "string" { String::new() } else { format!(" ({kind})") };
            let wide = if column["priority"] == 1 { " wide" } else { "" };
            columns.push(format!("{name}{kind}{wide}"));
        }
    }
    let (scope, columns) = (one("scope"), columns.join(", "));
    let _ = writeln!(text, "{api} {names}; {kind} of [{categories}]; {scope}; {verbs}; {columns}");
    for sub in resource["subresources"].as_array().into_iter().flatten() {
        let (name, kind) = (sub["subresource"].as_str().unwrap(), &sub["responseKind"]);
        let kind = ["group", "version", "kind"].map(|field| kind[field].as_str().unwrap()).join("/");
        let _ = writeln!(text, "{api} {}/{name}; {kind}; {}", one("resource"), list(&sub["verbs"], " "));
    }
}

impl Fixture {
    /// GETs a path in this media type.
    async fn get_as(&self, path: &str, media_type: &str) -> Value {
        let request = self.client().get(format!("{}{path}", self.url)).bearer_auth(&self.token);
        let answer = request.header(ACCEPT, media_type).send().await.unwrap();
        assert_eq!(answer.status(), 200, "{path}");
        serde_json::from_slice(&answer.bytes().await.unwrap()).unwrap()
    }
}

/// The roles of users, and the roles that are bound to all users. The roles of a cluster's components are missing.
const ROLES: [&str; 14] = [
    "clusterroles/cluster-admin",
    "clusterroles/admin",
    "clusterroles/edit",
    "clusterroles/view",
    "clusterroles/system:aggregate-to-admin",
    "clusterroles/system:aggregate-to-edit",
    "clusterroles/system:aggregate-to-view",
    "clusterroles/system:basic-user",
    "clusterroles/system:discovery",
    "clusterroles/system:public-info-viewer",
    "clusterrolebindings/cluster-admin",
    "clusterrolebindings/system:basic-user",
    "clusterrolebindings/system:discovery",
    "clusterrolebindings/system:public-info-viewer",
];

/// For a new version of Kubernetes, `UPDATE_EXPECT=1` writes the file.
#[tokio::test]
async fn the_roles_of_all_clusters_equal_those_of_kube_apiserver() {
    on(&[Kind::Real], async |fixture| {
        let mut lines = String::new();
        for path in ROLES {
            let path = format!("/apis/rbac.authorization.k8s.io/v1/{path}");
            let mut object = fixture.raw(&path).await.body;
            let fields = object.as_object_mut().unwrap();
            fields.retain(|field, value| field != "apiVersion" && !value.is_null());
            // A controller copies the rules of an aggregated role.
            if fields.contains_key("aggregationRule") {
                fields.remove("rules");
            }
            let metadata = object["metadata"].as_object_mut().unwrap();
            metadata.retain(|field, _| ["annotations", "labels", "name"].contains(&field.as_str()));
            let _ = writeln!(lines, "{object}");
        }
        expect_file!["../../src/controllers/default_roles.json"].assert_eq(&lines);
    })
    .await;
}

/// For a new version of Kubernetes, `UPDATE_EXPECT=1` writes the file.
#[tokio::test]
async fn flow_control_of_all_clusters_equals_that_of_kube_apiserver() {
    on(&[Kind::Real, Kind::Embedded], async |fixture| {
        let lines = eventually("the status of each FlowSchema", async || {
            let mut lines = String::new();
            for plural in ["prioritylevelconfigurations", "flowschemas"] {
                let path = format!("/apis/flowcontrol.apiserver.k8s.io/v1/{plural}");
                let list = fixture.raw(&path).await.body;
                let kind = list["kind"].as_str()?.strip_suffix("List")?;
                for object in list["items"].as_array()? {
                    let mut object = object.clone();
                    // Other tests have objects of their own.
                    if object["metadata"]["annotations"]["apf.kubernetes.io/autoupdate-spec"].is_null() {
                        continue;
                    }
                    object["kind"] = kind.into();
                    object["apiVersion"] = "flowcontrol.apiserver.k8s.io/v1".into();
                    object["metadata"]
                        .as_object_mut()?
                        .retain(|field, _| ["annotations", "name"].contains(&&**field));
                    if kind == "FlowSchema" {
                        object["status"]["conditions"][0].as_object_mut()?.remove("lastTransitionTime");
                    }
                    let _ = writeln!(lines, "{object}");
                }
            }
            Some(lines)
        })
        .await;
        let file = concat!(env!("CARGO_MANIFEST_DIR"), "/src/controllers/default_flow_control.json");
        match fixture.kind {
            Kind::Real => expect_file![file].assert_eq(&lines),
            Kind::Embedded | Kind::EmbeddedWithControllers => {
                assert_eq!(lines, std::fs::read_to_string(file).unwrap())
            }
        }
    })
    .await;
}

/// Of the counters, only the names and labels: other tests send requests as well.
#[tokio::test]
async fn requests_are_counted_with_the_labels_of_kube_apiserver() {
    on(&[Kind::Embedded, Kind::Real], async |fixture| {
        fixture.create("configmaps", &serde_json::json!({"metadata": {"name": "counted"}})).await;
        fixture.get("configmaps/counted").await;
        fixture.get("configmaps").await;
        fixture.delete("configmaps/counted").await;
        assert_eq!(fixture.find("configmaps/counted").await, None);
        let metrics = fixture.raw("/metrics").await.body;
        let lines = metrics.as_str().unwrap();
        for (code, scope, verb) in [
            (201, "resource", "POST"),
            (200, "resource", "GET"),
            (200, "namespace", "LIST"),
            (200, "resource", "DELETE"),
            (404, "resource", "GET"),
        ] {
            let labels = format!(
                "code=\"{code}\",component=\"apiserver\",dry_run=\"\",group=\"\",resource=\"configmaps\",scope=\"{scope}\",\
                 subresource=\"\",verb=\"{verb}\",version=\"v1\""
            );
            assert!(lines.contains(&format!("\napiserver_request_total{{{labels}}} ")), "no {labels}");
        }
        for line in ["\n# TYPE apiserver_request_total counter\n", "\napiserver_resource_objects{group=\"\",resource=\"services\"} "] {
            assert!(lines.contains(line), "no {line}");
        }
    })
    .await;
}
