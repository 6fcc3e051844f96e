//! kubectl, on the embedded API server as on the real one: the same commands, the same words.
//!
//! It comes from `KUBEBUILDER_ASSETS`; without that, none of this runs.

use std::{fs, process::Stdio};

use serde_json::json;
use tempfile::TempDir;
use tokio::{
    io::{AsyncBufReadExt, BufReader},
    process::Command,
};

use crate::{
    hands::eventually,
    plane,
    world::{Kind, World, has_real, on},
};

/// Somebody at a terminal, in the namespace of a world.
struct Terminal<'a> {
    world: &'a World,
    dir: TempDir,
}

const SERVERS: [Kind; 2] = [Kind::Embedded, Kind::Real];

const FILE: &str = "
apiVersion: apps/v1
kind: Deployment
metadata: {name: shop, labels: {app: shop}}
spec:
  replicas: 1
  selector: {matchLabels: {app: shop}}
  template:
    metadata: {labels: {app: shop}}
    spec: {containers: [{name: shop, image: 'nginx:1', ports: [{containerPort: 80}]}]}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: conf}
data: {a: one}
";

impl<'a> Terminal<'a> {
    fn open(world: &'a World) -> Terminal<'a> {
        let dir = TempDir::new().unwrap();
        let file = |name: &str| dir.path().join(name);
        fs::write(file("ca.crt"), world.ca_pem()).unwrap();
        let config = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "here",
            "clusters": [{"name": "here", "cluster": {"server": world.url(), "certificate-authority": file("ca.crt")}}],
            "users": [{"name": "admin", "user": {"token": world.admin_token()}}],
            "contexts": [{"name": "here", "context":
                {"cluster": "here", "user": "admin", "namespace": &*world.namespace}}],
        });
        fs::write(file("kubeconfig"), config.to_string()).unwrap();
        fs::write(file("1.yaml"), FILE).unwrap();
        fs::write(file("2.yaml"), FILE.replace("nginx:1", "nginx:2").replace("one", "two")).unwrap();
        fs::write(file("3.yaml"), FILE.replace("nginx:1", "nginx:3").replace("one", "three")).unwrap();
        let unknown = "apiVersion: nope.example.com/v1\nkind: Nope\nmetadata: {name: a}\n";
        fs::write(file("unknown.yaml"), unknown).unwrap();
        Terminal { world, dir }
    }

    fn command(&self, line: &str) -> Command {
        let mut command = Command::new(plane::assets().unwrap().join("kubectl"));
        command.args(line.split(' ')).current_dir(self.dir.path());
        command.env("KUBECONFIG", self.dir.path().join("kubeconfig")).env("HOME", self.dir.path());
        command.env("EDITOR", "sed -i s/nginx:3/nginx:4/").env("KUBECTL_EXTERNAL_DIFF", "diff -u");
        command.stdin(Stdio::null()).kill_on_drop(true);
        command
    }

    /// The exit code of a command, and all that it says.
    async fn runs(&self, line: &str) -> (i32, String) {
        let output = self.command(line).output().await.unwrap();
        let said = [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
        (output.status.code().unwrap(), said.concat().replace(&self.world.namespace, "NS"))
    }

    /// Runs a command that succeeds and says this, among other things.
    #[track_caller]
    fn says(&self, line: &str, expected: &str) -> impl Future<Output = String> {
        self.ends(line, 0, expected)
    }

    #[track_caller]
    fn ends(&self, line: &str, code: i32, expected: &str) -> impl Future<Output = String> {
        let caller = std::panic::Location::caller();
        async move {
            let (ended, said) = self.runs(line).await;
            assert_eq!(ended, code, "{caller}: kubectl {line}: {said}");
            for line in expected.lines() {
                assert!(said.contains(line.trim()), "{caller}: no {line:?} in {said}");
            }
            said
        }
    }
}

#[tokio::test]
async fn kubectl_creates_changes_and_deletes() {
    if !has_real() {
        return;
    }
    on(&SERVERS, async |world| {
        let kubectl = Terminal::open(world);
        kubectl.says("create -f 1.yaml", "deployment.apps/shop created\nconfigmap/conf created").await;
        kubectl.ends("create -f 1.yaml", 1, "deployments.apps \"shop\" already exists").await;
        kubectl
            .ends(
                "create -f unknown.yaml",
                1,
                "no matches for kind \"Nope\" in version \"nope.example.com/v1\"",
            )
            .await;
        kubectl
            .says("apply -f 1.yaml", "is missing the kubectl.kubernetes.io/last-applied-configuration")
            .await;
        kubectl.says("diff -f 1.yaml", "").await;
        kubectl
            .ends("diff -f 2.yaml", 1, "-      - image: nginx:1\n+      - image: nginx:2\n+  a: two")
            .await;
        kubectl.says("apply -f 2.yaml", "deployment.apps/shop configured\nconfigmap/conf configured").await;
        kubectl
            .says(
                "get deploy/shop -o wide",
                "CONTAINERS   IMAGES    SELECTOR\nshop         nginx:2   app=shop",
            )
            .await;
        kubectl.says("apply -f 2.yaml", "deployment.apps/shop unchanged\nconfigmap/conf unchanged").await;
        kubectl.says("label cm/conf x=y", "configmap/conf labeled").await;
        kubectl.says("label cm/conf x=y", "configmap/conf not labeled").await;
        kubectl.says("annotate cm/conf note=it", "configmap/conf annotated").await;
        kubectl.says("label cm/conf x-", "configmap/conf unlabeled").await;
        kubectl.says("scale deploy/shop --replicas=3", "deployment.apps/shop scaled").await;
        kubectl.says("set image deploy/shop shop=nginx:3", "deployment.apps/shop image updated").await;
        kubectl.says("edit deploy/shop", "deployment.apps/shop edited").await;
        kubectl.says("get deploy/shop -o jsonpath={.spec.replicas}/{..image}", "3/nginx:4").await;
        for patch in [
            r#"-p {"data":{"b":"1"}}"#,
            r#"--type=merge -p {"data":{"b":"2"}}"#,
            r#"--type=json -p [{"op":"replace","path":"/data/b","value":"3"}]"#,
        ] {
            kubectl.says(&format!("patch cm/conf {patch}"), "configmap/conf patched").await;
        }
        kubectl.says("get cm/conf -o jsonpath={.data}", r#"{"a":"two","b":"3"}"#).await;
        kubectl.says("replace -f 1.yaml", "deployment.apps/shop replaced\nconfigmap/conf replaced").await;
        kubectl.says("get cm/conf -o jsonpath={.data}", r#"{"a":"one"}"#).await;
        kubectl.says("wait --for=jsonpath={.data.a}=one cm/conf", "configmap/conf condition met").await;
        kubectl.says("describe deploy/shop", "Image:         nginx:1").await;
        kubectl.says("delete -f 1.yaml --cascade=background", "\"shop\" deleted\n\"conf\" deleted").await;
        kubectl.ends("get deploy/shop", 1, "deployments.apps \"shop\" not found").await;
    })
    .await;
}

#[tokio::test]
async fn kubectl_goes_over_to_the_servers_side_and_meets_others_there() {
    if !has_real() {
        return;
    }
    on(&SERVERS, async |world| {
        let kubectl = Terminal::open(world);
        kubectl.says("apply -f 1.yaml", "deployment.apps/shop created").await;
        kubectl.says("apply --server-side -f 2.yaml", "deployment.apps/shop serverside-applied").await;
        let fields = kubectl.says("get cm/conf -o yaml --show-managed-fields", "manager: kubectl").await;
        assert!(!fields.contains("kubectl-client-side-apply"), "{fields}");
        kubectl.ends("diff --server-side -f 3.yaml", 1, "-      - image: nginx:2\n+      - image: nginx:3").await;
        let other = "apply --server-side --field-manager=other -f 3.yaml";
        let conflict = "Apply failed with 1 conflict: conflict with \"kubectl\": .spec.template.spec.containers[name=\"shop\"].image";
        kubectl.ends(other, 1, conflict).await;
        kubectl.says(&format!("{other} --force-conflicts"), "deployment.apps/shop serverside-applied").await;
        kubectl.says("get deploy/shop -o jsonpath={..image}", "nginx:3").await;
        kubectl.says("get cm/conf -o yaml", "a: three").await;
        kubectl.says("apply view-last-applied cm/conf", "").await;
        kubectl.says("delete deploy/shop --cascade=orphan --wait=false", "\"shop\" deleted").await;
        kubectl.says("delete cm/conf --cascade=foreground --wait=false", "\"conf\" deleted").await;
    })
    .await;
}

#[tokio::test]
async fn kubectl_looks_around() {
    if !has_real() {
        return;
    }
    on(&SERVERS, async |world| {
        let kubectl = Terminal::open(world);
        kubectl.says("api-resources", "deployments\nmywebservers").await;
        kubectl.says("explain mywebserver.spec.port", "KIND:       MyWebserver\nport <integer>").await;
        kubectl.says("get --raw /readyz", "ok").await;
        world.create_web("shop", json!({"image": "nginx"})).await;
        kubectl.says("get mywebservers", "shop").await;
        kubectl.says("describe mywebserver/shop", "Kind:         MyWebserver").await;
        kubectl.says("scale mywebserver/shop --replicas=2", "mywebserver.k8sobjects.gsa.com/shop scaled").await;
        let event = json!({"metadata": {"name": "e"}, "regarding": {"kind": "ConfigMap", "name": "conf",
            "namespace": &*world.namespace}, "reason": "Noted", "note": "look", "type": "Normal", "action": "Look",
            "reportingController": "tests/it", "reportingInstance": "it", "eventTime": "2026-11-21T07:00:00.000000Z"});
        world.create("events", &event).await;
        kubectl.says("events", "Noted\nConfigMap/conf\nlook").await;

        // Until something happens, and then until it is read.
        for (line, expected) in
            [("get cm/late -w --ignore-not-found -o name", "configmap/late"), ("get cm -w", "late ")]
        {
            let mut watch = kubectl.command(line).stdout(Stdio::piped()).spawn().unwrap();
            let mut lines = BufReader::new(watch.stdout.take().unwrap()).lines();
            world.create("configmaps", &json!({"metadata": {"name": "late"}})).await;
            let told = async {
                while !lines.next_line().await.unwrap().expect("a line").starts_with(expected) {}
            };
            tokio::time::timeout(plane::PATIENCE, told).await.unwrap();
            watch.kill().await.unwrap();
            world.delete("configmaps/late").await;
        }
    })
    .await;
}

#[tokio::test]
async fn kubectl_waits_for_a_rollout_and_hears_what_is_not_spoken() {
    if !has_real() {
        return;
    }
    on(&[Kind::EmbeddedWithControllers], async |world| {
        let kubectl = Terminal::open(world);
        kubectl.says("apply -f 1.yaml", "deployment.apps/shop created").await;
        kubectl.says("rollout status deploy/shop", "successfully rolled out").await;
        kubectl
            .says("wait --for=condition=Available deploy/shop", "deployment.apps/shop condition met")
            .await;
        kubectl.says("rollout restart deploy/shop", "deployment.apps/shop restarted").await;
        kubectl.says("delete deploy/shop --cascade=foreground", "\"shop\" deleted").await;
        let gone = async || kubectl.runs("get pods").await.1.contains("No resources found").then_some(());
        eventually("the Pods to go", gone).await;
        let instead =
            "add --dry-run=client -o yaml to the command, and pipe what it prints into kubectl create -f -";
        for line in ["create cm c --from-literal=a=b", "create deployment x --image=nginx"] {
            kubectl.ends(line, 1, instead).await;
        }
    })
    .await;
}
