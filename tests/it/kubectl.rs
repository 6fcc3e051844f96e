//! kubectl, on the embedded API server as on the real one: the same commands, the same words.
//!
//! The one in `KUBEBUILDER_ASSETS` is asked, and on the embedded server each that `LISTWATCH_KUBECTL` names too, colons
//! between them. Without either, none of this runs.

use std::{
    env, fs,
    io::{self, Write},
    path::PathBuf,
    process::Stdio,
    sync::LazyLock,
};

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
    kubectl: &'static Kubectl,
    dir: TempDir,
}

struct Kubectl {
    path: PathBuf,
    servers: Servers,
}

/// Which a kubectl is tried on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Servers {
    All,
    /// The real one answers those of other versions as Kubernetes promises, which is not for us to test.
    Embedded,
}

/// All that are there; says which, once.
static KUBECTLS: LazyLock<Vec<Kubectl>> = LazyLock::new(|| {
    let own = plane::assets().map(|dir| Kubectl { path: dir.join("kubectl"), servers: Servers::All });
    let named = env::var_os("LISTWATCH_KUBECTL").unwrap_or_default();
    let named = env::split_paths(&named).filter(|path| !path.as_os_str().is_empty());
    let named = named.map(|path| Kubectl { path, servers: Servers::Embedded });
    let all: Vec<_> = own.into_iter().chain(named).collect();
    for Kubectl { path, servers } in &all {
        let output = std::process::Command::new(path).args(["version", "--client"]).output();
        let output = output.unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let said = String::from_utf8_lossy(&output.stdout);
        let version = said.lines().next().unwrap_or_else(|| panic!("{} says nothing", path.display()));
        // Not with `eprintln`, of which the test harness shows nothing where a test succeeds.
        let _ = writeln!(io::stderr(), "kubectl, servers {servers:?}: {version}, {}", path.display());
    }
    all
});

/// Runs a script with each kubectl, in worlds of these kinds.
async fn with_each(kinds: &[Kind], script: impl AsyncFn(&Terminal) + Copy + 'static) {
    if KUBECTLS.is_empty() {
        // Says so.
        has_real();
    }
    for kubectl in KUBECTLS.iter() {
        let is_tried_on = |kind: &Kind| kubectl.servers == Servers::All || *kind != Kind::Real;
        let kinds: Vec<_> = kinds.iter().copied().filter(is_tried_on).collect();
        on(&kinds, async move |world| script(&Terminal::open(world, kubectl)).await).await;
    }
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

const AROUND: &str = "
apiVersion: v1
kind: Pod
metadata: {name: shop, labels: {app: shop}}
spec: {containers: [{name: shop, image: 'nginx:1', ports: [{containerPort: 80}]}]}
---
apiVersion: v1
kind: Service
metadata: {name: shop}
spec: {selector: {app: shop}, ports: [{name: http, port: 80, targetPort: 8080}]}
";

impl<'a> Terminal<'a> {
    fn open(world: &'a World, kubectl: &'static Kubectl) -> Terminal<'a> {
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
        fs::write(file("around.yaml"), AROUND).unwrap();
        Terminal { world, kubectl, dir }
    }

    fn command(&self, line: &str) -> Command {
        let mut command = Command::new(&self.kubectl.path);
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
    with_each(&SERVERS, async |kubectl| {
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
    with_each(&SERVERS, async |kubectl| {
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
    with_each(&SERVERS, async |kubectl| {
        kubectl.says("api-resources", "deployments\nmywebservers").await;
        kubectl.says("explain mywebserver.spec.port", "KIND:       MyWebserver\nport <integer>").await;
        kubectl.says("get --raw /readyz", "ok").await;
        kubectl.world.create_web("shop", json!({"image": "nginx"})).await;
        kubectl.says("get mywebservers", "shop").await;
        kubectl.says("describe mywebserver/shop", "Kind:         MyWebserver").await;
        kubectl.says("scale mywebserver/shop --replicas=2", "mywebserver.k8sobjects.gsa.com/shop scaled").await;
        let event = json!({"metadata": {"name": "e"}, "regarding": {"kind": "ConfigMap", "name": "conf",
            "namespace": &*kubectl.world.namespace}, "reason": "Noted", "note": "look", "type": "Normal", "action": "Look",
            "reportingController": "tests/it", "reportingInstance": "it", "eventTime": "2026-11-21T07:00:00.000000Z"});
        kubectl.world.create("events", &event).await;
        kubectl.says("events", "Noted\nConfigMap/conf\nlook").await;

        // Until something happens, and then until it is read.
        for (line, expected) in
            [("get cm/late -w --ignore-not-found -o name", "configmap/late"), ("get cm -w", "late ")]
        {
            let mut watch = kubectl.command(line).stdout(Stdio::piped()).spawn().unwrap();
            let mut lines = BufReader::new(watch.stdout.take().unwrap()).lines();
            kubectl.world.create("configmaps", &json!({"metadata": {"name": "late"}})).await;
            let told = async {
                while !lines.next_line().await.unwrap().expect("a line").starts_with(expected) {}
            };
            tokio::time::timeout(plane::PATIENCE, told).await.unwrap();
            watch.kill().await.unwrap();
            kubectl.world.delete("configmaps/late").await;
        }
    })
    .await;
}

#[tokio::test]
async fn kubectl_waits_for_a_rollout_and_hears_what_is_not_spoken() {
    with_each(&[Kind::EmbeddedWithControllers], async |kubectl| {
        kubectl.says("apply -f 1.yaml", "deployment.apps/shop created").await;
        kubectl.says("rollout status deploy/shop", "successfully rolled out").await;
        kubectl
            .says("wait --for=condition=Available deploy/shop", "deployment.apps/shop condition met")
            .await;
        kubectl.says("describe node/node-1", "KubeletReady\n(1 in total)\nshop-").await;
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

#[tokio::test]
async fn kubectl_describes_a_pod_and_a_service() {
    with_each(&SERVERS, async |kubectl| {
        kubectl.says("create -f around.yaml", "pod/shop created\nservice/shop created").await;
        // The columns are as wide as what is in them.
        kubectl.says("describe pod/shop", "app=shop\nPending\nnginx:1\n80/TCP\nBestEffort").await;
        kubectl.says("describe service/shop", "app=shop\nClusterIP\nhttp  80/TCP\n8080/TCP").await;
    })
    .await;
}

/// A Deployment, and a ConfigMap that it owns.
#[tokio::test]
async fn kubectl_deletes_with_and_without_the_children() {
    with_each(&[Kind::EmbeddedWithControllers, Kind::Real], async |kubectl| {
        let child = async || kubectl.world.find("configmaps/child").await;
        for how in ["orphan", "background", "foreground"] {
            kubectl.says("create -f 1.yaml", "deployment.apps/shop created").await;
            let uid = kubectl.world.get("deployments/shop").await["metadata"]["uid"].clone();
            let owner = json!({"apiVersion": "apps/v1", "kind": "Deployment", "name": "shop", "uid": uid,
                "blockOwnerDeletion": true});
            let object = json!({"metadata": {"name": "child", "ownerReferences": [owner]}});
            kubectl.world.create("configmaps", &object).await;

            kubectl.says(&format!("delete deploy/shop --cascade={how}"), "\"shop\" deleted").await;
            match how {
                "orphan" => {
                    let left = child().await.expect("the orphan");
                    assert!(left["metadata"]["ownerReferences"].is_null(), "{left}");
                    kubectl.says("delete cm/child", "\"child\" deleted").await;
                }
                "background" => {
                    eventually("the child to go", async || child().await.is_none().then_some(())).await;
                }
                _ => assert_eq!(child().await, None, "it goes first"),
            }
            kubectl.says("delete cm/conf", "\"conf\" deleted").await;
        }
    })
    .await;
}
