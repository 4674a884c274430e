//! A table of nodes, and of configurations as runtimes have them.

use std::path::Path;

use super::config::read;
use super::*;

const SECTION_3: &str = "version = 3\n[plugins.'io.containerd.cri.v1.runtime']\n";
const SECTION_2: &str = "version = 2\n[plugins.\"io.containerd.grpc.v1.cri\"]\n";

fn check(
    version: &str,
    config: &Result<ContainerdConfig, String>,
    missing_spec: Option<&str>,
    expected: &[(&str, bool, &str)],
) {
    let missing_spec = missing_spec.map(str::to_owned);
    let status = status(version, |_| config.clone(), missing_spec);
    let off = expected.iter().any(|one| one.0 == "CdiOff");
    assert_eq!(status.without_cdi.is_some(), off, "{version}");
    let found = status.problems;
    let actual: Vec<_> = found.iter().map(|f| (f.reason, f.blocks)).collect();
    let wanted: Vec<_> = expected.iter().map(|e| (e.0, e.1)).collect();
    assert_eq!(actual, wanted, "{version} {found:?}");
    for (problem, (.., part)) in found.iter().zip(expected) {
        let text = &problem.text;
        assert!(text.contains(part), "{part:?} not in {text:?}");
    }
    assert_eq!(condition(&found).holds, !expected.is_empty());
}

fn written(text: &str) -> Result<ContainerdConfig, String> {
    let dir = tempfile::tempdir().expect("tempdir");
    let path = dir.path().join("config.toml");
    std::fs::write(&path, text).expect("written");
    read(None, Some(&path))
}

#[test]
fn mig_14_reports_runtime_without_cdi_and_remedy() {
    let none = Ok(ContainerdConfig::default());
    let unread = Err("it does not exist".to_owned());
    let of = |section: &str, line: &str| written(&format!("{section}{line}\n"));
    let (default_2, default_3) = (of(SECTION_2, ""), of(SECTION_3, ""));
    let on = of(SECTION_2, "enable_cdi = true");
    let off = of(SECTION_3, "enable_cdi = false");
    let is_off = |why| Some(("CdiOff", true, why));
    let unknown = |why| Some(("CdiUnknown", false, why));
    for (version, config, expected) in [
        ("containerd://2.4.2", &none, None),
        ("containerd://2.4.2", &unread, None),
        ("containerd://2.4.2-rc.1", &default_3, None),
        ("containerd://2.1.0", &off, is_off("enable_cdi = true")),
        (
            "containerd://1.6.20",
            &none,
            is_off("1.6.20 does not support CDI"),
        ),
        (
            "containerd://1.7.24",
            &default_2,
            is_off("enable_cdi = true"),
        ),
        ("containerd://1.7.24", &on, None),
        (
            "containerd://1.7.24",
            &unread,
            unknown("cannot be read: it does not exist"),
        ),
        // It supported CDI only by annotations, which nobody writes.
        ("cri-o://1.27.8", &none, is_off("1.28")),
        ("cri-o://1.28.0", &none, None),
        ("docker://27.1", &unread, unknown("containerd 1.7 or newer")),
    ] {
        check(version, config, None, expected.as_slice());
    }
}

/// Writes below a node's root.
fn put(node: &Path, path: &str, text: &str) {
    let path = super::config::below(node, Path::new(path));
    std::fs::create_dir_all(path.parent().expect("a directory")).expect("made");
    std::fs::write(path, text).expect("written");
}

#[test]
fn reads_host_configuration_when_none_is_mounted() {
    let dir = tempfile::tempdir().expect("tempdir");
    let (own, host) = (dir.path().join("own"), dir.path().join("host"));
    let read = || super::config::read_below(&[own.as_path(), host.as_path()], None, None);
    let missing = read().expect_err("nothing is there");
    for part in ["none of", "/etc/cri/containerd.toml", "exists"] {
        assert!(missing.contains(part), "{missing}");
    }
    let text = "version = 2\nimports = [\"/etc/containerd/conf.d/*.toml\"]\n";
    put(&host, "/etc/containerd/config.toml", text);
    assert_eq!(read().expect("read").cdi, None);
    let text = format!("{SECTION_2}enable_cdi = false\n");
    put(&host, "/etc/containerd/conf.d/cdi.toml", &text);
    let imported = read().expect("imported");
    assert_eq!(imported.cdi, Some(false));
    assert_eq!(imported.file, Path::new("/etc/containerd/config.toml"));
}

/// Each beside a file of a containerd that Kubernetes does not use.
#[test]
fn reads_containerd_configuration_of_each_distribution() {
    let imports = "version = 3\nimports = [\"IMPORT\"]\n";
    for (file, import, part) in [
        (
            "/var/lib/rancher/k3s/agent/etc/containerd/config.toml",
            "/var/lib/rancher/k3s/agent/etc/containerd/config-v3.toml.d/*.toml",
            "/var/lib/rancher/k3s/agent/etc/containerd/config-v3.toml.d/nvidia.toml",
        ),
        (
            "/var/lib/rancher/rke2/agent/etc/containerd/config.toml",
            "config-v3.toml.d/*.toml",
            "/var/lib/rancher/rke2/agent/etc/containerd/config-v3.toml.d/nvidia.toml",
        ),
        (
            "/etc/k0s/containerd.toml",
            "/etc/k0s/containerd.d/*.toml",
            "/etc/k0s/containerd.d/nvidia.toml",
        ),
        (
            "/etc/cri/containerd.toml",
            "/etc/cri/conf.d/cri.toml",
            "/etc/cri/conf.d/cri.toml",
        ),
    ] {
        let node = tempfile::tempdir().expect("tempdir");
        let other = "disabled_plugins = [\"io.containerd.grpc.v1.cri\"]\n";
        put(node.path(), "/etc/containerd/config.toml", other);
        put(node.path(), file, &imports.replace("IMPORT", import));
        let text = format!("{SECTION_3}enable_cdi = true\n");
        put(node.path(), part, &text);
        let read = |path| super::config::read_below(&[node.path()], Some((2, 2)), path);
        let found = read(None).expect("read");
        assert_eq!(found.file, Path::new(file));
        assert_eq!(found.cdi, Some(true), "{file}");
        // The administrator's file is used instead.
        let path = "/etc/containerd/config.toml";
        let chosen = read(Some(Path::new(path))).expect("read");
        assert_eq!(chosen.file, Path::new(path));
        assert_eq!(chosen.cdi, None);
    }
}

/// containerd 1.7 replaces a plugin's section by that of an imported file; 2.0 merges them.
#[test]
fn merges_imported_sections_as_containerd_does() {
    let node = tempfile::tempdir().expect("tempdir");
    let main = "imports = [\"/a.toml\", \"/b.toml\"]\n";
    let plugin = "[plugins.'io.containerd.grpc.v1.cri']\n";
    let text = format!("{main}{plugin}enable_cdi = true\n");
    put(node.path(), "/etc/containerd/config.toml", &text);
    // It imports itself, and a file that is read after b.toml.
    let text = "imports = [\"/last.toml\", \"/a.toml\"]\n";
    put(node.path(), "/a.toml", text);
    put(
        node.path(),
        "/b.toml",
        &format!("{plugin}enable_cdi = false\n"),
    );
    put(node.path(), "/last.toml", plugin);
    for (version, cdi) in [((1, 7), None), ((2, 0), Some(false))] {
        let found = super::config::read_below(&[node.path()], Some(version), None).expect("read");
        assert_eq!(found.cdi, cdi, "{version:?}");
    }
}

#[test]
fn mig_14_reports_missing_driver_spec() {
    let config = Ok(ContainerdConfig::default());
    let why = "so no container with a share starts: nvidia-ctk did not end";
    let missing = [("DriverSpecMissing", true, why)];
    let (version, spec) = ("containerd://2.4.2", Some("nvidia-ctk did not end"));
    check(version, &config, None, &[]);
    check(version, &config, spec, &missing);
}

#[test]
fn names_configuration_that_cannot_be_read() {
    let error = written("[").expect_err("no TOML");
    assert!(error.contains("config.toml"), "{error}");
}
