//! The layout of the node's GPUs, on disk: the last valid profile, and every change that has begun.
//! A change is stored before it begins.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use aliquot_core::GpuUuid;
use aliquot_profiles::config::Transition;
use aliquot_profiles::{Mode, Reservation};
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::files::{self, FileError};
use crate::gpus::allocatable::{GpuLayout, NodeLayout};
use crate::layout::transition::{ChangeStep, GpuState};

/// The version that this release reads and writes.
const VERSION: u32 = 1;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoredLayout {
    pub v: u32,
    /// The last valid profile and what selected it, for people.
    #[serde(default)]
    pub profile: Option<String>,
    /// Its rule for the pods of a GPU whose mode changes.
    #[serde(default)]
    pub transition: Transition,
    #[serde(default)]
    pub desired: BTreeMap<GpuUuid, Mode>,
    /// What of each GPU is reserved for namespaces.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub reserve: BTreeMap<GpuUuid, Vec<Reservation>>,
    #[serde(default)]
    pub gpus: BTreeMap<GpuUuid, GpuState>,
    /// Every resource that was ever advertised here. Those that are not advertised any more are
    /// removed from the Node.
    #[serde(default)]
    pub advertised: BTreeSet<String>,
}

impl Default for StoredLayout {
    fn default() -> Self {
        Self {
            v: VERSION,
            profile: None,
            transition: Transition::default(),
            desired: BTreeMap::new(),
            reserve: BTreeMap::new(),
            gpus: BTreeMap::new(),
            advertised: BTreeSet::new(),
        }
    }
}

#[derive(Debug, Error)]
pub enum StoredLayoutError {
    #[error(transparent)]
    File(#[from] FileError),
    #[error("cannot read the stored layout of the GPUs from {}: {source}; restore the file, or remove it when no pod with GPUs runs on this node: without it every GPU is set up anew", path.display())]
    Decode {
        path: PathBuf,
        source: serde_json::Error,
    },
    #[error("the stored layout of the GPUs in {} has version {found}, expected {VERSION}; return to the release that wrote it, or remove the file when no pod with GPUs runs on this node: without it every GPU is set up anew", path.display())]
    Version { path: PathBuf, found: u32 },
    #[error("cannot encode the layout of the GPUs: {0}")]
    Encode(serde_json::Error),
}

impl StoredLayout {
    /// The layout stored at `path`; `None` if there is none.
    pub fn load(path: &Path) -> Result<Option<Self>, StoredLayoutError> {
        let Some(bytes) = files::read(path)? else {
            return Ok(None);
        };
        let layout: Self =
            serde_json::from_slice(&bytes).map_err(|source| StoredLayoutError::Decode {
                path: path.to_owned(),
                source,
            })?;
        if layout.v != VERSION {
            return Err(StoredLayoutError::Version {
                path: path.to_owned(),
                found: layout.v,
            });
        }
        Ok(Some(layout))
    }

    /// Stores the layout; durable on return.
    pub fn store(&self, path: &Path) -> Result<(), StoredLayoutError> {
        let text = serde_json::to_vec(self).map_err(StoredLayoutError::Encode)?;
        files::replace(path, &text)?;
        Ok(())
    }

    /// `restoring`: the GPUs whose mode is being set up again.
    pub fn node_layout(&self, default_resource: &str, restoring: &BTreeSet<GpuUuid>) -> NodeLayout {
        let gpu_layout = |(uuid, gpu): (&GpuUuid, &GpuState)| {
            let gpu_layout = GpuLayout {
                mode: gpu.mode.clone()?,
                cordon: cordon(gpu, restoring.contains(uuid)),
                switching: gpu.step().is_some_and(|step| step != ChangeStep::Draining),
                restoring: restoring.contains(uuid),
                reserve: self.reserve.get(uuid).cloned().unwrap_or_default(),
            };
            Some((uuid.clone(), gpu_layout))
        };
        NodeLayout {
            default_resource: default_resource.to_owned(),
            gpus: self.gpus.iter().filter_map(gpu_layout).collect(),
            ..NodeLayout::default()
        }
    }
}

/// Why a GPU accepts no new allocation. `restoring`: its mode is being set up again.
pub(super) fn cordon(gpu: &GpuState, restoring: bool) -> Option<String> {
    let from = gpu.mode.as_ref().map_or("nothing", Mode::name);
    match &gpu.change {
        Some(change) if !change.late => {
            Some(format!("changes from {from} to {}", change.to.name()))
        }
        _ => restoring.then(|| format!("is being set up as {from}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::transition::tests::{exclusive, late, on, to, vgpu};

    #[test]
    fn reads_back_stored_layout() {
        let dir = tempfile::tempdir().expect("tempdir");
        let path = dir.path().join("layout.json");
        assert_eq!(StoredLayout::load(&path).expect("none"), None);
        let mut layout = StoredLayout::default();
        let leaves = to(vgpu(2), exclusive(), ChangeStep::Leaving, 7);
        layout.gpus.insert("GPU-a".into(), leaves);
        let late = late(vgpu(2), exclusive(), 7);
        layout.gpus.insert("GPU-b".into(), late);
        layout.store(&path).expect("stored");
        let read = StoredLayout::load(&path).expect("read");
        assert_eq!(read.as_ref(), Some(&layout));
    }

    #[test]
    fn cordons_gpu_that_changes_or_is_being_set_up() {
        let change = Some("changes from vgpu to exclusive");
        let changing = |step| to(vgpu(2), exclusive(), step, 7);
        for (gpu, restoring, cordon, switching) in [
            (on(vgpu(2)), false, None, false),
            (on(vgpu(2)), true, Some("is being set up as vgpu"), false),
            (changing(ChangeStep::Draining), false, change, false),
            (changing(ChangeStep::Leaving), false, change, true),
            (changing(ChangeStep::Entering), false, change, true),
            (late(vgpu(2), exclusive(), 7), false, None, false),
        ] {
            let mut layout = StoredLayout::default();
            layout.gpus.insert("GPU-a".into(), gpu);
            let restored = restoring.then(|| "GPU-a".into()).into_iter().collect();
            let found = layout.node_layout("nvidia.com/gpu", &restored);
            let found = &found.gpus["GPU-a"];
            assert_eq!(found.restoring, restoring);
            assert_eq!(found.cordon.as_deref(), cordon);
            assert_eq!(found.switching, switching);
        }
    }

    /// Starting without the stored layout could switch a GPU under its pods, so the agent does not
    /// start until the administrator decides.
    #[test]
    fn rejects_unreadable_layout_with_remedy() {
        let dir = tempfile::tempdir().expect("tempdir");
        let path = dir.path().join("layout.json");
        let whole = serde_json::to_string(&StoredLayout::default()).expect("json");
        let newer = whole.replace("\"v\":1", "\"v\":9");
        for (text, part) in [
            ("", "EOF"),
            ("\0\0\0", "expected value"),
            (&whole[..whole.len() / 2], "EOF"),
            (newer.as_str(), "version 9, expected 1"),
        ] {
            std::fs::write(&path, text).expect("written");
            let error = StoredLayout::load(&path).expect_err(text).to_string();
            let parts = [part, "layout.json", "when no pod with GPUs runs"];
            assert!(parts.iter().all(|part| error.contains(part)), "{error}");
            let after = std::fs::read_to_string(&path).expect("still there");
            assert_eq!(after, text, "the file is unchanged");
        }
    }
}
