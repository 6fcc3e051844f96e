//! kubeconfig files, right and wrong.

use std::fs;

use tempfile::TempDir;

use super::*;

/// Files in a directory, by name and content.
fn files(contents: &[(&str, &str)]) -> (TempDir, Vec<PathBuf>) {
    let dir = tempfile::tempdir().expect("a directory");
    let mut paths = Vec::new();
    for (name, content) in contents {
        let path = dir.path().join(name);
        fs::write(&path, content).expect("a file");
        paths.push(path);
    }
    (dir, paths)
}

fn read(cluster: &str, user: &str) -> Result<Config, String> {
    let text = format!(
        "current-context: c\ncontexts: [{{name: c, context: {{cluster: k, user: u}}}}]\n\
         clusters: [{{name: k, cluster: {cluster}}}]\nusers: [{{name: u, user: {user}}}]\n"
    );
    read_text(&text, &Options::default())
}

fn read_text(text: &str, options: &Options) -> Result<Config, String> {
    let (dir, paths) = files(&[("kubeconfig", text)]);
    let config = Kubeconfig::read(&paths).and_then(|kubeconfig| kubeconfig.config(options));
    let dir = format!("{}/", dir.path().display());
    config.map_err(|error| error.to_string().replace(&dir, ""))
}

const FINE: &str = "{server: 'https://h'}";

#[test]
fn the_first_of_several_files_defines() {
    let (dir, paths) = files(&[
        ("one", "contexts: [{name: c, context: {cluster: k, user: u, namespace: shop}}]\nusers: null\n"),
        ("two", "current-context: c\nclusters: [{name: k, cluster: {server: 'https://two/prefix/'}}]\n"),
        (
            "three",
            "current-context: other\nclusters: [{name: k, cluster: {server: 'https://three'}}]\n\
             users: [{name: u, user: {tokenFile: tokens/u}}]\n",
        ),
    ]);
    let config = Kubeconfig::read(&paths).and_then(|kubeconfig| kubeconfig.config(&Options::default()));
    let config = config.expect("a config");
    assert_eq!(config.server.as_str(), "https://two/prefix");
    assert_eq!(config.namespace, "shop");
    assert_eq!(config.user, "user u of context c");
    match &config.login {
        Login::TokenFile { path, first: None } => assert_eq!(*path, dir.path().join("tokens/u")),
        other => panic!("{other:?}"),
    }
}

#[test]
fn flags_choose_another_context_cluster_or_user() {
    let text = "current-context: a\n\
        contexts: [{name: a, context: {cluster: a, user: a}}, {name: b, context: {cluster: b, user: b}}]\n\
        clusters: [{name: a, cluster: {server: 'https://a'}}, {name: b, cluster: {server: 'https://b'}}]\n\
        users: [{name: a, user: {token: a}}, {name: b, user: {token: b}}]\n";
    let some = |name: &str| Some(name.to_owned());
    for (context, cluster, user, server, who) in [
        (None, None, None, "https://a/", "user a of context a"),
        (some("b"), None, None, "https://b/", "user b of context b"),
        (None, some("b"), None, "https://b/", "user a of context a"),
        (None, None, some("b"), "https://a/", "user b of context a"),
    ] {
        let options = Options { context, cluster, user, ..Options::default() };
        let config = read_text(text, &options).expect("a config");
        assert_eq!((config.server.as_str(), config.user.as_str()), (server, who));
    }
    let without_context = text.replace("current-context: a", "");
    let options = Options { cluster: some("b"), user: some("b"), ..Options::default() };
    let config = read_text(&without_context, &options).expect("a config");
    assert_eq!((config.server.as_str(), config.user.as_str()), ("https://b/", "user b"));
}

#[test]
fn a_token_or_certificate_wins_over_a_plugin_and_data_over_a_file() {
    let exec = "exec: {apiVersion: client.authentication.k8s.io/v1beta1, command: ./login, args: [a]}";
    let config = read(FINE, &format!("{{token: t, {exec}}}")).expect("a config");
    assert!(matches!(config.login, Login::Token(_)));
    let config = read(FINE, &format!("{{{exec}}}")).expect("a config");
    match &config.login {
        Login::Plugin(plugin) => {
            assert!(plugin.command.ends_with("login") && plugin.command.is_absolute());
            assert_eq!(plugin.terminal, Terminal::IfAvailable);
        }
        other => panic!("{other:?}"),
    }
    let certificate = "client-certificate-data: Q0E=, client-key-data: Q0E=";
    let config = read(FINE, &format!("{{{certificate}, {exec}}}")).expect("a config");
    assert!(matches!(config.login, Login::Nothing) && config.tls.identity.is_some());
    let config = read(FINE, &format!("{{token: t, {certificate}}}")).expect("a config");
    assert!(matches!(config.login, Login::Token(_)) && config.tls.identity.is_some());
    let cluster = "{server: 'https://h', certificate-authority: x, certificate-authority-data: 'Q0\n E='}";
    let config = read(cluster, "{}").expect("a config");
    assert_eq!(config.tls.authority.expect("an authority").read().expect("PEM"), b"CA");
}

/// The name of the server was looked up on this machine.
#[test]
fn a_socks_proxy_looks_up_the_name_of_the_server() {
    for (proxy, expected) in [("socks5", "socks5h"), ("socks5h", "socks5h"), ("http", "http")] {
        let cluster = format!("{{server: 'https://h', proxy-url: '{proxy}://p:1080'}}");
        let config = read(&cluster, "{}").expect("a config");
        assert_eq!(config.proxy.expect("a proxy").scheme(), expected);
    }
}

/// Requests went to the address in tls-server-name, with the token, instead of to the server.
#[test]
fn a_tls_server_name_is_a_name_and_no_other_address() {
    let named = |host, name| {
        let config = read(&format!("{{server: 'https://{host}', tls-server-name: '{name}'}}"), "{}");
        config.map(|config| config.tls.server_name)
    };
    let cause = "must be a name, not another IP address: put the address into server";
    let line = format!("read kubeconfig kubeconfig: clusters[k].cluster.tls-server-name: {cause}");
    for address in ["10.0.0.2", "fd00::2", "[fd00::2]", "0x7f.1", "2130706433"] {
        assert_eq!(named("10.0.0.1", address), Err(line.clone()), "{address}");
    }
    for (host, same) in [("10.0.0.1", "10.0.0.1"), ("[fd00::1]:6443", "fd00::1"), ("h", "H")] {
        assert_eq!(named(host, same), Ok(None), "{same}");
    }
    assert_eq!(named("10.0.0.1", "kubernetes.default"), Ok(Some("kubernetes.default".to_owned())));
}

#[test]
fn a_plugin_gets_the_cluster_where_it_asks() {
    let cluster = "{server: 'https://h', certificate-authority-data: Q0E=, tls-server-name: n, extensions: \
        [{name: client.authentication.k8s.io/exec, extension: {audience: me}}]}";
    let exec = "{exec: {apiVersion: client.authentication.k8s.io/v1, command: login, interactiveMode: Never, \
        provideClusterInfo: true}}";
    match read(cluster, exec).expect("a config").login {
        Login::Plugin(plugin) => assert_eq!(
            plugin.cluster.0,
            json!({ "server": "https://h", "tls-server-name": "n", "certificate-authority-data": "Q0E=",
                "config": { "audience": "me" } })
        ),
        other => panic!("{other:?}"),
    }
}

#[test]
fn impersonation_sends_headers() {
    let user = "{as: jane, as-uid: '7', as-groups: [a, b], as-user-extra: {Example.com/Scope: [x]}}";
    let config = read(FINE, user).expect("a config");
    let headers: Vec<_> =
        config.impersonate.iter().map(|(name, value)| format!("{name}: {value:?}")).collect();
    assert_eq!(
        headers,
        [
            r#"impersonate-user: "jane""#,
            r#"impersonate-uid: "7""#,
            r#"impersonate-group: "a""#,
            r#"impersonate-group: "b""#,
            r#"impersonate-extra-example%2ecom%2fscope: "x""#,
        ]
    );
}

#[test]
fn every_wrong_field_is_named_and_no_value_is_quoted() {
    let cluster = |cluster| read(cluster, "{}");
    let user = |user| read(FINE, user);
    let exec = |more| read(FINE, &format!("{{exec: {{{more}}}}}"));
    for (config, error) in [
        (cluster("{}"), "clusters[k].cluster.server: missing: it is the address, https://host:port"),
        (cluster("{server: 7}"), "clusters[k].cluster.server: must be text: put it in quotes"),
        (
            cluster("{server: 'https://h', insecure-skip-tls-verify: 'yes'}"),
            "clusters[k].cluster.insecure-skip-tls-verify: must be true or false, without quotes",
        ),
        (
            cluster("{server: 'https://h', insecure-skip-tls-verify: true, certificate-authority: x}"),
            "clusters[k].cluster.insecure-skip-tls-verify: excludes certificate-authority: keep the authority, and drop this",
        ),
        (
            cluster("{server: 'https://h', certificate-authority-data: '%%'}"),
            "clusters[k].cluster.certificate-authority-data: not base64 of a PEM file",
        ),
        (
            cluster("{server: 'https://h', proxy-url: 'ftp://user:secret@h'}"),
            "clusters[k].cluster.proxy-url: not the URL of a proxy: it begins with http://, https:// or socks5://",
        ),
        (
            cluster("{server: 'https://h', proxy-url: 'http://h', tls-server-name: n}"),
            "clusters[k].cluster.tls-server-name: cannot be had through a proxy-url: drop one of them",
        ),
        (
            cluster("{server: 'https://h', tls-server-name: 'a b'}"),
            "clusters[k].cluster.tls-server-name: not a host name",
        ),
        (
            cluster("{server: 'https://h', tls-server-name: '*.h'}"),
            "clusters[k].cluster.tls-server-name: not a host name",
        ),
        (user("{token: 123456}"), "users[u].user.token: must be text: put it in quotes"),
        (user("{password: [secret]}"), "users[u].user.password: must be text: put it in quotes"),
        (cluster("[]"), "clusters[k].cluster: must have fields, NAME: VALUE"),
        (user("x"), "users[u].user: must have fields, NAME: VALUE"),
        (user("{exec: login}"), "users[u].user.exec: must have fields, NAME: VALUE"),
        (
            user("{as: a, as-user-extra: [x]}"),
            "users[u].user.as-user-extra: must have fields, NAME: [VALUE, …]: put each in quotes",
        ),
        (
            user("{as: a, as-user-extra: {7: [x]}}"),
            "users[u].user.as-user-extra: must have fields, NAME: [VALUE, …]: put each in quotes",
        ),
        (user("{password: secret}"), "users[u].user.username: missing, while there is a password"),
        (user(r#"{token: "sec\nret"}"#), "users[u].user.token: cannot stand in an HTTP header"),
        (
            user("{token: secret, username: me}"),
            "users[u].user.username: there is also a token, and one request cannot show both: keep one",
        ),
        (
            user("{client-certificate: x}"),
            "users[u].user.client-key: missing, while there is a client-certificate",
        ),
        (
            user("{client-key-data: c2VjcmV0}"),
            "users[u].user.client-certificate: missing, while there is a client-key",
        ),
        (
            user("{auth-provider: {name: gcp}}"),
            "users[u].user.auth-provider: Kubernetes 1.26 dropped these: use exec, with the plugin of your cloud",
        ),
        (
            user("{as-groups: [a]}"),
            "users[u].user.as: missing, while there is a uid, group or extra to act as",
        ),
        (
            user("{as: a, as-groups: [1]}"),
            "users[u].user.as-groups: must be a list of texts: put each in quotes",
        ),
        (
            exec("command: x, apiVersion: v1"),
            "users[u].user.exec.apiVersion: must be client.authentication.k8s.io/v1 or …/v1beta1",
        ),
        (
            exec("apiVersion: client.authentication.k8s.io/v1"),
            "users[u].user.exec.command: missing: it is the program to run",
        ),
        (
            exec("command: x, apiVersion: client.authentication.k8s.io/v1"),
            "users[u].user.exec.interactiveMode: must be Never, IfAvailable or Always",
        ),
        (
            exec(
                "command: x, apiVersion: client.authentication.k8s.io/v1, interactiveMode: Never, env: {A: secret}",
            ),
            "users[u].user.exec.env: must be a list: each line under it begins with -",
        ),
        (
            exec(
                "command: x, apiVersion: client.authentication.k8s.io/v1, interactiveMode: Never, env: [{value: secret}]",
            ),
            "users[u].user.exec.env[0].name: missing: it is an environment variable's",
        ),
    ] {
        assert_eq!(config.map(|_| ()), Err(format!("read kubeconfig kubeconfig: {error}")));
    }
}

#[test]
fn a_wrong_file_or_choice_is_named() {
    let wrong = |text| read_text(text, &Options::default()).map(|_| ());
    let line = |cause: &str| Err(format!("read kubeconfig kubeconfig: {cause}"));
    assert_eq!(
        wrong(""),
        line("no current-context: choose one with --context; the kubeconfig has no contexts")
    );
    assert_eq!(wrong("just text"), line("not a kubeconfig: no fields at its top"));
    assert_eq!(
        wrong("contexts: [{name: a}, {name: b}]"),
        line("no current-context: choose one with --context; the kubeconfig has: a, b")
    );
    assert_eq!(
        wrong("current-context: x"),
        line("there is no context \"x\"; the kubeconfig has no contexts")
    );
    let context = "current-context: c\ncontexts: [{name: c, context: {cluster: k, user: u}}]\n";
    assert_eq!(wrong(context), line("there is no cluster \"k\"; the kubeconfig has no clusters"));
    let cluster = format!("{context}clusters: [{{name: k, cluster: {FINE}}}]\n");
    assert_eq!(wrong(&cluster), line("there is no user \"u\"; the kubeconfig has no users"));
    assert_eq!(
        wrong("current-context: c\ncontexts: [{name: c}]"),
        line("contexts[c].context.cluster: missing: name a cluster, or give --cluster")
    );
    assert_eq!(
        wrong("current-context: c\ncontexts: [c]"),
        line("contexts[0]: must have fields, NAME: VALUE")
    );
    let error = wrong("a: [").expect_err("not YAML");
    assert!(error.starts_with("read kubeconfig kubeconfig: not YAML: "), "{error}");
}

/// A password was shown where the address was wrong for another reason than the password.
#[test]
fn an_address_is_checked_and_its_password_not_shown() {
    let cluster =
        |server| read(&format!("{{server: '{server}'}}"), "{}").map(|config| config.server.to_string());
    assert_eq!(cluster("https://h:6443/k8s/c/"), Ok("https://h:6443/k8s/c".to_owned()));
    for (server, error) in [
        ("h:6443", "h:6443: the address must begin with https://, or http:// for kubectl proxy"),
        ("/path", "/path: not a URL: relative URL without a base"),
        ("https://me@h", "h: the address holds a user or password: put them into the kubeconfig's user"),
        (
            "https://me:secret@h",
            "h: the address holds a user or password: put them into the kubeconfig's user",
        ),
        ("https://me:s@cret@h:99999", "h:99999: not a URL: invalid port number"),
        ("ftp://me:secret@h", "h: the address must begin with https://, or http:// for kubectl proxy"),
        ("me:secret@h:6443", "h:6443: the address must begin with https://, or http:// for kubectl proxy"),
    ] {
        assert_eq!(cluster(server), Err(format!("connect to {error} (cluster k in kubeconfig)")));
    }
}
