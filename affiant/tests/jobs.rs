//! Jobs (contract M-7): a 202 settles its submission; the job is an invocation of its own.

#![allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::print_stderr,
    clippy::unwrap_used,
    reason = "a test fails by a panic"
)]

#[path = "support/service.rs"]
mod service;
mod support;

use serde_json::json;
use service::{Done, Service};
use std::sync::{Arc, Mutex};
use support::*;

/// M-7: many services answer 200 with an id; the route says where the job with that id is asked about.
#[test]
fn m_7_a_job_is_named_by_an_id_in_a_200() {
    let service = Service::start(|asked| match (asked.method.as_str(), asked.target.as_str()) {
        ("POST", "/v1/batches") => Done::and_answers(200, "", r#"{"id":"batch 7","status":"new"}"#),
        ("POST", _) => Done::and_answers(200, "", r#"{"status":"done"}"#),
        ("GET", "/v1/batches/batch%207") => Done::nothing_but(200, "", r#"{"status":"completed"}"#),
        _ => Done::nothing_but(404, "", "{}"),
    });
    let home = home(&service.policy(
        "[route.job]\npointer = \"/id\"\npath = \"/v1/batches/{id}\"\nevery = \"1s\"\n\
         done = { status = 200, pointer = \"/status\", equals = [\"completed\"] }\n",
    ));
    let server = home.serve();
    let submitted = server.curl(&["-d", "x", &service.url("/v1/batches")]);
    assert_eq!((submitted.status, submitted.outcome()), (200, "committed"));
    let submission = server.control(&format!("invocations/{}", submitted.invocation()));
    let job = submission["links"]["job"].as_str().unwrap().to_owned();
    let state = || server.control(&format!("invocations/{job}"))["error"]["outcome"].clone();
    eventually("the end of the job", || state() == "committed");
    let asked = service.asked();
    assert_eq!(asked[1].target, "/v1/batches/batch%207");
    assert_eq!(asked[1].field("authorization"), Some(format!("Bearer {SECRET}").as_str()));
    // A call that starts no job names none, and says so on its record.
    let plain = server.curl(&["-d", "x", &service.url("/v1/files")]);
    let record = server.control(&format!("invocations/{}", plain.invocation()));
    assert_eq!((plain.status, &record["links"]["job"]), (200, &serde_json::Value::Null));
}

/// A service that accepts jobs and tells their state as it is set.
fn jobs(state: &Arc<Mutex<&'static str>>) -> Service {
    let state = Arc::clone(state);
    Service::start(move |asked| match (asked.method.as_str(), asked.target.as_str()) {
        ("POST", "/elsewhere") => {
            Done::and_answers(202, "Location: http://127.0.0.1:1/jobs/7\r\n", "{}")
        }
        ("POST", "/by-location") => Done::and_answers(202, "Location: /jobs/location\r\n", "{}"),
        ("POST", "/by-both") => Done::and_answers(
            202,
            "Location: /resource\r\nOperation-Location: /jobs/operation\r\n",
            "{}",
        ),
        ("POST", "/by-field") => {
            Done::and_answers(202, "Location: /resource\r\nX-Job: /jobs/field\r\n", "{}")
        }
        ("POST", "/unnamed") => Done::and_answers(202, "", "{}"),
        ("POST", "/by-content") => {
            Done::and_answers(202, "", r#"{"job":{"url":"/jobs/8?token=canary-token"}}"#)
        }
        ("POST", _) => {
            Done::and_answers(202, "Operation-Location: /jobs/7?token=canary-token\r\n", "{}")
        }
        _ => Done::nothing_but(200, "", format!(r#"{{"state":"{}"}}"#, state.lock().unwrap())),
    })
}

const BY_FIELD: &str = r#"
[route.job]
done = { status = 200, pointer = "/state", equals = ["done"] }
failed = { pointer = "/state", equals = ["failed"] }
every = "1s"
"#;

/// M-7: the submission is committed and stays so; the job is linked both ways, followed across a
/// restart, and its last answer is its result. Its address, which may be a secret, is in no record.
#[test]
fn m_7_a_job_is_an_invocation_of_its_own() {
    let state = Arc::new(Mutex::new("running"));
    let service = jobs(&state);
    let home = home(&service.policy(BY_FIELD));
    let server = home.serve();
    let submitted = server.curl(&["-d", "x", &service.url("/submit")]);
    assert_eq!((submitted.status, submitted.outcome()), (202, "committed"));
    let id = submitted.invocation();
    let submission = server.control(&format!("invocations/{id}"));
    let job = submission["links"]["job"].as_str().unwrap().to_owned();
    let under_way = server.control(&format!("invocations/{job}"));
    assert_eq!(under_way["links"]["earlier"], id.as_str());
    assert_eq!(
        (&under_way["action"], &under_way["error"]["outcome"]),
        (&json!("JOB"), &json!("unknown"))
    );
    assert_eq!(under_way["error"]["code"], "IN_FLIGHT");
    // A pending job never makes the submission repeatable, nor is it repeatable itself.
    let decide =
        |id: &str| server.control(&format!("invocations/{id}/decision"))["decision"].clone();
    eventually("the hand-over", || decide(&id) == "RETURN_RECORDED_RESULT");
    assert_eq!(decide(&job), "RECONCILE");
    for id in [&id, &job] {
        let path = format!("http://affiant.internal/v1/invocations/{id}/retry");
        assert_eq!(server.curl(&["-X", "POST", &path]).status, 409);
    }
    // The broker asks by itself, so it waits for no person.
    assert_eq!(server.control("waiting")["invocations"], json!([]));
    eventually("the first question", || service.asked().iter().any(|asked| asked.method == "GET"));
    assert_eq!(server.terminate(), Some(0));

    let server = home.serve();
    *state.lock().unwrap() = "done";
    eventually("the end of the job", || {
        server.control(&format!("invocations/{job}"))["error"]["outcome"] == "committed"
    });
    let ended = server.control(&format!("invocations/{job}"));
    assert_eq!(ended["error"]["code"], "OK");
    assert_eq!(ended["evidence"]["source"], "remote_query");
    let result = server.curl(&[&format!("http://affiant.internal/v1/invocations/{job}/result")]);
    assert_eq!(text(&result.body), r#"{"state":"done"}"#);
    let asked = service.asked();
    assert_eq!(asked.iter().filter(|asked| asked.method == "POST").count(), 1);
    assert!(asked.iter().skip(1).all(|asked| {
        asked.target == "/jobs/7?token=canary-token"
            && asked.field("authorization") == Some(&format!("Bearer {SECRET}"))
    }));
    assert_eq!(server.terminate(), Some(0));
    let log = home.ok(&["journal", "export"]);
    assert!(log.contains("JOB_TRACKED") && !log.contains("canary-token"));
}

/// M-7: a job that fails is a committed result of the job. The name of the job may stand in the content.
#[test]
fn m_7_a_failed_job_is_a_committed_result() {
    let state = Arc::new(Mutex::new("failed"));
    let service = jobs(&state);
    let rule = BY_FIELD.replace("[route.job]\n", "[route.job]\npointer = \"/job/url\"\n");
    let home = home(&service.policy(&rule));
    let server = home.serve();
    let id = server.curl(&["-d", "x", &service.url("/by-content")]).invocation();
    let submission = server.control(&format!("invocations/{id}"));
    let job = submission["links"]["job"].as_str().unwrap().to_owned();
    eventually("the end of the job", || {
        server.control(&format!("invocations/{job}"))["error"]["outcome"] == "committed"
    });
    let ended = server.control(&format!("invocations/{job}"));
    assert_eq!(ended["error"]["code"], "REMOTE_FAILED");
    assert_eq!(service.asked().last().unwrap().target, "/jobs/8?token=canary-token");
}

/// M-7, C-7: a job at another origin is not followed with this route's credential; the record says so.
#[test]
fn c_7_a_job_at_another_origin_is_not_followed() {
    let service = jobs(&Arc::new(Mutex::new("done")));
    let home = home(&service.policy(BY_FIELD));
    let server = home.serve();
    let submitted = server.curl(&["-d", "x", &service.url("/elsewhere")]);
    assert_eq!((submitted.status, submitted.outcome()), (202, "committed"));
    let id = submitted.invocation();
    let submission = server.control(&format!("invocations/{id}"));
    assert_eq!(submission["links"]["job"], json!(null));
    let events = server.control(&format!("invocations/{id}/events"));
    let noted = |event: &serde_json::Value| event["data"]["name"] == "job_not_tracked";
    assert!(events["events"].as_array().unwrap().iter().any(noted), "{events}");
    assert_eq!(service.asked().len(), 1);
}

/// M-7: the status resource is what `Operation-Location` names, else `Location`, or the field that the
/// route names and no other. A 202 that names none starts no job.
#[test]
fn m_7_the_field_names_the_status_resource() {
    let service = jobs(&Arc::new(Mutex::new("done")));
    let home = home(&service.policy(BY_FIELD));
    let server = home.serve();
    let job = |path: &str| {
        let submitted = server.curl(&["-d", "x", &service.url(path)]);
        assert_eq!((submitted.status, submitted.outcome()), (202, "committed"));
        let state = server.control(&format!("invocations/{}", submitted.invocation()));
        state["links"]["job"].as_str().map(str::to_owned)
    };
    let ended_at = |path: &str, asked: &str| {
        let job = job(path).expect("a job");
        eventually("the end of the job", || {
            server.control(&format!("invocations/{job}"))["error"]["outcome"] == "committed"
        });
        let last = service.asked().last().unwrap().clone();
        assert_eq!((last.method.as_str(), last.target.as_str()), ("GET", asked));
    };
    ended_at("/by-location", "/jobs/location");
    ended_at("/by-both", "/jobs/operation");
    assert_eq!(job("/unnamed"), None);
    home.policy(
        &service.policy(&BY_FIELD.replace("[route.job]\n", "[route.job]\nheader = \"X-Job\"\n")),
    );
    ended_at("/by-field", "/jobs/field");
    assert_eq!(job("/by-location"), None);
}

/// M-7: a job that does not end within the broker's own questions waits for a person, whose word ends
/// it; on request it is asked about still.
#[test]
fn m_7_a_job_that_does_not_end_waits_for_a_person() {
    let state = Arc::new(Mutex::new("running"));
    let service = jobs(&state);
    let home = home(&service.policy(&(BY_FIELD.to_owned() + "max_queries = 2\n")));
    let server = home.serve();
    let submitted = |path: &str| {
        let id = server.curl(&["-d", "x", &service.url(path)]).invocation();
        let submission = server.control(&format!("invocations/{id}"));
        submission["links"]["job"].as_str().unwrap().to_owned()
    };
    let (one, two) = (submitted("/one"), submitted("/two"));
    let waiting = || -> Vec<String> {
        let list = server.control("waiting")["invocations"].clone();
        let id = |job: &serde_json::Value| job["invocation_id"].as_str().unwrap().to_owned();
        list.as_array().unwrap().iter().map(id).collect()
    };
    eventually("both wait", || waiting().len() == 2);
    assert_eq!(service.asked().iter().filter(|asked| asked.method == "GET").count(), 4);
    home.ok(&["inv", "attest", &one, "--outcome", "committed", "--note", "seen in the console"]);
    assert_eq!(waiting(), [two.as_str()]);
    *state.lock().unwrap() = "done";
    home.ok(&["inv", "reconcile", &two]);
    assert_eq!(waiting(), [] as [String; 0]);
    assert_eq!(service.asked().iter().filter(|asked| asked.method == "GET").count(), 5);
}

/// M-7: a job whose address can't be stored, because the vault is locked, is not followed, and the record of
/// the submission says so; the submission itself is settled as it is.
#[test]
fn m_7_a_job_that_cannot_be_stored_is_said_to_be_lost() {
    let service = jobs(&Arc::new(Mutex::new("done")));
    let home = Home::new();
    let policy = service.policy(BY_FIELD).replace("credential = \"pay\"\n", "");
    home.policy(&policy.replace("[route.job]", "result = { keep = \"digest\" }\n[route.job]"));
    // A server that nobody told the passphrase.
    let locked = finish(home.command(&["vault", "rotate", "--passphrase"]), b"right horse\n");
    assert_eq!(locked.status.code(), Some(0), "{}", text(&locked.stderr));
    let server = home.serve();
    let submitted = server.curl(&["-d", "x", &service.url("/submit")]);
    assert_eq!((submitted.status, submitted.outcome()), (202, "committed"));
    let id = submitted.invocation();
    let state = server.control(&format!("invocations/{id}"));
    assert_eq!(
        (&state["error"]["outcome"], &state["links"]["job"]),
        (&json!("committed"), &json!(null))
    );
    let events = server.control(&format!("invocations/{id}/events"));
    let why = |event: &serde_json::Value| {
        (event["data"]["name"] == "job_not_tracked").then(|| event["data"]["detail"].clone())
    };
    let said: Vec<_> = events["events"].as_array().unwrap().iter().filter_map(why).collect();
    assert_eq!(said, ["the vault is locked, so its address can't be stored"]);
    assert_eq!(service.asked().len(), 1);
}
