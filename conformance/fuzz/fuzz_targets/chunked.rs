//! Fuzzes [`fuzz::checks::chunked`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| fuzz::checks::chunked(data));
