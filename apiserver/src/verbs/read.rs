//! Get and list: the version that an answer shows, and the pages of a list.
//!
//! | | no resourceVersion | `0` | N |
//! |---|---|---|---|
//! | whole list | now | now | now, but not before N |
//! | `limit` | now | now, and the limit is ignored | exactly N |
//! | `Exact` | refused | refused | exactly N |
//!
//! See <https://kubernetes.io/docs/reference/using-api/api-concepts/#semantics-for-get-and-list>.

use std::{borrow::Cow, sync::Arc};

use base64::{Engine, prelude::BASE64_URL_SAFE_NO_PAD};
use listwatch_formats::selector::Selector;
use serde_json::{Value, json};

use crate::{
    field_selector::FieldSelector,
    kinds::Kind,
    request::Query,
    status::{Cause, StatusError, invalid_json},
    storage::Storage,
};

/// Selects the objects of a collection: by namespace, name, labels and fields.
#[derive(Clone, Debug, Default)]
pub(crate) struct Filter {
    pub(crate) namespace: Option<String>,
    labels: Selector,
    fields: FieldSelector,
}

impl Filter {
    pub(crate) fn parse(query: &Query, kind: &Kind, namespace: Option<&str>) -> Result<Filter, StatusError> {
        Ok(Filter {
            namespace: namespace.map(str::to_owned),
            labels: Selector::parse(query.text("labelSelector")).map_err(StatusError::bad_request)?,
            fields: FieldSelector::parse(query.text("fieldSelector"), |path| kind.check_field(path))?,
        })
    }

    /// Whether the object under a key is selected.
    pub(crate) fn matches(&self, kind: &Kind, key: &str, object: &Value) -> bool {
        if let Some(namespace) = &self.namespace
            && key.split_once('/').is_none_or(|(of, _)| of != namespace)
        {
            return false;
        }
        if !self.labels.matches(&object["metadata"]["labels"]) {
            return false;
        }
        // A field can have a different name in this version than in storage.
        self.fields.is_empty() || kind.view(object).is_ok_and(|view| self.fields.matches(&view))
    }

    fn selects(&self) -> bool {
        !self.labels.is_empty() || !self.fields.is_empty()
    }
}

/// `resourceVersion` of a read.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Version {
    Unset,
    /// `0`: any version. The server answers with what it has.
    Any,
    Number(u64),
}

impl Version {
    pub(crate) fn parse(text: &str) -> Result<Version, String> {
        match text {
            "" => Ok(Version::Unset),
            "0" => Ok(Version::Any),
            text => match text.parse() {
                Ok(number) => Ok(Version::Number(number)),
                Err(_) => Err(format!("resourceVersion: Invalid value: {text:?}: invalid number {text:?}")),
            },
        }
    }

    /// The version that the server must have reached before it answers.
    pub(crate) fn at_least(self) -> u64 {
        match self {
            Version::Unset | Version::Any => 0,
            Version::Number(number) => number,
        }
    }
}

/// A list request, parsed and checked.
#[derive(Debug)]
pub(crate) struct List {
    filter: Filter,
    limit: usize,
    token: Option<Token>,
    pub(crate) version: Version,
    exact: bool,
    /// The version that the watch cache has, if it is behind.
    stale: Option<u64>,
}

/// One page.
pub(crate) struct Page {
    pub(crate) items: Vec<Arc<Value>>,
    pub(crate) revision: u64,
    pub(crate) token: String,
    pub(crate) remaining: Option<usize>,
}

/// The `continue` token: the key at which the next page starts, and the version of the list. -1 means the present.
#[derive(Debug, PartialEq, serde::Serialize, serde::Deserialize)]
struct Token {
    v: String,
    rv: i64,
    start: String,
}

impl Token {
    fn parse(text: &str) -> Result<Token, StatusError> {
        let refuse = |why: String| {
            StatusError::bad_request(format!("invalid continue token: continue key is not valid: {why}"))
        };
        let bytes = BASE64_URL_SAFE_NO_PAD
            .decode(text.trim_end_matches('='))
            .map_err(|error| refuse(error.to_string()))?;
        let token: Token = serde_json::from_slice(&bytes).map_err(|error| refuse(invalid_json(&error)))?;
        if token.v != "meta.k8s.io/v1" || token.rv == 0 {
            return Err(refuse(format!("server does not recognize this encoded version {}", token.v)));
        }
        // The key must stay within the collection.
        if token.start.trim_start_matches('/').split('/').any(|part| ["", ".", ".."].contains(&part)) {
            return Err(refuse(token.start));
        }
        Ok(token)
    }

    /// The next page starts just after the last key of this one.
    fn after(key: &str, rv: i64) -> Token {
        Token { v: "meta.k8s.io/v1".to_owned(), rv, start: format!("{key}\u{0}") }
    }

    fn encode(&self) -> String {
        let json = serde_json::to_vec(self).expect("two strings and a number");
        BASE64_URL_SAFE_NO_PAD.encode(json)
    }
}

/// The 422 for invalid ListOptions, for lists and watches.
pub(crate) fn invalid_options(causes: Vec<Cause>) -> StatusError {
    StatusError::invalid_options("ListOptions", causes)
}

impl List {
    pub(crate) fn parse(query: &Query, kind: &Kind, namespace: Option<&str>) -> Result<List, StatusError> {
        let mut limit = query.number("limit")?.map_or(0, |limit| usize::try_from(limit).unwrap_or(0));
        query.number("timeoutSeconds")?;
        let filter = Filter::parse(query, kind, namespace)?;
        check_match(query)?;
        let text = query.text("resourceVersion");
        let version = Version::parse(text)
            .map_err(|why| StatusError::bad_request(format!("invalid resource version: {why}")))?;
        let token = match query.text("continue") {
            "" => None,
            _ if matches!(version, Version::Number(_)) => {
                let text = "specifying resource version is not allowed when using continue";
                return Err(StatusError::bad_request(text));
            }
            token => Some(Token::parse(token)?),
        };
        // kube-apiserver answers version 0 from the watch cache, which ignores the limit.
        if version == Version::Any {
            limit = 0;
        }
        let exact = match query.text("resourceVersionMatch") {
            "Exact" => true,
            "NotOlderThan" => false,
            _ => limit > 0 && matches!(version, Version::Number(_)),
        };
        Ok(List { filter, limit, token, version, exact, stale: query.stale })
    }

    pub(crate) fn answer(&self, storage: &Storage, kind: &Kind) -> Result<Page, StatusError> {
        let Some(collection) = storage.collection(&kind.stored_in()) else {
            return Err(StatusError::no_such_path());
        };
        let now = storage.revision();
        let wanted = match (&self.token, self.version) {
            (Some(token), _) if token.rv > 0 => Some(token.rv.unsigned_abs()),
            (None, Version::Any) => self.stale,
            (None, Version::Number(number)) if self.exact => Some(number),
            (Some(_) | None, Version::Unset | Version::Any | Version::Number(_)) => None,
        };
        let (objects, revision) = match wanted {
            Some(wanted) if wanted < now => {
                // A compaction of etcd does not change the watch cache.
                let is_kept = self.stale == Some(wanted) || wanted >= storage.compacted();
                let past = is_kept.then(|| collection.at(wanted)).flatten().ok_or_else(|| self.too_old())?;
                (Cow::Owned(past), wanted)
            }
            Some(_) | None => (Cow::Borrowed(&collection.objects), now),
        };
        let start = self.token.as_ref().map_or("", |token| token.start.trim_start_matches('/'));
        let prefix = self.prefix();
        let start = format!("{prefix}{start}");
        let mut matching =
            objects.range(start..).filter(|(key, object)| self.filter.matches(kind, key, object));
        let limit = if self.limit == 0 { usize::MAX } else { self.limit };
        let mut items = Vec::new();
        let mut last = "";
        for (key, object) in matching.by_ref().take(limit) {
            items.push(Arc::clone(object));
            last = key.strip_prefix(&prefix).unwrap_or(key);
        }
        let remaining = matching.count();
        if remaining == 0 {
            return Ok(Page { items, revision, token: String::new(), remaining: None });
        }
        let token = Token::after(&format!("/{last}"), i64::try_from(revision).unwrap_or(i64::MAX)).encode();
        // With a selector, kube-apiserver does not count the remaining objects: it would have to read all of them.
        let remaining = (!self.filter.selects()).then_some(remaining);
        Ok(Page { items, revision, token, remaining })
    }

    /// The prefix of the keys in the collection. Keys in a token are relative to it.
    fn prefix(&self) -> String {
        self.filter.namespace.as_ref().map(|namespace| format!("{namespace}/")).unwrap_or_default()
    }

    fn too_old(&self) -> StatusError {
        match &self.token {
            Some(token) => {
                let start = token.start.trim_start_matches('/').to_owned();
                StatusError::continue_expired(Token { v: token.v.clone(), rv: -1, start }.encode())
            }
            None => StatusError::expired("The resourceVersion for the provided list is too old."),
        }
    }
}

/// Checks the rules for resourceVersionMatch in a list. Each broken rule is a cause of the error.
fn check_match(query: &Query) -> Result<(), StatusError> {
    let (name, version) = ("resourceVersionMatch", query.text("resourceVersion"));
    let (matching, supported) = (query.text(name), ["Exact", "NotOlderThan", ""]);
    let forbidden = |text| Cause::forbidden(name, text);
    let has_match = !matching.is_empty();
    let mut causes = Vec::new();
    if has_match && version.is_empty() {
        causes.push(forbidden("resourceVersionMatch is forbidden unless resourceVersion is provided"));
    }
    if has_match && !query.text("continue").is_empty() {
        causes.push(forbidden("resourceVersionMatch is forbidden when continue is provided"));
    }
    if !supported.contains(&matching) {
        causes.push(Cause::not_supported(name, &matching.into(), &supported.map(str::to_owned)));
    }
    if matching == "Exact" && version == "0" {
        causes.push(forbidden("resourceVersionMatch \"exact\" is forbidden for resourceVersion \"0\""));
    }
    if query.get("sendInitialEvents").is_some() {
        causes.push(Cause::forbidden("sendInitialEvents", "sendInitialEvents is forbidden for list"));
    }
    if causes.is_empty() { Ok(()) } else { Err(invalid_options(causes)) }
}

/// A list in JSON. The items of built-in kinds omit `kind` and `apiVersion`.
pub(crate) fn body(kind: &Kind, page: &Page) -> Result<Value, StatusError> {
    let mut items = Vec::with_capacity(page.items.len());
    for item in views(kind, page)? {
        let mut item = item.into_owned();
        if !kind.is_custom()
            && let Some(item) = item.as_object_mut()
        {
            item.remove("kind");
            item.remove("apiVersion");
        }
        items.push(item);
    }
    Ok(
        json!({"kind": kind.list_kind, "apiVersion": kind.api_version(), "metadata": metadata(kind, page), "items": items}),
    )
}

/// The objects of a page in the version of the kind. If one conversion is missing, all that are missing are asked for.
pub(crate) fn views<'p>(kind: &Kind, page: &'p Page) -> Result<Vec<Cow<'p, Value>>, StatusError> {
    let views: Vec<Result<_, _>> = page.items.iter().map(|item| kind.view(item)).collect();
    views.into_iter().collect()
}

/// `metadata` of a list.
pub(crate) fn metadata(kind: &Kind, page: &Page) -> Value {
    let mut metadata = json!({"resourceVersion": page.revision.to_string()});
    if !page.token.is_empty() || kind.is_custom() {
        metadata["continue"] = page.token.as_str().into();
    }
    if let Some(remaining) = page.remaining {
        metadata["remainingItemCount"] = remaining.into();
    }
    metadata
}
