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
use tokio::sync::OnceCell;

use crate::{
    hands::{Hands, eventually},
    manifests,
};

/// A control plane of this process.
pub struct Plane {
    apiserver: Mutex<Option<Process>>,
    etcd_port: u16,
    port: u16,
    _others: Mutex<Vec<Process>>,
    // Last, so that it is still there when the processes end.
    dir: TempDir,
}

/// A process that ends with this one.
struct Process {
    watchdog: Child,
    stdin: Option<ChildStdin>,
}

impl Process {
    /// The shell waits for the end of its input, which comes when this process closes it, or ends.
    fn spawn(dir: &Path, program: &Path, args: &[String]) -> Process {
        let name = program.file_name().unwrap().to_string_lossy();
        let log = File::options().append(true).create(true).open(dir.join(format!("{name}.log"))).unwrap();
        let script = r#""$@" </dev/null & child=$!; read -r _; kill -9 $child; wait $child; $CLEAN_UP"#;
        // Nobody drops the plane that all share, so its files go with the process that all the others need.
        let clean_up = if name == "etcd" { format!("rm -rf {}", dir.display()) } else { String::new() };
        let mut watchdog = Command::new("sh")
            .args(["-c", script, "watchdog"])
            .arg(program)
            .args(args)
            .env("CLEAN_UP", clean_up)
            .current_dir(dir)
            .stdin(Stdio::piped())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .unwrap();
        let stdin = watchdog.stdin.take();
        Process { watchdog, stdin }
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
                let plane = Plane::start().await;
                let admin = Hands::new(plane.admin());
                admin.install(&manifests::crd()).await;
                for object in manifests::rbac() {
                    admin.install(&object).await;
                }
                // Only now, or the collector finds out about MyWebservers half a minute later.
                plane.collect();
                plane
            })
            .await
    }

    /// One more, where nothing is installed and nobody collects garbage.
    pub async fn start() -> Plane {
        let dir = tempfile::Builder::new().prefix("listwatch-plane-").tempdir().unwrap();
        let (etcd_port, peer_port, port) = (free_port(), free_port(), free_port());
        let url = |port: u16| format!("http://127.0.0.1:{port}");
        let etcd = [
            ("data-dir", "etcd".to_owned()),
            ("unsafe-no-fsync", "true".to_owned()),
            ("listen-client-urls", url(etcd_port)),
            ("advertise-client-urls", url(etcd_port)),
            ("listen-peer-urls", url(peer_port)),
            ("initial-advertise-peer-urls", url(peer_port)),
            ("initial-cluster", format!("default={}", url(peer_port))),
        ];
        let etcd = Process::spawn(dir.path(), &binary("etcd"), &flags(&etcd));

        let key = KeyPair::generate().unwrap();
        let audit = json!({
            "apiVersion": "audit.k8s.io/v1", "kind": "Policy", "omitStages": ["RequestReceived", "ResponseStarted"],
            "rules": [{"level": "Metadata", "userGroups": ["system:serviceaccounts"]}, {"level": "None"}],
        });
        for (name, text) in [
            ("sa.key", key.serialize_pem()),
            ("sa.pub", key.public_key_pem()),
            ("tokens.csv", "admin,admin,1,\"system:masters\"\n".to_owned()),
            ("audit.yaml", audit.to_string()),
            ("audit.log", String::new()),
        ] {
            fs::write(dir.path().join(name), text).unwrap();
        }
        let plane =
            Plane { apiserver: Mutex::default(), etcd_port, port, _others: Mutex::new(vec![etcd]), dir };
        plane.start_apiserver().await;
        plane
    }

    /// Starts kube-apiserver, and waits until it is ready.
    pub async fn start_apiserver(&self) {
        let flag = [
            ("etcd-servers", format!("http://127.0.0.1:{}", self.etcd_port)),
            ("bind-address", "127.0.0.1".to_owned()),
            ("secure-port", self.port.to_string()),
            ("cert-dir", "certs".to_owned()),
            ("service-cluster-ip-range", "10.0.0.0/16".to_owned()),
            ("service-account-issuer", "https://kubernetes.default.svc".to_owned()),
            ("service-account-signing-key-file", "sa.key".to_owned()),
            ("service-account-key-file", "sa.pub".to_owned()),
            ("token-auth-file", "tokens.csv".to_owned()),
            ("authorization-mode", "RBAC".to_owned()),
            // There is nobody who would make them, and no Pod that would miss them.
            ("disable-admission-plugins", "ServiceAccount".to_owned()),
            ("audit-policy-file", "audit.yaml".to_owned()),
            ("audit-log-path", "audit.log".to_owned()),
        ];
        let process = Process::spawn(self.dir.path(), &binary("kube-apiserver"), &flags(&flag));
        *self.apiserver.lock().unwrap() = Some(process);
        let certificate = self.dir.path().join("certs/apiserver.crt");
        let what = format!(
            "kube-apiserver to be ready: see {}",
            self.dir.path().join("kube-apiserver.log").display()
        );
        eventually(&what, async || {
            if !certificate.exists() {
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
