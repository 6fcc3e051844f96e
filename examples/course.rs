//! The course: lessons about lists, watches, writes and webhooks, one file each. A new lesson goes into [`LESSONS`], and
//! into the table of examples/README.md.
//!
//! `cargo run --example course 4` runs lesson 4 against an API server in this process. With `-- 4 --context NAME`, it
//! runs against your own cluster, in a namespace that it creates and deletes.

use std::{
    io::{self, ErrorKind::BrokenPipe, Write},
    pin::Pin,
    process::ExitCode,
};

use clap::Parser;
use listwatch_study::wrap;
use stage::{Flags, Outcome, Stage, say, wait_for_enter};
use terminal_size::{Width, terminal_size_of};

mod naive;
mod recording;
mod reflector;
mod stage;
mod webhook;

#[path = "01_object.rs"]
mod object;
#[path = "02_list.rs"]
mod list;
#[path = "03_watch.rs"]
mod watch;
#[path = "04_list_then_watch.rs"]
mod list_then_watch;
#[path = "05_naive.rs"]
mod losses;
#[path = "06_clean_end.rs"]
mod clean_end;
#[path = "07_resume.rs"]
mod resume;
#[path = "08_bookmarks.rs"]
mod bookmarks;
#[path = "09_expired.rs"]
mod expired;
#[path = "10_silence.rs"]
mod silence;
#[path = "11_pages.rs"]
mod pages;
#[path = "12_streaming_list.rs"]
mod streaming_list;
#[path = "13_metadata_only.rs"]
mod metadata_only;
#[path = "14_selectors.rs"]
mod selectors;
#[path = "15_errors.rs"]
mod errors;
#[path = "16_store.rs"]
mod store;
#[path = "17_reconcile.rs"]
mod reconcile;
#[path = "18_reflector.rs"]
mod repaired;
#[path = "19_odd_answers.rs"]
mod odd_answers;
#[path = "20_list_versions.rs"]
mod list_versions;
#[path = "21_cost.rs"]
mod cost;
#[path = "22_apply.rs"]
mod apply;
#[path = "23_webhook.rs"]
mod webhooks;

/// The text of a lesson, its code, and where the fault of its "Break it" is repaired.
type Lesson =
    (&'static str, for<'a> fn(&'a Stage) -> Pin<Box<dyn Future<Output = Outcome> + 'a>>, &'static str);

macro_rules! lesson {
    ($file:literal, $module:ident, $repaired:literal) => {
        (include_str!($file), |stage| Box::pin($module::run(stage)), $repaired)
    };
}

const LESSONS: &[Lesson] = &[
    lesson!("01_object.rs", object, "lesson 19"),
    lesson!("02_list.rs", list, "lesson 15"),
    lesson!("03_watch.rs", watch, "lesson 6"),
    lesson!("04_list_then_watch.rs", list_then_watch, "lesson 9"),
    lesson!("05_naive.rs", losses, "lesson 6"),
    lesson!("06_clean_end.rs", clean_end, "lesson 7"),
    lesson!("07_resume.rs", resume, "lesson 9"),
    lesson!("08_bookmarks.rs", bookmarks, "lesson 9"),
    lesson!("09_expired.rs", expired, "lesson 6"),
    lesson!("10_silence.rs", silence, "lesson 9"),
    lesson!("11_pages.rs", pages, "lesson 15"),
    lesson!("12_streaming_list.rs", streaming_list, "lesson 11"),
    lesson!("13_metadata_only.rs", metadata_only, "lesson 19"),
    lesson!("14_selectors.rs", selectors, "lesson 6"),
    lesson!("15_errors.rs", errors, "docs/watch.md, section 14"),
    lesson!("16_store.rs", store, "lesson 6"),
    lesson!("17_reconcile.rs", reconcile, "lesson 15"),
    lesson!("18_reflector.rs", repaired, "src/watch.rs"),
    lesson!("19_odd_answers.rs", odd_answers, "lesson 15"),
    lesson!("20_list_versions.rs", list_versions, "lesson 9"),
    lesson!("21_cost.rs", cost, "lesson 15"),
    lesson!("22_apply.rs", apply, "lesson 15"),
    lesson!("23_webhook.rs", webhooks, "lesson 15"),
];

/// The parts of a lesson's head that are shown before and after it.
const LABELS: [&str; 6] = ["Predict: ", "Notice: ", "Why: ", "Break it: ", "Source: ", "Embedded server: "];

/// Runs a lesson about lists and watches. Without a lesson, lists the lessons
#[derive(Parser)]
struct Course {
    /// Number of the lesson
    #[arg(value_parser = clap::value_parser!(u8).range(1..=LESSONS.len() as i64))]
    lesson: Option<u8>,
    #[command(flatten)]
    flags: Flags,
}

fn main() -> ExitCode {
    match run(Course::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        // The reader has closed the output.
        Err(error) if error.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == BrokenPipe) => {
            ExitCode::SUCCESS
        }
        Err(error) => {
            let width = terminal_size_of(io::stderr()).map_or(usize::MAX, |(Width(width), _)| width.into());
            eprintln!("{}", wrap(&format!("error: {error}"), width, 4));
            ExitCode::FAILURE
        }
    }
}

fn run(Course { lesson, flags }: Course) -> Outcome {
    let Some(number) = lesson else {
        for (text, ..) in LESSONS {
            say!("{}", text.lines().next().unwrap_or_default().trim_start_matches("//! "));
        }
        say!("\nTo run the first one: cargo run --example course 1");
        return Ok(());
    };
    flags.check()?;
    let (text, lesson, repaired) = LESSONS[usize::from(number) - 1];
    let head = text.lines().map_while(|line| line.strip_prefix("//!"));
    let head = head.map(|line| line.strip_prefix(' ').unwrap_or(line)).collect::<Vec<_>>().join("\n");
    let (before, after) = head.split_once("\nRun: ").unwrap_or_default();
    let (title, commands) = before.split_once("\n\n```sh\n").unwrap_or_default();
    let (commands, question) = commands.split_once("\n```\n\n").unwrap_or_default();
    say!("{title}\n");
    // To be copied: not wrapped.
    writeln!(io::stdout(), "To copy, while kubectl proxy runs:\n\n{commands}\n")?;
    say!("{}\n", paragraphs(question));
    wait_for_enter("Press Enter. ")?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    // A fault other than the lesson's may be repaired elsewhere.
    let is_own = text.contains(&format!(" --fault {}\n", flags.fault.join(" --fault ")));
    let repaired = if is_own { format!("; repaired in {repaired}") } else { String::new() };
    let outcome = runtime.block_on(Stage::run(flags, &repaired, lesson));
    // A thread that waits for Enter would hold the runtime.
    runtime.shutdown_background();
    outcome?;
    say!("\n{}", paragraphs(after.split_once('\n').unwrap_or_default().1));
    Ok(())
}

/// One line for each part of a lesson's head, instead of the lines of the file.
fn paragraphs(parts: &str) -> String {
    let mut text = String::new();
    for line in parts.lines() {
        let is_new = LABELS.iter().any(|label| line.starts_with(label));
        text += if text.is_empty() {
            ""
        } else if is_new {
            "\n"
        } else {
            " "
        };
        text += line;
    }
    text
}
