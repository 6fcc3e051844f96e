//! A larger operator than `src/main.rs`: a Site becomes a Deployment. The Site names a Secret, and a SitePolicy affects all Sites in
//! its namespace. The CustomResourceDefinitions come from the types.

use listwatch::{
    children::{Children, ObservedState},
    cluster::Watch,
    controller::{Controller, Named, Next, Operator, Reconcile, ReconcileError},
    crd,
    resource::{Condition, Key, LabelSelector, Labels, ObjectMeta, conditions::Verdict, kinds::*},
    runtime::{self, Setup},
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

const OPERATOR: &str = "site-operator";

#[derive(Serialize, Deserialize)]
struct Site {
    metadata: ObjectMeta,
    spec: SiteSpec,
    #[serde(default)]
    status: SiteStatus,
}

#[derive(Serialize, Deserialize, JsonSchema)]
struct SiteSpec {
    /// The image of the Pods.
    image: String,
    /// The Secret with the environment of the Pods.
    secret: String,
}

/// The library sets the first two fields.
#[derive(Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
struct SiteStatus {
    /// The latest metadata.generation that the operator has observed.
    observed_generation: i64,
    #[schemars(schema_with = "crd::conditions")]
    conditions: Vec<Condition>,
    /// The resourceVersion of the Secret that the Pods have.
    secret_version: String,
}

impl Default for SiteStatus {
    fn default() -> SiteStatus {
        SiteStatus { observed_generation: -1, conditions: Vec::new(), secret_version: String::new() }
    }
}

/// Without a status, and without an operator of its own.
#[derive(Serialize, Deserialize)]
struct SitePolicy {
    metadata: ObjectMeta,
    spec: SitePolicySpec,
}

#[derive(Serialize, Deserialize, JsonSchema)]
struct SitePolicySpec {
    /// The number of Pods of each Site.
    replicas: i32,
}

listwatch::kind!(Site, "example.com", "v1", "sites");
listwatch::reported!(Site, SiteStatus);
listwatch::kind!(SitePolicy, "example.com", "v1", "sitepolicies");

fn definitions() -> String {
    let site = crd::of::<Site, SiteSpec>("site", "A web site.")
        .status::<SiteStatus>()
        .columns([crd::column("Image", "string", ".spec.image")]);
    let policy = crd::of::<SitePolicy, SitePolicySpec>("sitepolicy", "Affects all Sites in its namespace.");
    format!("{}---\n{}", site.yaml(), policy.yaml())
}

fn secret_of(site: &Site) -> Key {
    Key { namespace: site.metadata.namespace.clone(), name: site.spec.secret.as_str().into() }
}

fn deployment(site: &Site, secret: &Secret, replicas: i32) -> Deployment {
    let labels = Labels::of(site, OPERATOR);
    let secret_ref = Some(SourceRef { name: secret.metadata.name.clone(), ..SourceRef::default() });
    let container = Container {
        name: "web".into(),
        image: site.spec.image.as_str().into(),
        env_from: vec![EnvFromSource { secret_ref, ..EnvFromSource::default() }],
        ..Container::default()
    };
    let pod = PodSpec { containers: vec![container], ..PodSpec::default() };
    let mut template = PodTemplate::new(labels.clone(), pod);
    // A change of the Secret replaces the Pods.
    let version = ("example.com/secret-version", &*secret.metadata.resource_version);
    template.metadata.annotations = [version].into_iter().collect();
    let selector = LabelSelector { match_labels: labels.clone(), ..LabelSelector::default() };
    let spec = DeploymentSpec { replicas: Some(replicas), selector, template, ..DeploymentSpec::default() };
    let metadata = ObjectMeta::of_child(site, &site.metadata.name, labels);
    Deployment { metadata, spec, ..Deployment::default() }
}

struct Sites {
    deployments: Children<Deployment>,
    secrets: Named<Secret>,
    policies: Watch<SitePolicy>,
}

impl Operator for Sites {
    type Kind = Site;

    async fn reconcile(&self, site: Reconcile<Site>) -> Result<Next, ReconcileError> {
        let key = secret_of(&site);
        let Some(secret) = self.secrets.get(&key) else {
            let missing = Verdict::no("SecretMissing", format!("there is no Secret {}", key.name));
            let others = vec![("SecretFound", missing.clone())];
            let state = ObservedState { others, ..missing.into() };
            return site.finish(site.status.clone(), state).await;
        };
        let mut policies =
            self.policies.keys().into_iter().filter(|policy| policy.namespace == key.namespace);
        let policy = policies.find_map(|key| self.policies.get(&key));
        let desired = deployment(&site, &secret, policy.map_or(1, |policy| policy.spec.replicas));
        let live = site.keep(&self.deployments, &desired).await;
        let mut state = site.rollout(&live, &desired).await;
        state.others.push(("SecretFound", Verdict::yes("SecretFound", "the Pods have the Secret")));
        let secret_version = secret.metadata.resource_version.to_string();
        site.finish(SiteStatus { secret_version, ..site.status.clone() }, state).await
    }
}

fn controller(setup: Setup) -> Controller<Sites> {
    let mut sites = setup.kind::<Site>(OPERATOR);
    sites.needs_pods();
    let secrets = sites.named(|site| [secret_of(site)]);
    let policies = setup.cluster.watch::<SitePolicy>(setup.scopes(""));
    let all = sites.objects().clone();
    sites.watches(&policies, move |policy: &SitePolicy| {
        let namespace = policy.metadata.namespace.clone();
        all.keys().into_iter().filter(move |site| site.namespace == namespace)
    });
    let deployments = sites.children();
    sites.run_by(Sites { deployments, secrets, policies })
}

fn main() -> std::process::ExitCode {
    runtime::main(OPERATOR, |runtime| {
        runtime.definitions(definitions()).controller("example.com/sites", controller)
    })
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeMap, time::Duration};

    use listwatch::{
        client::{Part, Patch},
        testing::{TestServer, crd_fits},
    };
    use serde_json::{Value, json};

    use super::*;

    fn object<K: serde::de::DeserializeOwned>(name: &str, mut fields: Value) -> K {
        fields["metadata"] = json!({"name": name, "namespace": "default", "resourceVersion": ""});
        serde_json::from_value(fields).expect("an object")
    }

    #[tokio::test(start_paused = true)]
    async fn a_site_follows_its_secret_and_its_policy() {
        let server = TestServer::start(&[&definitions()]).await;
        let (client, key) = (&server.client, Key::namespaced("default", "shop"));
        let site: Site = object("shop", json!({"spec": {"image": "nginx", "secret": "keys"}}));
        client.create(&site).await.expect("a Site");
        let run = async || server.run(controller).await;
        assert_eq!(run().await, ["PATCH sites/shop/status 200"]);
        let site = client.get::<Site>(&key).await.expect("the Site");
        let found = site.status.conditions.iter().find(|condition| condition.r#type == "SecretFound");
        assert_eq!(found.expect("a condition").reason, "SecretMissing");

        for secret in ["keys", "of-others"] {
            client.create(&object::<Secret>(secret, json!({}))).await.expect("a Secret");
        }
        let policy: SitePolicy = object("small", json!({"spec": {"replicas": 2}}));
        client.create(&policy).await.expect("a SitePolicy");
        run().await;
        let deployment = client.get::<Deployment>(&key).await.expect("a Deployment");
        assert_eq!(deployment.spec.replicas, Some(2));

        // Each of many changes reaches the Pods at once, and none is taken for a change by another client.
        let secret = Key::namespaced("default", "keys");
        let change = async {
            for number in 0..14 {
                let patch = Patch::Merge(json!({"stringData": {"number": number.to_string()}}));
                client.patch::<Secret>(&secret, Part::Object, &patch).await.expect("a Secret");
                tokio::time::sleep(Duration::from_millis(700)).await;
            }
        };
        let (writes, ()) = tokio::join!(run(), change);
        let updates = writes.iter().filter(|write| *write == "PATCH deployments/shop 200").count();
        assert_eq!(updates, 14, "{writes:?}");
        let secret = client.get::<Secret>(&secret).await.expect("the Secret");
        let site = client.get::<Site>(&key).await.expect("the Site");
        assert_eq!(site.status.secret_version, secret.metadata.resource_version);
        assert_eq!(run().await, [""; 0]);
        assert_ne!(secret.data, BTreeMap::new());
    }

    #[test]
    fn the_definition_fits_the_type() {
        let definitions = definitions();
        let (site, policy) = definitions.split_once("---\n").expect("two");
        crd_fits::<Site>(site);
        crd_fits::<SitePolicy>(policy);
    }
}
