//! Runs the tests of `fixtures/`, which start `listwatch apiserver` from other languages.
//!
//! `tests/clients/install DIR` compiles them; `LISTWATCH_CLIENTS` names the directory. They run on the embedded server only, which
//! they start themselves.

use std::env;

use tokio::process::Command;

use crate::clients::{installed, succeeds};

/// The program starts the listwatch of this build.
async fn check(language: &str) {
    let Some(test) = installed(language, "test") else { return };
    succeeds(Command::new(test).env("LISTWATCH", env!("CARGO_BIN_EXE_listwatch"))).await;
}

#[tokio::test]
async fn the_fixture_of_go_runs_a_server() {
    check("go").await;
}

#[tokio::test]
async fn a_project_of_kubebuilder_is_tested_without_envtest() {
    check("kubebuilder").await;
}

#[tokio::test]
async fn the_fixture_of_python_runs_a_server() {
    check("python").await;
}

#[tokio::test]
async fn the_fixture_of_javascript_runs_a_server() {
    check("javascript").await;
}

#[tokio::test]
async fn the_extension_of_junit_runs_a_server_for_the_official_client() {
    check("java").await;
}

#[tokio::test]
async fn the_extension_of_junit_runs_a_server_for_fabric8() {
    check("fabric8").await;
}
