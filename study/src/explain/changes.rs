//! Sentences about changes of a Store: by a list, by an event, or by the answer to a write.

use std::{mem, sync::Arc};

use listwatch::{
    client::Collection,
    locked,
    resource::{Accept, Key, ObjectMeta, Resource, list::Found},
    store::{Change, DeletionSource},
};
use listwatch_formats::selector::Selector;
use serde::de::IgnoredAny;

use super::{
    Explainer, OpenExchange, OwnerOf,
    followed::{By, Followed},
    objects,
    rule::Rule,
};
use crate::{
    object::{Object, changes},
    place::Place,
};

/// What DELETED means with a selector.
const DESELECTED: &str =
    "has left the selection: DELETED, but it may exist with other labels or fields → GET it";

/// Why the Store does not have an object that the server had.
const NO_LIST: &str = "the store did not have it, as no list came before";

impl Explainer {
    /// Sentences about what happened in the Store. Returns how many objects a list has removed.
    pub(super) fn changed(&mut self, key: &str, by: By) -> usize {
        let marked_owner = self.marked_owner;
        let reconcile = |metadata: &ObjectMeta| reconcile(metadata, marked_owner);
        let Some(followed) = self.collections.get_mut(key) else { return 0 };
        let all = mem::take(&mut *locked(&followed.changes));
        let resource = followed.collection.resource.clone();
        let name = |metadata: &ObjectMeta| format!("{resource} {}", metadata.key());
        let holds = format!("; the store holds {}", objects(followed.store.len()));
        let has_selector = followed.has_selector();
        let mut added = Vec::new();
        for change in &all {
            let metadata = match change {
                Change::Applied { after, .. } => after.metadata(),
                Change::Deleted { last, .. } => last.metadata(),
                Change::Synced | Change::Forbidden => continue,
            };
            followed.reconciled.insert(to_reconcile(metadata, marked_owner));
            if let Change::Applied { before: None, .. } = change {
                added.push(metadata.key());
            }
        }
        let mut removed = 0;
        for change in all {
            let (rule, text) = match change {
                // Of the first list, only the end has a sentence.
                Change::Applied { before: None, .. } if by == By::FirstList => continue,
                Change::Synced | Change::Forbidden => continue,
                Change::Applied { before: None, after } if by == By::EventBeforeList => {
                    let metadata = after.metadata();
                    let text = format!("{} has changed; {NO_LIST}", name(metadata));
                    (Rule::Modified, format!("{text} → {}{holds}", reconcile(metadata)))
                }
                Change::Applied { before: None, after } => {
                    let metadata = after.metadata();
                    (Rule::Added, format!("{} is new → {}{holds}", name(metadata), reconcile(metadata)))
                }
                Change::Applied { before: Some(before), after } => {
                    let value = |found: &Found<Object>| {
                        found.readable().map(|object| object.value.clone()).unwrap_or_default()
                    };
                    let is_shown = self.is_brief && by == By::Event;
                    let fields =
                        if is_shown { String::new() } else { changes(&value(&before), &value(&after)) };
                    let colon = if fields.is_empty() { "" } else { ": " };
                    let metadata = after.metadata();
                    let text = format!("{} has changed → {}", name(metadata), reconcile(metadata));
                    (Rule::Modified, text + colon + &fields)
                }
                Change::Deleted { last, source: DeletionSource::Inferred } => {
                    let (metadata, name) = (last.metadata(), name(last.metadata()));
                    if added.contains(&metadata.key()) {
                        let text = "was deleted, and another object has its name: the uid differs";
                        (Rule::Replaced, format!("{name} {text}"))
                    } else {
                        removed += 1;
                        let or_left = if has_selector { ", or left the selection," } else { "" };
                        let text = format!(
                            "is missing from the list: it was deleted{or_left} while no watch was open"
                        );
                        (Rule::Swept, format!("{name} {text} → {}", reconcile(metadata)))
                    }
                }
                Change::Deleted { last, source: DeletionSource::Event } => {
                    let (metadata, name) = (last.metadata(), name(last.metadata()));
                    if has_selector && by == By::Event {
                        (Rule::Deselected, format!("{name} {DESELECTED}"))
                    } else {
                        (Rule::Deleted, format!("{name} was deleted → {}{holds}", reconcile(metadata)))
                    }
                }
            };
            self.say(rule, text);
        }
        removed
    }

    /// DELETED, of an object that the Store does not have, because no list came before: the Store does not change.
    pub(super) fn deleted_before_list(&mut self, key: &str, metadata: &ObjectMeta) {
        let Some(followed) = self.collections.get(key) else { return };
        let name = format!("{} {}", followed.collection.resource, metadata.key());
        if followed.has_selector() {
            self.say(Rule::Deselected, format!("{name} {DESELECTED}; {NO_LIST}"));
        } else {
            self.say(Rule::Deleted, format!("{name} was deleted; {NO_LIST}"));
        }
    }

    /// A list is complete, and has removed so many objects.
    pub(super) fn listed(&mut self, key: &str, by: By, removed: usize) {
        let Some(Followed { store, .. }) = self.collections.get(key) else { return };
        let (count, version) = (objects(store.len()), store.version());
        let removed = match (by, removed) {
            (By::FirstList, _) => String::new(),
            (By::List | By::Event | By::EventBeforeList | By::Answer, 0) => {
                "; no object was missing from it".to_owned()
            }
            (By::List | By::Event | By::EventBeforeList | By::Answer, removed) => {
                format!("; missing from it, and removed: {}", objects(removed))
            }
        };
        let text = format!(
            "the list is complete: the store holds {count} as of {version}, the version of the list, from which a watch continues{removed}"
        );
        self.say(Rule::Listed, text);
    }

    /// Puts the answer to a write or GET of one object into the Stores, as [`Cluster`](listwatch::cluster::Cluster) does.
    pub(super) fn remember(&mut self, exchange: u64) {
        let Some(OpenExchange { target, method, head: Some(head), body, .. }) = self.exchanges.get(&exchange)
        else {
            return;
        };
        let path = target.split('?').next().unwrap_or_default();
        // Other subresources have the name of the object, but are none.
        let is_object = |place: &Place<'_>| place.subresource.is_none_or(|name| name == "status");
        let Some(place) = Place::of(path).filter(is_object) else { return };
        let object =
            serde_json::from_str::<Object>(body).ok().filter(|object| object.value["kind"] != "Status");
        // Of an answer that was cut, nothing is known: the object may only be terminating.
        let is_whole = serde_json::from_str::<IgnoredAny>(body).is_ok();
        let is_deletion = method == "DELETE"
            && (head.status == 404
                || head.status < 300
                    && is_whole
                    && object.as_ref().is_none_or(|object| !object.metadata().is_terminating()));
        let object = object.filter(|_| head.status < 300 && !is_deletion).map(Arc::new);
        let mut keys = Vec::new();
        for (name, followed) in &self.collections {
            let Collection { path, scope, accept, .. } = &followed.collection;
            let has_it = Place::of(path).is_some_and(|all| {
                all.resource == place.resource && all.namespace.is_none_or(|all| place.namespace == Some(all))
            });
            if !has_it || *accept != Accept::Whole {
                continue;
            }
            if is_deletion {
                let key = Key {
                    namespace: place.namespace.map(Into::into),
                    name: place.name.unwrap_or_default().into(),
                };
                if let Some(found) = followed.store.find(&key) {
                    followed.store.removed(found.metadata());
                }
            }
            let selects = |object: &Object| {
                let labels = &object.metadata().labels;
                let selector = Selector::parse(&scope.labels);
                scope.fields.is_empty()
                    && selector.is_ok_and(|selector| selector.selects(|key| labels.get(key)))
            };
            if let Some(object) = &object {
                followed.store.wrote(object, selects(object));
            }
            keys.push(name.clone());
        }
        for key in keys {
            self.changed(&key, By::Answer);
        }
    }
}

/// The key that an operator adds to its queue after a change of this object, after the kind of an owner.
fn to_reconcile(metadata: &ObjectMeta, marked_owner: OwnerOf) -> String {
    let Key { namespace, name } = metadata.key();
    match (metadata.controller(), marked_owner(metadata)) {
        (Some(owner), _) => format!("{} {}", owner.kind, Key { namespace, name: owner.name.clone() }),
        (None, Some((kind, key))) => format!("{kind} {key}"),
        (None, None) => Key { namespace, name }.to_string(),
    }
}

/// What to reconcile after a change of this object. A controller is in the namespace of the object, or in none.
fn reconcile(metadata: &ObjectMeta, marked_owner: OwnerOf) -> String {
    match (metadata.controller(), marked_owner(metadata)) {
        (Some(owner), _) => format!("reconcile its owner, {} {}", owner.kind, owner.name),
        (None, Some((kind, key))) => format!("reconcile its owner, {kind} {key}"),
        (None, None) => "reconcile it".to_owned(),
    }
}
