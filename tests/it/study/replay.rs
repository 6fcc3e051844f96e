//! Recordings, and what `replay` says of them.

use super::*;

#[tokio::test]
async fn a_recording_contains_no_token_and_no_value_of_a_secret() {
    on(&BOTH, async |fixture| {
        let reader = Reader::admin(fixture);
        let applied =
            json!({"kubectl.kubernetes.io/last-applied-configuration": "{\"data\":\"aHVudGVyMg==\"}"});
        let metadata = json!({"name": "s", "annotations": applied});
        fixture.create("secrets", &json!({"metadata": metadata, "data": {"password": "aHVudGVyMg=="}})).await;
        // As kubectl: NAME TYPE DATA AGE. On the screen, the cells were also redacted.
        for command in ["get secrets -o wide", "get secrets/s --table -o short"] {
            let table = reader.run(command).await.succeeded();
            assert!(table.contains("Opaque") && !table.contains("redacted"), "{table}");
        }
        for (number, args) in
            ["get secrets/s", "get secrets", "get secrets --table", "watch secrets --max-events 1"]
                .iter()
                .enumerate()
        {
            let file = reader.file(&format!("recording-{number}"));
            reader.run(&format!("{args} --record {file}")).await.succeeded();
            let text = fs::read_to_string(&file).unwrap();
            assert!(
                text.contains("last-applied-configuration") && text.contains("/secrets"),
                "{args}: {text}"
            );
            for secret in ["aHVudGVyMg", "hunter2", fixture.admin_token()] {
                assert!(!text.contains(secret), "{args}: {text}");
            }
            let mut replay = Command::from(operator::listwatch());
            replay.args(["replay", &file, "--explain"]);
            // One object does not go into a store.
            let is_held = ran(replay).await.succeeded().contains("secrets: the store holds ");
            assert_eq!(is_held, number > 0, "{args}");
        }
    })
    .await;
}

/// Replays a recording of these entries, one each second: the number of the exchange, the field and its value.
async fn replay(entries: &[(u64, &str, Value)], args: &str) -> Ran {
    let mut text = format!("{HEADER}\n");
    for (time, (exchange, field, value)) in entries.iter().enumerate() {
        let mut entry = json!({"time": time, "exchange": exchange});
        entry[*field] = value.clone();
        text += &format!("{entry}\n");
    }
    let dir = TempDir::new().unwrap();
    let file = dir.path().join("recording");
    fs::write(&file, text).unwrap();
    let mut command = Command::from(operator::listwatch());
    command.arg("replay").arg(file).args(args.split_whitespace());
    ran(command).await
}

fn request(method: &str, path: &str) -> Value {
    json!({"method": method, "path": path})
}

fn head(status: u16, kind: &str) -> Value {
    json!({"status": status, "version": "HTTP/2.0", "headers": {"content-type": kind}})
}

const JSON: &str = "application/json";

fn pod(version: u32) -> Value {
    json!({"kind": "Pod", "metadata": {"namespace": "n", "name": "a", "uid": "1", "resourceVersion": version.to_string()}})
}

/// An operator that creates, patches and deletes a Deployment while its watch is open, and before the watch sends that.
fn operator_entries() -> Vec<(u64, &'static str, Value)> {
    let owner = json!({"apiVersion": "k8sobjects.gsa.com/v2", "kind": "MyWebserver", "name": "web", "uid": "7", "controller": true});
    let deployment = |version: &str, replicas: u32| {
        let metadata = json!({"namespace": "n", "name": "mws-web", "uid": "8", "resourceVersion": version, "ownerReferences": [owner]});
        json!({"kind": "Deployment", "metadata": metadata, "spec": {"replicas": replicas}})
    };
    let list = json!({"metadata": {"resourceVersion": "5"}, "items": []});
    let (all, path) = ("/apis/apps/v1/deployments", "/apis/apps/v1/namespaces/n/deployments");
    let one = format!("{path}/mws-web");
    vec![
        (11, "request", request("GET", &format!("{all}?limit=100"))),
        (11, "head", head(200, JSON)),
        (11, "rest", list),
        (11, "end", json!("clean")),
        (12, "request", request("GET", &format!("{all}?watch=1&resourceVersion=5"))),
        (12, "head", head(200, JSON)),
        (13, "request", request("POST", path)),
        (13, "head", head(201, JSON)),
        (13, "rest", deployment("6", 1)),
        (13, "end", json!("clean")),
        (14, "request", request("PATCH", &one)),
        (14, "head", head(200, JSON)),
        (14, "rest", deployment("7", 2)),
        (14, "end", json!("clean")),
        (12, "line", json!({"type": "ADDED", "object": deployment("6", 1)})),
        (15, "request", request("DELETE", &one)),
        (15, "head", head(200, JSON)),
        (15, "rest", json!({"kind": "Status", "status": "Success"})),
        (15, "end", json!("clean")),
    ]
}

/// It named the child, and not the owner, as the object to reconcile; and the Store had no answer of a write.
#[tokio::test]
async fn a_replay_of_an_operator_knows_its_writes_and_the_owners_of_its_children() {
    let entries = operator_entries();
    let created = replay(&entries[..10], "--explain").await;
    let added =
        "deployments n/mws-web is new → reconcile its owner, MyWebserver web; the store holds 1 object\n";
    assert!(created.stderr.contains(added), "{}", created.stderr);
    // Up to the version of the watch, not of the write.
    let stdout = created.succeeded();
    assert!(
        stdout.contains("deployments: the store holds 1 object, up to version 5: n/mws-web\n"),
        "{stdout}"
    );
    let deleted = replay(&entries, "--explain").await;
    for line in [
        "deployments n/mws-web has changed → reconcile its owner, MyWebserver web: spec.replicas 1 → 2\n",
        "deployments n/mws-web was deleted → reconcile its owner, MyWebserver web; the store holds 0 objects\n",
        // Which answer belongs to which request.
        "> 14: PATCH /apis/apps/v1/namespaces/n/deployments/mws-web\n< 14: HTTP/2.0 200\n",
        "< 12: /apis/apps/v1/deployments\n",
    ] {
        assert!(deleted.stderr.contains(line), "{line}: {}", deleted.stderr);
    }
    assert_eq!(deleted.stderr.matches("is new").count(), 1, "{}", deleted.stderr);
    let mut deleted_before = entries.clone();
    deleted_before[16].2 = head(404, JSON);
    let stdout = replay(&deleted_before, "").await.succeeded();
    assert!(stdout.contains("deployments: the store holds 0 objects, up to version 6\n"), "{stdout}");
    assert!(stdout.contains("deployments: would have reconciled MyWebserver n/web\n"), "{stdout}");
    // The object may only be terminating.
    let mut cut = entries.clone();
    (cut[17].2, cut[18].2) = (json!("{\"kind\": \"Sta"), json!("lost"));
    let stdout = replay(&cut, "").await.succeeded();
    assert!(
        stdout.contains("deployments: the store holds 1 object, up to version 6: n/mws-web\n"),
        "{stdout}"
    );
    let one_at_a_time = replay(&entries[..6], "").await.stderr;
    assert!(one_at_a_time.contains("> GET ") && one_at_a_time.contains("< HTTP/2.0 200"), "{one_at_a_time}");
}

/// It named the copy as the object to reconcile.
#[tokio::test]
async fn a_replay_knows_the_rule_of_a_copy() {
    let marks = json!({"flant.com/rule": "default/main", "flant.com/rule-uid": "7", "flant.com/place": "n/a",
        "flant.com/source": "default/a", "flant.com/content": "…"});
    let copy =
        json!({"namespace": "n", "name": "a", "uid": "8", "resourceVersion": "6", "annotations": marks});
    let watch = "/api/v1/configmaps?watch=1&resourceVersion=5&labelSelector=flant.com%2Fcopy%3Dtrue";
    let entries = [
        (1, "request", request("GET", watch)),
        (1, "head", head(200, JSON)),
        (1, "line", json!({"type": "ADDED", "object": {"metadata": copy}})),
    ];
    let ran = replay(&entries, "--explain").await;
    let is_new = "configmaps n/a is new → reconcile its owner, CopyratorRule default/main; the store holds";
    assert!(ran.stderr.contains(is_new), "{}", ran.stderr);
    let stdout = ran.succeeded();
    assert!(stdout.ends_with("would have reconciled CopyratorRule default/main\n"), "{stdout}");
}

/// It resumed from the version of an initial event.
#[tokio::test]
async fn after_a_watch_without_a_version_a_replay_lists() {
    for (version, end) in [("", "dropped"), ("&resourceVersion=0", "dropped"), ("", "clean"), ("", "lost")] {
        let ran = replay(
            &[
                (1, "request", request("GET", &format!("/api/v1/pods?watch=1{version}"))),
                (1, "head", head(200, JSON)),
                (1, "line", json!({"type": "ADDED", "object": pod(7)})),
                (1, "end", json!(end)),
            ],
            "--explain",
        )
        .await;
        let summary = "pods: the store holds 1 object: n/a\npods: the next request is GET /api/v1/pods?limit=100\n\
             pods: would have reconciled n/a\n";
        let stdout = ran.succeeded();
        assert!(stdout.ends_with(summary), "{version} {end}: {stdout}");
    }
}

/// With `-o yaml`, the page ended the command.
#[tokio::test]
async fn the_page_of_a_proxy_goes_to_standard_error_and_is_explained() {
    for form in ["yaml", "json", "name", "short", "wide"] {
        let ran = replay(
            &[
                (1, "request", request("GET", "/api/v1/pods?limit=100")),
                (1, "head", head(502, "text/html")),
                (1, "rest", json!("<html>\r\nBad Gateway</html>\r\n")),
                (1, "end", json!("clean")),
            ],
            &format!("--explain -o {form}"),
        )
        .await;
        assert!(ran.stderr.contains("\n<html>\nBad Gateway</html>\n"), "{form}: {}", ran.stderr);
        assert!(ran.stderr.contains("# 502, an HTML page and no Status"), "{form}: {}", ran.stderr);
        assert!(ran.succeeded().contains("pods: the next request is GET /api/v1/pods?limit=100\n"));
    }
    on(&[Kind::Embedded], async |fixture| {
        fixture.embedded().fault("html,path=/services".parse::<Planned>().unwrap());
        let ran = Reader::admin(fixture).run("get svc -o yaml").await;
        ran.failed(1, "502 Bad Gateway: an HTML page, not from the API server");
        assert_eq!(ran.stdout, "");
    })
    .await;
}

const HEADER: &str = r#"{"listwatchRecording":1,"server":"https://127.0.0.1:6443"}"#;
const REQUEST: &str =
    r#"{"time":0,"exchange":1,"request":{"method":"GET","path":"/api/v1/pods?watch=1&resourceVersion=6"}}"#;
const EVENT: &str = r#"{"type":"ADDED","object":{"kind":"Pod","metadata":{"name":"a","namespace":"n","uid":"1","resourceVersion":"7"}}}"#;

#[tokio::test]
async fn a_recording_that_is_cut_or_cannot_be_read_is_reported() {
    let dir = TempDir::new().unwrap();
    let replay = async |bytes: &[u8]| {
        let file = dir.path().join("recording");
        fs::write(&file, bytes).unwrap();
        let mut command = Command::from(operator::listwatch());
        ran({
            command.arg("replay").arg(file);
            command
        })
        .await
    };
    for (bytes, cause) in [
        (&b""[..], "is empty"),
        (b"no recording\n", "is neither a recording nor the JSON that curl received"),
        (b"\xff\xfe\x00\n", "is neither a recording"),
        (b"{}\n", "no `type`, no `kind`"),
        (
            br#"{"kind":"Status","code":403,"message":"no"}"#,
            r#"is a Status, neither a list nor a watch: {"code":403,"#,
        ),
        (
            br#"{"apiVersion":"v1","items":[],"kind":"List","metadata":{"resourceVersion":""}}"#,
            "is a List that kubectl composed, without a version: use kubectl get --raw",
        ),
        (br#"{"listwatchRecording":2,"new":1}"#, "format 2, but this listwatch reads formats up to 1"),
        (b"{\"listwatchRecording\":1}\n", "is a recording without an exchange"),
        (b"{\"listwatchRecording\":1}\n{\"time\":1}\n{}\n", "line 2 is not an entry of a recording"),
    ] {
        replay(bytes).await.failed(2, cause);
    }
    let whole = format!("{HEADER}\n{REQUEST}\n{{\"time\":1,\"exchange\":1,\"line\":{EVENT}}}\n");
    assert!(!replay(whole.as_bytes()).await.stderr.contains("cut short"));
    let cut = replay(&whole.as_bytes()[..whole.len() - 9]).await;
    assert!(cut.stderr.contains("is cut short: its last line has no end"), "{}", cut.stderr);
    let stdout = cut.succeeded();
    assert!(stdout.contains("pods: the store holds 0 objects, up to version 6\n"), "{stdout}");
    assert!(stdout.ends_with("pods: would have reconciled nothing\n"), "{stdout}");
}

#[tokio::test]
async fn the_output_of_curl_is_replayed_from_standard_input() {
    let mut command = Command::from(operator::listwatch());
    command.args(["replay", "-", "--explain", "-o", "name"]);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(format!("{EVENT}\n{EVENT}\n{{\"type\":\"MOD").as_bytes()).await.unwrap();
    drop(stdin);
    let Output { stdout, stderr, .. } = child.wait_with_output().await.unwrap();
    let (stdout, stderr) = (String::from_utf8(stdout).unwrap(), String::from_utf8(stderr).unwrap());
    // The request is not known. Without a version, no watch can resume from this one.
    let summary = "objects: the store holds 1 object: n/a\nobjects: the next request is GET …?limit=100\n\
         objects: would have reconciled n/a\n";
    assert!(stdout.ends_with(summary), "{stdout}");
    assert!(
        stderr.contains("the last line has no end") && stderr.contains("standard input is cut short"),
        "{stderr}"
    );
}

/// Objects of two kinds with one name were one object.
#[tokio::test]
async fn a_journal_of_writes_is_replayed_by_resource() {
    let write = |resource: &str, version: &str, secs: u64| {
        let object = json!({"apiVersion": version, "metadata": {"name": "a", "namespace": "n", "uid": resource,
            "resourceVersion": secs.to_string()}});
        json!({"type": "ADDED", "object": object, "resource": resource, "user": "admin", "changed": [],
            "time": format!("2026-11-21T07:14:{secs}.250Z")})
    };
    let writes = [
        write("configmaps", "v1", 10),
        write("pages.example.com", "example.com/v1", 11),
        write("configmaps", "v1", 12),
    ];
    let dir = TempDir::new().unwrap();
    let file = dir.path().join("writes.jsonl");
    fs::write(&file, writes.map(|write| format!("{write}\n")).concat()).unwrap();
    let mut command = Command::from(operator::listwatch());
    command.arg("replay").arg(file).args(["--explain", "-o", "name"]);
    let ran = ran(command).await;
    assert!(ran.stderr.contains("+1.000s # pages n/a is new "), "{}", ran.stderr);
    let stdout = ran.succeeded();
    for expected in ["configmaps: the store holds 1 object: n/a\n", "pages: the store holds 1 object: n/a\n"]
    {
        assert!(stdout.contains(expected), "{stdout}");
    }
}

#[tokio::test]
async fn a_replay_with_a_speed_takes_its_time() {
    let lines =
        [HEADER.to_owned(), REQUEST.to_owned(), format!("{{\"time\":2,\"exchange\":1,\"line\":{EVENT}}}\n")];
    let dir = TempDir::new().unwrap();
    let file = dir.path().join("recording");
    fs::write(&file, lines.join("\n")).unwrap();
    let replay = async |args: &[&str]| {
        let mut command = Command::from(operator::listwatch());
        command.arg("replay").arg(&file).args(args);
        let begun = Instant::now();
        let ran = ran(command).await;
        (ran, begun.elapsed())
    };
    let (at_speed, lasted) = replay(&["--speed", "2"]).await;
    assert!(lasted >= Duration::from_secs(1), "{lasted:?}");
    let (at_once, _) = replay(&[]).await;
    assert_eq!(at_speed.succeeded(), at_once.succeeded());
    for wrong in ["0", "-1", "fast", "inf", "NaN"] {
        let (refused, _) = replay(&[&*format!("--speed={wrong}")]).await;
        refused.failed(2, "is not a number above 0, such as 1 or 10");
    }
}
