//! The address of the API server and the credentials. `find_config.rs` finds them in flags, environment and files.

use std::{
    env,
    ffi::OsString,
    fmt,
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};

use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use reqwest::header::{HeaderMap, HeaderName, HeaderValue};
use tracing::warn;
use url::{Host, Url};

use super::{
    auth::{self, Login, SecretString},
    error::Error,
};

/// The directory in which the kubelet mounts the credentials of a Pod.
pub(super) const SERVICE_ACCOUNT_DIR: &str = "/var/run/secrets/kubernetes.io/serviceaccount";

/// Longest wait for an answer, unless a flag says otherwise. The API server queues a request for at most a quarter of
/// its own limit of 60 s; after twice that time, no answer will come.
pub const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);

/// The flags for the connection. Each field has the name of its flag; an empty text counts as not given, as in kubectl.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// A kubeconfig; it must exist.
    pub kubeconfig: Option<PathBuf>,
    /// A context of the kubeconfig, instead of its `current-context`.
    pub context: Option<String>,
    /// A cluster of the kubeconfig, instead of the context's.
    pub cluster: Option<String>,
    /// A user of the kubeconfig, instead of the context's.
    pub user: Option<String>,
    /// `--as`: another user to act as.
    pub act_as: Option<String>,
    /// A directory with `token`, `ca.crt` and `namespace`.
    pub service_account_dir: Option<PathBuf>,
    /// Longest wait for an answer, 30 s unless given; zero is for ever. A watch has no such limit once it is open.
    pub request_timeout: Option<Duration>,
}

/// The environment variables for the connection.
#[derive(Clone, Debug, Default)]
pub struct Env {
    /// `KUBECONFIG`: files, as in `PATH`.
    pub kubeconfig: Option<OsString>,
    /// `HOME`.
    pub home: Option<PathBuf>,
    /// `KUBERNETES_SERVICE_HOST`, set in every pod.
    pub service_host: Option<String>,
    /// `KUBERNETES_SERVICE_PORT`, set in every pod.
    pub service_port: Option<String>,
    /// Whether the token of a service account is mounted, as in most pods.
    pub has_token: bool,
    /// Whether `HTTPS_PROXY` or a variable like it is set: a printed `curl` command must then choose no proxy where the
    /// client uses none.
    pub has_proxy: bool,
}

impl Env {
    /// The environment of this process.
    #[must_use]
    pub fn from_process() -> Env {
        let text = |name| env::var(name).ok().filter(|value| !value.is_empty());
        let proxies = ["http_proxy", "https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"];
        Env {
            kubeconfig: env::var_os("KUBECONFIG").filter(|files| !files.is_empty()),
            home: env::home_dir(),
            service_host: text("KUBERNETES_SERVICE_HOST"),
            service_port: text("KUBERNETES_SERVICE_PORT"),
            has_token: Path::new(SERVICE_ACCOUNT_DIR).join("token").exists(),
            has_proxy: proxies.into_iter().any(|name| text(name).is_some()),
        }
    }
}

/// The address of an API server, and the credentials. `Debug` shows no secret.
pub struct Config {
    /// Without a trailing slash; may have a path.
    pub(super) server: Url,
    /// The source of this configuration, for errors: `cluster local in /home/…/.kube/config`.
    pub(super) origin: String,
    pub(super) namespace: String,
    /// The user, for logs. Never a secret.
    pub(super) user: String,
    pub(super) login: Login,
    pub(super) tls: Tls,
    /// `Impersonate-User` and its like.
    pub(super) impersonate: HeaderMap,
    pub(super) proxy: Option<Url>,
    /// Whether curl would use a proxy: see [`Env::has_proxy`].
    pub(super) has_proxy_variable: bool,
    pub(super) request_timeout: Duration,
    /// Answers the requests instead of a server at the address.
    pub(super) in_process: Option<std::sync::Arc<dyn super::InProcess>>,
    pub(super) tap: Option<std::sync::Arc<dyn super::Tap>>,
    /// The kubeconfig entries of the credentials. `None`: they come from elsewhere.
    pub(super) entries: Option<KubeconfigEntries>,
}

/// The kubeconfig entries that a client uses.
#[derive(Clone, Debug)]
pub(super) struct KubeconfigEntries {
    /// The absolute paths of the kubeconfig files. Empty: kubectl finds the same file.
    pub(super) files: Vec<PathBuf>,
    pub(super) cluster: String,
    pub(super) user: String,
}

/// The certificates of both sides.
#[derive(Default)]
pub(super) struct Tls {
    /// The certificate authority of the server. `None`: the authorities of this machine.
    pub(super) authority: Option<Pem>,
    /// Client certificate, and its key.
    pub(super) identity: Option<(Pem, Pem)>,
    /// The name in the server's certificate, if it is not the host of its address.
    pub(super) server_name: Option<String>,
    /// `insecure-skip-tls-verify` of the kubeconfig.
    pub(super) insecure: bool,
}

/// Certificates or a key.
pub(super) struct Pem {
    /// The field that names them, for errors.
    pub(super) field: String,
    pub(super) source: PemSource,
}

/// The source of a [`Pem`].
pub(super) enum PemSource {
    /// In a file that is read again and again.
    File(PathBuf),
    /// In the kubeconfig itself.
    Inline(Vec<u8>),
}

impl Pem {
    pub(super) fn read(&self) -> Result<Vec<u8>, String> {
        match &self.source {
            PemSource::Inline(pem) => Ok(pem.clone()),
            PemSource::File(path) => auth::read_regular(path)
                .map_err(|error| format!("{}: {}: {error}", self.field, path.display())),
        }
    }
}

impl Config {
    /// The API server at `server`, known by the certificates in `authority_pem`, for the bearer of `token`. Empty: no token.
    pub fn new(server: &str, authority_pem: &[u8], token: &str) -> Result<Config, Error> {
        let origin = "given address".to_owned();
        let mut config = Config::anonymous(parse_server(server, &origin)?, origin);
        "the bearer of a given token".clone_into(&mut config.user);
        if !token.is_empty() {
            config.login = Login::Token(SecretString(token.to_owned()));
        }
        config.has_proxy_variable = Env::from_process().has_proxy;
        let field = "given certificate authority".to_owned();
        config.tls.authority = Some(Pem { field, source: PemSource::Inline(authority_pem.to_owned()) });
        config.keep_credentials_off_plain_http();
        Ok(config)
    }

    /// A server in this very process, for the bearer of `token`: nothing goes over a wire.
    pub fn in_process(server: std::sync::Arc<dyn super::InProcess>, token: &str) -> Result<Config, Error> {
        let origin = "in this process".to_owned();
        let mut config = Config::anonymous(parse_server("http://localhost", &origin)?, origin);
        "the bearer of a given token".clone_into(&mut config.user);
        config.login = Login::Token(SecretString(token.to_owned()));
        config.in_process = Some(server);
        Ok(config)
    }

    /// The address of the server, as a URL.
    #[must_use]
    pub fn server(&self) -> &str {
        self.server.as_str().trim_end_matches('/')
    }

    /// Longest wait for an answer.
    #[must_use]
    pub fn request_timeout(&self) -> Duration {
        self.request_timeout
    }

    /// The same, with another longest wait for an answer.
    #[must_use]
    pub fn with_request_timeout(mut self, timeout: Duration) -> Config {
        self.request_timeout = timeout;
        self
    }

    /// The same, with an observer of all exchanges.
    #[must_use]
    pub fn with_tap(mut self, tap: std::sync::Arc<dyn super::Tap>) -> Config {
        self.tap = Some(tap);
        self
    }

    pub(super) fn anonymous(server: Url, origin: String) -> Config {
        Config {
            server,
            origin,
            namespace: "default".to_owned(),
            user: "nobody".to_owned(),
            login: Login::Nothing,
            tls: Tls::default(),
            impersonate: HeaderMap::new(),
            proxy: None,
            has_proxy_variable: false,
            request_timeout: REQUEST_TIMEOUT,
            in_process: None,
            tap: None,
            entries: None,
        }
    }

    /// Whether requests go past a proxy that only the environment names. As in Go, requests to this machine never go through
    /// `HTTPS_PROXY`. With a tls-server-name they cannot.
    pub(super) fn ignores_proxy_variables(&self) -> bool {
        self.proxy.is_none() && (is_loopback(&self.server) || self.tls.server_name.is_some())
    }

    /// Whether requests go past such a proxy only because of the tls-server-name. client-go sends them through it.
    pub(super) fn excludes_proxy_by_server_name(&self) -> bool {
        self.has_proxy_variable && self.ignores_proxy_variables() && !is_loopback(&self.server)
    }

    /// The time of day.
    pub(super) fn now(&self) -> SystemTime {
        if let Some(server) = &self.in_process {
            return server.now();
        }
        SystemTime::now()
    }

    pub(super) fn impersonate(&mut self, header: &str, value: &str) -> Result<(), Error> {
        let wrong = || {
            // Quoted, because the usual fault is a line break in it.
            Error::new(
                "impersonate",
                format!("{value:?}"),
                format!("cannot stand in the HTTP header {header}"),
            )
        };
        let name = HeaderName::from_bytes(header.as_bytes()).map_err(|_| wrong())?;
        self.impersonate.append(name, HeaderValue::from_str(value).map_err(|_| wrong())?);
        Ok(())
    }

    /// Anybody on the network could read them. client-go does not send them either.
    pub(super) fn keep_credentials_off_plain_http(&mut self) {
        if self.server.scheme() != "http" {
            return;
        }
        match &self.login {
            Login::Nothing => {}
            Login::Token(_) | Login::TokenFile { .. } | Login::Password { .. } | Login::Plugin(_) => {
                warn!(server = %self.server, "no credentials are sent over plain http");
                self.login = Login::Nothing;
            }
        }
        self.tls = Tls::default();
    }
}

impl fmt::Debug for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Config")
            .field("server", &self.server.as_str())
            .field("user", &self.user)
            .field("namespace", &self.namespace)
            .finish_non_exhaustive()
    }
}

fn is_loopback(server: &Url) -> bool {
    match server.host() {
        Some(Host::Domain(name)) => name == "localhost",
        Some(Host::Ipv4(address)) => address.is_loopback(),
        Some(Host::Ipv6(address)) => address.is_loopback(),
        None => false,
    }
}

/// Reads a server's address. A path in it stays: it is put before every other.
pub(super) fn parse_server(text: &str, origin: &str) -> Result<Url, Error> {
    // Valid or not, it may contain a password, which ends at the last @.
    let shown = text.rsplit('@').next().unwrap_or_default();
    let wrong = |cause: &str| Error::new("connect to", shown, format!("{cause} ({origin})"));
    let mut url = Url::parse(text).map_err(|error| match error {
        // Names beyond ASCII need tables as large as all of TLS: see deny.toml.
        url::ParseError::IdnaError => {
            wrong("not a host name: outside ASCII it is written in Punycode, xn--…")
        }
        error => wrong(&format!("not a URL: {error}")),
    })?;
    if !matches!(url.scheme(), "https" | "http") || !url.has_host() {
        return Err(wrong("the address must begin with https://, or http:// for kubectl proxy"));
    }
    if !url.username().is_empty() || url.password().is_some() {
        return Err(wrong("the address holds a user or password: put them into the kubeconfig's user"));
    }
    url.set_query(None);
    url.set_fragment(None);
    let path = url.path().trim_end_matches('/').to_owned();
    url.set_path(&path);
    Ok(url)
}

/// `Impersonate-Extra-` and the key, which may hold characters that a header name may not.
pub(super) fn extra_header(key: &str) -> String {
    format!("Impersonate-Extra-{}", utf8_percent_encode(&key.to_lowercase(), NON_ALPHANUMERIC))
}

/// The path from the root, for those who work in another directory.
pub(super) fn absolute(path: &Path) -> PathBuf {
    // Fails only for an empty path, or where the working directory is gone.
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_to_this_machine_use_no_proxy() {
        for (server, expected) in [
            ("http://localhost:8080", true),
            ("http://127.0.0.2", true),
            ("http://[::1]:6443", true),
            ("http://localhost.example", false),
            ("http://10.0.0.1", false),
            ("http://[fd00::1]", false),
        ] {
            assert_eq!(is_loopback(&Url::parse(server).expect("a URL")), expected, "{server}");
        }
    }

    #[test]
    fn a_name_beyond_ascii_is_written_in_punycode() {
        let parsed = |server| parse_server(server, "--server").map_err(|error| error.to_string());
        let url = parsed("https://xn--mnchen-3ya.example:6443").expect("Punycode");
        assert_eq!(url.host_str(), Some("xn--mnchen-3ya.example"));
        let cause = "connect to https://münchen.example: not a host name: outside ASCII it is written in Punycode, \
                     xn--… (--server)";
        assert_eq!(parsed("https://münchen.example"), Err(cause.to_owned()));
    }

    #[test]
    fn credentials_stay_off_plain_http() {
        let config = Config::new("http://127.0.0.1:8001", b"", "secret").expect("a config");
        assert!(matches!(config.login, Login::Nothing));
        assert!(!format!("{config:?}").contains("secret"));
    }
}
