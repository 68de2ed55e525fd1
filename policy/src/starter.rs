//! The policy text that `affiant init` writes.

/// A commented policy that parses, applies and denies everything until a route is written.
pub const STARTER: &str = include_str!("starter.toml");
