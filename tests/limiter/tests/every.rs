//! Every call that a driver has, on a driver that has them all: what the limiter's table does not
//! name is the driver's own, by every way in which it is found.

use std::path::{Path, PathBuf};
use std::process::Command;

use aliquot_facade::{LIBRARIES, LIMITER, Library};
use aliquot_limiter_tests::scene::{container, machine};
use aliquot_limiter_tests::{WAYS, Way, client, limiter, lines};

/// The names, by library, as the headers of a current driver declare them.
const NAMES: [&str; 2] = [
    include_str!("../../../limiter/names/cuda-13.5.txt"),
    include_str!("../../../limiter/names/nvml-13.5.txt"),
];
/// They give addresses, and are calls of the driver that is made here in their own right.
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
fn stood_in_for() -> Vec<String> {
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

fn compiled(room: &Path, source: &str, name: &str, flags: &[&str]) -> PathBuf {
    let made = room.join(name);
    let source = client().replace("client.py", source);
    let status = Command::new("cc")
        .args(["-O1", "-o"])
        .arg(&made)
        .arg("-I")
        .arg(room)
        .arg(source)
        .args(flags)
        .status()
        .expect("cc");
    assert!(status.success(), "{name}");
    made
}

/// What `every.c` says of these calls of a library, of which so many arguments count: name, way of
/// finding it, file, and whether arguments were lost. Those that are ours are called where `all`
/// says so.
fn found(way: Way, library: Library, calls: &[(&str, u32)], all: bool) -> Vec<[String; 4]> {
    let (room, machine) = machine();
    let rows: Vec<String> = (1..)
        .zip(calls)
        .map(|(number, (name, count))| format!(" X({number}, {name}, {count})"))
        .collect();
    std::fs::write(
        room.path().join("calls.h"),
        format!("#define CALLS(X){}\n", rows.concat()),
    )
    .expect("written");
    let soname = format!("-Wl,-soname,{}", library.name);
    let mut flags = vec!["-shared", "-fPIC", &soname];
    flags.extend((library == LIBRARIES[0]).then_some("-DLOOK_UPS"));
    let driver = compiled(room.path(), "every_driver.c", "driver.so", &flags);
    let program = compiled(room.path(), "every.c", "every", &["-ldl"]);
    let container = container(&machine, way, 3000);
    container.replace_driver(library, &driver).expect("copied");
    let program = program.display().to_string();
    let mut words = vec![program.as_str(), library.name];
    words.extend(all.then_some("all"));
    let output = container.command(&words).output().expect("it runs");
    assert!(output.status.success(), "{way:?} {output:?}");
    let row = |line: String| {
        let words: Vec<String> = line.split(' ').map(str::to_owned).collect();
        words.try_into().expect("four words")
    };
    lines(&output).into_iter().map(row).collect()
}

#[test]
fn every_call_that_passes_reaches_the_driver_with_its_arguments() {
    let ours = stood_in_for();
    for way in WAYS {
        for (library, list) in LIBRARIES.into_iter().zip(NAMES) {
            let calls: Vec<_> = names(list).into_iter().map(|name| (name, 10)).collect();
            let real = if way == Way::Replacement {
                library.real
            } else {
                library.name
            };
            let found = found(way, library, &calls, false);
            // By dlsym, and in CUDA by three forms of cuGetProcAddress.
            let ways = if library == LIBRARIES[0] { 4 } else { 1 };
            assert_eq!(found.len(), ways * calls.len(), "{way:?} {}", library.name);
            for [name, how, file, lost] in found {
                // Asked for an address, this driver gives the oldest variant, whose name has no
                // suffix; who wants a newer one gets it.
                let newer = |one: &String| how != "dlsym" && is_newer(one, &name);
                let is_ours = ours.contains(&name) || ours.iter().any(newer);
                let expected = if is_ours { LIMITER } else { real };
                assert_eq!(file, expected, "{way:?} {name} by {how}");
                assert_eq!(lost, "0", "{way:?} {name} by {how}");
            }
        }
    }
}

#[test]
fn a_newer_form_of_a_call_was_given_the_arguments_of_the_one_that_is_known() {
    // A driver that answers with a form which the table does not know.
    let calls = [
        ("cuCtxCreate", 3),
        ("cuCtxCreate_v4", 4),
        ("cuCtxCreate_v9", 9),
    ];
    for way in WAYS {
        for [name, how, file, lost] in found(way, LIBRARIES[0], &calls, false) {
            let real = if way == Way::Replacement {
                LIBRARIES[0].real
            } else {
                LIBRARIES[0].name
            };
            // The answer is the ninth form's then, under another number.
            let newest = name == "cuCtxCreate" && how != "dlsym";
            let is_real = newest || name == "cuCtxCreate_v9";
            let file_expected = if is_real { real } else { LIMITER };
            assert_eq!(file, file_expected, "{way:?} {name} by {how}");
            assert_eq!(lost == "1", newest, "{way:?} {name} by {how}");
        }
    }
}

#[test]
fn calls_that_the_simulator_lacks_reach_the_driver_with_their_arguments() {
    let calls = [
        ("cuStreamBeginRecaptureToGraph", 5),
        ("cuStreamBeginRecaptureToGraph_ptsz", 5),
        ("cuStreamBeginCaptureToCig", 2),
        ("cuStreamBeginCaptureToCig_ptsz", 2),
        ("cuStreamEndCaptureToCig", 1),
        ("cuStreamEndCaptureToCig_ptsz", 1),
        ("cuLibraryEnumerateKernels", 3),
        ("cuLibraryGetManaged", 4),
        ("cuLibraryGetUnifiedFunction", 3),
        ("cuLaunch", 1),
        ("cuLaunchGrid", 3),
        ("cuLaunchGridAsync", 4),
        ("cuLaunchCooperativeKernelMultiDevice", 3),
    ];
    let of_nvml = [
        ("nvmlDeviceGetHandleByUUIDV", 2),
        ("nvmlDeviceGetRunningProcessDetailList", 2),
    ];
    for way in WAYS {
        for (library, calls, ways) in [(LIBRARIES[0], &calls[..], 4), (LIBRARIES[1], &of_nvml, 1)] {
            let found = found(way, library, calls, true);
            assert_eq!(found.len(), ways * calls.len(), "{way:?}");
            for [name, how, file, lost] in found {
                assert_eq!((&*file, &*lost), (LIMITER, "0"), "{way:?} {name} by {how}");
            }
        }
    }
}
