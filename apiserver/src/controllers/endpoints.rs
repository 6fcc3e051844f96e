//! The endpoints of Services: an EndpointSlice and an Endpoints with the addresses of the Pods that a Service selects.
//!
//! ```text
//! Service web   Pods web-1, web-2   EndpointSlice web-x7k2p: 10.1.0.1, 10.1.0.2   Endpoints web
//! ```
//!
//! A Service has one slice with all its Pods: kube-controller-manager has one for each 100.

use serde_json::{Value, json};

use super::{
    change, delete, make,
    rollout::{controlled, is_ready, name, owner_reference},
};
use crate::{
    kinds::{
        Part,
        field_checks::{each, text},
        metadata::is_terminating,
    },
    names::random_letters,
    selector::Labels,
    storage::{Place, Storage},
    verbs::delete::Deletion,
};

const SLICES: &str = "endpointslices.discovery.k8s.io";
const SLICE_MANAGER: (&str, &str) =
    ("endpointslice.kubernetes.io/managed-by", "endpointslice-controller.k8s.io");
const MANAGER: (&str, &str) = ("endpoints.kubernetes.io/managed-by", "endpoint-controller");

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
        && Labels::from_object(&json!({"matchLabels": service["spec"]["selector"]}))
            .matches(&pod["metadata"]["labels"])
}

/// A Pod with an address.
struct Endpoint {
    address: String,
    is_ready: bool,
    is_terminating: bool,
    node: Value,
    pod: Value,
}

/// Reconciles a Service.
pub(crate) fn service(storage: &mut Storage, place: &Place, service: &Value) {
    if !has_selector(service) || service["spec"]["type"] == "ExternalName" || is_terminating(service) {
        return;
    }
    let pods = storage.collection("pods").into_iter().flat_map(|pods| pods.objects.values());
    let pods: Vec<&Value> = pods.map(|pod| &**pod).filter(|pod| selects(service, pod)).collect();
    let endpoints: Vec<Endpoint> = pods.iter().filter_map(|pod| endpoint(service, pod)).collect();
    let ports = ports(&service["spec"]["ports"], pods.first().copied());
    write_slice(storage, place, service, &endpoints, &ports);
    write_endpoints(storage, place, service, &endpoints, &ports);
}

/// Deletes the Endpoints of a Service that is gone. The garbage collector deletes the slice.
pub(crate) fn clean_up(storage: &mut Storage, service: &Place) {
    let place = Place { collection: "endpoints".to_owned(), key: service.key.clone() };
    let is_ours = |endpoints: &Value| endpoints["metadata"]["labels"][MANAGER.0] == MANAGER.1;
    if storage.get(&place).is_some_and(|endpoints| is_ours(endpoints)) {
        delete(storage, &place, &Deletion::default());
    }
}

fn endpoint(service: &Value, pod: &Value) -> Option<Endpoint> {
    let address = pod["status"]["podIP"].as_str()?;
    if ["Succeeded", "Failed"].contains(&text(&pod["status"]["phase"])) {
        return None;
    }
    let metadata = &pod["metadata"];
    Some(Endpoint {
        address: address.to_owned(),
        is_ready: is_ready(pod) || service["spec"]["publishNotReadyAddresses"] == true,
        is_terminating: is_terminating(pod),
        node: pod["spec"]["nodeName"].clone(),
        pod: json!({"kind": "Pod", "namespace": metadata["namespace"], "name": metadata["name"], "uid": metadata["uid"]}),
    })
}

/// The ports of the endpoints: the target ports, whose names are those of a port of a container.
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
) {
    let labels = labels(service, &[("kubernetes.io/service-name", name(service)), SLICE_MANAGER]);
    let item = |one: &Endpoint| {
        let ready = one.is_ready && !one.is_terminating;
        let conditions = json!({"ready": ready, "serving": one.is_ready, "terminating": one.is_terminating});
        let mut item = json!({"addresses": [one.address], "conditions": conditions, "targetRef": one.pod});
        if !one.node.is_null() {
            item["nodeName"] = one.node.clone();
        }
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
        return change(storage, slice, Part::Main, edit);
    }
    let base = format!("{}-", name(service));
    let metadata = json!({"name": format!("{base}{}", random_letters()), "generateName": base,
        "ownerReferences": [owner_reference(service)]});
    let mut slice = json!({"metadata": metadata, "addressType": "IPv4"});
    edit(&mut slice);
    make(storage, "discovery.k8s.io", "endpointslices", place.namespace(), slice);
}

fn write_endpoints(
    storage: &mut Storage,
    place: &Place,
    service: &Value,
    endpoints: &[Endpoint],
    ports: &[Value],
) {
    let addresses = |wanted: bool| -> Vec<Value> {
        let of = endpoints.iter().filter(|one| !one.is_terminating && one.is_ready == wanted);
        of.map(|one| json!({"ip": one.address, "nodeName": one.node, "targetRef": one.pod})).collect()
    };
    let mut subset = json!({});
    for (field, list) in
        [("addresses", addresses(true)), ("notReadyAddresses", addresses(false)), ("ports", ports.to_vec())]
    {
        if !list.is_empty() {
            subset[field] = list.into();
        }
    }
    let has_addresses = subset.get("addresses").or(subset.get("notReadyAddresses")).is_some();
    let labels = labels(service, &[MANAGER]);
    let edit = |endpoints: &mut Value| {
        endpoints["metadata"]["labels"] = labels.clone();
        endpoints["subsets"] = if has_addresses { json!([subset]) } else { Value::Null };
    };
    let own = Place { collection: "endpoints".to_owned(), key: place.key.clone() };
    if storage.get(&own).is_some() {
        return change(storage, &own, Part::Main, edit);
    }
    let mut object = json!({"metadata": {"name": name(service)}});
    edit(&mut object);
    make(storage, "", "endpoints", place.namespace(), object);
}
