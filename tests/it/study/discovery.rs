//! How the server is asked which kinds it has.

use super::*;

/// The embedded server answered 404.
#[tokio::test]
async fn the_root_lists_the_paths_of_the_server() {
    on(&BOTH, async |fixture| {
        let reader = Reader::admin(fixture);
        let root: Value = serde_json::from_str(&reader.run("get /").await.succeeded()).unwrap();
        let paths: Vec<_> = root["paths"].as_array().unwrap().iter().filter_map(Value::as_str).collect();
        assert!(paths.is_sorted() && root.as_object().unwrap().len() == 1, "{root}");
        for path in [
            "/api",
            "/api/v1",
            "/apis",
            "/apis/apps",
            "/apis/apps/v1",
            "/apis/k8sobjects.gsa.com",
            "/apis/k8sobjects.gsa.com/v2",
            "/healthz",
            "/healthz/ping",
            "/livez",
            "/livez/ping",
            "/openapi/v3",
            "/readyz",
            "/readyz/ping",
            "/version",
        ] {
            assert!(paths.contains(&path), "no {path} in {root}");
        }
        for path in paths.iter().filter(|_| fixture.is_embedded()) {
            assert_eq!(reader.run(&format!("get {path}")).await.code, Some(0), "{path}");
        }
    })
    .await;
}

/// The error came without the request and the status.
#[tokio::test]
async fn a_refused_discovery_is_shown_explained_and_recorded() {
    on(&[Kind::Embedded], async |fixture| {
        let reader = Reader::admin(fixture);
        for (fault, status, explained) in [
            ("unauthorized", 401, "the credentials are not valid"),
            ("internal-error", 500, "cannot answer now"),
            ("unavailable", 503, "cannot answer now"),
        ] {
            for command in ["get", "watch"] {
                fixture.embedded().end_faults();
                fixture.embedded().fault(format!("{fault},path=/apis").parse::<Planned>().unwrap());
                let file = reader.file(&format!("{fault}-{command}"));
                let ran = reader.run(&format!("{command} svc --explain --record {file}")).await;
                ran.failed(1, &format!("get /apis: {status} "));
                let [curl, head] = [0, 1].map(|line| ran.stderr.lines().nth(line).unwrap());
                assert!(curl.starts_with("$ curl ") && curl.ends_with("/apis'"), "{}", ran.stderr);
                assert_eq!(head, format!("< HTTP/2.0 {status}"), "{}", ran.stderr);
                assert!(sentences(&ran.stderr)[0].contains(explained), "{}", ran.stderr);
                let recording = fs::read_to_string(file).unwrap();
                assert!(
                    recording.contains("\"path\":\"/apis\"") && !recording.contains("\"/api\""),
                    "{recording}"
                );
            }
        }
    })
    .await;
}

/// The error was about old versions of Kubernetes, and came without the request and the status.
#[tokio::test]
async fn a_page_of_a_proxy_instead_of_a_discovery_is_reported_as_one() {
    on(&[Kind::Embedded], async |fixture| {
        fixture.embedded().fault("html,status=200,path=/api".parse::<Planned>().unwrap());
        for form in ["raw", "yaml"] {
            let ran = Reader::admin(fixture).run(&format!("get svc -o {form}")).await;
            ran.failed(1, "/api answered with text/html, not JSON (is a proxy or a login page in front of");
            let [curl, head] = [0, 1].map(|line| ran.stderr.lines().nth(line).unwrap());
            assert!(curl.starts_with("$ curl ") && curl.ends_with("/api'"), "{}", ran.stderr);
            assert_eq!((head, &*ran.stdout), ("< HTTP/2.0 200", ""), "{}", ran.stderr);
        }
    })
    .await;
}

/// It showed the same command four times, and no sentence.
#[tokio::test]
async fn a_discovery_that_reaches_no_server_is_shown_once_and_explained() {
    on(&[Kind::Embedded], async |fixture| {
        // Nothing listens there any more.
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("https://{}", listener.local_addr().unwrap());
        drop(listener);
        let reader = Reader::new(fixture, &url, fixture.admin_token());
        for (target, again) in [("svc", 3), ("/api/v1/services", 0)] {
            let ran = reader.run(&format!("get {target} --explain")).await;
            ran.failed(1, "refused");
            let count = |start: &str| ran.stderr.lines().filter(|line| line.starts_with(start)).count();
            let commands = (count("$ curl "), count("# the same request again"));
            assert_eq!(commands, (1, again), "{}", ran.stderr);
            let said = sentences(&ran.stderr);
            let about = said.iter().filter(|said| said.contains("# no answer: the server cannot be reached"));
            assert_eq!(about.count(), again + 1, "{}", ran.stderr);
        }
    })
    .await;
}
