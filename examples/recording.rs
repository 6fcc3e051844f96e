//! `--record FILE`: what the clients of a lesson send and receive, as `listwatch watch --record` writes it, and who sent it.

use std::{
    convert::Infallible,
    fs::File,
    io::{self, Write},
    path::Path,
    sync::{Arc, Mutex},
    time::Instant,
};

use listwatch::{
    advanced::{Step, Tap},
    locked,
};
use listwatch_study::record::{Entry, Header, Recorders, What};
use serde::Serialize;

/// The exchanges of all clients of a lesson, from its start on.
pub(crate) struct Recording {
    file: File,
    entries: Mutex<Entries>,
}

#[derive(Default)]
struct Entries {
    /// `None`: the lesson has not started.
    began: Option<Instant>,
    recorders: Recorders,
    lines: String,
}

impl Recording {
    /// An existing file is not overwritten.
    pub(crate) fn create(path: &Path) -> io::Result<Recording> {
        Ok(Recording { file: File::create_new(path)?, entries: Mutex::default() })
    }

    pub(crate) fn start(&self) {
        locked(&self.entries).began.get_or_insert_with(Instant::now);
    }

    pub(crate) fn write(&self, server: &str) -> io::Result<()> {
        let mut file = &self.file;
        write!(file, "{}{}", line(&Header::new(server)), locked(&self.entries).lines)
    }
}

fn line(value: &impl Serialize) -> String {
    serde_json::to_string(value).expect("a line of JSON") + "\n"
}

/// Records the exchanges of one client.
pub(crate) struct Recorded {
    pub(crate) recording: Arc<Recording>,
    pub(crate) user: &'static str,
    /// Observes them as well.
    pub(crate) next: Option<Arc<dyn Tap>>,
}

impl Tap for Recorded {
    fn step(&self, exchange: u64, step: Step<'_>) {
        self.next.iter().for_each(|next| next.step(exchange, step));
        let Entries { began, recorders, lines } = &mut *locked(&self.recording.entries);
        let Some(began) = began else { return };
        let time = began.elapsed().as_secs_f64();
        let Ok(()) = recorders.step(exchange, step, |recorder, entries| {
            for what in entries {
                let mut what = recorder.redacted(what);
                if let What::Request(sent) = &mut what {
                    self.user.clone_into(&mut sent.user);
                }
                *lines += &line(&Entry { time, exchange, what });
            }
            Ok::<_, Infallible>(())
        });
    }
}
