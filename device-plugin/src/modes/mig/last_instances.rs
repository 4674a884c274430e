//! The instances into which each GPU was partitioned last. A reboot destroys them, and the agent
//! creates them again at their placements, where the driver gives them their UUIDs again.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use aliquot_core::GpuUuid;
use aliquot_core::mig::published::MigPlacement;
use aliquot_nvml::GpuInstance;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use crate::files;
use crate::host_device::placement_of;

const FILE: &str = "names.json";

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct LastInstance {
    #[serde(flatten)]
    pub(super) place: MigPlacement,
    pub(super) uuid: String,
}

type ByGpu = BTreeMap<String, Vec<LastInstance>>;

pub(super) struct LastInstances {
    directory: PathBuf,
    by_gpu: Mutex<ByGpu>,
}

impl LastInstances {
    /// Those stored in `directory`. A file that cannot be read is logged and counts as empty.
    pub(super) fn read(directory: PathBuf) -> Self {
        Self {
            by_gpu: Mutex::new(stored(&directory.join(FILE))),
            directory,
        }
    }

    pub(super) fn of(&self, gpu: &str) -> Vec<LastInstance> {
        self.by_gpu.lock().get(gpu).cloned().unwrap_or_default()
    }

    /// The GPU that had this instance last.
    pub(super) fn gpu_of(&self, uuid: &str) -> Option<GpuUuid> {
        let by_gpu = self.by_gpu.lock();
        let has_it = |last: &[LastInstance]| last.iter().any(|one| one.uuid == uuid);
        let found = by_gpu.iter().find(|(_, last)| has_it(last));
        found.map(|(gpu, _)| gpu.as_str().into())
    }

    /// Stores the complete ones of these.
    pub(super) fn store(&self, gpu: &str, instances: &[GpuInstance]) {
        let complete = instances.iter().filter_map(|one| {
            let uuid = one.device()?.uuid.clone();
            let place = placement_of(one);
            Some(LastInstance { place, uuid })
        });
        let complete: Vec<LastInstance> = complete.collect();
        let mut by_gpu = self.by_gpu.lock();
        if by_gpu.get(gpu) == Some(&complete) {
            return;
        }
        by_gpu.insert(gpu.to_owned(), complete);
        let write = || {
            files::directory(&self.directory, 0o700).map_err(|error| error.to_string())?;
            let text = serde_json::to_vec_pretty(&*by_gpu).map_err(|error| error.to_string())?;
            let stored = files::replace(&self.directory.join(FILE), &text);
            stored.map_err(|error| error.to_string())
        };
        if let Err(error) = write() {
            tracing::warn!(
                error,
                "cannot store the placements of MIG instances: they may change with the next reboot"
            );
        }
    }
}

fn stored(path: &Path) -> ByGpu {
    let Ok(text) = std::fs::read_to_string(path) else {
        return ByGpu::new();
    };
    serde_json::from_str(&text).unwrap_or_else(|error| {
        tracing::warn!(path = %path.display(), %error, "cannot read the placements of MIG instances");
        ByGpu::new()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::reported_instance;

    #[test]
    fn retains_complete_instances_of_each_gpu() {
        let directory = tempfile::tempdir().expect("a directory");
        let last = LastInstances::read(directory.path().to_owned());
        let mut half = reported_instance(0, "MIG-half");
        half.devices.clear();
        last.store("GPU-a", &[reported_instance(4, "MIG-4"), half]);
        last.store("GPU-b", &[]);
        let next = LastInstances::read(directory.path().to_owned());
        let found = next.of("GPU-a");
        let [found] = found.as_slice() else {
            panic!("{found:?}");
        };
        assert_eq!((found.place.start, found.uuid.as_str()), (4, "MIG-4"));
        assert_eq!(next.of("GPU-b"), []);
        assert_eq!(next.gpu_of("MIG-4"), Some("GPU-a".into()));
        assert_eq!(next.gpu_of("MIG-half"), None);
        std::fs::write(directory.path().join(FILE), "[").expect("written");
        let damaged = LastInstances::read(directory.path().to_owned());
        assert_eq!(damaged.of("GPU-a"), []);
    }
}
