//! Every way in which a program finds its driver, and what else happens in its process.

use std::path::{Path, PathBuf};
use std::process::Command;

use aliquot_gpusim::{SimulatedMachine, place};
use aliquot_limiter_tests::{INJECTION_METHODS, InjectionMethod, TestContainer, limiter, lines};
use aliquot_region::limits::{ContainerLimits, DeviceLimits};

const UUID: &str = "GPU-11111111-1111-1111-1111-111111111111";

struct Setup {
    folder: tempfile::TempDir,
    machine: SimulatedMachine,
}

impl Setup {
    fn new() -> Self {
        let folder = tempfile::tempdir().expect("a container on a simulated machine");
        let yaml =
            format!("gpus:\n- {{model: Tesla T4, uuids: [{UUID}], set: {{contextMib: 480}}}}\n");
        let machine = SimulatedMachine::create(&folder.path().join("state"), &yaml)
            .expect("a container on a simulated machine");
        Self { folder, machine }
    }

    fn container(&self, method: InjectionMethod) -> TestContainer {
        let device = DeviceLimits {
            uuid: UUID,
            memory: 3000 << 20,
            context: 480 << 20,
            ..DeviceLimits::default()
        };
        TestContainer::new(&self.machine, method, ContainerLimits::default(), &[device])
            .expect("a container on a simulated machine")
    }

    /// Compiles the client with these arguments into the folder.
    fn compile(&self, name: &str, arguments: &[&str]) -> PathBuf {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("clients/ways.c");
        let made = self.folder.path().join(name);
        let status = Command::new("cc")
            .args(["-O1", "-o"])
            .arg(&made)
            .arg(source)
            .args(arguments)
            .status()
            .expect("a container on a simulated machine");
        assert!(status.success(), "cc {arguments:?}");
        made
    }
}

#[test]
fn intercepts_every_way_to_find_driver() {
    let setup = Setup::new();
    let driver = place::cuda_library_path().unwrap().display().to_string();
    let plain = setup.compile("plain", &["-ldl"]).display().to_string();
    let linked = setup
        .compile("linked", &["-DLINKED", &driver])
        .display()
        .to_string();
    let plugin = setup
        .compile("plugin.so", &["-DLINKED", "-shared", "-fPIC", &driver])
        .display()
        .to_string();
    let run_program = |method: InjectionMethod, words: &[&str]| {
        let output = setup.container(method).command(words).output().unwrap();
        assert!(output.status.success(), "{method:?} {words:?} {output:?}");
        lines(&output).join("\n")
    };
    for (program, how) in [
        (&plain, "now"),
        (&plain, "lazy"),
        (&plain, "global"),
        (&plain, "deep"),
        (&plain, "namespace"),
        (&linked, "linked"),
    ] {
        for method in INJECTION_METHODS {
            let found = run_program(method, &[program, how]);
            assert_eq!(found, format!("{how}: 2"), "{method:?}");
        }
        let bare = run_program(InjectionMethod::NoLimiter, &[program, how]);
        assert_eq!(bare, format!("{how}: 0"), "without a limiter it is allowed");
    }
    // Why replacement is the default: a preloaded library is not in the scope of such a plugin.
    let in_plugin = |method| run_program(method, &[&plain, "plugin", &plugin]);
    assert_eq!(in_plugin(InjectionMethod::Replacement), "plugin: 2");
    assert_eq!(
        in_plugin(InjectionMethod::Preload),
        "plugin: 0",
        "not covered by preload"
    );
}

#[test]
fn leaves_programs_without_driver_alone() {
    let setup = Setup::new();
    for method in INJECTION_METHODS {
        let container = setup.container(method);
        let script = "import ctypes, ssl, sqlite3, json, threading, decimal, multiprocessing\n\
            d = ctypes.CDLL(None)\n\
            assert d.dlsym is not None and d.malloc is not None\n\
            print(hasattr(d, 'curl_easy_init'), hasattr(d, 'cublasCreate_v2'))";
        let output = container
            .command(&["python3", "-c", script])
            .output()
            .unwrap();
        let reply = (
            lines(&output).join("\n"),
            String::from_utf8_lossy(&output.stderr).into_owned(),
        );
        assert_eq!(
            reply,
            ("False False".to_owned(), String::new()),
            "{method:?}"
        );
    }
}

#[test]
fn logs_nothing_unless_requested_then_one_line_each() {
    let setup = Setup::new();
    for method in INJECTION_METHODS {
        let reply = |level: Option<&str>, commands: &[&str]| {
            let container = setup.container(method);
            let mut client = container.client_command(commands);
            client.envs(level.map(|level| ("LIBCUDA_LOG_LEVEL", level)));
            let output = client.output().unwrap();
            assert!(output.status.success(), "{method:?} {output:?}");
            String::from_utf8_lossy(&output.stderr).into_owned()
        };
        assert_eq!(reply(None, &["init", "alloc,9000"]), "", "{method:?}");
        let lines = reply(Some("3"), &["init", "alloc,9000"]);
        assert_eq!(lines.lines().count(), 2, "{method:?} {lines}");
        assert!(
            lines.contains("limits of 1 devices, slot 0, first 3000 MiB"),
            "{method:?} {lines}"
        );
        assert!(
            lines.lines().last().unwrap().contains("exit;"),
            "{method:?} {lines}"
        );
        assert!(
            reply(Some("4"), &["init", "alloc,9000"]).contains("refused"),
            "{method:?}"
        );
    }
}

#[test]
fn depends_on_c_library_only() {
    let output = Command::new("readelf")
        .arg("-d")
        .arg(limiter().unwrap())
        .output()
        .unwrap();
    let needed: Vec<String> = lines(&output)
        .into_iter()
        .filter(|line| line.contains("(NEEDED)"))
        .filter_map(|line| Some(line.split_once('[')?.1.trim_end_matches(']').to_owned()))
        .collect();
    let known = ["libc.so.6", "ld-linux-x86-64.so.2", "ld-linux-aarch64.so.1"];
    for name in &needed {
        assert!(known.contains(&name.as_str()), "{needed:?}");
    }
    assert!(needed.len() <= 2 && !needed.is_empty(), "{needed:?}");
}
