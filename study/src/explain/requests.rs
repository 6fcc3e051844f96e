//! What a request begins: a list, a watch, or a check of the server's version. It also shows that a request before it has failed.

use std::{collections::HashMap, mem, time::Duration};

use listwatch::{
    client::{Collection, Request},
    resource::{Accept, Scope},
    watch::{EndReason, Lists, Machine, NextRequest},
};

use super::{
    Asked, Explainer, OpenExchange, Sentence,
    followed::{Followed, TIMEOUT_SECS, Unauthorized},
    is_soon,
    rule::Rule,
};
use crate::{
    place::Place,
    record::{Entry, Sent},
};

/// The latest end of a watch without `timeoutSeconds`: twice kube-apiserver's `--min-request-timeout`, 30 minutes by default.
const SERVER_TIMEOUT_SECS: u32 = 3600;

impl Explainer {
    pub(super) fn request(&mut self, entry: &Entry, sent: &Sent) {
        let (path, query) = sent.path.split_once('?').unwrap_or((&sent.path, ""));
        let query: HashMap<_, _> = url::form_urlencoded::parse(query.as_bytes()).into_owned().collect();
        let value = |name: &str| query.get(name).map(String::as_str).unwrap_or_default();
        let is_watch = Request::get(&*sent.path).is_watch();
        let is_metadata = sent.accept.contains("as=PartialObjectMetadata");
        let collection = Collection {
            path: path.to_owned(),
            resource: path.rsplit('/').next().filter(|part| !part.is_empty()).unwrap_or("objects").to_owned(),
            install: "",
            scope: Scope {
                namespace: None,
                labels: value("labelSelector").to_owned(),
                fields: value("fieldSelector").to_owned(),
            },
            accept: if is_metadata { Accept::MetadataOnly } else { Accept::Whole },
        };
        let mut exchange = OpenExchange {
            collection: None,
            method: sent.method.clone(),
            target: sent.path.clone(),
            version: value("resourceVersion").to_owned(),
            asked: Asked::Other,
            is_again: self.unauthorized.remove(&sent.path).is_some_and(|ended| is_soon(entry.time - ended)),
            began: entry.time,
            heard: entry.time,
            head: None,
            body: String::new(),
            timeout_secs: match value("timeoutSeconds").parse() {
                Ok(0) | Err(_) => SERVER_TIMEOUT_SECS,
                Ok(secs) => secs,
            },
        };
        // Such a list of the operator goes into no Store: [`Cluster::list_live`](listwatch::cluster::Cluster::list_live).
        let is_live = !is_watch && value("resourceVersion") == "1" && !value("labelSelector").is_empty();
        // A Table whose rows have no metadata.
        let is_left_out = is_live || sent.accept.contains("as=Table");
        exchange.asked = match Place::of(path) {
            None => Asked::Other,
            Some(_) if is_left_out => Asked::Other,
            Some(_) if sent.method != "GET" => Asked::Object,
            Some(_) if is_watch => Asked::Watch,
            Some(Place { name: None, .. }) => Asked::List,
            Some(_) => Asked::Object,
        };
        if matches!(exchange.asked, Asked::List | Asked::Watch) {
            self.after_unauthorized(path, &sent.path, entry.time);
            let is_check = value("limit") == "1" && is_metadata && value("continue").is_empty();
            let checked = if is_check { self.checked(path) } else { None };
            let key = format!("{path} {} {}", collection.scope.labels, collection.scope.fields);
            if checked.is_some() {
                exchange.asked = Asked::Check;
            } else if is_watch {
                let is_streaming = value("sendInitialEvents") == "true";
                self.watch_begins(&key, collection, value("resourceVersion"), is_streaming);
            } else {
                let limit = value("limit").parse().unwrap_or_default();
                self.list_begins(&key, collection, &exchange.version, value("continue"), limit);
            }
            exchange.collection = checked.or(Some(key));
        }
        self.exchanges.insert(entry.exchange, exchange);
    }

    /// The client has returned an error to its caller, so it repeats no request: sentences about those that were refused with 401.
    pub fn given_up(&mut self) -> Vec<Sentence> {
        self.unauthorized.clear();
        let all = self.collections.iter_mut();
        let refused = all.filter_map(|(key, followed)| Some((key.clone(), followed.unauthorized.take()?)));
        let refused = refused.collect();
        self.no_new_credentials(refused);
        mem::take(&mut self.sentences)
    }

    /// Unless the client repeats a request that was refused with 401, and at once, that request has failed.
    fn after_unauthorized(&mut self, path: &str, target: &str, now: f64) {
        let of_path = self.collections.iter_mut().filter(|(_, one)| one.collection.path == path);
        let refused =
            of_path.filter_map(|(key, followed)| Some((key.clone(), followed.unauthorized.take()?)));
        let is_again = |refused: &Unauthorized| refused.target == target && is_soon(now - refused.ended);
        let refused = refused.filter(|(_, refused)| !is_again(refused)).collect();
        self.no_new_credentials(refused);
    }

    fn no_new_credentials(&mut self, refused: Vec<(String, Unauthorized)>) {
        for (key, Unauthorized { lasted, .. }) in refused {
            let Some(followed) = self.collections.get_mut(&key) else { continue };
            let pause = followed.failed(EndReason::Refused { code: 401, retry_after: None }, lasted);
            self.say(Rule::Unauthorized, format!("there were no valid new credentials → back off{pause}"));
            self.next(&key);
        }
    }

    /// The key of the collection whose version a request checks, if any.
    fn checked(&mut self, path: &str) -> Option<String> {
        let followed = self.collections.iter_mut().filter(|(_, followed)| {
            let machine = &followed.machine;
            let is_listing = machine.is_listing() || machine.is_streaming() || followed.is_unversioned();
            followed.collection.path == path && !is_listing
        });
        let (key, followed) = followed.max_by_key(|(_, followed)| followed.machine.is_checking())?;
        if !followed.machine.is_checking() {
            // The client gave up waiting for an answer.
            followed.machine.end(EndReason::Unreachable, Duration::ZERO);
        }
        followed.machine.request(&followed.store.version(), TIMEOUT_SECS);
        Some(key.clone())
    }

    /// Adopts a watch that the machine did not ask for, as of a user with curl.
    fn watch_begins(&mut self, key: &str, collection: Collection, version: &str, is_streaming: bool) {
        // From any version: the existing objects first, as without a version.
        let version = if version == "0" { "" } else { version };
        let new =
            || if is_streaming { Machine::new(Lists::Streaming) } else { Machine::resumed(Lists::Paged) };
        let followed =
            self.collections.entry(key.to_owned()).or_insert_with(|| Followed::new(collection, new()));
        let expected = followed.store.version();
        let is_expected = match followed.machine.request(&expected, TIMEOUT_SECS) {
            NextRequest::Watch(from) => from.version == version,
            NextRequest::List(_) | NextRequest::Check => false,
        };
        if followed.machine.is_streaming() != is_streaming || !is_expected {
            followed.machine = new();
        }
        if is_streaming {
            followed.store.list_begins();
        } else {
            followed.store.bookmark(&version.into());
        }
        followed.machine.request(&followed.store.version(), TIMEOUT_SECS);
    }

    /// Adopts a list that the machine did not ask for.
    fn list_begins(
        &mut self,
        key: &str,
        collection: Collection,
        version: &str,
        continue_token: &str,
        limit: u32,
    ) {
        let is_known = self.collections.contains_key(key);
        let new = || match version {
            "" | "0" => Machine::new(Lists::Paged),
            _ => Machine::relists(Lists::Paged),
        };
        let followed =
            self.collections.entry(key.to_owned()).or_insert_with(|| Followed::new(collection, new()));
        let is_expected = match followed.machine.request("1", TIMEOUT_SECS) {
            // Only the first page asks for a version.
            NextRequest::List(page) => {
                !continue_token.is_empty() || page.version.is_none() == matches!(version, "" | "0")
            }
            NextRequest::Watch(_) | NextRequest::Check => false,
        };
        if !is_expected {
            followed.machine = new();
        }
        // After a page that is too large, the client asks for half as many objects.
        while let NextRequest::List(page) = followed.machine.request("", TIMEOUT_SECS)
            && is_known
            && limit > 0
            && page.limit > limit
        {
            followed.machine.end(EndReason::TooLarge, Duration::ZERO);
        }
        if continue_token.is_empty() {
            followed.store.list_begins();
        }
    }
}
