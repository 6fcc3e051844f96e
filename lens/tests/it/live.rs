//! The page while an operator runs, as a browser asks for it: who gets an answer, what is sent, and what stops the operator.

use std::{
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use base64::{Engine, prelude::BASE64_STANDARD};
use futures_util::future::join_all;
use listwatch::client::{self, Config};
use listwatch_apiserver::{ApiServer, Options};
use listwatch_control_plane::eventually;
use listwatch_lens::{Live, Operator, Proxy, Report};
use listwatch_scorecard::{self as scorecard, EVENTS_MAX, Then};
use reqwest::{Client, Method, RequestBuilder, Response, redirect::Policy};
use serde_json::{Value, json};
use tokio::sync::oneshot;

use super::{
    browser::{ENTER, in_browser},
    operator::Api,
    page::{HIDDEN, WIDE},
    recorded, settings,
};

const PAGE: &str = "pages.example.com/default/a";
const MAP: &str = "configmaps/default/a";

/// A browser that has opened the address.
struct Browser {
    address: String,
    http: Client,
    /// `http://127.0.0.1:40003`
    origin: String,
    cookie: String,
}

impl Browser {
    async fn open(address: &str) -> Browser {
        let origin = address.split("/?").next().unwrap().to_owned();
        let address = address.to_owned();
        let mut browser = Browser { address, http: http(), origin, cookie: String::new() };
        let answer = browser.http.get(&browser.address).send().await.unwrap();
        assert_eq!((answer.status().as_u16(), header(&answer, "location")), (303, "/"));
        let cookie = header(&answer, "set-cookie");
        let (value, rest) = cookie.split_once("; ").unwrap();
        assert_eq!(rest, "HttpOnly; SameSite=Strict; Path=/");
        value.clone_into(&mut browser.cookie);
        browser
    }

    fn request(&self, method: Method, path: &str) -> RequestBuilder {
        let request = self.http.request(method, format!("{}{path}", self.origin));
        request.header("cookie", format!("other=1; {}", self.cookie))
    }

    async fn order(&self, what: &str, body: Value) -> Value {
        let request = self.request(Method::POST, &format!("/control/{what}")).header("origin", &self.origin);
        let answer = request.body(body.to_string()).send().await.unwrap();
        serde_json::from_str(&answer.text().await.unwrap()).unwrap()
    }

    async fn events(&self) -> Events {
        let answer = self.request(Method::GET, "/events").send().await.unwrap();
        assert_eq!((answer.status().as_u16(), header(&answer, "content-type")), (200, "text/event-stream"));
        Events { answer, text: String::new() }
    }
}

/// The server-sent events that a page gets.
struct Events {
    answer: Response,
    text: String,
}

impl Events {
    /// The name and the data. `None`: the stream has ended.
    async fn next(&mut self) -> Option<(String, Value)> {
        loop {
            if let Some((event, rest)) = self.text.split_once("\n\n") {
                let (name, data) = event.split_once('\n').unwrap();
                let data = serde_json::from_str(data.strip_prefix("data: ").unwrap()).unwrap();
                let event = (name.strip_prefix("event: ").unwrap().to_owned(), data);
                self.text = rest.to_owned();
                return Some(event);
            }
            let chunk = self.answer.chunk().await.unwrap()?;
            self.text += std::str::from_utf8(&chunk).unwrap();
        }
    }

    /// The next one with a name that is as wanted.
    async fn until(&mut self, name: &str, is_wanted: impl Fn(&Value) -> bool) -> Value {
        loop {
            let (found, data) = self.next().await.expect(name);
            if found == name && is_wanted(&data) {
                return data;
            }
        }
    }

    /// The first held write, when there is one of a user.
    async fn held(&mut self, user: &str) -> Value {
        let state = self.until("controls", |state| state["held"][0]["user"] == user).await;
        state["held"][0].clone()
    }
}

fn http() -> Client {
    // A second call fails, which does not matter.
    let _ = rustls::crypto::ring::default_provider().install_default();
    Client::builder().redirect(Policy::none()).build().unwrap()
}

fn header<'a>(answer: &'a Response, name: &str) -> &'a str {
    answer.headers().get(name).map_or("", |value| value.to_str().unwrap())
}

/// Runs an operator, and shows it to a browser, until the browser is done.
async fn shown(bug: &str, use_page: impl AsyncFnOnce(&Browser, &ApiServer)) {
    let (found, server) = oneshot::channel();
    let (done, asks) = (AtomicBool::new(false), Arc::new(AtomicBool::new(false)));
    let mut found = Some(found);
    let settings = settings(bug);
    let run = scorecard::observe(&settings, |server: &Arc<ApiServer>| {
        if let Some(found) = found.take() {
            found.send(Arc::clone(server)).unwrap();
        }
        match asks.swap(false, Ordering::Relaxed) {
            _ if done.load(Ordering::Relaxed) => Then::End,
            true => Then::Restart,
            false => Then::GoOn,
        }
    });
    let live = Live::bind().await.unwrap();
    let address = live.url();
    let page = async {
        let server = server.await.unwrap();
        let restart = Arc::clone(&asks);
        let restart: listwatch_lens::Restart = Arc::new(move || restart.store(true, Ordering::Relaxed));
        let operator = Operator {
            user: "operator-*".to_owned(),
            restart: Some(restart),
            scorecard: Some(settings.clone()),
        };
        let (ended, end) = oneshot::channel();
        let mut page = pin!(live.run(Arc::clone(&server), operator, async { end.await.unwrap() }));
        let browser = async {
            let browser = Browser::open(&address).await;
            use_page(&browser, &server).await;
            (browser.events().await, browser)
        };
        let (mut events, _browser) = tokio::select! {
            used = browser => used,
            () = &mut page => panic!("the page ended early"),
        };
        done.store(true, Ordering::Relaxed);
        ended.send("it was enough".to_owned()).unwrap();
        let (end, ()) = tokio::join!(events.until("end", |_| true), page);
        assert_eq!((end, events.next().await), (json!({"why": "it was enough"}), None));
    };
    let (run, ()) = tokio::join!(run, page);
    let (journal, end) = run.unwrap();
    assert_eq!(end, None, "{}", journal.log);
}

#[tokio::test]
async fn a_page_gets_all_so_far_then_what_is_new_and_the_report() {
    shown("stamps-its-status", async |browser, _| {
        let is_loop = |report: &Value| report["findings"][0]["rule"] == "wakes-itself";
        browser.events().await.until("report", is_loop).await;
        let mut events = browser.events().await;
        let (name, document) = events.next().await.unwrap();
        assert_eq!(name, "recording");
        assert_eq!(document["controls"]["user"], "operator-*");
        let known = document["entries"].as_array().unwrap();
        assert!(known.iter().any(|entry| entry["client"] == "operator-1 (pages)"), "{document}");
        let last = known.iter().filter_map(|entry| entry["id"].as_u64()).max().unwrap();
        let is_later = |entry: &Value| entry["id"].as_u64().is_some_and(|id| id > last);
        let news = events.until("entries", |news| news.as_array().unwrap().iter().any(is_later)).await;
        let report = events.until("report", is_loop).await;
        let (_, whole) = browser.events().await.next().await.unwrap();
        assert!(is_loop(&whole["report"]), "{whole}");
        let whole = whole["entries"].as_array().unwrap();
        for entry in known.iter().chain(news.as_array().unwrap()) {
            let is_open = entry["took"].is_null() && entry["verb"] == "watch";
            assert!(is_open || whole.contains(entry), "{entry} has changed");
        }
        for entry in report["findings"][0]["entries"].as_array().unwrap() {
            assert!(whole.iter().any(|known| known["n"] == entry["n"]), "{entry}");
        }
    })
    .await;
}

/// Its report was from before the operator ran, because none is made while no page is open. If several pages opened at once, one had a new report.
#[tokio::test]
async fn a_page_that_opens_late_has_the_report_on_all_so_far() {
    shown("stamps-its-status", async |browser, server| {
        let is_loop = || !Report::of(&recorded(server)).findings.is_empty();
        eventually("the loop", async || is_loop().then_some(())).await;
        let pages = (0..8).map(|_| async { browser.events().await.next().await.unwrap() });
        for (_, document) in join_all(pages).await {
            assert_eq!(document["report"]["findings"][0]["rule"], "wakes-itself");
        }
    })
    .await;
}

#[tokio::test]
async fn the_page_can_be_saved_with_all_so_far_and_without_a_value_or_a_token() {
    let mut html = String::new();
    shown("stamps-its-status", async |browser, server| {
        let secret = json!({"metadata": {"name": "hidden"}, "stringData": {"password": HIDDEN}});
        let api = Api::new(&server.kubeconfig(), "kubectl");
        assert_eq!(api.send(Method::POST, "/api/v1/namespaces/default/secrets", secret).await.0, 201);
        let is_loop = || !Report::of(&recorded(server)).findings.is_empty();
        eventually("the loop", async || is_loop().then_some(())).await;
        let answer = browser.request(Method::GET, "/lens.html").send().await.unwrap();
        assert_eq!(header(&answer, "content-disposition"), "attachment");
        html = answer.text().await.unwrap();
        for known in ["secrets/default/hidden", "wakes-itself"] {
            assert!(html.contains(known), "{known}");
        }
        let token = browser.address.split_once("token=").unwrap().1;
        for value in [HIDDEN, &*BASE64_STANDARD.encode(HIDDEN), token, server.token()] {
            assert!(!html.contains(value), "{value}");
        }
    })
    .await;
    in_browser(async move |chromium| {
        chromium.open(&html, WIDE).await;
        let parts = ["wrong-title", "controls", "live"]
            .map(|id| format!("document.getElementById('{id}').textContent"));
        assert_eq!(
            chromium.get(&format!("[{}]", parts.join(", "))).await,
            json!(["What is wrong (1)", "", ""])
        );
        assert_eq!(chromium.complaints().await, json!([]));
    })
    .await;
}

#[tokio::test]
async fn a_held_write_has_its_effect_when_the_page_lets_it_go() {
    shown("", async |browser, server| {
        let page = || server.object("pages.example.com", "default/a");
        let is_ready = |page: &Arc<Value>| page["status"]["phase"] == "Ready";
        eventually("the operator", async || page().filter(is_ready)).await;
        // With a cache that lags, it may write the status or create the ConfigMap once more.
        let fault = "hold,path=/configmaps,method=PATCH,user=operator-*";
        assert_eq!(browser.order("fault", json!({"fault": fault})).await, json!({}));
        let mut events = browser.events().await;
        let read = browser.order("read", json!({"object": PAGE})).await;
        let mut object = read["body"].clone();
        object["spec"]["text"] = "new".into();
        let edit = json!({"object": PAGE, "text": object.to_string()});
        assert_eq!(browser.order("write", edit.clone()).await["status"], 200);
        let again = browser.order("write", edit).await;
        assert_eq!((&again["status"], &again["body"]["reason"]), (&json!(409), &json!("Conflict")));
        let stored = || server.object("configmaps", "default/a").unwrap()["data"]["text"].clone();
        let write = events.held("operator-1").await;
        assert_eq!(write["method"], "PATCH");
        assert!(write["target"].as_str().unwrap().ends_with("/configmaps/a"), "{write}");
        assert!(write["body"].as_str().unwrap().contains(r#""data":{"text":"new"}"#), "{write}");
        assert_eq!(stored(), "hello");
        assert_eq!(browser.order("release", json!({"id": write["id"]})).await, json!({}));
        eventually("the write", async || (stored() == "new").then_some(())).await;
        assert_eq!(
            browser.order("release", json!({"id": write["id"]})).await,
            json!({"error": "this request is no longer held"})
        );
        browser.order("end", json!({})).await;
        events.until("controls", |state| *state == json!({"faults": [], "held": []})).await;
    })
    .await;
}

#[tokio::test]
async fn a_person_changes_an_object_holds_the_write_that_follows_and_lets_it_go() {
    in_browser(async |chromium| {
        shown("", async |page, server| {
            let map = || server.object("configmaps", "default/a");
            eventually("the operator", async || map()).await;
            chromium.visit(&page.address).await;
            assert_eq!(chromium.get("document.querySelector('a[download]').getAttribute('href')").await, "lens.html");
            chromium.click("#controls .buttons button:nth-of-type(1)").await;
            chromium.until("document.querySelector('[aria-label=\"Faults to come\"] li')?.textContent.startsWith('hold')").await;
            chromium.click("#controls > details:last-of-type > summary").await;
            chromium.click("#controls [name=object]").await;
            chromium.press(&format!("{PAGE}{ENTER}")).await;
            let text = "document.querySelector('#controls textarea').value";
            chromium.until(text).await;
            chromium.get(&format!("{text} = {text}.replace('hello', 'new')")).await;
            chromium.click("#controls > details:last-of-type > p button").await;
            let held = "document.querySelector('[aria-label^=\"Held requests\"] li";
            assert_eq!(
                chromium.until(&format!("{held} summary')?.textContent")).await,
                "PATCH /api/v1/namespaces/default/configmaps/a"
            );
            let body = chromium.get(&format!("{held} pre').textContent")).await;
            assert!(body.as_str().unwrap().contains(r#""text": "new""#), "{body}");
            assert_eq!(map().unwrap()["data"]["text"], "hello");
            assert_eq!(chromium.nameless().await, [""; 0]);
            chromium.click("[aria-label^='Held requests'] li > button").await;
            eventually("the write", async || (map()?["data"]["text"] == "new").then_some(())).await;
            chromium.click("#controls .buttons button:nth-of-type(3)").await;
            chromium.until("!document.querySelector('[aria-label=\"Faults to come\"] li')").await;
            assert_eq!(chromium.complaints().await, json!([]));
        })
        .await;
    })
    .await;
}

#[tokio::test]
async fn a_person_holds_the_answers_and_events_of_a_kind_and_lets_them_go() {
    in_browser(async |chromium| {
        shown("", async |page, server| {
            let map = || server.object("configmaps", "default/a");
            eventually("the operator", async || map()).await;
            chromium.visit(&page.address).await;
            let kinds = "[...document.querySelectorAll('#kinds option')].map((kind) => kind.value)";
            chromium.until(&format!("{kinds}.includes('pages.example.com')")).await;
            chromium.click("#controls [name=kind]").await;
            chromium.press(&format!("pages.example.com{ENTER}")).await;
            let faults = "[...document.querySelectorAll('[aria-label=\"Faults to come\"] li')].map((fault) => fault.textContent)";
            let held = "path=/pages,user=operator-*";
            let held = json!([format!("stall-watches,{held}"), format!("hold-answer,method=GET,{held}")]);
            chromium.until(&format!("{faults}.join() === {held}.join()")).await;
            page.order("restart", json!({})).await;
            let request = "document.querySelector('[aria-label^=\"Held requests\"] li";
            let list = chromium.until(&format!("{request} summary')?.textContent")).await;
            assert_eq!(list, "GET /apis/example.com/v1/namespaces/default/pages");
            let buttons = format!("[...{request}').querySelectorAll('button')].map((button) => button.textContent)");
            assert_eq!(chromium.get(&buttons).await, json!(["Let go"]));
            let read = page.order("read", json!({"object": PAGE})).await;
            let text = read["body"].to_string().replace("hello", "new");
            assert_eq!(page.order("write", json!({"object": PAGE, "text": text})).await["status"], 200);
            chromium.click("#controls form:has([name=kind]) button[type=button]").await;
            eventually("the write", async || (map()?["data"]["text"] == "new").then_some(())).await;
            chromium.until(&format!("{faults}.length === 0")).await;
            assert_eq!(chromium.complaints().await, json!([]));
        })
        .await;
    })
    .await;
}

#[tokio::test]
async fn a_write_can_be_refused_and_the_operator_started_again() {
    shown("", async |browser, server| {
        let mut events = browser.events().await;
        browser.order("fault", json!({"fault": "hold,path=/configmaps,user=operator-*"})).await;
        browser.order("restart", json!({})).await;
        events
            .until("entries", |news| {
                news.as_array().unwrap().iter().any(|entry| entry["client"] == "operator-2 (pages)")
            })
            .await;
        let object = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}, "data": {"text": "old"}});
        let put = browser.order("write", json!({"object": MAP, "text": object.to_string()})).await;
        assert!([200, 404].contains(&put["status"].as_u64().unwrap()), "{put}");
        let id = &events.held("operator-2").await["id"];
        let error = browser.order("refuse", json!({"id": id, "status": 200})).await;
        assert_eq!(error["error"], "the status of a refusal is from 400 to 599");
        assert_eq!(browser.order("refuse", json!({"id": id, "status": 500})).await, json!({}));
        let is_refused = |entry: &Value| entry["id"] == *id && entry["status"] == 500;
        events.until("entries", |news| news.as_array().unwrap().iter().any(is_refused)).await;
        assert!(server.is_fault_planned());
        let error = browser.order("fault", json!({"fault": "hold-it"})).await;
        assert!(error["error"].as_str().unwrap().contains("is not a fault"), "{error}");
        let error = browser.order("read", json!({"object": "none/a"})).await;
        assert!(error["error"].as_str().unwrap().contains("none/a"), "{error}");
    })
    .await;
}

#[tokio::test]
async fn a_check_of_the_scorecard_runs_beside_the_operator() {
    shown("", async |browser, _| {
        let done = browser.order("check", json!({"check": "converges"})).await;
        assert!(done["report"].as_str().unwrap().starts_with("pass  converges "), "{done}");
        let refused = browser.order("check", json!({"check": "converge"})).await;
        assert!(refused["error"].as_str().unwrap().contains("converge"), "{refused}");
    })
    .await;
}

#[tokio::test]
async fn a_person_runs_a_check_and_reads_its_result() {
    in_browser(async |chromium| {
        shown("", async |page, _| {
            chromium.visit(&page.address).await;
            chromium.click("#controls details:has([name=check]) > summary").await;
            chromium.click("#controls [name=check]").await;
            chromium.press(&format!("converges{ENTER}")).await;
            let summary = "document.querySelector('#check-summary').textContent";
            let summary = chromium.until(&format!("{summary}.includes('Two') && {summary}")).await;
            assert_eq!(summary, scorecard::summary("converges"));
            chromium.click("#controls form:has([name=check]) button").await;
            let report = "document.querySelector('#controls details:has([name=check]) pre').textContent";
            let report = chromium.until(&format!("{report}.includes('converges') && {report}")).await;
            assert!(report.as_str().unwrap().starts_with("pass  converges "), "{report}");
            assert_eq!(chromium.complaints().await, json!([]));
        })
        .await;
    })
    .await;
}

#[tokio::test]
async fn a_page_shows_what_passes_through_a_proxy_and_stops_nothing() {
    let server = ApiServer::start(Options::default()).await.unwrap();
    let config = Config::new(&server.url(), server.ca_pem().as_bytes(), server.token()).unwrap();
    let proxy = Proxy::start(client::Client::new(config).unwrap()).await.unwrap();
    let live = Live::bind().await.unwrap();
    let address = live.url();
    let (ended, end) = oneshot::channel();
    let used = async {
        let browser = Browser::open(&address).await;
        let mut events = browser.events().await;
        let (_, document) = events.next().await.unwrap();
        assert_eq!((&document["controls"], &document["entries"]), (&Value::Null, &json!([])));
        let refused = browser.request(Method::POST, "/control/end").header("origin", &browser.origin);
        assert_eq!(refused.send().await.unwrap().status().as_u16(), 405);

        let (maps, api) = ("/api/v1/namespaces/default/configmaps", Api::new(&proxy.kubeconfig(), "pages"));
        let version = api.get(maps).await["metadata"]["resourceVersion"].clone();
        let target = format!("{maps}?watch=1&resourceVersion={}", version.as_str().unwrap());
        let watch = api.open(Method::GET, &target, &Value::Null).await;
        assert_eq!(api.send(Method::POST, maps, json!({"metadata": {"name": "a"}})).await.0, 201);
        for (event, watch) in [("ADDED", Some(watch)), ("CLOSED", None)] {
            let is_there = |entry: &Value| entry["event"] == event;
            events.until("entries", |news| news.as_array().unwrap().iter().any(is_there)).await;
            drop(watch);
        }
        let (_, document) = browser.events().await.next().await.unwrap();
        let requests = document["entries"].as_array().unwrap().iter();
        let requests = requests.filter(|entry| entry["kind"] == "request");
        let mut requests: Vec<&Value> = requests.collect();
        // That of a watch comes again when it ends.
        requests.sort_by_key(|request| request["id"].as_u64());
        let verbs: Vec<&Value> = requests.iter().map(|request| &request["verb"]).collect();
        assert_eq!(verbs, ["list", "watch", "create"], "{document:#}");
        assert_eq!(requests[0]["version"], version);
        assert!(requests[1]["took"].is_number(), "{document:#}");
        // A watch has its connection for itself.
        let connections: Vec<_> = requests.iter().map(|request| request["connection"].as_u64()).collect();
        assert!(connections.iter().all(Option::is_some) && connections[1] != connections[2], "{document:#}");
        ended.send("it was enough".to_owned()).unwrap();
        assert_eq!(events.until("end", |_| true).await, json!({"why": "it was enough"}));
    };
    tokio::join!(live.run_proxy(&proxy, async { end.await.unwrap() }), used);
}

#[tokio::test]
async fn who_has_no_cookie_or_another_origin_gets_nothing() {
    let server =
        Arc::new(ApiServer::start(Options { events: EVENTS_MAX, ..Options::default() }).await.unwrap());
    let live = Live::bind().await.unwrap();
    let address = live.url();
    let operator = Operator { user: String::new(), restart: None, scorecard: None };
    let (ended, end) = oneshot::channel::<()>();
    let run = live.run(Arc::clone(&server), operator, async {
        let _ = end.await;
        "the end".to_owned()
    });
    let requests = async {
        let browser = Browser::open(&address).await;
        refused(&browser).await;
        served(&browser).await;
        ended.send(()).unwrap();
    };
    tokio::join!(run, requests);
}

async fn refused(browser: &Browser) {
    let get = |path: &str| browser.request(Method::GET, path);
    let post = || browser.request(Method::POST, "/control/end").body("{}");
    let bare = |path: &str| browser.http.get(format!("{}{path}", browser.origin));
    let port = browser.origin.rsplit(':').next().unwrap();
    let own = browser.origin.replace("127.0.0.1", "localhost");
    for (what, request, status) in [
        ("no cookie", bare("/"), 401),
        ("no cookie", bare("/events"), 401),
        ("a wrong token", bare("/?token=AAAA"), 401),
        ("a wrong cookie", bare("/").header("cookie", format!("listwatch-{port}=AAAA")), 401),
        ("another host", get("/").header("host", format!("example.com:{port}")), 403),
        ("no port", get("/").header("host", "127.0.0.1"), 403),
        ("no origin", post(), 403),
        ("another origin", post().header("origin", "http://127.0.0.1:1"), 403),
        ("an origin of the other name", post().header("origin", &own), 403),
        ("another method", browser.request(Method::PUT, "/").header("origin", &browser.origin), 405),
        ("no file", get("/../Cargo.toml"), 404),
        ("no order", browser.request(Method::GET, "/control/end"), 404),
        ("its own host and origin", post().header("origin", &browser.origin), 200),
        ("localhost", get("/").header("host", format!("localhost:{port}")), 200),
    ] {
        let answer = request.send().await.unwrap();
        assert_eq!(answer.status().as_u16(), status, "{what}");
        let policy = header(&answer, "content-security-policy");
        assert!(policy.starts_with("default-src 'none'; script-src 'self'; "), "{what}: {policy}");
        assert!(policy.ends_with("frame-ancestors 'none'; base-uri 'none'; form-action 'none'"), "{policy}");
        let others = ["x-content-type-options", "cache-control", "referrer-policy"];
        assert_eq!(
            others.map(|name| header(&answer, name)),
            ["nosniff", "no-store", "no-referrer"],
            "{what}"
        );
        assert_eq!(header(&answer, "access-control-allow-origin"), "", "{what}");
    }
}

async fn served(browser: &Browser) {
    for (path, kind) in [
        ("/", "text/html"),
        ("/page.css", "text/css"),
        ("/page.js", "text/javascript"),
        ("/controls.js", "text/javascript"),
    ] {
        let answer = browser.request(Method::GET, path).send().await.unwrap();
        assert!(header(&answer, "content-type").starts_with(kind), "{path}");
        assert!(!answer.text().await.unwrap().is_empty(), "{path}");
    }
}
