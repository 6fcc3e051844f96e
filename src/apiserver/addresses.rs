//! What a Service is given by the server: an address, and ports of the nodes.

use std::collections::HashSet;

use serde_json::{Value, json};

use super::storage::Storage;

/// `--service-node-port-range`.
pub(super) const NODE_PORTS: std::ops::RangeInclusive<u16> = 30_000..=32_767;

fn needs_address(spec: &Value) -> bool {
    spec["type"] != "ExternalName"
}

pub(super) fn needs_node_ports(spec: &Value) -> bool {
    spec["type"] == "NodePort" || spec["type"] == "LoadBalancer"
}

fn is_empty(value: &Value) -> bool {
    value.is_null() || value == "" || value == 0
}

fn ports(spec: &Value) -> impl Iterator<Item = &Value> {
    spec["ports"].as_array().into_iter().flatten()
}

fn remove(value: &mut Value, field: &str) {
    if let Some(map) = value.as_object_mut() {
        map.remove(field);
    }
}

/// Give what is missing.
pub(super) fn give(storage: &Storage, service: &mut Value) {
    let spec = &mut service["spec"];
    if !needs_address(spec) {
        return;
    }
    let services =
        || storage.collection("services").into_iter().flat_map(|services| services.objects.values());
    if is_empty(&spec["clusterIP"]) {
        let taken: HashSet<&str> = services().filter_map(|one| one["spec"]["clusterIP"].as_str()).collect();
        let address = loop {
            let address = format!("10.96.{}.{}", fastrand::u8(..), fastrand::u8(1..));
            if !taken.contains(&*address) {
                break address;
            }
        };
        spec["clusterIP"] = address.into();
    }
    spec["clusterIPs"] = json!([spec["clusterIP"]]);
    if !needs_node_ports(spec) {
        return;
    }
    let mut taken: HashSet<i64> =
        services().flat_map(|one| ports(&one["spec"])).filter_map(|port| port["nodePort"].as_i64()).collect();
    taken.extend(ports(spec).filter_map(|port| port["nodePort"].as_i64()));
    let free: Vec<u16> = NODE_PORTS.filter(|port| !taken.contains(&i64::from(*port))).collect();
    let mut free = free.iter().cycle().skip(fastrand::usize(..1000)).take(free.len());
    for port in spec["ports"].as_array_mut().into_iter().flatten() {
        if is_empty(&port["nodePort"]) {
            port["nodePort"] = free.next().copied().into();
        }
    }
}

/// An update that does not name what was given keeps it; one that changes the type gives back what the new one has not.
pub(super) fn keep(spec: &mut Value, before: &Value) {
    if !needs_address(spec) {
        for field in ["clusterIP", "clusterIPs", "ipFamilies", "ipFamilyPolicy", "internalTrafficPolicy"] {
            if spec[field] == before[field] {
                remove(spec, field);
            }
        }
    } else if is_empty(&spec["clusterIP"]) && needs_address(before) {
        spec["clusterIP"] = before["clusterIP"].clone();
    }
    let had = needs_node_ports(before);
    if had && !needs_node_ports(spec) {
        for field in ["externalTrafficPolicy", "allocateLoadBalancerNodePorts"] {
            remove(spec, field);
        }
    }
    let needs = needs_node_ports(spec);
    for port in spec["ports"].as_array_mut().into_iter().flatten() {
        let protocol = port["protocol"].as_str().unwrap_or("TCP");
        let same = |old: &&Value| old["port"] == port["port"] && old["protocol"] == protocol;
        let old = ports(before).find(same).map_or(&Value::Null, |old| &old["nodePort"]);
        if needs && is_empty(&port["nodePort"]) {
            port["nodePort"] = old.clone();
        } else if !needs && had && port["nodePort"] == *old {
            remove(port, "nodePort");
        }
    }
}
