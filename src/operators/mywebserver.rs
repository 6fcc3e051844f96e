//! A `MyWebserver` becomes a Deployment and a Service, and stays so.
//!
//! ```yaml
//! apiVersion: k8sobjects.gsa.com/v2       # becomes   Deployment mws-web: 2 × nginx, listening on port 80
//! kind: MyWebserver                       #           Service    mws-web: port 80, leads there
//! metadata: {name: web}                   #           status:    Ready, Available, Progressing, Stalled, Mutated
//! spec: {image: nginx, port: 80, replicas: 2}
//! ```
//!
//! [`desired`] says what an object asks for, [`MyWebservers::applied`] makes the cluster so, [`status::of`] says how far
//! that has come. The children belong to the object (ownerReferences), so Kubernetes collects them when it goes; where
//! no collector runs, [`MyWebservers::deleted`] does.

pub mod crd;
pub mod pods;
pub mod status;
#[cfg(test)]
mod tests;

use std::{
    collections::HashSet,
    sync::{Arc, Mutex},
    time::Duration,
};

use schemars::JsonSchema;
use serde::Deserialize;
use smallvec::smallvec;
use smol_str::{SmolStr, format_smolstr};
use tracing::{info, warn};

use crate::{
    children::{Child, Owned, Stage, Write},
    client::{Client, Error},
    cluster::{Cluster, EventType, Events, Watch},
    controller::{Controller, Next, Operator},
    locked,
    resource::{Condition, Labels, ObjectMeta, OwnerReference, Resource, Scope, Uid, kinds::*, list::Broken},
};
use pods::{Looks, Trouble};
use status::{Also, NAME_CONFLICT, Refusal, Status};

/// Who says so, in labels and Events.
pub const OPERATOR: &str = "mywebserver-operator";
/// Selects what this operator made.
const MADE_BY_US: &str = "app.kubernetes.io/managed-by=mywebserver-operator";
/// The container in which the web server runs. Others in the Pod are somebody else's.
const CONTAINER: &str = "web";
/// The name of the port on which it listens, and which the Service targets. The first container that has a port of a
/// targeted name gets the requests, so nobody else must use it: `http` would do for many a sidecar. By name and not by
/// number, because each Pod then has its own: while a new port is rolled out, the old Pods still listen on the old one.
const CONTAINER_PORT: &str = "mywebserver";
/// The name of the Service's port.
const SERVICE_PORT: &str = "http";
/// How soon to look again where we wait for what no watch of ours may show: somebody else's object that has the name of
/// a child of ours. Under a minute, as promised.
const UNSEEN_RECHECK: Duration = Duration::from_secs(45);

/// Most replicas that the CRD lets in: an Endpoints object, which proxies and Ingress controllers still read, holds 1,000
/// addresses, and the others would get no traffic. See
/// <https://kubernetes.io/docs/concepts/services-networking/service/#over-capacity-endpoints>. Objects that an older CRD
/// has let in keep what they ask for.
const REPLICAS_MAX: i32 = 1000;

/// Objects that the log names at the start, of those that are not ready.
const EXAMPLES_MAX: usize = 10;

/// A web server, as asked for.
#[derive(Clone, Debug, Deserialize)]
pub struct MyWebserver {
    /// Name, labels, owners, versions.
    pub metadata: ObjectMeta,
    /// What is asked for.
    pub spec: MyWebserverSpec,
    /// What we have reported.
    #[serde(default)]
    pub status: Status,
}

impl Resource for MyWebserver {
    const GROUP: &'static str = "k8sobjects.gsa.com";
    const VERSION: &'static str = "v2";
    const PLURAL: &'static str = "mywebservers";
    const KIND: &'static str = "MyWebserver";

    fn metadata(&self) -> &ObjectMeta {
        &self.metadata
    }
}

impl MyWebserver {
    fn stage(&self) -> Stage {
        match self.status.observed_generation {
            ..0 => Stage::New,
            observed if observed != self.metadata.generation => Stage::Changed,
            _ if self.status.is_refused() => Stage::Refused,
            _ => Stage::Settled,
        }
    }
}

/// A MyWebserver whose `spec` is not what it should be: an older schema may have let it in.
#[derive(Debug, Deserialize)]
pub struct Unreadable {
    /// Name, labels, owners, versions.
    pub metadata: ObjectMeta,
    /// What we have reported.
    #[serde(default)]
    pub status: Status,
}

impl Resource for Unreadable {
    const GROUP: &'static str = MyWebserver::GROUP;
    const VERSION: &'static str = MyWebserver::VERSION;
    const PLURAL: &'static str = MyWebserver::PLURAL;
    const KIND: &'static str = MyWebserver::KIND;

    fn metadata(&self) -> &ObjectMeta {
        &self.metadata
    }
}

/// What an image reference looks like: `[HOST[:PORT]/]REPOSITORY[:TAG][@DIGEST]`. A little wider than the grammar of
/// <https://pkg.go.dev/github.com/distribution/reference>, with which the kubelet parses it: so nothing that runs is refused.
const IMAGE_PATTERN: &str = concat!(
    r"^([^/@\s]+/)?",
    r"[a-z0-9]([a-z0-9._/-]*[a-z0-9])?",
    r"(:[A-Za-z0-9_][A-Za-z0-9_.-]*)?",
    r"(@[A-Za-z0-9+._-]+:[0-9a-fA-F]+)?$",
);

/// The web server that is wanted.
#[derive(Clone, Debug, PartialEq, Deserialize, JsonSchema)]
pub struct MyWebserverSpec {
    /// Container image of the web server, as for `docker pull`: `[HOST[:PORT]/]REPOSITORY[:TAG][@DIGEST]`, the repository in
    /// lower case. A new image is rolled out Pod by Pod.
    #[schemars(with = "String", length(min = 1, max = 4096), regex(pattern = IMAGE_PATTERN))]
    pub image: SmolStr,
    /// TCP port on which the web server listens, and the Service too. 1 to 65535, default 80.
    #[serde(default = "MyWebserverSpec::default_port")]
    #[schemars(range(min = 1, max = 65535))]
    pub port: i32,
    /// How many copies run, default 1, 1000 at most. 0 stops the web server and keeps its address.
    #[serde(default = "MyWebserverSpec::default_replicas")]
    #[schemars(range(min = 0, max = REPLICAS_MAX))]
    pub replicas: i32,
}

impl MyWebserverSpec {
    fn default_port() -> i32 {
        80
    }

    fn default_replicas() -> i32 {
        1
    }
}

/// Keeps each MyWebserver's Deployment and Service as it asks for.
pub struct MyWebservers {
    cluster: Cluster,
    deployments: Owned<Deployment>,
    services: Owned<Service>,
    events: Events,
    looks: Looks,
    /// New objects whose children are there, and whose first status is put off to the next look.
    unreported: Mutex<HashSet<Uid>>,
}

/// The watches, queue and workers of the MyWebserver operator. `namespaces` empty: all of them.
pub fn controller(cluster: &Cluster, namespaces: &[String], events: Events) -> Controller<MyWebservers> {
    let scopes = |labels: &str| -> Vec<Scope> {
        let scope = |namespace| Scope { namespace, labels: labels.to_owned() };
        match namespaces {
            [] => vec![scope(None)],
            some => some.iter().map(|namespace| scope(Some(namespace.clone()))).collect(),
        }
    };
    let webs = cluster.watch::<MyWebserver>(scopes(""));
    let deployments = cluster.watch::<Deployment>(scopes(MADE_BY_US));
    let services = cluster.watch::<Service>(scopes(MADE_BY_US));
    let operator = MyWebservers {
        cluster: cluster.clone(),
        deployments: Owned::new(cluster, &deployments),
        services: Owned::new(cluster, &services),
        events,
        looks: Looks::default(),
        unreported: Mutex::default(),
    };
    Controller::new(cluster, &webs, operator).owns(&deployments).owns(&services)
}

/// The recorder of this operator's Events, and the task that writes them.
pub fn events(client: Client, instance: String) -> (Events, impl Future<Output = ()> + Send) {
    Events::new(client, "k8sobjects.gsa.com/mywebserver-operator", instance)
}

/// What a MyWebserver asks for.
#[derive(Clone, Debug, PartialEq)]
pub struct Children {
    /// Runs the Pods.
    pub deployment: Deployment,
    /// Is their address.
    pub service: Service,
}

/// What a MyWebserver asks for. Looks at nothing else.
#[must_use]
pub fn desired(web: &MyWebserver) -> Children {
    let instance = &web.metadata.name;
    // The instance is in the selector, or two MyWebservers of a namespace would share their Pods. The version is not:
    // a selector can never change.
    let identity = [("app.kubernetes.io/name", "mywebserver"), ("app.kubernetes.io/instance", instance)];
    let selector: Labels = identity.into_iter().collect();
    let labels: Labels = identity
        .into_iter()
        .chain([("app.kubernetes.io/component", "webserver"), ("app.kubernetes.io/managed-by", OPERATOR)])
        .collect();
    let metadata = ObjectMeta {
        name: format_smolstr!("mws-{instance}"),
        namespace: web.metadata.namespace.clone(),
        labels: labels.clone(),
        owner_references: smallvec![OwnerReference::controlled_by(web)],
        ..ObjectMeta::default()
    };
    let port_by_name = || Port::Name(CONTAINER_PORT.into());
    let container = Container {
        name: CONTAINER.into(),
        image: web.spec.image.clone(),
        ports: smallvec![ContainerPort {
            name: CONTAINER_PORT.into(),
            container_port: web.spec.port,
            protocol: "TCP".into(),
            ..ContainerPort::default()
        }],
        readiness_probe: Some(Probe {
            tcp_socket: Some(TcpSocket { port: port_by_name(), host: None }),
            ..Probe::default()
        }),
        security_context: Some(SecurityContext {
            allow_privilege_escalation: Some(false),
            ..SecurityContext::default()
        }),
    };
    let pod = PodSpec {
        containers: smallvec![container],
        automount_service_account_token: Some(false),
        security_context: Some(PodSecurityContext {
            seccomp_profile: Some(SeccompProfile {
                r#type: "RuntimeDefault".into(),
                ..SeccompProfile::default()
            }),
        }),
    };
    let deployment = Deployment {
        metadata: metadata.clone(),
        spec: DeploymentSpec {
            replicas: web.spec.replicas,
            selector: LabelSelector { match_labels: selector.clone(), ..LabelSelector::default() },
            template: PodTemplate { metadata: PodMeta { labels }, spec: pod },
            ..DeploymentSpec::default()
        },
        status: DeploymentStatus::default(),
    };
    let port = ServicePort {
        name: SERVICE_PORT.into(),
        port: web.spec.port,
        target_port: port_by_name(),
        protocol: "TCP".into(),
        node_port: 0,
        app_protocol: SmolStr::default(),
    };
    let service = Service {
        metadata,
        spec: ServiceSpec {
            r#type: "ClusterIP".into(),
            selector,
            ports: smallvec![port],
            ..ServiceSpec::default()
        },
    };
    Children { deployment, service }
}

impl Operator for MyWebservers {
    type Kind = MyWebserver;

    async fn applied(&self, web: Arc<MyWebserver>) -> Result<Next, Error> {
        let (children, stage) = (desired(&web), web.stage());
        // Both at once, the Service first: the API server takes longer for it.
        let kept = tokio::join!(
            self.services.keep(&*web, &children.service, stage),
            self.deployments.keep(&*web, &children.deployment, stage),
        );
        let (Some((service, also)), Some((deployment, write))) = kept else { return Ok(Next::OnChange) };
        self.record(&web, write.into_iter().chain(also));

        // The first status can wait for the next look, and other new objects need not wait for it. Once: an object whose status
        // cannot be written must back off, although its children are created again and again.
        let is_kept = matches!((&deployment, &service), (Child::Kept(_), Child::Kept(_)));
        if stage != Stage::New {
            locked(&self.unreported).remove(&web.metadata.uid);
        } else if is_kept && locked(&self.unreported).insert(web.metadata.uid.clone()) {
            return Ok(Next::After(Duration::ZERO));
        }

        let (deployment, service) = match (deployment, service) {
            // It went wrong, and says nothing about the object.
            (Child::Failed { error, .. }, _) | (_, Child::Failed { error, .. })
                if Refusal::of(&error).is_none() =>
            {
                return Err(error);
            }
            children => children,
        };
        let (trouble, next) = self.look_at_pods(&web, &deployment).await;
        let reported = self.report(&web, &children, &deployment, &service, trouble.as_ref()).await;
        match (deployment, service) {
            // Also where the status could not be written: this came first, and is what must be mended first.
            (Child::Failed { error, .. }, _) | (_, Child::Failed { error, .. }) => {
                if !matches!(reported, Ok(News::None)) {
                    let reason = Refusal::of(&error).unwrap_or(Refusal::Other).reason();
                    self.events.record(&*web, EventType::Warning, "Failed", format!("{reason}: {error}"));
                }
                Err(error)
            }
            (Child::NotOurs(problem), _) | (_, Child::NotOurs(problem)) => {
                if reported? == News::Written {
                    self.events.record(&*web, EventType::Warning, NAME_CONFLICT, problem);
                }
                Ok(Next::After(UNSEEN_RECHECK))
            }
            // As a rule its end is an event. But it may have lost our label, and no watch of ours would show it.
            (Child::Awaited(_), _) | (_, Child::Awaited(_)) => reported.map(|_| Next::After(UNSEEN_RECHECK)),
            (Child::Kept(_), Child::Kept(_)) => reported.map(|_| next),
        }
    }

    /// The garbage collector may be slow or absent, so we delete too; what it was told to orphan no longer refers to the
    /// owner, and stays.
    async fn deleted(&self, last: Arc<MyWebserver>) -> Result<(), Error> {
        info!(key = %last.key(), "deleted");
        locked(&self.unreported).remove(&last.metadata.uid);
        self.looks.forget(&last.metadata.uid);
        let children = desired(&last);
        let deleted = self.deployments.delete(&*last, &children.deployment.key()).await;
        self.services.delete(&*last, &children.service.key()).await.and(deleted)
    }

    fn synced(&self, webs: &Watch<MyWebserver>) {
        let (mut not_ready, mut examples) = (0, Vec::new());
        let keys = webs.keys();
        for key in &keys {
            let reason = match webs.get(key) {
                Some(web) if web.status.is_ready() => continue,
                Some(web) => web.status.condition("Ready").map_or("New".into(), |ready| ready.reason.clone()),
                None => Refusal::InvalidSpec.reason().into(),
            };
            not_ready += 1;
            if examples.len() < EXAMPLES_MAX {
                examples.push(format!("{key} {reason}"));
            }
        }
        let examples = (not_ready > 0).then(|| examples.join(", "));
        info!(objects = keys.len(), not_ready, examples, "MyWebservers at the start");
    }

    async fn unreadable(&self, broken: Arc<Broken>) -> Result<(), Error> {
        locked(&self.unreported).remove(&broken.metadata.uid);
        self.looks.forget(&broken.metadata.uid);
        let web = self.cluster.get_live::<Unreadable>(&broken.metadata.key()).await?;
        let status = status::of_unreadable(&web, &broken.error, &self.now());
        if status != web.status {
            self.cluster.patch_status(&*web, &status).await?;
        }
        Ok(())
    }
}

impl MyWebservers {
    /// RFC 3339 in whole seconds, as conditions have it.
    fn now(&self) -> String {
        humantime::format_rfc3339_seconds(self.cluster.now()).to_string()
    }

    /// Why Pods do not run, where they are waited for, and when to look again.
    async fn look_at_pods(
        &self,
        web: &MyWebserver,
        deployment: &Child<Deployment>,
    ) -> (Option<Trouble>, Next) {
        match deployment {
            Child::Kept(deployment) if status::waits_for_pods(deployment) => {
                let (trouble, pause) = self.looks.look(&self.cluster, web, deployment).await;
                (trouble, Next::After(pause))
            }
            Child::Kept(_) | Child::Awaited(_) | Child::NotOurs(_) | Child::Failed { .. } => {
                self.looks.forget(&web.metadata.uid);
                (None, Next::OnChange)
            }
        }
    }

    /// Writes the status, if there is news.
    async fn report(
        &self,
        web: &MyWebserver,
        children: &Children,
        deployment: &Child<Deployment>,
        service: &Child<Service>,
        trouble: Option<&Trouble>,
    ) -> Result<News, Error> {
        let mut mutations = self.deployments.mutations(web, &children.deployment.metadata.name);
        mutations.extend(self.services.mutations(web, &children.service.metadata.name));
        let selector = &children.service.spec.selector;
        let status = status::of(
            web,
            selector,
            deployment,
            service,
            &Also { mutations: &mutations, trouble },
            &self.now(),
        );
        if status == web.status {
            return Ok(News::None);
        }
        self.cluster.patch_status(web, &status).await?;
        let is_ready = status.is_ready();
        if is_ready != web.status.is_ready() {
            info!(key = %web.key(), generation = web.metadata.generation, ready = is_ready, "{}", status.summary());
        }
        if let Some(stalled) = status.stalled()
            && web.status.stalled().is_none_or(|before| before.reason != stalled.reason)
        {
            let Condition { reason, message, .. } = stalled;
            warn!(key = %web.key(), %reason, %message, "stalled: it will not go on without help");
        }
        if let Some(mutated) = status.mutated().filter(|_| web.status.mutated() != status.mutated()) {
            self.events.record(web, EventType::Warning, "ChangedByAdmission", mutated.to_owned());
        }
        Ok(News::Written)
    }

    /// One Event for all writes of a sort.
    fn record(&self, web: &MyWebserver, writes: impl IntoIterator<Item = Write>) {
        let (mut created, mut updated, mut restored) = (Vec::new(), Vec::new(), Vec::new());
        for write in writes {
            match write {
                Write::Created(what) => created.push(what),
                Write::Updated(what) => updated.push(what),
                Write::Restored(what) => restored.push(what),
            }
        }
        if !created.is_empty() {
            info!(key = %web.key(), children = created.join(", "), "created");
        }
        let news = [
            ("Created", "created", created),
            ("Updated", "changed", updated),
            ("DriftCorrected", "restored", restored),
        ];
        for (reason, verb, what) in news {
            if !what.is_empty() {
                self.events.record(web, EventType::Normal, reason, format!("{verb} {}", what.join(", ")));
            }
        }
    }
}

/// Whether the status said something new.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum News {
    None,
    Written,
}
