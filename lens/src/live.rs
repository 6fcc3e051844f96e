//! The page while an operator runs: a server on loopback, which shows what happens at an embedded API server, and lets the user stop it and step;
//! or what passes through the proxy before a cluster.
//!
//! ```text
//! GET  /?token=…         gives the browser a cookie; everything else needs it
//! GET  / /page.js …      the files of the page
//! GET  /events           server-sent events: all so far, and then what is new
//! GET  /lens.html        all so far, as one HTML file
//! POST /control/release  and others: live/controls.rs
//! ```

mod access;
mod answer;
mod controls;
mod news;

use std::{
    convert::Infallible,
    future::pending,
    io,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use bytes::Bytes;
use futures_util::stream;
use http_body_util::{BodyExt, Limited, StreamBody};
use hyper::{
    Method, Request, StatusCode,
    body::{Frame, Incoming},
    header::{CONTENT_DISPOSITION, HeaderValue},
    server::conn::http1,
    service::service_fn,
};
use hyper_util::rt::{TokioIo, TokioTimer};
use listwatch_apiserver::ApiServer;
use serde_json::{Value, json};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::{mpsc, watch},
    task::{JoinSet, spawn_blocking},
    time::{sleep, timeout},
};

pub use self::controls::{Operator, Restart};
use self::{
    access::Access,
    answer::{Answer, text, whole},
    controls::{Controls, Refused},
    news::{News, PAUSES, Reader, Seen, Source},
};
use crate::{Proxy, Report, connections, page};

/// How often the record is read, if it is quickly read.
const TICK: Duration = Duration::from_millis(100);

/// The same for a report.
const REPORT_PAUSE: Duration = Duration::from_secs(1);

/// Connections at a time. A page has two or three.
const CONNECTIONS_MAX: usize = 64;

/// How long a client may take over the head of its request.
const HEAD_MAX: Duration = Duration::from_secs(5);

/// How long the pages may take to read the end.
const END_MAX: Duration = Duration::from_secs(1);

/// Largest body of a request: that of the API server.
const BODY_BYTES_MAX: usize = 3 * 1024 * 1024;

/// The files of the page.
const FILES: [(&str, &str, &str); 4] = [
    ("/", "text/html; charset=utf-8", page::INDEX),
    ("/page.css", "text/css; charset=utf-8", page::STYLE),
    ("/page.js", "text/javascript; charset=utf-8", page::SCRIPT),
    ("/controls.js", "text/javascript; charset=utf-8", include_str!("../page/controls.js")),
];

/// The address of a page that nobody serves yet.
pub struct Live {
    listener: TcpListener,
    access: Access,
}

/// What a page is served from.
struct Page {
    access: Access,
    source: Source,
    /// A cluster has none.
    controls: Option<Controls>,
    reader: Mutex<Reader>,
    /// Held while a report is made: the next caller waits, and then has this report.
    judging: Mutex<()>,
    news: watch::Sender<News>,
}

impl Live {
    /// Listens on a free port of 127.0.0.1.
    ///
    /// # Errors
    ///
    /// If that is not possible.
    pub async fn bind() -> io::Result<Live> {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
        let access = Access::new(listener.local_addr()?.port());
        Ok(Live { listener, access })
    }

    /// `http://127.0.0.1:40003/?token=…`: who has it sees the page.
    #[must_use]
    pub fn url(&self) -> String {
        self.access.url()
    }

    /// Shows what happens at a server, until `end` says why there is no more. Returns when the pages know it.
    pub async fn run(self, server: Arc<ApiServer>, operator: Operator, end: impl Future<Output = String>) {
        let source = Source::Server(Arc::clone(&server));
        // One waits while another one runs.
        let (checks, asked) = mpsc::channel(1);
        let run_checks = controls::run_checks(operator.scorecard.clone(), asked);
        self.show(source, Some(Controls { server, operator, checks }), run_checks, end).await;
    }

    /// The same for what passes through a proxy. The page changes nothing in its cluster.
    pub async fn run_proxy(self, proxy: &Proxy, end: impl Future<Output = String>) {
        self.show(Source::Proxy(proxy.recorder()), None, pending(), end).await;
    }

    async fn show(
        self,
        source: Source,
        controls: Option<Controls>,
        run_checks: impl Future<Output = Infallible>,
        end: impl Future<Output = String>,
    ) {
        let Live { listener, access } = self;
        let mut reader = Reader::default();
        let entries = reader.entries(&source);
        let offer = controls.as_ref().map(Controls::offer).unwrap_or_default();
        let mut news = News::new(reader.start(source.now()), offer);
        news.add(entries, "");
        if let Some(recording) = reader.judged(source.now()) {
            news.judge(&Report::of(&recording));
        }
        let (reader, news) = (Mutex::new(reader), watch::Sender::new(news));
        let page = Arc::new(Page { access, source, controls, reader, judging: Mutex::default(), news });
        let (mut connections, each) = (JoinSet::new(), Arc::clone(&page));
        let serve = |stream| connection(stream, Arc::clone(&each));
        let why = tokio::select! {
            why = end => why,
            never = connections::accept(&listener, &mut connections, CONNECTIONS_MAX, serve) => match never {},
            never = run_checks => match never {},
            never = repeat(TICK, &page, read) => match never {},
            never = repeat(REPORT_PAUSE, &page, judge) => match never {},
        };
        read(&page).await;
        judge(&page).await;
        page.news.send_modify(|news| news.end = Some(why));
        // Each ends after the event that says so.
        let _ = timeout(END_MAX, async { while connections.join_next().await.is_some() {} }).await;
    }
}

/// Does something again and again. A pause is much longer than what it follows.
async fn repeat(pause: Duration, page: &Arc<Page>, act: impl AsyncFn(&Arc<Page>)) -> Infallible {
    loop {
        let began = Instant::now();
        act(page).await;
        sleep(pause.max(began.elapsed() * PAUSES)).await;
    }
}

/// Reads what is new, in a thread of its own, if a browser shows the page.
async fn read(page: &Arc<Page>) {
    if page.news.receiver_count() == 0 {
        return;
    }
    let page = Arc::clone(page);
    let read = spawn_blocking(move || {
        let mut reader = page.reader();
        let entries = reader.entries(&page.source);
        let controls =
            page.controls.as_ref().map(|controls| controls.state().to_string()).unwrap_or_default();
        page.news.send_if_modified(|news| news.add(entries, &controls));
    });
    let _ = read.await;
}

/// Makes a report, in a thread of its own, if a browser shows the page.
async fn judge(page: &Arc<Page>) {
    if page.news.receiver_count() == 0 {
        return;
    }
    let page = Arc::clone(page);
    let judge = spawn_blocking(move || {
        let _turn = page.judging.lock().unwrap_or_else(PoisonError::into_inner);
        let recording = page.reader().judged(page.source.now());
        if let Some(report) = recording.map(|recording| Report::of(&recording)) {
            page.news.send_if_modified(|news| news.judge(&report));
        }
    });
    let _ = judge.await;
}

impl Page {
    fn reader(&self) -> MutexGuard<'_, Reader> {
        self.reader.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Answers one request.
async fn connection(stream: TcpStream, page: Arc<Page>) {
    let service = service_fn(async |request| Ok::<_, Infallible>(answer(request, &page).await));
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(HEAD_MAX).keep_alive(false);
    // A client that goes away is no error.
    let _ = http.serve_connection(TokioIo::new(stream), service).await;
}

async fn answer(request: Request<Incoming>, page: &Arc<Page>) -> Answer {
    let mut answer = match page.access.refusal(&request) {
        Some(refusal) => refusal,
        None => served(request, page).await,
    };
    access::protect(answer.headers_mut());
    answer
}

async fn served(request: Request<Incoming>, page: &Arc<Page>) -> Answer {
    let path = request.uri().path().to_owned();
    if let (Some(what), Some(controls), &Method::POST) =
        (path.strip_prefix("/control/"), &page.controls, request.method())
    {
        return controlled(what, request, controls).await;
    }
    if request.method() != Method::GET {
        return text(StatusCode::METHOD_NOT_ALLOWED, "the page is read with GET");
    }
    if path == "/events" {
        return events(page).await;
    }
    if path == "/lens.html" {
        return file(page).await;
    }
    match FILES.iter().find(|(name, ..)| *name == path) {
        Some((_, kind, content)) => whole(StatusCode::OK, kind, *content),
        None => text(StatusCode::NOT_FOUND, "there is no such page"),
    }
}

async fn controlled(what: &str, request: Request<Incoming>, controls: &Controls) -> Answer {
    let body = match Limited::new(request.into_body(), BODY_BYTES_MAX).collect().await {
        Ok(body) => body.to_bytes(),
        Err(_) => return text(StatusCode::PAYLOAD_TOO_LARGE, "the body is too large, or was cut"),
    };
    let order: Value = serde_json::from_slice(&body).unwrap_or_default();
    let (status, answer) = match controls.act(what, &order).await {
        Ok(answer) => (StatusCode::OK, answer),
        Err(Refused(why)) => (StatusCode::BAD_REQUEST, json!({"error": why})),
    };
    whole(status, "application/json", answer.to_string())
}

/// The page as one file. Only a copy of it shows anything: the policy of this server forbids a script within a page.
async fn file(page: &Arc<Page>) -> Answer {
    let news = page.news.subscribe();
    read(page).await;
    judge(page).await;
    let document = news.borrow().document(&Value::Null);
    let mut answer = whole(StatusCode::OK, "text/html; charset=utf-8", page::html_of(&document));
    answer.headers_mut().insert(CONTENT_DISPOSITION, HeaderValue::from_static("attachment"));
    answer
}

/// What a page sees from now on. It is sent as fast as the page reads: what it misses meanwhile comes in one piece.
async fn events(page: &Arc<Page>) -> Answer {
    let begin = (page.news.subscribe(), Seen::default());
    // The last report may be of the time when a page was open before.
    read(page).await;
    judge(page).await;
    let body = stream::unfold(begin, async |(mut changes, mut seen)| {
        loop {
            let text = changes.borrow_and_update().since(&mut seen);
            if !text.is_empty() {
                return Some((Ok(Frame::data(Bytes::from(text))), (changes, seen)));
            }
            if seen.has_end {
                return None;
            }
            changes.changed().await.ok()?;
        }
    });
    answer::of(StatusCode::OK, "text/event-stream", StreamBody::new(body).boxed_unsync())
}
