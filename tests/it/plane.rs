//! A real control plane: etcd and kube-apiserver, and who collects garbage, from `KUBEBUILDER_ASSETS`.
//!
//! ```text
//!   etcd ◄── kube-apiserver (RBAC, TokenRequest, audit.log of what service accounts do) ◄── kube-controller-manager
//! ```
//!
//! Nobody rolls out Deployments: what their status says is said by the tests, so that transcripts are the same each
//! time. Each process has a watchdog that ends it when this process ends, however that happens.

use std::{
    env,
    fs::{self, File},
    io::{Read, Seek, SeekFrom},
    net::TcpListener,
    path::{Path, PathBuf},
    process::{Child, ChildStdin, Command, Stdio},
    sync::{
        Mutex,
        atomic::{AtomicU16, Ordering},
    },
    time::Duration,
};

use listwatch::client::{Client, Config};
use rcgen::KeyPair;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    sync::OnceCell,
};

use crate::{
    hands::{Hands, eventually},
    manifests,
};

/// A control plane of this process.
pub struct Plane {
    apiserver: Mutex<Option<Process>>,
    etcd_ports: [u16; 2],
    port: u16,
    speaks: Http,
    _others: Mutex<Vec<Process>>,
    // Last, so that it is still there when the processes end.
    dir: TempDir,
}

/// How kube-apiserver is started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Http {
    /// HTTP/2, and HTTP/1.1 to who cannot do better.
    Any,
    /// HTTP/1.1 alone, as behind some load balancers.
    One,
    /// HTTP/2, and as before 1.32: `sendInitialEvents` is answered with 422, and the pages of a list come from etcd.
    AnyBefore132,
}

/// A process that ends with this one.
struct Process {
    /// Where its number is.
    pid: PathBuf,
    watchdog: Child,
    stdin: Option<ChildStdin>,
}

impl Process {
    /// The shell waits for the end of its input, which comes when this process closes it, or ends.
    fn spawn(dir: &Path, program: &Path, args: &[String]) -> Process {
        let name = program.file_name().unwrap().to_string_lossy();
        let log = File::options().append(true).create(true).open(dir.join(format!("{name}.log"))).unwrap();
        let script = r#""$@" </dev/null & child=$!; echo $child >"$PID"; read -r _; kill -9 $child; wait $child; $CLEAN_UP"#;
        // Nobody drops the plane that all share, so its files go with the process that all the others need.
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

    /// Waits until it has ended by itself. One that does not is killed all the same, as this is dropped: the watchdog
    /// once was told beforehand that it need not, and a kube-apiserver that ignored SIGTERM was then waited for without end.
    async fn ended(self) {
        let pid = fs::read_to_string(&self.pid).unwrap();
        let stat = format!("/proc/{}/stat", pid.trim());
        // A zombie stays for the shell, which reads and does not wait for it yet.
        let has_ended = || fs::read_to_string(&stat).map_or(true, |stat| stat.contains(") Z "));
        eventually("a process to end", async || has_ended().then_some(())).await;
    }
}

impl Drop for Process {
    /// As `kill -9`, and waits until it is gone.
    fn drop(&mut self) {
        self.stdin = None;
        let _ = self.watchdog.wait();
    }
}

/// The directory with the binaries, if it is asked for.
pub fn assets() -> Option<PathBuf> {
    env::var_os("KUBEBUILDER_ASSETS").filter(|dir| !dir.is_empty()).map(PathBuf::from)
}

fn binary(name: &str) -> PathBuf {
    let path = assets().expect("KUBEBUILDER_ASSETS").join(name);
    assert!(path.exists(), "KUBEBUILDER_ASSETS is set, but {} does not exist", path.display());
    path
}

/// Binds port 0, and lets go of what it got. The kernel hands out others before that one again.
fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

impl Plane {
    /// The one that all tests share that do not harm it.
    pub async fn shared() -> &'static Plane {
        static SHARED: OnceCell<Plane> = OnceCell::const_new();
        SHARED
            .get_or_init(async || {
                let plane = Plane::installed(Http::Any).await;
                // Only now, or the collector finds out about MyWebservers half a minute later.
                plane.collect();
                plane
            })
            .await
    }

    /// Another one that all tests share, which speaks HTTP/1.1 and where nobody collects garbage.
    pub async fn shared_http1() -> &'static Plane {
        static SHARED: OnceCell<Plane> = OnceCell::const_new();
        SHARED.get_or_init(async || Plane::installed(Http::One).await).await
    }

    /// One more, where the operator is installed and nobody collects garbage.
    pub async fn installed(speaks: Http) -> Plane {
        let plane = Plane::start(speaks).await;
        let admin = Hands::new(plane.admin());
        admin.install(&manifests::crd()).await;
        for object in manifests::rbac() {
            admin.install(&object).await;
        }
        plane
    }

    /// One more, where nothing is installed and nobody collects garbage.
    pub async fn start(speaks: Http) -> Plane {
        let dir = tempfile::Builder::new().prefix("listwatch-plane-").tempdir().unwrap();
        let key = KeyPair::generate().unwrap();
        let audit = json!({
            "apiVersion": "audit.k8s.io/v1", "kind": "Policy", "omitStages": ["RequestReceived", "ResponseStarted"],
            "rules": [{"level": "Metadata", "userGroups": ["system:serviceaccounts"]}, {"level": "None"}],
        });
        for (name, text) in [
            ("sa.key", key.serialize_pem()),
            ("sa.pub", key.public_key_pem()),
            ("tokens.csv", "admin,admin,1,\"system:masters\"\njane,jane,2\n".to_owned()),
            ("audit.yaml", audit.to_string()),
            ("audit.log", String::new()),
        ] {
            fs::write(dir.path().join(name), text).unwrap();
        }
        let plane = Plane {
            apiserver: Mutex::default(),
            etcd_ports: [free_port(), free_port()],
            port: free_port(),
            speaks,
            _others: Mutex::default(),
            dir,
        };
        plane.start_etcd();
        plane.start_apiserver().await;
        plane
    }

    /// Starts etcd, which goes on from the data that are there.
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
        self._others.lock().unwrap().push(etcd);
    }

    /// Starts kube-apiserver, and waits until it is ready.
    pub async fn start_apiserver(&self) {
        let is_recent = self.speaks != Http::AnyBefore132;
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
            // As in every cluster with a node: its agents need it.
            ("allow-privileged", "true".to_owned()),
            // There is nobody who would make them, and no Pod that would miss them.
            ("disable-admission-plugins", "ServiceAccount".to_owned()),
            ("audit-policy-file", "audit.yaml".to_owned()),
            ("audit-log-path", "audit.log".to_owned()),
            ("disable-http2-serving", (self.speaks == Http::One).to_string()),
            ("feature-gates", format!("WatchList={is_recent},ListFromCacheSnapshot={is_recent}")),
            // After SIGTERM: `/readyz` says no, and later nobody is served any more, and watches end.
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
            // It is made first and written then.
            let pem = fs::read_to_string(&certificate).ok()?;
            if !pem.contains("-----END CERTIFICATE-----") {
                return None;
            }
            let ready = Hands::new(self.admin()).raw("/readyz").await.ok()?;
            (ready == "ok").then_some(())
        })
        .await;
    }

    /// As `kill -9` does.
    pub fn kill_apiserver(&self) {
        drop(self.apiserver.lock().unwrap().take());
    }

    /// Asks kube-apiserver to stop, as who upgrades it does, and waits until it has.
    pub async fn stop_apiserver(&self) {
        self.signal("kube-apiserver", "TERM");
        let process = self.apiserver.lock().unwrap().take();
        process.expect("a kube-apiserver").ended().await;
    }

    /// Has etcd forget what was before now. A kube-apiserver may know it still.
    pub async fn compact(&self) {
        let now = self.etcd("/v3/kv/range", &json!({"key": "AA=="})).await["header"]["revision"].clone();
        self.etcd("/v3/kv/compaction", &json!({"revision": now, "physical": true})).await;
    }

    /// Sends a signal to the `etcd` or the `kube-apiserver` of this plane.
    pub fn signal(&self, program: &str, signal: &str) {
        let pid = fs::read_to_string(self.dir.path().join(format!("{program}.pid"))).unwrap();
        let kill = format!("kill -{signal} {pid}");
        assert!(Command::new("sh").args(["-c", &kill]).status().unwrap().success(), "{program}: {kill}");
    }

    /// As `kill -9` does, and waits until nobody listens.
    pub async fn kill_etcd(&self) {
        self.signal("etcd", "KILL");
        let address = ("127.0.0.1", self.etcd_ports[0]);
        eventually("etcd to be gone", async || TcpStream::connect(address).await.err()).await;
    }

    /// Copies the data of an etcd that does not run.
    pub fn copy_data(&self, from: &str, to: &str) {
        let [from, to] = [from, to].map(|name| self.dir.path().join(name));
        let _ = fs::remove_dir_all(&to);
        let copied = Command::new("cp").arg("-a").args([&from, &to]).status().unwrap();
        assert!(copied.success(), "cp {} {}", from.display(), to.display());
    }

    /// Asks etcd itself, through its JSON gateway.
    async fn etcd(&self, path: &str, body: &Value) -> Value {
        let mut stream = TcpStream::connect(("127.0.0.1", self.etcd_ports[0])).await.unwrap();
        let body = body.to_string();
        // In HTTP/1.0 the answer ends with its connection, and has no chunks.
        let head = format!("POST {path} HTTP/1.0\r\ncontent-length: {}\r\n\r\n", body.len());
        stream.write_all((head + &body).as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        assert!(head.contains(" 200 "), "{path}: {answer}");
        serde_json::from_str(body).unwrap()
    }

    /// Starts kube-controller-manager, for its collectors.
    fn collect(&self) {
        let kubeconfig = self.dir.path().join("kubeconfig");
        let config = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "local",
            "clusters": [{"name": "local", "cluster": {"server": self.url(), "certificate-authority": self.dir.path().join("certs/apiserver.crt")}}],
            "users": [{"name": "admin", "user": {"token": "admin"}}],
            "contexts": [{"name": "local", "context": {"cluster": "local", "user": "admin"}}],
        });
        fs::write(&kubeconfig, config.to_string()).unwrap();
        let flag = [
            ("kubeconfig", kubeconfig.display().to_string()),
            ("leader-elect", "false".to_owned()),
            ("bind-address", "127.0.0.1".to_owned()),
            ("secure-port", free_port().to_string()),
            (
                "controllers",
                "garbage-collector-controller,namespace-controller,resourcequota-controller".to_owned(),
            ),
        ];
        let process = Process::spawn(self.dir.path(), &binary("kube-controller-manager"), &flags(&flag));
        self._others.lock().unwrap().push(process);
    }

    /// For people.
    pub fn name(&self) -> &'static str {
        match self.speaks {
            Http::Any => "real",
            Http::One => "real, HTTP/1.1",
            Http::AnyBefore132 => "real, as before 1.32",
        }
    }

    pub fn url(&self) -> String {
        format!("https://127.0.0.1:{}", self.port)
    }

    pub fn ca_pem(&self) -> String {
        fs::read_to_string(self.dir.path().join("certs/apiserver.crt")).unwrap()
    }

    /// A client of the calling test's runtime.
    pub fn admin(&self) -> Client {
        Client::new(Config::new(&self.url(), self.ca_pem().as_bytes(), "admin").unwrap()).unwrap()
    }

    /// What a service account has asked for and was answered since `read` bytes of the log, which are then more.
    pub fn audit(&self, read: &mut u64, user: &str) -> Vec<Value> {
        let mut log = File::open(self.dir.path().join("audit.log")).unwrap();
        log.seek(SeekFrom::Start(*read)).unwrap();
        let mut text = String::new();
        log.read_to_string(&mut text).unwrap();
        // The last line may be half written.
        let whole = &text[..text.rfind('\n').map_or(0, |end| end + 1)];
        *read += whole.len() as u64;
        let user = format!("{user:?}");
        let ours = whole.lines().filter(|line| line.contains(&user));
        ours.map(|line| serde_json::from_str(line).unwrap()).collect()
    }
}

fn flags(flags: &[(&str, String)]) -> Vec<String> {
    flags.iter().map(|(name, value)| format!("--{name}={value}")).collect()
}

/// A number that no other test of this process has.
pub fn unique() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// How long anything may take on a machine that has other things to do.
pub const PATIENCE: Duration = Duration::from_secs(60);
