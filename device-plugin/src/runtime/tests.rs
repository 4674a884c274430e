//! A table of nodes, and of configurations as runtimes have them.

use super::config::read;
use super::*;

const SECTION_3: &str = "version = 3\n[plugins.'io.containerd.cri.v1.runtime']\n";
const SECTION_2: &str = "version = 2\n[plugins.\"io.containerd.grpc.v1.cri\"]\n";

/// A node with one card that NVIDIA's spec names, on this runtime with this configuration.
fn check(version: &str, config: &Result<Config, String>, expected: &[(&str, bool, &str)]) {
    let devices = ["GPU-a".to_owned()].into();
    check_all(version, config, Some(&devices), &Class::Unknown, expected);
}

fn check_all(
    version: &str,
    config: &Result<Config, String>,
    devices: Option<&BTreeSet<String>>,
    class: &Class,
    expected: &[(&str, bool, &str)],
) {
    check_known(&known(version, config, devices, class), expected);
}

fn known<'a>(
    version: &'a str,
    config: &'a Result<Config, String>,
    devices: Option<&'a BTreeSet<String>>,
    class: &'a Class,
) -> Known<'a> {
    Known {
        version,
        config,
        cdi: Path::new("/var/run/cdi"),
        directories: &[],
        devices,
        cards: &[],
        class,
        handed: DeviceList::Cdi,
        chosen: false,
        rooted: false,
    }
}

fn check_known(known: &Known<'_>, expected: &[(&str, bool, &str)]) {
    let version = known.version;
    let found = faults(&Known {
        directories: &["/etc/cdi".into(), "/var/run/cdi".into()],
        cards: &[("GPU-a".into(), 0)],
        ..known.clone()
    });
    let said: Vec<_> = found.iter().map(|f| (f.reason, f.blocks)).collect();
    let wanted: Vec<_> = expected.iter().map(|e| (e.0, e.1)).collect();
    assert_eq!(said, wanted, "{version} {found:?}");
    for (fault, (.., part)) in found.iter().zip(expected) {
        assert!(
            fault.text.contains(part),
            "{part:?} not in {:?}",
            fault.text
        );
    }
    let [status, ..] = condition(&found);
    assert_eq!(status == "True", !expected.is_empty());
}

fn written(kind: Kind, text: &str) -> Result<Config, String> {
    let room = tempfile::tempdir().expect("tempdir");
    let path = room.path().join("config.toml");
    std::fs::write(&path, text).expect("written");
    read(kind, Some(&path))
}

#[test]
fn mig_14_a_runtime_that_gives_no_cdi_devices_is_named_with_what_to_do() {
    let none = Ok(Config::default());
    let unread = Err("it is not there".to_owned());
    let of = |text: &str| written(Kind::Containerd, text);
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
        &[("CdiOff", true, "1.6.20 knows no CDI")],
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
        &[("CdiUnknown", false, "cannot be read: it is not there")],
    );
    // It knew CDI by annotations only, which nobody writes.
    check("cri-o://1.27.8", &none, &[("CdiOff", true, "1.28")]);
    check("cri-o://1.28.0", &none, &[]);
    check("cri-o://1.31.2", &none, &[]);
    check(
        "docker://27.1",
        &unread,
        &[("CdiUnknown", false, "containerd 1.7 or newer")],
    );
    let elsewhere = &of(&format!("{SECTION_3}cdi_spec_dirs = [\"/opt/cdi\"]\n"));
    let words = "in /opt/cdi, and the agent writes them to /var/run/cdi";
    check(
        "containerd://2.4.2",
        elsewhere,
        &[("CdiDirectory", false, words)],
    );
    let same = &of(&format!("{SECTION_3}cdi_spec_dirs = [\"/run/cdi\"]\n"));
    check("containerd://2.4.2", same, &[]);
}

#[test]
fn the_nodes_own_configuration_is_read_where_none_is_mounted() {
    let room = tempfile::tempdir().expect("tempdir");
    let (own, host) = (room.path().join("own"), room.path().join("host"));
    let roots = [own.as_path(), host.as_path()];
    let of = |kind| super::config::read_below(&roots, kind, None);
    let put = |path: &str, text: &str| {
        let path = host.join(path);
        std::fs::create_dir_all(path.parent().expect("a folder")).expect("made");
        std::fs::write(path, text).expect("written");
    };
    let missing = of(Kind::Containerd).expect_err("nothing is there");
    assert!(missing.contains("config.toml is not there"), "{missing}");
    put(
        "var/lib/rancher/k3s/agent/etc/containerd/config.toml",
        &format!("{SECTION_2}enable_cdi = true\n"),
    );
    assert_eq!(of(Kind::Containerd).expect("k3s's").cdi, Some(true));
    // Its own file wins, and what that imports is the node's, too.
    put(
        "etc/containerd/config.toml",
        "version = 2\nimports = [\"/etc/containerd/conf.d/*.toml\"]\n",
    );
    assert_eq!(of(Kind::Containerd).expect("containerd's").cdi, None);
    put(
        "etc/containerd/conf.d/cdi.toml",
        &format!("{SECTION_2}enable_cdi = false\n"),
    );
    assert_eq!(of(Kind::Containerd).expect("imported").cdi, Some(false));
    put(
        "etc/crio/crio.conf.d/10-nvidia.conf",
        "[crio.runtime.runtimes.nvidia]\n",
    );
    let handlers = of(Kind::Crio).expect("CRI-O's").handlers;
    assert!(handlers.contains("nvidia"), "{handlers:?}");
}

#[test]
fn mig_14_an_absent_toolkit_and_a_missing_runtime_class_are_named() {
    let config = written(
        Kind::Containerd,
        &format!("{SECTION_3}[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]\n"),
    );
    let check = |devices: Option<&[&str]>, class: &Class, expected: &[(&str, bool, &str)]| {
        let devices = devices.map(|all| all.iter().map(|&name| name.to_owned()).collect());
        check_all(
            "containerd://2.4.2",
            &config,
            devices.as_ref(),
            class,
            expected,
        );
    };
    let there = |handler: &str| Class::There("gpu".to_owned(), handler.to_owned());
    check(Some(&["0"]), &Class::Unknown, &[]);
    check(Some(&["all"]), &Class::Unknown, &[]);
    let words = "in /etc/cdi, /var/run/cdi, so containers";
    check(None, &Class::Unknown, &[("ToolkitMissing", false, words)]);
    let words = "does not name GPU-a";
    check(
        Some(&["1"]),
        &Class::Unknown,
        &[("ToolkitMissing", false, words)],
    );
    check(Some(&["GPU-a"]), &there("runc"), &[]);
    let words = "handler nvidia of RuntimeClass gpu";
    check(
        Some(&["GPU-a"]),
        &there("nvidia"),
        &[("RuntimeClassMissing", false, words)],
    );
    let missing = Class::Missing("gpu".to_owned());
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
fn a_configuration_is_read_with_what_it_imports() {
    let room = tempfile::tempdir().expect("tempdir");
    let put = |name: &str, text: &str| {
        let path = room.path().join(name);
        std::fs::create_dir_all(path.parent().expect("a folder")).expect("made");
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
    let expected = Config {
        cdi: Some(true),
        spec_directories: Some(["/a", "/b"].map(PathBuf::from).into()),
        handlers: ["nvidia".to_owned()].into(),
        ..Config::default()
    };
    assert_eq!(read(Kind::Containerd, Some(&path)), Ok(expected));
    let crio = put("crio.conf", "[crio.runtime]\ncdi_spec_dirs = [\"/a\"]\n");
    put("crio.conf.d/10.conf", "[crio.runtime.runtimes.crun]\n");
    let found = read(Kind::Crio, Some(&crio)).expect("read");
    assert_eq!(found.handlers, ["crun".to_owned()].into());
    assert_eq!(found.spec_directories, Some(vec!["/a".into()]));
    let broken = put("broken.toml", "[");
    for path in [broken, room.path().join("none")] {
        let name = path.display().to_string();
        let error = read(Kind::Containerd, Some(&path)).expect_err("told");
        assert!(error.contains(&name), "{error}");
    }
    assert!(read(Kind::Crio, Some(&room.path().join("none"))).is_err());
}

#[test]
fn who_gets_gpus_without_cdi_lacks_nothing_of_it() {
    let off = written(
        Kind::Containerd,
        &format!("{SECTION_3}enable_cdi = false\n"),
    );
    let class = Class::Missing("nvidia".to_owned());
    let by_cdi = known("containerd://1.6.9", &off, None, &class);
    let missing = ("RuntimeClassMissing", false, "nvidia");
    check_known(
        &by_cdi,
        &[
            ("CdiOff", true, "1.7 or newer"),
            ("ToolkitMissing", false, "not the driver's libraries"),
            missing,
        ],
    );
    let by_env = Known {
        handed: DeviceList::Envvar,
        ..by_cdi.clone()
    };
    check_known(&by_env, &[missing]);
    // What nobody asked for is told.
    let chosen = Known {
        chosen: true,
        ..by_env.clone()
    };
    let told = (
        "WithoutCdi",
        false,
        "by envvar, by NVIDIA's container runtime",
    );
    check_known(&chosen, &[told, missing]);
    let on = Known {
        version: "containerd://2.1.0",
        config: &Ok(Config::default()),
        ..chosen
    };
    let told = (
        "WithoutCdi",
        false,
        "is on now; then start the agent here again",
    );
    check_known(&on, &[told, missing]);
    let rooted = Known {
        rooted: true,
        class: &Class::Unknown,
        version: "containerd://2.1.0",
        config: &Err("not shown".to_owned()),
        ..by_cdi
    };
    check_known(
        &rooted,
        &[(
            "ToolkitMissing",
            false,
            "the libraries of the driver's root",
        )],
    );
}
