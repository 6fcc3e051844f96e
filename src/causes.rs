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

use std::{cell::RefCell, env, mem, sync::LazyLock};

use http::{HeaderMap, HeaderName, HeaderValue};
use percent_encoding::{AsciiSet, CONTROLS, utf8_percent_encode};

use crate::resource::{ObjectMeta, Resource};

/// Most causes of a reconcile that are named, the latest. One has at most 600 bytes, so they fit into the 8 KiB that servers accept by the W3C.
const CAUSES_MAX: usize = 12;

/// What a value must not have.
const ENCODED: &AsciiSet = &CONTROLS.add(b' ').add(b'"').add(b',').add(b';').add(b'\\').add(b'%');

thread_local! {
    /// The event whose listeners run.
    static EVENT: RefCell<Option<String>> = const { RefCell::new(None) };
}

tokio::task_local! {
    static NAMED: Option<HeaderValue>;
}

/// What has added a key to a queue.
#[derive(Debug, Default)]
pub(crate) struct Causes(Vec<String>);

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
    /// The present event adds the key. `otherwise`: what adds it if there is none.
    pub(crate) fn add(&mut self, otherwise: &str) {
        if are_wanted() {
            self.append(vec![EVENT.with_borrow(Clone::clone).unwrap_or_else(|| otherwise.to_owned())]);
        }
    }

    /// The end of a pause adds the key, if nothing has added it before.
    pub(crate) fn add_end_of_pause(&mut self, has_failed: bool) {
        if has_failed || self.0.is_empty() {
            self.add(if has_failed { "retry" } else { "timer" });
        }
    }

    /// Adds later ones.
    fn append(&mut self, later: Vec<String>) {
        for cause in later {
            self.0.retain(|known| *known != cause);
            self.0.push(cause);
        }
        self.0.drain(..self.0.len().saturating_sub(CAUSES_MAX));
    }

    /// Puts earlier ones back.
    pub(crate) fn put_back(&mut self, earlier: &mut Causes) {
        let later = mem::replace(self, mem::take(earlier));
        self.append(later.0);
    }

    /// For the requests of a reconcile.
    pub(crate) fn header(&self) -> Option<HeaderValue> {
        let causes = Some(self.0.join(" ")).filter(|causes| !causes.is_empty())?;
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
