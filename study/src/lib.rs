//! The wire, for people: recordings of requests and answers, and what the protocol makes of them.
//!
//! ```text
//! client/tap.rs       requests, heads and pieces of bodies, as they are on the wire
//! study/record.rs     entries: one JSON line each, without secrets; a recording is a file of them
//! study/explain.rs    entries → sentences, by the decoder, the Machine and the Store of the operator
//! study/place.rs      /apis/apps/v1/namespaces/a/deployments/b → its parts
//! study/table.rs      a Table as the objects of its rows
//! study/discovery.rs  `deploy.apps` → /apis/apps/v1/…/deployments
//! study/wrap.rs       long lines → lines that fit the terminal
//! ```
//!
//! `listwatch watch --explain` explains entries as they come, `listwatch replay` explains a file of them, and [`explained`] entries of
//! another client. Nothing in this chapter does I/O.

#![allow(missing_docs, reason = "fields and variants have the names of the wire")]

pub mod discovery;
pub mod explain;
pub mod object;
pub mod place;
pub mod record;
mod table;
pub mod wrap;

use std::{
    convert::Infallible,
    sync::{Arc, Mutex},
    time::Instant,
};

use listwatch::{
    advanced::{Step, Tap},
    client::Config,
    locked,
};

pub use wrap::wrap;

use self::{
    explain::{Explainer, Sentence},
    record::{Entry, Recorders},
};

/// The same configuration. Each exchange of its client is explained to `say`, one sentence at a time, as by
/// `listwatch watch --explain`.
#[must_use]
pub fn explained<F: Fn(&str) + Send + Sync + 'static>(config: Config, say: F) -> (Config, Arc<Explained<F>>) {
    let mut explainer = Explainer::default();
    explainer.request_timeout = config.request_timeout();
    let state = Mutex::new((Recorders::default(), explainer));
    let explained = Arc::new(Explained { began: Instant::now(), state, say });
    (config.with_tap(Arc::clone(&explained) as Arc<dyn Tap>), explained)
}

/// Explains the exchanges of a client.
pub struct Explained<F> {
    began: Instant,
    state: Mutex<(Recorders, Explainer)>,
    say: F,
}

impl<F: Fn(&str) + Send + Sync> Explained<F> {
    /// Explains what follows now that the client has returned an error to its caller, and so repeats no request.
    pub fn given_up(&self) {
        self.say(&locked(&self.state).1.given_up());
    }

    fn say(&self, sentences: &[Sentence]) {
        for sentence in sentences {
            (self.say)(&sentence.to_string());
            sentence.mistake.into_iter().for_each(|mistake| (self.say)(&mistake.to_string()));
        }
    }
}

impl<F: Fn(&str) + Send + Sync> Tap for Explained<F> {
    fn step(&self, exchange: u64, step: Step<'_>) {
        let (recorders, explainer) = &mut *locked(&self.state);
        let Ok(()) = recorders.step(exchange, step, |recorder, entries| {
            for what in entries {
                let time = self.began.elapsed().as_secs_f64();
                let entry = Entry { time, exchange, what: recorder.redacted(what) };
                self.say(&explainer.explain(&entry));
            }
            Ok::<_, Infallible>(())
        });
    }
}
