//! Fuzzes [`fuzz::checks::policy`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| fuzz::checks::policy(data));
