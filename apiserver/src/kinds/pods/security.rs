//! Validation of the security contexts of Pods and containers, and of the fields that each `spec.os` forbids.

use serde_json::{Value, json};

use super::{Cause, each, not_one_of, text};

/// Longest name of an AppArmor profile, which can be a path on Linux: PATH_MAX - 1.
const PATH_BYTES_MAX: usize = 4095;

/// Validates the security context of a Pod: `validatePodSpecSecurityContext`.
pub(crate) fn pod(all: &mut Vec<Cause>, spec: &Value, at: &str) {
    let (context, root, at) = (&spec["securityContext"], at, format!("{at}.securityContext"));
    for field in ["fsGroup", "runAsUser", "runAsGroup"] {
        id(all, &context[field], format!("{at}.{field}"));
    }
    for (index, group) in each(&context["supplementalGroups"]).enumerate() {
        id(all, group, format!("{at}.supplementalGroups[{index}]"));
    }
    if spec["shareProcessNamespace"] == true && spec["hostPID"] == true {
        let text = "ShareProcessNamespace and HostPID cannot both be enabled";
        all.push(Cause::invalid(format!("{at}.shareProcessNamespace"), &true.into(), text));
    }
    host_users(all, spec, root);
    for (index, sysctl) in each(&context["sysctls"]).enumerate() {
        let (field, name) = (format!("{at}.sysctls[{index}].name"), &sysctl["name"]);
        match text(name) {
            "" => all.push(Cause::required(field, "")),
            name if !is_sysctl(name) => {
                let text = "must have at most 253 characters and match regex \
                    ^([a-z0-9]([-_a-z0-9]*[a-z0-9])?[\\./])*[a-z0-9]([-_a-z0-9]*[a-z0-9])?$";
                all.push(Cause::invalid(field, &name.into(), text));
            }
            _ if each(&context["sysctls"]).take(index).any(|other| other["name"] == *name) => {
                all.push(Cause::duplicate(field, name));
            }
            _ => {}
        }
    }
    let policy = |all: &mut Vec<Cause>, field: &str, supported: &[&str]| {
        if !context[field].is_null() {
            not_one_of(all, format!("{at}.{field}"), &context[field], supported);
        }
    };
    policy(all, "fsGroupChangePolicy", &["Always", "OnRootMismatch"]);
    seccomp(all, &context["seccompProfile"], &at);
    app_armor(all, &context["appArmorProfile"], &at);
    policy(all, "supplementalGroupsPolicy", &["Merge", "Strict"]);
    policy(all, "seLinuxChangePolicy", &["MountOption", "Recursive"]);
}

/// Refuses host namespaces and devices for a Pod with its own user namespace: `validateHostUsers`. Like Go, it names
/// two fields in Go's spelling.
fn host_users(all: &mut Vec<Cause>, spec: &Value, at: &str) {
    if spec["hostUsers"] != false {
        return;
    }
    let text = "when `hostUsers` is false";
    for (field, name) in [("hostNetwork", "hostNetwork"), ("hostPID", "HostPID"), ("hostIPC", "HostIPC")] {
        all.extend((spec[field] == true).then(|| Cause::forbidden(format!("{at}.{name}"), text)));
    }
    for (one, at) in containers(spec, at) {
        let has_devices = each(&one["volumeDevices"]).next().is_some();
        all.extend(has_devices.then(|| Cause::forbidden(format!("{at}.volumeDevices"), text)));
    }
}

/// The containers of a Pod with their paths, in the order of `VisitContainersWithPath`.
fn containers<'a>(spec: &'a Value, at: &str) -> impl Iterator<Item = (&'a Value, String)> {
    ["initContainers", "containers"].into_iter().flat_map(move |list| {
        let all = each(&spec[list]).enumerate();
        all.map(move |(index, one)| (one, format!("{at}.{list}[{index}]")))
    })
}

/// Validates the security context of a container: `ValidateSecurityContext`.
pub(crate) fn container(all: &mut Vec<Cause>, context: &Value, spec: &Value, at: &str) {
    for field in ["runAsUser", "runAsGroup"] {
        id(all, &context[field], format!("{at}.{field}"));
    }
    let mount = &context["procMount"];
    if !mount.is_null() {
        not_one_of(all, format!("{at}.procMount"), mount, &["Default", "Unmasked"]);
    }
    if mount == "Unmasked" && spec["hostUsers"] != false {
        let text = "`hostUsers` must be false to use `Unmasked`";
        all.push(Cause::invalid(format!("{at}.procMount"), mount, text));
    }
    seccomp(all, &context["seccompProfile"], at);
    privileges(all, context, at);
    app_armor(all, &context["appArmorProfile"], at);
}

/// Refuses `allowPrivilegeEscalation: false` for a container that has all privileges.
fn privileges(all: &mut Vec<Cause>, context: &Value, at: &str) {
    if context["allowPrivilegeEscalation"] != false {
        return;
    }
    let is_admin = || each(&context["capabilities"]["add"]).any(|added| added == "CAP_SYS_ADMIN");
    for (is_set, with) in [
        (context["privileged"] == true, "`privileged` to true"),
        (is_admin(), "`capabilities.Add` CAP_SYS_ADMIN"),
    ] {
        if is_set {
            let text = format!("cannot set `allowPrivilegeEscalation` to false and {with}");
            all.push(Cause::invalid(at, context, &text));
        }
    }
}

/// Validates a seccomp profile: `validateSeccompProfileField`.
fn seccomp(all: &mut Vec<Cause>, profile: &Value, at: &str) {
    if profile.is_null() {
        return;
    }
    profile_type(all, profile, at, "seccompProfile");
    let (field, local) = (format!("{at}.seccompProfile.localhostProfile"), &profile["localhostProfile"]);
    match local.as_str() {
        None if profile["type"] == "Localhost" => {
            all.push(Cause::required(field, "must be set when seccomp type is Localhost"));
        }
        None => {}
        Some(_) if profile["type"] != "Localhost" => {
            all.push(Cause::invalid(field, profile, "can only be set when seccomp type is Localhost"));
        }
        Some(path) => {
            if path.starts_with('/') {
                all.push(Cause::invalid(&*field, local, "must be a relative path"));
            }
            if path.split('/').any(|part| part == "..") {
                all.push(Cause::invalid(field, local, "must not contain '..'"));
            }
        }
    }
}

/// Validates an AppArmor profile: `ValidateAppArmorProfileField`.
fn app_armor(all: &mut Vec<Cause>, profile: &Value, at: &str) {
    if profile.is_null() {
        return;
    }
    let (field, local) = (format!("{at}.appArmorProfile.localhostProfile"), &profile["localhostProfile"]);
    match (text(&profile["type"]), local.as_str()) {
        ("Localhost", None | Some("")) => {
            all.push(Cause::required(field, "must be set when AppArmor type is Localhost"));
        }
        ("Localhost", Some(name)) => {
            if name.trim() != name {
                all.push(Cause::invalid(&*field, local, "must not be padded with whitespace"));
            }
            if name.len() > PATH_BYTES_MAX {
                all.push(Cause::too_long(field, &format!("may not be more than {PATH_BYTES_MAX} bytes")));
            }
        }
        ("RuntimeDefault" | "Unconfined", Some(_)) => {
            all.push(Cause::invalid(field, local, "can only be set when AppArmor type is Localhost"));
        }
        _ => profile_type(all, profile, at, "appArmorProfile"),
    }
}

/// The prefix of the annotation with the AppArmor profile of a container. The field has replaced it.
pub(crate) const APP_ARMOR: &str = "container.apparmor.security.beta.kubernetes.io/";
pub(crate) const NO_APP_ARMOR: &str = "deprecated since v1.30; use the \"appArmorProfile\" field instead";

/// The field for the text of an annotation; null if the text is invalid.
pub(crate) fn app_armor_profile(annotation: &str) -> Value {
    match (annotation, annotation.strip_prefix("localhost/")) {
        ("unconfined", _) => json!({"type": "Unconfined"}),
        ("runtime/default", _) => json!({"type": "RuntimeDefault"}),
        (_, Some(name)) if !name.is_empty() => json!({"type": "Localhost", "localhostProfile": name}),
        (_, _) => Value::Null,
    }
}

/// Sets the AppArmor profiles of a new Pod from its annotations, and returns the warnings: `applyAppArmorVersionSkew`.
pub(crate) fn set_app_armor(pod: &mut Value) -> Vec<String> {
    let (annotations, mut warnings) = (pod["metadata"]["annotations"].clone(), Vec::new());
    if annotations.is_null() || pod["spec"]["os"]["name"] == "windows" {
        return warnings;
    }
    let of_pod = pod["spec"]["securityContext"]["appArmorProfile"].clone();
    for list in ["initContainers", "containers"] {
        let containers = pod["spec"].get_mut(list).and_then(Value::as_array_mut);
        for container in containers.into_iter().flatten() {
            let key = format!("{APP_ARMOR}{}", text(&container["name"]));
            let Some(annotation) = annotations[&key].as_str() else { continue };
            if !container["securityContext"]["appArmorProfile"].is_null() {
                continue;
            }
            let (profile, mut errors) = (app_armor_profile(annotation), Vec::new());
            app_armor(&mut errors, &profile, "");
            let is_valid = !profile.is_null() && errors.is_empty();
            if is_valid && profile == of_pod {
                continue;
            }
            if is_valid {
                container["securityContext"]["appArmorProfile"] = profile;
            }
            warnings.push(format!("metadata.annotations[{key}]: {NO_APP_ARMOR}"));
        }
    }
    warnings
}

fn profile_type(all: &mut Vec<Cause>, profile: &Value, at: &str, name: &str) {
    let field = format!("{at}.{name}.type");
    match text(&profile["type"]) {
        "" => all.push(Cause::required(field, &format!("type is required when {name} is set"))),
        _ => not_one_of(all, field, &profile["type"], &["Localhost", "RuntimeDefault", "Unconfined"]),
    }
}

fn id(all: &mut Vec<Cause>, value: &Value, field: String) {
    let max = i64::from(i32::MAX);
    if value.as_i64().is_some_and(|id| !(0..=max).contains(&id)) {
        all.push(Cause::invalid(field, value, &format!("must be between 0 and {max}, inclusive")));
    }
}

fn is_sysctl(name: &str) -> bool {
    let is_part = |part: &str| {
        let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
        part.starts_with(plain) && part.ends_with(plain) && part.chars().all(|c| plain(c) || "-_".contains(c))
    };
    name.len() <= 253 && name.split(['.', '/']).all(is_part)
}

/// Refuses the fields that the operating system in `spec.os` does not support: `validateLinux`, `validateWindows`.
pub(crate) fn system(all: &mut Vec<Cause>, spec: &Value, at: &str) {
    const POD: [&str; 5] = ["appArmorProfile", "seLinuxOptions", "hostUsers", "hostPID", "hostIPC"];
    const CONTEXT: [&str; 9] = [
        "seccompProfile",
        "fsGroup",
        "fsGroupChangePolicy",
        "sysctls",
        "runAsUser",
        "runAsGroup",
        "supplementalGroups",
        "supplementalGroupsPolicy",
        "seLinuxChangePolicy",
    ];
    const CONTAINER: [&str; 10] = [
        "appArmorProfile",
        "seLinuxOptions",
        "seccompProfile",
        "capabilities",
        "readOnlyRootFilesystem",
        "privileged",
        "allowPrivilegeEscalation",
        "procMount",
        "runAsUser",
        "runAsGroup",
    ];
    let os = &spec["os"]["name"];
    let mut forbid = |object: &Value, at: &str, fields: &[&str], text: &str| {
        let there = fields.iter().filter(|field| !object[field].is_null());
        all.extend(there.map(|field| Cause::forbidden(format!("{at}.{field}"), text)));
    };
    let contexts =
        containers(spec, at).map(|(one, at)| (&one["securityContext"], format!("{at}.securityContext")));
    let (context, context_at) = (&spec["securityContext"], format!("{at}.securityContext"));
    match text(os) {
        "linux" => {
            let text = "windows options cannot be set for a linux pod";
            forbid(context, &context_at, &["windowsOptions"], text);
            contexts.for_each(|(context, at)| forbid(context, &at, &["windowsOptions"], text));
        }
        "windows" => {
            let text = "cannot be set for a windows pod";
            forbid(context, &context_at, &POD, text);
            forbid(spec, at, &POD, text);
            forbid(context, &context_at, &CONTEXT[..4], text);
            forbid(spec, at, &["shareProcessNamespace"], text);
            forbid(context, &context_at, &CONTEXT[4..], text);
            contexts.for_each(|(context, at)| forbid(context, &at, &CONTAINER, text));
        }
        _ if spec["os"].is_null() => {}
        "" => all.push(Cause::required(format!("{at}.os.name"), "")),
        _ => not_one_of(all, format!("{at}.os"), os, &["linux", "windows"]),
    }
}
