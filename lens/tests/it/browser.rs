//! A headless Chromium, driven by WebDriver: JSON over HTTP. The crates for it need MPL-2.0, and more of them than the lens has.

use std::{
    env, fs,
    future::Future,
    io::{BufRead, BufReader},
    process::{Command, Stdio},
    rc::Rc,
};

use base64::{Engine, prelude::BASE64_STANDARD};
use listwatch_control_plane::eventually;
use reqwest::{Client, Method};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::task::LocalSet;

use super::Killed;

/// Names the program, such as `chromedriver`. Without it, there are no tests of the page.
const DRIVER: &str = "LISTWATCH_CHROMEDRIVER";

pub struct Browser {
    http: Client,
    session: String,
    dir: TempDir,
    _driver: Killed,
}

/// Runs a test in a new browser, which ends also if the test fails.
pub async fn in_browser<T: Future<Output = ()> + 'static>(test: impl FnOnce(Rc<Browser>) -> T) {
    let Ok(program) = env::var(DRIVER) else {
        println!("skipped: the variable {DRIVER} does not name a chromedriver");
        return;
    };
    let browser = Rc::new(Browser::start(&program).await);
    let tasks = LocalSet::new();
    let test = tasks.spawn_local(test(Rc::clone(&browser)));
    let result = tasks.run_until(test).await;
    browser.send(Method::DELETE, "", json!({})).await;
    result.unwrap();
}

impl Browser {
    async fn start(program: &str) -> Browser {
        let driver = Command::new(program).arg("--port=0").stdout(Stdio::piped()).spawn();
        let missing = |error| panic!("{DRIVER}={program}: {error}: apt-get install chromium chromium-driver");
        let mut driver = Killed(driver.unwrap_or_else(missing));
        let lines = BufReader::new(driver.0.stdout.take().unwrap()).lines().map(Result::unwrap);
        let port = lines
            .filter_map(|line| line.split_once("successfully on port ").map(|(_, port)| port.to_owned()))
            .next()
            .unwrap();
        let dir = tempfile::tempdir().unwrap();
        let args = [
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-quic",
            "--no-first-run",
            "--disable-background-networking",
            "--disable-component-update",
            "--disable-sync",
            "--hide-scrollbars",
            &format!("--user-data-dir={}", dir.path().join("profile").display()),
        ];
        // A second call fails, which does not matter.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let mut browser = Browser {
            http: Client::new(),
            session: format!("http://127.0.0.1:{}/session", port.trim_end_matches('.')),
            dir,
            _driver: driver,
        };
        let wanted = json!({"goog:chromeOptions": {"args": args}, "goog:loggingPrefs": {"browser": "ALL"}});
        let session = browser.send(Method::POST, "", json!({"capabilities": {"alwaysMatch": wanted}})).await;
        browser.session = format!("{}/{}", browser.session, session["sessionId"].as_str().unwrap());
        browser
    }

    async fn send(&self, method: Method, path: &str, body: Value) -> Value {
        let request = self.http.request(method.clone(), format!("{}{path}", self.session));
        let request = if method == Method::POST { request.body(body.to_string()) } else { request };
        let answer = request.send().await.unwrap();
        let (status, text) = (answer.status(), answer.text().await.unwrap());
        assert!(status.is_success(), "{path} {body}: {text}");
        serde_json::from_str::<Value>(&text).unwrap()["value"].take()
    }

    /// Opens an HTML file in a window of a size.
    pub async fn open(&self, html: &str, size: (u32, u32)) {
        self.resize(size).await;
        let file = self.dir.path().join("page.html");
        fs::write(&file, html).unwrap();
        self.visit(&format!("file://{}", file.display())).await;
    }

    /// Opens a page, and waits until it shows a recording.
    pub async fn visit(&self, url: &str) {
        self.send(Method::POST, "/url", json!({"url": url})).await;
        self.until("document.querySelector('canvas').dataset.view").await;
    }

    pub async fn resize(&self, (width, height): (u32, u32)) {
        let size = json!({"width": width, "height": height, "deviceScaleFactor": 1, "mobile": false});
        self.command("Emulation.setDeviceMetricsOverride", size).await;
    }

    /// `dark` or `light`
    pub async fn prefer(&self, scheme: &str) {
        let features = json!([{"name": "prefers-color-scheme", "value": scheme}]);
        self.command("Emulation.setEmulatedMedia", json!({"features": features})).await;
    }

    /// The roles of controls and regions without an accessible name. Opens what is folded.
    pub async fn nameless(&self) -> Vec<String> {
        let roles = "button Canvas combobox DisclosureTriangle grid image list region search searchbox tab tablist tabpanel textbox";
        self.get("document.querySelectorAll('details').forEach((one) => one.open = true)").await;
        let tree = self.command("Accessibility.getFullAXTree", json!({})).await;
        let nodes = tree["nodes"].as_array().unwrap().iter().filter(|node| node["ignored"] == false);
        let named = nodes.map(|node| {
            [&node["role"], &node["name"]].map(|part| part["value"].as_str().unwrap_or_default())
        });
        let controls: Vec<[&str; 2]> =
            named.filter(|[role, _]| roles.split(' ').any(|one| one == *role)).collect();
        assert!(controls.len() > 10, "{controls:?}");
        controls.into_iter().filter(|[_, name]| name.is_empty()).map(|[role, _]| role.to_owned()).collect()
    }

    /// A command of the DevTools protocol.
    async fn command(&self, name: &str, params: Value) -> Value {
        self.send(Method::POST, "/goog/cdp/execute", json!({"cmd": name, "params": params})).await
    }

    /// The value of an expression.
    pub async fn get(&self, expression: &str) -> Value {
        let script = format!("return {expression}");
        self.send(Method::POST, "/execute/sync", json!({"script": script, "args": []})).await
    }

    /// Waits for an expression that is true, and returns its value.
    pub async fn until(&self, expression: &str) -> Value {
        let is_true = |value: &Value| ![json!(null), json!(false), json!("")].contains(value);
        eventually(expression, async || Some(self.get(expression).await).filter(is_true)).await
    }

    pub async fn click(&self, selector: &str) {
        // The controls come with the first news of the operator.
        self.until(&format!("document.querySelector({}) !== null", json!(selector))).await;
        let by = json!({"using": "css selector", "value": selector});
        let element = self.send(Method::POST, "/element", by).await;
        let id = element.as_object().unwrap().values().next().unwrap().as_str().unwrap();
        self.send(Method::POST, &format!("/element/{id}/click"), json!({})).await;
    }

    /// Clicks in an element: at a share of its width, and so many pixels below its top.
    pub async fn click_at(&self, selector: &str, share: f64, down: f64) {
        let box_of = format!("document.querySelector({}).getBoundingClientRect()", json!(selector));
        let place =
            self.get(&format!("[{box_of}.left + {box_of}.width * {share}, {box_of}.top + {down}]")).await;
        let (x, y) = (place[0].as_f64().unwrap().round(), place[1].as_f64().unwrap().round());
        let actions = json!([
            {"type": "pointerMove", "x": x, "y": y},
            {"type": "pointerDown", "button": 0},
            {"type": "pointerUp", "button": 0},
        ]);
        let mouse = json!({"actions": [{"type": "pointer", "id": "mouse", "actions": actions}]});
        self.send(Method::POST, "/actions", mouse).await;
    }

    /// Presses keys: letters, or those that WebDriver names, such as [`TAB`].
    pub async fn press(&self, keys: &str) {
        let actions: Vec<Value> = keys
            .chars()
            .flat_map(|key| ["keyDown", "keyUp"].map(|kind| json!({"type": kind, "value": key.to_string()})))
            .collect();
        self.send(
            Method::POST,
            "/actions",
            json!({"actions": [{"type": "key", "id": "keys", "actions": actions}]}),
        )
        .await;
    }

    /// Presses Tab until an element has the focus.
    pub async fn tab_to(&self, selector: &str) {
        for _ in 0..100 {
            if self.get(&format!("document.activeElement.matches({})", json!(selector))).await == true {
                return;
            }
            self.press(TAB).await;
        }
        panic!("Tab does not lead to {selector}");
    }

    pub async fn picture(&self) -> Vec<u8> {
        let picture = self.send(Method::GET, "/screenshot", json!({})).await;
        BASE64_STANDARD.decode(picture.as_str().unwrap()).unwrap()
    }

    /// What the browser complained about, such as an error of a script, or a request that the policy forbids.
    pub async fn complaints(&self) -> Value {
        self.send(Method::POST, "/se/log", json!({"type": "browser"})).await
    }
}

pub const TAB: &str = "\u{e004}";
pub const ENTER: &str = "\u{e007}";
pub const DOWN: &str = "\u{e015}";
