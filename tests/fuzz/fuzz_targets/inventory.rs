//! Feeds libFuzzer's inputs to [`aliquot_fuzz::inventory`].

#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| aliquot_fuzz::inventory::check(input));
