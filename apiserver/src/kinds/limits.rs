//! The defaults and the validation of LimitRanges and ResourceQuotas.

use std::collections::BTreeSet;

use listwatch_formats::quantity::Quantity;
use serde_json::{Map, Value};

use crate::{
    kinds::field_checks::{IMMUTABLE, NOT_NEGATIVE, each, text},
    names::{causes, qualified_name_errors},
    status::Cause,
};

/// The resources of a quota that are numbers of objects.
pub(crate) const NUMBERS: [&str; 9] = [
    "configmaps",
    "persistentvolumeclaims",
    "pods",
    "replicationcontrollers",
    "resourcequotas",
    "secrets",
    "services",
    "services.loadbalancers",
    "services.nodeports",
];

/// The other resources of a quota that have no `/` in their names.
pub(crate) const AMOUNTS: [&str; 10] = [
    "cpu",
    "ephemeral-storage",
    "limits.cpu",
    "limits.ephemeral-storage",
    "limits.memory",
    "memory",
    "requests.cpu",
    "requests.ephemeral-storage",
    "requests.memory",
    "requests.storage",
];

const OF_CONTAINERS: [&str; 3] = ["cpu", "ephemeral-storage", "memory"];

const SCOPES: [&str; 7] = [
    "BestEffort",
    "CrossNamespacePodAffinity",
    "NotBestEffort",
    "NotTerminating",
    "PriorityClass",
    "Terminating",
    "VolumeAttributesClass",
];

/// Scopes that no object has both of.
const OPPOSITES: [[&str; 2]; 2] = [["BestEffort", "NotBestEffort"], ["Terminating", "NotTerminating"]];

/// In an item for containers, a maximum is also the default limit, and a default limit or a minimum the default request.
pub(crate) fn limit_range_defaults(object: &mut Value) {
    for item in object["spec"]["limits"].as_array_mut().into_iter().flatten() {
        if item["type"] != "Container" {
            continue;
        }
        for (from, to) in [("max", "default"), ("default", "defaultRequest"), ("min", "defaultRequest")] {
            let mut defaults = item[from].as_object().cloned().unwrap_or_default();
            defaults.extend(item[to].as_object().cloned().unwrap_or_default());
            if !defaults.is_empty() {
                item[to] = defaults.into();
            }
        }
    }
}

pub(crate) fn limit_range(object: &Value, _before: Option<&Value>) -> Vec<Cause> {
    let (mut all, items) = (Vec::new(), &object["spec"]["limits"]);
    for (index, item) in each(items).enumerate() {
        let (at, kind) = (format!("spec.limits[{index}]"), &item["type"]);
        let field = format!("{at}.type");
        let is_known = ["Container", "PersistentVolumeClaim", "Pod"].contains(&text(kind));
        let errors = qualified_name_errors(text(kind));
        if errors.is_empty() && !is_known && !text(kind).contains('/') {
            all.push(Cause::invalid(&*field, kind, "must be a standard limit type or fully qualified"));
        }
        all.extend(causes(&field, text(kind), errors));
        if each(items).take(index).any(|other| other["type"] == *kind) {
            all.push(Cause::duplicate(field, kind));
        }
        limit_range_item(&mut all, item, &at);
    }
    all
}

/// The maps of an item of a LimitRange.
const MAPS: [&str; 5] = ["max", "min", "default", "defaultRequest", "maxLimitRequestRatio"];

/// The maps whose amounts have an order: of the smaller and the larger amount, the map and its words; the map of the error, and the map whose
/// amount is shown.
const ORDERED: [[&str; 6]; 6] = [
    ["min", "min", "max", "max", "min", "min"],
    ["min", "min", "defaultRequest", "default request", "defaultRequest", "defaultRequest"],
    ["defaultRequest", "default request", "max", "max", "defaultRequest", "defaultRequest"],
    ["defaultRequest", "default request", "default", "default limit", "defaultRequest", "defaultRequest"],
    ["min", "min", "default", "default", "default", "min"],
    ["default", "default", "max", "max", "default", "max"],
];

fn limit_range_item(all: &mut Vec<Cause>, item: &Value, at: &str) {
    let kind = text(&item["type"]);
    let names_of = |map: &str| item[map].as_object().map(Map::keys).into_iter().flatten();
    let of_pods = kind == "Pod";
    let (forbidden, maps): (Vec<&str>, Vec<&str>) =
        MAPS.into_iter().partition(|map| of_pods && map.starts_with("default"));
    for map in forbidden.into_iter().filter(|map| names_of(map).next().is_some()) {
        all.push(Cause::forbidden(format!("{at}.{map}"), "may not be specified when `type` is 'Pod'"));
    }
    let known = if of_pods || kind == "Container" { Known::OfContainers } else { Known::All };
    for map in &maps {
        names_of(map).for_each(|name| resource_name(all, name, &format!("{at}.{map}[{name}]"), known));
    }
    if kind == "PersistentVolumeClaim" && ["min", "max"].iter().all(|map| item[map]["storage"].is_null()) {
        let text = "either minimum or maximum storage value is required, but neither was provided";
        all.push(Cause::required(format!("{at}.limits"), text));
    }
    let names: BTreeSet<&String> = maps.iter().flat_map(|map| names_of(map)).collect();
    for name in names {
        let of = |map: &str| Quantity::read(&item[map][name]).filter(|_| maps.contains(&map));
        for [small, small_words, large, large_words, field, shown] in ORDERED {
            let (Some(small), Some(large)) = (of(small), of(large)) else { continue };
            if small.compare(&large).is_gt() {
                let text = format!("{small_words} value {small} is greater than {large_words} value {large}");
                all.push(Cause::invalid(format!("{at}.{field}[{name}]"), &item[shown][name], &text));
            }
        }
        let Some(ratio) = of("maxLimitRequestRatio").map(|ratio| ratio.milli() / 1000.0) else { continue };
        let shown = &item["maxLimitRequestRatio"][name];
        let mut wrong = |why: String| {
            let why = format!("ratio {} {why}", text(shown));
            all.push(Cause::invalid(format!("{at}.maxLimitRequestRatio[{name}]"), shown, &why));
        };
        if ratio < 1.0 {
            wrong("is less than 1".to_owned());
        }
        if let (Some(min), Some(max)) = (of("min"), of("max"))
            && ratio > max.milli() / min.milli()
        {
            wrong(format!("is greater than max/min = {:.6}", max.milli() / min.milli()));
        }
    }
}

/// The resources without `/` in their names that may be in a field.
#[derive(Clone, Copy)]
enum Known {
    All,
    OfContainers,
    OfQuotas,
}

/// Validates the name of a resource: `validateResourceName`.
fn resource_name(all: &mut Vec<Cause>, name: &str, field: &str, known: Known) {
    let errors = qualified_name_errors(name);
    if !errors.is_empty() || name.contains('/') {
        all.extend(causes(field, name, errors));
        return;
    }
    let is_of_quotas = NUMBERS.contains(&name)
        || AMOUNTS.contains(&name)
        || ["hugepages-", "requests.hugepages-"].iter().any(|prefix| name.starts_with(prefix));
    let mut refuse = |is_known: bool, what: &str| {
        all.extend(
            (!is_known)
                .then(|| Cause::invalid(field, &name.into(), &format!("must be a standard resource {what}"))),
        );
    };
    refuse(is_of_quotas || name == "storage", "type or fully qualified");
    match known {
        Known::All => {}
        Known::OfContainers => {
            refuse(OF_CONTAINERS.contains(&name) || name.starts_with("hugepages-"), "for containers");
        }
        Known::OfQuotas => refuse(is_of_quotas, "for quota"),
    }
}

pub(crate) fn resource_quota(object: &Value, before: Option<&Value>) -> Vec<Cause> {
    let mut all = Vec::new();
    let (spec, status) = (&object["spec"], &object["status"]);
    for (map, at) in
        [(&spec["hard"], "spec.hard"), (&status["hard"], "status.hard"), (&status["used"], "status.used")]
    {
        for (name, amount) in map.as_object().into_iter().flatten() {
            let field = format!("{at}[{name}]");
            resource_name(&mut all, name, &field, Known::OfQuotas);
            let Some(quantity) = Quantity::read(amount) else { continue };
            if quantity.signum() < 0 {
                all.push(Cause::invalid(&*field, amount, NOT_NEGATIVE));
            }
            if NUMBERS.contains(&name.as_str()) && quantity != quantity.ceil() {
                all.push(Cause::invalid(field, amount, "must be an integer"));
            }
        }
    }
    scopes(&mut all, spec);
    requirements(&mut all, spec);
    let is_same = |before: &Value| {
        let [was, is] =
            [before, object].map(|one| each(&one["spec"]["scopes"]).map(text).collect::<BTreeSet<_>>());
        was == is
    };
    if before.is_some_and(|before| !is_same(before)) {
        all.push(Cause::invalid("spec.scopes", &spec["scopes"], IMMUTABLE));
    }
    all
}

/// Validates `spec.scopes`.
fn scopes(all: &mut Vec<Cause>, spec: &Value) {
    let (field, scopes) = ("spec.scopes", &spec["scopes"]);
    let mut refuse = |text: &str| all.push(Cause::invalid(field, scopes, text));
    for scope in each(scopes).map(text) {
        if !SCOPES.contains(&scope) {
            refuse("unsupported scope");
        }
        hard(spec)
            .filter(|resource| !may_have(resource, scope))
            .for_each(|_| refuse("unsupported scope applied to resource"));
    }
    let has = |scope: &str| each(scopes).any(|one| one == scope);
    OPPOSITES
        .iter()
        .filter(|pair| pair.iter().all(|scope| has(scope)))
        .for_each(|_| refuse("conflicting scopes"));
}

/// Validates `spec.scopeSelector`.
fn requirements(all: &mut Vec<Cause>, spec: &Value) {
    let (at, selector) = ("spec.scopeSelector.matchExpressions", &spec["scopeSelector"]);
    let requirements = || each(&selector["matchExpressions"]);
    for requirement in requirements() {
        let (scope, operator, values) =
            (text(&requirement["scopeName"]), &requirement["operator"], &requirement["values"]);
        let mut refuse = |field: &str, value: &Value, text: &str| {
            all.push(Cause::invalid(format!("{at}{field}"), value, text))
        };
        if !SCOPES.contains(&scope) {
            refuse(".scopeName", &requirement["scopeName"], "unsupported scope");
        }
        for _ in hard(spec).filter(|resource| !may_have(resource, scope)) {
            refuse("", selector, "unsupported scope applied to resource");
        }
        if SCOPES.contains(&scope) && !scope.ends_with("Class") && operator != "Exists" {
            let text = "must be 'Exists' when scope is any of ResourceQuotaScopeTerminating, ResourceQuotaScopeNotTerminating, \
                ResourceQuotaScopeBestEffort, ResourceQuotaScopeNotBestEffort or ResourceQuotaScopeCrossNamespacePodAffinity";
            refuse(".operator", operator, text);
        }
        match (text(operator), each(values).next()) {
            ("In" | "NotIn", None) => {
                let text = "must be at least one value when `operator` is 'In' or 'NotIn' for scope selector";
                all.push(Cause::required(format!("{at}.values"), text));
            }
            ("Exists" | "DoesNotExist", Some(_)) => {
                refuse(
                    ".values",
                    values,
                    "must be no value when `operator` is 'Exist' or 'DoesNotExist' for scope selector",
                );
            }
            ("In" | "NotIn" | "Exists" | "DoesNotExist", _) => {}
            _ => refuse(".operator", operator, "not a valid selector operator"),
        }
    }
    let has = |scope: &str| requirements().any(|one| one["scopeName"] == scope);
    for _ in OPPOSITES.iter().filter(|pair| pair.iter().all(|scope| has(scope))) {
        all.push(Cause::invalid(
            "spec.scopeSelector.matchExpressions",
            &spec["scopes"],
            "conflicting scopes",
        ));
    }
}

/// The resources of a quota whose scopes are checked.
fn hard(spec: &Value) -> impl Iterator<Item = &str> {
    let names = spec["hard"].as_object().map(Map::keys).into_iter().flatten().map(String::as_str);
    names.filter(|name| NUMBERS.contains(name) || AMOUNTS.contains(name))
}

/// Whether a scope can have objects that use a resource: `IsResourceQuotaScopeValidForResource`.
fn may_have(resource: &str, scope: &str) -> bool {
    let is_of_pods = resource == "pods" || (AMOUNTS.contains(&resource) && !resource.contains("storage"));
    match scope {
        "BestEffort" => resource == "pods",
        "VolumeAttributesClass" => ["persistentvolumeclaims", "requests.storage"].contains(&resource),
        scope => is_of_pods || !SCOPES.contains(&scope),
    }
}
