//! Feeds libFuzzer's inputs to [`aliquot_fuzz::quantities`].

#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| aliquot_fuzz::quantities::check(input));
