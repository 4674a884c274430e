//! The cluster page in a real browser.
//!
//! [`browser`] drives Chromium, [`cluster`] makes books and serves them.
//! Fed by: the scheduler's library. Must not: stand in for a part of the page.

#![forbid(unsafe_code)]

pub mod browser;
pub mod cluster;
