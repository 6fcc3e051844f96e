//! Tests `listwatch bundle`. In CI, the validator of the operator framework also judges the four bundles.

use std::{fs, path::Path, process::Output};

use serde_json::{Value, json};

use crate::operator::listwatch;

const GIVEN: [&str; 4] = ["--version", "0.1.0", "--image", "registry.example.com/listwatch:0.1.0"];

fn bundle(dir: &Path, args: &[&str]) -> Output {
    listwatch().current_dir(dir).arg("bundle").args(args).output().unwrap()
}

fn refused(dir: &Path, args: &[&str]) -> String {
    let output = bundle(dir, args);
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    String::from_utf8(output.stderr).unwrap()
}

fn read(dir: &Path, file: &str) -> Value {
    let path = dir.join("bundle").join(file);
    yaml_serde::from_str(&fs::read_to_string(&path).unwrap()).unwrap()
}

fn texts(values: &Value, field: &str) -> Vec<String> {
    let values = values.as_array().unwrap().iter();
    values.map(|value| value[field].as_str().unwrap_or_default().to_owned()).collect()
}

#[test]
fn each_operator_has_a_bundle_with_an_example_of_each_version_and_only_the_rights_that_it_needs() {
    for (operator, versions, children, cluster_wide) in [
        ("copyrator", &["v1"][..], &["ConfigMap"][..], &["configmaps", "namespaces"][..]),
        ("database", &["v1"], &["StatefulSet", "PersistentVolumeClaim", "Secret"], &[]),
        ("memcached", &["v1alpha1"], &["Deployment", "Service"], &[]),
        ("mywebserver", &["v1", "v2"], &["Deployment", "Service"], &[]),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let output = bundle(dir.path(), &[&[operator], &GIVEN[..]].concat());
        assert!(output.status.success(), "{output:?}");
        let name = format!("{operator}-operator");
        let version = read(dir.path(), &format!("manifests/{name}.clusterserviceversion.yaml"));
        assert_eq!(version["metadata"]["name"], format!("{name}.v0.1.0"));
        let owned = &version["spec"]["customresourcedefinitions"]["owned"];
        assert_eq!(texts(owned, "version"), versions, "{operator}");
        for one in owned.as_array().unwrap() {
            // A CopyratorRule has no `spec`.
            let descriptors = if operator == "copyrator" { "statusDescriptors" } else { "specDescriptors" };
            assert!(one[descriptors][0]["description"].is_string(), "{one}");
        }
        let examples = version["metadata"]["annotations"]["alm-examples"].as_str().unwrap();
        let examples: Value = serde_json::from_str(examples).unwrap();
        for version in versions {
            assert!(texts(&examples, "apiVersion").iter().any(|one| one.ends_with(version)), "{examples}");
        }
        let resources = texts(&owned[0]["resources"], "kind");
        assert!(children.iter().all(|kind| resources.iter().any(|one| one == kind)), "{resources:?}");
        assert!(!resources.iter().any(|kind| ["", "Event", "Lease"].contains(&&**kind)), "{resources:?}");
        // Nothing is wrong with it, and its permissions are judged as the ClusterRole's.
        let [crds, samples] =
            ["crd", "samples"].map(|files| format!("{}/manifests/{operator}/{files}", crate::ROOT));
        let args = ["scorecard", "--crd", &crds, "--sample", &samples, "--bundle", "bundle"];
        let judged = listwatch().current_dir(dir.path()).args(args).output().unwrap();
        let judged = String::from_utf8(judged.stdout).unwrap();
        let roles = if operator == "database" { "warn  least-privilege" } else { "pass  least-privilege" };
        for line in ["pass  bundle-valid", roles] {
            assert!(judged.lines().any(|judged| judged.starts_with(line)), "{line}: {judged}");
        }
        let install = &version["spec"]["install"]["spec"];
        let rules = install["clusterPermissions"].as_array().into_iter().flatten();
        let rules = rules.flat_map(|one| one["rules"].as_array().unwrap());
        let mut resources: Vec<&Value> =
            rules.flat_map(|rule| rule["resources"].as_array().unwrap()).collect();
        resources.sort_by_key(|resource| resource.to_string());
        assert_eq!(resources, cluster_wide, "{operator}");
        let container = &install["deployments"][0]["spec"]["template"]["spec"]["containers"][0];
        assert_eq!(container["image"], GIVEN[3]);
        let field = json!({"fieldRef": {"fieldPath": "metadata.annotations['olm.targetNamespaces']"}});
        let namespaces = json!({"name": "WATCH_NAMESPACE", "valueFrom": field});
        assert!(container["env"].as_array().unwrap().contains(&namespaces), "{container}");
        let annotations = &read(dir.path(), "metadata/annotations.yaml")["annotations"];
        assert_eq!(annotations["operators.operatorframework.io.bundle.package.v1"], *name);
    }
}

#[test]
fn no_file_is_overwritten_without_a_flag_and_what_the_flags_say_is_in_the_bundle() {
    let dir = tempfile::tempdir().unwrap();
    let memcached = [&["memcached"], &GIVEN[..]].concat();
    assert!(bundle(dir.path(), &memcached).status.success());
    let file = "bundle/manifests/memcached-operator.clusterserviceversion.yaml";
    let problem =
        format!("listwatch: {file} exists: choose another directory with --output, or give --overwrite\n");
    assert_eq!(refused(dir.path(), &memcached), problem);

    fs::write(dir.path().join("icon.PNG"), "x").unwrap();
    let more = ["--overwrite", "--icon", "icon.PNG", "--link", "Source=https://example.com/a=b"];
    let more = [&more[..], &["--provider", "Example", "--replaces", "0.0.9", "--channel", "fast"]].concat();
    let output = bundle(dir.path(), &[&memcached[..], &more].concat());
    assert!(String::from_utf8(output.stdout).unwrap().starts_with(&format!("overwritten: {file}\n")));
    let spec = &read(dir.path(), &file["bundle/".len()..])["spec"];
    assert_eq!(spec["icon"], json!([{"base64data": "eA==", "mediatype": "image/png"}]));
    assert_eq!(spec["links"], json!([{"name": "Source", "url": "https://example.com/a=b"}]));
    assert_eq!(spec["provider"]["name"], "Example");
    assert_eq!(spec["replaces"], "memcached-operator.v0.0.9");
    let dockerfile = fs::read_to_string(dir.path().join("bundle/bundle.Dockerfile")).unwrap();
    assert!(dockerfile.contains("LABEL operators.operatorframework.io.bundle.channels.v1=fast\n"));
}

#[test]
fn bad_input_is_one_clear_line_and_writes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("other.yaml"), "apiVersion: v1\nkind: ConfigMap\n").unwrap();
    let given = [&["memcached"], &GIVEN[..]].concat();
    for (args, problem) in [
        (
            &["memcached", "--version", "1.0", "--image", "a:1"][..],
            "--version: \"1.0\" is not a semantic version such as 0.1.0: ",
        ),
        (
            &["memcached", "--version", "1.0.0-RC1", "--image", "a:1"],
            "--version: \"1.0.0-RC1\" cannot be part of a name: ",
        ),
        (
            &["memcached", "--version", "1.0.0", "--image", "a.example:5000/b"],
            "--image: \"a.example:5000/b\" has no tag and no digest\n",
        ),
        (&[&given[..], &["--icon", "a.webp"]].concat(), "--icon: a.webp is not .svg, .png, .jpg or .gif\n"),
        (&[&given[..], &["--icon", "a.svg"]].concat(), "--icon: a.svg: No such file or directory"),
        (
            &[&given[..], &["--link", "https://example.com"]].concat(),
            "--link: \"https://example.com\" is not NAME=https://…\n",
        ),
        (
            &[&given[..], &["--sample", "other.yaml"]].concat(),
            "--sample: other.yaml: has no object of the operator's kinds\n",
        ),
        (
            &["memcached", "--version", "1.0.0"],
            "the following required arguments were not provided: --image <IMAGE>",
        ),
    ] {
        let error = refused(dir.path(), args);
        assert!(error.starts_with(&format!("listwatch: {problem}")), "{error}");
        assert_eq!(error.lines().count(), 1, "{error}");
    }
    assert!(!dir.path().join("bundle").exists());
}
