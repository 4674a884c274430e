//! Feeds libFuzzer's inputs to [`aliquot_fuzz::binding`].

#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| aliquot_fuzz::binding::check(input));
