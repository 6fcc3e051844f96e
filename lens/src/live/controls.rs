//! Stop and step: what the page can do with the embedded server and the operator. It acts as the administrator.
//!
//! ```text
//! POST control/fault    {"fault":"hold,user=operator-*"}   as docs/apiserver.md has them: held writes wait
//! POST control/end      {"fault":"hold,user=operator-*"}   ends this fault, and lets go on what it holds; without one, all
//! POST control/release  {"id":12}                          lets a held write go on; without an id, all
//! POST control/refuse   {"id":12,"status":409}             refuses it
//! POST control/read     {"object":"pages.example.com/default/a"}
//! POST control/write    {"object":"pages.example.com/default/a","text":"{…}"}   the API server's answer follows
//! POST control/restart  {}                                 starts the operator again
//! POST control/check    {"check":"quiet"}                  the report of a check of the scorecard follows
//! ```

use std::{convert::Infallible, future::pending, sync::Arc};

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::{
    Method, Request,
    header::{AUTHORIZATION, CONTENT_TYPE, USER_AGENT},
};
use listwatch_apiserver::{ApiServer, HeldRequest, Planned, fault_help};
use listwatch_scorecard::{self as scorecard, CannotJudge, Scorecard};
use serde_json::{Value, json};
use tokio::sync::{mpsc, oneshot};

/// So much of the body of a held write is shown.
const BODY_BYTES_MAX: usize = 16 * 1024;

/// Starts an operator again.
pub type Restart = Arc<dyn Fn() + Send + Sync>;

/// Whose writes the page stops.
pub struct Operator {
    /// The user, or the beginning of its name: `operator-*`. Empty: all.
    pub user: String,
    /// `None`: the page cannot start it again.
    pub restart: Option<Restart>,
    /// What the scorecard needs for a check. `None`: the page cannot run one.
    pub scorecard: Option<Scorecard>,
}

pub(super) struct Controls {
    pub(super) server: Arc<ApiServer>,
    pub(super) operator: Operator,
    /// To [`run_checks`].
    pub(super) checks: mpsc::Sender<Check>,
}

/// A check of the scorecard to run.
pub(super) struct Check {
    name: String,
    report: oneshot::Sender<Result<String, String>>,
}

/// Runs checks one by one, each with servers and operators of its own. Runs until dropped.
pub(super) async fn run_checks(
    scorecard: Option<Scorecard>,
    mut checks: mpsc::Receiver<Check>,
) -> Infallible {
    while let (Some(settings), Some(Check { name, report })) = (&scorecard, checks.recv().await) {
        let settings = Scorecard { only: vec![name], ..settings.clone() };
        let done = scorecard::run(&settings, |_| {}).await;
        let lines = done.map(|done| done.checks.iter().map(|check| format!("{check}\n")).collect());
        // A page that is closed does not read it.
        let _ = report.send(lines.map_err(|CannotJudge(why)| why));
    }
    pending().await
}

/// Why something is not done.
pub(super) struct Refused(pub(super) String);

impl Controls {
    /// Which controls there are.
    pub(super) fn offer(&self) -> Value {
        let Operator { user, restart, scorecard } = &self.operator;
        let checks = scorecard.as_ref().map(scorecard::selected).unwrap_or_default();
        let checks: Vec<Value> =
            checks.iter().map(|name| json!({"name": name, "summary": scorecard::summary(name)})).collect();
        json!({"user": user, "restart": restart.is_some(), "help": fault_help(), "checks": checks})
    }

    /// The faults that are still to come, and the held writes.
    pub(super) fn state(&self) -> Value {
        let planned = self.server.planned_faults();
        let faults: Vec<&str> = planned.lines().filter(|_| self.server.is_fault_planned()).collect();
        let held: Vec<Value> = self.server.held_requests().iter().map(held).collect();
        json!({"faults": faults, "held": held})
    }

    pub(super) async fn act(&self, what: &str, order: &Value) -> Result<Value, Refused> {
        let text = |field: &str| order[field].as_str().unwrap_or_default();
        let id = order["id"].as_u64();
        let is_done = match (what, id) {
            ("fault", _) => {
                self.server.fault(text("fault").parse::<Planned>().map_err(Refused)?);
                true
            }
            ("end", _) => match order["fault"].as_str() {
                Some(fault) if !self.server.end_fault(fault) => {
                    return Err(Refused(format!("{fault} is not among the faults to come")));
                }
                Some(_) => true,
                None => {
                    self.server.end_faults();
                    true
                }
            },
            ("release", None) => {
                self.server.release_held();
                true
            }
            ("release", Some(id)) => self.server.release(id),
            ("refuse", Some(id)) => self.server.refuse(id, status(order)?),
            ("check", _) => return self.check(text("check")).await,
            ("read", _) => return self.send(Method::GET, text("object"), "").await,
            ("write", _) => return self.send(Method::PUT, text("object"), text("text")).await,
            ("restart", _) => {
                let restart = self.operator.restart.as_ref();
                restart.ok_or_else(|| Refused("this operator is not started from here".to_owned()))?();
                true
            }
            _ => return Err(Refused(format!("{what:?} is not known"))),
        };
        if is_done { Ok(json!({})) } else { Err(Refused("this request is no longer held".to_owned())) }
    }

    /// Runs a check of the scorecard. Returns its report.
    async fn check(&self, name: &str) -> Result<Value, Refused> {
        let (report, done) = oneshot::channel();
        let check = Check { name: name.to_owned(), report };
        self.checks.try_send(check).map_err(|_| Refused("two checks are not done yet".to_owned()))?;
        let done = done.await.unwrap_or_else(|_| Err("the page has ended".to_owned()));
        Ok(json!({"report": done.map_err(Refused)?}))
    }

    /// Sends a request of the administrator about an object. Returns the status and the body of the answer.
    async fn send(&self, method: Method, object: &str, body: &str) -> Result<Value, Refused> {
        let unknown = || Refused(format!("{object:?} is of no kind that the server has"));
        let (resource, key) = object.split_once('/').ok_or_else(unknown)?;
        let (namespace, name) =
            key.split_once('/').map_or((None, key), |(namespace, name)| (Some(namespace), name));
        let path = self.server.resource(resource).ok_or_else(unknown)?.path(namespace, name);
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header(AUTHORIZATION, format!("Bearer {}", self.server.token()))
            .header(CONTENT_TYPE, "application/json")
            .header(USER_AGENT, "lens")
            .body(Full::new(Bytes::from(body.to_owned())));
        let answer = self.server.answer(request.map_err(|error| Refused(error.to_string()))?).await;
        let answer = answer.map_err(|cut| Refused(cut.to_string()))?;
        let status = answer.status().as_u16();
        let body = answer.into_body().collect().await.map_err(|cut| Refused(cut.to_string()))?.to_bytes();
        let mut body: Value = serde_json::from_slice(&body)
            .unwrap_or_else(|_| String::from_utf8_lossy(&body).into_owned().into());
        // An update without them keeps them.
        if let Some(metadata) = body.pointer_mut("/metadata").and_then(Value::as_object_mut) {
            metadata.remove("managedFields");
        }
        Ok(json!({"status": status, "body": body}))
    }
}

/// 400 to 599
fn status(order: &Value) -> Result<u16, Refused> {
    let status = order["status"].as_u64().and_then(|status| u16::try_from(status).ok());
    let status = status.filter(|status| (400..600).contains(status));
    status.ok_or_else(|| Refused("the status of a refusal is from 400 to 599".to_owned()))
}

/// A held write. The body of a Secret is not shown.
fn held(request: &HeldRequest) -> Value {
    let HeldRequest { id, user, method, target, body } = request;
    let path = target.split('?').next().unwrap_or_default();
    let is_secret = path.split('/').any(|part| part == "secrets");
    let shown = body.get(..BODY_BYTES_MAX).unwrap_or(body);
    let body = if is_secret { "not shown: a Secret".into() } else { String::from_utf8_lossy(shown) };
    json!({"id": id, "user": user, "method": method, "target": target, "body": body})
}
