//! The API beside other work on the same runtime.

use super::{Caller, State, router};
use axum::body::Body;
use http::{Request, StatusCode};
use journal::contract::{Accepted, Code, Ended, Gateway, InvocationId, Retry, Verdict};
use journal::{Admission, Guard, Journal, Options};
use policy::Policy;
use std::sync::{Arc, OnceLock, mpsc};
use tower::ServiceExt as _;

/// One refused call of an agent on record.
async fn recorded(journal: &Journal) -> InvocationId {
    let accepted = Accepted {
        gateway: Gateway::Http,
        agent: Some("coder".to_owned()),
        action: "GET".to_owned(),
        target: "https://a.test:443/".to_owned(),
        command: None,
        fingerprint: None,
        caller_id: false,
        counted: false,
        link: None,
    };
    let admitted = journal.admit(journal.new_id(), accepted, Guard::default()).unwrap();
    let Admission::New(mut call) = admitted else { unreachable!("nothing is on record yet") };
    call.note("seen", "once");
    let ended = Ended {
        verdict: Verdict::refused(Retry::AfterCorrection, Code::TargetNotAllowed),
        message: "It was refused.".to_owned(),
        field: None,
        not_before_ms: None,
        observation: None,
    };
    call.end(ended).await.unwrap().id()
}

/// J-1: what reads the log does so apart from the workers that calls share. The one thread for such reading is
/// busy here: no answer comes until it is free, and the worker goes on meanwhile.
#[test]
fn j_1_the_log_is_read_apart_from_calls() {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime.enable_all().max_blocking_threads(1).build().unwrap();
    let home = tempfile::tempdir().unwrap();
    runtime.block_on(async {
        let policy = Arc::new(Policy::init(home.path(), None).unwrap());
        let (journal, _) = Journal::open(Options::new(home.path().join("journal")), None).unwrap();
        let id = recorded(&journal).await;
        let (listening, engines) = (OnceLock::new(), OnceLock::new());
        let users = Arc::default();
        let state = State { journal: journal.clone(), policy, listening, engines, users };
        let router = router(Arc::new(state));
        for path in ["", "/events"] {
            let (free, busy) = mpsc::channel::<()>();
            let reading = tokio::task::spawn_blocking(move || busy.recv().is_err());
            let mut request = Request::get(format!("/v1/invocations/{id}{path}"));
            request.extensions_mut().unwrap().insert(Caller::Operator);
            let request = request.body(Body::empty()).unwrap();
            let answer = tokio::spawn(router.clone().oneshot(request));
            for _ in 0..100 {
                tokio::task::yield_now().await;
            }
            assert!(!answer.is_finished(), "{path}: read on the worker");
            drop(free);
            assert!(reading.await.unwrap());
            assert_eq!(answer.await.unwrap().unwrap().status(), StatusCode::OK);
        }
        journal.close().await;
    });
}
