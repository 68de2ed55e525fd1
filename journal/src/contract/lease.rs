//! The events of leases (contract K-6).

use super::InvocationId;
use serde::{Deserialize, Serialize};

/// A worker took a lease on an invocation, to retry it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeaseAcquired {
    /// 1 for the first lease of the invocation; one more for each that follows.
    pub generation: u64,
    /// Who holds it.
    pub holder: String,
    /// How long it holds, from when it was appended, on the monotonic clock of the process.
    pub ttl_ms: u64,
}

/// A lease holds for longer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeaseRenewed {
    /// Of the lease.
    pub generation: u64,
    /// From now.
    pub ttl_ms: u64,
}

/// A retry was dispatched under a lease.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeaseUsed {
    /// Of the lease.
    pub generation: u64,
    /// The retry.
    pub retry: InvocationId,
}

/// A lease was given back.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeaseReleased {
    /// Of the lease.
    pub generation: u64,
}
