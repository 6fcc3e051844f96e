//! Reads the cluster, the user and the namespace from kubeconfig files.
//!
//! ```yaml
//! current-context: local
//! contexts: [{name: local, context: {cluster: local, user: admin, namespace: default}}]
//! clusters: [{name: local, cluster: {server: "https://127.0.0.1:6443", certificate-authority: ca.crt}}]
//! users:    [{name: admin, user: {tokenFile: admin.token}}]
//! ```
//!
//! Of several files, the first one that has a context, cluster or user defines the whole entry. A relative path starts
//! at the directory of its file. Every field is read by its path, so that errors can name file and field. The errors of serde
//! would quote the value, which may be a secret. See
//! <https://kubernetes.io/docs/concepts/configuration/organize-cluster-access-kubeconfig/>.

#[cfg(test)]
mod tests;

use std::{
    collections::BTreeMap,
    net::IpAddr,
    path::{Path, PathBuf},
};

use base64::{Engine, engine::general_purpose::STANDARD as BASE64};
use rustls::pki_types::ServerName;
use serde::Deserialize;
use serde_json::json;
use tracing::warn;
use url::{Host, Url};
use yaml_serde::Value;

use super::{
    auth::{self, Credential, Login, SecretString},
    config::{self, Config, KubeconfigEntries, Options, Pem, PemSource},
    error::Error,
    exec::{Hidden, Plugin, Terminal},
};

/// The `exec` extension of a cluster. A plugin with `provideClusterInfo` gets it.
const EXEC_EXTENSION: &str = "client.authentication.k8s.io/exec";

/// The kubeconfig files, in order of precedence.
pub(super) struct Kubeconfig {
    files: Vec<(PathBuf, Value)>,
}

impl Kubeconfig {
    pub(super) fn read(paths: &[PathBuf]) -> Result<Kubeconfig, Error> {
        let mut files = Vec::new();
        for path in paths {
            let wrong = |cause: String| Error::new("read", format!("kubeconfig {}", path.display()), cause);
            let text = auth::read(path).map_err(|error| wrong(error.to_string()))?;
            let value: Value =
                yaml_serde::from_slice(&text).map_err(|error| wrong(format!("not YAML: {error}")))?;
            if !value.is_mapping() && !value.is_null() {
                return Err(wrong("not a kubeconfig: no fields at its top".to_owned()));
            }
            // A printed curl command names these files, and may run in another directory.
            files.push((config::absolute(path), value));
        }
        Ok(Kubeconfig { files })
    }

    /// The cluster and user that `options` choose, or else the current context.
    pub(super) fn config(&self, options: &Options) -> Result<Config, Error> {
        let context = self.context(options)?;
        let (cluster_name, cluster) = self.chosen("cluster", options.cluster.as_deref(), context.as_ref())?;
        let mut config = cluster_config(&cluster_name, &cluster)?;
        if let Some(namespace) =
            context.as_ref().map(|context| context.text("namespace")).transpose()?.flatten()
        {
            config.namespace = namespace;
        }
        // Without a user, requests have no credentials, which is enough for kubectl proxy.
        let files = self.files.iter().map(|(path, _)| path.clone()).collect();
        let mut entries = KubeconfigEntries { files, cluster: cluster_name, user: String::new() };
        let has_user = match &context {
            Some(context) => context.text("user")?.is_some(),
            None => false,
        };
        if options.user.is_some() || has_user {
            let (name, user) = self.chosen("user", options.user.as_deref(), context.as_ref())?;
            log_in(&mut config, &user, &cluster)?;
            config.user = match &context {
                Some(context) => format!("user {name} of {}", context.title()),
                None => format!("user {name}"),
            };
            entries.user = name;
        }
        config.entries = Some(entries);
        Ok(config)
    }

    fn context(&self, options: &Options) -> Result<Option<Node<'_>>, Error> {
        let name = match &options.context {
            Some(name) => name.clone(),
            None => match self.current_context()? {
                Some(name) => name,
                // The flags for cluster and user replace a context.
                None if options.cluster.is_some() => return Ok(None),
                None => {
                    let cause =
                        format!("no current-context: choose one with --context; {}", self.names("context")?);
                    return Err(self.wrong(&cause));
                }
            },
        };
        self.entry("context", &name).map(Some)
    }

    fn current_context(&self) -> Result<Option<String>, Error> {
        for root in self.roots() {
            if let Some(name) = root.text("current-context")? {
                return Ok(Some(name));
            }
        }
        Ok(None)
    }

    /// The `cluster` or `user` that the flag names, or else the context.
    fn chosen(
        &self,
        what: &str,
        flag: Option<&str>,
        context: Option<&Node<'_>>,
    ) -> Result<(String, Node<'_>), Error> {
        let name = match (flag, context) {
            (Some(name), _) => name.to_owned(),
            (None, Some(context)) => match context.text(what)? {
                Some(name) => name,
                None => return Err(context.wrong(what, &format!("missing: name a {what}, or give --{what}"))),
            },
            (None, None) => return Err(self.wrong(&format!("no context: give --context or --{what}"))),
        };
        let entry = self.entry(what, &name)?;
        Ok((name, entry))
    }

    /// The first `- name: NAME` in the list of contexts, clusters or users.
    fn entry(&self, what: &str, name: &str) -> Result<Node<'_>, Error> {
        for root in self.roots() {
            for item in root.list(&format!("{what}s"))? {
                item.must_have_fields()?;
                if item.text("name")?.as_deref() == Some(name) {
                    // `- name: x` alone is an empty entry.
                    let value = item.value.get(what).unwrap_or(&Value::Null);
                    let path = format!("{what}s[{name}].{what}");
                    let node = Node { file: item.file, path, value };
                    node.must_have_fields()?;
                    return Ok(node);
                }
            }
        }
        Err(self.wrong(&format!("there is no {what} {name:?}; {}", self.names(what)?)))
    }

    fn names(&self, what: &str) -> Result<String, Error> {
        let mut names = Vec::new();
        for root in self.roots() {
            for item in root.list(&format!("{what}s"))? {
                names.extend(item.text("name")?);
            }
        }
        Ok(if names.is_empty() {
            format!("the kubeconfig has no {what}s")
        } else {
            format!("the kubeconfig has: {}", names.join(", "))
        })
    }

    fn roots(&self) -> impl Iterator<Item = Node<'_>> {
        self.files.iter().map(|(file, value)| Node { file, path: String::new(), value })
    }

    fn wrong(&self, cause: &str) -> Error {
        let files: Vec<_> = self.files.iter().map(|(path, _)| path.display().to_string()).collect();
        Error::new("read", format!("kubeconfig {}", files.join(":")), cause)
    }
}

fn cluster_config(name: &str, cluster: &Node<'_>) -> Result<Config, Error> {
    let origin = format!("cluster {name} in {}", cluster.file.display());
    let Some(server) = cluster.text("server")? else {
        return Err(cluster.wrong("server", "missing: it is the address, https://host:port"));
    };
    let mut config = Config::anonymous(config::parse_server(&server, &origin)?, origin);
    config.tls.authority = cluster.pem("certificate-authority")?;
    config.tls.server_name = server_name(cluster, &config.server)?;
    config.tls.insecure = cluster.flag("insecure-skip-tls-verify")?;
    if let Some(proxy) = cluster.text("proxy-url")? {
        let cause = "not the URL of a proxy: it begins with http://, https:// or socks5://";
        let mut proxy = Url::parse(&proxy).map_err(|_| cluster.wrong("proxy-url", cause))?;
        if !matches!(proxy.scheme(), "http" | "https" | "socks5" | "socks5h") {
            return Err(cluster.wrong("proxy-url", cause));
        }
        if proxy.scheme() == "socks5" {
            // As in Go, the proxy looks up the name of the server: only its network may know that name.
            let _ = proxy.set_scheme("socks5h");
        }
        config.proxy = Some(proxy);
    }
    if config.tls.insecure {
        if config.tls.authority.is_some() {
            let cause = "excludes certificate-authority: keep the authority, and drop this";
            return Err(cluster.wrong("insecure-skip-tls-verify", cause));
        }
        warn!(server, "insecure-skip-tls-verify: anybody can pretend to be this API server");
    }
    if config.tls.server_name.is_some() && config.proxy.is_some() {
        return Err(cluster.wrong("tls-server-name", "cannot be had through a proxy-url: drop one of them"));
    }
    Ok(config)
}

/// The name in the server's certificate. `None`: it is the host of the server's address.
fn server_name(cluster: &Node<'_>, server: &Url) -> Result<Option<String>, Error> {
    const FIELD: &str = "tls-server-name";
    let Some(name) = cluster.text(FIELD)? else { return Ok(None) };
    let host = match name.parse::<IpAddr>() {
        Ok(IpAddr::V4(address)) => Ok(Host::Ipv4(address)),
        Ok(IpAddr::V6(address)) => Ok(Host::Ipv6(address)),
        Err(_) => Host::parse(&name),
    };
    match host {
        Ok(host) if server.host().is_some_and(|same| same.to_owned() == host) => Ok(None),
        Ok(Host::Domain(domain)) if ServerName::try_from(domain.as_str()).is_ok() => Ok(Some(name)),
        // The name becomes the host in the URL of every request. Our resolver leads a host name to the server, but an
        // IP address is not resolved: requests, and the token with them, would go to that address instead.
        Ok(Host::Ipv4(_) | Host::Ipv6(_)) => {
            Err(cluster.wrong(FIELD, "must be a name, not another IP address: put the address into server"))
        }
        Ok(Host::Domain(_)) | Err(_) => Err(cluster.wrong(FIELD, "not a host name")),
    }
}

fn log_in(config: &mut Config, user: &Node<'_>, cluster: &Node<'_>) -> Result<(), Error> {
    if user.child("auth-provider").is_some() {
        return Err(user.wrong(
            "auth-provider",
            "Kubernetes 1.26 dropped these: use exec, with the plugin of your cloud",
        ));
    }
    config.tls.identity = match (user.pem("client-certificate")?, user.pem("client-key")?) {
        (Some(certificate), Some(key)) => Some((certificate, key)),
        (None, None) => None,
        (Some(_), None) => {
            return Err(user.wrong("client-key", "missing, while there is a client-certificate"));
        }
        (None, Some(_)) => {
            return Err(user.wrong("client-certificate", "missing, while there is a client-key"));
        }
    };
    config.login = login(user, cluster)?;
    // As in client-go, no plugin runs beside a certificate of the user. It might have another one, of another user.
    if config.tls.identity.is_some() && matches!(config.login, Login::Plugin(_)) {
        config.login = Login::Nothing;
    }
    impersonation(config, user)
}

fn login(user: &Node<'_>, cluster: &Node<'_>) -> Result<Login, Error> {
    let token = user.text("token")?;
    if let Some(token) = &token {
        Credential::bearer(token).map_err(|cause| user.wrong("token", &cause))?;
    }
    let token = token.map(SecretString);
    let token_file = user.path("tokenFile")?;
    let username = user.text("username")?;
    let password = user.text("password")?;
    if username.is_some() && (token.is_some() || token_file.is_some()) {
        return Err(
            user.wrong("username", "there is also a token, and one request cannot show both: keep one")
        );
    }
    // As in client-go, `token` is used at first, and `tokenFile` from then on. With either, no plugin runs.
    if let Some(path) = token_file {
        return Ok(Login::TokenFile { path, first: token });
    }
    if let Some(token) = token {
        return Ok(Login::Token(token));
    }
    if username.is_none() && password.is_some() {
        return Err(user.wrong("username", "missing, while there is a password"));
    }
    if let Some(username) = username {
        return Ok(Login::Password { username, password: SecretString(password.unwrap_or_default()) });
    }
    match user.fields("exec")? {
        Some(exec) => plugin(&exec, cluster).map(|plugin| Login::Plugin(Box::new(plugin))),
        None => Ok(Login::Nothing),
    }
}

fn impersonation(config: &mut Config, user: &Node<'_>) -> Result<(), Error> {
    let act_as = user.text("as")?;
    if let Some(name) = &act_as {
        config.impersonate("Impersonate-User", name)?;
    }
    if let Some(uid) = user.text("as-uid")? {
        config.impersonate("Impersonate-Uid", &uid)?;
    }
    for group in user.texts("as-groups")? {
        config.impersonate("Impersonate-Group", &group)?;
    }
    let must = "must have fields, NAME: [VALUE, …]: put each in quotes";
    let extra: Option<BTreeMap<String, Option<Vec<String>>>> = user.read("as-user-extra", must)?;
    for (key, values) in extra.into_iter().flatten() {
        for value in values.into_iter().flatten() {
            config.impersonate(&config::extra_header(&key), &value)?;
        }
    }
    if act_as.is_none() && !config.impersonate.is_empty() {
        return Err(user.wrong("as", "missing, while there is a uid, group or extra to act as"));
    }
    Ok(())
}

fn plugin(exec: &Node<'_>, cluster: &Node<'_>) -> Result<Plugin, Error> {
    let api_version = exec.text("apiVersion")?.unwrap_or_default();
    let v1 = api_version == "client.authentication.k8s.io/v1";
    if !v1 && api_version != "client.authentication.k8s.io/v1beta1" {
        return Err(exec.wrong("apiVersion", "must be client.authentication.k8s.io/v1 or …/v1beta1"));
    }
    let Some(command) = exec.text("command")? else {
        return Err(exec.wrong("command", "missing: it is the program to run"));
    };
    let mode = exec.text("interactiveMode")?;
    let terminal = match mode.as_deref() {
        Some("Never") => Terminal::Never,
        Some("IfAvailable") => Terminal::IfAvailable,
        Some("Always") => Terminal::Always,
        None if !v1 => Terminal::IfAvailable,
        Some(_) | None => return Err(exec.wrong("interactiveMode", "must be Never, IfAvailable or Always")),
    };
    let mut env = Vec::new();
    for variable in exec.list("env")? {
        let Some(name) = variable.text("name")? else {
            return Err(variable.wrong("name", "missing: it is an environment variable's"));
        };
        env.push((name, variable.text("value")?.unwrap_or_default()));
    }
    let provides = exec.flag("provideClusterInfo")?;
    Ok(Plugin {
        api_version,
        // A name without a slash is looked up in PATH, as in a shell.
        command: if command.contains('/') { exec.resolve(&command) } else { command.into() },
        args: Hidden(exec.texts("args")?),
        env: Hidden(env),
        terminal,
        cluster: Hidden(if provides { cluster_info(cluster)? } else { serde_json::Value::Null }),
        install_hint: exec.text("installHint")?.unwrap_or_default(),
    })
}

/// `spec.cluster` of the ExecCredential in KUBERNETES_EXEC_INFO.
fn cluster_info(cluster: &Node<'_>) -> Result<serde_json::Value, Error> {
    let mut info = json!({ "server": cluster.text("server")? });
    for field in ["tls-server-name", "proxy-url"] {
        if let Some(text) = cluster.text(field)? {
            info[field] = text.into();
        }
    }
    if cluster.flag("insecure-skip-tls-verify")? {
        info["insecure-skip-tls-verify"] = true.into();
    }
    if let Some(authority) = cluster.pem("certificate-authority")? {
        let pem = authority.read().map_err(|cause| cluster.wrong("certificate-authority", &cause))?;
        info["certificate-authority-data"] = BASE64.encode(pem).into();
    }
    for extension in cluster.list("extensions")? {
        if extension.text("name")?.as_deref() == Some(EXEC_EXTENSION)
            && let Some(content) = extension.child("extension")
        {
            let cause = "cannot be given to a plugin, as it is no JSON";
            let content =
                serde_json::to_value(content.value).map_err(|_| extension.wrong("extension", cause))?;
            info["config"] = content;
        }
    }
    Ok(info)
}

/// One value in a file, and its path.
struct Node<'a> {
    file: &'a Path,
    path: String,
    value: &'a Value,
}

impl<'a> Node<'a> {
    /// `context local`, out of `contexts[local].context`.
    fn title(&self) -> String {
        let name = self
            .path
            .split_once('[')
            .and_then(|(_, rest)| rest.rsplit_once(']'))
            .map_or("", |(name, _)| name);
        format!("context {name}")
    }

    fn at(&self, field: &str) -> String {
        if self.path.is_empty() { field.to_owned() } else { format!("{}.{field}", self.path) }
    }

    fn wrong(&self, field: &str, cause: &str) -> Error {
        let cause = format!("{}: {cause}", self.at(field));
        Error::new("read", format!("kubeconfig {}", self.file.display()), cause)
    }

    /// An error about the value as a whole.
    fn must(&self, cause: &str) -> Error {
        let cause = format!("{}: {cause}", self.path);
        Error::new("read", format!("kubeconfig {}", self.file.display()), cause)
    }

    /// Rejects a text or a list, which would pass for a mapping without fields.
    fn must_have_fields(&self) -> Result<(), Error> {
        if self.value.is_mapping() || self.value.is_null() {
            return Ok(());
        }
        Err(self.must("must have fields, NAME: VALUE"))
    }

    /// The field, unless it is absent or null. It must have fields of its own.
    fn fields(&self, field: &str) -> Result<Option<Node<'a>>, Error> {
        let child = self.child(field);
        if let Some(child) = &child {
            child.must_have_fields()?;
        }
        Ok(child)
    }

    /// The field, unless it is absent or null.
    fn child(&self, field: &str) -> Option<Node<'a>> {
        let value = self.value.get(field).filter(|value| !value.is_null())?;
        Some(Node { file: self.file, path: self.at(field), value })
    }

    /// The value of a field, unless it is absent or null. `must` says what it has to be.
    fn read<T: Deserialize<'a>>(&self, field: &str, must: &str) -> Result<Option<T>, Error> {
        let Some(child) = self.child(field) else { return Ok(None) };
        T::deserialize(child.value).map(Some).map_err(|_| child.must(must))
    }

    /// The text of a field, unless it is absent or empty: Go does not distinguish the two.
    fn text(&self, field: &str) -> Result<Option<String>, Error> {
        let text: Option<String> = self.read(field, "must be text: put it in quotes")?;
        Ok(text.filter(|text| !text.is_empty()))
    }

    fn flag(&self, field: &str) -> Result<bool, Error> {
        Ok(self.read(field, "must be true or false, without quotes")?.unwrap_or_default())
    }

    fn texts(&self, field: &str) -> Result<Vec<String>, Error> {
        Ok(self.read(field, "must be a list of texts: put each in quotes")?.unwrap_or_default())
    }

    fn list(&self, field: &str) -> Result<Vec<Node<'a>>, Error> {
        let Some(child) = self.child(field) else { return Ok(Vec::new()) };
        let Some(items) = child.value.as_sequence() else {
            return Err(self.wrong(field, "must be a list: each line under it begins with -"));
        };
        let item = |(index, value)| Node { file: self.file, path: format!("{}[{index}]", child.path), value };
        Ok(items.iter().enumerate().map(item).collect())
    }

    fn resolve(&self, path: &str) -> PathBuf {
        self.file.parent().unwrap_or(Path::new("")).join(path)
    }

    fn path(&self, field: &str) -> Result<Option<PathBuf>, Error> {
        Ok(self.text(field)?.map(|path| self.resolve(&path)))
    }

    /// `FIELD-data`, in base64, or else the file that `FIELD` names.
    fn pem(&self, field: &str) -> Result<Option<Pem>, Error> {
        let data_field = format!("{field}-data");
        let source = match self.text(&data_field)? {
            Some(data) => {
                let data: String = data.split_whitespace().collect();
                let pem =
                    BASE64.decode(data).map_err(|_| self.wrong(&data_field, "not base64 of a PEM file"))?;
                (data_field, PemSource::Inline(pem))
            }
            None => match self.path(field)? {
                Some(path) => (field.to_owned(), PemSource::File(path)),
                None => return Ok(None),
            },
        };
        let (field, source) = source;
        Ok(Some(Pem { field: format!("{} in {}", self.at(&field), self.file.display()), source }))
    }
}
