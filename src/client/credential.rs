//! The credential of one request: an `Authorization` header, a client certificate, or nothing. `Debug` shows no secret.

use std::{fmt, sync::Arc};

use base64::{Engine, engine::general_purpose::STANDARD as BASE64};
use reqwest::header::HeaderValue;

/// A secret text: `Debug` hides it, and there is no `Display`.
#[derive(Clone, PartialEq)]
pub(super) struct SecretString(pub(super) String);

impl fmt::Debug for SecretString {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("(secret)")
    }
}

/// The credential of one request.
#[derive(Clone, Default, PartialEq)]
pub(super) struct Credential {
    pub(super) authorization: Option<HeaderValue>,
    /// Client certificate and key from a plugin, in PEM.
    pub(super) identity: Option<Arc<[u8]>>,
}

impl Credential {
    pub(super) fn bearer(token: &str) -> Result<Credential, String> {
        let token = token.trim();
        if token.is_empty() {
            return Err("empty".to_owned());
        }
        Credential::header(&format!("Bearer {token}"))
    }

    pub(super) fn basic(username: &str, password: &SecretString) -> Result<Credential, String> {
        Credential::header(&format!("Basic {}", BASE64.encode(format!("{username}:{}", password.0))))
    }

    fn header(text: &str) -> Result<Credential, String> {
        // The error must not quote the text.
        let mut value =
            HeaderValue::from_str(text).map_err(|_| "cannot stand in an HTTP header".to_owned())?;
        value.set_sensitive(true);
        Ok(Credential { authorization: Some(value), identity: None })
    }
}
