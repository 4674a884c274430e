//! Where the driver's files and device nodes are: on the host itself, or below a root of their own,
//! such as that of a driver container. CDI specs name only the host's paths: the container runtime
//! knows no others.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use aliquot_nvml::root::{FOLDERS, find, resolve};
use serde_json::{Value, json};

/// Where device nodes usually are.
const DEV: &str = "/dev";
/// The driver's device nodes are in the folder that has this one.
const CONTROL: &str = "nvidiactl";
/// The libraries for compute and utility, by their names before the version.
const LIBRARIES: [&str; 8] = [
    "libcuda",
    "libcudadebugger",
    "libnvidia-ml",
    "libnvidia-cfg",
    "libnvidia-gpucomp",
    "libnvidia-nvvm",
    "libnvidia-opencl",
    "libnvidia-ptxjitcompiler",
];

/// A driver's root.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DriverRoot {
    /// Its path in this container.
    pub here: PathBuf,
    /// Its path on the host.
    pub host: PathBuf,
}

/// Where device nodes are.
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
    pub fn of(root: Option<&DriverRoot>) -> Self {
        let own = root.filter(|root| root.here.join("dev").join(CONTROL).exists());
        own.map_or_else(
            || Self::at(Path::new(DEV)),
            |root| Self {
                here: root.here.join("dev"),
                host: Some(root.host.join("dev")).filter(|host| host != Path::new(DEV)),
            },
        )
    }

    /// The node of this name as CDI writes it, if it exists.
    pub fn node(&self, name: &str) -> Option<Value> {
        let path = Path::new(DEV).join(name);
        let exists = self.here.join(name).exists();
        exists.then(|| match &self.host {
            Some(host) => json!({"path": path, "hostPath": host.join(name)}),
            None => json!({ "path": path }),
        })
    }
}

impl DriverRoot {
    /// Mounts of the driver's libraries, under the names that programs load. A container finds them
    /// where its distribution has libraries in the same folder.
    pub fn libraries(&self) -> Vec<Value> {
        let Some(folder) = self.folder() else {
            return Vec::new();
        };
        let Ok(entries) = fs::read_dir(self.here.join(folder)) else {
            return Vec::new();
        };
        let mut versions: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for name in entries.flatten().map(|entry| entry.file_name()) {
            let name = name.to_string_lossy().into_owned();
            let (stem, version) = name.split_once(".so.").unwrap_or_default();
            if LIBRARIES.contains(&stem) {
                let all = versions.entry(stem.to_owned()).or_default();
                all.push(version.to_owned());
            }
        }
        let mut mounts = Vec::new();
        for (stem, mut all) in versions {
            all.sort();
            // libcuda.so.1 rather than libcuda.so.580.82; one without a short name retains its own.
            let short = all.iter().find(|version| !version.contains('.'));
            let Some(version) = short.or_else(|| all.first()) else {
                continue;
            };
            let path = Path::new(folder).join(format!("{stem}.so.{version}"));
            if let Some(file) = resolve(&self.here, &path) {
                mounts.push(json!({
                    "hostPath": self.host.join(file),
                    "containerPath": Path::new("/").join(path),
                    "options": ["ro", "nosuid", "nodev", "bind"],
                }));
            }
        }
        mounts
    }

    fn folder(&self) -> Option<&'static str> {
        find(&self.here, "libcuda.so.1")?;
        let has = |folder: &&&str| {
            let path = Path::new(**folder).join("libcuda.so.1");
            resolve(&self.here, &path).is_some()
        };
        FOLDERS.iter().find(has).copied()
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;
    use crate::cdi::Spec;
    use crate::host::{HostDevice, driver};

    const HOST: &str = "/run/nvidia/driver";
    const LIB: &str = "usr/lib/x86_64-linux-gnu";

    /// The root of GPU Operator's driver container.
    fn root(place: &Path, with_nodes: bool) -> DriverRoot {
        let lib = place.join(LIB);
        fs::create_dir_all(&lib).expect("made");
        fs::create_dir_all(place.join("dev")).expect("made");
        for stem in [
            "libcuda",
            "libnvidia-ml",
            "libnvidia-gpucomp",
            "libGLX_nvidia",
        ] {
            fs::write(lib.join(format!("{stem}.so.580.82")), stem).expect("written");
        }
        for stem in ["libcuda", "libnvidia-ml"] {
            let own = lib.join(format!("{stem}.so.1"));
            symlink(format!("{stem}.so.580.82"), own).expect("linked");
        }
        symlink("libcuda.so.1", lib.join("libcuda.so")).expect("linked");
        if with_nodes {
            for node in ["nvidia3", "nvidiactl", "nvidia-uvm"] {
                fs::write(place.join("dev").join(node), "").expect("written");
            }
        }
        DriverRoot {
            here: place.to_owned(),
            host: HOST.into(),
        }
    }

    fn device() -> HostDevice {
        HostDevice {
            uuid: "GPU-a".into(),
            index: 0,
            minor: Some(3),
            instance: None,
        }
    }

    #[test]
    fn names_host_paths_of_driver_container() {
        let place = tempfile::tempdir().expect("tempdir");
        let root = root(place.path(), true);
        let edits = driver(&[], Some(&root), place.path(), &[device()]).edits;
        let node = |name: &str| json!({"path": format!("/dev/{name}"), "hostPath": format!("{HOST}/dev/{name}")});
        assert_eq!(
            edits.device_nodes,
            ["nvidia3", "nvidiactl", "nvidia-uvm"].map(node)
        );
        let mount = |real: &str, name: &str| {
            json!({"hostPath": format!("{HOST}/{LIB}/{real}"), "containerPath": format!("/{LIB}/{name}"),
                   "options": ["ro", "nosuid", "nodev", "bind"]})
        };
        let expected = [
            mount("libcuda.so.580.82", "libcuda.so.1"),
            mount("libnvidia-gpucomp.so.580.82", "libnvidia-gpucomp.so.580.82"),
            mount("libnvidia-ml.so.580.82", "libnvidia-ml.so.1"),
        ];
        assert_eq!(edits.mounts, expected);
        let text = serde_json::to_string(&edits).expect("json");
        let here = place.path().to_string_lossy();
        assert!(!text.contains(&*here), "{text}");
    }

    #[test]
    fn retains_nvidia_spec_of_driver_container() {
        let place = tempfile::tempdir().expect("tempdir");
        let root = root(place.path(), true);
        let node = json!({"path": "/dev/nvidia3", "hostPath": format!("{HOST}/dev/nvidia3")});
        let library = json!({"hostPath": format!("{HOST}/{LIB}/libcuda.so.580.82"),
                             "containerPath": format!("/{LIB}/libcuda.so.580.82")});
        let spec: Spec = serde_json::from_value(json!({
            "cdiVersion": "0.6.0", "kind": "nvidia.com/gpu",
            "devices": [{"name": "GPU-a", "containerEdits": {"deviceNodes": [node]}}],
            "containerEdits": {"mounts": [library]},
        }))
        .expect("a spec");
        let edits = driver(&[spec], Some(&root), place.path(), &[device()]).edits;
        assert_eq!(edits.device_nodes, [node]);
        assert_eq!(edits.mounts, [library]);
    }

    #[test]
    fn uses_host_nodes_when_driver_root_has_none() {
        let place = tempfile::tempdir().expect("tempdir");
        let root = root(place.path(), false);
        assert_eq!(
            DeviceNodes::of(Some(&root)),
            DeviceNodes::at(Path::new(DEV))
        );
        assert_eq!(DeviceNodes::of(None), DeviceNodes::at(Path::new(DEV)));
        // The host's own root: its nodes are where a container has them.
        fs::write(place.path().join("dev/nvidiactl"), "").expect("written");
        let own = DriverRoot {
            host: "/".into(),
            ..root
        };
        let node = DeviceNodes::of(Some(&own)).node("nvidiactl");
        assert_eq!(node, Some(json!({"path": "/dev/nvidiactl"})));
    }
}
