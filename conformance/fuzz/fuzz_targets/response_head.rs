//! Fuzzes [`fuzz::checks::response_head`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| fuzz::checks::response_head(data));
