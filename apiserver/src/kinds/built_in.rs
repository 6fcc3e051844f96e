//! The table of built-in kinds: one entry for each kind, with its fields for selectors. It names the functions of
//! `defaults.rs`, `validation.rs` and `printer_columns.rs`.

use serde_json::Value;

use crate::{
    kinds::{
        crd, defaults, events, jobs, pods,
        printer_columns::{self, PrinterColumns},
        stateful_sets, validation,
    },
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
    pub(crate) validate: fn(&Value, Option<&Value>) -> Vec<Cause>,
    /// Converts the stored form to this version.
    pub(crate) convert: fn(&mut Value),
    /// The warning with each answer.
    pub(crate) deprecation: Option<&'static str>,
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
    validate: |_, _| Vec::new(),
    convert: |_| {},
    deprecation: None,
};

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
        validate: validation::new_event,
        convert: events::to_new,
        ..PLAIN
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
        group: "apiextensions.k8s.io",
        plural: "customresourcedefinitions",
        kind: "CustomResourceDefinition",
        short_names: &["crd", "crds"],
        categories: &["api-extensions"],
        namespaced: false,
        status: true,
        generation: true,
        columns: printer_columns::CUSTOM_RESOURCE_DEFINITION,
        defaults: crd::set_defaults,
        validate: crd::errors,
        ..PLAIN
    },
    // `kubectl apply --prune` lists these kinds. They are stored as they are sent: nothing acts on them.
    BuiltIn {
        plural: "persistentvolumes",
        kind: "PersistentVolume",
        short_names: &["pv"],
        namespaced: false,
        status: true,
        ..PLAIN
    },
    BuiltIn {
        plural: "replicationcontrollers",
        kind: "ReplicationController",
        short_names: &["rc"],
        categories: &["all"],
        status: true,
        generation: true,
        ..PLAIN
    },
    BuiltIn {
        group: "apps",
        plural: "daemonsets",
        kind: "DaemonSet",
        short_names: &["ds"],
        categories: &["all"],
        status: true,
        generation: true,
        ..PLAIN
    },
    BuiltIn {
        group: "networking.k8s.io",
        plural: "ingresses",
        kind: "Ingress",
        short_names: &["ing"],
        status: true,
        generation: true,
        ..PLAIN
    },
];
