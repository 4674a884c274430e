//! Quotas in the books.
//!
//! Fed by: the watch of quotas. Must not: judge a pod; [`Headroom`] does.

use std::collections::BTreeMap;

use super::Ledger;
use crate::id::Namespace;
use crate::quota::{Headroom, Quota};
use crate::spaces::Spaces;

impl Ledger {
    /// What the pods of each namespace hold, and its quotas.
    pub fn spaces(&self) -> &Spaces {
        &self.spaces
    }

    /// What the quotas of a namespace leave; `None` where nothing is limited.
    pub fn headroom(&self, namespace: &str) -> Option<Headroom> {
        self.spaces.headroom(namespace)
    }

    /// A namespace has this quota of this name, or no longer (`None`). Whether
    /// that changed a limit.
    pub fn set_quota(&mut self, namespace: &Namespace, name: &str, quota: Option<Quota>) -> bool {
        self.spaces.set(namespace, name, quota)
    }

    /// These are all quotas there are; the namespaces where a limit changed.
    pub fn set_quotas(&mut self, all: BTreeMap<Namespace, Vec<Quota>>) -> Vec<Namespace> {
        self.spaces.set_all(all)
    }
}
