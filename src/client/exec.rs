//! Runs credential plugins: programs that print a token or a client certificate.
//!
//! ```text
//! $ KUBERNETES_EXEC_INFO='{"kind":"ExecCredential","apiVersion":"client.authentication.k8s.io/v1","spec":{…}}' login
//! {"kind": "ExecCredential", "apiVersion": "client.authentication.k8s.io/v1",
//!  "status": {"token": "…", "expirationTimestamp": "2026-11-21T08:00:00Z"}}
//! ```
//!
//! See <https://kubernetes.io/docs/reference/access-authn-authz/authentication/#client-go-credential-plugins>. Errors never
//! quote the output of a plugin. A plugin shares our stderr, because it may have a message for the user.

use std::{
    ffi::OsString,
    io::{self, IsTerminal},
    path::PathBuf,
    process::Stdio,
    time::{Duration, SystemTime},
};

use listwatch_formats::time::parse_time;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::{io::AsyncReadExt, process::Command, time};

use super::auth::Credential;

/// Longest run of a plugin. The user may have to log in with a browser; after this time, the request is obsolete.
const RUN_MAX: Duration = Duration::from_secs(60);

/// Largest output of a plugin: a token and a certificate chain have a few KB.
const OUTPUT_BYTES_MAX: u64 = 1024 * 1024;

/// How to run a plugin.
#[derive(Debug)]
pub(super) struct Plugin {
    /// `client.authentication.k8s.io/v1` or `…/v1beta1`. The answer must have the same version.
    pub(super) api_version: String,
    pub(super) command: PathBuf,
    /// May contain a password, as any command line.
    pub(super) args: Hidden<Vec<String>>,
    /// Added to our own environment. Values can be secrets.
    pub(super) env: Hidden<Vec<(String, String)>>,
    pub(super) terminal: Terminal,
    /// The cluster, if `provideClusterInfo` is set, else null. Its proxy-url may contain a password.
    pub(super) cluster: Hidden<Value>,
    /// Advice for the user if the program is not installed.
    pub(super) install_hint: String,
}

/// A value that `Debug` hides.
pub(super) struct Hidden<T>(pub(super) T);

impl<T> std::fmt::Debug for Hidden<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("(hidden)")
    }
}

/// `interactiveMode`: whether the plugin may ask the user, and read the answers from stdin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Terminal {
    Never,
    IfAvailable,
    Always,
}

impl Terminal {
    /// Whether the plugin gets our stdin. `is_there`: our stdin is a terminal.
    fn is_used(self, is_there: bool) -> Result<bool, String> {
        match (self, is_there) {
            (Terminal::Never, _) | (Terminal::IfAvailable, false) => Ok(false),
            (Terminal::IfAvailable | Terminal::Always, true) => Ok(true),
            (Terminal::Always, false) => Err("it must ask the user, and stdin is not a terminal".to_owned()),
        }
    }
}

/// The credential from a plugin, and when it expires.
pub(super) struct Issued {
    pub(super) credential: Credential,
    pub(super) until: Option<SystemTime>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ExecCredential {
    #[serde(default)]
    api_version: String,
    #[serde(default)]
    status: Option<ExecStatus>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct ExecStatus {
    token: Option<String>,
    client_certificate_data: Option<String>,
    client_key_data: Option<String>,
    expiration_timestamp: Option<String>,
}

impl Plugin {
    /// Runs the program and decodes its output.
    pub(super) async fn run(&self) -> Result<Issued, String> {
        let name = format!("credential plugin {}", self.command.display());
        let output = match time::timeout(RUN_MAX, self.output()).await {
            Ok(Ok(output)) => output,
            Ok(Err(cause)) => return Err(format!("{name}: {cause}")),
            Err(_) => return Err(format!("{name}: not done within {} s", RUN_MAX.as_secs())),
        };
        self.parse(&output).map_err(|cause| format!("{name}: {cause}"))
    }

    async fn output(&self) -> Result<Vec<u8>, String> {
        let interactive = self.terminal.is_used(io::stdin().is_terminal())?;
        let mut spec = json!({ "interactive": interactive });
        if !self.cluster.0.is_null() {
            spec["cluster"] = self.cluster.0.clone();
        }
        let info = json!({ "kind": "ExecCredential", "apiVersion": self.api_version, "spec": spec });
        let mut child = Command::new(&self.command)
            .args(&self.args.0)
            .envs(self.env.0.iter().map(|(name, value)| (name, value)))
            .env("KUBERNETES_EXEC_INFO", OsString::from(info.to_string()))
            .stdin(if interactive { Stdio::inherit() } else { Stdio::null() })
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit())
            // Ends the plugin after RUN_MAX, but not its child processes: killing a process group takes unsafe code, or
            // a library only for that. In a process group of its own, the plugin would also miss a Ctrl-C in the
            // terminal.
            .kill_on_drop(true)
            .spawn()
            .map_err(|error| self.not_started(&error))?;
        let mut output = Vec::new();
        if let Some(stdout) = child.stdout.take() {
            let read = stdout.take(OUTPUT_BYTES_MAX + 1).read_to_end(&mut output).await;
            read.map_err(|error| error.to_string())?;
        }
        if output.len() as u64 > OUTPUT_BYTES_MAX {
            return Err(format!("printed more than {OUTPUT_BYTES_MAX} bytes"));
        }
        let status = child.wait().await.map_err(|error| error.to_string())?;
        if status.success() { Ok(output) } else { Err(format!("{status}; its stderr may have the cause")) }
    }

    fn not_started(&self, error: &io::Error) -> String {
        match (error.kind(), self.install_hint.trim()) {
            (io::ErrorKind::NotFound, "") => format!("{error}; is it installed, and in PATH?"),
            (io::ErrorKind::NotFound, hint) => format!("{error}; {hint}"),
            (io::ErrorKind::PermissionDenied, _) => {
                format!("{error}; is it a program, and executable for us?")
            }
            (_, _) => error.to_string(),
        }
    }

    fn parse(&self, output: &[u8]) -> Result<Issued, String> {
        // The parser's error is dropped, because it would quote the token.
        let answer: ExecCredential = serde_json::from_slice(output)
            .map_err(|_| "printed no ExecCredential in JSON on stdout".to_owned())?;
        if answer.api_version != self.api_version {
            return Err(format!(
                "printed another apiVersion than {}, as its user's exec asks",
                self.api_version
            ));
        }
        let status = answer.status.unwrap_or_default();
        let mut credential = match status.token.as_deref() {
            Some(token) if !token.is_empty() => {
                Credential::bearer(token).map_err(|cause| format!("token: {cause}"))?
            }
            Some(_) | None => Credential::default(),
        };
        credential.identity = match (status.client_certificate_data, status.client_key_data) {
            (Some(certificate), Some(key)) => Some(format!("{certificate}\n{key}").into_bytes().into()),
            (None, None) => None,
            (Some(_), None) | (None, Some(_)) => {
                return Err(
                    "printed one of clientCertificateData and clientKeyData: it takes both".to_owned()
                );
            }
        };
        if credential == Credential::default() {
            return Err("printed neither a token nor a client certificate".to_owned());
        }
        let until = match status.expiration_timestamp {
            Some(text) => Some(parse_time(&text).map_err(|_| "expirationTimestamp is not RFC 3339")?),
            None => None,
        };
        Ok(Issued { credential, until })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const V1: &str = "client.authentication.k8s.io/v1";

    fn plugin(script: &str) -> Plugin {
        Plugin {
            api_version: V1.to_owned(),
            command: "/bin/sh".into(),
            args: Hidden(vec!["-c".to_owned(), script.to_owned()]),
            env: Hidden(vec![("ANSWER".to_owned(), "shh".to_owned())]),
            terminal: Terminal::Never,
            cluster: Hidden(json!({ "server": "https://h" })),
            install_hint: String::new(),
        }
    }

    /// A script that prints this status.
    fn prints(status: &str) -> Plugin {
        plugin(&format!(r#"echo '{{"apiVersion":"{V1}","kind":"ExecCredential","status":{status}}}'"#))
    }

    async fn fails(plugin: &Plugin) -> String {
        let error = plugin.run().await.err().unwrap_or_default();
        error.strip_prefix("credential plugin ").unwrap_or(&error).to_owned()
    }

    #[tokio::test]
    async fn a_plugin_gets_the_cluster_and_its_token_is_used() {
        let script = r#"
            info='{"apiVersion":"client.authentication.k8s.io/v1","kind":"ExecCredential","spec":{"cluster":{"server":"https://h"},"interactive":false}}'
            [ "$KUBERNETES_EXEC_INFO" = "$info" ] || exit 9
            printf '{"apiVersion":"%s","status":{"token":"%s","expirationTimestamp":"2026-11-21T08:00:00Z"}}' "$1" "$ANSWER""#;
        let mut plugin = plugin(script);
        plugin.args.0.extend(["sh".to_owned(), V1.to_owned()]);
        let issued = plugin.run().await.expect("a token");
        assert_eq!(issued.credential.authorization.expect("a token"), "Bearer shh");
        assert_eq!(issued.until, parse_time("2026-11-21T08:00:00Z").ok());
        let debug = format!("{plugin:?}");
        assert!(
            !debug.contains("shh") && !debug.contains("printf") && !debug.contains("https://h"),
            "{debug}"
        );
    }

    #[test]
    fn a_plugin_gets_a_terminal_where_it_may_and_there_is_one() {
        for (terminal, with, without) in [
            (Terminal::Never, false, Some(false)),
            (Terminal::IfAvailable, true, Some(false)),
            (Terminal::Always, true, None),
        ] {
            assert_eq!(terminal.is_used(true), Ok(with), "{terminal:?}");
            assert_eq!(terminal.is_used(false).ok(), without, "{terminal:?}");
        }
    }

    #[tokio::test]
    async fn a_client_certificate_comes_with_its_key() {
        let issued =
            prints(r#"{"clientCertificateData":"C","clientKeyData":"K"}"#).run().await.expect("both");
        assert_eq!(issued.credential.identity.as_deref(), Some(b"C\nK".as_slice()));
        assert_eq!(issued.until, None);
    }

    #[tokio::test]
    async fn an_error_of_a_plugin_has_its_cause_but_not_its_output() {
        let dir = tempfile::TempDir::new().expect("a directory");
        let login = dir.path().join("login");
        let not_found = format!("{}: No such file or directory (os error 2)", login.display());
        let absent = Plugin { command: login.clone(), ..plugin("") };
        let hint = Plugin { install_hint: "run: apt install login\n".to_owned(), ..plugin("") };
        let hint = Plugin { command: login, ..hint };
        // The program exists, so the hint is not shown.
        let directory = Plugin { command: "/".into(), install_hint: "run: x".to_owned(), ..plugin("") };
        let v1beta1 =
            Plugin { api_version: "client.authentication.k8s.io/v1beta1".to_owned(), ..prints("{}") };
        for (plugin, error) in [
            (absent, &*format!("{not_found}; is it installed, and in PATH?")),
            (hint, &*format!("{not_found}; run: apt install login")),
            (directory, "/: Permission denied (os error 13); is it a program, and executable for us?"),
            (plugin("echo secret; exit 3"), "/bin/sh: exit status: 3; its stderr may have the cause"),
            (plugin("echo secret"), "/bin/sh: printed no ExecCredential in JSON on stdout"),
            (
                v1beta1,
                "/bin/sh: printed another apiVersion than client.authentication.k8s.io/v1beta1, as its user's exec asks",
            ),
            (prints("{}"), "/bin/sh: printed neither a token nor a client certificate"),
            (prints(r#"{"token":""}"#), "/bin/sh: printed neither a token nor a client certificate"),
            (prints("null"), "/bin/sh: printed neither a token nor a client certificate"),
            (prints(r#"{"token":"a b\u0007"}"#), "/bin/sh: token: cannot stand in an HTTP header"),
            (
                prints(r#"{"clientKeyData":"secret"}"#),
                "/bin/sh: printed one of clientCertificateData and clientKeyData: it takes both",
            ),
            (
                prints(r#"{"token":"secret","expirationTimestamp":"soon"}"#),
                "/bin/sh: expirationTimestamp is not RFC 3339",
            ),
            (plugin("head -c 2000000 /dev/zero"), "/bin/sh: printed more than 1048576 bytes"),
        ] {
            assert_eq!(fails(&plugin).await, error);
        }
    }
}
