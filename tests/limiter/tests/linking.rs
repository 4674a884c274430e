//! Programs that are linked in a container: compilers and linkers find the shim libraries where
//! they would find the driver's, and what they make is limited.

use std::fs::{self, File};
use std::path::Path;
use std::process::Command;

use aliquot_limiter_tests::scene::{container, machine, script};
use aliquot_limiter_tests::{InjectionMethod, TestContainer, client, lines};
use aliquot_shim::{
    Architecture, FOLDER, LIBRARIES, build_driver_shim, build_shim, exported_calls,
};

const SHARE: u64 = 3000;

/// Links the libraries to the names that linkers search for, as NVIDIA's toolkit does.
const PREPARE: &str = "
set -e
ln -s libcuda.so.1 /driver/libcuda.so
ln -s libnvidia-ml.so.1 /driver/libnvidia-ml.so
mkdir /made
";

/// Links `$1` by each linker and runs it; `$2` has lld, `$3` gold.
const LINK: &str = r#"
cc -O1 -c -o /made/program.o "$1"
for linker in bfd gold lld; do
    for libraries in "-lcuda -lnvidia-ml" "-l:libcuda.so.1 -l:libnvidia-ml.so.1"; do
        for needed in --as-needed --no-as-needed; do
            cc -B"$2" -B"$3" -fuse-ld=$linker -Wl,$needed -o /made/program /made/program.o \
                -L/driver $libraries
            needs=$(readelf -d /made/program |
                sed -n 's/.*(NEEDED).*\[\(libcuda.*\|libnvidia.*\)\]/\1/p')
            echo $linker $libraries $needed: $needs: $(/made/program)
        done
    done
done
"#;

/// What the programs about libraries print of the shim libraries.
const INSPECT: &str = r#"
mkdir /installed
cp /driver/libcuda.so.1 /installed/libcuda.so.580.82
cp /driver/libnvidia-ml.so.1 /installed/libnvidia-ml.so.580.82
ldconfig -n /installed
readlink /installed/libcuda.so.1 /installed/libnvidia-ml.so.1
nm -D --defined-only /driver/libcuda.so.1 | grep -c ' T cuMemAlloc_v2$'
nm -D --defined-only /driver/libnvidia-ml.so.1 | grep -c ' T nvmlInit_v2$'
readelf -d /driver/libcuda.so.1 | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p'
ldd /driver/libcuda.so.1 | sed -n 's/.*libcuda-real.so.1 => \([^ ]*\) .*/\1/p'
python3 -c 'import ctypes.util as util; print(util.find_library("cuda"))'
"#;

/// Links and runs a program that calls what `links_call_that_only_this_driver_has` defines.
const LINK_NEW_CALL: &str = r"
echo 'int cuInitOfNextDriver(void); int main(void) { return cuInitOfNextDriver(); }' >/made/new.c
cc -o /made/new /made/new.c -L/driver -Wl,--as-needed -lcuda
/made/new || echo $?
";

/// The lines that a script prints in this container.
fn run_script(container: &TestContainer, script: &str, arguments: &[&str]) -> Vec<String> {
    let script = format!("{PREPARE}{script}");
    let mut words = vec!["sh", "-c", &script, "script"];
    words.extend(arguments);
    let output = container.command(&words).output().expect("it starts");
    assert!(output.status.success(), "{output:?}");
    lines(&output)
}

/// The lines that a script prints in a container with shim libraries.
fn run_limited(script: &str, arguments: &[&str]) -> Vec<String> {
    let (_temp, machine) = machine();
    let container = container(&machine, InjectionMethod::Replacement, SHARE);
    run_script(&container, script, arguments)
}

fn source() -> String {
    client().replace("client.py", "linked.c")
}

/// The folder with the `ld.lld` of this Rust toolchain.
fn lld_folder() -> String {
    let print = |what| {
        let output = Command::new("rustc").args(["--print", what]).output();
        lines(&output.expect("rustc")).pop().expect("a line")
    };
    let folder = Path::new(&print("sysroot")).join("lib/rustlib");
    let folder = folder.join(print("host-tuple")).join("bin/gcc-ld");
    assert!(folder.join("ld.lld").exists(), "{}", folder.display());
    folder.display().to_string()
}

/// A folder with `ld.gold`, which Debian has in a package of its own since release 13.
fn gold_folder() -> String {
    if Command::new("ld.gold").arg("--version").output().is_ok() {
        return "/usr/bin".to_owned();
    }
    let folder = script("packages.sh", &["here", "binutils-gold"]).pop();
    let folder = folder.expect("a folder");
    format!("{folder}/usr/bin")
}

#[test]
fn links_with_each_linker_and_limits_the_program() {
    let found = run_limited(LINK, &[&source(), &lld_folder(), &gold_folder()]);
    let mut expected = Vec::new();
    for linker in ["bfd", "gold", "lld"] {
        for libraries in ["-lcuda -lnvidia-ml", "-l:libcuda.so.1 -l:libnvidia-ml.so.1"] {
            for needed in ["--as-needed", "--no-as-needed"] {
                expected.push(format!(
                    "{linker} {libraries} {needed}: libcuda.so.1 libnvidia-ml.so.1: 2 0 3000"
                ));
            }
        }
    }
    assert_eq!(found, expected);
}

#[test]
fn library_tools_read_shims_like_the_driver() {
    let found = run_limited(INSPECT, &[]);
    let expected = [
        "libcuda.so.580.82",
        "libnvidia-ml.so.580.82",
        "1",
        "1",
        "libvgpu.so",
        "libcuda-real.so.1",
        "/.aliquot/lib/libcuda-real.so.1",
        "libcuda.so.1",
    ];
    assert_eq!(found, expected);
}

#[test]
fn links_call_that_only_this_driver_has() {
    let (temp, machine) = machine();
    let container = container(&machine, InjectionMethod::Replacement, SHARE);
    let (source, driver) = (temp.path().join("driver.c"), temp.path().join("driver.so"));
    fs::write(&source, "int cuInitOfNextDriver(void) { return 7; }\n").expect("written");
    let status = Command::new("cc")
        .args(["-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", "-o"])
        .args([&driver, &source])
        .status();
    assert!(status.expect("cc").success());
    container.replace_driver(LIBRARIES[0], &driver);
    // As the node agent does.
    let mut file = File::open(&driver).expect("built");
    let calls = exported_calls(LIBRARIES[0], &mut file).expect("calls");
    assert_eq!(calls, ["cuInitOfNextDriver"]);
    let architecture = Architecture::HERE.expect("a shim library");
    let shim = container.directory().with_file_name("driver");
    let shim = shim.join(LIBRARIES[0].name);
    let content = build_driver_shim(LIBRARIES[0], &calls, architecture);
    fs::write(shim, content).expect("written");
    assert_eq!(run_script(&container, LINK_NEW_CALL, &[]), ["7"]);
}

#[test]
fn lld_links_shims_of_each_architecture() {
    let temp = tempfile::tempdir().expect("a folder");
    let linker = Path::new(&lld_folder()).join("ld.lld");
    for (architecture, emulation) in [
        (Architecture::X86_64, "elf_x86_64"),
        (Architecture::Aarch64, "aarch64linux"),
    ] {
        let shim = temp.path().join("shim.so");
        let shim_bytes = build_shim(LIBRARIES[0], FOLDER, architecture);
        fs::write(&shim, shim_bytes).expect("written");
        for (call, is_needed) in [("cuInit", true), ("cuInitOfNextDriver", false)] {
            let made = temp.path().join("made");
            let status = Command::new(&linker)
                .args(["-m", emulation, "--as-needed", "-e", call, "-o"])
                .args([&made, &shim])
                .status();
            assert!(status.expect("ld.lld").success(), "{emulation}");
            let output = Command::new("readelf").arg("-d").arg(&made).output();
            let needed = lines(&output.expect("readelf")).join("\n");
            let found = needed.contains("[libcuda.so.1]");
            assert_eq!(found, is_needed, "{emulation} {call}: {needed}");
        }
    }
}
