//! Jobs, whose Pods run to completion, and CronJobs, which create Jobs.
//!
//! The calculations, reasons and messages are as in kube-controller-manager (pkg/controller/job, pkg/controller/cronjob).
//! Each Pod has a finalizer until the status of its Job counts it. Indexed Jobs get no Pods.

use std::time::{Duration, SystemTime};

use listwatch_formats::{schedule::Schedule, time::parse_time};
use serde_json::{Value, json};

use super::{
    Controllers, change, delete, make, owners, record, record_warning,
    rollout::{
        PODS_AT_ONCE, RETRY_PAUSE, Stored, claim, condition, controlled, count, is_ready, make_pod, name,
        owner_reference, pod_of, remove_condition, room, set_count,
    },
    uid,
};
use crate::{
    kinds::{
        Part,
        metadata::{finalizers, is_terminating},
        pods::has_ended,
    },
    storage::{Place, Storage},
    verbs::delete::{Deletion, Propagation},
};

/// Holds a Pod until its Job has counted it.
const TRACKING: &str = "batch.kubernetes.io/job-tracking";

/// The pause before a failed Pod is replaced. It doubles after each failure, up to the maximum.
const BACKOFF: Duration = Duration::from_secs(10);
const BACKOFF_MAX: Duration = Duration::from_secs(600);

/// Most runs of a CronJob that were missed and are looked at one by one.
const MISSED_MAX: u32 = 100;

/// Why and how a Job ends.
struct End {
    /// The condition while Pods are left: `SuccessCriteriaMet` or `FailureTarget`.
    interim: &'static str,
    /// The condition at the end: `Complete` or `Failed`.
    last: &'static str,
    reason: String,
    message: String,
}

impl End {
    fn failed(reason: &str, message: &str) -> End {
        End {
            interim: "FailureTarget",
            last: "Failed",
            reason: reason.to_owned(),
            message: message.to_owned(),
        }
    }

    fn complete() -> End {
        let message = "Reached expected number of succeeded pods".to_owned();
        End {
            interim: "SuccessCriteriaMet",
            last: "Complete",
            reason: "CompletionsReached".to_owned(),
            message,
        }
    }

    /// The end that an earlier reconcile has decided.
    fn of(job: &Value) -> Option<End> {
        let text = |condition: &Value, field: &str| condition[field].as_str().unwrap_or_default().to_owned();
        for end in [End::failed("", ""), End::complete()] {
            if let Some(interim) = condition(job, end.interim).filter(|one| one["status"] == "True") {
                let (reason, message) = (text(interim, "reason"), text(interim, "message"));
                return Some(End { reason, message, ..end });
            }
        }
        None
    }
}

fn is(job: &Value, kind: &str) -> bool {
    condition(job, kind).is_some_and(|one| one["status"] == "True")
}

fn is_finished(job: &Value) -> bool {
    is(job, "Complete") || is(job, "Failed")
}

/// A terminating Pod counts as failed, unless only failed Pods are replaced.
fn has_failed(job: &Value, pod: &Value) -> bool {
    pod["status"]["phase"] == "Failed"
        || (job["spec"]["podReplacementPolicy"] != "Failed"
            && is_terminating(pod)
            && pod["status"]["phase"] != "Succeeded")
}

fn is_tracked(pod: &Value) -> bool {
    finalizers(pod).contains(&TRACKING)
}

fn untrack(storage: &mut Storage, place: &Place) {
    change(storage, place, Part::Main, |pod| {
        if let Some(list) = pod["metadata"]["finalizers"].as_array_mut() {
            list.retain(|one| one != TRACKING);
        }
    });
}

/// Removes the finalizer of a Pod whose Job no longer exists, or is no longer its owner.
pub(crate) fn release_orphan(storage: &mut Storage, place: &Place, pod: &Value) {
    if !is_tracked(pod) {
        return;
    }
    let owner = owners(pod).find(|owner| owner["kind"] == "Job" && owner["controller"] == true);
    let job = owner.and_then(|owner| {
        let job = Place::new("jobs.batch", place.namespace(), owner["name"].as_str()?);
        storage.get(&job).filter(|job| owner["uid"] == job["metadata"]["uid"])
    });
    if job.is_none() {
        untrack(storage, place);
    }
}

/// Reconciles a Job.
pub(crate) fn job(controllers: &mut Controllers, storage: &mut Storage, place: &Place, job: &Value) {
    let manager = job["spec"]["managedBy"].as_str().unwrap_or("kubernetes.io/job-controller");
    let is_indexed = job["spec"]["completionMode"] == "Indexed";
    if is_finished(job) {
        return clean_up(controllers, storage, place, job);
    }
    if is_indexed || manager != "kubernetes.io/job-controller" {
        return;
    }
    if !is_terminating(job) {
        claim(storage, job, "pods", |_| true);
    }
    let pods = controlled(storage, job, "pods");
    let tracked = || pods.iter().filter(|(_, pod)| is_tracked(pod));
    let succeeded = tracked().filter(|(_, pod)| pod["status"]["phase"] == "Succeeded").count();
    let failed = tracked().filter(|(_, pod)| has_failed(job, pod)).count();
    let succeeded = count(job, "/status/succeeded") + i64::try_from(succeeded).unwrap_or(0);
    let failed = count(job, "/status/failed") + i64::try_from(failed).unwrap_or(0);
    let mut end = End::of(job).or_else(|| failure(controllers, storage, place, job, &pods, failed));
    if end.as_ref().is_some_and(|end| end.last == "Failed") {
        for (pod_place, pod) in pods.iter().filter(|(_, pod)| is_active(pod)) {
            delete_pod(storage, job, pod_place, pod);
        }
    } else if end.is_none() && !is_terminating(job) {
        manage(controllers, storage, place, job, &pods, succeeded, failed);
        let is_idle = !controlled(storage, job, "pods").iter().any(|(_, pod)| is_active(pod));
        let enough = job["spec"]["completions"].as_i64().unwrap_or(1);
        end = (is_idle && succeeded >= enough).then(End::complete);
    }
    write_status(storage, place, job, end.as_ref());
}

/// Deletes a finished Job after `ttlSecondsAfterFinished`.
fn clean_up(controllers: &mut Controllers, storage: &mut Storage, place: &Place, job: &Value) {
    let Some(ttl) = job["spec"]["ttlSecondsAfterFinished"].as_u64() else { return };
    let last = ["Complete", "Failed"].into_iter().find_map(|kind| condition(job, kind));
    let age = last.and_then(|last| storage.clock.since(&last["lastTransitionTime"])).unwrap_or_default();
    let left = Duration::from_secs(ttl).saturating_sub(age);
    if left.is_zero() {
        let foreground = Deletion { propagation: Some(Propagation::Foreground), ..Deletion::default() };
        delete(storage, place, &foreground);
    } else {
        controllers.requeue(place, left);
    }
}

/// Whether a Pod runs or will run.
fn is_active(pod: &Value) -> bool {
    !has_ended(pod) && !is_terminating(pod)
}

/// Why a Job fails, if it does.
fn failure(
    controllers: &mut Controllers,
    storage: &Storage,
    place: &Place,
    job: &Value,
    pods: &[Stored],
    failed: i64,
) -> Option<End> {
    let limit = count(job, "/spec/backoffLimit");
    let mut restarts = 0;
    for (_, pod) in pods.iter().filter(|(_, pod)| !has_ended(pod)) {
        let statuses = pod["status"]["containerStatuses"].as_array().into_iter().flatten();
        restarts += statuses.map(|status| count(status, "/restartCount")).sum::<i64>();
    }
    let restarts_in_place = job["spec"]["template"]["spec"]["restartPolicy"] == "OnFailure";
    if failed > limit || (restarts_in_place && restarts >= limit.max(1)) {
        return Some(End::failed("BackoffLimitExceeded", "Job has reached the specified backoff limit"));
    }
    let deadline = u64::try_from(job["spec"]["activeDeadlineSeconds"].as_i64()?).ok()?;
    if job["spec"]["suspend"] == true {
        return None;
    }
    let age = storage.clock.since(&job["status"]["startTime"]).unwrap_or_default();
    let left = Duration::from_secs(deadline).saturating_sub(age);
    if left.is_zero() {
        return Some(End::failed("DeadlineExceeded", "Job was active longer than specified deadline"));
    }
    controllers.requeue(place, left);
    None
}

/// Creates or deletes Pods, so that as many are active as can be of use.
fn manage(
    controllers: &mut Controllers,
    storage: &mut Storage,
    place: &Place,
    job: &Value,
    pods: &[Stored],
    succeeded: i64,
    failed: i64,
) {
    let mut active: Vec<&Stored> = pods.iter().filter(|(_, pod)| is_active(pod)).collect();
    let parallelism = count(job, "/spec/parallelism");
    let running = i64::try_from(active.len()).unwrap_or(i64::MAX);
    let wanted = match job["spec"]["completions"].as_i64() {
        _ if job["spec"]["suspend"] == true => 0,
        Some(completions) => (completions - succeeded).clamp(0, parallelism.max(0)),
        None if succeeded > 0 => running,
        None => parallelism,
    };
    // Pods that are not ready are deleted first.
    active.sort_by_key(|(_, pod)| is_ready(pod));
    let surplus = usize::try_from(running - wanted).unwrap_or(0);
    for (pod_place, pod) in active.into_iter().take(surplus) {
        // Without the finalizer, the Pod does not count as failed.
        untrack(storage, pod_place);
        delete_pod(storage, job, pod_place, pod);
    }
    let mut missing = usize::try_from(wanted - running).unwrap_or(0);
    if job["spec"]["podReplacementPolicy"] == "Failed" {
        let ending = pods.iter().filter(|(_, pod)| is_terminating(pod) && !has_ended(pod)).count();
        missing = missing.saturating_sub(ending);
    }
    if missing == 0 {
        return;
    }
    let pause = backoff(storage, pods, failed);
    if !pause.is_zero() {
        return controllers.requeue(place, pause);
    }
    let room = room(storage);
    if room < missing {
        controllers.requeue(place, RETRY_PAUSE);
    }
    // Each new Pod queues the Job again.
    for _ in 0..missing.min(room).min(PODS_AT_ONCE) {
        let mut pod = pod_of(job, &job["spec"]["template"]);
        pod["metadata"]["finalizers"] = json!([TRACKING]);
        if make_pod(storage, job, "job-controller", pod).is_err() {
            return controllers.requeue(place, RETRY_PAUSE);
        }
    }
}

/// The time until the next Pod may replace a failed one.
fn backoff(storage: &Storage, pods: &[Stored], failed: i64) -> Duration {
    let Some(doublings) = u32::try_from(failed).unwrap_or(u32::MAX).checked_sub(1) else {
        return Duration::ZERO;
    };
    let pause = BACKOFF.saturating_mul(2_u32.saturating_pow(doublings)).min(BACKOFF_MAX);
    let mut since = pause;
    for (_, pod) in pods.iter().filter(|(_, pod)| pod["status"]["phase"] == "Failed") {
        for status in pod["status"]["containerStatuses"].as_array().into_iter().flatten() {
            let ended = storage.clock.since(&status["state"]["terminated"]["finishedAt"]);
            since = since.min(ended.unwrap_or(pause));
        }
    }
    pause - since
}

fn delete_pod(storage: &mut Storage, job: &Value, place: &Place, pod: &Value) {
    delete(storage, place, &Deletion::default());
    let message = format!("Deleted pod: {}", name(pod));
    record(storage, job, "job-controller", "SuccessfulDelete", &message);
}

/// Counts the Pods that have ended, lets them go, and writes the conditions.
fn write_status(storage: &mut Storage, place: &Place, job: &Value, end: Option<&End>) {
    let pods = controlled(storage, job, "pods");
    let (mut succeeded, mut failed) = (count(job, "/status/succeeded"), count(job, "/status/failed"));
    for (pod_place, pod) in pods.iter().filter(|(_, pod)| is_tracked(pod)) {
        let has_failed = has_failed(job, pod);
        if pod["status"]["phase"] == "Succeeded" {
            succeeded += 1;
        } else if has_failed {
            failed += 1;
        } else if end.is_none() && !is_terminating(job) {
            continue;
        }
        untrack(storage, pod_place);
    }
    let pods = controlled(storage, job, "pods");
    let active = pods.iter().filter(|(_, pod)| is_active(pod));
    let ready = active.clone().filter(|(_, pod)| is_ready(pod)).count();
    let terminating = pods.iter().filter(|(_, pod)| is_terminating(pod) && !has_ended(pod)).count();
    let (active, now) = (active.count(), storage.clock.time());
    let end_now = end.filter(|_| active == 0 && terminating == 0);
    let mut turned = None;
    change(storage, place, Part::Status, |job| {
        let suspended = job["spec"]["suspend"] == true;
        if job["status"]["startTime"].is_null() && !suspended {
            job["status"]["startTime"] = now.as_str().into();
        }
        if let Some(end) = end {
            add_condition(job, end.interim, "True", &end.reason, &end.message, &now);
        } else if !is_terminating(job) && suspended && !is(job, "Suspended") {
            remove_condition(job, "Suspended");
            add_condition(job, "Suspended", "True", "JobSuspended", "Job suspended", &now);
            turned = Some(("Suspended", "Job suspended"));
            if let Some(status) = job["status"].as_object_mut() {
                status.remove("startTime");
            }
        } else if !suspended && is(job, "Suspended") {
            remove_condition(job, "Suspended");
            add_condition(job, "Suspended", "False", "JobResumed", "Job resumed", &now);
            turned = Some(("Resumed", "Job resumed"));
            job["status"]["startTime"] = now.as_str().into();
        }
        if let Some(end) = end_now {
            add_condition(job, end.last, "True", &end.reason, &end.message, &now);
            if end.last == "Complete" {
                job["status"]["completionTime"] = now.as_str().into();
            }
        }
        let status = &mut job["status"];
        set_count(status, "active", active);
        set_count(status, "succeeded", succeeded);
        set_count(status, "failed", failed);
        status["ready"] = ready.into();
        status["terminating"] = terminating.into();
        status["uncountedTerminatedPods"] = json!({});
    });
    if let Some((reason, message)) = turned {
        record(storage, job, "job-controller", reason, message);
    }
    match end_now {
        Some(end) if end.last == "Complete" => {
            record(storage, job, "job-controller", "Completed", "Job completed");
        }
        Some(end) => record_warning(storage, job, "job-controller", &end.reason, &end.message),
        None => {}
    }
}

/// Adds a condition of a Job, with its `lastProbeTime`, unless it is there.
fn add_condition(job: &mut Value, kind: &str, status: &str, reason: &str, message: &str, now: &str) {
    if condition(job, kind).is_some() {
        return;
    }
    let condition = json!({"type": kind, "status": status, "reason": reason, "message": message,
        "lastProbeTime": now, "lastTransitionTime": now});
    match job["status"]["conditions"].as_array_mut() {
        Some(conditions) => conditions.push(condition),
        None => job["status"]["conditions"] = json!([condition]),
    }
}

/// Reconciles a CronJob: counts its Jobs, deletes old ones, and creates the next one on time.
pub(crate) fn cron_job(
    controllers: &mut Controllers,
    storage: &mut Storage,
    place: &Place,
    cron_job: &Value,
) {
    let jobs = controlled(storage, cron_job, "jobs.batch");
    let running = |of: &Value| {
        let known = jobs.iter().find(|(_, job)| of["uid"] == job["metadata"]["uid"]);
        known.is_some_and(|(_, job)| !is_finished(job))
    };
    for active in cron_job["status"]["active"].as_array().into_iter().flatten().filter(|one| !running(one)) {
        let active = active["name"].as_str().unwrap_or_default();
        let done = jobs.iter().find(|(_, job)| name(job) == active);
        match done.and_then(|(_, job)| ["Complete", "Failed"].into_iter().find(|kind| is(job, kind))) {
            Some(kind) => {
                let message = format!("Saw completed job: {active}, condition: {kind}");
                record(storage, cron_job, "cronjob-controller", "SawCompletedJob", &message);
            }
            None => {
                let message = format!("Active job went missing: {active}");
                record(storage, cron_job, "cronjob-controller", "MissingJob", &message);
            }
        }
    }
    // Timestamps in this format are in order.
    let done = jobs.iter().filter(|(_, job)| is(job, "Complete"));
    let last = done.filter_map(|(_, job)| job["status"]["completionTime"].as_str()).max();
    change(storage, place, Part::Status, |cron_job| {
        let status = &mut cron_job["status"];
        if let Some(active) = status["active"].as_array_mut() {
            active.retain(running);
            if active.is_empty() {
                status.as_object_mut().map(|status| status.remove("active"));
            }
        }
        if last > status["lastSuccessfulTime"].as_str() {
            status["lastSuccessfulTime"] = last.into();
        }
    });
    if !is_terminating(cron_job) {
        let Some(cron_job) = storage.get(place).cloned() else { return };
        run_on_time(controllers, storage, place, &cron_job);
        for (limit, kind) in
            [("successfulJobsHistoryLimit", "Complete"), ("failedJobsHistoryLimit", "Failed")]
        {
            let mut old: Vec<&Stored> = jobs.iter().filter(|(_, job)| is(job, kind)).collect();
            let Ok(limit) = usize::try_from(cron_job["spec"][limit].as_i64().unwrap_or(i64::MAX)) else {
                return;
            };
            old.sort_by_key(|(_, job)| job["status"]["startTime"].as_str().map(str::to_owned));
            for (job_place, job) in old.iter().take(old.len().saturating_sub(limit)) {
                delete_job(storage, &cron_job, job_place, job);
            }
        }
    }
}

fn delete_job(storage: &mut Storage, cron_job: &Value, place: &Place, job: &Value) {
    let background = Deletion { propagation: Some(Propagation::Background), ..Deletion::default() };
    delete(storage, place, &background);
    let message = format!("Deleted job {}", name(job));
    record(storage, cron_job, "cronjob-controller", "SuccessfulDelete", &message);
}

/// The last time of a schedule up to now.
fn last_time(schedule: &Schedule, earliest: SystemTime, now: SystemTime) -> Option<SystemTime> {
    let mut last = schedule.next(earliest).filter(|first| *first <= now)?;
    let pause = schedule.next(last)?.duration_since(last).ok()?;
    // After a long time, only the last runs are looked at.
    if now.duration_since(last).unwrap_or_default() > pause * MISSED_MAX {
        last = schedule.next(now - pause * 2).filter(|first| *first <= now).unwrap_or(last);
    }
    for _ in 0..MISSED_MAX {
        match schedule.next(last) {
            Some(next) if next <= now => last = next,
            Some(_) | None => break,
        }
    }
    Some(last)
}

/// Creates the Job that is due.
fn run_on_time(controllers: &mut Controllers, storage: &mut Storage, place: &Place, cron_job: &Value) {
    let spec = &cron_job["spec"];
    let Ok(schedule) = Schedule::parse(spec["schedule"].as_str().unwrap_or_default()) else { return };
    if spec["suspend"] == true {
        return;
    }
    let now = storage.clock.now();
    let last_run = &cron_job["status"]["lastScheduleTime"];
    let earliest = if last_run.is_null() { &cron_job["metadata"]["creationTimestamp"] } else { last_run };
    let Ok(earliest) = parse_time(earliest.as_str().unwrap_or_default()) else { return };
    let deadline = spec["startingDeadlineSeconds"].as_u64().map(Duration::from_secs);
    let earliest =
        deadline.and_then(|deadline| now.checked_sub(deadline)).map_or(earliest, |first| earliest.max(first));
    if let Some(next) = schedule.next(now) {
        let left = next.duration_since(now).unwrap_or_default();
        controllers.requeue(place, left);
    }
    let Some(due) = last_time(&schedule, earliest, now) else { return };
    let active = cron_job["status"]["active"].as_array().cloned().unwrap_or_default();
    if spec["concurrencyPolicy"] == "Forbid" && !active.is_empty() {
        let message = "Not starting job because prior execution is running and concurrency policy is Forbid";
        return record(storage, cron_job, "cronjob-controller", "JobAlreadyActive", message);
    }
    if spec["concurrencyPolicy"] == "Replace" {
        for (job_place, job) in controlled(storage, cron_job, "jobs.batch") {
            if active.iter().any(|one| one["uid"] == uid(&job)) {
                delete_job(storage, cron_job, &job_place, &job);
            }
        }
    }
    let minutes = due.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs() / 60;
    let due = humantime::format_rfc3339_seconds(due).to_string();
    let template = &spec["jobTemplate"];
    let mut metadata = json!({"name": format!("{}-{minutes}", name(cron_job)),
        "labels": template["metadata"]["labels"], "annotations": template["metadata"]["annotations"],
        "ownerReferences": [owner_reference(cron_job)]});
    metadata["annotations"]["batch.kubernetes.io/cronjob-scheduled-timestamp"] = due.as_str().into();
    let job = json!({"metadata": metadata, "spec": template["spec"]});
    let Some(job) = make(storage, "batch", "jobs", place.namespace(), job) else { return };
    let message = format!("Created job {}", name(&job));
    record(storage, cron_job, "cronjob-controller", "SuccessfulCreate", &message);
    change(storage, place, Part::Status, |cron_job| {
        let reference = json!({"kind": "Job", "apiVersion": "batch/v1", "name": name(&job), "uid": uid(&job),
            "namespace": job["metadata"]["namespace"], "resourceVersion": job["metadata"]["resourceVersion"]});
        let status = &mut cron_job["status"];
        match status["active"].as_array_mut() {
            Some(active) => active.push(reference),
            None => status["active"] = json!([reference]),
        }
        status["lastScheduleTime"] = due.into();
    });
}
