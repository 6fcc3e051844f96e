//! Authorization: checks a request against the rules of its user, as RBAC does.
//!
//! ```json
//! {"apiGroups": ["apps"], "resources": ["deployments", "deployments/scale"], "verbs": ["get", "patch"]}
//! ```
//!
//! A user has the rules that the test has given it, and the rules of its Roles: see `bindings.rs`. By default, a user without
//! rules from the test has full access.

mod bindings;

pub(crate) use bindings::{Granted, Permissions, Subject, granted, stored};

use serde::Deserialize;
use serde_json::{Value, json};

use crate::{
    kinds::field_checks::text,
    request::{Request, ResourcePath},
    status::{StatusError, details, qualified},
};

/// The user of [`ApiServer::token`](crate::ApiServer::token).
pub(crate) const ADMIN: &str = "admin";

/// The user of requests without a token. It has access to almost nothing.
const ANONYMOUS: &str = "system:anonymous";

/// Paths that every user may GET: `system:public-info-viewer`.
const PUBLIC: [&str; 5] = ["/healthz", "/livez", "/readyz", "/version", "/version/"];

/// Paths that every authenticated user may GET, with all paths below them: `system:discovery`.
const DISCOVERY: [&str; 3] = ["/api", "/apis", "/openapi"];

/// One rule, as in a Role. `*` matches everything.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct Rule {
    /// Empty text: the core group.
    pub api_groups: Vec<String>,
    /// `deployments`, or `deployments/status`.
    pub resources: Vec<String>,
    /// Empty: any name.
    pub resource_names: Vec<String>,
    /// `get`, `list`, `watch`, `create`, `update`, `patch`, `delete`, `deletecollection`.
    pub verbs: Vec<String>,
    /// Paths that are not resources: `/metrics`, or `/debug/*` for all paths below `/debug`.
    #[serde(rename = "nonResourceURLs")]
    pub non_resource_urls: Vec<String>,
    /// The namespace in which this applies, as with a RoleBinding. `None`: all namespaces.
    #[serde(skip)]
    pub namespace: Option<String>,
}

impl Rule {
    /// Whether the rule allows a request for a path that is not a resource.
    fn allows_path(&self, path: &str, verb: &str) -> bool {
        self.has_path(path) && has(&self.verbs, verb)
    }

    fn has_path(&self, path: &str) -> bool {
        let is_below = |url: &String| url.strip_suffix('*').is_some_and(|start| path.starts_with(start));
        self.non_resource_urls.iter().any(|url| url == path || is_below(url))
    }
}

fn has(list: &[String], wanted: &str) -> bool {
    list.iter().any(|one| one == "*" || one == wanted)
}

/// The verb for which a request is checked.
#[derive(Clone, Copy)]
pub(crate) enum Verb {
    OfMethod,
    /// For an apply, or a PUT, that creates its object.
    Create,
}

/// The attributes of a request for a resource.
struct Attributes {
    verb: String,
    group: String,
    plural: String,
    subresource: Option<String>,
    name: Option<String>,
    namespace: Option<String>,
}

impl Attributes {
    fn new(request: &Request, path: ResourcePath, verb: Verb) -> Attributes {
        let ResourcePath { group, plural, name, subresource, mut namespace, .. } = path;
        let verb = match verb {
            Verb::OfMethod => verb_of_method(request, name.is_some()).to_owned(),
            Verb::Create => "create".to_owned(),
        };
        // The object of a Namespace counts as inside this namespace.
        if group.is_empty() && plural == "namespaces" && name.is_some() {
            namespace.clone_from(&name);
        }
        // A field selector for one name counts as a request for that name.
        let selected =
            || request.query.text("fieldSelector").strip_prefix("metadata.name=").map(str::to_owned);
        let name = name.or_else(|| selected().filter(|_| verb != "create"));
        Attributes { verb, group, plural, subresource, name, namespace }
    }

    /// The `resourceAttributes` of an access review.
    fn of_review(review: &Value) -> Attributes {
        let text = |field: &str| review[field].as_str().unwrap_or_default().to_owned();
        let some = |field: &str| Some(text(field)).filter(|text| !text.is_empty());
        Attributes {
            verb: text("verb"),
            group: text("group"),
            plural: text("resource"),
            subresource: some("subresource"),
            name: some("name"),
            namespace: some("namespace"),
        }
    }

    /// The resource as in rules: `deployments/status`.
    fn resource(&self) -> String {
        match &self.subresource {
            Some(subresource) => format!("{}/{subresource}", self.plural),
            None => self.plural.clone(),
        }
    }

    fn is_allowed_by(&self, rule: &Rule) -> bool {
        let any_plural = self.subresource.as_ref().map(|subresource| format!("*/{subresource}"));
        let named = |name: &String| rule.resource_names.contains(name);
        has(&rule.verbs, &self.verb)
            && has(&rule.api_groups, &self.group)
            && (has(&rule.resources, &self.resource())
                || any_plural.is_some_and(|any| rule.resources.contains(&any)))
            && (rule.resource_names.is_empty() || self.name.as_ref().is_some_and(named))
            && rule.namespace.as_ref().is_none_or(|namespace| self.namespace.as_ref() == Some(namespace))
    }

    fn refused(&self, user: &str) -> StatusError {
        let name = self.name.as_ref().map(|name| format!(" {name:?}")).unwrap_or_default();
        let place = match &self.namespace {
            Some(namespace) => format!("in the namespace {namespace:?}"),
            None => "at the cluster scope".to_owned(),
        };
        let message = format!(
            "{}{name} is forbidden: User {user:?} cannot {} resource {:?} in API group {:?} {place}",
            qualified(&self.plural, &self.group),
            self.verb,
            self.resource(),
            self.group
        );
        let name = self.name.as_deref().unwrap_or_default();
        StatusError::not_allowed(message, details(name, &self.group, &self.plural))
    }
}

/// The RBAC verb of a request.
fn verb_of_method(request: &Request, of_one: bool) -> &'static str {
    match (request.method.as_str(), of_one) {
        ("GET" | "HEAD", true) => "get",
        ("GET" | "HEAD", false) if request.query.flag("watch") == Some(true) => "watch",
        ("GET" | "HEAD", false) => "list",
        ("POST", _) => "create",
        ("PUT", _) => "update",
        ("PATCH", _) => "patch",
        ("DELETE", true) => "delete",
        ("DELETE", false) => "deletecollection",
        (_, _) => "",
    }
}

/// The user that a request impersonates with the header `Impersonate-User`. Only the name counts: there are no groups here.
pub(crate) fn impersonated(
    request: &Request,
    user: Option<&str>,
    rules: Option<&[Rule]>,
) -> Result<Option<String>, StatusError> {
    let other = request.impersonated_user();
    if other.is_empty() {
        return Ok(None);
    }
    let (plural, namespace, name) = match other.split(':').collect::<Vec<_>>()[..] {
        ["system", "serviceaccount", namespace, name] => {
            ("serviceaccounts", Some(namespace.to_owned()), name)
        }
        _ => ("users", None, other),
    };
    let attributes = Attributes {
        verb: "impersonate".to_owned(),
        group: String::new(),
        plural: plural.to_owned(),
        subresource: None,
        name: Some(name.to_owned()),
        namespace,
    };
    match (user, rules) {
        (Some(_), None) => Ok(Some(other.to_owned())),
        (Some(_), Some(rules)) if rules.iter().any(|rule| attributes.is_allowed_by(rule)) => {
            Ok(Some(other.to_owned()))
        }
        // kube-apiserver 1.36 names the permission of constrained impersonation, which it would also accept. This server
        // does not accept it. See <https://www.kubernetes.dev/resources/keps/5284/>.
        (user, _) => {
            let mode = if plural == "users" { "user-info" } else { "serviceaccount" };
            let prefix = format!("impersonate-on:{mode}:");
            Err(refused(request, user.unwrap_or(ANONYMOUS), Verb::OfMethod, &prefix))
        }
    }
}

/// Checks whether a user may send the request. `user` is `None` without a token; `rules` is `None` for full access.
pub(crate) fn check(
    request: &Request,
    user: Option<&str>,
    rules: Option<&[Rule]>,
    verb: Verb,
) -> Result<(), StatusError> {
    let (rules, name) = match (user, rules) {
        (Some(_), None) => return Ok(()),
        (user, rules) => (rules.unwrap_or_default(), user.unwrap_or(ANONYMOUS)),
    };
    let is_allowed = match ResourcePath::parse(&request.path) {
        Some(path) => {
            let attributes = Attributes::new(request, path, verb);
            rules.iter().any(|rule| attributes.is_allowed_by(rule))
        }
        None => is_path_allowed(request, user, rules),
    };
    if is_allowed { Ok(()) } else { Err(refused(request, name, verb, "")) }
}

/// The `status` of an access review: whether a user with these rules may do this, and which binding allows it.
pub(crate) fn review(granted: Option<Vec<Granted>>, spec: &Value) -> Value {
    let Some(granted) = granted else { return json!({"allowed": true}) };
    let path = &spec["nonResourceAttributes"];
    let attributes = Attributes::of_review(&spec["resourceAttributes"]);
    let rule = granted.iter().find(|granted| match path.is_null() {
        true => attributes.is_allowed_by(&granted.rule),
        false => granted.rule.allows_path(text(&path["path"]), text(&path["verb"])),
    });
    match rule {
        Some(granted) if granted.by.is_empty() => json!({"allowed": true}),
        Some(granted) => json!({"allowed": true, "reason": granted.by}),
        None => json!({"allowed": false}),
    }
}

/// Whether a request for a path that is not a resource is allowed.
fn is_path_allowed(request: &Request, user: Option<&str>, rules: &[Rule]) -> bool {
    let (path, method) = (request.path.as_str(), request.method.as_str().to_lowercase());
    let is_below =
        |above: &&str| path == *above || path.strip_prefix(above).is_some_and(|rest| rest.starts_with('/'));
    let is_public = PUBLIC.contains(&path) || (user.is_some() && DISCOVERY.iter().any(is_below));
    (is_public && (method == "get" || method == "head"))
        || rules.iter().any(|rule| rule.allows_path(path, &method))
}

/// The error of a request that is not allowed. The prefix comes before its verb.
fn refused(request: &Request, user: &str, verb: Verb, prefix: &str) -> StatusError {
    if let Some(path) = ResourcePath::parse(&request.path) {
        let mut attributes = Attributes::new(request, path, verb);
        attributes.verb.insert_str(0, prefix);
        return attributes.refused(user);
    }
    let (path, method) = (&request.path, request.method.as_str().to_lowercase());
    let message = format!("forbidden: User {user:?} cannot {prefix}{method} path {path:?}");
    StatusError::not_allowed(message, json!({}))
}
