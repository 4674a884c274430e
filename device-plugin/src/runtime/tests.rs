//! A table of nodes, and of configurations as runtimes have them.

use super::config::read;
use super::*;

const SECTION_3: &str = "version = 3\n[plugins.'io.containerd.cri.v1.runtime']\n";
const SECTION_2: &str = "version = 2\n[plugins.\"io.containerd.grpc.v1.cri\"]\n";

/// A node with one GPU that NVIDIA's CDI spec contains, on this runtime with this configuration.
fn check(version: &str, config: &Result<RuntimeConfig, String>, expected: &[(&str, bool, &str)]) {
    let devices = ["GPU-a".to_owned()].into();
    check_all(
        version,
        config,
        Some(&devices),
        &RuntimeClassState::Unknown,
        expected,
    );
}

fn check_all(
    version: &str,
    config: &Result<RuntimeConfig, String>,
    devices: Option<&BTreeSet<String>>,
    class: &RuntimeClassState,
    expected: &[(&str, bool, &str)],
) {
    check_facts(&facts(version, config, devices, class), expected);
}

fn facts<'a>(
    version: &'a str,
    config: &'a Result<RuntimeConfig, String>,
    devices: Option<&'a BTreeSet<String>>,
    class: &'a RuntimeClassState,
) -> RuntimeFacts<'a> {
    RuntimeFacts {
        version,
        config,
        cdi: Path::new("/var/run/cdi"),
        directories: &[],
        devices,
        gpus: &[],
        class,
        device_list: DeviceListStrategy::Cdi,
        chosen: false,
        has_driver_root: false,
    }
}

fn check_facts(facts: &RuntimeFacts<'_>, expected: &[(&str, bool, &str)]) {
    let version = facts.version;
    let found = problems(&RuntimeFacts {
        directories: &["/etc/cdi".into(), "/var/run/cdi".into()],
        gpus: &[("GPU-a".into(), 0)],
        ..facts.clone()
    });
    let actual: Vec<_> = found.iter().map(|f| (f.reason, f.blocks)).collect();
    let wanted: Vec<_> = expected.iter().map(|e| (e.0, e.1)).collect();
    assert_eq!(actual, wanted, "{version} {found:?}");
    for (problem, (.., part)) in found.iter().zip(expected) {
        assert!(
            problem.text.contains(part),
            "{part:?} not in {:?}",
            problem.text
        );
    }
    let [status, ..] = condition(&found);
    assert_eq!(status == "True", !expected.is_empty());
}

fn written(kind: RuntimeKind, text: &str) -> Result<RuntimeConfig, String> {
    let dir = tempfile::tempdir().expect("tempdir");
    let path = dir.path().join("config.toml");
    std::fs::write(&path, text).expect("written");
    read(kind, Some(&path))
}

#[test]
fn mig_14_reports_runtime_without_cdi_and_remedy() {
    let none = Ok(RuntimeConfig::default());
    let unread = Err("it does not exist".to_owned());
    let of = |text: &str| written(RuntimeKind::Containerd, text);
    check("containerd://2.4.2", &none, &[]);
    check("containerd://2.4.2", &unread, &[]);
    check("containerd://2.4.2-rc.1", &of(SECTION_3), &[]);
    let off = &of(&format!("{SECTION_3}enable_cdi = false\n"));
    check(
        "containerd://2.1.0",
        off,
        &[("CdiOff", true, "enable_cdi = true")],
    );
    check(
        "containerd://1.6.20",
        &none,
        &[("CdiOff", true, "1.6.20 does not support CDI")],
    );
    let by_itself = &of(SECTION_2);
    check(
        "containerd://1.7.24",
        by_itself,
        &[("CdiOff", true, "enable_cdi = true")],
    );
    let on = &of(&format!("{SECTION_2}enable_cdi = true\n"));
    check("containerd://1.7.24", on, &[]);
    check(
        "containerd://1.7.24",
        &unread,
        &[("CdiUnknown", false, "cannot be read: it does not exist")],
    );
    // It supported CDI only by annotations, which nobody writes.
    check("cri-o://1.27.8", &none, &[("CdiOff", true, "1.28")]);
    check("cri-o://1.28.0", &none, &[]);
    check("cri-o://1.31.2", &none, &[]);
    check(
        "docker://27.1",
        &unread,
        &[("CdiUnknown", false, "containerd 1.7 or newer")],
    );
    let elsewhere = &of(&format!("{SECTION_3}cdi_spec_dirs = [\"/opt/cdi\"]\n"));
    let words = "from /opt/cdi, but the agent writes them to /var/run/cdi";
    check(
        "containerd://2.4.2",
        elsewhere,
        &[("CdiDirectory", false, words)],
    );
    let same = &of(&format!("{SECTION_3}cdi_spec_dirs = [\"/run/cdi\"]\n"));
    check("containerd://2.4.2", same, &[]);
}

#[test]
fn reads_host_configuration_when_none_is_mounted() {
    let dir = tempfile::tempdir().expect("tempdir");
    let (own, host) = (dir.path().join("own"), dir.path().join("host"));
    let roots = [own.as_path(), host.as_path()];
    let of = |kind| super::config::read_below(&roots, kind, None);
    let put = |path: &str, text: &str| {
        let path = host.join(path);
        std::fs::create_dir_all(path.parent().expect("a directory")).expect("made");
        std::fs::write(path, text).expect("written");
    };
    let missing = of(RuntimeKind::Containerd).expect_err("nothing is there");
    assert!(missing.contains("config.toml does not exist"), "{missing}");
    put(
        "var/lib/rancher/k3s/agent/etc/containerd/config.toml",
        &format!("{SECTION_2}enable_cdi = true\n"),
    );
    assert_eq!(of(RuntimeKind::Containerd).expect("k3s's").cdi, Some(true));
    // Its own file wins, and its imports are read from the node, too.
    put(
        "etc/containerd/config.toml",
        "version = 2\nimports = [\"/etc/containerd/conf.d/*.toml\"]\n",
    );
    assert_eq!(of(RuntimeKind::Containerd).expect("containerd's").cdi, None);
    put(
        "etc/containerd/conf.d/cdi.toml",
        &format!("{SECTION_2}enable_cdi = false\n"),
    );
    assert_eq!(
        of(RuntimeKind::Containerd).expect("imported").cdi,
        Some(false)
    );
    put(
        "etc/crio/crio.conf.d/10-nvidia.conf",
        "[crio.runtime.runtimes.nvidia]\n",
    );
    let handlers = of(RuntimeKind::Crio).expect("CRI-O's").handlers;
    assert!(handlers.contains("nvidia"), "{handlers:?}");
}

#[test]
fn mig_14_reports_missing_toolkit_and_runtime_class() {
    let config = written(
        RuntimeKind::Containerd,
        &format!("{SECTION_3}[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]\n"),
    );
    let check =
        |devices: Option<&[&str]>, class: &RuntimeClassState, expected: &[(&str, bool, &str)]| {
            let devices = devices.map(|all| all.iter().map(|&name| name.to_owned()).collect());
            check_all(
                "containerd://2.4.2",
                &config,
                devices.as_ref(),
                class,
                expected,
            );
        };
    let found_class =
        |handler: &str| RuntimeClassState::Found("gpu".to_owned(), handler.to_owned());
    check(Some(&["0"]), &RuntimeClassState::Unknown, &[]);
    check(Some(&["all"]), &RuntimeClassState::Unknown, &[]);
    let words = "in /etc/cdi, /var/run/cdi, so containers";
    check(
        None,
        &RuntimeClassState::Unknown,
        &[("ToolkitMissing", false, words)],
    );
    let words = "does not contain GPU-a";
    check(
        Some(&["1"]),
        &RuntimeClassState::Unknown,
        &[("ToolkitMissing", false, words)],
    );
    check(Some(&["GPU-a"]), &found_class("runc"), &[]);
    let words = "handler nvidia of RuntimeClass gpu";
    check(
        Some(&["GPU-a"]),
        &found_class("nvidia"),
        &[("RuntimeClassMissing", false, words)],
    );
    let missing = RuntimeClassState::Missing("gpu".to_owned());
    let words = "no RuntimeClass gpu";
    check(
        None,
        &missing,
        &[
            ("ToolkitMissing", false, "nvidia-ctk"),
            ("RuntimeClassMissing", false, words),
        ],
    );
}

#[test]
fn reads_configuration_with_imports() {
    let dir = tempfile::tempdir().expect("tempdir");
    let put = |name: &str, text: &str| {
        let path = dir.path().join(name);
        std::fs::create_dir_all(path.parent().expect("a directory")).expect("made");
        std::fs::write(&path, text).expect("written");
        path
    };
    let own = "imports = [\"conf.d/*.toml\"]\n[plugins.'io.containerd.cri.v1.runtime']\nenable_cdi = false\ncdi_spec_dirs = [\n  \"/a\", # ours\n  \"/b\",\n]\n";
    let path = put("config.toml", own);
    put("conf.d/README", "not this");
    put(
        "conf.d/99-nvidia.toml",
        "[plugins.'io.containerd.cri.v1.runtime']\nenable_cdi = true\n[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.nvidia]\n",
    );
    let expected = RuntimeConfig {
        cdi: Some(true),
        spec_directories: Some(["/a", "/b"].map(PathBuf::from).into()),
        handlers: ["nvidia".to_owned()].into(),
        ..RuntimeConfig::default()
    };
    assert_eq!(read(RuntimeKind::Containerd, Some(&path)), Ok(expected));
    let crio = put("crio.conf", "[crio.runtime]\ncdi_spec_dirs = [\"/a\"]\n");
    put("crio.conf.d/10.conf", "[crio.runtime.runtimes.crun]\n");
    let found = read(RuntimeKind::Crio, Some(&crio)).expect("read");
    assert_eq!(found.handlers, ["crun".to_owned()].into());
    assert_eq!(found.spec_directories, Some(vec!["/a".into()]));
    let broken = put("broken.toml", "[");
    for path in [broken, dir.path().join("none")] {
        let name = path.display().to_string();
        let error = read(RuntimeKind::Containerd, Some(&path)).expect_err("fails");
        assert!(error.contains(&name), "{error}");
    }
    assert!(read(RuntimeKind::Crio, Some(&dir.path().join("none"))).is_err());
}

#[test]
fn reports_no_cdi_problem_when_cdi_is_unused() {
    let off = written(
        RuntimeKind::Containerd,
        &format!("{SECTION_3}enable_cdi = false\n"),
    );
    let class = RuntimeClassState::Missing("nvidia".to_owned());
    let by_cdi = facts("containerd://1.6.9", &off, None, &class);
    let missing = ("RuntimeClassMissing", false, "nvidia");
    check_facts(
        &by_cdi,
        &[
            ("CdiOff", true, "1.7 or newer"),
            ("ToolkitMissing", false, "not the driver's libraries"),
            missing,
        ],
    );
    let by_env = RuntimeFacts {
        device_list: DeviceListStrategy::Envvar,
        ..by_cdi.clone()
    };
    check_facts(&by_env, &[missing]);
    // A strategy that nobody configured is reported.
    let chosen = RuntimeFacts {
        chosen: true,
        ..by_env.clone()
    };
    let expected_problem = (
        "WithoutCdi",
        false,
        "by envvar through NVIDIA's container runtime",
    );
    check_facts(&chosen, &[expected_problem, missing]);
    let on = RuntimeFacts {
        version: "containerd://2.1.0",
        config: &Ok(RuntimeConfig::default()),
        ..chosen
    };
    let expected_problem = (
        "WithoutCdi",
        false,
        "is enabled now; then restart the agent on this node",
    );
    check_facts(&on, &[expected_problem, missing]);
    let rooted = RuntimeFacts {
        has_driver_root: true,
        class: &RuntimeClassState::Unknown,
        version: "containerd://2.1.0",
        config: &Err("not shown".to_owned()),
        ..by_cdi
    };
    check_facts(
        &rooted,
        &[(
            "ToolkitMissing",
            false,
            "the libraries of the driver's root",
        )],
    );
}
