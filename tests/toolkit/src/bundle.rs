//! An OCI bundle, made as containerd makes it of an image, a container of a pod, and the device
//! plugin's answer.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use aliquot_device_plugin::kubelet::proto::v1beta1 as api;
use aliquot_gpusim::STATE_VARIABLE;
use anyhow::{Context as _, Result};
use serde_json::{Value, json};

use crate::node::{Node, PATH};
use crate::programs::{clients, inject, run};

/// Where containers find the limiter's test clients.
pub const CLIENTS: &str = "/clients";
/// Where containers find the folder that a test gives them.
pub const FILES: &str = "/files";
/// The image's own folder of CUDA libraries for forward compatibility.
pub const COMPAT: &str = "/usr/local/cuda/compat";
/// The loader's configuration file for [`COMPAT`] in images that have one.
pub const COMPAT_LIST: &str = "etc/ld.so.conf.d/00-cuda-compat.conf";

/// Debian's folders of libraries.
const FOLDERS: &str =
    "/usr/local/lib/x86_64-linux-gnu\n/lib/x86_64-linux-gnu\n/usr/lib/x86_64-linux-gnu\n";
/// What containerd gives to every container, as far as the tests need it.
const CAPABILITIES: [&str; 4] = ["CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_SETGID", "CAP_SETUID"];

/// What a container's image and its pod say.
#[derive(Clone, Debug, Default)]
pub struct Container<'a> {
    /// The command; none is run in bundles that are only configured.
    pub command: &'a [&'a str],
    /// Variables of the image's environment.
    pub variables: &'a [(&'a str, &'a str)],
}

/// A bundle: its folder has `config.json`, the root `rootfs`, and in `usr` what the image has below
/// `/usr` beside this machine's own files.
pub struct Bundle {
    /// Its folder.
    pub folder: PathBuf,
    /// The container's id.
    pub id: String,
}

impl Bundle {
    /// A bundle without devices.
    pub fn create(node: &Node, container: &Container) -> Result<Self> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let id = format!("aliquot-toolkit-{}-{number}", std::process::id());
        let folder = node.folder().join(&id);
        for name in ["usr", "work", "files"] {
            fs::create_dir_all(folder.join(name))?;
        }
        let root = folder.join("rootfs");
        for name in ["usr", "etc/ld.so.conf.d", "proc", "dev", "tmp"] {
            fs::create_dir_all(root.join(name))?;
        }
        for name in ["bin", "sbin", "lib", "lib64"] {
            symlink(format!("usr/{name}"), root.join(name))?;
        }
        fs::copy("/etc/os-release", root.join("etc/os-release"))?;
        let list = "include /etc/ld.so.conf.d/*.conf\n";
        fs::write(root.join("etc/ld.so.conf"), list)?;
        fs::write(root.join("etc/ld.so.conf.d/x86_64-linux-gnu.conf"), FOLDERS)?;
        let bundle = Self { folder, id };
        bundle.write_config(&bundle.initial_config(node, container))?;
        Ok(bundle)
    }

    /// The folder that the container finds at [`FILES`].
    pub fn files(&self) -> PathBuf {
        self.folder.join("files")
    }

    /// Gives the image a CUDA library of its own: the node's, under another version.
    pub fn add_compat_library(&self, node: &Node, version: &str) -> Result<()> {
        let folder = Path::new(COMPAT).strip_prefix("/usr")?;
        let folder = self.folder.join("usr").join(folder);
        fs::create_dir_all(&folder)?;
        let file = format!("libcuda.so.{version}");
        fs::copy(node.cuda_library(), folder.join(&file))?;
        symlink(file, folder.join("libcuda.so.1"))?;
        Ok(())
    }

    /// Lets the image's loader look for libraries in [`COMPAT`] first.
    pub fn list_compat_library(&self) -> Result<()> {
        let list = self.folder.join("rootfs").join(COMPAT_LIST);
        Ok(fs::write(list, format!("{COMPAT}\n"))?)
    }

    /// Applies the device plugin's answer; the agent's CDI specs are in `specs`.
    pub fn apply(&self, answer: &api::ContainerAllocateResponse, specs: &Path) -> Result<()> {
        let names = answer.cdi_devices.iter().map(|device| &device.name);
        let mut command = Command::new(inject());
        run(command.arg(&self.folder).arg(specs).args(names)).map(drop)
    }

    /// Its configuration.
    pub fn config(&self) -> Result<Value> {
        let path = self.folder.join("config.json");
        let text = fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
        Ok(serde_json::from_slice(&text)?)
    }

    fn write_config(&self, config: &Value) -> Result<()> {
        let path = self.folder.join("config.json");
        Ok(fs::write(path, config.to_string())?)
    }

    fn initial_config(&self, node: &Node, container: &Container) -> Value {
        let bind = |source: &Path, destination: &str, access: &str| {
            json!({"destination": destination, "type": "bind", "source": source,
                   "options": ["rbind", "rprivate", access]})
        };
        let state = node.state();
        let state = state.file_name().unwrap_or_default().display();
        let mut variables = vec![
            format!("PATH={PATH}"),
            format!("{STATE_VARIABLE}=/machine/{state}"),
        ];
        let own = container.variables.iter();
        variables.extend(own.map(|(name, value)| format!("{name}={value}")));
        json!({
            "ociVersion": "1.0.2",
            "root": {"path": "rootfs"},
            "process": {
                "user": {"uid": 0, "gid": 0},
                "args": container.command,
                "env": variables,
                "cwd": "/",
                "capabilities": {
                    "bounding": CAPABILITIES,
                    "effective": CAPABILITIES,
                    "permitted": CAPABILITIES,
                },
            },
            "mounts": [
                {"destination": "/proc", "type": "proc", "source": "proc"},
                {"destination": "/dev", "type": "tmpfs", "source": "tmpfs"},
                {"destination": "/tmp", "type": "tmpfs", "source": "tmpfs"},
                bind(&node.machine(), "/machine", "rw"),
                bind(&clients(), CLIENTS, "ro"),
                bind(&self.files(), FILES, "ro"),
            ],
            "linux": {
                "cgroupsPath": format!("/{}", self.id),
                "devices": [],
                "resources": {"devices": [{"allow": false, "access": "rwm"}]},
                "namespaces": [
                    {"type": "pid"}, {"type": "mount"}, {"type": "ipc"}, {"type": "uts"},
                ],
            },
        })
    }
}
