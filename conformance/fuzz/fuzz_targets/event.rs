//! Fuzzes [`fuzz::checks::event`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| fuzz::checks::event(data));
