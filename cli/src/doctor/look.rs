//! What a process in a container sees: is libvgpu.so loaded in it, which GPUs are open to it, what
//! holds below it.
//!
//! Fed by: `/proc`, `/sys` and `/dev` of the container that `doctor look` runs in. Must not: touch a
//! GPU, or judge; [`super::probe`] does.

use std::collections::BTreeMap;
use std::path::Path;

use serde::{Deserialize, Serialize};

/// Variables that say what the container was given.
const TOLD: [&str; 5] = [
    "NVIDIA_VISIBLE_DEVICES",
    "CUDA_DEVICE_MEMORY_LIMIT_0",
    "CUDA_DEVICE_SM_LIMIT",
    "CUDA_MPS_PIPE_DIRECTORY",
    "LD_PRELOAD",
];

/// What was seen.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Look {
    /// The libraries of ours that are mapped into this process.
    pub loaded: Vec<String>,
    /// The stand-ins that programs find in place of the driver's libraries, where they are.
    pub standing_in: Vec<String>,
    /// `/dev/nvidia0` and so on.
    pub cards: Vec<String>,
    /// What the environment says.
    pub told: BTreeMap<String, String>,
    /// `/.aliquot` is there.
    pub has_page: bool,
    /// `SELinux`: 1 enforces, 0 only logs; nothing where it is off or not shown.
    pub selinux: Option<String>,
    /// This process's label.
    pub label: Option<String>,
    /// The options that the root file system is mounted with.
    pub root: String,
    /// The kernel's own choice for overlays: `Y` or `N`; nothing where it is not shown.
    pub redirect_dir: Option<String>,
}

impl Look {
    /// Looks.
    pub fn here() -> Self {
        let text = |path: &str| {
            let text = std::fs::read_to_string(path).ok()?;
            let text = text.trim_matches(['\0', '\n', ' ']).to_owned();
            (!text.is_empty()).then_some(text)
        };
        let names = std::fs::read_dir("/dev").into_iter().flatten();
        let names = names.filter_map(|entry| Some(entry.ok()?.file_name().to_str()?.to_owned()));
        let mounts = text("/proc/self/mounts").unwrap_or_default();
        let told = |name: &&str| Some(((*name).to_owned(), std::env::var(name).ok()?));
        Self {
            loaded: mapped(&text("/proc/self/maps").unwrap_or_default()),
            standing_in: standing_in(&mounts),
            cards: cards(names),
            told: TOLD.iter().filter_map(told).collect(),
            has_page: Path::new("/.aliquot").exists(),
            selinux: text("/sys/fs/selinux/enforce"),
            label: text("/proc/self/attr/current"),
            root: root(&mounts),
            redirect_dir: text("/sys/module/overlay/parameters/redirect_dir"),
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

/// Mounts over the driver's libraries.
fn standing_in(mounts: &str) -> Vec<String> {
    let paths = mounts.lines().filter_map(|line| line.split(' ').nth(1));
    let driver = |path: &&str| path.contains("/libcuda.so") || path.contains("/libnvidia-ml.so");
    paths.filter(driver).map(str::to_owned).collect()
}

/// The device nodes of cards: not `nvidiactl` and its like.
fn cards(names: impl Iterator<Item = String>) -> Vec<String> {
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
    fn libraries_mounts_and_cards_are_found_by_their_names() {
        let maps = "7f00-7f01 r-xp 0 00:01 7 /.aliquot/libvgpu.so\n7f02-7f03 r--p 0 00:01 7 /.aliquot/libvgpu.so\n7f04-7f05 rw-p 0 00:00 0\n";
        assert_eq!(mapped(maps), ["/.aliquot/libvgpu.so"]);
        assert!(mapped("7f00-7f01 r-xp 0 00:01 7 /usr/lib/libc.so.6\n").is_empty());
        let mounts =
            "overlay / overlay rw,redirect_dir=on 0 0\ntmpfs /usr/lib/libcuda.so.1 tmpfs ro 0 0\n";
        assert_eq!(root(mounts), "rw,redirect_dir=on");
        assert_eq!(standing_in(mounts), ["/usr/lib/libcuda.so.1"]);
        let names = [
            "nvidiactl",
            "nvidia1",
            "nvidia0",
            "null",
            "nvidia-uvm",
            "nvidia",
        ];
        let found = cards(names.into_iter().map(str::to_owned));
        assert_eq!(found, ["nvidia0", "nvidia1"]);
    }
}
