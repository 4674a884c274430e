//! How devices get into a container, and which pods have processes.

use super::*;

const NOWHERE: &str = "/nonexistent";

/// As [`super::driver`], with device nodes in a folder of the test's.
fn driver(specs: &[Spec], dev: &Path, capabilities: &Path, devices: &[HostDevice]) -> Driver {
    from(
        specs,
        &DeviceNodes::at(dev),
        Vec::new,
        capabilities,
        devices,
    )
}

fn device(minor: u32) -> HostDevice {
    HostDevice {
        uuid: "GPU-a".into(),
        index: 0,
        minor: Some(minor),
        instance: None,
    }
}

fn paths(driver: &Driver) -> Vec<&str> {
    let nodes = driver.edits.device_nodes.iter();
    nodes.filter_map(|node| node["path"].as_str()).collect()
}

#[test]
fn detects_recursive_read_only_by_kernel_release() {
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
fn reads_yaml_and_json_specs_and_skips_broken_files() {
    let yaml = "cdiVersion: 0.5.0\nkind: nvidia.com/gpu\ndevices:\n- name: \"0\"\n  containerEdits:\n    deviceNodes:\n    - path: /dev/from-spec\n      hostPath: /host/dev\n";
    let json = r#"{"cdiVersion":"0.5.0","kind":"nvidia.com/gpu","devices":[{"name":"GPU-a","containerEdits":{"deviceNodes":[{"path":"/dev/from-spec"}]}}]}"#;
    for (file, text) in [("nvidia.yaml", yaml), ("nvidia.json", json)] {
        let dir = tempfile::tempdir().expect("tempdir");
        fs::write(dir.path().join("a.yaml"), "nvidia.com/gpu: [").expect("written");
        fs::write(dir.path().join(file), text).expect("written");
        let found = driver(
            &specs(&[dir.path().to_owned()]),
            dir.path(),
            NOWHERE.as_ref(),
            &[device(0)],
        );
        assert_eq!(paths(&found), ["/dev/from-spec"], "{file}");
    }
}

#[test]
fn gives_existing_device_nodes_without_spec() {
    let dev = tempfile::tempdir().expect("tempdir");
    for node in ["nvidia3", "nvidia4", "nvidiactl"] {
        fs::write(dev.path().join(node), "").expect("written");
    }
    let found = driver(
        &specs(&[NOWHERE.into()]),
        dev.path(),
        NOWHERE.as_ref(),
        &[device(3)],
    );
    assert_eq!(paths(&found), ["/dev/nvidia3", "/dev/nvidiactl"]);
    let simulated = driver(&[], NOWHERE.as_ref(), NOWHERE.as_ref(), &[device(3)]);
    assert_eq!(paths(&simulated), [""; 0]);
}

/// An instance that NVIDIA's spec names, one that it does not, and one without a spec.
#[test]
fn mig_2_gives_instance_only_its_own_capability_nodes() {
    let dir = tempfile::tempdir().expect("tempdir");
    let (dev, proc) = (dir.path().join("dev"), dir.path().join("proc"));
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
    for (folder_name, number) in [("gi1", 12), ("gi1/ci0", 13), ("gi2", 21)] {
        let folder = proc.join("gpu3/mig").join(folder_name);
        fs::create_dir_all(&folder).expect("made");
        let text = format!("DeviceFileMinor: {number}\nDeviceFileMode: 292\n");
        fs::write(folder.join("access"), text).expect("written");
    }
    let instance = |uuid: &str| HostDevice {
        instance: Some(InstanceIds {
            current: uuid.to_owned(),
            gpu_instance: 1,
            compute_instance: 0,
        }),
        ..device(3)
    };
    let own = [
        "/dev/nvidia3",
        "/dev/nvidia-caps/nvidia-cap12",
        "/dev/nvidia-caps/nvidia-cap13",
    ];
    let bare = driver(&[], &dev, &proc, &[instance("MIG-a")]);
    assert_eq!(paths(&bare), [&own[..], &["/dev/nvidiactl"]].concat());

    let spec = r#"{"cdiVersion":"0.6.0","kind":"nvidia.com/gpu","containerEdits":{"deviceNodes":[{"path":"/dev/common"}]},
        "devices":[{"name":"MIG-a","containerEdits":{"deviceNodes":[{"path":"/dev/spec"}]}}]}"#;
    let specs = dir.path().join("cdi");
    fs::create_dir(&specs).expect("made");
    fs::write(specs.join("nvidia.json"), spec).expect("written");
    let specs = [specs];
    let known = driver(&self::specs(&specs), &dev, &proc, &[instance("MIG-a")]);
    assert_eq!(paths(&known), ["/dev/common", "/dev/spec"]);
    let newer = driver(&self::specs(&specs), &dev, &proc, &[instance("MIG-b")]);
    assert_eq!(paths(&newer), [&["/dev/common"], &own[..]].concat());
}

#[test]
fn treats_pod_as_alive_while_cgroup_has_process() {
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
    let seen = variable_at_start(proc.path(), &asked, "SEE").expect("readable");
    assert_eq!(seen, [("3c-4d".into(), "MIG-a".to_owned())]);
}
