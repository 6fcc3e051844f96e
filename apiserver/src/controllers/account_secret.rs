//! Secrets with the token of a ServiceAccount: type `kubernetes.io/service-account-token`. They are filled, and deleted with their
//! ServiceAccount.

use base64::{Engine, prelude::BASE64_STANDARD};
use serde_json::Value;

use super::{Controllers, change, delete, uid};
use crate::{
    kinds::{Part, field_checks::text},
    storage::{Place, Storage},
    tokens,
    verbs::delete::Deletion,
};

const TYPE: &str = "kubernetes.io/service-account-token";
const NAME: &str = "kubernetes.io/service-account.name";
const UID: &str = "kubernetes.io/service-account.uid";

/// The Secrets with a token of a ServiceAccount.
pub(super) fn secrets_of(storage: &Storage, account: &Place) -> Vec<Place> {
    let mut places = storage.places("secrets");
    places.retain(|place| {
        let is_of = |secret: &Value| {
            secret["type"] == TYPE && secret["metadata"]["annotations"][NAME] == *account.name()
        };
        place.namespace() == account.namespace() && storage.get(place).is_some_and(|secret| is_of(secret))
    });
    places
}

/// Reconciles a Secret.
pub(super) fn secret(controllers: &Controllers, storage: &mut Storage, place: &Place, secret: &Value) {
    if secret["type"] != TYPE {
        return;
    }
    let annotations = &secret["metadata"]["annotations"];
    let account = Place::new("serviceaccounts", place.namespace(), text(&annotations[NAME]));
    let wanted = text(&annotations[UID]);
    let known = storage.get(&account).map(|account| uid(account).to_owned());
    let Some(account_uid) = known.filter(|uid| wanted.is_empty() || wanted == uid) else {
        return delete(storage, place, &Deletion::default());
    };
    let data = &secret["data"];
    let is_missing = |key: &str| text(&data[key]).is_empty();
    let token = is_missing("token")
        .then(|| controllers.key.sign(&tokens::secret_claims(&account, &account_uid, place.name())));
    let namespace = is_missing("namespace").then(|| place.namespace().unwrap_or_default().to_owned());
    let certificate = (text(&data["ca.crt"]) != BASE64_STANDARD.encode(&controllers.ca_pem))
        .then(|| controllers.ca_pem.clone());
    let new = [("token", token), ("namespace", namespace), ("ca.crt", certificate)];
    if new.iter().all(|(_, value)| value.is_none()) {
        return;
    }
    change(storage, place, Part::Main, |secret| {
        secret["metadata"]["annotations"][UID] = account_uid.into();
        for (key, value) in new {
            if let Some(value) = value {
                secret["data"][key] = BASE64_STANDARD.encode(value).into();
            }
        }
    });
}
