//! How cards get into a container, and whose processes live.

use super::*;

const NOWHERE: &str = "/nonexistent";

/// As [`super::driver`], with device nodes in a folder of the test's.
fn driver(specs: &[Spec], dev: &Path, capabilities: &Path, cards: &[Card]) -> Driver {
    from(specs, &Dev::at(dev), Vec::new, capabilities, cards)
}

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
