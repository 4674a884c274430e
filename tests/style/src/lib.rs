//! The rules of this repository as functions from text to a list of faults.
//!
//! [`arrows`]: which crate may use which. [`sources`]: what a `.rs` file may
//! hold. [`documents`]: links, promises and invariants in `.md` files.
//! [`modes`]: what docs/modes.md says is proved.
//! [`supply`]: what may come in from outside. [`tree`] reads the files.
//! Fed by: the tests of this crate, which run each rule on the tree and on bad examples.
//! Must not: change anything, or use the network.

#![forbid(unsafe_code)]

pub mod arrows;
pub mod commands;
pub mod documents;
pub mod modes;
pub mod sources;
pub mod supply;
pub mod tree;
