//! The driver's device nodes: where they are on the host, their numbers, and those that a container
//! cannot do without. A node whose numbers are in the CDI spec need not exist on the host.

use std::fs;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

use rustix::fs::{major, minor};
use serde_json::json;
use thiserror::Error;

use crate::container_edits::cdi::Edits;
use crate::host_device::{self, HostDevice};
use crate::paths::DriverRoot;

/// Where device nodes usually are.
const DEV: &str = "/dev";
/// The host's folder, for a process in the host's PID namespace: the `/dev` of a privileged
/// container is as the host's was when the container started.
const HOST_DEV: &str = "/proc/1/root/dev";
/// The driver's device nodes are in the folder that has this one.
const CONTROL: &str = "nvidiactl";
/// Where CUDA's unified memory is reached.
const UVM: &str = "nvidia-uvm";
/// For debuggers and profilers: containers get it where it is known.
const UVM_TOOLS: &str = "nvidia-uvm-tools";
/// The folder and the start of the names of capability nodes.
const CAPABILITY: &str = "nvidia-caps/nvidia-cap";
/// The only node of the driver in Windows' Linux, in place of all others.
const WSL: &str = "/dev/dxg";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceNumber {
    pub major: u32,
    pub minor: u32,
}

/// The major numbers of the driver's parts, of those that are loaded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Majors {
    gpu: Option<u32>,
    uvm: Option<u32>,
    capabilities: Option<u32>,
}

impl Majors {
    /// Reads the kernel's list; a file that cannot be read lists nothing.
    pub fn read(proc_devices: &Path) -> Self {
        Self::parse(&fs::read_to_string(proc_devices).unwrap_or_default())
    }

    /// Of the text of `/proc/devices`.
    pub fn parse(text: &str) -> Self {
        let mut majors = Self::default();
        // The second list is that of block devices, whose numbers are others.
        let lines = text.lines().take_while(|line| !line.starts_with("Block"));
        for line in lines {
            let Some((number, name)) = line.trim().split_once(' ') else {
                continue;
            };
            let place = match name.trim() {
                // `nvidia` since driver 550.40.
                "nvidia-frontend" | "nvidia" => &mut majors.gpu,
                "nvidia-uvm" => &mut majors.uvm,
                "nvidia-caps" => &mut majors.capabilities,
                _ => continue,
            };
            *place = number.parse().ok();
        }
        majors
    }

    /// The numbers of the driver's node with this name below `/dev`, where its part is loaded.
    pub fn number(&self, name: &str) -> Option<DeviceNumber> {
        let (major, minor) = match name {
            CONTROL => (self.gpu, 255),
            "nvidia-modeset" => (self.gpu, 254),
            UVM => (self.uvm, 0),
            UVM_TOOLS => (self.uvm, 1),
            _ => match name.strip_prefix(CAPABILITY) {
                Some(number) => (self.capabilities, number.parse().ok()?),
                None => (self.gpu, name.strip_prefix("nvidia")?.parse().ok()?),
            },
        };
        let major = major?;
        Some(DeviceNumber { major, minor })
    }
}

/// A device node that a container needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RequiredNode {
    /// By its name below `/dev`.
    Named(String),
    /// A capability node of a MIG instance, whose number this file does not have.
    Unlisted(PathBuf),
}

/// The nodes that a container with these devices needs: each GPU's own, the two capability nodes of
/// an instance, and those that are common to all GPUs.
pub fn required(devices: &[HostDevice], capabilities: &Path) -> Vec<RequiredNode> {
    let mut nodes = Vec::new();
    for device in devices {
        let Some(minor) = device.minor else { continue };
        nodes.push(RequiredNode::Named(format!("nvidia{minor}")));
        let Some(instance) = &device.instance else {
            continue;
        };
        for file in host_device::capability_files(capabilities, minor, instance) {
            nodes.push(match host_device::device_file_minor(&file) {
                Some(number) => RequiredNode::Named(format!("{CAPABILITY}{number}")),
                None => RequiredNode::Unlisted(file),
            });
        }
    }
    nodes.extend([CONTROL, UVM].map(|name| RequiredNode::Named(name.to_owned())));
    nodes
}

/// Why a container would start without a device node that it needs.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum MissingNode {
    /// Its part of the driver is not loaded, and nothing has created the node.
    #[error(
        "/dev/{name}: {} does not list {}, and {} does not exist on the host; expected `{}` on the node",
        .proc_devices.display(), driver_of(.name), .path.display(), command_for(.name)
    )]
    Unknown {
        /// Its name below `/dev`.
        name: String,
        proc_devices: PathBuf,
        /// Where it would be on the host.
        path: PathBuf,
    },
    /// The driver does not list the number of an instance's capability node.
    #[error(
        "the capability node of its MIG instance: {} has no DeviceFileMinor; expected `nvidia-smi` on the node",
        .0.display()
    )]
    Unlisted(PathBuf),
}

/// The part of the driver that serves a node, as the kernel lists it.
fn driver_of(name: &str) -> &'static str {
    if name == UVM {
        "nvidia-uvm"
    } else if name.starts_with(CAPABILITY) {
        "nvidia-caps"
    } else {
        "nvidia"
    }
}

/// What loads that part and creates the node.
fn command_for(name: &str) -> &'static str {
    if name == UVM {
        "nvidia-modprobe -u -c0"
    } else {
        "nvidia-smi"
    }
}

/// Completes the driver's edits: type and numbers for each node of the driver's, whoever wrote the
/// spec (the numbers in NVIDIA's are those of the boot in which it was generated), and every
/// required node that the spec does not have because it did not exist then. `on_host` has the
/// numbers of a node, by its name below `/dev`, where it exists. Returns a required node whose
/// numbers are not known.
pub fn complete(
    edits: &mut Edits,
    required: &[RequiredNode],
    majors: &Majors,
    on_host: impl Fn(&str) -> Option<DeviceNumber>,
) -> Option<RequiredNode> {
    let number = |name: &str| majors.number(name).or_else(|| on_host(name));
    for node in &mut edits.device_nodes {
        let name = node["path"].as_str().and_then(name_of);
        if let Some(found) = name.and_then(number) {
            node["type"] = json!("c");
            node["major"] = json!(found.major);
            node["minor"] = json!(found.minor);
        }
    }
    if has_node(edits, WSL) {
        return None;
    }
    let mut add = |name: &str| -> Option<()> {
        let number = number(name)?;
        let path = format!("{DEV}/{name}");
        if !has_node(edits, &path) {
            edits.device_nodes.push(json!({
                "path": path, "type": "c", "major": number.major, "minor": number.minor,
            }));
        }
        Some(())
    };
    let mut missing = None;
    for node in required {
        let added = match node {
            RequiredNode::Named(name) => add(name),
            RequiredNode::Unlisted(_) => None,
        };
        if added.is_none() && missing.is_none() {
            missing = Some(node.clone());
        }
    }
    add(UVM_TOOLS);
    missing
}

fn has_node(edits: &Edits, path: &str) -> bool {
    let mut paths = edits.device_nodes.iter().map(|node| &node["path"]);
    paths.any(|one| one.as_str() == Some(path))
}

/// The name of a node of the driver's below `/dev`.
fn name_of(path: &str) -> Option<&str> {
    let name = path.strip_prefix(DEV)?.strip_prefix('/')?;
    name.starts_with("nvidia").then_some(name)
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceNodes {
    here: PathBuf,
    /// `None`: the path is the same in containers.
    host: Option<PathBuf>,
}

impl DeviceNodes {
    /// This folder, which is the host's `/dev`.
    pub fn at(here: &Path) -> Self {
        let here = here.to_owned();
        Self { here, host: None }
    }

    /// The folder of the root, where it has device nodes; else the host's.
    pub fn new(root: Option<&DriverRoot>) -> Self {
        let own = root.filter(|root| root.here.join("dev").join(CONTROL).exists());
        own.map_or_else(Self::host, |root| Self {
            here: root.here.join("dev"),
            host: Some(root.host.join("dev")).filter(|host| host != Path::new(DEV)),
        })
    }

    fn host() -> Self {
        let host = Path::new(HOST_DEV);
        Self::at(if host.is_dir() { host } else { Path::new(DEV) })
    }

    /// Completes the edits with what is known here; see [`complete`].
    pub fn complete(
        &self,
        edits: &mut Edits,
        required: &[RequiredNode],
        proc_devices: &Path,
    ) -> Result<(), MissingNode> {
        let majors = Majors::read(proc_devices);
        let missing = complete(edits, required, &majors, |name| self.number(name));
        Err(match missing {
            None => return Ok(()),
            Some(RequiredNode::Unlisted(file)) => MissingNode::Unlisted(file),
            Some(RequiredNode::Named(name)) => self.unknown(name, proc_devices),
        })
    }

    fn number(&self, name: &str) -> Option<DeviceNumber> {
        let node = fs::symlink_metadata(self.here.join(name)).ok()?;
        node.file_type().is_char_device().then(|| DeviceNumber {
            major: major(node.rdev()),
            minor: minor(node.rdev()),
        })
    }

    fn unknown(&self, name: String, proc_devices: &Path) -> MissingNode {
        let host = self.host.clone().unwrap_or_else(|| DEV.into());
        MissingNode::Unknown {
            path: host.join(&name),
            name,
            proc_devices: proc_devices.to_owned(),
        }
    }
}

#[cfg(test)]
#[path = "device_nodes_tests.rs"]
mod tests;
