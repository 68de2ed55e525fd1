//! The page on presets, generated from the table so that it can't differ from it.

use super::{Attach, Line, Mint, PRESETS, Preset, Repeat};
use journal::contract::RemoteContract;

const HEAD: &str = r#"# Presets

Generated from `policy/src/preset/table.rs`; a test fails when they differ.

A preset saves the research on a service: where it lives, how its credential is attached, and which of its calls may be repeated. It grants
nothing by itself. A route names it, and a credential may:

```toml
[[credential]]
id = "stripe"
secret = "stripe-key"
preset = "stripe"                # how the secret is attached

[[route]]
name = "payments"
agents = ["coder"]
preset = "stripe"                # hosts, paths, and what may be repeated
match = { methods = ["POST"], path = "/v1/payment_intents" }
credential = "stripe"
```

- What the route says itself goes first: `match.host` replaces the hosts, `match.path` the paths, `idempotent` or `idempotency` the whole table of
  repeats, `agent_header` the default `"replace"` (client libraries of these services send a key of their own).
- The first line of a table that covers a call decides. For what no line covers, the method decides: GET, HEAD, OPTIONS, TRACE, PUT and DELETE are repeatable.
- A line that names hosts holds at those hosts alone. Where `match.host` names another endpoint of the service (a private link, a gateway in front of it), such a line does not apply,
  and neither do its key and its job: the next line that covers the call decides, else the method. `affiant policy explain` shows it; the route's own `idempotency` and `job` fill the gap.
- What hands out credentials is left out, because no redaction knows them: a route that covers such a host or path only by its preset does not. To open one, name it: `match.host` for a host,
  `match.path` for a path. Other places of a service may hand out credentials too: the narrower the route, the better.
- "Not promised" means that no public document promises it. Without a promise an unknown outcome stays unknown.
- Jobs come with the preset where a document gives their shape: the job that such a call starts is on record and followed. `job` on the route takes the place of that, and
  `job = "none"` switches it off. A repeat of the submission is not promised, so it stays in doubt until a person or `reconcile` decides. No service here answers the members of one request in a shape that `batch` reads.
- A preset of registries names no host, because there are many and each is its own: the route says `match = { host = ... }`.
- A key is trusted only where the table names its place. Affiant adds none by itself; `idempotency = { generate = true }` on the route has it add one where the table names a place and the call has
  none. A key's scope is the preset and the credential, and the host where the table names hosts.
- Each line names the document that it rests on, and the day of its review. "Read": its words were read that day, in a stored copy. "From knowledge": the line
  was written from knowledge of the document, which is still to be read again. Services change: `affiant policy explain` shows the line that applies.
"#;

/// The page `docs/presets.md`.
#[must_use]
pub fn reference() -> String {
    let mut page = HEAD.to_owned();
    for preset in PRESETS {
        section(&mut page, preset);
    }
    page
}

fn section(page: &mut String, preset: &Preset) {
    let Preset { name, title, hosts, path, secret, source, mints, lines, note, attach: _ } = preset;
    let hosts = match hosts {
        [] => "No host: write `match.host`".to_owned(),
        hosts => format!("Hosts {}", quoted(hosts)),
    };
    let paths = path.map_or_else(String::new, |path| format!(", paths `{path}`"));
    let attach = match preset.attach {
        Attach::Bearer => "`bearer`".to_owned(),
        Attach::Basic => "`basic`".to_owned(),
        Attach::Header(header) => format!("`header` {header}"),
        Attach::Sigv4 => "`sigv4`".to_owned(),
    };
    page.push_str(&format!(
        "\n## `{name}`: {title}\n\n{hosts}{paths}. Injection: {attach}; the secret is {secret}.\n\
         Source: <{}>, {source}.\n",
        source.url
    ));
    if !note.is_empty() {
        page.push_str(&format!("\n{note}\n"));
    }
    let places = mints.iter().map(|mint| match mint {
        Mint::Host(place) | Mint::Path(place) => *place,
    });
    let places: Vec<_> = places.collect();
    if !places.is_empty() {
        page.push_str(&format!("\nLeft out: {}.\n", quoted(&places)));
    }
    if lines.is_empty() {
        page.push_str("\nNo call has a contract beyond its method.\n");
        return;
    }
    page.push_str("\n| calls | repeatable | why | source |\n|---|---|---|---|\n");
    for line in *lines {
        row(page, line);
    }
}

fn quoted(texts: &[&str]) -> String {
    texts.iter().map(|text| format!("`{text}`")).collect::<Vec<_>>().join(", ")
}

fn row(page: &mut String, line: &Line) {
    let methods =
        if line.methods.is_empty() { "every method".to_owned() } else { line.methods.join(", ") };
    let mut paths = quoted(line.paths);
    if !line.hosts.is_empty() {
        paths.push_str(&format!(" at {}", quoted(line.hosts)));
    }
    if !line.targets.is_empty() {
        paths.push_str(&format!(", `X-Amz-Target` {}", quoted(line.targets)));
    }
    if !line.betas.is_empty() {
        paths.push_str(&format!(", `Anthropic-Beta` {}", quoted(line.betas)));
    }
    if line.action {
        paths.push_str(", with `Action` in the query");
    }
    let mut repeat = match &line.repeat {
        Repeat::Harmless => "yes".to_owned(),
        Repeat::NotPromised => "not promised".to_owned(),
        Repeat::WithKey(key) => {
            let contract = match key.contract {
                RemoteContract::Verified => "the same request and key within",
                RemoteContract::Unverified => "unverified, within",
            };
            let minutes = key.retention_minutes;
            let time = if minutes % 60 == 0 {
                format!("{} h", minutes / 60)
            } else {
                format!("{minutes} min")
            };
            let only = match key.actions {
                [] => String::new(),
                actions => format!(", if `Action` is {}", quoted(actions)),
            };
            format!("with `{}`{only}: {contract} {time}", key.place)
        }
    };
    if let Some(job) = &line.job {
        repeat.push_str(&format!("; a job at `{}`", job.path));
    }
    let Line { why, source, .. } = line;
    page.push_str(&format!(
        "| {methods} {paths} | {repeat} | {why} | <{}>, {source} |\n",
        source.url
    ));
}
