//! `listwatch demo`: an API server and the operator in this process, and what passes between them.
//!
//! Nothing is staged. The operator is the one that `listwatch run` runs, connected over TLS with a service-account
//! directory; the lines are those of a real watch, the writes are read from the server's log of requests.

use std::{
    fs,
    io::{self, Write},
    path::Path,
    pin::pin,
    time::{Duration, Instant},
};

use clap::{ArgAction, Args};
use http::Method;
use serde_json::{Value, json};
use tokio::{sync::mpsc, task::JoinSet, time::timeout};

use tracing::Level;

use super::{
    Failure,
    apiserver::{self, say},
    log::Log,
    parse_switch,
};
use crate::{
    apiserver::{ApiServer, Options as ServerOptions},
    client::{Body, Client, Config, DeleteOptions, Env, Error, Options, Part, Patch, Request},
    cluster::Cluster,
    operators::mywebserver::{self, MyWebserver},
    resource::{
        Key, Resource,
        kinds::{Deployment, Service},
    },
    shutdown::Stop,
    watch::{Lists, decode::Lines},
};

/// The samples that the manifests install too.
const SAMPLES: [(&str, &str); 2] = [
    ("manifests/samples/mywebserver-v1.yaml", include_str!("../../manifests/samples/mywebserver-v1.yaml")),
    ("manifests/samples/mywebserver-v2.yaml", include_str!("../../manifests/samples/mywebserver-v2.yaml")),
];
/// What is written for the operator.
const ACCOUNT: &str = "operator";
/// Who the operator is to the server.
const OPERATOR: &str = "system:serviceaccount:mywebserver-system:mywebserver-operator";
/// How long one scene may take. They take milliseconds; a machine may be busy.
const SCENE_LIMIT: Duration = Duration::from_secs(30);
/// Lines of the watch that may wait to be shown. More than the whole tour has.
const LINES_MAX: usize = 1024;
/// How often the stage is looked at.
const GLANCE: Duration = Duration::from_millis(2);
/// The same while nothing happens.
const IDLE_GLANCE: Duration = Duration::from_millis(100);
/// How long nothing must happen for a scene to be over: longer than a Pod takes.
const QUIET: Duration = Duration::from_millis(400);
/// How long the simulated kubelet takes over a Pod, so that there is something to see.
const POD_START: Duration = Duration::from_millis(300);

/// See it work on this machine, without a cluster
#[derive(Debug, Args)]
#[command(
    after_help = "Starts an API server on 127.0.0.1 and the operator in one process, applies two samples, scales one,\n\
    breaks and deletes, and shows each request and each event as it happens. Then the server stays up for kubectl."
)]
pub(super) struct Demo {
    /// End after the tour
    #[arg(long, value_name = "BOOL", env = "LISTWATCH_EXIT")]
    #[arg(num_args = 0..=1, require_equals = true, default_missing_value = "true", default_value = "false")]
    #[arg(action = ArgAction::Set, value_parser = parse_switch)]
    exit: bool,
    /// Port of the API server on 127.0.0.1; 0 for any
    #[arg(long, value_name = "PORT", env = "LISTWATCH_PORT", default_value_t = 0, value_parser = apiserver::parse_port)]
    port: u16,
    #[command(flatten)]
    log: Log,
}

pub(super) fn main(demo: Demo) -> Result<(), Failure> {
    demo.log.start(Level::WARN);
    super::until_signal(|stop| run(demo.exit, demo.port, stop))
}

async fn run(exit: bool, port: u16, stop: Stop) -> Result<(), Failure> {
    let options = ServerOptions { port, pod_start: POD_START, ..ServerOptions::default() };
    let server = apiserver::start(options).await?;
    say!("An API server is listening at {}, in this process.\n", server.url());
    let dir = apiserver::private_dir(|dir| write_credentials(&server, dir))?;

    let tour = async {
        let mut tour = Tour::start(&server, &dir.path().join(ACCOUNT), stop.clone()).await?;
        tour.tell().await?;
        Ok::<_, Failure>(tour)
    };
    let mut tour = tokio::select! {
        tour = tour => tour?,
        () = stop.clone().requested() => return Ok(()),
    };
    if !exit {
        say!("\nThe API server and the operator stay up. In another terminal:\n");
        say!("    export KUBECONFIG='{}'", dir.path().join(apiserver::KUBECONFIG).display());
        say!("    kubectl get mws,deploy,svc,pods");
        say!("    kubectl scale mws/hello --replicas=3\n");
        say!("What it does is shown here. Ctrl-C ends it; then `unset KUBECONFIG`.\n");
        tokio::select! {
            () = stop.requested() => {}
            shown = tour.go_on() => shown?,
        }
    }
    tour.end().await;
    server.stop().await;
    Ok(())
}

/// A kubeconfig for people, and a service-account directory for the operator.
fn write_credentials(server: &ApiServer, dir: &Path) -> io::Result<()> {
    apiserver::write_private(&dir.join(apiserver::KUBECONFIG), &server.kubeconfig())?;
    let account = dir.join(ACCOUNT);
    server.write_service_account(&account)?;
    fs::write(account.join("token"), server.new_token(OPERATOR))
}

/// The tour: somebody with kubectl's rights, a watch whose lines are shown, and the operator behind it all.
struct Tour<'a> {
    server: &'a ApiServer,
    user: Client,
    lines: mpsc::Receiver<String>,
    /// How many of the server's records have been shown.
    shown: usize,
    tasks: JoinSet<()>,
    started: Instant,
}

impl<'a> Tour<'a> {
    async fn start(server: &'a ApiServer, account: &Path, stop: Stop) -> Result<Tour<'a>, Failure> {
        let user = Client::new(Config::new(&server.url(), server.ca_pem().as_bytes(), server.token())?)?;
        let mut tasks = JoinSet::new();

        say!("$ listwatch crd | kubectl apply -f -");
        let path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
        let body = applied(mywebserver::crd::definition());
        user.send(Request::get(path).sends(Method::POST, "application/json", body)).await?;
        say!("          mywebservers.k8sobjects.gsa.com is served");

        let path = format!("{}?watch=1", MyWebserver::collection_path(None));
        say!("\n$ curl -N \"$API{path}\"");
        let (sender, lines) = mpsc::channel(LINES_MAX);
        let (head, body) = user.stream(Request::get(path)).await?;
        say!("          HTTP {}, and the answer does not end: its lines are marked \"watch\"", head.status);
        tasks.spawn(read_lines(body, sender));

        say!("\n$ listwatch run mywebserver");
        let shown = server.requests().len();
        let address = server.url();
        let (host, port) = address.trim_start_matches("https://").split_once(':').unwrap_or_default();
        let env = Env { service_host: Some(host.into()), service_port: Some(port.into()), ..Env::default() };
        let options = Options { service_account_dir: Some(account.to_owned()), ..Options::default() };
        let client = Client::new(Config::load(&options, &env)?)?;
        say!("          connected as {}: its requests are marked \"operator\"", client.user());
        let cluster = Cluster::new(client.clone(), Lists::Paged);
        let (events, write_events) = mywebserver::events(client, "demo".to_owned());
        let controller = mywebserver::controller(&cluster, &[], events);
        tasks.spawn(async move {
            tokio::join!(controller.run(stop.requested()), write_events);
        });
        let mut tour = Tour { server, user, lines, shown, tasks, started: Instant::now() };
        tour.until(async |_| Ok(cluster.health().iter().all(|watch| watch.is_synced()))).await?;
        Ok(tour)
    }

    async fn tell(&mut self) -> Result<(), Failure> {
        for (file, sample) in SAMPLES {
            let object: Value =
                yaml_serde::from_str(sample).map_err(|error| Error::new("read", "sample", error))?;
            let text = |pointer: &str| {
                object.pointer(pointer).and_then(Value::as_str).unwrap_or_default().to_owned()
            };
            let (version, name) = (text("/apiVersion"), text("/metadata/name"));
            self.scene(&format!("kubectl apply -f {file}"))?;
            let path = format!("/apis/{version}/namespaces/default/mywebservers");
            let body = applied(object);
            self.user.send(Request::get(path).sends(Method::POST, "application/json", body)).await?;
            self.until_ready(&Key::namespaced("default", &name)).await?;
        }
        let web = Key::namespaced("default", "web");
        let child = Key::namespaced("default", "mws-web");

        self.scene("kubectl scale mws/web --replicas=3")?;
        self.user.set_scale::<MyWebserver>(&web, 3).await?;
        self.until_ready(&web).await?;

        self.scene("kubectl delete deployment mws-web                    # somebody breaks it …")?;
        let before: Deployment = self.user.get(&child).await?;
        self.user.delete::<Deployment>(&child, &DeleteOptions::default()).await?;
        self.until(async |user: &Client| match user.get::<Deployment>(&child).await {
            Ok(live) => Ok(live.metadata.uid != before.metadata.uid),
            Err(error) if error.is_not_found() => Ok(false),
            Err(error) => Err(error),
        })
        .await?;
        self.until_ready(&web).await?;

        self.scene("kubectl patch service mws-web --type=json -p '[{\"op\":\"add\",\"path\":\"/spec/ports/-\",…}]'   # … or adds a port")?;
        let port = json!([{"op": "add", "path": "/spec/ports/-", "value": {"name": "extra", "port": 9999}}]);
        let operations = port.as_array().cloned().unwrap_or_default();
        self.user.patch::<Service>(&child, Part::Object, &Patch::Json(operations)).await?;
        self.until(async |user: &Client| Ok(user.get::<Service>(&child).await?.spec.ports.len() == 1))
            .await?;

        self.scene("kubectl delete mws/web")?;
        self.user.delete::<MyWebserver>(&web, &DeleteOptions::default()).await?;
        self.until(async |user: &Client| {
            let deployment = user.get::<Deployment>(&child).await.err();
            let service = user.get::<Service>(&child).await.err();
            Ok([deployment, service].iter().flatten().filter(|error| error.is_not_found()).count() == 2)
        })
        .await?;
        say!("\nThe Deployment and the Service of web are gone with it; hello is still served.");
        Ok(())
    }

    fn scene(&mut self, command: &str) -> Result<(), Failure> {
        say!("\n$ {command}");
        self.started = Instant::now();
        Ok(())
    }

    /// Shows what happens until a MyWebserver is what was asked for last.
    async fn until_ready(&mut self, key: &Key) -> Result<(), Failure> {
        self.until(async |user: &Client| {
            let web: MyWebserver = user.get(key).await?;
            Ok(web.status.is_ready() && web.status.observed_generation == web.metadata.generation)
        })
        .await
    }

    /// Shows what happens until `is_so`, and until it is quiet again.
    async fn until(&mut self, is_so: impl AsyncFn(&Client) -> Result<bool, Error>) -> Result<(), Failure> {
        let deadline = Instant::now() + SCENE_LIMIT;
        let user = self.user.clone();
        loop {
            let mut asked = pin!(is_so(&user));
            let is_so = loop {
                tokio::select! {
                    answer = &mut asked => break answer?,
                    shown = self.glance(GLANCE) => { shown?; }
                }
            };
            if is_so {
                break;
            }
            self.glance(GLANCE).await?;
            if Instant::now() > deadline {
                let limit = SCENE_LIMIT.as_secs();
                return Err(Failure::Runtime(format!("the demo is not where it should be after {limit} s")));
            }
        }
        self.until_quiet().await
    }

    async fn until_quiet(&mut self) -> Result<(), Failure> {
        let mut quiet_since = Instant::now();
        while quiet_since.elapsed() < QUIET {
            if self.glance(GLANCE).await? {
                quiet_since = Instant::now();
            }
        }
        Ok(())
    }

    /// Shows a line that comes in this time, and before it the requests that were answered since. Returns whether there was
    /// anything.
    async fn glance(&mut self, longest: Duration) -> Result<bool, Failure> {
        let line = timeout(longest, self.lines.recv()).await.ok().flatten();
        let at = format!("{:>5} ms ", self.started.elapsed().as_millis());
        let requests = self.server.requests();
        let news = requests[self.shown.min(requests.len())..].iter();
        let news: Vec<_> = news.filter(|request| request.user == OPERATOR).collect();
        for request in &news {
            let mark = if request.query.is_empty() { "" } else { "?" };
            say!(
                "{at} operator  {} {}{mark}{}  {}",
                request.method,
                request.path,
                request.query,
                request.status
            );
        }
        self.shown = requests.len();
        if let Some(line) = &line {
            say!("{at} watch     {}", shorten(line));
        }
        Ok(line.is_some() || !news.is_empty())
    }

    /// Shows what happens, until dropped. The clock starts anew with whatever breaks the quiet.
    async fn go_on(&mut self) -> Result<(), Failure> {
        loop {
            self.started = Instant::now();
            if self.glance(IDLE_GLANCE).await? {
                self.until_quiet().await?;
                say!();
            }
        }
    }

    async fn end(mut self) {
        self.tasks.shutdown().await;
    }
}

/// An object as `kubectl apply` creates it: it notes what it was told, to find out later what it no longer is told.
fn applied(mut object: Value) -> Vec<u8> {
    let told = format!("{object}\n");
    object["metadata"]["annotations"] = json!({"kubectl.kubernetes.io/last-applied-configuration": told});
    object.to_string().into_bytes()
}

/// Hands on each line of a watch.
async fn read_lines(mut body: Body, sender: mpsc::Sender<String>) {
    let mut lines = Lines::default();
    while let Ok(Some(chunk)) = body.chunk().await {
        lines.push(&chunk);
        while let Ok(Some(line)) = lines.next_line() {
            if sender.send(String::from_utf8_lossy(line).into_owned()).await.is_err() {
                return;
            }
        }
    }
}

/// A line of the watch, less what the story is not about: `{"type":"ADDED","object":{… "name":"web" … }}`.
fn shorten(line: &str) -> String {
    let Ok(event) = serde_json::from_str::<Value>(line) else { return line.to_owned() };
    let (object, metadata) = (&event["object"], &event["object"]["metadata"]);
    let conditions = object["status"]["conditions"].as_array();
    let ready = conditions.into_iter().flatten().find(|condition| condition["type"] == "Ready");
    let ready = ready.map_or_else(String::new, |ready| {
        format!(r#" "type":"Ready","status":{},"reason":{} …"#, ready["status"], ready["reason"])
    });
    format!(
        r#"{{"type":{},"object":{{… "name":{},"resourceVersion":{} … "replicas":{} …{ready}}}}}"#,
        event["type"], metadata["name"], metadata["resourceVersion"], object["spec"]["replicas"],
    )
}
