//! The router: maps the path and method of a request to a handler, or to the error of an unknown path.

use std::{sync::Arc, time::Duration};

use http::Method;

use crate::{
    admission::Admission,
    conversions, discovery,
    http::{
        admitted::admitted,
        containers, handlers, health, metrics,
        response::{Answer, Content},
        reviews,
        target::Target,
    },
    kinds::{Kind, Kinds},
    request::{Accept, Request, ResourcePath},
    state::Server,
    status::StatusError,
    storage::{Place, Storage},
    tokens,
};

/// Answers one authorized request. An anonymous request can also be authorized, for example for `/healthz`.
pub(crate) async fn answer(server: &Arc<Server>, request: &Request) -> Answer {
    let Some(path) = ResourcePath::parse(&request.path) else {
        return non_resource(server, request).unwrap_or_else(Answer::refused);
    };
    let mut answer = resource(server, request, &path).await.unwrap_or_else(Answer::refused);
    if let (Content::Json(status), 400.., Ok(Accept::Yaml)) =
        (&answer.content, answer.status, request.accept())
    {
        answer.content = Content::Yaml(status.clone());
    }
    let storage = server.storage();
    let kind = storage.kinds.get(&path.group, &path.version, &path.plural);
    answer.warnings.extend(kind.and_then(|kind| kind.deprecation()).map(str::to_owned));
    answer
}

/// Answers a request for a path that is not a resource: health, version, discovery.
fn non_resource(server: &Server, request: &Request) -> Result<Answer, StatusError> {
    let path = request.path.trim_end_matches('/');
    request.query.timeout()?;
    if let Some(answer) = health::answer(request) {
        return Ok(answer);
    }
    if request.method != Method::GET {
        return Err(StatusError::method_not_allowed());
    }
    if path == "/metrics" {
        return Ok(Answer::text(200, metrics::text(server)));
    }
    let storage = server.storage();
    let kinds = &storage.kinds;
    let parts: Vec<&str> = path.split('/').skip(1).collect();
    let found = match parts[..] {
        [] => Some(discovery::paths(kinds)),
        ["version"] => Some(discovery::version()),
        [".well-known", "openid-configuration"] => Some(tokens::discovery(&server.url())),
        ["openid", "v1", "jwks"] => {
            let content = Content::Typed(server.key.jwks(), "application/jwk-set+json");
            return Ok(Answer::new(200, content));
        }
        ["api" | "apis"] if request.accepts("as=APIGroupDiscoveryList") && request.accepts("v=v2;") => {
            let value = discovery::aggregated(kinds, path == "/api");
            let content_type = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";
            return Ok(Answer::new(200, Content::Typed(value, content_type)));
        }
        ["api"] => Some(discovery::api_versions()),
        ["apis"] => Some(discovery::groups(kinds)),
        ["api", version] => discovery::resources(kinds, "", version),
        ["apis", group] => discovery::group(kinds, group),
        ["apis", group, version] => discovery::resources(kinds, group, version),
        ["openapi", "v3"] => Some(discovery::openapi_index(kinds, storage.revision())),
        ["openapi", "v3", "api", version] => discovery::openapi(kinds, "", version),
        ["openapi", "v3", "apis", group, version] => discovery::openapi(kinds, group, version),
        // If v3 does not have a kind, kubectl requests v2, and reports "no matches for kind" only if the request for v2
        // succeeds. In protobuf, an empty body is a document without paths.
        ["openapi", "v2"] if request.accepts("proto-openapi.spec.v2") => return Ok(Answer::text(200, "")),
        ["openapi", "v2"] => Some(discovery::openapi_v2(kinds)),
        _ => None,
    };
    found.map(|value| Answer::json(200, value)).ok_or_else(|| match parts[..] {
        ["api", _] => unknown_resource(kinds, ""),
        ["apis", group, _] => unknown_resource(kinds, group),
        _ => StatusError::no_such_path(),
    })
}

/// Answers a request for a collection, an object or a subresource.
async fn resource(
    server: &Arc<Server>,
    request: &Request,
    path: &ResourcePath,
) -> Result<Answer, StatusError> {
    let kind = find_kind(&server.storage(), path)?;
    let (query, method) = (&request.query, &request.method);
    let timeout = if query.flag("watch") == Some(true) { None } else { query.timeout()? };
    if *method == Method::HEAD && !kind.is_custom() {
        return Err(StatusError::method_not_allowed());
    }
    let in_namespace = path.namespace.is_some();
    if in_namespace && !kind.namespaced || path.name.is_some() && kind.namespaced && !in_namespace {
        return Err(if kind.is_custom() {
            StatusError::no_such_path()
        } else {
            StatusError::no_such_resource()
        });
    }
    if kind.is_review() {
        return match (method, &path.name) {
            (&Method::POST, None) => reviews::review(server, request, path, &kind),
            _ => Err(StatusError::method_not_allowed()),
        };
    }
    let Some(name) = &path.name else {
        return collection(server, request, path, &kind, timeout).await;
    };
    let may_not = match name.as_str() {
        "." | ".." => Some(format!("be '{name}'")),
        _ => name.contains('%').then(|| "contain '%'".to_owned()),
    };
    if let Some(what) = may_not {
        return Err(StatusError::bad_request(format!("Name parameter invalid: {name:?}: may not {what}")));
    }
    let place = Place::new(kind.stored_in(), path.namespace.as_deref(), name);
    let only_created = [("Pod", "binding"), ("Pod", "eviction"), ("ServiceAccount", "token")];
    let subresource = path.subresource.as_deref().unwrap_or_default();
    if only_created.contains(&(kind.built_in(), subresource)) {
        return match (method, subresource) {
            (&Method::POST, "binding") => handlers::bind(server, request, &kind, &place),
            (&Method::POST, "eviction") => handlers::evict(server, request, &kind, &place),
            (&Method::POST, _) => reviews::token(server, request, &place),
            _ => Err(StatusError::method_not_allowed()),
        };
    }
    if let ("Pod", Some(subresource)) = (kind.built_in(), path.subresource.as_deref())
        && let Some(answer) = containers::answer(server, request, &kind, &place, subresource)
    {
        return answer;
    }
    let target = Target::of(&kind, path, name)?;
    match *method {
        Method::GET | Method::HEAD => {
            conversions::forget(&server.storage(), path);
            loop {
                let answer = handlers::get(server, request, &kind, &place, target, timeout).await;
                if !conversions::learn(server).await {
                    return answer;
                }
            }
        }
        Method::PUT => {
            let put = |admission: Option<&mut Admission>| {
                handlers::put(server, request, &kind, &place, target, admission)
            };
            admitted(server, request, path, put).await
        }
        Method::PATCH => {
            let patch = |admission: Option<&mut Admission>| {
                handlers::patch(server, request, &kind, &place, target, admission)
            };
            admitted(server, request, path, patch).await
        }
        Method::DELETE if path.subresource.is_none() => {
            let delete = |admission: Option<&mut Admission>| {
                handlers::delete(server, request, &kind, &place, admission)
            };
            admitted(server, request, path, delete).await
        }
        Method::POST if kind.is_custom() && path.subresource.is_none() => {
            // As in kube-apiserver, a POST to the path of a custom resource creates the object.
            admitted(server, request, path, |admission: Option<&mut Admission>| {
                handlers::create(server, request, path, &kind, admission)
            })
            .await
        }
        Method::DELETE if kind.is_custom() => Err(StatusError::verb_not_supported(&kind, "delete")),
        Method::POST if kind.is_custom() => Err(StatusError::verb_not_supported(&kind, "create")),
        _ => Err(StatusError::method_not_allowed()),
    }
}

/// Answers a request for a collection.
async fn collection(
    server: &Arc<Server>,
    request: &Request,
    path: &ResourcePath,
    kind: &Arc<Kind>,
    timeout: Option<Duration>,
) -> Result<Answer, StatusError> {
    let namespace = path.namespace.as_deref();
    match request.method {
        Method::GET if request.query.flag("watch") == Some(true) => {
            handlers::watch(server, request, kind, namespace)
        }
        Method::GET | Method::HEAD => loop {
            let answer = handlers::list(server, request, kind, namespace, timeout).await;
            if !conversions::learn(server).await {
                break answer;
            }
        },
        // Without a namespace in its path, a namespaced collection is read-only.
        _ if kind.namespaced && namespace.is_none() && kind.is_custom() => Err(StatusError::no_such_path()),
        _ if kind.namespaced && namespace.is_none() => Err(StatusError::method_not_allowed()),
        Method::POST => {
            admitted(server, request, path, |admission: Option<&mut Admission>| {
                handlers::create(server, request, path, kind, admission)
            })
            .await
        }
        Method::DELETE if kind.built_in() == "Namespace" => Err(StatusError::method_not_allowed()),
        Method::DELETE => {
            let delete = |admission: Option<&mut Admission>| {
                handlers::delete_collection(server, request, kind, namespace, admission)
            };
            admitted(server, request, path, delete).await
        }
        Method::PUT | Method::PATCH if kind.is_custom() => {
            Err(StatusError::bad_request("name must be provided"))
        }
        // kube-apiserver maps this method to no verb, so the message has an empty verb.
        _ if kind.is_custom() => Err(StatusError::verb_not_supported(kind, "")),
        _ => Err(StatusError::method_not_allowed()),
    }
}

fn find_kind(storage: &Storage, path: &ResourcePath) -> Result<Arc<Kind>, StatusError> {
    if path.old_watch {
        return Err(StatusError::no_old_watch());
    }
    if let Some(kind) = storage.kinds.get(&path.group, &path.version, &path.plural) {
        return Ok(Arc::clone(kind));
    }
    Err(unknown_resource(&storage.kinds, &path.group))
}

/// The 404 error of an unknown resource: a `Status` in a built-in group, plain text in any other group.
fn unknown_resource(kinds: &Kinds, group: &str) -> StatusError {
    let built_in = kinds.in_group(group).any(|kind| !kind.is_custom());
    if built_in { StatusError::no_such_resource() } else { StatusError::no_such_path() }
}
