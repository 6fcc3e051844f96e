//! `watch --follow`: the next request is the one that the explanation announced.

use super::*;

#[tokio::test]
async fn the_next_request_is_the_announced_one_and_a_replay_explains_the_same() {
    on(&BOTH, async |fixture| {
        let proxy = Proxy::start(&fixture.url()).await;
        let reader = Reader::new(fixture, &proxy.url(), fixture.admin_token());
        let recording = reader.file("recording");
        let streaming = if fixture.lists == Lists::Streaming { "--send-initial-events" } else { "" };
        let mut followed = follow(&reader, &format!("services --record {recording} {streaming}"));
        followed.until_open_again().await;
        followed.until_logged("the list is complete", 1).await;
        followed.until_event(fixture).await;
        proxy.cut();
        followed.until_open_again().await;
        let faults = [
            ("end-watches", ""),
            ("expire-watches", ""),
            ("unauthorized,times=1,path=/services", "401: "),
            ("unavailable,times=1,path=/services", "503: "),
            ("expired,times=1,path=/services", "410 ("),
            ("html,times=1,path=/services", "502, an HTML page"),
        ];
        for (fault, text) in faults.into_iter().filter(|_| fixture.is_embedded()) {
            followed.until_event(fixture).await;
            fixture.embedded().fault(fault.parse::<Planned>().unwrap());
            if !text.is_empty() {
                proxy.cut();
                followed.until_logged(text, 1).await;
            }
            followed.until_open_again().await;
        }
        followed.until_event(fixture).await;
        assert!(followed.compare() >= if fixture.is_embedded() { 12 } else { 2 }, "{}", followed.log());
        let mut replay = Command::from(operator::listwatch());
        replay.args(["replay", &recording, "--explain", "-o", "raw"]);
        let replayed = ran(replay).await;
        let log = followed.log();
        let (replayed_sentences, live) = (sentences(&replayed.stderr), sentences(&log));
        for (replayed, live) in replayed_sentences.iter().zip(&live) {
            assert_eq!(replayed, live);
        }
        assert_eq!(replayed_sentences.len(), live.len());
        let last = format!("s-{}", followed.opened);
        let stdout = replayed.succeeded();
        assert!(stdout.contains("services: the store holds ") && stdout.contains(&last), "{stdout}");
        assert!(stdout.contains("services: the next request is GET /api/v1/namespaces/"), "{stdout}");
    })
    .await;
}

/// The version of the server, which the client asks for on a new connection, was among the events.
#[tokio::test]
async fn a_watch_that_follows_writes_only_lists_and_watches() {
    on(&BOTH, async |fixture| {
        let reader = Reader::admin(fixture);
        for (form, start) in [("name", "service/"), ("raw", r#"{"type":"#)] {
            let mut followed = follow(&reader, &format!("services --send-initial-events -o {form}"));
            followed.until_open_again().await;
            fixture.create_service(form).await;
            followed.until_logged(&format!("/{form} is new"), 1).await;
            let (log, stdout) = (followed.log(), fs::read_to_string(&followed.stdout).unwrap());
            assert!(log.contains("/version'") && !stdout.is_empty(), "{log}");
            assert!(stdout.lines().all(|line| line.starts_with(start)), "{stdout}");
        }
    })
    .await;
}

/// `--follow` refused a version, so a 410 could be seen, but not what comes after it.
#[tokio::test]
async fn a_watch_that_follows_from_an_expired_version_lists_and_goes_on() {
    on(&BOTH, async |fixture| {
        let reader = Reader::admin(fixture);
        if fixture.is_embedded() {
            fixture.embedded().fault(Fault::ExpireHistory);
        }
        // The first versions of a new API server belong to its own Services, and their watch cache may begin with them.
        let mut followed = follow(&reader, "mywebservers --resource-version 1");
        followed.until_open_again().await;
        followed.until_logged("# 410 (", 1).await;
        followed.until_open_again().await;
        fixture.create_web("web", json!({"image": "nginx"})).await;
        followed.until_logged("/web is new", 1).await;
        // The first request is not announced; the list and the second watch are.
        assert_eq!(followed.compare(), 2, "{}", followed.log());
    })
    .await;
}

/// Half a line was followed by the next answer, and `| jq` ended.
#[tokio::test]
async fn each_line_of_a_watch_that_follows_is_json_after_a_cut_in_mid_line() {
    on(&[Kind::Embedded], async |fixture| {
        let reader = Reader::admin(fixture);
        let mut followed = follow(&reader, "services");
        followed.until_open_again().await;
        followed.until_event(fixture).await;
        // A proxy's page is not JSON.
        for faults in [&["cut-watches"][..], &["html,times=1,path=/services", "cut-watches"]] {
            for fault in faults {
                fixture.embedded().fault(fault.parse::<Planned>().unwrap());
            }
            followed.until_open_again().await;
            followed.until_event(fixture).await;
        }
        assert!(followed.log().matches("the last line has no end").count() == 2, "{}", followed.log());
        let stdout = fs::read_to_string(&followed.stdout).unwrap();
        let lines: Vec<Value> = stdout
            .lines()
            .map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}")))
            .collect();
        let events = lines.iter().filter(|line| line["type"] == "ADDED").count();
        assert_eq!(events, 3, "{stdout}");
        // After each cut, the client asks for the version of the server: the answer was among the lists.
        assert!(!stdout.contains("PartialObjectMetadataList"), "{stdout}");
    })
    .await;
}
