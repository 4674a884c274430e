//! Feeds libFuzzer's inputs to [`aliquot_fuzz::preemption`]. Must not: hold a property of its own.

#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| aliquot_fuzz::preemption::check(input));
