//! Fuzzes [`fuzz::checks::decision`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| fuzz::checks::decision(data));
