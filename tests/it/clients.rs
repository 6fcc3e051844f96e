//! Tests `listwatch apiserver` with clients of other languages: each lists, writes, and sees every change once with an informer whose
//! first watches are cut.
//!
//! `tests/clients/install DIR` installs the clients; `LISTWATCH_CLIENTS` names the directory. The programs also run on the real
//! server, which cuts nothing.

use std::{
    env, fs,
    io::{self, Write},
    path::{Path, PathBuf},
};

use listwatch::client::Request;
use listwatch_control_plane::{PATIENCE, has_assets, has_only_real};
use tempfile::TempDir;
use tokio::{process::Command, time::timeout};

use crate::{
    apiserver::{Running, client},
    fixture::{kubeconfig_of, shared_control_plane},
    operator::listwatch,
};

/// A program makes six changes after its informer has begun. The first two watches end in the middle of their third line.
const CUTS: &str = "cut-watches,path=/configmaps,lines=2,times=2";

/// The command that runs the program of this language.
pub fn program(language: &str) -> Option<PathBuf> {
    installed(language, "run")
}

/// A command that `tests/clients/install` wrote for this language.
pub fn installed(language: &str, command: &str) -> Option<PathBuf> {
    let dir = env::var_os("LISTWATCH_CLIENTS");
    let program = dir.map(|dir| Path::new(&dir).join(language).join(command)).filter(|path| path.exists());
    if program.is_none() {
        assert!(env::var_os("CI").is_none(), "CI needs the client of {language} in LISTWATCH_CLIENTS");
        let _ =
            writeln!(io::stderr(), "the client of {language} is not tested: it is not in LISTWATCH_CLIENTS");
    }
    program
}

async fn run(program: &Path, kubeconfig: &Path) {
    succeeds(Command::new(program).env("KUBECONFIG", kubeconfig)).await;
}

pub async fn succeeds(command: &mut Command) {
    let output = command.kill_on_drop(true).output();
    let output = timeout(PATIENCE, output).await.expect("the program ends").unwrap();
    let texts = [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
    assert!(output.status.success(), "{}", texts.concat());
}

async fn check(language: &str) {
    let Some(program) = program(language) else { return };
    let dir = TempDir::new().unwrap();
    let kubeconfig = dir.path().join("kubeconfig");
    if !has_only_real() {
        let mut command = listwatch();
        let _server =
            Running::start(command.args(["apiserver", "--fault", CUTS, "--kubeconfig-out"]).arg(&kubeconfig));
        run(&program, &kubeconfig).await;
        let faults = client(&kubeconfig).send(Request::get("/listwatch/faults")).await.unwrap();
        assert_eq!(faults.body, "none planned\n", "both watches were cut");
    }
    if has_assets() {
        fs::write(&kubeconfig, kubeconfig_of(shared_control_plane().await)).unwrap();
        run(&program, &kubeconfig).await;
    }
}

#[tokio::test]
async fn the_client_of_python_loses_and_doubles_no_event() {
    check("python").await;
}

#[tokio::test]
async fn the_client_of_javascript_loses_and_doubles_no_event() {
    check("javascript").await;
}

#[tokio::test]
async fn the_client_of_java_loses_and_doubles_no_event() {
    check("java").await;
}

#[tokio::test]
async fn the_client_of_go_loses_and_doubles_no_event() {
    check("go").await;
}

/// Its watches are WebSockets.
#[tokio::test]
async fn fabric8_loses_and_doubles_no_event() {
    check("fabric8").await;
}
