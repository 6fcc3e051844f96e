//! LimitRanges: the default requests and limits of containers, and the minima, maxima and ratios of containers, Pods and claims. As the
//! admission plugin LimitRanger.
//!
//! ```text
//! pods "web" is forbidden: maximum cpu usage per Container is 1, but limit is 2
//! ```

use std::cmp::Ordering;

use listwatch_formats::quantity::Quantity;
use serde_json::{Map, Value};

use crate::{
    admission::plugins::in_namespace,
    kinds::{
        defaults,
        field_checks::{each, text},
        pods::resources::{BOUNDS, Bound, of_containers},
    },
    status::aggregate,
    storage::Storage,
};

const LIMIT_RANGES: &str = "limitranges";
const CLAIM: &str = "PersistentVolumeClaim";

/// Names the defaults that a Pod got.
const ANNOTATION: &str = "kubernetes.io/limit-ranger";

/// The lists of containers of a Pod, with the words of the annotation.
const CONTAINERS: [(&str, &str); 2] = [("containers", "container"), ("initContainers", "init container")];

/// Sets the default requests and limits of the containers of a Pod.
pub(super) fn set_defaults(storage: &Storage, pod: &mut Value) {
    let namespace = pod["metadata"]["namespace"].clone();
    let mut set = Vec::new();
    let ranges = in_namespace(storage, LIMIT_RANGES, &namespace);
    let limits = ranges.flat_map(|range| each(&range["spec"]["limits"]));
    for limit in limits.filter(|limit| limit["type"] == "Container") {
        for (list, word) in CONTAINERS {
            for container in pod["spec"].get_mut(list).and_then(Value::as_array_mut).into_iter().flatten() {
                for (bound, field) in [(Bound::Requests, "defaultRequest"), (Bound::Limits, "default")] {
                    let Some(more) = limit[field].as_object().filter(|more| !more.is_empty()) else {
                        continue;
                    };
                    let names = add_missing(&mut container["resources"][bound.field()], more);
                    set.extend((!names.is_empty()).then(|| {
                        let (bound, container) = (bound.word(), text(&container["name"]));
                        format!("{} {bound} for {word} {container}", names.join(", "))
                    }));
                }
            }
        }
    }
    if !set.is_empty() {
        pod["metadata"]["annotations"][ANNOTATION] =
            format!("LimitRanger plugin set: {}", set.join("; ")).into();
        pod["status"]["qosClass"] = defaults::qos_class(&pod["spec"]).into();
    }
}

/// Adds the entries that a map does not have. Returns their names.
fn add_missing(map: &mut Value, more: &Map<String, Value>) -> Vec<String> {
    let mut names = Vec::new();
    for (name, value) in more {
        if map[name].is_null() {
            map[name] = value.clone();
            names.push(name.clone());
        }
    }
    names
}

/// Why a Pod or a claim is forbidden: the errors of the first LimitRange that has any.
pub(super) fn check(storage: &Storage, kind: &str, object: &Value) -> Result<(), String> {
    if !["Pod", CLAIM].contains(&kind) {
        return Ok(());
    }
    let ranges = in_namespace(storage, LIMIT_RANGES, &object["metadata"]["namespace"]);
    ranges.map(|range| check_range(range, kind, &object["spec"])).find(Result::is_err).unwrap_or(Ok(()))
}

fn check_range(range: &Value, kind: &str, spec: &Value) -> Result<(), String> {
    let mut all = Vec::new();
    for item in each(&range["spec"]["limits"]) {
        match (kind, text(&item["type"])) {
            ("Pod", "Container") => {
                for container in CONTAINERS.iter().flat_map(|(list, _)| each(&spec[list])) {
                    all.extend(check_item(item, |bound, name| amount(container, bound, name)));
                }
            }
            ("Pod", "Pod") => all.extend(check_item(item, |bound, name| of_containers(spec, bound, name))),
            (CLAIM, CLAIM) => {
                let request =
                    |bound, name: &str| amount(spec, bound, name).filter(|_| bound == Bound::Requests);
                all.extend(check_item(item, request));
            }
            _ => {}
        }
    }
    // As in Go, each error comes once.
    let mut errors: Vec<String> = Vec::new();
    all.into_iter().for_each(|error| {
        if !errors.contains(&error) {
            errors.push(error)
        }
    });
    aggregate(errors)
}

fn amount(of: &Value, bound: Bound, resource: &str) -> Option<Quantity> {
    Quantity::read(&of["resources"][bound.field()][resource])
}

/// The errors of an item of a LimitRange, for an object with these requests and limits.
fn check_item(item: &Value, of: impl Fn(Bound, &str) -> Option<Quantity>) -> Vec<String> {
    let mut errors = Vec::new();
    let kind = text(&item["type"]);
    // The size of a claim is its request. The other maxima need a limit.
    let of_max = if kind == CLAIM { &BOUNDS[..1] } else { &[Bound::Limits, Bound::Requests] };
    for (field, word, bounds, wrong) in
        [("min", "minimum", &BOUNDS[..], Ordering::Less), ("max", "maximum", of_max, Ordering::Greater)]
    {
        for (name, value) in item[field].as_object().into_iter().flatten() {
            let Some(enforced) = Quantity::read(value) else { continue };
            let start = format!("{word} {name} usage per {kind} is {enforced}");
            let amounts: Vec<_> = bounds.iter().map(|bound| (bound.word(), of(*bound, name))).collect();
            if let Some((bound, None)) = amounts.first() {
                errors.push(format!("{start}.  No {bound} is specified"));
                continue;
            }
            let is_wrong = |amount: &Quantity| amount.compare(&enforced) == wrong;
            let first =
                amounts.into_iter().find_map(|(bound, amount)| Some((bound, amount.filter(is_wrong)?)));
            errors.extend(first.map(|(bound, amount)| format!("{start}, but {bound} is {amount}")));
        }
    }
    for (name, value) in
        item["maxLimitRequestRatio"].as_object().into_iter().flatten().filter(|_| kind != CLAIM)
    {
        let Some(enforced) = Quantity::read(value) else { continue };
        let start = format!("{name} max limit to request ratio per {kind} is {enforced}");
        let amounts =
            BOUNDS.map(|bound| of(bound, name).map(|amount| amount.milli()).filter(|amount| *amount != 0.0));
        match amounts {
            [None, _] => errors.push(format!("{start}, but no request is specified or request is 0")),
            [_, None] => errors.push(format!("{start}, but no limit is specified or limit is 0")),
            [Some(request), Some(limit)] if limit / request * 1000.0 > enforced.milli() => {
                errors.push(format!("{start}, but provided ratio is {:.6}", limit / request));
            }
            [Some(_), Some(_)] => {}
        }
    }
    errors
}
