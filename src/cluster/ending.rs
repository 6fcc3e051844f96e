//! Namespaces that are being deleted, as far as refused creates show it: operators have no permission to watch Namespaces.
//!
//! A namespace that is being deleted never comes back, and all objects go with it. So an object in it is as good as deleted. An object that
//! comes later is in a new namespace of that name.

use std::{collections::HashMap, sync::Mutex, time::Duration};

use smol_str::SmolStr;
use tokio::time::Instant;

use crate::locked;

/// How long a refusal counts. After a restored backup, the namespace is back.
const COUNTS: Duration = Duration::from_secs(60);

/// When the last create was refused, by namespace.
#[derive(Default)]
pub(super) struct EndingNamespaces(Mutex<HashMap<SmolStr, Instant>>);

impl EndingNamespaces {
    pub(super) fn includes(&self, namespace: &str) -> bool {
        locked(&self.0).get(namespace).is_some_and(counts)
    }

    /// A create was refused.
    pub(super) fn refused(&self, namespace: SmolStr) {
        let mut all = locked(&self.0);
        all.retain(|_, at| counts(at));
        all.insert(namespace, Instant::now());
    }

    /// Somebody has created an object.
    pub(super) fn lives(&self, namespace: &str) {
        locked(&self.0).remove(namespace);
    }
}

fn counts(at: &Instant) -> bool {
    at.elapsed() < COUNTS
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_namespace_ends_until_it_gets_an_object_or_the_refusal_is_old() {
        let ending = EndingNamespaces::default();
        for namespace in ["a", "b", "c"] {
            ending.refused(namespace.into());
        }
        ending.lives("a");
        let includes = || ["a", "b", "c", "d"].map(|namespace| ending.includes(namespace));
        assert_eq!(includes(), [false, true, true, false]);
        tokio::time::advance(COUNTS / 2).await;
        ending.refused("b".into());
        tokio::time::advance(COUNTS / 2).await;
        assert_eq!(includes(), [false, true, false, false]);
        ending.refused("d".into());
        assert_eq!(locked(&ending.0).len(), 2);
    }
}
