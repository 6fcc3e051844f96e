//! Starts the operator under test: the built binary, in a process of its own with a clean environment.

use std::{
    cell::RefCell,
    env,
    ffi::OsStr,
    fs::{self, File},
    io::Read,
    os::unix::process::ExitStatusExt,
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    thread,
};

use listwatch_control_plane::{eventually, saw, unique};
use serde_json::Value;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

/// A running `listwatch`. Dropped: killed; its log is shown if the test has failed.
pub struct Operator {
    child: RefCell<Child>,
    log: PathBuf,
}

/// A command whose process the kernel kills when the thread that started it ends. If a test is killed, it drops nothing, and its processes
/// would stay. Only Linux has that. It runs in the root of the repository.
pub fn ends_with_test(program: impl AsRef<OsStr>) -> Command {
    let mut command = if cfg!(target_os = "linux") {
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL"]).arg(program);
        command
    } else {
        Command::new(program)
    };
    command.current_dir(crate::ROOT);
    command
}

/// The binary, with nothing in its environment.
pub fn listwatch() -> Command {
    let mut command = ends_with_test(env!("CARGO_BIN_EXE_listwatch"));
    command.env_clear().stdin(Stdio::null());
    command
}

impl Operator {
    /// Starts the operator as in a Pod, with a service account's directory and the address of the API server.
    pub fn start(server: &str, service_account: &Path, args: &[&str]) -> Operator {
        Operator::run(&["mywebserver"], server, service_account, args, &[])
    }

    /// The same with these operators, and with more variables.
    pub fn run(
        names: &[&str],
        server: &str,
        service_account: &Path,
        args: &[&str],
        variables: &[(&str, &str)],
    ) -> Operator {
        let (host, port) = server.strip_prefix("https://").unwrap().rsplit_once(':').unwrap();
        let log = service_account.join(format!("operator-{}.log", unique()));
        let child = listwatch()
            .arg("run")
            .args(names)
            .args(["--log-format", "json"])
            // As a variable, so that a test can give the flag.
            .env("LISTWATCH_LOG_LEVEL", "debug")
            .args(
                ["health-probe", "metrics", "debug"].map(|name| format!("--{name}-bind-address=127.0.0.1:0")),
            )
            .arg("--service-account-dir")
            .arg(service_account)
            .args(args)
            .envs(variables.iter().copied())
            .env("KUBERNETES_SERVICE_HOST", host)
            .env("KUBERNETES_SERVICE_PORT", port)
            // Otherwise glibc keeps up to 128 KiB of freed memory, more or less by chance: see mallopt(3).
            .envs([("MALLOC_TRIM_THRESHOLD_", "0"), ("MALLOC_TOP_PAD_", "0")])
            .envs(env::var_os("RUST_BACKTRACE").map(|value| ("RUST_BACKTRACE", value)))
            .stdout(Stdio::null())
            .stderr(File::create(&log).unwrap())
            .spawn()
            .unwrap();
        Operator { child: RefCell::new(child), log }
    }

    /// The whole log of the operator.
    pub fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap()
    }

    /// Waits for a line of the log with all of these texts.
    pub async fn until_logged(&self, texts: &[&str]) {
        eventually(&format!("a log line with {texts:?}"), async || {
            let has_all = |line: &str| texts.iter().all(|text| line.contains(text));
            let log = self.log();
            saw("the end of the log", log.lines().rev().take(2).collect::<Vec<_>>().join(" / "));
            log.lines().any(has_all).then_some(())
        })
        .await;
    }

    /// The address that serves this path: `/readyz`, `/metrics` or `/debug/state`.
    pub async fn address(&self, path: &str) -> String {
        eventually(&format!("the address of {path}"), async || {
            let log = self.log();
            let line = log.lines().find(|line| line.contains("\"answering ") && line.contains(path))?;
            let line: Value = serde_json::from_str(line).ok()?;
            Some(line["address"].as_str()?.to_owned())
        })
        .await
    }

    /// GETs `/livez` or `/readyz`, and returns the whole answer.
    pub async fn probe(&self, path: &str) -> String {
        let address = self.address(path).await;
        let mut stream = TcpStream::connect(address).await.unwrap();
        let request = format!("GET {path} HTTP/1.1\r\nhost: operator\r\nconnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        saw(path, &answer);
        answer
    }

    /// Waits until `/readyz` succeeds.
    pub async fn until_ready(&self) {
        eventually("the operator to be ready", async || {
            self.probe("/readyz").await.starts_with("HTTP/1.1 200").then_some(())
        })
        .await;
    }

    /// Waits until `/readyz` fails, with all of these texts.
    pub async fn until_unready(&self, texts: &[&str]) {
        eventually(&format!("/readyz to fail with {texts:?}"), async || {
            let answer = self.probe("/readyz").await;
            let has_all = texts.iter().all(|text| answer.contains(text));
            (answer.starts_with("HTTP/1.1 503") && has_all).then_some(())
        })
        .await;
    }

    /// The process id of the operator.
    pub fn id(&self) -> u32 {
        self.child.borrow().id()
    }

    /// Sends the operator a signal, by name.
    pub fn signal(&self, name: &str) {
        // `kill` is a builtin of the shell, so no program needs to be installed.
        let kill = format!("kill -{name} {}", self.child.borrow().id());
        assert!(Command::new("sh").args(["-c", &kill]).status().unwrap().success(), "{kill}");
    }

    /// Waits until the operator has ended.
    pub async fn ended(&self) -> ExitStatus {
        eventually("the operator to end", async || self.child.borrow_mut().try_wait().unwrap()).await
    }
}

impl Drop for Operator {
    fn drop(&mut self) {
        let child = self.child.get_mut();
        let _ = child.kill();
        let _ = child.wait();
        if thread::panicking() {
            let log = fs::read_to_string(&self.log).unwrap_or_else(|error| error.to_string());
            eprintln!("--- the operator's log\n{log}");
        }
    }
}

/// A killed test left lessons behind that ran on.
#[test]
fn a_process_ends_with_the_thread_of_its_test() {
    let start = || {
        let mut child = ends_with_test("sh");
        let mut child = child.args(["-c", "echo; exec sleep 600"]).stdout(Stdio::piped()).spawn().unwrap();
        child.stdout.as_mut().unwrap().read_exact(&mut [0]).unwrap();
        child
    };
    let mut child = thread::spawn(start).join().unwrap();
    assert_eq!(child.wait().unwrap().signal(), Some(9));
}
