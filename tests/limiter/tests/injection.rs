//! Every way in which a program finds its driver, and what else happens in its process.

use std::fs::{self, File};

use aliquot_gpusim::place;
use aliquot_limiter_tests::scene::{compile, compile_driver, container, machine};
use aliquot_limiter_tests::{INJECTION_METHODS, InjectionMethod, lines};
use aliquot_shim::{LIBRARIES, exported_calls};

#[test]
fn intercepts_every_way_to_find_driver() {
    let (temp, machine) = machine();
    let driver = place::cuda_library_path().unwrap().display().to_string();
    let build = |name, arguments: &[&str]| {
        compile(temp.path(), "ways.c", name, arguments).expect("a program")
    };
    let plain = build("plain", &["-ldl"]);
    let linked = build("linked", &["-DLINKED", &driver]);
    let linked_plugin = build("linked.so", &["-DLINKED", "-shared", "-fPIC", &driver]);
    let opening_plugin = build("opening.so", &["-shared", "-fPIC", "-ldl"]);
    let run_program = |method: InjectionMethod, words: &[&str]| {
        let container = container(&machine, method, 3000);
        let output = container.command(words).output().unwrap();
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
    // Why replacement is the default: a preloaded library is not in the scope of such a plugin, be it
    // linked against the driver or, as Taichi's, opening it.
    for plugin in [linked_plugin, opening_plugin] {
        let in_plugin = |method| run_program(method, &[&plain, "plugin", &plugin]);
        assert_eq!(in_plugin(InjectionMethod::Replacement), "plugin: 2");
        assert_eq!(
            in_plugin(InjectionMethod::Preload),
            "plugin: 0",
            "not covered by preload"
        );
    }
}

/// The name of a driver's library, for linkers.
const SONAME: &str = "-Wl,-soname,libcuda.so.1";

#[test]
fn limits_stub_that_looks_up_another_driver() {
    let (temp, machine) = machine();
    let driver = place::cuda_library_path().unwrap();
    let calls = exported_calls(LIBRARIES[0], &mut File::open(&driver).unwrap()).unwrap();
    let calls: Vec<_> = calls.iter().map(|name| (name.as_str(), 0)).collect();
    let flags = [SONAME, "-ldl"];
    let stub = compile_driver(temp.path(), "stub_driver.c", &calls, &flags);
    let program = compile(temp.path(), "ways.c", "program", &["-ldl"]).unwrap();
    for (method, expected) in [
        (InjectionMethod::Replacement, "now: 2"),
        (InjectionMethod::Preload, "now: 2"),
        (InjectionMethod::NoLimiter, "now: 0"),
    ] {
        let container = container(&machine, method, 3000);
        container.replace_driver(LIBRARIES[0], &stub);
        let mut command = container.command(&[&program, "now"]);
        let output = command.env("DRIVER_BEHIND", &driver).output().unwrap();
        assert_eq!(lines(&output), [expected], "{method:?} {output:?}");
    }
}

/// Whether a program finds these calls; Numba takes the form with `_v2` if there is one.
const PROBE: &str = r#"
import ctypes
cuda = ctypes.CDLL("libcuda.so.1")
print(*(hasattr(cuda, name) for name in ("cuCtxSynchronize_v2", "cuCtxSynchronize")))
"#;

#[test]
fn finds_no_call_that_the_driver_lacks() {
    let (temp, machine) = machine();
    // A driver older than CUDA 13.
    let calls = [("cuCtxSynchronize", 0)];
    let old = compile_driver(temp.path(), "every_driver.c", &calls, &[SONAME]);
    for method in [
        InjectionMethod::Replacement,
        InjectionMethod::Preload,
        InjectionMethod::NoLimiter,
    ] {
        let container = container(&machine, method, 3000);
        container.replace_driver(LIBRARIES[0], &old);
        let output = container.command(&["python3", "-c", PROBE]).output();
        let output = output.unwrap();
        assert_eq!(lines(&output), ["False True"], "{method:?} {output:?}");
    }
}

/// Asks `cuGetProcAddress` a hundred times for a call that is not hooked.
const LOOK_UPS: &str = r#"
import ctypes, sys
cuda = ctypes.CDLL("libcuda.so.1")
found, flags = ctypes.c_void_p(), ctypes.c_uint64(0)
def ask():
    return cuda.cuGetProcAddress_v2(b"cuDriverGetVersion", ctypes.byref(found), 12080, flags, None)
"#;

/// Asks a hundred times for a call of a library that is missing.
const MISSING: &str = r"
import ctypes, sys
calls, count = ctypes.CDLL(None), ctypes.c_uint()
def ask():
    return calls.nvmlDeviceGetCount_v2(ctypes.byref(count))
";

/// Calls it after a first time that is not counted.
const REPEAT: &str = r#"
first = ask()
sys.stderr.write("first\n")
for _ in range(100): assert ask() == first
sys.stderr.write("last\n")
"#;

#[test]
fn looks_up_neither_unhooked_calls_nor_missing_library_again() {
    let (temp, machine) = machine();
    // A driver that has nothing else: older than almost all of the table.
    let calls = [("cuDriverGetVersion", 1)];
    let old = compile_driver(temp.path(), "every_driver.c", &calls, &["-DLOOK_UPS"]);
    // What the loader says that it searches for meanwhile.
    let searches = |program: &str, kind: &str| {
        let container = container(&machine, InjectionMethod::Preload, 3000);
        container.replace_driver(LIBRARIES[0], &old);
        let drivers = container.directory().with_file_name("driver");
        fs::remove_file(drivers.join(LIBRARIES[1].name)).unwrap();
        let (kind, program) = (format!("LD_DEBUG={kind}"), format!("{program}{REPEAT}"));
        let words = ["env", &kind, "python3", "-c", &program];
        let output = container.command(&words).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        let text = String::from_utf8_lossy(&output.stderr);
        let (_, rest) = text.split_once("first\n").unwrap();
        let (between, _) = rest.split_once("last\n").unwrap();
        ["symbol=cu", "find library="].map(|what| between.matches(what).count())
    };
    assert_eq!(searches(LOOK_UPS, "symbols"), [0, 0]);
    assert_eq!(searches(MISSING, "libs"), [0, 0]);
}

#[test]
fn hami_13_logs_nothing_unless_requested_then_one_line_each() {
    for method in INJECTION_METHODS {
        let reply = |level: Option<&str>| {
            let (_temp, machine) = machine();
            let container = container(&machine, method, 3000);
            let mut client = container.client_command(&["init", "alloc,9000"]);
            client.envs(level.map(|level| ("LIBCUDA_LOG_LEVEL", level)));
            let output = client.output().unwrap();
            assert!(output.status.success(), "{method:?} {output:?}");
            String::from_utf8_lossy(&output.stderr).into_owned()
        };
        assert_eq!(reply(None), "", "{method:?}");
        let lines = reply(Some("3"));
        assert_eq!(lines.lines().count(), 2, "{method:?} {lines}");
        let started = "limits of 1 devices, slot 0, first 3000 MiB";
        assert!(lines.contains(started), "{method:?} {lines}");
        let last = lines.lines().last().unwrap();
        assert!(last.contains("exit;"), "{method:?} {lines}");
        assert!(reply(Some("4")).contains("refused"), "{method:?}");
    }
}
