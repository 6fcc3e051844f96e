//! The stage of a lesson: a server, a throw-away namespace with ConfigMaps, and the curl command of each request.

use std::{
    cell::{Cell, RefCell},
    env,
    error::Error,
    fs,
    io::{self, ErrorKind, IsTerminal, Write},
    path::PathBuf,
    pin::Pin,
    sync::{
        Arc,
        mpsc::{Receiver, channel},
    },
    time::Duration,
};

use clap::{Args, builder::NonEmptyStringValueParser};
use http::Method;
use listwatch::{
    advanced::Tap,
    client::{self, Body, Client, Config, CurlFrom, Env, Options, Request},
    resource::{kinds::ConfigMap, list::List},
    store::{Change, Listening, Store},
    watch::decode::WatchEvent,
};
use listwatch_apiserver::{ApiServer, Planned};
use listwatch_study::{Explained, explained, wrap};
use serde_json::{Value, json};
use tempfile::TempDir;
use terminal_size::{Width, terminal_size_of};
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader},
    net::{TcpListener, TcpStream},
    signal::unix::{SignalKind, signal},
    sync::watch,
    task::{JoinSet, spawn_blocking},
    time::Instant,
};

use crate::recording::{Recorded, Recording};

/// The path at which the embedded API server takes faults.
const FAULTS: &str = "/listwatch/faults";

/// Most characters of an object that are shown.
const SHOWN_MAX: usize = 200;

/// The user without permissions.
const NOBODY: &str = "listwatch-course";

/// The clients of a recording: one reads, and the other one writes, as somebody else would in a cluster.
const LESSON: &str = "lesson";
const WRITER: &str = "another client";

/// The heads of a usual answer, of one that is cut, and of a server that does not answer: see [`Another::ask`].
pub(crate) const OK: &str = "200 OK";
pub(crate) const CUT: &str = "200 OK\r\nContent-Length: 999";
pub(crate) const SILENT: &str = "no answer for a second";

/// Most writes for [`Stage::until_longer_version`].
const WRITES_MAX: u32 = 100;

/// A continue token of version 1. Tokens are opaque; this one is made up, because a real one expires after minutes.
pub(crate) const EXPIRED_TOKEN: &str = "eyJ2IjoibWV0YS5rOHMuaW8vdjEiLCJydiI6MSwic3RhcnQiOiJhXHUwMDAwIn0";

/// The server of a lesson. Without a flag, it is in this process.
#[derive(Args)]
pub(crate) struct Flags {
    /// kubeconfig file to use, with its current context
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// Context to use, of --kubeconfig, $KUBECONFIG or ~/.kube/config
    #[arg(long, value_name = "NAME", value_parser = NonEmptyStringValueParser::new())]
    context: Option<String>,
    /// Fault to inject before the lesson, as in `listwatch apiserver --fault`; may be repeated
    #[arg(long, value_name = "FAULT")]
    pub(crate) fault: Vec<String>,
    /// Longest time for a lesson, or from a pause to the next one: a watch may stay silent for ever
    #[arg(long, value_name = "TIME", env = "LISTWATCH_LESSON_LIMIT", default_value = "40s")]
    #[arg(value_parser = humantime::parse_duration)]
    limit: Duration,
    /// Explain what follows from each answer, as `listwatch watch --explain` does
    #[arg(long)]
    explain: bool,
    /// Record the requests of the lesson and their answers, for `listwatch lens FILE`
    #[arg(long, value_name = "FILE")]
    record: Option<PathBuf>,
}

impl Flags {
    /// Reads the kubeconfig and the faults. Does not connect.
    pub(crate) fn check(&self) -> Outcome {
        for fault in &self.fault {
            fault.parse::<Planned>()?;
        }
        let (kubeconfig, context) = (self.kubeconfig.clone(), self.context.clone());
        if kubeconfig.is_some() || context.is_some() {
            connect(&Options { kubeconfig, context, ..Options::default() }, false, None)?;
        }
        Ok(())
    }
}

/// `println!` for an output that may be closed at any time, as with `| head -1`. Lines are wrapped at the width of a terminal, but for
/// commands, which are copied.
macro_rules! say {
    ($($text:tt)*) => { crate::stage::show(&format!($($text)*))? };
}
pub(crate) use say;

/// Writes lines. Those that do not fit a terminal go on in the next line, indented. In a pipe or a file, lines stay whole, for
/// `grep`.
pub(crate) fn show(text: &str) -> io::Result<()> {
    let width = terminal_size_of(io::stdout()).map_or(usize::MAX, |(Width(width), _)| width.into());
    let mut stdout = io::stdout().lock();
    for line in text.split('\n') {
        let width = if line.trim_start().starts_with("$ ") { usize::MAX } else { width };
        writeln!(stdout, "{}", wrap(line, width, 4))?;
    }
    Ok(())
}

/// Waits until the user presses Enter, if there is one: not with a pipe or file on either side, and not in CI, whose terminals
/// nobody reads.
pub(crate) fn wait_for_enter(prompt: &str) -> io::Result<()> {
    if has_user() {
        write!(io::stdout(), "{prompt}")?;
        io::stdout().flush()?;
        io::stdin().read_line(&mut String::new())?;
    }
    Ok(())
}

fn has_user() -> bool {
    io::stdin().is_terminal() && io::stdout().is_terminal() && env::var_os("CI").is_none()
}

thread_local! {
    /// Sentences of `--explain` about what is not shown yet.
    static SENTENCES: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
    /// Before each sentence.
    static WHOSE: Cell<&str> = const { Cell::new("") };
}

/// From now on, the sentences are about what this client does.
pub(crate) fn explain_as(whose: &'static str) {
    WHOSE.set(whose);
}

/// Shows the sentences about what was shown. A lesson has one thread.
pub(crate) fn show_explanations() -> io::Result<()> {
    for sentence in SENTENCES.take() {
        show(&format!("  # {}{sentence}", WHOSE.get()))?;
    }
    Ok(())
}

/// Ends the lesson with an error if the condition does not hold.
macro_rules! ensure {
    ($condition:expr, $($text:tt)*) => { if !$condition { return Err(format!($($text)*).into()); } };
}
pub(crate) use ensure;

/// The result of a lesson, or of a step of it.
pub(crate) type Outcome<T = ()> = Result<T, Box<dyn Error>>;

/// A server, and a throw-away namespace.
pub(crate) struct Stage {
    /// Reads. Only its requests are explained.
    pub(crate) client: Client,
    /// Writes, as other users of the cluster do, and injects faults.
    writer: Client,
    /// A client of [`NOBODY`].
    nobody: Client,
    /// The path of the ConfigMaps in the namespace.
    pub(crate) configmaps: String,
    /// The path of the namespace.
    pub(crate) namespace: String,
    /// Which of [`Stage::list`], [`Stage::check`] and [`Stage::watch`] the lesson has called, in order.
    pub(crate) asked: RefCell<Vec<&'static str>>,
    /// Whether the server is an embedded one, which takes faults.
    takes_faults: bool,
    explain: bool,
    /// With `--record`.
    recording: Option<Arc<Recording>>,
    /// Of [`Stage::client`], with `--explain`.
    explained: Option<Arc<Explained<Keep>>>,
    limit: Duration,
    /// When the lesson has taken too long. `None`: it waits for the user.
    deadline: Cell<Option<Instant>>,
    dir: TempDir,
    /// The server in this process, if no flag chooses another.
    _server: Option<ApiServer>,
}

impl Stage {
    /// Connects, runs a lesson in a new namespace, and deletes the namespace. `repaired` follows an error with a fault.
    pub(crate) async fn run(
        flags: Flags,
        repaired: &str,
        lesson: impl for<'a> FnOnce(&'a Stage) -> Pin<Box<dyn Future<Output = Outcome> + 'a>>,
    ) -> Outcome {
        let faults = flags.fault.join("\n");
        // From before there is a namespace.
        let (mut interrupt, mut terminate, mut hangup) = (
            signal(SignalKind::interrupt())?,
            signal(SignalKind::terminate())?,
            signal(SignalKind::hangup())?,
        );
        let stage = Stage::new(flags).await?;
        let limited = async {
            stage.until_published().await?;
            if !faults.is_empty() {
                ensure!(stage.fault(&faults).await?, "only the embedded API server takes --fault");
            }
            stage.starts_to_count();
            stage.recording.iter().for_each(|recording| recording.start());
            let outcome = tokio::select! {
                outcome = lesson(&stage) => outcome,
                () = stage.late() => {
                    return Err(format!("the lesson did not end within {} s", stage.limit.as_secs()).into());
                }
            };
            match outcome {
                // An io::Error is a closed output.
                Err(error) if !faults.is_empty() && !error.is::<io::Error>() => {
                    Err(format!("broken as intended: {error}{repaired}").into())
                }
                outcome => outcome,
            }
        };
        let outcome = tokio::select! {
            outcome = limited => outcome,
            _ = interrupt.recv() => Err("interrupted".into()),
            _ = terminate.recv() => Err("terminated".into()),
            // The terminal is closed.
            _ = hangup.recv() => Err("no terminal".into()),
        };
        let outcome = outcome.and(show_explanations().map_err(Into::into));
        let written = stage.recording.as_ref().map(|recording| recording.write(stage.client.server()));
        let outcome = outcome.and(written.transpose().map(drop).map_err(Into::into));
        if stage.takes_faults {
            let end = Request::get(FAULTS).sends(Method::DELETE, "text/plain", Vec::new());
            let _ = stage.writer.send(end).await;
        }
        let end = Request::get(&*stage.namespace).sends(Method::DELETE, "application/json", Vec::new());
        outcome.and(stage.writer.send(end).await.map(drop).map_err(Into::into))
    }

    async fn new(Flags { mut kubeconfig, context, explain, limit, record, .. }: Flags) -> Outcome<Stage> {
        let recording = match record {
            Some(path) => Some(Arc::new(Recording::create(&path).map_err(|error| match error.kind() {
                ErrorKind::AlreadyExists => {
                    format!("--record {}: exists; remove it, or choose another file", path.display())
                }
                _ => format!("--record {}: {error}", path.display()),
            })?)),
            None => None,
        };
        let dir = TempDir::new()?;
        let mut server = None;
        if kubeconfig.is_none() && context.is_none() {
            let started = ApiServer::start(listwatch_apiserver::Options::default()).await?;
            let path = dir.path().join("kubeconfig");
            fs::write(&path, started.kubeconfig())?;
            (kubeconfig, server) = (Some(path), Some(started));
        }
        let mut options = Options { kubeconfig, context, ..Options::default() };
        let by = |user| recording.clone().map(|recording| (recording, user));
        let (writer, _) = connect(&options, false, by(WRITER))?;
        let (client, explained) = connect(&options, explain, by(LESSON))?;
        options.act_as = Some(NOBODY.to_owned());
        let (nobody, _) = connect(&options, explain, by(NOBODY))?;
        match server {
            Some(_) => {
                say!(
                    "# An API server in this process. Do not copy the lines that begin with $: they show what is sent, and nothing listens at \
                     127.0.0.1:8001. --kubeconfig FILE or --context NAME chooses another server.\n"
                )
            }
            None => say!("# {} as {}\n", client.server(), client.user()),
        }
        let takes_faults = writer.send(Request::get(FAULTS)).await.is_ok();
        let object = json!({"metadata": {"generateName": "listwatch-course-"}});
        let namespaces = Request::post("/api/v1/namespaces", &object);
        let namespace = format!("/api/v1/namespaces/{}", name(&json(&writer, namespaces).await?));
        let configmaps = format!("{namespace}/configmaps");
        let (_server, asked) = (server, RefCell::default());
        Ok(Stage {
            client,
            writer,
            nobody,
            configmaps,
            namespace,
            asked,
            takes_faults,
            explain,
            recording,
            explained,
            limit,
            deadline: Cell::new(None),
            dir,
            _server,
        })
    }

    /// Returns when the lesson, or a step of it, has taken too long.
    async fn late(&self) {
        loop {
            match self.deadline.get() {
                Some(deadline) if deadline <= Instant::now() => return,
                Some(deadline) => tokio::time::sleep_until(deadline).await,
                // The user reads.
                None => tokio::time::sleep(Duration::from_secs(1)).await,
            }
        }
    }

    /// The end of a step of a long lesson. On a terminal, waits until the user presses Enter.
    pub(crate) async fn step(&self) -> Outcome {
        show_explanations()?;
        say!("");
        self.deadline.set(None);
        // Beside the server of this process, and beside Ctrl-C.
        spawn_blocking(|| wait_for_enter("Press Enter to go on. ")).await??;
        self.starts_to_count();
        Ok(())
    }

    fn starts_to_count(&self) {
        self.deadline.set(Some(Instant::now() + self.limit));
    }

    /// What a loop has lost, at the end of a step.
    pub(crate) async fn lost(&self, what: &str) -> Outcome {
        say!("LOST {what}");
        self.step().await
    }

    /// After an error: the client repeats no request. Shows what follows.
    fn given_up(&self) -> Outcome {
        self.explained.iter().for_each(|explained| explained.given_up());
        Ok(show_explanations()?)
    }

    /// Waits until the namespace has the ConfigMap that a controller creates in every namespace, if one runs.
    async fn until_published(&self) -> Outcome {
        let published = "?fieldSelector=metadata.name%3Dkube-root-ca.crt";
        let default = format!("/api/v1/namespaces/default/configmaps{published}");
        if json(&self.writer, Request::get(default)).await?["items"] == json!([]) {
            return Ok(());
        }
        let watch = format!("{}{published}&watch=1&timeoutSeconds=20", self.configmaps);
        let (_, body) = self.writer.stream(Request::get(watch)).await?;
        Events::new(body, "").event().await?;
        Ok(())
    }

    /// Shows a request as a curl command behind `kubectl proxy`, sends it, and returns the answer as JSON.
    pub(crate) async fn send(&self, request: Request) -> Outcome<Value> {
        show_explanations()?;
        say!("$ {}", self.client.curl(&request, CurlFrom::Proxy));
        let client = if request.method == Method::GET { &self.client } else { &self.writer };
        json(client, request).await
    }

    /// Sends a request that is not shown.
    pub(crate) async fn send_unshown(&self, request: Request) -> Outcome<Value> {
        json(&self.writer, request).await
    }

    /// Gets an object or a list.
    pub(crate) async fn get(&self, path: &str) -> Outcome<Value> {
        self.send(Request::get(path)).await
    }

    /// Lists the ConfigMaps, and shows the version of the list. The query begins with `?`, unless it is empty.
    pub(crate) async fn list(&self, query: &str) -> Outcome<Value> {
        self.asked.borrow_mut().push("list");
        let list = self.get(&format!("{}{query}", self.configmaps)).await?;
        let names: Vec<_> = list["items"].as_array().into_iter().flatten().map(name).collect();
        say!("  the list has version {} and {names:?}", version(&list));
        show_explanations()?;
        Ok(list)
    }

    /// Gets one object of the list, without its data: its answer has the version of the server.
    pub(crate) async fn check(&self) -> Outcome<Value> {
        self.asked.borrow_mut().push("check");
        self.send(accept(&format!("{}?limit=1", self.configmaps), "PartialObjectMetadataList")).await
    }

    /// Sends a GET that must fail, and shows the error.
    pub(crate) async fn refused(&self, path: &str, expected: &str) -> Outcome<client::Error> {
        let Err(error) = self.get(path).await else {
            return Err(format!("no error, expected {expected}").into());
        };
        let error = *error.downcast::<client::Error>()?;
        let (text, http) = (error.to_string(), if error.code().is_some() { "HTTP " } else { "" });
        say!("  {http}{}", cut(text.split_once(": ").unwrap_or_default().1.to_owned()));
        self.given_up()?;
        Ok(error)
    }

    /// Opens a watch that is refused by this fault with this code, as [`Stage::refused_by`], and says who sends it again.
    pub(crate) async fn refused_watch(&self, fault: &str, code: u16, again: &str) -> Outcome {
        let Some(error) = self.refused_by(fault, &format!("{}?watch=1", self.configmaps)).await? else {
            return Ok(());
        };
        say!("  in an operator, sent again by {again}");
        ensure!(error.code() == Some(code), "expected {code}");
        self.step().await
    }

    /// Sends a GET that is refused by this fault, and shows the error. Without faults, `forbidden` is had as a user without
    /// permissions, and the others are `None`.
    pub(crate) async fn refused_by(&self, fault: &str, target: &str) -> Outcome<Option<client::Error>> {
        let is_forbidden = fault == "forbidden";
        let is_real = is_forbidden && !self.takes_faults;
        let part = target.split('?').next_back().unwrap_or_default();
        if !is_real && !self.fault(&format!("{fault},path={part},times=1")).await? {
            return Ok(None);
        }
        let client = if is_forbidden { &self.nobody } else { &self.client };
        let request = Request::get(target);
        show_explanations()?;
        say!("$ {}", client.curl(&request, CurlFrom::Proxy));
        let error = client.stream(request).await.err().ok_or("the request was not refused")?;
        say!("  HTTP {}", error.to_string().split_once(": ").unwrap_or_default().1);
        self.given_up()?;
        Ok(Some(error))
    }

    /// Creates a ConfigMap with these labels.
    pub(crate) async fn create(&self, name: &str, labels: Value) -> Outcome<Value> {
        self.create_in(
            &self.configmaps,
            &json!({"metadata": {"name": name, "labels": labels}, "data": {"colour": "red"}}),
        )
        .await
    }

    /// Creates ConfigMaps with these names.
    pub(crate) async fn create_each<const N: usize>(&self, names: [&str; N]) -> Outcome {
        for name in names {
            self.create(name, json!({})).await?;
        }
        Ok(())
    }

    /// Creates any object in a collection.
    pub(crate) async fn create_in(&self, path: &str, object: &Value) -> Outcome<Value> {
        self.send(Request::post(path, object)).await
    }

    /// Creates a ConfigMap whose controller is another one.
    pub(crate) async fn create_child(&self, name: &str, owner: &Value) -> Outcome {
        let owner = json!({"apiVersion": "v1", "kind": "ConfigMap", "name": owner["metadata"]["name"],
            "uid": owner["metadata"]["uid"], "controller": true, "blockOwnerDeletion": true});
        let child = json!({"metadata": {"name": name, "ownerReferences": [owner]}});
        self.create_in(&self.configmaps, &child).await.map(drop)
    }

    /// Creates a Deployment without replicas. Returns the path of its status.
    pub(crate) async fn create_deployment(&self, name: &str) -> Outcome<String> {
        let path = format!("{}/deployments", self.namespace.replace("/api/v1", "/apis/apps/v1"));
        let (labels, containers) = (json!({"app": name}), json!([{"name": "web", "image": "web"}]));
        let template = json!({"metadata": {"labels": labels}, "spec": {"containers": containers}});
        let spec = json!({"replicas": 0, "selector": {"matchLabels": labels}, "template": template});
        self.create_in(&path, &json!({"metadata": {"name": name}, "spec": spec})).await?;
        Ok(format!("{path}/{name}/status"))
    }

    /// Changes a ConfigMap with a merge patch.
    pub(crate) async fn patch(&self, name: &str, patch: Value) -> Outcome<Value> {
        self.send(merge_patch(&format!("{}/{name}", self.configmaps), &patch)).await
    }

    /// Applies a ConfigMap `web` with this data. The query begins with the name of the manager.
    pub(crate) async fn apply(&self, query: &str, data: Value) -> Outcome<Value> {
        let path = format!("{}/web?fieldManager={query}", self.configmaps);
        let object =
            json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "web"}, "data": data});
        let body = object.to_string().into_bytes();
        let applied =
            self.send(Request::get(path).sends(Method::PATCH, "application/apply-patch+yaml", body)).await?;
        say!("  {}", applied["data"]);
        // The server sorts them by the second of their last change.
        let entries = applied["metadata"]["managedFields"].as_array().into_iter().flatten();
        let mut entries: Vec<(&str, &Value)> =
            entries.map(|entry| (text(&entry["manager"]), &entry["fieldsV1"]["f:data"])).collect();
        entries.sort_by_key(|(manager, _)| *manager);
        for (manager, data) in entries {
            say!("  {manager} owns {data}");
        }
        Ok(applied)
    }

    /// Deletes a ConfigMap. The query begins with `?`, unless it is empty.
    pub(crate) async fn delete(&self, name_and_query: &str) -> Outcome {
        let path = format!("{}/{name_and_query}", self.configmaps);
        self.send(Request::get(path).sends(Method::DELETE, "application/json", Vec::new())).await.map(drop)
    }

    /// Fills a ConfigMap with so many bytes. The curl command of that would fill the screen.
    pub(crate) async fn fill(&self, name: &str, bytes: usize) -> Outcome {
        say!("  a PATCH that is too long to show gives {name} {bytes} bytes of data");
        let path = format!("{}/{name}", self.configmaps);
        json(&self.writer, merge_patch(&path, &json!({"data": {"text": "x".repeat(bytes)}}))).await.map(drop)
    }

    /// Changes a ConfigMap so many times, without a curl command for each. Returns its last version.
    pub(crate) async fn change(&self, name: &str, times: u32) -> Outcome<String> {
        say!("  {times} PATCHes, not shown, change {name}");
        let (path, mut last) = (format!("{}/{name}", self.configmaps), Value::Null);
        for time in 1..=times {
            last =
                json(&self.writer, merge_patch(&path, &json!({"data": {"time": time.to_string()}}))).await?;
        }
        Ok(version(&last).to_owned())
    }

    /// Creates `x` and `y` and changes them in turn, until the version has one digit more. Returns the last version with
    /// fewer digits and the first one with more. `None`: that would take too many writes.
    pub(crate) async fn until_longer_version(&self) -> Outcome<Option<[String; 2]>> {
        let (x, mut last) = (self.create("x", json!({})).await?, self.create("y", json!({})).await?);
        let digits = version(&last).len();
        let left = 10_u128.pow(u32::try_from(digits)?).saturating_sub(version(&last).parse()?);
        if left > WRITES_MAX.into() {
            say!("  not on this server: the lost order, which takes {left} more writes");
            return Ok(None);
        }
        say!(
            "  x and y are changed in turn, until the version has one digit more: at most {left} PATCHes, not shown"
        );
        let mut before = x;
        while version(&last).len() == digits {
            let path = format!("{}/{}", self.configmaps, name(&before));
            let patch = merge_patch(&path, &json!({"data": {"after": version(&last)}}));
            (before, last) = (last, json(&self.writer, patch).await?);
        }
        Ok(Some([&before, &last].map(|object| version(object).to_owned())))
    }

    /// Opens a watch of the ConfigMaps: `query` follows `watch=1`.
    pub(crate) async fn watch(&self, query: &str) -> Outcome<Events> {
        self.asked.borrow_mut().push("watch");
        self.open(Request::get(format!("{}?watch=1{query}", self.configmaps))).await
    }

    /// Opens any watch.
    pub(crate) async fn open(&self, request: Request) -> Outcome<Events> {
        show_explanations()?;
        say!("$ {}", self.client.curl(&request, CurlFrom::Proxy));
        let (head, body) = self.client.stream(request).await?;
        say!("  HTTP {}; the lines follow as they come", head.status);
        show_explanations()?;
        let asked = "the connection broke, as the fault asked";
        Ok(Events::new(body, if self.takes_faults { asked } else { "the connection broke" }))
    }

    /// Opens a watch so many times. Shows and explains the first one.
    pub(crate) async fn open_each(&self, count: usize, request: &Request) -> Outcome<Watches> {
        let mut all = vec![self.open(request.clone()).await?.body];
        say!("  and {} more of these, not shown", count - 1);
        while all.len() < count {
            all.push(self.writer.stream(request.clone()).await?.1);
        }
        Ok(Watches(all))
    }

    /// Injects faults, one per line. `false`: the server is not an embedded one, so nothing happens.
    pub(crate) async fn fault(&self, faults: &str) -> Outcome<bool> {
        if !self.takes_faults {
            say!("  not on this server: {faults}. Only the embedded API server takes faults");
            return Ok(false);
        }
        show_explanations()?;
        let request = Request::get(FAULTS).sends(Method::POST, "text/plain", faults.into());
        say!("$ {}", self.writer.curl(&request, CurlFrom::Proxy));
        self.writer.send(request).await?;
        Ok(true)
    }

    /// Starts a server that answers as a lesson wants, and a client of it.
    pub(crate) async fn another(&self) -> Outcome<Another> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let (kubeconfig, address) = (self.dir.path().join("another"), listener.local_addr()?);
        fs::write(&kubeconfig, format!("clusters: [{{name: it, cluster: {{server: 'http://{address}'}}}}]"))?;
        let mut options =
            Options { kubeconfig: Some(kubeconfig), cluster: Some("it".to_owned()), ..Options::default() };
        let by_lesson = || self.recording.clone().map(|recording| (recording, LESSON));
        let (client, _) = connect(&options, self.explain, by_lesson())?;
        options.request_timeout = Some(Duration::from_secs(1));
        let (impatient, _) = connect(&options, self.explain, by_lesson())?;
        let (answer, wanted) = watch::channel(None);
        let mut server = JoinSet::new();
        server.spawn(async move {
            while let Ok((connection, _)) = listener.accept().await {
                let answer = wanted.borrow().clone();
                // The client shows what it gets.
                let _ = serve(connection, answer).await;
            }
        });
        Ok(Another { client, impatient, answer, configmaps: self.configmaps.clone(), _server: server })
    }
}

/// A server that answers as a lesson wants, and a client of it.
pub(crate) struct Another {
    client: Client,
    /// Asks for the answers that do not come.
    impatient: Client,
    /// `None`: no answer.
    answer: watch::Sender<Option<String>>,
    configmaps: String,
    _server: JoinSet<()>,
}

impl Another {
    /// Sends a GET of a path, or of the ConfigMaps with a query, and shows both. The server sends this head and body, and closes the
    /// connection. Without a head, it closes the connection at once; with the head [`SILENT`], it does neither. Returns what a
    /// client does then, as `Machine::end` in src/watch/machine.rs decides.
    pub(crate) async fn ask(&self, target: &str, head: &str, body: &str) -> Outcome<&'static str> {
        self.answer.send_replace(match head {
            SILENT => None,
            "" => Some(String::new()),
            head => Some(format!("HTTP/1.1 {head}\r\nConnection: close\r\n\r\n{body}\n")),
        });
        let is_path = target.starts_with('/');
        let path = if is_path { target.to_owned() } else { format!("{}?{target}", self.configmaps) };
        show_explanations()?;
        // No curl command: only this lesson knows the server, whose next answer is another one.
        say!("  GET {path}");
        // As [`Stage::check`].
        let is_check = target == "limit=1";
        let request = if is_check { accept(&path, "PartialObjectMetadataList") } else { Request::get(path) };
        let is_list = !target.contains("watch=1") || target.contains("sendInitialEvents");
        let client = if head == SILENT { &self.impatient } else { &self.client };
        let decision = match Another::body(client, request).await {
            // A watch that was open, and sent a line.
            Err(_) if head.starts_with(OK) && target.contains("watch=1") => "watch again",
            Err(_) => "back off",
            Ok(body) if !target.contains("watch=1") => match List::<ConfigMap>::from_json(&body) {
                // A page that repeats the token that led to it leads nowhere.
                Ok(list) if target != format!("continue={}", list.continue_token) => "go on",
                Ok(_) | Err(_) => "list again",
            },
            Ok(body) => match WatchEvent::<ConfigMap>::from_json(&body) {
                // A streaming list has no such event before its bookmark.
                Ok(WatchEvent::Modified(_)) if is_list => "list again",
                Err(_) if body.trim_ascii().is_empty() && !is_list => "back off",
                Ok(WatchEvent::Error(_)) | Err(_) => "list again",
                Ok(_) => "go on",
            },
        };
        let head = if head.is_empty() { "no answer".to_owned() } else { head.replace("\r\n", ", ") };
        say!("  {head} {}\n  → {decision}", cut(body.to_owned()));
        Ok(decision)
    }

    /// The body of the answer, up to its end or to 9 MiB.
    async fn body(client: &Client, request: Request) -> Outcome<Vec<u8>> {
        let (_, mut answer) = client.stream(request).await?;
        let mut body = Vec::new();
        while body.len() < 9 << 20
            && let Some(chunk) = answer.chunk().await?
        {
            body.extend_from_slice(&chunk);
        }
        Ok(body)
    }
}

/// Reads a request, and answers with these bytes. `None`: does not answer.
async fn serve(mut connection: TcpStream, answer: Option<String>) -> io::Result<()> {
    let mut request = BufReader::new(&mut connection);
    // The head of a request ends with an empty line.
    while request.read_line(&mut String::new()).await? > "\r\n".len() {}
    match answer {
        Some(answer) => connection.write_all(answer.as_bytes()).await,
        None => std::future::pending().await,
    }
}

/// Keeps a sentence until it is shown.
type Keep = fn(&str);

/// Connects. `explain`: says what follows from each answer. `recorded`: where the exchanges go, and by whom they are.
fn connect(
    options: &Options,
    explain: bool,
    recorded: Option<(Arc<Recording>, &'static str)>,
) -> Outcome<(Client, Option<Arc<Explained<Keep>>>)> {
    let (mut config, mut explaining) = (Config::load(options, &Env::from_process())?, None);
    if explain {
        let keep: Keep =
            |sentence| SENTENCES.with_borrow_mut(|sentences| sentences.push(sentence.to_owned()));
        let (explained_config, explained) = explained(config, keep);
        (config, explaining) = (explained_config, Some(explained));
    }
    if let Some((recording, user)) = recorded {
        let next = explaining.clone().map(|explained| explained as Arc<dyn Tap>);
        config = config.with_tap(Arc::new(Recorded { recording, user, next }));
    }
    Ok((Client::new(config)?, explaining))
}

/// Sends a request, and returns the answer as JSON.
async fn json(client: &Client, request: Request) -> Outcome<Value> {
    let path = request.path.clone();
    let answer = client.send(request).await?;
    serde_json::from_slice(&answer.body).map_err(|error| format!("{path}: no JSON: {error}").into())
}

/// A PATCH of any object.
pub(crate) fn merge_patch(path: &str, patch: &Value) -> Request {
    let body = patch.to_string().into_bytes();
    Request::get(path).sends(Method::PATCH, "application/merge-patch+json", body)
}

/// A GET of another form of the objects: `Table`, `PartialObjectMetadata`.
pub(crate) fn accept(path: &str, form: &str) -> Request {
    Request { accept: format!("application/json;as={form};g=meta.k8s.io;v=v1").into(), ..Request::get(path) }
}

/// The events of an open watch.
pub(crate) struct Events {
    /// The version of the last event. The watch can be resumed from here.
    pub(crate) version: String,
    body: Body,
    /// What is shown when the connection breaks.
    break_text: &'static str,
    /// The bytes after the last event: half a line, or more lines.
    rest: Vec<u8>,
}

impl Events {
    fn new(body: Body, break_text: &'static str) -> Events {
        Events { version: String::new(), body, break_text, rest: Vec::new() }
    }

    /// The next event. `None`: the server has ended the watch. An error: the connection broke.
    pub(crate) async fn next(&mut self) -> Outcome<Option<Value>> {
        let event = match self.event().await {
            Ok(Some(event)) => event,
            Ok(None) => {
                say!("  the server has ended the watch");
                show_explanations()?;
                return Ok(None);
            }
            Err(error) => {
                if !self.rest.is_empty() {
                    let half = String::from_utf8_lossy(&self.rest).into_owned();
                    say!("  {} ← half a line, dropped", cut(half));
                }
                // A line that is not JSON has another error.
                let is_broken = error.is::<client::Error>();
                let text = if is_broken { self.break_text.to_owned() } else { error.to_string() };
                say!("  {text}");
                show_explanations()?;
                return Err(error);
            }
        };
        version(&event["object"]).clone_into(&mut self.version);
        say!(r#"  {{"type":{},"object":{}}}"#, event["type"], shorten(&event["object"]));
        // The sentences are about all lines that have come.
        if !self.rest.contains(&b'\n') {
            show_explanations()?;
        }
        Ok(Some(event))
    }

    async fn event(&mut self) -> Outcome<Option<Value>> {
        let mut searched = 0;
        loop {
            if let Some(end) = self.rest[searched..].iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.rest.drain(..=searched + end).collect();
                return Ok(Some(serde_json::from_slice(&line)?));
            }
            searched = self.rest.len();
            let Some(chunk) = self.body.chunk().await? else { return Ok(None) };
            self.rest.extend_from_slice(&chunk);
        }
    }

    /// The type and the name of each of the next events, up to `count` of them or the end of the watch.
    pub(crate) async fn take(&mut self, count: usize) -> Outcome<Vec<String>> {
        let mut seen = Vec::new();
        while seen.len() < count
            && let Some(event) = self.next().await?
        {
            seen.push(format!("{} {}", text(&event["type"]), name(&event["object"])).trim_end().to_owned());
        }
        Ok(seen)
    }

    /// The next event that is not a BOOKMARK: on a busy machine, a periodic one may come first.
    pub(crate) async fn take_change(&mut self) -> Outcome<Vec<String>> {
        loop {
            let seen = self.take(1).await?;
            if seen != ["BOOKMARK"] {
                return Ok(seen);
            }
        }
    }
}

/// The same watch, open several times.
pub(crate) struct Watches(Vec<Body>);

impl Watches {
    /// Shows the number of lines and bytes of all of them, to their ends. Returns the bytes.
    pub(crate) async fn bytes(self, what: &str) -> Outcome<usize> {
        let [mut lines, mut bytes] = [0, 0];
        for mut body in self.0 {
            while let Some(chunk) = body.chunk().await? {
                lines += chunk.iter().filter(|byte| **byte == b'\n').count();
                bytes += chunk.len();
            }
        }
        say!(r#"  {what}: {{"lines":{lines},"bytes":{bytes}}}"#);
        show_explanations()?;
        Ok(bytes)
    }
}

/// The changes that a Store reports.
pub(crate) struct Changes {
    receiver: Receiver<String>,
    _listening: Listening,
}

/// An empty Store that is listened to.
pub(crate) fn store_with_changes() -> (Store<ConfigMap>, Changes) {
    let store = Store::default();
    let (sender, receiver) = channel();
    let _listening = store.listen(move |change: &Change<ConfigMap>| {
        let _ = sender.send(match change {
            Change::Applied { after, .. } => format!("applied {}", after.metadata().name),
            Change::Deleted { last, source } => format!("deleted {}: {source:?}", last.metadata().name),
            Change::Synced => "synced".to_owned(),
            Change::Forbidden => "forbidden".to_owned(),
        });
    });
    (store, Changes { receiver, _listening })
}

impl Changes {
    /// Shows those since the last call, which must be these.
    pub(crate) fn expect(&self, expected: &[&str]) -> Outcome {
        let seen: Vec<_> =
            self.receiver.try_iter().filter(|change| !change.contains("kube-root-ca.crt")).collect();
        say!("  the Store reports {seen:?}, kube-root-ca.crt left out\n");
        ensure!(seen == expected, "the Store has reported {seen:?}, expected {expected:?}");
        Ok(())
    }
}

/// A string in JSON. Empty if it is none.
pub(crate) fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

/// The `metadata.name` of an object.
pub(crate) fn name(object: &Value) -> &str {
    text(&object["metadata"]["name"])
}

/// The `metadata.resourceVersion` of an object or a list.
pub(crate) fn version(object: &Value) -> &str {
    text(&object["metadata"]["resourceVersion"])
}

/// The fields of an object that a lesson is about, on one line.
pub(crate) fn shorten(object: &Value) -> String {
    let mut object = object.clone();
    if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
        let shown = ["annotations", "deletionTimestamp", "finalizers", "labels", "name", "resourceVersion"];
        metadata.retain(|field, _| shown.contains(&&**field));
    }
    if !object["data"]["ca.crt"].is_null() {
        object["data"]["ca.crt"] = "…".into();
    }
    cut(object.to_string())
}

/// The beginning of a text.
fn cut(text: String) -> String {
    let end = text.floor_char_boundary(SHOWN_MAX);
    if end == text.len() { text } else { format!("{}…", &text[..end]) }
}
