//! Output on a terminal: its width, its colors, its errors.

use super::*;

/// A sentence followed on the same line.
#[tokio::test]
async fn on_a_terminal_a_raw_line_that_is_cut_ends_before_the_next_sentence() {
    let server = Running::start(operator::listwatch().args(["apiserver", "--fault", "cut-watches,lines=1"]));
    let (_, kubeconfig) = server.stdout.split_once("export KUBECONFIG='").unwrap();
    let kubeconfig = kubeconfig.split('\'').next().unwrap();
    let watch = format!("watch ns -o raw --explain --kubeconfig {kubeconfig}");
    let Ran { stdout, .. } = ran(terminal(80, &watch, "1")).await;
    let lines: Vec<_> = stdout.lines().collect();
    let events = |line: &&str| line.starts_with(r#"{"type":"ADDED","object":{"kind":"Namespace","#);
    let half = lines.iter().rposition(events).unwrap_or_else(|| panic!("{stdout}"));
    assert!(
        !lines[half].ends_with('}') && lines[half + 1].contains("s # the last line has no end"),
        "{stdout}"
    );
}

#[tokio::test]
async fn on_a_terminal_no_line_is_wider_than_the_terminal() {
    let color = Regex::new("\x1b\\[[0-9]*m").unwrap();
    // A command, on one or more lines, and a header: copied as they are.
    let exchange = Regex::new(r"(?m)^(\$ (.*\\\r?\n)*|< ).*$").unwrap();
    let watch = "watch mws --demo --explain --max-events 7";
    for (columns, args, seen) in [
        (20, "get crds --demo --explain", "\nthe list has version\r\n    "),
        (40, watch, " MODIFIED default/"),
        (40, "watch mws --demo --explain --resource-version 1", " ERROR    410 "),
        (40, "get mws/none --demo --explain", "\nlistwatch: get /apis/k8sobjects.gsa.com/\r\n    "),
        (80, watch, " MODIFIED default/"),
        // Each sentence also has a time.
        (40, "demo --explain --exit", " ms  # "),
        (40, "get mws --demo --explain -o wide", "…\r\n"),
        (40, "watch mws --demo --explain --max-events 3 -o wide", "…\r\n"),
    ] {
        let Ran { stdout, .. } = ran(terminal(columns, args, "")).await;
        let text = color.replace_all(&stdout, "");
        assert!(text.contains(seen) && text.contains(" # "), "{text}");
        for line in exchange.replace_all(&text, "").lines() {
            assert!(line.chars().count() <= columns, "{columns}: {line:?} in\n{text}");
        }
    }
}

/// The body, the explanation and the error said the same.
#[tokio::test]
async fn on_a_terminal_the_message_of_an_error_is_shown_once() {
    for explain in ["", "--explain"] {
        let Ran { code, stdout, .. } =
            ran(terminal(300, &format!("get mws/none --demo {explain}"), "1")).await;
        assert_eq!((code, stdout.matches("not found").count()), (Some(1), 1), "{stdout}");
        assert_eq!(stdout.contains("# 404: the same request may succeed later"), !explain.is_empty());
    }
}

#[tokio::test]
async fn only_a_terminal_without_no_color_gets_colors() {
    let expired = "watch mws --demo --resource-version 1";
    let [colored, plain] = [on_terminal(80, expired, "").await, on_terminal(80, expired, "1").await];
    assert!(
        colored.contains(" \x1b[31mERROR ") && colored.contains("\x1b[2m< HTTP/2.0 200\x1b[0m"),
        "{colored}"
    );
    assert!(plain.contains(" ERROR ") && !plain.contains('\x1b'), "{plain}");
}
