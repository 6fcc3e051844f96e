//! [`AnyStore`]: what the loop in `watch.rs` does with a [`Store`] of any kind. It decodes the objects.

use smol_str::SmolStr;

use super::{Effect, decode::WatchEvent};
use crate::{
    client::{Error, PageBody},
    resource::{
        ObjectMeta, Resource,
        list::{Found, RawPage},
    },
    store::Store,
};

/// A [`Store`] of any kind, with the decoder of its objects. Only what is called through this trait is compiled for each kind.
pub(crate) trait AnyStore: Send + Sync {
    /// [`Store::version`].
    fn version(&self) -> SmolStr;
    /// [`Store::list_begins`].
    fn list_begins(&self);
    /// Takes the objects of a page of a list.
    fn page(&self, page: PageBody) -> Result<PageHead, Error>;
    /// [`Store::list_ends`].
    fn list_ends(&self, version: &SmolStr);
    /// Decodes a line of a watch, asks `decide` for its effect, and has this effect.
    fn line(
        &self,
        line: &[u8],
        decide: &mut dyn FnMut(&WatchEvent<&ObjectMeta>) -> Effect,
    ) -> Result<Effect, serde_json::Error>;
    /// [`Store::forbidden`].
    fn forbidden(&self);
    /// [`Store::len`].
    fn objects(&self) -> usize;
}

/// A page of a list without its objects.
pub(crate) struct PageHead {
    pub(super) version: SmolStr,
    pub(super) continue_token: String,
    /// The number of objects.
    pub(super) objects: usize,
}

impl<K: Resource> AnyStore for Store<K> {
    fn version(&self) -> SmolStr {
        self.version()
    }

    fn list_begins(&self) {
        self.list_begins();
    }

    fn page(&self, page: PageBody) -> Result<PageHead, Error> {
        // One by one: there is never more than one object in memory that is not kept.
        page.read(|body| {
            let page = RawPage::from_json(body)?;
            let version = page.version()?;
            // Also without objects: if this version is older, the server was restored from a backup.
            self.listed(&version, []);
            for object in page.items() {
                let (found, bytes) = match self.kept.weigh(object.as_bytes()) {
                    Ok(bytes) => (Found::from_json(object)?, bytes),
                    Err(problem) => (Found::without_content(object, problem)?, 0),
                };
                self.listed_of(&version, [(found, bytes)]);
            }
            let objects = page.items().count();
            Ok(PageHead { version, continue_token: page.continue_token(), objects })
        })
    }

    fn list_ends(&self, version: &SmolStr) {
        self.list_ends(version);
    }

    fn line(
        &self,
        line: &[u8],
        decide: &mut dyn FnMut(&WatchEvent<&ObjectMeta>) -> Effect,
    ) -> Result<Effect, serde_json::Error> {
        let (event, bytes) = match self.kept.weigh(line) {
            Ok(bytes) => (WatchEvent::<Found<K>>::from_json(line)?, bytes),
            Err(problem) => (WatchEvent::without_content(line, &problem)?, 0),
        };
        let effect = decide(&event.head());
        match (&effect, event.object()) {
            (Effect::Apply, Some(object)) => self.applied_of(object, bytes),
            (Effect::Remove, Some(object)) => self.deleted(object),
            (Effect::Listed, Some(object)) => self.listed_of("", [(object, bytes)]),
            (Effect::Complete(version), None) => self.list_ends(version),
            (Effect::Bookmark(version), None) => self.bookmark(version),
            // No effect on the Store, or not an effect of such an event.
            (Effect::Apply | Effect::Remove | Effect::Listed | Effect::Skip | Effect::End(_), None)
            | (Effect::Complete(_) | Effect::Bookmark(_) | Effect::Skip | Effect::End(_), Some(_)) => {}
        }
        Ok(effect)
    }

    fn forbidden(&self) {
        self.forbidden();
    }

    fn objects(&self) -> usize {
        self.len()
    }
}
