//! Sends each request of a lesson with the `curl` that the lesson has printed for it.
//!
//! ```text
//! lesson ── request ──► relay ── `$ curl …`, as printed ──► kubectl proxy ──► API server
//!        ◄── the bytes that curl gets, as they come ───
//! ```
//!
//! So the printed commands run in order, writes included, against a server in the state of the lesson, and the lesson itself
//! checks and shows their answers. Requests for which no lesson prints a command are also sent with curl: requests for
//! its namespace, and the PATCHes that it only counts or sums up.

use std::{
    fs, io,
    net::SocketAddr,
    path::PathBuf,
    process::Stdio,
    sync::{Arc, Mutex},
};

use serde_json::json;
use tempfile::TempDir;
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader},
    net::{TcpListener, TcpStream},
    process::Command,
    task::JoinSet,
};

use crate::curl::PROXY;

/// Dropped: its connections are closed.
pub struct Relay {
    state: Arc<State>,
    address: SocketAddr,
    _tasks: JoinSet<()>,
}

struct State {
    /// Has `.curlrc`, and what the lesson shows. A command is there before its request comes.
    dir: TempDir,
    /// The address of `kubectl proxy`.
    proxy: String,
    /// How many of the printed commands have run.
    ran: Mutex<usize>,
}

/// The commands in the output of a lesson.
fn printed(shown: &str) -> impl Iterator<Item = &str> {
    shown.lines().filter_map(|line| line.strip_prefix("$ "))
}

impl Relay {
    pub async fn start(proxy: &str) -> Relay {
        let dir = TempDir::new().unwrap();
        // The head at once, which `include` would hold back until the first event; and chunks as they are.
        fs::write(dir.path().join(".curlrc"), "dump-header = \"-\"\nraw\n").unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let state = Arc::new(State { dir, proxy: proxy.to_owned(), ran: Mutex::default() });
        let (mut tasks, of_tasks) = (JoinSet::new(), Arc::clone(&state));
        tasks.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((connection, _)) = listener.accept().await {
                let state = Arc::clone(&of_tasks);
                // A lesson may close a connection at any time.
                connections.spawn(async move { drop(state.serve(connection).await) });
            }
        });
        Relay { state, address, _tasks: tasks }
    }

    /// A new file for the standard output of the lesson.
    pub fn shown(&self) -> fs::File {
        fs::File::create(self.state.shown()).unwrap()
    }

    /// The output of the lesson. Each command in it has run.
    pub fn into_shown(self) -> String {
        let shown = fs::read_to_string(self.state.shown()).unwrap();
        let ran = *self.state.ran.lock().unwrap();
        assert!(ran > 0 && ran == printed(&shown).count(), "{ran} commands have run of\n{shown}");
        shown
    }

    pub fn write_kubeconfig(&self) -> PathBuf {
        let config = json!({
            "current-context": "relay", "contexts": [{"name": "relay", "context": {"cluster": "relay", "user": "me"}}],
            "clusters": [{"name": "relay", "cluster": {"server": format!("http://{}", self.address)}}],
            "users": [{"name": "me", "user": {}}],
        });
        let path = self.state.dir.path().join("kubeconfig");
        fs::write(&path, config.to_string()).unwrap();
        path
    }
}

impl State {
    fn shown(&self) -> PathBuf {
        self.dir.path().join("shown")
    }

    /// The next printed command, if it is the one for this path and query.
    fn command(&self, target: &str) -> Option<Command> {
        let shown = fs::read_to_string(self.shown()).unwrap();
        let mut ran = self.ran.lock().unwrap();
        let line =
            printed(&shown).nth(*ran).filter(|line| line.contains(&format!("'http://{PROXY}{target}'")))?;
        *ran += 1;
        let mut bash = Command::new("bash");
        bash.args(["-c", &line.replace(PROXY, &self.proxy)]).stdin(Stdio::null());
        Some(bash)
    }

    /// Answers requests until one of both sides closes its connection.
    async fn serve(&self, connection: TcpStream) -> io::Result<()> {
        let mut connection = BufReader::new(connection);
        loop {
            let mut line = String::new();
            connection.read_line(&mut line).await?;
            let Some((method, target)) = line.split_once(' ') else { return Ok(()) };
            let target = target.split(' ').next().unwrap();
            let mut unprinted = Command::new("curl");
            unprinted.args(["-sSN", "-X", method, &format!("http://{}{target}", self.proxy)]);
            let mut length = 0;
            loop {
                let mut header = String::new();
                connection.read_line(&mut header).await?;
                let Some((name, value)) = header.trim().split_once(": ") else { break };
                match name {
                    "content-length" => length = value.parse().unwrap(),
                    "accept" | "content-type" => drop(unprinted.args(["-H", header.trim()])),
                    _ => {}
                }
            }
            let mut body = vec![0; length];
            connection.read_exact(&mut body).await?;
            let mut command = self.command(target).unwrap_or_else(|| {
                let file = self.dir.path().join("body");
                fs::write(&file, &body).unwrap();
                if length > 0 {
                    unprinted.arg("--data-binary").arg(format!("@{}", file.display()));
                }
                unprinted
            });
            if !relay(command.env("CURL_HOME", self.dir.path()), &mut connection).await? {
                return Ok(());
            }
        }
    }
}

/// Copies the answer. Returns whether it was complete.
async fn relay(command: &mut Command, connection: &mut BufReader<TcpStream>) -> io::Result<bool> {
    let mut curl = command.stdout(Stdio::piped()).stderr(Stdio::null()).kill_on_drop(true).spawn()?;
    let mut answer = curl.stdout.take().unwrap();
    let (mut bytes, mut is_next) = ([0; 8192], false);
    loop {
        tokio::select! {
            count = answer.read(&mut bytes) => match count? {
                0 => return Ok(curl.wait().await?.success()),
                count => connection.get_mut().write_all(&bytes[..count]).await?,
            },
            // The next request, or the end of the connection.
            next = connection.fill_buf(), if !is_next => {
                is_next = !next?.is_empty();
                if !is_next {
                    return Ok(false);
                }
            }
        }
    }
}
