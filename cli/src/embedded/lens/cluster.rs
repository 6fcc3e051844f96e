//! `listwatch lens --cluster`: the recording of an operator that works in a cluster.

use std::{env, time::SystemTime};

use listwatch::{
    client::{Config, Env, Options},
    shutdown::Stop,
};
use listwatch_lens::{Live, Proxy, Recording};
use listwatch_scorecard::{self as scorecard, CannotJudge};

use super::{
    super::apiserver::credentials::{KUBECONFIG, private_dir, write_private},
    End, LensFlags, asked_to_end, why_no_more, with_page,
};
use crate::{connection::client, failure::Failure, terminal::note};

/// The recording of a run, and how the operator ended by itself.
pub(super) async fn watched(args: &LensFlags, stop: Stop) -> Result<(Recording, Option<String>), Failure> {
    let (kubeconfig, context) = (args.kubeconfig.clone(), args.context.clone());
    let options = Options { kubeconfig, context, ..Options::default() };
    let config = Config::load(&options, &Env::from_process());
    let client = client(config.map_err(|error| Failure::Usage(error.to_string()))?)?;
    // An operator would see only a 502.
    client.version().await?;
    let proxy =
        Proxy::start(client.clone()).await.map_err(|error| Failure::Runtime(format!("proxy: {error}")))?;
    let written = private_dir(&env::temp_dir()).and_then(|dir| {
        let kubeconfig = dir.path().join(KUBECONFIG);
        write_private(&kubeconfig, &proxy.kubeconfig())?;
        Ok((dir, kubeconfig))
    });
    let (_dir, kubeconfig) =
        written.map_err(|error| Failure::Runtime(format!("write the kubeconfig: {error}")))?;
    note(&format!("recording requests to {}, {}", client.server(), client.user()));
    let run = async {
        if args.command.is_empty() {
            note(&format!(
                "start the operator with KUBECONFIG={}; Ctrl-C shows what it did",
                kubeconfig.display()
            ));
            asked_to_end(args, stop).await;
            return Ok(None);
        }
        scorecard::run_program(&args.command, &kubeconfig, asked_to_end(args, stop)).await
    };
    let show = async |live: Live, end: End| live.run_proxy(&proxy, end).await;
    let why = |run: &Result<Option<String>, _>| why_no_more(run.as_ref().ok().and_then(Option::as_deref));
    let end = with_page(show, run, why).await?.map_err(|CannotJudge(why)| Failure::Usage(why))?;
    let mut recording = proxy.recording();
    recording.runs_until = end.is_none().then(SystemTime::now);
    Ok((recording, end))
}
