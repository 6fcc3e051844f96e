//! kubectl prints the same with the embedded API server as with kube-apiserver.
//!
//! The kubectl of `KUBEBUILDER_ASSETS` runs against both servers, and each path in `LISTWATCH_KUBECTL`, separated by
//! colons, against the embedded server. Without either variable, no test of this file runs a command.

use std::{
    env, fs,
    io::{self, Write},
    path::PathBuf,
    process::Stdio,
    sync::LazyLock,
};

use listwatch_control_plane::{PATIENCE, assets, eventually, has_assets};
use serde_json::json;
use tempfile::TempDir;
use tokio::{
    io::{AsyncBufReadExt, BufReader},
    process::Command,
};

use crate::fixture::{Fixture, Kind, on_all};

/// A directory with a kubeconfig and manifests, in which kubectl runs against a fixture.
struct Terminal<'a> {
    fixture: &'a Fixture,
    kubectl: &'static Kubectl,
    dir: TempDir,
}

struct Kubectl {
    path: PathBuf,
    servers: Servers,
}

/// The servers that a kubectl runs against.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Servers {
    All,
    /// For other versions of kubectl: Kubernetes tests their compatibility with kube-apiserver.
    Embedded,
}

/// All kubectls to test. Prints their versions once.
static KUBECTLS: LazyLock<Vec<Kubectl>> = LazyLock::new(|| {
    let current = assets().map(|dir| Kubectl { path: dir.join("kubectl"), servers: Servers::All });
    let older = env::var_os("LISTWATCH_KUBECTL").unwrap_or_default();
    let older = env::split_paths(&older).filter(|path| !path.as_os_str().is_empty());
    let older = older.map(|path| Kubectl { path, servers: Servers::Embedded });
    let all: Vec<_> = current.into_iter().chain(older).collect();
    for Kubectl { path, servers } in &all {
        let output = std::process::Command::new(path).args(["version", "--client"]).output();
        let output = output.unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let stdout = String::from_utf8_lossy(&output.stdout);
        let version = stdout.lines().next().unwrap_or_else(|| panic!("{} prints nothing", path.display()));
        // Not with `eprintln`: the test harness hides its output when a test succeeds.
        let _ = writeln!(io::stderr(), "kubectl, servers {servers:?}: {version}, {}", path.display());
    }
    all
});

/// Runs a script with each kubectl, in fixtures of these kinds.
async fn with_each_kubectl(kinds: &[Kind], script: impl AsyncFn(&Terminal) + Copy + 'static) {
    // Prints that KUBEBUILDER_ASSETS, which has the current kubectl, is not set.
    has_assets();
    for kubectl in KUBECTLS.iter() {
        let runs_on = |kind: &Kind| kubectl.servers == Servers::All || *kind != Kind::Real;
        let kinds: Vec<_> = kinds.iter().copied().filter(runs_on).collect();
        on_all(&kinds, async move |fixture| script(&Terminal::open(fixture, kubectl)).await).await;
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

const LABELLED: &str = "
apiVersion: v1
kind: ConfigMap
metadata: {name: old, labels: {app: shop}}
";

const POD_AND_SERVICE: &str = "
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

const LOGS: &str = "
apiVersion: v1
kind: Pod
metadata:
  name: cache
  annotations: {listwatch/logs: \"starting\\nready\\n\", listwatch/logs.metrics: scraped}
spec: {containers: [{name: redis, image: 'redis:8'}, {name: metrics, image: 'exporter:1'}]}
---
apiVersion: v1
kind: Pod
metadata: {name: silent, annotations: {listwatch/simulate: crash}}
spec: {containers: [{name: c, image: 'busybox:1'}]}
---
apiVersion: metrics.k8s.io/v1beta1
kind: PodMetrics
metadata: {name: cache}
timestamp: '2026-11-21T07:00:00Z'
window: 30s
containers:
- {name: redis, usage: {cpu: 250m, memory: 64Mi}}
- {name: metrics, usage: {cpu: 10m, memory: 16Mi}}
---
apiVersion: metrics.k8s.io/v1beta1
kind: NodeMetrics
metadata: {name: node-1}
timestamp: '2026-11-21T07:00:00Z'
window: 30s
usage: {cpu: '2', memory: 4Gi}
";

const TOKEN: &str = "
apiVersion: v1
kind: Secret
metadata: {name: robot, annotations: {kubernetes.io/service-account.name: robot}}
type: kubernetes.io/service-account-token
";

const WORKLOADS: &str = "
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: db}
spec:
  replicas: 2
  selector: {matchLabels: {app: db}}
  template:
    metadata: {labels: {app: db}}
    spec: {containers: [{name: db, image: 'postgres:1'}]}
  volumeClaimTemplates:
  - metadata: {name: data}
    spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}
---
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata: {name: db}
spec: {maxUnavailable: 1, selector: {matchLabels: {app: db}}}
---
apiVersion: batch/v1
kind: CronJob
metadata: {name: nightly}
spec:
  schedule: 0 3 * * *
  suspend: true
  jobTemplate:
    spec: {template: {spec: {restartPolicy: Never, containers: [{name: c, image: 'postgres:1'}]}}}
---
apiVersion: batch/v1
kind: Job
metadata: {name: backup}
spec: {template: {spec: {restartPolicy: Never, containers: [{name: c, image: 'postgres:1'}]}}}
";

impl<'a> Terminal<'a> {
    fn open(fixture: &'a Fixture, kubectl: &'static Kubectl) -> Terminal<'a> {
        let dir = TempDir::new().unwrap();
        let file = |name: &str| dir.path().join(name);
        fs::write(file("ca.crt"), &fixture.ca_pem).unwrap();
        let config = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "here",
            "clusters": [{"name": "here", "cluster": {"server": &fixture.url, "certificate-authority": file("ca.crt")}}],
            "users": [{"name": "admin", "user": {"token": &fixture.token}}],
            "contexts": [{"name": "here", "context":
                {"cluster": "here", "user": "admin", "namespace": &*fixture.namespace}}],
        });
        fs::write(file("kubeconfig"), config.to_string()).unwrap();
        fs::write(file("1.yaml"), FILE).unwrap();
        fs::write(file("2.yaml"), FILE.replace("nginx:1", "nginx:2").replace("one", "two")).unwrap();
        fs::write(file("3.yaml"), FILE.replace("nginx:1", "nginx:3").replace("one", "three")).unwrap();
        let unknown = "apiVersion: nope.example.com/v1\nkind: Nope\nmetadata: {name: a}\n";
        fs::write(file("unknown.yaml"), unknown).unwrap();
        fs::write(file("old.yaml"), LABELLED).unwrap();
        fs::write(file("pod.yaml"), POD_AND_SERVICE).unwrap();
        fs::write(file("workloads.yaml"), WORKLOADS).unwrap();
        fs::write(file("logs.yaml"), LOGS).unwrap();
        fs::write(file("token.yaml"), TOKEN).unwrap();
        Terminal { fixture, kubectl, dir }
    }

    fn command(&self, line: &str) -> Command {
        let mut command = Command::new(&self.kubectl.path);
        command.args(line.split(' ')).current_dir(self.dir.path());
        command.env("KUBECONFIG", self.dir.path().join("kubeconfig")).env("HOME", self.dir.path());
        command.env("EDITOR", "sed -i s/nginx:3/nginx:4/").env("KUBECTL_EXTERNAL_DIFF", "diff -u");
        command.stdin(Stdio::null()).kill_on_drop(true);
        command
    }

    /// The exit code and the output of a command.
    async fn run(&self, line: &str) -> (i32, String) {
        let output = self.command(line).output().await.unwrap();
        let text = [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
        (output.status.code().unwrap(), text.concat().replace(&self.fixture.namespace, "NS"))
    }

    /// Runs a command that must succeed, with each line of `expected` in its output.
    #[track_caller]
    fn prints(&self, line: &str, expected: &str) -> impl Future<Output = String> {
        self.ends(line, 0, expected)
    }

    /// Runs a command that must end with exit code 1, with each line of `expected` in its output.
    #[track_caller]
    fn fails(&self, line: &str, expected: &str) -> impl Future<Output = String> {
        self.ends(line, 1, expected)
    }

    /// Runs a command that must end with this exit code, with each line of `expected` in its output.
    #[track_caller]
    fn ends(&self, line: &str, code: i32, expected: &str) -> impl Future<Output = String> {
        let caller = std::panic::Location::caller();
        async move {
            let (exit, output) = self.run(line).await;
            assert_eq!(exit, code, "{caller}: kubectl {line}: {output}");
            for line in expected.lines() {
                assert!(output.contains(line.trim()), "{caller}: no {line:?} in {output}");
            }
            output
        }
    }
}

#[tokio::test]
async fn kubectl_creates_changes_and_deletes() {
    with_each_kubectl(&SERVERS, async |kubectl| {
        kubectl.prints("create -f 1.yaml", "deployment.apps/shop created\nconfigmap/conf created").await;
        kubectl.fails("create -f 1.yaml", "deployments.apps \"shop\" already exists").await;
        kubectl
            .fails(
                "create -f unknown.yaml",
                "no matches for kind \"Nope\" in version \"nope.example.com/v1\"",
            )
            .await;
        kubectl
            .prints("apply -f 1.yaml", "is missing the kubectl.kubernetes.io/last-applied-configuration")
            .await;
        kubectl.prints("diff -f 1.yaml", "").await;
        kubectl.fails("diff -f 2.yaml", "-      - image: nginx:1\n+      - image: nginx:2\n+  a: two").await;
        kubectl.prints("apply -f 2.yaml", "deployment.apps/shop configured\nconfigmap/conf configured").await;
        kubectl
            .prints(
                "get deploy/shop -o wide",
                "CONTAINERS   IMAGES    SELECTOR\nshop         nginx:2   app=shop",
            )
            .await;
        kubectl.prints("apply -f 2.yaml", "deployment.apps/shop unchanged\nconfigmap/conf unchanged").await;
        kubectl.prints("label cm/conf x=y", "configmap/conf labeled").await;
        kubectl.prints("label cm/conf x=y", "configmap/conf not labeled").await;
        kubectl.prints("annotate cm/conf note=it", "configmap/conf annotated").await;
        kubectl.prints("label cm/conf x-", "configmap/conf unlabeled").await;
        kubectl.prints("scale deploy/shop --replicas=3", "deployment.apps/shop scaled").await;
        kubectl.prints("set image deploy/shop shop=nginx:3", "deployment.apps/shop image updated").await;
        kubectl.prints("edit deploy/shop", "deployment.apps/shop edited").await;
        kubectl.prints("get deploy/shop -o jsonpath={.spec.replicas}/{..image}", "3/nginx:4").await;
        for patch in [
            r#"-p {"data":{"b":"1"}}"#,
            r#"--type=merge -p {"data":{"b":"2"}}"#,
            r#"--type=json -p [{"op":"replace","path":"/data/b","value":"3"}]"#,
        ] {
            kubectl.prints(&format!("patch cm/conf {patch}"), "configmap/conf patched").await;
        }
        kubectl.prints("get cm/conf -o jsonpath={.data}", r#"{"a":"two","b":"3"}"#).await;
        kubectl.prints("replace -f 1.yaml", "deployment.apps/shop replaced\nconfigmap/conf replaced").await;
        kubectl.prints("get cm/conf -o jsonpath={.data}", r#"{"a":"one"}"#).await;
        kubectl.prints("wait --for=jsonpath={.data.a}=one cm/conf", "configmap/conf condition met").await;
        kubectl.prints("describe deploy/shop", "Image:         nginx:1").await;
        kubectl.prints("delete -f 1.yaml --cascade=background", "\"shop\" deleted\n\"conf\" deleted").await;
        kubectl.fails("get deploy/shop", "deployments.apps \"shop\" not found").await;
    })
    .await;
}

#[tokio::test]
async fn kubectl_changes_to_server_side_apply_and_meets_a_conflict() {
    with_each_kubectl(&SERVERS, async |kubectl| {
        kubectl.prints("apply -f 1.yaml", "deployment.apps/shop created").await;
        kubectl.prints("apply --server-side -f 2.yaml", "deployment.apps/shop serverside-applied").await;
        let fields = kubectl.prints("get cm/conf -o yaml --show-managed-fields", "manager: kubectl").await;
        assert!(!fields.contains("kubectl-client-side-apply"), "{fields}");
        kubectl.fails("diff --server-side -f 3.yaml", "-      - image: nginx:2\n+      - image: nginx:3").await;
        let other = "apply --server-side --field-manager=other -f 3.yaml";
        let conflict = "Apply failed with 1 conflict: conflict with \"kubectl\": .spec.template.spec.containers[name=\"shop\"].image";
        kubectl.fails(other, conflict).await;
        kubectl.prints(&format!("{other} --force-conflicts"), "deployment.apps/shop serverside-applied").await;
        kubectl.prints("get deploy/shop -o jsonpath={..image}", "nginx:3").await;
        kubectl.prints("get cm/conf -o yaml", "a: three").await;
        kubectl.prints("apply view-last-applied cm/conf", "").await;
        kubectl.prints("delete deploy/shop --cascade=orphan --wait=false", "\"shop\" deleted").await;
        kubectl.prints("delete cm/conf --cascade=foreground --wait=false", "\"conf\" deleted").await;
    })
    .await;
}

#[tokio::test]
async fn kubectl_prunes_what_it_applied_before() {
    with_each_kubectl(&SERVERS, async |kubectl| {
        kubectl.prints("apply -f old.yaml", "configmap/old created").await;
        let prune = "apply --prune -l app=shop -f 1.yaml";
        kubectl.prints(prune, "deployment.apps/shop created\nconfigmap/old pruned").await;
        kubectl.fails("get cm/old", "configmaps \"old\" not found").await;
        kubectl.prints(prune, "deployment.apps/shop unchanged").await;
    })
    .await;
}

#[tokio::test]
async fn kubectl_lists_describes_and_watches() {
    with_each_kubectl(&SERVERS, async |kubectl| {
        kubectl.prints("api-resources", "deployments\nmywebservers").await;
        kubectl.prints("explain mywebserver.spec.port", "KIND:       MyWebserver\nport <integer>").await;
        let metadata = "Standard object's metadata.\ncreationTimestamp\nCreationTimestamp is a timestamp";
        kubectl.prints("explain mywebserver.metadata", metadata).await;
        kubectl.prints("get --raw /readyz", "ok").await;
        let shop = json!({"apiVersion": "k8sobjects.gsa.com/v2", "kind": "MyWebserver",
            "metadata": {"name": "shop"}, "spec": {"image": "nginx"}});
        kubectl.fixture.create("mywebservers", &shop).await;
        kubectl.prints("get mywebservers", "shop").await;
        kubectl.prints("describe mywebserver/shop", "Kind:         MyWebserver").await;
        kubectl.prints("scale mywebserver/shop --replicas=2", "mywebserver.k8sobjects.gsa.com/shop scaled").await;
        let event = json!({"metadata": {"name": "e"}, "regarding": {"kind": "ConfigMap", "name": "conf",
            "namespace": &*kubectl.fixture.namespace}, "reason": "Noted", "note": "look", "type": "Normal", "action": "Look",
            "reportingController": "tests/it", "reportingInstance": "it", "eventTime": "2026-11-21T07:00:00.000000Z"});
        kubectl.fixture.create("events", &event).await;
        kubectl.prints("events", "Noted\nConfigMap/conf\nlook").await;

        // The first command waits for an object. The second is read until it shows one.
        for (line, expected) in
            [("get cm/late -w --ignore-not-found -o name", "configmap/late"), ("get cm -w", "late ")]
        {
            let mut watch = kubectl.command(line).stdout(Stdio::piped()).spawn().unwrap();
            let mut lines = BufReader::new(watch.stdout.take().unwrap()).lines();
            kubectl.fixture.create("configmaps", &json!({"metadata": {"name": "late"}})).await;
            let shown = async {
                while !lines.next_line().await.unwrap().expect("a line").starts_with(expected) {}
            };
            tokio::time::timeout(PATIENCE, shown).await.unwrap();
            watch.kill().await.unwrap();
            kubectl.fixture.delete("configmaps/late").await;
        }
    })
    .await;
}

#[tokio::test]
async fn kubectl_waits_for_a_rollout() {
    with_each_kubectl(&[Kind::EmbeddedWithControllers], async |kubectl| {
        kubectl.prints("apply -f 1.yaml", "deployment.apps/shop created").await;
        kubectl.prints("rollout status deploy/shop", "successfully rolled out").await;
        kubectl
            .prints("wait --for=condition=Available deploy/shop", "deployment.apps/shop condition met")
            .await;
        kubectl.prints("describe node/node-1", "KubeletReady\n(1 in total)\nshop-").await;
        kubectl.prints("annotate deploy/shop kubernetes.io/change-cause=first", "annotated").await;
        kubectl.prints("rollout status deploy/shop", "successfully rolled out").await;
        kubectl.prints("apply -f 2.yaml", "deployment.apps/shop configured").await;
        kubectl.prints("annotate deploy/shop kubernetes.io/change-cause=second", "annotated").await;
        kubectl.prints("rollout status deploy/shop", "successfully rolled out").await;
        kubectl.prints("rollout history deploy/shop", "1         first\n2         second").await;
        kubectl.prints("rollout undo deploy/shop", "deployment.apps/shop rolled back").await;
        kubectl.prints("rollout status deploy/shop", "successfully rolled out").await;
        kubectl.prints("rollout history deploy/shop", "2         second\n3         first").await;
        kubectl.prints("rollout restart deploy/shop", "deployment.apps/shop restarted").await;
        kubectl.prints("delete deploy/shop --cascade=foreground", "\"shop\" deleted").await;
        let are_gone = async || kubectl.run("get pods").await.1.contains("No resources found").then_some(());
        eventually("the Pods to be deleted", are_gone).await;
    })
    .await;
}

#[tokio::test]
async fn kubectl_rolls_out_a_stateful_set_and_waits_for_a_job() {
    with_each_kubectl(&[Kind::EmbeddedWithControllers], async |kubectl| {
        kubectl
            .prints("apply -f workloads.yaml", "statefulset.apps/db created\njob.batch/backup created")
            .await;
        kubectl.prints("rollout status sts/db", "roll out complete: 2 new pods have been updated").await;
        kubectl.prints("get pvc", "data-db-0   Bound\ndata-db-1   Bound").await;
        kubectl.prints("set image sts/db db=postgres:2", "statefulset.apps/db image updated").await;
        kubectl.prints("rollout status sts/db", "roll out complete: 2 new pods have been updated").await;
        kubectl.prints("rollout history sts/db", "REVISION  CHANGE-CAUSE\n1 \n2 ").await;
        kubectl.prints("rollout undo sts/db", "statefulset.apps/db rolled back").await;
        kubectl.prints("rollout status sts/db", "roll out complete").await;
        kubectl.prints("get sts/db -o wide", "2/2").await;
        kubectl.prints("get sts/db -o jsonpath={..image}", "postgres:1").await;
        kubectl.prints("scale sts/db --replicas=1", "statefulset.apps/db scaled").await;
        kubectl.prints("wait --for=jsonpath={.status.replicas}=1 sts/db", "condition met").await;
        kubectl.prints("wait --for=condition=complete job/backup", "job.batch/backup condition met").await;
        kubectl.prints("get job/backup", "Complete   1/1").await;
        kubectl.prints("get pods -l job-name=backup", "Completed").await;
        kubectl.prints("delete job/backup", "\"backup\" deleted").await;
    })
    .await;
}

/// kubectl sends the objects of these commands in protobuf.
#[tokio::test]
async fn kubectl_creates_without_a_file() {
    with_each_kubectl(&SERVERS, async |kubectl| {
        for (command, created, path, value) in [
            ("configmap c --from-literal=a=b", "configmap/c", "{.data}", r#"{"a":"b"}"#),
            ("secret generic s --from-literal=a=b", "secret/s", "{.data}", r#"{"a":"Yg=="}"#),
            ("serviceaccount a", "serviceaccount/a", "{.kind}", "ServiceAccount"),
            ("service clusterip web --tcp=80:8080", "service/web", "{.spec.ports[*].targetPort}", "8080"),
            ("deployment web --image=nginx --port=80", "deployment.apps/web", "{..containerPort}", "80"),
            ("job once --image=busybox -- date -u", "job.batch/once", "{..command}", r#"["date","-u"]"#),
            (
                "cronjob often --image=busybox --schedule=@hourly",
                "cronjob.batch/often",
                "{..schedule}",
                "@hourly",
            ),
            (
                "pdb web --selector=app=web --min-available=50%",
                "poddisruptionbudget.policy/web",
                "{..minAvailable}",
                "50%",
            ),
        ] {
            kubectl.prints(&format!("create {command}"), &format!("{created} created")).await;
            kubectl.prints(&format!("get {created} -o jsonpath={path}"), value).await;
        }
        kubectl.fails("create configmap c", "configmaps \"c\" already exists").await;
        kubectl
            .fails("create deployment UPPER --image=nginx", "metadata.name: Invalid value: \"UPPER\"")
            .await;
        kubectl
            .prints("delete job/once cronjob/often deployment/web --cascade=background", "\"once\" deleted")
            .await;
    })
    .await;
}

#[tokio::test]
async fn kubectl_describes_workloads() {
    with_each_kubectl(&SERVERS, async |kubectl| {
        kubectl.prints("create -f workloads.yaml", "poddisruptionbudget.policy/db created").await;
        kubectl
            .prints("describe sts/db", "Partition:        0\nImage:         postgres:1\nCapacity:      1Gi")
            .await;
        kubectl.prints("describe pdb/db", "Max unavailable:  1\nSelector:         app=db").await;
        kubectl
            .prints(
                "describe cronjob/nightly",
                "Schedule:                      0 3 * * *\nSuspend:                       True",
            )
            .await;
        kubectl.prints("describe job/backup", "Completions:      1\nPods Statuses:    0 Active").await;
        kubectl.prints("explain sts.spec.serviceName", "serviceName <string>").await;
        kubectl
            .prints(
                "get sts,job,cronjob,pdb",
                "statefulset.apps/db\njob.batch/backup\ncronjob.batch/nightly\npoddisruptionbudget.policy/db",
            )
            .await;
        kubectl.prints("delete -f workloads.yaml --cascade=background", "\"nightly\" deleted").await;
    })
    .await;
}

#[tokio::test]
async fn kubectl_describes_a_pod_and_a_service() {
    with_each_kubectl(&SERVERS, async |kubectl| {
        kubectl.prints("create -f pod.yaml", "pod/shop created\nservice/shop created").await;
        // Compares only words: the width of the columns depends on their contents.
        kubectl.prints("describe pod/shop", "app=shop\nPending\nnginx:1\n80/TCP\nBestEffort").await;
        let path = "{.metadata.labels.component},{.spec.type},{.spec.ports[*].name}";
        let of_the_server = format!("get service/kubernetes -n default -o jsonpath={path}");
        kubectl.prints(&of_the_server, "apiserver,ClusterIP,https").await;
        kubectl.prints("describe service/shop", "app=shop\nClusterIP\nhttp  80/TCP\n8080/TCP").await;
    })
    .await;
}

/// Deletes a Deployment that owns a ConfigMap.
#[tokio::test]
async fn kubectl_deletes_and_orphans_dependents() {
    with_each_kubectl(&[Kind::EmbeddedWithControllers, Kind::Real], async |kubectl| {
        let child = async || kubectl.fixture.find("configmaps/child").await;
        for cascade in ["orphan", "background", "foreground"] {
            kubectl.prints("create -f 1.yaml", "deployment.apps/shop created").await;
            let uid = kubectl.fixture.get("deployments/shop").await["metadata"]["uid"].clone();
            let owner = json!({"apiVersion": "apps/v1", "kind": "Deployment", "name": "shop", "uid": uid,
                "blockOwnerDeletion": true});
            let object = json!({"metadata": {"name": "child", "ownerReferences": [owner]}});
            kubectl.fixture.create("configmaps", &object).await;

            kubectl.prints(&format!("delete deploy/shop --cascade={cascade}"), "\"shop\" deleted").await;
            match cascade {
                "orphan" => {
                    let left = child().await.expect("the orphan exists");
                    assert!(left["metadata"]["ownerReferences"].is_null(), "{left}");
                    kubectl.prints("delete cm/child", "\"child\" deleted").await;
                }
                "background" => {
                    eventually("the child to be deleted", async || child().await.is_none().then_some(()))
                        .await;
                }
                _ => assert_eq!(child().await, None, "the child is deleted before its owner"),
            }
            kubectl.prints("delete cm/conf", "\"conf\" deleted").await;
        }
    })
    .await;
}

/// Reviews and tokens. `can-i` exits with 1 for "no".
#[tokio::test]
async fn kubectl_knows_who_may_do_what() {
    with_each_kubectl(&SERVERS, async |kubectl| {
        kubectl
            .prints("auth whoami", "Username    admin\nGroups      [system:masters system:authenticated]")
            .await;
        kubectl.prints("create serviceaccount robot", "serviceaccount/robot created").await;
        kubectl
            .prints(
                "create role reader --verb=list --resource=pods",
                "role.rbac.authorization.k8s.io/reader created",
            )
            .await;
        let binding = "create rolebinding robots --role=reader --serviceaccount=NS:robot";
        let binding = binding.replace("NS", &kubectl.fixture.namespace);
        kubectl.prints(&binding, "rolebinding.rbac.authorization.k8s.io/robots created").await;
        let robot = format!("--as=system:serviceaccount:{}:robot", kubectl.fixture.namespace);
        eventually("the binding to count", async || {
            let (code, _) = kubectl.run(&format!("auth can-i list pods {robot}")).await;
            (code == 0).then_some(())
        })
        .await;
        kubectl.fails(&format!("auth can-i delete pods {robot}"), "no").await;
        kubectl.prints(&format!("auth can-i --list {robot}"), "[list]").await;
        let token = kubectl.prints("create token robot --duration=10m", ".").await;
        assert_eq!(token.trim().split('.').count(), 3, "{token}");
        kubectl.prints("get clusterrole cluster-admin", "cluster-admin").await;
    })
    .await;
}

/// A Secret with the token of a ServiceAccount, as a client outside of the cluster uses it.
#[tokio::test]
async fn kubectl_uses_the_token_of_a_secret() {
    with_each_kubectl(&[Kind::EmbeddedWithControllers], async |kubectl| {
        kubectl.prints("create serviceaccount robot", "serviceaccount/robot created").await;
        kubectl.prints("apply -f token.yaml", "secret/robot created").await;
        let filled = async || {
            let (_, token) =
                kubectl.run("get secret robot -o go-template={{.data.token|base64decode}}").await;
            token.starts_with("ey").then_some(token)
        };
        let token = eventually("the Secret to be filled", filled).await;
        let robot = "system:serviceaccount:NS:robot";
        kubectl.prints(&format!("auth whoami --token={token}"), robot).await;
        kubectl.fails(&format!("get pods --token={token}"), &format!("User \"{robot}\" cannot list")).await;
        kubectl.prints("delete secret robot", "\"robot\" deleted").await;
        kubectl.fails(&format!("get pods --token={token}"), "Unauthorized").await;
    })
    .await;
}

/// The operator of this repository has the permissions of its manifests.
#[tokio::test]
async fn kubectl_applies_the_manifests_of_an_operator() {
    with_each_kubectl(&[Kind::EmbeddedWithControllers], async |kubectl| {
        let manifests = concat!(env!("CARGO_MANIFEST_DIR"), "/../manifests/mywebserver");
        kubectl
            .prints(&format!("apply -k {manifests}"), "deployment.apps/mywebserver-operator created")
            .await;
        let operator = "--as=system:serviceaccount:mywebserver-system:mywebserver-operator";
        kubectl.prints(&format!("auth can-i watch mywebservers {operator}"), "yes").await;
        kubectl
            .prints(&format!("auth can-i patch mywebservers --subresource=status {operator}"), "yes")
            .await;
        kubectl.fails(&format!("auth can-i delete mywebservers {operator}"), "no").await;
        kubectl.fails(&format!("get secrets {operator}"), "cannot list resource \"secrets\"").await;
    })
    .await;
}

/// Nothing runs in a container: its log is an annotation, its commands are rules of the fixture, its usage is what was written.
#[tokio::test]
async fn kubectl_reads_logs_and_runs_commands() {
    with_each_kubectl(&[Kind::EmbeddedWithControllers], async |kubectl| {
        kubectl.prints("apply -f logs.yaml", "pod/cache created\npod/silent created").await;
        kubectl.prints("wait --for=condition=Ready pod/cache", "condition met").await;
        assert_eq!(kubectl.prints("logs cache -c redis", "").await, "starting\nready\n");
        assert_eq!(kubectl.prints("logs cache -c redis --tail=1", "").await, "ready\n");
        assert_eq!(kubectl.prints("logs cache -c redis --limit-bytes=5", "").await, "start");
        assert_eq!(kubectl.prints("logs cache -c redis --since-time=2100-01-01T00:00:00Z", "").await, "");
        kubectl
            .prints(
                "logs cache --all-containers --prefix",
                "[pod/cache/redis] ready\n[pod/cache/metrics] scraped",
            )
            .await;
        kubectl.prints("logs cache -c metrics --timestamps", "Z scraped").await;
        kubectl.fails("logs cache -c none", "container none is not valid for pod cache").await;
        kubectl
            .fails(
                "logs cache -c redis -p",
                "previous terminated container \"redis\" in pod \"cache\" not found",
            )
            .await;
        let has_crashed = async || (kubectl.run("logs silent -p").await.0 == 0).then_some(());
        eventually("the Pod to crash", has_crashed).await;
        kubectl.prints("logs silent", "Nothing runs in this container").await;

        let mut follow = kubectl.command("logs -f cache -c redis").stdout(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(follow.stdout.take().unwrap()).lines();
        for expected in ["starting", "ready"] {
            assert_eq!(lines.next_line().await.unwrap().as_deref(), Some(expected));
        }
        let mut annotate = kubectl.command("annotate --overwrite pod/cache");
        assert!(annotate.arg("listwatch/logs=starting\nready\nGET a").status().await.unwrap().success());
        assert_eq!(lines.next_line().await.unwrap().as_deref(), Some("GET a"));

        assert_eq!(kubectl.prints("exec cache -c redis -- redis-cli ping", "").await, "PONG\n");
        kubectl
            .ends("exec cache -c redis -- pg_isready", 2, "down\ncommand terminated with exit code 2")
            .await;
        kubectl
            .fails("exec cache -c redis -- rm -rf /", "no rule of --exec is for the command \"rm -rf /\"")
            .await;
        let nothing_runs = "nothing runs in the Pods of the embedded API server of listwatch";
        kubectl.fails("attach cache -c redis", &format!("pods/attach is not served: {nothing_runs}")).await;
        kubectl
            .fails(
                "port-forward pod/cache 0:6379",
                &format!("pods/portforward is not served: {nothing_runs}"),
            )
            .await;

        kubectl
            .prints(
                "top pod cache --containers",
                "cache   metrics   10m          16Mi\ncache   redis     250m         64Mi",
            )
            .await;
        kubectl.prints("top node", "node-1   2000m        3%       4096Mi          1%").await;

        kubectl.prints("delete pod/cache", "\"cache\" deleted").await;
        assert_eq!(lines.next_line().await.unwrap(), None, "the log ends with its Pod");
        assert!(follow.wait().await.unwrap().success());
    })
    .await;
}
