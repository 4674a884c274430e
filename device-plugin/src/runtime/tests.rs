//! A table of nodes, and of configurations as runtimes have them.

use std::path::Path;

use super::config::read;
use super::*;

const SECTION_3: &str = "version = 3\n[plugins.'io.containerd.cri.v1.runtime']\n";
const SECTION_2: &str = "version = 2\n[plugins.\"io.containerd.grpc.v1.cri\"]\n";

fn check(
    version: &str,
    config: &Result<RuntimeConfig, String>,
    driver: &DriverSources,
    expected: &[(&str, bool, &str)],
) {
    let status = status(&RuntimeFacts {
        version,
        config,
        driver,
    });
    assert_eq!(status.injects_driver, driver.injected);
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
    let [status, ..] = condition(&found);
    assert_eq!(status == "True", !expected.is_empty());
}

fn written(kind: RuntimeKind, text: &str) -> Result<RuntimeConfig, String> {
    let dir = tempfile::tempdir().expect("tempdir");
    let path = dir.path().join("config.toml");
    std::fs::write(&path, text).expect("written");
    read(kind, None, Some(&path))
}

#[test]
fn mig_14_reports_runtime_without_cdi_and_remedy() {
    let none = Ok(RuntimeConfig::default());
    let unread = Err("it does not exist".to_owned());
    let of = |section: &str, line: &str| {
        let text = format!("{section}{line}\n");
        written(RuntimeKind::Containerd, &text)
    };
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
        let driver = DriverSources::default();
        check(version, config, &driver, expected.as_slice());
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
    let roots = [own.as_path(), host.as_path()];
    let of = |kind| super::config::read_below(&roots, kind, None, None);
    let missing = of(RuntimeKind::Containerd).expect_err("nothing is there");
    for part in ["none of", "/etc/cri/containerd.toml", "exists"] {
        assert!(missing.contains(part), "{missing}");
    }
    let text = "version = 2\nimports = [\"/etc/containerd/conf.d/*.toml\"]\n";
    put(&host, "/etc/containerd/config.toml", text);
    assert_eq!(of(RuntimeKind::Containerd).expect("read").cdi, None);
    let text = format!("{SECTION_2}enable_cdi = false\n");
    put(&host, "/etc/containerd/conf.d/cdi.toml", &text);
    let imported = of(RuntimeKind::Containerd).expect("imported");
    assert_eq!(imported.cdi, Some(false));
    assert_eq!(imported.file, Path::new("/etc/containerd/config.toml"));
    let text = "[crio.runtime]\ndefault_runtime = 'nvidia'\n";
    put(&host, "/etc/crio/crio.conf.d/10-nvidia.conf", text);
    let found = of(RuntimeKind::Crio).expect("CRI-O's");
    assert_eq!(found.default_handler.as_deref(), Some("nvidia"));
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
        let read = |path| {
            let roots = [node.path()];
            super::config::read_below(&roots, RuntimeKind::Containerd, Some((2, 2)), path)
        };
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
    let runtime = "[plugins.'io.containerd.grpc.v1.cri'.containerd]\ndefault_runtime_name = ";
    put(node.path(), "/b.toml", &format!("{runtime}'b'\n"));
    put(node.path(), "/last.toml", &format!("{runtime}'last'\n"));
    for (version, cdi) in [((1, 7), None), ((2, 0), Some(true))] {
        let roots = [node.path()];
        let kind = RuntimeKind::Containerd;
        let found = super::config::read_below(&roots, kind, Some(version), None).expect("read");
        assert_eq!(found.cdi, cdi, "{version:?}");
        assert_eq!(found.default_handler.as_deref(), Some("last"));
    }
}

#[test]
fn mig_14_reports_missing_driver_spec() {
    let config = Ok(RuntimeConfig::default());
    let nowhere = "so no container with a share starts: nvidia-ctk did not end";
    let by_runtime = "so containers get the driver from NVIDIA's container runtime only";
    for (missing, injected, expected) in [
        (false, false, None),
        (false, true, None),
        (true, false, Some((true, nowhere))),
        (true, true, Some((false, by_runtime))),
    ] {
        let missing = missing.then(|| "nvidia-ctk did not end".to_owned());
        let driver = DriverSources { missing, injected };
        let expected = expected.map(|(blocks, words)| ("DriverSpecMissing", blocks, words));
        check("containerd://2.4.2", &config, &driver, expected.as_slice());
    }
}

#[test]
fn reads_configuration_with_imports() {
    let dir = tempfile::tempdir().expect("tempdir");
    let at = |name: &str| dir.path().join(name);
    let section = "[plugins.'io.containerd.cri.v1.runtime'";
    let own =
        format!("imports = [\n  \"conf.d/*.toml\", # ours\n]\n{section}]\nenable_cdi = false\n");
    put(dir.path(), "/config.toml", &own);
    put(dir.path(), "/conf.d/README", "not this");
    let nvidia = format!(
        "{section}]\nenable_cdi = true\n{section}.containerd]\ndefault_runtime_name = 'nvidia'\n{section}.containerd.runtimes.nvidia]\nruntime_path = '/a'\n"
    );
    put(dir.path(), "/conf.d/99-nvidia.toml", &nvidia);
    let expected = RuntimeConfig {
        file: at("config.toml"),
        cdi: Some(true),
        default_handler: Some("nvidia".to_owned()),
        programs: [("nvidia".to_owned(), "/a".into())].into(),
    };
    let read = |kind, name: &str| read(kind, None, Some(&at(name)));
    assert_eq!(read(RuntimeKind::Containerd, "config.toml"), Ok(expected));
    let text = "[crio.runtime]\nenable_cdi = true\n";
    put(dir.path(), "/crio.conf", text);
    let found = read(RuntimeKind::Crio, "crio.conf").expect("read");
    assert_eq!(found.cdi, Some(true));
    put(dir.path(), "/broken.toml", "[");
    for name in ["broken.toml", "none"] {
        let error = read(RuntimeKind::Containerd, name).expect_err("fails");
        assert!(error.contains(name), "{error}");
    }
    assert!(read(RuntimeKind::Crio, "none").is_err());
}
