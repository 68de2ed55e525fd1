//! Fuzzes [`fuzz::checks::sftp`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| fuzz::checks::sftp(data));
