//! Validation of Jobs and CronJobs, as in pkg/apis/batch/validation of Kubernetes.
//!
//! Policies for the failure of Pods and the success of Jobs are checked for their types only.

use listwatch_formats::{schedule::Schedule, selector::Selector};
use serde_json::{Value, json};

use crate::{
    kinds::{
        defaults::POD_LABELS,
        field_checks::{IMMUTABLE, each, not_negative, not_one_of, text},
        validation::{pod_template, selector},
    },
    status::Cause,
};

/// Longest name of a CronJob: its Jobs have eleven more characters.
const CRON_JOB_NAME_MAX: usize = 52;

pub(crate) fn job(object: &Value, before: Option<&Value>) -> Vec<Cause> {
    let spec = &object["spec"];
    let mut all = Vec::new();
    if spec["manualSelector"] != true && !spec["selector"].is_null() {
        generated_labels(&mut all, object);
    }
    let mut of_spec = Vec::new();
    job_spec(&mut of_spec, spec, "spec");
    if spec["selector"].is_null() {
        of_spec.push(Cause::required("spec.selector", ""));
    } else {
        of_spec.extend(selector(&spec["selector"], "spec.selector"));
    }
    let labels = &spec["template"]["metadata"]["labels"];
    if spec["selector"].is_null() || !Selector::from_object(&spec["selector"]).matches(labels) {
        let text = "`selector` does not match template `labels`";
        of_spec.push(Cause::invalid("spec.template.metadata.labels", labels, text));
    }
    all.extend(of_spec.clone());
    if let Some(before) = before {
        // kube-apiserver validates the spec of an update twice.
        all.extend(of_spec);
        job_changes(&mut all, spec, before);
        job_status(&mut all, &object["status"], &before["status"]);
    }
    all
}

/// The template must have the labels that the server generates.
fn generated_labels(all: &mut Vec<Cause>, job: &Value) {
    let template = &job["spec"]["template"]["metadata"];
    let mut expected = json!({});
    for (key, field) in POD_LABELS {
        let (at, value) = ("spec.template.metadata", &job["metadata"][field]);
        let label = &template["labels"][key];
        if label.is_null() {
            let text = format!("must be '{}'", text(value));
            all.push(Cause::required(format!("{at}.labels[{key}]"), &text));
        } else if label != value {
            let text = format!("must be '{}'", text(value));
            all.push(Cause::invalid(format!("{at}.labels[{key}]"), &template["labels"], &text));
        }
        expected[key] = value.clone();
    }
    if !Selector::from_object(&job["spec"]["selector"]).matches(&expected) {
        all.push(Cause::invalid("spec.selector", &job["spec"]["selector"], "`selector` not auto-generated"));
    }
}

/// Validates the spec of a Job, or of the template of a CronJob.
fn job_spec(all: &mut Vec<Cause>, spec: &Value, at: &str) {
    let counts = [
        "parallelism",
        "completions",
        "activeDeadlineSeconds",
        "backoffLimit",
        "ttlSecondsAfterFinished",
        "backoffLimitPerIndex",
        "maxFailedIndexes",
    ];
    not_negative(all, spec, at, &counts);
    if !spec["completionMode"].is_null() {
        let modes = ["NonIndexed", "Indexed"];
        not_one_of(all, format!("{at}.completionMode"), &spec["completionMode"], &modes);
    }
    let (mode, is_indexed) = (&spec["completionMode"], spec["completionMode"] == "Indexed");
    let is_plain = mode.is_null() || mode == "NonIndexed";
    if is_indexed && spec["completions"].is_null() {
        all.push(Cause::required(format!("{at}.completions"), "when completion mode is Indexed"));
    }
    for field in ["backoffLimitPerIndex", "maxFailedIndexes", "successPolicy"] {
        if is_plain && !spec[field].is_null() {
            all.push(Cause::invalid(
                format!("{at}.{field}"),
                &spec[field],
                "requires indexed completion mode",
            ));
        }
    }
    let policy = &spec["podReplacementPolicy"];
    if !policy.is_null() {
        let supported: &[&str] = match spec["podFailurePolicy"].is_null() {
            true => &["Failed", "TerminatingOrFailed"],
            false => &["Failed"],
        };
        not_one_of(all, format!("{at}.podReplacementPolicy"), policy, supported);
    }
    pod_template(all, &spec["template"], &format!("{at}.template"));
    let (restarts, field) =
        (&spec["template"]["spec"]["restartPolicy"], format!("{at}.template.spec.restartPolicy"));
    match text(restarts) {
        "" | "Always" => all.push(Cause::required(field, r#"valid values: "OnFailure", "Never""#)),
        "OnFailure" if !spec["podFailurePolicy"].is_null() => {
            let text = r#"only "Never" is supported when podFailurePolicy is specified"#;
            all.push(Cause::invalid(field, restarts, text));
        }
        _ => not_one_of(all, field, restarts, &["OnFailure", "Never"]),
    }
}

/// Most fields of a Job are immutable. While a Job is suspended, its Pods can get other nodes and resources.
fn job_changes(all: &mut Vec<Cause>, spec: &Value, before: &Value) {
    let was = &before["spec"];
    let status = &before["status"];
    let is_suspended =
        each(&status["conditions"]).any(|one| one["type"] == "Suspended" && one["status"] == "True");
    let may_move = was["suspend"] == true
        && (status["startTime"].is_null() || is_suspended)
        && status["active"].as_i64().unwrap_or(0) == 0;
    let fixed_template = |template: &Value| {
        let mut template = template.clone();
        if may_move {
            for field in ["labels", "annotations"] {
                template["metadata"][field] = Value::Null;
            }
            for field in ["nodeSelector", "tolerations", "schedulingGates"] {
                template["spec"][field] = Value::Null;
            }
            for list in ["containers", "initContainers"] {
                for container in template["spec"][list].as_array_mut().into_iter().flatten() {
                    container["resources"] = Value::Null;
                }
            }
        }
        template
    };
    if spec["completions"] != was["completions"] && spec["completionMode"] != "Indexed" {
        all.push(Cause::invalid("spec.completions", &spec["completions"], IMMUTABLE));
    }
    if spec["selector"] != was["selector"] {
        all.push(Cause::invalid("spec.selector", &spec["selector"], IMMUTABLE));
    }
    if fixed_template(&spec["template"]) != fixed_template(&was["template"]) {
        let (field, value) = match may_move {
            true => ("spec.template.spec", &spec["template"]["spec"]),
            false => ("spec.template", &spec["template"]),
        };
        all.push(Cause::invalid(field, value, IMMUTABLE));
    }
    for field in ["completionMode", "podFailurePolicy", "backoffLimitPerIndex", "managedBy", "successPolicy"]
    {
        if spec[field] != was[field] {
            all.push(Cause::invalid(format!("spec.{field}"), &spec[field], IMMUTABLE));
        }
    }
}

/// Refuses contradictions in a status: a Job that is finished stays so.
fn job_status(all: &mut Vec<Cause>, status: &Value, before: &Value) {
    not_negative(all, status, "status", &["active", "succeeded", "failed", "ready", "terminating"]);
    if status == before {
        return;
    }
    let is = |status: &Value, kind: &str| {
        each(&status["conditions"]).any(|one| one["type"] == kind && one["status"] == "True")
    };
    let mut refuse = |is_wrong: bool, field: &str, value: &Value, text: &str| {
        all.extend(is_wrong.then(|| Cause::rule_failed(format!("status.{field}"), value, text)));
    };
    // The message does not show the conditions.
    let none = &status["conditions"];
    let (complete, failed) = (is(status, "Complete"), is(status, "Failed"));
    refuse(complete && failed, "conditions", none, "cannot set Complete=True and Failed=true conditions");
    let text = "cannot set completionTime when there is no Complete=True condition";
    refuse(
        !status["completionTime"].is_null() && !complete,
        "completionTime",
        &status["completionTime"],
        text,
    );
    if complete && status["completionTime"].is_null() {
        let text = "completionTime is required for Complete jobs";
        all.push(Cause::required("status.completionTime", text));
    }
    let mut refuse = |is_wrong: bool, field: &str, value: &Value, text: &str| {
        all.extend(is_wrong.then(|| Cause::rule_failed(format!("status.{field}"), value, text)));
    };
    let text = "cannot set Failed=True condition without the FailureTarget=true condition";
    refuse(failed && !is(status, "FailureTarget"), "conditions", none, text);
    let text = "cannot set Complete=True condition without the SuccessCriteriaMet=true condition";
    refuse(complete && !is(status, "SuccessCriteriaMet"), "conditions", none, text);
    let count = |field: &str| status[field].as_i64().unwrap_or(0);
    let text = "active>0 is invalid for finished job";
    refuse((complete || failed) && count("active") > 0, "active", &status["active"], text);
    let text = "cannot set more ready pods than active";
    refuse(count("ready") > count("active"), "ready", &status["ready"], text);
    for kind in ["Failed", "Complete", "FailureTarget"] {
        let text = format!("cannot disable the terminal {kind}=True condition");
        refuse(is(before, kind) && !is(status, kind), "conditions", none, &text);
    }
}

pub(crate) fn cron_job(object: &Value, before: Option<&Value>) -> Vec<Cause> {
    let spec = &object["spec"];
    let mut all = Vec::new();
    schedule(&mut all, spec, before);
    not_negative(&mut all, spec, "spec", &["startingDeadlineSeconds"]);
    if before.is_none_or(|before| before["spec"]["timeZone"] != spec["timeZone"]) {
        time_zone(&mut all, &spec["timeZone"]);
    }
    let policies = ["Allow", "Forbid", "Replace"];
    not_one_of(&mut all, "spec.concurrencyPolicy".to_owned(), &spec["concurrencyPolicy"], &policies);
    let (job, at) = (&spec["jobTemplate"]["spec"], "spec.jobTemplate.spec");
    job_spec(&mut all, job, at);
    if !job["selector"].is_null() {
        let text = "`selector` will be auto-generated";
        all.push(Cause::invalid(format!("{at}.selector"), &job["selector"], text));
    }
    if job["manualSelector"] == true {
        not_one_of(&mut all, format!("{at}.manualSelector"), &job["manualSelector"], &["nil", "false"]);
    }
    not_negative(&mut all, spec, "spec", &["successfulJobsHistoryLimit", "failedJobsHistoryLimit"]);
    let name = &object["metadata"]["name"];
    if before.is_none() && text(name).len() > CRON_JOB_NAME_MAX {
        all.push(Cause::invalid("metadata.name", name, "must be no more than 52 characters"));
    }
    all
}

fn schedule(all: &mut Vec<Cause>, spec: &Value, before: Option<&Value>) {
    let (at, schedule) = ("spec.schedule", &spec["schedule"]);
    if text(schedule).is_empty() {
        all.push(Cause::required(at, ""));
        return;
    }
    if let Err(why) = Schedule::parse(text(schedule)) {
        all.push(Cause::invalid(at, schedule, &why));
    }
    if text(schedule).contains("TZ") {
        let had_zone = before.is_some_and(|before| text(&before["spec"]["schedule"]).contains("TZ"));
        match (had_zone, spec["timeZone"].is_null()) {
            (true, true) => {}
            (true, false) => {
                let text = "cannot use both timeZone field and TZ or CRON_TZ in schedule";
                all.push(Cause::invalid(at, schedule, text));
            }
            (false, _) => {
                let text = "cannot use TZ or CRON_TZ in schedule, use timeZone field instead";
                all.push(Cause::invalid(at, schedule, text));
            }
        }
    }
}

/// Validates the form of a time zone's name. Whether the zone exists is not known here.
fn time_zone(all: &mut Vec<Cause>, zone: &Value) {
    let Some(name) = zone.as_str() else { return };
    let at = "spec.timeZone";
    if name.is_empty() {
        all.push(Cause::invalid(at, zone, "timeZone must be nil or non-empty string"));
        return;
    }
    let is_part = |part: &str| {
        let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_' | '+');
        (1..=14).contains(&part.len())
            && part.chars().all(is_plain)
            && !part.starts_with('-')
            && !matches!(part, "." | "..")
    };
    if !name.split('/').all(is_part) {
        all.push(Cause::invalid(at, zone, &format!("unknown time zone {name}")));
    } else if name.eq_ignore_ascii_case("Local") {
        let text = "timeZone must be an explicit time zone as defined in https://www.iana.org/time-zones";
        all.push(Cause::invalid(at, zone, text));
        if name != "Local" {
            all.push(Cause::invalid(at, zone, &format!("unknown time zone {name}")));
        }
    }
}
