//! `listwatch demo`: an API server and an operator in this process, and the requests and watch events between them.
//!
//! Nothing is staged. The operator is the one that `listwatch run` runs, connected over TLS with a service-account
//! directory. The events come from a watch; the requests come from the server's record of them.

mod printer;
mod steps;
mod stories;

use std::{
    env, fs,
    io::{self, IsTerminal, Write},
    pin::pin,
    sync::Arc,
    time::{Duration, Instant},
};

use clap::{ArgAction, Args};
use http::Method;
use serde_json::Value;
use tokio::{sync::mpsc, task::JoinSet, time::timeout};

use listwatch::{
    client::{Body, Client, Config, Error, Request},
    runtime::Runtime,
    shutdown::Stop,
    watch::decode,
};
use listwatch_apiserver::{ApiServer, Options as ServerOptions};
use listwatch_lens::{Live, Operator};
use listwatch_operators::{BuiltIn, Flags};
use listwatch_scorecard::EVENTS_MAX as WATCH_EVENTS_MAX;
use listwatch_study::explain::Sentence;
use tracing::Level;

use self::{
    printer::{Actor, Printer},
    steps::Steps,
    stories::{START, Scene, Story, UserRequest, applied},
};
use super::{
    apiserver::{
        self,
        credentials::{CredentialFiles, KUBECONFIG, quoted},
        say,
    },
    lens,
};
use crate::{
    env::parse_switch,
    failure::{Failure, until_signal},
    log::Log,
    terminal::width_of_stdout,
    trace::TraceFlags,
};

/// The operator's service-account directory, beside the kubeconfig.
const ACCOUNT: &str = "operator";
/// A line of the script of `--curl`.
const SERVER_ENDS: &str = "The server of listwatch demo ends with the demo.";
/// The kind, the watch and the operator: see [`Tour::start`].
const STEPS_BEFORE_SCENES: usize = 3;
/// Longest time for one scene. A scene takes at most two seconds; a machine that is very busy needs a hundred times as long.
const SCENE_LIMIT: Duration = Duration::from_secs(200);
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

/// Watch an operator work on this machine, without a cluster
#[derive(Debug, Args)]
#[command(
    after_help = "Starts an API server on 127.0.0.1 and the operator in one process, then creates, changes, breaks and deletes \
    objects. Each line shows who did what: kubectl, the operator, or the server, which sends watch events. \
    -v shows whole requests and events; -vv adds the operator's log. Then the server stays up for your own kubectl. \
    On a terminal, the demo explains each step before it, and waits for Enter; with --step=false, it does not. \
    --explain names what follows from each answer."
)]
pub(in super::super) struct DemoArgs {
    /// The operator to watch
    #[arg(value_name = "OPERATOR", default_value = "mywebserver")]
    operator: BuiltIn,
    /// End after the tour
    #[arg(long, value_name = "BOOL", env = "LISTWATCH_EXIT")]
    #[arg(num_args = 0..=1, require_equals = true, default_missing_value = "true", default_value = "false")]
    #[arg(action = ArgAction::Set, value_parser = parse_switch)]
    exit: bool,
    /// Wait for Enter before each step, and say what it does and what to look for. Default: true on a terminal, without --exit
    #[arg(long, value_name = "BOOL", env = "LISTWATCH_STEP")]
    #[arg(num_args = 0..=1, require_equals = true, default_missing_value = "true", value_parser = parse_switch)]
    step: Option<bool>,
    /// Port of the API server on 127.0.0.1; 0 for a free one
    #[arg(long, value_name = "PORT", env = "LISTWATCH_PORT", default_value_t = 0, value_parser = apiserver::parse_port)]
    port: u16,
    /// Serve a page that shows what the operator does, and why, and can stop it; its address is printed to standard error
    #[arg(long, value_name = "BOOL", env = "LISTWATCH_LENS")]
    #[arg(num_args = 0..=1, require_equals = true, default_missing_value = "true", default_value = "false")]
    #[arg(action = ArgAction::Set, value_parser = parse_switch)]
    lens: bool,
    #[command(flatten)]
    study: StudyFlags,
    #[command(flatten)]
    log: Log,
}

#[derive(Args, Debug)]
#[command(next_help_heading = "Study")]
struct StudyFlags {
    /// Explain what the operator makes of each answer, as listwatch watch --explain does, with the time since the step
    #[arg(long, value_name = "BOOL", env = "LISTWATCH_EXPLAIN")]
    #[arg(num_args = 0..=1, require_equals = true, default_missing_value = "true", default_value = "false")]
    #[arg(action = ArgAction::Set, value_parser = parse_switch)]
    explain: bool,
    #[command(flatten)]
    trace: TraceFlags,
}

pub(super) fn main(mut demo: DemoArgs) -> Result<(), Failure> {
    let is_colored = listwatch::log::is_colored(io::stdout().is_terminal());
    let print = Printer::new(demo.log.take_verbose(), is_colored, width_of_stdout());
    let story = Story::of(demo.operator);
    let is_read = || !demo.exit && io::stdin().is_terminal() && io::stdout().is_terminal();
    let steps = if demo.step.unwrap_or_else(is_read) {
        Steps::with_pauses(STEPS_BEFORE_SCENES + story.scenes.len())?
    } else {
        Steps::without_pauses()
    };
    demo.log.start(Level::WARN);
    until_signal(async |stop| {
        let events = if demo.lens { WATCH_EVENTS_MAX } else { 0 };
        let port = demo.port;
        let options = ServerOptions { port, events, pod_start: POD_START, ..ServerOptions::default() };
        let server = Arc::new(apiserver::start(options).await?);
        let operator = Operator { user: story.user(), restart: None, scorecard: None };
        let run = run(&server, story, demo.exit, demo.study, print, steps, stop);
        if !demo.lens {
            return run.await;
        }
        let show = async |live: Live, end: lens::End| live.run(Arc::clone(&server), operator, end).await;
        lens::with_page(show, run, |_| "the demo has ended".to_owned()).await?
    })
}

async fn run(
    server: &ApiServer,
    story: Story,
    exit: bool,
    study: StudyFlags,
    print: Printer,
    mut steps: Steps,
    stop: Stop,
) -> Result<(), Failure> {
    let listening = format!("An API server is listening at {}, in this process.", server.url());
    say!("{}", print.fit(&listening));
    let credentials = CredentialFiles::write(server, &env::temp_dir())?;
    let account = credentials.file(ACCOUNT);
    let token = server.new_token(&story.user());
    let written =
        server.write_service_account(&account).and_then(|()| fs::write(account.join("token"), token));
    written.map_err(|error| Failure::Runtime(format!("write {}: {error}", account.display())))?;

    let tour = async {
        let mut tour =
            Tour::start(&story, server, &credentials, &study, print, &mut steps, stop.clone()).await?;
        tour.scenes(&story, &mut steps).await?;
        Ok::<_, Failure>(tour)
    };
    let mut tour = tokio::select! {
        // First, because the operator also ends then.
        biased;
        // The terminal has written ^C after the prompt.
        () = stop.clone().requested() => {
            say!();
            return Ok(());
        }
        tour = tour => tour?,
    };
    if !exit {
        say!("\nThe API server and the operator stay up. In another terminal:\n");
        say!("    export KUBECONFIG={}", quoted(&credentials.file(KUBECONFIG)));
        for command in story.commands {
            say!("    {command}");
        }
        say!("\nOr with curl:\n\n{}", credentials.curl(&["/api/v1/namespaces", story.watch]));
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
    /// The user name of the operator.
    operator: String,
    /// How many of the server's request records have been shown.
    shown: usize,
    /// The operator and the reader of the watch. Each returns why it has ended.
    tasks: JoinSet<String>,
    started: Instant,
}

impl<'a> Tour<'a> {
    async fn start(
        story: &Story,
        server: &'a ApiServer,
        credentials: &CredentialFiles,
        study: &StudyFlags,
        print: Printer,
        steps: &mut Steps,
        stop: Stop,
    ) -> Result<Tour<'a>, Failure> {
        let Story { operator, kind, watch, watched, .. } = *story;
        let name = story.name();
        let user = Client::new(Config::new(&server.url(), server.ca_pem().as_bytes(), server.token())?)?;
        let mut tasks = JoinSet::new();

        steps.announce(&print.fit(&format!(
            "Next: the API server learns the kind {kind} from its CustomResourceDefinition.\n\
             Look for: nothing more. The kind exists then, but no object of this kind."
        )))?;
        steps.enter().await;
        say!("\n{}", print.command(&format!("listwatch crd {name} | kubectl apply -f -")));
        let path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
        for definition in operator.definitions() {
            send(&user, &(Method::POST, path, applied(definition))).await?;
        }
        say!("{}", print.fit(&format!("          the API server now serves {kind}s")));

        let text = print.fit(&format!(
            "Next: a client opens a watch of all {kind}s: a GET with watch=1.\n\
             Look for: the status 200 comes at once, although there is no object. The response stays open.\n\
             To see whole events during the next steps, open the same watch in another terminal:"
        ));
        steps.announce(&format!("{text}\n\n{}\n", credentials.curl(&[watch])))?;
        steps.enter().await;
        say!();
        for command in credentials.curl(&[watch]).lines() {
            say!("{}", print.command(command.trim_start()));
        }
        let (sender, events) = mpsc::channel(EVENTS_MAX);
        let (head, body) = user.stream(Request::get(watch)).await?;
        let text = "the response stays open, until the server ends it after minutes";
        say!("{}", print.fit(&format!("          HTTP {}; {text}", head.status)));
        say!("{}", print.fit("          each line is a watch event, shown as \"server\""));
        tasks.spawn(read_lines(body, sender));

        steps.announce(&print.fit(&format!(
            "Next: the operator starts. It lists each kind that it needs, then watches from the version of the list.\n\
             Look for: {watched} lists, then {watched} watches."
        )))?;
        steps.enter().await;
        say!("\n{}", print.command(&format!("listwatch run {name}")));
        let shown = server.requests().len();
        let (sender, sentences) = mpsc::unbounded_channel();
        let explain = study.explain.then_some(sender);
        let client = study.trace.client(credentials.config(ACCOUNT)?, explain, SERVER_ENDS)?;
        say!("{}", print.fit(&format!("          authenticates with the {}", client.user())));
        let runtime = operator.add_to(Runtime::new(client), &Flags::default());
        tasks.spawn(async move {
            match runtime.run_until(stop.requested()).await {
                Ok(()) => "the operator has ended".to_owned(),
                Err(error) => format!("the operator has ended: {error}"),
            }
        });
        let (operator, started) = (story.user(), Instant::now());
        let mut tour = Tour { server, user, events, sentences, print, operator, shown, tasks, started };
        tour.print.reasons = START;
        tour.until(async |_| {
            let requests = server.requests();
            let watches = requests
                .iter()
                .filter(|request| request.user == story.user() && request.query.contains("watch=1"));
            Ok(watches.count() >= watched)
        })
        .await?;
        Ok(tour)
    }

    async fn scenes(&mut self, story: &Story, steps: &mut Steps) -> Result<(), Failure> {
        for Scene { announced, command, requests, until, reasons } in &story.scenes {
            self.scene(steps, command, announced).await?;
            self.print.reasons = reasons;
            for request in requests {
                send(&self.user, request).await?;
            }
            self.until(async |user: &Client| {
                for (path, is_so) in until {
                    let object = match user.send(Request::get(*path)).await {
                        Ok(answer) => serde_json::from_slice(&answer.body)
                            .map_err(|error| Failure::Runtime(format!("get {path}: no JSON: {error}")))?,
                        Err(error) if error.is_not_found() => Value::Null,
                        Err(error) => return Err(error.into()),
                    };
                    if !is_so(&object) {
                        return Ok(false);
                    }
                }
                Ok(true)
            })
            .await?;
        }
        // What comes next is not of the tour.
        self.print.reasons = &[];
        say!("\n{}", self.print.fit(story.end));
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
        // A comment has a line of its own: an interactive zsh takes it for arguments.
        let (command, comment) = command.split_once("    # ").unwrap_or((command, ""));
        say!("\n{}", self.print.command(command));
        if !comment.is_empty() {
            say!("{}", self.print.fit(&format!("          {comment}")));
        }
        self.started = Instant::now();
        Ok(())
    }

    /// Shows requests and events until `is_done`, and then until there are no more.
    async fn until(
        &mut self,
        is_done: impl AsyncFn(&Client) -> Result<bool, Failure>,
    ) -> Result<(), Failure> {
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
            if let Some(failure) = early_end(&mut self.tasks) {
                return Err(failure);
            }
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
            let actor = if request.user == self.operator { Actor::Operator } else { Actor::Kubectl };
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
            say!("{}", self.print.sentence(after, &sentence));
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

/// Sends a request of the user.
async fn send(user: &Client, (method, path, body): &UserRequest) -> Result<(), Error> {
    let content_type = match body {
        _ if *method == Method::POST => "application/json",
        Value::Array(_) => "application/json-patch+json",
        _ => "application/merge-patch+json",
    };
    let body = if body.is_null() { Vec::new() } else { body.to_string().into_bytes() };
    user.send(Request::get(*path).sends(method.clone(), content_type, body)).await.map(drop)
}

/// Why one of these tasks has ended, if one has: each should run until the end of the demo.
fn early_end(tasks: &mut JoinSet<String>) -> Option<Failure> {
    let cause =
        tasks.try_join_next()?.unwrap_or_else(|error| format!("a part of the demo has failed: {error}"));
    Some(Failure::Runtime(cause))
}

/// Sends each line of a watch to the channel. Returns why there are no more.
async fn read_lines(mut body: Body, sender: mpsc::Sender<String>) -> String {
    let mut lines = decode::Lines::default();
    loop {
        match body.chunk().await {
            Ok(Some(chunk)) => lines.push(&chunk),
            Ok(None) => return "the server has ended the watch of the demo".to_owned(),
            Err(error) => return error.to_string(),
        }
        while let Ok(Some(line)) = lines.next_line() {
            if sender.send(String::from_utf8_lossy(line).into_owned()).await.is_err() {
                return "the watch of the demo is shown no more".to_owned();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_part_of_the_demo_that_ends_early_is_an_error_with_its_cause() {
        let mut tasks = JoinSet::new();
        tasks.spawn(std::future::pending());
        assert!(early_end(&mut tasks).is_none());
        tasks.spawn(async { "the operator has ended: no probes".to_owned() });
        tokio::task::yield_now().await;
        let message = |failure: Option<Failure>| failure.expect("a failure").message().to_owned();
        assert_eq!(message(early_end(&mut tasks)), "the operator has ended: no probes");
        tasks.spawn(async { panic!("oh") });
        tokio::task::yield_now().await;
        let failed = message(early_end(&mut tasks));
        assert!(failed.starts_with("a part of the demo has failed: ") && failed.contains("oh"), "{failed}");
    }
}
