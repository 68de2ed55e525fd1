//! The evidence of Affiant: contract types, projection and recovery (pure), log and result store.

pub mod contract;
