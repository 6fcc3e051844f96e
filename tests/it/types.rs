//! Tests `listwatch types`: what it prints is compiled here, as the modules below, and reads and writes objects without a loss.

mod certificate;
mod endpoint_slice;
mod oddity;

use std::{
    fs,
    io::Write,
    process::{Output, Stdio},
};

use listwatch::{resource::Resource, testing::crd_fits};
use serde::Serialize;
use serde_json::{Value, json};

use crate::operator::listwatch;
use certificate::Certificate;
use endpoint_slice::EndpointSlice;
use oddity::Oddity;

const CERTIFICATE: &str = include_str!("types/certificate.yaml");
const ODDITY: &str = include_str!("types/oddity.yaml");

fn types(args: &[&str]) -> Output {
    listwatch()
        .current_dir(format!("{}/tests/it/types", crate::ROOT))
        .arg("types")
        .args(args)
        .output()
        .unwrap()
}

fn printed(args: &[&str]) -> String {
    let output = types(args);
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn the_modules_here_are_what_it_prints() {
    for (module, args) in [
        ("certificate", &["-f", "certificate.yaml"][..]),
        ("oddity", &["odd", "-f", "oddity.yaml"]),
        ("endpoint_slice", &["endpointslices", "--demo"]),
    ] {
        let path = format!("{}/tests/it/types/{module}.rs", crate::ROOT);
        let is_same = fs::read_to_string(&path).unwrap_or_default() == printed(args);
        assert!(is_same, "in tests/it/types: listwatch types {} > {module}.rs", args.join(" "));
    }
}

/// Reads and writes an object.
fn check_round_trip<K: Resource + Serialize>(object: &Value) {
    let mut object = object.clone();
    object["metadata"] = json!({"name": "a", "namespace": "default", "resourceVersion": "1"});
    let read: K = serde_json::from_value(object.clone()).unwrap();
    assert_eq!(serde_json::to_value(read).unwrap(), object);
}

#[test]
fn the_types_fit_the_definitions_and_lose_nothing() {
    crd_fits::<Certificate>(CERTIFICATE);
    check_round_trip::<Certificate>(&json!({
        "spec": {
            "secretName": "web-tls", "dnsNames": ["example.com"], "isCA": false,
            "issuerRef": {"name": "ca", "kind": "ClusterIssuer"},
            "privateKey": {"algorithm": "ECDSA", "size": 256},
            "keystores": {"jks": {"create": true, "passwordSecretRef": {"name": "password"}}},
            "secretTemplate": {"labels": {"app": "web"}},
            "usages": ["digital signature", "s/mime", "a new usage"],
        },
        "status": {"conditions": [{"type": "Ready", "status": "True"}], "revision": 3},
    }));
    check_round_trip::<Oddity>(&json!({
        "spec": {
            "type": "P-256", "self": true, "podCIDRs": ["10.0.0.0/8"], "pod_cidrs": "none", "clusterIP": "10.0.0.1",
            "port": 8_589_934_592_i64, "ratio": 0.5, "count": 1, "bytes": 8_589_934_592_i64, "at": "2026-01-01T00:00:00Z",
            "anything": [1, {"a": null}], "empty": {}, "open": {"rest": "a", "more": {"b": 1}},
            "listed": [[1, 2], []], "mapped": {"a": {"type": "b"}}, "nothing": null, "nulls": [],
            "option": {"ref": {"name": "a"}}, "other": {"ref": {"name": "a", "key": "b"}, "option": {"ref": {}}},
            "policies": [{"mode": "On"}, {"mode": "Sometimes"}],
        },
        "status": {"phase": "Done"},
    }));
    let minimal = json!({"metadata": {"name": "a", "resourceVersion": "1"}, "spec": {"type": "", "listed": null, "mapped": null, "nothing": null}});
    let minimal: Oddity = serde_json::from_value(minimal).unwrap();
    assert_eq!(minimal.spec.r#type, oddity::OddityType::Value);
    check_round_trip::<EndpointSlice>(&json!({
        "addressType": "IPv4",
        "endpoints": [{"addresses": ["10.0.0.1"], "conditions": {"ready": true}, "targetRef": {"kind": "Pod", "name": "web"}}],
        "ports": [{"name": "http", "port": 80, "protocol": "TCP"}],
    }));
    // As the API server writes a slice without endpoints.
    let empty = json!({"metadata": {"name": "a", "resourceVersion": "1"}, "addressType": "IPv4", "endpoints": null, "ports": null});
    assert_eq!(serde_json::from_value::<EndpointSlice>(empty).unwrap().endpoints, []);
}

#[test]
fn only_the_named_fields_are_printed() {
    let fields = "spec.privateKey.algorithm,spec.usages,status.conditions.type";
    let code = printed(&["cert", "-f", "certificate.yaml", "--fields", fields]);
    let names: Vec<_> = code.lines().filter_map(|line| line.strip_prefix("    pub ")).collect();
    let expected = [
        "metadata: ObjectMeta,",
        "spec: CertificateSpec,",
        "status: Option<CertificateStatus>,",
        "private_key: Option<CertificatePrivateKey>,",
        "usages: Vec<CertificateUsage>,",
        "conditions: Vec<CertificateCondition>,",
        "algorithm: Option<CertificatePrivateKeyAlgorithm>,",
        "r#type: String,",
    ];
    assert_eq!(names, expected);
    let code = printed(&["customresourcedefinitions", "--demo"]);
    assert!(code.contains("pub not: Option<Box<JSONSchemaProps>>,"), "{code}");
}

#[test]
fn another_version_and_standard_input_can_be_chosen() {
    let mut process = listwatch();
    process.args(["types", "oddities.v1alpha1.example.com", "-f", "-"]);
    let mut process = process.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    process.stdin.take().unwrap().write_all(format!("{CERTIFICATE}---\n{ODDITY}").as_bytes()).unwrap();
    let code = String::from_utf8(process.wait_with_output().unwrap().stdout).unwrap();
    assert!(
        code.contains("pub old: Option<String>,") && code.contains("\"v1alpha1\", \"oddities\");"),
        "{code}"
    );
}

#[test]
fn a_kind_or_a_field_that_is_not_there_is_named() {
    for (args, problem) in [
        (&["web", "-f", "oddity.yaml"][..], "there is no resource \"web\""),
        (&["-f", "oddity.rs"], "--filename oddity.rs"),
        (&["-f", "absent.yaml"], "--filename absent.yaml: No such file or directory"),
        (&["-f", "oddity.yaml", "--fields", "spec.at.hour"], "--fields: spec.at has no field \"hour\""),
        (
            &["-f", "oddity.yaml", "--fields", "spec.option.key"],
            "--fields: spec.option has no field \"key\", only ref",
        ),
        (&["-f", "oddity.yaml", "--fields", "data"], "--fields: Oddity has no field \"data\", only"),
        (&["-f", "oddity.yaml", "--demo"], "cannot be used with"),
        (&[], "KIND"),
    ] {
        let output = types(args);
        let errors = String::from_utf8(output.stderr).unwrap();
        assert!(errors.contains(problem) && errors.lines().count() == 1, "{args:?}: {errors}");
        assert_eq!(output.status.code(), Some(2), "{errors}");
    }
}
