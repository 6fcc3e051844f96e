//! The folders of each crate form layers: no folder uses, directly or indirectly, a folder that uses it. A file at the top and
//! the folder of its name count as one. No crate has two types of the same name.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
};

/// The files under a directory, as one text without comments and without tests. Without `not_embedded.rs`, too: it has the
/// names of `embedded.rs`, because a build compiles only one of the two.
fn source(path: &Path) -> String {
    if path.file_stem().is_some_and(|name| name == "tests" || name == "not_embedded") {
        return String::new();
    }
    if path.is_dir() {
        let entries = fs::read_dir(path).expect("a readable directory");
        return entries.map(|entry| source(&entry.expect("a readable entry").path())).collect();
    }
    let text = fs::read_to_string(path).expect("a readable file");
    let text = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
    text.lines().filter(|line| !line.trim_start().starts_with("//")).map(|line| format!("{line}\n")).collect()
}

/// The modules after each `crate::` in a text, one or a list in braces.
fn used(text: &str) -> BTreeSet<String> {
    let mut used = BTreeSet::new();
    for rest in text.split("crate::").skip(1) {
        let list = rest.strip_prefix('{').unwrap_or(rest);
        let (mut depth, mut name) = (0, String::new());
        for c in list.chars() {
            match c {
                '{' => depth += 1,
                '}' if depth > 0 => depth -= 1,
                c if depth == 0 && (c.is_alphanumeric() || c == '_' || c == ':') => name.push(c),
                ',' if depth == 0 && list.len() < rest.len() => name.push(' '),
                c if depth == 0 && !c.is_whitespace() => break,
                _ if list.len() == rest.len() => break,
                _ => {}
            }
        }
        used.extend(name.split(' ').filter_map(|path| path.split(':').next()).map(str::to_owned));
    }
    used
}

#[test]
fn folders_do_not_use_each_other_in_a_circle() {
    check("src", "cluster", "watch");
    check("apiserver/src", "verbs", "storage");
}

#[test]
fn no_two_types_of_a_crate_have_the_same_name() {
    for (src, one_of_them) in [("src", "Store"), ("apiserver/src", "Storage")] {
        let text = source(&Path::new(env!("CARGO_MANIFEST_DIR")).join(src));
        let mut seen = BTreeSet::new();
        let twice: Vec<&str> = text.lines().filter_map(declared).filter(|name| !seen.insert(*name)).collect();
        assert!(seen.contains(one_of_them), "the declarations of {src} are read: {seen:?}");
        assert!(twice.is_empty(), "types of {src} that are declared more than once: {twice:?}");
    }
}

/// The type that a line declares, outside functions: struct, enum, trait or alias.
fn declared(line: &str) -> Option<&str> {
    let mut words = line.split(|c: char| c != '_' && !c.is_alphanumeric());
    let keyword = ["struct", "enum", "trait", "type", "union"];
    if !line.starts_with(char::is_alphabetic) || !words.any(|word| keyword.contains(&word)) {
        return None;
    }
    words.next().filter(|name| name.starts_with(char::is_uppercase))
}

/// Checks one crate, in which `user` uses `used_one`.
fn check(src: &str, user: &str, used_one: &str) {
    let mut texts: BTreeMap<String, String> = BTreeMap::new();
    for entry in fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join(src)).expect("a readable directory")
    {
        let path = entry.expect("a readable entry").path();
        let name = path.file_stem().expect("a name").to_string_lossy().into_owned();
        texts.entry(name).or_default().push_str(&source(&path));
    }
    texts.remove("lib");
    let mut uses: BTreeMap<&str, BTreeSet<String>> = BTreeMap::new();
    for (name, text) in &texts {
        let used = used(text).into_iter().filter(|module| module != name && texts.contains_key(module));
        uses.insert(name, used.collect());
    }
    assert!(uses[user].contains(used_one), "the `use` lines of {src} are read: {uses:?}");
    // Repeatedly remove a folder that uses none of the remaining folders.
    while let Some(lowest) = uses.iter().find(|(_, used)| used.is_empty()).map(|(name, _)| *name) {
        uses.remove(lowest);
        uses.values_mut().for_each(|used| {
            used.remove(lowest);
        });
    }
    assert!(uses.is_empty(), "modules of {src} that use each other in a circle: {uses:?}");
}
