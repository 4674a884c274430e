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

use crate::cdi::{self, Driver, NVIDIA_KIND, Spec};
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
/// kind names them all, else the device nodes that exist under `dev`. An instance that NVIDIA's
/// spec does not name (it is older) comes with what that says of every container, its card's node
/// and its own, which `capabilities` tells.
pub fn driver(specs: &[Spec], dev: &Path, capabilities: &Path, cards: &[Card]) -> Driver {
    let named = |card: &Card| match &card.part {
        None => (card.uuid.clone(), Some(card.index)),
        Some(part) => (part.current.as_str().into(), None),
    };
    let gpus: Vec<(GpuUuid, Option<u32>)> = cards.iter().map(named).collect();
    let nodes = |names: Vec<String>| -> Vec<String> {
        let there = names.into_iter().filter(|node| dev.join(node).exists());
        there.map(|node| format!("/dev/{node}")).collect()
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
        && let Some(found) = cdi::common_of_nvidia(specs, &nodes(own()))
    {
        return found;
    }
    let common = ["nvidiactl", "nvidia-uvm", "nvidia-uvm-tools"].map(str::to_owned);
    cdi::from_nodes(&nodes(own().into_iter().chain(common).collect()))
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
mod tests {
    use super::*;

    const NOWHERE: &str = "/nonexistent";

    fn card(minor: u32) -> Card {
        Card {
            uuid: "GPU-a".into(),
            index: 0,
            minor: Some(minor),
            part: None,
        }
    }

    fn paths(driver: &Driver) -> Vec<&str> {
        let nodes = driver.edits.device_nodes.iter();
        nodes.filter_map(|node| node["path"].as_str()).collect()
    }

    #[test]
    fn kernels_are_told_by_their_release() {
        for (release, expected) in [
            ("6.18.44-x", true),
            ("5.12.0", true),
            ("5.4.0-1-amd64", false),
            ("4.18.0", false),
            ("", false),
        ] {
            assert_eq!(super::is_since_5_12(release), expected, "{release}");
        }
    }

    #[test]
    fn nvidias_spec_is_read_as_yaml_and_json_and_broken_files_are_passed_over() {
        let yaml = "cdiVersion: 0.5.0\nkind: nvidia.com/gpu\ndevices:\n- name: \"0\"\n  containerEdits:\n    deviceNodes:\n    - path: /dev/from-spec\n      hostPath: /host/dev\n";
        let json = r#"{"cdiVersion":"0.5.0","kind":"nvidia.com/gpu","devices":[{"name":"GPU-a","containerEdits":{"deviceNodes":[{"path":"/dev/from-spec"}]}}]}"#;
        for (file, text) in [("nvidia.yaml", yaml), ("nvidia.json", json)] {
            let room = tempfile::tempdir().expect("tempdir");
            fs::write(room.path().join("a.yaml"), "nvidia.com/gpu: [").expect("written");
            fs::write(room.path().join(file), text).expect("written");
            let found = driver(
                &specs(&[room.path().to_owned()]),
                room.path(),
                NOWHERE.as_ref(),
                &[card(0)],
            );
            assert_eq!(paths(&found), ["/dev/from-spec"], "{file}");
        }
    }

    #[test]
    fn without_a_spec_the_device_nodes_that_exist_are_given() {
        let dev = tempfile::tempdir().expect("tempdir");
        for node in ["nvidia3", "nvidia4", "nvidiactl"] {
            fs::write(dev.path().join(node), "").expect("written");
        }
        let found = driver(
            &specs(&[NOWHERE.into()]),
            dev.path(),
            NOWHERE.as_ref(),
            &[card(3)],
        );
        assert_eq!(paths(&found), ["/dev/nvidia3", "/dev/nvidiactl"]);
        let simulated = driver(&[], NOWHERE.as_ref(), NOWHERE.as_ref(), &[card(3)]);
        assert_eq!(paths(&simulated), [""; 0]);
    }

    /// An instance that NVIDIA's spec names, one that it does not, and one without a spec.
    #[test]
    fn mig_2_an_instance_comes_with_the_nodes_that_let_a_container_at_it_and_no_other() {
        let room = tempfile::tempdir().expect("tempdir");
        let (dev, proc) = (room.path().join("dev"), room.path().join("proc"));
        fs::create_dir_all(dev.join("nvidia-caps")).expect("made");
        for node in [
            "nvidia3",
            "nvidiactl",
            "nvidia-caps/nvidia-cap12",
            "nvidia-caps/nvidia-cap13",
            "nvidia-caps/nvidia-cap21",
        ] {
            fs::write(dev.join(node), "").expect("written");
        }
        for (place, number) in [("gi1", 12), ("gi1/ci0", 13), ("gi2", 21)] {
            let folder = proc.join("gpu3/mig").join(place);
            fs::create_dir_all(&folder).expect("made");
            let text = format!("DeviceFileMinor: {number}\nDeviceFileMode: 292\n");
            fs::write(folder.join("access"), text).expect("written");
        }
        let part = |uuid: &str| Card {
            part: Some(Part {
                current: uuid.to_owned(),
                gpu_instance: 1,
                compute_instance: 0,
            }),
            ..card(3)
        };
        let own = [
            "/dev/nvidia3",
            "/dev/nvidia-caps/nvidia-cap12",
            "/dev/nvidia-caps/nvidia-cap13",
        ];
        let bare = driver(&[], &dev, &proc, &[part("MIG-a")]);
        assert_eq!(paths(&bare), [&own[..], &["/dev/nvidiactl"]].concat());

        let spec = r#"{"cdiVersion":"0.6.0","kind":"nvidia.com/gpu","containerEdits":{"deviceNodes":[{"path":"/dev/common"}]},
            "devices":[{"name":"MIG-a","containerEdits":{"deviceNodes":[{"path":"/dev/spec"}]}}]}"#;
        let specs = room.path().join("cdi");
        fs::create_dir(&specs).expect("made");
        fs::write(specs.join("nvidia.json"), spec).expect("written");
        let specs = [specs];
        let known = driver(&self::specs(&specs), &dev, &proc, &[part("MIG-a")]);
        assert_eq!(paths(&known), ["/dev/common", "/dev/spec"]);
        let newer = driver(&self::specs(&specs), &dev, &proc, &[part("MIG-b")]);
        assert_eq!(paths(&newer), [&["/dev/common"], &own[..]].concat());
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
        let environment = "PATH=/bin\0SEES=no\0SEE=MIG-a\0";
        fs::write(proc.path().join("11/environ"), environment).expect("written");
        let asked: BTreeSet<PodUid> = ["1a-2b", "3c-4d", "5e-6f"].map(PodUid::from).into();
        let expected: BTreeSet<PodUid> = ["1a-2b", "3c-4d"].map(PodUid::from).into();
        assert_eq!(alive(proc.path(), &asked).expect("readable"), expected);
        let seen = started_with(proc.path(), &asked, "SEE").expect("readable");
        assert_eq!(seen, [("3c-4d".into(), "MIG-a".to_owned())]);
    }
}
