//! The table of built-in kinds: one entry for each kind, with its fields for selectors. It names the functions of
//! `defaults.rs`, `validation.rs` and `printer_columns.rs`.

use serde_json::Value;

use crate::{
    kinds::{
        admission_policies, autoscalers, by_schema, crd, defaults, endpoints, events, group_version, jobs,
        limits, pods,
        printer_columns::{self, PrinterColumns},
        roles, stateful_sets, stored_columns, validation, webhook_configurations,
    },
    schema::openapi,
    status::Cause,
};

/// One built-in kind.
#[derive(Debug)]
pub(crate) struct BuiltIn {
    pub(crate) group: &'static str,
    pub(crate) version: &'static str,
    pub(crate) plural: &'static str,
    pub(crate) kind: &'static str,
    pub(crate) short_names: &'static [&'static str],
    pub(crate) categories: &'static [&'static str],
    pub(crate) namespaced: bool,
    pub(crate) status: bool,
    pub(crate) scale: bool,
    pub(crate) generation: bool,
    /// Fields that a field selector can name, besides name and namespace.
    pub(crate) fields: &'static [&'static str],
    pub(crate) columns: PrinterColumns,
    pub(crate) defaults: fn(&mut Value),
    /// Further defaults, see [`by_schema`](crate::kinds::by_schema). Go encodes a list without `omitempty` as null.
    pub(crate) filled: &'static [(&'static str, &'static str)],
    /// The fields that cannot change, and why.
    pub(crate) fixed: &'static [(&'static str, &'static str)],
    /// Whether the OpenAPI definition is part of the validation.
    pub(crate) by_schema: bool,
    pub(crate) validate: fn(&Value, Option<&Value>) -> Vec<Cause>,
    /// Changes an object of this version before it is stored.
    pub(crate) to_stored: fn(&mut Value),
    /// Converts the stored form to this version.
    pub(crate) convert: fn(&mut Value),
    /// Whether a POST only asks a question: no object is stored.
    pub(crate) is_review: bool,
    /// What a cluster does with the objects and this server does not.
    pub(crate) lacks: &'static str,
    /// The warning with each answer.
    pub(crate) deprecation: Option<&'static str>,
}

impl BuiltIn {
    /// The entry of the same kind in another version: a HorizontalPodAutoscaler in `v1`, an Event in `events.k8s.io/v1`.
    pub(crate) fn in_version(&self, api_version: &str) -> Option<&'static BuiltIn> {
        BUILT_IN
            .iter()
            .find(|entry| entry.kind == self.kind && group_version(entry.group, entry.version) == api_version)
    }

    /// The name of the OpenAPI definition.
    pub(crate) fn definition(&self) -> &'static str {
        openapi::name_of(self.group, self.version, self.kind)
    }

    /// Converts an object from its version to another one of the kind. An object of an unknown version stays as it is.
    pub(crate) fn convert_to(&self, object: &mut Value, api_version: &str) {
        let from = object["apiVersion"].as_str().and_then(|version| self.in_version(version));
        if let (Some(from), Some(to)) = (from, self.in_version(api_version)) {
            (from.to_stored)(object);
            object["apiVersion"] = api_version.into();
            (to.convert)(object);
        }
    }
}

/// An entry of a namespaced kind without status, defaults and validation.
pub(crate) const PLAIN: BuiltIn = BuiltIn {
    group: "",
    version: "v1",
    plural: "",
    kind: "",
    short_names: &[],
    categories: &[],
    namespaced: true,
    status: false,
    scale: false,
    generation: false,
    fields: &[],
    columns: printer_columns::NAME_AND_AGE,
    defaults: |_| {},
    filled: &[],
    fixed: &[],
    by_schema: false,
    validate: |_, _| Vec::new(),
    to_stored: |_| {},
    convert: |_| {},
    is_review: false,
    lacks: "",
    deprecation: None,
};

/// An entry of a namespaced kind without functions of its own.
const STORED: BuiltIn = BuiltIn { by_schema: true, ..PLAIN };

/// An entry of such a kind without namespaces.
const CLUSTER: BuiltIn = BuiltIn { namespaced: false, ..STORED };

/// An entry of a review.
const REVIEW: BuiltIn = BuiltIn { is_review: true, ..CLUSTER };

const IMMUTABLE: &str = "field is immutable";

/// All built-in kinds that are served.
pub(crate) const BUILT_IN: &[BuiltIn] = &[
    BuiltIn {
        plural: "namespaces",
        kind: "Namespace",
        short_names: &["ns"],
        namespaced: false,
        status: true,
        fields: &["status.phase"],
        columns: printer_columns::NAMESPACE,
        defaults: defaults::namespace,
        ..PLAIN
    },
    BuiltIn {
        plural: "configmaps",
        kind: "ConfigMap",
        short_names: &["cm"],
        columns: printer_columns::CONFIG_MAP,
        validate: validation::config_map,
        ..PLAIN
    },
    BuiltIn {
        plural: "secrets",
        kind: "Secret",
        fields: &["type"],
        columns: printer_columns::SECRET,
        defaults: defaults::secret,
        validate: validation::secret,
        ..PLAIN
    },
    BuiltIn {
        plural: "services",
        kind: "Service",
        short_names: &["svc"],
        categories: &["all"],
        status: true,
        fields: &["spec.clusterIP", "spec.type"],
        columns: printer_columns::SERVICE,
        defaults: defaults::service,
        validate: validation::service,
        ..PLAIN
    },
    BuiltIn {
        plural: "endpoints",
        kind: "Endpoints",
        short_names: &["ep"],
        columns: printer_columns::ENDPOINTS,
        defaults: defaults::endpoints,
        validate: endpoints::endpoints,
        deprecation: Some("v1 Endpoints is deprecated in v1.33+; use discovery.k8s.io/v1 EndpointSlice"),
        ..PLAIN
    },
    BuiltIn { plural: "serviceaccounts", kind: "ServiceAccount", short_names: &["sa"], ..PLAIN },
    BuiltIn {
        plural: "pods",
        kind: "Pod",
        short_names: &["po"],
        categories: &["all"],
        status: true,
        generation: true,
        fields: &[
            "spec.nodeName",
            "spec.restartPolicy",
            "spec.schedulerName",
            "spec.serviceAccountName",
            "spec.hostNetwork",
            "status.phase",
            "status.podIP",
            "status.nominatedNodeName",
        ],
        columns: printer_columns::POD,
        defaults: defaults::pod,
        validate: pods::pod,
        ..PLAIN
    },
    BuiltIn {
        plural: "persistentvolumeclaims",
        kind: "PersistentVolumeClaim",
        short_names: &["pvc"],
        status: true,
        columns: printer_columns::PERSISTENT_VOLUME_CLAIM,
        defaults: defaults::claim,
        validate: stateful_sets::claim,
        ..PLAIN
    },
    BuiltIn {
        plural: "nodes",
        kind: "Node",
        short_names: &["no"],
        namespaced: false,
        status: true,
        fields: &["spec.unschedulable"],
        columns: printer_columns::NODE,
        defaults: defaults::node,
        validate: validation::node,
        ..PLAIN
    },
    BuiltIn {
        plural: "events",
        kind: "Event",
        short_names: &["ev"],
        fields: &[
            "involvedObject.kind",
            "involvedObject.namespace",
            "involvedObject.name",
            "involvedObject.uid",
            "involvedObject.apiVersion",
            "involvedObject.resourceVersion",
            "involvedObject.fieldPath",
            "reason",
            "reportingComponent",
            "source",
            "type",
        ],
        columns: printer_columns::EVENT,
        defaults: events::to_core,
        validate: validation::core_event,
        convert: events::to_core,
        ..PLAIN
    },
    BuiltIn {
        plural: "limitranges",
        kind: "LimitRange",
        short_names: &["limits"],
        columns: stored_columns::CREATED_AT,
        validate: limits::limit_range,
        defaults: limits::limit_range_defaults,
        filled: &[("/spec/limits", "null")],
        ..PLAIN
    },
    BuiltIn {
        plural: "persistentvolumes",
        kind: "PersistentVolume",
        lacks: "volumes are simulated",
        short_names: &["pv"],
        status: true,
        columns: stored_columns::PERSISTENT_VOLUME,
        filled: &[
            ("/status/phase", "\"Pending\""),
            ("/spec/persistentVolumeReclaimPolicy", "\"Retain\""),
            ("/spec/volumeMode", "\"Filesystem\""),
        ],
        defaults: |volume| defaults::host_path(&mut volume["spec"]),
        ..CLUSTER
    },
    BuiltIn {
        plural: "podtemplates",
        kind: "PodTemplate",
        generation: true,
        columns: stored_columns::POD_TEMPLATE,
        validate: validation::template,
        defaults: |object| defaults::template_defaults(&mut object["template"]),
        ..STORED
    },
    BuiltIn {
        plural: "replicationcontrollers",
        kind: "ReplicationController",
        short_names: &["rc"],
        categories: &["all"],
        status: true,
        scale: true,
        generation: true,
        fields: &["status.replicas"],
        columns: stored_columns::REPLICATION_CONTROLLER,
        validate: validation::replication_controller,
        defaults: defaults::replication_controller,
        ..STORED
    },
    BuiltIn {
        plural: "resourcequotas",
        kind: "ResourceQuota",
        short_names: &["quota"],
        status: true,
        columns: stored_columns::RESOURCE_QUOTA,
        validate: limits::resource_quota,
        ..PLAIN
    },
    BuiltIn {
        group: "apiregistration.k8s.io",
        plural: "apiservices",
        kind: "APIService",
        lacks: "no requests are passed on",
        categories: &["api-extensions"],
        status: true,
        columns: stored_columns::API_SERVICE,
        filled: &[("/spec/service/port", "443")],
        ..CLUSTER
    },
    BuiltIn {
        group: "apps",
        plural: "deployments",
        kind: "Deployment",
        short_names: &["deploy"],
        categories: &["all"],
        status: true,
        scale: true,
        generation: true,
        columns: printer_columns::DEPLOYMENT,
        defaults: defaults::deployment,
        validate: validation::deployment,
        ..PLAIN
    },
    BuiltIn {
        group: "apps",
        plural: "replicasets",
        kind: "ReplicaSet",
        short_names: &["rs"],
        categories: &["all"],
        status: true,
        scale: true,
        generation: true,
        columns: printer_columns::REPLICA_SET,
        defaults: defaults::replica_set,
        validate: validation::replica_set,
        ..PLAIN
    },
    BuiltIn {
        group: "apps",
        plural: "statefulsets",
        kind: "StatefulSet",
        short_names: &["sts"],
        categories: &["all"],
        status: true,
        scale: true,
        generation: true,
        columns: printer_columns::STATEFUL_SET,
        defaults: defaults::stateful_set,
        validate: stateful_sets::stateful_set,
        ..PLAIN
    },
    BuiltIn {
        group: "apps",
        plural: "controllerrevisions",
        kind: "ControllerRevision",
        columns: printer_columns::CONTROLLER_REVISION,
        validate: stateful_sets::revision,
        ..PLAIN
    },
    BuiltIn {
        group: "apps",
        plural: "daemonsets",
        kind: "DaemonSet",
        lacks: "only the simulated node gets a Pod",
        short_names: &["ds"],
        categories: &["all"],
        status: true,
        generation: true,
        columns: stored_columns::DAEMON_SET,
        validate: validation::replica_set,
        defaults: defaults::daemon_set,
        ..STORED
    },
    BuiltIn {
        group: "events.k8s.io",
        plural: "events",
        kind: "Event",
        short_names: &["ev"],
        fields: &[
            "regarding.kind",
            "regarding.namespace",
            "regarding.name",
            "regarding.uid",
            "regarding.apiVersion",
            "regarding.resourceVersion",
            "regarding.fieldPath",
            "reason",
            "reportingController",
            "type",
        ],
        columns: printer_columns::NEW_EVENT,
        defaults: events::to_core,
        to_stored: events::to_core,
        validate: validation::new_event,
        convert: events::to_new,
        ..PLAIN
    },
    BuiltIn {
        group: "authentication.k8s.io",
        plural: "selfsubjectreviews",
        kind: "SelfSubjectReview",
        ..REVIEW
    },
    BuiltIn { group: "authentication.k8s.io", plural: "tokenreviews", kind: "TokenReview", ..REVIEW },
    BuiltIn {
        group: "authorization.k8s.io",
        plural: "localsubjectaccessreviews",
        kind: "LocalSubjectAccessReview",
        namespaced: true,
        ..REVIEW
    },
    BuiltIn {
        group: "authorization.k8s.io",
        plural: "selfsubjectaccessreviews",
        kind: "SelfSubjectAccessReview",
        ..REVIEW
    },
    BuiltIn {
        group: "authorization.k8s.io",
        plural: "selfsubjectrulesreviews",
        kind: "SelfSubjectRulesReview",
        ..REVIEW
    },
    BuiltIn {
        group: "authorization.k8s.io",
        plural: "subjectaccessreviews",
        kind: "SubjectAccessReview",
        ..REVIEW
    },
    BuiltIn {
        group: "autoscaling",
        version: "v2",
        plural: "horizontalpodautoscalers",
        kind: "HorizontalPodAutoscaler",
        lacks: "only the usage of CPU and memory counts, from stored PodMetrics",
        short_names: &["hpa"],
        categories: &["all"],
        status: true,
        columns: stored_columns::AUTOSCALER,
        defaults: autoscalers::defaults,
        validate: autoscalers::errors,
        ..PLAIN
    },
    BuiltIn {
        group: "autoscaling",
        plural: "horizontalpodautoscalers",
        kind: "HorizontalPodAutoscaler",
        lacks: "only the usage of CPU and memory counts, from stored PodMetrics",
        short_names: &["hpa"],
        categories: &["all"],
        status: true,
        columns: stored_columns::AUTOSCALER,
        filled: &[("/spec/minReplicas", "1")],
        to_stored: autoscalers::to_v2,
        validate: autoscalers::errors,
        convert: autoscalers::to_v1,
        ..PLAIN
    },
    BuiltIn {
        group: "batch",
        plural: "jobs",
        kind: "Job",
        categories: &["all"],
        status: true,
        generation: true,
        fields: &["status.successful"],
        columns: printer_columns::JOB,
        defaults: defaults::job,
        validate: jobs::job,
        ..PLAIN
    },
    BuiltIn {
        group: "batch",
        plural: "cronjobs",
        kind: "CronJob",
        short_names: &["cj"],
        categories: &["all"],
        status: true,
        generation: true,
        columns: printer_columns::CRON_JOB,
        defaults: defaults::cron_job,
        validate: jobs::cron_job,
        ..PLAIN
    },
    BuiltIn {
        group: "certificates.k8s.io",
        plural: "certificatesigningrequests",
        kind: "CertificateSigningRequest",
        lacks: "nothing is signed",
        short_names: &["csr"],
        status: true,
        fields: &["spec.signerName"],
        columns: stored_columns::CERTIFICATE_REQUEST,
        ..CLUSTER
    },
    BuiltIn {
        group: "networking.k8s.io",
        plural: "ingresses",
        kind: "Ingress",
        lacks: "no address is assigned",
        short_names: &["ing"],
        status: true,
        generation: true,
        columns: stored_columns::INGRESS,
        ..STORED
    },
    BuiltIn {
        group: "networking.k8s.io",
        plural: "ingressclasses",
        kind: "IngressClass",
        generation: true,
        columns: stored_columns::INGRESS_CLASS,
        filled: &[("/spec/parameters/scope", "\"Cluster\"")],
        fixed: &[("/spec/controller", IMMUTABLE)],
        ..CLUSTER
    },
    BuiltIn {
        group: "networking.k8s.io",
        plural: "ipaddresses",
        kind: "IPAddress",
        lacks: "Services have none",
        short_names: &["ip"],
        fields: &[
            "spec.parentRef.group",
            "spec.parentRef.resource",
            "spec.parentRef.namespace",
            "spec.parentRef.name",
        ],
        columns: stored_columns::IP_ADDRESS,
        fixed: &[("/spec/parentRef", IMMUTABLE)],
        ..CLUSTER
    },
    BuiltIn {
        group: "networking.k8s.io",
        plural: "networkpolicies",
        kind: "NetworkPolicy",
        lacks: "no traffic is blocked",
        short_names: &["netpol"],
        generation: true,
        columns: stored_columns::NETWORK_POLICY,
        defaults: defaults::network_policy,
        filled: &[
            ("/spec/ingress/*/ports/*/protocol", "\"TCP\""),
            ("/spec/egress/*/ports/*/protocol", "\"TCP\""),
        ],
        ..STORED
    },
    BuiltIn {
        group: "networking.k8s.io",
        plural: "servicecidrs",
        kind: "ServiceCIDR",
        lacks: "Services have addresses in 10.96.0.0/16",
        status: true,
        columns: stored_columns::SERVICE_CIDR,
        ..CLUSTER
    },
    BuiltIn {
        group: "policy",
        plural: "poddisruptionbudgets",
        kind: "PodDisruptionBudget",
        short_names: &["pdb"],
        status: true,
        generation: true,
        columns: printer_columns::POD_DISRUPTION_BUDGET,
        defaults: defaults::disruption_budget,
        validate: validation::disruption_budget,
        ..PLAIN
    },
    BuiltIn {
        group: RBAC,
        plural: "clusterrolebindings",
        kind: "ClusterRoleBinding",
        columns: stored_columns::ROLE_BINDING,
        validate: roles::binding,
        by_schema: false,
        defaults: defaults::role_binding,
        fixed: &[("/roleRef", "cannot change roleRef")],
        ..CLUSTER
    },
    BuiltIn {
        group: RBAC,
        plural: "clusterroles",
        kind: "ClusterRole",
        columns: stored_columns::CREATED_AT,
        validate: roles::role,
        filled: &[("/rules", "null")],
        ..CLUSTER
    },
    BuiltIn {
        group: RBAC,
        plural: "rolebindings",
        kind: "RoleBinding",
        columns: stored_columns::ROLE_BINDING,
        validate: roles::binding,
        by_schema: false,
        defaults: defaults::role_binding,
        fixed: &[("/roleRef", "cannot change roleRef")],
        ..STORED
    },
    BuiltIn {
        group: RBAC,
        plural: "roles",
        kind: "Role",
        columns: stored_columns::CREATED_AT,
        validate: roles::role,
        filled: &[("/rules", "null")],
        ..STORED
    },
    BuiltIn {
        group: "storage.k8s.io",
        plural: "csidrivers",
        kind: "CSIDriver",
        lacks: "no driver runs",
        columns: stored_columns::CSI_DRIVER,
        filled: &[
            ("/spec/attachRequired", "true"),
            ("/spec/podInfoOnMount", "false"),
            ("/spec/storageCapacity", "false"),
            ("/spec/fsGroupPolicy", "\"ReadWriteOnceWithFSType\""),
            ("/spec/volumeLifecycleModes", "[\"Persistent\"]"),
            ("/spec/requiresRepublish", "false"),
            ("/spec/seLinuxMount", "false"),
        ],
        fixed: &[("/spec/attachRequired", IMMUTABLE), ("/spec/volumeLifecycleModes", IMMUTABLE)],
        ..CLUSTER
    },
    BuiltIn {
        group: "storage.k8s.io",
        plural: "csinodes",
        kind: "CSINode",
        lacks: "no driver runs",
        columns: stored_columns::CSI_NODE,
        filled: &[("/spec/drivers", "null"), ("/spec/drivers/*/topologyKeys", "null")],
        ..CLUSTER
    },
    BuiltIn {
        group: "storage.k8s.io",
        plural: "csistoragecapacities",
        kind: "CSIStorageCapacity",
        lacks: "no driver runs",
        columns: stored_columns::CREATED_AT,
        fixed: &[("/nodeTopology", IMMUTABLE), ("/storageClassName", IMMUTABLE)],
        ..STORED
    },
    BuiltIn {
        group: "storage.k8s.io",
        plural: "storageclasses",
        kind: "StorageClass",
        lacks: "volumes are simulated",
        short_names: &["sc"],
        columns: stored_columns::STORAGE_CLASS,
        filled: &[("/reclaimPolicy", "\"Delete\""), ("/volumeBindingMode", "\"Immediate\"")],
        fixed: &[
            ("/parameters", IMMUTABLE),
            ("/provisioner", IMMUTABLE),
            ("/reclaimPolicy", IMMUTABLE),
            ("/volumeBindingMode", IMMUTABLE),
        ],
        ..CLUSTER
    },
    BuiltIn {
        group: "storage.k8s.io",
        plural: "volumeattachments",
        kind: "VolumeAttachment",
        lacks: "nothing is attached",
        status: true,
        columns: stored_columns::VOLUME_ATTACHMENT,
        fixed: &[("/spec", IMMUTABLE)],
        ..CLUSTER
    },
    BuiltIn {
        group: "storage.k8s.io",
        plural: "volumeattributesclasses",
        kind: "VolumeAttributesClass",
        lacks: "no volume is changed",
        short_names: &["vac"],
        columns: stored_columns::VOLUME_ATTRIBUTES_CLASS,
        fixed: &[("/driverName", IMMUTABLE), ("/parameters", IMMUTABLE)],
        ..CLUSTER
    },
    BuiltIn {
        group: ADMISSION,
        plural: "mutatingadmissionpolicies",
        kind: "MutatingAdmissionPolicy",
        lacks: "controllers' writes follow none",
        by_schema: false,
        validate: admission_policies::mutating,
        columns: stored_columns::MUTATING_POLICY,
        filled: POLICY,
        ..EXTENSION
    },
    BuiltIn {
        group: ADMISSION,
        plural: "mutatingadmissionpolicybindings",
        kind: "MutatingAdmissionPolicyBinding",
        lacks: "controllers' writes follow none",
        by_schema: false,
        validate: admission_policies::binding,
        columns: stored_columns::POLICY_BINDING,
        filled: BINDING,
        ..EXTENSION
    },
    BuiltIn {
        group: ADMISSION,
        plural: "mutatingwebhookconfigurations",
        kind: "MutatingWebhookConfiguration",
        lacks: "controllers' writes call none",
        columns: stored_columns::WEBHOOKS,
        defaults: |object| by_schema::fill(object, "/webhooks/*/reinvocationPolicy", "\"Never\""),
        filled: WEBHOOKS,
        by_schema: false,
        validate: webhook_configurations::errors,
        ..EXTENSION
    },
    BuiltIn {
        group: ADMISSION,
        plural: "validatingadmissionpolicies",
        kind: "ValidatingAdmissionPolicy",
        lacks: "controllers' writes follow none",
        status: true,
        by_schema: false,
        validate: admission_policies::validating,
        columns: stored_columns::VALIDATING_POLICY,
        filled: POLICY,
        ..EXTENSION
    },
    BuiltIn {
        group: ADMISSION,
        plural: "validatingadmissionpolicybindings",
        kind: "ValidatingAdmissionPolicyBinding",
        lacks: "controllers' writes follow none",
        by_schema: false,
        validate: admission_policies::validating_binding,
        columns: stored_columns::POLICY_BINDING,
        filled: BINDING,
        ..EXTENSION
    },
    BuiltIn {
        group: ADMISSION,
        plural: "validatingwebhookconfigurations",
        kind: "ValidatingWebhookConfiguration",
        lacks: "controllers' writes call none",
        columns: stored_columns::WEBHOOKS,
        filled: WEBHOOKS,
        by_schema: false,
        validate: webhook_configurations::errors,
        ..EXTENSION
    },
    BuiltIn {
        group: "apiextensions.k8s.io",
        plural: "customresourcedefinitions",
        kind: "CustomResourceDefinition",
        short_names: &["crd", "crds"],
        categories: &["api-extensions"],
        namespaced: false,
        status: true,
        generation: true,
        columns: stored_columns::CREATED_AT,
        defaults: crd::set_defaults,
        to_stored: crd::to_stored,
        filled: &[("/status/conditions", "null")],
        validate: crd::errors,
        ..PLAIN
    },
    BuiltIn {
        group: "scheduling.k8s.io",
        plural: "priorityclasses",
        kind: "PriorityClass",
        lacks: "no Pod is preempted",
        short_names: &["pc"],
        generation: true,
        columns: stored_columns::PRIORITY_CLASS,
        filled: &[("/preemptionPolicy", "\"PreemptLowerPriority\"")],
        fixed: &[("/preemptionPolicy", IMMUTABLE)],
        validate: validation::priority_class,
        ..CLUSTER
    },
    BuiltIn {
        group: "coordination.k8s.io",
        plural: "leases",
        kind: "Lease",
        columns: printer_columns::LEASE,
        defaults: defaults::lease,
        validate: validation::lease,
        ..PLAIN
    },
    BuiltIn {
        group: "node.k8s.io",
        plural: "runtimeclasses",
        kind: "RuntimeClass",
        columns: stored_columns::RUNTIME_CLASS,
        fixed: &[("/handler", IMMUTABLE)],
        ..CLUSTER
    },
    BuiltIn {
        group: "discovery.k8s.io",
        plural: "endpointslices",
        kind: "EndpointSlice",
        generation: true,
        columns: stored_columns::ENDPOINT_SLICE,
        defaults: endpoints::drop_topology,
        filled: &[
            ("/endpoints", "null"),
            ("/ports", "null"),
            ("/ports/*/name", "\"\""),
            ("/ports/*/protocol", "\"TCP\""),
        ],
        fixed: &[("/addressType", IMMUTABLE)],
        validate: endpoints::endpoint_slice,
        ..PLAIN
    },
    BuiltIn {
        group: "resource.k8s.io",
        plural: "deviceclasses",
        kind: "DeviceClass",
        lacks: "no device is allocated",
        generation: true,
        ..CLUSTER
    },
    BuiltIn {
        group: "resource.k8s.io",
        plural: "resourceclaims",
        kind: "ResourceClaim",
        lacks: "no device is allocated",
        status: true,
        columns: stored_columns::RESOURCE_CLAIM,
        defaults: |object| defaults::device_requests(&mut object["spec"]),
        fixed: &[("/spec", IMMUTABLE)],
        ..STORED
    },
    BuiltIn {
        group: "resource.k8s.io",
        plural: "resourceclaimtemplates",
        kind: "ResourceClaimTemplate",
        lacks: "no device is allocated",
        defaults: |object| defaults::device_requests(&mut object["spec"]["spec"]),
        fixed: &[("/spec", IMMUTABLE)],
        ..STORED
    },
    BuiltIn {
        group: "resource.k8s.io",
        plural: "resourceslices",
        kind: "ResourceSlice",
        lacks: "no device is allocated",
        generation: true,
        fields: &["spec.nodeName", "spec.driver"],
        columns: stored_columns::RESOURCE_SLICE,
        fixed: &[("/spec/driver", IMMUTABLE), ("/spec/pool/name", IMMUTABLE), ("/spec/nodeName", IMMUTABLE)],
        ..CLUSTER
    },
    BuiltIn {
        group: "flowcontrol.apiserver.k8s.io",
        plural: "flowschemas",
        kind: "FlowSchema",
        lacks: "requests are not limited",
        status: true,
        generation: true,
        columns: stored_columns::FLOW_SCHEMA,
        filled: &[("/spec/matchingPrecedence", "1000")],
        ..CLUSTER
    },
    BuiltIn {
        group: "flowcontrol.apiserver.k8s.io",
        plural: "prioritylevelconfigurations",
        kind: "PriorityLevelConfiguration",
        lacks: "requests are not limited",
        status: true,
        generation: true,
        columns: stored_columns::PRIORITY_LEVEL,
        filled: &[
            ("/spec/exempt/nominalConcurrencyShares", "0"),
            ("/spec/exempt/lendablePercent", "0"),
            ("/spec/limited/nominalConcurrencyShares", "30"),
            ("/spec/limited/lendablePercent", "0"),
            ("/spec/limited/limitResponse/queuing/handSize", "8"),
            ("/spec/limited/limitResponse/queuing/queues", "64"),
            ("/spec/limited/limitResponse/queuing/queueLengthLimit", "50"),
        ],
        ..CLUSTER
    },
];

const RBAC: &str = "rbac.authorization.k8s.io";
const ADMISSION: &str = "admissionregistration.k8s.io";

/// An entry of the configuration of admission.
const EXTENSION: BuiltIn = BuiltIn { categories: &["api-extensions"], generation: true, ..CLUSTER };

/// The defaults of an admission policy.
const POLICY: &[(&str, &str)] = &[
    ("/spec/failurePolicy", "\"Fail\""),
    ("/spec/matchConstraints/matchPolicy", "\"Equivalent\""),
    ("/spec/matchConstraints/namespaceSelector", "{}"),
    ("/spec/matchConstraints/objectSelector", "{}"),
    ("/spec/matchConstraints/resourceRules/*/scope", "\"*\""),
    ("/spec/matchConstraints/excludeResourceRules/*/scope", "\"*\""),
];

const BINDING: &[(&str, &str)] = &[
    ("/spec/matchResources/matchPolicy", "\"Equivalent\""),
    ("/spec/matchResources/namespaceSelector", "{}"),
    ("/spec/matchResources/objectSelector", "{}"),
    ("/spec/matchResources/resourceRules/*/scope", "\"*\""),
    ("/spec/matchResources/excludeResourceRules/*/scope", "\"*\""),
];

const WEBHOOKS: &[(&str, &str)] = &[
    ("/webhooks/*/clientConfig/service/port", "443"),
    ("/webhooks/*/rules/*/scope", "\"*\""),
    ("/webhooks/*/failurePolicy", "\"Fail\""),
    ("/webhooks/*/matchPolicy", "\"Equivalent\""),
    ("/webhooks/*/namespaceSelector", "{}"),
    ("/webhooks/*/objectSelector", "{}"),
    ("/webhooks/*/timeoutSeconds", "10"),
];
