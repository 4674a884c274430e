//! A table of nodes with NVIDIA's runtime.

use super::super::RuntimeKind;
use super::super::config::read;
use super::*;

const PLUGIN: &str = "[plugins.'io.containerd.cri.v1.runtime']\n";
/// As NVIDIA's toolkit writes it.
const NVIDIA: &str = "[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.nvidia.options]\nBinaryName = '/usr/local/nvidia/toolkit/nvidia-container-runtime'\n";
const USUALLY: &str =
    "[plugins.'io.containerd.cri.v1.runtime'.containerd]\ndefault_runtime_name = 'nvidia'\n";

fn written(kind: RuntimeKind, text: &str) -> RuntimeConfig {
    let dir = tempfile::tempdir().expect("tempdir");
    let path = dir.path().join("config.toml");
    fs::write(&path, text).expect("written");
    read(kind, None, Some(&path)).expect("read")
}

/// On a node with NVIDIA's runtime in a directory of its own and this configuration beside it.
fn on_node(config: &RuntimeConfig, handler: &Handler, toolkit: Option<&str>) -> Option<bool> {
    let node = tempfile::tempdir().expect("tempdir");
    let directory = node.path().join("usr/local/nvidia/toolkit");
    let beside = directory.join(".config/nvidia-container-runtime");
    fs::create_dir_all(&beside).expect("made");
    fs::write(directory.join("nvidia-container-runtime"), "").expect("written");
    if let Some(text) = toolkit {
        fs::write(beside.join("config.toml"), text).expect("written");
    }
    reads_environment(&[Path::new("/nowhere"), node.path()], config, handler)
}

fn check(text: &str, handler: &Handler, toolkit: Option<&str>, expected: Option<bool>) {
    let config = written(RuntimeKind::Containerd, text);
    let found = on_node(&config, handler, toolkit);
    assert_eq!(found, expected, "{text} {toolkit:?}");
}

#[test]
fn nvidia_runtime_injects_driver_if_it_reads_the_environment() {
    let usual = format!("{PLUGIN}{USUALLY}{NVIDIA}");
    let none = Handler::Default;
    check(&usual, &none, None, Some(true));
    check(&usual, &none, Some(""), Some(true));
    let neither = format!("{ENVIRONMENT} = false\n");
    check(&usual, &none, Some(&neither), Some(false));
    // What cannot be read is not guessed.
    check(&usual, &none, Some("["), None);
}

#[test]
fn uses_runtime_of_the_runtime_class() {
    let beside = format!("{PLUGIN}enable_cdi = false\n{NVIDIA}");
    let named = |handler: &str| Handler::Named(handler.to_owned());
    for (handler, expected) in [
        (Handler::Default, None),
        (named("runc"), None),
        (named("nvidia"), Some(true)),
        (Handler::Unknown, None),
    ] {
        check(&beside, &handler, None, expected);
    }
    // A runtime that is not installed on this node starts nothing.
    let elsewhere = beside.replace("/usr/local/nvidia", "/opt/nvidia");
    check(&elsewhere, &named("nvidia"), None, None);
}

#[test]
fn reads_cri_o_runtime_programs() {
    let text = "[crio.runtime]\ndefault_runtime = 'nvidia'\n[crio.runtime.runtimes.nvidia]\nruntime_path = '/usr/local/nvidia/toolkit/nvidia-container-runtime'\n";
    let config = written(RuntimeKind::Crio, text);
    let found = on_node(&config, &Handler::Default, None);
    assert_eq!(found, Some(true), "NVIDIA's starts them");
}
