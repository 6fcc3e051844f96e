//! `listwatch get` and `listwatch watch`: one request, and its answer as it came over the wire, or
//! only the curl command (`--curl`).

use std::{
    ffi::OsStr,
    io::{self, Write},
    path::PathBuf,
    time::{Duration, Instant},
};

use clap::{
    Arg, Args, Command, ValueEnum,
    builder::{PossibleValue, StringValueParser, TypedValueParser},
};
use listwatch::{
    client::{Client, Collection, Config, CurlFrom, Request},
    resource::{Accept, Scope},
    shutdown::Signals,
    store::Store,
    watch::{self, Health, Lists, Machine},
};
use listwatch_study::{
    discovery::{self, ApiResource},
    object::Object,
    place::Place,
};
use tracing::Level;

use super::{
    connection::{self, ConnectionFlags, granted, kinds},
    embedded::{DemoFlag, GET_EXAMPLE, WATCH_EXAMPLE},
    env::typed,
    failure::{Failure, exit_when_blocked, until_signal},
    format::Output,
    log::Log,
    output_file::Recording,
    screen::{Screen, Show},
    terminal::note,
};

const TABLE: &str = "application/json;as=Table;g=meta.k8s.io;v=v1";

/// The help of the argument of `listwatch watch`: the server watches collections.
const WATCH_TARGET: &str =
    "RESOURCE (deploy, mws, deployments.v1.apps) or the path of a collection with its query";

/// The comment of a curl command for the server of `--demo`.
const DEMO_ENDS: &str = "The server of --demo ends with this command. To run it, start: listwatch apiserver";

/// A watch that ends sooner, without an event and before its timeoutSeconds, is a failure. A kube-apiserver ends a watch after half an
/// hour or later, but many proxies end each silent connection after a minute.
const WATCH_MIN: Duration = Duration::from_secs(60);

/// Get objects: one request, and its answer as it came
#[derive(Debug, Args)]
#[command(after_help = format!("Examples:\n  \
    listwatch get deploy -n web                  the list, as one line of JSON\n  \
    listwatch get pods/web-1 -o yaml\n  \
    listwatch get '/api/v1/pods?limit=5' | jq .metadata\n  \
    listwatch get mws --curl=pod                 the same with curl, in a Pod\n\
    {GET_EXAMPLE}\n\
    The body goes to standard output; the curl command, the status and the headers go to standard error."))]
pub(super) struct GetArgs {
    #[command(flatten)]
    request: RequestFlags,
    /// Most objects on a page
    #[arg(long, value_name = "N", help_heading = "Protocol")]
    limit: Option<u32>,
    /// The next page: metadata.continue of the page before
    #[arg(long = "continue", value_name = "TOKEN", help_heading = "Protocol")]
    continue_token: Option<String>,
    #[command(flatten)]
    shown: ShownFlags,
    #[command(flatten)]
    connection: ConnectionFlags,
    #[command(flatten)]
    log: Log,
}

/// Watch objects: one request, and each event as it came
#[derive(Debug, Args)]
#[command(mut_arg("target", |target| target.help(WATCH_TARGET)), after_help = format!("Examples:\n  \
    listwatch watch mws --explain                what each event means\n  \
    listwatch watch deploy --follow              as the operator does: resume, list again, back off\n\
    {WATCH_EXAMPLE}\n\
    Without --follow, it ends when the server ends the watch, as curl does. --explain numbers mistakes as docs/reliability.md does."))]
pub(super) struct WatchArgs {
    #[command(flatten)]
    request: RequestFlags,
    /// Seconds after which the server ends the watch: timeoutSeconds
    #[arg(long, value_name = "SECONDS", help_heading = "Protocol", conflicts_with = "follow")]
    timeout_seconds: Option<u32>,
    /// Ask for BOOKMARK events: allowWatchBookmarks
    #[arg(long, help_heading = "Protocol", conflicts_with = "follow")]
    allow_watch_bookmarks: bool,
    /// Ask for every object first, and then a BOOKMARK: sendInitialEvents. With --follow, a streaming list
    #[arg(long, help_heading = "Protocol")]
    send_initial_events: bool,
    /// End after so many events
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    max_events: Option<u64>,
    /// List, and then watch as the operator does, until Ctrl-C. With --resource-version, watch from it first. Explains each step,
    /// as --explain does
    #[arg(long, conflicts_with_all = ["resource_version_match", "table", "curl"])]
    follow: bool,
    #[command(flatten)]
    shown: ShownFlags,
    #[command(flatten)]
    connection: ConnectionFlags,
    #[command(flatten)]
    log: Log,
}

#[derive(Args, Clone, Debug)]
struct RequestFlags {
    /// RESOURCE, RESOURCE/NAME (deploy, mws/web, deployments.v1.apps) or a path of the API with its query
    #[arg(value_name = "RESOURCE|PATH", value_parser = Target, hide_possible_values = true)]
    target: String,
    /// Namespace. Default: the namespace of the context or of the service account
    #[arg(short, long, value_name = "NAME", help_heading = "Protocol", conflicts_with = "all_namespaces")]
    namespace: Option<String>,
    /// All namespaces
    #[arg(short = 'A', long, help_heading = "Protocol")]
    all_namespaces: bool,
    /// Only objects with these labels: labelSelector
    #[arg(short = 'l', long, value_name = "SELECTOR", help_heading = "Protocol")]
    selector: Option<String>,
    /// Only objects with these fields, such as metadata.name=web: fieldSelector
    #[arg(long, value_name = "SELECTOR", help_heading = "Protocol")]
    field_selector: Option<String>,
    /// The version of a list, or the version after which a watch begins
    #[arg(long, value_name = "VERSION", help_heading = "Protocol")]
    resource_version: Option<String>,
    /// How to understand the version: Exact or NotOlderThan
    #[arg(long, value_name = "RULE", help_heading = "Protocol")]
    resource_version_match: Option<String>,
    /// Ask for the columns of kubectl: as=Table
    #[arg(long, help_heading = "Protocol", conflicts_with = "metadata")]
    table: bool,
    /// Ask for metadata only: as=PartialObjectMetadata
    #[arg(long, help_heading = "Protocol")]
    metadata: bool,
}

#[derive(Args, Clone, Debug)]
struct ShownFlags {
    /// Form of the answer. Default: short on a terminal, raw otherwise
    #[arg(short, long, value_name = "FORM")]
    output: Option<Output>,
    /// Explain each step on standard error, with the time since the start. Mistake N: see docs/reliability.md
    #[arg(long)]
    explain: bool,
    /// Print the curl command and send nothing. RESOURCE must then be a kind that listwatch knows, or a path. FROM is by default here
    #[arg(long, value_name = "FROM", num_args = 0..=1, require_equals = true, default_missing_value = "here")]
    #[arg(conflicts_with_all = ["explain", "record"])]
    curl: Option<From>,
    /// Record requests and answers in a file, without tokens and Secrets, for listwatch replay
    #[arg(long, value_name = "FILE")]
    record: Option<PathBuf>,
    #[command(flatten)]
    demo: DemoFlag,
}

/// Takes any text. A shell completes the names of the built-in resources.
#[derive(Clone)]
struct Target;

impl TypedValueParser for Target {
    type Value = String;

    fn parse_ref(&self, command: &Command, arg: Option<&Arg>, value: &OsStr) -> Result<String, clap::Error> {
        StringValueParser::new().parse_ref(command, arg, value)
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        Some(Box::new(discovery::built_in_names().map(PossibleValue::new)))
    }
}

/// From where a curl command reaches the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum From {
    /// Here, with the credentials of the kubeconfig
    Here,
    /// In a Pod, with its service account
    Pod,
    /// Through kubectl proxy
    Proxy,
}

impl std::convert::From<From> for CurlFrom {
    fn from(from: From) -> CurlFrom {
        match from {
            From::Here => CurlFrom::Here,
            From::Pod => CurlFrom::Pod,
            From::Proxy => CurlFrom::Proxy,
        }
    }
}

/// The request of a command.
#[derive(Clone, Debug)]
struct Wanted {
    request: RequestFlags,
    query: Vec<(&'static str, String)>,
    is_watch: bool,
    /// Whether nothing is sent.
    is_offline: bool,
    /// `Some`: lists and watches until stopped.
    follow: Option<Lists>,
    events_max: Option<u64>,
}

pub(super) fn get(get: GetArgs) -> Result<(), Failure> {
    get.log.start(Level::ERROR);
    let GetArgs { request, limit, continue_token, shown, connection, .. } = get;
    let limit = limit.map(|limit| ("limit", limit.to_string()));
    let wanted = Wanted {
        request,
        query: limit.into_iter().chain(continue_token.map(|token| ("continue", token))).collect(),
        is_watch: false,
        is_offline: shown.curl.is_some(),
        follow: None,
        events_max: None,
    };
    main(wanted, shown, connection)
}

pub(super) fn watch(watch: WatchArgs) -> Result<(), Failure> {
    watch.log.start(Level::ERROR);
    let mut query = vec![("watch", "1".to_owned())];
    if let Some(seconds) = watch.timeout_seconds {
        query.push(("timeoutSeconds", seconds.to_string()));
    }
    if watch.allow_watch_bookmarks || watch.send_initial_events {
        query.push(("allowWatchBookmarks", "true".to_owned()));
    }
    let mut request = watch.request;
    if watch.send_initial_events {
        query.push(("sendInitialEvents", "true".to_owned()));
        // The server refuses any other rule.
        request.resource_version_match.get_or_insert("NotOlderThan".to_owned());
    }
    let lists = if watch.send_initial_events { Lists::Streaming } else { Lists::Paged };
    let follow = watch.follow.then_some(lists);
    let is_offline = watch.shown.curl.is_some();
    let wanted = Wanted { request, query, is_watch: true, is_offline, follow, events_max: watch.max_events };
    main(wanted, watch.shown, watch.connection)
}

fn main(mut wanted: Wanted, shown: ShownFlags, connection: ConnectionFlags) -> Result<(), Failure> {
    let interrupted: fn(u8) -> Result<(), Failure> =
        if wanted.is_watch { |_| Ok(()) } else { |code| Err(Failure::Interrupted(code)) };
    exit_when_blocked(interrupted);
    until_signal(async |_| {
        let mut signals = Signals::listen()?;
        let stage = shown.demo.stage().await?;
        let config = match &stage {
            Some(stage) => stage.config()?,
            None => config(connection, shown.curl)?,
        };
        let output = Output::or_default(shown.output);
        wanted.request.table |= output == Output::Wide;
        let show = Show {
            output,
            explain: shown.explain || wanted.follow.is_some(),
            follow: wanted.follow.is_some(),
            namespaces: wanted.request.all_namespaces,
            events_max: wanted.events_max,
        };
        let screen = Screen::new(show);
        let client = connection::client(config.with_tap(screen.clone()))?;
        if let Some(from) = shown.curl {
            if let Some(word) = after_curl() {
                note(&format!(
                    "# {word} is the RESOURCE here. As a value of --curl, it follows `=`: --curl={word}"
                ));
            }
            let request = wanted.request(&discovery::built_in(), client.namespace())?;
            if stage.is_some() {
                note(&format!("# {DEMO_ENDS}"));
            }
            if from == From::Here
                && let Some(needs) = client.curl_needs()
            {
                note(&format!("# {needs}"));
            }
            return Ok(writeln!(io::stdout(), "{}", client.curl(&request, from.into()))?);
        }
        let recording =
            shown.record.as_deref().map(|path| Recording::create(path, client.server())).transpose()?;
        let work = async {
            screen.begin(&client, recording);
            let kinds = if wanted.is_path() { Vec::new() } else { kinds(&client).await? };
            let request = wanted.request(&kinds, client.namespace())?;
            wanted.send(client.clone(), request, output).await
        };
        let result = tokio::select! {
            biased;
            full = screen.full() => full,
            () = reader_is_gone() => Ok(()),
            result = work => screen.failure().and(result),
            (_, code) = signals.next() => interrupted(code),
        };
        if result.is_err() {
            screen.remove_empty_recording();
        }
        if let Some(stage) = stage {
            stage.stop().await;
        }
        result
    })
}

/// The word in `--curl pod`, with a space. It is not a value of the flag, but the RESOURCE, or one argument too many.
pub(super) fn after_curl() -> Option<String> {
    let mut rest = typed().skip_while(|arg| arg != "--curl");
    rest.nth(1).filter(|word| From::from_str(word, false).is_ok())
}

/// The server and the credentials. A command for a Pod or a proxy needs neither, unless it impersonates a user.
fn config(connection: ConnectionFlags, curl: Option<From>) -> Result<Config, Failure> {
    let is_found_elsewhere = matches!(curl, Some(From::Pod | From::Proxy)) && connection.act_as.is_none();
    match connection.config() {
        Err(Failure::Usage(cause)) if is_found_elsewhere && cause.starts_with("find the API server") => {
            Ok(Config::new("http://127.0.0.1:8001", b"", "")?)
        }
        config => config,
    }
}

/// Refuses to watch anything but a collection: the server would ignore `watch`, and answer once.
fn check_collection(target: &str) -> Result<(), Failure> {
    let path = target.split('?').next().unwrap_or_default().trim_end_matches('/');
    let place = Place::of(path).filter(|place| !place.resource.is_empty());
    let hint = match place {
        Some(Place { name: None, .. }) => return Ok(()),
        // `/api/v1/watch/pods` is the old form of a watch.
        Some(place) if place.plural() == "watch" => return Ok(()),
        Some(Place { name: Some(name), subresource: None, .. }) => {
            let collection = path.strip_suffix(name).unwrap_or_default().trim_end_matches('/');
            format!(": listwatch watch {collection} --field-selector metadata.name={name}")
        }
        Some(_) | None => ", such as /api/v1/pods".to_owned(),
    };
    Err(Failure::Usage(format!("a watch is of a collection{hint}")))
}

/// Waits until the reader of standard output has closed it: a watch may be quiet for long after `| head -1` has ended.
#[cfg(unix)]
async fn reader_is_gone() {
    use std::os::fd::AsFd;
    use tokio::{io::Interest, net::unix::pipe::Sender};
    // A regular file cannot be waited for, and has no reader.
    let stdout = io::stdout().as_fd().try_clone_to_owned().and_then(Sender::from_owned_fd_unchecked);
    match stdout {
        Ok(stdout) if stdout.ready(Interest::ERROR).await.is_ok() => {}
        Ok(_) | Err(_) => std::future::pending().await,
    }
}

/// Elsewhere, the next line that cannot be written shows it.
#[cfg(not(unix))]
async fn reader_is_gone() {
    std::future::pending().await
}

impl Wanted {
    fn is_path(&self) -> bool {
        self.request.target.starts_with('/')
    }

    fn request(&self, kinds: &[ApiResource], namespace: &str) -> Result<Request, Failure> {
        let flags = &self.request;
        let path = if self.is_path() {
            let has_namespace = flags.namespace.is_some() || flags.all_namespaces;
            if has_namespace {
                let cause = "a path names the namespace itself: leave out -n and -A, or give a RESOURCE";
                return Err(Failure::Usage(cause.to_owned()));
            }
            if self.follow.is_some() && flags.target.contains('?') {
                let cause =
                    "--follow adds its own query: give a path without one, and -l or --field-selector";
                return Err(Failure::Usage(cause.to_owned()));
            }
            if self.is_watch {
                check_collection(&flags.target)?;
            }
            flags.target.clone()
        } else {
            self.resource_path(kinds, namespace)?
        };
        let mut request = Request::get(path);
        let text = |text: &Option<String>| text.clone();
        let mut query: Vec<(&'static str, Option<String>)> =
            self.query.iter().map(|(name, value)| (*name, Some(value.clone()))).collect();
        query.extend([
            ("labelSelector", text(&flags.selector)),
            ("fieldSelector", text(&flags.field_selector)),
            ("resourceVersion", text(&flags.resource_version)),
            ("resourceVersionMatch", text(&flags.resource_version_match)),
        ]);
        request.query = query.into_iter().filter_map(|(name, value)| Some((name, value?))).collect();
        if self.is_watch && self.is_path() && Request::get(&*flags.target).is_watch() {
            // The path has it already.
            request.query.retain(|(name, _)| *name != "watch");
        } else if self.is_watch && !request.is_watch() {
            let cause = "the query of the path says that this is not a watch: leave `watch` out of it";
            return Err(Failure::Usage(cause.to_owned()));
        }
        if flags.table {
            request.accept = TABLE.into();
        } else if flags.metadata {
            // `get` of a path with `watch=1` is also a watch: kube-apiserver cannot send an event as a list.
            let one = request.is_watch() || flags.target.contains('/') && !self.is_path();
            let kind = if one { "PartialObjectMetadata" } else { "PartialObjectMetadataList" };
            // As kubectl does: the server takes the first form that suits the answer.
            let other = if one { "PartialObjectMetadataList" } else { "PartialObjectMetadata" };
            let form = |kind| format!("application/json;as={kind};g=meta.k8s.io;v=v1");
            request.accept = format!("{},{}", form(kind), form(other)).into();
        }
        Ok(request)
    }

    fn resource_path(&self, kinds: &[ApiResource], namespace: &str) -> Result<String, Failure> {
        let is_offline = self.is_offline;
        let (word, name) = match self.request.target.split_once('/') {
            Some((word, name)) => (word, Some(name)),
            None => (&*self.request.target, None),
        };
        let kind = discovery::find(kinds, word).map_err(|cause| {
            // Without a server, only the built-in resources are known.
            let path = if is_offline { "; --curl knows only built-in resources: give a path" } else { "" };
            Failure::Usage(cause + path)
        })?;
        let namespace = match (&self.request.namespace, self.request.all_namespaces) {
            (_, true) => None,
            (Some(name), false) => Some(&**name),
            (None, false) => Some(namespace),
        };
        let is_word =
            |text: &str| !text.is_empty() && !text.contains(['/', '?', '#', '%', ' ']) && text != "..";
        for (what, text) in [("namespace", namespace), ("name", name)] {
            if let Some(text) = text.filter(|text| !is_word(text)) {
                return Err(Failure::Usage(format!("{text:?} is no {what} of an object")));
            }
        }
        if self.request.namespace.is_some() && !kind.is_namespaced {
            let cause = format!("{} are in no namespace: leave out -n", kind.plural);
            return Err(Failure::Usage(cause));
        }
        let RequestFlags { selector, field_selector, .. } = &self.request;
        let has_selection = selector.is_some() || field_selector.is_some() || !self.query.is_empty();
        let path = kind.path(namespace);
        match name {
            Some(_) if namespace.is_none() && kind.is_namespaced => {
                Err(Failure::Usage("an object has one namespace: give -n NAME rather than -A".to_owned()))
            }
            // The server watches collections.
            Some(_) if self.is_watch => Err(Failure::Usage(format!(
                "a watch is of a collection: listwatch watch {word} --field-selector metadata.name={}",
                name.unwrap_or_default()
            ))),
            Some(_) if has_selection => {
                let cause = "an object has a name: leave out -l, --field-selector, --limit and --continue, or the name";
                Err(Failure::Usage(cause.to_owned()))
            }
            Some(name) => Ok(format!("{path}/{name}")),
            None => Ok(path),
        }
    }

    async fn send(&self, client: Client, request: Request, output: Output) -> Result<(), Failure> {
        if let Some(lists) = self.follow {
            if output == Output::Wide {
                let cause = "--follow reads whole objects, not the Table of -o wide: choose another form";
                return Err(Failure::Usage(cause.to_owned()));
            }
            return self.follow(client, &request, lists).await;
        }
        let (target, is_watch) = (request.target(), request.is_watch());
        let (_, query) = target.split_once('?').unwrap_or_default();
        let mut asked =
            url::form_urlencoded::parse(query.as_bytes()).filter(|(name, _)| name == "timeoutSeconds");
        let asked = asked.next().and_then(|(_, secs)| secs.parse().ok().map(Duration::from_secs));
        let begun = Instant::now();
        let (_, mut body) = client.stream(request).await.map_err(granted)?;
        let mut is_empty = true;
        while let Some(chunk) = body.chunk().await? {
            is_empty &= chunk.is_empty();
        }
        if is_watch && is_empty && begun.elapsed() < asked.unwrap_or(WATCH_MIN).min(WATCH_MIN) {
            let cause = "the server soon ended the watch, without an event: is there a proxy before it?";
            return Err(Failure::Runtime(format!("get {target}: {cause}")));
        }
        Ok(())
    }

    /// Does what the operator does.
    async fn follow(&self, client: Client, request: &Request, lists: Lists) -> Result<(), Failure> {
        let path = &*request.path;
        let scope = Scope {
            namespace: self.request.namespace.clone(),
            labels: self.request.selector.clone().unwrap_or_default(),
            fields: self.request.field_selector.clone().unwrap_or_default(),
        };
        let collection = Collection {
            path: path.to_owned(),
            resource: path.rsplit('/').next().unwrap_or_default().to_owned(),
            install: "",
            scope,
            accept: if self.request.metadata { Accept::MetadataOnly } else { Accept::Whole },
        };
        let (store, health) = (Store::<Object>::default(), Health::new(collection.resource.clone()));
        let machine = match &self.request.resource_version {
            None => Machine::new(lists),
            // A watch from 0 begins with all objects, in no order, so it could not be resumed.
            Some(version) if version.trim_start_matches('0').is_empty() => {
                let cause =
                    "--follow watches from the version of a list: give one, or leave --resource-version out";
                return Err(Failure::Usage(cause.to_owned()));
            }
            Some(version) => {
                store.bookmark(&version.into());
                Machine::resumed(lists)
            }
        };
        watch::watch_collection(client, collection, machine, &store, &health).await;
        Ok(())
    }
}
