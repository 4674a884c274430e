//! MIG on simulated GPUs: the instances that each model allows ([`profiles`]), and creating and
//! destroying them ([`instances`]).

pub(crate) mod instances;
pub(crate) mod profiles;
