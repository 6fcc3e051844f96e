//! Webhooks without cert-manager: a Site in two versions, whose host no other Site may have.
//!
//! ```text
//! site-webhooks manifests --image site-webhooks:1 | kubectl apply -f -
//! ```
//!
//! A CEL rule of the CRD sees one object, so it cannot know the hosts of others. A CRD without a webhook changes only the name of a version.

use listwatch::{
    cluster::Watch,
    controller::{Next, Operator, Reconcile, ReconcileError},
    crd,
    rbac::Verb,
    resource::{ObjectMeta, Scope},
    runtime::{self, Runtime},
    webhook::{Decision, Review, Validator, Webhooks},
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// The version that is stored.
#[derive(Clone, Serialize, Deserialize)]
struct Site {
    metadata: ObjectMeta,
    #[serde(default)]
    spec: SiteSpec,
}

/// All fields have defaults: the API server also converts objects of which an apply has removed some.
#[derive(Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
struct SiteSpec {
    /// The name under which the site is found. No other site may have it.
    host: String,
    /// The port; 443 by default.
    port: i32,
    /// Further names.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    aliases: Vec<String>,
}

listwatch::kind!(Site, "example.com", "v2", "sites");

mod v1 {
    use super::*;

    /// Calls the host an address, and has no aliases: the library keeps them in an annotation.
    #[derive(Serialize, Deserialize)]
    pub(super) struct Site {
        pub(super) metadata: ObjectMeta,
        #[serde(default)]
        pub(super) spec: SiteSpec,
    }

    #[derive(Default, Serialize, Deserialize, JsonSchema)]
    #[serde(default)]
    pub(super) struct SiteSpec {
        /// The name under which the site is found.
        pub(super) address: String,
        /// The port; 443 by default.
        pub(super) port: i32,
    }

    listwatch::kind!(Site, "example.com", "v1", "sites");
}

impl From<Site> for v1::Site {
    fn from(Site { metadata, spec: SiteSpec { host, port, .. } }: Site) -> v1::Site {
        v1::Site { metadata, spec: v1::SiteSpec { address: host, port } }
    }
}

impl From<v1::Site> for Site {
    fn from(v1::Site { metadata, spec: v1::SiteSpec { address, port } }: v1::Site) -> Site {
        Site { metadata, spec: SiteSpec { host: address, port, aliases: Vec::new() } }
    }
}

/// Looks at all sites. Two that are created at the same moment are both allowed.
struct Hosts {
    sites: Watch<Site>,
}

impl Validator for Hosts {
    type Kind = Site;

    async fn validate(&self, review: &Review<Site>) -> Decision {
        let Site { metadata, spec } = &review.object;
        let others = self.sites.keys().into_iter().filter(|key| *key != metadata.key());
        let is_taken =
            others.filter_map(|key| self.sites.get(&key)).any(|other| other.spec.host == spec.host);
        if is_taken { Decision::allowed().duplicate("spec.host", &spec.host) } else { Decision::allowed() }
    }
}

/// Does nothing more: another operator would make something of the sites.
struct Sites;

impl Operator for Sites {
    type Kind = Site;

    async fn reconcile(&self, _: Reconcile<Site>) -> Result<Next, ReconcileError> {
        Ok(Next::OnChange)
    }
}

fn definition() -> String {
    let definition =
        crd::of::<Site, SiteSpec>("site", "A web site.").schema(|schema| require(schema, "host"));
    let older = |schema: &mut Value| {
        schema["properties"]["spec"] = crd::schema_of::<v1::SiteSpec>();
        require(schema, "address");
    };
    definition.older_version("v1", older).yaml()
}

/// A user must give this field of the spec, although the type has a default for it.
fn require(schema: &mut Value, field: &str) {
    let spec = &mut schema["properties"]["spec"];
    spec["required"] = json!([field]);
    if let Some(field) = spec["properties"][field].as_object_mut() {
        field.remove("default");
    }
}

fn webhooks() -> Webhooks {
    Webhooks::new("example.com/sites-webhook")
        .defaults(|site: &mut Site| {
            site.spec.host = site.spec.host.to_lowercase();
            if site.spec.port == 0 {
                site.spec.port = 443;
            }
        })
        .validates(|cluster| Hosts { sites: cluster.watch_reconciled([Scope::default()]) })
        .converts::<v1::Site, Site>()
}

fn operator(runtime: Runtime) -> Runtime {
    let runtime = runtime.definitions(definition()).webhooks(webhooks());
    runtime.controller("example.com/sites", |setup| {
        let sites = setup.kind_without_status::<Site>("site-operator");
        sites.needs_everywhere::<Site>(
            &[Verb::Get, Verb::List, Verb::Watch],
            "To know the hosts of all sites, in the webhook.",
        );
        sites.run_by(Sites)
    })
}

fn main() -> std::process::ExitCode {
    runtime::main("site-operator", operator)
}

#[cfg(test)]
mod tests;
