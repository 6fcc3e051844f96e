//! Webhooks: the API server asks the operator about an object before it stores it, and for its other versions.
//!
//! ```text
//! kubectl apply ─► API server ─► POST /mutate-…      the operator changes the object
//!                             ─► POST /validate-…    the operator allows or denies it
//!                             ─► POST /convert       the operator converts it to another version
//! ```
//!
//! ```text
//! server          HTTPS, and the reviews in it; metrics counts them
//! review          what the API server asks before it stores an object, and the Decision; defaults makes the patch
//! conversion      the other versions
//! certificates    the controller of the certificates, the Secret and each caBundle
//! pki             which certificates there must be, and when they are renewed
//! ```
//!
//! ```no_run
//! # use listwatch::{resource::ObjectMeta, runtime::Runtime};
//! use listwatch::webhook::{Decision, Review, Validator, Webhooks};
//! # #[derive(Clone, serde::Serialize, serde::Deserialize)] struct Site { metadata: ObjectMeta, spec: SiteSpec }
//! # #[derive(Clone, serde::Serialize, serde::Deserialize)] struct SiteSpec { host: String }
//! # listwatch::kind!(Site, "example.com", "v1", "sites");
//!
//! struct Hosts;
//!
//! impl Validator for Hosts {
//!     type Kind = Site;
//!
//!     async fn validate(&self, review: &Review<Site>) -> Decision {
//!         match &*review.object.spec.host {
//!             "localhost" => Decision::allowed().invalid("spec.host", "localhost", "is the host itself"),
//!             _ => Decision::allowed(),
//!         }
//!     }
//! }
//!
//! let webhooks = Webhooks::new("example.com/sites-webhook")
//!     .validates(|_| Hosts)
//!     .defaults(|site: &mut Site| site.spec.host = site.spec.host.to_lowercase());
//! # fn with(runtime: Runtime, webhooks: Webhooks) -> Runtime {
//! runtime.webhooks(webhooks)
//! # }
//! ```
//!
//! Most operators need none: a CustomResourceDefinition with CEL rules, defaults and formats does most of it, without a process that must
//! answer. docs/webhooks.md compares them.
//!
//! - `server` answers over HTTPS, in each replica of the operator.
//! - `certificates` looks after its certificate, and writes the `caBundle` by which the API server trusts it.
//! - The API server does not ask about an object that is being deleted, about a status, about what the operator itself writes, or in `kube-system`
//!   and the operator's own namespace. So an operator that is down blocks no deletion, and not itself.
//!
//! See <https://kubernetes.io/docs/reference/access-authn-authz/extensible-admission-controllers/>.

mod certificates;
mod conversion;
mod defaults;
mod metrics;
mod pki;
mod review;
mod server;

#[cfg(feature = "testing")]
use std::sync::Mutex;
use std::{
    collections::BTreeMap, future::ready, io, net::SocketAddr, path::PathBuf, pin::Pin, sync::Arc,
    time::Duration,
};

use base64::{Engine, engine::general_purpose::STANDARD};
use serde::Serialize;
use serde_json::{Map, Value, json};
use tokio::time::interval;
use url::Url;

#[cfg(feature = "testing")]
use crate::endpoints::acceptor_of;
use crate::{
    cluster::Cluster, endpoints::Certificate, manifests::WebhookInstallation, resource::Resource,
    shutdown::Stop, watch::Health,
};
pub(crate) use certificates::{Watched, controller};
use conversion::Conversion;
#[cfg(feature = "testing")]
pub(crate) use conversion::there_and_back as convert_there_and_back;
use metrics::WebhookMetrics;
use review::AdmissionRequest;
pub use review::{Decision, Operation, Review, User};
use server::{Server, Source};

/// How often to look when the certificate in files ends.
const LOOK: Duration = Duration::from_secs(60);
/// The path of all conversions.
const CONVERT: &str = "/convert";

/// Decides whether an object may be stored.
///
/// It may be asked several times about one change, and about changes that another webhook denies later. So it must not write.
pub trait Validator: Send + Sync + 'static {
    /// The kind of the objects: the operator's own, or any other.
    type Kind: Resource;

    /// Decides. The API server waits for at most [`Webhooks::timeout_seconds`].
    fn validate(&self, review: &Review<Self::Kind>) -> impl Future<Output = Decision> + Send;
}

/// The webhooks of an operator.
pub struct Webhooks {
    name: &'static str,
    handlers: BTreeMap<String, Handler>,
    conversions: Vec<Conversion>,
    timeout_seconds: u8,
    failure_policy: &'static str,
}

struct Handler {
    is_mutating: bool,
    group: &'static str,
    version: &'static str,
    plural: &'static str,
    start: Box<Start>,
}

/// Begins to serve.
type Start = dyn Fn(&Cluster) -> Box<Answer> + Send + Sync;
/// Answers a review.
type Answer = dyn Fn(AdmissionRequest) -> Pin<Box<dyn Future<Output = Value> + Send>> + Send + Sync;

impl Webhooks {
    /// No webhooks yet. `name` is the name of a controller, such as `example.com/sites-webhook`, which looks after the certificates. The objects
    /// of the installation have its last part as their name: a Service, a Secret, and the configurations.
    #[must_use]
    pub fn new(name: &'static str) -> Webhooks {
        Webhooks {
            name,
            handlers: BTreeMap::new(),
            conversions: Vec::new(),
            timeout_seconds: 5,
            failure_policy: "Fail",
        }
    }

    /// Asks a validator about each new and changed object of its kind. It is made when the process begins to serve: a validator that must know
    /// other objects watches them in the cluster. Reviews wait until these watches have synced for the first time.
    #[must_use]
    pub fn validates<V: Validator>(self, new: impl Fn(&Cluster) -> V + Send + Sync + 'static) -> Webhooks {
        self.handles::<V::Kind>("validate", move |cluster| {
            let validator = Arc::new(new(cluster));
            Box::new(move |request| {
                let validator = Arc::clone(&validator);
                Box::pin(async move {
                    let decision = match request.typed() {
                        Ok(review) => validator.validate(&review).await,
                        Err(denied) => denied,
                    };
                    request.answer(decision.into_response::<V::Kind>(&request.name))
                })
            })
        })
    }

    /// Changes each new and changed object of a kind before it is stored. `default` must change nothing in an object that it has changed
    /// before: the API server may call it again. Fields that the type does not have stay.
    #[must_use]
    pub fn defaults<K: Resource + Serialize>(
        self,
        default: impl Fn(&mut K) + Send + Sync + 'static,
    ) -> Webhooks {
        let default = Arc::new(default);
        self.handles::<K>("mutate", move |_| {
            let default = Arc::clone(&default);
            Box::new(move |request| {
                let response = match request.object::<K>() {
                    Ok(object) => defaulted(&request, object, &*default),
                    // The API server validates it by the schema.
                    Err(_) => Decision::allowed().into_response::<K>(&request.name),
                };
                Box::pin(ready(request.answer(response)))
            })
        })
    }

    /// Converts objects between two versions, of which the API server stores `Stored`. What `Other` cannot say is kept in an annotation, so
    /// that it comes back. The definition of the kind has both: `crd::Crd::older_version`.
    #[must_use]
    pub fn converts<Other, Stored>(mut self) -> Webhooks
    where
        Other: Resource + Serialize + From<Stored>,
        Stored: Resource + Serialize + From<Other>,
    {
        let known = self.conversions.iter().position(Conversion::is_of::<Stored>);
        let index = known.unwrap_or_else(|| {
            self.conversions.push(Conversion::of::<Stored>());
            self.conversions.len() - 1
        });
        self.conversions[index].add::<Other, Stored>();
        self
    }

    /// How long the API server waits for an answer; 5 s by default, and at most 30 s. All writes of these kinds wait as long.
    #[must_use]
    pub fn timeout_seconds(self, timeout_seconds: u8) -> Webhooks {
        Webhooks { timeout_seconds, ..self }
    }

    /// Lets the API server store objects also if the operator does not answer: `failurePolicy: Ignore`. By default, it refuses them.
    #[must_use]
    pub fn may_fail(self) -> Webhooks {
        Webhooks { failure_policy: "Ignore", ..self }
    }

    /// # Panics
    ///
    /// If the kind has such a webhook: the first would be lost.
    fn handles<K: Resource>(
        mut self,
        what: &str,
        start: impl Fn(&Cluster) -> Box<Answer> + Send + Sync + 'static,
    ) -> Webhooks {
        let (group, version, plural) = (K::GROUP, K::VERSION, K::PLURAL);
        let path = format!("/{what}-{}-{version}-{}", group.replace('.', "-"), K::KIND.to_lowercase());
        let handler =
            Handler { is_mutating: what == "mutate", group, version, plural, start: Box::new(start) };
        let known = self.handlers.insert(path, handler);
        assert!(known.is_none(), "{} of {} has two webhooks to {what} it", K::KIND, K::api_version());
        self
    }

    pub(crate) fn name(&self) -> &'static str {
        self.name
    }

    /// The name of the Service, the Secret and the configurations.
    fn object_name(&self) -> &'static str {
        self.name.rsplit_once('/').map_or(self.name, |(_, name)| name)
    }

    /// The name of the ValidatingWebhookConfiguration, if there is one.
    fn validating(&self) -> Option<&str> {
        self.handlers.values().any(|handler| !handler.is_mutating).then(|| self.object_name())
    }

    /// The name of the MutatingWebhookConfiguration, if there is one.
    fn mutating(&self) -> Option<&str> {
        self.handlers.values().any(|handler| handler.is_mutating).then(|| self.object_name())
    }

    /// The names of the definitions whose objects are converted.
    fn converted(&self) -> impl Iterator<Item = &str> {
        self.conversions.iter().map(|conversion| &*conversion.definition)
    }

    /// What is installed for them.
    #[must_use]
    pub fn installation(&self) -> WebhookInstallation {
        let hooks = |is_mutating: bool| {
            let those = self.handlers.iter().filter(|(_, handler)| handler.is_mutating == is_mutating);
            those.map(|(path, handler)| self.hook(path, handler)).collect()
        };
        WebhookInstallation {
            name: self.object_name().to_owned(),
            validating: hooks(false),
            mutating: hooks(true),
            converted: self.converted().map(str::to_owned).collect(),
        }
    }

    /// One of the `webhooks` of a configuration, without whom to call.
    fn hook(&self, path: &str, handler: &Handler) -> Value {
        let Handler { group, version, plural, .. } = handler;
        let operation = if handler.is_mutating { "default" } else { "validate" };
        json!({
            "name": format!("{operation}.{plural}.{}", if group.is_empty() { "core" } else { group }),
            "clientConfig": {"service": {"path": path}},
            "rules": [{"apiGroups": [group], "apiVersions": [version], "resources": [plural], "operations": ["CREATE", "UPDATE"]}],
            "admissionReviewVersions": ["v1"],
            "sideEffects": "None",
            "timeoutSeconds": self.timeout_seconds,
            "failurePolicy": self.failure_policy,
        })
    }
}

/// The webhooks of a process that serves them.
struct Answers {
    handlers: BTreeMap<String, Box<Answer>>,
    webhooks: Arc<Webhooks>,
    /// The watches of the validators.
    watches: Vec<Arc<Health>>,
}

impl Answers {
    /// Before anything else watches the cluster.
    fn new(webhooks: &Arc<Webhooks>, cluster: &Cluster) -> Arc<Answers> {
        let handlers =
            webhooks.handlers.iter().map(|(path, handler)| (path.clone(), (handler.start)(cluster)));
        let handlers = handlers.collect();
        Arc::new(Answers { handlers, webhooks: Arc::clone(webhooks), watches: cluster.health() })
    }

    fn has(&self, path: &str) -> bool {
        path == CONVERT && !self.webhooks.conversions.is_empty() || self.handlers.contains_key(path)
    }

    /// The body of the answer. `Err`: the body of the request is not a review.
    async fn answer(&self, path: &str, body: &[u8]) -> Result<Value, String> {
        let Some(handler) = self.handlers.get(path) else {
            return conversion::answer(&self.webhooks.conversions, body);
        };
        let request = AdmissionRequest::read(body)?;
        let Handler { is_mutating, group, version, plural, .. } = &self.webhooks.handlers[path];
        request.check_resource(group, version, plural)?;
        // A configuration of `manifests` does not ask about it: `NOT_DELETED`. A configuration of OLM has no conditions.
        if request.is_being_deleted() {
            return Ok(request.answer(Map::from_iter([("allowed".to_owned(), true.into())])));
        }
        // A validator must not take a Store without a complete list for a cluster without objects. `defaults` sees one object.
        if !is_mutating {
            for watch in &self.watches {
                watch.until_synced().await;
            }
        }
        Ok(handler(request).await)
    }
}

/// The response with the patch for an object.
fn defaulted<K: Resource + Serialize>(
    request: &AdmissionRequest,
    mut object: K,
    default: &(impl Fn(&mut K) + ?Sized),
) -> Map<String, Value> {
    let json_of = |object: &K| conversion::json_of(object).expect("a type that was read is written");
    let before = json_of(&object);
    default(&mut object);
    let after = json_of(&object);
    if cfg!(feature = "testing") {
        default(&mut object);
        assert_eq!(json_of(&object), after, "`defaults` changes what it has changed before");
    }
    let patch = defaults::patch(&request.object, &before, &after);
    let mut response = Decision::allowed().into_response::<K>(&request.name);
    if !patch.is_empty() {
        response.insert("patchType".to_owned(), "JSONPatch".into());
        response.insert("patch".to_owned(), STANDARD.encode(Value::from(patch).to_string()).into());
    }
    response
}

/// Where a process serves its webhooks.
#[derive(Clone, Debug)]
pub(crate) struct WebhookServer {
    pub(crate) address: SocketAddr,
    /// A directory with `tls.crt` and `tls.key`. `None`: the operator looks after a Secret.
    pub(crate) files: Option<PathBuf>,
    /// By which the API server calls it, instead of the Service. Only with a Secret.
    pub(crate) url: Option<Url>,
}

impl WebhookServer {
    /// Listens. Returns what serves, and what the controller of the certificates watches, unless they are in files.
    pub(crate) async fn listen(
        &self,
        webhooks: &Arc<Webhooks>,
        cluster: &Cluster,
        stop: Stop,
    ) -> io::Result<(Serving, Option<Arc<Watched>>)> {
        let metrics = WebhookMetrics::new(cluster.metrics());
        let answers = Answers::new(webhooks, cluster);
        cluster.serves_webhooks();
        let Some(directory) = &self.files else {
            let watched = Watched::new(cluster, webhooks, self.url.clone());
            let source = Source::Secret(Arc::clone(watched.acceptor()));
            let server = Server::listen(self.address, answers, source, metrics).await?;
            let followed = Arc::clone(&watched);
            let serve = async move {
                tokio::select! {
                    () = server.serve(stop) => {}
                    never = followed.follow() => match never {},
                }
            };
            return Ok((Box::pin(serve), Some(watched)));
        };
        let certificate = Arc::new(Certificate::new(Some(directory))?);
        let source = Source::Files(Arc::clone(&certificate));
        let server = Server::listen(self.address, answers, source, metrics).await?;
        let expires = metrics::expires(cluster.metrics());
        let serve = async move {
            let mut look = interval(LOOK);
            let follow = async {
                loop {
                    look.tick().await;
                    expires.set(pki::expires_secs(&String::from_utf8_lossy(&certificate.pem())));
                }
            };
            tokio::select! {
                () = server.serve(stop) => {}
                never = follow => never,
            }
        };
        Ok((Box::pin(serve), None))
    }
}

/// Answers until the request to stop, and some seconds longer.
pub(crate) type Serving = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Webhooks that a test serves.
#[cfg(feature = "testing")]
pub(crate) struct Listening {
    pub(crate) serving: Serving,
    pub(crate) address: SocketAddr,
    /// In PEM.
    pub(crate) bundle: String,
}

#[cfg(feature = "testing")]
impl Webhooks {
    /// Listens on loopback, with a certificate for the time of the test.
    pub(crate) async fn listen_for_tests(self: &Arc<Webhooks>, cluster: &Cluster) -> Listening {
        let names = ["127.0.0.1".to_owned()].into();
        let pki = pki::Pki::default().renewed(&names, cluster.now(), pki::Lives::default(), false);
        let pki = pki.expect("a certificate");
        let acceptor = acceptor_of(pki.certificate.as_bytes(), pki.key.as_bytes()).expect("the certificate");
        let source = Source::Secret(Arc::new(Mutex::new(Some(acceptor))));
        let metrics = WebhookMetrics::new(cluster.metrics());
        let answers = Answers::new(self, cluster);
        let loopback = ([127, 0, 0, 1], 0).into();
        let server = Server::listen(loopback, answers, source, metrics).await.expect("a free port");
        let address = server.address();
        let serve = async move {
            let (_never, stop) = Stop::channel();
            server.serve(stop).await;
        };
        Listening { serving: Box::pin(serve), address, bundle: pki.bundle() }
    }
}
