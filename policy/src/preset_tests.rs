//! Tests of the presets: every line parses and can be reached, and the page says what the table says.

use super::*;
use crate::host::Pattern;
use crate::{Details, HttpAction, HttpGrant, Scheme, Snapshot, path};
use journal::contract::KeyPlace;
use std::collections::BTreeSet;

/// Set to write `docs/presets.md` anew instead of comparing it.
const WRITE: &str = "AFFIANT_WRITE_DOCS";

/// Every service that issue 7.8 names has a preset, and no preset stands for another name.
#[test]
fn the_services_of_the_issue_are_there() {
    let named = "OpenAI, Anthropic, Gemini, GitHub, GitLab, Stripe, AWS, Google Cloud, Slack, Jira, \
                 Linear, Notion, Twilio, SendGrid, Cloudflare, PyPI, npm";
    let mut expected: Vec<_> =
        named.split(", ").map(|name| name.to_lowercase().replace(' ', "-")).collect();
    expected.sort_unstable();
    let names: Vec<_> = PRESETS.iter().map(|p| p.name).collect();
    assert_eq!(names, expected);
    assert_eq!(Preset::named("stripe").map(|p| p.title), Some("Stripe API"));
    assert_eq!(Preset::named("Stripe"), None);
}

#[test]
fn every_line_parses_and_has_its_document() {
    let dated = |source: &Source| {
        assert!(source.url.starts_with("https://"), "{}", source.url);
        let digits: Vec<_> = source.date.split('-').map(str::len).collect();
        assert_eq!(digits, [4, 2, 2], "{}", source.date);
    };
    for preset in PRESETS {
        let name = preset.name;
        dated(&preset.source);
        let hosts: BTreeSet<_> = preset.hosts.iter().map(|h| h.trim_start_matches("*.")).collect();
        assert_eq!(hosts.len(), preset.hosts.len(), "{name}: hosts overlap");
        for host in preset.hosts {
            assert!(Pattern::parse(host).is_ok(), "{name}: {host}");
        }
        assert_eq!(preset.hosts.is_empty(), ["npm", "pypi"].contains(&name), "{name}");
        for pattern in preset.path.iter().chain(preset.lines.iter().flat_map(|l| l.paths)) {
            assert!(path::Pattern::parse(pattern).is_ok(), "{name}: {pattern}");
        }
        for line in preset.lines {
            dated(&line.source);
            assert!(!line.paths.is_empty() && !line.why.contains('|'), "{name}: {}", line.why);
            assert!(!line.why.ends_with('.'), "{name}: {}", line.why);
            // A promise rests on words that were read.
            let promised = line.repeat != Repeat::NotPromised || line.job.is_some();
            assert!(!promised || line.source.read, "{name}: {}", line.why);
        }
    }
}

/// A line behind one that covers the same calls would never decide.
#[test]
fn every_line_can_be_reached() {
    for preset in PRESETS {
        let contract = Contract::new(preset, None);
        for line in preset.lines {
            let methods = if line.methods.is_empty() { &["PATCH"][..] } else { line.methods };
            let hosts = line.hosts.iter().chain(preset.hosts).chain(&["registry.test"]);
            let host = hosts.map(|host| host.replace('*', "x")).next().unwrap_or_default();
            let target = line.targets.iter().map(|value| (&b"x-amz-target"[..], value.as_bytes()));
            let beta = line.betas.iter().map(|value| (&b"anthropic-beta"[..], value.as_bytes()));
            let headers: Vec<_> = target.take(1).chain(beta).collect();
            let query = line.action.then_some("Action=x");
            let details = Details { headers: &headers, query, ..Details::default() };
            let reached = line.paths.iter().all(|pattern| {
                let path = pattern.replace("**", "x/y/z").replace('*', "x");
                methods.iter().any(|&method| {
                    let call = Call { method, host: &host, path: &path, details: &details };
                    contract.line(&call) == Some(line)
                })
            });
            assert!(reached, "{}: {:?} {:?}", preset.name, line.methods, line.paths);
        }
    }
}

fn decide(text: &str, method: &str, host: &str, path: &str) -> HttpGrant {
    let snapshot = Snapshot::compile(text, "p", 0).unwrap_or_else(|e| panic!("{e:#?}"));
    let action = HttpAction { agent: "a", scheme: Scheme::Https, host, port: 443, method, path };
    snapshot.http(&action).unwrap_or_else(|denial| panic!("{denial}"))
}

/// What a preset with its key contract makes of a call that is more than method and path.
fn keyed(rest: &str, action: &HttpAction<'_>, details: &Details<'_>) -> HttpGrant {
    let preset = if action.host.ends_with("amazonaws.com") { "aws" } else { "google-cloud" };
    let snapshot = Snapshot::compile(&policy(preset, rest), "p", 0).unwrap();
    snapshot.http_with(action, details).unwrap_or_else(|denial| panic!("{denial}"))
}

/// K-1, K-5: the operations of clouds that take a key, each with its place, scope and retention; what
/// no document promises whole is unverified.
#[test]
fn k_1_operations_of_clouds_take_keys_in_their_places() {
    let check = |host: &str, path: &str, target: Option<&str>, expected: [&str; 4]| {
        let named = target.map(|target| (&b"X-Amz-Target"[..], target.as_bytes()));
        let headers: Vec<_> = named.into_iter().collect();
        let action =
            HttpAction { agent: "a", scheme: Scheme::Https, host, port: 443, method: "POST", path };
        let details = Details { headers: &headers, ..Details::default() };
        for generate in [false, true] {
            let rest = format!("idempotency = {{ generate = {generate} }}");
            let grant = keyed(&rest, &action, &details);
            assert_eq!(grant.idempotent, Some(false));
            let rule = grant.idempotency.unwrap();
            let minutes = (rule.retention.as_secs() / 60).to_string();
            let place = rule.place.to_string();
            let told = [&*place, &*rule.scope, &*minutes, rule.contract.as_str()];
            assert_eq!((told, rule.generate), (expected, generate), "{host} {path}");
        }
    };
    let ec2 = "ec2.eu-west-1.amazonaws.com";
    let scope = format!("aws/c/{ec2}");
    check(ec2, "/", None, ["form:ClientToken", &scope, "1440", "verified"]);
    let dynamo = "dynamodb.us-east-1.amazonaws.com";
    let scope = format!("aws/c/{dynamo}");
    let target = Some("DynamoDB_20120810.TransactWriteItems");
    check(dynamo, "/", target, ["json:/ClientRequestToken", &scope, "10", "verified"]);
    let compute = "compute.googleapis.com";
    let scope = format!("google-cloud/c/{compute}");
    let path = "/compute/v1/projects/p/zones/z/instances";
    check(compute, path, None, ["query:requestId", &scope, "60", "unverified"]);
}

/// K-1: another operation, another host or two names of one operation have no key; an `Action` in the
/// query of any address is not repeatable by its method.
#[test]
fn k_1_other_operations_of_clouds_have_no_key() {
    let dynamo = "dynamodb.us-east-1.amazonaws.com";
    let (one, other) =
        (&b"DynamoDB_20120810.TransactWriteItems"[..], &b"DynamoDB_20120810.PutItem"[..]);
    let target = &b"x-amz-target"[..];
    let queue = "sqs.us-east-1.amazonaws.com";
    let action = |host, method, path| HttpAction {
        agent: "a",
        scheme: Scheme::Https,
        host,
        port: 443,
        method,
        path,
    };
    let details = |query, headers| Details { query, headers, ..Details::default() };
    for (call, details, idempotent) in [
        (action(dynamo, "POST", "/"), details(None, &[(target, other)][..]), Some(false)),
        (action(dynamo, "POST", "/"), details(None, &[(target, one), (target, one)]), Some(false)),
        (action("s3.amazonaws.com", "POST", "/"), details(None, &[(target, one)]), Some(false)),
        (action(queue, "GET", "/1/q"), details(Some("A=1&Action=SendMessage"), &[]), Some(false)),
        (action(queue, "GET", "/1/q"), details(Some("%zz"), &[]), Some(false)),
        (action(queue, "GET", "/1/q"), details(Some("a=1"), &[]), None),
    ] {
        let grant = keyed("", &call, &details);
        assert_eq!((grant.idempotency, grant.idempotent), (None, idempotent), "{call:?}");
    }
}

/// K-1: inference that lets the service act elsewhere is not repeatable.
#[test]
fn k_1_inference_with_remote_servers_is_not_repeatable() {
    let snapshot = Snapshot::compile(&policy("anthropic", ""), "p", 0).unwrap();
    let action = HttpAction {
        agent: "a",
        scheme: Scheme::Https,
        host: "api.anthropic.com",
        port: 443,
        method: "POST",
        path: "/v1/messages",
    };
    for (beta, expected) in [
        (&b"files-api-2025-04-14"[..], true),
        (b"files-api-2025-04-14, mcp-client-2025-11-20", false),
    ] {
        let headers = [(&b"Anthropic-Beta"[..], beta)];
        let details = Details { headers: &headers, ..Details::default() };
        let grant = snapshot.http_with(&action, &details).unwrap();
        assert_eq!(grant.idempotent, Some(expected));
    }
}

/// I-2: what hands out credentials is reached by a route that names it, and by no other, however its path
/// is spelt.
#[test]
fn i_2_presets_leave_out_what_hands_out_credentials() {
    let at = |preset: &str, rest: &str, host: &str, path: &str| {
        let snapshot = Snapshot::compile(&policy(preset, rest), "p", 0).unwrap();
        let action =
            HttpAction { agent: "a", scheme: Scheme::Https, host, port: 443, method: "POST", path };
        (snapshot.http(&action).map(|_| ()).map_err(|denial| denial.to_string()), snapshot)
    };
    let cases = [
        ("aws", "sts.amazonaws.com", "/"),
        ("aws", "sts.eu-west-1.amazonaws.com", "/"),
        ("aws", "iam.amazonaws.com", "/"),
        ("google-cloud", "iamcredentials.googleapis.com", "/v1/projects/-/x:generateAccessToken"),
        ("cloudflare", "api.cloudflare.com", "/client/v4/user/tokens"),
        ("cloudflare", "api.cloudflare.com", "/client/v4/user%2Ftokens"),
        ("cloudflare", "api.cloudflare.com", "/client/v4/user//tokens/verify"),
        ("openai", "api.openai.com", "/v1/organization/admin_api_keys"),
    ];
    for (preset, host, path) in cases {
        let (denied, snapshot) = at(preset, "", host, path);
        let hint = "A preset leaves out what hands out credentials";
        assert!(denied.as_ref().unwrap_err().contains(hint), "{preset} {path}: {denied:?}");
        let origin = (Scheme::Https, host, 443);
        let by_host = ["aws", "google-cloud"].contains(&preset);
        assert_eq!(snapshot.http_route("r", "a", origin, "/").is_none(), by_host, "{preset}");
        if by_host {
            let named = format!("match = {{ host = \"{host}\" }}");
            assert_eq!(at(preset, &named, host, path).0, Ok(()), "{preset}");
        }
    }
    let named = "match = { path = \"/client/v4/user/tokens/**\" }";
    assert_eq!(at("cloudflare", named, "api.cloudflare.com", "/client/v4/user/tokens").0, Ok(()));
    assert_eq!(at("aws", "", "sqs.eu-west-1.amazonaws.com", "/").0, Ok(()));
}

/// M-7: jobs come with the preset, to the submission and to the questions about it; a route's own job
/// takes their place, and `"none"` leaves them out.
#[test]
fn m_7_jobs_come_with_the_preset() {
    let job = |preset, host, path| decide(&policy(preset, ""), "POST", host, path).job;
    let batch = job("openai", "api.openai.com", "/v1/batches").unwrap();
    assert_eq!(batch.path.as_deref(), Some("/v1/batches/{id}"));
    assert_eq!(batch.pointer.as_deref(), Some("/id"));
    assert_eq!(
        (batch.done.pointer.as_deref(), &*batch.done.equals[0]),
        (Some("/status"), "completed")
    );
    assert_eq!(batch.failed.unwrap().equals, ["failed", "expired", "cancelled"]);
    assert_eq!(job("openai", "api.openai.com", "/v1/files"), None);
    let batch = job("anthropic", "api.anthropic.com", "/v1/messages/batches").unwrap();
    assert_eq!((batch.failed, &*batch.done.equals[0]), (None, "ended"));

    let own = "idempotent = false\njob = { header = \"x-job\", done = { status = 200 } }";
    for (rest, path, expected) in [
        ("", "/v1/batches/b_1", Some(Some("/v1/batches/{id}"))),
        ("", "/v1/fine_tuning/jobs/j_1", Some(Some("/v1/fine_tuning/jobs/{id}"))),
        ("", "/v1/batches/b_1/cancel", None),
        ("", "/v1/models", None),
        (own, "/v1/batches/b_1", Some(None)),
        ("job = \"none\"", "/v1/batches/b_1", None),
    ] {
        let snapshot = Snapshot::compile(&policy("openai", rest), "p", 0).unwrap();
        let origin = (Scheme::Https, "api.openai.com", 443);
        let job = snapshot.http_route("r", "a", origin, path).unwrap().job;
        assert_eq!(job.as_ref().map(|job| job.path.as_deref()), expected, "{path}");
    }
    let without = policy("openai", "job = \"none\"");
    let grant = decide(&without, "POST", "api.openai.com", "/v1/batches");
    assert_eq!((grant.job, grant.idempotent), (None, Some(false)), "the line itself holds");
    let compiled = |text: &str| Snapshot::compile(text, "p", 0).unwrap();
    let changes = crate::diff::diff(&compiled(&policy("openai", "")), &compiled(&without));
    assert_eq!(changes.len(), 1);
    assert!(changes[0].to_string().ends_with("job: none -> none of the preset"), "{changes:?}");
}

/// `"none"` needs a preset whose jobs it could leave out, and is the one word of `job`.
#[test]
fn the_one_word_of_job_is_none() {
    let route = "[[route]]\nname = \"r\"\nmatch = { host = \"a.test\" }\n";
    for (text, told) in [
        (
            format!("{route}job = \"none\"\n"),
            "p:4:7: `job` of route \"r\": there is no preset here whose jobs \"none\" could leave out \
             (leave the key out)",
        ),
        (
            format!("{route}preset = \"openai\"\njob = \"off\"\n"),
            "p:5:7: `job` of route \"r\": \"off\" is not one of none",
        ),
    ] {
        let found = Snapshot::compile(&text, "p", 0).unwrap_err();
        let told_now: Vec<_> = found.iter().map(ToString::to_string).collect();
        assert_eq!(told_now, [told]);
    }
}

/// A line that names hosts holds at no other endpoint: then the next line decides, or the method.
#[test]
fn lines_of_hosts_do_not_hold_elsewhere() {
    let line = |preset: &Preset| preset.lines.iter().any(|line| !line.hosts.is_empty());
    assert!(PRESETS.iter().any(line), "there are such lines");
    let details =
        Details { query: Some("Action=RunInstances&ClientToken=t"), ..Details::default() };
    let keyed_at = |host: &str| {
        let text = policy("aws", &format!("match = {{ host = \"{host}\" }}"));
        let snapshot = Snapshot::compile(&text, "p", 0).unwrap();
        let (agent, scheme, method, path) = ("a", Scheme::Https, "POST", "/");
        let action = HttpAction { agent, scheme, host, port: 443, method, path };
        let grant = snapshot.http_with(&action, &details).unwrap();
        (grant.preset, grant.idempotency.is_some())
    };
    assert_eq!(keyed_at("ec2.eu-west-1.amazonaws.com"), (Some("aws"), true));
    assert_eq!(keyed_at("ec2.proxy.test"), (Some("aws"), false));
}

/// A preset of registries goes where its route says.
#[test]
fn presets_without_hosts_need_one() {
    for preset in ["npm", "pypi"] {
        let found = Snapshot::compile(&policy(preset, ""), "p", 0).unwrap_err();
        let told: Vec<_> = found.iter().map(ToString::to_string).collect();
        let message = format!("preset \"{preset}\" names no host: write match.host");
        assert!(told.iter().any(|t| t.contains(&message)), "{told:#?}");
        let host = "match = { host = \"registry.test\" }";
        let snapshot = Snapshot::compile(&policy(preset, host), "p", 0).unwrap();
        assert!(snapshot.warnings().is_empty(), "{:?}", snapshot.warnings());
        let method = if preset == "npm" { "PUT" } else { "POST" };
        let grant = decide(&policy(preset, host), method, "registry.test", "/x");
        assert_eq!((grant.idempotent, grant.preset), (Some(false), Some(preset)));
    }
    let audit = "/-/npm/v1/security/advisories/bulk";
    let host = "match = { host = \"registry.test\" }";
    let grant = decide(&policy("npm", host), "POST", "registry.test", audit);
    assert_eq!(grant.idempotent, Some(true));
}

fn policy(preset: &str, rest: &str) -> String {
    format!(
        "[[credential]]\nid = \"c\"\nsecret = \"s\"\npreset = \"{preset}\"\n\
         [[route]]\nname = \"r\"\ncredential = \"c\"\npreset = \"{preset}\"\n{rest}\n"
    )
}

/// K-1: which calls of which service are repeatable; None leaves it to the method.
#[test]
fn k_1_calls_have_the_contract_of_the_table() {
    let cases: &[(&str, &str, &str, &str, Option<bool>)] = &[
        ("openai", "POST", "api.openai.com", "/v1/chat/completions", Some(true)),
        ("openai", "POST", "api.openai.com", "/v1/responses", Some(false)),
        ("openai", "POST", "api.openai.com", "/v1/batches", Some(false)),
        ("openai", "GET", "api.openai.com", "/v1/models", None),
        ("anthropic", "POST", "api.anthropic.com", "/v1/messages", Some(true)),
        ("anthropic", "POST", "api.anthropic.com", "/v1/messages/batches", Some(false)),
        (
            "gemini",
            "POST",
            "generativelanguage.googleapis.com",
            "/v1beta/models/gemini-pro:streamGenerateContent",
            Some(true),
        ),
        (
            "gemini",
            "POST",
            "generativelanguage.googleapis.com",
            "/v1beta/models/gemini-pro:batchGenerateContent",
            Some(false),
        ),
        ("github", "POST", "api.github.com", "/repos/o/r/issues", Some(false)),
        ("github", "PUT", "api.github.com", "/repos/o/r/pulls/1/merge", None),
        ("gitlab", "POST", "gitlab.com", "/api/v4/projects", Some(false)),
        ("stripe", "POST", "api.stripe.com", "/v1/charges", Some(false)),
        ("stripe", "DELETE", "api.stripe.com", "/v1/customers/x", None),
        ("stripe", "DELETE", "api.stripe.com", "/v2/core/accounts/x", Some(false)),
        ("aws", "GET", "ec2.eu-west-1.amazonaws.com", "/", Some(false)),
        ("aws", "GET", "bucket.s3.amazonaws.com", "/key", None),
        ("google-cloud", "POST", "compute.googleapis.com", "/compute/v1/x", Some(false)),
        ("aws", "POST", "lambda.eu-west-1.amazonaws.com", "/2015-03-31/functions", Some(false)),
        ("slack", "GET", "slack.com", "/api/chat.postMessage", Some(false)),
        ("slack", "POST", "slack.com", "/api/conversations.history", Some(true)),
        ("jira", "PUT", "x.atlassian.net", "/rest/api/3/issue/A-1", Some(false)),
        ("jira", "POST", "x.atlassian.net", "/rest/api/3/search/jql", Some(true)),
        ("linear", "POST", "api.linear.app", "/graphql", Some(false)),
        ("notion", "POST", "api.notion.com", "/v1/databases/1/query", Some(true)),
        ("notion", "PATCH", "api.notion.com", "/v1/blocks/1/children", Some(false)),
        ("twilio", "POST", "api.twilio.com", "/2010-04-01/Accounts/A/Messages.json", Some(false)),
        ("sendgrid", "POST", "api.sendgrid.com", "/v3/mail/send", Some(false)),
        ("cloudflare", "POST", "api.cloudflare.com", "/client/v4/zones", Some(false)),
        ("cloudflare", "PUT", "api.cloudflare.com", "/client/v4/zones/1", None),
    ];
    for &(preset, method, host, path, expected) in cases {
        let grant = decide(&policy(preset, ""), method, host, path);
        assert_eq!(grant.idempotent, expected, "{preset} {method} {path}");
        assert_eq!(grant.preset, Some(preset));
        let keyed = preset == "stripe" && method == "POST";
        assert_eq!(grant.idempotency.is_some(), keyed, "{preset} {method} {path}");
        assert!(grant.forbidden_headers.is_empty(), "client libraries send a key of their own");
    }
}

/// K-1 and K-5: the key contract of Stripe, with its scope and retention.
#[test]
fn k_5_stripe_keeps_keys_for_a_day() {
    let grant = decide(&policy("stripe", ""), "POST", "files.stripe.com", "/v1/%66iles");
    let rule = grant.idempotency.unwrap();
    let place = KeyPlace::Header("idempotency-key".into());
    assert_eq!((rule.place, rule.scope.as_str()), (place, "stripe/c"));
    assert_eq!(rule.retention, std::time::Duration::from_secs(86_400));
    assert_eq!(rule.contract, RemoteContract::Verified);
    assert_eq!(grant.credential.unwrap().inject, Inject::Bearer);
}

/// A route's own word goes before the preset's.
#[test]
fn routes_override_presets() {
    let grant = decide(
        &policy("openai", "idempotent = false"),
        "POST",
        "api.openai.com",
        "/v1/chat/completions",
    );
    assert_eq!((grant.idempotent, grant.preset), (Some(false), Some("openai")));
    let own = "idempotency = { header = \"X-Key\", retention = \"1h\" }";
    let grant = decide(&policy("stripe", own), "POST", "api.stripe.com", "/v1/charges");
    assert_eq!(grant.idempotency.unwrap().place.to_string(), "x-key");
    assert_eq!(grant.idempotent, None);
    let host = "match = { host = \"gitlab.example.com\" }\nagent_header = \"refuse\"";
    let grant = decide(&policy("gitlab", host), "POST", "gitlab.example.com", "/api/v4/projects");
    assert_eq!((grant.idempotent, grant.preset), (Some(false), Some("gitlab")));
    assert_eq!(grant.forbidden_headers, ["private-token", "authorization"]);
}

/// A preset opens its own hosts and paths, and nothing else.
#[test]
fn v_1_presets_open_their_own_places_only() {
    let text = policy("slack", "");
    let snapshot = Snapshot::compile(&text, "p", 0).unwrap();
    let action = |host, path| HttpAction {
        agent: "a",
        scheme: Scheme::Https,
        host,
        port: 443,
        method: "GET",
        path,
    };
    assert!(snapshot.http(&action("slack.com", "/api/users.list")).is_ok());
    assert!(snapshot.http(&action("slack.com", "/signin")).is_err());
    assert!(snapshot.http(&action("files.slack.com", "/api/users.list")).is_err());
    assert!(snapshot.http(&HttpAction { port: 8443, ..action("slack.com", "/api/x") }).is_err());
    assert!(
        snapshot
            .http(&HttpAction { scheme: Scheme::Http, ..action("slack.com", "/api/x") })
            .is_err()
    );
}

#[test]
fn mistakes_with_presets_are_told() {
    let check = |text: &str, part: &str| {
        let found = Snapshot::compile(text, "p", 0).unwrap_err();
        let told: Vec<_> = found.iter().map(ToString::to_string).collect();
        assert!(told.iter().any(|t| t.contains(part)), "{part:?} is not in {told:#?}");
    };
    check("[[route]]\nname = \"r\"\npreset = \"strip\"\n", "did you mean \"stripe\"?");
    let more = "idempotency = { generate = true, scope = \"s\" }";
    check(
        &policy("stripe", more),
        "`scope` of `idempotency` of route \"r\": needs a place of the key",
    );
    check("[[route]]\nname = \"r\"\n", "`match` of route \"r\": is missing");
    check(
        "[[credential]]\nid = \"c\"\nsecret = \"s\"\npreset = \"zzz\"\n",
        "is not the name of a preset",
    );
    let two = policy("stripe", "") + "[[route]]\nname = \"two\"\npreset = \"stripe\"\n";
    check(&two, "can match the same action");
    let elsewhere = "[[credential]]\nid = \"c\"\nsecret = \"s\"\npreset = \"stripe\"\n\
                     [[route]]\nname = \"r\"\ncredential = \"c\"\nmatch = { host = \"h.test\" }\n";
    let snapshot = Snapshot::compile(elsewhere, "p", 0).unwrap();
    let warnings: Vec<_> = snapshot.warnings().iter().map(ToString::to_string).collect();
    assert!(
        warnings[0].contains("hands the credential of \"stripe\" to another host"),
        "{warnings:?}"
    );
}

#[test]
fn explanations_name_preset_line_and_document() {
    let snapshot = Snapshot::compile(&policy("stripe", ""), "p", 0).unwrap();
    let host = "api.stripe.com";
    let action = HttpAction {
        agent: "a",
        scheme: Scheme::Https,
        host,
        port: 443,
        method: "POST",
        path: "/v1/charges",
    };
    let told = snapshot.explain_http(&action);
    let term = told.terms.iter().find(|t| t.starts_with("preset")).unwrap();
    assert!(term.contains("\"stripe\"") && term.contains("kept at least 24 hours"), "{term}");
    assert!(term.contains("https://docs.stripe.com/api/idempotent_requests, read 2026-"), "{term}");
    assert!(told.terms.iter().any(|t| t == "not idempotent, by the preset"), "{told}");
    let told = snapshot.explain_http(&HttpAction { method: "GET", ..action });
    assert!(told.terms.iter().any(|t| t.contains("has no line on this call")), "{told}");
    assert!(told.terms.iter().any(|t| t == "idempotent, by its method"), "{told}");
}

/// `docs/presets.md` is what the table gives.
#[test]
fn the_page_is_the_table() {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/presets.md");
    let made = reference();
    if std::env::var_os(WRITE).is_some() {
        std::fs::write(file, &made).unwrap();
    }
    let written = std::fs::read_to_string(file).unwrap_or_default();
    assert!(written == made, "docs/presets.md is old; run the test with {WRITE}=1");
    let block = made.split("```toml\n").nth(1).unwrap().split("```").next().unwrap();
    assert!(Snapshot::compile(block, "docs/presets.md", 0).is_ok());
}
