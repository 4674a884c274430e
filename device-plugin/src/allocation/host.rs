//! Reads the host: how the driver gets into a container. CDI directories and `/dev` are parameters, so
//! that tests have their own. Writes nothing.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use aliquot_nvml::{GpuFacts, root};

use serde_json::Value;

use crate::allocation::cdi::{
    self, Driver, NVIDIA_KINDS, NamedDevice, NvidiaSpec, Spec, SpecRefusal,
};
use crate::allocation::device_nodes::DeviceNodes;
use crate::allocation::injection;
use crate::gpus::host_device::{HostDevice, capability_nodes};
use crate::paths::{DriverRoot, SpecFolders};

/// Whether the kernel can make a tree of mounts read-only (`mount_setattr`, Linux 5.12).
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

/// NVIDIA's CDI specs on this node.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct NvidiaSpecs {
    /// In the order of preference; all that they name exists on the host.
    pub usable: Vec<NvidiaSpec>,
    /// Why others are not used.
    pub refused: Vec<SpecRefusal>,
}

/// The edits that provide the driver for these devices: NVIDIA's own of the first spec that names
/// them all, else the device nodes that exist, with the common edits of a spec where those are
/// complete. They are for an instance, which a spec may be older than, and in specs for management
/// containers, whose only device has the nodes of all GPUs. An instance's own capability nodes are
/// listed below `capabilities`.
pub fn driver(
    specs: &[NvidiaSpec],
    root: Option<&DriverRoot>,
    capabilities: &Path,
    devices: &[HostDevice],
) -> Driver {
    from(specs, &DeviceNodes::of(root), capabilities, devices)
}

fn from(
    specs: &[NvidiaSpec],
    dev: &DeviceNodes,
    capabilities: &Path,
    devices: &[HostDevice],
) -> Driver {
    let own = devices
        .iter()
        .filter_map(|device| Some((device, device.minor?)));
    let own = own.flat_map(|(device, minor)| {
        let instance = device.instance.as_ref();
        let instance = instance.map(|instance| capability_nodes(capabilities, minor, instance));
        [format!("nvidia{minor}")]
            .into_iter()
            .chain(instance.unwrap_or_default())
    });
    let common = ["nvidiactl", "nvidia-uvm", "nvidia-uvm-tools"].map(str::to_owned);
    let nodes: Vec<Value> = own
        .chain(common)
        .filter_map(|name| dev.node(&name))
        .collect();
    let partitioned = devices.iter().any(|device| device.instance.is_some());
    let named: Vec<NamedDevice> = devices.iter().map(named).collect();
    of_specs(specs, &named, partitioned, &nodes).unwrap_or_else(|| cdi::from_nodes(nodes))
}

/// As [`from`], of NVIDIA's specs only. `partitioned`: one of the devices is a MIG instance.
fn of_specs(
    specs: &[NvidiaSpec],
    devices: &[NamedDevice],
    partitioned: bool,
    nodes: &[Value],
) -> Option<Driver> {
    let common = || {
        let mut suitable = specs
            .iter()
            .filter(|spec| partitioned || spec.is_management());
        Some(suitable.next()?.common_edits(nodes))
    };
    let found = specs.iter().find_map(|spec| spec.edits_for(devices));
    found.or_else(common)
}

fn named(device: &HostDevice) -> NamedDevice {
    match &device.instance {
        None => NamedDevice {
            uuid: device.uuid.clone(),
            index: Some(device.index),
            minor: device.minor,
        },
        Some(instance) => NamedDevice {
            uuid: instance.uuid.as_str().into(),
            index: None,
            minor: None,
        },
    }
}

pub fn named_gpu(gpu: &GpuFacts) -> NamedDevice {
    NamedDevice {
        uuid: gpu.uuid.as_str().into(),
        index: Some(gpu.index),
        minor: gpu.minor,
    }
}

/// Whether these specs bring the driver's CUDA library into a container with this GPU, or with an
/// instance of it where it is partitioned.
pub fn has_driver(specs: &[NvidiaSpec], gpu: &GpuFacts) -> bool {
    of_specs(specs, &[named_gpu(gpu)], gpu.mig.enabled, &[])
        .is_some_and(|driver| injection::mounts_driver(&driver.edits))
}

impl NvidiaSpecs {
    /// Why specs are not used, some of them for one of these GPUs only.
    pub fn refusals(&self, gpus: &[NamedDevice]) -> Vec<SpecRefusal> {
        let for_gpus = self.usable.iter().filter_map(|spec| spec.other_minor(gpus));
        self.refused.iter().cloned().chain(for_gpus).collect()
    }
}

impl NvidiaSpec {
    /// The first path that the runtime would mount or run as a hook, and that is not below the
    /// host's root.
    fn missing_path(&self, host_root: &Path) -> Option<&Path> {
        let mut paths = self.host_paths();
        paths.find(|path| !root::exists(host_root, path))
    }
}

/// NVIDIA's specs in these folders: the agent's own first, then by kind, and of each kind those of
/// the later folder first.
pub fn specs(folders: &SpecFolders) -> NvidiaSpecs {
    let mut existing: Vec<NvidiaSpec> = folders
        .directories
        .iter()
        .rev()
        .flat_map(|path| nvidia_specs(path))
        .collect();
    let kind = |spec: &NvidiaSpec| {
        let mut kinds = NVIDIA_KINDS.iter();
        kinds.position(|kind| *kind == spec.spec.kind)
    };
    existing.sort_by_key(kind);
    let mut found = NvidiaSpecs::default();
    let generated = nvidia_specs(&folders.generated);
    for mut spec in generated.into_iter().chain(existing) {
        spec.file = on_host(&folders.host_root, &spec.file);
        let missing = spec.missing_path(&folders.host_root).map(Path::to_owned);
        match missing {
            Some(path) => {
                let file = spec.file;
                let refusal = SpecRefusal::MissingPath { file, path };
                found.refused.push(refusal);
            }
            None => found.usable.push(spec),
        }
    }
    found
}

/// The path as the host has it of one that may be below the host's root.
pub fn on_host(host_root: &Path, path: &Path) -> PathBuf {
    let below = path.strip_prefix(host_root);
    below.map_or_else(|_| path.to_owned(), |below| Path::new("/").join(below))
}

fn nvidia_specs(directory: &Path) -> Vec<NvidiaSpec> {
    let Ok(entries) = fs::read_dir(directory) else {
        return Vec::new();
    };
    let mut paths: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    paths.sort();
    paths.iter().filter_map(|path| nvidia_spec(path)).collect()
}

/// Reads one spec file of a kind of NVIDIA's. Logs one that cannot be parsed: the runtime reports
/// the same.
fn nvidia_spec(path: &Path) -> Option<NvidiaSpec> {
    let ending = path.extension()?.to_str()?;
    let ours = cdi::name_of(path.file_name()?.to_str()?).is_some();
    if ours || !matches!(ending, "json" | "yaml" | "yml") {
        return None;
    }
    let text = fs::read_to_string(path).ok()?;
    // The other kinds end with the first.
    if !text.contains(NVIDIA_KINDS[0]) {
        return None;
    }
    let parsed: Result<Spec, String> = if ending == "json" {
        serde_json::from_str(&text).map_err(|error| error.to_string())
    } else {
        serde_saphyr::from_str(&text).map_err(|error| error.to_string())
    };
    match parsed {
        Ok(spec) => NVIDIA_KINDS
            .contains(&spec.kind.as_str())
            .then(|| NvidiaSpec {
                file: path.to_owned(),
                spec,
            }),
        Err(error) => {
            tracing::warn!(path = %path.display(), error, "cannot parse this CDI spec of NVIDIA's; it is ignored");
            None
        }
    }
}

#[cfg(test)]
#[path = "host_tests.rs"]
mod tests;
