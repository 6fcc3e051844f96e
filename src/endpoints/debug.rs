//! `/debug/state` and `/debug/log`. They name objects; an error of the API server can quote the value of a field.
//!
//! ```text
//! $ curl localhost:8082/debug/state
//! {"watches":[{"watch":"services in all namespaces","state":"synced","objects":3,"resourceVersion":"1207",…}],
//!  "controllers":[{"kind":"MyWebserver","queue":[{"key":"default/web","state":"backing off","failures":4,"problem":"…"}],…}]}
//! $ curl -X PUT -d debug localhost:8082/debug/log
//! ```

use hyper::{Method, Request, StatusCode, body::Incoming};
use serde_json::{Value, json};

use super::{HttpAnswer, TEXT, answer as with_body};
use crate::cluster::Cluster;

pub(super) async fn answer(request: Request<Incoming>, cluster: &Cluster) -> HttpAnswer {
    match (request.method(), request.uri().path()) {
        (&Method::GET | &Method::HEAD, "/debug/state") => {
            with_body(StatusCode::OK, "application/json", format!("{:#}\n", state(cluster)))
        }
        (&Method::PUT, "/debug/log") => set_log(request.into_body()).await,
        (&Method::GET | &Method::HEAD | &Method::PUT, _) => {
            with_body(StatusCode::NOT_FOUND, TEXT, "there is GET /debug/state and PUT /debug/log\n")
        }
        _ => with_body(StatusCode::METHOD_NOT_ALLOWED, TEXT, "GET /debug/state or PUT /debug/log\n"),
    }
}

fn state(cluster: &Cluster) -> Value {
    let mut watches: Vec<Value> = Vec::new();
    for watch in cluster.watches() {
        watches.push(json!({
            "watch": watch.health.what(),
            "state": watch.health.state(),
            "problem": watch.health.problem(),
            "objects": watch.objects,
            "resourceVersion": watch.version,
            "silenceSeconds": watch.health.silence().as_secs(),
        }));
    }
    watches.sort_by_key(|watch| watch["watch"].to_string());
    let controllers = cluster.metrics().observed().into_iter().map(|controller| {
        let queue = controller.queued().into_iter().map(|queued| {
            json!({
                "key": queued.key.to_string(),
                "state": queued.state,
                "sinceSeconds": queued.since.as_secs(),
                "dueSeconds": queued.due.map(|due| due.as_secs()),
                "failures": queued.failures,
                "problem": Some(queued.problem).filter(|problem| !problem.is_empty()),
            })
        });
        let conditions = controller.conditions().into_iter();
        let ready = conditions.filter(|([condition, ..], _)| condition == "Ready");
        let objects = ready.map(
            |([_, ready, reason], objects)| json!({"ready": ready, "reason": reason, "objects": objects}),
        );
        json!({
            "kind": controller.kind(),
            "queue": queue.collect::<Vec<_>>(),
            "objects": objects.collect::<Vec<_>>(),
        })
    });
    json!({"watches": watches, "controllers": controllers.collect::<Vec<_>>()})
}

#[cfg(not(feature = "log"))]
async fn set_log(_: Incoming) -> HttpAnswer {
    with_body(StatusCode::NOT_FOUND, TEXT, "this program has a log of its own\n")
}

#[cfg(feature = "log")]
async fn set_log(body: Incoming) -> HttpAnswer {
    use http_body_util::{BodyExt, Limited};
    use tokio::time::timeout;

    use super::HEAD_LIMIT;

    /// Longest filter.
    const FILTER_BYTES_MAX: usize = 4 * 1024;
    let read = timeout(HEAD_LIMIT, Limited::new(body, FILTER_BYTES_MAX).collect()).await;
    let Ok(Ok(body)) = read else {
        return with_body(
            StatusCode::PAYLOAD_TOO_LARGE,
            TEXT,
            "a level, such as debug or info,listwatch::watch=trace\n",
        );
    };
    let levels = String::from_utf8_lossy(&body.to_bytes()).trim().to_owned();
    match crate::log::set(&levels) {
        Ok(()) => with_body(StatusCode::OK, TEXT, format!("{levels}\n")),
        Err(problem) => with_body(StatusCode::BAD_REQUEST, TEXT, format!("{levels:?} {problem}\n")),
    }
}
