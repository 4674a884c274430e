//! Feeds libFuzzer's inputs to [`aliquot_fuzz::preemption`].

#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| aliquot_fuzz::preemption::check(input));
