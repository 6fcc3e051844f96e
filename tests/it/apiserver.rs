//! `listwatch apiserver`: what it prints, writes and holds, and how it says that it cannot.

use std::{
    fs::{self, Permissions},
    io::{BufRead, BufReader},
    os::unix::fs::PermissionsExt,
    path::Path,
    process::{Child, Command, Stdio},
};

use http::Method;
use listwatch::client::{Client, Config, Env, Options, Request};
use serde_json::Value;

use crate::{hands::eventually, operator::listwatch};

const MANIFESTS: &str = r#"
# Nothing but a comment is no object.
---
apiVersion: shop.example.com/v1
kind: Cart
metadata: {name: mine, namespace: shop}
spec: {items: 3}
---
apiVersion: v1
kind: Namespace
metadata: {name: shop}
---
apiVersion: v1
kind: List
items:
- {apiVersion: v1, kind: ConfigMap, metadata: {name: one}}
- {apiVersion: v1, kind: Secret, metadata: {name: two, namespace: shop}}
"#;

const CRD: &str = r#"{"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
    "metadata": {"name": "carts.shop.example.com"}, "spec": {"group": "shop.example.com", "scope": "Namespaced",
    "names": {"plural": "carts", "kind": "Cart"}, "versions": [{"name": "v1", "served": true, "storage": true,
    "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}}}]}}"#;

/// A running `listwatch apiserver`. Dropped: killed.
pub struct Running {
    pub child: Child,
    pub said: String,
}

impl Running {
    pub fn start(command: &mut Command) -> Running {
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut said = String::new();
        let mut out = BufReader::new(child.stdout.take().unwrap());
        while !said.contains("Ctrl-C ends it") {
            assert_ne!(out.read_line(&mut said).unwrap(), 0, "{said}");
        }
        Running { child, said }
    }

    fn terminate(mut self) -> Option<i32> {
        assert!(Command::new("kill").arg(self.child.id().to_string()).status().unwrap().success());
        self.child.wait().unwrap().code()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub fn client(kubeconfig: &Path) -> Client {
    let options = Options { kubeconfig: Some(kubeconfig.to_owned()), ..Options::default() };
    Client::new(Config::load(&options, &Env::default()).unwrap()).unwrap()
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o777
}

/// Nobody else can read the administrator's token, nor list the directory that it is in.
pub fn is_private(kubeconfig: &Path) {
    assert_eq!((mode(kubeconfig), mode(kubeconfig.parent().unwrap())), (0o600, 0o700));
}

#[test]
fn the_default_kubeconfig_is_its_owners_alone() {
    let dir = tempfile::tempdir().unwrap();
    let server = Running::start(listwatch().arg("apiserver").env("TMPDIR", dir.path()));
    let (_, kubeconfig) = server.said.split_once("export KUBECONFIG='").unwrap();
    is_private(Path::new(kubeconfig.split('\'').next().unwrap()));
    assert_eq!(server.terminate(), Some(0));
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0, "it goes with the server");
}

#[tokio::test]
async fn it_holds_what_the_manifests_say_and_goes_wrong_as_it_is_told() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("a.yaml"), MANIFESTS).unwrap();
    fs::write(dir.path().join("b.json"), CRD).unwrap();
    fs::write(dir.path().join("kustomization.yaml"), "resources: [a.yaml]").unwrap();
    fs::write(dir.path().join("README.md"), "not: [yaml").unwrap();
    let kubeconfig = dir.path().join("kubeconfig");
    let mut command = listwatch();
    command.args(["apiserver", "--manifests"]).arg(dir.path()).arg("--kubeconfig-out").arg(&kubeconfig);
    command.env("LISTWATCH_FAULT", "internal-error,path=/pods;no-bookmarks");
    let server = Running::start(&mut command);
    assert!(server.said.contains(": 5.\n"), "{}", server.said);
    assert!(
        server.said.contains(&format!("export KUBECONFIG='{}'", kubeconfig.display())),
        "{}",
        server.said
    );
    assert_eq!(mode(&kubeconfig), 0o600);
    let client = client(&kubeconfig);
    let get = async |path: &str| client.send(Request::get(path)).await;
    for path in [
        "/apis/shop.example.com/v1/namespaces/shop/carts/mine",
        "/api/v1/namespaces/default/configmaps/one",
        "/api/v1/namespaces/shop/secrets/two",
    ] {
        let object: Value = serde_json::from_slice(&get(path).await.unwrap().body).unwrap();
        assert!(path.ends_with(object["metadata"]["name"].as_str().unwrap()), "{path}");
    }
    assert!(get("/api/v1/pods").await.unwrap_err().to_string().contains("500 InternalError"));
    let faults = get("/listwatch/faults").await.unwrap();
    assert_eq!(faults.body, "internal-error,path=/pods\nno-bookmarks\n");
    client
        .send(Request::get("/listwatch/faults").sends(Method::DELETE, "text/plain", Vec::new()))
        .await
        .unwrap();
    get("/api/v1/pods").await.unwrap();
    assert_eq!(server.terminate(), Some(0));
}

#[tokio::test]
async fn manifests_come_from_several_places_and_whoever_stops_listening_does_not_end_it() {
    let dir = tempfile::tempdir().unwrap();
    let [crd, objects, kubeconfig] = ["crd.json", "a.yaml", "kubeconfig"].map(|name| dir.path().join(name));
    fs::write(&crd, CRD).unwrap();
    fs::write(&objects, MANIFESTS).unwrap();
    let mut command = listwatch();
    command.arg("apiserver").arg("--manifests").arg(&objects).arg("--manifests").arg(&crd);
    command.arg("--kubeconfig-out").arg(&kubeconfig).stdout(Stdio::piped());
    // What Kubernetes sets for a Service called listwatch.
    command.env("LISTWATCH_PORT", "tcp://10.0.0.1:80");
    let mut child = command.spawn().unwrap();
    let mut said = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut said).unwrap();
    let mut server = Running { child, said };
    eventually("a kubeconfig", async || fs::read(&kubeconfig).ok().filter(|text| !text.is_empty())).await;
    let path = "/apis/shop.example.com/v1/namespaces/shop/carts/mine";
    client(&kubeconfig).send(Request::get(path)).await.unwrap();
    assert_eq!(server.child.try_wait().unwrap(), None, "unheard, it goes on");
    assert_eq!(server.terminate(), Some(0));
}

#[tokio::test]
async fn a_kubeconfig_of_ours_is_overwritten_and_one_of_others_is_not() {
    let dir = tempfile::tempdir().unwrap();
    let ours = dir.path().join("ours");
    let start = || Running::start(listwatch().args(["apiserver", "--kubeconfig-out"]).arg(&ours));
    assert_eq!(start().terminate(), Some(0));
    let before = fs::read_to_string(&ours).unwrap();
    fs::set_permissions(&ours, Permissions::from_mode(0o644)).unwrap();
    let server = start();
    assert_ne!(fs::read_to_string(&ours).unwrap(), before);
    assert_eq!(mode(&ours), 0o600);
    client(&ours).send(Request::get("/api/v1/namespaces")).await.unwrap();
    drop(server);

    let theirs = dir.path().join("theirs");
    fs::write(&theirs, "apiVersion: v1\nkind: Config\n").unwrap();
    let output = listwatch().args(["apiserver", "--kubeconfig-out"]).arg(&theirs).output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains("is there already, and not from listwatch apiserver"), "{said}");
    assert_eq!(fs::read_to_string(&theirs).unwrap(), "apiVersion: v1\nkind: Config\n");
}

#[test]
fn what_cannot_be_is_one_line_that_says_where() {
    let dir = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str| {
        let path = dir.path().join(name);
        fs::write(&path, text).unwrap();
        path.display().to_string()
    };
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    let good = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\n---\n";
    let no_yaml = file("no-yaml", &format!("{good}a: [b"));
    let no_kind = file("no-kind", &format!("{good}metadata: {{name: b}}"));
    let empty = file("empty", "# nothing\n");
    let no_version = file("no-version", "apiVersion: ''\nkind: ConfigMap\n");
    let odd_version = file("odd-version", "apiVersion: v1?x\nkind: ConfigMap\nmetadata: {name: a}\n");
    let odd_namespace =
        file("odd-namespace", "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a, namespace: x y?}\n");
    let unknown = file("unknown", "apiVersion: batch/v1\nkind: Job\nmetadata: {name: b}\n");
    let twice = file("twice", &format!("{good}{good}"));
    let invalid =
        file("invalid", &format!("{good}apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: A_B}}\n"));
    let misspelt = file(
        "misspelt",
        &format!("{good}apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: b}}\ndate: {{}}\n"),
    );
    let missing = dir.path().join("missing/file").display().to_string();
    let cases: &[(&[&str], i32, &str)] = &[
        (
            &["--port", &port],
            1,
            &format!("--port {port}: Address already in use (os error 98); 0 takes one that is free"),
        ),
        (&["--kubeconfig-out", &missing], 1, &format!("--kubeconfig-out {missing}: No such file")),
        (&["--manifests", &missing], 2, &format!("--manifests {missing}: No such file")),
        (&["--manifests", &empty], 2, "empty: holds no objects"),
        (
            &["--manifests", &dir.path().display().to_string()],
            2,
            "holds no objects (.yaml, .yml and .json are read, directories below it are not)",
        ),
        (&["--manifests", &no_yaml], 2, "no-yaml, document 2: not YAML: "),
        (&["--manifests", &no_kind], 2, "no-kind, document 2: has no apiVersion"),
        (&["--manifests", &no_version], 2, "no-version, document 1: has no apiVersion"),
        (
            &["--manifests", &odd_version],
            2,
            "odd-version, document 1 (ConfigMap \"a\"): ConfigMap in v1?x is not served here",
        ),
        (
            &["--manifests", &odd_namespace],
            2,
            "odd-namespace, document 1 (ConfigMap \"a\"): namespaces \"x y?\" not found",
        ),
        (
            &["--manifests", &unknown],
            2,
            "unknown, document 1 (Job \"b\"): Job in batch/v1 is not served here; docs/apiserver.md has those that are",
        ),
        (&["--manifests", &twice], 2, "twice, document 2 (ConfigMap \"a\"): configmaps \"a\" already exists"),
        (
            &["--manifests", &invalid],
            2,
            "invalid, document 2 (ConfigMap \"A_B\"): ConfigMap \"A_B\" is invalid: metadata.name: Invalid value: \"A_B\": ",
        ),
        (
            &["--fault", "cut-watch"],
            2,
            "'--fault <FAULT>': \"cut-watch\" is no fault; a similar one is cut-watches; see",
        ),
        (
            &["--manifests", &misspelt],
            2,
            "misspelt, document 2 (ConfigMap \"b\"): ConfigMap in version \"v1\" cannot be handled as a ConfigMap: strict decoding error: unknown field \"date\"",
        ),
        (
            &["--fault", "restart"],
            2,
            "at the start there is nothing to do it to: POST it to /listwatch/faults",
        ),
        (&["--fault", "cut-watches"], 2, "give lines=N, or POST it"),
        (&["--fault", "nope"], 2, "; see listwatch apiserver --fault help"),
        (&["--nope"], 2, "; see listwatch apiserver --help"),
        (
            &["--fault", "slow,time=soon"],
            2,
            "time=soon: is no time: write a number and a unit, such as 500ms or 2s",
        ),
    ];
    for (args, code, wanted) in cases {
        let output = listwatch().arg("apiserver").args(*args).output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(*code), "{args:?}: {said}");
        assert!(said.starts_with("listwatch: ") && said.contains(wanted), "{args:?}: {said}");
        assert_eq!(said.lines().count(), 1, "{args:?}: {said}");
    }
}

#[test]
fn every_fault_is_explained() {
    let output = listwatch().args(["apiserver", "--fault", "help"]).output().unwrap();
    let said = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(0));
    assert!(
        said.contains("too-many-requests,retry-after=1")
            && said.contains(&listwatch::apiserver::fault_names())
    );
}
