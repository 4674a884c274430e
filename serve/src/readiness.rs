//! A process's readiness: named conditions, each with a reason while it fails.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;

/// Named conditions that must all pass. Clones share the same state.
#[derive(Clone, Debug)]
pub struct Readiness {
    /// The reason why a condition fails, or `None` if it passes.
    conditions: Arc<Mutex<BTreeMap<&'static str, Option<String>>>>,
}

impl Readiness {
    /// With none of `conditions` passing yet.
    pub fn new(conditions: impl IntoIterator<Item = &'static str>) -> Self {
        let pending = |name| (name, Some("not yet".to_owned()));
        Self {
            conditions: Arc::new(Mutex::new(conditions.into_iter().map(pending).collect())),
        }
    }

    /// The condition passes from now on.
    pub fn pass(&self, condition: &'static str) {
        self.conditions.lock().insert(condition, None);
    }

    pub fn fail(&self, condition: &'static str, reason: impl Into<String>) {
        self.conditions
            .lock()
            .insert(condition, Some(reason.into()));
    }

    /// `condition: reason` for each failing condition, by name. Empty means ready.
    pub fn reasons(&self) -> Vec<String> {
        let reason = |(name, reason): (&&str, &Option<String>)| {
            Some(format!("{name}: {}", reason.as_ref()?))
        };
        self.conditions.lock().iter().filter_map(reason).collect()
    }
}
