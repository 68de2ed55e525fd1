//! Fuzzes [`fuzz::checks::journal_recovery`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| fuzz::checks::journal_recovery(data));
