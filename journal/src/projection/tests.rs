//! Tests of the projection.
