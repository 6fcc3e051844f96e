//! The health endpoints: `/healthz`, `/livez` and `/readyz`, and each of their checks.
//!
//! ```text
//! $ kubectl get --raw '/readyz?verbose'
//! [+]ping ok
//! …
//! readyz check passed
//! ```
//!
//! A server that answers is healthy. It has the checks of kube-apiserver by name, because programs look for them.

use crate::{http::response::Answer, request::Request};

const ALL: &[&str] = &["healthz", "livez", "readyz"];
const LIVE: &[&str] = &["healthz", "livez"];
const READY: &[&str] = &["readyz"];

/// The checks, and the endpoints that have them, in the order of kube-apiserver.
const CHECKS: [(&str, &[&str]); 37] = [
    ("ping", ALL),
    ("log", ALL),
    ("loopback-serving-certificate", LIVE),
    ("etcd", ALL),
    ("etcd-readiness", READY),
    ("informer-sync", READY),
    ("poststarthook/start-apiserver-admission-initializer", ALL),
    ("poststarthook/generic-apiserver-start-informers", ALL),
    ("poststarthook/priority-and-fairness-config-consumer", ALL),
    ("poststarthook/priority-and-fairness-filter", ALL),
    ("poststarthook/storage-object-count-tracker-hook", ALL),
    ("poststarthook/start-apiextensions-informers", ALL),
    ("poststarthook/start-apiextensions-controllers", ALL),
    ("poststarthook/crd-informer-synced", ALL),
    ("poststarthook/start-system-namespaces-controller", ALL),
    ("poststarthook/peer-endpoint-reconciler-controller", ALL),
    ("poststarthook/start-cluster-authentication-info-controller", ALL),
    ("poststarthook/start-kube-apiserver-identity-lease-controller", ALL),
    ("poststarthook/start-kube-apiserver-identity-lease-garbage-collector", ALL),
    ("poststarthook/storage-readiness", ALL),
    ("poststarthook/start-legacy-token-tracking-controller", ALL),
    ("poststarthook/start-service-ip-repair-controllers", ALL),
    ("poststarthook/rbac/bootstrap-roles", ALL),
    ("poststarthook/scheduling/bootstrap-system-priority-classes", ALL),
    ("poststarthook/priority-and-fairness-config-producer", ALL),
    ("poststarthook/bootstrap-controller", ALL),
    ("poststarthook/start-kubernetes-service-cidr-controller", ALL),
    ("poststarthook/start-kube-aggregator-informers", ALL),
    ("poststarthook/apiservice-status-local-available-controller", ALL),
    ("poststarthook/apiservice-status-remote-available-controller", ALL),
    ("poststarthook/apiservice-registration-controller", ALL),
    ("poststarthook/apiservice-discovery-controller", ALL),
    ("poststarthook/kube-apiserver-autoregistration", ALL),
    ("autoregister-completion", ALL),
    ("poststarthook/apiservice-openapi-controller", ALL),
    ("poststarthook/apiservice-openapiv3-controller", ALL),
    ("shutdown", READY),
];

/// `None` if no health check has this path.
pub(crate) fn answer(request: &Request) -> Option<Answer> {
    let path = request.path.strip_prefix('/')?;
    let (endpoint, check) =
        path.split_once('/').map_or((path, None), |(endpoint, check)| (endpoint, Some(check)));
    if !ALL.contains(&endpoint) {
        return None;
    }
    let checks =
        || CHECKS.into_iter().filter(|(_, endpoints)| endpoints.contains(&endpoint)).map(|(name, _)| name);
    match check {
        Some(check) => checks().any(|name| name == check).then(|| Answer::text(200, "ok")),
        None if request.query.get("verbose").is_none() => Some(Answer::text(200, "ok")),
        None => {
            let excluded = request.query.all("exclude");
            let mut text = String::new();
            for name in checks() {
                let result = if excluded.contains(&name) { "excluded: ok" } else { "ok" };
                text.push_str(&format!("[+]{name} {result}\n"));
            }
            Some(Answer::text(200, format!("{text}{endpoint} check passed\n")))
        }
    }
}
