//! Calls the conversion webhooks of CRDs, for the conversions that an attempt of a request has missed.

use std::sync::Arc;

use serde_json::Value;

use crate::{
    kinds::{
        Source,
        conversion::{Missing, take_missing},
    },
    names::uid,
    request::ResourcePath,
    state::Server,
    storage::Storage,
    webhook_client::Address,
};

/// Forgets earlier conversions of a kind: a request for one object calls the webhook again. True if it has one.
pub(crate) fn forget(storage: &Storage, path: &ResourcePath) -> bool {
    let kind = storage.kinds.get(&path.group, &path.version, &path.plural);
    let Some(Source::Custom(custom)) = kind.map(|kind| &kind.source) else { return false };
    custom.conversion.as_ref().map(|conversion| conversion.forget()).is_some()
}

/// Learns the conversions that the last attempt on this thread has missed. False if there were none. To be awaited at once.
pub(crate) async fn learn(server: &Server) -> bool {
    let mut missing = take_missing();
    let is_some = !missing.is_empty();
    while let Some(Missing { conversion, object, api_version }) = missing.pop() {
        let is_same =
            |one: &mut Missing| Arc::ptr_eq(&one.conversion, &conversion) && one.api_version == api_version;
        let mut objects: Vec<Value> = missing.extract_if(.., is_same).map(|one| one.object).collect();
        objects.push(object);
        let (uid, config) = (uid(), &conversion.client_config);
        let address = Address::of(&server.storage(), config, server.webhook_port);
        let answer = address.post(&conversion.review(&objects, &api_version, &uid), None).await;
        conversion.learn(&objects, &api_version, answer, &uid);
    }
    is_some
}
