//! The files by which clients reach the embedded server. They are in a private directory, and are deleted with it.
//!
//! ```text
//! /tmp/listwatch-szuRr7/   kubeconfig, for kubectl and other clients;
//!     ca.crt, token and namespace, as in a Pod; curlrc, for curl:
//!     cacert = "/tmp/listwatch-szuRr7/ca.crt"
//!     header = "Authorization: Bearer VAsXyO…"
//! ```

use std::{
    io::{self, Write},
    path::{Path, PathBuf},
};

use listwatch::client::{Config, Env, Error, Options};
use listwatch_apiserver::ApiServer;
use serde_json::json;
use tempfile::{Builder, TempDir};

use super::say;
use crate::{failure::Failure, output_file::new_file};

/// The name of the kubeconfig file, where no flag names one.
pub(in super::super) const KUBECONFIG: &str = "kubeconfig";

/// The files of one server. Dropping it deletes them.
pub(in super::super) struct CredentialFiles {
    dir: TempDir,
    url: String,
}

impl CredentialFiles {
    /// Writes the files into a new directory of this one.
    pub(in super::super) fn write(server: &ApiServer, parent: &Path) -> Result<CredentialFiles, Failure> {
        let written = private_dir(parent).and_then(|dir| {
            let credentials = CredentialFiles { dir, url: server.url() };
            server.write_service_account(credentials.dir.path())?;
            write_private(&credentials.file(KUBECONFIG), &server.kubeconfig())?;
            let ca = credentials.file("ca.crt");
            let ca = ca.to_str().ok_or_else(|| io::Error::other(format!("{ca:?} is not UTF-8")))?;
            write_private(&credentials.file("curlrc"), &curlrc(ca, server.token()))?;
            Ok(credentials)
        });
        written.map_err(|error| {
            let parent = parent.display();
            Failure::Runtime(format!(
                "write credentials below {parent}: {error}; set TMPDIR, or --kubeconfig-out of listwatch apiserver, to another directory"
            ))
        })
    }

    /// The path of a file, or of a directory for more files.
    pub(in super::super) fn file(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// The configuration of a Pod whose service account is in this directory.
    pub(in super::super) fn config(&self, dir: &str) -> Result<Config, Error> {
        let (host, port) = self.url.trim_start_matches("https://").split_once(':').unwrap_or_default();
        let Env { has_proxy, .. } = Env::from_process();
        let (service_host, service_port) = (Some(host.into()), Some(port.into()));
        let env = Env { service_host, service_port, has_proxy, ..Env::default() };
        let options = Options { service_account_dir: Some(self.file(dir)), ..Options::default() };
        Config::load(&options, &env)
    }

    /// Prints one line, so that a script which has read a line knows that the server is ready.
    pub(super) fn print_json(&self, kubeconfig: &Path) -> Result<(), Failure> {
        let [ca, token, curlrc] = ["ca.crt", "token", "curlrc"].map(|name| self.file(name));
        say!(
            "{}",
            json!({"server": self.url, "kubeconfig": kubeconfig, "caFile": ca, "tokenFile": token, "curlrcFile": curlrc})
        );
        Ok(())
    }

    /// The commands for requests with curl, for a shell.
    pub(in super::super) fn curl(&self, paths: &[&str]) -> String {
        let curlrc = quoted(&self.file("curlrc"));
        let curls = paths.iter().map(|path| format!("\n    curl -K {curlrc} \"$API{path}\""));
        format!("    export API={}{}", self.url, curls.collect::<String>())
    }
}

/// Creates a directory for its owner alone. Windows has no modes: there, the directory for temporary files is the user's own.
pub(in super::super) fn private_dir(parent: &Path) -> io::Result<TempDir> {
    let mut builder = Builder::new();
    #[cfg(unix)]
    builder.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o700));
    builder.prefix("listwatch-").tempdir_in(parent)
}

/// Writes a new file that only its owner can read.
pub(in super::super) fn write_private(path: &Path, text: &str) -> io::Result<()> {
    new_file(0o600).open(path)?.write_all(text.as_bytes())
}

/// A path as a word for a shell.
pub(in super::super) fn quoted(path: &Path) -> String {
    format!("'{}'", path.display().to_string().replace('\'', r"'\''"))
}

/// A configuration file for curl. See <https://curl.se/docs/manpage.html#-K> for its quoting.
fn curlrc(ca: &str, token: &str) -> String {
    let ca = ca.replace('\\', r"\\").replace('"', r#"\""#).replace('\n', r"\n");
    format!(
        "# Options of curl for the embedded API server of listwatch.\n\
         cacert = \"{ca}\"\n\
         header = \"Authorization: Bearer {token}\"\n\
         # The server is on this machine, so a proxy cannot reach it.\n\
         noproxy = \"*\"\n\
         # Prints each watch event at once, also into a pipe, and no progress meter.\n\
         no-buffer\n\
         silent\n\
         show-error\n\
         # Ends the line of an answer, so that no prompt follows it.\n\
         write-out = \"\\n\"\n"
    )
}
