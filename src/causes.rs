//! Names in each request of a reconcile the events that woke it, for `listwatch lens`. Only if the variable `OTEL_PROPAGATORS` has `baggage`, as
//! for the COMMAND of the lens; otherwise nothing is kept or sent.
//!
//! ```text
//! baggage: reconcile.causes=pages.example.com/default/about@41%20configmaps/default/about@deleted%20retry
//! ```
//!
//! An event has its object and resourceVersion, or `deleted`. The answer to a write of ours counts as its event. `retry` and `timer` stand for
//! the end of a pause, after a failure and after a success; `start` for that of the controller, its leadership or a watch; `call` for the rest.
//! The header is that of the [W3C](https://www.w3.org/TR/baggage/).

use std::{cell::RefCell, collections::BTreeMap, env, sync::LazyLock};

use http::{HeaderMap, HeaderName, HeaderValue};
use percent_encoding::{AsciiSet, CONTROLS, utf8_percent_encode};

use crate::resource::{Key, ObjectMeta, Resource};

/// Most causes of a reconcile that are named: 20 with the longest names fit into the 8 KiB that servers accept by the W3C.
const CAUSES_MAX: usize = 20;

/// What a value must not have.
const ENCODED: &AsciiSet = &CONTROLS.add(b' ').add(b'"').add(b',').add(b';').add(b'\\').add(b'%');

thread_local! {
    /// The event whose listeners run.
    static EVENT: RefCell<Option<String>> = const { RefCell::new(None) };
}

tokio::task_local! {
    static NAMED: Option<HeaderValue>;
}

/// What has added each key to a queue since its last reconcile began.
#[derive(Debug, Default)]
pub(crate) struct Causes(BTreeMap<Key, Vec<String>>);

fn are_wanted() -> bool {
    static ARE_WANTED: LazyLock<bool> = LazyLock::new(|| {
        env::var("OTEL_PROPAGATORS").is_ok_and(|names| names.split(',').any(|name| name.trim() == "baggage"))
    });
    *ARE_WANTED
}

/// Calls the listeners of an event.
pub(crate) fn event<K: Resource>(object: &ObjectMeta, version: &str, listeners: impl FnOnce()) {
    if !are_wanted() {
        return listeners();
    }
    let (resource, key) = (format!("{}.{}", K::PLURAL, K::GROUP), object.key());
    EVENT.set(Some(format!("{}/{key}@{version}", resource.trim_end_matches('.'))));
    listeners();
    EVENT.set(None);
}

impl Causes {
    /// The present event adds a key. `otherwise`: what adds it if there is none.
    pub(crate) fn add(&mut self, key: &Key, otherwise: &str) {
        if !are_wanted() {
            return;
        }
        let cause = EVENT.with_borrow(Clone::clone).unwrap_or_else(|| otherwise.to_owned());
        let causes = self.0.entry(key.clone()).or_default();
        if causes.len() < CAUSES_MAX && !causes.contains(&cause) {
            causes.push(cause);
        }
    }

    /// A reconcile of this key begins.
    pub(crate) fn take(&mut self, key: &Key) -> Option<HeaderValue> {
        let causes = self.0.remove(key)?.join(" ");
        format!("reconcile.causes={}", utf8_percent_encode(&causes, ENCODED)).try_into().ok()
    }
}

/// A reconcile whose requests name these causes.
pub(crate) fn reconcile<F: Future>(
    causes: Option<HeaderValue>,
    work: F,
) -> impl Future<Output = F::Output> + use<F> {
    NAMED.scope(causes, work)
}

/// For a request.
pub(crate) fn headers() -> HeaderMap {
    let named = NAMED.try_with(Clone::clone).ok().flatten();
    named.into_iter().map(|causes| (HeaderName::from_static("baggage"), causes)).collect()
}
