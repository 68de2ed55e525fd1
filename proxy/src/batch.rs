//! Batches on their way: the members before dispatch, what is said of them after (contract D-5).

use crate::engine::Prepared;
use bytes::Bytes;
use journal::Call;
use journal::contract::{BatchMembers, Verdict, judge_members};

/// Puts the members of a batch on record, if the route has batches and the request is one.
pub(crate) fn name_members(call: &mut Call, prepared: &Prepared) {
    let Some(rule) = prepared.grant.batch.as_ref().filter(|_| !prepared.partial) else { return };
    let Some(ids) = rule.ids(&prepared.ahead.concat()) else { return };
    let batch = BatchMembers { ids, is_atomic: rule.is_atomic };
    if let Err(error) = call.batch_members(batch) {
        // Of each member no less is known than of the whole.
        tracing::warn!(%error, id = %call.id(), "the members of a batch were not recorded");
    }
}

/// Judges each member by a complete response that is held in whole.
pub(crate) fn judge(call: &mut Call, prepared: &Prepared, whole: Verdict, held: &[Bytes]) {
    let Some(rule) = &prepared.grant.batch else { return };
    let members = call.invocation().members();
    if members.is_empty() {
        return;
    }
    let ids: Vec<String> = members.into_iter().map(|member| member.id).collect();
    let said = rule.said(&ids, &held.concat());
    let operation = &prepared.operation;
    let latest_ms = call.latest_ms();
    let judged = judge_members(&ids, &said, whole, rule.is_atomic, operation, latest_ms);
    if let Err(error) = call.members_judged(judged) {
        tracing::warn!(%error, id = %call.id(), "the members of a batch were not judged");
    }
}
