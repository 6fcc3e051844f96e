//! Decodes pages and lines for a Store: the only part of a watch that depends on the kind of the objects. The rest is
//! compiled once, and not for each kind. Nothing in this file does I/O.

use smol_str::SmolStr;
use tracing::debug;

use super::{
    decode::WatchEvent,
    machine::{End, EndReason, Machine},
};
use crate::{
    client::{Collection, Error, PageBody},
    resource::{ObjectMeta, Resource, Status},
    store::Store,
};

/// A [`Store`] of any kind, with the decoder of its objects.
pub(crate) trait AnyStore: Send + Sync {
    /// [`Store::version`].
    fn version(&self) -> SmolStr;
    /// [`Store::list_begins`].
    fn list_begins(&self);
    /// [`Store::forbidden`].
    fn forbidden(&self);
    /// [`Machine::checked`].
    fn checked(&self, machine: &mut Machine, version: &str);
    /// Decodes a page of a list for [`Machine::page`].
    fn page(
        &self,
        machine: &mut Machine,
        page: PageBody,
        collection: &Collection,
    ) -> Result<Option<EndReason>, Error>;
    /// Decodes a line of a watch for [`Machine::line`].
    fn line(
        &self,
        machine: &mut Machine,
        line: &[u8],
        collection: &Collection,
    ) -> Result<Option<End>, serde_json::Error>;
}

impl<K: Resource> AnyStore for Store<K> {
    fn version(&self) -> SmolStr {
        self.version()
    }

    fn list_begins(&self) {
        self.list_begins();
    }

    fn forbidden(&self) {
        self.forbidden();
    }

    fn checked(&self, machine: &mut Machine, version: &str) {
        machine.checked(version, self);
    }

    fn page(
        &self,
        machine: &mut Machine,
        page: PageBody,
        collection: &Collection,
    ) -> Result<Option<EndReason>, Error> {
        let page = page.decoded()?;
        log_page(collection, &page.version, page.items.len());
        Ok(machine.page(page, self))
    }

    fn line(
        &self,
        machine: &mut Machine,
        line: &[u8],
        collection: &Collection,
    ) -> Result<Option<End>, serde_json::Error> {
        let event = WatchEvent::<K>::from_json(line)?;
        let (object, version, status) = match &event {
            WatchEvent::Added(object) | WatchEvent::Modified(object) | WatchEvent::Deleted(object) => {
                (Some(object.metadata()), Some(&object.metadata().resource_version), None)
            }
            WatchEvent::Bookmark { version, .. } => (None, Some(version), None),
            WatchEvent::Error(status) => (None, None, Some(status)),
            WatchEvent::Unknown(_) => (None, None, None),
        };
        log_line(collection, event.type_name(), object, version, status, line.len());
        let problem = status.map(|status| status.message.clone()).unwrap_or_default();
        Ok(machine.line(event, self).map(|how| End { how, problem }))
    }
}

fn log_page(collection: &Collection, version: &str, objects: usize) {
    let Collection { resource, scope, .. } = collection;
    debug!(resource, scope = scope.to_string(), resource_version = %version, objects, "page");
}

/// Logs a line of a watch, without the object, which may contain secrets.
fn log_line(
    collection: &Collection,
    type_name: &str,
    object: Option<&ObjectMeta>,
    version: Option<&SmolStr>,
    status: Option<&Status>,
    bytes: usize,
) {
    debug!(
        resource = collection.resource,
        "type" = type_name,
        key = object.map(|object| display(object.key())),
        resource_version = version.map(display),
        code = status.map(|status| status.code),
        details = status.map(|status| &*status.message),
        bytes,
        "event"
    );
}
