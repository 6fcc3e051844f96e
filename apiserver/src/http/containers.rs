//! The subresources of a Pod that a kubelet answers: its log, and the commands in its containers. No container runs here, so a log is
//! text from an annotation, and a command prints what an [`ExecRule`](crate::ExecRule) says.
//!
//! ```text
//! GET /api/v1/namespaces/default/pods/web/log?container=nginx&tailLines=1
//! 200 ready
//!
//! GET /api/v1/namespaces/default/pods/cache/exec?command=redis-cli&command=ping&stdout=true     Upgrade: websocket
//! 101 binary  0x01 PONG                                  channel 1: standard output
//!     binary  0x03 {"metadata":{},"status":"Success"}    channel 3: the end of the command
//!     close   1000
//! ```
//!
//! SPDY, the older protocol of `pods/exec`, is refused.

use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

use bytes::Bytes;
use futures_util::{StreamExt, stream};
use http::Method;
use listwatch_formats::time::parse_time;
use serde_json::{Value, json};
use tokio::sync::watch;

use crate::{
    faults::Cut,
    http::{
        response::{Answer, Content, Messages, Stream},
        websocket,
    },
    kinds::{
        Kind,
        field_checks::{each, text},
    },
    request::{Query, Request},
    state::Server,
    status::{Cause, StatusError},
    storage::Place,
};

/// The annotation of a Pod with the log of its containers; `listwatch/logs.NAME` is for one container.
const LOGS: &str = "listwatch/logs";

/// The log of a container without the annotation.
const NO_LOG: &str = "Nothing runs in this container: the embedded API server of listwatch simulates it. To give it a log, set the \
                      annotation listwatch/logs of the Pod.";

/// Answers a request for a subresource of a Pod that a kubelet answers. `None` for any other one.
pub(crate) fn answer(
    server: &Arc<Server>,
    request: &Request,
    kind: &Kind,
    place: &Place,
    subresource: &str,
) -> Option<Result<Answer, StatusError>> {
    let is_get = request.method == Method::GET;
    match subresource {
        "log" | "exec" if !is_get && (subresource == "log" || request.method != Method::POST) => {
            Some(Err(StatusError::method_not_allowed()))
        }
        "log" => Some(log(server, request, kind, place)),
        "exec" => Some(exec(server, request, kind, place)),
        "attach" | "portforward" => Some(Err(nothing_runs(&format!("pods/{subresource} is not served")))),
        _ => None,
    }
}

/// The error of a request that needs a running container. kubectl shows it.
fn nothing_runs(what: &str) -> StatusError {
    let message = format!(
        "{what}: nothing runs in the Pods of the embedded API server of listwatch, they are simulated"
    );
    StatusError::new(405, "MethodNotAllowed", message, Some(json!({})))
}

/// The name of the container of a request: by default, the only one.
fn container(pod: &Value, wanted: &str) -> Result<String, StatusError> {
    let (spec, name) = (&pod["spec"], text(&pod["metadata"]["name"]));
    let init = each(&spec["initContainers"]);
    let all = init.chain(each(&spec["containers"])).chain(each(&spec["ephemeralContainers"]));
    let names: Vec<&str> = all.map(|container| text(&container["name"])).collect();
    let mut containers = each(&spec["containers"]);
    match (wanted, containers.next(), containers.next()) {
        ("", Some(only), None) => Ok(text(&only["name"]).to_owned()),
        ("", ..) => Err(StatusError::bad_request(format!(
            "a container name must be specified for pod {name}, choose one of: [{}]",
            names.join(" ")
        ))),
        _ if names.contains(&wanted) => Ok(wanted.to_owned()),
        _ => Err(StatusError::bad_request(format!("container {wanted} is not valid for pod {name}"))),
    }
}

/// Which lines of a log a request asks for.
struct LogOptions {
    tail: Option<usize>,
    bytes: Option<usize>,
    since: Option<SystemTime>,
    has_times: bool,
}

impl LogOptions {
    fn parse(query: &Query, now: SystemTime, name: &str) -> Result<LogOptions, StatusError> {
        let [tail, bytes, since] = ["tailLines", "limitBytes", "sinceSeconds"].map(|name| query.number(name));
        let (tail, bytes, seconds) = (tail?, bytes?, since?);
        let time = query.text("sinceTime");
        let mut causes = Vec::new();
        let mut check = |field: &str, value: Option<i64>, min: i64, why: &str| {
            if let Some(value) = value.filter(|value| *value < min) {
                causes.push(Cause::invalid(field, &value.into(), why));
            }
        };
        check("tailLines", tail, 0, "must be greater than or equal to 0");
        check("limitBytes", bytes, 1, "must be greater than 0");
        if seconds.is_none() || time.is_empty() {
            check("sinceSeconds", seconds, 1, "must be greater than 0");
        } else {
            let why = "at most one of `sinceTime` or `sinceSeconds` may be specified";
            // kube-apiserver shows its empty path so.
            causes.push(Cause::forbidden("[]", why));
        }
        if !causes.is_empty() {
            return Err(StatusError::invalid_as("", "PodLogOptions", name, causes));
        }
        let number = |number: Option<i64>| number.and_then(|number| usize::try_from(number).ok());
        let ago = seconds.and_then(|seconds| u64::try_from(seconds).ok());
        let ago = ago.and_then(|seconds| now.checked_sub(Duration::from_secs(seconds)));
        Ok(LogOptions {
            tail: number(tail),
            bytes: number(bytes),
            since: ago.or_else(|| parse_time(time).ok()),
            has_times: query.flag("timestamps") == Some(true),
        })
    }

    /// The lines of a log. All of them have the time of the start.
    fn select(&self, lines: &[String], started: &str) -> Bytes {
        let is_old = self.since.zip(parse_time(started).ok()).is_some_and(|(since, started)| started < since);
        let first = lines.len() - self.tail.unwrap_or(lines.len()).min(lines.len());
        let mut out = String::new();
        for line in lines[first..].iter().filter(|_| !is_old) {
            if self.has_times {
                out.extend([started, " "]);
            }
            out.extend([line, "\n"]);
        }
        let mut out = Bytes::from(out);
        out.truncate(self.bytes.unwrap_or(out.len()));
        out
    }
}

/// All lines of the log of a container. `None` without an annotation.
fn lines(pod: &Value, container: &str) -> Option<Vec<String>> {
    let annotations = &pod["metadata"]["annotations"];
    let own = annotations[format!("{LOGS}.{container}")].as_str();
    Some(own.or(annotations[LOGS].as_str())?.lines().map(str::to_owned).collect())
}

fn status<'a>(pod: &'a Value, container: &str) -> Option<&'a Value> {
    let mut all =
        each(&pod["status"]["initContainerStatuses"]).chain(each(&pod["status"]["containerStatuses"]));
    all.find(|status| status["name"] == container)
}

/// When the container of a log started: the one that runs or has ended, or the previous one. The errors are the kubelet's.
fn started(pod: &Value, container: &str, previous: bool) -> Result<String, StatusError> {
    let name = text(&pod["metadata"]["name"]);
    let refused =
        |why: &str| StatusError::bad_request(format!("container {container:?} in pod {name:?} {why}"));
    let status = status(pod, container).ok_or_else(|| refused("is not available"))?;
    let (state, last) = (&status["state"], &status["lastState"]["terminated"]);
    let reason = text(&state["waiting"]["reason"]);
    let start = match previous {
        true if last.is_null() => {
            return Err(StatusError::bad_request(format!(
                "previous terminated container {container:?} in pod {name:?} not found"
            )));
        }
        true => last,
        false if state["running"].is_object() => &state["running"],
        false if state["terminated"].is_object() => &state["terminated"],
        false if last.is_object() => last,
        false if reason == "ErrImagePull" => {
            return Err(refused("is waiting to start: image can't be pulled"));
        }
        false if reason == "ImagePullBackOff" => {
            return Err(refused("is waiting to start: trying and failing to pull image"));
        }
        false => return Err(refused(&format!("is waiting to start: {reason}"))),
    };
    Ok(text(&start["startedAt"]).to_owned())
}

/// The log of a container. With `follow`, it ends with the container, and has the lines that are added to the annotation.
fn log(server: &Arc<Server>, request: &Request, kind: &Kind, place: &Place) -> Result<Answer, StatusError> {
    let storage = server.storage();
    let query = &request.query;
    let options = LogOptions::parse(query, storage.clock.now(), place.name())?;
    let pod = storage.get(place).ok_or_else(|| StatusError::not_found(kind, place.name()))?;
    let container = container(pod, query.text("container"))?;
    if pod["spec"]["nodeName"].is_null() {
        return Ok(Answer::new(204, Content::Text(String::new())));
    }
    let started = started(pod, &container, query.flag("previous") == Some(true))?;
    let annotated = lines(pod, &container);
    let printed = annotated.as_ref().map_or(0, Vec::len);
    let first = options.select(&annotated.unwrap_or_else(|| vec![NO_LOG.to_owned()]), &started);
    if query.flag("follow") != Some(true) {
        return Ok(Answer::new(200, Content::Log(Stream::of(once(first), Messages::Lines))));
    }
    let follow = Follow {
        written: storage.written(),
        server: Arc::clone(server),
        place: place.clone(),
        uid: pod["metadata"]["uid"].clone(),
        container,
        printed,
        options: LogOptions {
            tail: None,
            bytes: options.bytes.map(|bytes| bytes - first.len()),
            // New lines have the time of the start as well.
            since: None,
            ..options
        },
        started,
    };
    let more = stream::unfold(follow, async |mut follow| Some((Ok(follow.next().await?), follow)));
    Ok(Answer::new(200, Content::Log(Stream::of(once(first).chain(more), Messages::Lines))))
}

fn once(bytes: Bytes) -> impl futures_util::Stream<Item = Result<Bytes, Cut>> + Send + 'static {
    stream::iter((!bytes.is_empty()).then_some(Ok(bytes)))
}

/// A log that goes on while its container runs.
struct Follow {
    server: Arc<Server>,
    place: Place,
    uid: Value,
    container: String,
    /// How many lines of the annotation were printed.
    printed: usize,
    options: LogOptions,
    started: String,
    written: watch::Receiver<u64>,
}

impl Follow {
    /// The next lines. `None` after the end of the container, and after the last byte of `limitBytes`.
    async fn next(&mut self) -> Option<Bytes> {
        loop {
            if self.options.bytes == Some(0) {
                return None;
            }
            {
                let storage = self.server.storage();
                let pod = storage.get(&self.place).filter(|pod| pod["metadata"]["uid"] == self.uid)?;
                let all = lines(pod, &self.container).unwrap_or_default();
                // A shorter text is a new one.
                let new = all.get(self.printed..).unwrap_or(&all);
                self.printed = all.len();
                if !new.is_empty() {
                    let new = self.options.select(new, &self.started);
                    self.options.bytes = self.options.bytes.map(|bytes| bytes - new.len());
                    return Some(new);
                }
                status(pod, &self.container).filter(|status| status["state"]["running"].is_object())?;
            }
            self.written.changed().await.ok()?;
        }
    }
}

/// Runs a command: prints what the first rule for it says.
fn exec(server: &Server, request: &Request, kind: &Kind, place: &Place) -> Result<Answer, StatusError> {
    let storage = server.storage();
    // Since 1.35, a GET needs this permission as well.
    if let Some(error) = server.forbids_create(&storage, request) {
        return Err(error);
    }
    let name = place.name();
    let pod = storage.get(place).ok_or_else(|| StatusError::not_found(kind, name))?;
    container(pod, request.query.text("container"))?;
    if pod["spec"]["nodeName"].is_null() {
        return Err(StatusError::bad_request(format!("pod {name} does not have a host assigned")));
    }
    let command = request.query.all("command").join(" ");
    let rule = server.exec.iter().find(|rule| rule.is_for(&command));
    let rule =
        rule.ok_or_else(|| nothing_runs(&format!("no rule of --exec is for the command {command:?}")))?;
    if !request.wants_websocket() {
        return Err(StatusError::bad_request(
            "the embedded API server of listwatch runs commands by WebSocket only, not by SPDY",
        ));
    }
    let mut messages = Vec::new();
    if !rule.output.is_empty() && request.query.flag("stdout") == Some(true) {
        messages.push([&[STDOUT], rule.output.as_bytes(), b"\n"].concat());
    }
    messages.push([&[END], ended(rule.exit_code).to_string().as_bytes()].concat());
    let messages = stream::iter(messages.into_iter().map(|message| Ok(message.into())));
    let response = websocket::handshake(request, Stream::of(messages, Messages::Channels));
    Ok(Answer::new(response.status().as_u16(), Content::WebSocket(Box::new(response))))
}

/// Channels of `pods/exec`.
const STDOUT: u8 = 1;
const END: u8 = 3;

/// The Status of a command that has ended: k8s.io/cri-streaming/pkg/streaming/remotecommand.
fn ended(code: u8) -> Value {
    match code {
        0 => json!({"metadata": {}, "status": "Success"}),
        code => json!({"metadata": {}, "status": "Failure", "reason": "NonZeroExitCode",
            "message": format!("command terminated with non-zero exit code: exit status {code}"),
            "details": {"causes": [{"reason": "ExitCode", "message": code.to_string()}]}}),
    }
}
