//! The memory that a context is charged on each device: what the administrator set, or what the
//! monitor measured on this node.

use std::path::{Path, PathBuf};

use aliquot_core::inventory::Mode;
use aliquot_core::mig::published::Mig;
use aliquot_core::{Grant, Mib};
use aliquot_node_state::context_sizes::{ContextKind, ContextSizes, starting_size};
use aliquot_node_state::monitor_reports;
use aliquot_node_state::state::StateDirectory;

use crate::gpus::inventory::PublishedNode;

/// How contexts are charged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ContextMemory {
    /// The administrator's value, for every device.
    Fixed(Mib),
    /// What the monitor measured and keeps in this file; before that, the starting value of the GPU.
    Measured(PathBuf),
}

impl ContextMemory {
    /// A fixed value in MiB if there is one, else what the monitor keeps in the state directory.
    pub fn new(fixed: Option<u64>, state_dir: &Path) -> Self {
        fixed.map_or_else(
            || Self::Measured(StateDirectory(state_dir).context_sizes()),
            |mib| Self::Fixed(Mib(mib)),
        )
    }

    /// The size of a context on each of these devices.
    pub fn sizes(&self, grants: &[Grant], node: &PublishedNode) -> Vec<Mib> {
        let file = match self {
            Self::Fixed(size) => return vec![*size; grants.len()],
            Self::Measured(file) => file,
        };
        let measured = monitor_reports::context_sizes(file);
        let sizes = grants.iter();
        sizes.map(|grant| size(&measured, grant, node)).collect()
    }
}

fn size(measured: &ContextSizes, grant: &Grant, node: &PublishedNode) -> Mib {
    let Some(device) = node.inventory.gpu(&grant.gpu) else {
        return starting_size(None);
    };
    let fixed = device.mig.as_ref().and_then(Mig::fixed);
    let profile = match &grant.mig {
        Some(placed) => Some(placed.profile.as_str()),
        None => fixed.map(|instance| instance.profile.as_str()),
    };
    let is_mps = device.mode == Mode::Mps;
    let driver = &node.readings.facts.driver_version;
    let kind = ContextKind::new(&device.model, driver, profile, is_mps);
    let mut gpus = node.readings.facts.gpus.iter();
    let gpu = gpus.find(|gpu| gpu.model == device.model);
    let starting = starting_size(gpu.and_then(|gpu| gpu.compute_capability));
    measured.size(&kind, starting)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpus::inventory::NodePublisher;
    use crate::testing::{facts, grant, layout_of};

    #[test]
    fn charges_contexts_by_measurement_unless_value_is_set() {
        let mut facts = facts(&["GPU-a"]);
        facts.gpus[0].compute_capability = Some((8, 0));
        let published = NodePublisher::new(facts, Vec::new(), layout_of(&["GPU-a"]));
        let node = published.get();
        let state = tempfile::tempdir().expect("a folder");
        let size = |fixed| {
            ContextMemory::new(fixed, state.path()).sizes(&[grant("GPU-a", 3000, 30)], &node)
        };
        assert_eq!(size(None), [Mib(420)], "the starting value");
        let mut measured = ContextSizes::default();
        let kind = ContextKind::new("NVIDIA A100-SXM4-80GB", "580.1", None, false);
        measured.record(&kind, "container", Mib(300).bytes());
        let file = StateDirectory(state.path()).context_sizes();
        let write = |text: &str| std::fs::write(&file, text).expect("written");
        write(&serde_json::to_string(&measured).expect("it encodes"));
        assert_eq!(size(None), [Mib(300)]);
        assert_eq!(size(Some(777)), [Mib(777)]);
        write("{");
        assert_eq!(size(None), [Mib(420)], "a file that is not valid");
    }
}
