//! Checks the pages in `docs/` against the code: reasons, limits, the functions that the pages name, and exchanges on the wire.

mod pictures;

use std::{collections::BTreeSet, fs, path::Path};

use regex::Regex;

use crate::manifests;

fn read(file: &str) -> String {
    fs::read_to_string(Path::new(crate::ROOT).join(file)).unwrap()
}

#[test]
fn your_operator_md_shows_exactly_the_code_of_the_example() {
    let page = read("docs/your-operator.md");
    let shown = |language: &str| {
        let blocks = page.split("```").skip(1).step_by(2);
        let blocks = blocks.filter_map(|block| block.strip_prefix(language));
        let blocks: Vec<&str> = blocks.filter(|block| !block.starts_with("// ")).collect();
        blocks.concat().lines().filter(|line| !line.is_empty()).map(str::to_owned).collect::<Vec<_>>()
    };
    let lines = |files: &[&str]| {
        let text: String = files.iter().map(|file| read(&format!("examples/your-operator/{file}"))).collect();
        text.lines().filter(|line| !line.is_empty()).map(str::to_owned).collect::<Vec<_>>()
    };
    let program = lines(&["src/main.rs"]);
    assert!(program.len() < 80, "{} lines", program.len());
    assert_eq!(shown("rust\n"), lines(&["src/main.rs", "src/tests.rs"]));
    assert_eq!(shown("yaml\n"), lines(&["page.yaml", "crd.yaml"]));
}

/// A block of Rust begins with the name of its file.
#[test]
fn pages_show_lines_of_the_source() {
    let pages = read("docs/operator-sdk.md") + &read("docs/your-operator.md");
    let blocks: Vec<&str> = pages.split("```rust\n// ").skip(1).collect();
    assert!(blocks.len() > 5);
    for block in blocks {
        let (file, block) = block.split_once('\n').unwrap();
        let source = read(file);
        // Also the lines of an example in a comment.
        let code = source.lines().map(|line| line.trim().trim_start_matches(['/', '!']).trim());
        let source: BTreeSet<&str> = source.lines().map(str::trim).chain(code).collect();
        for line in block.split("```").next().unwrap().lines() {
            assert!(source.contains(line.trim()), "{file} does not have this line: {line}");
        }
    }
}

#[test]
fn your_operator_md_names_each_kind_that_has_a_type() {
    let page = read("docs/your-operator.md");
    let list = page.split("`resource::kinds` has the types of").nth(1).unwrap().split(". A").next().unwrap();
    let dir = Path::new(crate::ROOT).join("src/resource/kinds");
    let files = fs::read_dir(dir).unwrap().map(|file| fs::read_to_string(file.unwrap().path()).unwrap());
    let kind = Regex::new(r#"crate::kind!\((\w+), ""#).unwrap();
    let source = files.collect::<String>() + &read("src/resource/kinds.rs");
    let kinds: Vec<&str> = kind.captures_iter(&source).map(|found| found.get(1).unwrap().as_str()).collect();
    assert!(kinds.len() > 15, "{kinds:?}");
    for kind in kinds {
        assert!(list.split(|c: char| !c.is_alphanumeric()).any(|word| word == kind), "{kind}: {list}");
    }
}

/// The cells of each row of a page's tables, without backquotes.
fn rows(page: &str) -> Vec<Vec<String>> {
    let is_row = |line: &&str| line.starts_with("| ");
    let cells =
        |line: &str| line.trim_matches('|').split('|').map(|cell| cell.trim().replace('`', "")).collect();
    page.lines().filter(is_row).map(cells).collect()
}

/// Words of the source that are in CamelCase, but are not reasons of ours: types and values of conditions, kinds,
/// phases, and reasons of other components that we only compare with, or report as another reason.
const NO_REASONS: &[&str] = &[
    "BadRequest",
    "Available",
    "Ready",
    "Progressing",
    "Stalled",
    "Mutated",
    "PodScheduled",
    "ReplicaFailure",
    "True",
    "False",
    "Unknown",
    // Of metrics.
    "NotKept",
    // An Event of other operators.
    "Deleted",
    "Deployment",
    "Service",
    "MyWebserver",
    "Pod",
    "String",
    "ClusterIP",
    "RuntimeDefault",
    "TCP",
    "New",
    "Succeeded",
    "ReplicaSetCreateError",
    "ContainerCreating",
    "PodInitializing",
    "ErrImagePull",
    "RegistryUnavailable",
    "SignatureValidationFailed",
    "RunContainerError",
];

#[test]
fn conditions_md_has_exactly_the_reasons_of_the_source() {
    let mut used = BTreeSet::new();
    let children = ["events", "outcome", "pods", "refusal", "report", "rollout_conditions", "unreconciled"]
        .map(|file| format!("src/children/{file}.rs"));
    let own = ["operators/src/mywebserver.rs", "src/resource/conditions.rs"].map(str::to_owned);
    for file in children.into_iter().chain(own) {
        let source = read(&file);
        let source = source.split("\n#[cfg(test)]\nmod tests {").next().unwrap();
        let code = source.lines().map(str::trim).filter(|line| !line.starts_with("//"));
        for line in code {
            for word in line.split('"').skip(1).step_by(2) {
                let is_camel = word.starts_with(|c: char| c.is_ascii_uppercase()) && word.len() > 1;
                if is_camel && word.bytes().all(|byte| byte.is_ascii_alphabetic()) {
                    used.insert(word.to_owned());
                }
            }
        }
    }
    used.retain(|word| !NO_REASONS.contains(&word.as_str()));
    let page = read("docs/conditions.md");
    let (_, reasons) = page.split_once("## Reasons of the operator").unwrap();
    let documented: BTreeSet<String> =
        rows(reasons).into_iter().map(|row| row[0].clone()).filter(|cell| cell != "reason").collect();
    assert_eq!(documented, used);
}

#[test]
fn the_permissions_in_mywebserver_md_equal_the_roles() {
    let mut allowed = Vec::new();
    let roles = [manifests::cluster_role(), manifests::lease_role()];
    for rule in roles.iter().flat_map(|role| role["rules"].as_array().unwrap()) {
        let texts = |field: &str| {
            let texts = rule[field].as_array().unwrap().iter().map(|text| text.as_str().unwrap());
            texts.collect::<Vec<_>>().join(", ")
        };
        let group = Some(texts("apiGroups")).filter(|group| !group.is_empty()).unwrap_or("core".to_owned());
        allowed.push(vec![group, texts("resources"), texts("verbs")]);
    }
    let page = read("docs/mywebserver.md");
    let (_, table) = page.split_once("| API group | resources | verbs | why |").unwrap();
    let table = rows(table.split("\n\n").next().unwrap());
    let has_reason = |row: &Vec<String>| row[3].len() > 10;
    assert!(table.iter().all(has_reason), "{table:?}");
    let documented: Vec<_> = table.into_iter().map(|row| row[..3].to_vec()).collect();
    assert_eq!(documented, allowed);
}

/// If a list may take more memory than the process may have, the operator is killed before it can ask for smaller
/// pages.
#[test]
fn the_limit_of_lists_leaves_room_below_the_memory_limit() {
    let limit =
        &manifests::read("base/deployment.yaml")[0]["spec"]["template"]["spec"]["containers"][0]["resources"];
    let mib: u64 = limit["limits"]["memory"].as_str().unwrap().strip_suffix("Mi").unwrap().parse().unwrap();
    let source = read("src/client/list.rs");
    let (_, lists) = source.split_once("const LISTS_BYTES_MAX: usize = ").unwrap();
    let lists: u64 = lists.split_once(" * 1024 * 1024;").unwrap().0.parse().unwrap();
    // As in docs/performance.md: the process without objects, the lines and answers under way, and the Events.
    assert!(lists + 9 + 6 + 2 < mib, "{lists} MiB of lists, of {mib}");
}

/// `[`name`](path)` on a page names a test or another function in that file.
#[test]
fn every_function_that_a_page_names_exists() {
    let root = Path::new(crate::ROOT);
    let mut found = 0;
    for page in [
        "docs/mywebserver.md",
        "docs/reliability.md",
        "apiserver/README.md",
        "docs/performance.md",
        "docs/conditions.md",
        "docs/troubleshooting.md",
        "docs/watch.md",
    ] {
        let page = root.join(page);
        let text = fs::read_to_string(&page).unwrap();
        for link in text.split("[`").skip(1) {
            let Some((name, rest)) = link.split_once("`](") else { continue };
            let path = rest.split_once(')').unwrap().0;
            let file = page.parent().unwrap().join(path);
            let source =
                fs::read_to_string(&file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
            if path.ends_with(".rs") {
                assert!(
                    ["(", "<"].iter().any(|next| source.contains(&format!("fn {name}{next}"))),
                    "no {name} in {path}, which {} names",
                    page.display()
                );
                found += 1;
            }
        }
    }
    assert!(found > 50, "{found}");
}

/// An interactive zsh, the shell of macOS, takes a comment behind a command for arguments.
#[test]
fn no_command_that_a_page_shows_has_a_comment_behind_it() {
    let root = Path::new(crate::ROOT);
    let pages = fs::read_dir(root.join("docs")).unwrap().map(|entry| entry.unwrap().path());
    let others = ["README.md", "apiserver/README.md", "examples/README.md"].map(|page| root.join(page));
    let comment = Regex::new(r"(?m)^(\$ )?[a-z].* # .*$").unwrap();
    for page in pages.chain(others).filter(|page| page.extension().is_some_and(|end| end == "md")) {
        let text = fs::read_to_string(&page).unwrap();
        let blocks = text.split("\n```").skip(1).step_by(2);
        for block in blocks.filter(|block| block.starts_with('\n') || block.starts_with("sh\n")) {
            assert_eq!(comment.find(block).map(|found| found.as_str()), None, "{}", page.display());
        }
    }
}

/// A block ```` ```json FILE ```` has successive lines of that file. `…` stands for any text within a line.
#[test]
fn the_recordings_in_watch_md_have_the_lines_of_their_files() {
    let page = read("docs/watch.md");
    let blocks: Vec<&str> = page.split("\n```json ").skip(1).collect();
    assert_eq!(blocks.len(), 2);
    for block in blocks {
        let (file, block) = block.split_once('\n').unwrap();
        let block = block.split_once("```").unwrap().0;
        let pattern = format!("(?m)^{}", regex::escape(block).replace('…', ".*"));
        assert!(Regex::new(&pattern).unwrap().is_match(&read(file)), "{file} does not have\n{block}");
    }
}

/// The lines of an exchange without white space. A line that is indented, or that ends an object, belongs to the line before.
fn folded(exchange: &str) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for line in exchange.lines().filter(|line| !line.is_empty() && !line.starts_with("# ")) {
        let text: String = line.split_whitespace().collect();
        match lines.last_mut() {
            Some(last) if line.starts_with([' ', '}', ']']) => last.push_str(&text),
            _ => lines.push(text),
        }
    }
    lines
}

/// A block ```` ```http FILE ```` is an excerpt of an exchange in that transcript; its first line is the title there. `…` stands
/// for any text within a line, or on a line of its own for any lines.
#[test]
fn every_exchange_in_watch_md_is_in_a_transcript() {
    let page = read("docs/watch.md");
    let blocks: Vec<&str> = page.split("\n```http ").skip(1).collect();
    assert!(blocks.len() > 15, "{}", blocks.len());
    for block in blocks {
        let (file, block) = block.split_once('\n').unwrap();
        let (title, block) = block.split_once("\n```").unwrap().0.split_once('\n').unwrap();
        let transcript = read(&format!("apiserver/contract/{file}"));
        let (_, exchange) = transcript
            .split_once(&format!("\n{title}\n"))
            .unwrap_or_else(|| panic!("{file} has no exchange {title:?}"));
        let exchange = folded(exchange.split("\n### ").next().unwrap());
        let pattern = |line: &String| match line.as_str() {
            "…" => "(.*\n)*".to_owned(),
            line => regex::escape(line).replace('…', ".*") + "\n",
        };
        let pattern: String = folded(block).iter().map(pattern).collect();
        let lines: String = exchange.iter().map(|line| format!("{line}\n")).collect();
        let is_excerpt = Regex::new(&format!("^{pattern}$")).unwrap().is_match(&lines);
        assert!(is_excerpt, "{file}, {title}: the transcript has\n{lines}\nand docs/watch.md has\n{block}");
    }
}
