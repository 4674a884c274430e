//! How devices get into a container.

use serde_json::json;

use super::*;
use crate::testing::host_device;

const NOWHERE: &str = "/nonexistent";

/// As [`super::driver`], with device nodes in a folder of the test's.
fn driver(specs: &[NvidiaSpec], dev: &Path, capabilities: &Path, devices: &[HostDevice]) -> Driver {
    from(specs, &DeviceNodes::at(dev), capabilities, devices)
}

/// The usable specs in these folders, the first of which has the generated one.
fn usable(folders: &[&Path]) -> Vec<NvidiaSpec> {
    super::specs(&folders_of(folders)).usable
}

fn folders_of(folders: &[&Path]) -> SpecFolders {
    SpecFolders {
        generated: folders[0].to_owned(),
        directories: folders[1..].iter().map(|&path| path.to_owned()).collect(),
        host_root: "/".into(),
    }
}

/// Writes a spec of this kind whose devices of these names have a node that is named after the
/// folder.
fn put(folder: &Path, kind: &str, names: &[&str]) {
    let node = format!("/dev/{}", folder.file_name().expect("a name").display());
    let devices = names
        .iter()
        .map(|name| json!({"name": name, "containerEdits": {"deviceNodes": [{"path": node}]}}));
    let spec = json!({"cdiVersion": "0.5.0", "kind": kind, "devices": devices.collect::<Vec<_>>()});
    fs::create_dir_all(folder).expect("made");
    let file = folder.join(format!("{}.json", kind.replace('/', "-")));
    fs::write(file, spec.to_string()).expect("written");
}

fn device(minor: u32) -> HostDevice {
    host_device(minor, None)
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
        let specs = usable(&[NOWHERE.as_ref(), dir.path()]);
        let found = driver(&specs, dir.path(), NOWHERE.as_ref(), &[device(0)]);
        assert_eq!(paths(&found), ["/dev/from-spec"], "{file}");
    }
}

#[test]
fn gives_existing_device_nodes_without_spec() {
    let dev = tempfile::tempdir().expect("tempdir");
    for node in ["nvidia3", "nvidia4", "nvidiactl"] {
        fs::write(dev.path().join(node), "").expect("written");
    }
    let found = driver(&[], dev.path(), NOWHERE.as_ref(), &[device(3)]);
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
    let instance = |uuid: &str| host_device(3, Some(uuid));
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
    let specs = usable(&[&specs]);
    let known = driver(&specs, &dev, &proc, &[instance("MIG-a")]);
    assert_eq!(paths(&known), ["/dev/common", "/dev/spec"]);
    let newer = driver(&specs, &dev, &proc, &[instance("MIG-b")]);
    let all = [&["/dev/common"], &own[..], &["/dev/nvidiactl"]].concat();
    assert_eq!(paths(&newer), all);
}

#[test]
fn prefers_generated_spec_then_kind_then_later_folder() {
    let dir = tempfile::tempdir().expect("tempdir");
    let [own, etc, run] = ["generated", "etc", "run"].map(|name| dir.path().join(name));
    let folders = [own.as_path(), &etc, &run];
    let check = |expected: &[&str]| {
        let dev = dir.path().join("dev");
        let found = driver(&usable(&folders), &dev, &own, &[device(0)]);
        assert_eq!(paths(&found), expected);
    };
    check(&[]);
    let [toolkit, plugin, management] = NVIDIA_KINDS;
    put(&run, plugin, &["GPU-a"]);
    check(&["/dev/run"]);
    put(&etc, toolkit, &["0"]);
    check(&["/dev/etc"]);
    put(&run, toolkit, &["GPU-a"]);
    check(&["/dev/run"]);
    // A later folder without the GPU leaves it to an earlier one.
    put(&run, toolkit, &["GPU-b"]);
    check(&["/dev/etc"]);
    put(&own, toolkit, &["GPU-a"]);
    check(&["/dev/generated"]);
    put(&own, toolkit, &["GPU-b"]);
    check(&["/dev/etc"]);
    assert_eq!(usable(&folders).len(), 4);
    put(&own, management, &["all"]);
    put(&own, "nvidia.com/gpu.coherent", &["GPU-a"]);
    assert_eq!(usable(&folders).len(), 5);
}

#[test]
fn takes_common_edits_and_own_nodes_of_management_spec() {
    let dir = tempfile::tempdir().expect("tempdir");
    let (dev, specs) = (dir.path().join("dev"), dir.path().join("cdi"));
    for folder in [&dev, &specs] {
        fs::create_dir(folder).expect("made");
    }
    for node in ["nvidia0", "nvidia3", "nvidiactl", "nvidia-uvm"] {
        fs::write(dev.join(node), "").expect("written");
    }
    let library = dir.path().join("libcuda.so.580.82");
    fs::write(&library, "").expect("written");
    let nodes = ["/dev/nvidia0", "/dev/nvidia3"].map(|path| json!({ "path": path }));
    let spec = json!({
        "cdiVersion": "0.6.0", "kind": "management.nvidia.com/gpu",
        "devices": [{"name": "all", "containerEdits": {"deviceNodes": nodes}}],
        "containerEdits": {"mounts": [{"hostPath": library, "containerPath": "/lib/libcuda.so.580.82"}]},
    });
    fs::write(specs.join("management.json"), spec.to_string()).expect("written");
    let specs = usable(&[NOWHERE.as_ref(), &specs]);
    let found = driver(&specs, &dev, NOWHERE.as_ref(), &[device(3)]);
    assert_eq!(
        paths(&found),
        ["/dev/nvidia3", "/dev/nvidiactl", "/dev/nvidia-uvm"]
    );
    assert!(injection::mounts_driver(&found.edits));
}

#[test]
fn refuses_spec_with_missing_host_path() {
    let dir = tempfile::tempdir().expect("tempdir");
    let (host, specs) = (dir.path().join("host"), dir.path().join("cdi"));
    fs::create_dir_all(host.join("lib")).expect("made");
    fs::create_dir(&specs).expect("made");
    fs::write(host.join("lib/libcuda.so.580"), "").expect("written");
    let put = |file: &str, library: &str, hook: &str| {
        let spec = json!({
            "cdiVersion": "0.6.0", "kind": "nvidia.com/gpu",
            "devices": [{"name": "GPU-a", "containerEdits": {"deviceNodes": [{"path": "/dev/absent"}]}}],
            "containerEdits": {
                "mounts": [{"hostPath": library, "containerPath": "/lib/libcuda.so.580"}],
                "hooks": [{"hookName": "createContainer", "path": hook}],
            },
        });
        fs::write(specs.join(file), spec.to_string()).expect("written");
    };
    put("a.json", "/lib/libcuda.so.580", "/bin/nvidia-cdi-hook");
    put("b.json", "/lib/libcuda.so.570", "/lib/libcuda.so.580");
    put("c.json", "/lib/libcuda.so.580", "/lib/libcuda.so.580");
    let found = super::specs(&SpecFolders {
        host_root: host,
        ..folders_of(&[NOWHERE.as_ref(), &specs])
    });
    let files: Vec<&Path> = found.usable.iter().map(|spec| &*spec.file).collect();
    assert_eq!(files, [specs.join("c.json")]);
    let texts: Vec<String> = found.refused.iter().map(ToString::to_string).collect();
    let specs = specs.display();
    let expected = [
        "a.json names /bin/nvidia-cdi-hook",
        "b.json names /lib/libcuda.so.570",
    ];
    let text = |text| format!("{specs}/{text}, which does not exist on the host");
    assert_eq!(texts, expected.map(text));
}
