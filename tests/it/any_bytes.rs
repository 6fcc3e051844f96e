//! Feeds random bytes to the decoders of watches and kubeconfig files. In `fuzz/`, a fuzzer does the same.

mod properties;

use proptest::{collection::vec, prelude::*, sample::Index};

/// Pieces of real watch events: random letters would hardly ever form an object.
const WATCH: &[&str] = &[
    r#"{"type":"ADDED","object":"#,
    r#"{"type":"MODIFIED","object":"#,
    r#"{"type":"BOOKMARK","object":"#,
    r#"{"type":"ERROR","object":"#,
    r#"{"metadata":{"name":"a","resourceVersion":"7"}}"#,
    r#"{"metadata":{"name":"日本語 🎉","labels":{"b":"c"}},"#,
    r#""spec":{"replicas":2,"template":{"spec":{"containers":[{},{}]}}}"#,
    r#"{"kind":"Status","code":410,"reason":"Expired"}"#,
    r#""status":{"conditions":[{"type":"Available"}]}"#,
    "null",
    "-1",
    "18446744073709551616",
    "1e999",
    "\"\\ud800\"",
    "[",
    "]",
    "{",
    "}",
    "}\n",
    ",",
    "\r\n",
];

const KUBECONFIG: &[&str] = &[
    "apiVersion: v1\nkind: Config\ncurrent-context: a\n",
    "contexts:\n- name: a\n  context: {cluster: a, user: a}\n",
    "clusters:\n- name: a\n  cluster: {server: \"https://[::1]:6443\"}\n",
    "clusters:\n- name: a\n  cluster: {server: \"http://u:p@h/x?y\", certificate-authority-data: AA==}\n",
    "users:\n- name: a\n  user: {token: t}\n",
    "users:\n- name: a\n  user: {exec: {command: x, apiVersion: client.authentication.k8s.io/v1}}\n",
    "a: &a [x, x]\nb: &b [*a, *a]\nc: [*b, *b]\n",
    "- ",
    "? ",
    ": ",
    "{",
    "[",
    "!!binary ",
    "---\n",
    "\t",
];

fn text(pieces: &'static [&str]) -> impl Strategy<Value = Vec<u8>> {
    let piece = prop_oneof![
        8 => proptest::sample::select(pieces).prop_map(|piece| piece.as_bytes().to_vec()),
        1 => vec(any::<u8>(), 0..8),
    ];
    vec(piece, 0..24).prop_map(|pieces| pieces.concat())
}

proptest! {
    #[test]
    fn any_stream_decodes_alike_at_every_chunking_in_little_memory(bytes in text(WATCH), cut in any::<Index>()) {
        properties::watch(&bytes, cut.index(bytes.len() + 1));
    }

    #[test]
    fn any_kubeconfig_is_read_or_refused_with_one_line(bytes in text(KUBECONFIG)) {
        properties::kubeconfig(&bytes);
    }
}

/// A list of empty containers takes the most memory for each byte of a line.
#[test]
fn a_line_of_empty_objects_stays_within_the_memory_limit() {
    let start =
        r#"{"type":"ADDED","object":{"metadata":{"name":"a"},"spec":{"template":{"spec":{"containers":["#;
    properties::watch(format!("{start}{}{{}}]}}}}}}}}}}\n", "{},".repeat(100_000)).as_bytes(), 1000);
}

/// Nine lines of YAML whose aliases expand to a billion words.
#[test]
fn a_kubeconfig_of_aliases_of_aliases_is_refused() {
    let mut text = "a0: &a0 [lol, lol, lol, lol, lol, lol, lol, lol, lol, lol]\n".to_owned();
    for level in 1..10 {
        let alias = format!("*a{}, ", level - 1).repeat(10);
        text += &format!("a{level}: &a{level} [{alias}]\n");
    }
    properties::kubeconfig(text.as_bytes());
    properties::kubeconfig("[".repeat(100_000).as_bytes());
}
