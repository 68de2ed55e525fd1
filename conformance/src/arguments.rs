//! The runner's arguments.

use std::path::PathBuf;

/// What is played against.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Subject {
    Proxy(String),
    Baseline(String),
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
            "--baseline" => parsed.subjects.push(Subject::Baseline(value.clone())),
            "--affiant" => parsed.subjects.push(Subject::Affiant(value.into())),
            "--ca" => parsed.ca = Some(value.into()),
            "--prepare" => parsed.prepare = Some(value.into()),
            "--hook" => parsed.hook = Some(value.clone()),
            "--rows" => parsed.rows = Some(value.clone()),
            "--ssh" => parsed.ssh = Some(value.clone()),
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
    if parsed.subjects.is_empty() {
        return Err(
            Error("nothing to play against: --proxy, --baseline or --affiant".into()).into()
        );
    }
    if parsed.ssh.is_some() != parsed.ssh_config.is_some()
        || parsed.ssh.is_some() && parsed.prepare.is_none()
    {
        return Err(Error("--ssh wants --ssh-config and --prepare".into()).into());
    }
    Ok(parsed)
}

/// What `soak` was asked for: the binary, minutes, seed.
pub(crate) fn soak(arguments: &[String]) -> Result<(PathBuf, f64, Option<u64>), Error> {
    let (mut binary, mut minutes, mut seed) = (None, None, None);
    let mut rest = arguments.iter();
    while let Some(name) = rest.next() {
        let value = rest.next().ok_or_else(|| Error(format!("{name} wants a value")))?;
        let number = || Error(format!("{name} wants a number"));
        match name.as_str() {
            "--affiant" => binary = Some(value.into()),
            "--minutes" => minutes = Some(value.parse().map_err(|_| number())?),
            "--seed" => seed = Some(value.parse().map_err(|_| number())?),
            other => return Err(Error(format!("there is no {other}"))),
        }
    }
    let binary = binary.ok_or_else(|| Error("soak wants --affiant BINARY".to_owned()))?;
    let minutes: f64 = minutes.ok_or_else(|| Error("soak wants --minutes N".to_owned()))?;
    if !(minutes > 0.0 && minutes < 1e6) {
        return Err(Error("--minutes wants a positive number".to_owned()));
    }
    Ok((binary, minutes, seed))
}
