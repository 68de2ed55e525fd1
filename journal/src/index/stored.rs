//! How an invocation is stored: MessagePack with names, compressed by itself.
//!
//! Names make half of an entry, and are the same in all of them; so LZ4 begins with a dictionary of
//! them. What an entry says twice (a fingerprint, a digest) is stored once too.
//!
//! ```text
//! 4 bytes  length of the MessagePack, little-endian
//!          LZ4 block
//! ```

use super::Error;
use crate::projection::Invocation;
use lz4_flex::block::{compress_prepend_size_with_dict, decompress_with_dict};
use serde::de::DeserializeOwned;

/// No LZ4 block expands further.
const LARGEST_RATIO: usize = 256;

/// Encodes an invocation; `buffer` is used over again.
pub(super) fn encode(invocation: &Invocation, buffer: &mut Vec<u8>) -> Result<Vec<u8>, Error> {
    buffer.clear();
    rmp_serde::encode::write_named(buffer, invocation)?;
    Ok(compress_prepend_size_with_dict(buffer, DICTIONARY))
}

/// Decodes an invocation, or the part of one that `T` names.
pub(super) fn decode<T: DeserializeOwned>(stored: &[u8]) -> Result<T, Error> {
    let (length, block) = stored.split_first_chunk::<4>().ok_or(Error::Malformed)?;
    let length = usize::try_from(u32::from_le_bytes(*length)).map_err(|_| Error::Malformed)?;
    if length / LARGEST_RATIO > block.len() {
        return Err(Error::Malformed);
    }
    Ok(rmp_serde::from_slice(&decompress_with_dict(block, length, DICTIONARY)?)?)
}

/// Rare entries and the usual one, without what differs between two of a kind. A change of it is a
/// change of the schema.
pub(super) const DICTIONARY: &[u8] = b"\
    \xa8approval\x83\xa9requested\x84\xabfingerprint\xc4\x20\xadexpires_at_ms\
    \xcf\x00\x00\x01\xa8lasts_ms\xa5shown\xafrequested_at_ms\xcf\x00\x00\x01\xa7decided\x83\xa2by\
    \xa6ruling\xa8approved\xa8until_ms\xcf\x00\x00\x01\
    \xa9recording\xa5field\xadnot_before_ms\xcf\x00\x00\x01\xadexpired_at_ms\
    \xcf\x00\x00\x01\xabobserved_by\xc4\x10\x01\xa5batch\x82\xa3ids\xa9is_atomic\xc2\xa6judged\
    \xa3job\xc4\x10\x01\
    \xa7request\x92\x82\xa7request\x83\xa6chunks\x01\xaclength_bytes\xa6digest\
    \xc4\x20\xacmax_attempts\x03\xa5lease\x83\xaageneration\x01\xa5retry\
    \xc4\x10\x01\xabis_released\xc3\xa7retries\
    \xa5state\x81\xa5ended\x84\xa5phase\xaavalidation\xa7outcome\xadnot_attempted\xa5retry\
    \xb0after_correction\xa4code\xb2TARGET_NOT_ALLOWED\
    \xa5state\x81\xa5ended\x84\xa5phase\xb0connection_setup\xa7outcome\xadnot_attempted\xa5retry\
    \xa7backoff\xa4code\xb2CONNECTION_REFUSED\
    \xa5state\x81\xa5ended\x84\xa5phase\xb0remote_execution\xa7outcome\xa7unknown\xa5retry\
    \xa9reconcile\xa4code\xb6REMOTE_OUTCOME_UNKNOWN\
    \xa5state\x81\xa9committed\x84\xa5phase\xb0remote_execution\xa7outcome\xa8rejected\xa5retry\
    \xb0after_correction\xa4code\xafREMOTE_REJECTED\
    \xa8accepted\x89\xa7gateway\xa3ssh\xa5agent\xa6action\xa4exec\xa6target\xa6ssh://\xa7command\
    \xa7sha256:\xabfingerprint\xc4\x20\xa9caller_id\xc3\xa7counted\xc3\xa4link\
    \xc4\x10\x01\xaeaccepted_at_ms\xcf\x00\x00\x01\
    \xabidempotency\x86\xa3key\xa4req_\xa5scope\xabfingerprint\xc4\x20\xadexpires_at_ms\
    \xcf\x00\x00\x01\xafremote_contract\xa8verified\xa8added_as\xafidempotency-key\xa4keep\
    \xa6digest\xackeep_seconds\xb0keep_total_bytes\
    \xaawould_deny\xa5stage\xafssh_environment\xa4peer\x82\xa4kind\xa8ssh_host\xabfingerprint\
    \xa7SHA256:\xb1remote_request_id\xaacompletion\xabexit_status\xa7ssh_end\x81\xabexit_status\
    \x01\
    \xaacompletion\xa7chunked\xaaend_stream\xb2transport_observed\xaacompletion\
    \xafclose_delimited\xa7message\xaeobserved_bytes\xa8delivery\xa7pending\
    \xde\x00\x12\xa2id\xc4\x10\x01\xa5state\x81\xa9committed\x84\xa5phase\xb0remote_execution\
    \xa7outcome\xa9committed\xa5retry\xa5never\xa4code\xa2OK\xa8delivery\x81\xa9delivered\
    \xa9transport\xa8accepted\x86\xa7gateway\xa4http\xa5agent\xa6action\xa3GET\xa6target\
    \xa8https://\xabfingerprint\xc4\x20\xa9caller_id\xc2\xaeaccepted_at_ms\
    \xcf\x00\x00\x01\xaefirst_sequence\xadlast_sequence\xa9preflight\x86\xaepolicy_version\
    \xa5route\xaacredential\x83\xa2id\xa7version\x01\xa4mode\xa6bearer\xaaidempotent\xc2\xa4keep\
    \xa4full\xackeep_seconds\xce\x00\x09:\x80\xa8attempts\x91\x84\xa1n\x01\xa5stage\
    \xadtls_handshake\xa4code\xa2ok\xa7address\xa8dispatch\x92\x86\xa7attempt\x01\xaaconnection\
    \xa6reused\xc2\xa7address\xa4peer\x84\xa4kind\xa3tls\xa4name\xa4leaf\xc4\x20\xa7resumed\
    \xc2\xabfingerprint\xc4\x20\xb0dispatched_at_ms\xcf\x00\x00\x01\xa4sent\x82\xaclength_bytes\
    \xa6digest\xc4\x20\xa7started\x81\xa6status\xcc\xc8\xa8complete\x84\xaacompletion\
    \xaecontent_length\xaclength_bytes\xa6digest\xc4\x20\xa8redacted\xc2\xa6result\x83\xa6chunks\
    \x01\xaclength_bytes\xa6digest\xc4\x20\xabended_at_ms\xcf\x00\x00\x01\xa6source\
    \xafremote_response\xa4note\xc0\
";
