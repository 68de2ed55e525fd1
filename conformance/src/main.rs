//! The runner: plays the truth matrix against any proxy, and prints what the rules of the contract
//! rest on.

mod arguments;
mod run;

use std::io::Write as _;
use std::path::Path;
use std::process::ExitCode;

const USAGE: &str = "\
affiant-conformance: what a proxy says about its calls, against what the origin counted

  affiant-conformance --proxy URL [--ca FILE] [--prepare DIR [--hook COMMAND]]
                      [--ssh AGENT@HOST:PORT --ssh-config FILE] [OUTPUT]
  affiant-conformance --ssh USER@HOST:PORT [--ssh-key FILE] [OUTPUT]
  affiant-conformance --baseline NAME [--baseline NAME ...] [--kills N] [OUTPUT]
  affiant-conformance --affiant BINARY [--kills N] [OUTPUT]
  affiant-conformance rules [ROOT]
  affiant-conformance soak --affiant BINARY --minutes N [--per-second N] [--seed N]

  --proxy URL      http://[user:password@]host:port of a running proxy on this machine
  --ca FILE        the CA that the proxy intercepts TLS with; with --prepare, adds the rows over TLS
  --prepare DIR    writes origins.pem (the origins' CA, to be trusted by the proxy) and policy.toml
                   (for Affiant) there before playing; with --ssh, row-key as well, the private key
                   that the gateway logs in with
  --hook COMMAND   run by sh after that
  --ssh A@H:P      plays the rows of SSH as `ssh -J A@H:P`. Alone: through a gateway that forwards and
                   knows no routes, logging in with --ssh-key FILE or what ssh finds by itself. With
                   --proxy, --prepare and --ssh-config FILE: through one that has the policy's routes
  --baseline NAME  starts squid, tinyproxy, privoxy, mitmproxy, hudsucker or openssh itself; may be
                   repeated
  --affiant BINARY starts Affiant itself, in a home of its own, with the rows of SSH
  --kills N        kills it in N calls whose effect has happened, and counts those that nobody can tell
                   of afterwards; Affiant at N random moments of calls and commands as well
  --rows TEXT      only rows whose id holds the text
  --at-a-time N    rows played at the same time (default 24)
  --json FILE, --junit FILE
                   write the results

Exit status: 0 when no row found a lie, 1 when one did, 2 when it could not be played.
";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (text, code) = match arguments.first().map(String::as_str) {
        None | Some("-h" | "--help" | "help") => (USAGE.to_owned(), 0),
        Some("rules") => rules(arguments.get(1).map_or(".", String::as_str)),
        Some("soak") => match run::soak(arguments.get(1..).unwrap_or_default()) {
            Ok(outcome) => outcome,
            Err(error) => {
                complain(&error);
                return ExitCode::from(2);
            }
        },
        Some(_) => match arguments::parse(&arguments).and_then(run::run) {
            Ok(outcome) => outcome,
            Err(error) => {
                complain(&error);
                return ExitCode::from(2);
            }
        },
    };
    if std::io::stdout().write_all(text.as_bytes()).is_err() {
        return ExitCode::from(2);
    }
    ExitCode::from(code)
}

/// One line on stderr: what, and why.
fn complain(error: &dyn std::error::Error) {
    let mut line = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        line.push_str(&format!(": {error}"));
        cause = error.source();
    }
    // There is nowhere else to say that stderr is gone.
    let _said = writeln!(std::io::stderr(), "affiant-conformance: {line}");
}

fn rules(root: &str) -> (String, u8) {
    match conformance::rules::coverage(Path::new(root)) {
        Ok(rules) => {
            let missing = rules.iter().filter(|rule| !rule.is_covered()).count();
            let tested = rules.iter().filter(|rule| !rule.tests.is_empty()).count();
            let mut text = conformance::rules::table(&rules);
            text.push_str(&format!(
                "{} rules: {tested} with tests, {} with a reason, {missing} with neither\n",
                rules.len(),
                rules.len() - tested - missing
            ));
            (text, u8::from(missing > 0))
        }
        Err(error) => (format!("the tree at {root} can't be read: {error}\n"), 2),
    }
}
