//! The Pod Security Standards: what the levels `baseline` and `restricted` forbid, with the words of k8s.io/pod-security-admission.
//!
//! ```text
//! privileged (container "web" must not set securityContext.privileged=true)
//! ```
//!
//! See <https://kubernetes.io/docs/concepts/security/pod-security-standards/>. The versions before 1.19 check the same fields as 1.19, and not
//! the annotations of that time.

use std::collections::BTreeSet;

use serde_json::Value;

use super::Level;
use crate::kinds::field_checks::{each, text};

/// A Pod, or the template of a Pod, and the version of the standards by which it is checked.
pub(super) struct Pod<'a> {
    pub(super) metadata: &'a Value,
    pub(super) spec: &'a Value,
    /// 36 for `v1.36`. `latest` is the largest number.
    pub(super) minor: u32,
}

/// Why a check forbids a Pod.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Violation {
    pub(super) reason: &'static str,
    detail: String,
}

impl Violation {
    /// The reason with the fields and containers.
    pub(super) fn detailed(&self) -> String {
        format!("{} ({})", self.reason, self.detail)
    }
}

type Check = fn(&Pod<'_>) -> Option<Violation>;

/// The checks of `baseline`, and the version from which another check of `restricted` replaces some of them there.
const BASELINE: [(Check, Option<u32>); 12] = [
    (app_armor, None),
    (added_capabilities, Some(22)),
    (host_namespaces, None),
    (host_paths, Some(0)),
    (host_ports, None),
    (probe_hosts, None),
    (privileged, None),
    (proc_mount_outside_user_namespace, Some(35)),
    (se_linux, None),
    (forbidden_seccomp, Some(19)),
    (sysctls, None),
    (windows_host_process, None),
];

/// The checks that only `restricted` has, and the version from which each counts.
const RESTRICTED: [(Check, u32); 7] = [
    (privilege_escalation, 8),
    (capabilities, 22),
    (proc_mount, 35),
    (volume_types, 0),
    (non_root, 0),
    (root_user, 23),
    (seccomp, 19),
];

/// What a level forbids in a Pod.
pub(super) fn violations(level: Level, pod: &Pod<'_>) -> Vec<Violation> {
    let is_restricted = level == Level::Restricted;
    let baseline = BASELINE
        .into_iter()
        .filter(|(_, until)| !is_restricted || until.is_none_or(|until| pod.minor < until));
    let restricted = RESTRICTED.into_iter().filter(|(_, since)| is_restricted && pod.minor >= *since);
    let checks = baseline.map(|(check, _)| check).chain(restricted.map(|(check, _)| check));
    checks.filter(|_| level != Level::Privileged).filter_map(|check| check(pod)).collect()
}

/// The containers of all kinds.
pub(super) fn containers(spec: &Value) -> impl Iterator<Item = &Value> {
    ["initContainers", "containers", "ephemeralContainers"].into_iter().flat_map(|list| each(&spec[list]))
}

impl<'a> Pod<'a> {
    fn containers(&self) -> impl Iterator<Item = &'a Value> + use<'a> {
        containers(self.spec)
    }

    /// The security contexts: of the Pod, and of its containers.
    fn contexts(&self) -> impl Iterator<Item = &'a Value> + use<'a> {
        let of_pod = std::iter::once(&self.spec["securityContext"]);
        of_pod.chain(self.containers().map(|container| &container["securityContext"]))
    }

    /// Whether it has no Linux fields to set, which newer versions of the standards take into account.
    fn is_windows(&self) -> bool {
        self.minor >= 25 && self.spec["os"]["name"] == "windows"
    }

    /// Whether root in its containers is another user on the node, which newer versions of the standards take into account.
    fn is_in_user_namespace(&self) -> bool {
        self.minor >= 35 && self.spec["hostUsers"] == false
    }

    /// `containers "a", "b"`, of which this is true. `None` if there are none.
    fn containers_with(&self, is_bad: impl Fn(&Value) -> bool) -> Option<String> {
        let names = self.containers().filter(|container| is_bad(container));
        let names: Vec<&str> = names.map(|container| text(&container["name"])).collect();
        (!names.is_empty()).then(|| counted(["container", "containers"], &names))
    }

    /// `pod and container "a"`, whose security contexts are bad.
    fn setters(&self, is_bad: impl Fn(&Value) -> bool) -> Vec<String> {
        let pod = is_bad(&self.spec["securityContext"]).then(|| "pod".to_owned());
        let containers = self.containers_with(|container| is_bad(&container["securityContext"]));
        pod.into_iter().chain(containers).collect()
    }
}

fn quoted<'a>(items: impl IntoIterator<Item = &'a str>) -> String {
    format!("\"{}\"", items.into_iter().collect::<Vec<_>>().join("\", \""))
}

fn plural([one, many]: [&str; 2], count: usize) -> &str {
    if count == 1 { one } else { many }
}

fn counted(words: [&str; 2], items: &[&str]) -> String {
    format!("{} {}", plural(words, items.len()), quoted(items.iter().copied()))
}

fn violation(reason: &'static str, detail: String) -> Option<Violation> {
    Some(Violation { reason, detail })
}

fn app_armor(pod: &Pod<'_>) -> Option<Violation> {
    const PREFIX: &str = "container.apparmor.security.beta.kubernetes.io/";
    let kind = |context: &Value| context["appArmorProfile"]["type"].as_str().map(str::to_owned);
    let is_bad = |kind: &String| !["RuntimeDefault", "Localhost"].contains(&kind.as_str());
    let mut setters = pod.setters(|context| kind(context).as_ref().is_some_and(is_bad));
    let values: BTreeSet<String> = pod.contexts().filter_map(kind).filter(is_bad).collect();
    let mut values: Vec<String> = values.into_iter().collect();
    let annotations = pod.metadata["annotations"].as_object().into_iter().flatten();
    let annotations: Vec<String> = annotations
        .filter(|(key, value)| {
            let value = text(value);
            let is_fine = value.is_empty() || value == "runtime/default" || value.starts_with("localhost/");
            key.starts_with(PREFIX) && !is_fine
        })
        .map(|(key, value)| format!("{key}={:?}", text(value)))
        .collect();
    if !annotations.is_empty() {
        setters.push(plural(["annotation", "annotations"], annotations.len()).to_owned());
        values.extend(annotations);
    }
    if setters.is_empty() {
        return None;
    }
    let reason = plural(["forbidden AppArmor profile", "forbidden AppArmor profiles"], values.len());
    let values = quoted(values.iter().map(String::as_str));
    violation(reason, format!("{} must not set AppArmor profile type to {values}", setters.join(" and ")))
}

/// `containers "a" must not include "X" in …`, about the capabilities that are not allowed.
fn added(pod: &Pod<'_>, is_allowed: impl Fn(&str) -> bool) -> Option<String> {
    let forbidden = |container: &Value| -> BTreeSet<String> {
        let added = each(&container["securityContext"]["capabilities"]["add"]).map(text);
        added.filter(|capability| !is_allowed(capability)).map(str::to_owned).collect()
    };
    let containers = pod.containers_with(|container| !forbidden(container).is_empty())?;
    let all: BTreeSet<String> = pod.containers().flat_map(forbidden).collect();
    let all = quoted(all.iter().map(String::as_str));
    Some(format!("{containers} must not include {all} in securityContext.capabilities.add"))
}

fn added_capabilities(pod: &Pod<'_>) -> Option<Violation> {
    const ALLOWED: [&str; 13] = [
        "AUDIT_WRITE",
        "CHOWN",
        "DAC_OVERRIDE",
        "FOWNER",
        "FSETID",
        "KILL",
        "MKNOD",
        "NET_BIND_SERVICE",
        "SETFCAP",
        "SETGID",
        "SETPCAP",
        "SETUID",
        "SYS_CHROOT",
    ];
    violation("non-default capabilities", added(pod, |capability| ALLOWED.contains(&capability))?)
}

fn capabilities(pod: &Pod<'_>) -> Option<Violation> {
    if pod.is_windows() {
        return None;
    }
    let keeps_some = |container: &Value| {
        !each(&container["securityContext"]["capabilities"]["drop"]).any(|dropped| dropped == "ALL")
    };
    let keeping = pod.containers_with(keeps_some);
    let keeping = keeping.map(|all| format!("{all} must set securityContext.capabilities.drop=[\"ALL\"]"));
    let added = added(pod, |capability| capability == "NET_BIND_SERVICE");
    let details: Vec<String> = keeping.into_iter().chain(added).collect();
    violation("unrestricted capabilities", details.join("; ")).filter(|_| !details.is_empty())
}

fn host_namespaces(pod: &Pod<'_>) -> Option<Violation> {
    let fields = ["hostNetwork", "hostPID", "hostIPC"].into_iter().filter(|field| pod.spec[field] == true);
    let fields: Vec<String> = fields.map(|field| format!("{field}=true")).collect();
    violation("host namespaces", fields.join(", ")).filter(|_| !fields.is_empty())
}

fn host_paths(pod: &Pod<'_>) -> Option<Violation> {
    let volumes = each(&pod.spec["volumes"]).filter(|volume| !volume["hostPath"].is_null());
    let volumes: Vec<&str> = volumes.map(|volume| text(&volume["name"])).collect();
    violation("hostPath volumes", counted(["volume", "volumes"], &volumes)).filter(|_| !volumes.is_empty())
}

fn host_ports(pod: &Pod<'_>) -> Option<Violation> {
    let of = |container: &Value| -> BTreeSet<String> {
        let ports = each(&container["ports"]).filter_map(|port| port["hostPort"].as_i64());
        ports.filter(|port| *port != 0).map(|port| port.to_string()).collect()
    };
    let containers = pod.containers_with(|container| !of(container).is_empty())?;
    let using = pod.containers().filter(|container| !of(container).is_empty()).count();
    let ports: Vec<String> = pod.containers().flat_map(of).collect::<BTreeSet<_>>().into_iter().collect();
    let (verb, noun) = (plural(["uses", "use"], using), plural(["hostPort", "hostPorts"], ports.len()));
    violation("hostPort", format!("{containers} {verb} {noun} {}", ports.join(", ")))
}

fn probe_hosts(pod: &Pod<'_>) -> Option<Violation> {
    let hosts = |container: &Value| -> Vec<String> {
        let probes = ["livenessProbe", "readinessProbe", "startupProbe"].map(|probe| &container[probe]);
        let hooks = ["postStart", "preStop"].map(|hook| &container["lifecycle"][hook]);
        let hosts = probes.into_iter().chain(hooks).flat_map(|handler| {
            ["httpGet", "tcpSocket"].map(|action| text(&handler[action]["host"]).to_owned())
        });
        hosts.filter(|host| !host.is_empty()).collect()
    };
    let all: BTreeSet<String> = pod.containers().flat_map(hosts).collect();
    let using: BTreeSet<&str> = pod
        .containers()
        .filter(|container| !hosts(container).is_empty())
        .map(|container| text(&container["name"]))
        .collect();
    if all.is_empty() || pod.minor < 34 {
        return None;
    }
    let verb = plural(["uses", "use"], using.len());
    let containers = counted(["container", "containers"], &using.into_iter().collect::<Vec<_>>());
    let all: Vec<&str> = all.iter().map(String::as_str).collect();
    let hosts = counted(["probe or lifecycle host", "probe or lifecycle hosts"], &all);
    violation("probe or lifecycle host", format!("{containers} {verb} {hosts}"))
}

fn privileged(pod: &Pod<'_>) -> Option<Violation> {
    let containers = pod.containers_with(|container| container["securityContext"]["privileged"] == true)?;
    violation("privileged", format!("{containers} must not set securityContext.privileged=true"))
}

fn proc_mount(pod: &Pod<'_>) -> Option<Violation> {
    let mount = |container: &Value| {
        let mount = container["securityContext"]["procMount"].as_str();
        mount.filter(|mount| *mount != "Default").map(str::to_owned)
    };
    let containers = pod.containers_with(|container| mount(container).is_some())?;
    let mounts: BTreeSet<String> = pod.containers().filter_map(mount).collect();
    let mounts = quoted(mounts.iter().map(String::as_str));
    violation("procMount", format!("{containers} must not set securityContext.procMount to {mounts}"))
}

fn proc_mount_outside_user_namespace(pod: &Pod<'_>) -> Option<Violation> {
    proc_mount(pod).filter(|_| !pod.is_in_user_namespace())
}

fn se_linux(pod: &Pod<'_>) -> Option<Violation> {
    const TYPES: [&str; 5] = ["", "container_t", "container_init_t", "container_kvm_t", "container_engine_t"];
    let types = if pod.minor < 31 { &TYPES[..4] } else { &TYPES };
    let field = |context: &Value, field: &str| text(&context["seLinuxOptions"][field]).to_owned();
    let is_bad_type = |context: &Value| !types.contains(&field(context, "type").as_str());
    let has = |context: &Value, of: &str| !field(context, of).is_empty();
    let setters = pod.setters(|context| is_bad_type(context) || has(context, "user") || has(context, "role"));
    if setters.is_empty() {
        return None;
    }
    let bad: BTreeSet<String> =
        pod.contexts().filter(|context| is_bad_type(context)).map(|context| field(context, "type")).collect();
    let bad: Vec<&str> = bad.iter().map(String::as_str).collect();
    let mut data = Vec::new();
    data.extend((!bad.is_empty()).then(|| counted(["type", "types"], &bad)));
    for of in ["user", "role"] {
        data.extend(pod.contexts().any(|context| has(context, of)).then(|| format!("{of} may not be set")));
    }
    let (setters, data) = (setters.join(" and "), data.join("; "));
    violation("seLinuxOptions", format!("{setters} set forbidden securityContext.seLinuxOptions: {data}"))
}

fn forbidden_seccomp(pod: &Pod<'_>) -> Option<Violation> {
    let kind = |context: &Value| {
        let kind = context["seccompProfile"]["type"].as_str();
        kind.filter(|kind| !["Localhost", "RuntimeDefault"].contains(kind)).map(str::to_owned)
    };
    let setters = pod.setters(|context| kind(context).is_some()).join(" and ");
    let kinds: BTreeSet<String> = pod.contexts().filter_map(kind).collect();
    let kinds = quoted(kinds.iter().map(String::as_str));
    violation(
        "seccompProfile",
        format!("{setters} must not set securityContext.seccompProfile.type to {kinds}"),
    )
    .filter(|_| !setters.is_empty())
}

fn seccomp(pod: &Pod<'_>) -> Option<Violation> {
    if pod.is_windows() {
        return None;
    }
    forbidden_seccomp(pod).or_else(|| {
        let lacking = lacking(pod, "seccompProfile")?;
        let text = "must set securityContext.seccompProfile.type to \"RuntimeDefault\" or \"Localhost\"";
        violation("seccompProfile", format!("{lacking} {text}"))
    })
}

/// `pod or containers "a"`, if neither the Pod nor these containers set a field of the security context.
fn lacking(pod: &Pod<'_>, field: &str) -> Option<String> {
    let containers = pod.containers_with(|container| container["securityContext"][field].is_null())?;
    pod.spec["securityContext"][field].is_null().then(|| format!("pod or {containers}"))
}

fn sysctls(pod: &Pod<'_>) -> Option<Violation> {
    /// Each with the version from which it is allowed.
    const ALLOWED: [(&str, u32); 12] = [
        ("kernel.shm_rmid_forced", 0),
        ("net.ipv4.ip_local_port_range", 0),
        ("net.ipv4.tcp_syncookies", 0),
        ("net.ipv4.ping_group_range", 0),
        ("net.ipv4.ip_unprivileged_port_start", 0),
        ("net.ipv4.ip_local_reserved_ports", 27),
        ("net.ipv4.tcp_keepalive_time", 29),
        ("net.ipv4.tcp_fin_timeout", 29),
        ("net.ipv4.tcp_keepalive_intvl", 29),
        ("net.ipv4.tcp_keepalive_probes", 29),
        ("net.ipv4.tcp_rmem", 32),
        ("net.ipv4.tcp_wmem", 32),
    ];
    let is_allowed =
        |name: &&str| ALLOWED.iter().any(|(allowed, since)| allowed == name && pod.minor >= *since);
    let names = each(&pod.spec["securityContext"]["sysctls"]).map(|sysctl| text(&sysctl["name"]));
    let names: Vec<&str> = names.filter(|name| !is_allowed(name)).collect();
    violation("forbidden sysctls", names.join(", ")).filter(|_| !names.is_empty())
}

fn windows_host_process(pod: &Pod<'_>) -> Option<Violation> {
    let setters = pod.setters(|context| context["windowsOptions"]["hostProcess"] == true).join(" and ");
    violation(
        "hostProcess",
        format!("{setters} must not set securityContext.windowsOptions.hostProcess=true"),
    )
    .filter(|_| !setters.is_empty())
}

fn privilege_escalation(pod: &Pod<'_>) -> Option<Violation> {
    let may = |container: &Value| container["securityContext"]["allowPrivilegeEscalation"] != false;
    let containers = pod.containers_with(may).filter(|_| !pod.is_windows())?;
    let detail = format!("{containers} must set securityContext.allowPrivilegeEscalation=false");
    violation("allowPrivilegeEscalation != false", detail)
}

fn volume_types(pod: &Pod<'_>) -> Option<Violation> {
    const ALLOWED: [&str; 9] = [
        "configMap",
        "csi",
        "downwardAPI",
        "emptyDir",
        "ephemeral",
        "image",
        "persistentVolumeClaim",
        "projected",
        "secret",
    ];
    let volumes = each(&pod.spec["volumes"]);
    let bad: Vec<&Value> =
        volumes.filter(|volume| ALLOWED.iter().all(|allowed| volume[allowed].is_null())).collect();
    if bad.is_empty() {
        return None;
    }
    let kind = |volume: &&Value| {
        let fields = volume.as_object().into_iter().flatten();
        fields.map(|(field, _)| field.clone()).find(|field| field != "name").unwrap_or("unknown".to_owned())
    };
    let kinds: BTreeSet<String> = bad.iter().map(kind).collect();
    let kinds: Vec<&str> = kinds.iter().map(String::as_str).collect();
    let names: Vec<&str> = bad.iter().map(|volume| text(&volume["name"])).collect();
    let (volumes, verb) = (counted(["volume", "volumes"], &names), plural(["uses", "use"], names.len()));
    let kinds = counted(["restricted volume type", "restricted volume types"], &kinds);
    violation("restricted volume types", format!("{volumes} {verb} {kinds}"))
}

fn non_root(pod: &Pod<'_>) -> Option<Violation> {
    if pod.is_in_user_namespace() {
        return None;
    }
    let setters = pod.setters(|context| context["runAsNonRoot"] == false).join(" and ");
    let detail = if setters.is_empty() {
        format!("{} must set securityContext.runAsNonRoot=true", lacking(pod, "runAsNonRoot")?)
    } else {
        format!("{setters} must not set securityContext.runAsNonRoot=false")
    };
    violation("runAsNonRoot != true", detail)
}

fn root_user(pod: &Pod<'_>) -> Option<Violation> {
    let setters = pod.setters(|context| context["runAsUser"] == 0).join(" and ");
    let is_fine = setters.is_empty() || pod.is_in_user_namespace();
    violation("runAsUser=0", format!("{setters} must not set runAsUser=0")).filter(|_| !is_fine)
}
