//! A table of nodes, and of configurations as runtimes have them.

use super::config::read;
use super::*;

const SECTION_3: &str = "version = 3\n[plugins.'io.containerd.cri.v1.runtime']\n";
const SECTION_2: &str = "version = 2\n[plugins.\"io.containerd.grpc.v1.cri\"]\n";

/// No CDI spec has the driver for GPU-a.
fn without_spec() -> DriverSources {
    DriverSources {
        without: vec!["GPU-a".into()],
        ..DriverSources::default()
    }
}

fn check_all(
    config: &Result<RuntimeConfig, String>,
    driver: &DriverSources,
    class: &RuntimeClassState,
    expected: &[(&str, bool, &str)],
) {
    let facts = facts("containerd://2.4.2", config, driver, class);
    check_facts(&facts, expected);
}

fn facts<'a>(
    version: &'a str,
    config: &'a Result<RuntimeConfig, String>,
    driver: &'a DriverSources,
    class: &'a RuntimeClassState,
) -> RuntimeFacts<'a> {
    RuntimeFacts {
        version,
        config,
        cdi: Path::new("/var/run/cdi"),
        directories: &[],
        driver,
        class,
        device_list: DeviceListStrategy::Cdi,
    }
}

fn check_facts(facts: &RuntimeFacts<'_>, expected: &[(&str, bool, &str)]) {
    let version = facts.version;
    let found = problems(&RuntimeFacts {
        directories: &["/etc/cdi".into(), "/var/run/cdi".into()],
        ..facts.clone()
    });
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
    let elsewhere = of(SECTION_3, "cdi_spec_dirs = [\"/opt/cdi\"]");
    let same = of(SECTION_3, "cdi_spec_dirs = [\"/run/cdi\"]");
    let is_off = |why| Some(("CdiOff", true, why));
    let unknown = |why| Some(("CdiUnknown", false, why));
    let other_folder = "from /opt/cdi, but the agent writes them to /var/run/cdi";
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
        (
            "containerd://2.4.2",
            &elsewhere,
            Some(("CdiDirectory", false, other_folder)),
        ),
        ("containerd://2.4.2", &same, None),
    ] {
        let (driver, class) = (DriverSources::default(), RuntimeClassState::Unknown);
        check_facts(
            &facts(version, config, &driver, &class),
            expected.as_slice(),
        );
    }
}

fn cdi_off() -> Result<RuntimeConfig, String> {
    let text = format!("{SECTION_3}enable_cdi = false\n");
    written(RuntimeKind::Containerd, &text)
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
    let text = "[crio.runtime.runtimes.nvidia]\n";
    put(&host, "/etc/crio/crio.conf.d/10-nvidia.conf", text);
    let handlers = of(RuntimeKind::Crio).expect("CRI-O's").handlers;
    assert!(handlers.contains("nvidia"), "{handlers:?}");
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
        let text = format!("{SECTION_3}cdi_spec_dirs = [\"/run/cdi\"]\n");
        put(node.path(), part, &text);
        let read = |path| {
            let roots = [node.path()];
            super::config::read_below(&roots, RuntimeKind::Containerd, Some((2, 2)), path)
        };
        let found = read(None).expect("read");
        assert_eq!(found.file, Path::new(file));
        let directories = vec![PathBuf::from("/run/cdi")];
        assert_eq!(found.spec_directories, Some(directories), "{file}");
        // The administrator's file is used instead.
        let path = "/etc/containerd/config.toml";
        let chosen = read(Some(Path::new(path))).expect("read");
        assert_eq!(chosen.file, Path::new(path));
        assert_eq!(chosen.spec_directories, None);
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
fn mig_14_reports_missing_toolkit_and_runtime_class() {
    let config = written(
        RuntimeKind::Containerd,
        &format!("{SECTION_3}[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]\n"),
    );
    let (complete, none) = (DriverSources::default(), without_spec());
    let injected = DriverSources {
        injected: true,
        ..none.clone()
    };
    let older = DriverSources {
        has_spec: true,
        ..none.clone()
    };
    let handled = |by: &str| RuntimeClassState::Found("gpu".to_owned(), by.to_owned());
    let unknown = || RuntimeClassState::Unknown;
    let toolkit = |blocks, words| ("ToolkitMissing", blocks, words);
    let class = |words| ("RuntimeClassMissing", false, words);
    let nowhere = "no CDI spec for nvidia.com/gpu found in /etc/cdi, /var/run/cdi, so no container";
    let by_runtime = "so containers get the driver from NVIDIA's container runtime only";
    let outdated = "no CDI spec of NVIDIA's has the driver for GPU-a, so no container";
    for (driver, state, expected) in [
        (&complete, unknown(), vec![]),
        (&none, unknown(), vec![toolkit(true, nowhere)]),
        (&injected, unknown(), vec![toolkit(false, by_runtime)]),
        (&older, unknown(), vec![toolkit(true, outdated)]),
        (&complete, handled("runc"), vec![]),
        (
            &complete,
            handled("nvidia"),
            vec![class("handler nvidia of RuntimeClass gpu")],
        ),
        (
            &none,
            RuntimeClassState::Missing("gpu".to_owned()),
            vec![toolkit(true, "nvidia-ctk"), class("no RuntimeClass gpu")],
        ),
    ] {
        check_all(&config, driver, &state, &expected);
    }
}

#[test]
fn refused_specs_block_only_without_another_spec() {
    let missing = SpecRefusal::MissingPath {
        file: "/etc/cdi/nvidia.yaml".into(),
        path: "/usr/lib64/libcuda.so.570".into(),
    };
    let moved = SpecRefusal::OtherMinor {
        file: "/etc/cdi/old.yaml".into(),
        index: 0,
        node: "/dev/nvidia0".to_owned(),
        uuid: "GPU-a".into(),
        minor: 3,
    };
    let failed = Arc::new(GenerateError::Timeout {
        program: "/usr/bin/nvidia-ctk".into(),
    });
    let absent = Arc::new(GenerateError::NoGenerator {
        places: vec!["/usr/bin".into()],
    });
    let check = |without: &[&str], generation, expected: &[(&str, bool, &str)]| {
        let driver = DriverSources {
            without: without.iter().map(|&uuid| uuid.into()).collect(),
            has_spec: true,
            refused: vec![missing.clone(), moved.clone()],
            generation: Some(generation),
            injected: false,
        };
        let none = Ok(RuntimeConfig::default());
        let class = RuntimeClassState::NotSet;
        check_all(&none, &driver, &class, expected);
    };
    let words = [
        "/etc/cdi/nvidia.yaml names /usr/lib64/libcuda.so.570, which does not exist on the host: the spec is not used",
        "/etc/cdi/old.yaml has /dev/nvidia0 for device 0, but GPU-a, which NVML lists at index 0, is /dev/nvidia3",
    ];
    let all = |blocks| words.map(|words| ("CdiSpecRefused", blocks, words));
    // Where other specs serve all GPUs, nvidia-ctk is not needed.
    check(&[], Arc::clone(&failed), &all(false));
    for (generation, words) in [
        (failed, "nvidia-ctk cdi generate did not end within 30 s"),
        (absent, "there is no nvidia-ctk on the host at /usr/bin"),
    ] {
        let mut expected = vec![("ToolkitMissing", true, words)];
        expected.extend(all(true));
        check(&["GPU-a"], generation, &expected);
    }
}

#[test]
fn reads_configuration_with_imports() {
    let dir = tempfile::tempdir().expect("tempdir");
    let at = |name: &str| dir.path().join(name);
    let section = "[plugins.'io.containerd.cri.v1.runtime'";
    let own = format!(
        "imports = [\"conf.d/*.toml\"]\n{section}]\nenable_cdi = false\ncdi_spec_dirs = [\n  \"/a\", # ours\n  \"/b\",\n]\n"
    );
    put(dir.path(), "/config.toml", &own);
    put(dir.path(), "/conf.d/README", "not this");
    let nvidia = format!("{section}]\nenable_cdi = true\n{section}.containerd.runtimes.nvidia]\n");
    put(dir.path(), "/conf.d/99-nvidia.toml", &nvidia);
    let expected = RuntimeConfig {
        file: at("config.toml"),
        cdi: Some(true),
        spec_directories: Some(["/a", "/b"].map(PathBuf::from).into()),
        handlers: ["nvidia".to_owned()].into(),
        ..RuntimeConfig::default()
    };
    let read = |kind, name: &str| read(kind, None, Some(&at(name)));
    assert_eq!(read(RuntimeKind::Containerd, "config.toml"), Ok(expected));
    let text = "[crio.runtime]\ncdi_spec_dirs = [\"/a\"]\n";
    put(dir.path(), "/crio.conf", text);
    let found = read(RuntimeKind::Crio, "crio.conf").expect("read");
    assert_eq!(found.spec_directories, Some(vec!["/a".into()]));
    put(dir.path(), "/broken.toml", "[");
    for name in ["broken.toml", "none"] {
        let error = read(RuntimeKind::Containerd, name).expect_err("fails");
        assert!(error.contains(name), "{error}");
    }
    assert!(read(RuntimeKind::Crio, "none").is_err());
}

#[test]
fn reports_no_cdi_problem_when_cdi_is_unused() {
    let off = cdi_off();
    let class = RuntimeClassState::Missing("nvidia".to_owned());
    let none = without_spec();
    let by_cdi = facts("containerd://1.6.9", &off, &none, &class);
    let missing = ("RuntimeClassMissing", false, "nvidia");
    let cdi = ("CdiOff", true, "1.7 or newer");
    let toolkit = ("ToolkitMissing", true, "no CDI spec for nvidia.com/gpu");
    check_facts(&by_cdi, &[cdi, toolkit, missing]);
    let by_env = RuntimeFacts {
        device_list: DeviceListStrategy::Envvar,
        ..by_cdi.clone()
    };
    check_facts(&by_env, &[missing]);
}

#[test]
fn names_chart_value_where_nvidia_runtime_can_replace_cdi() {
    let off = cdi_off();
    for injected in [true, false] {
        let driver = DriverSources {
            injected,
            ..DriverSources::default()
        };
        let class = RuntimeClassState::NotSet;
        let facts = facts("containerd://2.1.0", &off, &driver, &class);
        let status = status(&facts);
        let why = status.without_cdi.expect("CDI is off");
        assert!(why.contains("enable_cdi = true"), "{why}");
        let named = why.contains("devicePlugin.deviceList=envvar");
        assert_eq!([named, status.injects_driver], [injected; 2], "{why}");
        check_facts(&facts, &[("CdiOff", true, why.as_str())]);
    }
}
