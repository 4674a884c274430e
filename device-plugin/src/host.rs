//! What is asked of the host itself: how the driver gets into a container, and
//! which pods still have processes.
//!
//! Fed by: CDI directories, `/dev`, `/proc` (each as a path, so that tests have
//! their own). Must not: write.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use aliquot_core::{GpuUuid, PodUid};

use aliquot_nvml::{Device, Instance};

use serde_json::Value;

use crate::cdi::{self, Driver, NVIDIA_KIND, Spec};
use crate::driver_root::{Dev, Root};
use crate::modes::mig::caps;

/// Whether the kernel makes a tree of mounts read-only at once (`mount_setattr`, Linux 5.12).
pub fn mounts_whole_trees() -> bool {
    static SINCE_5_12: OnceLock<bool> = OnceLock::new();
    *SINCE_5_12.get_or_init(|| {
        let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
        is_since_5_12(&release)
    })
}

fn is_since_5_12(release: &str) -> bool {
    let numbers = release.trim().split(['.', '-']);
    let mut numbers = numbers.map(|number| number.parse::<u32>().unwrap_or(0));
    let mut next = || numbers.next().unwrap_or(0);
    (next(), next()) >= (5, 12)
}

/// A card as device nodes and NVIDIA's spec name it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Card {
    /// Its uuid.
    pub uuid: GpuUuid,
    /// NVML's index.
    pub index: u32,
    /// `/dev/nvidia<minor>`, where the driver knows it.
    pub minor: Option<u32>,
    /// It is an instance of the card that index and minor mean.
    pub part: Option<Part>,
}

impl Card {
    /// What the driver calls it now: an instance has another uuid after a reboot.
    pub fn current(&self) -> &str {
        let part = self.part.as_ref();
        part.map_or(self.uuid.as_str(), |part| &part.current)
    }
}

/// An instance as the driver names it now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    /// `MIG-…`.
    pub current: String,
    /// Id of the GPU instance.
    pub gpu_instance: u32,
    /// Id of the compute instance in it.
    pub compute_instance: u32,
}

impl Part {
    /// The instance that has this device.
    pub fn of(instance: &Instance, device: &Device) -> Self {
        Self {
            current: device.current.clone(),
            gpu_instance: instance.id,
            compute_instance: device.id,
        }
    }
}

/// How these cards get into a container: NVIDIA's own edits where a spec of its
/// kind names them all, else the device nodes that exist, with the libraries of the driver's root,
/// where it has one. An instance that NVIDIA's spec does not name (it is older) comes with what
/// that says of every container, its card's node and its own, which `capabilities` tells.
pub fn driver(specs: &[Spec], root: Option<&Root>, capabilities: &Path, cards: &[Card]) -> Driver {
    let libraries = || root.map(Root::libraries).unwrap_or_default();
    from(specs, &Dev::of(root), libraries, capabilities, cards)
}

fn from(
    specs: &[Spec],
    dev: &Dev,
    libraries: impl FnOnce() -> Vec<Value>,
    capabilities: &Path,
    cards: &[Card],
) -> Driver {
    let named = |card: &Card| match &card.part {
        None => (card.uuid.clone(), Some(card.index)),
        Some(part) => (part.current.as_str().into(), None),
    };
    let gpus: Vec<(GpuUuid, Option<u32>)> = cards.iter().map(named).collect();
    let nodes = |names: Vec<String>| -> Vec<Value> {
        let there = names.iter().filter_map(|name| dev.node(name));
        there.collect()
    };
    let own = || -> Vec<String> {
        let own = cards.iter().filter_map(|card| Some((card, card.minor?)));
        let own = own.flat_map(|(card, minor)| {
            let part = card.part.as_ref();
            let part = part.map(|part| caps::nodes(capabilities, minor, part));
            [format!("nvidia{minor}")]
                .into_iter()
                .chain(part.unwrap_or_default())
        });
        own.collect()
    };
    if let Some(found) = cdi::from_nvidia(specs, &gpus) {
        return found;
    }
    if cards.iter().any(|card| card.part.is_some())
        && let Some(found) = cdi::common_of_nvidia(specs, nodes(own()))
    {
        return found;
    }
    let common = ["nvidiactl", "nvidia-uvm", "nvidia-uvm-tools"].map(str::to_owned);
    let all = own().into_iter().chain(common).collect();
    cdi::from_nodes(nodes(all), libraries())
}

/// The specs of NVIDIA's kind in these directories.
pub fn specs(directories: &[PathBuf]) -> Vec<Spec> {
    let found = directories.iter().flat_map(|path| nvidia_specs(path));
    found.collect()
}

fn nvidia_specs(directory: &Path) -> Vec<Spec> {
    let Ok(entries) = fs::read_dir(directory) else {
        return Vec::new();
    };
    let mut paths: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    paths.sort();
    paths.iter().filter_map(|path| nvidia_spec(path)).collect()
}

/// Reads one spec file of NVIDIA's kind. One that cannot be read is logged: the
/// runtime will say the same.
fn nvidia_spec(path: &Path) -> Option<Spec> {
    let ending = path.extension()?.to_str()?;
    let ours = cdi::name_of(path.file_name()?.to_str()?).is_some();
    if ours || !matches!(ending, "json" | "yaml" | "yml") {
        return None;
    }
    let text = fs::read_to_string(path).ok()?;
    if !text.contains(NVIDIA_KIND) {
        return None;
    }
    let parsed: Result<Spec, String> = if ending == "json" {
        serde_json::from_str(&text).map_err(|error| error.to_string())
    } else {
        serde_saphyr::from_str(&text).map_err(|error| error.to_string())
    };
    match parsed {
        Ok(spec) => Some(spec).filter(|spec| spec.kind == NVIDIA_KIND),
        Err(error) => {
            tracing::warn!(path = %path.display(), error, "CDI spec of another vendor cannot be read");
            None
        }
    }
}

/// Which of these pods still have a process, by the processes' cgroups under
/// `proc`. A process that ends meanwhile is none.
pub fn alive(proc: &Path, pods: &BTreeSet<PodUid>) -> std::io::Result<BTreeSet<PodUid>> {
    let mut found = BTreeSet::new();
    if pods.is_empty() {
        return Ok(found);
    }
    for entry in fs::read_dir(proc)? {
        let path = entry?.path().join("cgroup");
        let Ok(cgroups) = fs::read_to_string(&path) else {
            continue;
        };
        found.extend(pods.iter().filter(|uid| names(&cgroups, uid)).cloned());
    }
    Ok(found)
}

/// What a variable was when each process of these pods started, by the processes under `proc`. A
/// process that ends meanwhile, or has not the variable, has no say.
pub fn started_with(
    proc: &Path,
    pods: &BTreeSet<PodUid>,
    variable: &str,
) -> std::io::Result<Vec<(PodUid, String)>> {
    let mut found = Vec::new();
    if pods.is_empty() {
        return Ok(found);
    }
    for entry in fs::read_dir(proc)? {
        let path = entry?.path();
        let Ok(cgroups) = fs::read_to_string(path.join("cgroup")) else {
            continue;
        };
        let Some(uid) = pods.iter().find(|uid| names(&cgroups, uid)) else {
            continue;
        };
        let environment = fs::read(path.join("environ")).unwrap_or_default();
        let mut variables = environment.split(|byte| *byte == 0);
        let value = variables.find_map(|one| {
            let one = std::str::from_utf8(one).ok()?;
            one.strip_prefix(variable)?.strip_prefix('=')
        });
        found.extend(value.map(|value| (uid.clone(), value.to_owned())));
    }
    Ok(found)
}

/// The systemd driver writes the uid with underscores.
fn names(cgroups: &str, uid: &PodUid) -> bool {
    let plain = format!("pod{uid}");
    cgroups.contains(&plain) || cgroups.contains(&plain.replace('-', "_"))
}

#[cfg(test)]
#[path = "host_tests.rs"]
mod tests;
