//! Properties for any bytes that others may write, one module for each place that reads
//! them. Fed by libFuzzer (`make fuzz`) and by the corpus (`make test`). A target panics
//! only on a broken property.

#![forbid(unsafe_code)]

pub mod allocation;
pub mod extender;
pub mod inventory;
pub mod preemption;
pub mod quantities;
mod shapes;

/// One place that reads bytes, and its properties.
pub type Target = (&'static str, fn(&[u8]));

/// Every target by the name of its corpus directory and program.
pub const TARGETS: &[Target] = &[
    ("extender", extender::check),
    ("allocation", allocation::check),
    ("inventory", inventory::check),
    ("preemption", preemption::check),
    ("quantities", quantities::check),
];
