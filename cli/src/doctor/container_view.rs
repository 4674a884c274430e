//! What a process in a container sees: whether libvgpu.so is loaded, which GPUs it can open, its
//! kernel, and the settings of `SELinux` and overlayfs. Read without touching a GPU.

use std::collections::BTreeMap;
use std::path::Path;

use serde::{Deserialize, Serialize};

/// Environment variables that describe the container's share.
const VARIABLES: [&str; 6] = [
    "ALIQUOT_VISIBLE_DEVICES",
    "NVIDIA_VISIBLE_DEVICES",
    "CUDA_DEVICE_MEMORY_LIMIT_0",
    "CUDA_DEVICE_SM_LIMIT",
    "CUDA_MPS_PIPE_DIRECTORY",
    "LD_PRELOAD",
];

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ContainerView {
    /// Paths of libvgpu.so that are mapped into this process.
    pub loaded: Vec<String>,
    /// Where shim libraries are mounted over the driver's libraries.
    pub shims: Vec<String>,
    /// `/dev/nvidia0` and so on.
    pub gpu_nodes: Vec<String>,
    /// [`VARIABLES`] that are set.
    pub environment: BTreeMap<String, String>,
    /// `/.aliquot` exists.
    pub has_page: bool,
    /// `SELinux`: 1 enforces, 0 only logs; `None` where it is off or not visible.
    pub selinux: Option<String>,
    pub label: Option<String>,
    /// Mount options of the root file system.
    pub root: String,
    /// The kernel's default for overlayfs, `Y` or `N`; `None` where it is not visible.
    pub redirect_dir: Option<String>,
    /// The kernel's release, or what a sandbox shows in its place.
    #[serde(default)]
    pub kernel: Option<String>,
}

impl ContainerView {
    /// Reads `/proc`, `/sys` and `/dev` of the container that this process runs in.
    pub fn read() -> Self {
        let text = |path: &str| {
            let read = std::fs::read_to_string(path).ok()?;
            let text = read.trim_matches(['\0', '\n', ' ']).to_owned();
            (!text.is_empty()).then_some(text)
        };
        let files = std::fs::read_dir("/dev").into_iter().flatten();
        let names = files.filter_map(|entry| Some(entry.ok()?.file_name().to_str()?.to_owned()));
        let mounts = text("/proc/self/mounts").unwrap_or_default();
        let variable = |name: &&str| Some(((*name).to_owned(), std::env::var(name).ok()?));
        Self {
            loaded: mapped(&text("/proc/self/maps").unwrap_or_default()),
            shims: shims(&mounts),
            gpu_nodes: gpu_nodes(names),
            environment: VARIABLES.iter().filter_map(variable).collect(),
            has_page: Path::new("/.aliquot").exists(),
            selinux: text("/sys/fs/selinux/enforce"),
            label: text("/proc/self/attr/current"),
            root: root(&mounts),
            redirect_dir: text("/sys/module/overlay/parameters/redirect_dir"),
            kernel: text("/proc/sys/kernel/osrelease"),
        }
    }
}

/// The paths of libvgpu.so in a list of mappings.
fn mapped(maps: &str) -> Vec<String> {
    let paths = maps
        .lines()
        .filter_map(|line| line.split_whitespace().nth(5));
    let mut ours: Vec<String> = paths
        .filter(|path| path.contains("libvgpu"))
        .map(str::to_owned)
        .collect();
    ours.dedup();
    ours
}

/// The mounts over the driver's libraries.
fn shims(mounts: &str) -> Vec<String> {
    let paths = mounts.lines().filter_map(|line| line.split(' ').nth(1));
    let driver = |path: &&str| path.contains("/libcuda.so") || path.contains("/libnvidia-ml.so");
    paths.filter(driver).map(str::to_owned).collect()
}

/// The device nodes of GPUs: `nvidia0`, not `nvidiactl` and the like.
fn gpu_nodes(names: impl Iterator<Item = String>) -> Vec<String> {
    let number = |name: &String| {
        let rest = name.strip_prefix("nvidia");
        rest.is_some_and(|rest| !rest.is_empty() && rest.bytes().all(|b| b.is_ascii_digit()))
    };
    let mut found: Vec<String> = names.filter(number).collect();
    found.sort();
    found
}

fn root(mounts: &str) -> String {
    let of_root = |line: &&str| line.split(' ').nth(1) == Some("/");
    let line = mounts.lines().find(of_root).unwrap_or_default();
    line.split(' ').nth(3).unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_libraries_mounts_and_gpu_device_nodes() {
        let maps = "7f00-7f01 r-xp 0 00:01 7 /.aliquot/libvgpu.so\n7f02-7f03 r--p 0 00:01 7 /.aliquot/libvgpu.so\n7f04-7f05 rw-p 0 00:00 0\n";
        assert_eq!(mapped(maps), ["/.aliquot/libvgpu.so"]);
        assert!(mapped("7f00-7f01 r-xp 0 00:01 7 /usr/lib/libc.so.6\n").is_empty());
        let mounts =
            "overlay / overlay rw,redirect_dir=on 0 0\ntmpfs /usr/lib/libcuda.so.1 tmpfs ro 0 0\n";
        assert_eq!(root(mounts), "rw,redirect_dir=on");
        assert_eq!(shims(mounts), ["/usr/lib/libcuda.so.1"]);
        let names = [
            "nvidiactl",
            "nvidia1",
            "nvidia0",
            "null",
            "nvidia-uvm",
            "nvidia",
        ];
        let found = gpu_nodes(names.into_iter().map(str::to_owned));
        assert_eq!(found, ["nvidia0", "nvidia1"]);
    }
}
