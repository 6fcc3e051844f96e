//! The requests that ask about users: access reviews, token reviews, and tokens of ServiceAccounts. Nothing is stored.
//!
//! ```text
//! POST /apis/authorization.k8s.io/v1/selfsubjectaccessreviews {"spec": {"resourceAttributes": {"verb": "list", "resource": "pods"}}}
//! 201 {…, "status": {"allowed": true}}
//! ```

use std::{
    sync::LazyLock,
    time::{Duration, SystemTime},
};

use base64::{Engine, prelude::BASE64_URL_SAFE_NO_PAD};
use ring::{hmac, rand::SystemRandom};
use serde_json::{Value, json};

use crate::{
    authorization::{Attributes, Subject},
    http::response::{Answer, Content},
    kinds::{
        Kind,
        built_in::{BuiltIn, PLAIN},
        field_checks::{each, text},
    },
    names::uid,
    request::{Request, ResourcePath},
    state::{Credential, Server},
    status::{Cause, StatusError},
    storage::{Place, Storage},
};

/// The issuer and the audience of tokens.
const ISSUER: &str = "https://kubernetes.default.svc";

/// The kind of the body of a request for a token, which is not served on its own.
static TOKEN_REQUEST: LazyLock<Kind> = LazyLock::new(|| {
    Kind::of_entry(&BuiltIn { group: "authentication.k8s.io", kind: "TokenRequest", ..PLAIN })
});

/// Answers a review of a user.
pub(crate) fn review(
    server: &Server,
    request: &Request,
    path: &ResourcePath,
    kind: &Kind,
) -> Result<Answer, StatusError> {
    let mut object = request.object_of(kind)?;
    kind.check_types(&object).map_err(|why| kind.undecodable(&why))?;
    kind.normalize(&mut object);
    (object["apiVersion"], object["kind"]) = (kind.api_version().into(), kind.kind.as_str().into());
    let storage = server.storage();
    let user = server.subject(&storage, request);
    let spec = &object["spec"];
    object["status"] = match kind.built_in() {
        "SelfSubjectReview" => {
            object["metadata"]["creationTimestamp"] = storage.clock.time().into();
            json!({"userInfo": shown(&user)})
        }
        "TokenReview" => token_status(server, &storage, spec)?,
        "SelfSubjectRulesReview" => {
            if text(&spec["namespace"]).is_empty() {
                return Err(StatusError::bad_request("no namespace on request".to_owned()));
            }
            let status = rules(server, &storage, &user, text(&spec["namespace"]));
            object["spec"] = json!({});
            status
        }
        of_access => {
            let mut causes = Vec::new();
            if spec["resourceAttributes"].is_null() == spec["nonResourceAttributes"].is_null() {
                let why = "exactly one of nonResourceAttributes or resourceAttributes must be specified";
                causes.push(Cause::invalid("spec.resourceAttributes", &Value::Null, why));
            }
            let is_self = of_access == "SelfSubjectAccessReview";
            let groups: Vec<String> = each(&spec["groups"]).map(|group| text(group).to_owned()).collect();
            if !is_self && text(&spec["user"]).is_empty() && groups.is_empty() {
                let why = "at least one of user or group must be specified";
                causes.push(Cause::invalid("spec.user", &"".into(), why));
            }
            if !causes.is_empty() {
                return Err(StatusError::invalid_as(&path.group, "", "", causes));
            }
            let other = Subject { name: text(&spec["user"]).to_owned(), groups };
            access(server, &storage, if is_self { &user } else { &other }, spec)
        }
    };
    Ok(Answer::new(201, Content::Json(object)))
}

fn shown(user: &Subject) -> Value {
    json!({"username": user.name, "groups": user.groups})
}

/// Whether a user may do this, and which binding allows it.
fn access(server: &Server, storage: &Storage, user: &Subject, spec: &Value) -> Value {
    let Some(granted) = server.granted(storage, user) else { return json!({"allowed": true}) };
    let path = &spec["nonResourceAttributes"];
    let attributes = Attributes::of_review(&spec["resourceAttributes"]);
    let rule = granted.iter().find(|granted| match path.is_null() {
        true => attributes.is_allowed_by(&granted.rule),
        false => granted.rule.allows_path(text(&path["path"]), text(&path["verb"])),
    });
    match rule {
        Some(granted) if granted.by.is_empty() => json!({"allowed": true}),
        Some(granted) => json!({"allowed": true, "reason": granted.by}),
        None => json!({"allowed": false}),
    }
}

/// The rules of a user in a namespace.
fn rules(server: &Server, storage: &Storage, user: &Subject, namespace: &str) -> Value {
    let all = json!({"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]});
    let everywhere = json!({"verbs": ["*"], "nonResourceURLs": ["*"]});
    let (mut of_resources, mut of_paths) = (Vec::new(), Vec::new());
    match server.granted(storage, user) {
        None => {
            of_resources.push(all);
            of_paths.push(everywhere);
        }
        Some(granted) => {
            let here = |one: &str| one == namespace;
            for rule in granted.into_iter().map(|granted| granted.rule) {
                if !rule.namespace.as_deref().is_none_or(here) {
                    continue;
                }
                if !rule.non_resource_urls.is_empty() {
                    of_paths.push(json!({"verbs": rule.verbs, "nonResourceURLs": rule.non_resource_urls}));
                    continue;
                }
                let mut shown =
                    json!({"verbs": rule.verbs, "apiGroups": rule.api_groups, "resources": rule.resources});
                if !rule.resource_names.is_empty() {
                    shown["resourceNames"] = rule.resource_names.into();
                }
                of_resources.push(shown);
            }
        }
    }
    json!({"resourceRules": of_resources, "nonResourceRules": of_paths, "incomplete": false})
}

fn token_status(server: &Server, storage: &Storage, spec: &Value) -> Result<Value, StatusError> {
    let token = text(&spec["token"]);
    if token.is_empty() {
        return Err(StatusError::bad_request(
            "token is required for TokenReview in authentication".to_owned(),
        ));
    }
    let audiences: Vec<&str> = each(&spec["audiences"]).map(text).collect();
    let is_ours = audiences.is_empty() || audiences.contains(&ISSUER);
    Ok(match server.user_of(storage, token) {
        Some(user) if is_ours => {
            json!({"authenticated": true, "user": shown(&Subject::of(Some(&user))), "audiences": [ISSUER]})
        }
        Some(user) if user.starts_with("system:serviceaccount:") => {
            let wrong =
                format!("token audiences {:?} is invalid for the target audiences {audiences:?}", [ISSUER]);
            json!({"user": {}, "error": format!("[invalid bearer token, {wrong}]")})
        }
        Some(_) | None => json!({"user": {}, "error": "invalid bearer token"}),
    })
}

/// Shortest life of a token.
const SECONDS_MIN: u64 = 600;

/// Makes a token for a ServiceAccount: a JWT that is signed with a key that nobody has, because only this server has to know it.
pub(crate) fn token(server: &Server, request: &Request, account: &Place) -> Result<Answer, StatusError> {
    let storage = server.storage();
    let kind = storage.kinds.built_in("", "serviceaccounts");
    let object = storage.get(account).ok_or_else(|| StatusError::not_found(&kind, account.name()))?;
    let (account_uid, now) = (object["metadata"]["uid"].clone(), storage.clock.now());
    let token_request = &TOKEN_REQUEST;
    let mut review = request.object_of(token_request)?;
    token_request.check_types(&review).map_err(|why| token_request.undecodable(&why))?;
    let spec = &mut review["spec"];
    let seconds = spec["expirationSeconds"].as_u64().unwrap_or(3600);
    if seconds < SECONDS_MIN {
        let why = "may not specify a duration less than 10 minutes";
        let cause = Cause::invalid("spec.expirationSeconds", &spec["expirationSeconds"], why);
        return Err(StatusError::invalid(token_request, "", vec![cause]));
    }
    if each(&spec["audiences"]).next().is_none() {
        spec["audiences"] = json!([ISSUER]);
    }
    spec["expirationSeconds"] = seconds.into();
    spec["boundObjectRef"] = spec["boundObjectRef"].take();
    let (namespace, name) = (account.namespace().unwrap_or_default(), account.name());
    let user = format!("system:serviceaccount:{namespace}:{name}");
    let expires = now + Duration::from_secs(seconds);
    let [issued, until] =
        [now, expires].map(|time| time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs());
    let claims = json!({"aud": spec["audiences"], "exp": until, "iat": issued, "nbf": issued, "iss": ISSUER, "jti": uid(),
        "kubernetes.io": {"namespace": namespace, "serviceaccount": {"name": name, "uid": account_uid}}, "sub": user});
    let token = signed(&claims)?;
    // A token for other audiences only is none for this server.
    if each(&spec["audiences"]).any(|audience| audience == ISSUER) {
        let credential = Credential {
            user,
            expires: Some(expires),
            account: Some((account.clone(), account_uid.clone())),
        };
        server.add_credential(&token, credential);
    }
    (review["apiVersion"], review["kind"]) = (token_request.api_version().into(), "TokenRequest".into());
    review["metadata"] = json!({"name": name, "namespace": namespace, "uid": account_uid, "creationTimestamp": storage.clock.time()});
    review["status"] = json!({"token": token, "expirationTimestamp": humantime::format_rfc3339_seconds(expires).to_string()});
    Ok(Answer::new(201, Content::Json(review)))
}

fn signed(claims: &Value) -> Result<String, StatusError> {
    let encode = |bytes: &[u8]| BASE64_URL_SAFE_NO_PAD.encode(bytes);
    let head = json!({"alg": "HS256", "typ": "JWT"});
    let text = format!("{}.{}", encode(head.to_string().as_bytes()), encode(claims.to_string().as_bytes()));
    let key = hmac::Key::generate(hmac::HMAC_SHA256, &SystemRandom::new());
    let key = key.map_err(|_| StatusError::internal("no random numbers"))?;
    Ok(format!("{text}.{}", encode(hmac::sign(&key, text.as_bytes()).as_ref())))
}
