//! Pod Security Admission: the labels of a namespace say which level of the Pod Security Standards its Pods must have, and about which the
//! clients are warned.
//!
//! ```text
//! pod-security.kubernetes.io/enforce: restricted
//! pod-security.kubernetes.io/warn-version: v1.34
//! ```
//!
//! Only Pods are refused. The author of a Deployment gets a warning, and later the Event `FailedCreate`. The labels for audits are only
//! validated, because there is no audit log. See <https://kubernetes.io/docs/concepts/security/pod-security-admission/>.

mod checks;

use std::{collections::BTreeMap, fmt};

use serde_json::Value;

use self::checks::{Pod, Violation, containers, violations};
use crate::{
    admission::plugins::in_namespace,
    kinds::{Kind, field_checks::text, pods::template},
    status::{Cause, StatusError},
    storage::{Place, Storage},
};

/// The labels of each mode: of the level, and of the version.
const ENFORCE: [&str; 2] =
    ["pod-security.kubernetes.io/enforce", "pod-security.kubernetes.io/enforce-version"];
const AUDIT: [&str; 2] = ["pod-security.kubernetes.io/audit", "pod-security.kubernetes.io/audit-version"];
const WARN: [&str; 2] = ["pod-security.kubernetes.io/warn", "pod-security.kubernetes.io/warn-version"];

/// Most Pods that are checked when a namespace gets a stricter level.
const PODS_CHECKED_MAX: usize = 3000;

/// How strict the standards are.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
enum Level {
    Privileged,
    Baseline,
    Restricted,
}

impl Level {
    fn parse(text: &str) -> Option<Level> {
        match text {
            "privileged" => Some(Level::Privileged),
            "baseline" => Some(Level::Baseline),
            "restricted" => Some(Level::Restricted),
            _ => None,
        }
    }
}

/// A level, and the version of the standards. `latest` is the largest number.
#[derive(Clone, Copy, Debug)]
struct Policy {
    level: Level,
    minor: u32,
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let level = match self.level {
            Level::Privileged => "privileged",
            Level::Baseline => "baseline",
            Level::Restricted => "restricted",
        };
        match self.minor {
            u32::MAX => write!(f, "{level}:latest"),
            minor => write!(f, "{level}:v1.{minor}"),
        }
    }
}

impl Policy {
    fn violations(self, metadata: &Value, spec: &Value) -> Vec<Violation> {
        violations(self.level, &Pod { metadata, spec, minor: self.minor })
    }

    /// Why a Pod violates the policy.
    fn check(self, metadata: &Value, spec: &Value) -> Option<String> {
        let all = self.violations(metadata, spec);
        let details: Vec<String> = all.iter().map(Violation::detailed).collect();
        (!all.is_empty()).then(|| format!("violate PodSecurity \"{self}\": {}", details.join(", ")))
    }
}

/// The policies of a namespace, and the errors of its labels.
struct Policies {
    enforce: Policy,
    warn: Policy,
    errors: Vec<Cause>,
}

impl Policies {
    fn of(namespace: &Value) -> Policies {
        let labels = &namespace["metadata"]["labels"];
        let mut errors = Vec::new();
        let mut policy = |[level_label, version_label]: [&str; 2], of_invalid: Level| {
            let (level, version) = (&labels[level_label], &labels[version_label]);
            let mut invalid = |label: &str, value: &Value, text: &str| {
                errors.push(Cause::invalid(format!("metadata.labels[{label}]"), value, text));
            };
            let parsed_level = match level.as_str() {
                None => Level::Privileged,
                Some(text) => Level::parse(text).unwrap_or_else(|| {
                    invalid(level_label, level, "must be one of privileged, baseline, restricted");
                    of_invalid
                }),
            };
            let minor = minor(version);
            if minor.is_none() {
                invalid(version_label, version, "must be \"latest\" or \"v1.x\"");
            }
            Policy { level: parsed_level, minor: minor.unwrap_or(u32::MAX) }
        };
        let enforce = policy(ENFORCE, Level::Restricted);
        policy(AUDIT, Level::Privileged);
        let mut warn = policy(WARN, Level::Privileged);
        let is_valid = Level::parse(text(&labels[ENFORCE[0]])).is_some();
        // An author of a Deployment is warned about its Pods, unless another level is chosen for warnings.
        if labels[WARN[0]].is_null() && is_valid && enforce.level > warn.level {
            warn.level = enforce.level;
            if labels[WARN[1]].is_null() {
                warn.minor = enforce.minor;
            }
        }
        Policies { enforce, warn, errors }
    }
}

/// The number in `v1.36`. `None` if the version is invalid.
fn minor(version: &Value) -> Option<u32> {
    match version.as_str() {
        None | Some("latest") => Some(u32::MAX),
        Some(version) => {
            let digits = version.strip_prefix("v1.")?;
            let is_number = digits.bytes().all(|byte| byte.is_ascii_digit());
            digits.parse().ok().filter(|_| is_number && (digits == "0" || !digits.starts_with('0')))
        }
    }
}

/// Checks a valid object. Returns the warnings.
pub(super) fn validate(
    storage: &Storage,
    kind: &Kind,
    object: &Value,
    before: Option<&Value>,
) -> Result<Vec<String>, StatusError> {
    if kind.built_in() == "Namespace" {
        return validate_namespace(storage, kind, object, before);
    }
    let Some((_, template)) = template(kind.built_in(), object) else { return Ok(Vec::new()) };
    let is_pod = kind.built_in() == "Pod";
    if is_pod && before.is_some_and(|before| images(before) == images(object)) {
        return Ok(Vec::new());
    }
    let metadata = &object["metadata"];
    let namespace = Place::new("namespaces", None, text(&metadata["namespace"]));
    let Some(namespace) = storage.get(&namespace) else { return Ok(Vec::new()) };
    let policies = Policies::of(namespace);
    let check = |policy: Policy| policy.check(&template["metadata"], &template["spec"]);
    if is_pod && let Some(violation) = check(policies.enforce) {
        let why = violation.replacen("violate", "violates", 1);
        return Err(StatusError::forbidden(kind, text(&metadata["name"]), &why));
    }
    Ok(check(policies.warn).map(|violation| format!("would {violation}")).into_iter().collect())
}

/// The images of a Pod. An update of other fields is not checked.
fn images(pod: &Value) -> Vec<[&Value; 2]> {
    containers(&pod["spec"]).map(|container| [&container["name"], &container["image"]]).collect()
}

/// Refuses invalid labels. Warns about the Pods that a new level would refuse.
fn validate_namespace(
    storage: &Storage,
    kind: &Kind,
    namespace: &Value,
    before: Option<&Value>,
) -> Result<Vec<String>, StatusError> {
    let (name, new) = (text(&namespace["metadata"]["name"]), Policies::of(namespace));
    let old = before.map(Policies::of);
    if !new.errors.is_empty() && old.as_ref().is_none_or(|old| old.errors != new.errors) {
        return Err(StatusError::invalid(kind, name, new.errors));
    }
    let Some(old) = old else { return Ok(Vec::new()) };
    let is_relaxed = new.enforce.minor == old.enforce.minor && new.enforce.level <= old.enforce.level;
    if is_relaxed || new.enforce.level == Level::Privileged {
        return Ok(Vec::new());
    }
    Ok(warnings_about_pods(storage, name, new.enforce))
}

/// The warnings about the Pods of a namespace: one for all Pods with the same violations.
fn warnings_about_pods(storage: &Storage, namespace: &str, policy: Policy) -> Vec<String> {
    let pods: Vec<_> = in_namespace(storage, "pods", &namespace.into()).collect();
    let mut violating = BTreeMap::<String, Vec<&str>>::new();
    for pod in pods.iter().take(PODS_CHECKED_MAX) {
        let violations = policy.violations(&pod["metadata"], &pod["spec"]);
        let reasons: Vec<&str> = violations.iter().map(|violation| violation.reason).collect();
        if !reasons.is_empty() {
            violating.entry(reasons.join(", ")).or_default().push(text(&pod["metadata"]["name"]));
        }
    }
    let mut warnings = Vec::new();
    if pods.len() > PODS_CHECKED_MAX {
        warnings.push(format!(
            "new PodSecurity enforce level only checked against the first {PODS_CHECKED_MAX} of {} existing pods",
            pods.len()
        ));
    }
    if !violating.is_empty() {
        warnings.push(format!(
            "existing pods in namespace {namespace:?} violate the new PodSecurity enforce level \"{policy}\""
        ));
    }
    let about = violating.into_iter().map(|(reasons, names)| {
        let first = names.iter().min().unwrap_or(&"");
        match names.len() {
            1 => format!("{first}: {reasons}"),
            2 => format!("{first} (and 1 other pod): {reasons}"),
            count => format!("{first} (and {} other pods): {reasons}", count - 1),
        }
    });
    let mut about: Vec<String> = about.collect();
    about.sort();
    warnings.extend(about);
    warnings
}
