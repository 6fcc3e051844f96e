//! The requests that ask about users: access reviews, token reviews, and tokens of ServiceAccounts. Nothing is stored.
//!
//! ```text
//! POST /apis/authorization.k8s.io/v1/selfsubjectaccessreviews {"spec": {"resourceAttributes": {"verb": "list", "resource": "pods"}}}
//! 201 {…, "status": {"allowed": true}}
//! ```

use std::{sync::LazyLock, time::Duration};

use serde_json::{Value, json};

use crate::{
    authorization::{self, Subject},
    http::response::{Answer, Content},
    kinds::{
        Kind,
        built_in::{BuiltIn, PLAIN},
        field_checks::{each, text},
    },
    names::uid,
    request::{Accept, Request, ResourcePath},
    state::Server,
    status::{Cause, StatusError},
    storage::{Place, Storage},
    tokens::{self, ISSUER},
};

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
    if !matches!(request.accept()?, Accept::Json | Accept::Yaml) {
        return Err(StatusError::no_media_type());
    }
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
            authorization::review(server.granted(&storage, if is_self { &user } else { &other }), spec)
        }
    };
    Ok(Answer::new(201, Content::Json(object)))
}

fn shown(user: &Subject) -> Value {
    json!({"username": user.name, "groups": user.groups})
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
    let wanted: Vec<&str> = each(&spec["audiences"]).map(text).collect();
    let wanted = if wanted.is_empty() { vec![ISSUER] } else { wanted };
    let Some((user, audiences)) = server.authenticate(storage, token) else {
        return Ok(json!({"user": {}, "error": "invalid bearer token"}));
    };
    let common: Vec<&str> =
        wanted.iter().copied().filter(|one| audiences.iter().any(|has| has == one)).collect();
    if common.is_empty() && !user.starts_with("system:serviceaccount:") {
        return Ok(json!({"user": {}, "error": "invalid bearer token"}));
    }
    if common.is_empty() {
        let wrong = format!("token audiences {audiences:?} is invalid for the target audiences {wanted:?}");
        return Ok(json!({"user": {}, "error": format!("[invalid bearer token, {wrong}]")}));
    }
    Ok(json!({"authenticated": true, "user": shown(&Subject::of(Some(&user))), "audiences": common}))
}

/// Shortest life of a token.
const SECONDS_MIN: u64 = 600;

/// Makes a token for a ServiceAccount.
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
    let life = Duration::from_secs(seconds);
    let mut claims = tokens::claims(account, &account_uid, &spec["audiences"], now, life);
    claims["jti"] = uid().into();
    let token = server.key.sign(&claims);
    let (namespace, name) = (account.namespace(), account.name());
    (review["apiVersion"], review["kind"]) = (token_request.api_version().into(), "TokenRequest".into());
    review["metadata"] = json!({"name": name, "namespace": namespace, "uid": account_uid, "creationTimestamp": storage.clock.time()});
    review["status"] = json!({"token": token, "expirationTimestamp": humantime::format_rfc3339_seconds(now + life).to_string()});
    Ok(Answer::new(201, Content::Json(review)))
}
