//! Draws the exchanges in the first five sections of docs/watch.md, each section as one picture. `UPDATE_EXPECT=1` writes them.

use std::{env, fmt::Write, fs, path::Path};

use regex::Regex;

use super::{folded, read};

/// In pixels.
const WIDTH: u32 = 820;
const CLIENT: u32 = 60;
const SERVER: u32 = 760;
const ROW: u32 = 26;

/// What passes between client and server.
#[derive(Debug, PartialEq)]
enum Step {
    Sent(String),
    Received(String),
    /// Something that never ends, or ends too early.
    Lost(String),
}

/// The first text between two others.
fn between<'a>(text: &'a str, before: &str, after: &str) -> Option<&'a str> {
    text.split_once(before)?.1.split_once(after).map(|(found, _)| found)
}

/// `a at v1`
fn object(text: &str) -> Option<String> {
    let name = between(text, r#""name":""#, "\"").unwrap_or("…");
    let version = between(text, r#""resourceVersion":""#, "\"")?;
    Some(format!("{name} at {version}"))
}

/// The steps of an exchange, as a transcript has it.
fn exchange(block: &str) -> Vec<Step> {
    // The object `a` has this version there.
    let block = block.replace("{{a.metadata.resourceVersion}}", "v1");
    let mut lines = folded(&block).into_iter();
    let request = lines.next().unwrap();
    let is_watch = request.contains("watch=1");
    // A folded line has no white space.
    let mut steps = vec![Step::Sent(request.replacen("GET", "GET ", 1))];
    for line in lines {
        if let Some(status) = line.strip_prefix("HTTP/2") {
            steps.push(Step::Received(status.to_owned()));
        } else if let Some(kind) = between(&line, r#""type":""#, "\"") {
            let object = object(&line).unwrap_or_else(|| "…".to_owned());
            steps.push(Step::Received(format!("{kind}, {object}")));
        } else if let Some((_, items)) = line.split_once(r#""items":["#) {
            let (items, list) = items.split_once(r#""metadata":{"#).unwrap();
            steps.extend(items.split("},{").filter_map(object).map(Step::Received));
            let version = between(list, r#""resourceVersion":""#, "\"").unwrap();
            steps.push(Step::Received(format!("the list at {version}")));
        } else if line == "…" {
            steps.push(Step::Received(line));
        }
    }
    if is_watch {
        steps.push(Step::Received("the end".to_owned()));
    }
    steps
}

/// The steps of lines of a recording.
fn recording(block: &str) -> Vec<Step> {
    let step = |line: &str| {
        if let Some(half) = between(line, r#""rest":""#, "\"}") {
            return Step::Lost(format!("{}, without its end", half.replace('\\', "")));
        }
        match between(line, r#""type":""#, "\"") {
            Some(kind) => Step::Received(format!("{kind}, …")),
            None => Step::Lost("the connection breaks".to_owned()),
        }
    };
    block.lines().map(step).collect()
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;")
}

/// Its colours are those of a page that is light or dark.
fn svg(title: &str, steps: &[Step]) -> String {
    let height = ROW * (u32::try_from(steps.len()).unwrap() + 3);
    let title = escaped(title);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" width=\"{WIDTH}\" role=\"img\" aria-label=\"{title}\">\n\
         <style>svg {{ background: #fff; font: 13px monospace }} line {{ stroke: #555 }} .lost {{ stroke: #b00020; stroke-dasharray: 5 4 }} text {{ text-anchor: middle; fill: #111 }}</style>\n\
         <defs><marker id=\"head\" viewBox=\"0 0 8 8\" refX=\"8\" refY=\"4\" markerWidth=\"8\" markerHeight=\"8\" orient=\"auto\"><path d=\"M0 0l8 4-8 4z\" fill=\"#555\"/></marker></defs>\n"
    );
    for (x, who) in [(CLIENT, "client"), (SERVER, "API server")] {
        writeln!(svg, "<text x=\"{x}\" y=\"{ROW}\">{who}</text>").unwrap();
        writeln!(svg, "<line x1=\"{x}\" y1=\"{}\" x2=\"{x}\" y2=\"{}\"/>", ROW + 8, height - ROW / 2)
            .unwrap();
    }
    for (step, y) in steps.iter().zip((3..).map(|row| row * ROW)) {
        let (text, from, to, kind) = match step {
            Step::Sent(text) => (text, CLIENT, SERVER, "marker-end=\"url(#head)\""),
            Step::Received(text) => (text, SERVER, CLIENT, "marker-end=\"url(#head)\""),
            Step::Lost(text) => (text, SERVER, CLIENT + (SERVER - CLIENT) / 5, "class=\"lost\""),
        };
        writeln!(svg, "<line x1=\"{from}\" y1=\"{y}\" x2=\"{to}\" y2=\"{y}\" {kind}/>").unwrap();
        writeln!(svg, "<text x=\"{}\" y=\"{}\">{}</text>", WIDTH / 2, y - 6, escaped(text)).unwrap();
    }
    svg + "</svg>\n"
}

#[test]
fn each_of_the_first_sections_of_watch_md_has_a_picture_of_its_exchanges() {
    let page = read("docs/watch.md");
    let block = Regex::new(r"(?s)\n```(http|json) [^\n]*\n(.*?)\n```").unwrap();
    let sections: Vec<&str> = page.split("\n## ").skip(1).take(5).collect();
    for (number, section) in (1..).zip(sections) {
        let title = section.lines().next().unwrap();
        let blocks = block.captures_iter(section).map(|found| match &found[1] {
            "json" => recording(&found[2]),
            _ => exchange(found[2].split_once('\n').unwrap().1),
        });
        let steps: Vec<Step> = blocks.flatten().collect();
        assert!(steps.len() > 2, "{title}: {steps:?}");
        let (file, picture) = (format!("docs/watch-{number}.svg"), svg(title, &steps));
        if env::var_os("UPDATE_EXPECT").is_some() {
            fs::write(Path::new(crate::ROOT).join(&file), &picture).unwrap();
        }
        assert_eq!(read(&file), picture, "{file}: UPDATE_EXPECT=1 draws it anew");
        assert!(section.contains(&format!("](watch-{number}.svg)")), "{title} does not show {file}");
    }
}
