//! What a Service is given by the server: an address, families, and ports of the nodes. It may also choose what no other
//! has. A Service that changes its type gives back what the new type has no use for.
//!
//! The order and the words are those of pkg/registry/core/service: strategy.go, storage/storage.go, storage/alloc.go. The
//! cluster has one family, IPv4.

use std::{
    collections::{HashMap, HashSet},
    net::{IpAddr, Ipv4Addr},
};

use serde_json::{Value, json};

use super::{
    refusal::{Cause, Refusal},
    storage::Storage,
    validate::{NO_ADDRESS, not_one_of},
};

/// How each address begins: `--service-cluster-ip-range=10.96.0.0/16`, as kubeadm has it. Those that begin with
/// 10.96.0 are left to who chooses, as on the real server.
/// See <https://kubernetes.io/docs/concepts/services-networking/cluster-ip-allocation/>.
const NETWORK: [u8; 2] = [10, 96];

/// The first one, 0, is the network's own; the last one is for broadcasts.
const HOSTS: std::ops::Range<u16> = 256..u16::MAX;

/// The first is that of the Service `kubernetes`.
const HOSTS_TO_CHOOSE: std::ops::Range<u16> = 2..256;

/// `--service-node-port-range`.
const NODE_PORTS: std::ops::RangeInclusive<u16> = 30_000..=32_767;

/// The first node ports are left to who chooses: a 32nd of the range.
const NODE_PORTS_TO_CHOOSE: usize = 86;

fn needs_address(spec: &Value) -> bool {
    spec["type"] != "ExternalName"
}

pub(super) fn needs_node_ports(spec: &Value) -> bool {
    spec["type"] == "NodePort" || is_balanced(spec)
}

pub(super) fn needs_health_check(spec: &Value) -> bool {
    is_balanced(spec) && spec["externalTrafficPolicy"] == "Local"
}

/// Not all that may have node ports are given some.
fn is_given_node_ports(spec: &Value) -> bool {
    spec["type"] == "NodePort" || is_balanced(spec) && spec["allocateLoadBalancerNodePorts"] != false
}

pub(super) fn is_balanced(spec: &Value) -> bool {
    spec["type"] == "LoadBalancer"
}

/// Whether it can be reached from outside of the cluster.
pub(super) fn is_reachable(spec: &Value) -> bool {
    needs_node_ports(spec) || spec["type"] == "ClusterIP" && items(spec, "externalIPs").next().is_some()
}

fn is_ours(address: Ipv4Addr) -> bool {
    let [first, second, third, fourth] = address.octets();
    let host = u16::from_be_bytes([third, fourth]);
    [first, second] == NETWORK && host != 0 && host != HOSTS.end
}

fn is_empty(value: &Value) -> bool {
    value.is_null() || value == "" || value == 0 || value.as_array().is_some_and(Vec::is_empty)
}

fn items<'a>(spec: &'a Value, list: &str) -> impl Iterator<Item = &'a Value> {
    spec[list].as_array().into_iter().flatten()
}

fn ports(spec: &Value) -> impl Iterator<Item = &Value> {
    items(spec, "ports")
}

/// All ports of the nodes that a Service has.
fn node_ports(spec: &Value) -> impl Iterator<Item = &Value> {
    let all = ports(spec).map(|port| &port["nodePort"]).chain([&spec["healthCheckNodePort"]]);
    all.filter(|port| !is_empty(port))
}

fn remove(value: &mut Value, field: &str) {
    if let Some(map) = value.as_object_mut() {
        map.remove(field);
    }
}

fn services(storage: &Storage) -> impl Iterator<Item = &Value> {
    let all = storage.collection("services").into_iter();
    all.flat_map(|services| services.objects.values()).map(|service| &**service)
}

/// What a Service chooses, but cannot have. The real one tells the first alone.
fn refused(storage: &Storage, before: Option<&Value>, service: &Value, is_dry_run: bool) -> Option<Cause> {
    let spec = &service["spec"];
    let old = before.map_or(&Value::Null, |before| &before["spec"]);
    let address = spec["clusterIP"].as_str().unwrap_or_default();
    if needs_address(spec) && !matches!(address, "" | "None") && is_empty(&old["clusterIP"]) {
        let is_ours = address.parse().is_ok_and(is_ours);
        // A dry run may have the address of another, but not its node port: so the real one does.
        let is_taken = || !is_dry_run && services(storage).any(|other| other["spec"]["clusterIP"] == address);
        let why = match is_ours {
            false => Some("the provided network does not match the current range"),
            true => is_taken().then_some("provided IP is already allocated"),
        };
        if let Some(why) = why {
            let text = format!("failed to allocate IP {address}: {why}");
            return Some(Cause::invalid("spec.clusterIPs", &json!([address]), &text));
        }
    }
    for (index, port) in ports(spec).enumerate() {
        let number = &port["nodePort"];
        if is_empty(number) || !needs_node_ports(spec) || node_ports(old).any(|old| old == number) {
            continue;
        }
        // One port by two protocols may have one node port, and in an update any two.
        let is_twin = |other: &Value| before.is_some() || other["port"] == port["port"];
        let mut earlier = ports(spec).take(index).filter(|other| !is_twin(other));
        let is_taken =
            || services(storage).any(|other| node_ports(&other["spec"]).any(|other| other == number));
        let in_range = number.as_u64().and_then(|number| u16::try_from(number).ok());
        let why = if !in_range.is_some_and(|number| NODE_PORTS.contains(&number)) {
            let (first, last) = (NODE_PORTS.start(), NODE_PORTS.end());
            format!("provided port is not in the valid range. The range of valid ports is {first}-{last}")
        } else if earlier.any(|other| other["nodePort"] == *number) || is_taken() {
            "provided port is already allocated".to_owned()
        } else {
            continue;
        };
        return Some(Cause::invalid(format!("spec.ports[{index}].nodePort"), number, &why));
    }
    None
}

/// Gives a Service what it lacks, and takes what it has no use for. Answers why it cannot. A dry run may have the address
/// of another, and ports that nobody has.
pub(super) fn settle(
    storage: &Storage,
    before: Option<&Value>,
    service: &mut Value,
    is_dry_run: bool,
) -> Result<Vec<Cause>, Refusal> {
    let old = before.map(|before| &before["spec"]);
    let spec = &mut service["spec"];
    if let Some(old) = old {
        keep(spec, old);
    }
    follow_address(spec, old);
    let causes = choose_families(spec, old);
    if !causes.is_empty() {
        return Ok(causes);
    }
    if let Some(cause) = refused(storage, before, service, is_dry_run) {
        return Ok(vec![cause]);
    }
    give(storage, service, is_dry_run)?;
    if let Some(old) = old {
        drop_dependents(&mut service["spec"], old);
    }
    Ok(Vec::new())
}

fn give(storage: &Storage, service: &mut Value, is_dry_run: bool) -> Result<(), Refusal> {
    let metadata = &service["metadata"];
    let name = metadata["name"].as_str().unwrap_or_default().to_owned();
    let is_new = !services(storage).any(|other| other["metadata"]["uid"] == metadata["uid"]);
    let spec = &mut service["spec"];
    if !needs_address(spec) {
        return Ok(());
    }
    if is_empty(&spec["clusterIP"]) {
        let others = services(storage).filter(|_| !is_dry_run);
        let taken = others.filter_map(|one| one["spec"]["clusterIP"].as_str()?.parse().ok()).collect();
        let Some(address) = free_address(&taken) else {
            let text = format!("failed to allocate a serviceIP for Service {name:?}: range is full");
            return Err(Refusal::went_wrong(&text));
        };
        spec["clusterIP"] = address.to_string().into();
        spec["clusterIPs"] = json!([spec["clusterIP"]]);
    }
    if !needs_node_ports(spec) {
        return Ok(());
    }
    let others = services(storage).flat_map(|one| node_ports(&one["spec"]));
    let taken: HashSet<i64> = others.chain(node_ports(spec)).filter_map(Value::as_i64).collect();
    let is_free = |port: &u16| !taken.contains(&i64::from(*port));
    let mut any: Vec<u16> = NODE_PORTS.skip(NODE_PORTS_TO_CHOOSE).filter(is_free).collect();
    let first = fastrand::usize(..=any.len());
    any.rotate_left(first);
    // What is there to be chosen is given too when nothing else is left, as by the real one.
    let to_choose = NODE_PORTS.take(NODE_PORTS_TO_CHOOSE).filter(is_free);
    let beyond = (NODE_PORTS.end() + 1..=u16::MAX).filter(|_| is_dry_run);
    let mut free = any.into_iter().chain(to_choose).chain(beyond);
    if needs_health_check(spec) && is_empty(&spec["healthCheckNodePort"]) {
        let full = || Refusal::went_wrong("failed to allocate a HealthCheck NodePort 0: range is full");
        spec["healthCheckNodePort"] = free.next().ok_or_else(full)?.into();
    }
    if !is_given_node_ports(spec) {
        return Ok(());
    }
    // One port by two protocols has one node port, but only in a new Service.
    let mut shared: HashMap<String, Value> = HashMap::new();
    if is_new {
        for port in ports(spec).filter(|port| !is_empty(&port["nodePort"])) {
            shared.entry(port["port"].to_string()).or_insert_with(|| port["nodePort"].clone());
        }
    }
    for port in spec["ports"].as_array_mut().into_iter().flatten() {
        if !is_empty(&port["nodePort"]) {
            continue;
        }
        let number = port["port"].to_string();
        port["nodePort"] = match shared.get(&number) {
            Some(node_port) => node_port.clone(),
            None => {
                let full = || Refusal::went_wrong("failed to allocate a nodePort: range is full");
                free.next().ok_or_else(full)?.into()
            }
        };
        if is_new {
            shared.insert(number, port["nodePort"].clone());
        }
    }
    Ok(())
}

/// Any, but one of those that are there to be chosen only when nothing else is left.
fn free_address(taken: &HashSet<Ipv4Addr>) -> Option<Ipv4Addr> {
    let [first, second] = NETWORK;
    let address = |host: u16| {
        let [third, fourth] = host.to_be_bytes();
        Ipv4Addr::new(first, second, third, fourth)
    };
    let any = fastrand::u16(HOSTS);
    let hosts = (any..HOSTS.end).chain(HOSTS.start..any).chain(HOSTS_TO_CHOOSE);
    hosts.map(address).find(|address| !taken.contains(address))
}

/// An update that does not name what was given keeps it: `patchAllocatedValues`.
fn keep(spec: &mut Value, old: &Value) {
    let has_address = needs_address(old) && needs_address(spec);
    let is_checked = needs_health_check(old) && needs_health_check(spec);
    for (field, is_kept) in
        [("clusterIP", has_address), ("clusterIPs", has_address), ("healthCheckNodePort", is_checked)]
    {
        if is_kept && is_empty(&spec[field]) && !is_empty(&old[field]) {
            spec[field] = old[field].clone();
        }
    }
    if !is_given_node_ports(old) || !is_given_node_ports(spec) {
        return;
    }
    let kept: Vec<Value> = ports(spec).map(|port| port["nodePort"].clone()).collect();
    for port in spec["ports"].as_array_mut().into_iter().flatten().filter(|port| is_empty(&port["nodePort"]))
    {
        let known = ports(old).filter(|old| old["name"] == port["name"]).last();
        let known = known.map_or(&Value::Null, |old| &old["nodePort"]);
        if !is_empty(known) && !kept.contains(known) {
            port["nodePort"] = known.clone();
        }
    }
}

/// `clusterIPs` follows `clusterIP`, where only that was written: `normalizeClusterIPs`.
fn follow_address(spec: &mut Value, old: Option<&Value>) {
    let nothing = Value::Null;
    let old = old.unwrap_or(&nothing);
    let is_same_list = is_empty(&spec["clusterIPs"]) == is_empty(&old["clusterIPs"])
        && (is_empty(&spec["clusterIPs"]) || spec["clusterIPs"] == old["clusterIPs"]);
    let is_same =
        spec["clusterIP"] == old["clusterIP"] || is_empty(&spec["clusterIP"]) && is_empty(&old["clusterIP"]);
    if is_same && !is_empty(&old["clusterIPs"]) && is_empty(&spec["clusterIPs"]) {
        spec["clusterIPs"] = old["clusterIPs"].clone();
    } else if !is_same && is_same_list && is_empty(&spec["clusterIP"]) {
        remove(spec, "clusterIPs");
    } else if !is_same && is_same_list {
        spec["clusterIPs"] = json!([spec["clusterIP"]]);
    }
}

/// `initIPFamilyFields`, on a cluster without IPv6.
fn choose_families(spec: &mut Value, old: Option<&Value>) -> Vec<Cause> {
    let prefers = |spec: &Value| spec["ipFamilyPolicy"] == "PreferDualStack";
    let is_as_before = |old: &Value| {
        let fields = ["type", "clusterIPs", "ipFamilies"];
        prefers(spec) && prefers(old) && fields.iter().all(|field| spec[field] == old[field])
    };
    if !needs_address(spec) || old.is_some_and(is_as_before) {
        return Vec::new();
    }
    // Whoever makes the endpoints decides: so say both.
    let is_of_others = spec["clusterIP"] == "None" && is_empty(&spec["selector"]);
    if spec["ipFamilyPolicy"].is_null() {
        let before = old.map_or(&Value::Null, |old| &old["ipFamilyPolicy"]);
        spec["ipFamilyPolicy"] = match before {
            Value::Null if is_of_others => "RequireDualStack".into(),
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
    if let Some(old) = old.filter(|old| items(old, "ipFamilies").count() > 1) {
        if is_single && spec["ipFamilies"] == old["ipFamilies"] {
            spec["ipFamilies"] = json!([spec["ipFamilies"][0]]);
        } else if !is_single && items(spec, "ipFamilies").count() == 1 {
            wrong("must be 'SingleStack' to release the secondary IP family");
        }
    }
    if is_single && items(spec, "ipFamilies").count() == 2 {
        wrong("must be 'RequireDualStack' or 'PreferDualStack' when multiple IP families are specified");
    }
    if !causes.is_empty() {
        return causes;
    }
    if is_empty(&spec["ipFamilies"]) {
        spec["ipFamilies"] = json!(["IPv4"]);
    }
    if is_of_others {
        if !is_single && items(spec, "ipFamilies").count() == 1 {
            let other = if spec["ipFamilies"][0] == "IPv4" { "IPv6" } else { "IPv4" };
            spec["ipFamilies"] = json!([spec["ipFamilies"][0], other]);
        }
        return causes;
    }
    if policy == "RequireDualStack" {
        let text = "this cluster is not configured for dual-stack services";
        causes.push(Cause::invalid("spec.ipFamilyPolicy", &policy, text));
    }
    for (index, family) in items(spec, "ipFamilies").enumerate().filter(|(_, family)| *family == "IPv6") {
        let field = format!("spec.ipFamilies[{index}]");
        causes.push(Cause::invalid(field, family, "not configured on this cluster"));
    }
    causes
}

/// What is wrong with the addresses and families by themselves: `ValidateServiceClusterIPsRelatedFields`.
pub(super) fn address_errors(spec: &Value) -> Vec<Cause> {
    let mut all = Vec::new();
    if !needs_address(spec) {
        return all;
    }
    let (address, addresses, at) = (&spec["clusterIP"], &spec["clusterIPs"], "spec.clusterIPs");
    match (is_empty(address), is_empty(addresses)) {
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
    for (index, family) in items(spec, "ipFamilies").enumerate() {
        let field = format!("spec.ipFamilies[{index}]");
        not_one_of(&mut all, field.clone(), family, &["IPv4", "IPv6"]);
        if items(spec, "ipFamilies").take(index).any(|earlier| earlier == family) {
            all.push(Cause::duplicate(field, family));
        }
    }
    let policies = ["PreferDualStack", "RequireDualStack", "SingleStack"];
    if !spec["ipFamilyPolicy"].is_null() {
        not_one_of(&mut all, "spec.ipFamilyPolicy".to_owned(), &spec["ipFamilyPolicy"], &policies);
    }
    let count = items(spec, "clusterIPs").count();
    let before = all.len();
    for (index, address) in items(spec, "clusterIPs").enumerate() {
        if index == 0 && address == "None" {
            if count > 1 {
                all.push(Cause::invalid(at, addresses, "'None' must be the first and only value"));
            }
        } else if address.as_str().is_none_or(|address| address.parse::<IpAddr>().is_err()) {
            all.push(Cause::invalid(format!("{at}[{index}]"), address, NO_ADDRESS));
        }
    }
    let is_readable = all.len() == before;
    if count > 2 {
        all.push(Cause::invalid(at, addresses, "may only hold up to 2 values"));
    }
    let is_v6 = |address: &Value| address.as_str().is_some_and(|address| address.contains(':'));
    if is_readable && count == 2 && is_v6(&addresses[0]) == is_v6(&addresses[1]) {
        let text = "may specify no more than one IP for each IP family";
        all.push(Cause::invalid(at, addresses, text));
    }
    all
}

/// A Service that changes its type loses what the new one has no use for, unless that is changed too:
/// `dropTypeDependentFields`.
fn drop_dependents(spec: &mut Value, old: &Value) {
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
        ("allocateLoadBalancerNodePorts", is_balanced(old) && !is_balanced(spec)),
        ("loadBalancerClass", is_balanced(old) && !is_balanced(spec)),
        ("externalTrafficPolicy", is_reachable(old) && !is_reachable(spec)),
    ];
    lost.extend(
        gone.into_iter().filter(|(field, is_gone)| *is_gone && is_same(field)).map(|(field, _)| field),
    );
    // Nobody reads it there.
    if !needs_address(spec) {
        lost.push("internalTrafficPolicy");
    }
    let are_known = ports(spec)
        .all(|port| is_empty(&port["nodePort"]) || ports(old).any(|old| old["nodePort"] == port["nodePort"]));
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
    use std::time::SystemTime;

    use super::{
        super::{clock::Clock, storage::Place},
        *,
    };

    fn storage_with(services: impl Iterator<Item = Value>) -> Storage {
        let mut storage = Storage::new(Clock::new(SystemTime::now()), 1, false);
        for (number, spec) in services.enumerate() {
            let name = format!("s{number}");
            storage.put(
                &Place::new("services", Some("default"), &name),
                json!({"metadata": {"name": name, "uid": name}, "spec": spec}),
            );
        }
        storage
    }

    fn given(storage: &Storage, spec: Value) -> Result<Value, String> {
        let mut service = json!({"metadata": {"name": "new"}, "spec": spec});
        give(storage, &mut service, false).map_err(|refusal| refusal.message().to_owned())?;
        Ok(service["spec"].take())
    }

    /// The search for a free one never ended, in which nobody else was served.
    #[tokio::test]
    async fn addresses_come_to_an_end() {
        let all = || (2..u16::MAX).map(|host| format!("10.96.{}.{}", host >> 8, host & 255));
        let mut addresses: Vec<String> = all().collect();
        let last = addresses.swap_remove(300);
        let mut storage = storage_with(addresses.into_iter().map(|address| json!({"clusterIP": address})));
        assert_eq!(given(&storage, json!({})).map(|spec| spec["clusterIP"].clone()), Ok(json!(last)));
        storage.put(&Place::new("services", Some("default"), "last"), json!({"spec": {"clusterIP": last}}));
        let why =
            "Internal error occurred: failed to allocate a serviceIP for Service \"new\": range is full";
        assert_eq!(given(&storage, json!({})), Err(why.to_owned()));
        assert!(given(&storage, json!({"clusterIP": "None"})).is_ok(), "who wants none");
        assert!(give(&storage, &mut json!({"spec": {}}), true).is_ok(), "a dry run");
    }

    /// It had two, and who wanted none had one.
    #[tokio::test]
    async fn one_port_by_two_protocols_has_one_node_port() {
        let storage = storage_with([json!({})].into_iter());
        let node_ports = |uid: &str, spec: Value| -> Vec<Option<i64>> {
            let mut service = json!({"metadata": {"name": "new", "uid": uid}, "spec": spec});
            give(&storage, &mut service, false).expect("some are free");
            ports(&service["spec"]).map(|port| port["nodePort"].as_i64()).collect()
        };
        let spec = |ports: Value| json!({"type": "NodePort", "ports": ports});
        let (udp, tcp) = (json!({"port": 53, "protocol": "UDP"}), json!({"port": 53, "protocol": "TCP"}));
        let given = node_ports("new", spec(json!([udp, tcp, {"port": 80}])));
        assert!(given[0].is_some() && given[0] == given[1] && given[1] != given[2], "{given:?}");
        let chosen = json!({"port": 53, "protocol": "SCTP", "nodePort": 30_053});
        assert_eq!(node_ports("new", spec(json!([udp, tcp, chosen]))), [Some(30_053); 3]);
        // A Service that becomes a NodePort is given two, and so it is by the real server.
        let given = node_ports("s0", spec(json!([udp, tcp])));
        assert_ne!(given[0], given[1]);
        let none = json!({"type": "LoadBalancer", "allocateLoadBalancerNodePorts": false, "ports": [udp]});
        assert_eq!(node_ports("new", none), [None]);
    }

    #[tokio::test]
    async fn an_address_that_is_chosen_is_that_of_a_host() {
        let storage = storage_with(std::iter::empty());
        let refused =
            |address: &str| refused(&storage, None, &json!({"spec": {"clusterIP": address}}), false);
        for address in ["10.96.0.0", "10.96.255.255", "10.97.0.1"] {
            let text = format!(
                "failed to allocate IP {address}: the provided network does not match the current range"
            );
            assert_eq!(refused(address), Some(Cause::invalid("spec.clusterIPs", &json!([address]), &text)));
        }
        assert_eq!(refused("10.96.255.0"), None);
    }

    /// The last ones were null.
    #[tokio::test]
    async fn node_ports_come_to_an_end() {
        let wanted = |count: u16| {
            let port = |port| json!({"port": port});
            json!({"type": "NodePort", "clusterIP": "10.96.1.1", "ports": (0..count).map(port).collect::<Vec<_>>()})
        };
        let taken = NODE_PORTS.skip(2).map(|port| json!({"ports": [{"port": 80, "nodePort": port}]}));
        let storage = storage_with(taken);
        let spec = given(&storage, wanted(2)).expect("two are left");
        let mut given_ports: Vec<i64> = ports(&spec).filter_map(|port| port["nodePort"].as_i64()).collect();
        given_ports.sort_unstable();
        assert_eq!(given_ports, [30_000, 30_001]);
        let why = "Internal error occurred: failed to allocate a nodePort: range is full";
        assert_eq!(given(&storage, wanted(3)), Err(why.to_owned()));
        assert!(give(&storage, &mut json!({"spec": wanted(3)}), true).is_ok(), "a dry run");
    }
}
