//! What is wrong with the security contexts of a Pod and its containers, and with what Windows does not have.

use serde_json::Value;

use super::{Cause, each, not_one_of, text};

/// Fields that are profiles, and what they are called.
const PROFILES: [(&str, &str); 2] = [("seccompProfile", "seccomp"), ("appArmorProfile", "AppArmor")];

/// The security context of a Pod: `validatePodSpecSecurityContext`.
pub(super) fn pod(all: &mut Vec<Cause>, spec: &Value, at: &str) {
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
    profiles(all, context, &at);
    for (field, supported) in [
        ("fsGroupChangePolicy", ["Always", "OnRootMismatch"].as_slice()),
        ("supplementalGroupsPolicy", &["Merge", "Strict"]),
        ("seLinuxChangePolicy", &["MountOption", "Recursive"]),
    ] {
        if !context[field].is_null() {
            not_one_of(all, format!("{at}.{field}"), &context[field], supported);
        }
    }
}

/// What a Pod with user IDs of its own cannot share with its node: `validateHostUsers`, which names two of the fields as Go does.
fn host_users(all: &mut Vec<Cause>, spec: &Value, at: &str) {
    if spec["hostUsers"] != false {
        return;
    }
    let text = "when `hostUsers` is false";
    for (field, name) in [("hostNetwork", "hostNetwork"), ("hostPID", "HostPID"), ("hostIPC", "HostIPC")] {
        all.extend((spec[field] == true).then(|| Cause::forbidden(format!("{at}.{name}"), text)));
    }
    for list in ["initContainers", "containers"] {
        for (index, one) in each(&spec[list]).enumerate() {
            let has_devices = each(&one["volumeDevices"]).next().is_some();
            let field = format!("{at}.{list}[{index}].volumeDevices");
            all.extend(has_devices.then(|| Cause::forbidden(field, text)));
        }
    }
}

/// The security context of a container: `ValidateSecurityContext`.
pub(super) fn container(all: &mut Vec<Cause>, context: &Value, spec: &Value, at: &str) {
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
    privileges(all, context, at);
    profiles(all, context, at);
}

/// A container that has all privileges cannot be kept from gaining some.
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

fn profiles(all: &mut Vec<Cause>, context: &Value, at: &str) {
    for (field, name) in PROFILES {
        let (profile, at) = (&context[field], format!("{at}.{field}"));
        if profile.is_null() {
            continue;
        }
        let (field, local) = (format!("{at}.localhostProfile"), &profile["localhostProfile"]);
        match (text(&profile["type"]), local.as_str()) {
            ("Localhost", None) => {
                let text = format!("must be set when {name} type is Localhost");
                all.push(Cause::required(field, &text));
            }
            ("Localhost", Some(_)) if name == "AppArmor" => {}
            ("Localhost", Some(path)) => {
                if path.starts_with('/') {
                    all.push(Cause::invalid(&*field, local, "must be a relative path"));
                }
                if path.split('/').any(|part| part == "..") {
                    all.push(Cause::invalid(field, local, "must not contain '..'"));
                }
            }
            (_, Some(_)) => {
                let value = if name == "seccomp" { profile } else { local };
                let text = format!("can only be set when {name} type is Localhost");
                all.push(Cause::invalid(field, value, &text));
            }
            ("", None) => {
                all.push(Cause::required(
                    format!("{at}.type"),
                    &format!("type is required when {at} is set"),
                ));
            }
            (_, None) => {
                let types = ["Localhost", "RuntimeDefault", "Unconfined"];
                not_one_of(all, format!("{at}.type"), &profile["type"], &types);
            }
        }
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

/// What Linux or Windows does not have: `validateLinux`, `validateWindows`.
pub(super) fn system(all: &mut Vec<Cause>, spec: &Value, at: &str) {
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
    let contexts = ["containers", "initContainers"].into_iter().flat_map(|list| {
        let contexts = each(&spec[list]).map(|container| &container["securityContext"]);
        contexts
            .enumerate()
            .map(move |(index, context)| (context, format!("{at}.{list}[{index}].securityContext")))
    });
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
