//! The driver's device nodes: their numbers as the driver lists them in `/proc`, and, on a machine
//! that has such nodes, which of them this process may open. The kernel knows no driver with these
//! numbers here: whoever may open a node is told that there is no device, anybody else that he may
//! not.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, FileType, Mode, major, makedev, minor, mknodat};

use crate::mig::MigDevice;
use crate::model::{Gpu, Machine, ON, text};

const GPU_MAJOR: u32 = 195;
const CAPABILITIES_MAJOR: u32 = 236;
const UVM_MAJOR: u32 = 508;
const CONTROL_MINOR: u32 = 255;
/// Nothing that may be opened, in the place of names.
const NONE: &str = "void";
/// `CAP_SYS_ADMIN`.
const ADMIN: u64 = 1 << 21;

/// The folder with the driver's files of `/proc` for the machine of this state file: `devices`, and
/// `capabilities` with the numbers of the MIG instances' nodes.
#[must_use]
pub fn proc_folder(state: &Path) -> PathBuf {
    let mut name = OsString::from(state);
    name.push(".proc");
    name.into()
}

/// What the driver lists in `/proc`.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Listing {
    loaded: bool,
    /// Minor numbers of capability nodes, by the file that lists each.
    capabilities: BTreeMap<String, u32>,
}

impl Listing {
    pub(crate) fn of(machine: &Machine) -> Self {
        let mut capabilities = BTreeMap::new();
        for gpu in machine.existing_gpus() {
            for outer in gpu.gpu_instances() {
                let folder = format!("gpu{}/mig/gi{}", gpu.minor, outer.id);
                let number = outer_minor(gpu, outer.id);
                capabilities.insert(format!("{folder}/access"), number);
                for inner in gpu.compute_instances(outer.id) {
                    let number = number + 1 + inner.id;
                    capabilities.insert(format!("{folder}/ci{}/access", inner.id), number);
                }
            }
        }
        Self {
            loaded: machine.is_loaded(),
            capabilities,
        }
    }

    /// Writes everything anew.
    pub(crate) fn create(&self, state: &Path) -> io::Result<()> {
        unless(ErrorKind::NotFound, fs::remove_dir_all(proc_folder(state)))?;
        let nothing = Self {
            loaded: !self.loaded,
            capabilities: BTreeMap::new(),
        };
        self.write(state, &nothing)
    }

    /// Writes what has changed since `before`.
    pub(crate) fn write(&self, state: &Path, before: &Self) -> io::Result<()> {
        let folder = proc_folder(state);
        let capabilities = folder.join("capabilities");
        fs::create_dir_all(&capabilities)?;
        if self.loaded != before.loaded {
            fs::write(folder.join("devices"), self.devices())?;
        }
        // A compute instance before the GPU instance that contains it.
        for file in before.capabilities.keys().rev() {
            if !self.capabilities.contains_key(file) {
                let file = capabilities.join(file);
                unless(ErrorKind::NotFound, fs::remove_file(&file))?;
                let folder = file.parent().map_or(Ok(()), fs::remove_dir);
                unless(ErrorKind::NotFound, folder)?;
            }
        }
        for (file, number) in &self.capabilities {
            if !before.capabilities.contains_key(file) {
                let file = capabilities.join(file);
                file.parent().map_or(Ok(()), fs::create_dir_all)?;
                let mode = 0o444;
                let text = format!(
                    "DeviceFileMinor: {number}\nDeviceFileMode: {mode}\nDeviceFileModify: 1\n"
                );
                fs::write(file, text)?;
            }
        }
        Ok(())
    }

    /// The kernel's list of drivers, with this one if it is loaded.
    fn devices(&self) -> String {
        let own = format!(
            "{GPU_MAJOR} nvidia\n{GPU_MAJOR} nvidia-modeset\n{GPU_MAJOR} nvidiactl\n\
             {CAPABILITIES_MAJOR} nvidia-caps\n{UVM_MAJOR} nvidia-uvm\n"
        );
        let own = if self.loaded { &own } else { "" };
        format!("Character devices:\n  1 mem\n{own}\nBlock devices:\n")
    }
}

/// Creates the nodes of MIG instances that were created since `before`, in the `/dev` of this
/// process: where it is mounted, and nowhere else.
pub(crate) fn create_capability_nodes(
    machine: &Machine,
    now: &Listing,
    before: &Listing,
) -> io::Result<()> {
    let Some(folder) = dev(machine) else {
        return Ok(());
    };
    let folder = folder.join("nvidia-caps");
    for (file, number) in &now.capabilities {
        if before.capabilities.contains_key(file) {
            continue;
        }
        fs::create_dir_all(&folder)?;
        let path = folder.join(format!("nvidia-cap{number}"));
        let (kind, mode) = (FileType::CharacterDevice, Mode::from_raw_mode(0o444));
        let device = makedev(CAPABILITIES_MAJOR, *number);
        let created = mknodat(CWD, path, kind, mode, device).map_err(io::Error::from);
        unless(ErrorKind::AlreadyExists, created)?;
    }
    Ok(())
}

/// Whether this process may open the node by which a driver is reached at all; true on a machine
/// without device nodes.
#[must_use]
pub fn opens_control(machine: &Machine) -> bool {
    dev(machine).is_none_or(|dev| opens(&dev, "nvidiactl", (GPU_MAJOR, CONTROL_MINOR)))
}

/// The same of the node that CUDA needs.
#[must_use]
pub fn opens_uvm(machine: &Machine) -> bool {
    dev(machine).is_none_or(|dev| opens(&dev, "nvidia-uvm", (UVM_MAJOR, 0)))
}

/// The UUIDs of the devices whose nodes this process may open; `None` on a machine without device
/// nodes. A GPU with MIG is its instances, unless the process may administrate it.
pub(crate) fn openable(machine: &Machine) -> Option<String> {
    let dev = dev(machine)?;
    let administrates = may_administrate();
    let mut names = Vec::new();
    for (index, gpu) in machine.existing_gpus().iter().enumerate() {
        if !opens(
            &dev,
            &format!("nvidia{}", gpu.minor),
            (GPU_MAJOR, gpu.minor),
        ) {
            continue;
        }
        if gpu.mig != ON || administrates {
            names.push(text(&gpu.uuid).to_owned());
            continue;
        }
        let instances = gpu.instances(index).into_iter();
        let instances = instances.filter(|instance| opens_instance(&dev, gpu, instance));
        names.extend(instances.map(|instance| instance.uuid(machine)));
    }
    Some(if names.is_empty() {
        NONE.to_owned()
    } else {
        names.join(",")
    })
}

/// Whether this process has `CAP_SYS_ADMIN`.
#[must_use]
pub fn may_administrate() -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let capabilities = status
        .lines()
        .find_map(|line| line.strip_prefix("CapEff:"))
        .and_then(|capabilities| u64::from_str_radix(capabilities.trim(), 16).ok());
    capabilities.is_some_and(|capabilities| capabilities & ADMIN != 0)
}

fn opens_instance(dev: &Path, gpu: &Gpu, instance: &MigDevice) -> bool {
    let outer = outer_minor(gpu, instance.gpu.id);
    let mut numbers = [outer, outer + 1 + instance.compute.id].into_iter();
    numbers.all(|number| {
        let name = format!("nvidia-caps/nvidia-cap{number}");
        opens(dev, &name, (CAPABILITIES_MAJOR, number))
    })
}

/// The number of a GPU instance's capability node, which those of its compute instances follow. The
/// driver has 9 for each of 15 GPU instances, after two of its own.
fn outer_minor(gpu: &Gpu, id: u32) -> u32 {
    3 + (gpu.minor * 15 + id) * 9
}

/// The `/dev` of this process, on a machine that has device nodes: the node's own, or the
/// container's where that one is out of reach.
fn dev(machine: &Machine) -> Option<PathBuf> {
    let own = text(&machine.dev);
    let own = (!own.is_empty()).then(|| PathBuf::from(own))?;
    Some(if own.is_dir() { own } else { "/dev".into() })
}

/// The result, of which this error is none.
fn unless(kind: ErrorKind, result: io::Result<()>) -> io::Result<()> {
    result.or_else(|error| {
        if error.kind() == kind {
            Ok(())
        } else {
            Err(error)
        }
    })
}

fn opens(dev: &Path, name: &str, number: (u32, u32)) -> bool {
    let path = dev.join(name);
    let Ok(node) = fs::metadata(&path) else {
        return false;
    };
    let is_it = (major(node.rdev()), minor(node.rdev())) == number;
    is_it
        && node.file_type().is_char_device()
        && match File::open(&path) {
            Ok(_) => true,
            Err(error) => error.raw_os_error() == Some(libc::ENXIO),
        }
}
