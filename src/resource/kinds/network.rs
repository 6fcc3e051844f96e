//! The kinds by which Pods are reached: Service, Ingress and NetworkPolicy.

use serde::{Deserialize, Serialize};
use smol_str::SmolStr;

use super::{IntOrString, Json, kinds, parts};
use crate::resource::{
    LabelSelector, Labels, ObjectMeta,
    diff::{Merge, MergeRule},
};

kinds! {
    /// `v1` Service: one address for all Pods that match a selector.
    /// See <https://kubernetes.io/docs/reference/kubernetes-api/service-resources/service-v1/>.
    Service {
        /// The desired state.
        spec: ServiceSpec,
    }

    /// `networking.k8s.io/v1` Ingress: leads HTTP requests from outside to Services.
    /// See <https://kubernetes.io/docs/reference/kubernetes-api/service-resources/ingress-v1/>.
    Ingress {
        /// The desired state.
        spec: IngressSpec,
    }

    /// `networking.k8s.io/v1` NetworkPolicy: which connections Pods may have.
    /// See <https://kubernetes.io/docs/reference/kubernetes-api/policy-resources/network-policy-v1/>.
    NetworkPolicy {
        /// The desired state.
        spec: NetworkPolicySpec,
    }
}

crate::kind!(Service, "", "v1", "services", {
    const MERGE: &'static [MergeRule] = &[
        ("/spec/selector", Merge::Whole),
        ("/spec/ports", Merge::Whole),
        ("/spec/ports/*/protocol", Merge::Defaulted),
        ("/spec/ports/*/targetPort", Merge::Defaulted),
        // A Service of another type than `ClusterIP` has one. It goes with that type.
        ("/spec/ports/*/nodePort", Merge::Defaulted),
    ];

    fn is_immutable(&self, path: &str) -> bool {
        path == "/spec/clusterIP"
    }
});

/// The source ranges of a `LoadBalancer`, which are invalid with another type, but stay when the type changes: the field, and the
/// annotation that was once its only form. Children that are another type own these.
pub const CLUSTER_IP_ONLY: &[&str] = &[
    "/spec/loadBalancerSourceRanges",
    "/metadata/annotations/service.beta.kubernetes.io~1load-balancer-source-ranges",
];

crate::kind!(Ingress, "networking.k8s.io", "v1", "ingresses", {
    const MERGE: &'static [MergeRule] =
        &[("/spec/rules", Merge::Whole), ("/spec/tls", Merge::Whole), ("/spec/defaultBackend", Merge::Whole)];
});

crate::kind!(NetworkPolicy, "networking.k8s.io", "v1", "networkpolicies", {
    const MERGE: &'static [MergeRule] = &[
        ("/spec/podSelector", Merge::Whole),
        // A policy without rules denies everything.
        ("/spec/ingress", Merge::Owned),
        ("/spec/ingress/*/ports/*/protocol", Merge::Defaulted),
        ("/spec/egress", Merge::Owned),
        ("/spec/egress/*/ports/*/protocol", Merge::Defaulted),
    ];
});

parts! {
    /// The desired state of a [`Service`].
    ServiceSpec {
        /// `ClusterIP`, `NodePort`, `LoadBalancer` or `ExternalName`. The API server sets `ClusterIP`.
        r#type: SmolStr,
        /// Selects the Pods that get the requests.
        selector: Labels,
        /// The ports on which it listens.
        ports: Vec<ServicePort>,
        /// `None` for a Service without an address: its name resolves to the addresses of its Pods. Otherwise, the API server
        /// chooses the address. Immutable.
        #[serde(rename = "clusterIP")]
        cluster_ip: SmolStr,
        /// The addresses, one for each family. The first is `cluster_ip`.
        #[serde(rename = "clusterIPs")]
        cluster_ips: Vec<SmolStr>,
        /// `IPv4`, `IPv6`.
        ip_families: Vec<SmolStr>,
        /// `SingleStack`, `PreferDualStack` or `RequireDualStack`.
        ip_family_policy: SmolStr,
        /// `Cluster`, or `Local`: requests from a node only reach Pods there.
        internal_traffic_policy: SmolStr,
        /// `Cluster`, or `Local`: requests from outside only reach Pods on the node where they arrive.
        external_traffic_policy: SmolStr,
        /// `None`, or `ClientIP`: the requests of a client reach the same Pod.
        session_affinity: SmolStr,
        /// The client addresses that a `LoadBalancer` accepts. No other type may have this field.
        load_balancer_source_ranges: Vec<SmolStr>,
        /// The implementation of a `LoadBalancer`.
        load_balancer_class: SmolStr,
        /// The name that an `ExternalName` stands for.
        external_name: SmolStr,
        /// Whether DNS also has the addresses of Pods that are not ready.
        publish_not_ready_addresses: bool,
    }

    /// A port that a Service listens on.
    ServicePort {
        /// Unique in the Service.
        name: SmolStr,
        /// The port of the Service.
        port: i32,
        /// The port of the Pods, by number or name. The API server sets the port of the Service.
        target_port: Option<IntOrString>,
        /// `TCP`, `UDP` or `SCTP`. The API server sets `TCP`.
        protocol: SmolStr,
        /// The port on each node; 0 if there is none, or if the API server chooses it.
        node_port: i32,
        /// The application protocol.
        app_protocol: SmolStr,
    }

    /// The desired state of an [`Ingress`].
    IngressSpec {
        /// The IngressClass: which controller serves it.
        ingress_class_name: SmolStr,
        /// By host and path.
        rules: Vec<IngressRule>,
        /// The certificates.
        tls: Vec<IngressTls>,
        /// Where requests without a rule go.
        default_backend: Option<IngressBackend>,
    }

    /// The paths of a host.
    IngressRule {
        /// The host. Empty: any.
        host: SmolStr,
        /// Its paths.
        http: Option<HttpIngressRule>,
    }

    /// The paths of a host.
    HttpIngressRule {
        /// Its paths.
        paths: Vec<HttpIngressPath>,
    }

    /// Where the requests for a path go.
    HttpIngressPath {
        /// `/`
        path: SmolStr,
        /// `Prefix`, `Exact` or `ImplementationSpecific`.
        path_type: SmolStr,
        /// The Service.
        backend: IngressBackend,
    }

    /// The Service that gets requests. `rest` may have another `resource` in its place.
    IngressBackend {
        /// The Service.
        service: Option<IngressServiceBackend>,
    }

    /// A port of a Service.
    IngressServiceBackend {
        /// The name of the Service.
        name: SmolStr,
        /// Its port.
        port: ServiceBackendPort,
    }

    /// A port of a Service: one of these.
    ServiceBackendPort {
        /// By name.
        name: SmolStr,
        /// By number.
        number: i32,
    }

    /// The certificate of some hosts.
    IngressTls {
        /// The hosts.
        hosts: Vec<SmolStr>,
        /// The Secret with the certificate.
        secret_name: SmolStr,
    }

    /// The desired state of a [`NetworkPolicy`].
    NetworkPolicySpec {
        /// The Pods that it is about. Required: `Some(LabelSelector::default())` is all of the namespace.
        pod_selector: Option<LabelSelector>,
        /// `Ingress`, `Egress`.
        policy_types: Vec<SmolStr>,
        /// The connections that they accept.
        ingress: Vec<NetworkPolicyIngressRule>,
        /// The connections that they open.
        egress: Vec<NetworkPolicyEgressRule>,
    }

    /// Connections that Pods accept.
    NetworkPolicyIngressRule {
        /// From where. Empty: from everywhere.
        from: Vec<NetworkPolicyPeer>,
        /// On these ports. Empty: on all.
        ports: Vec<NetworkPolicyPort>,
    }

    /// Connections that Pods open.
    NetworkPolicyEgressRule {
        /// Where to. Empty: everywhere.
        to: Vec<NetworkPolicyPeer>,
        /// To these ports. Empty: to all.
        ports: Vec<NetworkPolicyPort>,
    }

    /// The other end of a connection.
    NetworkPolicyPeer {
        /// Pods of the namespace, or of `namespace_selector`.
        pod_selector: Option<LabelSelector>,
        /// Namespaces.
        namespace_selector: Option<LabelSelector>,
        /// Addresses: `{"cidr": "10.0.0.0/8"}`.
        ip_block: Option<Json>,
    }

    /// A port of a connection.
    NetworkPolicyPort {
        /// By number or by name. `None`: all.
        port: Option<IntOrString>,
        /// The last of a range.
        end_port: i32,
        /// `TCP`, `UDP` or `SCTP`. The API server sets `TCP`.
        protocol: SmolStr,
    }
}
