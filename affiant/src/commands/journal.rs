//! `affiant journal`: verify, checkpoint, export, repair, seal, stats.

use super::Context;
use crate::cli;
use crate::control::client::Client;
use crate::output;
use anyhow::Context as _;
use journal::Against;
use journal::checkpoint::{Checkpoint, VerifyingKey};
use journal::contract::Sequence;
use journal::repair::Error;
use journal::seal::{Identity, Recipient};
use std::io::{BufWriter, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use zeroize::Zeroizing;

pub(super) async fn journal(context: &Context, command: cli::Journal) -> anyhow::Result<ExitCode> {
    context.home.require()?;
    match command {
        cli::Journal::Verify { checkpoint, key } => {
            verify(context, checkpoint.as_deref(), key.as_deref())
        }
        cli::Journal::Checkpoint => {
            let note = journal::checkpoint::checkpoint(&context.home.journal())?;
            output::print(&note);
            Ok(ExitCode::SUCCESS)
        }
        cli::Journal::Export { since } => export(context, Sequence(since)),
        cli::Journal::Repair { yes } => repair(context, yes),
        cli::Journal::Seal(cli::Seal::Init { recipient, identity }) => {
            seal_init(context, recipient.as_deref(), identity.as_deref())
        }
        cli::Journal::Seal(cli::Seal::Open { identity, files }) => {
            seal_open(context, &identity, &files)
        }
        cli::Journal::Stats => {
            let stats = Client::connect(&context.home).await?.json("/v1/stats").await?;
            output::json(&stats)?;
            Ok(ExitCode::SUCCESS)
        }
    }
}

fn read_checkpoint(
    context: &Context,
    file: &Path,
    key: Option<&str>,
) -> anyhow::Result<Checkpoint> {
    let note = std::fs::read_to_string(file).with_context(|| format!("read {}", file.display()))?;
    let key = match key {
        Some(key) => key.parse().context("the key is no verifier key of signed notes")?,
        None => VerifyingKey::read(&context.home.journal())?,
    };
    Ok(key.open(&note)?)
}

fn verify(
    context: &Context,
    checkpoint: Option<&Path>,
    key: Option<&str>,
) -> anyhow::Result<ExitCode> {
    let checkpoint = checkpoint.map(|file| read_checkpoint(context, file, key)).transpose()?;
    let policy = context.home.open_policy()?;
    let result_key = policy.vault().with_generations(crate::server::result_key)?;
    let locked = result_key.is_none();
    let against = Against { key: result_key, checkpoint };
    let with_checkpoint = against.checkpoint.is_some();
    match journal::verify_against(&context.home.journal(), against) {
        Ok(verified) if context.json => {
            output::json(&serde_json::json!({
                "segments": verified.segments,
                "frames": verified.frames,
                "events": verified.events,
                "chunks": verified.chunks,
                "results": verified.results,
                "invocations": verified.invocations,
                "removed_sequence": verified.removed_sequence,
                "last_sequence": verified.last_sequence,
                "chain": verified.chain,
                "torn_bytes": verified.torn_bytes,
                "indexed": verified.indexed,
            }))?;
            Ok(ExitCode::SUCCESS)
        }
        Ok(verified) => {
            output::line(&format!(
                "the journal is whole: {} events of {} invocations, sequence {}, chain {}",
                verified.events, verified.invocations, verified.last_sequence, verified.chain
            ));
            if verified.removed_sequence.0 > 0 {
                output::line(&format!(
                    "retention removed the events up to sequence {}; the rest follows their anchor",
                    verified.removed_sequence
                ));
            }
            output::line(&if locked {
                "the content of results was not checked: the vault needs its passphrase".to_owned()
            } else {
                format!("{} results were decrypted and have their digest", verified.results)
            });
            if verified.indexed.is_none() {
                output::line("its end was not compared with the index, which can't be read here");
            }
            if with_checkpoint {
                output::line("everything up to the checkpoint is there, unchanged");
            }
            Ok(ExitCode::SUCCESS)
        }
        Err(error) => {
            output::note(&format!("the journal is damaged: {:#}", anyhow::Error::new(error)));
            Ok(ExitCode::FAILURE)
        }
    }
}

fn export(context: &Context, since: Sequence) -> anyhow::Result<ExitCode> {
    let mut out = BufWriter::new(std::io::stdout().lock());
    let exported =
        journal::export::export::<ExportError>(&context.home.journal(), since, &mut |record| {
            serde_json::to_writer(&mut out, &record).map_err(std::io::Error::from)?;
            out.write_all(b"\n")?;
            Ok(())
        });
    match exported.and_then(|()| Ok(out.flush()?)) {
        Ok(()) => Ok(ExitCode::SUCCESS),
        // A reader that went away (`| head`) is no fault of ours.
        Err(ExportError::Write(error)) if error.kind() == std::io::ErrorKind::BrokenPipe => {
            Ok(ExitCode::FAILURE)
        }
        Err(error) => Err(error.into()),
    }
}

#[derive(Debug, thiserror::Error)]
enum ExportError {
    #[error(transparent)]
    Read(#[from] journal::verify::Error),
    #[error("could not write to stdout")]
    Write(#[from] std::io::Error),
}

fn seal_init(
    context: &Context,
    recipient: Option<&str>,
    identity: Option<&Path>,
) -> anyhow::Result<ExitCode> {
    let made;
    let to: Recipient = match (recipient, identity) {
        (Some(recipient), _) => recipient.parse()?,
        (None, Some(file)) => {
            made = Identity::generate()?;
            write_identity(file, &made).with_context(|| format!("write {}", file.display()))?;
            output::note(&format!(
                "the private key is in {}: move it to another machine, this one does not need it",
                file.display()
            ));
            made.recipient()
        }
        (None, None) => anyhow::bail!("name a public key with --recipient"),
    };
    journal::seal::init(&context.home.journal(), &to)?;
    output::line(&format!("events are copied to journal/sealed/, encrypted to {to}"));
    Ok(ExitCode::SUCCESS)
}

/// Never over a file that is there: it may be the only copy of another key.
fn write_identity(file: &Path, identity: &Identity) -> std::io::Result<()> {
    let (public, secret) = (identity.recipient(), identity.secret_text());
    let text = Zeroizing::new(format!("# public key: {public}\n{}\n", *secret));
    output::new_file(file, text.as_bytes())
}

fn seal_open(context: &Context, identity: &Path, files: &[PathBuf]) -> anyhow::Result<ExitCode> {
    let text = Zeroizing::new(
        std::fs::read_to_string(identity)
            .with_context(|| format!("read {}", identity.display()))?,
    );
    let identity: Identity = text.parse()?;
    let mut missing = false;
    let files = if files.is_empty() {
        let all = journal::seal::files(&context.home.journal())?;
        for pair in all.windows(2) {
            if let [before, after] = pair
                && before.last.0 + 1 != after.first.0
            {
                missing = true;
                output::note(&format!(
                    "missing: sequences {} to {}",
                    before.last.0 + 1,
                    after.first.0 - 1
                ));
            }
        }
        all.into_iter().map(|file| file.path).collect()
    } else {
        files.to_vec()
    };
    for file in files {
        let step = || format!("open {}", file.display());
        let sealed = std::fs::read(&file).with_context(step)?;
        let plain = journal::seal::open(&identity, &sealed).with_context(step)?;
        std::io::stdout().lock().write_all(&plain).context("write to stdout")?;
    }
    Ok(if missing { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

fn repair(context: &Context, yes: bool) -> anyhow::Result<ExitCode> {
    let repaired = journal::repair::repair(&context.home.journal(), yes).map_err(|error| {
        let is_in_use = matches!(error, Error::Open(journal::open::Error::InUse(_)));
        let error = anyhow::Error::new(error);
        if is_in_use { error.context("a server runs in this home: stop it first") } else { error }
    });
    let Some(repair) = repaired? else {
        output::line("the journal is whole: there is nothing to repair");
        return Ok(ExitCode::SUCCESS);
    };
    output::line(&format!("damage: {}", repair.damage));
    let keeps = match repair.segment {
        0 => "nothing can be kept".to_owned(),
        segment => format!(
            "kept: everything up to sequence {} (segment {segment}, {} bytes)",
            repair.kept, repair.length
        ),
    };
    output::line(&keeps);
    match &repair.removed_to {
        Some(path) => {
            output::line(&format!("what lay behind is in {}", path.display()));
            Ok(ExitCode::SUCCESS)
        }
        None => {
            output::line(&format!(
                "what lies behind ({} later segments) would be moved aside: repeat with --yes",
                repair.moved_segments
            ));
            Ok(ExitCode::FAILURE)
        }
    }
}
