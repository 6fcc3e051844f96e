//! The columns of each built-in kind in `kubectl get`, as in pkg/printers/internalversion of Kubernetes.
//!
//! ```text
//! $ kubectl get leases
//! NAME   HOLDER   AGE
//! web    web-0    12s
//! ```

use listwatch_formats::selector::Selector;
use serde_json::{Value, json};

use crate::{
    clock::{Clock, human_duration},
    kinds::{events, field_checks::each},
};

/// The columns of a kind, and the cells of an object in them.
#[derive(Debug)]
pub(crate) struct PrinterColumns {
    /// Name, type and priority of each column after Name. `-o wide` shows priority 1.
    pub(crate) definitions: &'static [(&'static str, &'static str, u8)],
    pub(crate) cells: fn(&Value, &Clock) -> Vec<Value>,
}

pub(crate) const NAME_AND_AGE: PrinterColumns = PrinterColumns {
    definitions: &[("Age", "string", 0)],
    cells: |object, clock| vec![name(object), age(object, clock)],
};

pub(crate) const NAMESPACE: PrinterColumns = PrinterColumns {
    definitions: &[("Status", "string", 0), ("Age", "string", 0)],
    cells: |object, clock| vec![name(object), object["status"]["phase"].clone(), age(object, clock)],
};

pub(crate) const CONFIG_MAP: PrinterColumns = PrinterColumns {
    definitions: &[("Data", "string", 0), ("Age", "string", 0)],
    cells: |object, clock| {
        let count = entries(&object["data"]) + entries(&object["binaryData"]);
        vec![name(object), count.into(), age(object, clock)]
    },
};

pub(crate) const SECRET: PrinterColumns = PrinterColumns {
    definitions: &[("Type", "string", 0), ("Data", "string", 0), ("Age", "string", 0)],
    cells: |object, clock| {
        let count = entries(&object["data"]);
        vec![name(object), object["type"].clone(), count.into(), age(object, clock)]
    },
};

pub(crate) const SERVICE: PrinterColumns = PrinterColumns {
    definitions: &[
        ("Type", "string", 0),
        ("Cluster-IP", "string", 0),
        ("External-IP", "string", 0),
        ("Port(s)", "string", 0),
        ("Age", "string", 0),
        ("Selector", "string", 1),
    ],
    cells: |object, clock| {
        let spec = &object["spec"];
        let text = |value: &Value| value.as_str().unwrap_or("<none>").to_owned();
        let mut ports = Vec::new();
        for port in each(&spec["ports"]) {
            let node_port = port["nodePort"].as_i64().map(|port| format!(":{port}")).unwrap_or_default();
            ports.push(format!("{}{node_port}/{}", port["port"], text(&port["protocol"])));
        }
        let ports = if ports.is_empty() { "<none>".to_owned() } else { ports.join(",") };
        let external = spec["externalName"].as_str().unwrap_or("<none>").to_owned();
        vec![
            name(object),
            spec["type"].clone(),
            text(&spec["clusterIP"]).into(),
            external.into(),
            ports.into(),
            age(object, clock),
            labels_shown(&spec["selector"]).into(),
        ]
    },
};

/// Most addresses of an Endpoints that are shown.
const ADDRESSES_MAX: usize = 3;

pub(crate) const ENDPOINTS: PrinterColumns = PrinterColumns {
    definitions: &[("Endpoints", "string", 0), ("Age", "string", 0)],
    cells: |object, clock| {
        let mut addresses = Vec::new();
        for subset in each(&object["subsets"]) {
            let ips = || each(&subset["addresses"]).map(|address| address["ip"].as_str().unwrap_or_default());
            if each(&subset["ports"]).next().is_none() {
                addresses.extend(ips().map(str::to_owned));
            }
            for port in each(&subset["ports"]) {
                addresses.extend(ips().map(|ip| format!("{ip}:{}", port["port"])));
            }
        }
        let more = addresses.len().saturating_sub(ADDRESSES_MAX);
        addresses.truncate(ADDRESSES_MAX);
        let shown = match (addresses.join(","), more) {
            (shown, 0) if shown.is_empty() => "<none>".to_owned(),
            (shown, 0) => shown,
            (shown, more) => format!("{shown} + {more} more..."),
        };
        vec![name(object), shown.into(), age(object, clock)]
    },
};

pub(crate) const POD: PrinterColumns = PrinterColumns {
    definitions: &[
        ("Ready", "string", 0),
        ("Status", "string", 0),
        ("Restarts", "string", 0),
        ("Age", "string", 0),
        ("IP", "string", 1),
        ("Node", "string", 1),
        ("Nominated Node", "string", 1),
        ("Readiness Gates", "string", 1),
    ],
    cells: |object, clock| {
        let (spec, status) = (&object["spec"], &object["status"]);
        let PodSummary { ready, reason, restarts } = PodSummary::of(object);
        let sidecars = each(&spec["initContainers"]).filter(|one| one["restartPolicy"] == "Always").count();
        let text = |value: &Value| Value::from(value.as_str().unwrap_or("<none>"));
        vec![
            name(object),
            format!("{ready}/{}", each(&spec["containers"]).count() + sidecars).into(),
            reason.into(),
            restarts.to_string().into(),
            age(object, clock),
            text(&status["podIP"]),
            text(&spec["nodeName"]),
            "<none>".into(),
            "<none>".into(),
        ]
    },
};

/// READY, STATUS and RESTARTS of a Pod, as in `printPod` of Kubernetes.
struct PodSummary {
    ready: usize,
    reason: String,
    restarts: i64,
}

impl PodSummary {
    fn of(pod: &Value) -> PodSummary {
        let status = &pod["status"];
        let mut all = PodSummary { ready: 0, reason: String::new(), restarts: 0 };
        let phase = status["reason"].as_str().or(status["phase"].as_str()).unwrap_or_default();
        all.reason = phase.to_owned();
        if each(&status["conditions"]).any(|one| one["reason"] == "SchedulingGated") {
            all.reason = "SchedulingGated".to_owned();
        }
        let is_initializing = all.add_init_containers(pod);
        if !is_initializing || has_condition(pod, "Initialized") {
            all.add_containers(pod);
        }
        let is_over = matches!(status["phase"].as_str(), Some("Succeeded" | "Failed"));
        if !pod["metadata"]["deletionTimestamp"].is_null() && !is_over {
            all.reason = "Terminating".to_owned();
        }
        all
    }

    /// Returns whether one of them has not ended, or has not started if it is a sidecar.
    fn add_init_containers(&mut self, pod: &Value) -> bool {
        let mut restarts_of_sidecars = 0;
        for (index, one) in each(&pod["status"]["initContainerStatuses"]).enumerate() {
            let restarts = one["restartCount"].as_i64().unwrap_or_default();
            self.restarts += restarts;
            let mut specs = each(&pod["spec"]["initContainers"]);
            let is_sidecar =
                specs.any(|spec| spec["name"] == one["name"] && spec["restartPolicy"] == "Always");
            restarts_of_sidecars += if is_sidecar { restarts } else { 0 };
            let (ended, waiting) = (&one["state"]["terminated"], &one["state"]["waiting"]["reason"]);
            if ended["exitCode"] == 0 {
                continue;
            }
            if is_sidecar && one["started"] == true {
                self.ready += usize::from(one["ready"] == true);
                continue;
            }
            self.reason = match waiting.as_str() {
                _ if ended.is_object() => format!("Init:{}", why_ended(ended)),
                Some(reason) if reason != "PodInitializing" => format!("Init:{reason}"),
                _ => format!("Init:{index}/{}", each(&pod["spec"]["initContainers"]).count()),
            };
            return true;
        }
        self.restarts = restarts_of_sidecars;
        false
    }

    fn add_containers(&mut self, pod: &Value) {
        let (mut is_running, mut error) = (false, None);
        let mut statuses: Vec<&Value> = each(&pod["status"]["containerStatuses"]).collect();
        statuses.reverse();
        for one in statuses {
            self.restarts += one["restartCount"].as_i64().unwrap_or_default();
            let (ended, waiting) = (&one["state"]["terminated"], &one["state"]["waiting"]["reason"]);
            if let Some(reason) = waiting.as_str() {
                self.reason = reason.to_owned();
            } else if ended.is_object() {
                self.reason = why_ended(ended);
                error = if ended["exitCode"] == 0 { error } else { Some(self.reason.clone()) };
            } else if one["ready"] == true && one["state"]["running"].is_object() {
                is_running = true;
                self.ready += 1;
            }
        }
        if self.reason == "Completed" {
            match error {
                _ if is_running && has_condition(pod, "Ready") => self.reason = "Running".to_owned(),
                Some(error) => self.reason = error,
                None if is_running => self.reason = "NotReady".to_owned(),
                None => {}
            }
        }
    }
}

fn why_ended(terminated: &Value) -> String {
    match (terminated["reason"].as_str(), &terminated["signal"]) {
        (Some(reason), _) => reason.to_owned(),
        (None, Value::Number(signal)) => format!("Signal:{signal}"),
        (None, _) => format!("ExitCode:{}", terminated["exitCode"]),
    }
}

fn has_condition(object: &Value, kind: &str) -> bool {
    each(&object["status"]["conditions"]).any(|one| one["type"] == kind && one["status"] == "True")
}

pub(crate) const NODE: PrinterColumns = PrinterColumns {
    definitions: &[
        ("Status", "string", 0),
        ("Roles", "string", 0),
        ("Age", "string", 0),
        ("Version", "string", 0),
        ("Internal-IP", "string", 1),
        ("External-IP", "string", 1),
        ("OS-Image", "string", 1),
        ("Kernel-Version", "string", 1),
        ("Container-Runtime", "string", 1),
    ],
    cells: |object, clock| {
        let (status, info) = (&object["status"], &object["status"]["nodeInfo"]);
        let ready = each(&status["conditions"]).find(|one| one["type"] == "Ready");
        let mut state = match ready.map(|ready| ready["status"] == "True") {
            Some(true) => "Ready",
            Some(false) => "NotReady",
            None => "Unknown",
        }
        .to_owned();
        if object["spec"]["unschedulable"] == true {
            state.push_str(",SchedulingDisabled");
        }
        let labels = object["metadata"]["labels"].as_object().into_iter().flatten();
        let roles = labels.filter_map(|(key, value)| match key.as_str() {
            "kubernetes.io/role" => value.as_str(),
            key => key.strip_prefix("node-role.kubernetes.io/"),
        });
        let mut roles: Vec<&str> = roles.filter(|role| !role.is_empty()).collect();
        roles.sort_unstable();
        let address = |kind: &str| {
            let of_kind = each(&status["addresses"]).find(|one| one["type"] == kind);
            Value::from(shown(of_kind.map_or(&Value::Null, |one| &one["address"]), "<none>"))
        };
        let mut kernel = shown(&info["kernelVersion"], "<unknown>");
        if let Some(architecture) = info["architecture"].as_str().filter(|one| !one.is_empty()) {
            kernel.push_str(&format!(" ({architecture})"));
        }
        vec![
            name(object),
            state.into(),
            some((!roles.is_empty()).then(|| roles.join(",")), "<none>").into(),
            age(object, clock),
            info["kubeletVersion"].as_str().unwrap_or_default().into(),
            address("InternalIP"),
            address("ExternalIP"),
            shown(&info["osImage"], "<unknown>").into(),
            kernel.into(),
            shown(&info["containerRuntimeVersion"], "<unknown>").into(),
        ]
    },
};

pub(crate) const EVENT: PrinterColumns = PrinterColumns {
    definitions: &[
        ("Last Seen", "string", 0),
        ("Type", "string", 0),
        ("Reason", "string", 0),
        ("Object", "string", 0),
        ("Subobject", "string", 1),
        ("Source", "string", 1),
        ("Message", "string", 0),
        ("First Seen", "string", 1),
        ("Count", "string", 1),
        ("Name", "string", 1),
    ],
    cells: |object, clock| {
        let involved = &object["involvedObject"];
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let (kind, of) = (text(&involved["kind"]).to_lowercase(), text(&involved["name"]));
        let first = [&object["firstTimestamp"], &object["eventTime"]];
        let last = [&object["series"]["lastObservedTime"], &object["lastTimestamp"], first[0], first[1]];
        let seen = |times: &[&Value]| times.iter().find(|time| !time.is_null()).map(|time| clock.age(time));
        let count = object["series"]["count"].as_i64().or(object["count"].as_i64()).unwrap_or(1);
        let source = object["source"]["component"].as_str().or(object["reportingComponent"].as_str());
        vec![
            seen(&last).unwrap_or_else(|| "<unknown>".to_owned()).into(),
            object["type"].clone(),
            object["reason"].clone(),
            format!("{kind}/{of}").into(),
            text(&involved["fieldPath"]).into(),
            source.unwrap_or_default().into(),
            text(&object["message"]).trim().into(),
            seen(&first).unwrap_or_else(|| "<unknown>".to_owned()).into(),
            count.to_string().into(),
            name(object),
        ]
    },
};

pub(crate) const NEW_EVENT: PrinterColumns = PrinterColumns {
    definitions: EVENT.definitions,
    cells: |object, clock| {
        let mut object = object.clone();
        events::to_core(&mut object);
        (EVENT.cells)(&object, clock)
    },
};

pub(crate) const LEASE: PrinterColumns = PrinterColumns {
    definitions: &[("Holder", "string", 0), ("Age", "string", 0)],
    cells: |object, clock| vec![name(object), object["spec"]["holderIdentity"].clone(), age(object, clock)],
};

pub(crate) const DEPLOYMENT: PrinterColumns = PrinterColumns {
    definitions: &[
        ("Ready", "string", 0),
        ("Up-to-date", "string", 0),
        ("Available", "string", 0),
        ("Age", "string", 0),
        ("Containers", "string", 1),
        ("Images", "string", 1),
        ("Selector", "string", 1),
    ],
    cells: |object, clock| {
        let (spec, status) = (&object["spec"], &object["status"]);
        let count = |field: &str| status[field].as_i64().unwrap_or(0);
        let [names, images] = containers_and_images(&spec["template"]["spec"]);
        vec![
            name(object),
            format!("{}/{}", count("readyReplicas"), spec["replicas"]).into(),
            count("updatedReplicas").into(),
            count("availableReplicas").into(),
            age(object, clock),
            names,
            images,
            selector_shown(&spec["selector"]).into(),
        ]
    },
};

pub(crate) const REPLICA_SET: PrinterColumns = PrinterColumns {
    definitions: &[
        ("Desired", "integer", 0),
        ("Current", "integer", 0),
        ("Ready", "integer", 0),
        ("Age", "string", 0),
        ("Containers", "string", 1),
        ("Images", "string", 1),
        ("Selector", "string", 1),
    ],
    cells: |object, clock| {
        let (spec, status) = (&object["spec"], &object["status"]);
        let count = |field: &str| status[field].as_i64().unwrap_or(0);
        let [names, images] = containers_and_images(&spec["template"]["spec"]);
        vec![
            name(object),
            spec["replicas"].clone(),
            count("replicas").into(),
            count("readyReplicas").into(),
            age(object, clock),
            names,
            images,
            selector_shown(&spec["selector"]).into(),
        ]
    },
};

pub(crate) const STATEFUL_SET: PrinterColumns = PrinterColumns {
    definitions: &[
        ("Ready", "string", 0),
        ("Age", "string", 0),
        ("Containers", "string", 1),
        ("Images", "string", 1),
    ],
    cells: |object, clock| {
        let ready = object["status"]["readyReplicas"].as_i64().unwrap_or(0);
        let [names, images] = containers_and_images(&object["spec"]["template"]["spec"]);
        let ready = format!("{ready}/{}", object["spec"]["replicas"]).into();
        vec![name(object), ready, age(object, clock), names, images]
    },
};

pub(crate) const CONTROLLER_REVISION: PrinterColumns = PrinterColumns {
    definitions: &[("Controller", "string", 0), ("Revision", "string", 0), ("Age", "string", 0)],
    cells: |object, clock| {
        let mut owners = each(&object["metadata"]["ownerReferences"]);
        let controller = match owners.find(|owner| owner["controller"] == true) {
            Some(owner) => {
                let text = |field: &str| owner[field].as_str().unwrap_or_default().to_owned();
                let (version, kind) = (text("apiVersion"), text("kind").to_lowercase());
                let group = version.split_once('/').map_or(String::new(), |(group, _)| format!(".{group}"));
                format!("{kind}{group}/{}", text("name"))
            }
            None => "<none>".to_owned(),
        };
        vec![name(object), controller.into(), object["revision"].clone(), age(object, clock)]
    },
};

pub(crate) const PERSISTENT_VOLUME_CLAIM: PrinterColumns = PrinterColumns {
    definitions: &[
        ("Status", "string", 0),
        ("Volume", "string", 0),
        ("Capacity", "string", 0),
        ("Access Modes", "string", 0),
        ("StorageClass", "string", 0),
        ("VolumeAttributesClass", "string", 0),
        ("Age", "string", 0),
        ("VolumeMode", "string", 1),
    ],
    cells: |object, clock| {
        let (spec, status) = (&object["spec"], &object["status"]);
        let text = |value: &Value, none: &str| value.as_str().unwrap_or(none).to_owned();
        let phase = match object["metadata"]["deletionTimestamp"].is_null() {
            true => text(&status["phase"], ""),
            false => "Terminating".to_owned(),
        };
        let (mut capacity, mut modes) = (String::new(), String::new());
        if spec["volumeName"].is_string() {
            capacity = text(&status["capacity"]["storage"], "0");
            modes = access_modes(&status["accessModes"]);
        }
        vec![
            name(object),
            phase.into(),
            text(&spec["volumeName"], "").into(),
            capacity.into(),
            modes.into(),
            text(&spec["storageClassName"], "").into(),
            text(&spec["volumeAttributesClassName"], "<unset>").into(),
            age(object, clock),
            text(&spec["volumeMode"], "<unset>").into(),
        ]
    },
};

/// The access modes of a claim, and their short names in a table.
const ACCESS_MODES: [(&str, &str); 4] = [
    ("ReadWriteOnce", "RWO"),
    ("ReadOnlyMany", "ROX"),
    ("ReadWriteMany", "RWX"),
    ("ReadWriteOncePod", "RWOP"),
];

/// `RWO,ROX`
pub(crate) fn access_modes(modes: &Value) -> String {
    let is_of = |mode: &str| each(modes).any(|one| one == mode);
    let shorts = ACCESS_MODES.into_iter().filter(|(mode, _)| is_of(mode)).map(|(_, short)| short);
    shorts.collect::<Vec<_>>().join(",")
}

pub(crate) const JOB: PrinterColumns = PrinterColumns {
    definitions: &[
        ("Status", "string", 0),
        ("Completions", "string", 0),
        ("Duration", "string", 0),
        ("Age", "string", 0),
        ("Containers", "string", 1),
        ("Images", "string", 1),
        ("Selector", "string", 1),
    ],
    cells: |object, clock| {
        let (spec, status) = (&object["spec"], &object["status"]);
        let is = |kind: &str| {
            each(&status["conditions"]).any(|one| one["type"] == kind && one["status"] == "True")
        };
        let before = ["Complete", "Failed"].into_iter().find(|kind| is(kind));
        let after = ["Suspended", "FailureTarget", "SuccessCriteriaMet"].into_iter().find(|kind| is(kind));
        let phase = match object["metadata"]["deletionTimestamp"].is_null() {
            true => before.or(after).unwrap_or("Running"),
            false => before.unwrap_or("Terminating"),
        };
        let succeeded = status["succeeded"].as_i64().unwrap_or(0);
        let completions = match (spec["completions"].as_i64(), spec["parallelism"].as_i64().unwrap_or(0)) {
            (Some(completions), _) => format!("{succeeded}/{completions}"),
            (None, 0..=1) => format!("{succeeded}/1"),
            (None, parallelism) => format!("{succeeded}/1 of {parallelism}"),
        };
        let since_end = clock.since(&status["completionTime"]).unwrap_or_default();
        let duration = clock.since(&status["startTime"]).map(|age| age.saturating_sub(since_end));
        let [names, images] = containers_and_images(&spec["template"]["spec"]);
        vec![
            name(object),
            phase.into(),
            completions.into(),
            duration.map(human_duration).unwrap_or_default().into(),
            age(object, clock),
            names,
            images,
            selector_shown(&spec["selector"]).into(),
        ]
    },
};

pub(crate) const CRON_JOB: PrinterColumns = PrinterColumns {
    definitions: &[
        ("Schedule", "string", 0),
        ("Timezone", "string", 0),
        ("Suspend", "boolean", 0),
        ("Active", "integer", 0),
        ("Last Schedule", "string", 0),
        ("Age", "string", 0),
        ("Containers", "string", 1),
        ("Images", "string", 1),
        ("Selector", "string", 1),
    ],
    cells: |object, clock| {
        let (spec, status) = (&object["spec"], &object["status"]);
        let job = &spec["jobTemplate"]["spec"];
        let [names, images] = containers_and_images(&job["template"]["spec"]);
        let last = &status["lastScheduleTime"];
        vec![
            name(object),
            spec["schedule"].clone(),
            spec["timeZone"].as_str().unwrap_or("<none>").into(),
            if spec["suspend"] == true { "True" } else { "False" }.into(),
            each(&status["active"]).count().into(),
            if last.is_null() { "<none>".to_owned() } else { clock.age(last) }.into(),
            age(object, clock),
            names,
            images,
            selector_shown(&job["selector"]).into(),
        ]
    },
};

pub(crate) const POD_DISRUPTION_BUDGET: PrinterColumns = PrinterColumns {
    definitions: &[
        ("Min Available", "string", 0),
        ("Max Unavailable", "string", 0),
        ("Allowed Disruptions", "integer", 0),
        ("Age", "string", 0),
    ],
    cells: |object, clock| {
        let shown = |field: &str| -> Value {
            match &object["spec"][field] {
                Value::String(percent) => percent.as_str().into(),
                Value::Null => "N/A".into(),
                number => number.to_string().into(),
            }
        };
        let allowed = object["status"]["disruptionsAllowed"].as_i64().unwrap_or(0);
        vec![name(object), shown("minAvailable"), shown("maxUnavailable"), allowed.into(), age(object, clock)]
    },
};

pub(crate) fn containers_and_images(spec: &Value) -> [Value; 2] {
    let joined = |field: &str| -> Value {
        let all: Vec<&str> = each(&spec["containers"]).filter_map(|one| one[field].as_str()).collect();
        all.join(",").into()
    };
    [joined("name"), joined("image")]
}

/// The columns of the scale subresource.
pub(crate) const SCALE: PrinterColumns = PrinterColumns {
    definitions: &[("Desired", "integer", 0), ("Available", "integer", 0), ("Age", "string", 0)],
    cells: |scale, clock| {
        let count = |part: &str| scale[part]["replicas"].as_i64().unwrap_or(0).into();
        vec![name(scale), count("spec"), count("status"), age(scale, clock)]
    },
};

/// The name; with `(default)` for a default class.
pub(crate) fn name(object: &Value) -> Value {
    let is_default = |class: &str| {
        let key = format!("{class}.kubernetes.io/is-default-class");
        object["metadata"]["annotations"][key] == "true"
    };
    let name = &object["metadata"]["name"];
    let class = match object["kind"].as_str() {
        Some("StorageClass") if is_default("storageclass") => name.as_str(),
        Some("IngressClass") if is_default("ingressclass") => name.as_str(),
        _ => None,
    };
    class.map_or_else(|| name.clone(), |name| format!("{name} (default)").into())
}

pub(crate) fn age(object: &Value, clock: &Clock) -> Value {
    clock.age(&object["metadata"]["creationTimestamp"]).into()
}

/// A text or a number.
pub(crate) fn shown(value: &Value, none: &str) -> String {
    match value {
        Value::String(text) if text.is_empty() => none.to_owned(),
        Value::String(text) => text.clone(),
        Value::Null => none.to_owned(),
        other => other.to_string(),
    }
}

pub(crate) fn some(text: Option<String>, none: &str) -> String {
    text.filter(|text| !text.is_empty()).unwrap_or_else(|| none.to_owned())
}

pub(crate) fn count_of(value: &Value) -> i64 {
    value.as_i64().unwrap_or(0)
}

/// The selector of a Deployment.
pub(crate) fn selector_shown(selector: &Value) -> String {
    let text = Selector::from_object(selector).to_string();
    if text.is_empty() { "<none>".to_owned() } else { text }
}

/// `a=b,c=d`
pub(crate) fn labels_shown(labels: &Value) -> String {
    selector_shown(&json!({"matchLabels": labels}))
}

fn entries(map: &Value) -> usize {
    map.as_object().map_or(0, serde_json::Map::len)
}
