//! Get and list: what version of the world an answer shows, and a page of it.
//!
//! | | no resourceVersion | `0` | N |
//! |---|---|---|---|
//! | whole list | now | now | now, but not before N |
//! | `limit` | now | now, and the limit is ignored | exactly N |
//! | `Exact` | refused | refused | exactly N |
//!
//! See <https://kubernetes.io/docs/reference/using-api/api-concepts/#semantics-for-get-and-list>.

use std::{collections::BTreeMap, sync::Arc};

use base64::{Engine, prelude::BASE64_URL_SAFE_NO_PAD};
use serde_json::{Value, json};

use super::{
    kinds::Kind,
    refusal::{Cause, Refusal},
    request::Query,
    selector::{Fields, Labels},
    storage::Storage,
};

/// Which objects of a collection are meant.
#[derive(Clone, Debug, Default)]
pub(super) struct Filter {
    pub(super) namespace: Option<String>,
    labels: Labels,
    fields: Fields,
}

impl Filter {
    pub(super) fn parse(query: &Query, kind: &Kind, namespace: Option<&str>) -> Result<Filter, Refusal> {
        Ok(Filter {
            namespace: namespace.map(str::to_owned),
            labels: Labels::parse(query.text("labelSelector"))?,
            fields: Fields::parse(query.text("fieldSelector"), kind)?,
        })
    }

    /// Whether the object that is stored under a key is meant.
    pub(super) fn matches(&self, kind: &Kind, key: &str, object: &Value) -> bool {
        if let Some(namespace) = &self.namespace
            && key.split_once('/').is_none_or(|(of, _)| of != namespace)
        {
            return false;
        }
        if !self.labels.matches(&object["metadata"]["labels"]) {
            return false;
        }
        // A field can be called otherwise in this version than in storage.
        self.fields.is_empty() || self.fields.matches(&kind.view(object))
    }

    fn selects(&self) -> bool {
        !self.labels.is_empty() || !self.fields.is_empty()
    }
}

/// `resourceVersion` of a read.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Version {
    Unset,
    /// `0`: whatever the server has.
    Any,
    Number(u64),
}

impl Version {
    pub(super) fn parse(text: &str) -> Result<Version, String> {
        match text {
            "" => Ok(Version::Unset),
            "0" => Ok(Version::Any),
            text => text.parse().map(Version::Number).map_err(|_| {
                format!("resourceVersion: Invalid value: {text:?}: strconv.ParseUint: parsing {text:?}: invalid syntax")
            }),
        }
    }

    /// The version that the server must have reached before it answers.
    pub(super) fn at_least(self) -> u64 {
        match self {
            Version::Unset | Version::Any => 0,
            Version::Number(number) => number,
        }
    }
}

/// A list request, checked.
#[derive(Debug)]
pub(super) struct List {
    filter: Filter,
    limit: usize,
    token: Option<Token>,
    pub(super) version: Version,
    exact: bool,
}

/// One page.
pub(super) struct Page {
    pub(super) items: Vec<Arc<Value>>,
    pub(super) revision: u64,
    pub(super) token: String,
    pub(super) remaining: Option<usize>,
}

/// `continue`: where the next page starts, and of which version it is. -1 is the present.
#[derive(Debug, PartialEq, serde::Serialize, serde::Deserialize)]
struct Token {
    v: String,
    rv: i64,
    start: String,
}

impl Token {
    fn parse(text: &str) -> Result<Token, Refusal> {
        let refuse = |why: String| {
            Refusal::bad_request(format!("invalid continue token: continue key is not valid: {why}"))
        };
        let bytes = BASE64_URL_SAFE_NO_PAD
            .decode(text.trim_end_matches('='))
            .map_err(|error| refuse(error.to_string()))?;
        let token: Token = serde_json::from_slice(&bytes).map_err(|error| refuse(error.to_string()))?;
        if token.v != "meta.k8s.io/v1" || token.rv == 0 {
            return Err(refuse(format!("server does not recognize this encoded version {}", token.v)));
        }
        if token.start.split('/').any(|part| part == "..") {
            return Err(refuse(token.start));
        }
        // Nobody climbs out of the collection.
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

/// The 422s of ListOptions that lists and watches share.
pub(super) fn invalid_options(causes: Vec<Cause>) -> Refusal {
    Refusal::invalid_options("ListOptions", causes)
}

impl List {
    pub(super) fn parse(query: &Query, kind: &Kind, namespace: Option<&str>) -> Result<List, Refusal> {
        let limit = query.number("limit")?.unwrap_or(0);
        query.number("timeoutSeconds")?;
        let filter = Filter::parse(query, kind, namespace)?;
        check_match(query)?;
        let text = query.text("resourceVersion");
        let version = Version::parse(text)
            .map_err(|why| Refusal::bad_request(format!("invalid resource version: {why}")))?;
        let mut limit = usize::try_from(limit).unwrap_or(0);
        let token = match query.text("continue") {
            "" => None,
            _ if matches!(version, Version::Number(_)) => {
                let text = "specifying resource version is not allowed when using continue";
                return Err(Refusal::bad_request(text));
            }
            token => Some(Token::parse(token)?),
        };
        // Version 0 is answered from the cache, which does not page.
        if version == Version::Any {
            limit = 0;
        }
        let exact = match query.text("resourceVersionMatch") {
            "Exact" => true,
            "NotOlderThan" => false,
            _ => limit > 0 && matches!(version, Version::Number(_)),
        };
        Ok(List { filter, limit, token, version, exact })
    }

    pub(super) fn answer(&self, storage: &Storage, kind: &Kind) -> Result<Page, Refusal> {
        let Some(collection) = storage.collection(&kind.stored_in()) else {
            return Err(Refusal::no_such_path());
        };
        let now = storage.revision();
        let wanted = match (&self.token, self.version) {
            (Some(token), _) if token.rv > 0 => Some(token.rv.unsigned_abs()),
            (None, Version::Number(number)) if self.exact => Some(number),
            (Some(_) | None, Version::Unset | Version::Any | Version::Number(_)) => None,
        };
        let past: BTreeMap<String, Arc<Value>>;
        let (objects, revision) = match wanted {
            Some(wanted) if wanted < now => match collection.at(wanted) {
                Some(objects) => {
                    past = objects;
                    (&past, wanted)
                }
                None => return Err(self.too_old()),
            },
            Some(_) | None => (&collection.objects, now),
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
        // With a selector the real one would have to read everything to count.
        let remaining = (!self.filter.selects()).then_some(remaining);
        Ok(Page { items, revision, token, remaining })
    }

    /// Keys in a token are relative to the namespace that was listed.
    fn prefix(&self) -> String {
        self.filter.namespace.as_ref().map(|namespace| format!("{namespace}/")).unwrap_or_default()
    }

    fn too_old(&self) -> Refusal {
        match &self.token {
            Some(token) => {
                let rest = Token {
                    v: token.v.clone(),
                    rv: -1,
                    start: token.start.trim_start_matches('/').to_owned(),
                };
                Refusal::continue_expired(rest.encode())
            }
            None => Refusal::expired("The resourceVersion for the provided list is too old."),
        }
    }
}

/// The rules about resourceVersionMatch of a list.
fn check_match(query: &Query) -> Result<(), Refusal> {
    let (name, version) = ("resourceVersionMatch", query.text("resourceVersion"));
    let mut causes = Vec::new();
    match query.text(name) {
        "" => {}
        _ if version.is_empty() => {
            let text = "resourceVersionMatch is forbidden unless resourceVersion is provided";
            causes.push(Cause::forbidden(name, text));
        }
        _ if !query.text("continue").is_empty() => {
            causes
                .push(Cause::forbidden(name, "resourceVersionMatch is forbidden when continue is provided"));
        }
        "Exact" if version == "0" => {
            let text = "resourceVersionMatch \"exact\" is forbidden for resourceVersion \"0\"";
            causes.push(Cause::forbidden(name, text));
        }
        "Exact" | "NotOlderThan" => {}
        other => {
            let supported = ["Exact", "NotOlderThan", ""].map(str::to_owned);
            causes.push(Cause::not_supported(name, &other.into(), &supported));
        }
    }
    if query.get("sendInitialEvents").is_some() {
        causes.push(Cause::forbidden("sendInitialEvents", "sendInitialEvents is forbidden for list"));
    }
    if causes.is_empty() { Ok(()) } else { Err(invalid_options(causes)) }
}

/// A list as it goes over the wire. Items of built-in kinds do not repeat their kind.
pub(super) fn body(kind: &Kind, page: &Page) -> Value {
    let mut items = Vec::with_capacity(page.items.len());
    for item in &page.items {
        let mut item = kind.view(item).into_owned();
        if !kind.is_custom()
            && let Some(item) = item.as_object_mut()
        {
            item.remove("kind");
            item.remove("apiVersion");
        }
        items.push(item);
    }
    json!({"kind": kind.list_kind, "apiVersion": kind.api_version(), "metadata": metadata(kind, page), "items": items})
}

/// `metadata` of a list.
pub(super) fn metadata(kind: &Kind, page: &Page) -> Value {
    let mut metadata = json!({"resourceVersion": page.revision.to_string()});
    if !page.token.is_empty() || kind.is_custom() {
        metadata["continue"] = page.token.as_str().into();
    }
    if let Some(remaining) = page.remaining {
        metadata["remainingItemCount"] = remaining.into();
    }
    metadata
}
