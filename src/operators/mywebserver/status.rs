//! How far a MyWebserver has come, for people and for `kubectl wait`. Nothing in this file does I/O.
//!
//! ```yaml
//! status:
//!   observedGeneration: 2
//!   conditions:
//!   - {type: Ready, status: "False", reason: RolloutInProgress, message: 1 of 2 replicas are updated and available}
//! ```
//!
//! `Ready` and `observedGeneration` are what generic tools read, `Stalled` is what makes them give up waiting
//! ([kstatus](https://github.com/kubernetes-sigs/cli-utils/blob/master/pkg/kstatus/README.md)). `Available` and
//! `Progressing` say what the Deployment says of itself.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use smol_str::{SmolStr, format_smolstr};

use super::{MyWebserver, Unreadable, pods::Trouble};
use crate::{
    children::Child,
    client::Error,
    operators::crd,
    resource::{
        Condition, Labels,
        kinds::{Deployment, DeploymentCondition, DeploymentStatus, Service},
    },
};

/// What we report of a MyWebserver.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Status {
    /// The metadata.generation that the rest is about. -1: nothing has been looked at yet.
    pub observed_generation: i64,
    /// Pods that exist, old and new.
    pub replicas: i32,
    /// Pods that accept connections.
    pub ready_replicas: i32,
    /// Pods that have accepted connections for long enough to count.
    pub available_replicas: i32,
    /// Selects the Pods, for autoscalers: app.kubernetes.io/instance=web,…
    #[schemars(with = "String")]
    pub selector: SmolStr,
    /// Ready: all that was asked for runs. Available: enough runs to serve. Progressing: a rollout is on its way or
    /// complete. Stalled: it will not go on without help, and why. Mutated: an admission webhook or policy changes what the
    /// operator writes.
    #[schemars(schema_with = "crd::conditions")]
    pub conditions: Vec<Condition>,
}

impl Default for Status {
    fn default() -> Status {
        Status {
            observed_generation: -1,
            replicas: 0,
            ready_replicas: 0,
            available_replicas: 0,
            selector: SmolStr::default(),
            conditions: Vec::new(),
        }
    }
}

/// Why the API server will not have a child, until somebody does something about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// Our ServiceAccount may not.
    Forbidden,
    /// A ResourceQuota is used up.
    QuotaExceeded,
    /// A webhook or policy denied it.
    AdmissionDenied,
    /// A webhook denied it with the status code of a server that is overloaded or broken: it may think otherwise later.
    AdmissionDeniedForNow,
    /// A webhook that must be asked does not answer.
    AdmissionUnavailable,
    /// The namespace is being deleted.
    NamespaceTerminating,
    /// It is not valid.
    InvalidSpec,
    /// The API server says that it failed: its range of Service addresses is full, say.
    InternalError,
    /// Anything else that trying again does not help.
    Other,
}

impl Refusal {
    /// All but [`Refusal::Other`], which is also the reason where somebody else keeps undoing what we write.
    const NAMED: [Refusal; 8] = [
        Refusal::Forbidden,
        Refusal::QuotaExceeded,
        Refusal::AdmissionDenied,
        Refusal::AdmissionDeniedForNow,
        Refusal::AdmissionUnavailable,
        Refusal::NamespaceTerminating,
        Refusal::InvalidSpec,
        Refusal::InternalError,
    ];

    /// `None`: not refused. It went wrong, and goes away by trying again.
    #[must_use]
    pub fn of(error: &Error) -> Option<Refusal> {
        // First, because a webhook chooses status code and words of its denial: it may look like any other answer.
        if error.is_denied() {
            return match error.code() {
                Some(429 | 500..) => Some(Refusal::AdmissionDeniedForNow),
                None | Some(_) => Some(Refusal::AdmissionDenied),
            };
        }
        if error.is_namespace_terminating() {
            return Some(Refusal::NamespaceTerminating);
        }
        if error.is_quota_exceeded() {
            return Some(Refusal::QuotaExceeded);
        }
        let says = |text| error.status().is_some_and(|status| status.message.contains(text));
        let is_internal = error.status().is_some_and(|status| status.reason == "InternalError");
        match error.code() {
            None if error.is_connection() || error.is_interrupted() => None,
            Some(500) if says("failed calling webhook") => Some(Refusal::AdmissionUnavailable),
            // Of an overloaded server, of etcd and of proxies, a 500 has no reason.
            Some(500) if is_internal => Some(Refusal::InternalError),
            Some(401 | 404 | 408 | 409 | 429 | 500..) => None,
            Some(403) => Some(Refusal::Forbidden),
            Some(422) => Some(Refusal::InvalidSpec),
            None | Some(_) => Some(Refusal::Other),
        }
    }

    /// As a condition's reason.
    #[must_use]
    pub fn reason(self) -> &'static str {
        match self {
            Refusal::Forbidden => "Forbidden",
            Refusal::QuotaExceeded => "QuotaExceeded",
            Refusal::AdmissionDenied | Refusal::AdmissionDeniedForNow => "AdmissionDenied",
            Refusal::AdmissionUnavailable => "AdmissionUnavailable",
            Refusal::NamespaceTerminating => "NamespaceTerminating",
            Refusal::InvalidSpec => "InvalidSpec",
            Refusal::InternalError => "InternalError",
            Refusal::Other => "ReconcileFailed",
        }
    }

    /// Whether somebody must act, rather than wait.
    fn is_stalled(self) -> bool {
        match self {
            Refusal::Forbidden | Refusal::AdmissionDenied | Refusal::InvalidSpec => true,
            Refusal::QuotaExceeded
            | Refusal::AdmissionDeniedForNow
            | Refusal::AdmissionUnavailable
            | Refusal::NamespaceTerminating
            | Refusal::InternalError
            | Refusal::Other => false,
        }
    }
}

/// The reason where admission changes what we write.
const CHANGED_BY_ADMISSION: &str = "ChangedByAdmission";
/// The reason where somebody else's object has the name of a child.
pub const NAME_CONFLICT: &str = "NameConflict";
/// The reason where a child of a deleted MyWebserver of the same name is still there.
const PREDECESSOR_TERMINATING: &str = "PredecessorTerminating";

/// One condition, before it is known whether it is news.
struct Said {
    status: &'static str,
    reason: SmolStr,
    message: SmolStr,
}

fn said(status: &'static str, reason: impl Into<SmolStr>, message: impl Into<SmolStr>) -> Said {
    Said { status, reason: reason.into(), message: message.into() }
}

/// What is known beside the children themselves.
#[derive(Clone, Copy, Default)]
pub struct Also<'a> {
    /// What admission changed in the children.
    pub mutations: &'a [String],
    /// Why Pods do not run.
    pub trouble: Option<&'a Trouble>,
}

/// The status of `web`, given what selects its Pods, what came of its children and what else is known. `now` is RFC 3339 in
/// whole seconds.
#[must_use]
pub fn of(
    web: &MyWebserver,
    selector: &Labels,
    deployment: &Child<Deployment>,
    service: &Child<Service>,
    also: &Also<'_>,
    now: &str,
) -> Status {
    let nothing = DeploymentStatus::default();
    let rollout = deployment.live().map_or(&nothing, |deployment| &deployment.status);
    let conditions = [
        ("Ready", Some(ready(web, deployment, service, also.trouble))),
        ("Available", Some(available(deployment.live()))),
        ("Progressing", Some(progressing(deployment.live()))),
        ("Stalled", stalled(web, deployment, service, also.trouble)),
        ("Mutated", mutated(also.mutations)),
    ];
    let conditions = conditions
        .into_iter()
        .filter_map(|(name, said)| Some(condition(&web.status, web.metadata.generation, name, said?, now)));
    Status {
        observed_generation: web.metadata.generation,
        replicas: rollout.replicas,
        ready_replicas: rollout.ready_replicas,
        available_replicas: rollout.available_replicas,
        selector: selector.as_selector().into(),
        conditions: conditions.collect(),
    }
}

/// The status of an object that does not decode. What was reported of its children stays.
#[must_use]
pub fn of_unreadable(web: &Unreadable, error: &str, now: &str) -> Status {
    let generation = web.metadata.generation;
    let mut status = Status { observed_generation: generation, ..web.status.clone() };
    for (name, verdict) in [("Ready", "False"), ("Stalled", "True")] {
        let said = said(verdict, Refusal::InvalidSpec.reason(), error);
        let news = condition(&web.status, generation, name, said, now);
        match status.conditions.iter_mut().find(|condition| condition.r#type == name) {
            Some(known) => *known = news,
            None => status.conditions.push(news),
        }
    }
    status
}

/// The condition to write. Its time stays while its status does. Reasons and messages of the Deployment and the kubelet are
/// made to fit our schema, because the API server would refuse the whole status otherwise.
fn condition(before: &Status, generation: i64, name: &str, said: Said, now: &str) -> Condition {
    let before = before.conditions.iter().find(|condition| condition.r#type == name);
    let since = before
        .filter(|before| before.status == said.status)
        .map(|before| before.last_transition_time.clone());
    Condition {
        r#type: name.into(),
        status: said.status.into(),
        reason: if is_reason(&said.reason) { said.reason } else { "Unspecified".into() },
        message: cut(said.message),
        last_transition_time: since.unwrap_or_else(|| now.into()),
        observed_generation: generation,
    }
}

/// Whether the schema of a condition takes it as a reason: `^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$`. Nobody checks the
/// conditions of a Deployment.
fn is_reason(text: &str) -> bool {
    let is_inner = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b',' | b':');
    text.len() <= crd::REASON_LENGTH_MAX
        && text.starts_with(|first: char| first.is_ascii_alphabetic())
        && text.bytes().all(is_inner)
        && !text.ends_with([',', ':'])
}

/// As much of a message as the schema takes.
fn cut(message: SmolStr) -> SmolStr {
    match message.char_indices().nth(crd::MESSAGE_LENGTH_MAX) {
        None => message,
        Some(_) => {
            let kept: String = message.chars().take(crd::MESSAGE_LENGTH_MAX - 1).collect();
            format_smolstr!("{kept}…")
        }
    }
}

/// The Deployment controller has not seen the Deployment as it is, and its status is about an older one.
const NOT_OBSERVED: &str = "the Deployment has not been looked at yet";

fn ready(
    web: &MyWebserver,
    deployment: &Child<Deployment>,
    service: &Child<Service>,
    pods: Option<&Trouble>,
) -> Said {
    if let Some(said) = trouble("Deployment", deployment).or_else(|| trouble("Service", service)) {
        return said;
    }
    let Child::Kept(deployment) = deployment else {
        return said("False", "RolloutInProgress", "the Deployment is being replaced");
    };
    // As we wrote it, or as admission made it.
    let (wanted, rollout) = (deployment.spec.replicas, &deployment.status);
    // Of the template before, or too many. The Deployment controller removes first those that are not available, so the ones
    // that remain are taken to be available.
    let old = rollout.replicas.saturating_sub(rollout.updated_replicas.min(wanted));
    let up_to_date = rollout.available_replicas.saturating_sub(old).min(wanted).max(0);
    let is_complete = is_complete(deployment);
    if let Some(fewer) = fewer_than_wanted(web, deployment).filter(|_| is_complete) {
        return said("False", CHANGED_BY_ADMISSION, fewer);
    }
    if is_complete && wanted == 0 {
        return said("True", "ScaledToZero", "no replicas are wanted");
    }
    if is_complete {
        return said(
            "True",
            "AllReplicasReady",
            format_smolstr!("{wanted} of {wanted} replicas are available"),
        );
    }
    if let Some(failure) = cannot_create(deployment).filter(|_| !is_held_back(deployment)) {
        return said("False", failure.reason.clone(), failure.message.clone());
    }
    if !is_observed(deployment) {
        return said("False", "RolloutInProgress", NOT_OBSERVED);
    }
    let mut message = format!("{up_to_date} of {wanted} replicas are updated and available");
    if old > 0 {
        message += &format!("; {old} old replicas remain");
    }
    if let Some(pods) = pods.filter(|_| !is_held_back(deployment)) {
        return said("False", pods.reason.clone(), format_smolstr!("{message}: {}", pods.message));
    }
    if deployment.spec.paused {
        message += &format!("; {}", paused(deployment));
    }
    let reason = match deadline_exceeded(deployment) {
        _ if is_held_back(deployment) => "DeploymentPaused",
        Some(_) => "ProgressDeadlineExceeded",
        None if deployment.spec.paused => "DeploymentPaused",
        None => "RolloutInProgress",
    };
    said("False", reason, message)
}

/// Whether all Pods that the Deployment wants are of its template and available, and it has none else.
fn is_complete(deployment: &Deployment) -> bool {
    let (wanted, rollout) = (deployment.spec.replicas, &deployment.status);
    is_observed(deployment)
        && rollout.updated_replicas == wanted
        && rollout.replicas == wanted
        && rollout.available_replicas == wanted
}

/// Whether there are Pods of the latest template, and it is they that are waited for.
#[must_use]
pub fn waits_for_pods(deployment: &Deployment) -> bool {
    is_observed(deployment)
        && !is_complete(deployment)
        && !is_held_back(deployment)
        && cannot_create(deployment).is_none()
        && deployment.status.updated_replicas > 0
}

/// Why the Deployment cannot make Pods, or the ReplicaSet for them, be it a quota or an admission policy.
fn cannot_create(deployment: &Deployment) -> Option<&DeploymentCondition> {
    deployment.status.conditions.iter().find(|condition| match &*condition.r#type {
        "ReplicaFailure" => condition.status == "True" && is_observed(deployment),
        // With this one, the Deployment controller leaves observedGeneration as it is.
        "Progressing" => condition.reason == "ReplicaSetCreateError",
        _ => false,
    })
}

/// Whether Pods of an older template stay because the Deployment is paused. It can still be scaled.
fn is_held_back(deployment: &Deployment) -> bool {
    deployment.spec.paused
        && is_observed(deployment)
        && deployment.status.updated_replicas < deployment.status.replicas
}

fn paused(deployment: &Deployment) -> SmolStr {
    let name = &deployment.metadata.name;
    format_smolstr!("the Deployment is paused: kubectl rollout resume deployment/{name}")
}

/// Where admission lets the Deployment have fewer replicas than are asked for. Of other fields of ours that it changes
/// nobody can tell whether the web server does not serve as well with them.
fn fewer_than_wanted(web: &MyWebserver, deployment: &Deployment) -> Option<SmolStr> {
    let (has, wanted) = (deployment.spec.replicas, web.spec.replicas);
    (has < wanted).then(|| {
        format_smolstr!(
            "{wanted} replicas are wanted, but an admission webhook or policy changes the Deployment's replicas to {has}"
        )
    })
}

fn mutated(mutations: &[String]) -> Option<Said> {
    let fields = mutations.join("; ");
    (!mutations.is_empty()).then(|| {
        let message =
            format_smolstr!("an admission webhook or policy changes what the operator writes: {fields}");
        said("True", CHANGED_BY_ADMISSION, message)
    })
}

/// What is wrong with a child itself, if anything.
fn trouble<K>(kind: &str, child: &Child<K>) -> Option<Said> {
    match child {
        Child::Kept(_) => None,
        Child::Awaited(Some(_)) => Some(said(
            "False",
            "RolloutInProgress",
            format_smolstr!("the {kind} is being deleted and will be made anew"),
        )),
        Child::Awaited(None) => Some(said(
            "False",
            PREDECESSOR_TERMINATING,
            format_smolstr!("the {kind} of a deleted MyWebserver of this name is being deleted"),
        )),
        Child::NotOurs(message) => Some(said("False", NAME_CONFLICT, message.as_str())),
        Child::Failed { error, .. } => {
            let refusal = Refusal::of(error).unwrap_or(Refusal::Other);
            Some(said("False", refusal.reason(), format_smolstr!("{error}")))
        }
    }
}

fn available(deployment: Option<&Deployment>) -> Said {
    let Some(deployment) = deployment else {
        return said("False", "DeploymentMissing", "there is no Deployment of ours");
    };
    match reported(deployment, "Available") {
        Some(condition) if condition.status == "True" => {
            said("True", condition.reason.clone(), condition.message.clone())
        }
        Some(_) | None => said("False", "MinimumReplicasUnavailable", "too few replicas accept connections"),
    }
}

fn progressing(deployment: Option<&Deployment>) -> Said {
    let Some(deployment) = deployment else {
        return said("False", "DeploymentMissing", "there is no Deployment of ours");
    };
    let reported = reported(deployment, "Progressing");
    // An older failure to create the ReplicaSet is replaced as soon as one is created.
    let has_failed = reported.is_some_and(|condition| {
        condition.status == "False"
            && (is_observed(deployment) || condition.reason == "ReplicaSetCreateError")
    });
    if deployment.spec.paused && !has_failed {
        return said("Unknown", "DeploymentPaused", paused(deployment));
    }
    if !is_observed(deployment) && !has_failed {
        return said("True", "ReplicaSetUpdated", NOT_OBSERVED);
    }
    match reported {
        Some(condition) => {
            let status = match &*condition.status {
                "True" => "True",
                "False" => "False",
                _ => "Unknown",
            };
            said(status, condition.reason.clone(), condition.message.clone())
        }
        // `HasProgressDeadline` in k8s.io/kubernetes/pkg/controller/deployment/util.
        None => said(
            "Unknown",
            "ProgressNotReported",
            "the Deployment does not report its progress, as where progressDeadlineSeconds is 2147483647",
        ),
    }
}

fn stalled(
    web: &MyWebserver,
    deployment: &Child<Deployment>,
    service: &Child<Service>,
    pods: Option<&Trouble>,
) -> Option<Said> {
    if let Some(said) = dead_end(deployment).or_else(|| dead_end(service)) {
        return Some(said);
    }
    let Child::Kept(deployment) = deployment else { return None };
    if is_held_back(deployment) {
        return Some(said("True", "DeploymentPaused", paused(deployment)));
    }
    if let Some(fewer) = fewer_than_wanted(web, deployment) {
        return Some(said("True", CHANGED_BY_ADMISSION, fewer));
    }
    if let Some(pods) = pods.filter(|pods| pods.is_final()) {
        return Some(said("True", pods.reason.clone(), pods.message.as_str()));
    }
    deadline_exceeded(deployment)
        .map(|condition| said("True", "ProgressDeadlineExceeded", condition.message.clone()))
}

/// What will not change unless somebody acts.
fn dead_end<K>(child: &Child<K>) -> Option<Said> {
    match child {
        Child::Kept(_) | Child::Awaited(_) => None,
        Child::NotOurs(message) => Some(said("True", NAME_CONFLICT, message.as_str())),
        Child::Failed { error, .. } => {
            let refusal = Refusal::of(error).filter(|refusal| refusal.is_stalled())?;
            Some(said("True", refusal.reason(), format_smolstr!("{error}")))
        }
    }
}

fn deadline_exceeded(deployment: &Deployment) -> Option<&DeploymentCondition> {
    let condition = reported(deployment, "Progressing").filter(|_| is_observed(deployment))?;
    Some(condition).filter(|condition| condition.reason == "ProgressDeadlineExceeded")
}

/// Whether the Deployment controller has seen what we wrote last. Before that, its status is about something else.
fn is_observed(deployment: &Deployment) -> bool {
    deployment.status.observed_generation >= deployment.metadata.generation
}

fn reported<'a>(deployment: &'a Deployment, name: &str) -> Option<&'a DeploymentCondition> {
    deployment.status.conditions.iter().find(|condition| condition.r#type == name)
}

impl Status {
    /// A condition by its type.
    #[must_use]
    pub fn condition(&self, name: &str) -> Option<&Condition> {
        self.conditions.iter().find(|condition| condition.r#type == name)
    }

    /// Whether all that was asked for runs.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.condition("Ready").is_some_and(|ready| ready.status == "True")
    }

    /// Whether a child could not be written, or its name was not free.
    #[must_use]
    pub fn is_refused(&self) -> bool {
        let refusals = Refusal::NAMED.into_iter().map(Refusal::reason);
        let mut reasons = refusals.chain([NAME_CONFLICT, PREDECESSOR_TERMINATING]);
        self.condition("Ready").is_some_and(|ready| reasons.any(|reason| reason == ready.reason))
    }

    /// Why it will not go on without help, if so.
    #[must_use]
    pub fn stalled(&self) -> Option<&Condition> {
        self.condition("Stalled").filter(|stalled| stalled.status == "True")
    }

    /// What admission changes, if anything: the message of `Mutated`.
    #[must_use]
    pub fn mutated(&self) -> Option<&str> {
        let mutated = self.conditions.iter().find(|condition| condition.r#type == "Mutated");
        mutated.map(|condition| &*condition.message)
    }

    /// For the log: `AllReplicasReady: 2 of 2 replicas are available`.
    #[must_use]
    pub fn summary(&self) -> String {
        self.condition("Ready")
            .map_or_else(String::new, |ready| format!("{}: {}", ready.reason, ready.message))
    }
}
