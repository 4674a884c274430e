//! Every call that a driver has, on a driver that has them all: what is not in the limiter's table
//! is the driver's own, however a program looks it up.

use std::process::Command;

use aliquot_limiter_tests::scene::{compile, compile_driver, container, machine};
use aliquot_limiter_tests::{INJECTION_METHODS, InjectionMethod, limiter, lines};
use aliquot_shim::{LIBRARIES, LIMITER, ShimmedLibrary};

/// The names, by library, as the headers of a current driver declare them.
const NAMES: [&str; 2] = [
    include_str!("../../../limiter/names/cuda-13.5.txt"),
    include_str!("../../../limiter/names/nvml-13.5.txt"),
];
/// They return addresses, and the driver that is made here implements them.
const LOOK_UPS: [&str; 3] = [
    "cuGetProcAddress",
    "cuGetProcAddress_v2",
    "cuGetProcAddress_v2_ptsz",
];

/// The names of one library, without the look-ups.
fn names(list: &str) -> Vec<&str> {
    list.lines()
        .filter(|line| !line.starts_with('#') && !LOOK_UPS.contains(line))
        .collect()
}

/// What libvgpu.so exports: the calls of its table.
fn exported_calls() -> Vec<String> {
    let output = Command::new("nm")
        .args(["-D", "--defined-only"])
        .arg(limiter().expect("libvgpu.so"))
        .output()
        .expect("nm");
    let symbols = lines(&output).into_iter();
    let symbols = symbols.filter_map(|line| Some(line.rsplit_once(' ')?.1.to_owned()));
    symbols
        .filter(|name| name.starts_with("cu") || name.starts_with("nvml"))
        .collect()
}

fn is_newer(variant: &str, name: &str) -> bool {
    let suffix = variant.strip_prefix(name);
    suffix.is_some_and(|suffix| suffix.starts_with("_v"))
}

/// What `every.c` prints for these calls of a library, with the number of arguments that count:
/// name, method of lookup, file, and whether arguments were lost. It also calls those that are ours
/// if `all` is set.
fn resolve_calls(
    method: InjectionMethod,
    library: ShimmedLibrary,
    calls: &[(&str, u32)],
    all: bool,
) -> Vec<[String; 4]> {
    let (temp, machine) = machine();
    let soname = format!("-Wl,-soname,{}", library.name);
    let mut flags = vec![soname.as_str()];
    flags.extend((library == LIBRARIES[0]).then_some("-DLOOK_UPS"));
    let driver = compile_driver(temp.path(), "every_driver.c", calls, &flags);
    let include = format!("-I{}", temp.path().display());
    let program = compile(temp.path(), "every.c", "every", &["-ldl", &include]);
    let program = program.expect("a program");
    let container = container(&machine, method, 3000);
    container.replace_driver(library, driver);
    let mut words = vec![program.as_str(), library.name];
    words.extend(all.then_some("all"));
    let output = container.command(&words).output().expect("it runs");
    assert!(output.status.success(), "{method:?} {output:?}");
    let row = |line: String| {
        let words: Vec<String> = line.split(' ').map(str::to_owned).collect();
        words.try_into().expect("four words")
    };
    lines(&output).into_iter().map(row).collect()
}

#[test]
fn passes_unhooked_calls_to_driver_with_their_arguments() {
    let own_calls = exported_calls();
    for method in INJECTION_METHODS {
        for (library, list) in LIBRARIES.into_iter().zip(NAMES) {
            let calls: Vec<_> = names(list).into_iter().map(|name| (name, 10)).collect();
            let real = if method == InjectionMethod::Replacement {
                library.real
            } else {
                library.name
            };
            let found = resolve_calls(method, library, &calls, false);
            // By dlsym, and in CUDA by three variants of cuGetProcAddress.
            let kinds = if library == LIBRARIES[0] { 4 } else { 1 };
            assert_eq!(
                found.len(),
                kinds * calls.len(),
                "{method:?} {}",
                library.name
            );
            for [name, how, file, lost] in found {
                // For an address, this driver returns the oldest variant, whose name has no suffix;
                // a caller that wants a newer one gets it.
                let newer = |one: &String| how != "dlsym" && is_newer(one, &name);
                let is_own = own_calls.contains(&name) || own_calls.iter().any(newer);
                let expected = if is_own { LIMITER } else { real };
                assert_eq!(file, expected, "{method:?} {name} by {how}");
                assert_eq!(lost, "0", "{method:?} {name} by {how}");
            }
        }
    }
}

#[test]
fn passes_unknown_newer_variant_to_driver() {
    // A driver that returns a variant which the table does not have.
    let calls = [
        ("cuCtxCreate", 3),
        ("cuCtxCreate_v4", 4),
        ("cuCtxCreate_v9", 9),
    ];
    for method in INJECTION_METHODS {
        for [name, how, file, lost] in resolve_calls(method, LIBRARIES[0], &calls, false) {
            let real = if method == InjectionMethod::Replacement {
                LIBRARIES[0].real
            } else {
                LIBRARIES[0].name
            };
            // The answer is then the ninth variant's, under another number.
            let newest = name == "cuCtxCreate" && how != "dlsym";
            let is_real = newest || name == "cuCtxCreate_v9";
            let file_expected = if is_real { real } else { LIMITER };
            assert_eq!(file, file_expected, "{method:?} {name} by {how}");
            assert_eq!(lost == "1", newest, "{method:?} {name} by {how}");
        }
    }
}

#[test]
fn passes_hooked_calls_that_simulator_lacks_with_arguments() {
    let calls = [
        ("cuStreamBeginRecaptureToGraph", 5),
        ("cuStreamBeginRecaptureToGraph_ptsz", 5),
        ("cuLaunch", 1),
        ("cuLaunchGrid", 3),
        ("cuLaunchGridAsync", 4),
        ("cuLaunchCooperativeKernelMultiDevice", 3),
        ("cuMemcpyBatchAsync", 8),
        ("cuMemcpyBatchAsync_ptsz", 8),
        ("cuMemcpyBatchAsync_v2", 8),
        ("cuMemcpyBatchAsync_v2_ptsz", 8),
    ];
    let of_nvml = [
        ("nvmlDeviceGetHandleByUUIDV", 2),
        ("nvmlDeviceGetRunningProcessDetailList", 2),
    ];
    for method in INJECTION_METHODS {
        for (library, calls, kinds) in [(LIBRARIES[0], &calls[..], 4), (LIBRARIES[1], &of_nvml, 1)]
        {
            let found = resolve_calls(method, library, calls, true);
            assert_eq!(found.len(), kinds * calls.len(), "{method:?}");
            for [name, how, file, lost] in found {
                assert_eq!(
                    (&*file, &*lost),
                    (LIMITER, "0"),
                    "{method:?} {name} by {how}"
                );
            }
        }
    }
}
