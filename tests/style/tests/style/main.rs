//! The rules of this repository that neither the compiler nor another tool checks.

mod arrows;
mod compatibility;
mod documents;
mod lanes;
mod layers;
mod modes;
mod site;
mod sources;
