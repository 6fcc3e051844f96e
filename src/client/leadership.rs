//! The right to write: always, or only while this process holds a Lease. `leader.rs` holds the Lease.

use std::{
    future::{pending, poll_fn},
    pin::pin,
    task::Poll,
};

use tokio::{
    sync::watch,
    time::{Instant, sleep_until},
};

/// Whether this process may write: always, or until the deadline of its Lease. Clones share the deadline.
#[derive(Clone, Debug, Default)]
pub struct Leadership {
    /// `None` in the channel: another process leads, or none.
    deadline: Option<watch::Receiver<Option<Instant>>>,
}

impl Leadership {
    /// Leadership without a Lease: this process may always write.
    #[must_use]
    pub fn always() -> Leadership {
        Leadership::default()
    }

    /// Leadership until the deadline that was sent last.
    pub(crate) fn channel() -> (watch::Sender<Option<Instant>>, Leadership) {
        let (sender, receiver) = watch::channel(None);
        (sender, Leadership { deadline: Some(receiver) })
    }

    /// Whether this process may write now.
    #[must_use]
    pub fn is_held(&self) -> bool {
        self.deadline
            .as_ref()
            .is_none_or(|deadline| deadline.borrow().is_some_and(|end| Instant::now() < end))
    }

    /// Waits until [`Leadership::is_held`] is no longer as it was.
    pub async fn changes(&self, was_held: bool) {
        let Some(mut deadline) = self.deadline.clone() else { return pending().await };
        let mut change = pin!(async {
            loop {
                let end = *deadline.borrow_and_update();
                tokio::select! {
                    // Without a sender, the deadline stays as it is.
                    () = async { if deadline.changed().await.is_err() { pending().await } } => {}
                    () = sleep_until(end.unwrap_or_else(Instant::now)), if was_held => {}
                }
                if self.is_held() != was_held {
                    return;
                }
            }
        });
        // The clock decides, whatever wakes this task first: after SIGSTOP and SIGCONT, timers are late.
        let change = poll_fn(|context| match self.is_held() == was_held {
            true => change.as_mut().poll(context),
            false => Poll::Ready(()),
        });
        change.await;
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::{advance, timeout};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn it_is_held_until_its_deadline_and_longer_if_that_moves() {
        let (sender, leadership) = Leadership::channel();
        let now = Instant::now();
        let second = Duration::from_secs(1);
        assert!(!leadership.is_held());
        assert!(timeout(60 * second, leadership.changes(false)).await.is_err());
        sender.send_replace(Some(Instant::now() + 10 * second));
        leadership.changes(false).await;
        let moves = async {
            advance(9 * second).await;
            sender.send_replace(Some(Instant::now() + 10 * second));
        };
        tokio::join!(leadership.changes(true), moves);
        assert_eq!(now.elapsed().as_secs(), 60 + 9 + 10);
        assert!(!leadership.is_held());
        sender.send_replace(Some(Instant::now() + 10 * second));
        let ends = async { sender.send_replace(None) };
        tokio::join!(leadership.changes(true), ends);
        assert!(Leadership::always().is_held());
    }

    /// A frozen process wakes up after its deadline, and a socket may wake a task before its timers do.
    #[tokio::test]
    async fn a_late_timer_does_not_prolong_it() {
        let (sender, leadership) = Leadership::channel();
        sender.send_replace(Some(Instant::now() + Duration::from_millis(200)));
        let mut changes = pin!(leadership.changes(true));
        let first = poll_fn(|context| Poll::Ready(changes.as_mut().poll(context))).await;
        assert!(first.is_pending());
        // Blocks the thread, and with it the timers.
        std::thread::sleep(Duration::from_millis(250));
        let next = poll_fn(|context| Poll::Ready(changes.as_mut().poll(context))).await;
        assert!(next.is_ready());
    }
}
