//! MIG on simulated GPUs: the instances that each model allows ([`profiles`]), and creating and
//! destroying them ([`instances`]).

pub mod instances;
pub mod profiles;
