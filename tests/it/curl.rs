//! Tests the curl commands that listwatch prints: in a shell, each gets the answer that listwatch itself gets.
//!
//! ```text
//! curl -sS --cacert … -H "Authorization: Bearer $(cat …)" 'https://127.0.0.1:6443/api/v1/…'    from a kubeconfig
//! curl -sS --cacert … -H "Authorization: Bearer $(cat …)" 'https://kubernetes.default.svc/…'   in a Pod
//! curl -sS 'http://127.0.0.1:8001/api/v1/…'                                                    behind `kubectl proxy`
//! ```
//!
//! The commands run in bash, and in zsh where it is installed, on the embedded server and on a real one. Only with
//! `KUBEBUILDER_ASSETS` there is a `kubectl`.

use std::{
    collections::HashMap,
    env, fs,
    io::{self, BufRead, BufReader, Write},
    path::{Path, PathBuf},
    process::{Child, Stdio},
    sync::{Arc, LazyLock, Mutex},
};

use base64::{Engine, engine::general_purpose::STANDARD};
use http::Method;
use listwatch::{
    advanced::{Step, Tap},
    client::{Client, Config, CurlFrom, Env, Options, Request},
};
use listwatch_control_plane::{PATIENCE, assets, has_assets};
use rcgen::{CertifiedKey, generate_simple_self_signed};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::{process::Command, task::JoinSet};

use crate::{
    fixture::{Fixture, Kind, on},
    operator,
};

/// The directory of the service account in a Pod.
const ACCOUNT_DIR: &str = "/var/run/secrets/kubernetes.io/serviceaccount";
/// The default address of `kubectl proxy`.
pub const PROXY: &str = "127.0.0.1:8001";

/// How often a pair of requests is compared on a server that other tests use.
const ATTEMPTS_MAX: usize = 5;

/// How often a request is sent until it gets an answer.
const TRIES: u32 = 5;

/// The shells in which a printed command or script must run.
pub static SHELLS: LazyLock<Vec<&str>> = LazyLock::new(|| {
    let is_there = |shell: &&str| {
        let path = env::var_os("PATH").unwrap();
        env::split_paths(&path).any(|dir| dir.join(shell).exists())
    };
    let (shells, missing): (Vec<_>, Vec<_>) = ["bash", "zsh"].into_iter().partition(is_there);
    if !missing.is_empty() {
        assert!(env::var_os("CI").is_none(), "CI needs {missing:?}");
        let _ = writeln!(io::stderr(), "printed commands and scripts are not tested in {missing:?}");
    }
    shells
});

/// Everything that printed commands need: files, a `kubectl proxy`, and the name of the API server in a Pod.
struct Place {
    /// Its name needs quoting in a shell.
    dir: TempDir,
    /// As in a Pod, but in another directory, and with the token of an administrator.
    account: TempDir,
    /// Both for the client and for the commands.
    env: Env,
    token: String,
    /// Without `kubectl`, there is none.
    proxy: Option<Proxy>,
    /// Whether no other test writes to the server.
    is_idle: bool,
}

/// A running `kubectl proxy`. The shell ends it when this process closes the pipe or ends.
struct Proxy {
    address: String,
    shell: Child,
}

impl Proxy {
    fn start(kubectl: &Path, kubeconfig: &Path) -> Proxy {
        let mut shell = std::process::Command::new("sh")
            .args(["-c", r#""$0" proxy --port=0 --kubeconfig="$1" </dev/null & read -r _; kill $!"#])
            .args([kubectl, kubeconfig])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(shell.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let address = line.trim().strip_prefix("Starting to serve on ").expect(&line).to_owned();
        Proxy { address, shell }
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        // Closes its input first.
        let _ = self.shell.wait();
    }
}

impl Place {
    fn new(fixture: &Fixture) -> Place {
        let dir = tempfile::Builder::new().prefix("it's \"a\" $HOME\\dir ü").tempdir().unwrap();
        let account = TempDir::new().unwrap();
        let token = fixture.admin_token().to_owned();
        for dir in [&dir, &account] {
            fs::write(dir.path().join("token"), &token).unwrap();
            fs::write(dir.path().join("ca.crt"), fixture.ca_pem()).unwrap();
        }
        // Stands in for the DNS and the Service of a cluster.
        let address = fixture.url().replace("https://", "");
        let curlrc = format!("connect-to = kubernetes.default.svc:443:{address}\n");
        fs::write(dir.path().join(".curlrc"), curlrc).unwrap();
        let (host, port) = address.split_once(':').unwrap();
        let mut env =
            Env { service_host: Some(host.into()), service_port: Some(port.into()), ..Env::default() };
        env.kubeconfig = Some(dir.path().join("config of $KUBECONFIG").into());
        let mut place = Place { dir, account, env, token, proxy: None, is_idle: fixture.is_embedded() };
        let cluster = json!({"server": fixture.url(), "certificate-authority": "ca.crt"});
        let kubeconfig = place.kubeconfig("kubeconfig", cluster, json!({"tokenFile": "token"}));
        place.proxy = assets().map(|dir| Proxy::start(&dir.join("kubectl"), &kubeconfig));
        place
    }

    /// Writes a kubeconfig with this cluster and this user.
    fn kubeconfig(&self, name: &str, cluster: Value, user: Value) -> PathBuf {
        let path = self.dir.path().join(name);
        let config = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "here",
            "contexts": [{"name": "here", "context": {"cluster": "it's a \"cluster\"", "user": "me@home"}}],
            "clusters": [{"name": "it's a \"cluster\"", "cluster": cluster}],
            "users": [{"name": "me@home", "user": user}],
        });
        fs::write(&path, config.to_string()).unwrap();
        path
    }

    /// From where the commands can reach the API server.
    fn forms(&self) -> Vec<CurlFrom> {
        let proxy = self.proxy.iter().map(|_| CurlFrom::Proxy);
        [CurlFrom::Here, CurlFrom::Pod].into_iter().chain(proxy).collect()
    }

    /// Runs a printed command, and returns its output.
    ///
    /// Only two texts are replaced: the directory of a Pod and the default port of `kubectl proxy`, because there is
    /// neither a Pod nor a fixed port here.
    async fn run(&self, shell: &str, line: &str) -> String {
        let line = line.replace(ACCOUNT_DIR, self.account.path().to_str().unwrap());
        let line = match &self.proxy {
            Some(proxy) => line.replace(PROXY, &proxy.address),
            None => line,
        };
        let path = env::var_os("PATH").unwrap();
        let path = env::join_paths(assets().into_iter().chain(env::split_paths(&path))).unwrap();
        let output = Command::new(shell)
            .args(["-c", &line])
            .env_clear()
            .envs([("PATH", &*path), ("CURL_HOME", self.dir.path().as_os_str())])
            .envs(self.env.kubeconfig.as_ref().map(|files| ("KUBECONFIG", files)))
            .stdin(Stdio::null())
            .output()
            .await
            .unwrap();
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.success() && stderr.is_empty(), "{shell}: {line}: {}: {stderr}", output.status);
        String::from_utf8(output.stdout).unwrap()
    }
}

/// Checks that a printed command gets the answer of the client, except for what changes between two requests.
///
/// On a server that other tests use, an answer may change between the two requests: the history expires, the server refuses
/// one of them with 429, a controller writes. So both requests are sent again, a few times.
async fn check_same<F: Future<Output = String>>(
    place: &Place,
    [shell, line]: [&str; 2],
    is_read: bool,
    mut expected: String,
    again: impl Fn() -> F,
) {
    for attempt in 1.. {
        let actual = place.run(shell, line).await;
        let [mut actual, mut wanted] = [&*actual, &*expected].map(documents);
        for answer in [&mut actual, &mut wanted] {
            // How many bookmarks come in a second varies.
            answer.retain(|event| event["type"] != "BOOKMARK" || ends_initial_events(event));
        }
        let is_table = |answer: &Value| answer.to_string().contains(r#""kind":"Table""#);
        // Nothing else writes to the embedded server.
        let is_exact = place.is_idle && is_read && !wanted.iter().any(is_table);
        if !is_exact {
            actual.iter_mut().chain(&mut wanted).for_each(normalise);
        }
        if actual == wanted {
            return;
        }
        let is_last = place.is_idle || attempt == ATTEMPTS_MAX;
        assert!(!is_last, "{shell}: {line}: curl got\n{actual:#?}\nand the client\n{wanted:#?}");
        expected = again().await;
    }
}

pub fn ends_initial_events(event: &Value) -> bool {
    event.to_string().contains("k8s.io/initial-events-end")
}

/// The documents of an answer, and what follows them as text without white space. As values, because the API server indents
/// its answers to curl.
pub fn documents(text: &str) -> Vec<Value> {
    let mut found = serde_json::Deserializer::from_str(text).into_iter();
    let mut documents: Vec<Value> = found.by_ref().map_while(Result::ok).collect();
    // The server answers an unknown path with plain text.
    let rest: String = text[found.byte_offset()..].split_whitespace().collect();
    documents.extend((!rest.is_empty()).then(|| rest.into()));
    documents
}

/// Hides what differs between two requests: the version at the time of a list or of a bookmark, the age of an object in a
/// Table, and what the server chooses for a write.
fn normalise(document: &mut Value) {
    let kind = document["kind"].as_str().unwrap_or_default().to_owned();
    let is_list = kind.ends_with("List") || kind == "Table" || document["type"] == "BOOKMARK";
    let hidden: &[&str] = if is_list {
        &["/metadata/resourceVersion", "/metadata/continue", "/object/metadata/resourceVersion"]
    } else {
        // The server takes the manager from the user agent.
        &["/metadata/uid", "/metadata/creationTimestamp", "/metadata/managedFields"]
    };
    for pointer in hidden {
        document.pointer_mut(pointer).map(Value::take);
    }
    if document["type"] == "ERROR" {
        // The message has the oldest version in the history, which other tests shorten.
        document["object"]["message"].take();
    }
    for rows in ["/rows", "/object/rows"] {
        for row in document.pointer_mut(rows).and_then(Value::as_array_mut).into_iter().flatten() {
            // The last column is the age.
            row["cells"].as_array_mut().and_then(Vec::pop);
        }
    }
}

/// Keeps the body of the last answer.
#[derive(Default)]
struct LastBody(Mutex<Vec<u8>>);

impl Tap for LastBody {
    fn step(&self, _exchange: u64, step: Step<'_>) {
        let mut body = self.0.lock().unwrap();
        match step {
            Step::Request(_) => body.clear(),
            Step::Chunk(chunk) => body.extend(chunk),
            Step::Head { .. } | Step::End | Step::Lost | Step::Dropped => {}
        }
    }
}

/// The answer that the client gets to a request.
async fn answer(place: &Place, options: &Options, request: &Request) -> String {
    let body = Arc::<LastBody>::default();
    let config = Config::load(options, &place.env).unwrap().with_tap(body.clone());
    let client = Client::new(config).unwrap();
    // On a busy machine a connection may fail, or a watch of one second end before its first event.
    for _ in 0..TRIES {
        // An error is also an answer.
        let _ = client.send(request.clone()).await;
        let answer = String::from_utf8(body.0.lock().unwrap().clone()).unwrap();
        if !answer.is_empty() {
            return answer;
        }
    }
    panic!("no answer to {request:?}");
}

/// Checks that the printed commands of a request get the answer of the client. Returns the kind of the answer.
async fn check(place: &Arc<Place>, options: &Options, forms: &[CurlFrom], request: &Request) -> Value {
    let expected = answer(place, options, request).await;
    let client = Client::new(Config::load(options, &place.env).unwrap()).unwrap();
    let mut runs = JoinSet::new();
    for (from, shell) in forms.iter().flat_map(|from| SHELLS.iter().map(move |shell| (from, shell))) {
        let line = client.curl(request, *from);
        assert!(!line.contains(&place.token), "{line}");
        let (place, expected, options, request) =
            (Arc::clone(place), expected.clone(), options.clone(), request.clone());
        runs.spawn(async move {
            let is_read = request.method == Method::GET;
            let again = || answer(&place, &options, &request);
            check_same(&place, [shell, &line], is_read, expected, again).await;
        });
    }
    runs.join_all().await;
    documents(&expected)[0]["kind"].clone()
}

/// Runs a test on both servers, with files and a `kubectl proxy`.
async fn on_both(test: impl AsyncFn(&Fixture, &Arc<Place>) + Copy + Send + 'static) {
    has_assets();
    on(&[Kind::Embedded, Kind::Real], async move |fixture| {
        // The operator's way to list makes no difference here.
        if fixture.lists == listwatch::watch::Lists::Paged {
            test(fixture, &Arc::new(Place::new(fixture))).await;
        }
    })
    .await;
}

#[tokio::test]
async fn the_printed_curl_of_a_request_gets_its_answer() {
    on_both(async |fixture, place| {
        let text = "it's \"a\" $HOME `id` \\n\n\tü ! # & 100 %";
        let data = json!({"metadata": {"name": "a", "labels": {"tier": "web"}}, "data": {"text": text}});
        let version = fixture.create("configmaps", &data).await["metadata"]["resourceVersion"].clone();
        fixture.patch("configmaps/a", json!({"data": {"new": text}})).await;
        let one = fixture.path("configmaps/a");
        let all = fixture.path("configmaps");
        let patch = json!({"data": {"text": format!("@{text}{text}")}}).to_string().into_bytes();
        let operations = json!([{"op": "remove", "path": "/data/text"}]).to_string().into_bytes();
        let applied = b"apiVersion: v1\nkind: ConfigMap\nmetadata: {name: b}\ndata: {a: \"it's\"}\n".to_vec();
        let policy = json!({"propagationPolicy": "Background", "dryRun": ["All"]}).to_string().into_bytes();
        let created = json!({"metadata": {"name": "c"}, "data": {"text": text}}).to_string().into_bytes();
        let json = "application/json";
        let selected =
            vec![("labelSelector", "tier in (web, db),!it's \"ü\" [a-c] {d} $HOME `id`".to_owned())];
        let table = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json".into();
        let watch = format!("{all}?watch=1&timeoutSeconds=1");
        let stream = "sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true";
        let after = vec![("resourceVersion", version.as_str().unwrap().to_owned())];
        let requests = [
            Request::get(&one),
            Request { query: selected, ..Request::get(&all) },
            Request { accept: table, ..Request::get(format!("{all}?limit=1")) },
            Request::get("/api/v1/namespaces/it%27s%20%22%C3%BC%22/pods?labelSelector=a%5Bb%5D{c}"),
            Request::get("/api/v1/namespaces/it's \"ü\"/pods?labelSelector=a in (b)"),
            Request::get("/apis/no.example.com"),
            Request { query: after, ..Request::get(&watch) },
            Request::get(format!("{watch}&resourceVersion=1")),
            Request::get(format!("{watch}&{stream}")),
            Request::get(format!("{all}?dryRun=All")).sends(Method::POST, json, created),
            Request::get(format!("{one}?dryRun=All")).sends(
                Method::PATCH,
                "application/merge-patch+json",
                patch,
            ),
            Request::get(format!("{one}?dryRun=All")).sends(
                Method::PATCH,
                "application/json-patch+json",
                operations,
            ),
            Request::get(format!("{all}/b?dryRun=All&fieldManager=me")).sends(
                Method::PATCH,
                "application/apply-patch+yaml",
                applied,
            ),
            Request::get(&one).sends(Method::DELETE, json, policy),
        ];
        let mut checks = JoinSet::new();
        for request in requests {
            let place = Arc::clone(place);
            checks.spawn(async move {
                let kubeconfig = Some(place.dir.path().join("kubeconfig"));
                let options = Options { kubeconfig, ..Options::default() };
                let jane = Options { act_as: Some("it's \"jane\" $HOME".to_owned()), ..options.clone() };
                check(&place, &options, &place.forms(), &request).await;
                check(&place, &jane, &place.forms(), &request).await;
            });
        }
        checks.join_all().await;
    })
    .await;
}

#[tokio::test]
async fn the_printed_curl_reads_each_credential_from_its_source() {
    on_both(async |fixture, place| {
        let (url, token) = (fixture.url(), &place.token);
        let CertifiedKey { cert, signing_key } = generate_simple_self_signed(["me".to_owned()]).unwrap();
        let (cert, key) = (cert.pem(), signing_key.serialize_pem());
        let file = |name: &str, text: &str| fs::write(place.dir.path().join(name), text).unwrap();
        file("it's me.crt", &cert);
        file("it's me.key", &key);
        file("login", r#"[ "$1 $ROLE" = "it's \"a\" \$HOME ü an administrator" ] && echo "$KUBERNETES_EXEC_INFO" | jq --arg t "$TOKEN" '.status.token = $t'"#);
        let base64 = |text: &str| STANDARD.encode(text);
        let request = Request::get("/api/v1/namespaces/default");
        let by_file = json!({"server": url, "certificate-authority": "ca.crt"});
        let plugin = json!({"exec": {
            "apiVersion": "client.authentication.k8s.io/v1", "interactiveMode": "Never", "command": "sh",
            "args": [place.dir.path().join("login"), "it's \"a\" $HOME ü"],
            "env": [{"name": "ROLE", "value": "an administrator"}, {"name": "TOKEN", "value": token}],
        }});
        for (name, cluster, user) in [
            ("token in the kubeconfig", json!({"server": url, "certificate-authority-data": base64(&fixture.ca_pem())}), json!({"token": token})),
            (
                "certificate files",
                json!({"server": url, "insecure-skip-tls-verify": true}),
                json!({"tokenFile": "token", "client-certificate": "it's me.crt", "client-key": "it's me.key"}),
            ),
            (
                "certificate data",
                json!({"server": url, "certificate-authority": "ca.crt", "tls-server-name": "kubernetes.default.svc"}),
                json!({"token": token, "client-certificate-data": base64(&cert), "client-key-data": base64(&key)}),
            ),
            ("password", by_file.clone(), json!({"username": "it's \"me\"", "password": "$HOME ü"})),
            ("plugin", by_file.clone(), plugin),
            ("config of $KUBECONFIG", by_file, json!({"token": token})),
        ] {
            let kubeconfig = Some(place.kubeconfig(name, cluster, user)).filter(|_| !name.contains('$'));
            // A credential within a kubeconfig is printed by `kubectl config view`.
            if has_assets() || name == "certificate files" {
                let options = Options { kubeconfig, ..Options::default() };
                let kind = check(place, &options, &[CurlFrom::Here], &request).await;
                assert_eq!(kind, if name == "password" { "Status" } else { "Namespace" }, "{name}");
            }
        }
        let service_account_dir = Some(place.account.path().to_owned());
        let options = Options { service_account_dir, ..Options::default() };
        assert_eq!(check(place, &options, &[CurlFrom::Here], &request).await, "Namespace");
    })
    .await;
}

/// Runs `listwatch` with these arguments, and returns its stdout and stderr.
async fn listwatch(place: &Place, args: &[String]) -> [String; 2] {
    let output = Command::from(operator::listwatch())
        .args(args)
        .args(["--kubeconfig".as_ref(), place.dir.path().join("kubeconfig").as_os_str()])
        // Thirty of them run at a time.
        .args(["--request-timeout", "5m"])
        .output()
        .await
        .unwrap();
    [output.stdout, output.stderr].map(|text| String::from_utf8(text).unwrap())
}

#[tokio::test]
async fn get_and_watch_print_the_curl_that_gets_their_output() {
    on_both(async |fixture, place| {
        let namespace = &*fixture.namespace;
        let labels = |tier: &str| json!({"in": namespace, "tier": tier});
        let mut version = String::new();
        for (name, tier) in [("a", "web"), ("b", "db"), ("c", "web")] {
            let object =
                json!({"metadata": {"name": name, "labels": labels(tier)}, "data": {"key": "it's ü"}});
            let created = fixture.create("configmaps", &object).await;
            version = created["metadata"]["resourceVersion"].as_str().unwrap().to_owned();
        }
        fixture.patch("configmaps/a", json!({"metadata": {"labels": {"tier": "db"}}})).await;
        fixture.delete("configmaps/b").await;
        let all = fixture.path("configmaps");
        let page: Value =
            serde_json::from_str(&fixture.raw(&format!("{all}?limit=1")).await.unwrap()).unwrap();
        let next = page["metadata"]["continue"].as_str().unwrap();
        let mine = format!("in={namespace}");
        let odd = "tier in (web, \"it's\"), !ü, a=$HOME `id` \\ # & + % ? [1-2] {3,4}";
        let path = |query: &str| format!("{all}{query}");
        let [encoded, plain, unknown, watch] = [
            path("?limit=1&labelSelector=tier%20in%20(web)&fieldSelector=metadata.name!%3Da"),
            path("?labelSelector=tier in (web,ü)"),
            path("/it's \"no\" ü"),
            path("?watch=true&resourceVersion=0"),
        ];
        let cases: [&[&str]; _] = [
            &["get", "configmaps"],
            &["get", "cm/a"],
            &["get", "cm", "-A", "-l", &mine],
            &["get", "cm", "-l", "tier in (web, db),!gone"],
            &["get", "cm", "-l", odd],
            &["get", "cm", "--field-selector", "metadata.name=a"],
            &["get", "cm", "--field-selector", odd],
            &["get", "cm", "--limit", "1"],
            &["get", "cm", "--limit", "1", "--continue", next],
            &["get", "cm", "--continue", odd],
            &["get", "cm", "--resource-version", &version, "--resource-version-match", "Exact"],
            &["get", "cm", "--resource-version", &version, "--resource-version-match", "NotOlderThan"],
            &["get", "cm", "--table"],
            &["get", "cm/a", "--table"],
            &["get", "cm", "--output=wide"],
            &["get", "cm", "--metadata"],
            &["get", "cm/a", "--metadata"],
            &["get", "cm", "--as", "it's \"jane\" $HOME"],
            &["get", &encoded],
            &["get", &encoded, "--resource-version", "0", "-l", "tier=web"],
            &["get", &plain],
            &["get", &unknown],
            &["get", "/version"],
            &["watch", "cm", "--resource-version", &version],
            &["watch", "cm", "--resource-version", &version, "--table"],
            &["watch", "cm", "--resource-version", &version, "--output=wide"],
            &["watch", "cm", "--resource-version", &version, "--metadata"],
            &["watch", "cm", "--resource-version", &version, "-l", "tier=web"],
            &["watch", "cm", "--resource-version", &version, "--field-selector", "metadata.name=b"],
            &["watch", "cm", "--resource-version", &version, "-A", "-l", &mine],
            &["watch", "cm", "--resource-version", "1"],
            &["watch", "cm", "--resource-version", "0", "--allow-watch-bookmarks"],
            &["watch", "cm", "--send-initial-events", "--resource-version-match", "NotOlderThan"],
            &["watch", "cm", "--as", "jane"],
            &["watch", &all],
            &["watch", &watch, "--metadata"],
        ];
        let commands = cases.map(|case| {
            let mut args: Vec<String> = case.iter().map(|&arg| arg.to_owned()).collect();
            if !case[1].starts_with('/') && !case.contains(&"-A") {
                args.extend(["-n".to_owned(), namespace.to_owned()]);
            }
            if case[0] == "watch" {
                args.extend(["--timeout-seconds".to_owned(), "1".to_owned()]);
            }
            args
        });
        let [help, _] = listwatch(place, &["watch".to_owned(), "-h".to_owned()]).await;
        let (_, options) = help.split_once("\nProtocol:\n").unwrap();
        let options = options.lines().take_while(|line| line.starts_with(' '));
        for option in options.map(str::trim_start).filter(|line| line.starts_with('-')) {
            let is_tried = |name: &str| commands.iter().flatten().any(|arg| arg == name);
            let mut names = option.split([' ', ',']).take_while(|word| !word.starts_with('<'));
            assert!(names.any(is_tried), "no command has {option}");
        }
        let mut runs = JoinSet::new();
        for args in commands {
            let place = Arc::clone(place);
            runs.spawn(async move { check_command(&place, args).await });
        }
        runs.join_all().await;
    })
    .await;
}

/// Checks that the curls that a command prints get its output.
async fn check_command(place: &Arc<Place>, args: Vec<String>) {
    let [_, stderr] = listwatch(place, &args).await;
    // The columns come from this answer.
    let whole = args.iter().map(|arg| arg.replace("--output=wide", "--table")).collect::<Vec<_>>();
    let [shown, errors] = listwatch(place, &whole).await;
    assert!(!shown.is_empty(), "{whole:?}: {errors}");
    for form in ["--curl", "--curl=pod", "--curl=proxy"] {
        let with_form: Vec<String> = args.iter().cloned().chain([form.to_owned()]).collect();
        let [line, errors] = listwatch(place, &with_form).await;
        assert!(errors.is_empty() && line.lines().count() == 1, "{with_form:?}: {line}{errors}");
        assert!(!line.contains(&place.token), "{line}");
        // The same command is part of the output.
        assert!(form != "--curl" || stderr.contains(line.trim()), "{line} is not in {stderr}");
        if form == "--curl=proxy" && place.proxy.is_none() {
            continue;
        }
        for shell in &*SHELLS {
            let whole = &whole;
            let again = || async move {
                let [shown, _] = listwatch(place, whole).await;
                shown
            };
            check_same(place, [shell, &line], true, shown.clone(), again).await;
        }
    }
}

/// Also replays the recording of that operator.
#[tokio::test]
async fn the_script_of_an_operator_makes_its_children_again() {
    on(&[Kind::Embedded, Kind::Real], async |fixture| {
        let script = fixture.dir.path().join("script");
        let recording = fixture.dir.path().join("recording");
        let files = [&script, &recording].map(|file| file.to_str().unwrap());
        fixture.start_operator(&["--curl", files[0], "--record", files[1]]).await;
        fixture.create_settled_web("web", json!({"image": "nginx", "replicas": 2})).await;
        fixture.stop_operator().await;
        let replay = Command::from(operator::listwatch()).args(["replay", files[1]]).output().await.unwrap();
        let summary = String::from_utf8(replay.stdout).unwrap();
        assert!(replay.status.success(), "{}", String::from_utf8_lossy(&replay.stderr));
        let namespace = &fixture.namespace;
        let owners = format!("MyWebserver {namespace}/barrier, MyWebserver {namespace}/web");
        for line in [
            "deployments: the store holds 2 objects, up to version ",
            &format!(": {namespace}/mws-barrier {namespace}/mws-web\n"),
            &format!("deployments: would have reconciled {owners}\n"),
            &format!("mywebservers: would have reconciled {namespace}/barrier, {namespace}/web\n"),
        ] {
            assert!(summary.contains(line), "{line:?} is not in\n{summary}");
        }
        let children = ["deployments/mws-web", "services/mws-web"];
        let mut before = Vec::new();
        for child in children {
            before.push(fixture.get(child).await);
            fixture.delete(child).await;
        }
        // The watches end only after minutes, but do not delay the other commands.
        let output = Command::new("timeout")
            .args([&*PATIENCE.as_secs().to_string(), "bash"])
            .arg(&script)
            .output()
            .await
            .unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        for child in children {
            fixture.delete(child).await;
        }
        // Each command is one line.
        let text = fs::read_to_string(&script).unwrap();
        let lines: Vec<&str> = text.lines().filter(|line| !line.starts_with("curl -sSN ")).collect();
        assert!(lines.len() < text.lines().count(), "{text}");
        let is_command = |line: &&&str| line.starts_with("curl ");
        fs::write(&script, lines.join("\n")).unwrap();
        // curl writes each status after the answer.
        let home = TempDir::new().unwrap();
        fs::write(home.path().join(".curlrc"), "write-out = \"\\n%{http_code}\\n\"\n").unwrap();
        let recorded = recorded_answers(&fs::read_to_string(&recording).unwrap());
        for shell in &*SHELLS {
            let mut command = Command::new(shell);
            let output = command.arg(&script).env("CURL_HOME", home.path()).output().await.unwrap();
            let [stdout, stderr] =
                [output.stdout, output.stderr].map(|text| String::from_utf8(text).unwrap());
            assert!(output.status.success() && stderr.is_empty(), "{shell}: {}: {stderr}", output.status);
            let answers = documents(&stdout);
            assert_eq!(answers.len(), 2 * lines.iter().filter(is_command).count(), "{shell}: {stdout}");
            let mut created = 0;
            for (answer, (request, [body, status])) in answers.chunks(2).zip(&recorded) {
                let is_read = request.starts_with("GET ");
                if answer[1] == 409 && !is_read {
                    // The object exists, or has another version by now.
                    let reason = if request.starts_with("POST ") { "AlreadyExists" } else { "Conflict" };
                    assert_eq!(answer[0]["reason"], reason, "{shell}: {request}");
                    continue;
                }
                created += usize::from(answer[1] == 201);
                let answered = [fixed(&answer[0]), answer[1].clone()];
                assert_eq!(answered, [fixed(body), status.clone()], "{shell}: {request}");
            }
            // The children that were deleted; the next shell finds them.
            assert_eq!(created, if shell == &SHELLS[0] { children.len() } else { 0 }, "{shell}: {stdout}");
            assert_eq!(answers.len(), 2 * recorded.len());
        }
        for (child, mut before) in children.into_iter().zip(before) {
            let mut again = fixture.get(child).await;
            assert_ne!(again["metadata"]["uid"], before["metadata"]["uid"]);
            assert_eq!(again["metadata"]["labels"], before["metadata"]["labels"]);
            for object in [&mut again, &mut before] {
                // Allocated by the server.
                object["spec"].as_object_mut().unwrap().retain(|field, _| !field.starts_with("clusterIP"));
            }
            assert_eq!(again["spec"], before["spec"], "{child}");
        }
    })
    .await;
}

/// An answer without what changes from one request to the next: of a list, only its kind stays.
fn fixed(answer: &Value) -> Value {
    let mut answer = answer.clone();
    normalise(&mut answer);
    for pointer in ["/items", "/metadata/resourceVersion", "/spec/clusterIP", "/spec/clusterIPs"] {
        answer.pointer_mut(pointer).map(Value::take);
    }
    answer
}

/// The request, the body and the status of each answer in a recording, except watches.
fn recorded_answers(recording: &str) -> Vec<(String, [Value; 2])> {
    let (mut answers, mut of_exchange) = (Vec::new(), HashMap::new());
    for entry in recording.lines().skip(1) {
        let entry: Value = serde_json::from_str(entry).unwrap();
        let exchange = entry["exchange"].as_u64();
        if let Some(path) = entry["request"]["path"].as_str().filter(|path| !path.contains("watch=1")) {
            of_exchange.insert(exchange, answers.len());
            let method = entry["request"]["method"].as_str().unwrap();
            answers.push((format!("{method} {path}"), [Value::Null, Value::Null]));
        }
        let Some(index) = of_exchange.get(&exchange) else { continue };
        let (_, [body, status]): &mut (String, [Value; 2]) = &mut answers[*index];
        match &entry["rest"] {
            Value::Null => {}
            // kube-apiserver writes its version on several lines.
            Value::String(text) => *body = documents(text).remove(0),
            object => object.clone_into(body),
        }
        if !entry["head"].is_null() {
            entry["head"]["status"].clone_into(status);
        }
    }
    answers
}
