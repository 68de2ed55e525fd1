//! Calls that wait for a person (contract V-6): what may follow, and what they say meanwhile.

use super::{IllegalEvent, Invocation, State};
use crate::contract::{
    Approval, ApprovalDecided, ApprovalRequested, Body, Dispatch, Source, Verdict,
};

impl Invocation {
    /// The approval that was asked for, if one was.
    #[must_use]
    pub const fn approval(&self) -> Option<&Approval> {
        self.approval.as_ref()
    }

    /// Whether a person was asked, and the call is neither dispatched nor ended. A restart leaves
    /// such a call as it is: nothing of it is lost with the process.
    #[must_use]
    pub const fn is_held(&self) -> bool {
        match self.state {
            State::Validated | State::Authorized => self.approval.is_some(),
            State::Accepted | State::Dispatched | State::Ended(_) | State::Committed(_) => false,
        }
    }

    fn is_approved(&self) -> bool {
        self.approval
            .as_ref()
            .is_some_and(|approval| approval.covers(approval.requested.fingerprint))
    }

    /// `CREDENTIAL_AUTHORIZED` follows `PREFLIGHT_VALIDATED`, or an approval; after an approval
    /// again, when what began to use it broke off before dispatch.
    pub(super) fn check_authorizing(&self, body: &Body) -> Result<(), IllegalEvent> {
        match (self.state, self.approval.is_some()) {
            (State::Validated, false) => Ok(()),
            (State::Validated | State::Authorized, true) if self.is_approved() => Ok(()),
            (State::Validated, true) => Err(self.illegal(body, "nobody approved it")),
            (
                State::Accepted
                | State::Authorized
                | State::Dispatched
                | State::Ended(_)
                | State::Committed(_),
                _,
            ) => Err(self.illegal(body, "it follows PREFLIGHT_VALIDATED alone")),
        }
    }

    pub(super) fn check_asking(&self, body: &Body) -> Result<(), IllegalEvent> {
        match self.state {
            State::Validated if self.approval.is_none() => Ok(()),
            State::Validated => Err(self.illegal(body, "a person was asked already")),
            State::Accepted
            | State::Authorized
            | State::Dispatched
            | State::Ended(_)
            | State::Committed(_) => {
                Err(self.illegal(body, "it follows PREFLIGHT_VALIDATED alone"))
            }
        }
    }

    /// A decision is made once, and by a person.
    pub(super) fn check_deciding(&self, body: &Body, source: Source) -> Result<(), IllegalEvent> {
        match source {
            Source::OperatorAttested => {}
            Source::TransportObserved
            | Source::RemoteResponse
            | Source::RemoteQuery
            | Source::Recovered => return Err(self.illegal(body, "a person decides")),
        }
        match &self.approval {
            Some(approval) if self.is_held() && approval.decided.is_none() => Ok(()),
            Some(approval) if approval.decided.is_some() => {
                Err(self.illegal(body, "it is decided already"))
            }
            Some(_) | None => Err(self.illegal(body, "the call waits for nobody")),
        }
    }

    /// V-6: what is dispatched is what was approved.
    pub(super) fn check_approved(
        &self,
        body: &Body,
        dispatch: &Dispatch,
    ) -> Result<(), IllegalEvent> {
        match &self.approval {
            Some(approval) if !approval.covers(dispatch.fingerprint) => {
                Err(self.illegal(body, "it is not the request that was approved"))
            }
            Some(_) | None => Ok(()),
        }
    }

    pub(super) fn ask(&mut self, requested: &ApprovalRequested, at_ms: u64) {
        let requested = requested.clone();
        self.approval = Some(Approval { requested, requested_at_ms: at_ms, decided: None });
    }

    pub(super) fn decide(&mut self, decided: &ApprovalDecided) {
        if let Some(approval) = &mut self.approval {
            approval.decided = Some(decided.clone());
        }
    }

    /// What a held call says of itself: nothing was sent, and what it takes to go on.
    pub(super) fn held_verdict(&self) -> Option<Verdict> {
        self.is_held().then(|| Verdict::approval_pending(self.is_approved()))
    }

    pub(super) fn held_field(&self) -> Option<String> {
        self.is_held().then(|| "approval".to_owned())
    }

    pub(super) fn held_message(&self) -> Option<&'static str> {
        self.is_held().then(|| {
            if self.is_approved() {
                "The call is approved and was not sent yet; send the same request with this id."
            } else {
                "The call is held until a person approves it; then send the same request with \
                 this id."
            }
        })
    }
}
