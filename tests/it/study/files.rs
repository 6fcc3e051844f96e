//! Whole outputs, compared with their files and with the pages that show them.

use super::*;

/// The directory of recordings, and of what `replay` makes of them.
const REPLAYS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/it/data/replay");

/// The directory of what `get` and `watch` write.
const OUTPUTS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/it/data/outputs");

/// Compares an output with a file. `UPDATE_EXPECT=1` writes the file.
async fn is_as_in_file(output: &str, file: &str) {
    if env::var_os("UPDATE_EXPECT").is_some() {
        return fs::write(file, output).unwrap();
    }
    let mut diff = Command::new("diff");
    diff.args(["--unified", file, "-"]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut diff = diff.spawn().unwrap();
    diff.stdin.take().unwrap().write_all(output.as_bytes()).await.unwrap();
    let Output { status, stdout, .. } = diff.wait_with_output().await.unwrap();
    assert!(status.success(), "{}", String::from_utf8_lossy(&stdout));
}

#[tokio::test]
async fn each_form_of_output_is_as_in_its_file() {
    for (recording, form) in [
        ("changes", "raw"),
        ("changes", "short"),
        ("changes", "json"),
        ("changes", "yaml"),
        ("changes", "name"),
        ("table", "wide"),
        ("table", "name"),
    ] {
        let mut command = Command::from(operator::listwatch());
        command.args(["replay", &format!("{REPLAYS}/{recording}.jsonl"), "-o", form]);
        if form == "short" {
            command.arg("--explain");
        }
        let Ran { code, stdout, stderr } = ran(command).await;
        assert_eq!(code, Some(0), "{stderr}");
        let output = format!("{stdout}\n=== standard error\n{stderr}");
        is_as_in_file(&output, &format!("{REPLAYS}/{recording}.{form}.txt")).await;
    }
}

/// Both outputs of each command, in the order in which it writes them, without what varies: versions, times, uids, the port,
/// the directory.
#[tokio::test]
async fn each_output_of_get_and_watch_is_as_in_its_file() {
    // No other write takes a version, however long this takes: no heartbeat of a node, no aggregation of roles.
    let options = Options { heartbeat: Duration::from_secs(3600), controllers: false, ..Options::default() };
    let server = ApiServer::start(options).await.unwrap();
    let dir = TempDir::new().unwrap();
    server.write_service_account(dir.path()).unwrap();
    let cluster = json!({"server": server.url(), "certificate-authority": "ca.crt"});
    let config = json!({
        "current-context": "c", "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        "clusters": [{"name": "c", "cluster": cluster}], "users": [{"name": "u", "user": {"tokenFile": "token"}}],
    });
    let kubeconfig = dir.path().join("kubeconfig");
    fs::write(&kubeconfig, config.to_string()).unwrap();
    let (client, first) = (client(&kubeconfig), Cell::new(0));
    let write = async |method: Method, name: &str, body: Value| {
        let path = format!("/api/v1/namespaces/default/configmaps{name}");
        let kind = if method == Method::PATCH { "application/merge-patch+json" } else { "application/json" };
        let request = Request::get(path).sends(method, kind, body.to_string().into_bytes());
        serde_json::from_slice::<Value>(&client.send(request).await.unwrap().body).unwrap()
    };
    let create = async |name: &str| {
        let object = json!({"metadata": {"name": name}, "data": {"colour": "red"}});
        write(Method::POST, "", object).await
    };
    let vary = Regex::new(
        r#" *\+\d+\.\d{3}s|127\.0\.0\.1:\d+|(audit-id: |"?uid"?: ?"?)[0-9a-f-]{36}|\d{4}-\d\d-\d\dT[0-9:]+Z|(timeoutSeconds=)\d+"#,
    )
    .unwrap();
    let [age, number] = [r"(?m)\d+s$", r"\b\d+\b"].map(|pattern| Regex::new(pattern).unwrap());
    let compare = async |name: &str, output: String| {
        let output = output.replace("\r\n", "\n").replace(&dir.path().display().to_string(), "DIR");
        let output = vary.replace_all(&output, "$1$2…");
        let output = age.replace_all(&output, "…");
        // The versions since the first one.
        let output = number.replace_all(&output, |found: &Captures| {
            let since = found[0].parse::<u32>().ok().and_then(|number| number.checked_sub(first.get()));
            since.filter(|since| *since < 9).map_or(found[0].to_owned(), |since| format!("v{}", since + 1))
        });
        is_as_in_file(&output, &format!("{OUTPUTS}/{name}.txt")).await;
    };
    let listwatch = |args: &str| {
        let mut both = Command::from(operator::ends_with_test("sh"));
        both.args([
            "-c",
            &format!("exec \"$0\" {args} --kubeconfig \"$1\" 2>&1"),
            env!("CARGO_BIN_EXE_listwatch"),
        ]);
        both.arg(&kubeconfig).kill_on_drop(true);
        both
    };
    let created = create("a").await;
    let version = created["metadata"]["resourceVersion"].as_str().unwrap();
    first.set(version.parse().unwrap());
    for form in ["raw", "short", "json", "yaml", "name", "wide"] {
        let output = ran(listwatch(&format!("get cm/a -o {form}"))).await.succeeded();
        compare(&format!("get-{form}"), output).await;
    }
    let mut commands = String::new();
    for (request, form) in [("get cm/a", ""), ("get cm -l a=b", "=pod"), ("watch cm", "=proxy")] {
        commands += &ran(listwatch(&format!("{request} --curl{form}"))).await.succeeded();
    }
    compare("curl", commands).await;

    write(Method::PATCH, "/a", json!({"data": {"colour": "blue"}})).await;
    create("b").await;
    write(Method::DELETE, "/b", json!({})).await;
    let watch = format!("watch cm --resource-version {version} --max-events 3");
    compare("watch-explain", ran(listwatch(&format!("{watch} --explain -o short"))).await.succeeded()).await;
    let on_terminal = on_terminal(80, &format!("{watch} --kubeconfig {}", kubeconfig.display()), "1").await;
    compare("watch-short", on_terminal).await;

    let mut follow =
        listwatch("watch cm --follow --max-events 2 -o short").stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(follow.stdout.take().unwrap()).lines();
    let mut followed = String::new();
    let mut until = async |text: &str| {
        while let Some(line) = lines.next_line().await.unwrap() {
            followed += &format!("{line}\n");
            if line.contains(text) {
                break;
            }
        }
    };
    until("# the watch is open").await;
    create("c").await;
    until("/c is new").await;
    server.fault(Fault::CutWatches);
    until("# the watch is open").await;
    create("d").await;
    until("the end").await;
    compare("watch-follow", followed).await;
}

/// What `listwatch apiserver` prints, and what `listwatch demo --exit` prints in every run: without the steps of a rollout, of
/// which a slow machine skips some, the list of Pods after a rollout of five seconds, and the order in which the operator and the server act.
#[tokio::test]
async fn the_outputs_of_apiserver_and_demo_are_as_in_their_files() {
    let vary = Regex::new(r"https://127\.0\.0\.1:\d+|[^ '=]*/listwatch-\w+").unwrap();
    let server = Running::start(operator::listwatch().arg("apiserver"));
    is_as_in_file(&vary.replace_all(&server.stdout, "…"), &format!("{OUTPUTS}/apiserver.txt")).await;

    let mut command = Command::from(operator::listwatch());
    command.args(["demo", "--exit"]);
    let stdout = ran(command).await.succeeded();
    let passing = Regex::new(
        "/status: |create   events:|list     pods:|MODIFIED .* (Ready=|Progressing=|status|[0-9]+ of )|40[49] [NC]",
    )
    .unwrap();
    let time = Regex::new(r"^ +\d+ ms  ").unwrap();
    let mut shown = String::new();
    for scene in vary.replace_all(&stdout, "…").split("\n\n") {
        let (mut timed, other): (Vec<_>, Vec<_>) = scene.lines().partition(|line| time.is_match(line));
        timed.retain(|line| !passing.is_match(line) && !line.contains("  get  "));
        let mut timed: Vec<_> = timed.into_iter().map(|line| time.replace(line, "       ")).collect();
        timed.sort();
        let lines = other.into_iter().map(Into::into).chain(timed);
        shown += &lines.map(|line: Cow<'_, str>| format!("{line}\n")).collect::<String>();
        shown.push('\n');
    }
    is_as_in_file(&shown, &format!("{OUTPUTS}/demo.txt")).await;
}

/// The README shows some of the lines. Times, versions and the number of objects vary.
#[tokio::test]
async fn the_readme_shows_what_a_client_does_after_a_410() {
    let readme = include_str!("../../../README.md");
    let command = "watch mws --demo --resource-version 1 --follow";
    let (_, shown) = readme.split_once(&format!("cargo run -- {command}\n```\n")).unwrap();
    let shown = shown.split("```\n").nth(1).unwrap();
    assert!(shown.contains(" ERROR    410 ") && shown.contains(" the list is complete: "), "{shown}");
    let mut both = Command::from(operator::ends_with_test("sh"));
    let args = format!("exec \"$0\" {command} -o short --max-events 2 2>&1");
    both.args(["-c", &args, env!("CARGO_BIN_EXE_listwatch")]);
    let printed = ran(both).await.succeeded();
    let vary = Regex::new(r"\+\d+\.\d+s|\b\d+ objects?\b|\b\d\d+\b").unwrap();
    let [shown, printed] = [shown, &printed].map(|text| vary.replace_all(text, "…").into_owned());
    let mut rest = printed.lines().map(str::trim);
    for line in shown.lines().map(str::trim) {
        assert!(rest.any(|printed| printed == line), "no {line:?}, or not in this place, in\n{printed}");
    }
}

/// Times, versions and the names of the server vary.
#[tokio::test]
async fn the_page_shows_a_410_by_its_command() {
    let page = include_str!("../../../docs/study.md");
    let command = "watch mws --demo --resource-version 1 --explain";
    assert!(page.contains(&format!("\nlistwatch {command} -o short\n")), "{command}");
    let vary = Regex::new(
        r"\+\d+\.\d+s|\S*/listwatch-\w+|127\.0\.0\.1:\d+|audit-id: [0-9a-f-]+|resource version: 1 \(\d+\)",
    )
    .unwrap();
    let mut both = Command::from(operator::ends_with_test("sh"));
    both.args(["-c", &format!("exec \"$0\" {command} -o short 2>&1"), env!("CARGO_BIN_EXE_listwatch")]);
    let stdout = ran(both).await.succeeded();
    let (_, shown) = page.split_once("```\n$ curl ").unwrap();
    let shown = format!("$ curl {}", shown.split("```").next().unwrap());
    assert_eq!(vary.replace_all(&stdout, "…"), vary.replace_all(&shown, "…"));
    assert!(
        stdout.contains(" ERROR    410 Expired: ")
            && stdout.contains(" # avoids mistake 7: expect 410 in one form only ("),
        "{stdout}"
    );
}
