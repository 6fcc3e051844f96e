//! Tests that `manifests/` installs exactly what the code needs.

use std::{
    collections::BTreeSet,
    env,
    ffi::{OsStr, OsString},
    fs,
    path::Path,
    process::Command,
};

use clap::ValueEnum;
use http::Method;
use listwatch::{
    client::{Error, Request},
    resource::kinds::{ConfigMap, Secret},
};
use listwatch_control_plane::{ControlPlane, assets, eventually};
use listwatch_operators::{
    BuiltIn, copyrator::CopyratorRule, database::Database, memcached::Memcached, mywebserver::MyWebserver,
};
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::{Value, json};

use crate::{
    alerts::alerts,
    fixture::{Kind, on},
    operator::listwatch,
    refused::{older_crd, with_crd},
};

/// The path of the CustomResourceDefinition in the API.
pub const CRD_PATH: &str =
    "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/mywebservers.k8sobjects.gsa.com";

/// All documents of a file under `manifests/`.
pub fn read(file: &str) -> Vec<Value> {
    let path = Path::new(crate::ROOT).join("manifests").join(file);
    let text = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    yaml_serde::Deserializer::from_str(&text).map(|document| Value::deserialize(document).unwrap()).collect()
}

/// The CustomResourceDefinition of MyWebserver.
pub fn crd() -> Value {
    read("mywebserver/crd/mywebservers.yaml").remove(0)
}

/// The permissions of an operator with `-n`: those of its ClusterRole, and one more.
pub fn role(operator: &str) -> Value {
    let mut role = read(&format!("{operator}/operator/role.yaml")).remove(0);
    let rule = json!({"apiGroups": [""], "resources": ["namespaces"], "verbs": ["get"]});
    role["rules"].as_array_mut().unwrap().push(rule);
    role
}

/// [`role`] of MyWebserver, to be bound in several namespaces, with the prefix of its kustomization.
pub fn cluster_role() -> Value {
    let mut role = role("mywebserver");
    role["metadata"]["name"] = "mywebserver-operator".into();
    role
}

/// The permissions in the namespace of an operator.
pub fn lease_role() -> Value {
    read("base/account.yaml").into_iter().find(|object| object["kind"] == "Role").unwrap()
}

/// The operators in `manifests/`: the directories with a CRD.
pub fn operators() -> Vec<String> {
    let entries = fs::read_dir(Path::new(crate::ROOT).join("manifests")).unwrap();
    let paths = entries.map(|entry| entry.unwrap().path()).filter(|path| path.join("crd").is_dir());
    let mut names: Vec<_> =
        paths.map(|path| path.file_name().unwrap().to_str().unwrap().to_owned()).collect();
    names.sort();
    names
}

/// The requests that a role allows: `patch deployments.apps`.
pub fn allowed(role: &Value) -> BTreeSet<String> {
    let mut allowed = BTreeSet::new();
    for rule in role["rules"].as_array().unwrap() {
        let texts = |field: &str| rule[field].as_array().unwrap().iter().map(|text| text.as_str().unwrap());
        for group in texts("apiGroups") {
            for resource in texts("resources") {
                allowed.extend(texts("verbs").map(|verb| format!("{verb} {resource}.{group}")));
            }
        }
    }
    allowed
}

/// The requests of a user in the audit log, in the form of [`allowed`]. The log has a watch only after its end.
pub fn used(control_plane: &ControlPlane, user: &str) -> BTreeSet<String> {
    let mut used = BTreeSet::new();
    for event in control_plane.audit(&mut 0, user) {
        let object = &event["objectRef"];
        let Some(resource) = object["resource"].as_str() else { continue };
        let subresource = object["subresource"].as_str().map(|name| format!("/{name}")).unwrap_or_default();
        let (verb, group) =
            (event["verb"].as_str().unwrap(), object["apiGroup"].as_str().unwrap_or_default());
        used.insert(format!("{verb} {resource}{subresource}.{group}"));
    }
    used
}

#[test]
fn each_crd_equals_the_output_of_listwatch_crd() {
    let operators = operators();
    assert!(operators.contains(&"mywebserver".to_owned()));
    for operator in operators {
        let printed = listwatch().args(["crd", &operator]).output().unwrap();
        assert!(printed.status.success());
        let dir = Path::new(crate::ROOT).join("manifests").join(&operator).join("crd");
        let kustomization = read(&format!("{operator}/crd/kustomization.yaml")).remove(0);
        let file = kustomization["resources"][0].as_str().unwrap();
        assert_eq!(
            String::from_utf8_lossy(&printed.stdout),
            fs::read_to_string(dir.join(file)).unwrap(),
            "stale: cargo run -- crd {operator} > manifests/{operator}/crd/{file}"
        );
    }
}

/// What `listwatch rbac` prints, with these arguments, as documents.
fn rbac(args: &[&str]) -> Vec<String> {
    let printed = listwatch().arg("rbac").args(args).output().unwrap();
    assert!(printed.status.success(), "{}", String::from_utf8_lossy(&printed.stderr));
    String::from_utf8(printed.stdout).unwrap().split("---\n").map(str::to_owned).collect()
}

/// The union of what documents allow.
fn allowed_by(documents: &[String]) -> BTreeSet<String> {
    documents.iter().flat_map(|document| allowed(&yaml_serde::from_str(document).unwrap())).collect()
}

/// With the reasons, but for the comment at the start of a file.
#[test]
fn the_roles_equal_the_output_of_listwatch_rbac() {
    let file = |name: &str| fs::read_to_string(Path::new(crate::ROOT).join("manifests").join(name)).unwrap();
    for operator in operators() {
        let role = file(&format!("{operator}/operator/role.yaml"));
        let role = &role[role.find("apiVersion:").unwrap()..];
        let renamed = |text: &String| text.replace(&format!("name: {operator}-operator"), "name: operator");
        let printed: Vec<String> = rbac(&[&operator]).iter().map(renamed).collect();
        assert_eq!(printed[0], role, "stale: cargo run -- rbac {operator}");
        let leases = file("base/account.yaml");
        assert!(leases.split("---\n").any(|document| document == printed[1]), "{}", printed[1]);
        assert_eq!(printed.len(), 2);
    }
    let mut role = read("copyrator/operator/role.yaml").remove(0);
    let patch = read("copyrator/secrets/role-patch.yaml").remove(0);
    role["rules"].as_array_mut().unwrap().push(patch[0]["value"].clone());
    assert_eq!(allowed_by(&rbac(&["copyrator", "--copyrator-secrets"])[..1]), allowed(&role));
    let [plain, secure] =
        [&["mywebserver"][..], &["mywebserver", "--metrics-secure"]].map(|args| allowed_by(&rbac(args)[..1]));
    let more: Vec<_> = secure.difference(&plain).collect();
    assert_eq!(
        more,
        ["create subjectaccessreviews.authorization.k8s.io", "create tokenreviews.authentication.k8s.io"]
    );
}

/// The copyrator also needs rights in other namespaces, and those are no more than its ClusterRole has.
#[test]
fn with_namespaces_the_rights_are_in_roles() {
    for operator in operators() {
        let mut expected = allowed_by(&rbac(&[&operator])[..1]);
        expected.insert("get namespaces.".to_owned());
        let printed = rbac(&[&operator, "-n", "a,b"]);
        let (leases, roles) = printed.split_last().unwrap();
        assert!(leases.contains("leader-election") && !leases.contains("namespace:"), "{leases}");
        assert_eq!(allowed_by(roles), expected);
        for namespace in ["a", "b"] {
            let mut own = roles.iter().filter(|role| role.contains(&format!("namespace: {namespace}\n")));
            assert!(
                own.next().unwrap().starts_with("apiVersion: rbac.authorization.k8s.io/v1\nkind: Role\n")
            );
            assert_eq!(own.next(), None);
        }
        let clusters: Vec<_> = roles.iter().filter(|role| role.contains("kind: ClusterRole\n")).collect();
        match &*operator {
            "copyrator" => assert!(!clusters[0].contains("flant.com") && clusters.len() == 1, "{clusters:?}"),
            _ => assert_eq!(clusters, [""; 0]),
        }
    }
}

/// Its links to their directories are tested where it is rendered.
#[test]
fn the_chart_has_every_operator_and_the_version_of_the_crate() {
    let operators = operators();
    let schema = &read("chart/values.schema.json")[0];
    assert_eq!(schema["properties"]["operators"]["items"]["enum"], json!(operators));
    assert_eq!(read("chart/values.yaml")[0]["operators"], json!(["mywebserver"]));
    assert_eq!(read("chart/Chart.yaml")[0]["appVersion"], env!("CARGO_PKG_VERSION"));
}

/// What a program prints in `manifests/`.
fn print(program: &OsStr, args: &[&str]) -> String {
    let output = Command::new(program)
        .args(args)
        .current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/../manifests"))
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// The objects that a program prints, by kind and name.
fn render(program: &OsStr, args: &[&str]) -> Vec<Value> {
    let text = print(program, args);
    let documents = yaml_serde::Deserializer::from_str(&text);
    let mut objects: Vec<_> =
        documents.map(|document| Value::deserialize(document).unwrap()).filter(Value::is_object).collect();
    objects.sort_by_key(|object| format!("{} {}", object["kind"], object["metadata"]["name"]));
    objects
}

/// The `kubectl` of `KUBEBUILDER_ASSETS`.
fn kubectl() -> Option<OsString> {
    assets().map(|assets| assets.join("kubectl").into_os_string())
}

/// The rules of a role may be grouped in another way. Needs `KUBEBUILDER_ASSETS`.
#[test]
fn listwatch_manifests_prints_the_objects_of_the_kustomizations() {
    let Some(kubectl) = kubectl() else { return };
    let ungrouped = |mut objects: Vec<Value>| {
        for object in objects.iter_mut().filter(|object| object["rules"].is_array()) {
            object["rules"] = json!(allowed(object));
        }
        objects
    };
    let binary = OsStr::new(env!("CARGO_BIN_EXE_listwatch"));
    for operator in operators() {
        for (overlay, flags) in [
            ("", &[][..]),
            ("/monitoring", &["--service-monitor"]),
            ("/network-policy", &["--network-policy"]),
        ] {
            let directory = format!("{operator}{overlay}");
            let expected = ungrouped(render(&kubectl, &["kustomize", &directory]));
            let printed = ungrouped(render(binary, &[&["manifests", &operator], flags].concat()));
            assert_eq!(printed, expected, "{directory}");
        }
    }
}

/// Each ServiceMonitor selected the Services of all operators in its namespace, so that each Pod was scraped by all of them. Needs
/// `KUBEBUILDER_ASSETS`.
#[test]
fn the_monitoring_overlays_select_and_name_one_operator() {
    let Some(kubectl) = kubectl() else { return };
    for operator in operators() {
        let objects = render(&kubectl, &["kustomize", &format!("{operator}/monitoring")]);
        let of = |kind: &str| objects.iter().find(|object| object["kind"] == kind).unwrap();
        let (monitor, service) = (of("ServiceMonitor"), of("Service"));
        assert_eq!(service["metadata"]["labels"]["app.kubernetes.io/name"], format!("{operator}-operator"));
        assert_eq!(monitor["spec"]["selector"]["matchLabels"], service["metadata"]["labels"]);
        assert_eq!(of("PrometheusRule")["spec"], alerts(&operator, &format!("{operator}-system")));
    }
}

/// Those of a kustomization that changed the namespace were about the earlier one, although it had the names again. Needs `KUBEBUILDER_ASSETS`.
#[test]
fn the_alerts_follow_the_namespace_of_a_kustomization() {
    let Some(kubectl) = kubectl() else { return };
    let dir = tempfile::tempdir().unwrap();
    // kustomize refuses an absolute path.
    let up = "../".repeat(dir.path().components().count());
    let root = fs::canonicalize(crate::ROOT).unwrap();
    let of = |directory: &str| json!([format!("{up}{}/manifests/{directory}", root.display())]);
    let kustomization = json!({
        "resources": of("mywebserver/shards"),
        "components": of("base/monitoring"),
        "transformers": of("base/monitoring/names"),
        "namespace": "web",
    });
    fs::write(dir.path().join("kustomization.yaml"), kustomization.to_string()).unwrap();
    let objects = render(&kubectl, &["kustomize", dir.path().to_str().unwrap()]);
    let rule = objects.iter().find(|object| object["kind"] == "PrometheusRule").unwrap();
    assert_eq!(rule["metadata"]["namespace"], "web");
    assert_eq!(rule["spec"], alerts("mywebserver", "web"));
}

/// Instead of a ClusterRole, the operator has a Role with what `-n` needs, and watches its own namespace. Needs `KUBEBUILDER_ASSETS`.
#[test]
fn the_namespaced_overlays_have_a_role_for_one_namespace() {
    let Some(kubectl) = kubectl() else { return };
    for operator in operators().into_iter().filter(|operator| operator != "copyrator") {
        let objects = render(&kubectl, &["kustomize", &format!("{operator}/namespaced")]);
        let named = |kind: &str, name: &str| {
            let mut found =
                objects.iter().filter(|object| object["kind"] == kind && object["metadata"]["name"] == name);
            let object = found.next().unwrap_or_else(|| panic!("{kind} {name}"));
            assert_eq!((&object["metadata"]["namespace"], found.next()), (&json!("default"), None));
            object
        };
        let name = format!("{operator}-operator");
        let printed = rbac(&[&operator, "-n", "default"]);
        assert_eq!(allowed(named("Role", &name)), allowed_by(&printed[..1]));
        let binding = named("RoleBinding", &name);
        let expected = json!({"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": name});
        assert_eq!(binding["roleRef"], expected);
        assert_eq!(
            binding["subjects"],
            json!([{"kind": "ServiceAccount", "name": name, "namespace": "default"}])
        );
        let env = &named("Deployment", &name)["spec"]["template"]["spec"]["containers"][0]["env"];
        let own = json!({"name": "WATCH_NAMESPACE", "valueFrom": {"fieldRef": {"fieldPath": "metadata.namespace"}}});
        assert!(env.as_array().unwrap().contains(&own), "{env}");
        let cluster_wide = objects.iter().filter(|object| object["metadata"]["namespace"].is_null());
        let kinds: BTreeSet<_> = cluster_wide.map(|object| object["kind"].as_str().unwrap()).collect();
        // The ClusterRoles are those of users.
        assert_eq!(kinds, ["ClusterRole", "CustomResourceDefinition"].into());
        let roles = objects.iter().filter(|object| object["kind"] == "ClusterRole");
        let users = read(&format!("{operator}/users/roles.yaml"));
        assert!(roles.eq(&users), "{users:?}");
    }
}

/// Needs `KUBEBUILDER_ASSETS`.
#[test]
fn the_overlay_of_shards_has_a_deployment_for_each_shard_and_everything_else_once() {
    let Some(kubectl) = kubectl() else { return };
    let (of_shard, mut others): (Vec<_>, Vec<_>) = render(&kubectl, &["kustomize", "mywebserver/shards"])
        .into_iter()
        .partition(|object| matches!(object["kind"].as_str(), Some("Deployment" | "PodDisruptionBudget")));
    // All Deployments come before all PodDisruptionBudgets.
    let (deployments, budgets) = of_shard.split_at(3);
    for (shard, (deployment, budget)) in deployments.iter().zip(budgets).enumerate() {
        let args = json!(["run", "mywebserver", format!("--shard={shard}/3")]);
        assert_eq!(deployment["spec"]["template"]["spec"]["containers"][0]["args"], args);
        let label = json!(shard.to_string());
        for object in [deployment, budget] {
            assert_eq!(object["metadata"]["name"], format!("mywebserver-operator-{shard}"));
            assert_eq!(object["spec"]["selector"]["matchLabels"]["k8sobjects.gsa.com/shard"], label);
        }
    }
    assert_eq!(of_shard.len(), 6);
    for object in &mut others {
        if let Some(Value::Object(labels)) = object.pointer_mut("/metadata/labels") {
            labels.remove("k8sobjects.gsa.com/shard");
        }
    }
    let mut plain = render(&kubectl, &["kustomize", "mywebserver"]);
    plain.retain(|object| !matches!(object["kind"].as_str(), Some("Deployment" | "PodDisruptionBudget")));
    assert_eq!(others, plain);
}

/// Its ports are those that the Pods have. Needs `KUBEBUILDER_ASSETS`.
#[test]
fn the_network_policy_overlays_add_a_policy_for_the_pods_of_the_operator() {
    let Some(kubectl) = kubectl() else { return };
    for operator in operators() {
        let mut objects = render(&kubectl, &["kustomize", &format!("{operator}/network-policy")]);
        let at = objects.iter().position(|object| object["kind"] == "NetworkPolicy").unwrap();
        let policy = objects.remove(at);
        assert_eq!(objects, render(&kubectl, &["kustomize", &operator]));
        let deployment = objects.iter().find(|object| object["kind"] == "Deployment").unwrap();
        let (metadata, template) = (&deployment["metadata"], &deployment["spec"]["template"]);
        assert_eq!(policy["metadata"]["namespace"], metadata["namespace"]);
        assert_eq!(policy["spec"]["podSelector"]["matchLabels"], template["metadata"]["labels"]);
        let ports = template["spec"]["containers"][0]["ports"].as_array().unwrap();
        let names: BTreeSet<_> = ports.iter().map(|port| &port["name"]).map(Value::to_string).collect();
        let open = policy["spec"]["ingress"][0]["ports"].as_array().unwrap();
        let open: BTreeSet<_> = open.iter().map(|port| &port["port"]).map(Value::to_string).collect();
        assert_eq!(open, names);
    }
}

/// The helm of `LISTWATCH_HELM`.
fn helm() -> Option<OsString> {
    let helm = env::var_os("LISTWATCH_HELM");
    // In CI, a run with a real API server must not pass without rendering the chart.
    let must_render = env::var_os("CI").is_some() && env::var_os("KUBEBUILDER_ASSETS").is_some();
    assert!(helm.is_some() || !must_render, "CI needs LISTWATCH_HELM");
    if helm.is_none() {
        eprintln!("LISTWATCH_HELM is not set: the chart is not rendered");
    }
    helm
}

/// Needs `LISTWATCH_HELM`, and `kubectl` in `KUBEBUILDER_ASSETS`. Helm creates no Namespace, and keeps the CRDs.
#[test]
fn helm_and_kustomize_render_the_same_objects() {
    let (Some(kubectl), Some(helm)) = (kubectl(), helm()) else { return };
    let plain =
        operators().into_iter().map(|operator| (operator.clone(), operator, "copyrator.secrets=false"));
    let secrets = ("copyrator".to_owned(), "copyrator/secrets".to_owned(), "copyrator.secrets=true");
    let mut all: Vec<_> = plain.chain([secrets]).collect();
    for operator in operators() {
        all.push((operator.clone(), format!("{operator}/network-policy"), "networkPolicy.enabled=true"));
        all.push((operator.clone(), format!("{operator}/monitoring"), "monitoring.enabled=true"));
        if operator != "copyrator" {
            all.push((operator.clone(), format!("{operator}/namespaced"), "namespaced=true"));
        }
    }
    for (operator, directory, value) in all {
        let mut expected = render(&kubectl, &["kustomize", &directory]);
        expected.retain(|object| object["kind"] != "Namespace");
        for object in &mut expected {
            let is_of_users = object["kind"] == "ClusterRole"
                && !object["metadata"]["name"].as_str().unwrap().ends_with("-operator");
            if object["kind"] == "CustomResourceDefinition" || is_of_users {
                object["metadata"]["annotations"] = json!({"helm.sh/resource-policy": "keep"});
            }
        }
        let is_own = directory.ends_with("/namespaced");
        let namespace = if is_own { "default".to_owned() } else { format!("{operator}-system") };
        let chosen = format!("operators={{{operator}}}");
        let args = ["template", "any", "chart", "--skip-tests", "--namespace", &namespace];
        let args = [&args[..], &["--set", &chosen, "--set", value]].concat();
        assert_eq!(render(&helm, &args), expected, "{directory}");
        assert!(expected.len() >= 5, "{expected:?}");
    }
}

/// The objects of the chart in the namespace `web`, with these values.
fn chart(helm: &OsStr, values: &[&str]) -> Vec<Value> {
    let values = values.iter().flat_map(|value| ["--set", value]);
    let args: Vec<_> = ["template", "any", "chart", "--namespace", "web"].into_iter().chain(values).collect();
    render(helm, &args)
}

/// Needs `LISTWATCH_HELM`.
#[test]
fn each_value_of_the_chart_changes_what_it_names() {
    let Some(helm) = helm() else { return };
    let of = |kind: &str, values: &[&str]| {
        let objects = chart(&helm, values).into_iter();
        objects.filter(|object| object["kind"] == kind).collect::<Vec<_>>()
    };
    let deployment = |values: &[&str]| of("Deployment", values).remove(0)["spec"].take();
    // As with `--reuse-values` from a chart that had no such value.
    assert_eq!(deployment(&["replicas=null"])["replicas"], 2);
    assert_eq!(deployment(&["replicas=0"])["replicas"], 0);
    let alone = deployment(&["replicas=1", "extraArgs={--leader-elect=false}"]);
    assert_eq!((&alone["replicas"], &alone["strategy"]), (&json!(1), &json!({"type": "Recreate"})));

    let set = deployment(&[
        "podLabels.team=web,podLabels.app\\.kubernetes\\.io/name=other",
        "podAnnotations.note=text",
        "priorityClassName=high",
        "nodeSelector.disk=ssd",
        "tolerations[0].operator=Exists",
        "affinity.podAntiAffinity.a=b",
        "imagePullSecrets[0].name=key",
        "resources.limits.memory=1Gi",
        "extraEnv[0].name=A,extraEnv[0].value=b",
        "extraArgs={--log-level,debug}",
        "image.repository=registry.example/listwatch,image.tag=next,image.pullPolicy=Always",
    ]);
    let template = &set["template"];
    let labels = json!({"app.kubernetes.io/name": "mywebserver-operator", "team": "web"});
    assert_eq!(template["metadata"]["labels"], labels);
    assert_eq!(set["selector"]["matchLabels"], json!({"app.kubernetes.io/name": "mywebserver-operator"}));
    assert_eq!(template["metadata"]["annotations"]["note"], "text");
    let pod = &template["spec"];
    assert_eq!(pod["priorityClassName"], "high");
    assert_eq!(pod["nodeSelector"], json!({"disk": "ssd"}));
    assert_eq!(pod["tolerations"], json!([{"operator": "Exists"}]));
    assert_eq!(pod["affinity"], json!({"podAntiAffinity": {"a": "b"}}));
    assert_eq!(pod["imagePullSecrets"], json!([{"name": "key"}]));
    let container = &pod["containers"][0];
    assert_eq!(container["resources"]["limits"], json!({"memory": "1Gi"}));
    assert_eq!(container["resources"]["requests"]["memory"], "16Mi");
    let env = container["env"].as_array().unwrap();
    assert_eq!(env.last(), Some(&json!({"name": "A", "value": "b"})));
    assert_eq!(container["args"], json!(["run", "mywebserver", "--log-level", "debug"]));
    assert_eq!(container["image"], "registry.example/listwatch:next");
    assert_eq!(container["imagePullPolicy"], "Always");

    let secure = ["metrics.secure=true,monitoring.enabled=true"];
    assert_eq!(
        deployment(&secure)["template"]["spec"]["containers"][0]["args"],
        json!(["run", "mywebserver", "--metrics-secure"])
    );
    // Prometheus sent its own token. This one can do no more than its ClusterRole says.
    let endpoint = |values: &[&str]| of("ServiceMonitor", values).remove(0)["spec"]["endpoints"][0].take();
    let unverified = endpoint(&secure);
    let credentials = json!({"name": "mywebserver-operator-metrics-reader", "key": "token"});
    assert_eq!(unverified["scheme"], "https");
    assert_eq!(unverified["authorization"], json!({ "credentials": credentials }));
    assert_eq!(unverified["tlsConfig"], json!({"insecureSkipVerify": true}));
    let secret = of("Secret", &secure).remove(0);
    assert_eq!(secret["metadata"]["name"], credentials["name"]);
    let account = &secret["metadata"]["annotations"]["kubernetes.io/service-account.name"];
    let bindings = of("ClusterRoleBinding", &secure).into_iter();
    let mut roles = bindings.filter(|binding| binding["subjects"][0]["name"] == *account);
    assert_eq!(roles.next().unwrap()["roleRef"]["name"], "mywebserver-operator-metrics-reader");
    assert_eq!(roles.next(), None);

    let verified = [secure[0], "metrics.certificateSecret=cert"];
    let expected = json!({
        "serverName": "mywebserver-operator-metrics.web.svc",
        "ca": {"secret": {"name": "cert", "key": "ca.crt"}},
    });
    assert_eq!(endpoint(&verified)["tlsConfig"], expected);
    let pod = &deployment(&verified)["template"]["spec"];
    let container = &pod["containers"][0];
    assert_eq!(pod["volumes"][0]["secret"], json!({"secretName": "cert"}));
    assert_eq!(pod["volumes"][0]["name"], container["volumeMounts"][0]["name"]);
    let path = container["volumeMounts"][0]["mountPath"].as_str().unwrap();
    assert_eq!(container["args"][3], format!("--metrics-cert-path={path}"));

    let labelled = [
        "monitoring.enabled=true,monitoring.labels.release=prometheus",
        "monitoring.runbookUrl=https://docs.example/metrics",
    ];
    for kind in ["ServiceMonitor", "PrometheusRule"] {
        assert_eq!(of(kind, &labelled)[0]["metadata"]["labels"]["release"], "prometheus");
    }
    let rule = &of("PrometheusRule", &labelled)[0]["spec"]["groups"][0]["rules"][0];
    assert_eq!(rule["annotations"]["runbook_url"], "https://docs.example/metrics#listwatchdown");
    let role = |values: &[&str], name: &str| {
        of("ClusterRole", values).into_iter().find(|role| role["metadata"]["name"] == name).expect(name)
    };
    let mut needed = allowed_by(&rbac(&["mywebserver", "--metrics-secure"])[..1]);
    needed.retain(|one| !allowed_by(&rbac(&["mywebserver"])[..1]).contains(one));
    assert_eq!(allowed(&role(&secure, "mywebserver-operator-metrics-auth")), needed);
    let reader = role(&secure, "mywebserver-operator-metrics-reader");
    assert_eq!(reader["rules"], json!([{"nonResourceURLs": ["/metrics"], "verbs": ["get"]}]));
    // Another namespaced release has roles of other names.
    role(&["metrics.secure=true,namespaced=true"], "mywebserver-operator-web-metrics-auth");

    assert_eq!(of("PodDisruptionBudget", &["podDisruptionBudget.enabled=false"]), [Value::Null; 0]);
    assert_eq!(of("CustomResourceDefinition", &["crds.enabled=false"]), [Value::Null; 0]);
    let definition = &of("CustomResourceDefinition", &["crds.keep=false"])[0];
    assert_eq!(definition["metadata"]["annotations"], Value::Null);
    let account = &of("ServiceAccount", &["serviceAccount.name=me,serviceAccount.annotations.a=b"])[0];
    let metadata = &account["metadata"];
    assert_eq!((&metadata["name"], &metadata["annotations"]), (&json!("me"), &json!({"a": "b"})));
    let existing = ["serviceAccount.create=false,serviceAccount.name=me"];
    assert_eq!(of("ServiceAccount", &existing), [Value::Null; 0]);
    assert_eq!(deployment(&existing)["template"]["spec"]["serviceAccountName"], "me");
    let bindings = [of("RoleBinding", &existing), of("ClusterRoleBinding", &existing)].concat();
    assert!(bindings.len() == 2 && bindings.iter().all(|binding| binding["subjects"][0]["name"] == "me"));
    assert_eq!(of("Pod", &[])[0]["spec"]["containers"][0]["args"][0], "get");

    for (values, problem) in [
        ("extraargs={}", "additional properties 'extraargs' not allowed"),
        ("image.name=a", "additional properties 'name' not allowed"),
        ("operators={nothing}", "value must be one of"),
        ("replicas=-1", "minimum"),
        ("namespaced=2", "want boolean"),
        ("metrics.secure=yes", "want boolean"),
        ("metrics.tls=true", "additional properties 'tls' not allowed"),
        ("metrics.certificateSecret=cert", "metrics.certificateSecret needs metrics.secure"),
        ("serviceAccount.create=false", "give the name of a ServiceAccount"),
        ("operators={mywebserver,memcached},serviceAccount.name=me", "each has a ServiceAccount of its own"),
        ("operators={copyrator},namespaced=true", "not for the copyrator"),
    ] {
        let output = Command::new(&helm)
            .args(["template", "any", "manifests/chart", "--set", values])
            .current_dir(crate::ROOT)
            .output()
            .unwrap();
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && error.contains(problem), "{values}: {error}");
    }
}

/// Somebody who has only the package has no directories beside it. Needs `LISTWATCH_HELM`.
#[test]
fn the_packaged_chart_has_files_in_place_of_links() {
    let Some(helm) = helm() else { return };
    let dir = tempfile::tempdir().unwrap();
    let destination = dir.path().to_str().unwrap();
    print(&helm, &["package", "chart", "--destination", destination]);
    let package = fs::read_dir(destination).unwrap().next().unwrap().unwrap().path();
    let package = package.to_str().unwrap();
    let all = format!("operators={{{}}}", operators().join(","));
    let rendered = |from: &str| render(&helm, &["template", "any", from, "--set", &all]);
    assert_eq!(rendered(package), rendered("chart"));
    let entries = Command::new("tar").args(["-tvzf", package]).output().unwrap();
    let entries = String::from_utf8(entries.stdout).unwrap();
    assert!(entries.lines().count() > 20 && entries.lines().all(|line| line.starts_with('-')), "{entries}");
}

/// Why an operator cannot read this object, if so.
fn unreadable(object: Value) -> Option<String> {
    fn problem<T: DeserializeOwned>(object: Value) -> Option<String> {
        serde_json::from_value::<T>(object).err().map(|error| error.to_string())
    }
    match object["kind"].as_str().unwrap() {
        "MyWebserver" => problem::<MyWebserver>(object),
        "Memcached" => problem::<Memcached>(object),
        "Database" => problem::<Database>(object),
        // Its metadata are always readable.
        "CopyratorRule" => serde_json::from_value::<CopyratorRule>(object).unwrap().spec.err(),
        "ConfigMap" => problem::<ConfigMap>(object),
        "Secret" => problem::<Secret>(object),
        kind => panic!("{kind}: not the kind of a sample"),
    }
}

#[tokio::test]
async fn each_crd_and_each_sample_is_accepted_without_a_warning_and_readable() {
    on(&[Kind::Embedded, Kind::Real], async |fixture| {
        let accepted = async |method: Method, path: &str, object: &Value| -> Value {
            let mut request =
                Request::get(path).sends(method, "application/json", object.to_string().into_bytes());
            request.query.push(("fieldValidation", "Strict".to_owned()));
            let answer = fixture.client.send(request).await.unwrap();
            assert_eq!(answer.headers.get("warning"), None, "{path}");
            serde_json::from_slice(&answer.body).unwrap()
        };
        let crds = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
        for name in operators() {
            let mut definition = BuiltIn::from_str(&name, false).unwrap().definitions().remove(0);
            let created = fixture.try_create(crds, &definition).await;
            assert!(created.as_ref().err().is_none_or(Error::is_already_exists), "{created:?}");
            let text = |field: &Value| field.as_str().unwrap().to_owned();
            let [plural, kind] = ["plural", "kind"].map(|field| text(&definition["spec"]["names"][field]));
            let served = fixture.path(&plural);
            eventually("the CRD to be served", async || fixture.raw(&served).await.ok()).await;
            let path = format!("{crds}/{}", text(&definition["metadata"]["name"]));
            let mut stored: Value = serde_json::from_str(&fixture.raw(&path).await.unwrap()).unwrap();
            definition["metadata"]["resourceVersion"] = stored["metadata"]["resourceVersion"].take();
            accepted(Method::PUT, &format!("{path}?dryRun=All"), &definition).await;

            let mut kinds = BTreeSet::new();
            let dir = format!("{name}/samples");
            for entry in fs::read_dir(Path::new(crate::ROOT).join("manifests").join(&dir)).unwrap() {
                let file = format!("{dir}/{}", entry.unwrap().file_name().to_str().unwrap());
                for mut object in read(&file) {
                    object["metadata"].as_object_mut().unwrap().remove("namespace");
                    let (version, sampled) = (text(&object["apiVersion"]), text(&object["kind"]));
                    let path = match &*sampled {
                        "ConfigMap" => fixture.path("configmaps"),
                        "Secret" => fixture.path("secrets"),
                        _ => format!("/apis/{version}/namespaces/{}/{plural}", fixture.namespace),
                    };
                    let taken = accepted(Method::POST, &path, &object).await;
                    assert_eq!(unreadable(taken), None, "{file}");
                    kinds.insert(sampled);
                }
            }
            assert!(kinds.contains(&kind), "{dir}: {kinds:?}");
        }
    })
    .await;
}

/// Everything that an operator does, on a server without a garbage collector. The ClusterRole must allow exactly the
/// requests in the audit log: with more permissions, a leaked token could do harm; with fewer, something would not
/// work.
#[tokio::test]
async fn the_cluster_role_allows_exactly_the_requests_of_the_operator() {
    // A streaming list is a watch, and does not need the verb `list`.
    on(&[Kind::RealPaged], async |fixture| {
        with_crd(fixture, &older_crd()).await;
        // Another owner's object with the name of a child, which is then deleted.
        fixture.create_service("mws-web").await;
        fixture.start_operator(&[]).await;
        fixture.create_web("web", json!({"image": "nginx"})).await;
        fixture.until_condition("web", "Stalled", "True", "NameConflict").await;
        fixture.delete("services/mws-web").await;
        // Not ready for a while, so that the operator lists its Pods.
        let generation = fixture.get("deployments/mws-web").await["metadata"]["generation"].clone();
        let status = json!({"observedGeneration": generation, "replicas": 1, "updatedReplicas": 1});
        fixture.patch("deployments/mws-web/status", json!({ "status": status })).await;
        let is_pod_list = |record: &crate::fixture::Record| record.path.contains("/pods?");
        eventually("the Pods to be listed", async || {
            fixture.records().await.iter().any(is_pod_list).then_some(())
        })
        .await;
        // A cause for each kind of write: an update, a drift, a lost label.
        fixture.patch("mywebservers/web", json!({"spec": {"replicas": 2, "port": 81}})).await;
        fixture.settle().await;
        let unlabelled = json!({"metadata": {"labels": {"app.kubernetes.io/managed-by": null}}});
        fixture.patch("deployments/mws-web", unlabelled).await;
        fixture.settle().await;
        fixture.patch("services/mws-web", json!({"spec": {"type": "NodePort"}})).await;
        // Unreadable, so that the operator must GET it.
        fixture.create_web("eighty", json!({"image": "nginx", "port": "eighty"})).await;
        fixture.until_condition("eighty", "Stalled", "True", "InvalidSpec").await;
        fixture.settle().await;
        fixture.delete("mywebservers/web").await;
        for child in ["deployments/mws-web", "services/mws-web"] {
            fixture.until_gone(child).await;
        }
        fixture.settle().await;

        let mut allowed = allowed(&cluster_role());
        // Never requested, but checked by an admission plugin: see the file.
        assert!(allowed.remove("update mywebservers/finalizers.k8sobjects.gsa.com"));
        // The audit log has a watch only after its end.
        fixture.stop_operator().await;
        eventually("the three watches to be logged", async || {
            let watches =
                fixture.records().await.into_iter().filter(|record| record.path.contains("watch=1"));
            (watches.count() >= 3).then_some(())
        })
        .await;
        assert_eq!(used(fixture.control_plane(), &fixture.operator_user()), allowed);
    })
    .await;
}
