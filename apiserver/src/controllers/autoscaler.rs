//! HorizontalPodAutoscalers: writes the replicas of their targets, by the PodMetrics that a client has stored.
//!
//! The calculation, the conditions and their messages are as in kube-controller-manager (pkg/controller/podautoscaler), with
//! the stabilization windows of `behavior`. There, an autoscaler is reconciled every 15 seconds, and here after each change of its
//! target, of a Pod or of PodMetrics; PodMetrics that change one after the other count as one scrape. So the rates of `behavior`, and the age of metrics, do not count.

use std::{
    cmp::Ordering,
    collections::{BTreeMap, BTreeSet},
    ops::RangeInclusive,
    sync::Arc,
    time::Duration,
};

use listwatch_formats::{
    quantity::{canonical, quantity},
    selector::Selector,
};
use serde_json::{Value, json};
use tokio::time::Instant;

use super::{
    Controllers, change, delete, owner_place, record, record_warning, record_warning_once,
    rollout::{condition, count, is_ready, name, set_count},
    scheduler::milli,
    stored_kind, try_change,
};
use crate::{
    apply::managed_fields::Manager,
    kinds::{
        Part,
        conditions::set_condition,
        field_checks::{each, text},
        metadata::is_terminating,
    },
    storage::{Place, Storage},
    verbs::{delete::Deletion, scale},
};

pub(crate) const AUTOSCALERS: &str = "horizontalpodautoscalers.autoscaling";
pub(crate) const METRICS: &str = "pods.metrics.k8s.io";
const COMPONENT: &str = "horizontal-pod-autoscaler";

/// How far the usage may be from its target without a change: `--horizontal-pod-autoscaler-tolerance`.
const TOLERANCE: f64 = 0.1;

/// How long a higher recommendation counts: `--horizontal-pod-autoscaler-downscale-stabilization`, in seconds.
const DOWNSCALE_WINDOW_SECS: u64 = 300;

/// The shortest pause between two changes of the replicas: two autoscalers of one target would change them for ever.
const RESCALE_PAUSE: Duration = Duration::from_millis(200);

/// How long PodMetrics must not have changed, so that all of one `kubectl apply` count together.
const SCRAPE_PAUSE: Duration = Duration::from_millis(500);

/// The longest wait for that: `--horizontal-pod-autoscaler-sync-period`.
const SYNC_PERIOD: Duration = Duration::from_secs(15);

/// How long the CPU of a Pod that is not ready does not count: `--horizontal-pod-autoscaler-cpu-initialization-period`.
const INITIALIZATION: Duration = Duration::from_secs(300);

/// A Pod that became unready this soon after its start has never been ready:
/// `--horizontal-pod-autoscaler-initial-readiness-delay`.
const INITIAL_READINESS: Duration = Duration::from_secs(30);

/// Changes of PodMetrics, one soon after the other.
pub(crate) struct Scrape {
    first: Instant,
    last: Instant,
}

impl Scrape {
    /// The scrape that a change belongs to.
    pub(crate) fn after(before: Option<Scrape>) -> Scrape {
        let now = Instant::now();
        let before = before
            .filter(|before| before.last.elapsed() < SCRAPE_PAUSE && before.first.elapsed() < SYNC_PERIOD);
        Scrape { first: before.map_or(now, |before| before.first), last: now }
    }

    /// How long it may still go on.
    fn left(&self) -> Option<Duration> {
        let left = SCRAPE_PAUSE.checked_sub(self.last.elapsed())?;
        Some(left.min(SYNC_PERIOD.checked_sub(self.first.elapsed())?))
    }
}

/// A number of replicas that the metrics of an autoscaler asked for, until this time.
pub(crate) struct Recommendation {
    replicas: i64,
    until: Instant,
}

/// The autoscalers that a change may affect.
pub(crate) fn affected(storage: &Storage, changed: &Place) -> Vec<Place> {
    // Also other autoscalers: two of the same Pods do nothing.
    let is_of_all = ["pods", METRICS, AUTOSCALERS].contains(&changed.collection.as_str());
    let mut all = storage.places(AUTOSCALERS);
    all.retain(|place| {
        let target = || target_place(storage, place, storage.get(place)?);
        place.namespace() == changed.namespace() && (is_of_all || target().as_ref() == Some(changed))
    });
    all
}

fn target_place(storage: &Storage, place: &Place, autoscaler: &Value) -> Option<Place> {
    owner_place(storage, place, &autoscaler["spec"]["scaleTargetRef"])
}

/// The target of an autoscaler, by its Scale.
struct ScaleTarget {
    place: Place,
    /// Where its spec has the number of replicas.
    pointer: String,
    replicas: i64,
    selector: String,
    /// The usage, divided by its target, with which nothing changes.
    tolerated: RangeInclusive<f64>,
}

/// Reads the Scale of the target. The error is for the condition.
fn target(storage: &Storage, place: &Place, autoscaler: &Value) -> Result<ScaleTarget, String> {
    let reference = &autoscaler["spec"]["scaleTargetRef"];
    let Some(at) = target_place(storage, place, autoscaler) else {
        let group = text(&reference["apiVersion"]).split_once('/').map_or("", |(group, _)| group);
        return Err(format!("no matches for kind {:?} in group {group:?}", text(&reference["kind"])));
    };
    let Some(object) = storage.get(&at) else {
        return Err(format!("{} {:?} not found", at.collection, at.name()));
    };
    let kind = stored_kind(storage, &at, object);
    let Some((kind, paths)) = kind.as_ref().and_then(|kind| Some((kind, kind.scale.as_ref()?))) else {
        return Err("the server could not find the requested resource".to_owned());
    };
    let scale = scale::read(kind, object).map_err(|error| error.message().to_owned())?;
    let selector = text(&scale["status"]["selector"]).to_owned();
    let replicas = count(&scale, "/spec/replicas");
    let behavior = &autoscaler["spec"]["behavior"];
    let tolerance = |direction: &str| quantity(&behavior[direction]["tolerance"]).unwrap_or(TOLERANCE);
    let tolerated = 1.0 - tolerance("scaleDown")..=1.0 + tolerance("scaleUp");
    Ok(ScaleTarget { place: at, pointer: paths.spec.clone(), replicas, selector, tolerated })
}

/// Reconciles an autoscaler: writes the replicas of its target, and its status.
pub(crate) fn autoscaler(
    controllers: &mut Controllers,
    storage: &mut Storage,
    place: &Place,
    stored: &Value,
) {
    if let Some(left) = controllers.scrape.as_ref().and_then(Scrape::left) {
        return controllers.requeue(place, left);
    }
    let mut autoscaler = stored.clone();
    match target(storage, place, stored) {
        Ok(target) => scale_target(controllers, storage, place, &mut autoscaler, &target),
        Err(why) => {
            let what = "the HPA controller was unable to get the target's current scale";
            fail(storage, &mut autoscaler, "AbleToScale", "FailedGetScale", what, &why);
        }
    }
    change(storage, place, Part::Status, |object| object["status"] = autoscaler["status"].take());
}

/// Sets a condition to `False`. The Event comes only once, because here an autoscaler is not reconciled at intervals.
fn fail(storage: &mut Storage, autoscaler: &mut Value, kind: &str, reason: &str, what: &str, why: &str) {
    record_warning_once(storage, autoscaler, COMPONENT, reason, why);
    set_condition(autoscaler, kind, "False", reason, &format!("{what}: {why}"), &storage.clock.time());
}

/// Scales the target, and sets the status of the autoscaler.
fn scale_target(
    controllers: &mut Controllers,
    storage: &mut Storage,
    place: &Place,
    autoscaler: &mut Value,
    target: &ScaleTarget,
) {
    let (now, current) = (storage.clock.time(), target.replicas);
    let message = "the HPA controller was able to get the target's current scale";
    set_condition(autoscaler, "AbleToScale", "True", "SucceededGetScale", message, &now);
    let first = Recommendation { replicas: current, until: Instant::now() };
    controllers.recommendations.entry(place.clone()).or_insert_with(|| vec![first]);
    let (least, most) = (count(autoscaler, "/spec/minReplicas"), count(autoscaler, "/spec/maxReplicas"));
    let mut metrics = Value::Null;
    let wanted = if current == 0 {
        let message = "scaling is disabled since the replica count of the target is zero";
        set_condition(autoscaler, "ScalingActive", "False", "ScalingDisabled", message, &now);
        Some((0, String::new()))
    } else if current > most {
        Some((most, "Current number of replicas above Spec.MaxReplicas".to_owned()))
    } else if current < least {
        Some((least, "Current number of replicas below Spec.MinReplicas".to_owned()))
    } else {
        by_metrics(storage, autoscaler, target, &mut metrics).map(|proposal| {
            let reason = if proposal.replicas > current {
                format!("{} above target", proposal.metric)
            } else {
                "All metrics below target".to_owned()
            };
            let stable = stabilized(controllers, place, autoscaler, current, proposal.replicas, &now);
            (limited(autoscaler, current, stable, &now), reason)
        })
    };
    let desired = wanted.filter(|(desired, reason)| {
        let is_there = *desired == current;
        is_there || !rests(controllers, place) && rescale(storage, autoscaler, target, *desired, reason)
    });
    let status = &mut autoscaler["status"];
    set_count(status, "currentReplicas", current);
    if let Some((desired, _)) = desired {
        status["desiredReplicas"] = desired.into();
    }
    status["currentMetrics"] = metrics;
}

/// Whether an autoscaler has just changed its target. Then it is looked at again later.
fn rests(controllers: &mut Controllers, place: &Place) -> bool {
    let rest = controllers.rescaled.get(place).and_then(|at| RESCALE_PAUSE.checked_sub(at.elapsed()));
    match rest {
        Some(rest) => controllers.requeue(place, rest),
        None => {
            controllers.rescaled.insert(place.clone(), Instant::now());
        }
    }
    rest.is_some()
}

/// Writes the replicas of the target. Returns whether the server took them.
fn rescale(
    storage: &mut Storage,
    autoscaler: &mut Value,
    target: &ScaleTarget,
    desired: i64,
    reason: &str,
) -> bool {
    let edit = |object: &mut Value| {
        if let Some(replicas) = object.pointer_mut(&target.pointer) {
            *replicas = desired.into();
        }
    };
    let manager = Manager { subresource: "scale", ..Manager::default() };
    let written = try_change(storage, &target.place, Part::Main, edit, manager);
    let (now, size) = (storage.clock.time(), format!("New size: {desired}; reason: {reason}"));
    if let Err(error) = written {
        let why = error.message();
        record_warning(storage, autoscaler, COMPONENT, "FailedRescale", &format!("{size}; error: {why}"));
        let message = format!("the HPA controller was unable to update the target scale: {why}");
        set_condition(autoscaler, "AbleToScale", "False", "FailedUpdateScale", &message, &now);
        return false;
    }
    let message = format!("the HPA controller was able to update the target scale to {desired}");
    set_condition(autoscaler, "AbleToScale", "True", "SucceededRescale", &message, &now);
    record(storage, autoscaler, COMPONENT, "SuccessfulRescale", &size);
    autoscaler["status"]["lastScaleTime"] = now.into();
    true
}

/// A proposal within the recommendations of the last minutes: the highest ones delay a scale-down, the lowest ones a scale-up.
fn stabilized(
    controllers: &mut Controllers,
    place: &Place,
    autoscaler: &mut Value,
    current: i64,
    proposal: i64,
    now: &str,
) -> i64 {
    let behavior = autoscaler["spec"]["behavior"].clone();
    let window = |direction: &str, default: u64| {
        let secs = behavior[direction]["stabilizationWindowSeconds"].as_u64();
        Duration::from_secs(secs.unwrap_or(default))
    };
    let (up_window, down_window) = (window("scaleUp", 0), window("scaleDown", DOWNSCALE_WINDOW_SECS));
    let at = Instant::now();
    let known = controllers.recommendations.entry(place.clone()).or_default();
    if let Some(last) = known.last_mut() {
        last.until = at;
    }
    known.retain(|one| one.until + up_window.max(down_window) > at);
    let recent =
        |window: Duration| known.iter().filter(move |one| one.until + window > at).map(|one| one.replicas);
    let lowest = recent(up_window).chain([proposal]).min().unwrap_or(proposal);
    let highest = recent(down_window).chain([proposal]).max().unwrap_or(proposal);
    let stable = if behavior.is_null() { highest } else { current.max(lowest).min(highest) };
    let ends =
        known.iter().map(|one| one.until + if one.replicas > proposal { down_window } else { up_window });
    let next = ends.filter(|end| *end > at).min();
    if known.last().is_none_or(|last| last.replicas != proposal) {
        known.push(Recommendation { replicas: proposal, until: at });
    }
    let (reason, message) = if stable == proposal {
        ("ReadyForNewScale", "recommended size matches current size")
    } else if proposal < current || behavior.is_null() {
        (
            "ScaleDownStabilized",
            "recent recommendations were higher than current one, applying the highest recent recommendation",
        )
    } else {
        (
            "ScaleUpStabilized",
            "recent recommendations were lower than current one, applying the lowest recent recommendation",
        )
    };
    set_condition(autoscaler, "AbleToScale", "True", reason, message, now);
    if let Some(next) = next.filter(|_| stable != proposal) {
        controllers.requeue(place, next - at);
    }
    stable
}

/// The replicas within the limits of the autoscaler.
fn limited(autoscaler: &mut Value, current: i64, wanted: i64, now: &str) -> i64 {
    let spec = &autoscaler["spec"];
    let (least, most) = (count(spec, "/minReplicas"), count(spec, "/maxReplicas"));
    let is_disabled = |direction: &str| spec["behavior"][direction]["selectPolicy"] == "Disabled";
    // Without `behavior`, at most twice as many, and always up to four.
    let step = if spec["behavior"].is_null() { (2 * current).max(4) } else { i64::MAX };
    let (replicas, reason, message) = if step < most && step < wanted {
        (step, "ScaleUpLimit", "the desired replica count is increasing faster than the maximum scale rate")
    } else if wanted > current && is_disabled("scaleUp") {
        (
            current,
            "ScaleUpLimit",
            "the desired replica count is increasing faster than the maximum scale rate",
        )
    } else if wanted < current && is_disabled("scaleDown") {
        (
            current,
            "ScaleDownLimit",
            "the desired replica count is decreasing faster than the maximum scale rate",
        )
    } else if wanted > most {
        (most, "TooManyReplicas", "the desired replica count is more than the maximum replica count")
    } else if wanted < least {
        (least, "TooFewReplicas", "the desired replica count is less than the minimum replica count")
    } else {
        (wanted, "DesiredWithinRange", "the desired count is within the acceptable range")
    };
    let is_limited = if replicas == wanted { "False" } else { "True" };
    set_condition(autoscaler, "ScalingLimited", is_limited, reason, message, now);
    replicas
}

/// The number of replicas that one metric asks for.
struct Proposal {
    replicas: i64,
    /// The metric in messages: `cpu resource utilization (percentage of request)`.
    metric: String,
    status: Value,
}

/// The largest proposal of all metrics, and their statuses. `None` if it cannot be known, with a condition.
fn by_metrics(
    storage: &mut Storage,
    autoscaler: &mut Value,
    target: &ScaleTarget,
    statuses: &mut Value,
) -> Option<Proposal> {
    let now = storage.clock.time();
    let Some(selector) = Selector::parse(&target.selector).ok().filter(|selector| !selector.is_empty())
    else {
        let message = "the HPA target's scale is missing a selector";
        set_condition(autoscaler, "ScalingActive", "False", "InvalidSelector", message, &now);
        return None;
    };
    let namespace = &autoscaler["metadata"]["namespace"];
    let all = storage.collection("pods").into_iter().flat_map(|pods| pods.objects.values());
    let is_selected = |pod: &Value| {
        pod["metadata"]["namespace"] == *namespace && selector.matches(&pod["metadata"]["labels"])
    };
    let pods: Vec<Arc<Value>> = all.filter(|pod| is_selected(pod)).cloned().collect();
    let selecting = selecting(storage, text(namespace), &pods);
    if selecting.len() > 1 {
        let (selector, keys) = (&target.selector, selecting.join(" "));
        let message = format!("pods by selector {selector} are controlled by multiple HPAs: [{keys}]");
        record_warning_once(storage, autoscaler, COMPONENT, "AmbiguousSelector", &message);
        set_condition(autoscaler, "ScalingActive", "False", "AmbiguousSelector", &message, &now);
        return None;
    }
    let (mut best, mut failed, mut all) = (None::<Proposal>, None, Vec::new());
    for metric in each(&autoscaler["spec"]["metrics"]) {
        match proposal(storage, metric, target, &pods) {
            Ok(proposal) => {
                all.push(proposal.status.clone());
                if best.as_ref().is_none_or(|best| proposal.replicas > best.replicas) {
                    best = Some(proposal);
                }
            }
            Err(why) => {
                // The status that kube-controller-manager leaves empty.
                all.push(json!({"type": ""}));
                let reason = format!("FailedGet{}Metric", text(&metric["type"]));
                record_warning_once(storage, autoscaler, COMPONENT, &reason, &why);
                failed = failed.or(Some((reason, why)));
            }
        }
    }
    *statuses = all.into();
    match (best, failed) {
        (Some(best), None) => Some(best),
        // Some metrics are enough to scale up.
        (Some(best), Some(_)) if best.replicas >= target.replicas => Some(best),
        (_, Some((reason, why))) => {
            let what = "the HPA was unable to compute the replica count";
            fail(storage, autoscaler, "ScalingActive", &reason, what, &why);
            None
        }
        (None, None) => None,
    }
    .inspect(|best| {
        let message =
            format!("the HPA was able to successfully calculate a replica count from {}", best.metric);
        set_condition(autoscaler, "ScalingActive", "True", "ValidMetricFound", &message, &now);
    })
}

/// The keys of the autoscalers whose targets select one of these Pods.
fn selecting(storage: &Storage, namespace: &str, pods: &[Arc<Value>]) -> Vec<String> {
    let mut all = Vec::new();
    for place in storage.places(AUTOSCALERS) {
        let Some(autoscaler) = storage.get(&place).filter(|_| place.namespace() == Some(namespace)) else {
            continue;
        };
        let Ok(target) = target(storage, &place, autoscaler) else { continue };
        let Ok(selector) = Selector::parse(&target.selector) else { continue };
        if !selector.is_empty() && pods.iter().any(|pod| selector.matches(&pod["metadata"]["labels"])) {
            all.push(place.key);
        }
    }
    all
}

/// What one metric asks for. Only the usage of Pods is stored; there are no custom and external metrics.
fn proposal(
    storage: &Storage,
    metric: &Value,
    target: &ScaleTarget,
    pods: &[Arc<Value>],
) -> Result<Proposal, String> {
    let namespace = target.place.namespace().unwrap_or_default();
    let no_custom = "unable to fetch metrics from custom metrics API: no custom metrics API (custom.metrics.k8s.io) registered";
    match text(&metric["type"]) {
        "Resource" => Usage::new(&metric["resource"], None).proposal(storage, target, pods),
        "ContainerResource" => {
            let of = &metric["containerResource"];
            Usage::new(of, Some(text(&of["container"]))).proposal(storage, target, pods)
        }
        "External" => {
            let metric = &metric["external"]["metric"];
            let (name, selector) = (text(&metric["name"]), go_selector(&metric["selector"]));
            Err(format!(
                "unable to get external metric {namespace}/{name}/{selector}: unable to fetch metrics from external metrics API: \
                the server could not find the requested resource (get {name}.external.metrics.k8s.io)"
            ))
        }
        "Object" => {
            let (name, of) =
                (text(&metric["object"]["metric"]["name"]), &metric["object"]["describedObject"]);
            let (kind, object) = (text(&of["kind"]), text(&of["name"]));
            // The order of kube-controller-manager.
            Err(format!("unable to get metric {name}: {kind} on {namespace} {object}/{no_custom}"))
        }
        _ => Err(format!("unable to get metric {}: {no_custom}", text(&metric["pods"]["metric"]["name"]))),
    }
}

/// A selector as `%+v` of Go writes it.
fn go_selector(selector: &Value) -> String {
    if selector.is_null() {
        return "nil".to_owned();
    }
    let labels = selector["matchLabels"].as_object().into_iter().flatten();
    let labels: String = labels.map(|(key, value)| format!("{key}: {},", text(value))).collect();
    format!(
        "&LabelSelector{{MatchLabels:map[string]string{{{labels}}},MatchExpressions:[]LabelSelectorRequirement{{}},}}"
    )
}

/// The usage of a resource, by Pods or by one of their containers, and its target.
struct Usage<'a> {
    resource: &'a str,
    container: Option<&'a str>,
    goal: Goal,
}

/// In percent of the requests, or in thousandths for each Pod.
enum Goal {
    Utilization(i64),
    Average(i64),
}

/// The usage of each Pod, in thousandths.
type Samples<'a> = BTreeMap<&'a str, i64>;

impl<'a> Usage<'a> {
    fn new(source: &'a Value, container: Option<&'a str>) -> Usage<'a> {
        let target = &source["target"];
        let goal = match target["averageUtilization"].as_i64() {
            Some(percent) if target["averageValue"].is_null() => Goal::Utilization(percent),
            Some(_) | None => Goal::Average(milli(&target["averageValue"])),
        };
        Usage { resource: text(&source["name"]), container, goal }
    }

    fn proposal(
        &self,
        storage: &Storage,
        target: &ScaleTarget,
        pods: &[Arc<Value>],
    ) -> Result<Proposal, String> {
        let resource = self.resource;
        let (what, metric) = match (&self.goal, self.container) {
            (Goal::Average(_), _) => ("usage", format!("{resource} resource")),
            (Goal::Utilization(_), None) => {
                ("utilization", format!("{resource} resource utilization (percentage of request)"))
            }
            (Goal::Utilization(_), Some(_)) => {
                ("utilization", format!("{resource} container resource utilization (percentage of request)"))
            }
        };
        let (replicas, current) = self
            .replicas(storage, target, pods)
            .map_err(|why| format!("failed to get {resource} {what}: {why}"))?;
        let status = match self.container {
            None => json!({"type": "Resource", "resource": {"name": resource, "current": current}}),
            Some(container) => json!({"type": "ContainerResource",
                "containerResource": {"name": resource, "container": container, "current": current}}),
        };
        Ok(Proposal { replicas, metric, status })
    }

    /// The calculation of replica_calculator.go: Pods that are not ready count as idle for a scale-up, those without metrics
    /// as idle for a scale-up and as busy for a scale-down.
    fn replicas(
        &self,
        storage: &Storage,
        target: &ScaleTarget,
        pods: &[Arc<Value>],
    ) -> Result<(i64, Value), String> {
        let metrics: Vec<&Arc<Value>> =
            pods.iter().filter_map(|pod| metrics_of(storage, target, pod)).collect();
        if metrics.is_empty() {
            let resource = self.resource;
            let why = "no metrics returned from resource metrics API";
            return Err(format!("unable to get metrics for resource {resource}: {why}"));
        }
        let mut samples: Samples =
            metrics.iter().filter_map(|metrics| Some((name(metrics), self.of(metrics)?))).collect();
        let (mut ready, mut unready, mut missing) = (0, BTreeSet::new(), BTreeSet::new());
        for pod in pods {
            let phase = &pod["status"]["phase"];
            if is_terminating(pod) || phase == "Failed" {
                samples.remove(name(pod));
            } else if phase == "Pending"
                || self.resource == "cpu" && samples.contains_key(name(pod)) && is_starting(storage, pod)
            {
                samples.remove(name(pod));
                unready.insert(name(pod));
            } else if samples.contains_key(name(pod)) {
                ready += 1;
            } else {
                missing.insert(name(pod));
            }
        }
        if samples.is_empty() {
            return Err("did not receive metrics for targeted pods (pods might be unready)".to_owned());
        }
        let requests = match self.goal {
            Goal::Utilization(_) => self.requests(pods)?,
            Goal::Average(_) => Samples::new(),
        };
        let (ratio, current) = self.measure(&samples, &requests)?;
        let counts_unready = !unready.is_empty() && ratio > 1.0;
        if !counts_unready && missing.is_empty() {
            let wanted = (ratio * f64::from(ready)).ceil() as i64;
            return Ok((if target.tolerated.contains(&ratio) { target.replicas } else { wanted }, current));
        }
        for name in missing {
            let busy = match self.goal {
                Goal::Utilization(percent) => {
                    requests.get(name).unwrap_or(&0).saturating_mul(percent.max(100)) / 100
                }
                Goal::Average(usage) => usage,
            };
            match ratio.total_cmp(&1.0) {
                Ordering::Less => samples.insert(name, busy),
                Ordering::Greater => samples.insert(name, 0),
                Ordering::Equal => None,
            };
        }
        if counts_unready {
            samples.extend(unready.into_iter().map(|name| (name, 0)));
        }
        let (adjusted, _) = self.measure(&samples, &requests)?;
        let wanted = (adjusted * samples.len() as f64).ceil() as i64;
        let turns = (ratio < 1.0) != (adjusted < 1.0) || (adjusted < 1.0) != (wanted < target.replicas);
        Ok((if target.tolerated.contains(&adjusted) || turns { target.replicas } else { wanted }, current))
    }

    /// The usage in a PodMetrics. `None` if it is missing for a container.
    fn of(&self, metrics: &Value) -> Option<i64> {
        let containers = each(&metrics["containers"]);
        let mut counted =
            containers.filter(|one| self.container.is_none_or(|name| one["name"] == name)).peekable();
        counted.peek()?;
        counted.try_fold(0, |total: i64, one| {
            Some(total.saturating_add(milli(one["usage"].get(self.resource)?)))
        })
    }

    /// The requests of each Pod.
    fn requests<'p>(&self, pods: &'p [Arc<Value>]) -> Result<Samples<'p>, String> {
        pods.iter().map(|pod| Ok((name(pod), self.request(pod)?))).collect()
    }

    fn request(&self, pod: &Value) -> Result<i64, String> {
        let (resource, spec) = (self.resource, &pod["spec"]);
        let of_pod = &spec["resources"]["requests"][resource];
        if self.container.is_none() && !of_pod.is_null() {
            return Ok(milli(of_pod));
        }
        let sidecars = each(&spec["initContainers"]).filter(|one| one["restartPolicy"] == "Always");
        let all = each(&spec["containers"]).chain(sidecars);
        let mut counted = all.filter(|one| self.container.is_none_or(|name| one["name"] == name)).peekable();
        if let (Some(container), None) = (self.container, counted.peek()) {
            return Err(format!("container {container} not found in Pod {}", name(pod)));
        }
        let request = |container: &Value| {
            let request = container["resources"]["requests"].get(resource).map(milli);
            let of = text(&container["name"]);
            request.ok_or_else(|| {
                format!("missing request for {resource} in container {of} of Pod {}", name(pod))
            })
        };
        counted.try_fold(0, |total: i64, container| Ok(total.saturating_add(request(container)?)))
    }

    /// The usage divided by its target, and the current values for the status.
    fn measure(&self, samples: &Samples, requests: &Samples) -> Result<(f64, Value), String> {
        // Usages of a test may be absurd.
        let total: i128 = samples.values().copied().map(i128::from).sum();
        let average = i64::try_from(total / samples.len() as i128).unwrap_or(i64::MAX);
        let shown = self.shown(average);
        match self.goal {
            Goal::Average(goal) => Ok((average as f64 / goal as f64, json!({"averageValue": shown}))),
            Goal::Utilization(goal) => {
                let of_samples = samples.keys().filter_map(|name| requests.get(name));
                let requested: i128 = of_samples.copied().map(i128::from).sum();
                let percent = (total * 100).checked_div(requested);
                let percent = percent.ok_or("no metrics returned matched known pods")?;
                let shown_percent = i32::try_from(percent).unwrap_or(i32::MAX);
                let current = json!({"averageUtilization": shown_percent, "averageValue": shown});
                Ok((percent as f64 / goal as f64, current))
            }
        }
    }

    /// An average in the status. Memory has binary suffixes.
    fn shown(&self, average: i64) -> Value {
        let bytes = average.cast_unsigned().div_ceil(1000);
        let text = match self.resource {
            "memory" if bytes.is_multiple_of(1024) => format!("{}Ki", bytes / 1024),
            "memory" => return bytes.to_string().into(),
            _ => format!("{average}m"),
        };
        canonical(&text.into()).into()
    }
}

/// Whether the CPU of a Pod does not count: it is not ready, and has never been.
fn is_starting(storage: &Storage, pod: &Value) -> bool {
    if is_ready(pod) {
        return false;
    }
    let since = |time: &Value| storage.clock.since(time);
    let turned = condition(pod, "Ready").and_then(|ready| since(&ready["lastTransitionTime"]));
    let (Some(age), Some(turned)) = (since(&pod["status"]["startTime"]), turned) else { return true };
    age < INITIALIZATION || age < turned + INITIAL_READINESS
}

/// The PodMetrics of a Pod.
fn metrics_of<'a>(storage: &'a Storage, target: &ScaleTarget, pod: &Value) -> Option<&'a Arc<Value>> {
    storage.get(&metrics_place(target.place.namespace(), name(pod)))
}

/// Removes the PodMetrics of a Pod that is gone, as a metrics server does.
pub(crate) fn forget_metrics(storage: &mut Storage, pod: &Place) {
    delete(storage, &metrics_place(pod.namespace(), pod.name()), &Deletion::default());
}

fn metrics_place(namespace: Option<&str>, pod: &str) -> Place {
    Place::new(METRICS, namespace, pod)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each PodMetrics of one `kubectl apply` had an effect of its own, beside the old ones of other Pods.
    #[tokio::test(start_paused = true)]
    async fn metrics_that_change_one_after_the_other_are_one_scrape() {
        let mut scrape = Scrape::after(None);
        for _ in 0..36 {
            tokio::time::advance(Duration::from_millis(400)).await;
            scrape = Scrape::after(Some(scrape));
            assert_eq!(scrape.left(), Some(SCRAPE_PAUSE));
        }
        tokio::time::advance(Duration::from_millis(400)).await;
        scrape = Scrape::after(Some(scrape));
        assert_eq!(scrape.left(), Some(Duration::from_millis(200)), "the longest wait");
        tokio::time::advance(Duration::from_millis(400)).await;
        assert_eq!(scrape.left(), None);
        tokio::time::advance(SCRAPE_PAUSE).await;
        assert_eq!(Scrape::after(Some(scrape)).left(), Some(SCRAPE_PAUSE), "another one");
    }
}
