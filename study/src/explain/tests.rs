//! Recorded exchanges in, sentences out.

use std::collections::{BTreeMap, BTreeSet};

use regex::Regex;
use serde_json::{Value, json};

use super::{mistakes::MISTAKES, *};

/// A list of the Pod `a` at version 3.
const LISTED: &str = "> /api/v1/pods?limit=100\n< 200\n[7 a:3]\n. clean\n";
/// An open watch after [`LISTED`].
const WATCHED: &str = "> /api/v1/pods?limit=100\n< 200\n[7 a:3]\n. clean\n> /api/v1/pods?watch=1&timeoutSeconds=300&resourceVersion=7\n< 200\n";
/// A watch without a list before it.
const UNLISTED: &str = "> /api/v1/pods?watch=1&resourceVersion=7\n< 200\n";
/// A streaming list.
const STREAMED: &str = "> /api/v1/pods?watch=1&allowWatchBookmarks=true&sendInitialEvents=true\n< 200\n";

/// An object: `NAME:VERSION` or `NAME:VERSION:UID`.
fn object(text: &str) -> Value {
    let mut parts = text.split(':');
    let (name, version) = (parts.next(), parts.next());
    json!({"metadata": {"name": name, "uid": parts.next().or(name), "resourceVersion": version}})
}

/// Explains exchanges: `> TARGET`, `m TARGET` (metadata only), `< STATUS`, `[VERSION OBJECT]` for a list, `TYPE OBJECT` for
/// an event, `{…}` for another line, `~ REST`, `+ SECONDS`, and `. END`.
fn explain(script: &str) -> Vec<Sentence> {
    let (mut explainer, mut sentences) = (Explainer::default(), Vec::new());
    let (mut exchange, mut time) = (0, 0.0);
    for line in script.lines() {
        let (mark, text) = line.split_once(' ').unwrap_or((line, ""));
        let (field, value) = match mark {
            "+" => {
                time += text.parse::<f64>().expect("seconds");
                continue;
            }
            ">" | "m" => {
                exchange += 1;
                let accept = if mark == "m" { "application/json;as=PartialObjectMetadataList" } else { "" };
                ("request", json!({"method": "GET", "path": text, "accept": accept}))
            }
            "<" => {
                let (status, kind) = text.split_once(' ').unwrap_or((text, "application/json"));
                let status: u16 = status.parse().expect("a status");
                let headers = json!({"retry-after": "7", "content-type": kind});
                ("head", json!({"status": status, "version": "HTTP/2.0", "headers": headers}))
            }
            "." => ("end", json!(text)),
            "~" => ("rest", json!(text)),
            _ if line.starts_with('[') => {
                let items: Vec<_> = text.trim_end_matches(']').split_whitespace().map(object).collect();
                let (version, token) =
                    mark[1..].trim_end_matches(']').split_once('/').unwrap_or((&mark[1..], ""));
                let metadata = json!({"resourceVersion": version.trim_end_matches(']'), "continue": token});
                ("rest", json!({"metadata": metadata, "items": items}))
            }
            _ if line.starts_with('{') => ("line", serde_json::from_str(line).unwrap_or(json!(line))),
            kind => ("line", json!({"type": kind, "object": object(text)})),
        };
        let mut entry = json!({"time": time, "exchange": exchange});
        entry[field] = value;
        let entry = serde_json::from_str(&entry.to_string()).expect("an entry");
        sentences.extend(explainer.explain(&entry));
    }
    sentences
}

/// Checks the rules of all sentences after `before`, and the next request. Returns what differs.
fn differs(
    seen: &mut BTreeMap<String, Vec<String>>,
    before: &str,
    script: &str,
    rules: &[Rule],
    next: &str,
) -> Option<String> {
    let count = explain(before).len();
    let sentences = explain(&format!("{before}{script}")).split_off(count);
    for sentence in &sentences {
        seen.entry(format!("{:?}", sentence.rule)).or_default().push(sentence.to_string());
    }
    let found = sentences.iter().map(|sentence| sentence.rule);
    let is_next = match sentences.last() {
        Some(last) if !next.is_empty() => last.to_string() == format!("next: GET /api/v1/pods?{next}"),
        Some(_) | None => next.is_empty(),
    };
    let rules = rules.iter().copied().chain((!next.is_empty()).then_some(Rule::Next));
    (!found.eq(rules) || !is_next)
        .then(|| format!("{before}{script}\n  {sentences:?}\n  wanted next: {next}\n"))
}

#[test]
fn each_rule_is_explained_and_followed_by_the_next_request() {
    use Rule::*;
    let watch =
        |version: u32| format!("watch=1&allowWatchBookmarks=true&timeoutSeconds=…&resourceVersion={version}");
    let (from_7, list_again) = (watch(7), "limit=100&resourceVersion=7&resourceVersionMatch=NotOlderThan");
    let expired = r#"{"type":"ERROR","object":{"code":410,"reason":"Expired","message":"too old"}}"#;
    let failed = r#"{"type":"ERROR","object":{"code":500,"message":"x"}}"#;
    let too_new =
        r#"~ {"code":504,"message":"x","details":{"causes":[{"reason":"ResourceVersionTooLarge"}]}}"#;
    let again = STREAMED.replace("&send", "&resourceVersion=7&send");
    let streamed_again =
        [InitialEventsEnd, Listed, Expired, Next, InitialEvents, Added, InitialEventsEnd, Swept, Listed];
    let all: &[(&str, String, &[Rule], &str)] = &[
        ("", LISTED.to_owned(), &[Page, Listed], &from_7),
        ("", "> /api/v1/pods?limit=1\n< 200\n[7/t a:3]\n. clean".to_owned(), &[Page], "limit=100&continue=t"),
        ("", "> /api/v1/pods\n< 200\n~ <html>\n. clean".to_owned(), &[NoList], "limit=100"),
        ("", "> /api/v1/pods\n< 200\n[7/t]\n. clean".to_owned(), &[Page], "limit=100&continue=t"),
        ("> /api/v1/pods\n< 200\n[7/t a:3]\n. clean\n", "> /api/v1/pods?continue=t\n< 200\n[7/t b:4]\n. clean".to_owned(), &[RepeatedToken], "limit=100"),
        ("", "> /api/v1/pods\n. lost".to_owned(), &[Unreachable], "limit=100"),
        ("", "> /api/v1/pods\n< 200\n~ {\n. lost".to_owned(), &[Unreachable], "limit=100"),
        ("", "> /api/v1/pods\n< 403\n~ {}\n. clean".to_owned(), &[Forbidden], "limit=100"),
        ("", "> /api/v1/pods\n< 404\n~ {}\n. clean".to_owned(), &[NoResource], "limit=100"),
        ("", "> /api/v1/pods\n< 429\n. clean".to_owned(), &[TooManyRequests], "limit=100"),
        ("", "> /api/v1/pods\n< 503\n. clean".to_owned(), &[Unavailable], "limit=100"),
        ("", "> /api/v1/pods\n< 400\n. clean".to_owned(), &[Refused], "limit=100"),
        ("", "> /api/v1/pods/a\n< 404\n. clean".to_owned(), &[NoObject], ""),
        ("", "> /api/v1/pods/a\n< 403\n~ {}\n. clean".to_owned(), &[NoPermission], ""),
        ("", "> /metrics\n< 403\n~ {}\n. clean".to_owned(), &[NoPermission], ""),
        ("", "> /api/v1/pods/a\n< 502 text/html\n. clean".to_owned(), &[NotTheServer], ""),
        ("", "> /api/v1/pods?labelSelector=x&resourceVersion=1\n< 200\n[7 a:3]\n. clean".to_owned(), &[], ""),
        ("", "> /healthz\n< 500\n. clean".to_owned(), &[Unavailable], ""),
        (LISTED, "> /api/v1/pods?limit=100\n< 200\n[9 b:8]\n. clean".to_owned(), &[Page, Added, Swept, Listed], &watch(9)),
        (LISTED, format!("> /api/v1/pods?{list_again}\n< 504\n{too_new}\n. clean"), &[TooNew], "limit=100"),
        ("", "> /api/v1/pods\n+ 30\n. dropped".to_owned(), &[Late], "limit=50"),
        ("", "> /api/v1/pods\n+ 9\n. dropped".to_owned(), &[], ""),
        (LISTED, "> /api/v1/pods?watch=1&resourceVersion=7\n+ 30\n. dropped".to_owned(), &[Late], "limit=1"),
        ("", format!("> /api/v1/pods?limit=100\n< 200\n~ {}\n. dropped", "x".repeat(9 << 20)), &[TooLarge], "limit=50"),
        (WATCHED, format!(". lost\nm /api/v1/pods?limit=1\n< 200\n~ {}\n. dropped", "x".repeat(1 << 20)), &[Cut, Next, Refused], list_again),
        (LISTED, "> /api/v1/pods?watch=1&resourceVersion=7\n< 200".to_owned(), &[WatchOpened], ""),
        ("", "> /api/v1/pods?watch=1\n< 200".to_owned(), &[InitialEvents], ""),
        ("", "> /api/v1/pods?watch=1\n< 200\nADDED a:8\n+ 9\n. clean".to_owned(), &[InitialEvents, Added, NoVersion], "limit=100"),
        ("", "> /api/v1/pods?watch=1&resourceVersion=0\n< 200\nADDED a:8\n. lost".to_owned(), &[InitialEvents, Added, NoVersion], "limit=100"),
        ("", "> /api/v1/pods?watch=1\n< 200\nADDED a:8\nBOOKMARK x:9\n. clean".to_owned(), &[InitialEvents, Added, Bookmark, CleanEnd], &watch(9)),
        (LISTED, "> /api/v1/pods?watch=1\n< 200\nADDED a:3\n. lost".to_owned(), &[InitialEvents, NoVersion], "limit=100"),
        (WATCHED, "ADDED b:8\nMODIFIED b:9\nDELETED b:10".to_owned(), &[Added, Modified, Deleted], ""),
        (WATCHED, "MODIFIED a:8:other".to_owned(), &[Replaced, Added], ""),
        (WATCHED, "FANCY a:8".to_owned(), &[UnknownType], ""),
        (WATCHED, "BOOKMARK x:8\n+ 300\n. clean".to_owned(), &[Bookmark, CleanEnd], &watch(8)),
        (WATCHED, "+ 300\n. clean".to_owned(), &[EmptyEnd], "limit=1"),
        (WATCHED, ". clean".to_owned(), &[VeryShort], "limit=1"),
        (WATCHED, "BOOKMARK x:7\n. clean".to_owned(), &[Bookmark, VeryShort], &from_7),
        (WATCHED, "MODIFIED a:8\n~ {\n. lost".to_owned(), &[Modified, HalfLine, Cut], "limit=1"),
        (WATCHED, "+ 331\n. dropped".to_owned(), &[Silent], "limit=1"),
        (WATCHED, "+ 301\n. dropped".to_owned(), &[Silent], "limit=1"),
        (WATCHED, "+ 9\n. dropped".to_owned(), &[], ""),
        // A quiet watch without timeoutSeconds, given up by its user.
        ("", format!("{UNLISTED}+ 99\n. dropped"), &[WatchOpened], ""),
        ("", format!("{UNLISTED}BOOKMARK x:8\n+ 99\n. dropped"), &[WatchOpened, Bookmark], ""),
        ("", format!("{UNLISTED}BOOKMARK x:8\n+ 131\n. dropped"), &[WatchOpened, Bookmark, Silent], "limit=1"),
        (WATCHED, expired.to_owned(), &[Expired], list_again),
        (WATCHED, failed.to_owned(), &[Failed], list_again),
        (WATCHED, "{\"type\":".to_owned(), &[Garbled], list_again),
        (LISTED, "> /api/v1/pods?watch=1&resourceVersion=7\n< 410\n. clean".to_owned(), &[Expired], list_again),
        (LISTED, "> /api/v1/pods?watch=1&resourceVersion=7\n< 401\n. clean".to_owned(), &[Unauthorized], ""),
        // The client had no new credentials, and has waited.
        (LISTED, "> /api/v1/pods?watch=1&resourceVersion=7\n< 401\n. clean\n+ 1\nm /api/v1/pods?limit=1".to_owned(), &[Unauthorized, Unauthorized], "limit=1"),
        ("", "> /api/v1/pods?limit=100\n< 401\n. clean\n+ 1\n> /api/v1/pods?limit=100".to_owned(), &[Unauthorized, Unauthorized], "limit=100"),
        ("", "> /apis\n. lost".to_owned(), &[NoAnswer], ""),
        ("", format!("{UNLISTED}MODIFIED a:8\nMODIFIED a:9\nDELETED a:10\nDELETED b:11"), &[WatchOpened, Modified, Modified, Deleted, Deleted], ""),
        (WATCHED, ". lost\nm /api/v1/pods?limit=1\n< 200\n[9 a:3]\n. clean".to_owned(), &[Cut, Next, Checked], &from_7),
        (WATCHED, ". lost\nm /api/v1/pods?limit=1\n< 200\n[5 a:3]\n. clean".to_owned(), &[Cut, Next, WentBack], "limit=100"),
        // The client gave up the request for the watch, which had no answer.
        (LISTED, "> /api/v1/pods?watch=1&resourceVersion=7\n. dropped\nm /api/v1/pods?limit=1\n< 200\n[9]\n. clean".to_owned(), &[Checked], &from_7),
        ("", STREAMED.to_owned(), &[InitialEvents], ""),
        (STREAMED, format!("ADDED a:3\n{}", bookmark(7)), &[InitialEventsEnd, Listed], ""),
        (STREAMED, format!("ADDED a:3\n{}\n{expired}\n{again}ADDED b:8\n{}", bookmark(7), bookmark(9)), &streamed_again, ""),
        (STREAMED, "MODIFIED a:3".to_owned(), &[NoStreamingLists], "limit=100"),
        (STREAMED, ". clean".to_owned(), &[NoStreamingLists], "limit=100"),
        (STREAMED, "+ 31\n. dropped".to_owned(), &[Silent], "limit=100"),
        ("", format!("{}422\n. clean", &STREAMED[..STREAMED.len() - 4]), &[NoStreamingLists], "limit=100"),
    ];
    let mut seen = BTreeMap::new();
    let mut differences: Vec<_> = all
        .iter()
        .filter_map(|(before, script, rules, next)| differs(&mut seen, before, script, rules, next))
        .collect();
    let selected = "> /api/v1/pods?watch=1&resourceVersion=7&labelSelector=x\n< 200\n";
    let events = "ADDED a:8\nDELETED a:9\nDELETED b:10";
    differences.extend(differs(&mut seen, selected, events, &[Added, Deselected, Deselected], ""));
    assert!(differences.is_empty(), "{}", differences.join("\n"));
    let source = include_str!("rule.rs").split_once("enum Rule {\n").expect("the rules").1;
    let rules = source.lines().map(|line| line.trim().trim_end_matches(','));
    let rules: BTreeSet<_> = rules.take_while(|rule| *rule != "}").collect();
    assert_eq!(
        seen.keys().map(String::as_str).collect::<BTreeSet<_>>(),
        rules,
        "rules that no exchange leads to"
    );
    // By these, tests/it/course.rs recognises the sentences of lessons.
    let patterns = include_str!("../../../tests/it/data/sentences.txt");
    let patterns = patterns.lines().map(|line| line.split_once(": ").expect("RULE: PATTERN"));
    let patterns: Vec<_> =
        patterns.map(|(rule, pattern)| (rule, Regex::new(pattern).expect(pattern))).collect();
    for (rule, sentence) in seen.iter().flat_map(|(rule, texts)| texts.iter().map(move |text| (rule, text))) {
        let matching = patterns.iter().filter(|(_, pattern)| pattern.is_match(sentence));
        let found: BTreeSet<_> = matching.map(|(rule, _)| *rule).collect();
        assert_eq!(found, BTreeSet::from([&**rule]), "{sentence}");
    }
}

fn bookmark(version: u32) -> String {
    let annotations = json!({"k8s.io/initial-events-end": "true"});
    let metadata = json!({"resourceVersion": version.to_string(), "annotations": annotations});
    json!({"type": "BOOKMARK", "object": {"metadata": metadata}}).to_string()
}

/// After a 401, the client sends the request again if it can read new credentials. Otherwise the request has failed.
#[test]
fn a_request_that_is_repeated_after_a_401_has_not_failed() {
    let refused = format!("{LISTED}> /api/v1/pods?watch=1&resourceVersion=7\n< 401\n. clean\n");
    let repeated = "> /api/v1/pods?watch=1&resourceVersion=7\n< 200\nMODIFIED a:8\n. clean";
    let next = |script: &str| explain(&format!("{refused}{script}")).last().map(ToString::to_string);
    assert!(next(repeated).is_some_and(|next| next.ends_with("&resourceVersion=8")), "{:?}", next(repeated));
    let checked = "m /api/v1/pods?limit=1\n< 200\n[9]\n. clean";
    assert!(next(checked).is_some_and(|next| next.ends_with("&resourceVersion=7")), "{:?}", next(checked));
}

/// It said twice that the client would try once more, and never that it gave up.
#[test]
fn a_second_401_ends_the_request() {
    let refused = |target: &str| format!("> {target}\n< 401\n. clean\n");
    let again = "the credentials were read again, and are not valid either: the client gives up";
    let unauthorized = |script: &str| explain(script).iter().map(ToString::to_string).collect::<Vec<_>>();
    for (target, rest) in
        [("/api/v1/pods?limit=100", " → back off; failure 1 in a row"), ("/apis", ""), ("/api/v1/pods/a", "")]
    {
        let sentences = unauthorized(&refused(target).repeat(2));
        assert!(
            sentences[0].contains("try once more") && sentences[1].contains(&format!("{again}{rest}")),
            "{sentences:?}"
        );
        let is_followed = target.contains("limit");
        assert_eq!(sentences.len(), if is_followed { 3 } else { 2 }, "{sentences:?}");
        let later = unauthorized(&format!("{}+ 1\n{}", refused(target), refused(target)));
        assert!(later.last().is_some_and(|last| last.contains("try once more")), "{later:?}");
    }
}

/// It announced a pause.
#[test]
fn a_list_whose_version_is_too_new_is_followed_by_a_list_of_the_most_recent_state() {
    let too_new = r#"{"code":504,"message":"x","details":{"causes":[{"reason":"ResourceVersionTooLarge"}]}}"#;
    let target = "/api/v1/pods?resourceVersion=99&resourceVersionMatch=NotOlderThan";
    // The second time after a check that shows it already, as in lesson 10. A client of ours would then not ask for a version.
    let watch_and_check = "> /api/v1/pods?watch=1&resourceVersion=7\n< 200\n. clean\nm /api/v1/pods?limit=1\n< 200\n[2]\n. clean\n";
    for before in [String::new(), format!("{LISTED}{watch_and_check}")] {
        let count = explain(&before).len();
        let sentences = explain(&format!("{before}> {target}\n< 504\n~ {too_new}\n. clean")).split_off(count);
        let texts = sentences.iter().map(ToString::to_string).collect::<Vec<_>>();
        assert!(texts[0].ends_with("as after a restored backup → list"), "{texts:?}");
        assert_eq!(texts[1..], ["next: GET /api/v1/pods?limit=100"]);
    }
}

#[test]
fn where_streams_are_parallel_each_sentence_names_its_resource() {
    let mut explainer = Explainer { names_resources: true, ..Explainer::default() };
    let entries = [
        json!({"request": {"method": "GET", "path": "/api/v1/pods?limit=100"}}),
        json!({"head": {"status": 200, "version": "HTTP/2.0", "headers": {}}}),
        json!({"rest": {"metadata": {"resourceVersion": "7"}, "items": [object("a:3")]}}),
        json!({"end": "clean"}),
    ];
    let mut sentences = Vec::new();
    for mut entry in entries {
        (entry["time"], entry["exchange"]) = (json!(0), json!(1));
        let entry = serde_json::from_str(&entry.to_string()).expect("an entry");
        sentences.extend(explainer.explain(&entry).iter().map(ToString::to_string));
    }
    let starts =
        ["pods: a page of 1 object, ", "pods: the list is complete: ", "next: GET /api/v1/pods?watch=1"];
    assert_eq!(sentences.len(), starts.len());
    for (sentence, start) in sentences.iter().zip(starts) {
        assert!(sentence.starts_with(start), "{sentence}");
    }
}

/// After `watch --resource-version N`, MODIFIED was "is new", and DELETED had no sentence.
#[test]
fn without_a_list_a_change_of_an_unknown_object_is_no_new_object() {
    let after = |events: &str| {
        let sentences = explain(&format!("{UNLISTED}{events}"));
        sentences.iter().skip(1).map(ToString::to_string).collect::<Vec<_>>()
    };
    let no_list = "the store did not have it, as no list came before";
    let changed = format!("pods a has changed; {no_list} → reconcile it; the store holds 1 object");
    assert_eq!(after("MODIFIED a:8"), [&*changed]);
    assert_eq!(after("DELETED a:8"), [format!("pods a was deleted; {no_list}")]);
    assert_eq!(after("ADDED a:8"), ["pods a is new → reconcile it; the store holds 1 object"]);
    let listed = explain(&format!("{WATCHED}MODIFIED b:8")).pop().map(|sentence| sentence.to_string());
    assert_eq!(listed.as_deref(), Some("pods b is new → reconcile it; the store holds 2 objects"));
}

#[test]
fn each_mistake_is_listed_in_the_page_about_reliability_and_names_a_section_of_the_one_about_watches() {
    let page = include_str!("../../../docs/reliability.md");
    let rules = include_str!("../../../docs/watch.md");
    for Mistake { number, title, section, test, file, .. } in &MISTAKES {
        let (_, section) = rules.split_once(&format!("\n## {section}. ")).expect("the section");
        assert!(section.split("\n## ").next().is_some_and(|text| text.contains("**Rule.**")), "{number}");
        let numbered = format!("| {number}. ");
        let rows = page.lines().skip_while(|line| !line.starts_with(&numbered));
        // Rows without a number are variants of the one before.
        let mut rows = rows.take_while(|line| line.starts_with(&numbered) || line.starts_with("| … "));
        let is_titled = |row: &&str| {
            let (row, title) = (row.replace('`', "").to_lowercase(), title.to_lowercase());
            [&*numbered, "| … "].iter().any(|start| row.starts_with(&format!("{start}{title} |")))
        };
        let row = rows.find(is_titled).unwrap_or_else(|| panic!("{number}: no row {title}"));
        let place = format!("[`{test}`](../{file})");
        assert!(row.contains(&place), "{number}: {place} is not in {row}");
    }
}

/// A rule without a mistake decides nothing. The file names each rule, before each form of its sentence.
#[test]
fn each_rule_that_decides_what_to_do_names_a_mistake() {
    let with_mistake: Vec<_> =
        MISTAKES.iter().flat_map(|mistake| mistake.rules).map(|rule| format!("{rule:?}")).collect();
    let sentences = include_str!("../../../tests/it/data/sentences.txt");
    let mut without: Vec<_> = sentences.lines().filter_map(|line| line.split(':').next()).collect();
    without.retain(|rule| !with_mistake.iter().any(|with| with == rule));
    without.dedup();
    assert_eq!(
        without,
        [
            "Page",
            "WatchOpened",
            "Added",
            "Modified",
            "Deleted",
            "InitialEventsEnd",
            "NoPermission",
            "NoObject",
            "NoAnswer",
            "Next"
        ]
    );
}

#[test]
fn each_mistake_is_named_after_the_first_sentence_that_avoids_it() {
    let normal_end = format!("{WATCHED}BOOKMARK x:8\n+ 300\n. clean\n");
    let sentences = explain(&format!("{normal_end}{normal_end}{WATCHED}. clean\n"));
    let mistakes = sentences.iter().filter_map(|sentence| sentence.mistake).map(ToString::to_string);
    let title = "avoids mistake 14: treat the end of a watch, which comes every few minutes, as an error";
    let [normal, short] = [
        "ten_watches_that_end_normally_cost_no_list in tests/it/watch_edge_cases.rs",
        "a_watch_that_ends_at_once_is_backed_off_and_each_time_longer in src/watch/tests.rs",
    ]
    .map(|test| format!("{title} (docs/watch.md, section 4; test: {test})"));
    assert_eq!(mistakes.filter(|text| text.starts_with(title)).collect::<Vec<_>>(), [normal, short]);
    assert!(sentences.iter().all(|sentence| !sentence.to_string().contains("mistake")), "{sentences:?}");
}

/// The sentence came with the next request for the collection, which may be another one much later.
#[test]
fn once_the_client_has_given_up_a_401_is_followed_by_the_pause() {
    let mut explainer = Explainer::default();
    for entry in [
        json!({"request": {"method": "GET", "path": "/api/v1/pods?watch=1&resourceVersion=7"}}),
        json!({"head": {"status": 401, "version": "HTTP/2.0", "headers": {}}}),
        json!({"end": "clean"}),
    ] {
        let mut entry = entry;
        (entry["time"], entry["exchange"]) = (json!(0), json!(1));
        explainer.explain(&serde_json::from_str(&entry.to_string()).expect("an entry"));
    }
    let texts: Vec<_> = explainer.given_up().iter().map(ToString::to_string).collect();
    let pause =
        "there were no valid new credentials → back off; failure 1 in a row, so a pause of 0.8 to 1.6 s";
    assert_eq!((texts.len(), &*texts[0]), (2, pause));
    assert_eq!(explainer.given_up(), []);
}

#[test]
fn the_pause_after_an_error_is_at_least_retry_after() {
    let pause = |script: &str| {
        let sentences = explain(script);
        let text = sentences.iter().find_map(|sentence| {
            sentence.to_string().split_once("so a pause of ").map(|(_, pause)| pause.to_owned())
        });
        text.unwrap_or_else(|| panic!("{sentences:?}"))
    };
    let from_header = pause("> /api/v1/pods\n< 503\n. clean");
    assert_eq!(from_header, "7.8 to 8.6 s, 7 s of it for Retry-After");
    let event = r#"{"type":"ERROR","object":{"code":500,"message":"x","details":{"retryAfterSeconds":3}}}"#;
    let from_event = pause(&format!("{WATCHED}{event}"));
    assert_eq!(from_event, "3.8 to 4.6 s, 3 s of it for Retry-After");
}

/// After a page that is too large, the client asks for half as many objects, and after each page for twice as many.
#[test]
fn halved_pages_are_followed() {
    let pages = "> /api/v1/pods?limit=100\n< 200\n. dropped\n> /api/v1/pods?limit=50\n< 200\n. dropped\n\
                 > /api/v1/pods?limit=25\n< 200\n[7/t a:3]\n. clean\n";
    let next = explain(pages).last().map(ToString::to_string);
    assert_eq!(next.as_deref(), Some("next: GET /api/v1/pods?limit=50&continue=t"));
}

#[test]
fn a_403_names_the_rule_that_would_allow_the_request() {
    for (message, rule) in [
        (
            r#"pods is forbidden: User "u" cannot list resource "pods" in API group "" in the namespace "web""#,
            Some(r#"a Role with {apiGroups: [""], resources: ["pods"], verbs: ["list"]} would allow it"#),
        ),
        (
            r#"nodes "a" is forbidden: User "u" cannot get resource "nodes/proxy" in API group "x" at the cluster scope"#,
            Some(
                r#"a ClusterRole with {apiGroups: ["x"], resources: ["nodes/proxy"], verbs: ["get"]} would allow it"#,
            ),
        ),
        (
            r#"forbidden: User "u" cannot get path "/metrics""#,
            Some(r#"a ClusterRole with {nonResourceURLs: ["/metrics"], verbs: ["get"]} would allow it"#),
        ),
        ("no", None),
    ] {
        assert_eq!(grant(message).as_deref(), rule, "{message}");
    }
}
