//! Who may do what: the rules of a Role, held against a request.
//!
//! ```json
//! {"apiGroups": ["apps"], "resources": ["deployments", "deployments/scale"], "verbs": ["get", "patch"]}
//! ```
//!
//! There are no Roles and no bindings here: rules are given to a user, by name, and whoever has none may do everything.

use serde::Deserialize;
use serde_json::{Map, Value};

use super::{
    kinds::resource_name,
    refusal::Refusal,
    request::{Path, Request},
};

/// Who sends no token. Known, but allowed next to nothing.
const ANONYMOUS: &str = "system:anonymous";

/// What everybody may GET: `system:public-info-viewer`.
const PUBLIC: [&str; 4] = ["/healthz", "/livez", "/readyz", "/version"];

/// What everybody who is known may GET, with all below it: `system:discovery`.
const DISCOVERY: [&str; 3] = ["/api", "/apis", "/openapi"];

/// One rule, as a Role has it. `*` stands for all.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Rule {
    /// Empty text: the core group.
    pub api_groups: Vec<String>,
    /// `deployments`, or `deployments/status`.
    pub resources: Vec<String>,
    /// Empty: any name.
    pub resource_names: Vec<String>,
    /// `get`, `list`, `watch`, `create`, `update`, `patch`, `delete`, `deletecollection`.
    pub verbs: Vec<String>,
    /// Paths that are no objects: `/metrics`.
    #[serde(rename = "nonResourceURLs")]
    pub non_resource_urls: Vec<String>,
    /// Where this holds: what a RoleBinding says by being somewhere. `None`: everywhere.
    #[serde(skip)]
    pub namespace: Option<String>,
}

fn has(list: &[String], wanted: &str) -> bool {
    list.iter().any(|one| one == "*" || one == wanted)
}

/// What a request wants to do with an object.
struct Wish {
    verb: String,
    group: String,
    plural: String,
    subresource: Option<String>,
    name: Option<String>,
    namespace: Option<String>,
}

impl Wish {
    fn new(request: &Request, path: Path) -> Wish {
        let Path { group, plural, name, subresource, mut namespace, .. } = path;
        let verb = verb(request, name.is_some()).to_owned();
        // A namespace is in itself.
        if group.is_empty() && plural == "namespaces" && name.is_some() {
            namespace.clone_from(&name);
        }
        // Who asks for one by a selector asks for that one.
        let selected =
            || request.query.text("fieldSelector").strip_prefix("metadata.name=").map(str::to_owned);
        let name = name.or_else(selected).filter(|_| verb != "create");
        Wish { verb, group, plural, subresource, name, namespace }
    }

    /// The resource as rules name it.
    fn resource(&self) -> String {
        match &self.subresource {
            Some(subresource) => format!("{}/{subresource}", self.plural),
            None => self.plural.clone(),
        }
    }

    fn is_granted_by(&self, rule: &Rule) -> bool {
        let any_plural = self.subresource.as_ref().map(|subresource| format!("*/{subresource}"));
        let named = |name: &String| rule.resource_names.contains(name);
        has(&rule.verbs, &self.verb)
            && has(&rule.api_groups, &self.group)
            && (has(&rule.resources, &self.resource())
                || any_plural.is_some_and(|any| rule.resources.contains(&any)))
            && (rule.resource_names.is_empty() || self.name.as_ref().is_some_and(named))
            && rule.namespace.as_ref().is_none_or(|namespace| self.namespace.as_ref() == Some(namespace))
    }

    fn refused(&self, user: &str) -> Refusal {
        let name = self.name.as_ref().map(|name| format!(" {name:?}")).unwrap_or_default();
        let place = match &self.namespace {
            Some(namespace) => format!("in the namespace {namespace:?}"),
            None => "at the cluster scope".to_owned(),
        };
        let message = format!(
            "{}{name} is forbidden: User {user:?} cannot {} resource {:?} in API group {:?} {place}",
            resource_name(&self.plural, &self.group),
            self.verb,
            self.resource(),
            self.group
        );
        let mut details = Map::new();
        for (field, value) in
            [("name", self.name.as_deref()), ("group", Some(&*self.group)), ("kind", Some(&*self.plural))]
        {
            if let Some(value) = value.filter(|value| !value.is_empty()) {
                details.insert(field.to_owned(), value.into());
            }
        }
        Refusal::not_allowed(message, details.into())
    }
}

/// What RBAC calls a method.
fn verb(request: &Request, of_one: bool) -> &'static str {
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

/// Whether a user may do what the request asks for. `None`: nobody who is known; and rules that there are not allow all.
pub(super) fn check(request: &Request, user: Option<&str>, rules: Option<&[Rule]>) -> Result<(), Refusal> {
    let (rules, name) = match (user, rules) {
        (Some(_), None) => return Ok(()),
        (Some(user), Some(rules)) => (rules, user),
        (None, _) => ([].as_slice(), ANONYMOUS),
    };
    if let Some(path) = Path::parse(&request.path) {
        let wish = Wish::new(request, path);
        return if rules.iter().any(|rule| wish.is_granted_by(rule)) {
            Ok(())
        } else {
            Err(wish.refused(name))
        };
    }
    let (path, method) = (request.path.as_str(), request.method.as_str().to_lowercase());
    let is_below =
        |above: &&str| path == *above || path.strip_prefix(above).is_some_and(|rest| rest.starts_with('/'));
    let granted = |rule: &Rule| has(&rule.non_resource_urls, path) && has(&rule.verbs, &method);
    let reads = method == "get" || method == "head";
    let is_free = PUBLIC.contains(&path) || (user.is_some() && DISCOVERY.iter().any(is_below));
    if (reads && is_free) || rules.iter().any(granted) {
        return Ok(());
    }
    let message = format!("forbidden: User {name:?} cannot {method} path {path:?}");
    Err(Refusal::not_allowed(message, Value::Object(Map::new())))
}
