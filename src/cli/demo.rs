//! `listwatch demo`: an API server and the operator in this process, and the requests and watch events between them.
//!
//! Nothing is staged. The operator is the one that `listwatch run` runs, connected over TLS with a service-account
//! directory. The events come from a watch; the requests come from the server's record of them.

mod printer;
mod steps;

use std::{
    env, fs,
    io::{self, IsTerminal, Write},
    pin::pin,
    time::{Duration, Instant},
};

use clap::{ArgAction, Args};
use http::Method;
use listwatch_apiserver::{ApiServer, Options as ServerOptions};
use serde_json::{Value, json};
use tokio::{sync::mpsc, task::JoinSet, time::timeout};

use tracing::Level;

use self::{
    printer::{Actor, Printer},
    steps::Steps,
};
use super::{
    Failure,
    apiserver::{
        self,
        credentials::{Credentials, KUBECONFIG, quoted},
        say,
    },
    log::Log,
    parse_switch,
    screen::width_of_stdout,
    trace::TraceFlags,
};
use crate::{
    client::{Body, Client, Config, DeleteOptions, Error, Part, Patch, Request},
    cluster::Cluster,
    operators::mywebserver::{self, MyWebserver},
    resource::{
        Key, Resource,
        kinds::{Deployment, Service},
    },
    shutdown::Stop,
    study::explain::Sentence,
    watch::{Lists, decode},
};

/// The samples that the manifests install too.
const SAMPLES: [(&str, &str); 2] = [
    (
        "manifests/mywebserver/samples/mywebserver-v1.yaml",
        include_str!("../../manifests/mywebserver/samples/mywebserver-v1.yaml"),
    ),
    (
        "manifests/mywebserver/samples/mywebserver-v2.yaml",
        include_str!("../../manifests/mywebserver/samples/mywebserver-v2.yaml"),
    ),
];
/// The operator's service-account directory, beside the kubeconfig.
const ACCOUNT: &str = "operator";
/// The user name of the operator's token.
const OPERATOR: &str = "system:serviceaccount:mywebserver-system:mywebserver-operator";
/// A line of the script of `--curl`.
const SERVER_ENDS: &str = "# The server of listwatch demo ends with the demo.\n";
/// Longest time for one scene. A scene takes less than a second; a busy machine needs more.
const SCENE_LIMIT: Duration = Duration::from_secs(30);
/// Watch events that may wait to be shown. The whole tour has fewer.
const EVENTS_MAX: usize = 1024;
/// How often the demo checks for new requests during a scene.
const GLANCE: Duration = Duration::from_millis(2);
/// The same while nothing happens.
const IDLE_GLANCE: Duration = Duration::from_millis(100);
/// A scene is over when nothing has happened for this long: longer than a Pod takes to start.
const QUIET: Duration = Duration::from_millis(400);
/// How long the simulated kubelet takes to start a Pod, so that the rollout can be seen.
const POD_START: Duration = Duration::from_millis(300);

/// Watch the operator work on this machine, without a cluster
#[derive(Debug, Args)]
#[command(
    after_help = "Starts an API server on 127.0.0.1 and the operator in one process, then creates, scales, breaks and deletes\n\
    MyWebservers. Each line shows who did what: kubectl, the operator, or the server, which sends watch events.\n\
    -v shows whole requests and events; -vv adds the operator's log. Then the server stays up for your own kubectl.\n\
    --step explains each step before it, and waits for Enter; --explain names what follows from each answer."
)]
pub(super) struct Demo {
    /// End after the tour
    #[arg(long, value_name = "BOOL", env = "LISTWATCH_EXIT")]
    #[arg(num_args = 0..=1, require_equals = true, default_missing_value = "true", default_value = "false")]
    #[arg(action = ArgAction::Set, value_parser = parse_switch)]
    exit: bool,
    /// Wait for Enter before each step, and say what it does and what to look for
    #[arg(long, value_name = "BOOL", env = "LISTWATCH_STEP")]
    #[arg(num_args = 0..=1, require_equals = true, default_missing_value = "true", default_value = "false")]
    #[arg(action = ArgAction::Set, value_parser = parse_switch)]
    step: bool,
    /// Port of the API server on 127.0.0.1; 0 for a free one
    #[arg(long, value_name = "PORT", env = "LISTWATCH_PORT", default_value_t = 0, value_parser = apiserver::parse_port)]
    port: u16,
    #[command(flatten)]
    study: StudyFlags,
    #[command(flatten)]
    log: Log,
}

#[derive(Args, Debug)]
#[command(next_help_heading = "Study")]
struct StudyFlags {
    /// Explain what the operator makes of each answer, as listwatch watch --explain does
    #[arg(long, value_name = "BOOL", env = "LISTWATCH_EXPLAIN")]
    #[arg(num_args = 0..=1, require_equals = true, default_missing_value = "true", default_value = "false")]
    #[arg(action = ArgAction::Set, value_parser = parse_switch)]
    explain: bool,
    #[command(flatten)]
    trace: TraceFlags,
}

pub(super) fn main(mut demo: Demo) -> Result<(), Failure> {
    let is_colored = crate::log::is_colored(io::stdout().is_terminal(), env::var_os("NO_COLOR"));
    let print = Printer::new(demo.log.take_verbose(), is_colored, width_of_stdout());
    let steps = if demo.step { Steps::with_pauses()? } else { Steps::without_pauses() };
    demo.log.start(Level::WARN);
    super::until_signal(|stop| run(demo.exit, demo.port, demo.study, print, steps, stop))
}

async fn run(
    exit: bool,
    port: u16,
    study: StudyFlags,
    print: Printer,
    mut steps: Steps,
    stop: Stop,
) -> Result<(), Failure> {
    let options = ServerOptions { port, pod_start: POD_START, ..ServerOptions::default() };
    let server = apiserver::start(options).await?;
    say!("An API server is listening at {}, in this process.", server.url());
    let credentials = Credentials::write(&server)?;
    let account = credentials.file(ACCOUNT);
    let written = server
        .write_service_account(&account)
        .and_then(|()| fs::write(account.join("token"), server.new_token(OPERATOR)));
    written.map_err(|error| Failure::Runtime(format!("write {}: {error}", account.display())))?;

    let tour = async {
        let mut tour = Tour::start(&server, &credentials, &study, print, &mut steps, stop.clone()).await?;
        tour.scenes(&mut steps).await?;
        Ok::<_, Failure>(tour)
    };
    let mut tour = tokio::select! {
        tour = tour => tour?,
        // The terminal has written ^C after the prompt.
        () = stop.clone().requested() => {
            say!();
            return Ok(());
        }
    };
    if !exit {
        say!("\nThe API server and the operator stay up. In another terminal:\n");
        say!("    export KUBECONFIG={}", quoted(&credentials.file(KUBECONFIG)));
        say!("    kubectl get mws,deploy,svc,pods");
        say!("    kubectl scale mws/hello --replicas=3");
        say!("\nOr with curl:\n\n{}", credentials.curl(&watch_path()));
        let end =
            "Changes and their consequences are shown here. Ctrl-C stops both; then `unset KUBECONFIG`.";
        say!("\n{}\n", tour.print.fit(end));
        tokio::select! {
            () = stop.requested() => {}
            shown = tour.go_on() => shown?,
        }
    }
    tour.end().await;
    server.stop().await;
    Ok(())
}

/// The tour: a client that sends the requests of kubectl, a watch whose events are shown, and the operator.
struct Tour<'a> {
    server: &'a ApiServer,
    user: Client,
    events: mpsc::Receiver<String>,
    sentences: mpsc::UnboundedReceiver<Sentence>,
    print: Printer,
    /// How many of the server's request records have been shown.
    shown: usize,
    tasks: JoinSet<()>,
    started: Instant,
}

impl<'a> Tour<'a> {
    async fn start(
        server: &'a ApiServer,
        credentials: &Credentials,
        study: &StudyFlags,
        print: Printer,
        steps: &mut Steps,
        stop: Stop,
    ) -> Result<Tour<'a>, Failure> {
        let user = Client::new(Config::new(&server.url(), server.ca_pem().as_bytes(), server.token())?)?;
        let mut tasks = JoinSet::new();

        let announce = |steps: &Steps, text: &str| steps.announce(&print.fit(text));
        announce(
            steps,
            "Next: the API server learns the kind MyWebserver from its CustomResourceDefinition.\n\
             Look for: nothing more. The kind exists then, but no object of this kind.",
        )?;
        steps.enter().await;
        say!("\n{}", print.command("listwatch crd | kubectl apply -f -"));
        let path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
        let body = applied(mywebserver::types::definition());
        user.send(Request::get(path).sends(Method::POST, "application/json", body)).await?;
        say!("          the API server now serves MyWebservers");

        let path = watch_path();
        let text = print.fit(
            "Next: a client opens a watch of all MyWebservers: a GET with watch=1.\n\
             Look for: the status 200 comes at once, although there is no object. The response does not end.\n\
             To see whole events during the next steps, open the same watch in another terminal:",
        );
        steps.announce(&format!("{text}\n\n{}\n", credentials.curl(&path)))?;
        steps.enter().await;
        say!("\n{}", print.command(&format!("curl -N \"$API{path}\"")));
        let (sender, events) = mpsc::channel(EVENTS_MAX);
        let (head, body) = user.stream(Request::get(path)).await?;
        let text = "the response never ends: each line is a watch event, shown as \"server\"";
        say!("{}", print.fit(&format!("          HTTP {}; {text}", head.status)));
        tasks.spawn(read_lines(body, sender));

        announce(
            steps,
            "Next: the operator starts. It lists each kind that it needs, then watches from the version of the list.\n\
             Look for: three lists, then three watches.",
        )?;
        steps.enter().await;
        say!("\n{}", print.command("listwatch run mywebserver"));
        let shown = server.requests().len();
        let (sender, sentences) = mpsc::unbounded_channel();
        let explain = study.explain.then_some(sender);
        let client = study.trace.client(credentials.config(ACCOUNT)?, explain, SERVER_ENDS)?;
        say!("{}", print.fit(&format!("          authenticates with the {}", client.user())));
        let cluster = Cluster::new(client.clone(), Lists::Paged);
        let (recorder, write_events) = mywebserver::events(client, "demo".to_owned());
        let controller = mywebserver::controller(&cluster, &[], recorder);
        tasks.spawn(async move {
            tokio::join!(controller.run(stop.requested()), write_events);
        });
        let mut tour = Tour { server, user, events, sentences, print, shown, tasks, started: Instant::now() };
        tour.until(async |_| Ok(cluster.health().iter().all(|watch| watch.is_synced()))).await?;
        Ok(tour)
    }

    async fn scenes(&mut self, steps: &mut Steps) -> Result<(), Failure> {
        for ((file, sample), announced) in SAMPLES.into_iter().zip([
            "Next: a user creates the MyWebserver hello in the API version v1, which has no field for replicas.\n\
             Look for: ADDED, in the watch of v2, with the default of replicas. The operator creates two children.\n\
             Each patch of the status is an event too. The last one is Ready=True.",
            "Next: a user creates the MyWebserver web in the API version v2, with two replicas.\n\
             Look for: the same requests as before. Ready=True comes when both Pods are ready.",
        ]) {
            let object: Value =
                yaml_serde::from_str(sample).map_err(|error| Error::new("read", "sample", error))?;
            let text = |pointer: &str| {
                object.pointer(pointer).and_then(Value::as_str).unwrap_or_default().to_owned()
            };
            let (version, name) = (text("/apiVersion"), text("/metadata/name"));
            self.scene(steps, &format!("kubectl apply -f {file}"), announced).await?;
            let path = format!("/apis/{version}/namespaces/default/mywebservers");
            let body = applied(object);
            self.user.send(Request::get(path).sends(Method::POST, "application/json", body)).await?;
            self.until_ready(&Key::namespaced("default", &name)).await?;
        }
        let web = Key::namespaced("default", "web");
        let child = Key::namespaced("default", "mws-web");

        let announced = "Next: the user changes one field of web, replicas.\n\
             Look for: one patch of the Deployment. The Service stays as it is.";
        self.scene(steps, "kubectl scale mws/web --replicas=3", announced).await?;
        self.user.set_scale::<MyWebserver>(&web, 3).await?;
        self.until_ready(&web).await?;

        let announced = "Next: the user deletes the Deployment of web.\n\
             Look for: the operator reacts although web has not changed, because it watches Deployments too.\n\
             It makes sure with a get (404), then it creates the Deployment again.";
        let command = "kubectl delete deployment mws-web    # the operator recreates it";
        self.scene(steps, command, announced).await?;
        let before: Deployment = self.user.get(&child).await?;
        self.user.delete::<Deployment>(&child, &DeleteOptions::default()).await?;
        self.until(async |user: &Client| match user.get::<Deployment>(&child).await {
            Ok(live) => Ok(live.metadata.uid != before.metadata.uid),
            Err(error) if error.is_not_found() => Ok(false),
            Err(error) => Err(error),
        })
        .await?;
        self.until_ready(&web).await?;

        let announced = "Next: the user adds a port to the Service of web.\n\
             Look for: one patch that removes the port. No event of web follows, because its status stays the same.";
        let port = json!([{"op": "add", "path": "/spec/ports/-", "value": {"name": "extra", "port": 9999}}]);
        let command = format!("kubectl patch service mws-web --type=json -p \\\n    '{port}'");
        self.scene(steps, &command, announced).await?;
        let operations = port.as_array().cloned().unwrap_or_default();
        self.user.patch::<Service>(&child, Part::Object, &Patch::Json(operations)).await?;
        self.until(async |user: &Client| Ok(user.get::<Service>(&child).await?.spec.ports.len() == 1))
            .await?;

        let announced = "Next: the user deletes web.\n\
             Look for: DELETED, with the last state of web. The garbage collector of the cluster deletes the children.";
        self.scene(steps, "kubectl delete mws/web", announced).await?;
        self.user.delete::<MyWebserver>(&web, &DeleteOptions::default()).await?;
        self.until(async |user: &Client| {
            let deployment = user.get::<Deployment>(&child).await.err();
            let service = user.get::<Service>(&child).await.err();
            Ok([deployment, service].iter().flatten().filter(|error| error.is_not_found()).count() == 2)
        })
        .await?;
        let end = "The Deployment and Service of web are deleted too; those of hello still exist.";
        say!("\n{}", self.print.fit(end));
        Ok(())
    }

    /// Announces a step, and starts it. Until then, shows requests and events.
    async fn scene(&mut self, steps: &mut Steps, command: &str, announced: &str) -> Result<(), Failure> {
        steps.announce(&self.print.fit(announced))?;
        loop {
            tokio::select! {
                biased;
                () = steps.enter() => break,
                shown = self.glance(IDLE_GLANCE) => { shown?; }
            }
        }
        say!("\n{}", self.print.command(command));
        self.started = Instant::now();
        Ok(())
    }

    /// Shows requests and events until the operator reports the newest generation of a MyWebserver as Ready.
    async fn until_ready(&mut self, key: &Key) -> Result<(), Failure> {
        self.until(async |user: &Client| {
            let web: MyWebserver = user.get(key).await?;
            Ok(web.status.is_ready() && web.status.observed_generation == web.metadata.generation)
        })
        .await
    }

    /// Shows requests and events until `is_done`, and then until there are no more.
    async fn until(&mut self, is_done: impl AsyncFn(&Client) -> Result<bool, Error>) -> Result<(), Failure> {
        let deadline = Instant::now() + SCENE_LIMIT;
        let user = self.user.clone();
        loop {
            let mut check = pin!(is_done(&user));
            let is_done = loop {
                tokio::select! {
                    answer = &mut check => break answer?,
                    shown = self.glance(GLANCE) => { shown?; }
                }
            };
            if is_done {
                break;
            }
            self.glance(GLANCE).await?;
            if Instant::now() > deadline {
                let limit = SCENE_LIMIT.as_secs();
                return Err(Failure::Runtime(format!(
                    "this step of the demo is not finished after {limit} s"
                )));
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

    /// Shows the requests that were answered since the last call, and then a watch event, if one comes within `longest`.
    /// Returns whether there was anything.
    async fn glance(&mut self, longest: Duration) -> Result<bool, Failure> {
        let event = timeout(longest, self.events.recv()).await.ok().flatten();
        let after = self.started.elapsed();
        let requests = self.server.requests();
        let mut has_shown = false;
        for request in &requests[self.shown.min(requests.len())..] {
            let actor = if request.user == OPERATOR { Actor::Operator } else { Actor::Kubectl };
            if self.print.shows(actor, request) {
                say!("{}", self.print.request(after, actor, request));
                has_shown = true;
            }
        }
        self.shown = requests.len();
        if let Some(event) = event {
            say!("{}", self.print.event(after, &event));
            has_shown = true;
        }
        while let Ok(sentence) = self.sentences.try_recv() {
            say!("{}", self.print.sentence(&sentence));
            has_shown = true;
        }
        Ok(has_shown)
    }

    /// Shows requests and events, until dropped. The clock starts at the first line after a pause.
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

/// The path of the watch whose events are shown.
fn watch_path() -> String {
    format!("{}?watch=1", MyWebserver::collection_path(None))
}

/// An object as `kubectl apply` creates it: with the annotation by which a later `apply` finds removed fields.
fn applied(mut object: Value) -> Vec<u8> {
    let manifest = format!("{object}\n");
    object["metadata"]["annotations"] = json!({"kubectl.kubernetes.io/last-applied-configuration": manifest});
    object.to_string().into_bytes()
}

/// Sends each line of a watch to the channel.
async fn read_lines(mut body: Body, sender: mpsc::Sender<String>) {
    let mut lines = decode::Lines::default();
    while let Ok(Some(chunk)) = body.chunk().await {
        lines.push(&chunk);
        while let Ok(Some(line)) = lines.next_line() {
            if sender.send(String::from_utf8_lossy(line).into_owned()).await.is_err() {
                return;
            }
        }
    }
}
