//! Looks after the certificates: a controller of the Service of the webhooks. The Service has one child, the Secret, and the authorities of the
//! Secret are written into each `caBundle` of the operator's own configurations.
//!
//! ```text
//! Service sites-webhook ─► Secret sites-webhook ─┬─► ValidatingWebhookConfiguration sites-webhook
//!                                                ├─► MutatingWebhookConfiguration sites-webhook
//!                                                └─► CustomResourceDefinition sites.example.com
//! ```
//!
//! One process writes: the leader. Each replica watches the Secret, and serves what it has.

use std::{
    collections::BTreeSet,
    convert::Infallible,
    sync::{Arc, Mutex},
    time::Duration,
};

use base64::{Engine, engine::general_purpose::STANDARD};
use prometheus_client::metrics::gauge::Gauge;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::{sync::Notify, time::Instant};
use tokio_rustls::TlsAcceptor;
use tracing::{info, warn};
use url::Url;

use super::{
    Webhooks,
    metrics::expires as expires_metric,
    pki::{Lives, Pki, expires_secs},
};
use crate::{
    children::{Children, Reporter},
    cluster::{Cluster, EventType, Events, Watch},
    controller::{Builder, Controller, Operator, Reconcile},
    endpoints::acceptor_of,
    locked,
    next::{Next, ReconcileError},
    rbac::{self, Permission, Reach, Verb},
    resource::{
        Key, MANAGED_BY, ObjectMeta, Resource, Scope,
        kinds::{Secret, Service},
    },
    runtime::Setup,
    store::{Kept, Listening},
};

/// From the last `caBundle` with a new authority to its first certificate. In this time, each API server sees the new `caBundle`.
const PROPAGATION: Duration = Duration::from_secs(60);
/// How often to look at the clock.
const LOOK: Duration = Duration::from_secs(60 * 60);
/// Who waits, in `/readyz`.
const WHO: &str = "webhooks";
const NO_CERTIFICATE: &str = "there is no certificate yet";

/// What is watched, and the certificate in use.
pub(crate) struct Watched {
    cluster: Cluster,
    /// Of the Service and of the Secret.
    key: Key,
    services: Watch<Service>,
    secrets: Watch<Secret>,
    validating: Callers<ValidatingWebhookConfiguration>,
    mutating: Callers<MutatingWebhookConfiguration>,
    definitions: Callers<CustomResourceDefinition>,
    /// By which the API server calls this process, instead of the Service.
    url: Option<Url>,
    served: Mutex<String>,
    acceptor: Arc<Mutex<Option<TlsAcceptor>>>,
    /// When the certificate ends.
    expires: Gauge,
    changed: Arc<Notify>,
    _listening: Vec<Listening>,
}

/// The objects of one kind by which the API server calls this operator.
struct Callers<K> {
    keys: Vec<Key>,
    watch: Watch<K>,
}

impl<K: Calls> Callers<K> {
    fn new<'a>(cluster: &Cluster, names: impl Iterator<Item = &'a str>) -> Callers<K> {
        let keys: Vec<Key> = names.map(Key::cluster).collect();
        let scopes: Vec<Scope> = keys.iter().map(Scope::one).collect();
        Callers { watch: cluster.watch_keeping(scopes, &Kept::everything()), keys }
    }

    fn objects(&self) -> Vec<Arc<K>> {
        self.keys.iter().filter_map(|key| self.watch.get(key)).collect()
    }

    /// Those that do not exist, or call nobody: a definition may have been applied without its conversion.
    fn missing(&self) -> impl Iterator<Item = String> {
        let calls_nobody = |key: &&Key| self.watch.get(key).is_none_or(|object| object.calls().is_empty());
        self.keys.iter().filter(calls_nobody).map(|key| format!("{} {key}", K::KIND))
    }
}

/// Whom the API server calls.
#[derive(Clone, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct ClientConfig {
    ca_bundle: String,
    url: String,
    service: Option<ServiceReference>,
}

#[derive(Clone, Default, Serialize, Deserialize)]
#[serde(default)]
struct ServiceReference {
    path: String,
}

impl ClientConfig {
    /// The same call, at another URL.
    fn at(&self, url: &Url) -> Option<String> {
        let called = match &self.service {
            Some(service) => url.join(&service.path),
            None => Url::parse(&self.url).and_then(|called| url.join(called.path())),
        };
        called.ok().map(String::from)
    }
}

#[derive(Serialize, Deserialize)]
struct ValidatingWebhookConfiguration {
    metadata: ObjectMeta,
    #[serde(default)]
    webhooks: Vec<Hook>,
}

#[derive(Serialize, Deserialize)]
struct MutatingWebhookConfiguration {
    metadata: ObjectMeta,
    #[serde(default)]
    webhooks: Vec<Hook>,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Hook {
    client_config: ClientConfig,
}

#[derive(Serialize, Deserialize)]
struct CustomResourceDefinition {
    metadata: ObjectMeta,
    #[serde(default)]
    spec: DefinitionSpec,
}

#[derive(Default, Serialize, Deserialize)]
#[serde(default)]
struct DefinitionSpec {
    conversion: DefinitionConversion,
}

#[derive(Default, Serialize, Deserialize)]
#[serde(default)]
struct DefinitionConversion {
    webhook: Option<Hook>,
}

crate::kind!(
    ValidatingWebhookConfiguration,
    "admissionregistration.k8s.io",
    "v1",
    "validatingwebhookconfigurations"
);
crate::kind!(
    MutatingWebhookConfiguration,
    "admissionregistration.k8s.io",
    "v1",
    "mutatingwebhookconfigurations"
);
crate::kind!(CustomResourceDefinition, "apiextensions.k8s.io", "v1", "customresourcedefinitions");

/// An object by which the API server calls this operator.
trait Calls: Resource {
    /// Each call, by its JSON pointer.
    fn calls(&self) -> Vec<(String, &ClientConfig)>;
}

impl Calls for ValidatingWebhookConfiguration {
    fn calls(&self) -> Vec<(String, &ClientConfig)> {
        calls_of(&self.webhooks)
    }
}

impl Calls for MutatingWebhookConfiguration {
    fn calls(&self) -> Vec<(String, &ClientConfig)> {
        calls_of(&self.webhooks)
    }
}

impl Calls for CustomResourceDefinition {
    fn calls(&self) -> Vec<(String, &ClientConfig)> {
        let pointer = "/spec/conversion/webhook/clientConfig".to_owned();
        self.spec.conversion.webhook.iter().map(|hook| (pointer.clone(), &hook.client_config)).collect()
    }
}

fn notify<K: Resource>(watch: &Watch<K>, changed: &Arc<Notify>) -> Listening {
    let changed = Arc::clone(changed);
    watch.listen(move |_, _| changed.notify_one())
}

fn calls_of(hooks: &[Hook]) -> Vec<(String, &ClientConfig)> {
    let hooks = hooks.iter().enumerate();
    hooks.map(|(index, hook)| (format!("/webhooks/{index}/clientConfig"), &hook.client_config)).collect()
}

impl Watched {
    pub(super) fn new(cluster: &Cluster, webhooks: &Webhooks, url: Option<Url>) -> Arc<Watched> {
        let name = webhooks.object_name();
        let key = Key::namespaced(cluster.namespace(), name);
        let own = || [Scope::one(&key)];
        let services = cluster.watch_keeping(own(), &Kept::everything());
        let secrets = cluster.watch_keeping(own(), &Kept::everything());
        let validating = Callers::new(cluster, webhooks.validating().into_iter());
        let mutating = Callers::new(cluster, webhooks.mutating().into_iter());
        let definitions = Callers::new(cluster, webhooks.converted());
        let changed = Arc::new(Notify::new());
        let listening = vec![
            notify(&secrets, &changed),
            notify(&validating.watch, &changed),
            notify(&mutating.watch, &changed),
            notify(&definitions.watch, &changed),
        ];
        cluster.waits_for(WHO, Some(NO_CERTIFICATE));
        let expires = expires_metric(cluster.metrics());
        Arc::new(Watched {
            cluster: cluster.clone(),
            key,
            services,
            secrets,
            validating,
            mutating,
            definitions,
            url,
            served: Mutex::default(),
            acceptor: Arc::default(),
            expires,
            changed,
            _listening: listening,
        })
    }

    pub(super) fn acceptor(&self) -> &Arc<Mutex<Option<TlsAcceptor>>> {
        &self.acceptor
    }

    /// What the operator may do, by the names of single objects.
    pub(crate) fn permissions(webhooks: &Webhooks) -> Vec<Permission> {
        let name = || vec![webhooks.object_name().to_owned()];
        let read = [Verb::Get, Verb::List, Verb::Watch];
        let write = [&read[..], &[Verb::Patch]].concat();
        let own = Reach::OwnNamespace;
        let why = "To keep the certificates of the webhooks.";
        let mut permissions = vec![
            Permission { names: name(), ..rbac::of::<Service>(own.clone(), &read, why) },
            Permission { names: name(), ..rbac::of::<Secret>(own.clone(), &write, why) },
            // The API server cannot limit `create` to one name.
            rbac::of::<Secret>(own.clone(), &[Verb::Create], why),
            Permission::of_events(own),
        ];
        fn callers<'a, K: Resource>(
            names: impl IntoIterator<Item = &'a str>,
            verbs: &[Verb],
        ) -> Option<Permission> {
            let why = "To write the caBundle of the operator's own webhooks.";
            let names: Vec<String> = names.into_iter().map(str::to_owned).collect();
            (!names.is_empty())
                .then(|| Permission { names, ..rbac::of::<K>(Reach::AllNamespaces, verbs, why) })
        }
        permissions.extend(callers::<ValidatingWebhookConfiguration>(webhooks.validating(), &write));
        permissions.extend(callers::<MutatingWebhookConfiguration>(webhooks.mutating(), &write));
        permissions.extend(callers::<CustomResourceDefinition>(webhooks.converted(), &write));
        permissions
    }

    /// The certificates, as the Secret has them now.
    fn pki(&self) -> Pki {
        self.secrets.get(&self.key).map(|secret| Pki::read(&secret.data)).unwrap_or_default()
    }

    /// Whom the API server calls, in all objects.
    fn calls(&self) -> Vec<ClientConfig> {
        fn of<K: Calls>(callers: &Callers<K>) -> Vec<ClientConfig> {
            let objects = callers.objects();
            objects.iter().flat_map(|object| object.calls()).map(|(_, config)| config.clone()).collect()
        }
        [of(&self.validating), of(&self.mutating), of(&self.definitions)].concat()
    }

    /// The objects by which the API server should call this operator, and does not.
    fn missing(&self) -> Vec<String> {
        let configurations = self.validating.missing().chain(self.mutating.missing());
        configurations.chain(self.definitions.missing()).collect()
    }

    /// The names in the certificate: of the Service, and the hosts of URLs.
    fn names(&self) -> BTreeSet<String> {
        let Key { namespace, name } = &self.key;
        let service = format!("{name}.{}.svc", namespace.as_deref().unwrap_or_default());
        let calls = self.calls();
        let urls = calls.iter().filter_map(|call| Url::parse(&call.url).ok()).chain(self.url.clone());
        let hosts = urls.filter_map(|url| match url.host()? {
            // Without the brackets of a URL.
            url::Host::Ipv6(address) => Some(address.to_string()),
            host => Some(host.to_string()),
        });
        hosts.chain([service]).collect()
    }

    /// The operation by which the API server calls this process, and trusts it, if it does not yet.
    fn operation(&self, pointer: &str, config: &ClientConfig, bundle: &str) -> Option<Value> {
        match self.url.as_ref().and_then(|url| config.at(url)) {
            // Without the Service: the API server accepts one of both.
            Some(url) if url != config.url => {
                Some(json!({"op": "add", "path": pointer, "value": {"url": url, "caBundle": bundle}}))
            }
            Some(_) | None if config.ca_bundle == bundle => None,
            Some(_) | None => {
                Some(json!({"op": "add", "path": format!("{pointer}/caBundle"), "value": bundle}))
            }
        }
    }

    /// Serves the certificate of the Secret whenever it has changed. Runs until dropped.
    pub(super) async fn follow(&self) -> Infallible {
        loop {
            self.look();
            self.changed.notified().await;
        }
    }

    fn look(&self) {
        let pki = self.pki();
        if *locked(&self.served) != pki.certificate {
            match acceptor_of(pki.certificate.as_bytes(), pki.key.as_bytes()) {
                Ok(acceptor) => {
                    info!(secret = %self.key, names = ?self.names(), "serves a new certificate");
                    *locked(&self.acceptor) = Some(acceptor);
                    locked(&self.served).clone_from(&pki.certificate);
                    self.expires.set(expires_secs(&pki.certificate));
                }
                Err(_) if pki == Pki::default() => {}
                Err(error) => warn!(secret = %self.key, %error, "certificate not used"),
            }
        }
        let (names, calls) = (self.names(), self.calls());
        let lacks = |call: &ClientConfig| !pki.is_of(&text(&call.ca_bundle), &names);
        let problem = if locked(&self.acceptor).is_none() {
            Some(NO_CERTIFICATE)
        } else if !calls.is_empty() && calls.iter().all(lacks) {
            Some("no caBundle has the authority of the certificate")
        } else {
            None
        };
        self.cluster.waits_for(WHO, problem);
    }
}

/// Keeps the Secret and each caBundle.
pub(crate) struct Certificates {
    /// Writes only while this process leads.
    cluster: Cluster,
    events: Events,
    watched: Arc<Watched>,
    secrets: Children<Secret>,
    lives: Lives,
    /// The newest authority, and since when each caBundle has it.
    trusted: Mutex<(String, Option<Instant>)>,
}

/// The controller of the Service.
pub(crate) fn controller(setup: Setup, watched: &Arc<Watched>) -> Controller<Certificates> {
    // What it declares by itself would be for all objects of a kind: see `Watched::permissions`.
    let cluster = setup.cluster.without_declarations();
    let reporter = Reporter::new(&cluster, Some(setup.events.clone()));
    let mut services = Builder::with(&cluster, &watched.services, Vec::new(), reporter, None);
    let secrets = services.children_in(&watched.secrets);
    fn wake<K: Resource>(services: &mut Builder<Service>, watch: &Watch<K>, key: &Key) {
        let key = key.clone();
        services.watches(watch, move |_| [key.clone()]);
    }
    wake(&mut services, &watched.validating.watch, &watched.key);
    wake(&mut services, &watched.mutating.watch, &watched.key);
    wake(&mut services, &watched.definitions.watch, &watched.key);
    let watched = Arc::clone(watched);
    services.run_by(Certificates {
        cluster,
        events: setup.events,
        watched,
        secrets,
        lives: Lives::default(),
        trusted: Mutex::default(),
    })
}

impl Operator for Certificates {
    type Kind = Service;

    async fn reconcile(&self, service: Reconcile<Service>) -> Result<Next, ReconcileError> {
        // The API server verifies certificates, so its clock counts.
        let now = self.cluster.server_time().await?;
        let pki = self.watched.pki();
        let is_trusted = self.is_trusted(&pki);
        let next = pki.renewed(&self.watched.names(), now, self.lives, is_trusted);
        let next = next.map_err(|error| format!("make a certificate: {error}"))?;
        if next != pki {
            let labels = [(MANAGED_BY, "listwatch")].into_iter().collect();
            let metadata = ObjectMeta::of_child(&*service, &service.metadata.name, labels);
            service.keep(&self.secrets, &Secret { metadata, data: next.data(), ..Secret::default() }).await;
            // The change of the Secret is the next reconcile.
            return Ok(Next::OnChange);
        }
        let bundle = STANDARD.encode(pki.bundle());
        // Each of them, also if another is refused.
        let written = [
            self.write(&self.watched.validating, &bundle).await,
            self.write(&self.watched.mutating, &bundle).await,
            self.write(&self.watched.definitions, &bundle).await,
        ];
        let missing = self.watched.missing().join(", ");
        if !missing.is_empty() {
            // Somebody may have deleted them to go on without the operator.
            warn!(
                missing,
                "the API server does not call all webhooks until somebody applies the manifests again"
            );
            let note = format!(
                "the API server does not call all webhooks, apply the manifests again; missing: {missing}"
            );
            self.events.record(&*service, EventType::Warning, "WebhooksNotCalled", note);
        }
        written.into_iter().collect::<Result<(), _>>()?;
        let wait = pki.due().duration_since(now).unwrap_or(self.propagation());
        Ok(Next::After(if is_trusted { wait.min(LOOK) } else { self.propagation() }))
    }
}

impl Certificates {
    fn propagation(&self) -> Duration {
        PROPAGATION.min(self.lives.certificate / 10)
    }

    /// Whether each API server trusts the newest authority.
    fn is_trusted(&self, pki: &Pki) -> bool {
        let has = |call: &ClientConfig| text(&call.ca_bundle).contains(pki.newest());
        let is_in_all = !pki.newest().is_empty() && self.watched.calls().iter().all(has);
        let mut trusted = locked(&self.trusted);
        if !is_in_all || trusted.0 != pki.newest() {
            *trusted = (pki.newest().to_owned(), None);
        }
        if is_in_all && trusted.1.is_none() {
            trusted.1 = Some(Instant::now());
        }
        trusted.1.is_some_and(|since| since.elapsed() >= self.propagation())
    }

    /// Writes the authorities, and the URL if there is one, into each object that lacks them.
    async fn write<K: Calls>(&self, callers: &Callers<K>, bundle: &str) -> Result<(), ReconcileError> {
        for object in callers.objects() {
            let calls = object.calls().into_iter();
            let operations: Vec<_> = calls
                .filter_map(|(pointer, config)| self.watched.operation(&pointer, config, bundle))
                .collect();
            if !operations.is_empty() {
                self.cluster.patch(&*object, operations).await?;
            }
        }
        Ok(())
    }
}

/// The text of a caBundle.
fn text(base64: &str) -> String {
    STANDARD.decode(base64).ok().and_then(|bytes| String::from_utf8(bytes).ok()).unwrap_or_default()
}

#[cfg(all(test, feature = "testing"))]
mod tests {
    use std::{collections::HashSet, future::pending, pin::pin, time::SystemTime};

    use tokio::time::{advance, sleep};

    use super::*;
    use crate::{
        client::Request,
        resource::kinds::{Deployment, Ingress},
        testing::TestServer,
        watch::Lists,
    };

    const DAY: Duration = Duration::from_secs(24 * 60 * 60);
    /// In which one authority follows another: the propagation, and the reconciles before and after it.
    const MINUTES: Duration = Duration::from_secs(150);

    /// The process sleeps for days, and then has some minutes. In between nothing is written, and a certificate that is valid before and after
    /// is valid meanwhile.
    #[tokio::test(start_paused = true)]
    async fn at_each_change_in_three_years_the_api_server_trusts_what_is_served() {
        let server = TestServer::start(&[]).await;
        let create = async |path: &str, object: Value| {
            server.client.send(Request::post(path, &object)).await.expect("an object");
        };
        let webhooks = Webhooks::new("example.com/web-webhook");
        let webhooks = webhooks.defaults(|_: &mut Deployment| ()).defaults(|_: &mut Ingress| ());
        let mut hooks = webhooks.installation().mutating;
        for hook in &mut hooks {
            hook["clientConfig"]["service"]["namespace"] = "default".into();
            hook["clientConfig"]["service"]["name"] = "web-webhook".into();
        }
        let configurations = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations";
        create(configurations, json!({"metadata": {"name": "web-webhook"}, "webhooks": hooks})).await;
        let service = json!({"metadata": {"name": "web-webhook"}, "spec": {"ports": [{"port": 443}]}});
        create("/api/v1/namespaces/default/services", service).await;

        let client = server.client.clone();
        let (events, write_events) = Events::new(client.clone(), "example.com/test", "test".to_owned());
        let cluster = Cluster::new(client, Lists::Paged);
        let watched = Watched::new(&cluster, &webhooks, None);
        let setup = Setup { cluster: cluster.clone(), events, namespaces: Vec::new() };
        let controller = controller(setup, &watched);

        let names = BTreeSet::from(["web-webhook.default.svc".to_owned()]);
        let bundles = async || {
            let body = server.client.send(Request::get(format!("{configurations}/web-webhook"))).await;
            let object: Value = serde_json::from_slice(&body.expect("an object").body).expect("JSON");
            let hooks = object["webhooks"].as_array().expect("webhooks");
            let bundle = |hook: &Value| text(hook["clientConfig"]["caBundle"].as_str().unwrap_or_default());
            hooks.iter().map(bundle).collect::<Vec<_>>()
        };
        let are_trusting = |bundles: &[String], now: SystemTime| {
            let mut served = watched.pki();
            served.certificate.clone_from(&locked(&watched.served));
            bundles.iter().all(|bundle| served.is_trusted_by(bundle, &names, now))
        };
        let changed = Arc::new(Notify::new());
        let _listening = (notify(&watched.secrets, &changed), notify(&watched.mutating.watch, &changed));
        let (mut all_bundles, mut certificates) = (HashSet::new(), HashSet::new());
        let years = async {
            sleep(MINUTES).await;
            for _ in 0..3 * 365 / 12 {
                let mut minutes = pin!(sleep(MINUTES));
                loop {
                    let (bundles, now) = (bundles().await, cluster.now());
                    let is_safe = [now - DAY, now + DAY].map(|now| are_trusting(&bundles, now));
                    assert_eq!(is_safe, [true, true], "at {now:?}");
                    all_bundles.insert(bundles);
                    certificates.insert(locked(&watched.served).clone());
                    tokio::select! {
                        () = changed.notified() => {}
                        () = &mut minutes => break,
                    }
                }
                assert!(are_trusting(&bundles().await, cluster.now() + 13 * DAY), "at {:?}", cluster.now());
                advance(12 * DAY).await;
            }
            // A year ahead, all have expired.
            advance(365 * DAY).await;
            sleep(MINUTES).await;
            assert!(are_trusting(&bundles().await, cluster.now() + 13 * DAY));
            assert_eq!((certificates.len(), all_bundles.len()), (20, 4));
        };
        tokio::select! {
            () = controller.run(pending()) => {}
            () = async { tokio::join!(write_events, pending::<()>()); } => {}
            never = watched.follow() => match never {},
            () = years => {}
        }
    }
}
