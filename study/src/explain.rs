//! Explains recorded exchanges, one sentence for each thing worth noticing, by the decoder, the [`Machine`](watch::Machine) and the
//! [`Store`](listwatch::store::Store) of the operator. Nothing in this folder does I/O.
//!
//! A request, an answer and the end of an exchange each have a file.
//!
//! ```text
//! 410 (too old resource version): … → list again
//! avoids mistake 7: expect 410 in one form only (docs/watch.md, section 7; test: an_expired_version_in_any_form_… in tests/it/watch_edge_cases.rs)
//! next: GET /api/v1/pods?limit=100&resourceVersion=1207&resourceVersionMatch=NotOlderThan
//! ```
//!
//! The mistakes are numbered in docs/reliability.md. The first sentence that avoids a mistake is followed by a line that names it,
//! the section of docs/watch.md with the rule, and a test that shows what the operator does instead.

mod answers;
mod changes;
mod ends;
mod error_status;
mod followed;
mod mistakes;
mod requests;
mod rule;

use std::{
    collections::{BTreeSet, HashMap},
    fmt, mem,
    time::Duration,
};

use listwatch::{
    advanced::REQUEST_TIMEOUT,
    resource::{Key, ObjectMeta},
    watch,
};

pub use error_status::grant;
use followed::Followed;
use mistakes::Mistake;
use rule::Rule;

use super::{
    record::{AnswerHead, Entry, What},
    table::as_metadata,
};

/// One sentence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sentence {
    rule: Rule,
    text: String,
    /// The mistake that the rule avoids, if no sentence before is about it.
    pub mistake: Option<&'static Mistake>,
}

impl fmt::Display for Sentence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

type OwnerOf = fn(&ObjectMeta) -> Option<(&'static str, Key)>;

/// Explains the exchanges of any number of collections.
pub struct Explainer {
    /// By path and selectors.
    collections: HashMap<String, Followed>,
    exchanges: HashMap<u64, OpenExchange>,
    /// The sentences about the present entry.
    sentences: Vec<Sentence>,
    /// The tests of the mistakes that sentences were about.
    tests: BTreeSet<&'static str>,
    /// How long the client waits for an answer.
    pub request_timeout: Duration,
    /// The kind and key of an owner that an object does not name in its ownerReferences.
    pub marked_owner: OwnerOf,
    /// Whether changed fields and the messages of errors are shown already, beside the sentences.
    is_brief: bool,
    /// Whether each sentence names its resource, because several collections are followed at once.
    pub names_resources: bool,
    /// The end of each request that was refused with 401, by path and query.
    unauthorized: HashMap<String, f64>,
}

/// An exchange that has not ended.
struct OpenExchange {
    /// The key of its collection; `None`: it is neither a list nor a watch.
    collection: Option<String>,
    method: String,
    target: String,
    /// The parameter `resourceVersion`.
    version: String,
    asked: Asked,
    /// Whether the same request was refused with 401 just before.
    is_again: bool,
    began: f64,
    heard: f64,
    head: Option<AnswerHead>,
    /// Of a list, or an error.
    body: String,
    timeout_secs: u32,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Asked {
    /// Something that goes into no Store.
    Other,
    /// A GET or a write of one object.
    Object,
    List,
    Check,
    Watch,
}

impl Default for Explainer {
    fn default() -> Explainer {
        Explainer {
            collections: HashMap::new(),
            exchanges: HashMap::new(),
            sentences: Vec::new(),
            tests: BTreeSet::new(),
            request_timeout: REQUEST_TIMEOUT,
            marked_owner: |_| None,
            is_brief: false,
            names_resources: false,
            unauthorized: HashMap::new(),
        }
    }
}

impl Explainer {
    /// An explainer for events that are shown with their changed fields, and errors with their messages.
    pub fn brief() -> Explainer {
        Explainer { is_brief: true, ..Explainer::default() }
    }

    /// The sentences about the next entry.
    pub fn explain(&mut self, entry: &Entry) -> Vec<Sentence> {
        let entry = &*as_metadata(entry);
        let resource = self.resource(entry.exchange);
        match &entry.what {
            What::Request(sent) => self.request(entry, sent),
            What::Head(head) => self.head(entry, head),
            What::Line(line) => self.line(entry, &line.text()),
            What::Rest(rest) => self.rest(entry, &rest.text()),
            What::End(end) => self.end(entry, *end),
        }
        if let Some(resource) = resource.filter(|_| self.names_resources) {
            let unnamed = self.sentences.iter_mut().filter(|sentence| !sentence.text.contains(&resource));
            unnamed.for_each(|sentence| sentence.text.insert_str(0, &format!("{resource}: ")));
        }
        mem::take(&mut self.sentences)
    }

    /// The resource of the collection that an exchange is about.
    fn resource(&self, exchange: u64) -> Option<String> {
        let key = self.exchanges.get(&exchange)?.collection.as_ref()?;
        Some(self.collections.get(key)?.collection.resource.clone())
    }

    /// The objects of each Store, the request that would come next, and the keys that would have been reconciled.
    pub fn summary(&mut self) -> Vec<String> {
        let mut lines = Vec::new();
        let mut all: Vec<_> = self.collections.iter_mut().collect();
        all.sort_by_key(|(path_and_selectors, _)| *path_and_selectors);
        for (_, followed) in all {
            let keys: Vec<_> = followed.store.keys().iter().map(ToString::to_string).collect();
            let (resource, version) = (followed.collection.resource.clone(), followed.store.version());
            // No version of an initial event is one to resume from.
            let version =
                if version.is_empty() { String::new() } else { format!(", up to version {version}") };
            let keys = if keys.is_empty() { String::new() } else { format!(": {}", keys.join(" ")) };
            let count = objects(followed.store.len());
            lines.push(format!("{resource}: the store holds {count}{version}{keys}"));
            lines.push(format!("{resource}: the next request is GET {}", followed.next_target()));
            let keys: Vec<_> = followed.reconciled.iter().map(String::as_str).collect();
            let keys = if keys.is_empty() { "nothing".to_owned() } else { keys.join(", ") };
            lines.push(format!("{resource}: would have reconciled {keys}"));
        }
        lines
    }

    fn say(&mut self, rule: Rule, text: impl Into<String>) {
        let mistake = rule.mistake().filter(|mistake| self.tests.insert(mistake.test));
        self.sentences.push(Sentence { rule, text: text.into(), mistake });
    }

    fn next(&mut self, key: &str) {
        if let Some(followed) = self.collections.get_mut(key) {
            let next = followed.next_target();
            self.say(Rule::Next, format!("next: GET {next}"));
        }
    }
}

fn objects(count: usize) -> String {
    if count == 1 { "1 object".to_owned() } else { format!("{count} objects") }
}

/// Whether the client repeats a request after so many seconds without a pause.
fn is_soon(after: f64) -> bool {
    seconds(after) < watch::BACKOFF.longest(1) / 2
}

fn seconds(seconds: f64) -> Duration {
    Duration::try_from_secs_f64(seconds).unwrap_or_default()
}

#[cfg(test)]
mod tests;
