//! Tests `/metrics` and `/debug`: what is exported, who may read it, and what slow clients can do.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    io::Write,
    path::Path,
    process::{Command, Stdio},
    rc::Rc,
};

use listwatch_control_plane::{eventually, saw};
use regex::Regex;
use reqwest::{Client, Response};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

use crate::{
    alerts::promtool,
    clients,
    fixture::{Fixture, Kind, on},
    manifests,
    operator::Operator,
    proxy::Proxy,
};

async fn get(url: &str, token: &str) -> Response {
    // Nobody can verify a certificate that the operator makes.
    let client = Client::builder().tls_danger_accept_invalid_certs(true).build().unwrap();
    let request = client.get(url);
    let request = if token.is_empty() { request } else { request.bearer_auth(token) };
    request.send().await.unwrap()
}

async fn metrics(operator: &Operator) -> String {
    metrics_in(operator, "*/*", "text/plain; version=0.0.4; charset=utf-8").await
}

/// The metrics for this header `Accept`, which come in this format.
async fn metrics_in(operator: &Operator, accept: &str, media_type: &str) -> String {
    let url = format!("http://{}/metrics", operator.address("/metrics").await);
    let answer = Client::new().get(&url).header("accept", accept).send().await.unwrap();
    assert_eq!(answer.status(), 200);
    assert_eq!(answer.headers()["content-type"], media_type);
    let text = answer.text().await.unwrap();
    saw("the metrics", &text);
    text
}

/// An operator that leads and has a ready object.
async fn busy(fixture: &Fixture) -> Rc<Operator> {
    let (user, leases) = (fixture.operator_user(), manifests::lease_role()["rules"].take());
    if fixture.is_embedded() {
        let mut rules = manifests::cluster_role()["rules"].take();
        rules.as_array_mut().unwrap().extend(leases.as_array().unwrap().clone());
        fixture.embedded().set_rules(&user, serde_json::from_value(rules).unwrap());
    } else {
        fixture.create("roles", &json!({"metadata": {"name": "leader"}, "rules": leases})).await;
        let group = "rbac.authorization.k8s.io";
        let binding = json!({
            "metadata": {"name": "leader"},
            "roleRef": {"apiGroup": group, "kind": "Role", "name": "leader"},
            "subjects": [{"apiGroup": group, "kind": "User", "name": user}],
        });
        fixture.create("rolebindings", &binding).await;
    }
    fixture.start_operator(&["--leader-elect"]).await;
    fixture.create_web("web", json!({"image": "nginx"})).await;
    fixture.until("mywebservers/web", |web| web["status"]["observedGeneration"] == 1).await;
    fixture.operator()
}

/// The names and types, and the names of the labels.
pub fn exported(text: &str) -> BTreeMap<String, (String, BTreeSet<String>)> {
    let mut all = BTreeMap::<String, (String, BTreeSet<String>)>::new();
    let label = Regex::new(r#"([a-z]+)=""#).unwrap();
    let mut last = String::new();
    for line in text.lines() {
        if let Some(declared) = line.strip_prefix("# TYPE ") {
            let (name, kind) = declared.split_once(' ').unwrap();
            last = name.to_owned();
            all.insert(last.clone(), (kind.to_owned(), BTreeSet::new()));
        } else if !line.starts_with('#') {
            let labels = label.captures_iter(line).map(|found| found[1].to_owned());
            all.get_mut(&last).unwrap().1.extend(labels.filter(|label| label != "le"));
        }
    }
    all
}

pub fn documented() -> BTreeMap<String, (String, BTreeSet<String>)> {
    let page = fs::read_to_string(Path::new(crate::ROOT).join("docs/metrics.md")).unwrap();
    let is_metric = |line: &&str| {
        ["counter", "gauge", "histogram"].iter().any(|kind| line.contains(&format!("` | {kind} |")))
    };
    let rows = page.lines().filter(is_metric);
    rows.map(|row| {
        let cells: Vec<_> =
            row.trim_matches('|').split('|').map(|cell| cell.trim().replace('`', "")).collect();
        let labels = cells[2].split(", ").filter(|label| !label.is_empty()).map(str::to_owned);
        (cells[0].clone(), (cells[1].clone(), labels.collect()))
    })
    .collect()
}

/// The queries of the alerts and of the dashboard, each with a text that has labels of the result.
fn queries() -> Vec<(String, String)> {
    let alerts = manifests::read("base/monitoring/alerts.yaml").remove(0);
    let rules = alerts["spec"]["groups"][0]["rules"].as_array().unwrap().iter();
    let rules = rules.map(|rule| (&rule["expr"], &rule["annotations"]["summary"]));
    let dashboard = manifests::read("base/monitoring/dashboard.json").remove(0);
    let panels = dashboard["panels"].as_array().unwrap().iter();
    let targets = panels.flat_map(|panel| panel["targets"].as_array().unwrap());
    let targets = targets.map(|target| (&target["expr"], &target["legendFormat"]));
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    rules.chain(targets).map(|(query, labels)| (text(query), text(labels))).collect()
}

/// Matchers name labels of their metric, `by` labels of a metric of the query, and the text labels that the result still has.
fn check_labels(series: &BTreeMap<String, BTreeSet<String>>, query: &str, text: &str) {
    let found = |pattern: &str, text: &str| -> BTreeSet<String> {
        Regex::new(pattern).unwrap().captures_iter(text).map(|found| found[1].to_owned()).collect()
    };
    let mut of_metrics = BTreeSet::new();
    for selector in Regex::new(r"\b([a-z_]+)\{([^}]*)\}").unwrap().captures_iter(query) {
        let labels = series.get(&selector[1]).unwrap_or_else(|| panic!("not exported: {query}"));
        let matched = found(r#"([a-z]+)(?:=~|!~|!=|=)""#, &selector[2]);
        assert!(matched.contains("job") && matched.is_subset(labels), "{query}");
        of_metrics.extend(labels.clone());
    }
    assert!(!of_metrics.is_empty(), "{query}");
    let kept: BTreeSet<String> =
        found(r"by \(([^)]*)\)", query).iter().flat_map(|labels| found(r"([a-z]+)", labels)).collect();
    assert!(kept.is_subset(&of_metrics), "{query}");
    let named = found(r"\{\{\s*(?:\$labels\.)?([a-z]+)\s*\}\}", text);
    assert!(named.is_subset(if kept.is_empty() { &of_metrics } else { &kept }), "{text}: {query}");
}

#[tokio::test]
async fn an_operator_exports_what_the_page_the_alerts_and_the_dashboard_name() {
    on(&[Kind::Embedded, Kind::Real], async |fixture| {
        let operator = busy(fixture).await;
        let exported = exported(&metrics(&operator).await);
        let mut documented = documented();
        let of_webhooks: Vec<_> = documented.extract_if(.., |name, _| name.contains("webhook")).collect();
        assert_eq!(exported, documented, "docs/metrics.md");
        let mut series = BTreeMap::from([("up".to_owned(), BTreeSet::new())]);
        for (name, (kind, labels)) in exported.into_iter().chain(of_webhooks) {
            match &*kind {
                "histogram" => {
                    for end in ["_count", "_sum"] {
                        series.insert(format!("{name}{end}"), labels.clone());
                    }
                    series
                        .insert(format!("{name}_bucket"), labels.into_iter().chain(["le".into()]).collect());
                }
                _ => _ = series.insert(name, labels),
            }
        }
        for labels in series.values_mut() {
            labels.extend(["job", "namespace", "pod", "service"].map(str::to_owned));
        }
        let queries = queries();
        assert!(queries.len() > 20, "{queries:?}");
        for (query, text) in queries {
            check_labels(&series, &query, &text);
        }
    })
    .await;
}

/// It missed the help of all counters: every answer was in OpenMetrics, which names them without `_total` there.
#[tokio::test]
async fn promtool_finds_no_fault_in_the_metrics() {
    on(&[Kind::Embedded, Kind::Real], async |fixture| {
        let Some(mut promtool) = promtool() else { return };
        let text = metrics(&*busy(fixture).await).await;
        let build = format!("listwatch_build_info{{version=\"{}\"}} 1\n", env!("CARGO_PKG_VERSION"));
        assert!(text.contains(&build));
        promtool
            .args(["check", "metrics"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut child = promtool.spawn().unwrap();
        child.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
        let output = child.wait_with_output().unwrap();
        let problems = [&output.stdout[..], &output.stderr].concat();
        assert_eq!(String::from_utf8_lossy(&problems), "");
        assert!(output.status.success());
    })
    .await;
}

#[tokio::test]
async fn the_parser_of_the_python_client_reads_the_metrics() {
    on(&[Kind::Embedded, Kind::Real], async |fixture| {
        let Some(program) = clients::program("python") else { return };
        // As Prometheus asks.
        let accept = "application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.3,*/*;q=0.2";
        let media_type = "application/openmetrics-text; version=1.0.0; charset=utf-8";
        let text = metrics_in(&*busy(fixture).await, accept, media_type).await;
        let script = "import sys; from prometheus_client.openmetrics.parser import text_string_to_metric_families as read; \
            print(sum(len(family.samples) for family in read(sys.stdin.read())))";
        let python = program.with_file_name("bin/python");
        let mut child = Command::new(python);
        child.args(["-c", script]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = child.spawn().unwrap();
        child.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success(), "{text}");
        let samples: usize = String::from_utf8_lossy(&output.stdout).trim().parse().unwrap();
        assert_eq!(samples, text.lines().filter(|line| !line.starts_with('#')).count());
    })
    .await;
}

#[tokio::test]
async fn the_metrics_count_writes_relists_and_failures() {
    on(&[Kind::Embedded, Kind::Real], async |fixture| {
        let operator = busy(fixture).await;
        let value = async |sample: &str| {
            let text = metrics(&operator).await;
            let line = text.lines().find(|line| line.starts_with(sample));
            line.and_then(|line| line.rsplit_once(' '))
                .map_or(0.0, |(_, value)| value.parse::<f64>().unwrap())
        };
        // It may lose the Lease on a busy machine, and takes it again.
        eventually("the leader in the metrics", async || {
            (value("leader_election_master_status{").await == 1.0).then_some(())
        })
        .await;
        // One of them is the barrier.
        assert_eq!(
            value(r#"listwatch_writes_total{verb="create",resource="deployments.apps",code="200"}"#).await,
            2.0
        );
        assert_eq!(value(r#"listwatch_lists_total{resource="services",reason="Start"}"#).await, 1.0);
        assert_eq!(value(r#"listwatch_watches{resource="services",state="synced"}"#).await, 1.0);
        assert_eq!(
            value(r#"listwatch_store_objects{resource="mywebservers.k8sobjects.gsa.com"}"#).await,
            2.0
        );
        assert_eq!(
            value(r#"controller_runtime_reconcile_errors_total{controller="mywebserver"}"#).await,
            0.0
        );

        // An object of that name, which is not ours, is in the way.
        fixture.create_service("mws-taken").await;
        fixture.create_web("taken", json!({"image": "nginx"})).await;
        eventually("the reason in the metrics", async || {
            let sample = r#"listwatch_objects{kind="MyWebserver",ready="False",reason="NameConflict"}"#;
            (value(sample).await == 1.0).then_some(())
        })
        .await;
        let sample = r#"listwatch_conditions{kind="MyWebserver",condition="Stalled",status="True",reason="NameConflict"}"#;
        assert_eq!(value(sample).await, 1.0);
    })
    .await;
}

#[tokio::test]
async fn the_debug_endpoint_shows_keys_and_watches_and_sets_the_log() {
    on(&[Kind::Embedded, Kind::Real], async |fixture| {
        let operator = busy(fixture).await;
        let url = format!("http://{}/debug", operator.address("/debug/state").await);
        let state = get(&format!("{url}/state"), "").await.bytes().await.unwrap();
        let state: Value = serde_json::from_slice(&state).unwrap();
        let watches = state["watches"].as_array().unwrap();
        let services = watches.iter().find(|watch| watch["watch"].as_str().unwrap().starts_with("services "));
        assert_eq!(services.unwrap()["state"], "synced");
        assert_ne!(services.unwrap()["resourceVersion"], "");
        assert_eq!(state["controllers"][0]["kind"], "MyWebserver");

        let put = async |levels: &str| {
            let request = Client::new().put(format!("{url}/log")).body(levels.to_owned());
            request.send().await.unwrap().status().as_u16()
        };
        assert_eq!(put("error").await, 200);
        let before = operator.log().len();
        assert_eq!(put("loud").await, 400);
        assert_eq!(put(&"x".repeat(5000)).await, 413);
        fixture.patch("mywebservers/web", json!({"spec": {"port": 8000}})).await;
        fixture.until("mywebservers/web", |web| web["status"]["observedGeneration"] == 2).await;
        assert_eq!(operator.log()[before..], *"");
        assert_eq!(put("debug").await, 200);
        fixture.patch("mywebservers/web", json!({"spec": {"port": 8001}})).await;
        eventually("a line of the level debug", async || {
            operator.log()[before..].contains("\"level\":\"DEBUG\"").then_some(())
        })
        .await;
    })
    .await;
}

/// Clients that only connect took all connections, and the kubelet would have restarted the Pod.
#[tokio::test]
async fn clients_that_send_nothing_keep_no_other_client_away() {
    on(&[Kind::Embedded, Kind::Real], async |fixture| {
        fixture.start_operator(&[]).await;
        let operator = fixture.operator();
        let mut idle = Vec::new();
        for path in ["/livez", "/metrics", "/debug/state"] {
            let address = operator.address(path).await;
            for _ in 0..100 {
                idle.push(TcpStream::connect(&address).await.unwrap());
            }
        }
        operator.until_ready().await;
        metrics(&operator).await;
        // The oldest ones were ended.
        assert_eq!(idle[0].read(&mut [0]).await.unwrap_or(0), 0);
    })
    .await;
}

/// Neither a client that sends a part of a request, nor one that never ends its request, keeps a connection.
#[tokio::test]
async fn slow_and_endless_requests_end() {
    on(&[Kind::Embedded, Kind::Real], async |fixture| {
        fixture.start_operator(&[]).await;
        let operator = fixture.operator();
        for (path, request) in
            [("/livez", "GET /livez"), ("/metrics", "GET /metrics"), ("/debug/log", "PUT /debug/log")]
        {
            let address = operator.address(path).await;
            let chunk = "x".repeat(1000);
            let endless_head = (format!("{request} HTTP/1.1\r\n"), format!("a: {chunk}\r\n"));
            let endless_body = format!("{request} HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n");
            for (begin, more) in [endless_head, (endless_body, format!("3e8\r\n{chunk}\r\n"))] {
                let mut stream = TcpStream::connect(&address).await.unwrap();
                stream.write_all(begin.as_bytes()).await.unwrap();
                while stream.write_all(more.as_bytes()).await.is_ok() {}
            }
            let mut slow = TcpStream::connect(&address).await.unwrap();
            slow.write_all(request.as_bytes()).await.unwrap();
            let _ = slow.read_to_end(&mut Vec::new()).await;
        }
        operator.until_ready().await;
    })
    .await;
}

/// The counter had only requests with an answer.
#[tokio::test]
async fn requests_without_an_answer_are_counted() {
    on(&[Kind::Embedded, Kind::Real], async |fixture| {
        let proxy = Proxy::start(&fixture.url()).await;
        *fixture.proxy_url.borrow_mut() = Some(proxy.url());
        fixture.start_operator(&[]).await;
        let operator = fixture.operator();
        drop(proxy);
        eventually("requests without an answer", async || {
            let text = metrics(&operator).await;
            text.contains("rest_client_requests_total{code=\"<error>\",method=\"GET\"").then_some(())
        })
        .await;
    })
    .await;
}

#[tokio::test]
async fn secure_metrics_need_a_token_with_the_right() {
    on(&[Kind::Real], async |fixture| {
        let namespace = &fixture.namespace;
        let name = format!("metrics-{namespace}");
        let operator_role = json!({"metadata": {"name": format!("{name}-auth")}, "rules": [
            {"apiGroups": ["authentication.k8s.io"], "resources": ["tokenreviews"], "verbs": ["create"]},
            {"apiGroups": ["authorization.k8s.io"], "resources": ["subjectaccessreviews"], "verbs": ["create"]},
        ]});
        let reader = json!({"metadata": {"name": name}, "rules": [{"nonResourceURLs": ["/metrics"], "verbs": ["get"]}]});
        let rbac = "/apis/rbac.authorization.k8s.io/v1";
        let operators = fixture.operator_user();
        let (_, account) = operators.rsplit_once(':').unwrap();
        for (role, user) in [(operator_role, account), (reader, "reader")] {
            let role_name = role["metadata"]["name"].clone();
            fixture.try_create(&format!("{rbac}/clusterroles"), &role).await.unwrap();
            let binding = json!({
                "metadata": {"name": role_name},
                "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role_name},
                "subjects": [{"kind": "ServiceAccount", "name": user, "namespace": namespace}],
            });
            fixture.try_create(&format!("{rbac}/clusterrolebindings"), &binding).await.unwrap();
        }
        let token = async |name: &str| {
            fixture.create("serviceaccounts", &json!({"metadata": {"name": name}})).await;
            let request = json!({"spec": {"expirationSeconds": 3600}});
            let answer = fixture.create(&format!("serviceaccounts/{name}/token"), &request).await;
            answer["status"]["token"].as_str().unwrap().to_owned()
        };
        let tokens = [token("reader").await, token("other").await];
        fixture.start_operator(&["--metrics-secure"]).await;
        let url = format!("https://{}/metrics", fixture.operator().address("/metrics").await);
        for (token, status) in [("", 401), ("no-token", 401), (&*tokens[1], 403), (&*tokens[0], 200)] {
            assert_eq!(get(&url, token).await.status().as_u16(), status, "{token}");
        }
        // The answers were kept.
        assert_eq!(get(&url, &tokens[0]).await.status(), 200);
        let records = fixture.records().await;
        assert_eq!(records.iter().filter(|record| record.path.contains("tokenreviews")).count(), 3);
    })
    .await;
}
