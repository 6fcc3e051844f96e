//! What a Service is given by the server: an address, and ports of the nodes. It may also choose what no other has.

use std::{
    collections::{HashMap, HashSet},
    net::Ipv4Addr,
};

use serde_json::{Value, json};

use super::{
    refusal::{Cause, Refusal},
    storage::Storage,
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
pub(super) const NODE_PORTS: std::ops::RangeInclusive<u16> = 30_000..=32_767;

/// The first node ports are left to who chooses: a 32nd of the range.
const NODE_PORTS_TO_CHOOSE: usize = 86;

fn needs_address(spec: &Value) -> bool {
    spec["type"] != "ExternalName"
}

pub(super) fn needs_node_ports(spec: &Value) -> bool {
    spec["type"] == "NodePort" || spec["type"] == "LoadBalancer"
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
    needs_node_ports(spec) || spec["externalIPs"].as_array().is_some_and(|addresses| !addresses.is_empty())
}

fn is_ours(address: Ipv4Addr) -> bool {
    let [first, second, third, fourth] = address.octets();
    let host = u16::from_be_bytes([third, fourth]);
    [first, second] == NETWORK && host != 0 && host != HOSTS.end
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

fn services(storage: &Storage) -> impl Iterator<Item = &Value> {
    let all = storage.collection("services").into_iter();
    all.flat_map(|services| services.objects.values()).map(|service| &**service)
}

/// What a Service chooses, but cannot have. The real one tells the first alone.
pub(super) fn refused(
    storage: &Storage,
    before: Option<&Value>,
    service: &Value,
    is_dry_run: bool,
) -> Option<Cause> {
    let spec = &service["spec"];
    let old = before.map_or(&Value::Null, |before| &before["spec"]);
    let address = spec["clusterIP"].as_str().unwrap_or("None");
    if needs_address(spec) && address != "None" && old["clusterIP"] != address {
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
        let is_same = |other: &Value| other["nodePort"] == *number;
        if is_empty(number) || ports(old).any(is_same) {
            continue;
        }
        // One port by two protocols may have one node port.
        let mut earlier = ports(spec).take(index).filter(|earlier| earlier["port"] != port["port"]);
        if earlier.any(is_same) || services(storage).any(|other| ports(&other["spec"]).any(is_same)) {
            let field = format!("spec.ports[{index}].nodePort");
            return Some(Cause::invalid(field, number, "provided port is already allocated"));
        }
    }
    None
}

/// Give what is missing. A dry run may have the address of another, and ports that nobody has.
pub(super) fn give(storage: &Storage, service: &mut Value, is_dry_run: bool) -> Result<(), Refusal> {
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
    }
    spec["clusterIPs"] = json!([spec["clusterIP"]]);
    if !is_given_node_ports(spec) {
        return Ok(());
    }
    let mut taken: HashSet<i64> = services(storage)
        .flat_map(|one| ports(&one["spec"]))
        .filter_map(|port| port["nodePort"].as_i64())
        .collect();
    taken.extend(ports(spec).filter_map(|port| port["nodePort"].as_i64()));
    let is_free = |port: &u16| !taken.contains(&i64::from(*port));
    let mut any: Vec<u16> = NODE_PORTS.skip(NODE_PORTS_TO_CHOOSE).filter(is_free).collect();
    let first = fastrand::usize(..=any.len());
    any.rotate_left(first);
    // What is there to be chosen is given too when nothing else is left, as by the real one.
    let to_choose = NODE_PORTS.take(NODE_PORTS_TO_CHOOSE).filter(is_free);
    let beyond = (NODE_PORTS.end() + 1..=u16::MAX).filter(|_| is_dry_run);
    let mut free = any.into_iter().chain(to_choose).chain(beyond);
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
    // Not where the update changes it too: then it is refused.
    for (field, needs) in [
        ("externalTrafficPolicy", is_reachable as fn(&Value) -> bool),
        ("allocateLoadBalancerNodePorts", is_balanced),
        ("loadBalancerClass", is_balanced),
    ] {
        if needs(before) && !needs(spec) && spec[field] == before[field] {
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
