//! The log of one test, as text.

use std::{
    io,
    sync::{Arc, Mutex},
};

use tracing::{
    Dispatch,
    subscriber::{DefaultGuard, NoSubscriber, set_default},
};

use crate::locked;

/// Collects what this thread logs, until it is dropped.
pub(crate) struct CapturedLog {
    bytes: Bytes,
    _guard: DefaultGuard,
    /// With a single subscriber, tracing asks the first thread that comes to a line whether anybody wants it. That thread
    /// may belong to a test without a subscriber.
    _second: Dispatch,
}

#[derive(Clone, Default)]
struct Bytes(Arc<Mutex<Vec<u8>>>);

impl CapturedLog {
    /// Begins with the level info.
    pub(crate) fn start() -> CapturedLog {
        let bytes = Bytes::default();
        let writer = bytes.clone();
        let subscriber = tracing_subscriber::fmt().with_ansi(false).with_writer(move || writer.clone());
        let second = Dispatch::new(NoSubscriber::new());
        CapturedLog { bytes, _guard: set_default(subscriber.finish()), _second: second }
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8(locked(&self.bytes.0).clone()).expect("UTF-8")
    }
}

impl io::Write for Bytes {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        locked(&self.0).write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
