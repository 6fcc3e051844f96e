//! In place of `traces.rs` in a build without the feature `otel`: no spans.

use http::{HeaderMap, Method};
use url::Url;

use crate::resource::Key;

pub(crate) struct Traces;

impl Traces {
    pub(crate) fn start() -> Result<Traces, String> {
        Ok(Traces)
    }
}

pub(crate) fn reconcile<F: Future>(_: &'static str, _: &Key, work: F) -> F {
    work
}

/// A task of its own that is part of the present reconcile. For `spawn` within
/// [`Operator::reconcile`](crate::controller::Operator::reconcile). Without the feature `otel`, this is the task itself.
pub fn part<F: Future>(task: F) -> impl Future<Output = F::Output> {
    task
}

pub(crate) struct RequestSpan;

impl RequestSpan {
    pub(crate) fn begin(_: &Method, _: impl FnOnce() -> Url) -> RequestSpan {
        RequestSpan
    }

    pub(crate) fn headers(&self) -> HeaderMap {
        HeaderMap::new()
    }

    pub(crate) fn answered(&self, _: u16) {}

    pub(crate) fn lost(&self) {}

    pub(crate) fn dropped(&self) {}

    pub(crate) fn end(&mut self) {}
}
