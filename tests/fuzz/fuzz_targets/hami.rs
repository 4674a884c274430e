//! Feeds libFuzzer's inputs to [`aliquot_fuzz::hami`].

#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| aliquot_fuzz::hami::check(input));
