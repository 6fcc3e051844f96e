//! The operator of `Memcached`: each one gets a Deployment and a headless Service.
//!
//! ```yaml
//! apiVersion: cache.example.com/v1alpha1   # becomes   Deployment cache: 3 × memcached -m 64, memory limit 104Mi
//! kind: Memcached                          #           Service    cache: its name resolves to the addresses of the ready Pods
//! metadata: {name: cache}                  #           status:    nodes: the names of the ready Pods; conditions
//! spec: {size: 3, memoryMb: 64}
//! ```
//!
//! It is the sample of the Operator SDK's guide: `docs/operator-sdk.md` compares the two, chapter by chapter. A Service has no
//! address of its own, because a client of memcached spreads its keys over all Pods itself.

mod pods;
pub mod types;

use std::collections::BTreeMap;

use crate::pod_settings::pod_of;
use listwatch::{
    children::Children,
    cluster::Index,
    controller::{Controller, Next, Operator, Reconcile, ReconcileError},
    rbac::Verb,
    resource::{
        INSTANCE, Key, LabelSelector, Labels, MANAGED_BY, ObjectMeta, Resource, instance_of, kinds::*,
    },
    runtime::Setup,
};
use smol_str::{SmolStr, ToSmolStr, format_smolstr};

pub use pods::PodReadiness;
pub use types::{Memcached, MemcachedSpec, MemcachedStatus};

/// The name of the operator in labels and Events.
const OPERATOR: &str = "memcached-operator";
/// The `reportingController` of its Events.
pub const CONTROLLER: &str = "cache.example.com/memcached-operator";
/// The container in which memcached runs, its port, and the port of the Service.
const CONTAINER: &str = "memcached";
/// The port on which memcached listens by default.
const PORT: i32 = 11211;
/// The user `memcache` of the official image. Memcached does not start as root.
const USER: i64 = 11211;

/// The fields of the Deployment that must be absent: arguments would be flags of memcached.
pub const OWNED: &[&str] = &["/spec/template/spec/containers/*/args"];

/// The flags of the Memcached operator.
#[derive(Clone, Debug, clap::Args)]
pub struct MemcachedFlags {
    /// memcached: the image of the Pods. It must have the program memcached in its PATH
    #[arg(long, value_name = "IMAGE", env = "MEMCACHED_IMAGE", default_value = "memcached:1.6")]
    pub memcached_image: String,
}

impl Default for MemcachedFlags {
    fn default() -> MemcachedFlags {
        MemcachedFlags { memcached_image: "memcached:1.6".to_owned() }
    }
}

/// Creates and corrects the Deployment and Service of each Memcached.
pub struct Memcacheds {
    deployments: Children<Deployment>,
    services: Children<Service>,
    /// The Pods, by their Memcached.
    pods: Index<PodReadiness, Key>,
    image: SmolStr,
}

/// The controller of the Memcached operator.
#[must_use]
pub fn controller(setup: Setup, flags: &MemcachedFlags) -> Controller<Memcacheds> {
    let mut caches = setup.kind::<Memcached>(OPERATOR);
    let reason = "To report the ready Pods as nodes, and why the others do not run.";
    caches.needs::<PodReadiness>(&[Verb::List, Verb::Watch], reason);
    let operator = Memcacheds {
        deployments: caches.children().selector_may_lack(MANAGED_BY).owning(OWNED),
        services: caches.children(),
        pods: caches.index(instance_of),
        image: flags.memcached_image.as_str().into(),
    };
    caches.run_by(operator)
}

/// The desired children of a Memcached.
#[derive(Clone, Debug, PartialEq)]
pub struct MemcachedChildren {
    /// Runs the Pods.
    pub deployment: Deployment,
    /// Gives the Pods one name in DNS.
    pub service: Service,
}

/// Computes the desired children of a Memcached, from the object and the image alone.
#[must_use]
pub fn desired(cache: &Memcached, image: &str) -> MemcachedChildren {
    let name = &cache.metadata.name;
    // All of them select the Pods: a Helm chart sets the first two.
    let identity = [("app.kubernetes.io/name", "memcached"), (INSTANCE, name), (MANAGED_BY, OPERATOR)];
    let labels: Labels = identity.into_iter().collect();
    let metadata = ObjectMeta::of_child(cache, name, labels.clone());
    let probe = || {
        let socket = TcpSocketAction { port: Some(CONTAINER.into()), ..TcpSocketAction::default() };
        Some(Box::new(Probe { tcp_socket: Some(socket), ..Probe::default() }))
    };
    let memory = BTreeMap::from([("memory".into(), memory_limit(cache.spec.memory_mb))]);
    let container = Container {
        name: CONTAINER.into(),
        image: image.into(),
        command: vec!["memcached".into(), "-m".into(), cache.spec.memory_mb.to_smolstr()],
        ports: vec![ContainerPort {
            name: CONTAINER.into(),
            container_port: PORT,
            protocol: "TCP".into(),
            ..ContainerPort::default()
        }],
        liveness_probe: probe(),
        readiness_probe: probe(),
        resources: ResourceRequirements {
            limits: memory.clone(),
            requests: memory,
            ..ResourceRequirements::default()
        },
        security_context: Some(Box::new(SecurityContext {
            allow_privilege_escalation: Some(false),
            capabilities: Some(Capabilities { drop: vec!["ALL".into()], ..Capabilities::default() }),
            run_as_non_root: Some(true),
            run_as_user: Some(USER),
            ..SecurityContext::default()
        })),
        ..Container::default()
    };
    let mut deployment = Deployment {
        metadata: metadata.clone(),
        spec: DeploymentSpec {
            replicas: Some(cache.spec.size),
            selector: LabelSelector { match_labels: labels.clone(), ..LabelSelector::default() },
            template: PodTemplate::new(labels.clone(), pod_of(container)),
            ..DeploymentSpec::default()
        },
        ..Deployment::default()
    };
    let Deployment { metadata: child, spec, .. } = &mut deployment;
    cache.spec.pods.apply::<Memcached>(child, "/spec/template", &mut spec.template);
    let port = ServicePort {
        name: CONTAINER.into(),
        port: PORT,
        // Not a name: that would mean the first container with a port of this name, such as a sidecar's.
        target_port: Some(PORT.into()),
        protocol: "TCP".into(),
        ..ServicePort::default()
    };
    let spec = ServiceSpec {
        r#type: "ClusterIP".into(),
        cluster_ip: "None".into(),
        selector: labels,
        ports: vec![port],
        ..ServiceSpec::default()
    };
    MemcachedChildren { deployment, service: Service { metadata, spec } }
}

/// The memory limit of a container, as the API server writes it: `1Gi`, never `1024Mi`.
///
/// `-m` limits the items alone. The hash table takes an eighth of that at most with items of the usual size, and threads and
/// buffers of connections about 32 MiB.
fn memory_limit(memory_mb: i32) -> SmolStr {
    let mib = memory_mb + memory_mb / 8 + 32;
    if mib % 1024 == 0 { format_smolstr!("{}Gi", mib / 1024) } else { format_smolstr!("{mib}Mi") }
}

impl Operator for Memcacheds {
    type Kind = Memcached;

    async fn reconcile(&self, cache: Reconcile<Memcached>) -> Result<Next, ReconcileError> {
        let children = desired(&cache, &self.image);
        let deployment = cache.keep(&self.deployments, &children.deployment);
        let (_, deployment) = tokio::join!(cache.keep(&self.services, &children.service), deployment);
        let state = cache.rollout(&deployment, &children.deployment).await;
        let pods = self.pods.get(&cache.key());
        let status = MemcachedStatus {
            nodes: pods.iter().filter(|pod| pod.is_ready()).map(|pod| pod.metadata.name.clone()).collect(),
            replicas: deployment.live().map_or(0, |live| live.status.replicas),
            selector: children.service.spec.selector.as_selector().into(),
            ..MemcachedStatus::default()
        };
        cache.finish(status, state).await
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn cache(memory_mb: i32) -> Memcached {
        let cache = json!({
            "metadata": {"name": "cache", "namespace": "default", "uid": "u1", "resourceVersion": "7"},
            "spec": {"size": 3, "memoryMb": memory_mb},
        });
        serde_json::from_value(cache).expect("a Memcached")
    }

    #[test]
    fn the_memory_limit_and_the_flag_of_memcached_change_together() {
        // The API server writes a limit in the largest unit. In another unit, it would be a difference for ever.
        for (memory_mb, limit) in [(16, "50Mi"), (64, "104Mi"), (882, "1Gi"), (65_536, "73760Mi")] {
            let deployment = serde_json::to_value(desired(&cache(memory_mb), "memcached").deployment);
            let container = deployment.expect("JSON")["spec"]["template"]["spec"]["containers"][0].take();
            assert_eq!(container["command"], json!(["memcached", "-m", memory_mb.to_string()]));
            assert_eq!(container["resources"]["limits"], json!({"memory": limit}));
            assert_eq!(container["resources"]["requests"], json!({"memory": limit}));
        }
    }
}
