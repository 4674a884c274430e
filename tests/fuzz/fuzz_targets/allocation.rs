//! Feeds libFuzzer's inputs to [`aliquot_fuzz::allocation`].

#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| aliquot_fuzz::allocation::check(input));
