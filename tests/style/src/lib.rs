//! The rules of this repository, as functions from text to a list of errors.

#![forbid(unsafe_code)]

pub mod arrows;
pub mod documents;
pub mod figures;
pub mod layers;
pub mod sources;
pub mod tree;
