//! Conditions: the lines of `status.conditions`, for people and for `kubectl wait`. Nothing in this file does I/O.
//!
//! ```yaml
//! - {type: Ready, status: "False", reason: RolloutInProgress, message: 1 of 2 replicas are available, lastTransitionTime: …}
//! ```

use smol_str::{SmolStr, format_smolstr};

use super::Condition;

/// Longest reason of a condition, in characters, as in `metav1.Condition`.
pub(crate) const REASON_LENGTH_MAX: usize = 1024;
/// Longest message of a condition, in characters, as in `metav1.Condition`.
pub(crate) const MESSAGE_LENGTH_MAX: usize = 32_768;

/// Status, reason and message of a condition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// `True`, `False` or `Unknown`.
    pub(crate) status: &'static str,
    /// Why, for programs: one CamelCase word.
    pub reason: SmolStr,
    /// Why, for people.
    pub message: SmolStr,
}

impl Verdict {
    /// The status `True`.
    pub fn yes(reason: impl Into<SmolStr>, message: impl Into<SmolStr>) -> Verdict {
        Verdict { status: "True", reason: reason.into(), message: message.into() }
    }

    /// The status `False`.
    pub fn no(reason: impl Into<SmolStr>, message: impl Into<SmolStr>) -> Verdict {
        Verdict { status: "False", reason: reason.into(), message: message.into() }
    }

    /// The status `Unknown`.
    pub fn unknown(reason: impl Into<SmolStr>, message: impl Into<SmolStr>) -> Verdict {
        Verdict { status: "Unknown", reason: reason.into(), message: message.into() }
    }

    /// The condition to write, after those in `before`: its time changes only together with its status. `now` is RFC 3339
    /// in whole seconds. Reasons and messages of other components are made to fit the schema of a condition: otherwise
    /// the API server would refuse the whole status.
    #[must_use]
    pub(crate) fn condition(self, name: &str, generation: i64, before: &[Condition], now: &str) -> Condition {
        let before = find(before, name).filter(|before| before.status == self.status);
        Condition {
            r#type: name.into(),
            status: self.status.into(),
            reason: if is_reason(&self.reason) { self.reason } else { "Unspecified".into() },
            message: cut(self.message),
            last_transition_time: before
                .map_or_else(|| now.into(), |before| before.last_transition_time.clone()),
            observed_generation: generation,
        }
    }
}

/// A condition by its type.
#[must_use]
pub fn find<'a>(conditions: &'a [Condition], name: &str) -> Option<&'a Condition> {
    conditions.iter().find(|condition| condition.r#type == name)
}

/// Whether the schema of a condition accepts the text as a reason: `^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$`. The API
/// server does not validate the conditions of a Deployment in this way.
fn is_reason(text: &str) -> bool {
    let is_inner = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b',' | b':');
    text.len() <= REASON_LENGTH_MAX
        && text.starts_with(|first: char| first.is_ascii_alphabetic())
        && text.bytes().all(is_inner)
        && !text.ends_with([',', ':'])
}

/// Cuts a message to the length that the schema allows.
fn cut(message: SmolStr) -> SmolStr {
    match message.char_indices().nth(MESSAGE_LENGTH_MAX) {
        None => message,
        Some(_) => {
            let kept: String = message.chars().take(MESSAGE_LENGTH_MAX - 1).collect();
            format_smolstr!("{kept}…")
        }
    }
}
