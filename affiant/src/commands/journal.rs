//! `affiant journal`: verify, stats.

use super::Context;
use crate::cli;
use crate::control::client::Client;
use crate::output;
use std::process::ExitCode;

pub(super) async fn journal(context: &Context, command: cli::Journal) -> anyhow::Result<ExitCode> {
    context.home.require()?;
    match command {
        cli::Journal::Verify => verify(context),
        cli::Journal::Stats => {
            let stats = Client::connect(&context.home).await?.json("/v1/stats").await?;
            output::json(&stats)?;
            Ok(ExitCode::SUCCESS)
        }
    }
}

fn verify(context: &Context) -> anyhow::Result<ExitCode> {
    match journal::verify(&context.home.journal()) {
        Ok(verified) if context.json => {
            output::json(&serde_json::json!({
                "segments": verified.segments,
                "frames": verified.frames,
                "events": verified.events,
                "chunks": verified.chunks,
                "invocations": verified.invocations,
                "last_sequence": verified.last_sequence,
                "chain": verified.chain,
                "torn_bytes": verified.torn_bytes,
            }))?;
            Ok(ExitCode::SUCCESS)
        }
        Ok(verified) => {
            output::line(&format!(
                "the journal is whole: {} events of {} invocations, sequence {}, chain {}",
                verified.events, verified.invocations, verified.last_sequence, verified.chain
            ));
            Ok(ExitCode::SUCCESS)
        }
        Err(error) => {
            output::note(&format!("the journal is damaged: {:#}", anyhow::Error::new(error)));
            Ok(ExitCode::FAILURE)
        }
    }
}
