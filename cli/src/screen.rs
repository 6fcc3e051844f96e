//! The output of `get` and `watch`: bodies on standard output; the curl command, the status, the headers and the explanation
//! on standard error; and all of them in a recording.

use std::{
    borrow::Cow,
    io::{self, IsTerminal, Write},
    mem,
    sync::{Arc, Mutex, OnceLock},
    time::Instant,
};

use http::{HeaderMap, header::CONTENT_TYPE};
use listwatch::{
    advanced::{Step, Tap},
    client::{Client, CurlFrom, Request},
    locked,
};
use listwatch_operators as operators;
use listwatch_study::{
    discovery,
    explain::{Explainer, Sentence},
    record::{Entry, Recorder, Recorders, What},
};
use tokio::sync::Notify;

use super::{
    failure::Failure,
    format::{LineFormatter, Output, rest_of},
    output_file::Recording,
    terminal::{note, write_error},
};

/// The settings of a screen.
#[derive(Clone, Copy, Debug)]
pub(super) struct Show {
    pub(super) output: Output,
    pub(super) explain: bool,
    /// Whether several answers follow each other. Then a line or a list that is cut is not written.
    pub(super) follow: bool,
    /// Whether the rows of a Table begin with the namespaces of their objects.
    pub(super) namespaces: bool,
    /// Ends after so many events.
    pub(super) events_max: Option<u64>,
}

/// A tap that shows exchanges.
pub(super) struct Screen {
    show: Show,
    state: Mutex<ScreenState>,
    client: OnceLock<Client>,
    /// Why the screen is full: an error of an output, or none after the last event.
    ended: Mutex<Option<Result<(), Failure>>>,
    full: Notify,
}

struct ScreenState {
    began: Instant,
    recorders: Recorders,
    explainer: Explainer,
    recording: Option<Recording>,
    lines: LineFormatter,
    events: u64,
    /// The comment of the first curl command.
    needs: Option<&'static str>,
    /// A request for the resources of the server. It is shown only if it is refused or fails.
    discovery: Option<Request>,
    /// The path of such a request that was shown. The client may send it several times.
    shown_discovery: String,
    /// Whether raw bytes were written after the last end of a line.
    is_mid_line: bool,
}

impl Screen {
    pub(super) fn new(show: Show) -> Arc<Screen> {
        let mut lines = LineFormatter::new(show.output);
        lines.namespaces = show.namespaces;
        let state = ScreenState {
            began: Instant::now(),
            recorders: Recorders::default(),
            explainer: explainer(show.output),
            recording: None,
            lines,
            events: 0,
            needs: None,
            discovery: None,
            shown_discovery: String::new(),
            is_mid_line: false,
        };
        Arc::new(Screen {
            show,
            state: Mutex::new(state),
            client: OnceLock::new(),
            ended: Mutex::default(),
            full: Notify::new(),
        })
    }

    /// Shows and records the exchanges of this client from now on.
    pub(super) fn begin(&self, client: &Client, recording: Option<Recording>) {
        let mut state = locked(&self.state);
        state.began = Instant::now();
        state.recording = recording;
        state.explainer.request_timeout = client.request_timeout();
        state.needs = client.curl_needs();
        // Begun once.
        let _ = self.client.set(client.clone());
    }

    /// Removes a recording without an exchange: the corrected command writes the same file.
    pub(super) fn remove_empty_recording(&self) {
        if let Some(recording) = locked(&self.state).recording.take() {
            recording.remove_if_empty();
        }
    }

    /// Waits until nothing more is to be shown.
    pub(super) async fn full(&self) -> Result<(), Failure> {
        self.full.notified().await;
        self.failure()
    }

    /// The error of an output, if there was one.
    pub(super) fn failure(&self) -> Result<(), Failure> {
        locked(&self.ended).take().unwrap_or(Ok(()))
    }

    fn end(&self, result: Result<(), Failure>) {
        locked(&self.ended).get_or_insert(result);
        self.full.notify_one();
    }

    fn show(&self, state: &mut ScreenState, exchange: u64, step: Step<'_>) -> Result<(), Failure> {
        let Some(client) = self.client.get() else { return Ok(()) };
        let time = state.began.elapsed().as_secs_f64();
        if step.is_last() && mem::take(&mut state.is_mid_line) && io::stdout().is_terminal() {
            writeln!(io::stdout())?;
        }
        let ScreenState { recorders, explainer, recording, lines, events, is_mid_line, .. } = state;
        let is_copied = self.show.output == Output::Raw && !self.show.follow;
        recorders.step(exchange, step, |recorder, entries| {
            let is_watch = recorder.is_watch();
            let mut left = self.show.events_max.map_or(u64::MAX, |most| most.saturating_sub(*events));
            if let (Step::Chunk(chunk), true) = (step, is_copied) {
                self.write_raw(events, chunk, is_watch)?;
                *is_mid_line = !chunk.ends_with(b"\n");
            }
            for what in entries {
                let is_event = is_watch && matches!(what, What::Line(_));
                if is_event && left == 0 {
                    break;
                }
                left -= u64::from(is_event);
                if let What::Head(head) = &what {
                    note(&format!("< {} {}", head.version, head.status));
                    head.headers.iter().for_each(|(name, value)| note(&format!("< {name}: {value}")));
                }
                // Of a watch, the rest is half a line. Half a list would join the answer that follows.
                let is_cut = is_watch || self.show.follow && !matches!(step, Step::End);
                let is_half = is_cut && matches!(what, What::Rest(_));
                // The client also asks for the version of the server.
                let is_other = self.show.follow && !is_watch && !recorder.is_list();
                let is_written = !is_copied && !is_half && !is_other;
                if let (What::Line(line) | What::Rest(line), true) = (&what, is_written) {
                    self.show.write(lines, time, recorder, &line.text())?;
                    self.count(events, is_event);
                }
                let entry = Entry { time, exchange, what: recorder.redacted(what) };
                if self.show.explain {
                    explainer.explain(&entry).iter().for_each(|sentence| explain(time, sentence));
                }
                if let Some(recording) = recording {
                    recording.write(&entry)?;
                }
            }
            Ok::<_, Failure>(())
        })?;
        // After the sentences about the request before it.
        if let Step::Request(request) = step {
            state.note_command(client, request);
        }
        Ok(())
    }

    /// Writes the bytes as they came, up to the last event.
    fn write_raw(&self, events: &mut u64, chunk: &[u8], is_watch: bool) -> Result<(), Failure> {
        let mut stdout = io::stdout().lock();
        for piece in chunk.split_inclusive(|byte| *byte == b'\n') {
            if self.show.events_max.is_some_and(|most| is_watch && *events >= most) {
                break;
            }
            stdout.write_all(piece)?;
            self.count(events, is_watch && piece.ends_with(b"\n"));
        }
        Ok(stdout.flush()?)
    }

    fn count(&self, events: &mut u64, is_event: bool) {
        *events += u64::from(is_event);
        if is_event && self.show.events_max.is_some_and(|most| *events >= most) {
            self.end(Ok(()));
        }
    }
}

impl Show {
    /// Writes a line of a body, or a whole one.
    fn write(
        self,
        lines: &mut LineFormatter,
        time: f64,
        recorder: &Recorder,
        line: &str,
    ) -> Result<(), Failure> {
        let is_shortened = matches!(self.output, Output::Short | Output::Name | Output::Wide);
        // The cells of Secrets have no values. Within a text, the quotes would be escaped.
        let is_table = line.contains(r#""kind":"Table""#);
        let text = if is_shortened && !is_table { recorder.redacted_text(line) } else { Cow::Borrowed(line) };
        let is_alone = is_shortened && !self.follow;
        if recorder.is_refused() {
            // The error of the command has the message of a Status.
            let is_repeated = is_alone && text.starts_with('{');
            return if is_repeated { Ok(()) } else { lines.write_refusal(time, &text) };
        }
        lines.write(time, text.trim_end(), recorder.is_watch())?;
        if is_alone && !recorder.is_watch() {
            rest_of(&text).iter().for_each(|rest| note(rest));
        }
        Ok(())
    }
}

impl ScreenState {
    /// Shows the curl command of a request.
    fn note_command(&mut self, client: &Client, request: &Request) {
        if let Some(needs) = self.needs.take() {
            note(&format!("# {needs}"));
        }
        if request.accept == discovery::ACCEPT {
            if self.shown_discovery == request.path {
                return note("# the same request again");
            }
            self.shown_discovery.clone_from(&request.path);
        }
        note(&format!("$ {}", client.curl(request, CurlFrom::Here)));
    }
}

impl Tap for Screen {
    fn step(&self, exchange: u64, step: Step<'_>) {
        let mut state = locked(&self.state);
        let is_full = locked(&self.ended).is_some();
        if is_full {
            return;
        }
        if let Step::Request(request) = step
            && request.accept == discovery::ACCEPT
        {
            state.discovery = Some(request.clone());
            return;
        }
        let is_json = |headers: &HeaderMap| {
            headers.get(CONTENT_TYPE).is_some_and(|kind| kind.as_bytes().starts_with(b"application/json"))
        };
        let is_answered = matches!(step, Step::Head { status: 200, headers, .. } if is_json(headers));
        let asked = state.discovery.take().filter(|_| !is_answered);
        // The error quotes the page of a proxy.
        let is_page = asked.is_some() && matches!(step, Step::Head { status: 200, .. });
        let end = is_page.then_some(Step::Dropped);
        for step in asked.iter().map(Step::Request).chain([step]).chain(end) {
            if let Err(failure) = self.show(&mut state, exchange, step) {
                self.end(Err(failure));
            }
        }
    }
}

/// An explainer that does not repeat what the output shows.
pub(super) fn explainer(output: Output) -> Explainer {
    let mut explainer = if output == Output::Short { Explainer::brief() } else { Explainer::default() };
    explainer.marked_owner = operators::marked_owner;
    explainer
}

/// Writes a sentence to standard error.
pub(super) fn explain(time: f64, sentence: &Sentence) {
    write_error(&format!("{time:+9.3}s # {sentence}"), 13);
    if let Some(mistake) = sentence.mistake {
        write_error(&format!("{:11}# {mistake}", ""), 13);
    }
}
