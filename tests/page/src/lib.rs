//! The cluster page in a real browser.
//!
//! [`browser`] drives Chromium, [`cluster`] serves a made-up ledger.

#![forbid(unsafe_code)]

pub mod browser;
pub mod cluster;
