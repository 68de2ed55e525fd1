//! The runner's arguments.

use conformance::baseline::Baseline;
use conformance::numbers;
use conformance::soak::Soaking;
use std::path::PathBuf;
use std::time::Duration;

/// The baseline that is no proxy.
const OPENSSH: &str = "openssh";

/// What is played against.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Subject {
    /// A running proxy.
    Proxy(String),
    /// A running gateway that forwards, as `ssh -J` takes it.
    Jump(String),
    Baseline(Baseline),
    /// OpenSSH as a gateway that forwards.
    OpenSsh,
    /// A binary of Affiant.
    Affiant(PathBuf),
}

/// What was asked for.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Arguments {
    pub(crate) subjects: Vec<Subject>,
    pub(crate) ca: Option<PathBuf>,
    pub(crate) prepare: Option<PathBuf>,
    pub(crate) hook: Option<String>,
    pub(crate) rows: Option<String>,
    pub(crate) at_a_time: Option<usize>,
    pub(crate) ssh: Option<String>,
    pub(crate) ssh_key: Option<PathBuf>,
    pub(crate) ssh_config: Option<PathBuf>,
    pub(crate) kills: Option<u32>,
    pub(crate) json: Option<PathBuf>,
    pub(crate) junit: Option<PathBuf>,
}

/// The arguments make no sense.
#[derive(Debug, thiserror::Error)]
#[error("{0}; --help shows the usage")]
pub(crate) struct Error(String);

pub(crate) fn parse(arguments: &[String]) -> Result<Arguments, crate::run::Error> {
    let mut parsed = Arguments::default();
    let mut rest = arguments.iter();
    while let Some(name) = rest.next() {
        let value = rest.next().ok_or_else(|| Error(format!("{name} wants a value")))?;
        match name.as_str() {
            "--proxy" => parsed.subjects.push(Subject::Proxy(value.clone())),
            "--baseline" if value == OPENSSH => parsed.subjects.push(Subject::OpenSsh),
            "--baseline" => {
                let baseline = value.parse().map_err(|error| Error(format!("{error}")))?;
                parsed.subjects.push(Subject::Baseline(baseline));
            }
            "--affiant" => parsed.subjects.push(Subject::Affiant(value.into())),
            "--ca" => parsed.ca = Some(value.into()),
            "--prepare" => parsed.prepare = Some(value.into()),
            "--hook" => parsed.hook = Some(value.clone()),
            "--rows" => parsed.rows = Some(value.clone()),
            "--ssh" => parsed.ssh = Some(value.clone()),
            "--ssh-key" => parsed.ssh_key = Some(value.into()),
            "--ssh-config" => parsed.ssh_config = Some(value.into()),
            "--at-a-time" | "--kills" => {
                let wrong = |_| Error(format!("{name} wants a number"));
                let number: u32 = value.parse().map_err(wrong)?;
                if name == "--kills" {
                    parsed.kills = Some(number);
                } else {
                    parsed.at_a_time = usize::try_from(number).ok();
                }
            }
            "--json" => parsed.json = Some(value.into()),
            "--junit" => parsed.junit = Some(value.into()),
            other => return Err(Error(format!("there is no {other}")).into()),
        }
    }
    // Alone it is a gateway that knows no routes.
    if parsed.ssh_config.is_none() && parsed.prepare.is_none() {
        parsed.subjects.extend(parsed.ssh.take().map(Subject::Jump));
    }
    if parsed.subjects.is_empty() {
        let nothing = "nothing to play against: --proxy, --ssh, --baseline or --affiant";
        return Err(Error(nothing.into()).into());
    }
    let runs = |subject: &Subject| matches!(subject, Subject::Proxy(_) | Subject::Jump(_));
    if parsed.kills.is_some() && parsed.subjects.iter().any(runs) {
        return Err(Error("--kills is for what is started here".into()).into());
    }
    if parsed.ssh.is_some() != parsed.ssh_config.is_some()
        || parsed.ssh.is_some() && parsed.prepare.is_none()
    {
        return Err(Error("--ssh with routes wants --ssh-config and --prepare".into()).into());
    }
    Ok(parsed)
}

/// What `soak` was asked for: the binary, and how.
pub(crate) fn soak(arguments: &[String]) -> Result<(PathBuf, Soaking), Error> {
    let (mut binary, mut minutes, mut seed, mut per_second) = (None, None, None, None);
    let mut rest = arguments.iter();
    while let Some(name) = rest.next() {
        let value = rest.next().ok_or_else(|| Error(format!("{name} wants a value")))?;
        let number = || Error(format!("{name} wants a number"));
        match name.as_str() {
            "--affiant" => binary = Some(value.into()),
            "--minutes" => minutes = Some(value.parse().map_err(|_| number())?),
            "--per-second" => per_second = Some(value.parse().map_err(|_| number())?),
            "--seed" => seed = Some(value.parse().map_err(|_| number())?),
            other => return Err(Error(format!("there is no {other}"))),
        }
    }
    let binary = binary.ok_or_else(|| Error("soak wants --affiant BINARY".to_owned()))?;
    let minutes: f64 = minutes.ok_or_else(|| Error("soak wants --minutes N".to_owned()))?;
    let sound = |number: f64| number > 0.0 && number < 1e6;
    if !sound(minutes) || !per_second.is_none_or(sound) {
        return Err(Error("--minutes and --per-second want positive numbers".to_owned()));
    }
    let seed = seed.unwrap_or_else(numbers::seed);
    let how_long = Duration::from_secs_f64(minutes * 60.0);
    Ok((binary, Soaking { how_long, seed, per_second }))
}
