//! Programs of other projects, at pinned versions, on the simulated driver and behind the limiter.
//! Kernels run no code there, so only what they copy and what they are refused counts.

use std::path::Path;

use aliquot_limiter_tests::scene::{container, machine, script};
use aliquot_limiter_tests::{INJECTION_METHODS, InjectionMethod, TestContainer, client, lines};
use serde::Deserialize;

#[path = "../../gpusim/clients/cudarc_client.rs"]
mod cudarc_client;

/// What a container may have, in MiB.
const SHARE: u64 = 3000;
/// What the GPU of a machine has at least.
const WHOLE: u64 = 80_000;

#[derive(Debug, Deserialize)]
struct Printed {
    /// The device's memory as the program sees it, in MiB.
    total: u64,
    /// It allocated 1000 MiB, copied, compiled and launched, as far as it can.
    works: bool,
    /// Its own error when it asked for all of the memory.
    refused: String,
}

/// The scripts in `programs`, and how each reports that there is too little memory; empty: it only
/// reads.
const PROGRAMS: [(&str, &str); 6] = [
    ("with_numba", "CUDA_ERROR_OUT_OF_MEMORY"),
    ("with_tinygrad", "MemoryError"),
    ("with_cuda_core", "CUDA_ERROR_OUT_OF_MEMORY"),
    ("with_cuda_bindings", "CUDA_ERROR_OUT_OF_MEMORY"),
    ("with_nvitop", ""),
    ("with_nvidia_ml_py", ""),
];

/// A Python that has them.
fn python() -> String {
    script("programs.sh", &[]).pop().expect("a path")
}

fn check_program(python: &str, container: &TestContainer, home: &Path, name: &str) -> Printed {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("programs/{name}.py"));
    let script = script.display().to_string();
    let output = container
        .command(&[python, &script])
        .env("HOME", home)
        .env("DEV", "CUDA:PTX")
        .output()
        .expect("it starts");
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{name}: {errors}");
    let printed = lines(&output).pop().unwrap_or_default();
    serde_json::from_str(&printed).unwrap_or_else(|error| panic!("{name}: {error}: {printed}"))
}

/// Bare, and by each injection method.
fn methods() -> impl Iterator<Item = InjectionMethod> {
    [InjectionMethod::NoLimiter]
        .into_iter()
        .chain(INJECTION_METHODS)
}

#[test]
fn runs_programs_of_other_projects_bare_and_limited() {
    let python = python();
    for method in methods() {
        let (temp, machine) = machine();
        let container = container(&machine, method, SHARE);
        for (name, out_of_memory) in PROGRAMS {
            let printed = check_program(&python, &container, temp.path(), name);
            let shown = format!("{method:?} {name}: {printed:?}");
            assert!(printed.works, "{shown}");
            assert!(printed.refused.contains(out_of_memory), "{shown}");
            assert_eq!(
                printed.refused.is_empty(),
                out_of_memory.is_empty(),
                "{shown}"
            );
            if method == InjectionMethod::NoLimiter {
                assert!(printed.total >= WHOLE, "{shown}");
            } else {
                assert_eq!(printed.total, SHARE, "{shown}");
            }
        }
    }
}

/// Set in the container, where this test's program is the client.
const IN_CONTAINER: &str = "ALIQUOT_TEST_IN_CONTAINER";

#[test]
fn runs_cudarc_bare_and_limited() {
    if std::env::var_os(IN_CONTAINER).is_some() {
        let total = cudarc_client::run() >> 20;
        return eprintln!("total: {total}");
    }
    let program = std::env::current_exe().expect("this program");
    let program = program.display().to_string();
    let own = [
        program.as_str(),
        "--exact",
        "runs_cudarc_bare_and_limited",
        "--nocapture",
    ];
    for method in methods() {
        let (_temp, machine) = machine();
        let container = container(&machine, method, SHARE);
        let mut command = container.command(&own);
        let output = command.env(IN_CONTAINER, "").output().expect("it starts");
        let printed = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{method:?} {output:?}");
        let total = printed
            .lines()
            .find_map(|line| line.strip_prefix("total: "));
        let total: u64 = total
            .and_then(|total| total.parse().ok())
            .expect("a number");
        if method == InjectionMethod::NoLimiter {
            assert!(total >= WHOLE, "{total}");
        } else {
            assert_eq!(total, SHARE, "{method:?}");
        }
    }
}

#[test]
fn triton_builds_its_module_and_is_limited() {
    let python = script("triton.sh", &[]).pop().expect("a path");
    let program = client().replace("client.py", "triton_client.py");
    let (_temp, machine) = machine();
    let container = container(&machine, InjectionMethod::Replacement, SHARE);
    // As NVIDIA's toolkit links it, for the compiler.
    let script = r#"
set -e
ln -s libcuda.so.1 /driver/libcuda.so
mkdir /made
TRITON_CACHE_DIR=/made exec "$1" "$2""#;
    let arguments = ["sh", "-c", script, "sh", &python, &program];
    let output = container.command(&arguments).output().expect("a program");
    assert_eq!(
        lines(&output),
        ["108 multiprocessors", "2", "0"],
        "{output:?}"
    );
}
