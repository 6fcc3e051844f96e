//! Everything to install for an operator: its Namespace, definitions, account, roles, Deployment and PodDisruptionBudget, as YAML for
//! `kubectl apply -f -`.
//!
//! The objects that look the same for each operator come from `base`, where they are explained. The roles follow from what
//! the controllers do ([`rbac`]).

use listwatch_formats::names::namespaces;
use listwatch_yaml::write;
use serde_json::{Value, json};

use crate::rbac::{self, Permission};

const NAMESPACE: &str = include_str!("../base/namespace.yaml");
const DEPLOYMENT: &str = include_str!("../base/deployment.yaml");
const DISRUPTION_BUDGET: &str = include_str!("../base/disruption-budget.yaml");
const METRICS_SERVICE: &str = include_str!("../base/monitoring/service.yaml");
const SERVICE_MONITOR: &str = include_str!("../base/monitoring/service-monitor.yaml");
const ALERTS: &str = include_str!("../base/monitoring/alerts.yaml");
const NETWORK_POLICY: &str = include_str!("../base/network-policy/network-policy.yaml");
/// The default number of Pods.
pub const REPLICAS: u32 = 2;
/// Of the container, where the webhooks are served.
pub const WEBHOOK_PORT: u16 = 9443;

/// Of a write for which the API server calls the webhooks: an object that is being deleted can lose its finalizers, but a change of its spec
/// is judged, because a cleanup may depend on it. A kind without a spec is not judged then.
const NOT_DELETED: &str = "request.operation == 'CREATE' || !has(oldObject.metadata.deletionTimestamp) || \
    has(object.spec) && !(has(oldObject.spec) && object.spec == oldObject.spec)";
/// By which the selectors find the Pods: <https://kubernetes.io/docs/concepts/overview/working-with-objects/common-labels/>.
const NAME_LABEL: &str = "app.kubernetes.io/name";
const RBAC_VERSION: &str = "rbac.authorization.k8s.io/v1";

/// What an installation says that the code does not.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct InstallationFlags {
    /// Image of its Pods. Default: its name, with a tag
    #[arg(long, value_name = "IMAGE")]
    pub image: Option<String>,
    /// Namespace of the operator. Default: NAME-system
    #[arg(short, long, value_name = "NAME")]
    pub namespace: Option<String>,
    /// Number of Pods. One of them leads. Default: 2
    #[arg(long, value_name = "N")]
    pub replicas: Option<u32>,
    /// Namespace to watch; may be repeated, or a list with commas. Default: all namespaces
    #[arg(long = "watch-namespace", value_name = "NAME", value_delimiter = ',')]
    pub watched: Vec<String>,
    /// Add a Service for the metrics, and a ServiceMonitor and alerts for the Prometheus Operator
    #[arg(long = "service-monitor")]
    pub has_service_monitor: bool,
    /// Add a NetworkPolicy
    #[arg(long = "network-policy")]
    pub has_network_policy: bool,
}

impl InstallationFlags {
    /// The same flags, if their namespaces have valid names.
    pub fn checked(self) -> Result<InstallationFlags, String> {
        namespaces(self.namespace.iter().cloned().collect(), "--namespace")?;
        Ok(InstallationFlags { watched: namespaces(self.watched, "--watch-namespace")?, ..self })
    }
}

/// What is installed, and where.
#[derive(Clone, Debug)]
pub struct Installation {
    /// Of the Deployment, the account and the roles: `mywebserver-operator`.
    pub name: String,
    /// The namespace of the operator.
    pub namespace: String,
    /// The image of its Pods.
    pub image: String,
    /// The number of its Pods. One of them leads.
    pub replicas: u32,
    /// The arguments of its container.
    pub args: Vec<String>,
    /// The environment of its container, besides `POD_NAME`.
    pub variables: Vec<(String, String)>,
    /// The CustomResourceDefinitions.
    pub definitions: Vec<Value>,
    /// The roles of users of its kinds: [`roles_of_users`].
    pub roles_of_users: Vec<Value>,
    /// What it must be allowed to do.
    pub permissions: Vec<Permission>,
    /// With a Service for the metrics, and a ServiceMonitor and alerts for the Prometheus Operator.
    pub has_service_monitor: bool,
    /// With a NetworkPolicy.
    pub has_network_policy: bool,
    /// Its webhooks.
    pub webhooks: Option<WebhookInstallation>,
}

/// What is installed for the webhooks of an operator.
#[derive(Clone, Debug)]
pub struct WebhookInstallation {
    /// Of the Service and of the configurations: `sites-webhook`. The operator itself makes a Secret of this name.
    pub name: String,
    /// The `webhooks` of the ValidatingWebhookConfiguration; their `clientConfig.service` has the `path` alone.
    pub validating: Vec<Value>,
    /// The `webhooks` of the MutatingWebhookConfiguration.
    pub mutating: Vec<Value>,
    /// The names of the definitions whose objects are converted.
    pub converted: Vec<String>,
}

impl Installation {
    /// The objects as YAML, those first that others need.
    #[must_use]
    pub fn yaml(&self) -> String {
        documents(&self.objects())
    }

    /// The objects, those first that others need. The configurations of the webhooks come last: they may be asked about the objects before them.
    #[must_use]
    pub fn objects(&self) -> Vec<Value> {
        let mut namespace = read(NAMESPACE);
        namespace["metadata"]["name"] = self.namespace.as_str().into();
        label(&mut namespace, &self.name);
        let mut objects = vec![namespace];
        objects.extend(self.definitions.iter().map(|definition| self.converting(definition)));
        objects.extend(self.roles_of_users.iter().cloned());
        let mut own =
            vec![json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": self.name}})];
        let roles = rbac::objects(&self.name, &self.permissions);
        own.extend(roles.iter().map(|role| self.binding(role)));
        own.extend(roles);
        own.push(self.deployment());
        own.push(self.of_base(DISRUPTION_BUDGET));
        if self.has_service_monitor {
            own.extend([METRICS_SERVICE, SERVICE_MONITOR].map(|yaml| self.of_base(yaml)));
            let service = format!("{}-metrics", self.name);
            let alerts = ALERTS.replace("NAMESPACE", &self.namespace).replace("SERVICE", &service);
            own.push(self.of_base(&alerts));
        }
        if self.has_network_policy {
            let mut policy = self.of_base(NETWORK_POLICY);
            if self.webhooks.is_some()
                && let Some(ports) = policy["spec"]["ingress"][0]["ports"].as_array_mut()
            {
                ports.push(json!({"port": "webhook"}));
            }
            own.push(policy);
        }
        own.extend(self.webhooks.iter().flat_map(|webhooks| self.configurations(webhooks)));
        own.iter_mut().for_each(|object| self.adapt(object));
        objects.extend(own);
        objects
    }

    fn binding(&self, role: &Value) -> Value {
        let metadata = &role["metadata"];
        json!({
            "apiVersion": RBAC_VERSION,
            "kind": format!("{}Binding", role["kind"].as_str().unwrap_or_default()),
            "metadata": metadata,
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": role["kind"], "name": metadata["name"]},
            "subjects": [{"kind": "ServiceAccount", "name": self.name, "namespace": self.namespace}],
        })
    }

    fn deployment(&self) -> Value {
        let mut deployment = self.of_base(DEPLOYMENT);
        deployment["spec"]["replicas"] = self.replicas.into();
        deployment["spec"]["selector"] = json!({"matchLabels": {}});
        let template = &mut deployment["spec"]["template"];
        template["metadata"]["labels"] = json!({NAME_LABEL: self.name});
        template["spec"]["serviceAccountName"] = self.name.as_str().into();
        let container = &mut template["spec"]["containers"][0];
        container["image"] = self.image.as_str().into();
        container["args"] = json!(self.args);
        let pod_name = container["env"][0].take();
        let variables = self.variables.iter().map(|(name, value)| json!({"name": name, "value": value}));
        container["env"] = [pod_name].into_iter().chain(variables).collect();
        if self.webhooks.is_some()
            && let Some(ports) = container["ports"].as_array_mut()
        {
            ports.push(json!({"name": "webhook", "containerPort": WEBHOOK_PORT}));
        }
        deployment
    }

    /// The Service of the webhooks, and the objects by which the API server calls it.
    fn configurations(&self, webhooks: &WebhookInstallation) -> Vec<Value> {
        let service = json!({
            "apiVersion": "v1", "kind": "Service", "metadata": {"name": webhooks.name},
            "spec": {"selector": {}, "ports": [{"name": "webhook", "port": 443, "targetPort": "webhook"}]},
        });
        // No write of the operator itself, or at the end of an object, waits for the operator.
        let user = format!("system:serviceaccount:{}:{}", self.namespace, self.name);
        let conditions = json!([
            {"name": "not-deleted", "expression": NOT_DELETED},
            {"name": "not-by-the-operator", "expression": format!("request.userInfo.username != '{user}'")},
        ]);
        let namespaces = json!({"matchExpressions": [{
            "key": "kubernetes.io/metadata.name", "operator": "NotIn", "values": ["kube-system", self.namespace],
        }]});
        let configuration = |kind: &str, hooks: &[Value]| {
            let mut hooks = hooks.to_vec();
            for hook in &mut hooks {
                self.call(&mut hook["clientConfig"], &webhooks.name);
                hook["matchConditions"] = conditions.clone();
                hook["namespaceSelector"] = namespaces.clone();
            }
            json!({
                "apiVersion": "admissionregistration.k8s.io/v1", "kind": kind, "metadata": {"name": webhooks.name},
                "webhooks": hooks,
            })
        };
        let both = [
            ("MutatingWebhookConfiguration", &webhooks.mutating),
            ("ValidatingWebhookConfiguration", &webhooks.validating),
        ];
        let used = both.into_iter().filter(|(_, hooks)| !hooks.is_empty());
        [service].into_iter().chain(used.map(|(kind, hooks)| configuration(kind, hooks))).collect()
    }

    /// A definition, with the conversion of its objects if a webhook does it.
    pub(crate) fn converting(&self, definition: &Value) -> Value {
        let mut definition = definition.clone();
        if let Some(webhooks) = &self.webhooks
            && webhooks.converted.iter().any(|name| definition["metadata"]["name"] == **name)
        {
            let mut call = json!({"service": {"path": "/convert"}});
            self.call(&mut call, &webhooks.name);
            let webhook = json!({"clientConfig": call, "conversionReviewVersions": ["v1"]});
            definition["spec"]["conversion"] = json!({"strategy": "Webhook", "webhook": webhook});
        }
        definition
    }

    /// Completes whom the API server calls.
    fn call(&self, client_config: &mut Value, service: &str) {
        client_config["service"]["namespace"] = self.namespace.as_str().into();
        client_config["service"]["name"] = service.into();
    }

    /// An object that all operators have, named after this one.
    fn of_base(&self, yaml: &str) -> Value {
        let mut object = read(yaml);
        let name =
            object["metadata"]["name"].as_str().unwrap_or_default().replacen("operator", &self.name, 1);
        object["metadata"]["name"] = name.into();
        object
    }

    /// Puts an object of the operator into its namespace, and completes its selectors.
    fn adapt(&self, object: &mut Value) {
        let has_none = |kind: &str| kind.starts_with("Cluster") || kind.ends_with("WebhookConfiguration");
        let is_in_no_namespace = object["kind"].as_str().is_some_and(has_none);
        if !is_in_no_namespace && object["metadata"]["namespace"].is_null() {
            object["metadata"]["namespace"] = self.namespace.as_str().into();
        }
        label(object, &self.name);
        self.select(object);
    }

    /// Adds the label to each `matchLabels`, and to each empty `selector`.
    fn select(&self, value: &mut Value) {
        match value {
            Value::Object(fields) => {
                for (field, value) in fields {
                    match value.as_object_mut() {
                        Some(labels)
                            if field == "matchLabels" || field == "selector" && labels.is_empty() =>
                        {
                            labels.insert(NAME_LABEL.to_owned(), self.name.as_str().into());
                        }
                        _ => self.select(value),
                    }
                }
            }
            Value::Array(items) => items.iter_mut().for_each(|item| self.select(item)),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
        }
    }
}

/// Several objects as YAML.
#[must_use]
pub fn documents(objects: &[Value]) -> String {
    objects.iter().map(write).collect::<Vec<_>>().join("---\n")
}

fn read(yaml: &str) -> Value {
    listwatch_yaml::read(yaml).expect("the files of base are YAML")
}

fn label(object: &mut Value, name: &str) {
    object["metadata"]["labels"][NAME_LABEL] = name.into();
}

/// The roles for users of a kind, with a prefix of their names: another kind or a built-in role may have the same name, such as
/// `cluster-admin`. Each is a part of the built-in role `admin`, `edit` or `view`:
/// <https://kubernetes.io/docs/reference/access-authn-authz/rbac/#aggregated-clusterroles>.
#[must_use]
pub fn roles_of_users(definition: &Value, prefix: &str) -> Vec<Value> {
    const READ: [&str; 3] = ["get", "list", "watch"];
    const WRITE: [&str; 5] = ["create", "update", "patch", "delete", "deletecollection"];
    let spec = &definition["spec"];
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let (group, plural) = (text(&spec["group"]), text(&spec["names"]["plural"]));
    let names = &spec["names"];
    let singular =
        names["singular"].as_str().map_or_else(|| text(&names["kind"]).to_lowercase(), str::to_owned);
    let versions = spec["versions"].as_array().map_or(&[][..], Vec::as_slice);
    let has_scale = versions.iter().any(|version| !version["subresources"]["scale"].is_null());
    let role = |name: &str, aggregate_to: &str, verbs: &[&str], scale: &[&str], more: &[(&str, &[&str])]| {
        let rule = |part: &str, verbs: &[&str]| json!({"apiGroups": [group], "resources": [format!("{plural}{part}")], "verbs": verbs});
        let mut rules = vec![rule("", verbs), rule("/status", &["get"])];
        rules.extend(has_scale.then(|| rule("/scale", scale)));
        rules.extend(more.iter().map(|(part, verbs)| rule(part, verbs)));
        let labels = json!({format!("rbac.authorization.k8s.io/aggregate-to-{aggregate_to}"): "true"});
        let metadata = json!({"name": format!("{prefix}{singular}-{name}"), "labels": labels});
        json!({"apiVersion": RBAC_VERSION, "kind": "ClusterRole", "metadata": metadata, "rules": rules})
    };
    let all = [&READ[..], &WRITE].concat();
    let scale = ["get", "update", "patch"];
    vec![
        role("admin", "admin", &all, &scale, &[("/finalizers", &["update"])]),
        role("editor", "edit", &all, &scale, &[]),
        role("viewer", "view", &READ, &["get"], &[]),
    ]
}
