//! The files of each crate form layers: at every depth, no file or folder uses, directly or indirectly, one beside it that uses it. A
//! file counts to the folder of its name. Also through the file above them, files of different folders do not need each other. No crate
//! has two types of the same name.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
};

/// The files of a crate, by the path of their module (`watch/decode`), without comments and without tests. Without
/// `not_embedded.rs` and `not_traced.rs`: they have the names of `embedded.rs` and `traces.rs`, because a build compiles only one of the two.
fn files(src: &str) -> BTreeMap<String, String> {
    let mut files = BTreeMap::new();
    add(&Path::new(env!("CARGO_MANIFEST_DIR")).join(src), "", &mut files);
    files
}

fn add(dir: &Path, at: &str, files: &mut BTreeMap<String, String>) {
    for entry in fs::read_dir(dir).expect("a readable directory") {
        let path = entry.expect("a readable entry").path();
        let stem = path.file_stem().expect("a name").to_string_lossy().into_owned();
        let name = if at.is_empty() { stem.clone() } else { format!("{at}/{stem}") };
        if ["lib", "main", "outside", "tests", "not_embedded", "not_traced"].contains(&&*stem) {
            continue;
        }
        if path.is_dir() {
            add(&path, &name, files);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let text = fs::read_to_string(&path).expect("a readable file");
            let text = text.split("\nmod tests {").next().unwrap_or_default();
            let code = text.lines().filter(|line| !line.trim_start().starts_with("//"));
            files.insert(name, code.map(|line| format!("{line}\n")).collect());
        }
    }
}

/// The files that each file uses, by its paths: `crate::watch::{Lists, decode::Lines}` uses `watch` and `watch/decode`.
fn uses(files: &BTreeMap<String, String>) -> BTreeMap<&str, BTreeSet<&str>> {
    let mut uses = BTreeMap::new();
    for (name, text) in files {
        let text = text.replace("(super)", "").replace("(in super::super)", "");
        let mut paths = Vec::new();
        let mut tokens = &*tokens(&text);
        while !tokens.is_empty() {
            tokens = path(tokens, Vec::new(), &mut paths);
        }
        let used = paths.iter().filter_map(|path| file(files, name, path)).filter(|used| used != name);
        uses.insert(&**name, used.collect());
    }
    uses
}

/// Words, and single characters.
fn tokens(text: &str) -> Vec<&str> {
    let is_word = |c: char| c == '_' || c.is_alphanumeric();
    let spaced = text.split_whitespace();
    spaced
        .flat_map(|part| part.split_inclusive(|c| !is_word(c)))
        .flat_map(|part| {
            let end = part.find(|c| !is_word(c)).unwrap_or(part.len());
            [&part[..end], &part[end..]].into_iter().filter(|token| !token.is_empty())
        })
        .collect()
}

/// Reads the path at the start of the tokens, or skips a token. Returns the rest.
fn path<'a, 'b>(
    tokens: &'b [&'a str],
    mut prefix: Vec<&'a str>,
    paths: &mut Vec<Vec<&'a str>>,
) -> &'b [&'a str] {
    match tokens {
        ["{", rest @ ..] if !prefix.is_empty() => {
            let mut rest = rest;
            while !matches!(rest, [] | ["}", ..]) {
                rest = path(rest, prefix.clone(), paths);
                rest = rest.strip_prefix(&[","]).unwrap_or(rest);
            }
            rest.get(1..).unwrap_or_default()
        }
        [word, ":", ":", rest @ ..] if !word.starts_with(|c: char| c.is_ascii_punctuation() && c != '_') => {
            prefix.push(word);
            path(rest, prefix, paths)
        }
        [word, rest @ ..] => {
            prefix.push(word);
            paths.push(prefix);
            rest
        }
        [] => tokens,
    }
}

/// The file that a path names, in a file.
fn file<'f>(files: &'f BTreeMap<String, String>, name: &str, path: &[&str]) -> Option<&'f str> {
    let mut at: Vec<&str> = name.split('/').collect();
    let mut path = path;
    match path {
        ["crate", rest @ ..] => (at, path) = (Vec::new(), rest),
        ["self", rest @ ..] => path = rest,
        // A child, but no variable of its name.
        [_, _, ..] => {}
        _ => return None,
    }
    while let ["super", rest @ ..] = path {
        at.pop();
        path = rest;
    }
    let mut found = at.join("/");
    for word in path {
        let child = if found.is_empty() { (*word).to_owned() } else { format!("{found}/{word}") };
        if !files.contains_key(&child) {
            break;
        }
        found = child;
    }
    files.get_key_value(&found).map(|(name, _)| &**name)
}

/// The files that a file uses, directly or indirectly.
fn reached<'f>(uses: &BTreeMap<&'f str, BTreeSet<&'f str>>, from: &'f str) -> BTreeSet<&'f str> {
    let (mut reached, mut next) = (BTreeSet::new(), vec![from]);
    while let Some(name) = next.pop() {
        let more = uses.get(name).into_iter().flatten().copied();
        next.extend(more.filter(|other| reached.insert(*other)));
    }
    reached
}

#[test]
fn files_that_need_each_other_are_in_one_folder() {
    for (src, user, used_one) in
        [("src", "cli/trace", "cli/screen"), ("apiserver/src", "kinds/pods/security", "kinds/pods")]
    {
        let files = files(src);
        let uses = uses(&files);
        assert!(uses[user].contains(used_one), "the `use` lines of {src} are read: {uses:?}");
        let reached: BTreeMap<&str, BTreeSet<&str>> =
            uses.keys().map(|name| (*name, reached(&uses, name))).collect();
        let folder = |name: &str| {
            let has_folder = files.keys().any(|other| other.starts_with(&format!("{name}/")));
            if has_folder {
                name.to_owned()
            } else {
                name.rsplit_once('/').map_or("", |(folder, _)| folder).to_owned()
            }
        };
        let mut circles = Vec::new();
        for (one, ones) in &reached {
            let needed =
                ones.iter().filter(|other| reached[*other].contains(one) && folder(other) != folder(one));
            circles.extend(needed.map(|other| (one, other)));
        }
        assert!(
            circles.is_empty(),
            "files of different folders of {src} that use each other in a circle: {circles:?}"
        );
    }
}

#[test]
fn files_and_folders_beside_each_other_form_no_circle() {
    for (src, user, used_one) in [
        ("src", "cluster", "watch"),
        ("src", "cli/trace", "cli/screen"),
        ("apiserver/src", "verbs", "storage"),
    ] {
        let files = files(src);
        // The files that each file and its folder use in the folder around them.
        let mut used_beside: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
        for (name, used) in uses(&files) {
            for used in used {
                let shared = name.split('/').zip(used.split('/')).take_while(|(one, other)| one == other);
                let depth = shared.count();
                if let (Some(one), Some(other)) = (ancestor(name, depth), ancestor(used, depth)) {
                    used_beside.entry(one).or_default().insert(other);
                }
            }
        }
        assert!(used_beside[user].contains(used_one), "the `use` lines of {src} are read: {used_beside:?}");
        let circles: Vec<(&str, Vec<&str>)> = used_beside
            .keys()
            .map(|name| (*name, reached(&used_beside, name).into_iter().collect()))
            .filter(|(name, reached): &(&str, Vec<&str>)| reached.contains(name))
            .collect();
        assert!(circles.is_empty(), "files of {src} that use themselves, by way of these: {circles:?}");
    }
}

/// The file or folder at this depth above a file, or the file itself. `None`: the file is above this depth.
fn ancestor(name: &str, depth: usize) -> Option<&str> {
    let end = name.match_indices('/').nth(depth).map_or(name.len(), |(at, _)| at);
    (name.split('/').count() > depth).then(|| &name[..end])
}

#[test]
fn no_two_types_of_a_crate_have_the_same_name() {
    for (src, one_of_them) in [("src", "Store"), ("apiserver/src", "Storage")] {
        let text: String = files(src).into_values().collect();
        let mut seen = BTreeSet::new();
        let twice: Vec<&str> = text.lines().filter_map(declared).filter(|name| !seen.insert(*name)).collect();
        assert!(seen.contains(one_of_them), "the declarations of {src} are read: {seen:?}");
        assert!(twice.is_empty(), "types of {src} that are declared more than once: {twice:?}");
    }
}

/// The type that a line declares, also inside a function: struct, enum or trait. Or an alias at the top of a file, because others
/// are the types of a trait.
fn declared(line: &str) -> Option<&str> {
    let is_outside = line.starts_with(char::is_alphabetic);
    let mut words = line.trim_start().split(|c: char| c != '_' && !c.is_alphanumeric());
    let keyword = words.find(|word| !["pub", "crate", "super", ""].contains(word))?;
    let declares = ["struct", "enum", "trait", "union"].contains(&keyword) || is_outside && keyword == "type";
    words.next().filter(|name| declares && name.starts_with(char::is_uppercase))
}
