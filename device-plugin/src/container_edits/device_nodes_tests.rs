//! Which nodes a container gets with which numbers, and what is missing.

use std::os::unix::fs::symlink;
use std::slice;

use serde_json::Value;

use super::*;
use crate::container_edits::cdi::Spec;
use crate::testing::host_device;

/// As a kernel lists a loaded driver's parts.
const LOADED: &str = "Character devices:\n  1 mem\n195 nvidia\n195 nvidiactl\n236 nvidia-caps\n\
    508 nvidia-uvm\n\nBlock devices:\n254 nvidia\n";
/// The same where CUDA has not been used since the boot.
const WITHOUT_UVM: &str = "Character devices:\n195 nvidia-frontend\n236 nvidia-caps\n";

const NOTHING: [(&str, u32, u32); 0] = [];

fn required_of(names: &[&str]) -> Vec<RequiredNode> {
    let nodes = names.iter();
    nodes
        .map(|name| RequiredNode::Named((*name).to_owned()))
        .collect()
}

fn node(name: &str, major: u32, minor: u32) -> Value {
    json!({"path": format!("/dev/{name}"), "type": "c", "major": major, "minor": minor})
}

/// The nodes after the completion, and what is missing. `on_host` are existing nodes.
fn completed(
    nodes: &[Value],
    required: &[RequiredNode],
    proc_devices: &str,
    on_host: &[(&str, u32, u32)],
) -> (Vec<Value>, Option<RequiredNode>) {
    let mut edits = Edits {
        device_nodes: nodes.to_vec(),
        ..Edits::default()
    };
    let majors = Majors::parse(proc_devices);
    let missing = complete(&mut edits, required, &majors, |name| {
        let &(_, major, minor) = on_host.iter().find(|(one, ..)| *one == name)?;
        Some(DeviceNumber { major, minor })
    });
    (edits.device_nodes, missing)
}

#[test]
fn numbers_device_nodes_by_loaded_driver_parts() {
    let number = |major, minor| Some(DeviceNumber { major, minor });
    for (name, loaded, without_uvm) in [
        ("nvidia3", number(195, 3), number(195, 3)),
        ("nvidiactl", number(195, 255), number(195, 255)),
        ("nvidia-modeset", number(195, 254), number(195, 254)),
        ("nvidia-uvm", number(508, 0), None),
        ("nvidia-uvm-tools", number(508, 1), None),
        ("nvidia-caps/nvidia-cap12", number(236, 12), number(236, 12)),
        ("nvidia-fs0", None, None),
        ("nvidia-nvswitch0", None, None),
        ("dri/card0", None, None),
    ] {
        assert_eq!(Majors::parse(LOADED).number(name), loaded, "{name}");
        let majors = Majors::parse(WITHOUT_UVM);
        assert_eq!(majors.number(name), without_uvm, "{name}");
    }
    assert_eq!(Majors::parse(""), Majors::default());
}

#[test]
fn adds_required_nodes_that_spec_and_host_lack() {
    let required = required_of(&["nvidia3", "nvidiactl", "nvidia-uvm"]);
    let all = [
        node("nvidia3", 195, 3),
        node("nvidiactl", 195, 255),
        node("nvidia-uvm", 508, 0),
        node("nvidia-uvm-tools", 508, 1),
    ];
    let found = completed(&[], &required, LOADED, &NOTHING);
    assert_eq!(found, (all.to_vec(), None));
    // By a list that has not all of them, the nodes of the host.
    let on_host = [("nvidia-uvm", 510, 0)];
    let found = completed(&[], &required, WITHOUT_UVM, &on_host);
    let expected = [all[0].clone(), all[1].clone(), node("nvidia-uvm", 510, 0)];
    assert_eq!(found, (expected.to_vec(), None));
}

#[test]
fn corrects_numbers_of_nodes_in_older_spec() {
    // As NVIDIA's toolkit writes them: with numbers of the last boot, and without a type.
    let spec = [
        json!({"path": "/dev/nvidia-uvm", "major": 511, "fileMode": 438, "permissions": "rwm"}),
        json!({"path": "/dev/nvidia0", "hostPath": "/run/nvidia/driver/dev/nvidia0"}),
        json!({"path": "/dev/dri/card1"}),
        json!({"path": "/dev/nvidia-fs0"}),
    ];
    let expected = [
        json!({"path": "/dev/nvidia-uvm", "type": "c", "major": 508, "minor": 0, "fileMode": 438,
               "permissions": "rwm"}),
        json!({"path": "/dev/nvidia0", "hostPath": "/run/nvidia/driver/dev/nvidia0", "type": "c",
               "major": 195, "minor": 0}),
        spec[2].clone(),
        spec[3].clone(),
        node("nvidia-uvm-tools", 508, 1),
    ];
    let required = required_of(&["nvidia0", "nvidia-uvm"]);
    let found = completed(&spec, &required, LOADED, &NOTHING);
    assert_eq!(found, (expected.to_vec(), None));
}

#[test]
fn names_required_node_without_known_numbers() {
    let folder = tempfile::tempdir().expect("tempdir");
    let proc_devices = folder.path().join("devices");
    fs::write(&proc_devices, WITHOUT_UVM).expect("written");
    let nodes = DeviceNodes {
        here: folder.path().to_owned(),
        host: Some("/run/nvidia/driver/dev".into()),
    };
    let named = |name: &str| json!({"path": format!("/dev/{name}")});
    let check = |of_spec: &[&str], required: &[RequiredNode], list: &Path, expected: &str| {
        let mut edits = Edits {
            device_nodes: of_spec.iter().map(|name| named(name)).collect(),
            ..Edits::default()
        };
        let found = nodes.complete(&mut edits, required, list);
        let text = found.map_or_else(|missing| missing.to_string(), |()| String::new());
        assert_eq!(text, expected);
    };
    let uvm = required_of(&["nvidia-uvm"]);
    let text = format!(
        "/dev/nvidia-uvm: {} does not list nvidia-uvm, and /run/nvidia/driver/dev/nvidia-uvm does not exist on the host; expected `nvidia-modprobe -u -c0` on the node",
        proc_devices.display()
    );
    check(&[], &uvm, &proc_devices, &text);
    check(&["nvidia-uvm"], &uvm, &proc_devices, &text);
    check(&[], &[], &proc_devices, "");
    // Windows' Linux has one node for all.
    check(&["dxg"], &uvm, &proc_devices, "");
    let nowhere = Path::new("/nonexistent");
    let text = "/dev/nvidia0: /nonexistent does not list nvidia, and /run/nvidia/driver/dev/nvidia0 does not exist on the host; expected `nvidia-smi` on the node";
    check(&[], &required_of(&["nvidia0"]), nowhere, text);
    let unlisted = [RequiredNode::Unlisted("/caps/gi1/access".into())];
    let text = "the capability node of its MIG instance: /caps/gi1/access has no DeviceFileMinor; expected `nvidia-smi` on the node";
    check(&[], &unlisted, &proc_devices, text);
}

#[test]
fn requires_gpu_instance_and_common_nodes() {
    let capabilities = tempfile::tempdir().expect("tempdir");
    let folder = capabilities.path().join("gpu3/mig/gi1");
    fs::create_dir_all(&folder).expect("made");
    fs::write(folder.join("access"), "DeviceFileMinor: 12\n").expect("written");
    let (gpu, instance) = (host_device(3, None), host_device(3, Some("MIG-a")));
    let unknown = HostDevice {
        minor: None,
        ..gpu.clone()
    };
    let found = |device: HostDevice| required(&[device], capabilities.path());
    let common = required_of(&["nvidiactl", "nvidia-uvm"]);
    let with = |own: Vec<RequiredNode>| [own, common.clone()].concat();
    assert_eq!(found(gpu), with(required_of(&["nvidia3"])));
    assert_eq!(found(unknown), common);
    let mut own = required_of(&["nvidia3", "nvidia-caps/nvidia-cap12"]);
    own.push(RequiredNode::Unlisted(folder.join("ci0/access")));
    assert_eq!(found(instance), with(own));
}

/// A link is not what a container runtime makes a node of.
#[test]
fn reads_numbers_of_existing_character_devices_only() {
    let folder = tempfile::tempdir().expect("tempdir");
    fs::write(folder.path().join("nvidia0"), "").expect("written");
    symlink("/dev/null", folder.path().join("nvidia1")).expect("linked");
    let nodes = DeviceNodes::at(folder.path());
    for name in ["nvidia0", "nvidia1", "nvidia2"] {
        assert_eq!(nodes.number(name), None, "{name}");
    }
    let found = DeviceNodes::at(Path::new(DEV)).number("null");
    assert_eq!(found, Some(DeviceNumber { major: 1, minor: 3 }));
}

#[test]
fn uses_host_nodes_when_driver_root_has_none() {
    let place = tempfile::tempdir().expect("tempdir");
    fs::create_dir(place.path().join("dev")).expect("made");
    let root = DriverRoot {
        here: place.path().to_owned(),
        host: "/run/nvidia/driver".into(),
    };
    assert_eq!(DeviceNodes::new(Some(&root)), DeviceNodes::host());
    assert_eq!(DeviceNodes::new(None), DeviceNodes::host());
    fs::write(place.path().join("dev/nvidiactl"), "").expect("written");
    let check = |host: &str, expected: Option<&str>| {
        let root = DriverRoot {
            host: host.into(),
            ..root.clone()
        };
        let found = DeviceNodes::new(Some(&root));
        assert_eq!(found.here, place.path().join("dev"));
        assert_eq!(found.host.as_deref(), expected.map(Path::new));
    };
    check("/run/nvidia/driver", Some("/run/nvidia/driver/dev"));
    // The host's own root: its nodes are where a container has them.
    check("/", None);
}

/// An instance that NVIDIA's spec names, and one that it does not.
#[test]
fn mig_2_gives_instance_only_its_own_capability_nodes() {
    let capabilities = tempfile::tempdir().expect("tempdir");
    for (name, number) in [("gi1", 12), ("gi1/ci0", 13), ("gi2", 21)] {
        let folder = capabilities.path().join("gpu3/mig").join(name);
        fs::create_dir_all(&folder).expect("made");
        let text = format!("DeviceFileMinor: {number}\nDeviceFileMode: 292\n");
        fs::write(folder.join("access"), text).expect("written");
    }
    let nodes = ["nvidia3", "nvidia-caps/nvidia-cap12"];
    let nodes = nodes.map(|name| json!({"path": format!("/dev/{name}")}));
    let spec: Spec = serde_json::from_value(json!({
        "cdiVersion": "0.6.0", "kind": "nvidia.com/gpu",
        "containerEdits": {"deviceNodes": [{"path": "/dev/nvidiactl"}]},
        "devices": [{"name": "MIG-a", "containerEdits": {"deviceNodes": nodes}}],
    }))
    .expect("a spec");
    for uuid in ["MIG-a", "MIG-b"] {
        let device = host_device(3, Some(uuid));
        let mut edits = spec.driver(slice::from_ref(&device)).edits;
        let required = required(slice::from_ref(&device), capabilities.path());
        let missing = complete(&mut edits, &required, &Majors::parse(LOADED), |_| None);
        assert_eq!(missing, None);
        let paths = edits.device_nodes.iter().map(|node| &node["path"]);
        let mut paths: Vec<&str> = paths.filter_map(Value::as_str).collect();
        paths.sort_unstable();
        let expected = [
            "/dev/nvidia-caps/nvidia-cap12",
            "/dev/nvidia-caps/nvidia-cap13",
            "/dev/nvidia-uvm",
            "/dev/nvidia-uvm-tools",
            "/dev/nvidia3",
            "/dev/nvidiactl",
        ];
        assert_eq!(paths, expected, "{uuid}");
    }
}
