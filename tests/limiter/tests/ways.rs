//! Every way in which a program finds its driver, and what else goes on in its process.

use std::path::{Path, PathBuf};
use std::process::Command;

use aliquot_gpusim::{SimulatedMachine, place};
use aliquot_limiter_tests::{Container, WAYS, Way, limiter, lines};
use aliquot_region::limits::{Container as Rules, Device};

const UUID: &str = "GPU-11111111-1111-1111-1111-111111111111";

struct Room {
    folder: tempfile::TempDir,
    machine: SimulatedMachine,
}

impl Room {
    fn new() -> Self {
        let folder = tempfile::tempdir().expect("a container on a simulated machine");
        let yaml =
            format!("gpus:\n- {{model: Tesla T4, uuids: [{UUID}], set: {{contextMib: 480}}}}\n");
        let machine = SimulatedMachine::create(&folder.path().join("state"), &yaml)
            .expect("a container on a simulated machine");
        Self { folder, machine }
    }

    fn container(&self, way: Way) -> Container {
        let device = Device {
            uuid: UUID,
            memory: 3000 << 20,
            context: 480 << 20,
            ..Device::default()
        };
        Container::new(&self.machine, way, Rules::default(), &[device])
            .expect("a container on a simulated machine")
    }

    /// Compiles the client with these arguments; it lies in the room.
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
fn every_way_to_the_driver_leads_through_ours() {
    let room = Room::new();
    let driver = place::cuda_library_path().unwrap().display().to_string();
    let plain = room.compile("plain", &["-ldl"]).display().to_string();
    let linked = room
        .compile("linked", &["-DLINKED", &driver])
        .display()
        .to_string();
    let plugin = room
        .compile("plugin.so", &["-DLINKED", "-shared", "-fPIC", &driver])
        .display()
        .to_string();
    let say = |way: Way, words: &[&str]| {
        let output = room.container(way).command(words).output().unwrap();
        assert!(output.status.success(), "{way:?} {words:?} {output:?}");
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
        for way in WAYS {
            let found = say(way, &[program, how]);
            assert_eq!(found, format!("{how}: 2"), "{way:?}");
        }
        let bare = say(Way::Bare, &[program, how]);
        assert_eq!(bare, format!("{how}: 0"), "without a limiter it is allowed");
    }
    // Why replacement is the default: a preloaded library is not in the scope of such a plugin.
    let in_plugin = |way| say(way, &[&plain, "plugin", &plugin]);
    assert_eq!(in_plugin(Way::Replacement), "plugin: 2");
    assert_eq!(
        in_plugin(Way::Preload),
        "plugin: 0",
        "not covered by preload"
    );
}

#[test]
fn a_program_without_a_driver_is_left_alone() {
    let room = Room::new();
    for way in WAYS {
        let container = room.container(way);
        let script = "import ctypes, ssl, sqlite3, json, threading, decimal, multiprocessing\n\
            d = ctypes.CDLL(None)\n\
            assert d.dlsym is not None and d.malloc is not None\n\
            print(hasattr(d, 'curl_easy_init'), hasattr(d, 'cublasCreate_v2'))";
        let output = container
            .command(&["python3", "-c", script])
            .output()
            .unwrap();
        let said = (
            lines(&output).join("\n"),
            String::from_utf8_lossy(&output.stderr).into_owned(),
        );
        assert_eq!(said, ("False False".to_owned(), String::new()), "{way:?}");
    }
}

#[test]
fn it_is_quiet_unless_asked_and_then_says_one_line_at_start_and_exit() {
    let room = Room::new();
    for way in WAYS {
        let said = |level: Option<&str>, commands: &[&str]| {
            let container = room.container(way);
            let mut client = container.client_command(commands);
            client.envs(level.map(|level| ("LIBCUDA_LOG_LEVEL", level)));
            let output = client.output().unwrap();
            assert!(output.status.success(), "{way:?} {output:?}");
            String::from_utf8_lossy(&output.stderr).into_owned()
        };
        assert_eq!(said(None, &["init", "alloc,9000"]), "", "{way:?}");
        let lines = said(Some("3"), &["init", "alloc,9000"]);
        assert_eq!(lines.lines().count(), 2, "{way:?} {lines}");
        assert!(
            lines.contains("limits of 1 devices, slot 0, first 3000 MiB"),
            "{way:?} {lines}"
        );
        assert!(
            lines.lines().last().unwrap().contains("exit;"),
            "{way:?} {lines}"
        );
        assert!(
            said(Some("4"), &["init", "alloc,9000"]).contains("refused"),
            "{way:?}"
        );
    }
}

#[test]
fn it_needs_nothing_but_the_c_library() {
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
