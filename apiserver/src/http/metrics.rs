//! `/metrics`: how many requests were answered, and how many objects are stored, in the format of Prometheus and with the names of
//! kube-apiserver.
//!
//! ```text
//! apiserver_request_total{code="201",component="apiserver",dry_run="",group="",resource="configmaps",scope="resource",…} 1
//! ```

use std::{collections::BTreeMap, fmt::Write as _};

use http::Method;

use crate::{
    request::{Request, ResourcePath},
    state::Server,
    storage::lock,
    verbs::patch::APPLY_PATCH,
};

const REQUESTS: &str = "apiserver_request_total";
const OBJECTS: &str = "apiserver_resource_objects";

/// Counts an answered request.
pub(crate) fn count(server: &Server, request: &Request, status: u16) {
    *lock(&server.counts).entry(labels(request, status)).or_default() += 1;
}

/// The labels of a request, as `MonitorRequest` of kube-apiserver sets them.
fn labels(request: &Request, status: u16) -> String {
    let path = ResourcePath::parse(&request.path).unwrap_or_default();
    let (of_one, in_namespace) = (path.name.is_some(), path.namespace.is_some());
    let is_resource = !path.plural.is_empty();
    let verb = match request.method {
        Method::GET if is_resource && !of_one && request.query.flag("watch") == Some(true) => "WATCH",
        Method::GET if is_resource && !of_one => "LIST",
        Method::PATCH if request.content_type() == APPLY_PATCH => "APPLY",
        Method::DELETE if !of_one => "DELETECOLLECTION",
        ref method => method.as_str(),
    };
    let scope = match verb {
        _ if of_one || verb == "POST" => "resource",
        _ if in_namespace => "namespace",
        _ if is_resource => "cluster",
        _ => "",
    };
    let dry_run = request.query.text("dryRun");
    let ResourcePath { group, version, plural, .. } = &path;
    let subresource = path.subresource.as_deref().unwrap_or_default();
    format!(
        "code=\"{status}\",component=\"apiserver\",dry_run={dry_run:?},group={group:?},resource={plural:?},scope={scope:?},\
         subresource={subresource:?},verb={verb:?},version={version:?}"
    )
}

/// The text of `/metrics`.
pub(crate) fn text(server: &Server) -> String {
    let mut text = String::new();
    let mut add = |name: &str, kind: &str, help: &str, values: &mut dyn Iterator<Item = (String, u64)>| {
        let _ = write!(text, "# HELP {name} {help}\n# TYPE {name} {kind}\n");
        for (labels, value) in values {
            let _ = writeln!(text, "{name}{{{labels}}} {value}");
        }
    };
    let counts: BTreeMap<String, u64> = lock(&server.counts).clone();
    add(REQUESTS, "counter", "Counter of apiserver requests.", &mut counts.into_iter());
    let storage = server.storage();
    let mut objects = storage.kinds.collections().into_iter().map(|(name, kind)| {
        let count = storage.collection(&name).map_or(0, |collection| collection.objects.len());
        (format!("group={:?},resource={:?}", kind.group, kind.plural), count as u64)
    });
    add(OBJECTS, "gauge", "Number of stored objects.", &mut objects);
    text
}
