//! The stage of a lesson: a server, a throw-away namespace with ConfigMaps, and one printed line for each request and event.

use std::{error::Error, io, path::PathBuf, pin::Pin, time::Duration};

use clap::{Args, builder::NonEmptyStringValueParser};
use http::Method;
use listwatch::{
    client::{self, Body, Client, Config, Env, Options, Request},
    watch::decode::Lines,
};
use listwatch_apiserver::ApiServer;
use serde_json::{Value, json};

/// Longest time for a lesson. A watch may stay silent for ever.
const LESSON_LIMIT: Duration = Duration::from_secs(40);

/// The path at which the embedded API server takes faults.
const FAULTS: &str = "/listwatch/faults";

/// Most characters of an object that are shown.
const SHOWN_MAX: usize = 200;

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
}

/// `println!` for an output that may be closed at any time, as with `| head -1`.
macro_rules! say {
    ($($text:tt)*) => { std::io::Write::write_fmt(&mut std::io::stdout(), format_args!("{}\n", format_args!($($text)*)))? };
}
pub(crate) use say;

/// Ends the lesson with an error if the condition does not hold.
macro_rules! ensure {
    ($condition:expr, $($text:tt)*) => { if !$condition { return Err(format!($($text)*).into()); } };
}
pub(crate) use ensure;

/// The result of a lesson, or of a step of it.
pub(crate) type Outcome<T = ()> = Result<T, Box<dyn Error>>;

/// A server, and a throw-away namespace.
pub(crate) struct Stage {
    pub(crate) client: Client,
    /// The same as a user without permissions. `None`: on the server in this process, everything is allowed.
    nobody: Option<Client>,
    /// The path of the ConfigMaps in the namespace.
    pub(crate) configmaps: String,
    /// The path of the namespace.
    namespace: String,
    /// Whether the server is an embedded one, which takes faults.
    takes_faults: bool,
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
        let stage = Stage::new(flags).await?;
        let limited = async {
            stage.until_published().await?;
            if !faults.is_empty() {
                ensure!(stage.fault(&faults).await?, "only the embedded API server takes --fault");
            }
            let outcome = tokio::time::timeout(LESSON_LIMIT, lesson(&stage))
                .await
                .map_err(|_| format!("the lesson did not end within {} s", LESSON_LIMIT.as_secs()))?;
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
            _ = tokio::signal::ctrl_c() => Err("interrupted".into()),
        };
        if stage.takes_faults {
            let end = Request::get(FAULTS).sends(Method::DELETE, "text/plain", Vec::new());
            let _ = stage.client.send(end).await;
        }
        let deleted = stage.send(Method::DELETE, &stage.namespace, &json!({})).await;
        outcome.and(deleted.map(drop))
    }

    async fn new(Flags { kubeconfig, context, .. }: Flags) -> Outcome<Stage> {
        let mut nobody = None;
        let (config, server) = if kubeconfig.is_some() || context.is_some() {
            let mut options = Options { kubeconfig, context, ..Options::default() };
            let config = Config::load(&options, &Env::from_process())?;
            options.act_as = Some("listwatch-course".to_owned());
            nobody = Some(Client::new(Config::load(&options, &Env::from_process())?)?);
            (config, None)
        } else {
            let server = ApiServer::start(listwatch_apiserver::Options::default()).await?;
            (Config::new(&server.url(), server.ca_pem().as_bytes(), server.token())?, Some(server))
        };
        let client = Client::new(config)?;
        match server {
            Some(_) => {
                say!(
                    "# An API server in this process; --kubeconfig FILE or --context NAME chooses another.\n"
                )
            }
            None => say!("# {} as {}\n", client.server(), client.user()),
        }
        let takes_faults = client.send(Request::get(FAULTS)).await.is_ok();
        let namespace = "/api/v1/namespaces".to_owned();
        let mut stage =
            Stage { client, nobody, configmaps: String::new(), namespace, takes_faults, _server: server };
        let object = json!({"metadata": {"generateName": "listwatch-course-"}});
        let created = stage.send(Method::POST, &stage.namespace, &object).await?;
        stage.namespace = format!("/api/v1/namespaces/{}", name(&created));
        stage.configmaps = format!("{}/configmaps", stage.namespace);
        Ok(stage)
    }

    /// Waits until the namespace has the ConfigMap that a controller creates in every namespace, if one runs.
    async fn until_published(&self) -> Outcome {
        let published = "?fieldSelector=metadata.name%3Dkube-root-ca.crt";
        let default = format!("/api/v1/namespaces/default/configmaps{published}");
        if self.send(Method::GET, &default, &Value::Null).await?["items"] == json!([]) {
            return Ok(());
        }
        let watch = format!("{}{published}&watch=1&timeoutSeconds=20", self.configmaps);
        let (_, body) = self.client.stream(Request::get(watch)).await?;
        Events::new(body).event().await?;
        Ok(())
    }

    /// Sends a request, and returns the answer as JSON.
    pub(crate) async fn send(&self, method: Method, path: &str, body: &Value) -> Outcome<Value> {
        let media_type =
            if method == Method::PATCH { "application/merge-patch+json" } else { "application/json" };
        let body = if body.is_null() { Vec::new() } else { body.to_string().into_bytes() };
        self.json(Request::get(path).sends(method, media_type, body)).await
    }

    async fn json(&self, request: Request) -> Outcome<Value> {
        let path = request.path.clone();
        let answer = self.client.send(request).await?;
        serde_json::from_slice(&answer.body).map_err(|error| format!("{path}: no JSON: {error}").into())
    }

    /// Sends any GET, shows its path and its header Accept, and returns the answer as JSON.
    pub(crate) async fn ask(&self, request: Request) -> Outcome<Value> {
        say!("GET {} accept: {}", request.path, request.accept);
        self.json(request).await
    }

    /// Sends a GET, and shows its path.
    pub(crate) async fn get(&self, path: &str) -> Outcome<Value> {
        say!("GET {path}");
        self.send(Method::GET, path, &Value::Null).await
    }

    /// Sends a GET that must fail, and shows the error.
    pub(crate) async fn refused(&self, path: &str, expected: &str) -> Outcome<client::Error> {
        let Err(error) = self.get(path).await else {
            return Err(format!("no error, expected {expected}").into());
        };
        let error = *error.downcast::<client::Error>()?;
        say!("  {}", cut(error.to_string().replacen(path, "…", 1)));
        Ok(error)
    }

    /// Opens a watch that is refused by this fault, and shows the error. Without faults, `forbidden` is had as a user without
    /// permissions, and the others are `None`.
    pub(crate) async fn refused_watch(&self, fault: &str) -> Outcome<Option<client::Error>> {
        let client = match &self.nobody {
            _ if self.fault(&format!("{fault},path=watch=1,times=1")).await? => &self.client,
            Some(nobody) if fault == "forbidden" => nobody,
            _ => return Ok(None),
        };
        let path = format!("{}?watch=1", self.configmaps);
        say!("GET {path}");
        let error = client.stream(Request::get(path)).await.err().ok_or("the watch was not refused")?;
        say!("  {}", error.to_string().split_once(": ").unwrap_or_default().1);
        Ok(Some(error))
    }

    /// Creates a ConfigMap with these labels.
    pub(crate) async fn create(&self, name: &str, labels: Value) -> Outcome<Value> {
        say!("POST {name}");
        let object = json!({"metadata": {"name": name, "labels": labels}, "data": {"colour": "red"}});
        self.send(Method::POST, &self.configmaps, &object).await
    }

    /// Creates a Deployment without replicas. Returns its path.
    pub(crate) async fn create_deployment(&self, name: &str) -> Outcome<String> {
        let path = format!("{}/deployments", self.namespace.replace("/api/v1", "/apis/apps/v1"));
        let (labels, containers) = (json!({"app": name}), json!([{"name": "web", "image": "web"}]));
        let template = json!({"metadata": {"labels": labels}, "spec": {"containers": containers}});
        let spec = json!({"replicas": 0, "selector": {"matchLabels": labels}, "template": template});
        self.send(Method::POST, &path, &json!({"metadata": {"name": name}, "spec": spec})).await?;
        Ok(format!("{path}/{name}"))
    }

    /// Changes a ConfigMap with a merge patch.
    pub(crate) async fn patch(&self, name: &str, patch: Value) -> Outcome<Value> {
        say!("PATCH {name} {}", shorten(&patch));
        self.send(Method::PATCH, &format!("{}/{name}", self.configmaps), &patch).await
    }

    /// Deletes a ConfigMap.
    pub(crate) async fn delete(&self, name: &str) -> Outcome {
        say!("DELETE {name}");
        self.send(Method::DELETE, &format!("{}/{name}", self.configmaps), &json!({})).await.map(drop)
    }

    /// Opens a watch of the ConfigMaps: `query` follows `watch=1`.
    pub(crate) async fn watch(&self, query: &str) -> Outcome<Events> {
        self.open(Request::get(format!("{}?watch=1{query}", self.configmaps))).await
    }

    /// Opens any watch.
    pub(crate) async fn open(&self, request: Request) -> Outcome<Events> {
        say!("GET {}", request.path);
        let (head, body) = self.client.stream(request).await?;
        say!("  HTTP {}, and the answer stays open", head.status);
        Ok(Events::new(body))
    }

    /// Injects faults, one per line. `false`: the server is not an embedded one, so nothing happens.
    pub(crate) async fn fault(&self, faults: &str) -> Outcome<bool> {
        if self.takes_faults {
            say!("FAULT {faults}");
            let request = Request::get(FAULTS).sends(Method::POST, "text/plain", faults.into());
            self.client.send(request).await?;
        }
        Ok(self.takes_faults)
    }
}

/// The events of an open watch.
pub(crate) struct Events {
    /// The version of the last event. The watch can be resumed from here.
    pub(crate) version: String,
    body: Body,
    lines: Lines,
    /// The bytes after the last complete line.
    half: Vec<u8>,
}

impl Events {
    fn new(body: Body) -> Events {
        Events { version: String::new(), body, lines: Lines::default(), half: Vec::new() }
    }

    /// The next event. `None`: the server has ended the watch. An error: the connection broke.
    pub(crate) async fn next(&mut self) -> Outcome<Option<Value>> {
        let event = match self.event().await {
            Ok(Some(event)) => event,
            Ok(None) => {
                say!("  the server has ended the watch");
                return Ok(None);
            }
            Err(error) => {
                if !self.half.is_empty() {
                    let half = String::from_utf8_lossy(&self.half).into_owned();
                    say!("  {} ← half a line, dropped", cut(half));
                }
                say!("  {}", error.to_string().split_once(": ").unwrap_or_default().1);
                return Err(error);
            }
        };
        version(&event["object"]).clone_into(&mut self.version);
        say!(r#"  {{"type":{},"object":{}}}"#, event["type"], shorten(&event["object"]));
        Ok(Some(event))
    }

    async fn event(&mut self) -> Outcome<Option<Value>> {
        loop {
            if let Ok(Some(line)) = self.lines.next_line() {
                return Ok(Some(serde_json::from_slice(line)?));
            }
            let Some(chunk) = self.body.chunk().await? else { return Ok(None) };
            self.lines.push(&chunk);
            match chunk.iter().rposition(|byte| *byte == b'\n') {
                Some(end) => self.half = chunk[end + 1..].to_vec(),
                None => self.half.extend_from_slice(&chunk),
            }
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
        for field in [
            "creationTimestamp",
            "deletionGracePeriodSeconds",
            "managedFields",
            "namespace",
            "ownerReferences",
            "uid",
        ] {
            metadata.remove(field);
        }
    }
    if !object["data"]["ca.crt"].is_null() {
        object["data"]["ca.crt"] = "…".into();
    }
    cut(object.to_string())
}

fn cut(text: String) -> String {
    let end = text.floor_char_boundary(SHOWN_MAX);
    if end == text.len() { text } else { format!("{}…", &text[..end]) }
}
