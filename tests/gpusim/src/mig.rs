//! MIG of simulated cards: which cuts a model allows ([`profiles`]) and what making and ending
//! instances does to the machine ([`cut`]). Fed by NVML's calls; must do no IO.

pub mod cut;
pub mod profiles;
