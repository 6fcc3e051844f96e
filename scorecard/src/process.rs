//! The operator as a process, in a process group of its own: it and its children end together, also if this process panics.

use std::{
    env,
    fs::{self, File},
    io,
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use tokio::process::{Child, Command};

use super::{
    lab::webhooks::{PLACEHOLDERS, Webhooks},
    settings::{CannotJudge, Scorecard},
};

/// What the names of the operators' users begin with, one for each process.
pub(super) const USER: &str = "operator-";

/// What a log has after a panic: in Rust, Go, client-go, and of a thread in Python and Java. A traceback alone is not a panic: kopf logs one
/// for each request that is refused, and tries again.
const PANICS: [&str; 4] = ["panicked at", "panic: ", "Observed a panic", "Exception in thread"];

/// Where the time in user mode is among the fields from a thread's state on; the time in the kernel follows. See `proc_pid_stat(5)`.
const USER_TIME: usize = 11;

/// Linux counts these times in hundredths of a second for all programs.
const MILLIS_PER_TICK: u64 = 10;

/// An error if an argument has something like `{kubeconfig}` that is not it. `${KUBECONFIG}` is for a shell.
pub(super) fn validate_placeholders(command: &[String], scorecard: &Scorecard) -> Result<(), CannotJudge> {
    for word in command {
        for (at, _) in word.match_indices('{') {
            let (before, inside) = (&word[..at], word[at + 1..].split('}').next().unwrap_or_default());
            let letters: String = inside.to_lowercase().chars().filter(|char| char.is_alphabetic()).collect();
            let (known, what): (&[&str], &str) = if letters.starts_with("kubeconfig") {
                (&["kubeconfig"], "{kubeconfig} becomes the path")
            } else if letters.starts_with("webhook") {
                let known: &[&str] = if scorecard.webhooks.is_empty() { &[] } else { &PLACEHOLDERS };
                (known, "with --webhooks, {webhook-port} and {webhook-cert-dir} are")
            } else {
                continue;
            };
            if !known.contains(&inside) && !before.ends_with('$') {
                return Err(CannotJudge(format!("COMMAND {word}: {{{inside}}} is not replaced; {what}")));
            }
        }
    }
    Ok(())
}

/// Which operator a process is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Program {
    /// The operator that is judged.
    Judged,
    /// The program of [`Scorecard::previous`].
    Previous,
    /// The program of [`Scorecard::and`].
    Other,
}

impl Program {
    pub(super) const ALL: [Program; 3] = [Program::Judged, Program::Previous, Program::Other];

    /// The name of the user as which the process of a start asks: `operator-1`, `operator-2-previous`.
    pub(super) fn user(self, start: usize) -> String {
        format!("{USER}{start}{}", self.suffix())
    }

    /// The program that has a user. `None`: it is not an operator.
    pub(super) fn of_user(user: &str) -> Option<Program> {
        let suffix = user.strip_prefix(USER)?.trim_start_matches(|c: char| c.is_ascii_digit());
        Program::ALL.into_iter().find(|program| program.suffix() == suffix)
    }

    fn suffix(self) -> &'static str {
        match self {
            Program::Judged => "",
            Program::Previous => "-previous",
            Program::Other => "-and",
        }
    }

    /// What a report calls it.
    pub(super) fn name(self) -> &'static str {
        match self {
            Program::Judged | Program::Previous => "COMMAND",
            Program::Other => "the operator of --and",
        }
    }

    pub(super) fn command(self, scorecard: &Scorecard) -> &[String] {
        match self {
            Program::Judged => &scorecard.command,
            Program::Previous => &scorecard.previous,
            Program::Other => &scorecard.and,
        }
    }
}

/// A started operator. Dropping it kills it.
pub(super) struct Process {
    pub(super) program: Program,
    /// The name of the user as which it asks.
    pub(super) user: String,
    child: Child,
    /// Standard output and error.
    log: PathBuf,
    /// So many bytes of the log no longer count.
    forgotten: usize,
}

impl Process {
    /// The start of a program with a number, and with the kubeconfig of [`Program::user`].
    pub(super) fn start(
        program: Program,
        start: usize,
        scorecard: &Scorecard,
        webhooks: Option<&Webhooks>,
        kubeconfig: &Path,
        log: PathBuf,
    ) -> Result<Process, CannotJudge> {
        let cannot = |what: &str, error: io::Error| CannotJudge(format!("{what}: {error}"));
        let path = kubeconfig.to_string_lossy();
        let command = program.command(scorecard);
        let mut words: Vec<String> = command.iter().map(|word| word.replace("{kubeconfig}", &path)).collect();
        for (placeholder, value) in webhooks.into_iter().flat_map(|webhooks| webhooks.values(program)) {
            words.iter_mut().for_each(|word| *word = word.replace(&format!("{{{placeholder}}}"), &value));
        }
        let Some((name, arguments)) = words.split_first() else {
            return Err(CannotJudge("no COMMAND is given after --".to_owned()));
        };
        let output = File::create(&log).map_err(|error| cannot("log", error))?;
        let errors = output.try_clone().map_err(|error| cannot("log", error))?;
        let mut started = Command::new(name);
        started.args(arguments).env("KUBECONFIG", kubeconfig);
        // Our operators then name the causes of their writes, for the lens. It is the default of OpenTelemetry.
        if env::var_os("OTEL_PROPAGATORS").is_none() {
            started.env("OTEL_PROPAGATORS", "tracecontext,baggage");
        }
        if webhooks.is_none() {
            started.env("ENABLE_WEBHOOKS", "false");
        }
        started.stdin(Stdio::null()).stdout(output).stderr(errors).kill_on_drop(true);
        // Ctrl-C is for us, not for the operator.
        #[cfg(unix)]
        started.process_group(0);
        let child = started.spawn().map_err(|error| cannot(&format!("COMMAND {name}"), error))?;
        Ok(Process { program, user: program.user(start), child, log, forgotten: 0 })
    }

    /// Kills it as a crash does, and waits until it is gone.
    pub(super) async fn kill(mut self) {
        kill_group(self.child.id());
        // It may have ended by itself.
        let _ = self.child.kill().await;
    }

    /// Whether no thread of it, or of the processes that it has started, runs or waits for a CPU or a disk. `false` if unknown.
    pub(super) fn sleeps(&self) -> bool {
        let threads = self.threads();
        threads.is_some_and(|threads| threads.iter().all(|thread| !thread.starts_with(['R', 'D'])))
    }

    /// The CPU time of all its threads, and of all threads of the processes that it has started. Zero if unknown.
    pub(super) fn cpu_time(&self) -> Duration {
        let mut ticks = 0;
        for thread in self.threads().unwrap_or_default() {
            let times = thread.split(' ').skip(USER_TIME).take(2);
            ticks += times.filter_map(|time| time.parse::<u64>().ok()).sum::<u64>();
        }
        Duration::from_millis(ticks * MILLIS_PER_TICK)
    }

    /// What `/proc` says of each thread, from its state on: `S 1 7 7 0 -1 4194304 90 0 0 0 3 1 …`.
    fn threads(&self) -> Option<Vec<String>> {
        let (mut all, mut processes) = (Vec::new(), vec![self.child.id()?]);
        while let Some(id) = processes.pop() {
            for thread in fs::read_dir(format!("/proc/{id}/task")).ok()?.flatten() {
                let read = |name: &str| fs::read_to_string(thread.path().join(name)).ok();
                let (stat, children) = (read("stat")?, read("children")?);
                // The state is behind the name, which may have spaces: `7 (my operator) S`.
                all.push(stat.rsplit(") ").next()?.to_owned());
                processes.extend(children.split_whitespace().filter_map(|id| id.parse::<u32>().ok()));
            }
        }
        Some(all)
    }

    /// `exit status: 1: the last line of the log`, if it has ended.
    pub(super) fn ended(&mut self) -> Option<String> {
        let id = self.child.id();
        let status = self.child.try_wait().ok()??;
        // What it has started may still run.
        kill_group(id);
        Some(format!("{status}: {}", self.last_line()))
    }

    /// The line of the log with a panic.
    pub(super) fn panic(&self) -> Option<String> {
        let log = self.log();
        let log = log.get(self.forgotten..).unwrap_or_default();
        log.lines().find(|line| PANICS.iter().any(|panic| line.contains(panic))).map(str::to_owned)
    }

    pub(super) fn forget_log(&mut self) {
        self.forgotten = self.log().len();
    }

    fn last_line(&self) -> String {
        let log = self.log();
        log.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or("it wrote no log").to_owned()
    }

    fn log(&self) -> String {
        fs::read(&self.log).map(|log| String::from_utf8_lossy(&log).into_owned()).unwrap_or_default()
    }
}

/// Kills a process and all that it has started, if it still runs.
#[cfg_attr(not(unix), expect(unused_variables, reason = "only Unix has process groups"))]
fn kill_group(id: Option<u32>) {
    #[cfg(unix)]
    if let Some(id) = id.and_then(|id| rustix::process::Pid::from_raw(i32::try_from(id).ok()?)) {
        let _ = rustix::process::kill_process_group(id, rustix::process::Signal::KILL);
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        kill_group(self.child.id());
    }
}
