//! Runs the lessons in `examples/`, the commands in their first lines, and those that they print, on both servers.

mod relay;

use std::{
    env,
    ffi::{OsStr, OsString},
    fs::{self, Permissions},
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::Stdio,
    sync::{Arc, LazyLock},
};

use listwatch::client::{Client, Request};
use listwatch_apiserver::{ApiServer, Fault, Options};
use listwatch_control_plane::{ControlPlane, Http, PATIENCE, assets, has_assets};
use regex::Regex;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader},
    process::{Child, Command},
    sync::OnceCell,
    task::JoinSet,
    time::timeout,
};

use self::relay::Relay;
use crate::{
    ABSENT,
    apiserver::client,
    curl::{documents, ends_initial_events},
    fixture::kubeconfig_of,
    operator::ends_with_test,
};

/// The lines that each lesson shows, and a part of the answer of its curl.
const SEEN: [&[&str]; 23] = [
    &[r#""namespaced":true"#, r#""verbs":["#, r#""kind":"Namespace""#],
    &[r#""resourceVersion":"#],
    &[r#"{"type":"ADDED","object":{"#],
    &[r#"{"type":"ADDED","object":{"#, r#"{"type":"DELETED","object":{"#],
    &[r#"{"list":""#, r#","newest":""#],
    &["HTTP200"],
    &[r#"{"type":"ADDED","object":{"#],
    &[r#"{"type":"BOOKMARK","object":{"#, r#""metadata":{"resourceVersion":"#],
    &[
        r#"{"type":"ERROR","object":{"#,
        r#""code":410"#,
        r#""reason":"Expired""#,
        "TheresourceVersionfortheprovidedlististooold",
    ],
    &["Toolargeresourceversion"],
    &[r#""continue":""#, r#""remainingItemCount":"#],
    &[r#"{"type":"ADDED","object":{"#, r#""k8s.io/initial-events-end":"true""#],
    &[r#""PartialObjectMetadataList""#, r#""Table""#, r#""Name""#],
    &[r#"{"type":"ADDED","object":{"#, r#"{"type":"DELETED","object":{"#],
    &["notfound", "404pagenotfound", "isforbidden:User"],
    &[r#""resourceVersion":""#],
    &["409", "Conflict", "theobjecthasbeenmodified", r#""finalizers":["foregroundDeletion"]"#],
    &[r#""resourceVersion":"#],
    &[r#"{"kind":"ConfigMapList","items":"#],
    &["version", r#"["a","b""#],
    &[r#"{"lines":"#, r#","bytes":"#],
    &[r#"{"colour":"red","size":"1"}"#, "Applyfailedwith1conflict:conflictwith", r#"{"colour":"blue"}"#],
    &["ValidatingWebhookConfigurationList"],
];

/// Most lines of a lesson, its first lines included, and of the loops of lessons 5 and 18.
const LINES_MAX: usize = 50;
const LOOP_LINES_MAX: usize = 66;

/// How many lessons run at the same time.
const LESSONS_AT_ONCE: usize = 4;

/// The file of a lesson.
struct Lesson {
    number: usize,
    file: String,
    text: String,
}

impl Lesson {
    /// The lines of the form `Label: text`, continued until the next label.
    fn labelled(&self, label: &str) -> String {
        let head = self.text.lines().map_while(|line| line.strip_prefix("//!")).map(str::trim);
        let lines: Vec<_> = head.skip_while(|line| !line.starts_with(&format!("{label}: "))).collect();
        let is_next = |line: &&&str| line.split(": ").next().is_some_and(|word| LABELS.contains(&word));
        let text = lines.iter().skip(1).take_while(|line| !is_next(line)).copied();
        let first = lines.first().unwrap_or_else(|| panic!("{}: no {label}:", self.file));
        [&first[label.len() + 2..]].into_iter().chain(text).collect::<Vec<_>>().join(" ")
    }

    /// The commands in the block of `sh`.
    fn commands(&self) -> String {
        let (_, block) =
            self.text.split_once("//! ```sh\n").unwrap_or_else(|| panic!("{}: no ```sh", self.file));
        block.split("//! ```").next().unwrap().replace("//! ", "")
    }
}

const LABELS: [&str; 7] = ["Predict", "Run", "Notice", "Why", "Break it", "Source", "Embedded server"];

fn root() -> &'static Path {
    Path::new(crate::ROOT)
}

/// All lessons, in order.
fn lessons() -> Vec<Lesson> {
    let names = fs::read_dir(root().join("examples")).unwrap().map(|entry| entry.unwrap().file_name());
    let mut files: Vec<_> = names.map(|name| name.into_string().unwrap()).collect();
    files.retain(|file| file.starts_with(|c: char| c.is_ascii_digit()));
    files.sort();
    let lesson = |(index, file): (usize, String)| {
        let text = fs::read_to_string(root().join("examples").join(&file)).unwrap();
        Lesson { number: index + 1, file, text }
    };
    files.into_iter().enumerate().map(lesson).collect()
}

/// The example beside the binary. A plain `cargo test` builds it, but `cargo test --test it` does not, so it may be missing or old. No test
/// builds it: in a target directory outside of the clone, a cargo inside of `cargo test` built the libraries once more, and the outer one
/// then missed its own.
fn program() -> &'static Path {
    static PROGRAM: LazyLock<PathBuf> =
        LazyLock::new(|| Path::new(env!("CARGO_BIN_EXE_listwatch")).with_file_name("examples/course"));
    static IS_CURRENT: LazyLock<bool> = LazyLock::new(|| is_current(&PROGRAM));
    assert!(*IS_CURRENT, "build the lessons first: cargo build --profile test --example course");
    &PROGRAM
}

fn course() -> Command {
    let mut command = Command::from(ends_with_test(program()));
    // A busy machine is not a lesson's fault.
    command.env("KUBECONFIG", ABSENT).env("LISTWATCH_LESSON_LIMIT", "10m");
    command.stdin(Stdio::null()).kill_on_drop(true);
    command
}

/// Whether cargo would not build this program again. It writes the paths of the source files into a file beside the program:
/// `…/course: …/course.rs …/src/lib.rs`.
fn is_current(program: &Path) -> bool {
    let changed = |path: &Path| fs::metadata(path).and_then(|file| file.modified()).ok();
    let sources = fs::read_to_string(program.with_extension("d")).unwrap_or_default();
    let sources = sources.replace("\\ ", "\0");
    let mut sources = sources.split_whitespace().skip(1).map(|path| PathBuf::from(path.replace('\0', " ")));
    let built = changed(program);
    // Another clone may have built into the same directory.
    built.is_some()
        && sources.clone().any(|path| path == root().join("examples/course.rs"))
        && sources.all(|path| changed(&path).is_some_and(|changed| Some(changed) <= built))
}

/// Runs a command to its end, and returns its exit code, stdout and stderr.
async fn run(command: &mut Command) -> (Option<i32>, String, String) {
    let output = command.output().await.unwrap();
    let [stdout, stderr] =
        [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
    (output.status.code(), stdout, stderr)
}

/// A server with a kubeconfig.
struct Cluster {
    name: &'static str,
    kubeconfig: PathBuf,
    client: Client,
    _dir: TempDir,
}

impl Cluster {
    fn new(name: &'static str, kubeconfig: &str) -> Cluster {
        let dir = TempDir::new().unwrap();
        let path = dir.path().join("kubeconfig");
        fs::write(&path, kubeconfig).unwrap();
        Cluster { name, client: client(&path), kubeconfig: path, _dir: dir }
    }

    /// The real server, if there is one.
    async fn real() -> Option<Cluster> {
        static CONTROL_PLANE: OnceCell<ControlPlane> = OnceCell::const_new();
        if !has_assets() {
            return None;
        }
        let start = async || {
            let control_plane = start_control_plane().await;
            control_plane.start_controller_manager();
            control_plane
        };
        Some(Cluster::of(CONTROL_PLANE.get_or_init(start).await))
    }

    fn of(control_plane: &ControlPlane) -> Cluster {
        Cluster::new(control_plane.name(), &kubeconfig_of(control_plane))
    }

    async fn get(&self, path: &str) -> Value {
        serde_json::from_slice(&self.client.send(Request::get(path)).await.unwrap().body).unwrap()
    }

    /// The namespaces of lessons that are not being deleted.
    async fn left_over(&self) -> Vec<Value> {
        let mut namespaces = self.get("/api/v1/namespaces").await["items"].take();
        let mut namespaces = std::mem::take(namespaces.as_array_mut().unwrap());
        namespaces.retain(|namespace| {
            let metadata = &namespace["metadata"];
            metadata["name"].as_str().unwrap().starts_with("listwatch-course")
                && metadata["deletionTimestamp"].is_null()
        });
        namespaces
    }
}

/// A server that has compacted the first versions, as any server ten minutes after its first start.
async fn start_control_plane() -> ControlPlane {
    let control_plane = ControlPlane::start(Http::Any).await;
    control_plane.compact().await;
    control_plane
}

fn assert_seen(seen: &[&str], output: &str, whose: &str) {
    let dense: String = output.split_whitespace().collect();
    for part in seen {
        assert!(dense.contains(part), "{whose}: no {part} in\n{output}");
    }
}

#[test]
fn each_lesson_has_the_same_parts_in_at_most_50_lines_and_names_functions_that_exist() {
    let contents = fs::read_to_string(root().join("examples/README.md")).unwrap();
    let lessons = lessons();
    assert_eq!(lessons.len(), SEEN.len());
    for lesson in lessons {
        let Lesson { number, file, text } = &lesson;
        let (title, _) = text.lines().next().unwrap().split_once(": ").unwrap();
        assert!(title.starts_with(&format!("//! {number}. ")), "{file}: {title}");
        assert!(contents.contains(&format!("]({file})")), "no {file} in README.md");
        let lines = text.lines().count();
        assert!(lines <= LINES_MAX, "{file} has {lines} lines");
        for label in LABELS {
            assert!(lesson.labelled(label).len() > 10, "{file}: {label}");
        }
        assert_eq!(lesson.labelled("Run"), format!("cargo run --example course {number}"));
        let notice = lesson.labelled("Notice");
        assert!(notice.ends_with('.') && !notice.contains(". "), "{file}: not one sentence: {notice}");
        for place in lesson.labelled("Source").split("; ") {
            let (function, path) = place.split_once(" in ").unwrap();
            assert_declared(function.trim_matches('`'), path, file);
        }
    }
    for name in ["naive.rs", "reflector.rs"] {
        let lines = fs::read_to_string(root().join("examples").join(name)).unwrap().lines().count();
        assert!(lines <= LOOP_LINES_MAX, "{name} has {lines} lines");
    }
    // As lesson 5 says.
    let repairs =
        contents.lines().filter_map(|line| line.split(" | ").nth(3)).flat_map(|cell| cell.split(", "));
    let repairs: Vec<_> = repairs.filter_map(|lesson| lesson.parse().ok()).collect();
    assert!((6..=16).all(|lesson| repairs.contains(&lesson)), "{repairs:?}");
    // `Machine::line` in [src/watch.rs](../src/watch.rs)
    let places: Vec<_> = contents.split("](../").skip(1).collect();
    let functions: Vec<_> = contents.split("` in [").collect();
    assert_eq!(places.len() + 1, functions.len());
    for (function, place) in functions.iter().zip(places) {
        let function = function.rsplit(['`', ':']).next().unwrap();
        assert_declared(function, place.split(')').next().unwrap(), "README.md");
    }
}

fn assert_declared(function: &str, path: &str, whose: &str) {
    let source = fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"));
    let declared = ["(", "<"].map(|next| format!("fn {function}{next}"));
    assert!(declared.iter().any(|text| source.contains(text)), "{whose}: no {function} in {path}");
}

#[tokio::test]
async fn each_lesson_shows_what_it_promises_on_both_servers_and_leaves_nothing_behind() {
    let real = Cluster::real().await;
    let dir = TempDir::new().unwrap();
    let recorder = curl_script(&dir, RECORDER);
    let outputs = each_lesson(|lesson| {
        let mut commands = vec![course()];
        commands[0].arg("--explain");
        if let Some(real) = &real {
            commands.push(course());
            commands[1].arg("--kubeconfig").arg(&real.kubeconfig);
        }
        let recorder = recorder.clone();
        async move {
            let mut outputs = Vec::new();
            for command in &mut commands {
                let (code, stdout, stderr) = run(command.arg(lesson.number.to_string())).await;
                assert_eq!((code, &*stderr), (Some(0), ""), "{}\n{stdout}", lesson.file);
                let (_, shown) = stdout.split_once("\n# ").unwrap();
                let (shown, _) = shown.split_once("\nNotice: ").unwrap();
                assert_seen(SEEN[lesson.number - 1], shown, &lesson.file);
                outputs.push(shown.to_owned());
            }
            let explained = outputs.swap_remove(0);
            let printed = explained.lines().filter_map(|line| line.strip_prefix("$ "));
            let sent = gets(&printed.collect::<Vec<_>>().join("\n"), &recorder).await;
            for get in gets(&lesson.commands(), &recorder).await {
                assert!(sent.contains(&get), "{}: the curl {get} is none of\n{sent:#?}", lesson.file);
            }
            explained
        }
    })
    .await;
    if let Some(real) = real {
        assert_eq!(real.left_over().await, Vec::<Value>::new());
    }
    let sentences: Vec<_> = outputs
        .iter()
        .flat_map(|output| output.lines())
        .filter_map(|line| line.strip_prefix("  # "))
        .map(|sentence| sentence.trim_start_matches("a good client: "))
        .collect();
    let is_said = |rule: &&str| {
        let pattern = Regex::new(rule.split_once(": ").unwrap().1).unwrap();
        sentences.iter().any(|sentence| pattern.is_match(sentence))
    };
    let unsaid: Vec<_> = include_str!("data/sentences.txt").lines().filter(|rule| !is_said(rule)).collect();
    assert!(unsaid.is_empty(), "sentences of --explain that no lesson produces: {unsaid:#?}");
}

/// A `curl` that only writes down each request.
const RECORDER: &str = r#"#!/usr/bin/env bash
method=GET
for arg; do
    [[ $before != -X ]] || method=$arg
    case $arg in
        -d) method=POST ;;
        [Aa]ccept:*) accept=${arg#*: } ;;
        http*) path=/${arg#http://*/} ;;
    esac
    before=$arg
done
echo "$method $path $accept" >> "$CALLS"
echo {}
"#;

/// Writes a script with the name `curl`. Returns a `PATH` that begins with its directory.
fn curl_script(dir: &TempDir, script: &str) -> OsString {
    let curl = dir.path().join("curl");
    fs::write(&curl, script).unwrap();
    fs::set_permissions(&curl, Permissions::from_mode(0o700)).unwrap();
    let path = env::var_os("PATH").unwrap();
    env::join_paths([dir.path().to_owned()].into_iter().chain(env::split_paths(&path))).unwrap()
}

/// The paths, queries and forms of the reads of these commands, without namespace, name, versions, tokens and seconds.
async fn gets(commands: &str, path: &OsStr) -> Vec<String> {
    static VARIABLE: LazyLock<Regex> = LazyLock::new(|| {
        let variable =
            "(namespaces/)[^/? ]+|(configmaps/)[^? ]+|((?:resourceVersion|continue|timeoutSeconds)=)[^& ]*";
        Regex::new(variable).unwrap()
    });
    let dir = TempDir::new().unwrap();
    let calls = dir.path().join("calls");
    run(Command::new("bash").args(["-c", commands]).env("PATH", path).env("CALLS", &calls)).await;
    let calls = fs::read_to_string(calls).unwrap();
    let normal = |get: &str| {
        let get = VARIABLE.replace_all(get, "$1$2$3…").into_owned();
        let Some((path, rest)) = get.split_once('?') else { return get };
        let (query, accept) = rest.split_once(' ').unwrap();
        let mut query: Vec<_> = query.split('&').collect();
        query.sort_unstable();
        format!("{path}?{} {}", query.join("&"), accept)
    };
    calls.lines().filter_map(|line| line.strip_prefix("GET ")).map(normal).collect()
}

#[tokio::test]
async fn a_fault_breaks_each_lesson_with_one_sentence() {
    each_lesson(async |lesson: Lesson| {
        let command = lesson.labelled("Break it");
        let args =
            command.strip_prefix("cargo run --example course -- ").unwrap_or_else(|| panic!("{command}"));
        let (code, stdout, stderr) = run(course().args(args.split(' '))).await;
        assert_eq!(code, Some(1), "{command}: {stdout}");
        assert!(
            stderr.starts_with("error: broken as intended: ") && stderr.contains("; repaired in "),
            "{stderr}"
        );
        assert!(stderr.lines().count() == 1, "{command}: {stderr}");
        assert!(!stderr.contains("did not end"), "{command}: {stderr}\n{stdout}");
    })
    .await;
}

/// Runs a script for each lesson, a few at a time, because lessons mostly wait.
async fn each_lesson<T: Send + 'static, S: Future<Output = T> + Send + 'static>(
    script: impl Fn(Lesson) -> S,
) -> Vec<T> {
    let (mut running, mut results) = (JoinSet::new(), Vec::new());
    for lesson in lessons() {
        if running.len() == LESSONS_AT_ONCE {
            results.extend(running.join_next().await.map(Result::unwrap));
        }
        running.spawn(script(lesson));
    }
    results.extend(running.join_all().await);
    results
}

/// A running `kubectl proxy`. Dropped: killed.
async fn proxy(cluster: &Cluster) -> (Child, String) {
    let mut command = Command::from(ends_with_test(assets().unwrap().join("kubectl")));
    command.args(["proxy", "--port=0"]).env("KUBECONFIG", &cluster.kubeconfig).kill_on_drop(true);
    let mut proxy = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(proxy.stdout.take().unwrap()).read_line(&mut line).await.unwrap();
    let address =
        line.trim().strip_prefix("Starting to serve on ").unwrap_or_else(|| panic!("{line}")).to_owned();
    (proxy, address)
}

/// A `curl` that leaves reads to listwatch, as far as the lessons need it.
const READS_BY_LISTWATCH: &str = r#"#!/usr/bin/env bash
for arg; do
    [[ $before != -w ]] || format=$arg
    case $arg in
        -d | -X) PATH=${PATH#*:} exec curl "$@" ;;
        Impersonate-User:*) flags="--as ${arg#*: }" ;;
        http*) path=/${arg#http://*/} ;;
        *as=Table*) flags=--table ;;
        *as=PartialObjectMetadata*) flags=--metadata ;;
    esac
    before=$arg
done
exec 3>&1
head=$("$LISTWATCH" get "$path" $flags 2>&1 >&3 | grep '^< HTTP')
format=${format//%\{http_code\}/${head##* }}
printf "${format//%\{time_total\}/1.0}"
"#;

#[tokio::test]
async fn the_curl_of_each_lesson_runs_as_printed_and_gets_what_listwatch_gets() {
    // Servers on which nothing else happens.
    if !has_assets() {
        return;
    }
    let control_plane = start_control_plane().await;
    let server = ApiServer::start(Options::default()).await.unwrap();
    let embedded = Cluster::new("embedded", &server.kubeconfig());
    let real = Cluster::of(&control_plane);
    tokio::join!(run_curls(&embedded), run_curls(&real));
}

async fn run_curls(cluster: &Cluster) {
    let (_proxy, address) = proxy(cluster).await;
    let dir = TempDir::new().unwrap();
    let path = curl_script(&dir, READS_BY_LISTWATCH);
    // There are more objects than on the first page then.
    let readme = fs::read_to_string(root().join("examples/README.md")).unwrap();
    let (_, create) = readme.split_once("three ConfigMaps there (`").unwrap();
    let mut bash = Command::new("bash");
    bash.args(["-euc", create.split('`').next().unwrap()]).env("KUBECONFIG", &cluster.kubeconfig);
    let system = env::var_os("PATH").unwrap();
    let with_kubectl =
        env::join_paths([assets().unwrap()].into_iter().chain(env::split_paths(&system))).unwrap();
    let (code, created, stderr) = run(bash.env("PATH", with_kubectl)).await;
    assert_eq!((code, created.lines().count()), (Some(0), 3), "{}: {stderr}", cluster.name);
    for lesson in lessons() {
        let commands = lesson.commands().replace("127.0.0.1:8001", &address);
        let whose = format!("{}, {}", lesson.file, cluster.name);
        let answer = async |by_listwatch: bool| {
            let mut bash = Command::new("bash");
            bash.args(["-euc", &commands]).kill_on_drop(true);
            if by_listwatch {
                bash.env("PATH", &path).env("KUBECONFIG", &cluster.kubeconfig);
                bash.env("LISTWATCH", env!("CARGO_BIN_EXE_listwatch"));
            }
            let (code, stdout, stderr) = run(&mut bash).await;
            assert_eq!((code, &*stderr), (Some(0), ""), "{whose}\n{stdout}");
            stdout
        };
        let [by_curl, by_listwatch] = [answer(false).await, answer(true).await];
        for output in [&by_curl, &by_listwatch] {
            assert_seen(SEEN[lesson.number - 1], output, &whose);
            if lesson.number == 17 {
                // The second of two equal patches has made no version.
                assert_seen(&[r#"2{"colour":"blue","resourceVersion":""#], output, &whose);
            }
        }
        assert_eq!(comparable(&by_curl), comparable(&by_listwatch), "{whose}");
    }
    let path = "/api/v1/namespaces/default/configmaps/listwatch-course";
    assert_eq!(cluster.client.send(Request::get(path)).await.unwrap_err().code(), Some(404), "left over");
}

/// Each lesson runs twice: its requests are sent by the curl commands that it prints, and by itself.
#[tokio::test]
async fn each_curl_that_a_lesson_prints_gets_what_the_lesson_shows() {
    if !has_assets() {
        return;
    }
    // Another test counts the namespaces of the shared one.
    let control_plane = start_control_plane().await;
    control_plane.start_controller_manager();
    let real = Arc::new(Cluster::of(&control_plane));
    each_lesson(|lesson| {
        let real = Arc::clone(&real);
        async move {
            // A server that no other lesson restores or expires.
            let server = ApiServer::start(Options::default()).await.unwrap();
            let embedded = Cluster::new("embedded", &server.kubeconfig());
            for cluster in [&embedded, &*real] {
                let (_proxy, address) = proxy(cluster).await;
                let relay = Relay::start(&address).await;
                let mut by_curl = course();
                by_curl.stdout(relay.shown()).arg(lesson.number.to_string());
                by_curl.arg("--kubeconfig").arg(relay.write_kubeconfig());
                let ended = by_curl.stderr(Stdio::piped()).spawn().unwrap().wait_with_output().await.unwrap();
                let mut itself = course();
                if cluster.name != embedded.name {
                    itself.arg("--kubeconfig").arg(&cluster.kubeconfig);
                }
                let (_, expected, _) = run(itself.arg(lesson.number.to_string())).await;
                let whose = format!("{}, {}", lesson.file, cluster.name);
                let shown = relay.into_shown();
                assert!(ended.status.success(), "{whose}: {}{shown}", String::from_utf8_lossy(&ended.stderr));
                let [shown, expected] = [shown, expected].map(|shown| transcript(&shown).join("\n"));
                assert!(shown == expected, "{whose}: by curl\n{shown}\nby itself\n{expected}");
            }
        }
    })
    .await;
}

/// What a lesson shows, without what differs between two runs: names, versions, times, the ends of long lines, the way a
/// connection breaks, and bookmarks that may come at any time.
fn transcript(shown: &str) -> Vec<String> {
    static VARIABLE: LazyLock<Regex> = LazyLock::new(|| {
        let (name, uid, token) = ("listwatch-course-[a-z0-9]+", "[0-9a-f]{8}-[0-9a-f-]{27}", "eyJ[^'\" ]+");
        let (broken, code) =
            (r"https?://\S+ \(cluster .*", r#"(HTTP [0-9]+|\b[45][0-9]{2} [A-Z]|"code":[0-9]+)"#);
        Regex::new(&format!("{name}|{uid}|{token}|{broken}|{code}|[0-9]+")).unwrap()
    });
    let (_, lesson) = shown.split_once("\n# ").unwrap();
    // Whether the server reaches a version with more digits depends on its version.
    let lesson = ["\nLOST a deletion", "\nNotice: "]
        .iter()
        .fold(lesson, |lesson, end| lesson.split(end).next().unwrap());
    let lines = lesson.lines().skip(1).filter(|line| !line.contains("BOOKMARK") && !line.contains("← half"));
    let normal = |line: &str| {
        let normal = VARIABLE.replace_all(line, "$1…").into_owned();
        let is_cut = line.ends_with('…');
        if is_cut { normal.chars().take(120).collect() } else { normal }
    };
    lines.map(normal).collect()
}

/// The documents of an output, without versions, times, uids, tokens, and the bookmarks that may come at any time.
fn comparable(output: &str) -> Vec<Value> {
    static VARIABLE: LazyLock<Regex> = LazyLock::new(|| {
        let (version, uid) = ("[0-9]+", "[0-9a-f]{8}-[0-9a-f-]{27}");
        let (time, age, token) = ("[0-9-]+T[0-9:.]+Z", "[0-9]+[smh]", "eyJ[^\"]+");
        let message = r"current: [0-9]+|\([0-9]+\)|[0-9.]+ s$";
        Regex::new(&format!("(?m)(\")(?:{})\"|{message}", [version, uid, time, age, token].join("|")))
            .unwrap()
    });
    let mut documents = documents(&VARIABLE.replace_all(output, "$1…$1"));
    documents.retain(|event| event["type"] != "BOOKMARK" || ends_initial_events(event));
    documents
}

#[tokio::test]
async fn an_interrupted_lesson_deletes_its_namespace() {
    let server = ApiServer::start(Options::default()).await.unwrap();
    let cluster = Cluster::new("embedded", &server.kubeconfig());
    for (signal, cause) in [("-INT", "interrupted"), ("-TERM", "terminated"), ("-HUP", "no terminal")] {
        let mut command = course();
        command.args(["3", "--fault", "stall-watches", "--kubeconfig"]).arg(&cluster.kubeconfig);
        let mut lesson = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(lesson.stdout.take().unwrap()).lines();
        while !lines.next_line().await.unwrap().unwrap().contains("the lines follow as they come") {}
        let pid = lesson.id().unwrap().to_string();
        assert!(Command::new("kill").args([signal, &pid]).status().await.unwrap().success());
        let output = lesson.wait_with_output().await.unwrap();
        let error = String::from_utf8(output.stderr).unwrap();
        assert_eq!((output.status.code(), error), (Some(1), format!("error: {cause}\n")));
        assert_eq!(cluster.left_over().await, Vec::<Value>::new());
    }
    // The faults have also ended.
    let watch = cluster.client.stream(Request::get("/api/v1/namespaces?watch=1")).await;
    assert!(watch.unwrap().1.chunk().await.unwrap().is_some());
}

#[tokio::test]
async fn the_course_lists_its_lessons_and_uses_a_cluster_only_if_a_flag_names_one() {
    let (code, stdout, _) = run(&mut course()).await;
    assert_eq!((code, stdout.lines().filter(|line| line.contains(". ")).count()), (Some(0), SEEN.len()));
    let (code, _, stderr) = run(course().args(["2", "--context", "any"])).await;
    assert_eq!(code, Some(1));
    assert!(stderr.contains(&format!("KUBECONFIG names {ABSENT}, which does not exist")), "{stderr}");
    let (code, _, stderr) = run(course().args(["2", "--fault", "cut"])).await;
    assert_eq!(code, Some(1));
    assert!(stderr.contains("is not a fault"), "{stderr}");
    let (code, _, stderr) = run(course().arg("99")).await;
    assert_eq!(code, Some(2), "{stderr}");
}

/// The example on a terminal. What is written to its standard input is typed.
fn on_terminal(columns: usize, args: &str) -> Command {
    let mut command = Command::from(ends_with_test("script"));
    command.args(["--quiet", "--return", "--command"]);
    let program = program().display();
    command.args([&format!("stty rows 24 cols {columns}; exec {program} {args}"), "/dev/null"]);
    command.env("KUBECONFIG", ABSENT).env_remove("CI").stdin(Stdio::piped()).stdout(Stdio::piped());
    command.kill_on_drop(true);
    command
}

/// Runs a command on a terminal. Returns whether it succeeded, and what it shows to a user who presses Enter whenever it asks.
async fn shown_to_user(mut command: Command) -> (bool, String) {
    let mut terminal = command.spawn().unwrap();
    let mut keyboard = terminal.stdin.take().unwrap();
    keyboard.write_all(&[b'\n'; 40]).await.unwrap();
    let output = terminal.wait_with_output().await.unwrap();
    let mut shown = String::from_utf8(output.stdout).unwrap().replace('\r', "");
    // The terminal has shown each Enter before the prompt.
    for prompt in ["Press Enter.", "Press Enter to go on."] {
        shown = shown.replace(&format!("{prompt} "), &format!("{prompt}\n"));
    }
    (output.status.success(), shown)
}

/// On a terminal, both waited for Enter before the error.
#[tokio::test]
async fn a_wrong_flag_of_a_lesson_is_an_error_before_its_question() {
    for (args, cause) in [("--context any", "KUBECONFIG names "), ("--fault cut", "is not a fault")] {
        // Nobody presses Enter.
        let mut terminal = on_terminal(300, &format!("2 {args}")).spawn().unwrap();
        let _keyboard = terminal.stdin.take();
        let ended = timeout(PATIENCE, terminal.wait_with_output()).await;
        let shown = String::from_utf8(ended.expect("no wait for Enter").unwrap().stdout).unwrap();
        assert!(shown.starts_with("error: ") && shown.contains(cause), "{args}: {shown}");
    }
}

/// A terminal of 80 columns cut words.
#[tokio::test]
async fn on_a_terminal_a_lesson_fits_its_width_and_its_words_are_whole() {
    let lesson = lessons().swap_remove(14);
    for columns in [40, 80, 100] {
        let (succeeded, shown) = shown_to_user(on_terminal(columns, "15 --explain")).await;
        assert!(succeeded, "{shown}");
        // To be copied.
        let shown = shown.replace(&lesson.commands(), "");
        for line in shown.lines() {
            let is_command = line.trim_start().starts_with("$ ");
            assert!(line.chars().count() <= columns || is_command, "{columns}: {line:?} in\n{shown}");
        }
        // A line break in a quoted URL would be part of it.
        let curls = shown.lines().filter(|line| line.trim_start().starts_with("$ curl"));
        assert!(
            curls.clone().count() > 1 && curls.clone().all(|curl| curl.matches('\'').count() % 2 == 0),
            "{shown}"
        );
        let words: Vec<_> = shown.split_whitespace().collect();
        for word in ["Predict", "Notice", "Why", "Embedded server"].map(|label| lesson.labelled(label)) {
            for word in word.split_whitespace() {
                assert!(words.contains(&word), "{columns}: no whole {word} in\n{shown}");
            }
        }
    }
}

#[tokio::test]
async fn a_long_lesson_pauses_at_each_step_on_a_terminal_but_not_in_ci_or_a_pipe() {
    for (lesson, steps) in [("5", 3), ("15", 7), ("18", 4), ("19", 17)] {
        let (succeeded, shown) = shown_to_user(on_terminal(80, lesson)).await;
        assert_eq!((succeeded, shown.matches("Press Enter to go on.").count()), (true, steps), "{shown}");
    }
    let mut in_ci = on_terminal(80, "5");
    in_ci.env("CI", "true");
    let (succeeded, shown) = shown_to_user(in_ci).await;
    assert!(succeeded && !shown.contains("Press Enter"), "{shown}");
    let (code, shown, _) = run(course().arg("5")).await;
    assert!(code == Some(0) && !shown.contains("Press Enter"), "{shown}");
}

#[tokio::test]
async fn ctrl_c_at_a_pause_ends_a_lesson_and_deletes_its_namespace() {
    let server = ApiServer::start(Options::default()).await.unwrap();
    let cluster = Cluster::new("embedded", &server.kubeconfig());
    let mut terminal =
        on_terminal(80, &format!("5 --kubeconfig {}", cluster.kubeconfig.display())).spawn().unwrap();
    let (mut keyboard, mut screen) = (terminal.stdin.take().unwrap(), terminal.stdout.take().unwrap());
    keyboard.write_all(b"\n").await.unwrap();
    let (mut shown, mut bytes) = (Vec::new(), [0; 4096]);
    while !String::from_utf8_lossy(&shown).contains("Press Enter to go on.") {
        let count = screen.read(&mut bytes).await.unwrap();
        assert!(count > 0, "{}", String::from_utf8_lossy(&shown));
        shown.extend_from_slice(&bytes[..count]);
    }
    // Ctrl-C.
    keyboard.write_all(b"\x03").await.unwrap();
    screen.read_to_end(&mut shown).await.unwrap();
    let shown = String::from_utf8_lossy(&shown).into_owned();
    assert_eq!(terminal.wait().await.unwrap().code(), Some(1), "{shown}");
    assert!(shown.contains("error: interrupted"), "{shown}");
    assert_eq!(cluster.left_over().await, Vec::<Value>::new());
}

/// The end of a 401 was shown after three more requests, and the same test after every list.
#[tokio::test]
async fn an_explanation_stands_under_its_request_and_names_a_mistake_once() {
    let (code, shown, _) = run(course().args(["15", "--explain"])).await;
    assert_eq!(code, Some(0), "{shown}");
    let (_, of_401) = shown.split_once("  HTTP 401 ").unwrap();
    assert_seen(&["therewerenovalidnewcredentials"], of_401.split("\n$ ").next().unwrap(), "lesson 15");
    for line in shown.lines().filter(|line| line.contains("avoids mistake ")) {
        assert!(line.contains(" (docs/watch.md, section ") && shown.matches(line).count() == 1, "{line}");
    }
    let (_, naive, _) = run(course().args(["5", "--explain"])).await;
    let sentences: Vec<_> = naive.lines().filter(|line| line.starts_with("  # ")).collect();
    assert!(sentences.iter().all(|line| line.starts_with("  # a good client: ")), "{sentences:#?}");
    assert!(sentences.len() > 5, "{naive}");
}

#[tokio::test]
async fn a_closed_stdout_ends_a_lesson_with_0_and_deletes_its_namespace() {
    let server = ApiServer::start(Options::default()).await.unwrap();
    let cluster = Cluster::new("embedded", &server.kubeconfig());
    let mut command = course();
    command.args(["10", "--kubeconfig"]).arg(&cluster.kubeconfig);
    let mut lesson = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(lesson.stdout.take().unwrap()).lines();
    while !lines.next_line().await.unwrap().unwrap().contains("the lines follow as they come") {}
    drop(lines);
    let output = lesson.wait_with_output().await.unwrap();
    assert_eq!((output.status.code(), &*output.stderr), (Some(0), &b""[..]));
    assert_eq!(cluster.left_over().await, Vec::<Value>::new());
}

#[tokio::test]
async fn the_naive_loop_loses_a_change_an_object_a_deletion_and_the_order() {
    let (code, stdout, stderr) = run(course().arg("5")).await;
    let lost: Vec<_> =
        stdout.lines().filter_map(|line| line.strip_prefix("LOST ")?.split(':').next()).collect();
    assert_eq!((code, &*stderr), (Some(0), ""));
    assert_eq!(lost, ["a change", "an object", "a deletion", "the order"]);
    // Both versions are of objects of the server.
    let taken = r#""newest":"(\d+)"\}\nLOST the order: the newest version is (\d+), and"#;
    let taken = Regex::new(taken).unwrap();
    let taken = taken.captures(&stdout).unwrap_or_else(|| panic!("{stdout}"));
    let number = |index: usize| taken[index].parse::<u32>().unwrap();
    assert_eq!(number(1) + 1, number(2), "{stdout}");
}

/// An object that was gone before the list comes again, after an ERROR nothing comes, and a large list ends the loop.
#[tokio::test]
async fn the_naive_loop_repeats_what_its_list_had_ignores_a_410_and_cannot_read_a_large_list() {
    let (_, stdout, _) = run(&mut course_5("")).await;
    let (_, after_list) = stdout.split_once(r#"  {"list":""#).unwrap();
    let (first_round, _) = after_list.split_once("LOST ").unwrap();
    assert_seen(
        &[r#""ADDED","object":{"#, r#""DELETED","object":{"#, r#""name":"old""#],
        first_round,
        "lesson 5",
    );

    let (code, stdout, stderr) = run(&mut course_5("--fault expire-watches,lines=0")).await;
    assert_seen(&[r#"{"type":"ERROR","object":{"#, r#""code":410"#], &stdout, "lesson 5");
    let lost = r#"error: broken as intended: expected `b` and a red `a`: {"a":"red","#;
    assert!(code == Some(1) && stderr.starts_with(lost), "{stderr}");

    let server = ApiServer::start(Options::default()).await.unwrap();
    let cluster = Cluster::new("embedded", &server.kubeconfig());
    let body = "x".repeat(33 << 20);
    server.fault(Fault::Answer { status: 200, body, retry_after_secs: None }.on("GET", "/listwatch-course-"));
    let (code, _, stderr) = run(course_5("--kubeconfig").arg(&cluster.kubeconfig)).await;
    assert!(code == Some(1) && stderr.contains("answered with more than"), "{stderr}");
}

/// As examples/README.md says of two rows.
#[tokio::test]
async fn the_naive_loop_waits_for_ever_and_ends_when_it_is_refused() {
    let readme = fs::read_to_string(root().join("examples/README.md")).unwrap();
    let shows = async |fault: &str| {
        let args = format!("--fault {fault}");
        assert!(readme.contains(&format!("`cargo run --example course -- 5 {args}`")), "{fault}");
        let (code, _, stderr) = run(course_5(&args).env_remove("LISTWATCH_LESSON_LIMIT")).await;
        assert_eq!(code, Some(1), "{stderr}");
        stderr
    };
    let (silent, refused) = tokio::join!(shows("stall-watches"), shows("unavailable,path=watch=1"));
    assert_eq!(silent, "error: the lesson did not end within 40 s\n");
    assert!(refused.starts_with("error: broken as intended: ") && refused.contains(": 503 "), "{refused}");
}

/// Lesson 5, with these arguments.
fn course_5(args: &str) -> Command {
    let mut command = course();
    command.arg("5").args(args.split_whitespace());
    command
}

#[tokio::test]
async fn lessons_show_the_half_line_each_page_who_sends_again_and_what_a_list_has_deleted() {
    let shown: [(_, &[&str]); 6] = [
        ("10", &["--data-raw'backup'", "--data-raw'restore'", "504", "listagain"]),
        ("7", &["←halfaline,dropped"]),
        // The next watch began without a version.
        ("7 --fault drop-slow-watches,times=1", &["theserverhasendedthewatch", "←halfaline,dropped"]),
        ("11", &[r#"?limit=2'["a","b"]"#, r#"["c","d"]"#]),
        ("15", &["sentagainbythewatchloopafterRetry-After", "acall,notawatchloop:sentagainbytheclient"]),
        ("18", &["check:serverat", ",storeat", "notinthelist,sodeleted:[\"d\"]"]),
    ];
    for (lesson, seen) in shown {
        let (code, stdout, stderr) = run(course().args(lesson.split(' '))).await;
        assert_eq!((code, &*stderr), (Some(0), ""), "{stdout}");
        assert_seen(seen, &stdout, lesson);
    }
}

/// A backup had the namespace of the lesson before, and after the restore its objects were deleted again: in more versions than
/// lesson 10 had lost.
#[tokio::test]
async fn lesson_10_follows_other_lessons_on_one_server() {
    let server = ApiServer::start(Options::default()).await.unwrap();
    let cluster = Cluster::new("embedded", &server.kubeconfig());
    for lesson in ["17", "10", "9", "10"] {
        let (code, stdout, stderr) =
            run(course().args([lesson, "--kubeconfig"]).arg(&cluster.kubeconfig)).await;
        assert_eq!((code, &*stderr), (Some(0), ""), "{stdout}");
    }
}

/// The clients of the recording say who wrote what the lesson sees. What the stage sends before the lesson is not in it.
#[tokio::test]
async fn a_lesson_is_recorded_for_the_lens() {
    let dir = TempDir::new().unwrap();
    let file = dir.path().join("lesson.jsonl");
    let mut record = course();
    record.args(["4", "--record"]).arg(&file);
    let (code, stdout, stderr) = run(&mut record).await;
    assert_eq!((code, &*stderr), (Some(0), ""), "{stdout}");
    let mut lens = Command::new(env!("CARGO_BIN_EXE_listwatch"));
    let (code, report, stderr) = run(lens.args(["lens", "--output=json"]).arg(&file)).await;
    assert_eq!(code, Some(0), "{stderr}");
    let report: Value = serde_json::from_str(&report).unwrap();
    assert_eq!(report["clients"], json!(["another client", "lesson"]), "{report:#}");
    let verbs: Value =
        report["writes"].as_array().unwrap().iter().map(|write| write["verb"].clone()).collect();
    assert_eq!(verbs, json!(["create", "create", "patch", "delete"]), "{report:#}");
    let (code, _, stderr) = run(&mut record).await;
    assert!(code == Some(1) && stderr.contains("lesson.jsonl: exists; remove it"), "{stderr}");
}

#[tokio::test]
async fn lesson_15_shows_a_403_on_both_servers() {
    let (code, embedded, stderr) = run(course().arg("15")).await;
    assert_eq!((code, &*stderr), (Some(0), ""), "{embedded}");
    assert_seen(&["403Forbidden:"], &embedded, "embedded");
    let Some(real) = Cluster::real().await else { return };
    let (code, shown, stderr) = run(course().args(["15", "--kubeconfig"]).arg(&real.kubeconfig)).await;
    assert_eq!((code, &*stderr), (Some(0), ""), "{shown}");
    assert_seen(&[r#"403Forbidden:configmapsisforbidden:User"listwatch-course"cannotwatch"#], &shown, "real");
}

#[tokio::test]
async fn lesson_23_shows_the_reviews_of_both_servers_and_the_answers() {
    let shown = async |command: &mut Command| {
        let (code, shown, stderr) = run(command.arg("23")).await;
        assert_eq!((code, &*stderr), (Some(0), ""), "{shown}");
        let reviews =
            ["POST/validate?timeout=10s", r#""dryRun":false"#, r#""allowed":false"#, "POST/convert"];
        assert_seen(&reviews, &shown, "lesson 23");
        assert_seen(&[r#""convertedObjects":[{"#, r#"asv2:{"length":3}"#], &shown, "lesson 23");
    };
    shown(&mut course()).await;
    let Some(real) = Cluster::real().await else { return };
    shown(course().arg("--kubeconfig").arg(&real.kubeconfig)).await;
}

#[tokio::test]
async fn on_a_server_without_streaming_lists_lesson_12_lists_in_pages() {
    let (code, stdout, stderr) = run(course().args(["12", "--fault", "no-streaming-lists"])).await;
    assert_eq!((code, &*stderr), (Some(0), ""), "{stdout}");
    assert_seen(&["422", "listedinpages"], &stdout, "lesson 12");
    assert!(!stdout.contains(r#""type":"ADDED""#), "{stdout}");
}
