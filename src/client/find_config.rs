//! Finds the API server and the credentials, from flags, environment and files.
//!
//! ```text
//! --service-account-dir DIR   KUBERNETES_SERVICE_HOST, KUBERNETES_SERVICE_PORT and DIR/{token,ca.crt,namespace}
//! --kubeconfig FILE           that file
//! KUBECONFIG=A:B              those files, merged
//! in a pod                    as the first, in /var/run/secrets/kubernetes.io/serviceaccount
//! otherwise                   ~/.kube/config
//! ```
//!
//! The first that applies is taken. See <https://kubernetes.io/docs/tasks/run-application/access-api-from-pod/>.

use std::{
    env, io,
    net::Ipv6Addr,
    path::{Path, PathBuf},
    time::Duration,
};

use tracing::warn;

use super::{
    auth::{self, Login},
    config::{Config, Env, Options, Pem, PemSource, SERVICE_ACCOUNT_DIR, absolute, parse_server},
    error::Error,
    kubeconfig::Kubeconfig,
};

impl Options {
    /// `--context "$CONTEXT"` in a script where there is no such variable.
    fn without_empty(&self) -> Options {
        let text = |value: &Option<String>| value.clone().filter(|value| !value.is_empty());
        let path = |value: &Option<PathBuf>| value.clone().filter(|value| !value.as_os_str().is_empty());
        Options {
            kubeconfig: path(&self.kubeconfig),
            context: text(&self.context),
            cluster: text(&self.cluster),
            user: text(&self.user),
            act_as: text(&self.act_as),
            service_account_dir: path(&self.service_account_dir),
            request_timeout: self.request_timeout,
        }
    }
}

impl Config {
    /// Finds the API server. Reads files, and does not connect.
    pub fn load(options: &Options, env: &Env) -> Result<Config, Error> {
        let options = options.without_empty();
        let mut config = Config::find(&options, env)?;
        if let Some(user) = &options.act_as {
            // The groups in the kubeconfig belong to the user there.
            config.impersonate.clear();
            config.impersonate("Impersonate-User", user)?;
        }
        if let Some(user) = config.impersonate.get("Impersonate-User") {
            config.user += &format!(", as {}", String::from_utf8_lossy(user.as_bytes()));
        }
        match options.request_timeout {
            // As in kubectl.
            Some(Duration::ZERO) => config.request_timeout = Duration::MAX,
            Some(timeout) => config.request_timeout = timeout,
            None => {}
        }
        config.has_proxy_variable = env.has_proxy;
        if config.excludes_proxy_by_server_name() {
            warn!(server = %config.server, "requests go past the proxy of the environment, because of tls-server-name");
        }
        config.keep_credentials_off_plain_http();
        Ok(config)
    }

    fn find(options: &Options, env: &Env) -> Result<Config, Error> {
        if let Some(dir) = &options.service_account_dir {
            if options.kubeconfig.is_some() {
                return Err(connect("--kubeconfig and --service-account-dir exclude each other: give one"));
            }
            return Config::in_cluster(dir, options, env);
        }
        if let Some(path) = &options.kubeconfig {
            return Kubeconfig::read(std::slice::from_ref(path))?.config(options);
        }
        let named = env.kubeconfig.iter().flat_map(env::split_paths);
        let named: Vec<PathBuf> = named.filter(|path| !path.as_os_str().is_empty()).collect();
        let present = existing(&named);
        if !present.is_empty() {
            return Kubeconfig::read(&present)?.config(options);
        }
        let default: Vec<PathBuf> = env.home.iter().map(|home| home.join(".kube/config")).collect();
        let default = existing(&default);
        let is_pod = env.service_host.is_some() && env.service_port.is_some();
        // A pod without a token may have a kubeconfig. If not, the error names the missing token.
        if is_pod && (env.has_token || default.is_empty()) {
            return Config::in_cluster(Path::new(SERVICE_ACCOUNT_DIR), options, env);
        }
        if !named.is_empty() {
            let files: Vec<_> = named.iter().map(|path| path.display().to_string()).collect();
            let (files, do_not) = (files.join(" and "), if files.len() == 1 { "does not" } else { "do not" });
            return Err(connect(&format!("KUBECONFIG names {files}, which {do_not} exist")));
        }
        if default.is_empty() {
            return Err(connect(
                "no kubeconfig in --kubeconfig, KUBECONFIG or ~/.kube/config, and this is not a pod: name one of them",
            ));
        }
        let mut config = Kubeconfig::read(&default)?.config(options)?;
        if let Some(entries) = &mut config.entries {
            // A printed curl command is shorter without them.
            entries.files.clear();
        }
        Ok(config)
    }

    fn in_cluster(dir: &Path, options: &Options, env: &Env) -> Result<Config, Error> {
        let dir = &absolute(dir);
        for (flag, value) in
            [("--context", &options.context), ("--cluster", &options.cluster), ("--user", &options.user)]
        {
            if value.is_some() {
                return Err(connect(&format!(
                    "{flag} chooses in a kubeconfig, and there is none: give --kubeconfig"
                )));
            }
        }
        let (Some(host), Some(port)) = (&env.service_host, &env.service_port) else {
            return Err(connect(
                "--service-account-dir is for a pod, but KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT are not set",
            ));
        };
        let host = match host.parse::<Ipv6Addr>() {
            Ok(address) => format!("[{address}]"),
            Err(_) => host.clone(),
        };
        let origin = "KUBERNETES_SERVICE_HOST and _PORT".to_owned();
        let mut config = Config::anonymous(parse_server(&format!("https://{host}:{port}"), &origin)?, origin);
        config.user = format!("service account token in {}", dir.display());
        config.login = Login::TokenFile { path: dir.join("token"), first: None };
        let field = "certificate authority of the service account".to_owned();
        config.tls.authority = Some(Pem { field, source: PemSource::File(dir.join("ca.crt")) });
        // Missing where a pod has a hand-made mount; then it is the namespace that kubectl would take.
        if let Ok(namespace) = auth::read_text(&dir.join("namespace"))
            && !namespace.trim().is_empty()
        {
            namespace.trim().clone_into(&mut config.namespace);
        }
        Ok(config)
    }
}

fn existing(paths: &[PathBuf]) -> Vec<PathBuf> {
    paths.iter().filter(|path| is_present(path)).cloned().collect()
}

/// Whether a file exists. Also `true` if that cannot be found out, as in a directory without permission: then the error
/// of reading it says so.
fn is_present(path: &Path) -> bool {
    match path.try_exists() {
        Ok(present) => present,
        // No file is below a file: /dev/null is the home directory of many services.
        Err(error) => error.kind() != io::ErrorKind::NotADirectory,
    }
}

fn connect(cause: &str) -> Error {
    Error::new("find", "the API server", cause)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    /// A kubeconfig whose server is called like the file.
    fn kubeconfig(dir: &Path, name: &str) -> PathBuf {
        let path = dir.join(name);
        let text = format!(
            "current-context: c\ncontexts: [{{name: c, context: {{cluster: k}}}}]\n\
             clusters: [{{name: k, cluster: {{server: 'https://{name}'}}}}]\n"
        );
        fs::create_dir_all(path.parent().expect("a directory")).expect("a directory");
        fs::write(&path, text).expect("a file");
        path
    }

    fn pod() -> Env {
        Env { service_host: Some("10.0.0.1".into()), service_port: Some("443".into()), ..Env::default() }
    }

    fn server(options: &Options, env: &Env) -> Result<String, String> {
        Config::load(options, env).map(|config| config.server.to_string()).map_err(|error| error.to_string())
    }

    #[test]
    fn flag_then_kubeconfig_then_pod_then_home() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path();
        let home = path.join("home");
        kubeconfig(&home.join(".kube"), "config");
        let absent = path.join("absent");
        let named = env::join_paths([&absent, &kubeconfig(path, "named"), &kubeconfig(path, "second")]);
        let has_token = true;
        let everything =
            Env { kubeconfig: Some(named.expect("a list")), home: Some(home.clone()), has_token, ..pod() };
        let nothing = Options::default();
        let flag = Options { kubeconfig: Some(kubeconfig(path, "flag")), ..Options::default() };
        let account = Options { service_account_dir: Some(path.to_owned()), ..Options::default() };

        assert_eq!(server(&flag, &everything), Ok("https://flag/".into()));
        assert_eq!(server(&account, &everything), Ok("https://10.0.0.1/".into()));
        assert_eq!(server(&nothing, &everything), Ok("https://named/".into()));
        let only_absent = Env { kubeconfig: Some(absent.clone().into()), ..everything };
        assert_eq!(server(&nothing, &only_absent), Ok("https://10.0.0.1/".into()));
        let no_token = Env { home: Some(home.clone()), ..pod() };
        assert_eq!(server(&nothing, &no_token), Ok("https://config/".into()));
        assert_eq!(server(&nothing, &pod()), Ok("https://10.0.0.1/".into()));
        let no_pod = Env { home: Some(home), ..Env::default() };
        assert_eq!(server(&nothing, &no_pod), Ok("https://config/".into()));
        // A Service called `kubernetes` of somebody's own, say.
        let half = Env { service_port: None, has_token, ..pod() };
        assert_eq!(
            server(&nothing, &Env { home: no_pod.home.clone(), ..half }),
            Ok("https://config/".into())
        );

        let flag = Options { kubeconfig: Some(absent.clone()), ..Options::default() };
        let cause = format!("read kubeconfig {}: No such file or directory (os error 2)", absent.display());
        assert_eq!(server(&flag, &pod()), Err(cause));
        let only_absent = Env { kubeconfig: Some(absent.clone().into()), ..no_pod };
        let cause =
            format!("find the API server: KUBECONFIG names {}, which does not exist", absent.display());
        assert_eq!(server(&nothing, &only_absent), Err(cause));
    }

    /// It was called absent, and another kubeconfig was taken instead.
    #[test]
    fn a_kubeconfig_that_cannot_be_looked_at_is_not_called_absent() {
        let dir = tempfile::tempdir().expect("a directory");
        // A directory without permissions would do as well, but not for root.
        let around = dir.path().join("around");
        std::os::unix::fs::symlink("around", &around).expect("a symlink");
        let env = Env { kubeconfig: Some(around.clone().into()), ..pod() };
        let error = server(&Options::default(), &env).expect_err("unreadable");
        assert!(error.starts_with(&format!("read kubeconfig {}: ", around.display())), "{error}");

        let nothing = "find the API server: no kubeconfig in --kubeconfig, KUBECONFIG or ~/.kube/config, and \
                       this is not a pod: name one of them";
        let homeless = Env { kubeconfig: Some(":".into()), home: Some("/dev/null".into()), ..Env::default() };
        assert_eq!(server(&Options::default(), &homeless), Err(nothing.to_owned()));
    }

    #[test]
    fn in_a_pod_the_address_is_in_the_environment_and_the_rest_in_files() {
        let dir = tempfile::tempdir().expect("a directory");
        fs::write(dir.path().join("namespace"), "shop\n").expect("a file");
        let options = Options { service_account_dir: Some(dir.path().to_owned()), ..Options::default() };
        let config = Config::load(&options, &pod()).expect("a config");
        assert_eq!(config.namespace, "shop");
        assert_eq!(config.user, format!("service account token in {}", dir.path().display()));
        match &config.login {
            Login::TokenFile { path, first: None } => assert_eq!(*path, dir.path().join("token")),
            other => panic!("{other:?}"),
        }

        for host in ["fd00::1", "[fd00::1]"] {
            let env =
                Env { service_host: Some(host.into()), service_port: Some("6443".into()), ..Env::default() };
            assert_eq!(server(&options, &env), Ok("https://[fd00::1]:6443/".into()));
        }
        assert_eq!(
            server(&options, &Env::default()).expect_err("no pod"),
            "find the API server: --service-account-dir is for a pod, but KUBERNETES_SERVICE_HOST and \
             KUBERNETES_SERVICE_PORT are not set"
        );
        let options = Options { context: Some("c".into()), ..Options::default() };
        assert_eq!(
            server(&options, &pod()).expect_err("no kubeconfig"),
            "find the API server: --context chooses in a kubeconfig, and there is none: give --kubeconfig"
        );
    }

    /// Once, an empty `--as` replaced the user of the kubeconfig, so that nobody was impersonated.
    #[test]
    fn an_empty_flag_is_not_given() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("kubeconfig");
        let text = "current-context: c\ncontexts: [{name: c, context: {cluster: k, user: u}}]\n\
                    clusters: [{name: k, cluster: {server: 'https://h'}}]\nusers: [{name: u, user: {as: jane}}]\n";
        fs::write(&path, text).expect("a file");
        let empty = || Some(String::new());
        let options = Options {
            kubeconfig: Some(PathBuf::new()),
            context: empty(),
            cluster: empty(),
            user: empty(),
            act_as: empty(),
            service_account_dir: Some(PathBuf::new()),
            request_timeout: None,
        };
        let env = Env { kubeconfig: Some(path.into()), ..Env::default() };
        let config = Config::load(&options, &env).expect("a config");
        assert_eq!(config.user, "user u of context c, as jane");
        assert_eq!(config.impersonate.get("impersonate-user").expect("a user"), "jane");
    }

    #[test]
    fn a_user_to_act_as_is_quoted_where_it_is_wrong() {
        let dir = tempfile::tempdir().expect("a directory");
        let kubeconfig = Some(kubeconfig(dir.path(), "k"));
        let options = Options { kubeconfig, act_as: Some("a\nb".to_owned()), ..Options::default() };
        assert_eq!(
            server(&options, &Env::default()).expect_err("two lines"),
            r#"impersonate "a\nb": cannot stand in the HTTP header Impersonate-User"#
        );
    }
}
