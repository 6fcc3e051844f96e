//! ClusterIP and node port allocation: assigns `clusterIP`, `ipFamilies` and node ports to a Service, or checks the
//! ones it requests. After a change of its type, a Service releases the fields that the new type does not use.
//!
//! The order of the checks and the messages are as in pkg/registry/core/service: strategy.go, storage/storage.go,
//! storage/alloc.go. The cluster has one IP family, IPv4.

use std::{
    collections::{HashMap, HashSet},
    net::Ipv4Addr,
};

use fastrand::Rng;
use serde_json::{Value, json};

use crate::{
    kinds::{
        addresses::not_address,
        field_checks::{each, not_one_of},
    },
    status::{Cause, StatusError},
};

/// First two bytes of each address: `--service-cluster-ip-range=10.96.0.0/16`, the default of kubeadm. As on
/// kube-apiserver, addresses in 10.96.0 are reserved for Services that request one.
/// See <https://kubernetes.io/docs/concepts/services-networking/cluster-ip-allocation/>.
const NETWORK: [u8; 2] = [10, 96];

/// Hosts to assign. 0 is the address of the network, and 65535 is for broadcasts.
const HOSTS: std::ops::Range<u16> = 256..u16::MAX;

/// Hosts reserved for Services that request an address. The Service `kubernetes` has the first.
const RESERVED_HOSTS: std::ops::Range<u16> = 2..256;

/// `--service-node-port-range`.
const NODE_PORTS: std::ops::RangeInclusive<u16> = 30_000..=32_767;

/// The first 32nd of the node ports is reserved for Services that request one.
const RESERVED_NODE_PORTS: usize = 86;

fn needs_address(spec: &Value) -> bool {
    spec["type"] != "ExternalName"
}

pub(crate) fn needs_node_ports(spec: &Value) -> bool {
    spec["type"] == "NodePort" || is_load_balancer(spec)
}

pub(crate) fn needs_health_check(spec: &Value) -> bool {
    is_load_balancer(spec) && spec["externalTrafficPolicy"] == "Local"
}

/// Whether the Service gets node ports: a LoadBalancer can disable them.
fn allocates_node_ports(spec: &Value) -> bool {
    spec["type"] == "NodePort" || is_load_balancer(spec) && spec["allocateLoadBalancerNodePorts"] != false
}

pub(crate) fn is_load_balancer(spec: &Value) -> bool {
    spec["type"] == "LoadBalancer"
}

/// Whether a Service can be reached from outside of the cluster.
pub(crate) fn is_reachable(spec: &Value) -> bool {
    needs_node_ports(spec) || spec["type"] == "ClusterIP" && each(&spec["externalIPs"]).next().is_some()
}

fn is_in_network(address: Ipv4Addr) -> bool {
    let [first, second, third, fourth] = address.octets();
    let host = u16::from_be_bytes([third, fourth]);
    [first, second] == NETWORK && host != 0 && host != HOSTS.end
}

fn is_v6(address: &Value) -> bool {
    address.as_str().is_some_and(|address| address.contains(':'))
}

/// All node ports of a Service.
fn node_ports(spec: &Value) -> impl Iterator<Item = &Value> {
    let all = each(&spec["ports"]).map(|port| &port["nodePort"]).chain([&spec["healthCheckNodePort"]]);
    all.filter(|port| !port.is_null())
}

fn remove(value: &mut Value, field: &str) {
    if let Some(map) = value.as_object_mut() {
        map.remove(field);
    }
}

/// Why a requested node port cannot be allocated.
fn unavailable(services: &[&Value], number: &Value, is_chosen: bool) -> Option<String> {
    let in_range = number.as_u64().and_then(|number| u16::try_from(number).ok());
    if !in_range.is_some_and(|number| NODE_PORTS.contains(&number)) {
        let (first, last) = (NODE_PORTS.start(), NODE_PORTS.end());
        return Some(format!(
            "provided port is not in the valid range. The range of valid ports is {first}-{last}"
        ));
    }
    let is_taken = || services.iter().any(|other| node_ports(&other["spec"]).any(|other| other == number));
    (is_chosen || is_taken()).then(|| "provided port is already allocated".to_owned())
}

/// The first error of the requested address and node ports. Like kube-apiserver, it stops there.
fn refused(services: &[&Value], before: Option<&Value>, service: &Value, is_dry_run: bool) -> Option<Cause> {
    let spec = &service["spec"];
    let old = before.map_or(&Value::Null, |before| &before["spec"]);
    let address = spec["clusterIP"].as_str().unwrap_or_default();
    if needs_address(spec) && !matches!(address, "" | "None") && old["clusterIP"].is_null() {
        let is_in_network = address.parse().is_ok_and(is_in_network);
        // As on kube-apiserver, a dry run may request an allocated address, but not an allocated node port.
        let is_taken = || !is_dry_run && services.iter().any(|other| other["spec"]["clusterIP"] == address);
        let why = match is_in_network {
            false => Some("the provided network does not match the current range"),
            true => is_taken().then_some("provided IP is already allocated"),
        };
        if let Some(why) = why {
            let text = format!("failed to allocate IP {address}: {why}");
            return Some(Cause::invalid("spec.clusterIPs", &json!([address]), &text));
        }
    }
    for (index, port) in each(&spec["ports"]).enumerate() {
        let number = &port["nodePort"];
        let was_given = || each(&old["ports"]).any(|old| old["nodePort"] == *number);
        if number.is_null() || !needs_node_ports(spec) || was_given() {
            continue;
        }
        // Ports with the same number and different protocols may share a node port. In an update, any two may.
        let is_twin = |other: &Value| before.is_some() || other["port"] == port["port"];
        let mut earlier = each(&spec["ports"]).take(index).filter(|other| !is_twin(other));
        let is_chosen = earlier.any(|other| other["nodePort"] == *number);
        let Some(why) = unavailable(services, number, is_chosen) else { continue };
        return Some(Cause::invalid(format!("spec.ports[{index}].nodePort"), number, &why));
    }
    None
}

/// Assigns the fields that a Service lacks, and releases those that its type does not use. Returns the validation
/// errors. A dry run ignores allocated addresses, and may assign node ports beyond the range. With the same seed, the draws are the same.
pub(crate) fn settle(
    services: &[&Value],
    before: Option<&Value>,
    service: &mut Value,
    is_dry_run: bool,
    seed: u64,
) -> Result<Vec<Cause>, StatusError> {
    let old = before.map(|before| &before["spec"]);
    let spec = &mut service["spec"];
    if let Some(old) = old {
        keep_allocated(spec, old);
    }
    normalize_cluster_ips(spec, old);
    let causes = init_ip_families(spec, old);
    if !causes.is_empty() {
        return Ok(causes);
    }
    if let Some(cause) = refused(services, before, service, is_dry_run) {
        return Ok(vec![cause]);
    }
    allocate(services, before, service, is_dry_run, &mut Rng::with_seed(seed))?;
    if let Some(old) = old {
        drop_type_dependent_fields(&mut service["spec"], old);
        if is_load_balancer(old) && !is_load_balancer(&service["spec"]) {
            service["status"]["loadBalancer"] = json!({});
        }
    }
    let spec = &mut service["spec"];
    // Go stores a valid policy of an ExternalName, and hides it: `defaultOnReadInternalTrafficPolicy`.
    if !needs_address(spec) && ["Cluster", "Local"].iter().any(|one| spec["internalTrafficPolicy"] == **one) {
        remove(spec, "internalTrafficPolicy");
    }
    Ok(Vec::new())
}

/// Assigns an address and node ports.
fn allocate(
    services: &[&Value],
    before: Option<&Value>,
    service: &mut Value,
    is_dry_run: bool,
    random: &mut Rng,
) -> Result<(), StatusError> {
    let name = service["metadata"]["name"].as_str().unwrap_or_default().to_owned();
    let spec = &mut service["spec"];
    if !needs_address(spec) {
        return Ok(());
    }
    if spec["clusterIP"].is_null() {
        let others = services.iter().filter(|_| !is_dry_run);
        let taken = others.filter_map(|one| one["spec"]["clusterIP"].as_str()?.parse().ok()).collect();
        let Some(address) = free_address(&taken, random) else {
            let text = format!("failed to allocate a serviceIP for Service {name:?}: range is full");
            return Err(StatusError::went_wrong(&text));
        };
        spec["clusterIP"] = address.to_string().into();
        spec["clusterIPs"] = json!([spec["clusterIP"]]);
    }
    if needs_node_ports(spec) {
        allocate_node_ports(services, before, spec, is_dry_run, random)
    } else {
        Ok(())
    }
}

fn allocate_node_ports(
    services: &[&Value],
    before: Option<&Value>,
    spec: &mut Value,
    is_dry_run: bool,
    random: &mut Rng,
) -> Result<(), StatusError> {
    let others = services.iter().flat_map(|one| node_ports(&one["spec"]));
    let taken: HashSet<i64> = others.chain(node_ports(spec)).filter_map(Value::as_i64).collect();
    let is_free = |port: &u16| !taken.contains(&i64::from(*port));
    let mut any: Vec<u16> = NODE_PORTS.skip(RESERVED_NODE_PORTS).filter(is_free).collect();
    let first = random.usize(..=any.len());
    any.rotate_left(first);
    // As on kube-apiserver, the reserved ports are assigned when all other ports are allocated.
    let reserved = NODE_PORTS.take(RESERVED_NODE_PORTS).filter(is_free);
    let beyond = (NODE_PORTS.end() + 1..=u16::MAX).filter(|_| is_dry_run);
    let mut free = any.into_iter().chain(reserved).chain(beyond);
    let was_checked = before.is_some_and(|before| needs_health_check(&before["spec"]));
    let checked = &spec["healthCheckNodePort"];
    if needs_health_check(spec) && checked.is_null() {
        let full = || StatusError::went_wrong("failed to allocate a HealthCheck NodePort 0: range is full");
        spec["healthCheckNodePort"] = free.next().ok_or_else(full)?.into();
    } else if needs_health_check(spec)
        && !was_checked
        && let Some(why) =
            unavailable(services, checked, each(&spec["ports"]).any(|port| port["nodePort"] == *checked))
    {
        let text = format!("failed to allocate requested HealthCheck NodePort {checked}: {why}");
        return Err(StatusError::went_wrong(&text));
    }
    if !allocates_node_ports(spec) {
        return Ok(());
    }
    // In a new Service, ports with the same number and different protocols share one node port.
    let mut shared: HashMap<String, Value> = HashMap::new();
    if before.is_none() {
        for port in each(&spec["ports"]).filter(|port| !port["nodePort"].is_null()) {
            shared.entry(port["port"].to_string()).or_insert_with(|| port["nodePort"].clone());
        }
    }
    for port in spec["ports"].as_array_mut().into_iter().flatten() {
        if !port["nodePort"].is_null() {
            continue;
        }
        let number = port["port"].to_string();
        port["nodePort"] = match shared.get(&number) {
            Some(node_port) => node_port.clone(),
            None => {
                let full = || StatusError::went_wrong("failed to allocate a nodePort: range is full");
                free.next().ok_or_else(full)?.into()
            }
        };
        if before.is_none() {
            shared.insert(number, port["nodePort"].clone());
        }
    }
    Ok(())
}

/// A free address, chosen at random. The reserved addresses come last.
fn free_address(taken: &HashSet<Ipv4Addr>, random: &mut Rng) -> Option<Ipv4Addr> {
    let [first, second] = NETWORK;
    let address = |host: u16| {
        let [third, fourth] = host.to_be_bytes();
        Ipv4Addr::new(first, second, third, fourth)
    };
    let any = random.u16(HOSTS);
    let hosts = (any..HOSTS.end).chain(HOSTS.start..any).chain(RESERVED_HOSTS);
    hosts.map(address).find(|address| !taken.contains(address))
}

/// An update without the assigned fields keeps their values: `patchAllocatedValues`.
fn keep_allocated(spec: &mut Value, old: &Value) {
    let has_address = needs_address(old) && needs_address(spec);
    let is_checked = needs_health_check(old) && needs_health_check(spec);
    for (field, is_kept) in
        [("clusterIP", has_address), ("clusterIPs", has_address), ("healthCheckNodePort", is_checked)]
    {
        if is_kept && spec[field].is_null() && !old[field].is_null() {
            spec[field] = old[field].clone();
        }
    }
    if !allocates_node_ports(old) || !allocates_node_ports(spec) {
        return;
    }
    let kept: Vec<Value> = each(&spec["ports"]).map(|port| port["nodePort"].clone()).collect();
    for port in spec["ports"].as_array_mut().into_iter().flatten().filter(|port| port["nodePort"].is_null()) {
        let known = each(&old["ports"]).filter(|old| old["name"] == port["name"]).last();
        let known = known.map_or(&Value::Null, |old| &old["nodePort"]);
        if !known.is_null() && !kept.contains(known) {
            port["nodePort"] = known.clone();
        }
    }
}

/// `clusterIPs` follows `clusterIP` if only `clusterIP` was changed: `normalizeClusterIPs`.
fn normalize_cluster_ips(spec: &mut Value, old: Option<&Value>) {
    let nothing = Value::Null;
    let old = old.unwrap_or(&nothing);
    let is_same_list = spec["clusterIPs"] == old["clusterIPs"];
    let is_same = spec["clusterIP"] == old["clusterIP"];
    if is_same && !old["clusterIPs"].is_null() && spec["clusterIPs"].is_null() {
        spec["clusterIPs"] = old["clusterIPs"].clone();
    } else if !is_same && is_same_list && spec["clusterIP"].is_null() {
        remove(spec, "clusterIPs");
    } else if !is_same && is_same_list {
        spec["clusterIPs"] = json!([spec["clusterIP"]]);
    }
}

/// `initIPFamilyFields`, on a cluster without IPv6.
fn init_ip_families(spec: &mut Value, old: Option<&Value>) -> Vec<Cause> {
    let prefers = |spec: &Value| spec["ipFamilyPolicy"] == "PreferDualStack";
    let is_as_before = |old: &Value| {
        let fields = ["type", "clusterIPs", "ipFamilies"];
        prefers(spec) && prefers(old) && fields.iter().all(|field| spec[field] == old[field])
    };
    if !needs_address(spec) || old.is_some_and(is_as_before) {
        return Vec::new();
    }
    // A headless Service without a selector has endpoints of any family, so both families are the default.
    let is_headless_without_selector = spec["clusterIP"] == "None" && spec["selector"].is_null();
    if spec["ipFamilyPolicy"].is_null() {
        let before = old.map_or(&Value::Null, |old| &old["ipFamilyPolicy"]);
        spec["ipFamilyPolicy"] = match before {
            Value::Null if is_headless_without_selector => "RequireDualStack".into(),
            Value::Null => "SingleStack".into(),
            before => before.clone(),
        };
    }
    let mut causes = address_errors(spec);
    if !causes.is_empty() {
        return causes;
    }
    let policy = spec["ipFamilyPolicy"].clone();
    let is_single = policy == "SingleStack";
    let mut wrong = |text: &str| causes.push(Cause::invalid("spec.ipFamilyPolicy", &policy, text));
    if let Some(old) = old.filter(|old| each(&old["ipFamilies"]).count() > 1) {
        if is_single && spec["ipFamilies"] == old["ipFamilies"] {
            spec["ipFamilies"] = json!([spec["ipFamilies"][0]]);
        } else if !is_single && each(&spec["ipFamilies"]).count() == 1 {
            wrong("must be 'SingleStack' to release the secondary IP family");
        }
    }
    if is_single && each(&spec["clusterIPs"]).count() == 2 {
        wrong("must be 'RequireDualStack' or 'PreferDualStack' when multiple cluster IPs are specified");
    }
    if is_single && each(&spec["ipFamilies"]).count() == 2 {
        wrong("must be 'RequireDualStack' or 'PreferDualStack' when multiple IP families are specified");
    }
    // An address without an entry in `ipFamilies` requests its own family.
    let known = each(&spec["ipFamilies"]).count();
    for (index, _) in each(&spec["clusterIPs"]).enumerate().skip(known).filter(|(_, one)| is_v6(one)) {
        let text = "IPv6 is not configured on this cluster";
        causes.push(Cause::invalid(format!("spec.clusterIPs[{index}]"), &spec["clusterIPs"], text));
    }
    if !causes.is_empty() {
        return causes;
    }
    if spec["ipFamilies"].is_null() {
        spec["ipFamilies"] = json!(["IPv4"]);
    }
    if is_headless_without_selector {
        if !is_single && each(&spec["ipFamilies"]).count() == 1 {
            let other = if spec["ipFamilies"][0] == "IPv4" { "IPv6" } else { "IPv4" };
            spec["ipFamilies"] = json!([spec["ipFamilies"][0], other]);
        }
        return causes;
    }
    if policy == "RequireDualStack" {
        let text = "this cluster is not configured for dual-stack services";
        causes.push(Cause::invalid("spec.ipFamilyPolicy", &policy, text));
    }
    for (index, family) in each(&spec["ipFamilies"]).enumerate().filter(|(_, family)| *family == "IPv6") {
        let field = format!("spec.ipFamilies[{index}]");
        causes.push(Cause::invalid(field, family, "not configured on this cluster"));
    }
    causes
}

/// Errors of addresses and IP families: `ValidateServiceClusterIPsRelatedFields`.
pub(crate) fn address_errors(spec: &Value) -> Vec<Cause> {
    let mut all = Vec::new();
    if !needs_address(spec) {
        return all;
    }
    let (address, addresses, at) = (&spec["clusterIP"], &spec["clusterIPs"], "spec.clusterIPs");
    match (address.is_null(), addresses.is_null()) {
        (false, true) => all.push(Cause::required(at, "")),
        (false, false) if addresses[0] != *address => {
            all.push(Cause::invalid(at, addresses, "first value must match `clusterIP`"));
        }
        (true, false) => {
            let text = "must be empty when `clusterIP` is not specified";
            all.push(Cause::invalid(at, addresses, text));
        }
        (false, false) | (true, true) => {}
    }
    for (index, family) in each(&spec["ipFamilies"]).enumerate() {
        let field = format!("spec.ipFamilies[{index}]");
        not_one_of(&mut all, field.clone(), family, &["IPv4", "IPv6"]);
        if each(&spec["ipFamilies"]).take(index).any(|earlier| earlier == family) {
            all.push(Cause::duplicate(field, family));
        }
    }
    let policies = ["PreferDualStack", "RequireDualStack", "SingleStack"];
    if !spec["ipFamilyPolicy"].is_null() {
        not_one_of(&mut all, "spec.ipFamilyPolicy".to_owned(), &spec["ipFamilyPolicy"], &policies);
    }
    let count = each(&spec["clusterIPs"]).count();
    let before = all.len();
    for (index, address) in each(&spec["clusterIPs"]).enumerate() {
        if index == 0 && address == "None" {
            if count > 1 {
                all.push(Cause::invalid(at, addresses, "'None' must be the first and only value"));
            }
        } else {
            not_address(&mut all, format!("{at}[{index}]"), address);
        }
    }
    let is_readable = all.len() == before;
    if count > 2 {
        all.push(Cause::invalid(at, addresses, "may only hold up to 2 values"));
    }
    if !is_readable {
        return all;
    }
    if count == 2 && is_v6(&addresses[0]) == is_v6(&addresses[1]) {
        let text = "may specify no more than one IP for each IP family";
        all.push(Cause::invalid(at, addresses, text));
    }
    let pairs = each(&spec["clusterIPs"]).zip(each(&spec["ipFamilies"]));
    for (index, (address, family)) in pairs.enumerate().filter(|(_, (address, _))| *address != "None") {
        let other = if is_v6(address) { "IPv4" } else { "IPv6" };
        if family == other {
            let text = format!("expected an {other} value as indicated by `ipFamilies[{index}]`");
            all.push(Cause::invalid(format!("{at}[{index}]"), address, &text));
        }
    }
    all
}

/// After a change of its type, a Service loses the fields that the new type does not use, unless they change as well:
/// `dropTypeDependentFields`.
fn drop_type_dependent_fields(spec: &mut Value, old: &Value) {
    let mut lost = Vec::new();
    let is_same = |field: &str| spec[field] == old[field];
    if needs_address(old) && !needs_address(spec) {
        if is_same("clusterIP") && is_same("clusterIPs") {
            lost.extend(["clusterIP", "clusterIPs"]);
        }
        lost.extend(["ipFamilies", "ipFamilyPolicy"].into_iter().filter(|field| is_same(field)));
    }
    let gone = [
        ("healthCheckNodePort", needs_health_check(old) && !needs_health_check(spec)),
        ("allocateLoadBalancerNodePorts", is_load_balancer(old) && !is_load_balancer(spec)),
        ("loadBalancerClass", is_load_balancer(old) && !is_load_balancer(spec)),
        ("externalTrafficPolicy", is_reachable(old) && !is_reachable(spec)),
    ];
    lost.extend(
        gone.into_iter().filter(|(field, is_gone)| *is_gone && is_same(field)).map(|(field, _)| field),
    );
    let are_known = each(&spec["ports"]).all(|port| {
        port["nodePort"].is_null() || each(&old["ports"]).any(|old| old["nodePort"] == port["nodePort"])
    });
    let loses_ports = needs_node_ports(old) && !needs_node_ports(spec) && are_known;
    lost.into_iter().for_each(|field| remove(spec, field));
    if loses_ports {
        for port in spec["ports"].as_array_mut().into_iter().flatten() {
            remove(port, "nodePort");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn given(services: &[Value], spec: Value) -> Result<Value, String> {
        let services: Vec<&Value> = services.iter().collect();
        let mut service = json!({"metadata": {"name": "new"}, "spec": spec});
        allocate(&services, None, &mut service, false, &mut Rng::new())
            .map_err(|error| error.message().to_owned())?;
        Ok(service["spec"].take())
    }

    /// The search for a free address never ended, and blocked all other requests.
    #[test]
    fn addresses_come_to_an_end() {
        let all = || (2..u16::MAX).map(|host| format!("10.96.{}.{}", host >> 8, host & 255));
        let mut addresses: Vec<String> = all().collect();
        let last = addresses.swap_remove(300);
        let with_address = |address| json!({"spec": {"clusterIP": address}});
        let mut services: Vec<Value> = addresses.into_iter().map(with_address).collect();
        assert_eq!(given(&services, json!({})).map(|spec| spec["clusterIP"].clone()), Ok(json!(last)));
        services.push(json!({"spec": {"clusterIP": last}}));
        let why =
            "Internal error occurred: failed to allocate a serviceIP for Service \"new\": range is full";
        assert_eq!(given(&services, json!({})), Err(why.to_owned()));
        assert!(given(&services, json!({"clusterIP": "None"})).is_ok(), "who wants none");
        assert!(
            allocate(
                &services.iter().collect::<Vec<_>>(),
                None,
                &mut json!({"spec": {}}),
                true,
                &mut Rng::new()
            )
            .is_ok(),
            "a dry run"
        );
    }

    /// The Service got two node ports, and one without node ports got one.
    #[test]
    fn one_port_by_two_protocols_has_one_node_port() {
        let node_ports = |before: Option<&Value>, spec: Value| -> Vec<Option<i64>> {
            let mut service = json!({"spec": spec});
            allocate(&[], before, &mut service, false, &mut Rng::new()).expect("some are free");
            each(&service["spec"]["ports"]).map(|port| port["nodePort"].as_i64()).collect()
        };
        let spec = |ports: Value| json!({"type": "NodePort", "ports": ports});
        let (udp, tcp) = (json!({"port": 53, "protocol": "UDP"}), json!({"port": 53, "protocol": "TCP"}));
        let given = node_ports(None, spec(json!([udp, tcp, {"port": 80}])));
        assert!(given[0].is_some() && given[0] == given[1] && given[1] != given[2], "{given:?}");
        let chosen = json!({"port": 53, "protocol": "SCTP", "nodePort": 30_053});
        assert_eq!(node_ports(None, spec(json!([udp, tcp, chosen]))), [Some(30_053); 3]);
        // As on kube-apiserver, a Service that becomes a NodePort gets two node ports.
        let given = node_ports(Some(&json!({})), spec(json!([udp, tcp])));
        assert_ne!(given[0], given[1]);
        let none = json!({"type": "LoadBalancer", "allocateLoadBalancerNodePorts": false, "ports": [udp]});
        assert_eq!(node_ports(None, none), [None]);
    }

    #[test]
    fn an_address_that_is_chosen_is_that_of_a_host() {
        let refused = |address: &str| refused(&[], None, &json!({"spec": {"clusterIP": address}}), false);
        for address in ["10.96.0.0", "10.96.255.255", "10.97.0.1"] {
            let text = format!(
                "failed to allocate IP {address}: the provided network does not match the current range"
            );
            assert_eq!(refused(address), Some(Cause::invalid("spec.clusterIPs", &json!([address]), &text)));
        }
        assert_eq!(refused("10.96.255.0"), None);
    }

    /// The last node ports were null.
    #[test]
    fn node_ports_come_to_an_end() {
        let wanted = |count: u16| {
            let port = |port| json!({"port": port});
            json!({"type": "NodePort", "clusterIP": "10.96.1.1", "ports": (0..count).map(port).collect::<Vec<_>>()})
        };
        let taken =
            NODE_PORTS.skip(2).map(|port| json!({"spec": {"ports": [{"port": 80, "nodePort": port}]}}));
        let services: Vec<Value> = taken.collect();
        let spec = given(&services, wanted(2)).expect("two are left");
        let mut given_ports: Vec<i64> =
            each(&spec["ports"]).filter_map(|port| port["nodePort"].as_i64()).collect();
        given_ports.sort_unstable();
        assert_eq!(given_ports, [30_000, 30_001]);
        let why = "Internal error occurred: failed to allocate a nodePort: range is full";
        assert_eq!(given(&services, wanted(3)), Err(why.to_owned()));
        assert!(
            allocate(
                &services.iter().collect::<Vec<_>>(),
                None,
                &mut json!({"spec": wanted(3)}),
                true,
                &mut Rng::new()
            )
            .is_ok(),
            "a dry run"
        );
    }
}
