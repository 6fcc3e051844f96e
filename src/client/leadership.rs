//! The right to write: always, or only while this process holds its Leases. `leader.rs` holds the Leases.

use std::{
    future::{pending, poll_fn},
    pin::pin,
    task::Poll,
};

use tokio::{
    sync::watch,
    time::{Instant, sleep_until},
};

/// Whether this process may write: always, or until the first deadline of its Leases. Clones share the deadlines.
#[derive(Clone, Debug, Default)]
pub(crate) struct Leadership {
    /// One for each Lease. `None` in the channel: another process holds it, or none.
    deadlines: Vec<watch::Receiver<Option<Instant>>>,
}

impl Leadership {
    /// Leadership without a Lease: this process may always write.
    #[must_use]
    pub(crate) fn always() -> Leadership {
        Leadership::default()
    }

    /// Leadership until the deadline that was sent last.
    pub(crate) fn channel() -> (watch::Sender<Option<Instant>>, Leadership) {
        let (sender, receiver) = watch::channel(None);
        (sender, Leadership { deadlines: vec![receiver] })
    }

    /// Whether this process may write now.
    #[must_use]
    pub(crate) fn is_held(&self) -> bool {
        self.deadlines.iter().all(|deadline| deadline.borrow().is_some_and(|end| Instant::now() < end))
    }

    /// Held only while both are.
    pub(crate) fn and(mut self, other: Leadership) -> Leadership {
        self.deadlines.extend(other.deadlines);
        self
    }

    /// Waits until [`Leadership::is_held`] is no longer as it was.
    pub(crate) async fn changes(&self, was_held: bool) {
        if self.deadlines.is_empty() {
            return pending().await;
        }
        let mut deadlines = self.deadlines.clone();
        let mut change = pin!(async {
            loop {
                let end = deadlines.iter_mut().filter_map(|deadline| *deadline.borrow_and_update()).min();
                tokio::select! {
                    () = one_changes(&mut deadlines) => {}
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

/// Waits for a change of one of the deadlines. Without its sender, a deadline stays as it is.
async fn one_changes(deadlines: &mut [watch::Receiver<Option<Instant>>]) {
    let mut changes: Vec<_> =
        deadlines.iter_mut().map(|deadline| Some(Box::pin(deadline.changed()))).collect();
    poll_fn(|context| {
        for change in &mut changes {
            match change.as_mut().map(|change| change.as_mut().poll(context)) {
                Some(Poll::Ready(Ok(()))) => return Poll::Ready(()),
                Some(Poll::Ready(Err(_))) => *change = None,
                Some(Poll::Pending) | None => {}
            }
        }
        Poll::Pending
    })
    .await;
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

    #[tokio::test(start_paused = true)]
    async fn two_are_held_until_the_first_deadline() {
        let ((one, of_one), (other, of_other)) = (Leadership::channel(), Leadership::channel());
        let both = of_one.and(of_other);
        let in_secs = |secs| Some(Instant::now() + Duration::from_secs(secs));
        one.send_replace(in_secs(20));
        assert!(timeout(Duration::from_secs(1), both.changes(false)).await.is_err());
        let begins = async { other.send_replace(in_secs(10)) };
        tokio::join!(both.changes(false), begins);
        let began = Instant::now();
        both.changes(true).await;
        assert_eq!(began.elapsed().as_secs(), 10);
        other.send_replace(in_secs(60));
        both.changes(false).await;
        drop(other);
        let ends = async { one.send_replace(None) };
        tokio::join!(both.changes(true), ends);
        assert!(!both.is_held());
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
