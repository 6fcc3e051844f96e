//! The page, by what a person does with it, in Chromium: with the variable LISTWATCH_CHROMEDRIVER alone.

use std::{env, fs};

use base64::{Engine, prelude::BASE64_STANDARD};
use listwatch_apiserver::{ApiServer, Options};
use listwatch_control_plane::eventually;
use listwatch_lens::{Recording, Report, document, page};
use listwatch_scorecard::{self as scorecard, EVENTS_MAX, Journal};
use reqwest::Method;
use serde_json::{Value, json};
use tokio::sync::oneshot;

use super::{
    Api,
    browser::{Browser, DOWN, ENTER, in_browser},
    end_if, recorded, settings,
};

pub const WIDE: (u32, u32) = (1280, 800);
const NARROW: (u32, u32) = (390, 844);
const PICTURE: (u32, u32) = (1080, 640);

const LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/default/leases";

/// The value of the Secret.
pub const HIDDEN: &str = "a value that nobody may see";

fn html(journal: &Journal) -> String {
    let recording = Recording::of(journal);
    page::html(&document(&recording, &Report::of(&recording), recording.start()))
}

/// What a server has recorded so far.
fn html_of(server: &ApiServer) -> String {
    let recording = recorded(server);
    page::html(&document(&recording, &Report::of(&recording), recording.start()))
}

/// A run of the operator that stamps its status, in which a user creates a Secret, and the kubeconfig of the user.
async fn loop_and_secret() -> (Journal, String) {
    let (found, config) = oneshot::channel();
    let (mut found, mut asked) = (Some(found), 0);
    let settings = settings("stamps-its-status");
    let run = scorecard::observe(&settings, |server| {
        if let Some(found) = found.take() {
            found.send(server.kubeconfig()).unwrap();
        }
        asked += 1;
        let has_secret = || server.writes_since(0).iter().any(|write| write.object == "default/hidden");
        end_if(asked % 10 == 0 && has_secret() && !Report::of(&recorded(server)).findings.is_empty())
    });
    let user = async {
        let config = config.await.unwrap();
        let secret = json!({"metadata": {"name": "hidden"}, "stringData": {"password": HIDDEN}});
        let api = Api::new(&config, "kubectl");
        assert_eq!(api.send(Method::POST, "/api/v1/namespaces/default/secrets", secret).await.0, 201);
        config
    };
    let (run, config) = tokio::join!(run, user);
    (run.unwrap().0, config)
}

#[tokio::test]
async fn the_file_has_no_value_and_no_token_and_may_ask_for_nothing() {
    let (journal, config) = loop_and_secret().await;
    let html = html(&journal);
    let after = |key: &str| config.split_once(key).unwrap().1.trim_start_matches([' ', '"']);
    let token = after("token:").split(['"', '}', '\n']).next().unwrap().to_owned();
    assert!(html.contains("secrets/default/hidden"), "the Secret is not in the recording");
    for value in [HIDDEN, &*BASE64_STANDARD.encode(HIDDEN), &token, "hello"] {
        assert!(!html.contains(value), "{value}");
    }
    assert!(html.contains("content=\"default-src 'none'; script-src 'sha256-"));
    let outside = ["http://", "https://", "//fonts", "src=", "href=", "@import", "url("];
    for way in outside {
        assert!(!html.contains(way), "{way}");
    }
    in_browser(async move |browser| {
        browser.open(&html, WIDE).await;
        assert_eq!(browser.get("performance.getEntriesByType('resource').length").await, 0);
        assert_eq!(browser.complaints().await, json!([]));
        // The policy holds: even a script that got in could send nothing.
        browser.get("fetch('data:,a').then(() => window.sent = 'yes', () => window.sent = 'no')").await;
        assert_eq!(browser.until("window.sent").await, "no");
    })
    .await;
}

#[tokio::test]
async fn a_person_finds_the_loop_its_cause_and_the_life_of_the_object() {
    let (journal, _) = loop_and_secret().await;
    let html = html(&journal);
    in_browser(async move |browser| {
        let finding = "document.querySelector('#findings summary')";
        for size in [NARROW, WIDE] {
            browser.open(&html, size).await;
            let text = browser.get(&format!("{finding}.textContent")).await;
            let (name, why) = (
                "Problem operator-1 (pages) writes pages.example.com/default/a ",
                "each time woken by the event of its own write before",
            );
            assert!(
                text.as_str().unwrap().starts_with(name) && text.as_str().unwrap().ends_with(why),
                "{text}"
            );
            let bottom = browser.get(&format!("{finding}.getBoundingClientRect().bottom")).await;
            assert!(
                bottom.as_f64().unwrap() < f64::from(size.1),
                "the finding is below the first screen: {bottom}"
            );
            let wide = browser.get("document.documentElement.scrollWidth").await;
            assert!(wide.as_f64().unwrap() <= f64::from(size.0), "the page is wider than the window: {wide}");
            let is_whole = "(why => why.scrollHeight === why.clientHeight)(document.querySelector('#why'))";
            assert!(size == WIDE || browser.get(is_whole).await == true, "the writes have a scroll bar");
        }
        // The third entry is a write, and the second the event that woke it.
        let key = async |at: usize| {
            browser.get(&format!("document.querySelectorAll('#findings .link')[{at}].dataset.key")).await
        };
        let (event, write) = (key(1).await, key(2).await);
        browser.click("#findings .link:nth-of-type(3)").await;
        browser.until(&format!("document.querySelector('canvas').dataset.selected === {write}")).await;
        let arrow = format!("{} {}", event.as_str().unwrap(), write.as_str().unwrap());
        assert_eq!(browser.get("document.querySelector('canvas').dataset.arrow").await, arrow);
        let detail = browser.get("document.querySelector('#detail').textContent").await;
        for words in [
            "changed .status.checks (pages)",
            "MODIFIED of pages.example.com/default/a, by the client itself",
        ] {
            assert!(detail.as_str().unwrap().contains(words), "{detail}");
        }
        assert_eq!(
            browser.get("document.querySelector('#wrong-title').textContent").await,
            "What is wrong (1)"
        );
        picture(&browser).await;
        let lines = browser.get("document.querySelector('#why').textContent").await;
        assert!(
            lines.as_str().unwrap().contains("× patch pages.example.com/default/a (status): .status.checks"),
            "{lines}"
        );
        browser.click("#detail [data-key=life]").await;
        let versions =
            browser.until("document.querySelector('#versions [role=rowgroup]')?.textContent").await;
        assert!(
            versions.as_str().unwrap().contains("patch statusoperator-1 (pages).status.checks (pages)"),
            "{versions}"
        );
        assert_eq!(browser.complaints().await, json!([]));
    })
    .await;
}

/// `LISTWATCH_PICTURE=1` writes the one of the documentation.
async fn picture(browser: &Browser) {
    if env::var("LISTWATCH_PICTURE").is_ok() {
        browser.resize(PICTURE).await;
        browser.until(&format!("document.querySelector('canvas').clientWidth < {}", PICTURE.0)).await;
        let picture = browser.picture().await;
        fs::write("../docs/lens.png", &picture).unwrap();
        assert!(picture.len() < 150_000, "{} bytes", picture.len());
    }
}

#[tokio::test]
async fn the_keyboard_is_enough() {
    let (journal, _) = loop_and_secret().await;
    let html = html(&journal);
    in_browser(async move |browser| {
        browser.open(&html, WIDE).await;
        let all = browser.get("document.querySelector('canvas').dataset.view").await;
        browser.tab_to("[name=object]").await;
        browser.press("secrets/").await;
        browser.tab_to("[type=reset]").await;
        browser.tab_to("#findings .link").await;
        assert_eq!(browser.get("document.querySelector('[name=object]').value").await, "secrets/");
        // The entry is not what the filter asks for, so the filter goes.
        browser.press(ENTER).await;
        let selected = "document.querySelector('canvas').dataset.selected";
        let write = browser.until(selected).await;
        assert_eq!(browser.get("document.querySelector('[name=object]').value").await, "");
        browser.tab_to("canvas").await;
        let before = browser.get("document.querySelector('canvas').dataset.view").await;
        browser.press("+").await;
        browser.until(&format!("document.querySelector('canvas').dataset.view !== {before}")).await;
        browser.press("0").await;
        browser.until(&format!("document.querySelector('canvas').dataset.view === {all}")).await;
        browser.tab_to("#detail [data-key=life]").await;
        browser.press(ENTER).await;
        browser.tab_to("#versions .rows").await;
        let row = "document.querySelector('#versions [aria-selected=true]')";
        browser.until(&format!("{row}?.textContent")).await;
        browser.press(DOWN).await;
        browser.until(&format!("{selected} !== {write} && {row}?.id === document.activeElement.getAttribute('aria-activedescendant')")).await;
    })
    .await;
}

/// Each text with less contrast to its background than WCAG 2 asks for at level AA.
const FAINT: &str = "(() => {
    const parts = (colour) => colour.match(/[\\d.]+/g).map(Number);
    const linear = (part) => (part /= 255) <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4;
    const light = ([red, green, blue]) => 0.05 + 0.2126 * linear(red) + 0.7152 * linear(green) + 0.0722 * linear(blue);
    const back = (element) => {
        const colour = parts(getComputedStyle(element).backgroundColor);
        return colour[3] === 0 ? back(element.parentElement) : colour;
    };
    const hasText = (element) => [...element.childNodes].some((node) => node.nodeType === 3 && node.textContent.trim());
    const contrast = (element) => light(parts(getComputedStyle(element).color)) / light(back(element));
    const shown = [...document.querySelectorAll('body *')].filter((element) => element.checkVisibility() && hasText(element));
    window.backLight = light(back(document.body));
    return shown.filter((element) => contrast(element) < 4.5 && contrast(element) > 1 / 4.5).map((element) => element.outerHTML.slice(0, 99));
})()";

#[tokio::test]
async fn all_texts_can_be_read_in_both_colour_schemes_and_all_controls_have_names() {
    let (journal, _) = loop_and_secret().await;
    let html = html(&journal);
    in_browser(async move |browser| {
        for (scheme, is_right) in [("light", "window.backLight > 0.9"), ("dark", "window.backLight < 0.1")] {
            browser.prefer(scheme).await;
            browser.open(&html, WIDE).await;
            browser.click("#findings .link:nth-of-type(3)").await;
            browser.until("document.querySelector('#detail button')").await;
            for tab in ["#tab-why", "#tab-entries", "#tab-life"] {
                browser.click(tab).await;
                assert_eq!(browser.get(FAINT).await, json!([]), "{scheme}, {tab}");
                assert_eq!(browser.get(is_right).await, true, "{scheme}");
                assert_eq!(browser.nameless().await, [""; 0], "{tab}");
            }
        }
    })
    .await;
}

#[tokio::test]
async fn a_filter_leaves_what_it_names() {
    let (journal, _) = loop_and_secret().await;
    let html = html(&journal);
    in_browser(async move |browser| {
        browser.open(&html, WIDE).await;
        browser.click("#tab-entries").await;
        let column = |number: usize| format!("[...document.querySelectorAll('#entries [role=gridcell]:nth-child({number})')].map((cell) => cell.textContent)");
        browser.click("[name=object]").await;
        browser.press("configmaps/default/a").await;
        let is_of_map = "every((object) => object === 'configmaps/default/a')";
        browser.until(&format!("{}.length > 0 && {}.{is_of_map}", column(4), column(4))).await;
        browser.click("[name=verb]").await;
        browser.press(&format!("create{ENTER}")).await;
        browser.until(&format!("{}.join() === 'create'", column(3))).await;
        browser.click("[type=reset]").await;
        browser.until(&format!("{}.length > 10", column(3))).await;
    })
    .await;
}

#[tokio::test]
async fn two_processes_of_one_user_are_told_apart_by_their_connections() {
    let server = ApiServer::start(Options::default()).await.unwrap();
    for _ in 0..2 {
        assert!(Api::new(&server.kubeconfig(), "pages").get(LEASES).await["items"].is_array());
    }
    let html = html_of(&server);
    in_browser(async move |browser| {
        browser.open(&html, WIDE).await;
        browser.click("#tab-entries").await;
        let rows = "document.querySelectorAll('#entries [role=rowgroup] [role=row]')";
        for connection in ["connection 1", "connection 2"] {
            browser.click("[type=reset]").await;
            browser.until(&format!("{rows}.length > 2")).await;
            browser.click("[name=object]").await;
            browser.press(connection).await;
            browser.until(&format!("{rows}.length === 1")).await;
            browser.click("#entries [role=rowgroup] [role=row]").await;
            let button = "document.querySelector('#detail [data-key=connection]')?.textContent";
            browser.until(&format!("{button} === '{connection}'")).await;
        }
        browser.click("[type=reset]").await;
        browser.until(&format!("{rows}.length > 2")).await;
        browser.click("#detail [data-key=connection]").await;
        browser.until(&format!("{rows}.length === 1")).await;
    })
    .await;
}

fn made(entries: &[Value]) -> String {
    page::html(&json!({"start": "2026-01-02T03:04:05.678Z", "forgotten": 0, "entries": entries,
        "report": {"findings": [], "clients": [], "writes": [], "notes": []}}))
}

fn request(id: u32, verb: &str, t: f64, took: Option<f64>) -> Value {
    json!({"n": id * 3, "t": t, "kind": "request", "id": id, "client": format!("operator-{}", id % 3), "verb": verb, "resource": "pages",
        "object": format!("pages/default/{}", id % 50), "subresource": "", "target": "/pages", "status": 200, "took": took, "version": null, "changed": null})
}

/// The number of marks in the time line.
async fn drawn(browser: &Browser) -> u64 {
    browser.get("Number(document.querySelector('canvas').dataset.drawn)").await.as_u64().unwrap()
}

#[tokio::test]
async fn a_recording_opens_on_its_entries_if_nothing_was_written() {
    in_browser(async move |browser| {
        browser.open(&made(&[request(3, "list", 0.0, Some(0.1))]), WIDE).await;
        let cells = "document.querySelector('#entries [role=row]:nth-child(1) [role=gridcell]:nth-child(3)')";
        assert_eq!(browser.until(&format!("{cells}?.textContent")).await, "list");
        let (journal, _) = loop_and_secret().await;
        browser.open(&html(&journal), WIDE).await;
        assert_eq!(browser.get("document.querySelector('#why').hidden").await, false);
    })
    .await;
}

#[tokio::test]
async fn a_time_without_an_open_watch_is_seen() {
    in_browser(async move |browser| {
        // A begin and a bar, and a get.
        browser.open(&made(&[request(3, "watch", 0.0, None), request(6, "get", 9.0, Some(0.1))]), WIDE).await;
        assert_eq!(drawn(&browser).await, 3);
        // In the middle of its bar, below the axis and the name of the client, the watch is chosen.
        browser.click_at("canvas", 0.5, 60.0).await;
        browser.until("document.querySelector('canvas').dataset.selected === '9'").await;
        // And the time after the end.
        browser
            .open(&made(&[request(3, "watch", 0.0, Some(1.0)), request(6, "get", 9.0, Some(0.1))]), WIDE)
            .await;
        assert_eq!(drawn(&browser).await, 4);
        let again = [request(3, "watch", 0.0, Some(1.0)), request(3003, "watch", 9.0, None)];
        browser.open(&made(&again), WIDE).await;
        assert_eq!(drawn(&browser).await, 5);
        // Before the second begins, it is seen still.
        browser.click("#zoom-in").await;
        browser.until("Number(document.querySelector('canvas').dataset.view.split(' ')[1]) < 8").await;
        assert_eq!(drawn(&browser).await, 1);
    })
    .await;
}

#[tokio::test]
async fn a_list_in_pages_is_one_bar_and_a_watch_beside_another_has_its_own_row() {
    let server = ApiServer::start(Options { events: EVENTS_MAX, ..Options::default() }).await.unwrap();
    let api = Api::new(&server.kubeconfig(), "pages");
    let create = async |name: &str| {
        let lease = json!({"metadata": {"name": name}});
        assert_eq!(api.send(Method::POST, LEASES, lease).await.0, 201);
    };
    for name in ["a", "b", "c"] {
        create(name).await;
    }
    let (mut next, mut version) = (Some(format!("{LEASES}?limit=1")), Value::Null);
    while let Some(target) = next {
        let metadata = api.get(&target).await["metadata"].take();
        let token = metadata["continue"].as_str().filter(|token| !token.is_empty());
        next = token.map(|token| format!("{LEASES}?limit=1&continue={token}"));
        version = metadata["resourceVersion"].clone();
    }
    let target = format!("{LEASES}?watch=1&resourceVersion={}", version.as_str().unwrap());
    let _watches = [
        api.open(Method::GET, &target, &Value::Null).await,
        api.open(Method::GET, &target, &Value::Null).await,
    ];
    create("d").await;
    let are_sent = || server.events().iter().filter(|event| event.object == "default/d").count() == 2;
    eventually("the events", async || are_sent().then_some(())).await;
    let html = html_of(&server);
    in_browser(async move |browser| {
        browser.open(&html, WIDE).await;
        let rows = "document.querySelector('canvas').ariaDescription.split(', ').slice(0, 5)";
        let of = |what: &str| format!("{what} leases.coordination.k8s.io/default");
        assert_eq!(
            browser.get(rows).await,
            json!(["admin (pages)", of("watch"), of("also watch"), of("list"), "writes"])
        );
        // The bars of both watches end at the right.
        let mut chosen = json!("");
        for row in [59.0, 81.0] {
            browser.click_at("canvas", 0.98, row).await;
            let selected = "document.querySelector('canvas').dataset.selected";
            chosen = browser.until(&format!("{selected} !== {chosen} && {selected}")).await;
        }
        browser.click("#tab-entries").await;
        let lists = "[...document.querySelectorAll('#entries [role=row]')].filter((row) => row.children[2].textContent === 'list').map((row) => row.children[4].textContent.split(', ')[1])";
        browser.until(&format!("{lists}.length === 3")).await;
        assert_eq!(browser.get(lists).await, json!(["page 1 of 3", "page 2 of 3", "page 3 of 3"]));
        // Three pages in a bar.
        let page = |id: u32, t: f64, query: &str| {
            let mut page = request(id, "list", t, Some(0.1));
            page["target"] = format!("/pages?limit=1{query}").into();
            page["object"] = "pages/default".into();
            page
        };
        let pages = [page(3, 0.0, ""), page(6, 4.0, "&continue=b"), page(9, 9.0, "&continue=c")];
        browser.open(&made(&pages), WIDE).await;
        assert_eq!(drawn(&browser).await, 4);
        assert_eq!(browser.complaints().await, json!([]));
    })
    .await;
}

#[tokio::test]
async fn of_a_hundred_thousand_entries_only_what_is_seen_is_drawn() {
    // A thousand seconds, with a hundred requests each.
    let entry = |id: u32| request(id, ["get", "patch"][id as usize % 2], f64::from(id) / 100.0, Some(0.001));
    let mut entries: Vec<Value> = (0..100_000).map(entry).collect();
    for failed in entries.iter_mut().step_by(1000) {
        failed["status"] = 500.into();
    }
    let html = made(&entries);
    in_browser(async move |browser| {
        browser.open(&html, WIDE).await;
        browser.click("#tab-entries").await;
        browser.until("document.querySelector('#entries [role=row]:nth-child(3)')").await;
        let rows = browser.get("document.querySelectorAll('#entries [role=row]').length").await;
        let seen = browser.get("Math.ceil(document.querySelector('#entries .rows').clientHeight / 26)").await;
        assert_eq!(
            browser.get("document.querySelector('#entries .rows').getAttribute('aria-rowcount')").await,
            "100001"
        );
        // With the heading, and one that is seen in part.
        assert_eq!(rows.as_u64().unwrap(), seen.as_u64().unwrap() + 2, "{seen} are seen");
        // Six lanes of columns of two pixels, and errors of eight.
        let width = browser.get("document.querySelector('canvas').clientWidth").await.as_u64().unwrap();
        let marks = drawn(&browser).await;
        assert!(marks > 500 && marks < 6 * (width / 2 + width / 8), "{marks} in {width} pixels");
        // So far in that each has its place, each is drawn once.
        for _ in 0..12 {
            browser.click("#zoom-in").await;
        }
        browser.until("document.querySelector('#entries .rows').getAttribute('aria-rowcount') < 40").await;
        let entries =
            browser.get("document.querySelector('#entries .rows').getAttribute('aria-rowcount') - 1").await;
        assert_eq!(drawn(&browser).await, entries);
    })
    .await;
}
