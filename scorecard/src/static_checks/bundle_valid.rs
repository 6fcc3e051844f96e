//! A bundle for the Operator Lifecycle Manager: its ClusterServiceVersion describes each CRD.
//!
//! Errors of operator-sdk's scorecard and of the validators in operator-framework/api fail. Their suggestions are warnings.

use serde_json::{Value, json};

use super::{Finding, list, text, verdict};
use crate::report::{Outcome, Verdict};

pub(super) fn check(bundle: &[Value]) -> Verdict {
    if bundle.is_empty() {
        return Verdict::new(Outcome::Skip, "no --bundle DIR");
    }
    let of_kind = |kind: &'static str| bundle.iter().filter(move |object| object["kind"] == kind);
    let csvs: Vec<&Value> = of_kind("ClusterServiceVersion").collect();
    let [csv] = *csvs else {
        return Verdict::fail(format!("{} ClusterServiceVersions in --bundle, expected 1", csvs.len()));
    };
    let mut findings = Vec::new();
    let object = format!("ClusterServiceVersion {}", text(&csv["metadata"]["name"]));
    required(&object, csv, &mut findings);
    let owned = &csv["spec"]["customresourcedefinitions"]["owned"];
    let crds: Vec<&Value> = of_kind("CustomResourceDefinition").collect();
    owns(&object, owned, &crds, &mut findings);
    examples(&object, csv, owned, &mut findings);
    verdict(findings, format!("describes {} CRDs", crds.len()))
}

fn required(object: &str, csv: &Value, findings: &mut Vec<Finding>) {
    if text(&csv["spec"]["displayName"]).is_empty() {
        findings.push(Finding::fail(object, ".spec.displayName", "a name", &csv["spec"]["displayName"]));
    }
    let modes = &csv["spec"]["installModes"];
    if !list(modes).any(|mode| mode["supported"] == true) {
        findings.push(Finding::fail(object, ".spec.installModes", "one that is supported", modes));
    }
    let name = &csv["metadata"]["name"];
    let number = text(name).split_once(".v").map_or("", |(_, version)| version);
    if number.splitn(3, '.').filter(|part| part.starts_with(|c: char| c.is_ascii_digit())).count() != 3 {
        findings.push(Finding::warn(object, ".metadata.name", "NAME.vMAJOR.MINOR.PATCH", name));
    }
}

/// The served versions of the CRDs in the files are those that it owns, and each is described.
fn owns(object: &str, owned: &Value, crds: &[&Value], findings: &mut Vec<Finding>) {
    let is_described = |name: &Value, version: &Value| {
        list(owned).any(|own| own["name"] == *name && own["version"] == *version)
    };
    let is_in_files = |own: &Value| {
        let versions =
            |crd: &&&Value| list(&crd["spec"]["versions"]).any(|version| version["name"] == own["version"]);
        crds.iter().filter(|crd| crd["metadata"]["name"] == own["name"]).any(|crd| versions(&crd))
    };
    let path = ".spec.customresourcedefinitions.owned";
    for crd in crds {
        let name = &crd["metadata"]["name"];
        for version in list(&crd["spec"]["versions"]).filter(|version| version["served"] == true) {
            if !is_described(name, &version["name"]) {
                let expected = format!("{} {}", text(name), text(&version["name"]));
                findings.push(Finding::fail(object, path, &expected, &Value::Null));
            }
        }
    }
    for own in list(owned) {
        let path = format!("{path}[{} {}]", text(&own["name"]), text(&own["version"]));
        if !is_in_files(own) {
            findings.push(Finding::fail(object, &path, "a CRD in the bundle", &Value::Null));
        }
        // operator-sdk's scorecard fails here, but only the pages of a console use the list.
        if list(&own["resources"]).next().is_none() {
            let expected = "the kinds that the operator creates";
            findings.push(Finding::warn(object, format!("{path}.resources"), expected, &own["resources"]));
        }
        if text(&own["description"]).is_empty() {
            findings.push(Finding::warn(
                object,
                format!("{path}.description"),
                "a text",
                &own["description"],
            ));
        }
    }
}

/// Each owned version has an example, and each field of an example a descriptor.
fn examples(object: &str, csv: &Value, owned: &Value, findings: &mut Vec<Finding>) {
    let path = ".metadata.annotations.alm-examples";
    let annotation = &csv["metadata"]["annotations"]["alm-examples"];
    let examples = match serde_json::from_str(text(annotation)) {
        Ok(Value::Array(examples)) => examples,
        _ if annotation.is_null() => Vec::new(),
        _ => {
            findings.push(Finding::fail(object, path, "a list in JSON", annotation));
            return;
        }
    };
    let is_of = |example: &Value, own: &Value| {
        let group = text(&own["name"]).split_once('.').map_or("", |(_, group)| group);
        let version = format!("{group}/{}", text(&own["version"]));
        example["kind"] == own["kind"] && example["apiVersion"] == version
    };
    for own in list(owned).filter(|own| !examples.iter().any(|example| is_of(example, own))) {
        let expected = format!("an example of {} {}", text(&own["kind"]), text(&own["version"]));
        findings.push(Finding::warn(object, path, &expected, &Value::Null));
    }
    for example in &examples {
        let what = format!("{} {}", text(&example["kind"]), text(&example["apiVersion"]));
        let Some(own) = list(owned).find(|own| is_of(example, own)) else {
            findings.push(Finding::fail(object, path, "kinds that it owns", &json!(what)));
            continue;
        };
        let path = format!(".spec.customresourcedefinitions.owned[{what}]");
        for (part, descriptors) in [("spec", "specDescriptors"), ("status", "statusDescriptors")] {
            for name in example[part].as_object().into_iter().flat_map(serde_json::Map::keys) {
                if !list(&own[descriptors]).any(|descriptor| descriptor["path"] == **name) {
                    let path = format!("{path}.{descriptors}");
                    findings.push(Finding::fail(object, path, &format!("a path {name}"), &Value::Null));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn csv() -> Value {
        let example = json!([{"apiVersion": "example.com/v1", "kind": "Page", "spec": {"text": "a"}, "status": {"phase": "b"}}]);
        json!({"kind": "ClusterServiceVersion",
            "metadata": {"name": "page.v0.1.0", "annotations": {"alm-examples": example.to_string()}},
            "spec": {"displayName": "Page", "installModes": [{"type": "AllNamespaces", "supported": true}],
                "customresourcedefinitions": {"owned": [{"name": "pages.example.com", "version": "v1", "kind": "Page",
                    "description": "A page.", "resources": [{"kind": "ConfigMap", "version": "v1"}],
                    "specDescriptors": [{"path": "text"}], "statusDescriptors": [{"path": "phase"}]}]}}})
    }

    fn checked(csv: Value) -> Verdict {
        let crd = json!({"kind": "CustomResourceDefinition", "metadata": {"name": "pages.example.com"},
            "spec": {"versions": [{"name": "v1", "served": true}]}});
        check(&[csv, crd])
    }

    #[test]
    fn each_fault_of_a_bundle_is_found_and_nothing_in_a_good_one() {
        let good = checked(csv());
        assert_eq!((good.result, &*good.reason), (Outcome::Pass, "describes 1 CRDs"));
        let owned = "/spec/customresourcedefinitions/owned";
        for (at, value, result, expected) in [
            ("/metadata/name".to_owned(), json!("page"), Outcome::Warn, ".metadata.name is \"page\""),
            ("/spec/displayName".to_owned(), json!(""), Outcome::Fail, ".spec.displayName"),
            ("/spec/installModes/0/supported".to_owned(), json!(false), Outcome::Fail, ".spec.installModes"),
            (format!("{owned}/0/version"), json!("v2"), Outcome::Fail, "expected \"pages.example.com v1\""),
            (format!("{owned}/0/resources"), json!([]), Outcome::Warn, "[pages.example.com v1].resources"),
            (
                format!("{owned}/0/description"),
                json!(""),
                Outcome::Warn,
                "[pages.example.com v1].description",
            ),
            (format!("{owned}/0/specDescriptors"), json!([]), Outcome::Fail, "expected \"a path text\""),
            (format!("{owned}/0/statusDescriptors"), json!([]), Outcome::Fail, "expected \"a path phase\""),
            ("/metadata/annotations".to_owned(), json!({}), Outcome::Warn, "an example of Page v1"),
            ("/metadata/annotations/alm-examples".to_owned(), json!("{"), Outcome::Fail, "a list in JSON"),
            (
                "/metadata/annotations/alm-examples".to_owned(),
                json!("[{\"kind\": \"Book\"}]"),
                Outcome::Fail,
                "is \"Book \", expected \"kinds that it owns\"",
            ),
        ] {
            let mut csv = csv();
            *csv.pointer_mut(&at).expect("a field of the bundle") = value;
            let verdict = checked(csv);
            assert_eq!(verdict.result, result, "{at}: {verdict:?}");
            assert!(verdict.reason.contains(expected), "{at}: {}", verdict.reason);
        }
        assert_eq!(check(&[]).result, Outcome::Skip);
    }
}
