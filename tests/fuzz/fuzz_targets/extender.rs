//! Feeds libFuzzer's inputs to [`aliquot_fuzz::extender`].

#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| aliquot_fuzz::extender::check(input));
