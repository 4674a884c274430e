//! What else a container may bring: another libc, other allocators, a `dlsym` of its own, programs
//! without a loader.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use aliquot_facade::LIBRARIES;
use aliquot_gpusim::SimulatedMachine;
use aliquot_limiter_tests::scene::{container, machine};
use aliquot_limiter_tests::{Container, WAYS, Way, client, lines};

const SHARE: u64 = 3000;
const COMMANDS: [&str; 4] = ["init", "alloc,2521", "alloc,2520", "info"];
const HELD: [&str; 4] = [
    "init: 0",
    "alloc,2521: 2",
    "alloc,2520: 0",
    "info: 0 0 3000",
];

/// A folder with these packages of Debian, of this machine's release or another.
fn packages(suite: &str, names: &[&str]) -> PathBuf {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("packages.sh");
    let output = Command::new(script)
        .arg(suite)
        .args(names)
        .stderr(Stdio::inherit())
        .output()
        .expect("packages.sh");
    assert!(output.status.success(), "{suite} {names:?}");
    PathBuf::from(lines(&output).last().expect("a folder"))
}

/// A file of that name below a folder.
fn find(folder: &Path, name: &str) -> String {
    let output = Command::new("find")
        .arg(folder)
        .args(["-name", name, "-print", "-quit"])
        .output()
        .expect("find");
    lines(&output)
        .pop()
        .unwrap_or_else(|| panic!("no {name} in {}", folder.display()))
}

/// `ways.c`, which finds the driver by `dlopen` and asks for more than is left: 2 where it is held.
fn compiled(room: &Path, flags: &[&str]) -> String {
    let program = room.join("program").display().to_string();
    let source = client().replace("client.py", "ways.c");
    let made = Command::new("cc")
        .args(["-O1", "-rdynamic", "-o", &program, &source, "-ldl"])
        .args(flags)
        .status();
    assert!(made.expect("cc").success());
    program
}

fn said(container: &Container, words: &[&str], env: &[(&str, &str)]) -> (String, String) {
    let mut command = container.command(words);
    // For this command alone: the host's own programs make its file system.
    let output = command
        .envs(env.iter().copied())
        .output()
        .expect("it starts");
    let words = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{output:?}");
    (lines(&output).join("\n"), words)
}

fn each_way(check: impl Fn(Way, &SimulatedMachine, &Path)) {
    for way in WAYS {
        let (room, machine) = machine();
        check(way, &machine, room.path());
    }
}

/// The paths of what `old.sh` builds: the library as it is shipped, the simulated driver, a program.
fn old(room: &Path) -> [PathBuf; 3] {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("old.sh");
    let output = Command::new(script)
        .arg(room)
        .stderr(Stdio::inherit())
        .output()
        .expect("old.sh");
    assert!(output.status.success(), "old.sh");
    let paths: Vec<PathBuf> = lines(&output).into_iter().map(PathBuf::from).collect();
    paths.try_into().expect("three paths")
}

#[test]
fn as_it_is_shipped_it_holds_under_older_and_newer_versions_of_libc() {
    let own = Command::new("ldd").arg("--version").output().expect("ldd");
    let own = lines(&own)[0].rsplit(' ').next().map(str::to_owned);
    let room = tempfile::tempdir().expect("a folder");
    let [library, driver, program] = old(room.path());
    let own = format!("version {}.", own.as_deref().expect("a version"));
    let mut others = 0;
    for suite in ["bullseye", "trixie", "sid"] {
        let folder = packages(suite, &["libc6"]);
        let loader = find(&folder, "ld-linux-x86-64.so.2");
        let libc = find(&folder, "libc.so.6");
        let libc = Path::new(&libc).parent().expect("a folder").display();
        let newer = format!("{libc}/libc.so.6");
        let said_of_itself = Command::new(&loader).arg(&newer).output().expect("libc");
        let version = lines(&said_of_itself)[0].clone();
        assert!(version.contains("GNU C Library"), "{version}");
        if version.contains(&own) {
            // It is this machine's: every other test has it.
            continue;
        }
        others += 1;
        each_way(|way, machine, _| {
            let container = container(machine, way, SHARE);
            container.replace_limiter(&library).expect("copied");
            container
                .replace_driver(LIBRARIES[0], &driver)
                .expect("copied");
            // The files of the cache are not below the container's own /tmp.
            let path = format!("{libc}:/driver");
            let program = program.display().to_string();
            let words = [loader.as_str(), "--library-path", &path, &program, "now"];
            let found = said(&container, &words, &[]);
            let held = ("now: 2".to_owned(), String::new());
            assert_eq!(found, held, "{suite} {way:?}");
        });
        // The same without a limiter: it is that which says no.
        let (_room, machine) = machine();
        let bare = container(&machine, Way::Bare, SHARE);
        bare.replace_driver(LIBRARIES[0], &driver).expect("copied");
        let path = format!("{libc}:/driver");
        let program = program.display().to_string();
        let words = [loader.as_str(), "--library-path", &path, &program, "now"];
        let found = said(&bare, &words, &[]).0;
        assert_eq!(found, "now: 0", "{suite}");
    }
    assert!(others >= 2, "{own} is one of them, the others are not");
}

#[test]
fn other_allocators_are_limited_too() {
    let folder = packages("here", &["libjemalloc2", "libtcmalloc-minimal4"]);
    for name in ["libjemalloc.so.2", "libtcmalloc_minimal.so.4"] {
        let library = find(&folder, name);
        each_way(|way, machine, _| {
            let container = container(machine, way, SHARE);
            let client = client();
            let mut words = vec!["python3", client.as_str()];
            words.extend(COMMANDS);
            let found = said(&container, &words, &[("LD_PRELOAD", &library)]);
            assert_eq!(found, (HELD.join("\n"), String::new()), "{name} {way:?}");
        });
    }
}

#[test]
fn a_list_of_preloads_that_the_image_brings_is_not_hidden_by_replacement() {
    let folder = packages("here", &["libjemalloc2", "libtcmalloc-minimal4"]);
    let library = find(&folder, "libjemalloc.so.2");
    let (_room, machine) = machine();
    let container = container(&machine, Way::Replacement, SHARE);
    container.preload(&library).expect("written");
    let maps = said(&container, &["cat", "/proc/self/maps"], &[]).0;
    assert!(maps.contains("libjemalloc"), "{maps}");
    assert_eq!(container.client(&COMMANDS).expect("a client"), HELD);
}

#[test]
fn a_program_with_a_dlsym_of_its_own_is_held_by_replacement() {
    each_way(|way, machine, room| {
        let container = container(machine, way, SHARE);
        let program = compiled(room, &["-DOWN_DLSYM"]);
        let found = said(&container, &[&program, "now"], &[]).0;
        // A preload is not asked where the program answers itself; the host sees it.
        let expected = if way == Way::Replacement {
            "now: 2"
        } else {
            "now: 0"
        };
        assert_eq!(found, expected, "{way:?}: not covered any more?");
    });
}

#[test]
fn a_static_program_notices_nothing() {
    let folder = packages("here", &["busybox-static"]);
    let busybox = find(&folder.join("bin"), "busybox");
    each_way(|way, machine, _| {
        let container = container(machine, way, SHARE);
        let words = [
            busybox.as_str(),
            "sh",
            "-c",
            "echo $((6 * 7)); busybox true",
        ];
        let found = said(&container, &words, &[]);
        assert_eq!(found, ("42".to_owned(), String::new()), "{way:?}");
    });
}

#[test]
fn python_with_every_extension_of_its_own_loaded_is_limited_too() {
    let script = "import glob, importlib, os, sys, sysconfig\n\
        folder = os.path.join(sysconfig.get_path('platstdlib'), 'lib-dynload')\n\
        loaded = 0\n\
        for path in sorted(glob.glob(folder + '/*.so')):\n\
        \x20   name = os.path.basename(path).split('.')[0]\n\
        \x20   if 'test' in name or 'tkinter' in name: continue\n\
        \x20   try: importlib.import_module(name); loaded += 1\n\
        \x20   except ImportError: pass\n\
        assert loaded > 20, loaded\n\
        client = sys.argv[1]; sys.argv[:2] = [client]\n\
        exec(open(client).read())";
    each_way(|way, machine, _| {
        let container = container(machine, way, SHARE);
        let client = client();
        let mut words = vec!["python3", "-c", script, client.as_str()];
        words.extend(COMMANDS);
        let found = said(&container, &words, &[]);
        assert_eq!(found, (HELD.join("\n"), String::new()), "{way:?}");
    });
}
