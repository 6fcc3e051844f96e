//! Validation of IP addresses and domain names in the fields of many kinds: apimachinery/pkg/util/validation/ip.go.

use std::net::IpAddr;

use serde_json::Value;

use crate::{
    kinds::field_checks::text,
    names::{label_errors, subdomain_errors},
    status::Cause,
};

pub(crate) const NO_ADDRESS: &str = "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)";

/// `IsValidIPForLegacyField`, in its strict form. Go's parser accepts leading zeros, which have an error of their own.
pub(crate) fn address_error(address: &str) -> Option<&'static str> {
    let has_zeros = |part: &str| part.len() > 1 && part.starts_with('0');
    match address.parse::<IpAddr>() {
        Ok(IpAddr::V6(address)) if address.to_ipv4_mapped().is_some() => {
            Some("must not be an IPv4-mapped IPv6 address")
        }
        Ok(_) => None,
        Err(_) if address.split('.').any(has_zeros) && without_zeros(address).parse::<IpAddr>().is_ok() => {
            Some("must not have leading 0s")
        }
        Err(_) => Some(NO_ADDRESS),
    }
}

fn without_zeros(address: &str) -> String {
    let number = |part: &str| part.parse().map_or_else(|_| part.to_owned(), |number: u32| number.to_string());
    address.split('.').map(number).collect::<Vec<_>>().join(".")
}

pub(crate) fn not_address(all: &mut Vec<Cause>, field: String, address: &Value) {
    all.extend(address_error(text(address)).map(|why| Cause::invalid(field, address, why)));
}

/// `ValidateEndpointIP`: refuses addresses at which no other machine answers. It has no error for a text that is not an address.
pub(crate) fn not_routable(all: &mut Vec<Cause>, field: &str, address: &Value) {
    let Ok(ip) = text(address).parse::<IpAddr>() else { return };
    let (is_link_local, is_link_local_multicast) = match ip {
        IpAddr::V4(ip) => (ip.is_link_local(), ip.octets().starts_with(&[224, 0, 0])),
        IpAddr::V6(ip) => (ip.is_unicast_link_local(), ip.segments()[0] & 0xff0f == 0xff02),
    };
    let unspecified = format!("may not be unspecified ({})", text(address));
    let rules = [
        (ip.is_unspecified(), &*unspecified),
        (ip.is_loopback(), "may not be in the loopback range (127.0.0.0/8, ::1/128)"),
        (is_link_local, "may not be in the link-local range (169.254.0.0/16, fe80::/10)"),
        (is_link_local_multicast, "may not be in the link-local multicast range (224.0.0.0/24, ff02::/10)"),
    ];
    let broken = rules.into_iter().filter(|(applies, _)| *applies);
    all.extend(broken.map(|(_, why)| Cause::invalid(field, address, why)));
}

/// `IsFullyQualifiedDomainName`. The cause names the label that is invalid.
pub(crate) fn domain_error(field: &str, domain: &str) -> Option<Cause> {
    if domain.is_empty() {
        return Some(Cause::required(field, ""));
    }
    let domain = domain.strip_suffix('.').unwrap_or(domain);
    let invalid = |value: &str, errors: &[String]| Cause::invalid(field, &value.into(), &errors.join(","));
    let errors = subdomain_errors(domain);
    if !errors.is_empty() {
        return Some(invalid(domain, &errors));
    }
    if !domain.contains('.') {
        let why = "should be a domain with at least two segments separated by dots";
        return Some(Cause::invalid(field, &domain.into(), why));
    }
    let labels = domain.split('.').map(|label| (label, label_errors(label)));
    let (label, errors) = labels.into_iter().find(|(_, errors)| !errors.is_empty())?;
    Some(invalid(label, &errors))
}
