//! Tokens of ServiceAccounts: JWTs, signed with a key that this server makes when it first needs one.
//!
//! ```text
//! {"alg":"ES256","kid":"…"}.{"aud":["https://kubernetes.default.svc"],"exp":1795849200,"iss":"https://kubernetes.default.svc",
//!   "kubernetes.io":{"namespace":"shop","serviceaccount":{"name":"robot","uid":"…"}},"sub":"system:serviceaccount:shop:robot",…}
//! ```
//!
//! A token of a Secret has older claims and does not expire: it ends with its Secret.

use std::{
    sync::OnceLock,
    time::{Duration, SystemTime},
};

use base64::{
    Engine,
    prelude::{BASE64_STANDARD, BASE64_URL_SAFE_NO_PAD},
};
use ring::{
    digest::{SHA256, digest},
    rand::SystemRandom,
    signature::{
        ECDSA_P256_SHA256_FIXED, ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair, UnparsedPublicKey,
    },
};
use serde_json::{Value, json};

use crate::{
    kinds::field_checks::{each, text},
    storage::{Place, Storage},
};

/// The issuer and the audience of tokens.
pub(crate) const ISSUER: &str = "https://kubernetes.default.svc";

/// The issuer of tokens in Secrets.
const SECRET_ISSUER: &str = "kubernetes/serviceaccount";

/// What stands before a public key of P-256 in its DER form, SubjectPublicKeyInfo.
const P256_DER: &[u8] = b"\x30\x59\x30\x13\x06\x07\x2a\x86\x48\xce\x3d\x02\x01\x06\x08\x2a\x86\x48\xce\x3d\x03\x01\x07\x03\x42\x00";

/// The key that signs tokens.
#[derive(Default)]
pub(crate) struct SigningKey(OnceLock<EcdsaKeyPair>);

impl SigningKey {
    fn pair(&self) -> &EcdsaKeyPair {
        self.0.get_or_init(|| {
            let (kind, random) = (&ECDSA_P256_SHA256_FIXED_SIGNING, SystemRandom::new());
            let key =
                EcdsaKeyPair::generate_pkcs8(kind, &random).expect("the operating system has randomness");
            EcdsaKeyPair::from_pkcs8(kind, key.as_ref(), &random).expect("the key was just made")
        })
    }

    /// The name of the key, as kube-apiserver computes it.
    fn id(&self) -> String {
        let der = [P256_DER, self.pair().public_key().as_ref()].concat();
        BASE64_URL_SAFE_NO_PAD.encode(digest(&SHA256, &der))
    }

    pub(crate) fn sign(&self, claims: &Value) -> String {
        let encode = |value: &Value| BASE64_URL_SAFE_NO_PAD.encode(value.to_string());
        let text = format!("{}.{}", encode(&json!({"alg": "ES256", "kid": self.id()})), encode(claims));
        let signature = self.pair().sign(&SystemRandom::new(), text.as_bytes());
        let signature = signature.expect("the operating system has randomness");
        format!("{text}.{}", BASE64_URL_SAFE_NO_PAD.encode(signature))
    }

    /// The claims of a token that this key has signed.
    pub(crate) fn verify(&self, token: &str) -> Option<Value> {
        let (text, signature) = token.rsplit_once('.')?;
        let (_, claims) = text.split_once('.')?;
        let signature = BASE64_URL_SAFE_NO_PAD.decode(signature).ok()?;
        let key = UnparsedPublicKey::new(&ECDSA_P256_SHA256_FIXED, self.pair().public_key());
        key.verify(text.as_bytes(), &signature).ok()?;
        serde_json::from_slice(&BASE64_URL_SAFE_NO_PAD.decode(claims).ok()?).ok()
    }

    /// The public key, for programs that verify tokens themselves: `/openid/v1/jwks`.
    pub(crate) fn jwks(&self) -> Value {
        // An uncompressed point: 4, x, y.
        let point = self.pair().public_key().as_ref();
        let [x, y] = [&point[1..33], &point[33..]].map(|half| BASE64_URL_SAFE_NO_PAD.encode(half));
        json!({"keys": [{"use": "sig", "kty": "EC", "kid": self.id(), "crv": "P-256", "alg": "ES256", "x": x, "y": y}]})
    }
}

/// `/.well-known/openid-configuration`.
pub(crate) fn discovery(url: &str) -> Value {
    json!({"issuer": ISSUER, "jwks_uri": format!("{url}/openid/v1/jwks"), "response_types_supported": ["id_token"],
        "subject_types_supported": ["public"], "id_token_signing_alg_values_supported": ["ES256"]})
}

fn user(account: &Place) -> String {
    format!("system:serviceaccount:{}:{}", account.namespace().unwrap_or_default(), account.name())
}

/// The claims of a token for a ServiceAccount that expires.
pub(crate) fn claims(
    account: &Place,
    account_uid: &Value,
    audiences: &Value,
    now: SystemTime,
    life: Duration,
) -> Value {
    let secs = |time: SystemTime| time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs();
    let (issued, until) = (secs(now), secs(now + life));
    json!({"aud": audiences, "exp": until, "iat": issued, "nbf": issued, "iss": ISSUER,
        "kubernetes.io": {"namespace": account.namespace(), "serviceaccount": {"name": account.name(), "uid": account_uid}},
        "sub": user(account)})
}

/// The claims of a token in a Secret.
pub(crate) fn secret_claims(account: &Place, account_uid: &str, secret: &str) -> Value {
    json!({"iss": SECRET_ISSUER, "sub": user(account), "kubernetes.io/serviceaccount/namespace": account.namespace(),
        "kubernetes.io/serviceaccount/secret.name": secret, "kubernetes.io/serviceaccount/service-account.name": account.name(),
        "kubernetes.io/serviceaccount/service-account.uid": account_uid})
}

/// The user and the audiences of a token, if it has not expired, and its ServiceAccount and its Secret still exist.
pub(crate) fn authenticate(
    storage: &Storage,
    key: &SigningKey,
    token: &str,
) -> Option<(String, Vec<String>)> {
    let claims = key.verify(token)?;
    let user = text(&claims["sub"]);
    let (namespace, name) = user.strip_prefix("system:serviceaccount:")?.split_once(':')?;
    let account = storage.get(&Place::new("serviceaccounts", Some(namespace), name))?;
    let of = |field: &str| &claims[format!("kubernetes.io/serviceaccount/{field}")];
    let (account_uid, audiences) = if claims["iss"] == SECRET_ISSUER {
        let secret = storage.get(&Place::new("secrets", Some(namespace), text(of("secret.name"))))?;
        if text(&secret["data"]["token"]) != BASE64_STANDARD.encode(token) {
            return None;
        }
        (of("service-account.uid"), vec![ISSUER.to_owned()])
    } else {
        let expires = SystemTime::UNIX_EPOCH + Duration::from_secs(claims["exp"].as_u64()?);
        if expires <= storage.clock.now() {
            return None;
        }
        let audiences = each(&claims["aud"]).map(|one| text(one).to_owned()).collect();
        (&claims["kubernetes.io"]["serviceaccount"]["uid"], audiences)
    };
    (account["metadata"]["uid"] == *account_uid).then(|| (user.to_owned(), audiences))
}
