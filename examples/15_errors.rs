//! 15. 401, 403, 404, 429, 503: which error is final, which request is sent again, by whom, and when.
//!
//! ```sh
//! API=http://127.0.0.1:8001; URL=$API/api/v1/namespaces/default/configmaps
//! curl -s -w '\n%{http_code}\n' $URL/none
//! curl -s -o /dev/null -d forbidden,path=watch=1,times=1 $API/listwatch/faults
//! curl -s -w '\n%{http_code}\n' -H 'Impersonate-User: listwatch-course' "$URL?watch=1"
//! curl -s -w '\n%{http_code}\n' $API/apis/example.com/v1/webs
//! ```
//!
//! Predict: Two answers are 404. How does a missing object differ from a kind that the server does not have?
//! Run: cargo run --example course 15
//! Notice: The 404 of the object is a Status with its name, and the 404 of the kind may be plain text.
//! Why: No error above is final for `watch::watch`: it asks again from its version, after growing pauses, or lists. A call, such as a GET of
//! one object or a write, is sent again after a 401 if there is a new token, after 429 or 5xx with a short Retry-After, and a GET also after a cut.
//! Break it: cargo run --example course -- 15 --fault html,path=/configmaps/none
//! Source: `pause` in src/client/retry.rs; `authorized` in src/client/http.rs; `watch_has_not_opened` in src/watch/machine.rs
//! Embedded server: It refuses with 401, 403, 429 and 503 by faults. Elsewhere, only the 403 comes, for a user without permissions.

use std::time::{Duration, Instant};

use crate::stage::{Outcome, Stage, ensure, say};

pub(crate) async fn run(stage: &Stage) -> Outcome {
    let error = stage.refused(&format!("{}/none", stage.configmaps), "404").await?;
    ensure!(error.is_not_found(), "the error is no 404 for an object: {error}");
    let error = stage.refused("/apis/example.com/v1/webs", "404").await?;
    ensure!(error.is_missing_kind(), "the error is no 404 for a kind: {error}");
    stage.step().await?;
    let error = stage.refused(&format!("{}?labelSelector=%28", stage.configmaps), "400").await?;
    ensure!(error.code() == Some(400), "the error is no 400: {error}");
    stage.step().await?;
    for (name, code, again) in [
        ("forbidden", 403, "the watch loop after a pause"),
        ("too-many-requests", 429, "the watch loop after Retry-After and a pause"),
        ("unavailable", 503, "the watch loop after Retry-After, if any, and a pause"),
        ("unauthorized", 401, "the client with a new token, at once, or the watch loop after a pause"),
    ] {
        stage.refused_watch(name, code, again).await?;
    }
    stage.refused_by("forbidden", "/metrics").await?;
    stage.step().await?;
    let begun = Instant::now();
    if stage.fault("too-many-requests,path=/configmaps,times=1").await? {
        stage.get(&stage.configmaps).await?;
        say!("  a call, not a watch loop: sent again by the client after {:.1?}", begun.elapsed());
        ensure!(begun.elapsed() >= Duration::from_secs(1), "sent again before Retry-After");
    }
    Ok(())
}
