//! Children from manifests, and of kinds that have no type.
//!
//! ```
//! # use listwatch::{children::from_yaml, resource::{ObjectMeta, kinds::{ConfigMap, Deployment}}};
//! listwatch::any_kind!(Certificate, "cert-manager.io", "v1", "certificates");
//!
//! # let metadata = ObjectMeta { name: "web".into(), namespace: Some("shop".into()), ..ObjectMeta::default() };
//! # let owner = ConfigMap { metadata, ..ConfigMap::default() };
//! let certificate: Certificate = from_yaml(&owner, "
//! apiVersion: cert-manager.io/v1
//! kind: Certificate
//! metadata: {name: web, labels: {app.kubernetes.io/managed-by: your-operator}}
//! spec: {secretName: web-tls, dnsNames: [example.com], issuerRef: {name: ca}}
//! ").expect("a Certificate");
//! assert_eq!(certificate.metadata.namespace.as_deref(), Some("shop"));
//! assert_eq!(certificate.rest.value()["spec"]["secretName"], "web-tls");
//! ```

use std::error::Error;

use serde::Serialize;
use serde_json::{Value, json};

use crate::resource::{OwnerReference, Resource, remove_nulls};

/// Declares a kind that has no type: its fields beside `metadata` are in `rest`, as JSON. The name is that in `kind:`; then come
/// group, version and plural. Its objects can be watched, and kept as children, as any others. The crate needs `serde` with the
/// feature `derive`.
#[macro_export]
macro_rules! any_kind {
    ($visibility:vis $kind:ident, $group:literal, $version:literal, $plural:literal $(, { $($more:tt)* })?) => {
        #[doc = concat!("`", $group, "/", $version, "` ", stringify!($kind), ", as JSON.")]
        #[derive(Clone, Debug, Default, PartialEq, ::serde::Serialize, ::serde::Deserialize)]
        $visibility struct $kind {
            /// Name, labels, annotations, owners, versions.
            pub metadata: $crate::resource::ObjectMeta,
            /// All other fields.
            #[serde(flatten)]
            pub rest: $crate::resource::kinds::Rest,
        }

        $crate::kind!($kind, $group, $version, $plural $(, { $($more)* })?);
    };
}

/// Reads a child from YAML or JSON: in the namespace of its owner, if that has one, and controlled by it. The manifest has the label
/// of the operator. Fails if it is of another kind, or has a field that the type lacks, which would be lost.
pub fn from_yaml<K: Resource + Serialize>(
    owner: &impl Resource,
    manifest: &str,
) -> Result<K, Box<dyn Error + Send + Sync>> {
    let mut object: Value = listwatch_yaml::read(manifest).map_err(|error| format!("not YAML: {error}"))?;
    let text = |field: &str| object[field].as_str().unwrap_or_default();
    let (found, wanted) =
        (format!("{} {}", text("apiVersion"), text("kind")), format!("{} {}", K::api_version(), K::KIND));
    if found != wanted {
        return Err(format!("{found} in place of {wanted}").into());
    }
    if let Some(fields) = object.as_object_mut() {
        for field in ["apiVersion", "kind", "status"] {
            fields.remove(field);
        }
    }
    remove_nulls(&mut object);
    if let Some(metadata) = object["metadata"].as_object_mut() {
        // An object that is not created yet has no version.
        metadata.insert("resourceVersion".to_owned(), json!(""));
        metadata.insert("ownerReferences".to_owned(), json!([OwnerReference::controlled_by(owner)]));
        if let Some(namespace) = &owner.metadata().namespace {
            metadata.insert("namespace".to_owned(), json!(namespace));
        }
    }
    let child = K::deserialize(&object)?;
    let read = serde_json::to_value(&child)?;
    // A field with its default value is not written.
    let default = [json!({}), json!([]), json!(""), json!(false), json!(0)];
    let mut fields = object.as_object().into_iter().flatten();
    match fields.find(|(field, value)| read.get(field).is_none() && !default.contains(value)) {
        Some((field, _)) => Err(format!("{} has no field {field} here", K::KIND).into()),
        None => Ok(child),
    }
}

#[cfg(all(test, feature = "testing"))]
mod tests {
    use super::*;
    use crate::{
        children::{Children, Stage},
        cluster::Cluster,
        resource::{
            Scope,
            kinds::{ConfigMap, Secret},
        },
        testing::TestServer,
        watch::Lists,
    };

    crate::any_kind!(Certificate, "cert-manager.io", "v1", "certificates");

    const CRD: &str = "
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: certificates.cert-manager.io}
spec:
  group: cert-manager.io
  scope: Namespaced
  names: {kind: Certificate, plural: certificates, singular: certificate}
  versions:
  - name: v1
    served: true
    storage: true
    schema:
      openAPIV3Schema:
        type: object
        properties:
          spec:
            type: object
            properties:
              secretName: {type: string}
              dnsNames: {type: array, items: {type: string}}
              duration: {type: string, default: 90d}
              issuer: {type: object, properties: {name: {type: string}, kind: {type: string, default: Issuer}}}
";

    const MANIFEST: &str = "
apiVersion: cert-manager.io/v1
kind: Certificate
metadata: {name: web, annotations: {team: a}}
spec: {secretName: web-tls, dnsNames: [example.com], issuer: {name: ca}}
";

    #[tokio::test(start_paused = true)]
    async fn a_child_of_a_kind_without_a_type_is_created_and_corrected_and_keeps_what_others_set() {
        let server = TestServer::start(&[CRD]).await;
        let cluster = Cluster::new(server.client.clone(), Lists::Paged);
        let owner = json!({"metadata": {"name": "owner", "namespace": "default", "resourceVersion": ""}});
        let owner: ConfigMap = serde_json::from_value(owner).expect("a ConfigMap");
        let owner = server.client.create(&owner).await.expect("a ConfigMap");
        let desired: Certificate = from_yaml(&owner, MANIFEST).expect("a Certificate");
        let keep = async || {
            let children = Children::new(&cluster, &cluster.watch::<Certificate>([Scope::default()]));
            children.keep(&owner, &desired, Stage::Settled).await
        };
        let created = keep().await;
        assert!(created.write.is_some() && created.mutations.is_empty(), "{created:?}");
        let again = keep().await;
        assert!(again.write.is_none() && again.mutations.is_empty(), "{again:?}");

        let live = again.child.live().expect("a Certificate");
        let edit = vec![
            json!({"op": "replace", "path": "/spec/dnsNames", "value": ["other.example"]}),
            json!({"op": "replace", "path": "/spec/duration", "value": "30d"}),
        ];
        cluster.patch(live, edit).await.expect("an edit");
        assert!(keep().await.write.is_some());
        let kept = keep().await;
        assert!(kept.write.is_none());
        let rest = kept.child.live().expect("a Certificate").rest.value();
        let expected = json!({
            "secretName": "web-tls", "dnsNames": ["example.com"], "duration": "30d",
            "issuer": {"name": "ca", "kind": "Issuer"},
        });
        assert_eq!(rest["spec"], expected);
    }

    #[test]
    fn a_manifest_of_another_kind_or_without_a_name_is_an_error() {
        let owner = ConfigMap::default();
        let error =
            |manifest: &str| from_yaml::<Certificate>(&owner, manifest).expect_err("an error").to_string();
        assert_eq!(
            error(&MANIFEST.replace("/v1", "/v2")),
            "cert-manager.io/v2 Certificate in place of cert-manager.io/v1 Certificate"
        );
        assert_eq!(error(&MANIFEST.replace("name: web, ", "")), "missing field `name`");
        let secret = "{apiVersion: v1, kind: Secret, metadata: {name: a}, stringData: {password: a}}";
        let error_of_secret = from_yaml::<Secret>(&owner, secret).expect_err("an error").to_string();
        assert_eq!(error_of_secret, "Secret has no field stringData here");
        assert!(error("a: [").starts_with("not YAML: "));
    }
}
