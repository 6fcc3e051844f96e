//! Validation of EndpointSlices and of Endpoints: pkg/apis/discovery/validation, and `ValidateEndpoints` in pkg/apis/core/validation.

use std::net::IpAddr;

use serde_json::Value;

use crate::{
    kinds::{
        addresses::{NO_ADDRESS, address_error, domain_error, not_address, not_routable},
        field_checks::{PORT_RANGE, each, is_port, not_one_of, text},
    },
    names::{causes, label_errors, label_value_errors, qualified_name_errors, subdomain_errors},
    status::Cause,
};

const PROTOCOLS: [&str; 3] = ["SCTP", "TCP", "UDP"];
const ADDRESSES_MAX: usize = 100;
const HINTS_MAX: usize = 8;

/// `v1` does not store `deprecatedTopology`.
pub(crate) fn drop_topology(slice: &mut Value) {
    for endpoint in slice["endpoints"].as_array_mut().into_iter().flatten() {
        endpoint.as_object_mut().and_then(|endpoint| endpoint.remove("deprecatedTopology"));
    }
}

pub(crate) fn endpoint_slice(slice: &Value, before: Option<&Value>) -> Vec<Cause> {
    let (mut all, kind) = (Vec::new(), text(&slice["addressType"]));
    if kind.is_empty() {
        all.push(Cause::required("addressType", ""));
    } else {
        not_one_of(&mut all, "addressType".to_owned(), &slice["addressType"], &["FQDN", "IPv4", "IPv6"]);
    }
    for (index, port) in each(&slice["ports"]).enumerate() {
        let at = format!("ports[{index}]");
        let (field, name) = (format!("{at}.name"), text(&port["name"]));
        if !name.is_empty() {
            all.extend(causes(&field, name, label_errors(name)));
        }
        if each(&slice["ports"]).take(index).any(|earlier| text(&earlier["name"]) == name) {
            all.push(Cause::duplicate(field, &name.into()));
        }
        not_one_of(&mut all, format!("{at}.protocol"), &port["protocol"], &PROTOCOLS);
        app_protocol(&mut all, port, &at);
    }
    if before.is_none_or(|before| before["endpoints"] != slice["endpoints"]) {
        for (index, endpoint) in each(&slice["endpoints"]).enumerate() {
            endpoint_of_slice(&mut all, endpoint, kind, &format!("endpoints[{index}]"));
        }
    }
    all
}

fn endpoint_of_slice(all: &mut Vec<Cause>, endpoint: &Value, kind: &str, at: &str) {
    let (field, count) = (format!("{at}.addresses"), each(&endpoint["addresses"]).count());
    if count == 0 {
        all.push(Cause::required(&field, "must contain at least 1 address"));
    }
    not_more(all, &field, count, ADDRESSES_MAX);
    for (index, address) in each(&endpoint["addresses"]).enumerate() {
        let at = format!("{field}[{index}]");
        match kind {
            "IPv4" | "IPv6" => address_of_kind(all, address, kind, &field, &at),
            "FQDN" => all.extend(domain_error(&at, text(address))),
            _ => {}
        }
    }
    if let Some(node) = endpoint["nodeName"].as_str() {
        all.extend(causes(&format!("{at}.nodeName"), node, subdomain_errors(node)));
    }
    if let Some(host) = endpoint["hostname"].as_str() {
        all.extend(causes(&format!("{at}.hostname"), host, label_errors(host)));
    }
    for (list, errors) in
        [("forZones", label_value_errors as fn(&str) -> Vec<String>), ("forNodes", subdomain_errors)]
    {
        let (at, hints) = (format!("{at}.hints.{list}"), &endpoint["hints"][list]);
        if not_more(all, &at, each(hints).count(), HINTS_MAX) {
            return;
        }
        for (index, hint) in each(hints).enumerate() {
            let (field, name) = (format!("{at}[{index}].name"), text(&hint["name"]));
            if each(hints).take(index).any(|earlier| text(&earlier["name"]) == name) {
                all.push(Cause::duplicate(&field, &name.into()));
            }
            all.extend(causes(&field, name, errors(name)));
        }
    }
}

/// Validates an address. The error of another family has the path of the list.
fn address_of_kind(all: &mut Vec<Cause>, address: &Value, kind: &str, list: &str, at: &str) {
    let before = all.len();
    not_address(all, at.to_owned(), address);
    let Ok(ip) = text(address).parse::<IpAddr>() else { return };
    if all.len() > before {
        return;
    }
    if kind == "IPv6" && ip.to_string() != text(address) {
        let why = format!("must be in canonical form (\"{ip}\")");
        all.push(Cause::invalid(at, address, &why));
        return;
    }
    if ip.is_ipv4() != (kind == "IPv4") {
        all.push(Cause::invalid(list, address, &format!("must be an {kind} address")));
    }
    not_routable(all, at, address);
}

fn not_more(all: &mut Vec<Cause>, field: &str, count: usize, limit: usize) -> bool {
    if count > limit {
        all.push(Cause::too_many(field, count, &format!("must have at most {limit} items")));
    }
    count > limit
}

fn app_protocol(all: &mut Vec<Cause>, port: &Value, at: &str) {
    if let Some(name) = port["appProtocol"].as_str() {
        all.extend(causes(&format!("{at}.appProtocol"), name, qualified_name_errors(name)));
    }
}

pub(crate) fn endpoints(object: &Value, before: Option<&Value>) -> Vec<Cause> {
    let mut all = Vec::new();
    if before.is_some_and(|before| before["subsets"] == object["subsets"]) {
        return all;
    }
    for (index, subset) in each(&object["subsets"]).enumerate() {
        let at = format!("subsets[{index}]");
        let lists = ["addresses", "notReadyAddresses"];
        if lists.into_iter().all(|list| each(&subset[list]).next().is_none()) {
            all.push(Cause::required(&at, "must specify `addresses` or `notReadyAddresses`"));
        }
        for list in lists {
            for (index, address) in each(&subset[list]).enumerate() {
                address_of_subset(&mut all, address, &format!("{at}.{list}[{index}]"));
            }
        }
        let several = each(&subset["ports"]).count() > 1;
        for (index, port) in each(&subset["ports"]).enumerate() {
            let (at, name) = (format!("{at}.ports[{index}]"), text(&port["name"]));
            if !name.is_empty() {
                all.extend(causes(&format!("{at}.name"), name, label_errors(name)));
            } else if several {
                all.push(Cause::required(format!("{at}.name"), ""));
            }
            let number = Value::from(port["port"].as_i64().unwrap_or(0));
            if !is_port(&number) {
                all.push(Cause::invalid(format!("{at}.port"), &number, PORT_RANGE));
            }
            if text(&port["protocol"]).is_empty() {
                all.push(Cause::required(format!("{at}.protocol"), ""));
            } else {
                not_one_of(&mut all, format!("{at}.protocol"), &port["protocol"], &PROTOCOLS);
            }
            app_protocol(&mut all, port, &at);
        }
    }
    all
}

fn address_of_subset(all: &mut Vec<Cause>, address: &Value, at: &str) {
    let (field, ip) = (format!("{at}.ip"), &address["ip"]);
    not_address(all, field.clone(), ip);
    let host = text(&address["hostname"]);
    if !host.is_empty() {
        all.extend(causes(&format!("{at}.hostname"), host, label_errors(host)));
    }
    if let Some(node) = address["nodeName"].as_str() {
        all.extend(causes(&format!("{at}.nodeName"), node, subdomain_errors(node)));
    }
    // kube-apiserver parses the address twice.
    if address_error(text(ip)) == Some(NO_ADDRESS) {
        all.push(Cause::invalid(&field, ip, "must be a valid IP address"));
    }
    not_routable(all, &field, ip);
}
