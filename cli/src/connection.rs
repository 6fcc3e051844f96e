//! The flags for the API server and the credentials, the client that they describe, and what its server has.

use std::{path::PathBuf, time::Duration};

use clap::Args;
use listwatch::client::{Client, Config, Env, Error, Options, Request};
use listwatch_study::{
    discovery::{self, ApiResource},
    explain::grant,
};

use super::failure::Failure;

/// Largest `--request-timeout`. A request with its retries must end before its watch counts as stuck.
const REQUEST_TIMEOUT_MAX: Duration = Duration::from_secs(300);
/// Flags for the address of the API server and the credentials.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Connection")]
pub(super) struct ConnectionFlags {
    /// kubeconfig file to use. Without it: $KUBECONFIG, then the Pod's service account, then ~/.kube/config
    #[arg(long, value_name = "FILE", env = "LISTWATCH_KUBECONFIG")]
    kubeconfig: Option<PathBuf>,
    /// Context of the kubeconfig to use instead of its current one
    #[arg(long, value_name = "NAME", env = "LISTWATCH_CONTEXT")]
    context: Option<String>,
    /// Cluster of the kubeconfig to use instead of the context's
    #[arg(long, value_name = "NAME", env = "LISTWATCH_CLUSTER")]
    cluster: Option<String>,
    /// User of the kubeconfig to use instead of the context's
    #[arg(long, value_name = "NAME", env = "LISTWATCH_USER")]
    user: Option<String>,
    /// User to impersonate, if RBAC allows that: name or system:serviceaccount:NAMESPACE:NAME
    #[arg(long = "as", value_name = "USER", env = "LISTWATCH_AS")]
    pub(super) act_as: Option<String>,
    /// Directory with token, ca.crt and namespace to use as the Pod's service account
    #[arg(long, value_name = "DIR", env = "LISTWATCH_SERVICE_ACCOUNT_DIR", conflicts_with = "kubeconfig")]
    service_account_dir: Option<PathBuf>,
    /// Longest time of one request, except for watches: 30s, 1m
    #[arg(long, value_name = "TIME", env = "LISTWATCH_REQUEST_TIMEOUT", default_value = "30s", value_parser = parse_time)]
    request_timeout: Duration,
}

impl ConnectionFlags {
    /// The server and the credentials of these flags.
    pub(super) fn config(self) -> Result<Config, Failure> {
        let names = [
            ("context", &self.context),
            ("cluster", &self.cluster),
            ("user", &self.user),
            // `--as "$USER_NAME"` with an unset variable must not mean "do not impersonate".
            ("as", &self.act_as),
        ];
        for (flag, name) in names {
            if name.as_ref().is_some_and(|name| name.trim().is_empty()) {
                return Err(Failure::Usage(format!("--{flag} is empty: give a name, or leave the flag out")));
            }
        }
        let options = Options {
            kubeconfig: self.kubeconfig,
            context: self.context,
            cluster: self.cluster,
            user: self.user,
            act_as: self.act_as,
            service_account_dir: self.service_account_dir,
            request_timeout: Some(self.request_timeout),
        };
        Config::load(&options, &Env::from_process()).map_err(|error| Failure::Usage(error.to_string()))
    }
}

/// A client of this server. Does not connect yet.
pub(super) fn client(config: Config) -> Result<Client, Failure> {
    Client::new(config).map_err(|error| Failure::Usage(error.to_string()))
}

/// The resources of the server.
pub(super) async fn kinds(client: &Client) -> Result<Vec<ApiResource>, Failure> {
    let mut kinds = Vec::new();
    for path in ["/api", "/apis"] {
        let mut request = Request::get(path);
        request.accept = discovery::ACCEPT.into();
        let answer = client.send(request).await.map_err(granted)?;
        let found = discovery::kinds(&answer.body).map_err(|error| {
            let hint = if error.is_data() {
                ": give a path, such as /api/v1/pods; Kubernetes before 1.27 has no such list"
            } else {
                ""
            };
            Failure::Runtime(format!("{}{hint}", answer.unreadable(path, "a list of resources", &error)))
        })?;
        kinds.extend(found);
    }
    Ok(kinds)
}

/// A 403 with the rule that would allow the request.
pub(super) fn granted(error: Error) -> Failure {
    let grant = error.status().filter(|status| status.code == 403).and_then(|status| grant(&status.message));
    match grant {
        Some(grant) => Failure::Runtime(format!("{error}; {grant}")),
        None => error.into(),
    }
}

pub(super) fn parse_time(text: &str) -> Result<Duration, String> {
    match humantime::parse_duration(text) {
        Ok(time) if time.is_zero() => Err("must be longer than nothing, such as 30s".to_owned()),
        Ok(time) if time > REQUEST_TIMEOUT_MAX => Err("must be 5m at most, such as 30s".to_owned()),
        Ok(time) => Ok(time),
        Err(_) => Err("is not a time: write a number and a unit, such as 30s or 2m".to_owned()),
    }
}
