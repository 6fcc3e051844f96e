//! URLs as Go parses them, which differs from browsers and from RFC 3986.
//!
//! ```text
//! /a?b=1          a path alone is a URL; `a` is not
//! HTTP://B:1/ä    scheme http, host B:1, path /%C3%A4
//! http://a#b      refused: a fragment follows no host
//! ```
//!
//! The functions follow `net/url/url.go`, also in their errors.

use std::net::Ipv6Addr;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};

/// What Go escapes in a path.
const PATH: AsciiSet = {
    let path = NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~').remove(b'$');
    path.remove(b'&')
        .remove(b'+')
        .remove(b',')
        .remove(b'/')
        .remove(b':')
        .remove(b';')
        .remove(b'=')
        .remove(b'@')
};

#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Url {
    pub(crate) scheme: String,
    /// With the port.
    pub(crate) host: String,
    /// With escapes.
    pub(crate) path: String,
    query: String,
    /// All of it, for comparisons.
    text: String,
}

impl Url {
    /// `ParseRequestURI`, whose URLs have no fragment.
    pub(crate) fn check(text: &str) -> Result<(), String> {
        parse(text, |scheme| !scheme.is_empty()).map(drop).map_err(|why| format!("parse {text:?}: {why}"))
    }

    /// [`Url::check`], and then `Parse`.
    pub(crate) fn parse(text: &str) -> Result<Url, String> {
        Url::check(text)?;
        let before = text.split_once('#').map_or(text, |(before, _)| before);
        let url = parse(before, |_| !before.starts_with("///"));
        let url = url.map_err(|why| format!("parse {text:?}: {why}"))?;
        Ok(Url { text: text.to_owned(), ..url })
    }

    /// The host without the port and without brackets, and the port.
    pub(crate) fn host_and_port(&self) -> (&str, &str) {
        let port = self.host.rfind(':').filter(|at| is_port(&self.host[*at..]));
        let (host, port) = self.host.split_at(port.unwrap_or(self.host.len()));
        let inside = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
        (inside.unwrap_or(host), port.trim_start_matches(':'))
    }

    /// The names and values of the query, without those that Go cannot parse.
    pub(crate) fn query(&self) -> impl Iterator<Item = (String, String)> {
        let parts = self.query.split('&').filter(|part| !part.is_empty() && !part.contains(';'));
        parts.filter_map(|part| {
            let (name, value) = part.split_once('=').unwrap_or((part, ""));
            let unescaped = |text: &str| unescaped(&text.replace('+', " ")).ok();
            Some((unescaped(name)?, unescaped(value)?))
        })
    }
}

/// Parses a URL without its fragment. `has_host`: whether two slashes after this scheme begin a host.
fn parse(text: &str, has_host: impl Fn(&str) -> bool) -> Result<Url, String> {
    if text.bytes().any(|byte| byte.is_ascii_control()) {
        return Err("net/url: invalid control character in URL".to_owned());
    }
    if text.is_empty() {
        return Err("empty url".to_owned());
    }
    if text == "*" {
        return Ok(Url { path: "*".to_owned(), ..Url::default() });
    }
    let (scheme, rest) = scheme(text)?;
    let scheme = scheme.to_lowercase();
    let (mut path, query) = rest.split_once('?').unwrap_or((rest, ""));
    let mut url = Url { query: query.to_owned(), ..Url::default() };
    if !path.starts_with('/') {
        if scheme.is_empty() {
            return Err("invalid URI for request".to_owned());
        }
        return Ok(Url { scheme, ..url });
    }
    if let Some(after) = path.strip_prefix("//").filter(|_| has_host(&scheme)) {
        let (authority, rest) = after.split_at(after.find('/').unwrap_or(after.len()));
        path = rest;
        let (user, host) = authority.rsplit_once('@').unwrap_or(("", authority));
        url.host = parse_host(host, &scheme)?;
        let is_allowed = |c: char| c.is_ascii_alphanumeric() || "-._:~!$&'()*+,;=%@".contains(c);
        if !user.chars().all(is_allowed) {
            return Err("net/url: invalid userinfo".to_owned());
        }
        unescaped(user)?;
    }
    let decoded = unescaped(path)?;
    let is_valid = |c: char| c.is_ascii_alphanumeric() || "-_.~!$&'()*+,;=:@[]%/".contains(c);
    url.path = match path.chars().all(is_valid) {
        true => path.to_owned(),
        false => utf8_percent_encode(&decoded, &PATH).to_string(),
    };
    Ok(Url { scheme, ..url })
}

/// The scheme, which may be empty, and the text after it.
fn scheme(text: &str) -> Result<(&str, &str), String> {
    let is_inside = |c: char| c.is_ascii_alphanumeric() || "+-.".contains(c);
    let (scheme, rest) = text.split_at(text.find(|c| !is_inside(c)).unwrap_or(text.len()));
    match rest.strip_prefix(':') {
        Some(_) if scheme.is_empty() => Err("missing protocol scheme".to_owned()),
        Some(rest) if scheme.starts_with(|c: char| c.is_ascii_alphabetic()) => Ok((scheme, rest)),
        Some(_) | None => Ok(("", text)),
    }
}

/// The host with its port.
fn parse_host(host: &str, scheme: &str) -> Result<String, String> {
    let port = match host.rfind('[') {
        Some(0) => {
            let end = host.rfind(']').ok_or("missing ']' in host")?;
            let address = unescaped_host(&host[1..end])?;
            let without_zone = address.split('%').next().unwrap_or_default();
            if without_zone.parse::<Ipv6Addr>().is_err() {
                return Err(format!("invalid host: ParseAddr({address:?}): unable to parse IP"));
            }
            end + 1
        }
        Some(_) => return Err("invalid IP-literal".to_owned()),
        None if ["http", "https"].contains(&scheme) => host.find(':').unwrap_or(host.len()),
        None => host.rfind(':').unwrap_or(host.len()),
    };
    if !is_port(&host[port..]) {
        return Err(format!("invalid port {:?} after host", &host[port..]));
    }
    unescaped_host(host)
}

/// Whether it is a colon with digits, or nothing.
fn is_port(text: &str) -> bool {
    text.is_empty()
        || text.strip_prefix(':').is_some_and(|port| port.bytes().all(|byte| byte.is_ascii_digit()))
}

/// A host may have escapes of characters that are not ASCII only, and of a percent sign.
fn unescaped_host(host: &str) -> Result<String, String> {
    let is_allowed =
        |c: char| !c.is_ascii() || c.is_ascii_alphanumeric() || "-_.~!$&'()*+,;=:[]<>\"%".contains(c);
    if let Some(c) = host.chars().find(|c| !is_allowed(*c)) {
        return Err(format!("invalid character {:?} in host name", c.to_string()));
    }
    let decoded = unescaped(host)?;
    let escapes = host.match_indices('%').map(|(at, _)| &host[at..at + 3]);
    match escapes
        .clone()
        .find(|escape| *escape != "%25" && escape[1..].starts_with(|c: char| ('0'..'8').contains(&c)))
    {
        Some(escape) => Err(format!("invalid URL escape {escape:?}")),
        None => Ok(decoded),
    }
}

fn unescaped(text: &str) -> Result<String, String> {
    for (at, _) in text.match_indices('%') {
        let escape: String = text[at..].chars().take(3).collect();
        if escape.len() < 3 || !escape[1..].bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return Err(format!("invalid URL escape {escape:?}"));
        }
    }
    Ok(percent_decode_str(text).decode_utf8_lossy().into_owned())
}
