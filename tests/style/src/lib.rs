//! The rules of this repository, as functions from text to a list of errors.

#![forbid(unsafe_code)]

pub mod arrows;
pub mod commands;
pub mod documents;
pub mod figures;
pub mod layers;
pub mod modes;
pub mod site;
pub mod sources;
pub mod tree;
pub mod words;
