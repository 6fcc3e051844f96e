//! The formats of strings in CRDs that the crate `jsonschema` checks otherwise than kube-apiserver, or not at all.
//!
//! ```yaml
//! properties: {timeout: {type: string, format: duration}, network: {type: string, format: cidr}}
//! ```
//!
//! See apiextensions-apiserver, `supportedVersionedFormats`. Not checked are `bsonobjectid`, `isbn`, `creditcard`, `ssn` and the colors.

use std::net::IpAddr;

use chrono::{DateTime, NaiveDate, TimeDelta};
use listwatch_formats::time::parse_duration;
use serde_json::Value;

use crate::names::{label_errors, subdomain_errors};

/// Whether a string has a format.
type Check = fn(&str) -> bool;

pub(crate) const FORMATS: [(&str, Check); 12] = [
    ("byte", is_base64),
    ("cidr", is_cidr),
    ("date", |text| date(text).is_some()),
    ("datetime", |text| DateTime::parse_from_rfc3339(text).is_ok()),
    ("duration", |text| duration(text).is_some()),
    ("k8s-long-name", |text| subdomain_errors(text).is_empty()),
    ("k8s-short-name", |text| label_errors(text).is_empty()),
    ("mac", is_mac),
    ("uuid", |text| uuid(text).is_some()),
    ("uuid3", |text| uuid(text).is_some_and(|[_, _, version, ..]| version.starts_with('3'))),
    ("uuid4", |text| is_random_uuid(text, '4')),
    ("uuid5", |text| is_random_uuid(text, '5')),
];

/// All formats of strings, without their hyphens. The server warns about each other format, and ignores it.
const KNOWN: [&str; 26] = [
    "bsonobjectid",
    "byte",
    "cidr",
    "creditcard",
    "date",
    "datetime",
    "duration",
    "email",
    "hexcolor",
    "hostname",
    "ipv4",
    "ipv6",
    "isbn",
    "isbn10",
    "isbn13",
    "k8slongname",
    "k8sshortname",
    "mac",
    "password",
    "rgbcolor",
    "ssn",
    "uri",
    "uuid",
    "uuid3",
    "uuid4",
    "uuid5",
];

/// Adds the unknown formats in a schema, and in all schemas inside of it.
pub(crate) fn unknown_formats<'a>(all: &mut Vec<&'a str>, schema: &'a Value) {
    if !schema.is_object() {
        return;
    }
    let text = |word: &str| schema[word].as_str().unwrap_or_default();
    let format = text("format");
    let is_known = match text("type") {
        "" | "string" => KNOWN.contains(&&*format.replace('-', "")),
        "integer" => ["int32", "int64"].contains(&format),
        "number" => ["float", "double"].contains(&format),
        _ => false,
    };
    if !format.is_empty() && !is_known {
        all.push(format);
    }
    for word in ["additionalProperties", "items", "not"] {
        unknown_formats(all, &schema[word]);
    }
    for word in ["allOf", "anyOf", "oneOf"] {
        schema[word].as_array().into_iter().flatten().for_each(|schema| unknown_formats(all, schema));
    }
    schema["properties"]
        .as_object()
        .into_iter()
        .flatten()
        .for_each(|(_, schema)| unknown_formats(all, schema));
}

pub(crate) fn date(text: &str) -> Option<NaiveDate> {
    text.parse().ok().filter(|_| text.len() == "2006-01-02".len())
}

/// The units of Scala's durations: their short names, the prefix of their long names, and their nanoseconds.
const UNITS: [(&[&str], &str, i64); 8] = [
    (&["ns"], "nano", 1),
    (&["us", "µs"], "micro", 1_000),
    (&["ms"], "milli", 1_000_000),
    (&["s"], "sec", 1_000_000_000),
    (&["m"], "min", 60_000_000_000),
    (&["h", "hr"], "hour", 3_600_000_000_000),
    (&["d"], "day", 86_400_000_000_000),
    (&["w", "wk"], "week", 604_800_000_000_000),
];

/// Parses a duration of Go, such as `-1h30m`, or of Scala: `2 days`.
pub(crate) fn duration(text: &str) -> Option<TimeDelta> {
    if let Some(duration) = parse_duration(text.strip_prefix(['+', '-']).unwrap_or(text)) {
        let duration = TimeDelta::from_std(duration).ok()?;
        return Some(if text.starts_with('-') { -duration } else { duration });
    }
    let (mut rest, mut total) = (text, None);
    while let Some(at) = rest.find(|c: char| c.is_ascii_digit()) {
        let digits = &rest[at..];
        let (number, after) =
            digits.split_at(digits.find(|c: char| !c.is_ascii_digit()).unwrap_or(digits.len()));
        let letters = after.trim_start();
        let (unit, after) =
            letters.split_at(letters.find(|c: char| !c.is_alphabetic()).unwrap_or(letters.len()));
        rest = after;
        let number: i64 = number.parse().ok()?;
        let unit = unit.to_lowercase();
        let is_unit =
            |(names, prefix, _): &&(&[&str], &str, i64)| names.contains(&&*unit) || unit.starts_with(prefix);
        let Some((_, _, nanos)) = UNITS.iter().find(is_unit) else { continue };
        total = Some(total.unwrap_or(0_i64).wrapping_add(number.wrapping_mul(*nanos)));
    }
    total.map(TimeDelta::nanoseconds)
}

fn is_base64(text: &str) -> bool {
    let digits = text.trim_end_matches('=');
    let is_digit = |c: char| c.is_ascii_alphanumeric() || matches!(c, '+' | '/');
    !text.is_empty()
        && text.len().is_multiple_of(4)
        && text.len() - digits.len() <= 2
        && digits.chars().all(is_digit)
}

fn is_cidr(text: &str) -> bool {
    let Some((address, bits)) = text.split_once('/') else { return false };
    let bits_max = match address.parse() {
        Ok(IpAddr::V4(_)) => 32,
        Ok(IpAddr::V6(_)) => 128,
        Err(_) => return false,
    };
    bits.bytes().all(|byte| byte.is_ascii_digit()) && bits.parse().is_ok_and(|bits: u32| bits <= bits_max)
}

fn is_mac(text: &str) -> bool {
    let (separator, digits) =
        if text.contains('.') { ('.', 4) } else { (if text.contains('-') { '-' } else { ':' }, 2) };
    let groups: Vec<&str> = text.split(separator).collect();
    let is_hex = |group: &&str| group.len() == digits && group.bytes().all(|byte| byte.is_ascii_hexdigit());
    [6, 8, 20].contains(&(groups.len() * digits / 2)) && groups.iter().all(is_hex)
}

/// The five groups of a UUID. Each hyphen is optional.
fn uuid(text: &str) -> Option<[&str; 5]> {
    let mut groups = [""; 5];
    let mut rest = text;
    for (group, digits) in groups.iter_mut().zip([8, 4, 4, 4, 12]) {
        (*group, rest) = rest.split_at_checked(digits)?;
        rest = rest.strip_prefix('-').filter(|rest| !rest.is_empty()).unwrap_or(rest);
    }
    let is_hex = |group: &&str| group.bytes().all(|byte| byte.is_ascii_hexdigit());
    (rest.is_empty() && groups.iter().all(is_hex)).then_some(groups)
}

fn is_random_uuid(text: &str, version: char) -> bool {
    let variants = ['8', '9', 'a', 'b', 'A', 'B'];
    uuid(text)
        .is_some_and(|[_, _, third, fourth, _]| third.starts_with(version) && fourth.starts_with(variants))
}
