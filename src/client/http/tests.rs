//! Requests against a server that sends scripted answers.

use std::{collections::VecDeque, sync::Mutex};

use http::Method;
use reqwest::header::{HeaderMap, HeaderName, HeaderValue, WARNING};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    net::TcpListener,
    task::JoinSet,
};

use super::{
    super::{
        Body, Client, Collection, Config, DeleteOptions, Error, Page, Part, Patch, Tap,
        list::{LISTS_BYTES_MAX, PAGE_BYTES_MAX, PAGE_OF_ONE_BYTES_MAX},
        no_answer::through,
        retry::{FIRST_PAUSE, RETRIES_MAX},
        tap::Step,
    },
    *,
};
use crate::{
    cluster::Cluster,
    locked,
    resource::{Key, Meta, Scope, kinds::Service},
    watch::Lists,
};

/// Closes the connection instead of an answer.
const HANG_UP: &str = "";
const FINE: &str = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}";
const BUSY: &str = "HTTP/1.1 429 Too Many Requests\r\nRetry-After: 0\r\nContent-Length: 5\r\n\r\nlater";

/// A server that gives these answers, in this order, and writes down what it was asked. It always has a /version.
struct Script {
    answers: Mutex<VecDeque<&'static str>>,
    asked: Mutex<Vec<String>>,
}

impl Script {
    fn new(answers: &[&'static str]) -> Arc<Script> {
        Arc::new(Script { answers: Mutex::new(answers.iter().copied().collect()), asked: Mutex::default() })
    }

    /// Method and path of the requests so far.
    fn asked(&self) -> Vec<String> {
        let line =
            |head: &String| head.lines().next().unwrap_or_default().trim_end_matches(" HTTP/1.1").into();
        locked(&self.asked).iter().map(line).collect()
    }

    /// The values of one header in the requests so far.
    fn header(&self, name: &str) -> Vec<String> {
        let value =
            |head: &String| head.lines().find_map(|line| line.strip_prefix(name).map(ToOwned::to_owned));
        locked(&self.asked).iter().filter_map(value).collect()
    }

    async fn serve(self: Arc<Script>, mut peer: impl AsyncRead + AsyncWrite + Unpin) {
        let mut read = Vec::new();
        while peer.read_buf(&mut read).await.is_ok_and(|count| count > 0) {
            let text = String::from_utf8_lossy(&read).to_lowercase();
            let Some((head, body)) = text.split_once("\r\n\r\n") else { continue };
            let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
            if body.len() < length.map_or(0, |length| length.parse().unwrap_or_default()) {
                continue;
            }
            let head = String::from_utf8_lossy(&read[..head.len()]).into_owned();
            read.clear();
            let answer = if head.starts_with("GET /version ") {
                FINE
            } else {
                locked(&self.asked).push(head);
                locked(&self.answers).pop_front().unwrap_or(HANG_UP)
            };
            let sent = peer.write_all(answer.as_bytes()).await;
            if sent.is_err() || !answer.contains("Length: ") {
                return;
            }
        }
    }
}

/// A client of a server with these answers, on plain HTTP. The server ends with the set.
async fn client(answers: &[&'static str]) -> (Client, Arc<Script>, JoinSet<()>) {
    configured(answers, |config| config).await
}

async fn configured(
    answers: &[&'static str],
    change: impl FnOnce(Config) -> Config,
) -> (Client, Arc<Script>, JoinSet<()>) {
    let script = Script::new(answers);
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address");
    let mut server = JoinSet::new();
    let scripted = Arc::clone(&script);
    server.spawn(async move {
        let mut peers = JoinSet::new();
        while let Ok((peer, _)) = listener.accept().await {
            peers.spawn(Arc::clone(&scripted).serve(peer));
        }
    });
    let config = Config::new(&format!("http://{address}"), b"", "").expect("a config");
    (Client::new(change(config)).expect("a client"), script, server)
}

/// The steps of each exchange, in words.
#[derive(Default)]
struct Steps(Mutex<Vec<String>>);

impl Tap for Steps {
    fn step(&self, _: u64, step: Step<'_>) {
        locked(&self.0).push(match step {
            Step::Request(request) => format!("{} {}", request.method, request.target()),
            Step::Head { status, .. } => status.to_string(),
            Step::Chunk(chunk) => String::from_utf8_lossy(chunk).into_owned(),
            Step::End => "end".to_owned(),
            Step::Lost => "lost".to_owned(),
            Step::Dropped => "dropped".to_owned(),
        });
    }
}

#[tokio::test]
async fn a_tap_sees_each_attempt_to_its_end() {
    let steps = Arc::new(Steps::default());
    let tap = Arc::clone(&steps);
    let cut = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n";
    let (client, _, _server) =
        configured(&[HANG_UP, FINE, BUSY, FINE, FINE, cut], |config| config.with_tap(tap)).await;
    let path = || Request::get("/x?watch=1");
    for _ in 0..2 {
        client.send(path()).await.expect("an answer");
    }
    drop(client.stream(path()).await.expect("a stream"));
    let (_, mut body) = client.stream(path()).await.expect("a stream");
    while let Ok(Some(_)) = body.chunk().await {}
    let steps = locked(&steps.0).join(" ").replace("GET /x?watch=1", "GET");
    assert_eq!(
        steps,
        "GET lost GET 200 {} end GET 429 later end GET 200 {} end GET 200 dropped GET 200 ab lost"
    );
}

fn request(method: Method) -> Request {
    Request { method, ..Request::get("/x") }
}

#[tokio::test]
async fn a_get_is_sent_again_when_the_connection_broke_and_a_write_is_not() {
    let (client, script, _server) = client(&[HANG_UP, FINE, HANG_UP, HANG_UP, HANG_UP]).await;
    assert_eq!(client.send(request(Method::GET)).await.expect("an answer").status, 200);
    assert_eq!(script.asked(), ["GET /x", "GET /x"]);
    for (number, method) in [Method::POST, Method::PATCH, Method::DELETE].into_iter().enumerate() {
        let error = client.send(request(method)).await.expect_err("no answer");
        assert!(error.is_interrupted() && !error.is_connection(), "{error}");
        assert_eq!(script.asked().len(), 3 + number);
        let Transport { config, connections, .. } = &*client.transport;
        let calls = connections.for_call(config, &Credential::default());
        assert!(!calls.is_open(), "the next request makes sure of a connection first");
    }
}

/// A server that closes each connection: those who wait for one share its failure.
#[tokio::test]
async fn of_requests_that_wait_for_a_connection_one_opens_it() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address");
    let accepted = Arc::new(Mutex::new(0));
    let mut tasks = JoinSet::new();
    tasks.spawn({
        let accepted = Arc::clone(&accepted);
        async move {
            while let Ok((_closed, _)) = listener.accept().await {
                *locked(&accepted) += 1;
            }
        }
    });
    let config = Config::new(&format!("http://{address}"), b"", "").expect("a config");
    let client = Client::new(config).expect("a client");
    let post = || client.send(request(Method::POST));
    let answers = tokio::join!(post(), post(), post());
    for answer in [answers.0, answers.1, answers.2] {
        assert!(answer.expect_err("no answer").is_connection());
    }
    assert_eq!(*locked(&accepted), 1);
}

#[tokio::test]
async fn each_request_asks_for_the_form_and_the_part_that_are_read() {
    const METADATA: &str = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1";
    let (client, script, _server) = client(&[FINE; 7]).await;
    let scope = Scope { labels: "a=b".to_owned(), ..Scope::default() };
    let key = Key::namespaced("default", "web");
    let whole = Page::default();
    let second = Page { version: Some("7"), continue_token: "next", limit: 5 };
    let first = Page { continue_token: "", ..second };
    // None of the answers is what was asked for.
    for page in [whole, first, second] {
        drop(client.list_page(&Collection::of::<Service>(&scope).expect("a path"), &page).await);
    }
    let scope = Scope { fields: "spec.type=x".to_owned(), ..scope };
    let collection = Collection::of::<Service>(&scope).expect("a path");
    drop(client.latest_version(&collection).await);
    drop(client.get::<Service>(&key).await);
    drop(client.get::<Meta<Service>>(&key).await);
    let patch = Patch::Json(Vec::new());
    drop(client.patch::<Meta<Service>>(&key, Part::Object, &patch).await);
    let web = "/api/v1/namespaces/default/services/web";
    assert_eq!(
        script.asked(),
        [
            "GET /api/v1/services?labelSelector=a%3Db",
            "GET /api/v1/services?labelSelector=a%3Db&limit=5&resourceVersion=7&resourceVersionMatch=NotOlderThan",
            "GET /api/v1/services?labelSelector=a%3Db&limit=5&continue=next",
            "GET /api/v1/services?limit=1",
            &format!("GET {web}"),
            &format!("GET {web}"),
            &format!("PATCH {web}"),
        ]
    );
    let json = "application/json";
    let list = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1";
    assert_eq!(script.header("accept: "), [json, json, json, list, json, METADATA, METADATA]);
    assert!(client.is_idle());
    assert_eq!(client.liveness(), Liveness::NotPinged, "over HTTP/1.1");
}

/// A limit of 0 would ask for all of them.
#[tokio::test]
async fn an_object_that_is_too_large_alone_is_not_asked_for_again() {
    let body = " ".repeat(PAGE_OF_ONE_BYTES_MAX + 1);
    let answer = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}", body.len());
    let (client, script, _server) = client(&[&*answer.leak(), FINE]).await;
    let cluster = Cluster::new(client, Lists::Paged);
    let error = cluster.list_live::<Service>(&Scope::default(), 1).await.expect_err("too large");
    assert!(error.is_too_large(), "{error}");
    let from_cache = "resourceVersion=1&resourceVersionMatch=NotOlderThan";
    assert_eq!(script.asked(), [format!("GET /api/v1/services?limit=1&{from_cache}")]);
}

#[test]
fn a_page_may_be_larger_where_no_smaller_one_can_be_asked_for() {
    let bytes_max = |limit| Page { limit, ..Page::default() }.bytes_max();
    assert_eq!(
        [0, 1, 2, 100].map(bytes_max),
        [LISTS_BYTES_MAX, PAGE_OF_ONE_BYTES_MAX, PAGE_BYTES_MAX, PAGE_BYTES_MAX]
    );
}

#[tokio::test]
async fn a_warning_is_news_once() {
    const WARNS: &str =
        "HTTP/1.1 200 OK\r\nWarning: 299 - \"v1 is deprecated\"\r\nContent-Length: 2\r\n\r\n{}";
    let (client, _script, _server) = client(&[WARNS]).await;
    let headers = client.send(request(Method::GET)).await.expect("an answer").headers;
    let warnings = &client.transport.warnings;
    assert_eq!(warnings.new_in(&headers), [""; 0], "the answer's own was logged");
    let mut others = HeaderMap::new();
    for text in ["299 - \"v1 is deprecated\"", "299 - \"unknown field\""] {
        others.append(WARNING, text.parse().expect("a header"));
    }
    assert_eq!(warnings.new_in(&others), ["unknown field"]);
    assert_eq!(warnings.new_in(&others), [""; 0]);
}

#[tokio::test]
async fn a_retry_after_is_obeyed_for_any_verb_but_not_for_ever() {
    let (client, script, _server) = client(&[BUSY, BUSY, FINE, BUSY, BUSY, BUSY, BUSY, FINE]).await;
    assert_eq!(client.send(request(Method::POST)).await.expect("an answer").status, 200);
    assert_eq!(script.asked().len(), 3);
    let error = client.send(request(Method::DELETE)).await.expect_err("still busy");
    assert_eq!(error.to_string(), "delete /x: 429 Too Many Requests: later");
    assert_eq!(script.asked().len(), 3 + 1 + RETRIES_MAX as usize);
}

/// A minute was waited for, three times over, before the caller heard of it.
#[tokio::test]
async fn a_long_retry_after_is_returned_to_the_caller() {
    let away = "HTTP/1.1 503 Service Unavailable\r\nRetry-After: 6\r\nContent-Length: 0\r\n\r\n";
    let (client, script, _server) = client(&[away, FINE]).await;
    let error = client.send(request(Method::GET)).await.expect_err("away");
    assert_eq!(error.retry_after(), Some(Duration::from_secs(6)));
    assert_eq!(script.asked().len(), 1);
}

#[tokio::test]
async fn without_retry_after_no_answer_is_asked_for_again() {
    let down = "HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n";
    let (client, script, _server) = client(&[down, FINE]).await;
    let error = client.send(request(Method::GET)).await.expect_err("down");
    assert_eq!(error.to_string(), "get /x: 503 Service Unavailable");
    assert_eq!(script.asked().len(), 1);
}

#[tokio::test]
async fn an_error_names_the_verb_and_the_objects() {
    let down = "HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n";
    let (client, _script, _server) = client(&[down, down]).await;
    let error = client.get::<Service>(&Key::namespaced("a", "b")).await.expect_err("down");
    assert_eq!(error.to_string(), "get services/a/b: 503 Service Unavailable");
    let services = Collection::of::<Service>(&Scope::default()).expect("a path");
    let error = client.list_page(&services, &Page::default()).await.err().expect("down");
    assert_eq!(error.to_string(), "list services (all namespaces): 503 Service Unavailable");
}

#[tokio::test]
async fn an_answer_has_a_deadline_and_an_open_stream_has_none() {
    let open = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{";
    let never = "HTTP/1.1 200 OK\r\nX-Length: 2\r\n";
    let (client, script, _server) = client(&[never, open]).await;
    let deadline = Duration::from_secs(1);
    let mut config = Config::new(client.server(), b"", "").expect("a config");
    config.request_timeout = deadline;
    let client = Client::new(config).expect("a client");
    assert_eq!(client.request_timeout(), deadline);
    let error = client.send(request(Method::GET)).await.expect_err("no answer");
    let line = format!("get /x: {} (given address): no answer within 1s", client.server());
    assert_eq!(error.to_string(), line);
    assert!(error.is_interrupted());
    assert_eq!(script.asked().len(), 1);

    let (_, mut body) = client.stream(Request::get("/x")).await.expect("a stream");
    assert_eq!(body.chunk().await.expect("a chunk").as_deref(), Some(b"{".as_slice()));
    timeout(2 * deadline, body.chunk()).await.expect_err("a quiet stream");
}

/// Some proxies hold the head back until the first line of a watch, which may be a BOOKMARK after two minutes. The watch was given up
/// after 30 s, again and again.
#[tokio::test]
async fn a_watch_with_a_connection_of_its_own_waits_longer_for_its_head() {
    let never = "HTTP/1.1 200 OK\r\nX-Length: 2\r\n";
    let (client, script, _server) = configured(&[never], |mut config| {
        config.request_timeout = Duration::from_secs(1);
        config
    })
    .await;
    assert!(
        timeout(Duration::from_secs(3), client.stream(Request::get("/x?watch=1"))).await.is_err(),
        "it waits"
    );
    assert_eq!(script.asked().len(), 1);
}

/// A server may take fewer streams on an HTTP/2 connection than we do. Further requests then wait, without an error, and each
/// next attempt waited on the same connection again.
#[tokio::test]
async fn a_stream_that_waits_in_vain_beside_another_gets_another_connection() {
    let open = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{";
    let never = "HTTP/1.1 200 OK\r\nX-Length: 2\r\n";
    let (client, _script, _server) = configured(&[open, never, open], |mut config| {
        config.request_timeout = Duration::from_secs(1);
        config
    })
    .await;
    let stream = || client.stream(Request::get("/x"));
    let (_, first) = stream().await.expect("a stream");
    assert!(stream().await.expect_err("no answer").is_interrupted());
    let (_, other) = stream().await.expect("a stream");
    assert!(!Arc::ptr_eq(&first.connection, &other.connection));
}

/// Each attempt at a frozen server lasts until its deadline. The caller got the error after a minute.
#[tokio::test]
async fn no_request_is_sent_again_after_its_deadline() {
    let (client, script, _server) = client(&[HANG_UP, FINE]).await;
    let mut config = Config::new(client.server(), b"", "").expect("a config");
    config.request_timeout = FIRST_PAUSE / 2;
    let client = Client::new(config).expect("a client");
    client.send(request(Method::GET)).await.expect_err("no answer");
    assert!(script.asked().len() <= 1, "{:?}", script.asked());
}

/// There was one limit for all, four times what the Pod may take.
#[tokio::test]
async fn an_answer_larger_than_its_limit_is_not_read() {
    const PIECES: &str =
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\n{\r\n2\r\n}\n\r\n0\r\n\r\n";
    let (client, _script, _server) = client(&[FINE, FINE, PIECES, PIECES]).await;
    let error = async |max| client.transport.call(&request(Method::GET), max).await.err();
    assert_eq!(
        error(1).await.map(|cause| cause.to_string()),
        Some("/x answered with more than 1 bytes".to_owned())
    );
    assert!(error(2).await.is_none());
    assert!(error(2).await.is_some());
    assert!(error(3).await.is_none());
}

#[tokio::test]
async fn an_end_of_a_stream_differs_from_a_cut() {
    let whole = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\n{}\n\r\n0\r\n\r\n";
    let cut = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\n{}\n\r\n9\r\n{\"ty";
    let (client, _script, _server) = client(&[whole, cut, BUSY]).await;

    let read = async |mut body: Body| -> Result<Vec<u8>, Error> {
        let mut all = Vec::new();
        while let Some(chunk) = body.chunk().await? {
            all.extend_from_slice(&chunk);
        }
        Ok(all)
    };
    let (head, body) = client.stream(Request::get("/x")).await.expect("a stream");
    assert_eq!(head.status, 200);
    assert_eq!(read(body).await.expect("an end"), b"{}\n");
    let (_, body) = client.stream(Request::get("/x")).await.expect("a stream");
    assert!(read(body).await.expect_err("a cut").is_interrupted());
    let error = client.stream(Request::get("/x")).await.expect_err("busy");
    assert_eq!((error.code(), error.retry_after()), (Some(429), Some(Duration::ZERO)));
}

/// The object was believed to be gone.
#[tokio::test]
async fn a_delete_that_a_proxy_answers_has_not_deleted() {
    let html = "HTTP/1.1 200 OK\r\nContent-Length: 13\r\n\r\n<html></html>";
    let status = "HTTP/1.1 200 OK\r\nContent-Length: 36\r\n\r\n{\"kind\":\"Status\",\"status\":\"Success\"}";
    let (client, _script, _server) = client(&[html, FINE, status]).await;
    let key = Key::namespaced("default", "web");
    let options = DeleteOptions::default();
    let mut deleted = Vec::new();
    for _ in 0..3 {
        let answer = client.delete::<Service>(&key, &options).await;
        deleted.push(answer.map(|object| object.is_none()).map_err(|error| error.is_unreadable()));
    }
    assert_eq!(deleted, [Err(true), Err(true), Ok(true)]);
}

#[tokio::test]
async fn a_path_before_every_other_and_a_query_are_kept() {
    let (client, script, _server) = client(&[FINE; 4]).await;
    let config = Config::new(&format!("{}/k8s/clusters/c/", client.server()), b"", "").expect("a config");
    let query = vec![("labelSelector", "a in (b,c)".to_owned())];
    let request = Request { query, ..Request::get("/api/v1/pods?limit=1") };
    let under = Client::new(config).expect("a client");
    under.send(request).await.expect("an answer");
    under.send(Request::get("/api/a%2Fb%3F")).await.expect("an answer");
    // Appended, so that it cannot name another host.
    client.send(Request::get("//elsewhere/api")).await.expect("an answer");
    assert_eq!(
        script.asked(),
        [
            "GET /k8s/clusters/c/version",
            "GET /k8s/clusters/c/api/v1/pods?limit=1&labelSelector=a+in+%28b%2Cc%29",
            "GET /k8s/clusters/c/api/a%2Fb%3F",
            "GET //elsewhere/api",
        ]
    );
}

#[tokio::test]
async fn a_forwarded_request_keeps_its_headers_but_acts_as_nobody_else() {
    let as_jane = |mut config: Config| {
        config.impersonate("Impersonate-User", "jane").expect("a header");
        config
    };
    let (client, script, _server) = configured(&[BUSY], as_jane).await;
    let headers =
        [("user-agent", "pages"), ("impersonate-user", "root"), ("impersonate-group", "system:masters")];
    let mut request = Request::get("/x");
    request.headers = headers
        .map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value)))
        .into_iter()
        .collect();
    let (head, mut body) = client.forward(request).await.expect("an answer");
    assert_eq!(
        (head.status, body.chunk().await.expect("a body").expect("a piece").as_ref()),
        (429, &b"later"[..])
    );
    let sent = ["user-agent: ", "impersonate-user: ", "impersonate-group: "].map(|name| script.header(name));
    assert_eq!(sent, [vec!["pages"], vec!["jane"], vec![]]);
}

#[tokio::test]
async fn a_closed_port_is_a_connection_error_with_a_remedy() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address");
    drop(listener);
    let config = Config::new(&format!("http://{address}"), b"", "").expect("a config");
    let error = Client::new(config).expect("a client").version().await.expect_err("nobody");
    assert!(error.is_connection());
    let line = format!("http://{address} (given address): connection refused: does an API server run there?");
    assert_eq!(error.to_string(), format!("get /version: {line}"));
}

#[test]
fn a_refused_connection_may_be_that_of_a_proxy_in_the_environment() {
    let with_proxy = |server: &str| {
        let mut config = Config::new(server, b"", "").expect("a config");
        config.has_proxy_variable = true;
        Where::of(&config).peer
    };
    assert_eq!(with_proxy("http://10.0.0.1"), "an API server, or the proxy of the environment,");
    assert_eq!(with_proxy("http://127.0.0.1:1"), "an API server");
}

#[tokio::test]
async fn a_proxy_is_named_without_its_password() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address");
    drop(listener);
    let mut config = Config::new("http://h", b"", "").expect("a config");
    config.proxy = Some(Url::parse(&format!("http://me:s3cret@{address}")).expect("a URL"));
    let error = Client::new(config).expect("a client").version().await.expect_err("nobody");
    let way = format!("http://h through the proxy {address} (given address)");
    assert_eq!(
        error.to_string(),
        format!("get /version: {way}: connection refused: does the proxy run there?")
    );
    assert_eq!(through(&Url::parse("socks5://p").expect("a URL")), " through the proxy p:1080");
}

/// These need a certificate, which the embedded API server's libraries make.
mod tls {
    use std::{fs, path::Path};

    use rcgen::{CertifiedKey, generate_simple_self_signed};
    use tokio_rustls::TlsAcceptor;

    use super::{super::super::Options, *};

    const REFUSED: &str = "HTTP/1.1 401 Unauthorized\r\nContent-Length: 0\r\n\r\n";

    /// A server on TLS, and a directory with its kubeconfig, `ca.crt` and `token`.
    async fn server(dir: &Path, answers: &[&'static str]) -> (Arc<Script>, JoinSet<()>) {
        install_crypto();
        let script = Script::new(answers);
        let CertifiedKey { cert, signing_key } =
            generate_simple_self_signed(["kubernetes.default".to_owned()]).expect("a certificate");
        let key = signing_key.serialize_der().try_into().expect("a key");
        let tls = rustls::ServerConfig::builder()
            .with_no_client_auth()
            .with_single_cert(vec![cert.der().clone()], key)
            .expect("a certificate and its key");
        let acceptor = TlsAcceptor::from(Arc::new(tls));
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let text = format!(
            "current-context: c\ncontexts: [{{name: c, context: {{cluster: k, user: u}}}}]\n\
             clusters: [{{name: k, cluster: {{server: 'https://{address}', certificate-authority: ca.crt, \
             tls-server-name: kubernetes.default}}}}]\nusers: [{{name: u, user: {{tokenFile: token}}}}]\n"
        );
        fs::write(dir.join("kubeconfig"), text).expect("a file");
        fs::write(dir.join("ca.crt"), cert.pem()).expect("a file");
        fs::write(dir.join("token"), "one").expect("a file");
        let mut tasks = JoinSet::new();
        let scripted = Arc::clone(&script);
        tasks.spawn(async move {
            let mut peers = JoinSet::new();
            while let Ok((peer, _)) = listener.accept().await {
                let (acceptor, script) = (acceptor.clone(), Arc::clone(&scripted));
                peers.spawn(async move {
                    if let Ok(peer) = acceptor.accept(peer).await {
                        script.serve(peer).await;
                    }
                });
            }
        });
        (script, tasks)
    }

    fn connect(dir: &Path) -> Client {
        let options = Options { kubeconfig: Some(dir.join("kubeconfig")), ..Options::default() };
        let config = Config::load(&options, &super::super::super::Env::default()).expect("a config");
        Client::new(config).expect("a client")
    }

    #[tokio::test]
    async fn a_401_reads_the_token_again_and_repeats_the_request_once() {
        let dir = tempfile::tempdir().expect("a directory");
        let (script, _server) = server(dir.path(), &[FINE, REFUSED, FINE, REFUSED, REFUSED, FINE]).await;
        let client = connect(dir.path());
        client.send(request(Method::GET)).await.expect("an answer");
        fs::write(dir.path().join("token"), "two\n").expect("a file");
        client.send(request(Method::DELETE)).await.expect("an answer");
        assert_eq!(script.asked(), ["GET /x", "DELETE /x", "DELETE /x"]);
        assert_eq!(script.header("authorization: "), ["Bearer one", "Bearer one", "Bearer two"]);

        let error = client.send(request(Method::GET)).await.expect_err("refused");
        assert_eq!(error.code(), Some(401));
        let line = error.to_string();
        assert!(line.contains("does not accept user u of context c") && !line.contains("two"), "{line}");
        assert_eq!(script.asked().len(), 5);
    }

    #[tokio::test]
    async fn a_forwarded_request_is_repeated_after_a_401_and_returns_the_second_one() {
        let dir = tempfile::tempdir().expect("a directory");
        let (script, _server) = server(dir.path(), &[REFUSED, FINE, REFUSED, REFUSED]).await;
        let client = connect(dir.path());
        for code in [200, 401] {
            let (head, _) = client.forward(request(Method::GET)).await.expect("an answer");
            assert_eq!(head.status, code);
        }
        assert_eq!(script.asked(), ["GET /x"; 4]);
    }

    #[tokio::test]
    async fn plain_http_to_a_tls_server_is_an_error_with_a_remedy() {
        let dir = tempfile::tempdir().expect("a directory");
        let (_script, _server) = server(dir.path(), &[]).await;
        let address = connect(dir.path()).server().replace("https://", "http://");
        let client = Client::new(Config::new(&address, b"", "").expect("a config")).expect("a client");
        let line = client.version().await.expect_err("no HTTP").to_string();
        let cause = "the server does not speak plain HTTP: should its address be https:// ?";
        assert_eq!(line, format!("get /version: {address} (given address): {cause}"));
    }

    /// The clock goes on while nothing happens.
    #[tokio::test(start_paused = true)]
    async fn a_handshake_that_hangs_or_breaks_is_an_error_with_its_cause() {
        // The kernel accepts the first connections of a listener.
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = format!("https://{}", listener.local_addr().expect("an address"));
        let authority = generate_simple_self_signed(["authority".to_owned()]).expect("a certificate");
        let mut config = Config::new(&address, authority.cert.pem().as_bytes(), "one").expect("a config");
        // One attempt that hangs takes nearly as long.
        config.request_timeout = Duration::from_millis(15_001);
        let client = Client::new(config).expect("a client");
        let hangs = client.version().await.expect_err("no TLS").to_string();
        assert!(hangs.ends_with(": no connection: check the address, the network, firewalls"), "{hangs}");
        let mut server = JoinSet::new();
        server.spawn(async move {
            while let Ok(peer) = listener.accept().await {
                drop(peer);
            }
        });
        let breaks = client.version().await.expect_err("no TLS").to_string();
        assert!(breaks.contains(": no connection: ") && !breaks.ends_with("firewalls"), "{breaks}");
    }

    #[tokio::test]
    async fn a_replaced_authority_is_believed_at_the_next_attempt() {
        let dir = tempfile::tempdir().expect("a directory");
        let (_script, _server) = server(dir.path(), &[FINE, FINE]).await;
        let right = fs::read(dir.path().join("ca.crt")).expect("a file");
        let other = generate_simple_self_signed(["other".to_owned()]).expect("a certificate");
        fs::write(dir.path().join("ca.crt"), other.cert.pem()).expect("a file");
        let client = connect(dir.path());
        let error = client.send(request(Method::PATCH)).await.expect_err("a stranger");
        assert!(error.is_connection());
        let line = error.to_string();
        assert!(
            line.contains("certificate signed by an unknown authority: is clusters[k].cluster"),
            "{line}"
        );

        // Half written: the last good one is kept, and the error stays the same.
        fs::write(dir.path().join("ca.crt"), "-----BEGIN").expect("a file");
        assert!(client.send(request(Method::PATCH)).await.expect_err("a stranger").is_connection());
        fs::write(dir.path().join("ca.crt"), right).expect("a file");
        client.send(request(Method::PATCH)).await.expect("an answer");
    }
}

#[test]
fn the_target_of_a_request_is_its_path_with_the_whole_query() {
    let mut request = Request::get("/api/v1/services");
    assert_eq!(request.target(), "/api/v1/services");
    request.query.push(("labelSelector", "app=web".to_owned()));
    assert_eq!(request.target(), "/api/v1/services?labelSelector=app%3Dweb");
    request.path += "?watch=1";
    assert_eq!(request.target(), "/api/v1/services?watch=1&labelSelector=app%3Dweb");
}

#[test]
fn a_watch_is_one_unless_its_value_is_false() {
    for (query, is_watch) in [
        ("", false),
        ("?limit=1", false),
        ("?watch=0", false),
        ("?watch=False", false),
        ("?watch=1", true),
        ("?watch", true),
    ] {
        assert_eq!(Request::get(format!("/api/v1/services{query}")).is_watch(), is_watch, "{query}");
    }
}
