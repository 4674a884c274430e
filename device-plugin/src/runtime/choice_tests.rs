//! A table of nodes on which nobody said how GPUs are handed over.

use super::super::Kind;
use super::super::config::read;
use super::*;

const PLUGIN: &str = "[plugins.'io.containerd.cri.v1.runtime']\n";
/// As NVIDIA's toolkit writes it.
const NVIDIA: &str = "[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.nvidia.options]\nBinaryName = '/usr/local/nvidia/toolkit/nvidia-container-runtime'\n";
const USUALLY: &str =
    "[plugins.'io.containerd.cri.v1.runtime'.containerd]\ndefault_runtime_name = 'nvidia'\n";

fn written(kind: Kind, text: &str) -> Config {
    let room = tempfile::tempdir().expect("tempdir");
    let path = room.path().join("config.toml");
    fs::write(&path, text).expect("written");
    read(kind, Some(&path)).expect("read")
}

/// On a node with NVIDIA's runtime in a folder of its own, and this configuration beside it.
fn on_node(config: &Config, class: &Class, toolkit: Option<&str>) -> Option<Toolkit> {
    let node = tempfile::tempdir().expect("tempdir");
    let folder = node.path().join("usr/local/nvidia/toolkit");
    let beside = folder.join(".config/nvidia-container-runtime");
    fs::create_dir_all(&beside).expect("made");
    fs::write(folder.join("nvidia-container-runtime"), "").expect("written");
    if let Some(text) = toolkit {
        fs::write(beside.join("config.toml"), text).expect("written");
    }
    toolkit_below(&[Path::new("/nowhere"), node.path()], config, class)
}

fn check(
    version: &str,
    text: &str,
    class: &Class,
    toolkit: Option<&str>,
    expected: Option<DeviceList>,
) {
    let config = written(Kind::Containerd, text);
    let toolkit = on_node(&config, class, toolkit);
    let known = Known {
        version,
        config: &Ok(config),
        cdi: Path::new("/var/run/cdi"),
        directories: &[],
        devices: None,
        cards: &[],
        class,
        handed: DeviceList::Cdi,
        chosen: true,
        rooted: false,
    };
    assert_eq!(choose(&known, toolkit), expected, "{version} {text}");
}

#[test]
fn a_way_without_cdi_is_chosen_only_where_nvidias_runtime_takes_it() {
    let off = format!("{PLUGIN}enable_cdi = false\n{USUALLY}{NVIDIA}");
    let old = "containerd://1.6.20";
    let new = "containerd://2.1.0";
    let none = Class::Usual;
    check(new, &off, &none, None, Some(DeviceList::Envvar));
    check(old, &off, &none, Some(""), Some(DeviceList::Envvar));
    let mounts = format!("{MOUNTS} = true\n");
    check(
        new,
        &off,
        &none,
        Some(&mounts),
        Some(DeviceList::VolumeMounts),
    );
    let neither = format!("{ENVIRONMENT} = false\n");
    check(new, &off, &none, Some(&neither), Some(DeviceList::Cdi));
    // What cannot be read is not guessed.
    check(new, &off, &none, Some("["), Some(DeviceList::Cdi));
    // CDI is the better way wherever it is not known to be off.
    let on = format!("{PLUGIN}{USUALLY}{NVIDIA}");
    check(new, &on, &none, None, Some(DeviceList::Cdi));
    check("docker://27.1", &off, &none, None, Some(DeviceList::Cdi));
}

#[test]
fn a_way_without_cdi_holds_until_the_agent_starts_again_and_the_lack_of_cdi_is_told() {
    let old = "containerd://1.6.20";
    let (accepts, none) = (accepts(&DocumentMut::new()), None);
    let looked = |version, chosen, handed, before, toolkit| {
        let known = Known {
            version,
            config: &Ok(Config::default()),
            cdi: Path::new("/var/run/cdi"),
            directories: &[],
            devices: None,
            cards: &[],
            class: &Class::Usual,
            handed,
            chosen,
            rooted: false,
        };
        look(&known, before, toolkit)
    };
    let (auto, env, cdi) = (DeviceList::Auto, DeviceList::Envvar, DeviceList::Cdi);
    let said = |looked: &Looked| {
        let reasons = looked.lacks.iter().map(|fault| fault.reason);
        (
            looked.handed,
            looked.without_cdi.is_some(),
            reasons.collect::<Vec<_>>(),
        )
    };
    let check = |looked: Looked, expected: (DeviceList, bool, &[&str])| {
        let (handed, off, reasons) = said(&looked);
        let found = (handed.unwrap(), off, &*reasons);
        assert_eq!(found, expected, "{looked:?}");
    };
    // Nothing gives containers their GPUs, until NVIDIA's runtime is there.
    let waits = looked(old, true, auto, None, none);
    check(waits, (cdi, true, &["CdiOff"]));
    let found = looked(old, true, auto, Some(cdi), Some(accepts));
    check(found, (env, true, &["WithoutCdi"]));
    // It stays, with CDI and without NVIDIA's runtime, and who was told of CDI waits for CDI.
    let new = "containerd://2.1.0";
    let stays = looked(new, true, auto, Some(env), none);
    check(stays, (env, false, &["WithoutCdi"]));
    check(looked(new, true, auto, None, none), (cdi, false, &[]));
    // What was asked for is not chosen.
    check(looked(old, false, env, None, none), (env, true, &[]));
    check(
        looked(old, false, cdi, None, Some(accepts)),
        (cdi, true, &["CdiOff"]),
    );
}

#[test]
fn who_starts_the_containers_is_the_runtime_of_their_class() {
    let beside = format!("{PLUGIN}enable_cdi = false\n{NVIDIA}");
    let there = |handler: &str| Class::There("gpu".to_owned(), handler.to_owned());
    let new = "containerd://2.1.0";
    let cases = [
        (Class::Usual, Some(DeviceList::Cdi)),
        (there("runc"), Some(DeviceList::Cdi)),
        (there("nvidia"), Some(DeviceList::Envvar)),
        (Class::Missing("gpu".to_owned()), Some(DeviceList::Cdi)),
        // The API server did not say: nothing is chosen for good.
        (Class::Unknown, None),
    ];
    for (class, expected) in cases {
        check(new, &beside, &class, None, expected);
    }
    // A runtime that is not on this node starts nothing.
    let elsewhere = beside.replace("/usr/local/nvidia", "/opt/nvidia");
    check(
        new,
        &elsewhere,
        &there("nvidia"),
        None,
        Some(DeviceList::Cdi),
    );
}

#[test]
fn cri_o_names_its_runtimes_and_their_programs_too() {
    let text = "[crio.runtime]\ndefault_runtime = 'nvidia'\n[crio.runtime.runtimes.nvidia]\nruntime_path = '/usr/local/nvidia/toolkit/nvidia-container-runtime'\n";
    let config = written(Kind::Crio, text);
    let found = on_node(&config, &Class::Usual, None).expect("NVIDIA's starts them");
    assert!(found.environment && !found.mounts, "{found:?}");
}
