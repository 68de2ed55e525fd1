//! Which event may follow what is on record: the rules that [`Invocation::apply`] holds.

use super::{Delivery, IllegalEvent, Invocation, State};
use crate::contract::{
    Body, Code, Confirmation, DispatchWithdrawn, LeaseReleased, LeaseRenewed, Outcome,
    ResultCommitted, Source,
};

impl Invocation {
    /// Says whether an event may follow.
    ///
    /// # Errors
    /// [`IllegalEvent`] with the rule that it breaks.
    pub fn check(&self, body: &Body, source: Source) -> Result<(), IllegalEvent> {
        let require = |holds: bool, reason: &'static str| {
            if holds { Ok(()) } else { Err(self.illegal(body, reason)) }
        };
        match body {
            Body::Noted(_) | Body::RepeatAnswered(_) => Ok(()),
            Body::ActionAccepted(_) => require(false, "the invocation is on record already"),
            Body::PreflightValidated(_) => {
                require(matches!(self.state, State::Accepted), "it follows ACTION_ACCEPTED alone")
            }
            Body::ApprovalRequested(_) => self.check_asking(body),
            Body::ApprovalDecided(_) => self.check_deciding(body, source),
            Body::CredentialAuthorized(_) => self.check_authorizing(body),
            Body::SetupAttempted(_) => self.check_connecting(body),
            Body::DispatchStarted(dispatch) => {
                self.check_connecting(body)?;
                self.check_approved(body, dispatch)
            }
            Body::RequestStored(_) => self.check_storing(body),
            Body::DispatchWithdrawn(withdrawn) => self.check_withdrawing(body, withdrawn, source),
            Body::RequestSent(_) => self.check_executing(body, self.sent.is_none()),
            Body::RemoteResponseStarted(_) => self.check_executing(body, self.started.is_none()),
            Body::BatchMembers(_) => self.check_preparing(body, self.batch.is_none()),
            Body::MembersJudged(judged) => {
                require(self.is_executing(), "the call is not under way at the remote")?;
                let ids = self.batch.as_ref().map_or(0, |batch| batch.ids.len());
                require(ids == judged.members.len(), "it judges other members")
            }
            Body::JobTracked(_) => self.check_executing(body, self.job.is_none()),
            Body::RemoteResponseComplete(_) => {
                require(self.is_executing(), "the call is not under way at the remote")?;
                require(self.started.is_some(), "no response has begun")?;
                require(self.complete.is_none(), "it is on record already")
            }
            Body::ResultCommitted(committed) => self.check_committing(body, committed, source),
            Body::InvocationEnded(ended) => self.check_ending(body, ended.verdict.outcome()),
            Body::ResultDelivered(delivered) => {
                self.check_delivering(body, Some(delivered.confirmation))
            }
            Body::DeliveryFailed(_) => self.check_delivering(body, None),
            Body::ResultExpired(_) => {
                require(self.kept().is_some(), "no result is kept")?;
                require(self.expired_at_ms.is_none(), "it is on record already")
            }
            Body::LeaseAcquired(acquired) => {
                require(self.is_retryable(), "there is nothing to retry")?;
                let next = self.lease.map_or(1, |lease| lease.generation + 1);
                require(acquired.generation == next, "the generation does not follow")
            }
            Body::LeaseRenewed(LeaseRenewed { generation, .. })
            | Body::LeaseReleased(LeaseReleased { generation }) => {
                require(self.holds(*generation), "the lease is not the newest, or given back")
            }
            Body::LeaseUsed(used) => {
                require(self.is_retryable(), "there is nothing to retry")?;
                require(self.holds(used.generation), "the lease is not the newest, or given back")?;
                let unused = self.lease.is_some_and(|lease| lease.retry.is_none());
                require(unused, "a retry was dispatched under the lease")
            }
        }
    }

    /// The end of a delivery, with what confirms it or without, where no stronger one is on record.
    fn check_delivering(
        &self,
        body: &Body,
        confirmation: Option<Confirmation>,
    ) -> Result<(), IllegalEvent> {
        match self.state {
            State::Committed(_) => {}
            State::Accepted
            | State::Validated
            | State::Authorized
            | State::Dispatched
            | State::Ended(_) => return Err(self.illegal(body, "no result is on record")),
        }
        let confirmed = match self.delivery {
            Delivery::Pending | Delivery::Failed => false,
            // The caller's host had it. That nobody there read it is known later.
            // What the caller itself confirms, here or elsewhere, weighs more and stays.
            Delivery::Delivered(Confirmation::Transport) => {
                confirmation == Some(Confirmation::Transport)
            }
            Delivery::Delivered(
                Confirmation::Protocol | Confirmation::Acknowledged | Confirmation::Fetched,
            ) => true,
        };
        if confirmed {
            Err(self.illegal(body, "the delivery is confirmed already"))
        } else {
            Ok(())
        }
    }

    fn check_connecting(&self, body: &Body) -> Result<(), IllegalEvent> {
        match self.state {
            State::Authorized => Ok(()),
            State::Accepted
            | State::Validated
            | State::Dispatched
            | State::Ended(_)
            | State::Committed(_) => {
                Err(self.illegal(body, "it follows CREDENTIAL_AUTHORIZED and precedes dispatch"))
            }
        }
    }

    /// The request, once: as soon as it is bound, so that a person who is asked can read all of it
    /// (contract V-6), and before dispatch.
    fn check_storing(&self, body: &Body) -> Result<(), IllegalEvent> {
        if !matches!(self.state, State::Validated) {
            self.check_connecting(body)?;
        }
        if self.request.is_none() {
            Ok(())
        } else {
            Err(self.illegal(body, "it is on record already"))
        }
    }

    /// A fact of the request that is fixed before dispatch, once.
    fn check_preparing(&self, body: &Body, is_new: bool) -> Result<(), IllegalEvent> {
        self.check_connecting(body)?;
        if is_new { Ok(()) } else { Err(self.illegal(body, "it is on record already")) }
    }

    /// A fact of the exchange with the remote, once.
    fn check_executing(&self, body: &Body, is_new: bool) -> Result<(), IllegalEvent> {
        if !self.is_executing() {
            return Err(self.illegal(body, "the call is not under way at the remote"));
        }
        if is_new { Ok(()) } else { Err(self.illegal(body, "it is on record already")) }
    }

    /// Whether a retry can make sense: the outcome leaves something to try.
    const fn is_retryable(&self) -> bool {
        match self.state {
            State::Ended(_) => true,
            State::Committed(verdict) => matches!(verdict.outcome(), Outcome::Rejected),
            State::Accepted | State::Validated | State::Authorized | State::Dispatched => false,
        }
    }

    fn holds(&self, generation: u64) -> bool {
        self.lease.is_some_and(|lease| lease.generation == generation && !lease.is_released)
    }

    const fn is_executing(&self) -> bool {
        matches!(self.state, State::Dispatched)
    }

    /// D-1: only the process that was refused the proof of that very dispatch knows that nothing was
    /// sent; where anything follows the dispatch there was a proof.
    fn check_withdrawing(
        &self,
        body: &Body,
        withdrawn: &DispatchWithdrawn,
        source: Source,
    ) -> Result<(), IllegalEvent> {
        let dispatch = self.dispatch_sequence().filter(|_| self.is_executing());
        let alone = self.sent.is_none() && self.started.is_none();
        if dispatch != Some(withdrawn.dispatch) || !alone {
            return Err(
                self.illegal(body, "it follows the dispatch that it names, and nothing else")
            );
        }
        if source != Source::TransportObserved {
            return Err(self.illegal(body, "only the process that dispatched can know it"));
        }
        match withdrawn.verdict.outcome() {
            Outcome::NotAttempted => Ok(()),
            Outcome::Rejected | Outcome::Committed | Outcome::Unknown => {
                Err(self.illegal(body, "what was not sent is not_attempted"))
            }
        }
    }

    fn check_ending(&self, body: &Body, outcome: Outcome) -> Result<(), IllegalEvent> {
        match self.state {
            State::Accepted | State::Validated | State::Authorized => match outcome {
                Outcome::NotAttempted => Ok(()),
                Outcome::Rejected | Outcome::Committed | Outcome::Unknown => {
                    Err(self.illegal(body, "before dispatch a call ends not_attempted"))
                }
            },
            State::Dispatched => match outcome {
                Outcome::Unknown => Ok(()),
                Outcome::NotAttempted | Outcome::Rejected | Outcome::Committed => {
                    Err(self.illegal(body, "after dispatch a call without a result ends unknown"))
                }
            },
            State::Ended(_) | State::Committed(_) => {
                Err(self.illegal(body, "an outcome is on record already"))
            }
        }
    }

    fn check_committing(
        &self,
        body: &Body,
        committed: &ResultCommitted,
        source: Source,
    ) -> Result<(), IllegalEvent> {
        let verdict = committed.verdict;
        match verdict.outcome() {
            Outcome::Rejected | Outcome::Committed => {}
            Outcome::NotAttempted | Outcome::Unknown => {
                return Err(self.illegal(body, "a deciding result is rejected or committed"));
            }
        }
        let late = match source {
            Source::RemoteQuery | Source::OperatorAttested => true,
            Source::TransportObserved | Source::RemoteResponse => false,
            Source::Recovered => {
                return Err(self.illegal(body, "a restart proves no result of the remote"));
            }
        };
        match self.state {
            State::Accepted | State::Validated | State::Authorized => {
                Err(self.illegal(body, "the call is not dispatched"))
            }
            State::Dispatched => {
                let by_refusal =
                    matches!(verdict.code(), Code::RemoteNotProcessed | Code::RequestRefused);
                if late || by_refusal || self.complete.is_some() {
                    return Ok(());
                }
                Err(self.illegal(body, "no complete response is on record"))
            }
            State::Ended(ended) if ended.outcome() == Outcome::Unknown && late => Ok(()),
            State::Ended(ended) if ended.outcome() == Outcome::Unknown => {
                Err(self.illegal(body, "late evidence comes from a query or an operator"))
            }
            State::Ended(_) => Err(self.illegal(body, "not_attempted is final")),
            State::Committed(_) => Err(self.illegal(body, "an outcome is on record already")),
        }
    }

    pub(super) fn illegal(&self, body: &Body, reason: &'static str) -> IllegalEvent {
        IllegalEvent { state: self.state.name(), event: body.name(), reason }
    }
}
