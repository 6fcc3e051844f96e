//! The endpoints of Services: an EndpointSlice and an Endpoints with the addresses of the Pods that a Service selects.
//!
//! ```text
//! Service web   Pods web-1, web-2   EndpointSlice web-x7k2p: 10.1.0.1, 10.1.0.2   Endpoints web
//! ```
//!
//! A Service has one slice with all its Pods: kube-controller-manager has one for each 100.

use std::collections::HashMap;

use listwatch_formats::selector::Selector;
use serde_json::{Value, json};

use super::{
    Controllers, change, delete, make,
    rollout::{controlled, is_ready, name, owner_reference},
};
use crate::{
    kinds::{
        Part,
        field_checks::{each, text},
        metadata::is_terminating,
        pods::has_ended,
    },
    names::random_letters,
    storage::{Place, Storage},
    verbs::delete::Deletion,
};

const SLICES: &str = "endpointslices.discovery.k8s.io";
const SLICE_MANAGER: (&str, &str) =
    ("endpointslice.kubernetes.io/managed-by", "endpointslice-controller.k8s.io");
const MANAGER: (&str, &str) = ("endpoints.kubernetes.io/managed-by", "endpoint-controller");

/// The annotation with the time of the change that the endpoints follow: of a Service that was created, or of a Pod that
/// has become ready or unready. Without one of these, the annotation is removed.
const TRIGGER: &str = "endpoints.kubernetes.io/last-change-trigger-time";

/// The address of the API server. Nothing listens there: kube-apiserver refuses endpoints at a loopback address.
const API_SERVER: &str = "10.0.0.1";

/// The times of a Service and its Pods in its last reconcile.
pub(crate) struct Triggers {
    service: String,
    /// By the name of the Pod: the time at which it became ready or unready.
    pods: HashMap<String, String>,
}

/// The Services that select a Pod.
pub(crate) fn services_of(storage: &Storage, pod: &Value) -> Vec<Place> {
    let services = storage.collection("services").into_iter().flat_map(|services| &services.objects);
    let of_pod = services.filter(|(_, service)| selects(service, pod));
    of_pod.map(|(key, _)| Place { collection: "services".to_owned(), key: key.clone() }).collect()
}

/// Without a selector, a client writes the endpoints.
fn has_selector(service: &Value) -> bool {
    service["spec"]["selector"].as_object().is_some_and(|selector| !selector.is_empty())
}

fn selects(service: &Value, pod: &Value) -> bool {
    has_selector(service)
        && service["metadata"]["namespace"] == pod["metadata"]["namespace"]
        && Selector::from_object(&json!({"matchLabels": service["spec"]["selector"]}))
            .matches(&pod["metadata"]["labels"])
}

/// A Pod with an address.
struct Endpoint {
    address: String,
    is_ready: bool,
    is_terminating: bool,
    node: Value,
    /// The hostname of a Pod whose subdomain is the Service.
    hostname: Value,
    pod: Value,
}

impl Endpoint {
    /// Adds the fields that a Pod need not have.
    fn describe(&self, endpoint: &mut Value) {
        for (field, value) in [("nodeName", &self.node), ("hostname", &self.hostname)] {
            if !value.is_null() {
                endpoint[field] = value.clone();
            }
        }
    }
}

/// Creates the endpoints of the Service `kubernetes`, as kube-apiserver does: pkg/controlplane/reconcilers.
pub(crate) fn of_api_server(storage: &mut Storage) {
    let port = json!({"name": "https", "port": 6443, "protocol": "TCP"});
    let endpoints = json!({
        "metadata": {"name": "kubernetes", "labels": {"endpointslice.kubernetes.io/skip-mirror": "true"}},
        "subsets": [{"addresses": [{"ip": API_SERVER}], "ports": [port]}],
    });
    make(storage, "", "endpoints", Some("default"), endpoints);
    let slice = json!({
        "metadata": {"name": "kubernetes", "labels": {"kubernetes.io/service-name": "kubernetes"}},
        "addressType": "IPv4", "ports": [port],
        "endpoints": [{"addresses": [API_SERVER], "conditions": {"ready": true}}],
    });
    make(storage, "discovery.k8s.io", "endpointslices", Some("default"), slice);
}

/// Reconciles a Service.
pub(crate) fn service(controllers: &mut Controllers, storage: &mut Storage, place: &Place, service: &Value) {
    if !has_selector(service) || service["spec"]["type"] == "ExternalName" || is_terminating(service) {
        return;
    }
    let pods = storage.collection("pods").into_iter().flat_map(|pods| pods.objects.values());
    let pods: Vec<&Value> = pods.map(|pod| &**pod).filter(|pod| selects(service, pod)).collect();
    let endpoints: Vec<Endpoint> = pods.iter().filter_map(|pod| endpoint(service, pod)).collect();
    let ports = ports(&service["spec"]["ports"], pods.first().copied());
    let trigger = trigger(&mut controllers.triggers, place, service, &pods);
    write_slice(storage, place, service, &endpoints, &ports, trigger.as_deref());
    write_endpoints(storage, place, service, &endpoints, &ports, trigger.as_deref());
}

/// The earliest time that is new since the last reconcile; at the first reconcile, the time of the Service. See
/// `TriggerTimeTracker` in k8s.io/endpointslice.
fn trigger(
    all: &mut HashMap<Place, Triggers>,
    place: &Place,
    service: &Value,
    pods: &[&Value],
) -> Option<String> {
    let created = text(&service["metadata"]["creationTimestamp"]).to_owned();
    let of_pod = |pod: &&Value| {
        let ready = each(&pod["status"]["conditions"]).find(|condition| condition["type"] == "Ready")?;
        let time = ready["lastTransitionTime"].as_str()?;
        Some((name(pod).to_owned(), time.to_owned()))
    };
    let now = Triggers { service: created.clone(), pods: pods.iter().filter_map(of_pod).collect() };
    let last = all.get(place);
    let is_new =
        |(pod, time): &(&String, &String)| last.is_some_and(|last| last.pods.get(*pod) < Some(*time));
    let trigger = match last {
        None => Some(created),
        Some(last) => {
            let changed = now.pods.iter().filter(is_new).map(|(_, time)| time);
            changed.chain((last.service < created).then_some(&created)).min().cloned()
        }
    };
    all.insert(place.clone(), now);
    trigger
}

/// Edits endpoints, and sets or removes the annotation if this changes them. The edit leaves no null that is not stored.
fn set(object: &mut Value, trigger: Option<&str>, edit: impl FnOnce(&mut Value)) {
    let before = object.clone();
    edit(object);
    if *object == before {
        return;
    }
    let annotations = &mut object["metadata"]["annotations"];
    match (trigger, annotations.as_object_mut()) {
        (Some(time), _) => annotations[TRIGGER] = time.into(),
        (None, Some(annotations)) => {
            annotations.remove(TRIGGER);
        }
        (None, None) => {}
    }
}

/// Deletes the Endpoints of a Service that is gone. The garbage collector deletes the slice.
pub(crate) fn clean_up(controllers: &mut Controllers, storage: &mut Storage, service: &Place) {
    controllers.triggers.remove(service);
    let place = Place { collection: "endpoints".to_owned(), key: service.key.clone() };
    let is_ours = |endpoints: &Value| endpoints["metadata"]["labels"][MANAGER.0] == MANAGER.1;
    if storage.get(&place).is_some_and(|endpoints| is_ours(endpoints)) {
        delete(storage, &place, &Deletion::default());
    }
}

fn endpoint(service: &Value, pod: &Value) -> Option<Endpoint> {
    let address = pod["status"]["podIP"].as_str()?;
    if has_ended(pod) {
        return None;
    }
    let metadata = &pod["metadata"];
    let is_in_dns = pod["spec"]["subdomain"] == *name(service);
    let hostname = if is_in_dns { &pod["spec"]["hostname"] } else { &Value::Null };
    Some(Endpoint {
        address: address.to_owned(),
        is_ready: is_ready(pod) || service["spec"]["publishNotReadyAddresses"] == true,
        is_terminating: is_terminating(pod),
        node: pod["spec"]["nodeName"].clone(),
        hostname: hostname.clone(),
        pod: json!({"kind": "Pod", "namespace": metadata["namespace"], "name": metadata["name"], "uid": metadata["uid"]}),
    })
}

/// The ports of the endpoints: the target ports. A name refers to a port of a container.
fn ports(ports: &Value, pod: Option<&Value>) -> Vec<Value> {
    let containers = || each(pod.map_or(&Value::Null, |pod| &pod["spec"]["containers"]));
    let mut all = Vec::new();
    for port in each(ports) {
        let target = match &port["targetPort"] {
            Value::String(name) => {
                let mut ports = containers().flat_map(|container| each(&container["ports"]));
                ports.find(|port| port["name"] == *name).map(|port| port["containerPort"].clone())
            }
            number => Some(number.clone()),
        };
        let Some(target) = target else { continue };
        let mut endpoint = json!({"name": text(&port["name"]), "port": target, "protocol": port["protocol"]});
        if !port["appProtocol"].is_null() {
            endpoint["appProtocol"] = port["appProtocol"].clone();
        }
        all.push(endpoint);
    }
    all
}

/// The labels of the Service, and others.
fn labels(service: &Value, own: &[(&str, &str)]) -> Value {
    let mut labels = service["metadata"]["labels"].as_object().cloned().unwrap_or_default();
    labels.extend(own.iter().map(|(key, value)| ((*key).to_owned(), Value::from(*value))));
    if service["spec"]["clusterIP"] == "None" {
        labels.insert("service.kubernetes.io/headless".to_owned(), "".into());
    }
    labels.into()
}

fn write_slice(
    storage: &mut Storage,
    place: &Place,
    service: &Value,
    endpoints: &[Endpoint],
    ports: &[Value],
    trigger: Option<&str>,
) {
    let labels = labels(service, &[("kubernetes.io/service-name", name(service)), SLICE_MANAGER]);
    let item = |one: &Endpoint| {
        let ready = one.is_ready && !one.is_terminating;
        let conditions = json!({"ready": ready, "serving": one.is_ready, "terminating": one.is_terminating});
        let mut item = json!({"addresses": [one.address], "conditions": conditions, "targetRef": one.pod});
        one.describe(&mut item);
        item
    };
    let items: Value = if endpoints.is_empty() { Value::Null } else { endpoints.iter().map(item).collect() };
    let ports: Value =
        if items.is_null() || ports.is_empty() { Value::Null } else { ports.iter().cloned().collect() };
    let edit = |slice: &mut Value| {
        slice["metadata"]["labels"] = labels.clone();
        (slice["endpoints"], slice["ports"]) = (items.clone(), ports.clone());
    };
    if let Some((slice, _)) = controlled(storage, service, SLICES).first() {
        return change(storage, slice, Part::Main, |slice| set(slice, trigger, edit));
    }
    let base = format!("{}-", name(service));
    let metadata = json!({"name": format!("{base}{}", random_letters()), "generateName": base,
        "ownerReferences": [owner_reference(service)]});
    let mut slice = json!({"metadata": metadata, "addressType": "IPv4"});
    set(&mut slice, trigger, edit);
    make(storage, "discovery.k8s.io", "endpointslices", place.namespace(), slice);
}

fn write_endpoints(
    storage: &mut Storage,
    place: &Place,
    service: &Value,
    endpoints: &[Endpoint],
    ports: &[Value],
    trigger: Option<&str>,
) {
    // Unlike a slice, Endpoints leave out an empty name. With it, each comparison would find a difference.
    let mut ports = ports.to_vec();
    for port in ports.iter_mut().filter(|port| port["name"] == "").filter_map(Value::as_object_mut) {
        port.remove("name");
    }
    let addresses = |wanted: bool| -> Vec<Value> {
        let of = endpoints.iter().filter(|one| !one.is_terminating && one.is_ready == wanted);
        let address = |one: &Endpoint| {
            let mut address = json!({"ip": one.address, "targetRef": one.pod});
            one.describe(&mut address);
            address
        };
        of.map(address).collect()
    };
    let mut subset = json!({});
    for (field, list) in
        [("addresses", addresses(true)), ("notReadyAddresses", addresses(false)), ("ports", ports)]
    {
        if !list.is_empty() {
            subset[field] = list.into();
        }
    }
    let has_addresses = subset.get("addresses").or(subset.get("notReadyAddresses")).is_some();
    let labels = labels(service, &[MANAGER]);
    let edit = |endpoints: &mut Value| {
        endpoints["metadata"]["labels"] = labels.clone();
        if has_addresses {
            endpoints["subsets"] = json!([subset]);
        } else if let Some(endpoints) = endpoints.as_object_mut() {
            endpoints.remove("subsets");
        }
    };
    let own = Place { collection: "endpoints".to_owned(), key: place.key.clone() };
    if storage.get(&own).is_some() {
        return change(storage, &own, Part::Main, |endpoints| set(endpoints, trigger, edit));
    }
    let mut object = json!({"metadata": {"name": name(service)}});
    set(&mut object, trigger, edit);
    make(storage, "", "endpoints", place.namespace(), object);
}
