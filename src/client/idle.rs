//! Counts the calls that wait for their answers: Kubernetes Events are written only while there is none.

use tokio::sync::watch::Sender;

use super::Client;

/// The number of calls that wait for their answers.
#[derive(Default)]
pub(super) struct Calls(Sender<usize>);

/// Counts a call that waits for its answer, until dropped.
pub(super) struct Waiting<'a>(&'a Sender<usize>);

impl Calls {
    pub(super) fn begin(&self) -> Waiting<'_> {
        self.0.send_modify(|calls| *calls += 1);
        Waiting(&self.0)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.send_modify(|calls| *calls -= 1);
    }
}

impl Client {
    /// Whether no request, apart from streams, waits for its answer.
    pub(crate) fn is_idle(&self) -> bool {
        *self.transport.calls.0.borrow() == 0
    }

    /// Waits until no request waits for its answer.
    pub(crate) async fn idle(&self) {
        // An error would mean that there is no sender; the transport has it.
        let _ = self.transport.calls.0.subscribe().wait_for(|calls| *calls == 0).await;
    }
}
