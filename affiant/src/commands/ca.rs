//! `affiant ca`: certificate, bundle, shell exports.

use super::Context;
use crate::cli;
use crate::{bundle, environment, output};
use anyhow::Context as _;
use std::process::ExitCode;

pub(super) fn ca(context: &Context, command: cli::Ca) -> anyhow::Result<ExitCode> {
    context.home.require()?;
    let ca = proxy::Ca::load(&context.home.ca()).context("read the CA")?;
    match command {
        cli::Ca::Cert => output::print(ca.certificate_pem()),
        cli::Ca::Bundle => {
            let path = bundle::write(&context.home, ca.certificate_pem())?;
            output::line(&path.display().to_string());
        }
        cli::Ca::Env => {
            let path = bundle::write(&context.home, ca.certificate_pem())?;
            for (name, value) in environment::ca(&path) {
                output::line(&format!("export {name}={}", quote(&value)));
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Quotes for POSIX shells.
fn quote(value: &str) -> String {
    format!("'{}'", value.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    #[test]
    fn quotes_survive_the_shell() {
        assert_eq!(super::quote("/a b/it's"), r"'/a b/it'\''s'");
    }
}
