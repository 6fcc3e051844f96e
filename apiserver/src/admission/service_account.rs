//! The ServiceAccount of a new Pod: it must exist, its token is mounted in each container, and its secrets for images are used. As the
//! admission plugin ServiceAccount.

use serde_json::{Value, json};

use crate::{
    kinds::field_checks::{each, text},
    storage::{Place, Storage},
};

/// Where the token of a ServiceAccount is mounted.
const MOUNT_PATH: &str = "/var/run/secrets/kubernetes.io/serviceaccount";

/// The volumes with a token begin with this.
const VOLUME: &str = "kube-api-access-";

/// Adds what a Pod has of its ServiceAccount. The error is why it is forbidden.
pub(crate) fn admit(storage: &Storage, pod: &mut Value, letters: &str) -> Result<(), String> {
    let namespace = text(&pod["metadata"]["namespace"]).to_owned();
    let spec = &mut pod["spec"];
    let name = text(&spec["serviceAccountName"]).to_owned();
    let account = storage.get(&Place::new("serviceaccounts", Some(&namespace), &name));
    // `default` is created soon after its namespace. kube-apiserver waits for it.
    if account.is_none() && name != "default" {
        return Err(format!(
            "error looking up service account {namespace}/{name}: serviceaccount {name:?} not found"
        ));
    }
    let account = account.map_or(&Value::Null, |account| &**account);
    let automount = |of: &Value| of["automountServiceAccountToken"].as_bool();
    if automount(spec).or(automount(account)).unwrap_or(true) {
        mount(spec, letters);
    }
    if each(&spec["imagePullSecrets"]).next().is_none() && each(&account["imagePullSecrets"]).next().is_some()
    {
        spec["imagePullSecrets"] = account["imagePullSecrets"].clone();
    }
    Ok(())
}

/// Mounts the token in all containers that mount nothing at its path.
fn mount(spec: &mut Value, letters: &str) {
    let known =
        each(&spec["volumes"]).map(|volume| text(&volume["name"])).find(|name| name.starts_with(VOLUME));
    let (is_known, name) = match known {
        Some(name) => (true, name.to_owned()),
        None => (false, format!("{VOLUME}{letters}")),
    };
    let mut is_needed = false;
    for field in ["initContainers", "containers"] {
        for container in spec.get_mut(field).and_then(Value::as_array_mut).into_iter().flatten() {
            if each(&container["volumeMounts"]).any(|mount| mount["mountPath"] == MOUNT_PATH) {
                continue;
            }
            push(
                &mut container["volumeMounts"],
                json!({"mountPath": MOUNT_PATH, "name": name, "readOnly": true}),
            );
            is_needed = true;
        }
    }
    if is_needed && !is_known {
        let fields = json!([{"path": "namespace", "fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.namespace"}}]);
        // The kubelet renews the token long before it expires, so kube-apiserver accepts this odd life for up to a year.
        let sources = json!([
            {"serviceAccountToken": {"expirationSeconds": 3607, "path": "token"}},
            {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
            {"downwardAPI": {"items": fields}},
        ]);
        push(
            &mut spec["volumes"],
            json!({"name": name, "projected": {"defaultMode": 420, "sources": sources}}),
        );
    }
}

fn push(list: &mut Value, item: Value) {
    match list {
        Value::Array(list) => list.push(item),
        other => *other = json!([item]),
    }
}
