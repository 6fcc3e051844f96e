//! The `resize` of a Pod: it changes the CPU and the memory of the containers, and nothing else. See
//! <https://kubernetes.io/docs/tasks/configure-pod-container/resize-container-resources/>.
//!
//! ```text
//! PATCH …/pods/web-0/resize   {"spec": {"containers": [{"name": "web", "resources": {"requests": {"cpu": "200m"}}}]}}
//! ```
//!
//! The rules are as in `ValidatePodResize` of kube-apiserver.

use serde_json::Value;

use super::{Cause, each, pod_spec, resources::BOUNDS};
use crate::kinds::defaults::qos_class;

const LISTS: [&str; 2] = ["initContainers", "containers"];

/// The Pod after a write to its resize, which changes only resources and resize policies. If the write has other containers, they stay
/// for [`errors`] to refuse.
pub(crate) fn resized(mut written: Value, before: &Value) -> Value {
    let mut after = before.clone();
    take(&mut after["metadata"], &written["metadata"], "managedFields");
    for list in LISTS {
        let (new, spec) = (written["spec"][list].take(), &mut after["spec"]);
        if each(&new).map(|one| &one["name"]).ne(each(&spec[list]).map(|one| &one["name"])) {
            spec[list] = new;
            continue;
        }
        let containers = spec.get_mut(list).and_then(Value::as_array_mut).into_iter().flatten();
        for (old, new) in containers.zip(each(&new)) {
            for field in ["resources", "resizePolicy"] {
                take(old, new, field);
            }
        }
    }
    take(&mut after["spec"], &written["spec"], "resources");
    after
}

fn take(after: &mut Value, written: &Value, field: &str) {
    let Some(after) = after.as_object_mut() else { return };
    match written.get(field) {
        Some(value) => after.insert(field.to_owned(), value.clone()),
        None => after.remove(field),
    };
}

/// The errors of a resized Pod.
pub(crate) fn errors(object: &Value, before: &Value) -> Vec<Cause> {
    let mut all = Vec::new();
    let (spec, was) = (&object["spec"], &before["spec"]);
    pod_spec(&mut all, spec, "spec");
    for (is_so, what) in [
        (!before["metadata"]["annotations"]["kubernetes.io/config.mirror"].is_null(), "static"),
        (was["os"]["name"] == "windows", "windows"),
    ] {
        if is_so {
            return vec![Cause::forbidden("[]", &format!("{what} pods cannot be resized"))];
        }
    }
    let class = &before["status"]["qosClass"];
    if class != qos_class(spec) {
        all.push(Cause::invalid("spec", class, "Pod QOS Class may not change as a result of resizing"));
    }
    let running =
        each(&before["status"]["containerStatuses"]).find(|status| !status["state"]["running"].is_null());
    if running.is_some_and(|status| status["resources"].is_null()) {
        all.push(Cause::forbidden("spec", "Pod running on node without support for resize"));
    }
    whole_pod(&mut all, &spec["resources"], &was["resources"]);
    let others = all.len();
    for list in LISTS.iter().rev() {
        order(&mut all, &spec[list], &was[list], &format!("spec.{list}"));
    }
    if all.len() > others {
        return all;
    }
    for list in LISTS {
        for (index, (one, old)) in each(&spec[list]).zip(each(&was[list])).enumerate() {
            let at = format!("spec.{list}[{index}].resources");
            removed(&mut all, &one["resources"], &old["resources"], &at, "resource");
        }
    }
    for (one, old) in each(&spec["containers"]).zip(each(&was["containers"])) {
        if !is_fixed(one, old) {
            all.push(Cause::forbidden("spec", "only cpu and memory resources are mutable"));
        }
    }
    for (index, (one, old)) in each(&spec["initContainers"]).zip(each(&was["initContainers"])).enumerate() {
        let at = format!("spec.initContainers[{index}]");
        if !is_fixed(one, old) {
            let text = "only cpu and memory resources for init or sidecar containers are mutable";
            all.push(Cause::forbidden(&*at, text));
        }
        let restarts =
            each(&one["resizePolicy"]).filter(|policy| policy["restartPolicy"] == "RestartContainer");
        if one != old && one["restartPolicy"] != "Always" {
            let text =
                "non-sidecar init containers with a resize policy of RestartContainer cannot be resized";
            all.extend(restarts.map(|_| Cause::forbidden(&*at, text)));
        }
    }
    all
}

/// Validates the resources of the Pod as a whole.
fn whole_pod(all: &mut Vec<Cause>, now: &Value, then: &Value) {
    if now.is_null() && !then.is_null() {
        all.push(Cause::forbidden("spec.resources", "pod-level resources cannot be removed"));
        return;
    }
    removed(all, now, then, "spec.resources", "pod-level resource");
    if now["claims"] != then["claims"] || amounts(now).ne(amounts(then)) {
        all.push(Cause::forbidden("spec", "only cpu and memory resources are mutable at pod-level"));
    }
}

/// Refuses to add, remove, rename or reorder containers.
fn order(all: &mut Vec<Cause>, now: &Value, then: &Value, at: &str) {
    if each(now).count() != each(then).count() {
        let list = at.trim_start_matches("spec.");
        all.push(Cause::forbidden(at, &format!("{list} may not be added or removed on resize")));
        return;
    }
    for (index, (one, old)) in each(now).zip(each(then)).enumerate() {
        if one["name"] != old["name"] {
            let list = at.trim_start_matches("spec.");
            let text = format!("{list} may not be renamed or reordered on resize");
            all.push(Cause::forbidden(format!("{at}[{index}].name"), &text));
        }
    }
}

fn removed(all: &mut Vec<Cause>, now: &Value, then: &Value, at: &str, what: &str) {
    for field in BOUNDS.map(|bound| bound.field()) {
        let mut names = then[field].as_object().into_iter().flatten();
        if names.any(|(name, _)| now[field][name].is_null()) {
            let text = format!("{what} {field} cannot be removed");
            all.push(Cause::forbidden(format!("{at}.{field}"), &text));
        }
    }
}

/// Whether only CPU and memory of a container have changed. kube-apiserver removes the claims from the new container before it compares,
/// so a container that has claims cannot be resized.
fn is_fixed(one: &Value, old: &Value) -> bool {
    let (now, then) = (&one["resources"], &old["resources"]);
    one["resizePolicy"] == old["resizePolicy"]
        && each(&then["claims"]).next().is_none()
        && amounts(now).eq(amounts(then))
}

/// The resources that cannot be resized.
fn amounts(resources: &Value) -> impl Iterator<Item = (&str, &String, &Value)> {
    let all = BOUNDS.iter().flat_map(|bound| {
        let amounts = resources[bound.field()].as_object().into_iter().flatten();
        amounts.map(|(name, amount)| (bound.field(), name, amount))
    });
    all.filter(|(_, name, _)| !["cpu", "memory"].contains(&name.as_str()))
}
