//! Writes a request as a curl command that runs in bash and zsh. Nothing in this file does I/O.
//!
//! ```sh
//! curl -sS --cacert /etc/ca.crt -H "Authorization: Bearer $(cat /etc/token)" 'https://10.0.0.1:6443/api/v1/pods'
//! curl -sSN 'http://127.0.0.1:8001/api/v1/pods?watch=1&resourceVersion=1207'
//! ```
//!
//! The command never contains a secret. It reads the token from the file in which it is stored; a secret within a
//! kubeconfig is printed by `kubectl config view`, when the command runs.

use std::fmt::Write;

use http::Method;
use serde_json::Value;
use url::Url;

use super::{
    Client, JSON,
    auth::Login,
    config::{Config, KubeconfigEntries, Pem, PemSource, SERVICE_ACCOUNT_DIR},
    request::{Request, url},
};

/// Prints a kubeconfig with its credentials.
const CONFIG_VIEW: &str = "kubectl config view --raw";

/// From where a curl command reaches the API server, and with which credentials.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CurlFrom {
    /// This machine, with the address and the credentials of the client. For a token or certificate that came from
    /// neither a file nor a kubeconfig, the command uses the variable `TOKEN` or `CACERT`.
    Here,
    /// A Pod, with its service account.
    Pod,
    /// This machine, through `kubectl proxy` on its default port.
    Proxy,
}

impl Client {
    /// The curl command for a request. It contains no credential; a body is written as it is sent.
    #[must_use]
    pub fn curl(&self, request: &Request, from: CurlFrom) -> String {
        let config = &self.transport.config;
        let is_watch = request.is_watch();
        let mut line = if is_watch { "curl -sSN" } else { "curl -sS" }.to_owned();
        let is_direct = match from {
            CurlFrom::Here => config.ignores_proxy_variables(),
            CurlFrom::Pod => false,
            CurlFrom::Proxy => true,
        };
        if is_direct && config.has_proxy_variable {
            line += " --noproxy '*'";
        }
        let fixed = |address: &str| Url::parse(address).expect("a URL");
        let base = match from {
            CurlFrom::Proxy => fixed("http://127.0.0.1:8001"),
            CurlFrom::Pod => {
                line += &format!(
                    " --cacert {SERVICE_ACCOUNT_DIR}/ca.crt -H \"Authorization: Bearer $(cat {SERVICE_ACCOUNT_DIR}/token)\""
                );
                fixed("https://kubernetes.default.svc")
            }
            CurlFrom::Here => config.curl(self.transport.credentials.login(), &mut line),
        };
        for (name, value) in &config.impersonate {
            let value = String::from_utf8_lossy(value.as_bytes());
            line += &format!(" -H {}", quoted(&format!("{}: {value}", canonical(name.as_str()))));
        }
        if request.accept != JSON {
            line += &format!(" -H {}", quoted(&format!("Accept: {}", request.accept)));
        }
        if request.method != Method::GET {
            line += &format!(" -X {}", request.method);
        }
        if !request.body.is_empty() {
            let body = String::from_utf8_lossy(&request.body);
            let content_type = quoted(&format!("Content-Type: {}", request.content_type));
            line += &format!(" -H {content_type} --data-raw {}", quoted(&body));
        }
        // Encoded, as the client sends it: curl refuses spaces.
        let url = url(&base, request);
        // Otherwise curl would expand these.
        let is_glob = url.as_str().contains(['[', ']', '{', '}']);
        line + if is_glob { " -g " } else { " " } + &quoted(url.as_str())
    }

    /// A comment for the command of [`CurlFrom::Here`]: the programs that it needs besides curl, and why.
    #[must_use]
    pub fn curl_needs(&self) -> Option<&'static str> {
        let login = self.transport.credentials.login();
        if matches!(login, Login::Plugin(_)) {
            return Some("This needs kubectl and jq, to run the credential plugin of the kubeconfig");
        }
        let mut flags = String::new();
        self.transport.config.curl(login, &mut flags);
        flags
            .contains(CONFIG_VIEW)
            .then_some("This needs kubectl, to read the credentials from the kubeconfig")
    }
}

impl Config {
    /// Appends the flags for certificates and credentials. Returns the address.
    fn curl(&self, login: &Login, line: &mut String) -> Url {
        let mut base = self.server.clone();
        if let Some(name) = &self.tls.server_name {
            let (host, port) =
                (self.server.host_str().unwrap_or_default(), self.server.port_or_known_default());
            let port = port.map(|port| port.to_string()).unwrap_or_default();
            *line += &format!(" --connect-to {}", quoted(&format!("{name}:{port}:{host}:{port}")));
            // A name that is not a host was refused when the configuration was read.
            let _ = base.set_host(Some(name));
        }
        if let Some(proxy) = &self.proxy {
            *line += &format!(" --proxy {}", quoted(without_password(proxy).as_str()));
        }
        if self.tls.insecure {
            *line += " -k";
        }
        let cluster = |field: &str| self.view("clusters", &format!("cluster.{field}"));
        let user = |field: &str| self.view("users", &format!("user.{field}"));
        if let Some(authority) = &self.tls.authority {
            *line +=
                &format!(" --cacert {}", file(authority, cluster("certificate-authority-data"), "CACERT"));
        }
        if let Some((certificate, key)) = &self.tls.identity {
            *line += &format!(" --cert {}", file(certificate, user("client-certificate-data"), "CERT"));
            *line += &format!(" --key {}", file(key, user("client-key-data"), "KEY"));
        }
        let token = match login {
            Login::Nothing => None,
            Login::TokenFile { path, .. } => Some(format!("$(cat {})", word(&path.to_string_lossy()))),
            Login::Token(_) => Some(user("token").map_or("$TOKEN".to_owned(), |view| format!("$({view})"))),
            Login::Password { .. } => {
                let [name, password] = ["username", "password"].map(|field| user(field).unwrap_or_default());
                *line += &format!(" -u \"$({name}):$({password})\"");
                None
            }
            Login::Plugin(_) => Some(self.plugin()),
        };
        if let Some(token) = token {
            let _ = write!(line, " -H \"Authorization: Bearer {token}\"");
        }
        base
    }

    /// The command that prints a field of the kubeconfig entry in use.
    fn view(&self, list: &str, field: &str) -> Option<String> {
        let entries = self.entries.as_ref()?;
        let name = if list == "users" { &entries.user } else { &entries.cluster };
        let name = Value::from(&**name);
        let path = format!("{{.{list}[?(@.name=={name})].{field}}}");
        Some(format!("{} -o jsonpath={}", entries.config_view(), quoted(&path)))
    }

    /// The output of the credential plugin. The plugin's arguments and variables may be secrets, so they are read from the
    /// kubeconfig when the command runs.
    fn plugin(&self) -> String {
        let Some(entries) = &self.entries else { return "$TOKEN".to_owned() };
        let name = Value::from(&*entries.user);
        let filter = format!(
            r#".users[] | select(.name == {name}).user.exec | ["env", "KUBERNETES_EXEC_INFO={{\"apiVersion\":\"\(.apiVersion)\",\"kind\":\"ExecCredential\",\"spec\":{{\"interactive\":false}}}}"] + ((.env // []) | map("\(.name)=\(.value)")) + [.command] + (.args // []) | @sh"#
        );
        let command = format!("{} -o json | jq -r {}", entries.config_view(), quoted(&filter));
        format!("$(eval \"$({command})\" | jq -r .status.token)")
    }
}

impl KubeconfigEntries {
    fn config_view(&self) -> String {
        let files: Vec<_> = self.files.iter().map(|file| word(&file.to_string_lossy())).collect();
        match &files[..] {
            [] => CONFIG_VIEW.to_owned(),
            [file] => format!("{CONFIG_VIEW} --kubeconfig={file}"),
            files => format!("KUBECONFIG={} {CONFIG_VIEW}", files.join(":")),
        }
    }
}

/// The file of a certificate or a key. For one within a kubeconfig: the output of a command, as a file.
fn file(pem: &Pem, view: Option<String>, variable: &str) -> String {
    match (&pem.source, view) {
        (PemSource::File(path), _) => word(&path.to_string_lossy()),
        (PemSource::Inline(_), Some(view)) => format!("<({view} | base64 -d)"),
        (PemSource::Inline(_), None) => format!("\"${variable}\""),
    }
}

fn without_password(url: &Url) -> Url {
    let mut url = url.clone();
    // These fail only for a URL without a host, which is not a proxy.
    let _ = url.set_username("");
    let _ = url.set_password(None);
    url
}

/// `Impersonate-User`, out of `impersonate-user`.
fn canonical(name: &str) -> String {
    let parts = name.split('-').map(|part| match part.split_at_checked(1) {
        Some((first, rest)) => first.to_ascii_uppercase() + rest,
        None => part.to_owned(),
    });
    parts.collect::<Vec<_>>().join("-")
}

/// A text in single quotes: the shell changes nothing in it.
fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

/// A path, quoted only where that is necessary.
fn word(text: &str) -> String {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"/._-+,@%".contains(&byte);
    if text.bytes().all(is_plain) && !text.is_empty() { text.to_owned() } else { quoted(text) }
}

#[cfg(test)]
mod tests {
    use std::{fs, path::Path};

    use super::{
        super::{Env, Options},
        *,
    };

    /// The command for `GET /api?x=1`, with a cluster and a user of a kubeconfig.
    fn curl(dir: &Path, cluster: &str, user: &str, from: CurlFrom) -> String {
        let path = dir.join("kube config");
        let text = format!(
            "current-context: c\ncontexts: [{{name: c, context: {{cluster: k, user: u}}}}]\n\
             clusters: [{{name: k, cluster: {{server: 'https://h:6443/base'{cluster}}}}}]\n\
             users: [{{name: u, user: {{{user}}}}}]\n"
        );
        fs::write(&path, text).expect("a file");
        let options = Options { kubeconfig: Some(path), ..Options::default() };
        let config = Config::load(&options, &Env::default()).expect("a config");
        let client = Client::new(config).expect("a client");
        client.curl(&Request::get("/api?x=1"), from).replace(&*dir.to_string_lossy(), "DIR")
    }

    #[test]
    fn a_command_reads_each_credential_from_its_place_and_contains_none() {
        let dir = tempfile::tempdir().expect("a directory");
        let here = |cluster: &str, user: &str| curl(dir.path(), cluster, user, CurlFrom::Here);
        let view = "kubectl config view --raw --kubeconfig='DIR/kube config'";
        assert_eq!(here("", ""), "curl -sS 'https://h:6443/base/api?x=1'");
        assert_eq!(
            here("", "token: secret"),
            format!(
                r#"curl -sS -H "Authorization: Bearer $({view} -o jsonpath='{{.users[?(@.name=="u")].user.token}}')" 'https://h:6443/base/api?x=1'"#
            )
        );
        assert_eq!(
            here("", "tokenFile: \"it's\""),
            r#"curl -sS -H "Authorization: Bearer $(cat 'DIR/it'\''s')" 'https://h:6443/base/api?x=1'"#
        );
        let password = here("", "username: n, password: secret");
        assert!(password.contains(r#"{.users[?(@.name=="u")].user.password}')""#), "{password}");
        let plugin = here(
            "",
            "exec: {apiVersion: client.authentication.k8s.io/v1, command: login, args: [secret], interactiveMode: Never}",
        );
        assert!(plugin.contains(r#"| @sh')" | jq -r .status.token)""#), "{plugin}");
        let acting = here(", insecure-skip-tls-verify: true, tls-server-name: x", "token: secret, as: jane");
        let rest = acting.split_once(" -H \"").expect("a header").0;
        assert_eq!(rest, "curl -sS --connect-to 'x:6443:h:6443' -k");
        assert!(acting.ends_with(" -H 'Impersonate-User: jane' 'https://x:6443/base/api?x=1'"), "{acting}");
        let proxied = here(", proxy-url: 'http://n:secret@p:1'", "");
        assert_eq!(proxied, "curl -sS --proxy 'http://p:1/' 'https://h:6443/base/api?x=1'");
        assert!(
            [password, plugin, acting].iter().all(|line| !line.contains("secret") && !line.contains('\n'))
        );
    }

    #[test]
    fn in_a_pod_and_through_a_proxy_the_address_is_a_fixed_one() {
        let dir = tempfile::tempdir().expect("a directory");
        let from = |from| curl(dir.path(), "", "token: secret", from);
        assert_eq!(from(CurlFrom::Proxy), "curl -sS 'http://127.0.0.1:8001/api?x=1'");
        assert_eq!(
            from(CurlFrom::Pod),
            format!(
                "curl -sS --cacert {SERVICE_ACCOUNT_DIR}/ca.crt -H \"Authorization: Bearer $(cat {SERVICE_ACCOUNT_DIR}/token)\" \
                 'https://kubernetes.default.svc/api?x=1'"
            )
        );
    }

    #[test]
    fn a_command_uses_no_proxy_of_the_environment_where_the_client_uses_none() {
        let authority = rcgen::generate_simple_self_signed(vec!["h".to_owned()]).expect("a certificate");
        let authority = authority.cert.pem();
        let line = |server: &str, from: CurlFrom| {
            let mut config = Config::new(server, authority.as_bytes(), "").expect("a config");
            config.has_proxy_variable = true;
            Client::new(config).expect("a client").curl(&Request::get("/api"), from)
        };
        let direct = "curl -sS --noproxy '*'";
        let local = line("http://localhost:8080", CurlFrom::Here);
        assert!(local.starts_with(direct) && local.ends_with("'http://localhost:8080/api'"), "{local}");
        assert!(line("https://h", CurlFrom::Proxy).starts_with(direct));
        for from in [CurlFrom::Here, CurlFrom::Pod] {
            assert!(!line("https://h", from).contains("--noproxy"), "{from:?}");
        }
    }

    #[test]
    fn methods_bodies_and_media_types_are_part_of_the_command() {
        let authority = rcgen::generate_simple_self_signed(vec!["h".to_owned()]).expect("a certificate");
        let authority = authority.cert.pem();
        let mut config = Config::new("https://h", authority.as_bytes(), "secret").expect("a config");
        config.has_proxy_variable = false;
        let client = Client::new(config).expect("a client");
        let mut request = Request::get("/a[b]").sends(Method::PATCH, "a/b", b"{\"x\":\"it's\"}".to_vec());
        request.accept = "c/d".into();
        assert_eq!(
            client.curl(&request, CurlFrom::Proxy),
            "curl -sS -H 'Accept: c/d' -X PATCH -H 'Content-Type: a/b' --data-raw '{\"x\":\"it'\\''s\"}' -g \
             'http://127.0.0.1:8001/a[b]'"
        );
        let watch = Request::get("/pods?watch=true");
        assert!(client.curl(&watch, CurlFrom::Proxy).starts_with("curl -sSN "));
        let here = client.curl(&watch, CurlFrom::Here);
        assert!(here.contains("--cacert \"$CACERT\" -H \"Authorization: Bearer $TOKEN\""), "{here}");
    }
}
