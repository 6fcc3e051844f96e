//! Credentials: a token, a password, or the output of a credential plugin. Reads a file again after 50 s, and after a 401.
//!
//! ```text
//! Authorization: Bearer eyJhbGciOiJSUzI1NiIsImtpZCI6…
//! ```
//!
//! The kubelet replaces a pod's token long before it ends, by swapping a symlink. So a token file is opened by its path
//! again and again, and its last good content is kept while it cannot be read. See
//! <https://kubernetes.io/docs/tasks/configure-pod-container/configure-service-account/#launch-a-pod-using-service-account-token-projection>.

use std::{
    fmt, fs,
    io::{self, Read},
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, SystemTime},
};

use base64::{Engine, engine::general_purpose::STANDARD as BASE64};
use reqwest::header::HeaderValue;
use tokio::{sync::Mutex, time::Instant};
use tracing::warn;

use super::exec::Plugin;

/// Age at which a file is read again. client-go does so after 50 s, and the kubelet renews a token minutes before its end.
pub(super) const FILE_AGE_MAX: Duration = Duration::from_secs(50);

/// Shortest time for which the credential of a plugin is used, even if it has expired. Otherwise a wrong clock would run the
/// plugin for every request. If the credential is invalid, the server answers 401.
const PLUGIN_AGE_MIN: Duration = Duration::from_secs(5);

/// Largest file that is read: a kubeconfig of a thousand clusters has a few MB.
const FILE_BYTES_MAX: u64 = 16 * 1024 * 1024;

/// A secret text: `Debug` hides it, and there is no `Display`.
#[derive(Clone, PartialEq)]
pub(super) struct SecretString(pub(super) String);

impl fmt::Debug for SecretString {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("(secret)")
    }
}

/// The credential of one request.
#[derive(Clone, Default, PartialEq)]
pub(super) struct Credential {
    pub(super) authorization: Option<HeaderValue>,
    /// Client certificate and key from a plugin, in PEM.
    pub(super) identity: Option<Arc<[u8]>>,
}

impl Credential {
    pub(super) fn bearer(token: &str) -> Result<Credential, String> {
        let token = token.trim();
        if token.is_empty() {
            return Err("empty".to_owned());
        }
        Credential::header(&format!("Bearer {token}"))
    }

    pub(super) fn basic(username: &str, password: &SecretString) -> Result<Credential, String> {
        Credential::header(&format!("Basic {}", BASE64.encode(format!("{username}:{}", password.0))))
    }

    fn header(text: &str) -> Result<Credential, String> {
        // The error must not quote the text.
        let mut value =
            HeaderValue::from_str(text).map_err(|_| "cannot stand in an HTTP header".to_owned())?;
        value.set_sensitive(true);
        Ok(Credential { authorization: Some(value), identity: None })
    }
}

/// The source of the credentials.
#[derive(Debug)]
pub(super) enum Login {
    /// No `Authorization` at all; a client certificate, perhaps.
    Nothing,
    Token(SecretString),
    /// `first` is good until the file has been read once.
    TokenFile {
        path: PathBuf,
        first: Option<SecretString>,
    },
    Password {
        username: String,
        password: SecretString,
    },
    Plugin(Box<Plugin>),
}

/// The credentials as they are now.
pub(super) struct Credentials {
    login: Login,
    /// Held while the file is read or the plugin runs, so that this happens once, however many requests wait for it.
    known: Mutex<Known>,
}

#[derive(Default)]
struct Known {
    held: Option<Held>,
    /// The last failure to read it. Requests that waited for that attempt share the failure.
    failed: Option<(Instant, String)>,
}

struct Held {
    credential: Credential,
    since: Instant,
    /// The expiration time from the plugin.
    until: Option<SystemTime>,
}

impl Credentials {
    pub(super) fn new(login: Login) -> Credentials {
        Credentials { login, known: Mutex::default() }
    }

    pub(super) fn login(&self) -> &Login {
        &self.login
    }

    /// The present credential; read again when it is old.
    pub(super) async fn current(&self) -> Result<Credential, String> {
        let asked = Instant::now();
        let mut known = self.known.lock().await;
        match &known.held {
            Some(held) if self.is_fresh(held) => Ok(held.credential.clone()),
            Some(_) | None => self.obtain(&mut known, asked).await,
        }
    }

    /// A credential to try after `refused` got a 401. `None`: it is fixed. From a file or a plugin, it may be the same again.
    pub(super) async fn renew(&self, refused: &Credential) -> Result<Option<Credential>, String> {
        match &self.login {
            Login::Nothing | Login::Token(_) | Login::Password { .. } => return Ok(None),
            Login::TokenFile { .. } | Login::Plugin(_) => {}
        }
        let asked = Instant::now();
        let mut known = self.known.lock().await;
        match &known.held {
            // Another request that was refused at the same time has read it already.
            Some(held) if held.credential != *refused || held.since > asked => {
                Ok(Some(held.credential.clone()))
            }
            Some(_) | None => self.obtain(&mut known, asked).await.map(Some),
        }
    }

    fn is_fresh(&self, held: &Held) -> bool {
        match &self.login {
            Login::Nothing | Login::Token(_) | Login::Password { .. } => true,
            Login::TokenFile { .. } => held.since.elapsed() < FILE_AGE_MAX,
            Login::Plugin(_) => {
                held.since.elapsed() < PLUGIN_AGE_MIN || held.until.is_none_or(|end| SystemTime::now() < end)
            }
        }
    }

    async fn obtain(&self, known: &mut Known, asked: Instant) -> Result<Credential, String> {
        if let Some((when, cause)) = &known.failed
            && *when > asked
        {
            return Err(cause.clone());
        }
        match self.fetch(known.held.as_ref()).await {
            Ok(held) => Ok(known.held.insert(held).credential.clone()),
            Err(cause) => {
                known.failed = Some((Instant::now(), cause.clone()));
                Err(cause)
            }
        }
    }

    async fn fetch(&self, held: Option<&Held>) -> Result<Held, String> {
        let mut until = None;
        let credential = match &self.login {
            Login::Nothing => Credential::default(),
            Login::Token(token) => Credential::bearer(&token.0).map_err(|cause| format!("token: {cause}"))?,
            Login::Password { username, password } => Credential::basic(username, password)
                .map_err(|cause| format!("username and password: {cause}"))?,
            Login::TokenFile { path, first } => {
                let last_good = match (held, first) {
                    (Some(held), _) => Some(held.credential.clone()),
                    (None, Some(first)) => Credential::bearer(&first.0).ok(),
                    (None, None) => None,
                };
                read_token(path, last_good)?
            }
            Login::Plugin(plugin) => {
                let issued = plugin.run().await?;
                until = issued.until;
                issued.credential
            }
        };
        Ok(Held { credential, since: Instant::now(), until })
    }
}

fn read_token(path: &Path, last_good: Option<Credential>) -> Result<Credential, String> {
    let token = read_text(path)
        .and_then(|token| Credential::bearer(&token).map_err(|cause| format!("{}: {cause}", path.display())));
    match (token.map_err(|cause| format!("token file {cause}")), last_good) {
        (Ok(credential), _) => Ok(credential),
        (Err(error), None) => Err(error),
        (Err(error), Some(last_good)) => {
            warn!(error, "token not read, the last one is kept");
            Ok(last_good)
        }
    }
}

/// Reads a small file. A few KB, mostly from memory (a pod's mounts are tmpfs): not worth a thread.
pub(super) fn read(path: &Path) -> Result<Vec<u8>, io::Error> {
    let mut content = Vec::new();
    fs::File::open(path)?.take(FILE_BYTES_MAX + 1).read_to_end(&mut content)?;
    if content.len() as u64 > FILE_BYTES_MAX {
        return Err(io::Error::other(format!("larger than {FILE_BYTES_MAX} bytes")));
    }
    Ok(content)
}

/// Reads a small file that is read again and again. A FIFO would hold up the only thread until somebody writes to it, and
/// has its content only once.
pub(super) fn read_regular(path: &Path) -> Result<Vec<u8>, io::Error> {
    if !fs::metadata(path)?.is_file() {
        return Err(io::Error::other("not a regular file"));
    }
    read(path)
}

pub(super) fn read_text(path: &Path) -> Result<String, String> {
    let content = read_regular(path).map_err(|error| format!("{}: {error}", path.display()))?;
    String::from_utf8(content).map_err(|_| format!("{}: not UTF-8", path.display()))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::{
        super::{
            config::{Pem, PemSource},
            exec::{Hidden, Terminal},
        },
        *,
    };

    fn shown(credential: &Credential) -> &str {
        credential.authorization.as_ref().and_then(|value| value.to_str().ok()).unwrap_or("nothing")
    }

    /// As the kubelet does it: `token` points to `..data/token`, and `..data` is swapped by a rename.
    fn mount(dir: &Path, version: &str, token: &str) {
        fs::create_dir(dir.join(version)).expect("a directory");
        fs::write(dir.join(version).join("token"), token).expect("a file");
        symlink(version, dir.join("..new")).expect("a symlink");
        fs::rename(dir.join("..new"), dir.join("..data")).expect("a rename");
    }

    #[tokio::test(start_paused = true)]
    async fn a_token_that_the_kubelet_swaps_is_read_again_within_a_minute() {
        let dir = tempfile::tempdir().expect("a directory");
        mount(dir.path(), "..1", "one\n");
        symlink("..data/token", dir.path().join("token")).expect("a symlink");
        let path = dir.path().join("token");
        let credentials = Credentials::new(Login::TokenFile { path: path.clone(), first: None });
        let now = async || credentials.current().await.expect("a token");

        assert_eq!(shown(&now().await), "Bearer one");
        mount(dir.path(), "..2", "two");
        assert_eq!(shown(&now().await), "Bearer one");
        tokio::time::advance(Duration::from_secs(60)).await;
        assert_eq!(shown(&now().await), "Bearer two");

        // It cannot be read for a while: the last one is kept.
        for broken in ["", "\n", "a\nb"] {
            fs::write(&path, broken).expect("a file");
            tokio::time::advance(Duration::from_secs(60)).await;
            assert_eq!(shown(&now().await), "Bearer two", "{broken:?}");
        }
        fs::remove_file(&path).expect("a file");
        tokio::time::advance(Duration::from_secs(60)).await;
        assert_eq!(shown(&now().await), "Bearer two");
    }

    #[tokio::test]
    async fn a_401_reads_the_token_again_at_once_and_once_for_all() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("token");
        fs::write(&path, "one").expect("a file");
        let credentials = Credentials::new(Login::TokenFile { path: path.clone(), first: None });
        let one = credentials.current().await.expect("a token");

        fs::write(&path, "two").expect("a file");
        let two = credentials.renew(&one).await.expect("a file").expect("a token");
        assert_eq!(shown(&two), "Bearer two");
        fs::write(&path, "three").expect("a file");
        // A second request that was refused with `one` gets the credential that was read meanwhile.
        assert!(credentials.renew(&one).await.expect("a file") == Some(two));

        let fixed = Credentials::new(Login::Token(SecretString("x".to_owned())));
        let refused = fixed.current().await.expect("a token");
        assert!(fixed.renew(&refused).await.expect("nothing to read").is_none());
    }

    #[tokio::test]
    async fn a_token_file_that_is_not_there_is_named() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("token");
        let credentials = Credentials::new(Login::TokenFile { path: path.clone(), first: None });
        let cause = format!("token file {}: No such file or directory (os error 2)", path.display());
        assert_eq!(credentials.current().await.err(), Some(cause));
        fs::write(&path, "one").expect("a file");
        assert_eq!(shown(&credentials.current().await.expect("a token")), "Bearer one");
    }

    #[test]
    fn a_file_may_be_large_but_not_endless() {
        const BYTES_MAX: u64 = 16 << 20;
        let file = tempfile::NamedTempFile::new().expect("a file");
        for (bytes, is_read) in [(BYTES_MAX, true), (BYTES_MAX + 1, false)] {
            file.as_file().set_len(bytes).expect("a longer file");
            assert_eq!(read(file.path()).is_ok(), is_read, "{bytes}");
        }
    }

    /// Opening a FIFO waits for its writer, and nothing else ran meanwhile.
    #[tokio::test]
    async fn a_token_file_that_is_a_fifo_is_not_waited_for() {
        let dir = tempfile::tempdir().expect("a directory");
        let (fifo, path) = (dir.path().join("fifo"), dir.path().join("token"));
        let made = std::process::Command::new("mkfifo").arg(&fifo).status().expect("mkfifo");
        assert!(made.success());
        symlink(&fifo, &path).expect("a symlink");
        let credentials = Credentials::new(Login::TokenFile { path: path.clone(), first: None });
        let error = credentials.current().await.err();
        assert_eq!(error, Some(format!("token file {}: not a regular file", path.display())));
        let field = "certificate-authority".to_owned();
        let pem = Pem { field, source: PemSource::File(fifo.clone()) };
        assert_eq!(pem.read(), Err(format!("certificate-authority: {}: not a regular file", fifo.display())));
    }

    /// Credentials from a shell script, which finds the path of a file in `$RUNS`.
    fn plugin(script: &str, runs: &Path) -> Credentials {
        Credentials::new(Login::Plugin(Box::new(Plugin {
            api_version: "client.authentication.k8s.io/v1".to_owned(),
            command: "/bin/sh".into(),
            args: Hidden(vec!["-c".to_owned(), script.to_owned()]),
            env: Hidden(vec![("RUNS".to_owned(), runs.display().to_string())]),
            terminal: Terminal::Never,
            cluster: Hidden(serde_json::Value::Null),
            install_hint: String::new(),
        })))
    }

    #[tokio::test]
    async fn a_plugin_that_fails_is_run_once_for_all_who_wait_and_again_for_the_next() {
        let dir = tempfile::tempdir().expect("a directory");
        let runs = dir.path().join("runs");
        let credentials = plugin(r#"echo >> "$RUNS"; exit 1"#, &runs);
        for count in 1..=2 {
            let (one, other) = tokio::join!(credentials.current(), credentials.current());
            assert!(one.is_err() && other.is_err());
            assert_eq!(fs::read(&runs).expect("a file").len(), count);
        }
    }

    /// Its answer was the same token, so each request counted as the first that was refused.
    #[tokio::test]
    async fn a_plugin_is_run_again_once_for_all_requests_that_were_refused_at_the_same_time() {
        let dir = tempfile::tempdir().expect("a directory");
        let runs = dir.path().join("runs");
        let script = r#"echo >> "$RUNS"; echo '{"apiVersion":"client.authentication.k8s.io/v1","status":{"token":"t"}}'"#;
        let credentials = plugin(script, &runs);
        let refused = credentials.current().await.expect("a token");
        let renew = || async { credentials.renew(&refused).await.expect("a token") };
        tokio::join!(renew(), renew(), renew(), renew());
        assert_eq!(fs::read(&runs).expect("a file").len(), 2);
    }

    /// The plugin was run for every request.
    #[tokio::test]
    async fn a_plugin_whose_answer_has_ended_already_is_run_again_only_after_a_401() {
        let dir = tempfile::tempdir().expect("a directory");
        let runs = dir.path().join("runs");
        let script = r#"echo >> "$RUNS"; echo '{"apiVersion":"client.authentication.k8s.io/v1",
            "status":{"token":"t","expirationTimestamp":"2020-01-01T00:00:00Z"}}'"#;
        let credentials = plugin(script, &runs);
        let runs = || fs::read(&runs).expect("a file").len();

        let first = credentials.current().await.expect("a token");
        assert_eq!(shown(&first), "Bearer t");
        credentials.current().await.expect("a token");
        assert_eq!(runs(), 1);
        credentials.renew(&first).await.expect("a token");
        assert_eq!(runs(), 2);

        // Later, the expiry that the plugin printed counts.
        let (now, hour) = (SystemTime::now(), Duration::from_secs(3600));
        for (until, is_fresh) in [(None, true), (Some(now + hour), true), (Some(now - hour), false)] {
            let since = Instant::now() - 2 * PLUGIN_AGE_MIN;
            let held = Held { credential: Credential::default(), since, until };
            assert_eq!(credentials.is_fresh(&held), is_fresh, "{until:?}");
        }
    }

    #[tokio::test]
    async fn a_password_is_sent_as_basic_and_never_shown() {
        let password = SecretString("hunter2".to_owned());
        assert_eq!(format!("{password:?}"), "(secret)");
        let credentials = Credentials::new(Login::Password { username: "me".to_owned(), password });
        let credential = credentials.current().await.expect("a password");
        assert_eq!(shown(&credential), "Basic bWU6aHVudGVyMg==");
        assert_eq!(format!("{:?}", credential.authorization), "Some(Sensitive)");
    }
}
