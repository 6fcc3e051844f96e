//! What a Pod requests of a resource, and its limits: `PodRequests` and `PodLimits` of k8s.io/component-helpers.

use listwatch_formats::quantity::Quantity;
use serde_json::Value;

use super::each;

/// The resources that `spec.resources` can set for the whole Pod, besides huge pages.
const OF_PODS: [&str; 2] = ["cpu", "memory"];

/// A part of `resources`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Bound {
    Requests,
    Limits,
}

pub(crate) const BOUNDS: [Bound; 2] = [Bound::Requests, Bound::Limits];

impl Bound {
    pub(crate) fn word(self) -> &'static str {
        match self {
            Bound::Requests => "request",
            Bound::Limits => "limit",
        }
    }

    pub(crate) fn field(self) -> &'static str {
        match self {
            Bound::Requests => "requests",
            Bound::Limits => "limits",
        }
    }
}

/// How much of a resource the containers of a Pod request, or may use, without the overhead. `None` if none of them says so. The
/// init containers run one after the other, except for sidecars.
pub(crate) fn of_containers(spec: &Value, bound: Bound, resource: &str) -> Option<Quantity> {
    let of = |one: &Value| Quantity::read(&one["resources"][bound.field()][resource]);
    if let Some(own) = of(spec).filter(|_| is_of_pods(resource)) {
        return Some(own);
    }
    let (mut sidecars, mut largest) = (None, None::<Quantity>);
    for container in each(&spec["initContainers"]) {
        let with_sidecars = sum(sidecars.clone(), of(container));
        if container["restartPolicy"] == "Always" {
            sidecars.clone_from(&with_sidecars);
        }
        largest = max(largest, with_sidecars);
    }
    max(each(&spec["containers"]).map(of).fold(sidecars, sum), largest)
}

/// The same with the overhead, which counts for a limit only if there is one.
pub(crate) fn of_pod(spec: &Value, bound: Bound, resource: &str) -> Option<Quantity> {
    let amount = of_containers(spec, bound, resource);
    let is_zero = amount.as_ref().is_none_or(|amount| amount.signum() == 0);
    if bound == Bound::Limits && is_zero {
        return amount;
    }
    sum(amount, Quantity::read(&spec["overhead"][resource]))
}

/// Whether the Pod as a whole has requests or limits: `IsPodLevelResourcesSet`.
pub(crate) fn has_own(spec: &Value) -> bool {
    BOUNDS.iter().any(|bound| {
        spec["resources"][bound.field()].as_object().into_iter().flatten().any(|(name, _)| is_of_pods(name))
    })
}

fn is_of_pods(resource: &str) -> bool {
    OF_PODS.contains(&resource) || resource.starts_with("hugepages-")
}

fn sum(one: Option<Quantity>, other: Option<Quantity>) -> Option<Quantity> {
    match (one, other) {
        (Some(one), Some(other)) => Some(one.add(&other, 1)),
        (one, other) => one.or(other),
    }
}

fn max(one: Option<Quantity>, other: Option<Quantity>) -> Option<Quantity> {
    match (one, other) {
        (Some(one), Some(other)) => Some(if one.compare(&other).is_lt() { other } else { one }),
        (one, other) => one.or(other),
    }
}
