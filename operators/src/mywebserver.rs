//! The operator of `MyWebserver`: each one gets a Deployment and a Service.
//!
//! ```yaml
//! apiVersion: k8sobjects.gsa.com/v2       # becomes   Deployment mws-web: 2 × nginx, listening on port 80
//! kind: MyWebserver                       #           Service    mws-web: port 80, to these Pods
//! metadata: {name: web}                   #           status:    Ready, Available, Progressing, Stalled, Mutated
//! spec: {image: nginx, port: 80, replicas: 2}
//! ```
//!
//! [`desired`] computes the children, [`MyWebservers::reconcile`] creates and corrects them, and reports their outcomes.
//! The children have ownerReferences, so the garbage collector deletes them with their owner. The controller also deletes them,
//! because a cluster may run no garbage collector.

pub mod types;
#[cfg(test)]
mod tests;

use crate::pod_settings::pod_of;
use listwatch::{
    children::Children,
    client::Client,
    cluster::Events,
    controller::{Controller, Next, Operator, Reconcile, ReconcileError},
    resource::{INSTANCE, LabelSelector, Labels, MANAGED_BY, ObjectMeta, kinds::*},
    runtime::Setup,
};
use smol_str::format_smolstr;

pub use types::{MyWebserver, MyWebserverSpec, MyWebserverStatus};

/// The value of the label `app.kubernetes.io/managed-by`.
pub const OPERATOR: &str = "mywebserver-operator";
/// The `reportingController` of its Events.
pub const CONTROLLER: &str = "k8sobjects.gsa.com/mywebserver-operator";
/// The container in which the web server runs. Other containers of the Pod belong to other writers.
const CONTAINER: &str = "web";
/// The name of the container port that the Service targets. Not `http`: a sidecar may use that name, and the
/// first container with it would get the requests. The Service targets a name and not a number:
/// during the rollout of a new port, old Pods still listen on the old port.
const CONTAINER_PORT: &str = "mywebserver";
/// The name of the Service's port.
const SERVICE_PORT: &str = "http";

/// Creates and corrects the Deployment and Service of each MyWebserver.
pub struct MyWebservers {
    deployments: Children<Deployment>,
    services: Children<Service>,
}

/// The controller of the MyWebserver operator.
#[must_use]
pub fn controller(setup: Setup) -> Controller<MyWebservers> {
    let mut webs = setup.kind::<MyWebserver>(OPERATOR);
    let operator = MyWebservers {
        deployments: webs.children().selector_may_lack(MANAGED_BY),
        services: webs.children().owning(CLUSTER_IP_ONLY),
    };
    webs.needs_pods();
    webs.run_by(operator)
}

/// The recorder of this operator's Events, and the task that writes them.
pub fn events(client: Client, instance: String) -> (Events, impl Future<Output = ()> + Send) {
    Events::new(client, CONTROLLER, instance)
}

/// The desired children of a MyWebserver.
#[derive(Clone, Debug, PartialEq)]
pub struct MyWebserverChildren {
    /// Runs the Pods.
    pub deployment: Deployment,
    /// Gives the Pods one address.
    pub service: Service,
}

/// Computes the desired children from the MyWebserver alone.
#[must_use]
pub fn desired(web: &MyWebserver) -> MyWebserverChildren {
    let instance = &web.metadata.name;
    // The label `instance` in the selector keeps the Pods of two MyWebservers apart, and `managed-by` the Pods of other tools: each
    // Helm chart sets the other two. The selector of a Deployment is immutable, so it has only labels that never change.
    let identity = [("app.kubernetes.io/name", "mywebserver"), (INSTANCE, instance), (MANAGED_BY, OPERATOR)];
    let selector: Labels = identity.into_iter().collect();
    let labels: Labels = identity.into_iter().chain([("app.kubernetes.io/component", "webserver")]).collect();
    let metadata = ObjectMeta::of_child(web, &format_smolstr!("mws-{instance}"), labels.clone());
    let socket = TcpSocketAction { port: Some(CONTAINER_PORT.into()), ..TcpSocketAction::default() };
    let container = Container {
        name: CONTAINER.into(),
        image: web.spec.image.clone(),
        ports: vec![ContainerPort {
            name: CONTAINER_PORT.into(),
            container_port: web.spec.port,
            protocol: "TCP".into(),
            ..ContainerPort::default()
        }],
        env: web.spec.env.clone(),
        readiness_probe: Some(Box::new(Probe { tcp_socket: Some(socket), ..Probe::default() })),
        security_context: Some(Box::new(SecurityContext {
            allow_privilege_escalation: Some(false),
            ..SecurityContext::default()
        })),
        ..Container::default()
    };
    let mut deployment = Deployment {
        metadata: metadata.clone(),
        spec: DeploymentSpec {
            replicas: Some(web.spec.replicas),
            selector: LabelSelector { match_labels: selector.clone(), ..LabelSelector::default() },
            template: PodTemplate::new(labels, pod_of(container)),
            ..DeploymentSpec::default()
        },
        ..Deployment::default()
    };
    let Deployment { metadata: child, spec, .. } = &mut deployment;
    web.spec.pods.apply::<MyWebserver>(child, "/spec/template", &mut spec.template);
    if !web.spec.env.is_empty() {
        child.also_owning::<MyWebserver>(["/spec/template/spec/containers/*/env".to_owned()]);
    }
    let port = ServicePort {
        name: SERVICE_PORT.into(),
        port: web.spec.port,
        target_port: Some(CONTAINER_PORT.into()),
        protocol: "TCP".into(),
        ..ServicePort::default()
    };
    let service = Service {
        metadata,
        spec: ServiceSpec {
            r#type: "ClusterIP".into(),
            selector,
            ports: vec![port],
            ..ServiceSpec::default()
        },
    };
    MyWebserverChildren { deployment, service }
}

impl Operator for MyWebservers {
    type Kind = MyWebserver;

    async fn reconcile(&self, web: Reconcile<MyWebserver>) -> Result<Next, ReconcileError> {
        let children = desired(&web);
        let deployment = web.keep(&self.deployments, &children.deployment);
        // Both requests run at the same time. That for the Service leaves first, because the API server needs longer for it: it allocates
        // an address.
        let (_, deployment) = tokio::join!(web.keep(&self.services, &children.service), deployment);
        let status = MyWebserverStatus::of(deployment.live(), &children.service.spec.selector);
        web.finish(status, web.rollout(&deployment, &children.deployment).await).await
    }
}
