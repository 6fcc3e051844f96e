//! The rules of [`Machine`], one test each: answers in, next request and pause out.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex},
};

use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::*;
use crate::{
    client::{Config, Error, LIST_STREAM_BYTES, Page, PermitFor, WatchFrom},
    resource::{
        Status,
        kinds::Service,
        list::{Found, List},
    },
    store::{Change, Listening},
    watch::{
        decode::WatchEvent,
        machine::{Freshness, Listing, State},
    },
};

const MINUTE: Duration = Duration::from_secs(60);
const BLINK: Duration = Duration::from_millis(5);

/// A machine, its store, and what was heard of it.
struct Bench {
    machine: Machine,
    store: Store<Service>,
    heard: Arc<Mutex<Vec<String>>>,
    _listening: Listening,
}

impl Bench {
    fn new(lists: Lists) -> Bench {
        let store = Store::<Service>::default();
        let heard = Arc::new(Mutex::new(Vec::new()));
        let log = Arc::clone(&heard);
        let _listening = store.listen(move |change| {
            let name = |found: &Found<Service>| found.metadata().name.to_string();
            let line = match change {
                Change::Applied { before: None, after } => format!("+{}", name(after)),
                Change::Applied { after, .. } => format!("~{}", name(after)),
                Change::Deleted { last, source } => format!("-{} {source:?}", name(last)),
                Change::Synced => "synced".to_owned(),
                Change::Forbidden => "forbidden".to_owned(),
            };
            log.lock().expect("lock").push(line);
        });
        let mut bench = Bench { machine: Machine::new(lists), store, heard, _listening };
        bench.request();
        bench
    }

    /// A machine that has listed nothing as of version 100, and follows.
    fn following() -> Bench {
        let mut bench = Bench::new(Lists::Paged);
        bench.page("100", "", &[]);
        bench.heard();
        bench.request();
        bench
    }

    /// The next request, in short.
    fn request(&mut self) -> String {
        if self.machine.is_at_start_of_list() {
            self.store.list_begins();
        }
        match self.machine.request(&self.store.version(), 300) {
            NextRequest::List(Page { version, continue_token, limit }) => {
                format!("list version={} continue={continue_token} limit={limit}", version.unwrap_or("-"))
            }
            NextRequest::Check => "check".to_owned(),
            NextRequest::Watch(WatchFrom { version, mode, .. }) => format!("watch {version} {mode:?}"),
        }
    }

    /// The next request but one, where the next asks whether the server has come as far as we have. It has.
    fn after_a_check(&mut self) -> String {
        assert_eq!(self.request(), "check");
        self.machine.checked("999");
        self.request()
    }

    fn page(&mut self, version: &str, continue_token: &str, names: &[(&str, &str, &str)]) {
        let items: Vec<_> = names.iter().map(|(name, uid, version)| object(name, uid, version)).collect();
        let json = format!(
            r#"{{"metadata":{{"resourceVersion":"{version}","continue":"{continue_token}"}},"items":[{}]}}"#,
            items.join(",")
        );
        assert_eq!(self.take(List::from_json(json.as_bytes()).expect("a page")), None);
    }

    fn take(&mut self, page: List<Service>) -> Option<EndReason> {
        let effect = self.machine.page(&page.version, &page.continue_token);
        self.store.listed(&page.version, page.items);
        if let Effect::Complete(version) = &effect {
            self.store.list_ends(version);
        }
        ended(effect)
    }

    fn line(&mut self, kind: &str, object: &str) -> Option<EndReason> {
        let line = format!(r#"{{"type":"{kind}","object":{object}}}"#);
        let effect = apply_line(&self.store, line.as_bytes(), |event| self.machine.line(event));
        ended(effect.expect("an event"))
    }

    fn heard(&self) -> Vec<String> {
        std::mem::take(&mut *self.heard.lock().expect("lock"))
    }
}

fn ended(effect: Effect) -> Option<EndReason> {
    if let Effect::End(how) = effect { Some(how) } else { None }
}

fn object(name: &str, uid: &str, version: &str) -> String {
    format!(
        r#"{{"metadata":{{"name":"{name}","namespace":"default","uid":"{uid}","resourceVersion":"{version}"}}}}"#
    )
}

fn bookmark(version: &str) -> String {
    format!(r#"{{"metadata":{{"resourceVersion":"{version}"}}}}"#)
}

const END_OF_INITIAL_EVENTS: &str =
    r#"{"metadata":{"resourceVersion":"60","annotations":{"k8s.io/initial-events-end":"true"}}}"#;

fn is_backoff(pause: Pause) -> bool {
    matches!(pause, Pause::Backoff { .. })
}

#[test]
fn a_list_comes_in_pages_and_the_watch_follows_from_its_version() {
    let mut bench = Bench::new(Lists::Paged);
    assert_eq!(bench.request(), "list version=- continue= limit=100");
    bench.page("100", "next", &[("a", "1", "3")]);
    assert_eq!(bench.request(), "list version=- continue=next limit=100");
    bench.page("100", "", &[("b", "2", "9")]);
    assert_eq!(bench.request(), "watch 100 Changes");
    assert_eq!(bench.heard(), ["+a", "+b", "synced"]);
}

#[test]
fn it_resumes_from_the_last_event_or_bookmark_without_a_list() {
    let mut bench = Bench::following();
    bench.line("ADDED", &object("a", "1", "101"));
    assert_eq!(bench.machine.end(EndReason::Cut, BLINK), Pause::None);
    assert_eq!(bench.after_a_check(), "watch 101 Changes");
    bench.line("BOOKMARK", &bookmark("150"));
    assert_eq!(bench.machine.end(EndReason::Clean, 6 * MINUTE), Pause::None);
    assert_eq!(bench.request(), "watch 150 Changes");
    bench.line("DELETED", &object("a", "1", "160"));
    assert_eq!(bench.machine.end(EndReason::Cut, MINUTE), Pause::None);
    assert_eq!(bench.after_a_check(), "watch 160 Changes");
    assert_eq!(bench.heard(), ["+a", "-a Event"]);
}

/// Only the clean end was.
#[test]
fn a_watch_that_ends_at_once_is_backed_off_and_each_time_longer() {
    for how in [EndReason::Clean, EndReason::Cut, EndReason::Silent] {
        let mut bench = Bench::following();
        for failures in 1..5 {
            let pause = bench.machine.end(how, BLINK);
            assert_eq!(pause, Pause::Backoff { failures, at_least: Duration::ZERO }, "{how:?}");
            assert_eq!(bench.after_a_check(), "watch 100 Changes");
        }
        bench.line("BOOKMARK", &bookmark("101"));
        assert_eq!(bench.machine.end(how, 6 * MINUTE), Pause::None);
        bench.request();
        bench.machine.checked("999");
        bench.request();
        let pause = bench.machine.end(how, BLINK);
        assert_eq!(
            pause,
            Pause::Backoff { failures: 1, at_least: Duration::ZERO },
            "health was proven in between"
        );
    }
}

#[test]
fn a_watch_that_ends_at_once_but_after_a_line_is_resumed_at_once() {
    for how in [EndReason::Clean, EndReason::Cut] {
        let mut bench = Bench::following();
        bench.line("ADDED", &object("a", "1", "101"));
        assert_eq!(bench.machine.end(how, BLINK), Pause::None, "{how:?}");
    }
    let mut bench = Bench::following();
    assert_eq!(bench.machine.end(EndReason::Clean, VERY_SHORT), Pause::None, "a second is not at once");
}

/// A proxy that ended each watch after a BOOKMARK of the known version was asked again without a pause, as fast as it answered.
#[test]
fn a_watch_that_ends_at_once_and_only_repeats_the_known_version_is_backed_off() {
    let mut bench = Bench::following();
    for (failures, kind) in [(1, "BOOKMARK"), (2, "RENAMED"), (3, "MODIFIED")] {
        assert_eq!(bench.line(kind, &object("a", "1", "100")), None);
        let pause = bench.machine.end(EndReason::Clean, BLINK);
        assert_eq!(pause, Pause::Backoff { failures, at_least: Duration::ZERO }, "{kind}");
        // No check: the server has shown that it is not behind.
        assert_eq!(bench.request(), "watch 100 Changes");
    }
    // The events of an older watch, sent once more.
    bench.line("MODIFIED", &object("a", "1", "99"));
    bench.line("MODIFIED", &object("a", "1", "100"));
    assert_eq!(
        bench.machine.end(EndReason::Clean, BLINK),
        Pause::Backoff { failures: 4, at_least: Duration::ZERO }
    );
    bench.request();
    bench.line("BOOKMARK", &bookmark("100"));
    bench.line("BOOKMARK", &bookmark("101"));
    assert_eq!(bench.machine.end(EndReason::Clean, BLINK), Pause::None);
}

/// The list may have the version that is known already: nothing was written while the watch was away.
#[test]
fn a_streaming_list_that_is_complete_is_followed_by_a_watch_at_once() {
    let mut bench = Bench::new(Lists::Streaming);
    bench.line("BOOKMARK", END_OF_INITIAL_EVENTS);
    bench.machine.end(EndReason::Expired, MINUTE);
    bench.request();
    bench.line("BOOKMARK", END_OF_INITIAL_EVENTS);
    assert_eq!(bench.machine.end(EndReason::Clean, BLINK), Pause::None);
    assert_eq!(bench.request(), "watch 60 Changes");
}

/// Behind such a proxy no watch lasted the minute that proves health, so one failure waited as long as the sixth in a row.
#[test]
fn watches_that_a_proxy_ends_after_fifty_seconds_prove_health_together() {
    let proxy = Duration::from_secs(50);
    let mut bench = Bench::following();
    for _ in 0..6 {
        bench.machine.end(EndReason::Refused { code: 429, retry_after: None }, BLINK);
        bench.after_a_check();
    }
    for failures in [7, 1] {
        assert_eq!(bench.machine.end(EndReason::Cut, proxy), Pause::None);
        bench.after_a_check();
        if failures == 1 {
            assert_eq!(bench.machine.end(EndReason::Clean, proxy), Pause::None);
            bench.after_a_check();
        }
        let pause = bench.machine.end(EndReason::Unreachable, BLINK);
        assert_eq!(pause, Pause::Backoff { failures, at_least: Duration::ZERO });
        bench.after_a_check();
    }
}

#[test]
fn an_expired_version_means_a_list_that_is_not_older() {
    let mut bench = Bench::following();
    let how = bench.line("ERROR", r#"{"kind":"Status","code":410,"reason":"Expired"}"#).expect("an end");
    assert_eq!(how, EndReason::Expired);
    assert_eq!(bench.machine.end(how, MINUTE), Pause::None);
    assert_eq!(bench.request(), "list version=100 continue= limit=100");
    // That one is too old as well: then the most recent, and only then with a pause.
    assert_eq!(bench.machine.end(EndReason::Expired, BLINK), Pause::None);
    assert_eq!(bench.request(), "list version=- continue= limit=100");
    assert!(is_backoff(bench.machine.end(EndReason::Expired, BLINK)));
    assert_eq!(bench.request(), "list version=- continue= limit=100");
}

#[test]
fn a_server_that_expires_everything_at_once_is_not_hammered() {
    let mut bench = Bench::following();
    assert_eq!(bench.machine.end(EndReason::Expired, BLINK), Pause::None);
    bench.request();
    bench.page("101", "", &[]);
    bench.request();
    assert!(is_backoff(bench.machine.end(EndReason::Expired, BLINK)));
    bench.request();
    bench.page("102", "", &[]);
    bench.request();
    // After a long healthy time, the first list follows at once, and only that one.
    assert_eq!(bench.machine.end(EndReason::Expired, 5 * MINUTE), Pause::None);
    bench.request();
    bench.page("103", "", &[]);
    bench.request();
    assert!(is_backoff(bench.machine.end(EndReason::Expired, BLINK)));
}

#[test]
fn gone_is_what_old_servers_say() {
    let mut bench = Bench::following();
    assert_eq!(bench.line("ERROR", r#"{"kind":"Status","reason":"Gone"}"#), Some(EndReason::Expired));
}

#[test]
fn a_version_that_is_too_new_means_the_most_recent_list() {
    let mut bench = Bench::following();
    bench.machine.end(EndReason::Expired, MINUTE);
    bench.request();
    assert_eq!(bench.machine.end(EndReason::TooNew, BLINK), Pause::None);
    assert_eq!(bench.request(), "list version=- continue= limit=100");
    let status =
        r#"{"code":504,"reason":"Timeout","details":{"causes":[{"reason":"ResourceVersionTooLarge"}]}}"#;
    assert_eq!(
        EndReason::from(&serde_json::from_str::<Status>(status).expect("a status")),
        EndReason::TooNew
    );
}

#[test]
fn a_list_that_expires_between_its_pages_twice_is_asked_for_in_one_piece() {
    let mut bench = Bench::new(Lists::Paged);
    for limit in [100, 0] {
        bench.page("100", "next", &[("a", "1", "3")]);
        bench.request();
        assert_eq!(bench.machine.end(EndReason::Expired, BLINK), Pause::None);
        assert_eq!(bench.request(), format!("list version=- continue= limit={limit}"));
    }
    // Not for ever: the size of a list in one piece has a limit.
    assert!(is_backoff(bench.machine.end(EndReason::TooLarge, BLINK)));
    assert_eq!(bench.request(), "list version=- continue= limit=100");
}

/// It was asked for at the same size again, for ever.
#[test]
fn a_page_that_is_too_large_is_asked_for_in_smaller_ones_which_grow_back() {
    let mut bench = Bench::following();
    bench.machine.end(EndReason::Expired, MINUTE);
    bench.request();
    bench.page("200", "next", &[("a", "1", "101")]);
    for limit in [100, 50, 25, 12, 6, 3] {
        assert_eq!(bench.request(), format!("list version=100 continue=next limit={limit}"));
        assert_eq!(bench.machine.end(EndReason::TooLarge, BLINK), Pause::None);
    }
    for (number, limit) in [1, 2, 4, 8, 16, 32, 64, 100].into_iter().enumerate() {
        assert!(bench.request().ends_with(&format!(" limit={limit}")));
        bench.page("200", &format!("after-{number}"), &[("a", "1", "101")]);
    }
    assert_eq!(bench.request(), "list version=100 continue=after-7 limit=100");
}

#[test]
fn a_page_of_one_object_that_is_too_large_is_backed_off() {
    let mut bench = Bench::new(Lists::Paged);
    while bench.request() != "list version=- continue= limit=1" {
        assert_eq!(bench.machine.end(EndReason::TooLarge, BLINK), Pause::None);
    }
    assert!(is_backoff(bench.machine.end(EndReason::TooLarge, BLINK)));
    assert_eq!(bench.request(), "list version=- continue= limit=100");
}

#[test]
fn lists_and_checks_wait_for_a_permit_and_a_watch_of_changes_does_not() {
    let is_list = |bench: &mut Bench| match bench.machine.request("", 300).permit() {
        Some(PermitFor::List { bytes_max }) => Some(bytes_max == LIST_STREAM_BYTES),
        Some(PermitFor::Check) => Some(false),
        None => None,
    };
    assert_eq!(is_list(&mut Bench::new(Lists::Paged)), Some(true));
    assert_eq!(is_list(&mut Bench::new(Lists::Streaming)), Some(true));
    let mut bench = Bench::following();
    assert_eq!(is_list(&mut bench), None);
    bench.machine.end(EndReason::Cut, MINUTE);
    assert_eq!(is_list(&mut bench), Some(false));
}

#[test]
fn an_object_missing_from_a_list_is_deleted_and_a_new_uid_is_another_object() {
    let mut bench = Bench::following();
    for (name, uid) in [("a", "1"), ("b", "2"), ("c", "3")] {
        bench.line("ADDED", &object(name, uid, "101"));
    }
    bench.heard();
    bench.machine.end(EndReason::Expired, MINUTE);
    bench.request();
    bench.page("200", "", &[("b", "22", "150"), ("c", "3", "101")]);
    assert_eq!(bench.heard(), ["-b Inferred", "+b", "-a Inferred"]);
}

#[test]
fn a_list_from_a_restored_backup_overwrites() {
    let mut bench = Bench::following();
    bench.line("ADDED", &object("a", "1", "150"));
    bench.line("ADDED", &object("b", "2", "151"));
    bench.heard();
    bench.machine.end(EndReason::Expired, MINUTE);
    bench.request();
    bench.machine.end(EndReason::TooNew, BLINK);
    bench.request();
    bench.page("40", "", &[("a", "1", "30")]);
    assert_eq!(bench.heard(), ["~a", "-b Inferred"]);
    assert_eq!(bench.request(), "watch 40 Changes");
}

/// A streaming list says its version last, and would leave what the backup does not have.
#[test]
fn a_list_from_a_restored_backup_that_fails_begins_anew_in_pages() {
    for how in [EndReason::Unreachable, EndReason::Expired] {
        let mut bench = Bench::new(Lists::Streaming);
        bench.line(
            "BOOKMARK",
            r#"{"metadata":{"resourceVersion":"100","annotations":{"k8s.io/initial-events-end":"true"}}}"#,
        );
        bench.machine.end(EndReason::Cut, MINUTE);
        bench.request();
        bench.machine.checked("99");
        assert_eq!(bench.request(), "list version=- continue= limit=100");
        bench.machine.end(how, BLINK);
        assert_eq!(bench.request(), "list version=- continue= limit=100", "{how:?}");
    }
}

/// Or it would wait for a version that the server may reach by another way.
#[test]
fn a_server_out_of_sight_or_silent_is_asked_whether_it_has_come_as_far_as_we_have() {
    for how in [EndReason::Clean, EndReason::Cut, EndReason::Silent, EndReason::Unreachable] {
        let mut bench = Bench::following();
        bench.machine.end(how, 5 * MINUTE);
        assert_eq!(bench.request(), "check", "{how:?}");
        // It is not there yet, or not ready.
        for how in [EndReason::Unreachable, EndReason::Refused { code: 429, retry_after: None }] {
            assert!(is_backoff(bench.machine.end(how, BLINK)));
            assert_eq!(bench.request(), "check", "{how:?}");
        }
        bench.machine.checked("99");
        assert_eq!(bench.request(), "list version=- continue= limit=100", "{how:?}");
    }
}

/// The Store stayed as it was for ever: each check was answered, and each watch refused, as without the verb `watch`.
#[test]
fn a_watch_that_fails_again_after_a_check_gives_way_to_a_list() {
    let refused = |code| EndReason::Refused { code, retry_after: None };
    for how in
        [refused(401), refused(403), refused(404), refused(500), EndReason::Unreachable, EndReason::Late]
    {
        let mut bench = Bench::following();
        for _ in 0..2 {
            assert!(is_backoff(bench.machine.end(how, BLINK)));
            assert_eq!(bench.request(), "check");
            bench.machine.checked("101");
            assert!(bench.request().starts_with("watch 100"));
            assert!(is_backoff(bench.machine.end(how, BLINK)));
            assert_eq!(bench.request(), "list version=100 continue= limit=100", "{how:?}");
            bench.page("100", "", &[]);
        }
        // A watch that opens begins the count anew.
        bench.machine.end(how, BLINK);
        bench.machine.checked("101");
        bench.machine.end(EndReason::Cut, MINUTE);
        bench.after_a_check();
        bench.machine.end(how, BLINK);
        assert_eq!(bench.request(), "check");
    }
    // A failed check does not count as a watch that failed to open.
    let mut bench = Bench::following();
    bench.machine.end(EndReason::Cut, MINUTE);
    assert!(is_backoff(bench.machine.end(EndReason::Unreachable, BLINK)));
    bench.after_a_check();
    bench.machine.end(EndReason::Unreachable, BLINK);
    assert_eq!(bench.request(), "check");
    let mut bench = Bench::following();
    for _ in 0..3 {
        bench.machine.end(refused(429), BLINK);
        assert_eq!(bench.request(), "check", "an overloaded server is not asked for lists");
        bench.machine.checked("101");
    }
}

/// A page of large objects that needs more than 30 s was asked for at the same size again, for ever.
#[test]
fn a_page_that_is_late_is_asked_for_in_smaller_ones_after_a_pause() {
    let mut bench = Bench::following();
    bench.machine.end(EndReason::Expired, MINUTE);
    bench.page("200", "next", &[("a", "1", "101")]);
    for limit in [100, 50, 25, 12, 6, 3, 1] {
        assert_eq!(bench.request(), format!("list version=100 continue=next limit={limit}"));
        assert!(is_backoff(bench.machine.end(EndReason::Late, BLINK)));
    }
    assert_eq!(bench.request(), "list version=100 continue= limit=100");
}

/// An aggregated API server may not know PartialObjectMetadata, which a check asks for. It was asked for ever.
#[test]
fn a_check_that_is_not_understood_gives_way_to_a_list() {
    let refused = |code| EndReason::Refused { code, retry_after: None };
    for how in [
        refused(400),
        refused(405),
        refused(406),
        EndReason::Unsupported,
        EndReason::Garbled,
        EndReason::TooLarge,
    ] {
        let mut bench = Bench::following();
        bench.machine.end(EndReason::Cut, 5 * MINUTE);
        assert_eq!(bench.request(), "check");
        // An object may have more metadata than a check reads.
        assert_eq!(is_backoff(bench.machine.end(how, BLINK)), how != EndReason::TooLarge, "{how:?}");
        assert_eq!(bench.request(), "list version=100 continue= limit=100", "{how:?}");
    }
}

/// An authorizer that looks at selectors may allow the list and the watch, and refuse the check, which has no selector. The
/// check was sent for ever.
#[test]
fn a_check_that_is_forbidden_gives_way_to_a_list() {
    let forbidden = EndReason::Refused { code: 403, retry_after: None };
    let mut bench = Bench::following();
    bench.machine.end(EndReason::Cut, 5 * MINUTE);
    assert_eq!(bench.request(), "check");
    assert!(is_backoff(bench.machine.end(forbidden, BLINK)));
    // The list may also be forbidden.
    for _ in 0..2 {
        assert_eq!(bench.request(), "list version=100 continue= limit=100");
        assert!(is_backoff(bench.machine.end(forbidden, BLINK)));
    }
}

#[test]
fn silence_counts_once_a_bookmark_has_come_on_this_stream() {
    let mut bench = Bench::following();
    assert_eq!(bench.machine.silence_limit(300), Duration::from_secs(330));
    bench.line("BOOKMARK", &bookmark("101"));
    assert_eq!(bench.machine.silence_limit(300), Duration::from_secs(130));
    assert_eq!(bench.machine.silence_limit(60), Duration::from_secs(90), "the server was to end it before");
    assert_eq!(bench.machine.end(EndReason::Silent, 4 * MINUTE), Pause::None);
    assert_eq!(bench.after_a_check(), "watch 101 Changes");
    assert_eq!(bench.machine.silence_limit(300), Duration::from_secs(330));
}

#[test]
fn a_refusal_that_may_pass_keeps_the_version_and_any_other_lists_again() {
    let refused = |code| EndReason::Refused { code, retry_after: None };
    for code in [401, 403, 404, 429, 500, 503, 504] {
        let mut bench = Bench::following();
        assert!(is_backoff(bench.machine.end(refused(code), BLINK)), "{code}");
        assert_eq!(bench.after_a_check(), "watch 100 Changes", "{code}");
    }
    for code in [400, 405, 406, 422] {
        let mut bench = Bench::following();
        assert!(is_backoff(bench.machine.end(refused(code), BLINK)), "{code}");
        assert_eq!(bench.request(), "list version=100 continue= limit=100", "{code}");
        // The list may also be refused because of its version.
        assert!(is_backoff(bench.machine.end(refused(code), BLINK)), "{code}");
        assert_eq!(bench.request(), "list version=- continue= limit=100", "{code}");
    }
}

#[test]
fn a_list_that_is_refused_for_a_while_stays_not_older() {
    let mut bench = Bench::following();
    bench.machine.end(EndReason::Expired, MINUTE);
    bench.request();
    assert!(is_backoff(bench.machine.end(EndReason::Refused { code: 503, retry_after: None }, BLINK)));
    assert_eq!(bench.request(), "list version=100 continue= limit=100");
}

fn services() -> Collection {
    Collection::of::<Service>(&Scope::default()).expect("a path")
}

#[test]
fn the_kind_of_refusal_decides_the_next_request() {
    let too_new = r#"{"code":504,"details":{"causes":[{"reason":"ResourceVersionTooLarge"}]}}"#;
    for (status, expected) in [
        (r#"{"code":410,"reason":"Expired"}"#, EndReason::Expired),
        (too_new, EndReason::TooNew),
        (r#"{"code":422}"#, EndReason::Unsupported),
        (r#"{"code":403}"#, EndReason::Refused { code: 403, retry_after: None }),
    ] {
        let error = Error::refused("list", "services", serde_json::from_str(status).expect("a status"));
        assert_eq!(End::failed(&error, &services()).how, expected, "{status}");
    }
    let error = Error::new("list", "services", "no answer");
    assert_eq!(End::failed(&error, &services()).how, EndReason::Unreachable);
}

/// `listwatch crd` was named as the remedy even for a kind of another program.
#[test]
fn the_missing_crd_of_a_kind_without_a_command_is_named_alone() {
    let error = Error::refused("list", "pages", Status { code: 404, ..Status::default() });
    let pages =
        Collection { path: "/apis/example.com/v1/pages".into(), resource: "pages".into(), ..services() };
    let problem = End::failed(&error, &pages).problem;
    assert!(problem.ends_with("; install the CustomResourceDefinition pages.example.com"), "{problem}");
}

#[test]
fn a_first_429_is_no_news() {
    let is_news = |code: u16, failures| {
        let error = Error::refused("list", "services", Status { code, ..Status::default() });
        End::failed(&error, &services()).is_news(failures)
    };
    assert!(!is_news(429, 1));
    assert!(is_news(429, 2));
    assert!(is_news(503, 1));
}

#[tokio::test]
async fn a_page_of_html_is_no_list() {
    const HTML: &[u8] = b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 13\r\n\r\n<html></html>";
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address");
    let mut proxy = tokio::task::JoinSet::new();
    proxy.spawn(async move {
        while let Ok((mut peer, _)) = listener.accept().await {
            let _ = peer.read(&mut [0; 4096]).await;
            let _ = peer.write_all(HTML).await;
        }
    });
    let config = Config::new(&format!("http://{address}"), b"", "").expect("a config");
    let client = Client::new(config).expect("a client");
    let page = client.list_page(&services(), &Page::default()).await.expect("a page");
    let error = page.read(|json| RawPage::from_json(json).map(drop)).expect_err("HTML");
    assert_eq!(End::failed(&error, &services()).how, EndReason::Garbled, "{error}");
}

/// A page that is late is asked for again in smaller ones, unlike one that fails otherwise.
#[tokio::test(start_paused = true)]
async fn a_page_that_does_not_come_in_time_is_late() {
    let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = silent.local_addr().expect("an address");
    let client = Client::new(Config::new(&format!("http://{address}"), b"", "").expect("a config"));
    let page = client.expect("a client").list_page(&services(), &Page::default()).await;
    let error = page.err().expect("no answer");
    assert_eq!(EndReason::of(&error), EndReason::Late, "{error}");
}

#[test]
fn retry_after_is_the_least_pause() {
    let asked = Duration::from_secs(7);
    let mut bench = Bench::following();
    let pause = bench.machine.end(EndReason::Refused { code: 429, retry_after: Some(asked) }, BLINK);
    assert_eq!(pause, Pause::Backoff { failures: 1, at_least: asked });
    let how = bench.line("ERROR", r#"{"code":429,"details":{"retryAfterSeconds":7}}"#);
    assert_eq!(how, Some(EndReason::Refused { code: 429, retry_after: Some(asked) }));
}

#[test]
fn a_line_that_cannot_be_read_means_a_list_which_leads_past_it() {
    for how in [EndReason::Garbled, EndReason::LineTooLong] {
        let mut bench = Bench::following();
        assert!(is_backoff(bench.machine.end(how, MINUTE)));
        assert_eq!(bench.request(), "list version=100 continue= limit=100");
    }
}

#[test]
fn a_failing_list_is_backed_off_longer_each_time() {
    let mut bench = Bench::new(Lists::Paged);
    for failures in 1..6 {
        let how = EndReason::Refused { code: 500, retry_after: None };
        assert_eq!(bench.machine.end(how, BLINK), Pause::Backoff { failures, at_least: Duration::ZERO });
        assert_eq!(bench.request(), "list version=- continue= limit=100");
    }
}

/// A CRD that was made again was noticed after a minute.
#[test]
fn a_missing_kind_is_looked_for_every_few_seconds() {
    let mut bench = Bench::new(Lists::Paged);
    let refused = |code| EndReason::Refused { code, retry_after: None };
    for _ in 0..20 {
        let Pause::Backoff { failures, .. } = bench.machine.end(refused(404), BLINK) else {
            panic!("no pause")
        };
        assert!(crate::watch::BACKOFF.longest(failures) < Duration::from_secs(13), "{failures}");
    }
    let overloaded = bench.machine.end(refused(429), BLINK);
    assert_eq!(overloaded, Pause::Backoff { failures: 5, at_least: Duration::ZERO });
}

/// The limit did not apply to the first request, for the version: a slow server failed `/livez`.
#[tokio::test(start_paused = true)]
async fn a_streaming_list_is_not_stuck_while_it_waits_for_the_version_of_the_server() {
    let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let server = format!("http://{}", silent.local_addr().expect("an address"));
    let dir = tempfile::tempdir().expect("a directory");
    let kubeconfig = dir.path().join("config");
    let clusters = format!("clusters: [{{name: silent, cluster: {{server: '{server}'}}}}]");
    std::fs::write(&kubeconfig, clusters).expect("a file");
    let options = crate::client::Options {
        kubeconfig: Some(kubeconfig),
        cluster: Some("silent".to_owned()),
        request_timeout: Some(5 * MINUTE),
        ..Default::default()
    };
    let config = Config::load(&options, &Default::default()).expect("a config");
    let client = Client::new(config).expect("a client");
    let (store, health) = (Store::<Service>::default(), Health::new("services".to_owned()));
    let watching = watch(client, Scope::default(), Lists::Streaming, &store, &health);
    assert!(tokio::time::timeout(4 * MINUTE, watching).await.is_err());
    assert!(!health.is_stuck());
}

#[cfg(feature = "testing")]
mod outages {
    use listwatch_apiserver::Fault;
    use tokio::time::sleep;

    use super::*;
    use crate::{captured_log::CapturedLog, resource::kinds::Namespace, testing::TestServer};

    /// A server that refuses watches, and answers everything else.
    async fn server(times: u64) -> TestServer {
        let server = TestServer::start(&[]).await;
        let refused = Fault::Answer { status: 503, body: String::new(), retry_after_secs: None };
        server.server.fault(refused.on("GET", "watch=1").times(times));
        server
    }

    #[tokio::test(start_paused = true)]
    async fn a_list_does_not_end_the_outage_of_a_watch_that_cannot_open() {
        let log = CapturedLog::start();
        let server = server(u64::MAX).await;
        let (store, health) = (Store::<Namespace>::default(), Health::new("namespaces".to_owned()));
        let watching = watch(server.client.clone(), Scope::default(), Lists::Paged, &store, &health);
        assert!(tokio::time::timeout(10 * MINUTE, watching).await.is_err());
        let requests = server.server.requests();
        let lists = requests.iter().filter(|request| request.query.contains("limit=100"));
        assert!(lists.count() > 2, "{requests:?}");
        assert!(health.problem().is_some());
        assert!(!log.text().contains("watching again"), "{}", log.text());
    }

    #[tokio::test(start_paused = true)]
    async fn events_end_an_outage_even_if_they_come_without_a_pause() {
        let server = server(2).await;
        let (store, health) = (Store::<Namespace>::default(), Health::new("namespaces".to_owned()));
        let events = async {
            for number in 0..100 {
                sleep(VERY_SHORT / 4).await;
                let mut namespace = Namespace::default();
                namespace.metadata.name = format!("n{number}").into();
                server.client.create(&namespace).await.expect("a Namespace");
            }
        };
        tokio::select! {
            () = watch(server.client.clone(), Scope::default(), Lists::Paged, &store, &health) => {}
            () = events => {}
        }
        assert_eq!(health.problem(), None);
        assert!(store.len() > 90);
    }
}

#[test]
fn a_page_may_be_empty_but_not_repeat_its_token() {
    let page = |token: &str, items: &str| {
        let json =
            format!(r#"{{"metadata":{{"resourceVersion":"5","continue":"{token}"}},"items":[{items}]}}"#);
        List::<Service>::from_json(json.as_bytes()).expect("a page")
    };
    let mut bench = Bench::new(Lists::Paged);
    assert_eq!(bench.take(page("more", "")), None, "nothing on it, and more");
    let one = object("a", "1", "3");
    assert_eq!(bench.take(page("same", &one)), None);
    assert_eq!(bench.take(page("same", &one)), Some(EndReason::Garbled));
    assert!(is_backoff(bench.machine.end(EndReason::Garbled, BLINK)));
    assert_eq!(bench.request(), "list version=- continue= limit=100");
}

#[test]
fn a_list_cut_short_begins_anew() {
    let mut bench = Bench::new(Lists::Paged);
    bench.page("100", "next", &[("a", "1", "3")]);
    bench.request();
    assert!(is_backoff(bench.machine.end(EndReason::Unreachable, BLINK)));
    assert_eq!(bench.request(), "list version=- continue= limit=100");
    bench.page("110", "", &[]);
    assert_eq!(
        bench.heard(),
        ["+a", "-a Inferred", "synced"],
        "what the first attempt brought is not a phantom"
    );
}

#[test]
fn an_error_about_what_comes_next_leads_past_it_by_a_list() {
    let mut bench = Bench::following();
    let how = bench.line("ERROR", r#"{"code":500,"reason":"InternalError"}"#).expect("an end");
    assert!(is_backoff(bench.machine.end(how, MINUTE)));
    assert_eq!(bench.request(), "list version=100 continue= limit=100");
}

#[test]
fn retry_after_has_a_limit() {
    let mut bench = Bench::following();
    let how = bench.line("ERROR", r#"{"code":429,"details":{"retryAfterSeconds":18446744073709551615}}"#);
    let Some(EndReason::Refused { retry_after: Some(asked), .. }) = how else { panic!("{how:?}") };
    assert!(asked <= MINUTE);
}

#[test]
fn only_an_open_watch_proves_health() {
    let mut bench = Bench::following();
    for failures in 1..4 {
        let how = EndReason::Refused { code: 429, retry_after: None };
        assert_eq!(bench.machine.end(how, 2 * MINUTE), Pause::Backoff { failures, at_least: Duration::ZERO });
        bench.after_a_check();
    }
}

#[test]
fn a_server_that_ignores_the_wish_for_initial_events_is_found_out_by_its_first_change() {
    for (kind, line) in [("MODIFIED", object("a", "1", "70")), ("BOOKMARK", bookmark("70"))] {
        let mut bench = Bench::new(Lists::Streaming);
        bench.line("ADDED", &object("a", "1", "60"));
        assert_eq!(bench.line(kind, &line), Some(EndReason::Unsupported));
    }
}

#[test]
fn unknown_events_are_passed_over() {
    let mut bench = Bench::following();
    assert_eq!(bench.line("RENAMED", &object("a", "1", "101")), None);
    assert_eq!(bench.heard(), [""; 0]);
}

#[test]
fn a_streaming_list_ends_with_its_bookmark_on_the_same_stream() {
    let mut bench = Bench::new(Lists::Streaming);
    assert_eq!(bench.request(), "watch  InitialEvents");
    bench.line("ADDED", &object("b", "2", "57"));
    bench.line("ADDED", &object("a", "1", "12"));
    assert!(!bench.store.is_synced());
    bench.line("BOOKMARK", END_OF_INITIAL_EVENTS);
    assert_eq!(bench.heard(), ["+b", "+a", "synced"]);
    bench.line("MODIFIED", &object("a", "1", "61"));
    assert_eq!(bench.machine.end(EndReason::Cut, MINUTE), Pause::None);
    assert_eq!(bench.after_a_check(), "watch 61 Changes");
}

#[test]
fn an_aborted_streaming_list_leaves_no_phantom_and_no_version() {
    let mut bench = Bench::new(Lists::Streaming);
    bench.line("ADDED", &object("gone", "1", "57"));
    assert!(is_backoff(bench.machine.end(EndReason::Cut, MINUTE)));
    assert_eq!(bench.request(), "watch  InitialEvents");
    bench.line("ADDED", &object("here", "2", "12"));
    bench.line("BOOKMARK", END_OF_INITIAL_EVENTS);
    assert_eq!(bench.heard(), ["+gone", "+here", "-gone Inferred", "synced"]);
}

#[test]
fn a_server_without_streaming_lists_is_asked_for_pages_from_then_on() {
    for how in [EndReason::Unsupported, EndReason::Clean, EndReason::Silent] {
        let mut bench = Bench::new(Lists::Streaming);
        assert_eq!(bench.machine.end(how, Duration::from_secs(30)), Pause::None);
        assert_eq!(bench.request(), "list version=- continue= limit=100");
        bench.page("100", "", &[]);
        bench.request();
        bench.machine.end(EndReason::Expired, MINUTE);
        assert_eq!(bench.request(), "list version=100 continue= limit=100");
    }
}

/// With an etcd that cannot report its progress, kube-apiserver ends each streaming list with an ERROR. It was asked for
/// ever.
#[test]
fn a_streaming_list_that_ends_with_an_error_gives_way_to_pages_once() {
    let mut bench = Bench::new(Lists::Streaming);
    bench.line("BOOKMARK", END_OF_INITIAL_EVENTS);
    bench.machine.end(EndReason::Expired, MINUTE);
    assert_eq!(bench.request(), "watch 60 InitialEvents");
    let how = bench.line("ERROR", r#"{"code":500,"reason":"InternalError"}"#).expect("an end");
    assert_eq!(bench.machine.end(how, BLINK), Pause::None);
    assert_eq!(bench.request(), "list version=60 continue= limit=100");
    bench.page("70", "", &[]);
    bench.request();
    bench.machine.end(EndReason::Expired, MINUTE);
    assert_eq!(bench.request(), "watch 70 InitialEvents");
}

/// client-go then also asks for pages: two requests for each attempt.
#[test]
fn a_streaming_list_that_is_refused_or_cut_is_asked_for_again_as_one() {
    let mut bench = Bench::new(Lists::Streaming);
    let forbidden = EndReason::Refused { code: 403, retry_after: None };
    for (failures, how) in [(1, forbidden), (2, EndReason::Unreachable), (3, EndReason::Cut), (4, forbidden)]
    {
        let pause = bench.machine.end(how, BLINK);
        assert_eq!(pause, Pause::Backoff { failures, at_least: Duration::ZERO });
        assert_eq!(bench.request(), "watch  InitialEvents");
    }
}

#[test]
fn a_streaming_list_after_expiry_is_not_older_than_what_is_known() {
    let mut bench = Bench::new(Lists::Streaming);
    bench.line("BOOKMARK", END_OF_INITIAL_EVENTS);
    bench.machine.end(EndReason::Expired, MINUTE);
    assert_eq!(bench.request(), "watch 60 InitialEvents");
    // The version of the aborted stream does not count: the next list is not older than the last complete one.
    bench.line("ADDED", &object("a", "1", "12"));
    bench.machine.end(EndReason::Cut, BLINK);
    assert_eq!(bench.request(), "watch 60 InitialEvents");
}

#[test]
fn after_a_restored_backup_a_streaming_list_gives_way_to_pages_once() {
    let mut bench = Bench::new(Lists::Streaming);
    bench.line("BOOKMARK", END_OF_INITIAL_EVENTS);
    bench.line("ADDED", &object("a", "1", "70"));
    bench.machine.end(EndReason::Expired, MINUTE);
    bench.request();
    assert_eq!(bench.machine.end(EndReason::TooNew, Duration::from_secs(3)), Pause::None);
    assert_eq!(bench.request(), "list version=- continue= limit=100");
    bench.heard();
    bench.page("40", "", &[("a", "1", "30")]);
    assert_eq!(bench.heard(), ["~a"]);
    bench.request();
    bench.machine.end(EndReason::Expired, MINUTE);
    assert_eq!(bench.request(), "watch 40 InitialEvents");
}

/// How requests end, with the names in the diagrams of docs/watch.md.
fn ends() -> Vec<(&'static str, EndReason)> {
    let refused = |code| EndReason::Refused { code, retry_after: None };
    let mut ends = vec![
        ("Clean", EndReason::Clean),
        ("Cut", EndReason::Cut),
        ("Silent", EndReason::Silent),
        ("Expired", EndReason::Expired),
        ("TooNew", EndReason::TooNew),
        ("Unsupported", EndReason::Unsupported),
        ("Failed", EndReason::Failed { retry_after: None }),
        ("Garbled", EndReason::Garbled),
        ("LineTooLong", EndReason::LineTooLong),
        ("TooLarge", EndReason::TooLarge),
        ("Unreachable", EndReason::Unreachable),
        ("Late", EndReason::Late),
    ];
    ends.extend([401, 404, 500, 503].map(|code| ("Refused", refused(code))));
    ends.push(("TooManyRequests", refused(429)));
    ends.push(("Forbidden", refused(403)));
    ends.extend([400, 405, 406].map(|code| ("Invalid", refused(code))));
    ends
}

/// Whether a request of this state can end like this: as a watch, or as a list or check.
fn can_end(state: &State, how: EndReason) -> bool {
    let is_watch = matches!(state, State::Following | State::Streaming { .. });
    match how {
        EndReason::Clean
        | EndReason::Cut
        | EndReason::Silent
        | EndReason::Failed { .. }
        | EndReason::LineTooLong => is_watch,
        EndReason::TooLarge => !is_watch,
        EndReason::Expired
        | EndReason::TooNew
        | EndReason::Unsupported
        | EndReason::Garbled
        | EndReason::Unreachable
        | EndReason::Late
        | EndReason::Refused { .. } => true,
    }
}

/// A state in the diagrams.
fn node(machine: &Machine) -> &'static str {
    match &machine.state {
        State::Listing(Listing { at: Freshness::MostRecent, .. }) => "Listing",
        State::Listing(Listing { at: Freshness::NotOlder, .. }) => "ListingNotOlder",
        State::Streaming { at: Freshness::MostRecent } => "Streaming",
        State::Streaming { at: Freshness::NotOlder } => "StreamingNotOlder",
        State::Following => "Following",
        State::Checking => "Checking",
    }
}

/// Machines in every state, and in all circumstances that matter for the next request or the pause.
fn machines(lists: Lists) -> Vec<Machine> {
    let mut states = Vec::new();
    for at in [Freshness::MostRecent, Freshness::NotOlder] {
        for (token, limit) in [("", 100), ("", 1), ("next", 100), ("next", 1)] {
            let continue_token = token.to_owned();
            states.push(State::Listing(Listing { at, continue_token, limit, has_expired: false }));
        }
        if lists == Lists::Streaming {
            states.push(State::Streaming { at });
        }
    }
    states.extend([State::Following, State::Checking]);
    let mut machines = Vec::new();
    for state in states {
        for (has_failed, is_again) in [(false, false), (true, false), (true, true)] {
            for (lines, has_progressed) in [(0, false), (1, false), (1, true)] {
                let mut machine = Machine::new(lists);
                if has_failed {
                    machine.end(EndReason::Unreachable, BLINK);
                }
                (machine.state, machine.lines, machine.has_progressed) =
                    (state.clone(), lines, has_progressed);
                machine.has_not_opened = is_again;
                machines.push(machine);
            }
        }
    }
    machines
}

/// The decision of the machine after an end, in some circumstances.
struct Case {
    to: &'static str,
    is_pause: bool,
    has_lines: bool,
    is_between_pages: bool,
    is_again: bool,
}

/// The arrows for one end. A label is the name of the end, with `!` if a pause follows, and `?` if a pause follows in
/// some cases. If the next state depends on a circumstance, the label has it.
fn labels(end: &str, cases: &[Case]) -> Vec<(&'static str, String)> {
    let targets: BTreeSet<&'static str> = cases.iter().map(|case| case.to).collect();
    let label = |to| {
        let cases: Vec<_> = cases.iter().filter(|case| case.to == to).collect();
        let circumstance = match () {
            () if targets.len() == 1 => "",
            () if cases.iter().all(|case| case.is_again) => " again",
            () if cases.iter().all(|case| !case.is_again) => " once",
            () if cases.iter().all(|case| case.has_lines) => " after a line",
            () if cases.iter().all(|case| !case.has_lines) => " without a line",
            () if cases.iter().all(|case| case.is_between_pages) => " between pages",
            () if cases.iter().all(|case| !case.is_between_pages) => " of the first page",
            () => panic!("{end} leads to {targets:?}"),
        };
        let pause = match cases.iter().filter(|case| case.is_pause).count() {
            0 => "",
            all if all == cases.len() => "!",
            _ => "?",
        };
        (to, format!("{end}{circumstance}{pause}"))
    };
    targets.iter().copied().map(label).collect()
}

/// Every transition of the machine, as the lines of a diagram. One that leads back to its state is a line in the box of that
/// state: diagrams draw the labels of such arrows over other arrows.
fn transitions(lists: Lists) -> Vec<String> {
    let mut arrows: BTreeMap<(&str, &str), Vec<String>> = BTreeMap::new();
    let mut add = |from, to, label: &str| {
        let labels = arrows.entry((from, to)).or_default();
        if labels.iter().all(|known| known != label) {
            labels.push(label.to_owned());
        }
    };
    for mut machine in machines(lists) {
        let from = node(&machine);
        assert_eq!(machine.is_checking(), from == "Checking");
        match machine.state {
            State::Listing(_) => {
                for (token, label) in [("another", "page"), ("", "last page")] {
                    machine.page(&"100".into(), token);
                    add(from, node(&machine), label);
                }
            }
            State::Streaming { .. } => {
                machine.line::<Service>(&WatchEvent::Bookmark {
                    version: "60".into(),
                    ends_initial_events: true,
                });
                add(from, node(&machine), "end marker");
            }
            State::Following => {}
            State::Checking => {
                for (version, label) in [("99", "server is older"), ("100", "server is not older")] {
                    machine.state = State::Checking;
                    machine.request("100", 300);
                    machine.checked(version);
                    add(from, node(&machine), label);
                }
            }
        }
    }
    let mut cases: BTreeMap<(usize, &str), Vec<Case>> = BTreeMap::new();
    let ends = ends();
    for (name, how) in &ends {
        let order = ends.iter().position(|(other, _)| other == name).expect("the end itself");
        for lasted in [BLINK, 5 * MINUTE] {
            for mut machine in machines(lists).into_iter().filter(|machine| can_end(&machine.state, *how)) {
                let from = node(&machine);
                let (has_lines, is_between_pages) = (machine.lines > 0, !machine.is_at_start_of_list());
                let is_again = machine.has_not_opened;
                let is_pause = is_backoff(machine.end(*how, lasted));
                let mut to = node(&machine);
                // The list after the next 410 shows whether streaming lists were given up.
                machine.state = State::Following;
                machine.end(EndReason::Expired, BLINK);
                if machine.is_streaming() != (lists == Lists::Streaming) {
                    to = "Paged";
                }
                let case = Case { to, is_pause, has_lines, is_between_pages, is_again };
                cases.entry((order, from)).or_default().push(case);
            }
        }
    }
    for ((end, from), cases) in cases {
        for (to, label) in labels(ends[end].0, &cases) {
            add(from, to, &label);
        }
    }
    let mut lines = vec![format!("[*] --> {}", node(&Machine::new(lists)))];
    for ((from, to), labels) in arrows {
        let arrow = if from == to { format!("{from}: ↻") } else { format!("{from} --> {to}:") };
        let labels: Vec<String> = labels.chunks(2).map(|labels| labels.join(", ")).collect();
        lines.push(format!("{arrow} {}", labels.join(",<br>")));
    }
    lines
}

#[test]
fn watch_md_draws_every_transition_of_the_machine() {
    let page = include_str!("../../docs/watch.md");
    let drawn = page.split("```mermaid\nstateDiagram-v2\n").skip(1).map(|diagram| {
        let lines = diagram.lines().take_while(|line| *line != "```").map(str::trim);
        let is_transition = |line: &&str| line.contains(" --> ") || line.contains(": ↻ ");
        lines.filter(is_transition).map(str::to_owned).collect::<Vec<_>>()
    });
    let paged = transitions(Lists::Paged);
    let (streaming, others): (Vec<_>, Vec<_>) = transitions(Lists::Streaming)
        .into_iter()
        .partition(|line| line.starts_with("[*]") || line.starts_with("Streaming"));
    assert_eq!(others.join("\n").replace("Streaming", "Listing"), paged[1..].join("\n"));
    for (drawn, lines) in drawn.chain([Vec::new(), Vec::new()]).zip([paged, streaming]) {
        assert!(drawn == lines, "docs/watch.md should draw:\n{}", lines.join("\n"));
    }
}
