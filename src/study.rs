//! The wire, for people: recordings of requests and answers, and what the protocol makes of them.
//!
//! ```text
//! client/tap.rs       requests, heads and pieces of bodies, as they are on the wire
//! study/record.rs     entries: one JSON line each, without secrets; a recording is a file of them
//! study/explain.rs    entries → sentences, by the decoder, the Machine and the Store of the operator
//! study/place.rs      /apis/apps/v1/namespaces/a/deployments/b → its parts
//! study/table.rs      a Table as the objects of its rows
//! study/discovery.rs  `deploy.apps` → /apis/apps/v1/…/deployments
//! ```
//!
//! `listwatch watch --explain` explains entries as they come, `listwatch replay` those of a file, and [`explained`] those of
//! any client. Nothing in this chapter does I/O.

pub(crate) mod discovery;
pub(crate) mod explain;
pub(crate) mod object;
pub(crate) mod place;
pub(crate) mod record;
mod table;

use std::{
    convert::Infallible,
    sync::{Arc, Mutex},
    time::Instant,
};

use self::{
    explain::Explainer,
    record::{Entry, Recorders},
};
use crate::{
    client::{Config, Step, Tap},
    locked,
};

/// The same configuration. Each exchange of its client is explained to `say`, one sentence at a time, as by
/// `listwatch watch --explain`.
#[must_use]
pub fn explained(config: Config, say: impl Fn(&str) + Send + Sync + 'static) -> Config {
    let mut explainer = Explainer::default();
    explainer.request_timeout = config.request_timeout();
    let state = Mutex::new((Recorders::default(), explainer));
    config.with_tap(Arc::new(Explained { began: Instant::now(), state, say }))
}

/// A tap that explains.
struct Explained<F> {
    began: Instant,
    state: Mutex<(Recorders, Explainer)>,
    say: F,
}

impl<F: Fn(&str) + Send + Sync> Tap for Explained<F> {
    fn step(&self, exchange: u64, step: Step<'_>) {
        let (recorders, explainer) = &mut *locked(&self.state);
        let Ok(()) = recorders.step(exchange, step, |recorder, entries| {
            for what in entries {
                let time = self.began.elapsed().as_secs_f64();
                let entry = Entry { time, exchange, what: recorder.redacted(what) };
                for sentence in explainer.explain(&entry) {
                    (self.say)(&sentence.to_string());
                    sentence.mistake.into_iter().for_each(|mistake| (self.say)(&mistake.to_string()));
                }
            }
            Ok::<_, Infallible>(())
        });
    }
}
