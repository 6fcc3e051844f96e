//! Waits in tests: ask again until there is an answer, and show the last answers if there is none.

use std::{
    cell::RefCell,
    collections::VecDeque,
    fmt::Display,
    sync::atomic::{AtomicU16, Ordering},
    time::Duration,
};

use tokio::time::{Instant, sleep};

/// How long a wait may take, also on a machine that does much else.
pub const PATIENCE: Duration = Duration::from_secs(900);
/// The shortest pause before a question is asked again, and the longest. Many tests wait at the same time, so a long wait asks less often.
const PAUSES: [Duration; 2] = [Duration::from_millis(20), Duration::from_millis(500)];
/// How many answers are shown when a wait times out.
const SEEN_MAX: usize = 4;
/// Bytes shown of each answer.
const SEEN_BYTES_MAX: usize = 1500;

/// A number that no other test of this process has.
pub fn unique() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// Asks until there is an answer. Panics after [`PATIENCE`], and shows the last answers.
pub async fn eventually<T>(what: &str, ask: impl AsyncFn() -> Option<T>) -> T {
    within(PATIENCE, what, ask).await
}

/// As [`eventually`], with another time limit.
pub async fn within<T>(limit: Duration, what: &str, ask: impl AsyncFn() -> Option<T>) -> T {
    let begun = Instant::now();
    let asking = async {
        loop {
            if let Some(answer) = ask().await {
                return answer;
            }
            if begun.elapsed() >= limit {
                let seen: Vec<_> = SEEN.with(|seen| seen.borrow().iter().cloned().collect());
                let seen = if seen.is_empty() { "nothing".to_owned() } else { seen.join("\n  ") };
                panic!("waited {limit:?} for {what}; last seen:\n  {seen}");
            }
            sleep((begun.elapsed() / 20).clamp(PAUSES[0], PAUSES[1])).await;
        }
    };
    SEEN.scope(RefCell::default(), asking).await
}

tokio::task_local! {
    /// The last requests and their answers, shown when a wait times out.
    static SEEN: RefCell<VecDeque<String>>;
}

/// Remembers an answer, to be shown if the current wait times out.
pub fn saw(what: &str, answer: impl Display) {
    // Outside of a wait nothing is remembered.
    let _ = SEEN.try_with(|seen| {
        let mut text = format!("{what}: {answer}");
        text.truncate(text.floor_char_boundary(SEEN_BYTES_MAX));
        let mut seen = seen.borrow_mut();
        let label = format!("{what}: ");
        seen.retain(|entry| !entry.starts_with(&label));
        seen.push_back(text);
        if seen.len() > SEEN_MAX {
            seen.pop_front();
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The panic showed no answer.
    #[tokio::test]
    #[should_panic(expected = "waited 0ns for a pod; last seen:\n  GET /pods: 404 NotFound")]
    async fn a_wait_that_times_out_shows_the_last_answers() {
        within(Duration::ZERO, "a pod", async || {
            saw("GET /pods", "500");
            saw("GET /pods", "404 NotFound");
            None::<()>
        })
        .await;
    }
}
