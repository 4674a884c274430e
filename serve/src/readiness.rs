//! One shared value that says whether a process is ready, and if not, why.
//!
//! Fed by: the parts of a binary, each by the name of its own condition.
//! Must not: decide what readiness means; it only keeps what it was told.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;

/// Named conditions that must all hold. Clones share the same state.
#[derive(Clone, Debug)]
pub struct Readiness {
    /// The reason why a condition does not hold, or `None` when it does.
    conditions: Arc<Mutex<BTreeMap<&'static str, Option<String>>>>,
}

impl Readiness {
    /// All of `conditions` not holding yet.
    pub fn new(conditions: impl IntoIterator<Item = &'static str>) -> Self {
        let pending = |name| (name, Some("not yet".to_owned()));
        Self {
            conditions: Arc::new(Mutex::new(conditions.into_iter().map(pending).collect())),
        }
    }

    /// The condition holds from now on.
    pub fn holds(&self, condition: &'static str) {
        self.conditions.lock().insert(condition, None);
    }

    /// The condition does not hold, for this reason.
    pub fn fails(&self, condition: &'static str, reason: impl Into<String>) {
        self.conditions
            .lock()
            .insert(condition, Some(reason.into()));
    }

    /// `condition: reason` for each that does not hold, by name. Empty means ready.
    pub fn reasons(&self) -> Vec<String> {
        let reason = |(name, reason): (&&str, &Option<String>)| {
            Some(format!("{name}: {}", reason.as_ref()?))
        };
        self.conditions.lock().iter().filter_map(reason).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn is_ready_only_when_every_condition_holds() {
        let readiness = Readiness::new(["books", "watch"]);
        assert_eq!(readiness.reasons(), ["books: not yet", "watch: not yet"]);
        let other = readiness.clone();
        other.holds("books");
        readiness.fails("watch", "stale for 12 s");
        assert_eq!(readiness.reasons(), ["watch: stale for 12 s"]);
        readiness.holds("watch");
        assert!(readiness.reasons().is_empty());
    }
}
