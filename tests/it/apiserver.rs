//! Tests the command `listwatch apiserver`: its output, its files, its objects and its errors.

use std::{
    collections::HashMap,
    fs::{self, File, Permissions},
    io::{self, BufRead, BufReader},
    os::unix::fs::{PermissionsExt, symlink},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

use http::Method;
use listwatch::client::{Client, Config, Env, Options, Request};
use listwatch_control_plane::{PATIENCE, eventually};
use serde_json::{Value, json};

use crate::operator::{ends_with_test, listwatch};

const MANIFESTS: &str = r#"
# A document with only a comment is skipped.
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

/// A running `listwatch apiserver` or `listwatch demo`. Dropped: stopped, so that it deletes its files.
pub struct Running {
    pub child: Child,
    pub stdout: String,
}

impl Running {
    pub fn start(command: &mut Command) -> Running {
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut stdout = String::new();
        let mut out = BufReader::new(child.stdout.take().unwrap());
        while !stdout.contains("Ctrl-C stops the server") {
            assert_ne!(out.read_line(&mut stdout).unwrap(), 0, "{stdout}");
        }
        Running { child, stdout }
    }

    fn terminate(mut self) -> Option<i32> {
        self.signal("TERM");
        self.child.wait().unwrap().code()
    }

    fn signal(&self, name: &str) {
        let kill = Command::new("kill").args(["-s", name, &self.child.id().to_string()]).status();
        assert!(kill.unwrap().success());
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Ok(None) = self.child.try_wait() {
            self.signal("TERM");
        }
        let _ = self.child.wait();
    }
}

pub fn client(kubeconfig: &Path) -> Client {
    let options = Options { kubeconfig: Some(kubeconfig.to_owned()), ..Options::default() };
    let config = Config::load(&options, &Env::default()).unwrap().with_request_timeout(PATIENCE);
    Client::new(config).unwrap()
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o777
}

/// Other users can neither read the administrator's token nor list its directory.
pub fn is_private(kubeconfig: &Path) {
    assert_eq!((mode(kubeconfig), mode(kubeconfig.parent().unwrap())), (0o600, 0o700));
}

/// The server's own directory, in its parent.
pub fn private_dir(parent: &Path) -> PathBuf {
    let paths = fs::read_dir(parent).unwrap().map(|entry| entry.unwrap().path());
    paths.into_iter().find(|path| path.is_dir()).unwrap()
}

/// The printed commands for curl, in a shell.
pub fn printed_curl(stdout: &str) -> Command {
    let (_, commands) = stdout.split_once("    export API=").unwrap();
    let commands = commands.split("\n\n").next().unwrap();
    let mut command = Command::new("sh");
    // The proxy does not exist: nothing listens on port 1.
    command.args(["-c", &format!("export API={commands}")]).env("https_proxy", "http://127.0.0.1:1");
    command
}

/// A directory whose name needs quoting in a shell, and in a file for curl.
fn oddly_named_dir() -> tempfile::TempDir {
    tempfile::Builder::new().prefix("it's \"a\" $HOME\\dir\n").tempdir().unwrap()
}

#[test]
fn the_printed_curl_runs_in_a_shell_and_shows_no_token() {
    let [temporary, other] = [oddly_named_dir(), oddly_named_dir()];
    for (dir, flag) in [(&temporary, None), (&other, Some("--kubeconfig-out=kubeconfig"))] {
        let mut command = listwatch();
        command.arg("apiserver").env("TMPDIR", temporary.path());
        let server = Running::start(command.args(flag).current_dir(&other));
        let private = private_dir(dir.path());
        assert_eq!(mode(&private), 0o700);
        for name in ["ca.crt", "token", "curlrc"] {
            assert_eq!(mode(&private.join(name)), 0o600, "{name}");
        }
        let token = fs::read_to_string(private.join("token")).unwrap();
        assert!(!server.stdout.contains(&token), "{}", server.stdout);
        let output = printed_curl(&server.stdout).output().unwrap();
        let list: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(String::from_utf8(output.stderr).unwrap(), "");
        assert_eq!(list["kind"], "NamespaceList");
        assert_eq!(server.terminate(), Some(0));
        assert!(!private.exists(), "the files are deleted with the server");
    }
}

#[tokio::test]
async fn with_log_requests_a_request_is_one_line_and_a_watch_two() {
    let dir = tempfile::tempdir().unwrap();
    let log = dir.path().join("log");
    let mut command = listwatch();
    command.args(["apiserver", "--log-requests", "--log-format", "text"]).stderr(File::create(&log).unwrap());
    let server = Running::start(&mut command);
    assert!(printed_curl(&server.stdout).output().unwrap().status.success());
    let watch = server.stdout.replace("/namespaces\"", "/nodes?watch=1&timeoutSeconds=1\"");
    assert!(printed_curl(&watch).output().unwrap().status.success());
    let log = eventually("the end of the watch", async || {
        fs::read_to_string(&log).ok().filter(|log| log.contains("stream ended"))
    })
    .await;
    for (line, parts) in log.lines().zip([
        ["answered method=GET", "path=\"/api/v1/namespaces\" status=200 user_agent=\"curl/"],
        ["answered method=GET", "path=\"/api/v1/nodes?watch=1&timeoutSeconds=1\" status=200"],
        ["stream ended", "path=\"/api/v1/nodes?watch=1&timeoutSeconds=1\""],
    ]) {
        assert!(parts.iter().all(|part| line.contains(part)), "{line}");
    }
    assert_eq!(log.lines().count(), 3, "{log}");
}

#[test]
fn the_default_kubeconfig_is_private() {
    let dir = tempfile::tempdir().unwrap();
    let server = Running::start(listwatch().arg("apiserver").env("TMPDIR", dir.path()));
    let (_, kubeconfig) = server.stdout.split_once("export KUBECONFIG='").unwrap();
    is_private(Path::new(kubeconfig.split('\'').next().unwrap()));
    assert_eq!(server.terminate(), Some(0));
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0, "the kubeconfig is deleted with the server");
}

/// It named the files of token and CA by relative paths. Only kubectl, client-go and the official Python client found them.
#[tokio::test]
async fn the_kubeconfig_needs_no_file_beside_it() {
    let dir = tempfile::tempdir().unwrap();
    for flag in [None, Some("--kubeconfig-out=kubeconfig")] {
        let mut command = listwatch();
        command.arg("apiserver").args(flag).env("TMPDIR", dir.path()).current_dir(&dir);
        let server = Running::start(&mut command);
        let (_, kubeconfig) = server.stdout.split_once("export KUBECONFIG='").unwrap();
        let kubeconfig = Path::new(kubeconfig.split('\'').next().unwrap());
        let private = private_dir(dir.path());
        for name in ["ca.crt", "token", "namespace"] {
            fs::remove_file(private.join(name)).unwrap();
        }
        client(kubeconfig).send(Request::get("/api/v1/namespaces")).await.unwrap();
        assert_eq!(server.terminate(), Some(0));
    }
}

/// The fixtures of other languages hold this pipe. A test runner that is killed runs no code of its own.
#[test]
fn the_end_of_stdin_stops_the_server_and_deletes_its_files() {
    let dir = tempfile::tempdir().unwrap();
    let mut command = listwatch();
    command.args(["apiserver", "--stop-with-stdin"]).env("TMPDIR", dir.path()).stdin(Stdio::piped());
    let mut server = Running::start(&mut command);
    drop(server.child.stdin.take());
    assert_eq!(server.child.wait().unwrap().code(), Some(0));
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0, "the files are deleted with the server");
}

/// When its terminal was closed, the server left the token of an administrator behind.
#[test]
fn a_hangup_deletes_the_files_unless_nohup_ignores_it() {
    let dir = tempfile::tempdir().unwrap();
    for is_ignored in [false, true] {
        let mut command = ends_with_test("env");
        command.arg(if is_ignored { "--ignore-signal=HUP" } else { "--default-signal=HUP" });
        command.arg(env!("CARGO_BIN_EXE_listwatch")).arg("apiserver").stdin(Stdio::null());
        let mut server = Running::start(command.env("TMPDIR", dir.path()));
        server.signal("HUP");
        if is_ignored {
            assert!(printed_curl(&server.stdout).output().unwrap().status.success());
            server.signal("TERM");
        }
        assert_eq!(server.child.wait().unwrap().code(), Some(0));
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    }
}

#[tokio::test]
async fn with_output_json_stdout_is_one_line_that_leads_to_the_server() {
    let dir = tempfile::tempdir().unwrap();
    let mut command = listwatch();
    command.args(["apiserver", "--output", "json"]).env("TMPDIR", dir.path()).stdout(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut out = BufReader::new(child.stdout.take().unwrap());
    let mut stdout = String::new();
    out.read_line(&mut stdout).unwrap();
    let server = Running { child, stdout };
    let line: HashMap<&str, String> = serde_json::from_str(&server.stdout).unwrap();
    let [ca, token] = ["caFile", "tokenFile"].map(|file| fs::read_to_string(&line[file]).unwrap());
    let api = format!("{}/api/v1/namespaces", line["server"]);
    let output = Command::new("curl").args(["-K", &line["curlrcFile"], &api]).output().unwrap();
    let list: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(list["kind"], "NamespaceList");
    let config = Config::new(&line["server"], ca.as_bytes(), &token).unwrap();
    for client in [Client::new(config).unwrap(), client(Path::new(&line["kubeconfig"]))] {
        client.send(Request::get("/api/v1/namespaces")).await.unwrap();
    }
    assert_eq!(server.terminate(), Some(0));
    assert_eq!(io::read_to_string(out).unwrap(), "");
}

#[tokio::test]
async fn apiserver_serves_the_objects_of_manifests_and_applies_faults() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("a.yaml"), MANIFESTS).unwrap();
    fs::write(dir.path().join("b.json"), CRD).unwrap();
    fs::write(dir.path().join("README.md"), "not: [yaml").unwrap();
    let kubeconfig = dir.path().join("kubeconfig");
    let mut command = listwatch();
    command.args(["apiserver", "--manifests"]).arg(dir.path()).arg("--kubeconfig-out").arg(&kubeconfig);
    command.env("LISTWATCH_FAULT", "internal-error,path=/pods;no-bookmarks");
    let server = Running::start(&mut command);
    assert!(server.stdout.contains(": 5.\n"), "{}", server.stdout);
    assert!(
        server.stdout.contains(&format!("export KUBECONFIG='{}'", kubeconfig.display())),
        "{}",
        server.stdout
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
async fn a_server_starts_with_the_checkpoint_of_another_one() {
    let dir = tempfile::tempdir().unwrap();
    let (manifests, checkpoint) = (dir.path().join("a.yaml"), dir.path().join("checkpoint.json"));
    fs::write(&manifests, format!("{MANIFESTS}\n---\n{CRD}")).unwrap();
    let mut objects = Vec::new();
    for (flag, file) in [("--manifests", &manifests), ("--checkpoint", &checkpoint)] {
        let kubeconfig = dir.path().join(flag);
        let mut command = listwatch();
        command.arg("apiserver").arg(flag).arg(file).arg("--kubeconfig-out").arg(&kubeconfig);
        let server = Running::start(&mut command);
        let client = client(&kubeconfig);
        let get = async |path: &str| client.send(Request::get(path)).await.unwrap().body;
        objects.push(get("/apis/shop.example.com/v1/namespaces/shop/carts/mine").await);
        fs::write(&checkpoint, get("/listwatch/checkpoint").await).unwrap();
        assert_eq!(server.terminate(), Some(0));
    }
    assert_eq!(objects[0], objects[1]);
    let object: Value = serde_json::from_slice(&objects[0]).unwrap();
    assert!(object["metadata"]["uid"].is_string(), "{object}");
}

/// The directories of a project made by kubebuilder have files that are not objects.
#[tokio::test]
async fn a_directory_is_read_by_its_kustomization_or_with_all_below_it() {
    let dir = tempfile::tempdir().unwrap();
    for (file, text) in [
        ("config/crd/bases/carts.json", CRD),
        (
            "config/crd/kustomization.yaml",
            "resources: [bases/carts.json, ../samples]\nconfigurations: [config.yaml]\nnamePrefix: a-\n",
        ),
        ("config/crd/config.yaml", "nameReference: []\n"),
        ("config/samples/a.yaml", MANIFESTS),
    ] {
        let path = dir.path().join(file);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    for (args, below, noted) in [
        (&["--manifests"][..], "config/crd", "kustomization.yaml: only resources are read, not namePrefix\n"),
        (
            &["-R", "--manifests"],
            "config",
            "config.yaml, document 1: has no apiVersion, so it is not an object of Kubernetes\n",
        ),
    ] {
        let stderr = dir.path().join("stderr");
        let mut command = listwatch();
        command.arg("apiserver").args(args).arg(dir.path().join(below));
        let server = Running::start(command.stderr(fs::File::create(&stderr).unwrap()));
        assert!(server.stdout.contains(": 5.\n"), "{}", server.stdout);
        let stderr = fs::read_to_string(stderr).unwrap();
        assert!(stderr.ends_with(noted) && stderr.lines().count() == 1, "{stderr}");
        assert_eq!(server.terminate(), Some(0));
    }
}

/// A test that comes from envtest writes the status of its Deployments itself.
#[tokio::test]
async fn without_controllers_a_status_is_what_clients_write() {
    for (flag, replicas) in [("--controllers=false", 3), ("--controllers", 1)] {
        let dir = tempfile::tempdir().unwrap();
        let kubeconfig = dir.path().join("kubeconfig");
        let server =
            Running::start(listwatch().args(["apiserver", flag, "--kubeconfig-out"]).arg(&kubeconfig));
        let client = client(&kubeconfig);
        let path = "/apis/apps/v1/namespaces/default/deployments";
        let template = json!({"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}});
        let spec = json!({"selector": {"matchLabels": {"a": "b"}}, "template": template});
        let created = json!({"metadata": {"name": "a"}, "spec": spec}).to_string().into_bytes();
        client.send(Request::get(path).sends(Method::POST, "application/json", created)).await.unwrap();
        let status = json!({"status": {"replicas": 3}}).to_string().into_bytes();
        let patch = Request::get(format!("{path}/a/status"));
        client.send(patch.sends(Method::PATCH, "application/merge-patch+json", status)).await.unwrap();
        // With controllers, the Pod of the Deployment is counted soon.
        eventually(flag, async || {
            let body = client.send(Request::get(format!("{path}/a"))).await.unwrap().body;
            let object: Value = serde_json::from_slice(&body).unwrap();
            (object["status"]["replicas"] == replicas).then_some(())
        })
        .await;
        let sets = client.send(Request::get("/apis/apps/v1/replicasets")).await.unwrap().body;
        let sets: Value = serde_json::from_slice(&sets).unwrap();
        assert_eq!(sets["items"].as_array().unwrap().is_empty(), flag == "--controllers=false");
        assert_eq!(server.terminate(), Some(0));
    }
}

#[tokio::test]
async fn manifests_come_from_several_files_and_a_closed_stdout_does_not_end_the_server() {
    let dir = tempfile::tempdir().unwrap();
    let [crd, objects, kubeconfig] = ["crd.json", "a.yaml", "kubeconfig"].map(|name| dir.path().join(name));
    fs::write(&crd, CRD).unwrap();
    fs::write(&objects, MANIFESTS).unwrap();
    let mut command = listwatch();
    command.arg("apiserver").arg("--manifests").arg(&objects).arg("--manifests").arg(&crd);
    command.arg("--kubeconfig-out").arg(&kubeconfig).stdout(Stdio::piped());
    // Kubernetes sets this variable for a Service with the name `listwatch`.
    command.env("LISTWATCH_PORT", "tcp://10.0.0.1:80");
    let mut child = command.spawn().unwrap();
    let mut stdout = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut stdout).unwrap();
    let mut server = Running { child, stdout };
    eventually("a kubeconfig", async || fs::read(&kubeconfig).ok().filter(|text| !text.is_empty())).await;
    let path = "/apis/shop.example.com/v1/namespaces/shop/carts/mine";
    client(&kubeconfig).send(Request::get(path)).await.unwrap();
    assert_eq!(server.child.try_wait().unwrap(), None, "the server goes on after its stdout is closed");
    assert_eq!(server.terminate(), Some(0));
}

#[tokio::test]
async fn only_a_kubeconfig_written_by_apiserver_is_overwritten() {
    let dir = tempfile::tempdir().unwrap();
    let [ours, link] = ["ours", "link"].map(|name| dir.path().join(name));
    let start = |path| Running::start(listwatch().args(["apiserver", "--kubeconfig-out"]).arg(path));
    assert_eq!(start(&ours).terminate(), Some(0));
    let before = fs::read_to_string(&ours).unwrap();
    fs::set_permissions(&ours, Permissions::from_mode(0o644)).unwrap();
    symlink("ours", &link).unwrap();
    let open = File::open(&ours).unwrap();
    let server = start(&link);
    assert_eq!(
        io::read_to_string(open).unwrap(),
        before,
        "a client that reads meanwhile reads the whole old file"
    );
    assert_ne!(fs::read_to_string(&ours).unwrap(), before);
    assert_eq!(mode(&ours), 0o600);
    assert!(link.is_symlink());
    client(&ours).send(Request::get("/api/v1/namespaces")).await.unwrap();
    drop(server);

    let foreign = dir.path().join("foreign");
    fs::write(&foreign, "apiVersion: v1\nkind: Config\n").unwrap();
    let output = listwatch().args(["apiserver", "--kubeconfig-out"]).arg(&foreign).output().unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{stderr}");
    assert!(stderr.contains("exists and was not written by listwatch apiserver"), "{stderr}");
    assert_eq!(fs::read_to_string(&foreign).unwrap(), "apiVersion: v1\nkind: Config\n");
}

#[test]
fn invalid_input_is_one_line_that_names_the_place() {
    let dir = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str| {
        let path = dir.path().join(name);
        fs::write(&path, text).unwrap();
        path.display().to_string()
    };
    let in_use = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = in_use.local_addr().unwrap().port().to_string();
    let good = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\n---\n";
    let no_yaml = file("no-yaml", &format!("{good}a: [b"));
    let no_kind = file("no-kind", &format!("{good}metadata: {{name: b}}"));
    let empty = file("empty", "# nothing\n");
    let no_version = file("no-version", "apiVersion: ''\nkind: ConfigMap\n");
    let odd_version = file("odd-version", "apiVersion: v1?x\nkind: ConfigMap\nmetadata: {name: a}\n");
    let odd_namespace =
        file("odd-namespace", "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a, namespace: x y?}\n");
    let unknown = file("unknown", "apiVersion: networking.k8s.io/v1\nkind: Nothing\nmetadata: {name: b}\n");
    let twice = file("twice", &format!("{good}{good}"));
    let invalid =
        file("invalid", &format!("{good}apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: A_B}}\n"));
    let misspelt = file(
        "misspelt",
        &format!("{good}apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: b}}\ndate: {{}}\n"),
    );
    let json = file("json", "{}");
    let missing = dir.path().join("missing/file").display().to_string();
    let cases: &[(&[&str], i32, &str)] = &[
        (
            &["--port", &port],
            1,
            &format!("--port {port}: Address already in use (os error 98); 0 chooses a free port"),
        ),
        (&["--kubeconfig-out", &missing], 1, &format!("--kubeconfig-out {missing}: No such file")),
        (&["--checkpoint", &missing], 2, &format!("--checkpoint {missing}: No such file")),
        (&["--checkpoint", &empty], 2, "empty: expected value at line 1"),
        (&["--checkpoint", &json], 2, "json: is not a checkpoint: no resourceVersion"),
        (&["--manifests", &missing], 2, &format!("--manifests {missing}: No such file")),
        (&["--manifests", &empty], 2, "empty: holds no objects"),
        (
            &["--manifests", &dir.path().display().to_string()],
            2,
            "holds no objects (.yaml, .yml and .json in it are read, but not those in directories below it)",
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
            "unknown, document 1 (Nothing \"b\"): Nothing in networking.k8s.io/v1 is not served here; apiserver/README.md has those that are",
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
            "'--fault <FAULT>': \"cut-watch\" is not a fault; a similar one is cut-watches; see",
        ),
        (
            &["--manifests", &misspelt],
            2,
            "misspelt, document 2 (ConfigMap \"b\"): ConfigMap in version \"v1\" cannot be handled as a ConfigMap: strict decoding error: unknown field \"date\"",
        ),
        (&["--fault", "restart"], 2, "so it has no effect at the start: POST it to /listwatch/faults"),
        (&["--fault", "cut-watches"], 2, "add lines=N, or POST it"),
        (&["--fault", "nope"], 2, "; see listwatch apiserver --fault help"),
        (&["--nope"], 2, "; see listwatch apiserver --help"),
        (
            &["--fault", "slow,time=soon"],
            2,
            "time=soon: is not a time: write a number and a unit, such as 500ms or 2s",
        ),
    ];
    for (args, code, cause) in cases {
        let output = listwatch().arg("apiserver").args(*args).output().unwrap();
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(*code), "{args:?}: {stderr}");
        assert!(stderr.starts_with("listwatch: ") && stderr.contains(cause), "{args:?}: {stderr}");
        assert_eq!(stderr.lines().count(), 1, "{args:?}: {stderr}");
    }
}

#[test]
fn every_fault_is_explained() {
    let output = listwatch().args(["apiserver", "--fault", "help"]).output().unwrap();
    let stdout = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(
        stdout.contains("too-many-requests,retry-after=1")
            && stdout.contains(&listwatch_apiserver::fault_help())
    );
}
