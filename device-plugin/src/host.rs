//! What is asked of the host itself: how the driver gets into a container, and
//! which pods still have processes.
//!
//! Fed by: CDI directories, `/dev`, `/proc` (each as a path, so that tests have
//! their own). Must not: write.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use aliquot_core::{GpuUuid, PodUid};

use crate::cdi::{self, Driver, NVIDIA_KIND, Spec};

/// A card as device nodes and NVIDIA's spec name it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Card {
    /// Its uuid.
    pub uuid: GpuUuid,
    /// NVML's index.
    pub index: u32,
    /// `/dev/nvidia<minor>`, where the driver knows it.
    pub minor: Option<u32>,
}

/// How these cards get into a container: NVIDIA's own edits where a spec of its
/// kind names them all, else the device nodes that exist under `dev`.
pub fn driver(cdi_directories: &[PathBuf], dev: &Path, cards: &[Card]) -> Driver {
    let specs: Vec<Spec> = cdi_directories
        .iter()
        .flat_map(|path| nvidia_specs(path))
        .collect();
    let gpus: Vec<(GpuUuid, u32)> = cards.iter().map(|c| (c.uuid.clone(), c.index)).collect();
    cdi::from_nvidia(&specs, &gpus).unwrap_or_else(|| {
        let own = cards.iter().filter_map(|card| card.minor);
        let own = own.map(|minor| format!("nvidia{minor}"));
        let common = ["nvidiactl", "nvidia-uvm", "nvidia-uvm-tools"].map(str::to_owned);
        let nodes: Vec<String> = own
            .chain(common)
            .filter(|node| dev.join(node).exists())
            .map(|node| format!("/dev/{node}"))
            .collect();
        cdi::from_nodes(&nodes)
    })
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
        for uid in pods {
            // The systemd driver writes the uid with underscores.
            let plain = format!("pod{uid}");
            if cgroups.contains(&plain) || cgroups.contains(&plain.replace('-', "_")) {
                found.insert(uid.clone());
            }
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn card(minor: u32) -> Card {
        Card {
            uuid: "GPU-a".into(),
            index: 0,
            minor: Some(minor),
        }
    }

    fn paths(driver: &Driver) -> Vec<&str> {
        let nodes = driver.edits.device_nodes.iter();
        nodes.filter_map(|node| node["path"].as_str()).collect()
    }

    #[test]
    fn nvidias_spec_is_read_as_yaml_and_json_and_broken_files_are_passed_over() {
        let yaml = "cdiVersion: 0.5.0\nkind: nvidia.com/gpu\ndevices:\n- name: \"0\"\n  containerEdits:\n    deviceNodes:\n    - path: /dev/from-spec\n      hostPath: /host/dev\n";
        let json = r#"{"cdiVersion":"0.5.0","kind":"nvidia.com/gpu","devices":[{"name":"GPU-a","containerEdits":{"deviceNodes":[{"path":"/dev/from-spec"}]}}]}"#;
        for (file, text) in [("nvidia.yaml", yaml), ("nvidia.json", json)] {
            let room = tempfile::tempdir().expect("tempdir");
            fs::write(room.path().join("a.yaml"), "nvidia.com/gpu: [").expect("written");
            fs::write(room.path().join(file), text).expect("written");
            let found = driver(&[room.path().to_owned()], room.path(), &[card(0)]);
            assert_eq!(paths(&found), ["/dev/from-spec"], "{file}");
        }
    }

    #[test]
    fn without_a_spec_the_device_nodes_that_exist_are_given() {
        let dev = tempfile::tempdir().expect("tempdir");
        for node in ["nvidia3", "nvidia4", "nvidiactl"] {
            fs::write(dev.path().join(node), "").expect("written");
        }
        let found = driver(&[PathBuf::from("/nonexistent")], dev.path(), &[card(3)]);
        assert_eq!(paths(&found), ["/dev/nvidia3", "/dev/nvidiactl"]);
        let simulated = driver(&[], Path::new("/nonexistent"), &[card(3)]);
        assert_eq!(paths(&simulated), [""; 0]);
    }

    #[test]
    fn a_pod_lives_while_a_process_is_in_its_cgroup() {
        let proc = tempfile::tempdir().expect("tempdir");
        for (pid, cgroup) in [
            ("10", "0::/kubepods/burstable/pod1a-2b/cri\n"),
            ("11", "0::/kubepods.slice/kubepods-pod3c_4d.slice/x\n"),
            ("self", "0::/init\n"),
        ] {
            fs::create_dir(proc.path().join(pid)).expect("made");
            fs::write(proc.path().join(pid).join("cgroup"), cgroup).expect("written");
        }
        let asked: BTreeSet<PodUid> = ["1a-2b", "3c-4d", "5e-6f"].map(PodUid::from).into();
        let expected: BTreeSet<PodUid> = ["1a-2b", "3c-4d"].map(PodUid::from).into();
        assert_eq!(alive(proc.path(), &asked).expect("readable"), expected);
    }
}
