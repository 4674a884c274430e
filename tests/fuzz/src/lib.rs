//! What must hold for any bytes that others may write, one module for each
//! place at which they are read.
//!
//! Fed by: libFuzzer (`make fuzz`), and the kept corpus (`make test`).
//! Must not: panic on anything but a broken property.

#![forbid(unsafe_code)]

pub mod allocation;
pub mod binding;
pub mod extender;
pub mod hami;
pub mod inventory;
pub mod preemption;
pub mod quantities;
mod shapes;

/// One place at which bytes are read, and what must hold there.
pub type Target = (&'static str, fn(&[u8]));

/// Every target by the name of its corpus folder and of its program.
pub const TARGETS: &[Target] = &[
    ("extender", extender::check),
    ("binding", binding::check),
    ("allocation", allocation::check),
    ("hami", hami::check),
    ("inventory", inventory::check),
    ("preemption", preemption::check),
    ("quantities", quantities::check),
];
