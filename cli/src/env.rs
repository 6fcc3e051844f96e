//! Environment variables instead of flags: `LISTWATCH_LOG_LEVEL=debug` for `--log-level debug`; and the values of switches.

use std::env;

use clap::{Arg, Command, builder::Resettable};

/// Flags, and the variables of other flags that they exclude. A typed flag wins over such a variable.
const RIVALS: [(&str, &str); 9] = [
    ("--kubeconfig", "LISTWATCH_SERVICE_ACCOUNT_DIR"),
    ("--service-account-dir", "LISTWATCH_KUBECONFIG"),
    ("--namespace", "LISTWATCH_ALL_NAMESPACES"),
    ("--all-namespaces", "LISTWATCH_NAMESPACE"),
    ("--demo", "LISTWATCH_KUBECONFIG"),
    ("--demo", "LISTWATCH_CONTEXT"),
    ("--demo", "LISTWATCH_CLUSTER"),
    ("--demo", "LISTWATCH_USER"),
    ("--demo", "LISTWATCH_SERVICE_ACCOUNT_DIR"),
];

/// The variable of `--port`. For a Service called `listwatch`, Kubernetes sets it to `tcp://10.0.0.1:80` in every Pod of the
/// namespace.
const SERVICE_LINK: &str = "LISTWATCH_PORT";

/// Has clap ignore the variables that are empty, set by Kubernetes, or excluded by a typed flag.
pub(super) fn adapt(command: Command) -> Command {
    let names: Vec<_> = command.get_subcommands().map(|command| command.get_name().to_owned()).collect();
    let command = command.mut_args(adapt_one);
    names.into_iter().fold(command, |command, name| command.mut_subcommand(name, adapt))
}

fn adapt_one(arg: Arg) -> Arg {
    let Some(name) = arg.get_env() else { return arg };
    let is_empty = env::var_os(name).is_some_and(|value| value.is_empty());
    let is_link = name == SERVICE_LINK && env::var(name).is_ok_and(|value| value.contains("://"));
    let is_beaten =
        RIVALS.iter().any(|(flag, variable)| name == *variable && is_typed(flag) && !is_off(flag));
    if is_empty || is_link || is_beaten { arg.env(Resettable::Reset) } else { arg }
}

fn is_typed(flag: &str) -> bool {
    let is_short = |arg: &str| match flag {
        "--namespace" => arg.starts_with("-n"),
        "--all-namespaces" => arg.starts_with("-A"),
        _ => false,
    };
    let is_long = |arg: &str| arg == flag || arg.strip_prefix(flag).is_some_and(|rest| rest.starts_with('='));
    typed().any(|arg| is_long(&arg) || is_short(&arg))
}

/// The arguments. A path need not be UTF-8.
pub(super) fn typed() -> impl Iterator<Item = String> {
    env::args_os().map(|arg| arg.to_string_lossy().into_owned())
}

/// `--all-namespaces=false` names no namespaces, so it does not win over a variable that does.
fn is_off(flag: &str) -> bool {
    let value = |arg: &str| {
        let (name, value) = arg.split_once('=')?;
        ["--all-namespaces", "-A"].contains(&name).then(|| parse_switch(value))
    };
    flag == "--all-namespaces" && typed().any(|arg| value(&arg) == Some(Ok(false)))
}

/// The variable that caused an error about a flag, if the flag was not typed: ` (LISTWATCH_LOG_LEVEL)`.
pub(super) fn named_by(error: &str) -> String {
    let Some((_, rest)) = error.split_once("--") else { return String::new() };
    let flag: String = rest.chars().take_while(|c| c.is_ascii_lowercase() || *c == '-').collect();
    let variable = format!("LISTWATCH_{}", flag.to_uppercase().replace('-', "_"));
    if is_typed(&format!("--{flag}")) || env::var_os(&variable).is_none_or(|value| value.is_empty()) {
        return String::new();
    }
    format!(" ({variable})")
}

/// A switch that may have a value, on the command line or in the environment.
pub(super) fn parse_switch(text: &str) -> Result<bool, &'static str> {
    match text.to_ascii_lowercase().as_str() {
        "true" | "yes" | "on" | "1" => Ok(true),
        "false" | "no" | "off" | "0" => Ok(false),
        _ => Err("is neither true nor false, nor yes, no, on, off, 1 or 0"),
    }
}

#[cfg(test)]
mod tests {
    use super::parse_switch;

    #[test]
    fn a_switch_has_the_values_of_go_and_of_yaml() {
        let words = [
            (Ok(true), ["true", "True", "yes", "on", "1"]),
            (Ok(false), ["false", "FALSE", "no", "off", "0"]),
        ];
        for (expected, words) in words {
            words.iter().for_each(|word| assert_eq!(parse_switch(word), expected, "{word}"));
        }
        assert!(["", "2", "t", "maybe"].iter().all(|word| parse_switch(word).is_err()));
    }
}
