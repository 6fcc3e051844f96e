//! Starts a real control plane for tests: etcd, kube-apiserver and kube-controller-manager, from `KUBEBUILDER_ASSETS`.
//!
//! ```text
//!   etcd ◄── kube-apiserver (RBAC, TokenRequest, audit.log of the requests of service accounts) ◄── kube-controller-manager
//! ```
//!
//! kube-controller-manager collects garbage, deletes namespaces and counts quotas. It rolls out no Deployments: the tests
//! write their status, so that transcripts are the same each time. Each process has a watchdog that ends it when this
//! process ends, whatever the reason.

#![allow(clippy::unwrap_used, reason = "a failed unwrap names its line")]

mod wait;

use std::{
    env,
    fs::{self, File},
    io::{self, Read, Seek, SeekFrom, Write},
    iter,
    net::TcpListener,
    path::{Path, PathBuf},
    process::{Child, ChildStdin, Command, Stdio},
    sync::{
        LazyLock, Mutex, Once,
        atomic::{AtomicU16, Ordering},
    },
    thread,
};

use rcgen::KeyPair;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

pub use wait::{PATIENCE, eventually, saw, unique, within};

/// A token with full access: its user is `admin`, of the group `system:masters`.
pub const ADMIN_TOKEN: &str = "admin";
/// A token without any permission: its user is `jane`.
pub const JANE_TOKEN: &str = "jane";
/// A token with full access: its user is `lens`, and what it asks for is audited with its objects.
pub const LENS_TOKEN: &str = "lens";
/// The stage of the audit event that is written here when kube-apiserver starts.
pub const STARTED: &str = "Started";

/// A control plane. Dropped: all its processes are killed.
pub struct ControlPlane {
    apiserver: Mutex<Option<Process>>,
    etcd_ports: [u16; 2],
    port: u16,
    http: Http,
    /// Admission plugins that are off.
    disabled_plugins: &'static str,
    /// etcd and kube-controller-manager.
    processes: Mutex<Vec<Process>>,
    // Last, so that the directory is there until the processes have ended.
    dir: TempDir,
}

/// The HTTP versions and the age of the kube-apiserver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Http {
    /// HTTP/2, and HTTP/1.1 for clients without it.
    Any,
    /// HTTP/1.1 only, as behind some load balancers.
    One,
    /// HTTP/2, and as before 1.32: `sendInitialEvents` is answered with 422, and the pages of a list come from etcd.
    AnyBefore132,
}

/// A process that ends with this one.
struct Process {
    /// The file with its process id.
    pid: PathBuf,
    watchdog: Child,
    stdin: Option<ChildStdin>,
}

impl Process {
    /// The shell waits for the end of its input, which comes when this process closes the pipe or ends.
    fn spawn(dir: &Path, program: &Path, args: &[String]) -> Process {
        let name = program.file_name().unwrap().to_string_lossy();
        let log = File::options().append(true).create(true).open(dir.join(format!("{name}.log"))).unwrap();
        let script = r#""$@" </dev/null & child=$!; echo $child >"$PID"; read -r _; kill -9 $child; wait $child; $CLEAN_UP"#;
        // A shared control plane is never dropped, so the watchdog of etcd removes its files.
        let clean_up = if name == "etcd" { format!("rm -rf {}", dir.display()) } else { String::new() };
        let pid = dir.join(format!("{name}.pid"));
        let mut watchdog = Command::new("sh")
            .args(["-c", script, "watchdog"])
            .arg(program)
            .args(args)
            .env("CLEAN_UP", clean_up)
            .env("PID", &pid)
            .current_dir(dir)
            .stdin(Stdio::piped())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .unwrap();
        let stdin = watchdog.stdin.take();
        Process { pid, watchdog, stdin }
    }

    /// Waits until the process has ended by itself. After a timeout the drop of `self` kills it: a kube-apiserver that
    /// ignored SIGTERM was once waited for without end.
    async fn ended(self) {
        let pid = fs::read_to_string(&self.pid).unwrap();
        let stat = format!("/proc/{}/stat", pid.trim());
        // A zombie has ended: the shell still reads its own input, and has not waited for the process.
        let has_ended = || fs::read_to_string(&stat).map_or(true, |stat| stat.contains(") Z "));
        eventually("a process to end", async || has_ended().then_some(())).await;
    }
}

impl Drop for Process {
    /// As `kill -9`. Waits until the process is gone.
    fn drop(&mut self) {
        self.stdin = None;
        let _ = self.watchdog.wait();
    }
}

/// The directory with the binaries, `KUBEBUILDER_ASSETS`, if it is set.
///
/// `LISTWATCH_REAL_TESTS` names a file that gets the name of each test that asks for it: with binaries, only these tests do more.
pub fn assets() -> Option<PathBuf> {
    if let Some(file) = env::var_os("LISTWATCH_REAL_TESTS")
        && let Some(test) = thread::current().name()
    {
        let file = File::options().append(true).create(true).open(file);
        file.unwrap().write_all(format!("{test}\n").as_bytes()).unwrap();
    }
    env::var_os("KUBEBUILDER_ASSETS").filter(|dir| !dir.is_empty()).map(PathBuf::from)
}

/// Whether there are binaries of a real control plane. If there are none, prints this once.
pub fn has_assets() -> bool {
    static PRINTED: Once = Once::new();
    let has_assets = assets().is_some();
    if !has_assets {
        // Not with `eprintln`: the test harness hides its output when a test succeeds.
        PRINTED.call_once(|| {
            let text =
                "KUBEBUILDER_ASSETS is not set: only the embedded API server is tested, and not with kubectl";
            let _ = writeln!(io::stderr(), "{text}");
        });
    }
    has_assets
}

/// Whether the scripts run on the real servers alone, as in CI, which has run them on the embedded server before.
pub fn has_only_real() -> bool {
    env::var_os("LISTWATCH_ONLY_REAL").is_some()
}

/// Whether a script runs on a real server with one way to list, as in CI, rather than with both.
pub fn has_one_list() -> bool {
    env::var_os("LISTWATCH_ONE_LIST").is_some()
}

fn binary(name: &str) -> PathBuf {
    let path = assets().expect("KUBEBUILDER_ASSETS").join(name);
    assert!(path.exists(), "KUBEBUILDER_ASSETS is set, but {} does not exist", path.display());
    path
}

/// The minor version of the kube-apiserver in `KUBEBUILDER_ASSETS`: 36 for v1.36.3.
pub fn minor_version() -> u32 {
    static MINOR: LazyLock<u32> = LazyLock::new(|| {
        let output = Command::new(binary("kube-apiserver")).arg("--version").output().unwrap();
        let version = String::from_utf8(output.stdout).unwrap();
        version.split('.').nth(1).and_then(|minor| minor.parse().ok()).expect("Kubernetes v1.36.3")
    });
    *MINOR
}

/// The API version of MutatingAdmissionPolicies, which older servers have behind a feature gate.
pub fn mutating_policies() -> &'static str {
    match minor_version() {
        ..=33 => "v1alpha1",
        34..=35 => "v1beta1",
        36.. => "v1",
    }
}

/// A port on which no program listens, and each port once: another control plane may have it and not listen yet. It is
/// below 32768: Linux gives the ports from there to outgoing connections, one of which could take the port.
pub fn free_port() -> u16 {
    static NEXT: LazyLock<AtomicU16> = LazyLock::new(|| AtomicU16::new(fastrand::u16(0..10_000)));
    iter::repeat_with(|| 20_000 + NEXT.fetch_add(1, Ordering::Relaxed) % 10_000)
        .find(|port| TcpListener::bind(("127.0.0.1", *port)).is_ok())
        .unwrap()
}

impl ControlPlane {
    /// Starts etcd and kube-apiserver.
    pub async fn start(http: Http) -> ControlPlane {
        ControlPlane::start_with(http, "ServiceAccount").await
    }

    /// Starts etcd and a kube-apiserver whose Pods need a ServiceAccount, and the controllers of ServiceAccounts.
    pub async fn start_with_service_accounts() -> ControlPlane {
        let control_plane = ControlPlane::start_with(Http::Any, "").await;
        control_plane.start_controllers(&[
            "serviceaccount-controller",
            "serviceaccount-token-controller",
            "root-ca-certificate-publisher-controller",
        ]);
        control_plane
    }

    async fn start_with(http: Http, disabled_plugins: &'static str) -> ControlPlane {
        let dir = tempfile::Builder::new().prefix("listwatch-control-plane-").tempdir().unwrap();
        let key = KeyPair::generate().unwrap();
        let audit = json!({
            "apiVersion": "audit.k8s.io/v1", "kind": "Policy", "rules": [
                {"level": "RequestResponse", "users": [LENS_TOKEN], "omitStages": ["RequestReceived"]},
                {"level": "Metadata", "userGroups": ["system:serviceaccounts"], "omitStages": ["ResponseStarted"]},
                {"level": "None"},
            ],
        });
        for (name, text) in [
            ("sa.key", key.serialize_pem()),
            ("sa.pub", key.public_key_pem()),
            (
                "tokens.csv",
                format!(
                    "{ADMIN_TOKEN},admin,1,\"system:masters\"\n{JANE_TOKEN},jane,2\n{LENS_TOKEN},lens,3,\"system:masters\"\n"
                ),
            ),
            ("audit.yaml", audit.to_string()),
            ("audit.log", String::new()),
        ] {
            fs::write(dir.path().join(name), text).unwrap();
        }
        let control_plane = ControlPlane {
            apiserver: Mutex::default(),
            etcd_ports: [free_port(), free_port()],
            port: free_port(),
            http,
            disabled_plugins,
            processes: Mutex::default(),
            dir,
        };
        control_plane.start_etcd();
        control_plane.start_apiserver().await;
        control_plane
    }

    /// Starts etcd with the data that are in its directory.
    pub fn start_etcd(&self) {
        let [client, peer] = self.etcd_ports.map(|port| format!("http://127.0.0.1:{port}"));
        let flag = [
            ("data-dir", "etcd".to_owned()),
            ("unsafe-no-fsync", "true".to_owned()),
            ("listen-client-urls", client.clone()),
            ("advertise-client-urls", client),
            ("listen-peer-urls", peer.clone()),
            ("initial-advertise-peer-urls", peer.clone()),
            ("initial-cluster", format!("default={peer}")),
        ];
        let etcd = Process::spawn(self.dir.path(), &binary("etcd"), &flags(&flag));
        self.processes.lock().unwrap().push(etcd);
    }

    /// Starts kube-apiserver, and waits until it is ready.
    pub async fn start_apiserver(&self) {
        // A kube-apiserver that was killed may have left half a line.
        let mut log = File::options().append(true).open(self.dir.path().join("audit.log")).unwrap();
        writeln!(log, "\n{}", json!({"stage": STARTED})).unwrap();
        let is_recent = self.http != Http::AnyBefore132;
        let mut gates = format!("WatchList={is_recent},ListFromCacheSnapshot={is_recent}");
        if mutating_policies() != "v1" {
            gates += ",MutatingAdmissionPolicy=true";
        }
        let flag = [
            ("etcd-servers", format!("http://127.0.0.1:{}", self.etcd_ports[0])),
            ("bind-address", "127.0.0.1".to_owned()),
            ("secure-port", self.port.to_string()),
            ("cert-dir", "certs".to_owned()),
            ("service-cluster-ip-range", "10.96.0.0/16".to_owned()),
            ("service-account-issuer", "https://kubernetes.default.svc".to_owned()),
            ("service-account-signing-key-file", "sa.key".to_owned()),
            ("service-account-key-file", "sa.pub".to_owned()),
            ("token-auth-file", "tokens.csv".to_owned()),
            ("authorization-mode", "RBAC".to_owned()),
            // As in every cluster with nodes, whose agents need it.
            ("allow-privileged", "true".to_owned()),
            // Usually, no controller creates the ServiceAccount `default`, and no Pod runs that would need it.
            ("disable-admission-plugins", self.disabled_plugins.to_owned()),
            ("audit-policy-file", "audit.yaml".to_owned()),
            ("audit-log-path", "audit.log".to_owned()),
            ("disable-http2-serving", (self.http == Http::One).to_string()),
            ("feature-gates", gates),
            ("runtime-config", format!("admissionregistration.k8s.io/{}=true", mutating_policies())),
            // After SIGTERM `/readyz` fails at once; later requests are refused, and watches end.
            ("shutdown-delay-duration", "2s".to_owned()),
            ("shutdown-send-retry-after", "true".to_owned()),
            ("shutdown-watch-termination-grace-period", "10s".to_owned()),
        ];
        let process = Process::spawn(self.dir.path(), &binary("kube-apiserver"), &flags(&flag));
        *self.apiserver.lock().unwrap() = Some(process);
        let certificate = self.dir.path().join("certs/apiserver.crt");
        let what = format!(
            "kube-apiserver to be ready: see {}",
            self.dir.path().join("kube-apiserver.log").display()
        );
        eventually(&what, async || {
            // The file is created first and written later.
            let pem = fs::read_to_string(&certificate).ok()?;
            if !pem.contains("-----END CERTIFICATE-----") {
                return None;
            }
            self.is_ready(&pem).await.then_some(())
        })
        .await;
    }

    async fn is_ready(&self, ca_pem: &str) -> bool {
        // A second call fails, and does not matter.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let ca = reqwest::Certificate::from_pem(ca_pem.as_bytes()).unwrap();
        let http = reqwest::Client::builder().tls_certs_only([ca]).build().unwrap();
        let request = http.get(format!("{}/readyz", self.url())).bearer_auth(ADMIN_TOKEN);
        let answer = request.send().await.and_then(reqwest::Response::error_for_status);
        answer.inspect_err(|error| saw("GET /readyz", error)).is_ok()
    }

    /// Ends kube-apiserver, as `kill -9` does.
    pub fn kill_apiserver(&self) {
        drop(self.apiserver.lock().unwrap().take());
    }

    /// Stops kube-apiserver with SIGTERM, as an upgrade does, and waits until it has ended.
    pub async fn stop_apiserver(&self) {
        self.signal("kube-apiserver", "TERM");
        let process = self.apiserver.lock().unwrap().take();
        process.expect("a kube-apiserver").ended().await;
    }

    /// Compacts etcd to its current revision. The watch cache of a kube-apiserver may still have older events.
    pub async fn compact(&self) {
        let now = self.etcd("/v3/kv/range", &json!({"key": "AA=="})).await["header"]["revision"].clone();
        self.etcd("/v3/kv/compaction", &json!({"revision": now, "physical": true})).await;
    }

    /// Sends a signal to the `etcd` or the `kube-apiserver` of this control plane.
    pub fn signal(&self, program: &str, signal: &str) {
        let pid = fs::read_to_string(self.dir.path().join(format!("{program}.pid"))).unwrap();
        let kill = format!("kill -{signal} {pid}");
        assert!(Command::new("sh").args(["-c", &kill]).status().unwrap().success(), "{program}: {kill}");
    }

    /// Ends etcd, as `kill -9` does, and waits until its port is closed.
    pub async fn kill_etcd(&self) {
        self.signal("etcd", "KILL");
        let address = ("127.0.0.1", self.etcd_ports[0]);
        eventually("etcd to end", async || TcpStream::connect(address).await.err()).await;
    }

    /// Copies a directory of etcd data. etcd must not run.
    pub fn copy_data(&self, from: &str, to: &str) {
        let [from, to] = [from, to].map(|name| self.dir.path().join(name));
        let _ = fs::remove_dir_all(&to);
        let copied = Command::new("cp").arg("-a").args([&from, &to]).status().unwrap();
        assert!(copied.success(), "cp {} {}", from.display(), to.display());
    }

    /// Sends a request to etcd, through its JSON gateway.
    async fn etcd(&self, path: &str, body: &Value) -> Value {
        let mut stream = TcpStream::connect(("127.0.0.1", self.etcd_ports[0])).await.unwrap();
        let body = body.to_string();
        // HTTP/1.0: the answer ends with the connection, and is not chunked.
        let head = format!("POST {path} HTTP/1.0\r\ncontent-length: {}\r\n\r\n", body.len());
        stream.write_all((head + &body).as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        assert!(head.contains(" 200 "), "{path}: {answer}");
        serde_json::from_str(body).unwrap()
    }

    /// Starts kube-controller-manager with its garbage collector. Install CRDs first: the collector looks for new kinds only
    /// every 30 s.
    pub fn start_controller_manager(&self) {
        self.start_controllers(&["resourcequota-controller"]);
    }

    /// Starts kube-controller-manager with its garbage collector and these controllers.
    pub fn start_controllers(&self, controllers: &[&str]) {
        let kubeconfig = self.dir.path().join("kubeconfig");
        let config = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "local",
            "clusters": [{"name": "local", "cluster": {"server": self.url(), "certificate-authority": self.dir.path().join("certs/apiserver.crt")}}],
            "users": [{"name": "admin", "user": {"token": ADMIN_TOKEN}}],
            "contexts": [{"name": "local", "context": {"cluster": "local", "user": "admin"}}],
        });
        fs::write(&kubeconfig, config.to_string()).unwrap();
        let flag = [
            ("kubeconfig", kubeconfig.display().to_string()),
            ("leader-elect", "false".to_owned()),
            ("bind-address", "127.0.0.1".to_owned()),
            ("secure-port", free_port().to_string()),
            ("service-account-private-key-file", "sa.key".to_owned()),
            ("root-ca-file", "certs/apiserver.crt".to_owned()),
            ("horizontal-pod-autoscaler-sync-period", "1s".to_owned()),
            (
                "controllers",
                [&["garbage-collector-controller", "namespace-controller"], controllers].concat().join(","),
            ),
        ];
        let process = Process::spawn(self.dir.path(), &binary("kube-controller-manager"), &flags(&flag));
        self.processes.lock().unwrap().push(process);
    }

    /// A name for messages.
    pub fn name(&self) -> &'static str {
        match self.http {
            Http::Any => "real",
            Http::One => "real, HTTP/1.1",
            Http::AnyBefore132 => "real, as before 1.32",
        }
    }

    /// The URL of the API server.
    pub fn url(&self) -> String {
        format!("https://127.0.0.1:{}", self.port)
    }

    /// The certificate authority of the API server, in PEM.
    pub fn ca_pem(&self) -> String {
        fs::read_to_string(self.dir.path().join("certs/apiserver.crt")).unwrap()
    }

    /// The lines of the audit log about the user of [`LENS_TOKEN`].
    pub fn audit_log(&self) -> String {
        let log = fs::read_to_string(self.dir.path().join("audit.log")).unwrap();
        // The last line may be half written.
        let lines = log.split_inclusive('\n').filter(|line| line.ends_with('\n'));
        lines.filter(|line| line.contains("\"username\":\"lens\"")).collect()
    }

    /// The audit events of a service account, after the first `read` bytes of the log. `read` becomes the length of the log. Each
    /// request has one event with the stage `RequestReceived`, before it has any effect, and others when it is answered. The stage
    /// [`STARTED`] has no request: kube-apiserver started, and no earlier request gets an answer any more.
    pub fn audit(&self, read: &mut u64, user: &str) -> Vec<Value> {
        let mut log = File::open(self.dir.path().join("audit.log")).unwrap();
        log.seek(SeekFrom::Start(*read)).unwrap();
        let mut text = String::new();
        log.read_to_string(&mut text).unwrap();
        // The last line may be half written.
        let whole = &text[..text.rfind('\n').map_or(0, |end| end + 1)];
        *read += whole.len() as u64;
        let user = format!("{user:?}");
        let events = whole.lines().filter(|line| line.contains(&user) || line.contains(STARTED));
        events.filter_map(|event| serde_json::from_str(event).ok()).collect()
    }
}

/// Programs of Kubernetes that run on any API server. They end with this.
pub struct Components {
    _processes: Vec<Process>,
    _dir: TempDir,
}

impl Components {
    /// Whether these programs are in `KUBEBUILDER_ASSETS`, which has no kube-scheduler if `setup-envtest` made it.
    pub fn are_there(names: &[&str]) -> bool {
        assets().is_some_and(|assets| names.iter().all(|name| assets.join(name).exists()))
    }

    /// Starts programs, such as kube-scheduler, with all of their controllers.
    pub fn start(names: &[&str], kubeconfig: &str) -> Components {
        let dir = tempfile::Builder::new().prefix("listwatch-components-").tempdir().unwrap();
        let file = dir.path().join("kubeconfig");
        fs::write(&file, kubeconfig).unwrap();
        let spawn = |name: &&str| {
            let flag = [
                ("kubeconfig", file.display().to_string()),
                ("leader-elect", "false".to_owned()),
                ("bind-address", "127.0.0.1".to_owned()),
                ("secure-port", free_port().to_string()),
            ];
            Process::spawn(dir.path(), &binary(name), &flags(&flag))
        };
        let processes = names.iter().map(spawn).collect();
        Components { _processes: processes, _dir: dir }
    }
}

fn flags(flags: &[(&str, String)]) -> Vec<String> {
    flags.iter().map(|(name, value)| format!("--{name}={value}")).collect()
}
