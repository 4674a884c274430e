//! Reads the host: how the driver gets into a container, and which pods still have processes. CDI
//! directories, `/dev` and `/proc` are parameters, so that tests have their own. Writes nothing.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use aliquot_core::{GpuUuid, PodUid};

use aliquot_nvml::{GpuInstance, MigDevice};

use serde_json::Value;

use crate::cdi::{self, Driver, NVIDIA_KIND, Spec};
use crate::driver_root::{DeviceNodes, DriverRoot};
use crate::modes::mig::capability_nodes;

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

/// A device as device nodes and NVIDIA's spec name it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostDevice {
    /// Its uuid.
    pub uuid: GpuUuid,
    /// NVML's index.
    pub index: u32,
    /// `/dev/nvidia<minor>`, where the driver knows it.
    pub minor: Option<u32>,
    /// Set for a MIG instance of the GPU with this index and minor.
    pub instance: Option<InstanceIds>,
}

impl HostDevice {
    /// Its UUID now: an instance has another one after a reboot.
    pub fn current_uuid(&self) -> &str {
        let instance = self.instance.as_ref();
        instance.map_or(self.uuid.as_str(), |instance| &instance.current)
    }
}

/// How the driver identifies a MIG instance now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InstanceIds {
    /// `MIG-…`.
    pub current: String,
    /// GPU instance id.
    pub gpu_instance: u32,
    /// Compute instance id.
    pub compute_instance: u32,
}

impl InstanceIds {
    /// The ids of `instance`, whose UUID is that of `device`.
    pub fn of(instance: &GpuInstance, device: &MigDevice) -> Self {
        Self {
            current: device.current.clone(),
            gpu_instance: instance.id,
            compute_instance: device.id,
        }
    }
}

/// The edits that provide the driver for these devices: NVIDIA's own where a spec of its kind names
/// them all, else the device nodes that exist, with the libraries of the driver's root, where it
/// has one. An instance that NVIDIA's spec does not name (the spec is older) comes with the spec's
/// common edits, its GPU's node and its own capability nodes, which are listed below
/// `capabilities`.
pub fn driver(
    specs: &[Spec],
    root: Option<&DriverRoot>,
    capabilities: &Path,
    devices: &[HostDevice],
) -> Driver {
    let libraries = || root.map(DriverRoot::libraries).unwrap_or_default();
    from(
        specs,
        &DeviceNodes::of(root),
        libraries,
        capabilities,
        devices,
    )
}

fn from(
    specs: &[Spec],
    dev: &DeviceNodes,
    libraries: impl FnOnce() -> Vec<Value>,
    capabilities: &Path,
    devices: &[HostDevice],
) -> Driver {
    let named = |device: &HostDevice| match &device.instance {
        None => (device.uuid.clone(), Some(device.index)),
        Some(instance) => (instance.current.as_str().into(), None),
    };
    let gpus: Vec<(GpuUuid, Option<u32>)> = devices.iter().map(named).collect();
    let nodes = |names: Vec<String>| -> Vec<Value> {
        let there = names.iter().filter_map(|name| dev.node(name));
        there.collect()
    };
    let own = || -> Vec<String> {
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
        own.collect()
    };
    if let Some(found) = cdi::from_nvidia(specs, &gpus) {
        return found;
    }
    if devices.iter().any(|device| device.instance.is_some())
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

/// Reads one spec file of NVIDIA's kind. Logs one that cannot be parsed: the runtime reports the
/// same.
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
            tracing::warn!(path = %path.display(), error, "cannot parse the CDI spec of nvidia.com/gpu; it is ignored");
            None
        }
    }
}

/// Which of these pods still have a process, by the processes' cgroups under `proc`. Ignores a
/// process that ends meanwhile.
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

/// The value that a variable had when each process of these pods started, by the processes under
/// `proc`. Skips processes that end meanwhile or lack the variable.
pub fn variable_at_start(
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
