//! The program as a `createContainer` hook, with real mounts in a mount namespace of its own.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::process::{Command, Output};

use aliquot_shim::{COMPAT_LIBRARIES, LIBRARIES, compat_folder, compat_shim};
use serde_json::json;
use tempfile::TempDir;

/// `$1` mounts what is there before the container directory, `$2` is the program, the rest are paths
/// in the container whose last lines are printed afterwards.
const CREATE: &str = r#"
set -e
prepare=$1 hook=$2; shift 2
eval "$prepare"
mount --bind directory rootfs/.aliquot
mount -o remount,bind,ro rootfs/.aliquot
"$hook" compat "$PWD/version" <state
for path in "$@"; do
    line=$(tail -n 1 "rootfs$path")
    if (: >>"rootfs$path") 2>/dev/null; then line="$line, writable"; fi
    echo "$path: $line"
done
"#;

struct Bundle(TempDir);

impl Bundle {
    fn new() -> Self {
        let bundle = Self(tempfile::tempdir().expect("a folder"));
        let state = json!({"bundle": bundle.0.path()}).to_string();
        bundle.write("state", state.as_bytes());
        bundle.environment("PATH=/bin");
        bundle.folder("rootfs/.aliquot");
        bundle.write(
            &format!("version/{}", LIBRARIES[0].name),
            b"the driver's shim",
        );
        for index in 0..COMPAT_LIBRARIES {
            let shim = format!("shim {index}");
            bundle.write(&format!("version/{}", compat_shim(index)), shim.as_bytes());
            bundle.write(&placeholder("directory", index), b"");
        }
        bundle
    }

    fn at(&self, path: &str) -> PathBuf {
        self.0.path().join(path)
    }

    fn folder(&self, path: &str) {
        fs::create_dir_all(self.at(path)).expect("made");
    }

    fn write(&self, path: &str, content: &[u8]) {
        let path = self.at(path);
        fs::create_dir_all(path.parent().expect("a folder")).expect("made");
        fs::write(path, content).expect("written");
    }

    /// Writes an ELF file whose last line is `name`.
    fn library(&self, path: &str, name: &str) {
        let mut content = b"\x7fELF".to_vec();
        content.resize(64, b'.');
        content.extend(format!("\n{name}").bytes());
        self.write(path, &content);
    }

    fn link(&self, path: &str, target: &str) {
        let path = self.at(path);
        fs::create_dir_all(path.parent().expect("a folder")).expect("made");
        symlink(target, path).expect("linked");
    }

    fn environment(&self, variable: &str) {
        let config =
            json!({"root": {"path": "rootfs"}, "process": {"cwd": "/", "env": [variable]}});
        self.write("config.json", config.to_string().as_bytes());
    }

    fn create(&self, prepare: &str, paths: &[&str]) -> Output {
        Command::new("unshare")
            .args(["--mount", "--propagation", "private", "sh", "-c", CREATE])
            .args(["create", prepare, env!("CARGO_BIN_EXE_aliquot-hook")])
            .args(paths)
            .current_dir(self.0.path())
            .output()
            .expect("it runs")
    }

    /// Checks the last line of each file of the container afterwards.
    fn check(&self, prepare: &str, expected: &[(&str, &str)]) {
        let paths: Vec<&str> = expected.iter().map(|(path, _)| *path).collect();
        let output = self.create(prepare, &paths);
        assert!(output.status.success(), "{output:?}");
        let lines = expected
            .iter()
            .map(|(path, line)| format!("{path}: {line}"));
        let found = String::from_utf8_lossy(&output.stdout);
        let found: Vec<&str> = found.lines().collect();
        assert_eq!(found, lines.collect::<Vec<_>>());
    }

    fn check_failure(&self, prepare: &str, words: &str) {
        let output = self.create(prepare, &[]);
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        let stderr = String::from_utf8_lossy(&output.stderr);
        let is_one_line = stderr.lines().count() == 1;
        assert!(is_one_line && stderr.contains(words), "{stderr}");
    }
}

/// Where the shim of this index finds the real library, in a container directory.
fn placeholder(directory: &str, index: usize) -> String {
    let folder = compat_folder(index);
    format!("{directory}/lib/{folder}/{}", LIBRARIES[0].real)
}

#[test]
fn mounts_shim_over_each_compat_library_of_the_image() {
    let bundle = Bundle::new();
    let libraries = [
        ("/usr/local/cuda-13.1/compat/libcuda.so.590.44.01", "590"),
        (
            "/usr/local/cuda-12.9/compat/lib.real/libcuda.so.575.57",
            "575",
        ),
        ("/opt/named/libcuda.so.1", "570"),
        ("/opt/configured/libcuda.so.580.95", "580"),
        ("/usr/lib64/libcuda.so.550.54", "550"),
    ];
    for (path, version) in libraries {
        bundle.library(&format!("rootfs{path}"), version);
    }
    for (link, target) in [
        ("cuda-13.1/compat/libcuda.so.1", "libcuda.so.590.44.01"),
        ("cuda", "/usr/local/cuda-13.1"),
        ("cuda-12.9/compat/lib", "lib.real"),
    ] {
        bundle.link(&format!("rootfs/usr/local/{link}"), target);
    }
    let too_long = "x".repeat(300);
    bundle.environment(&format!(
        "LD_LIBRARY_PATH=/nowhere:/{too_long}:/empty;/opt/named"
    ));
    let include = b"include /etc/ld.so.conf.d/*.conf\n";
    bundle.write("rootfs/etc/ld.so.conf", include);
    let folder = b"# CUDA\n/opt/configured\n";
    bundle.write("rootfs/etc/ld.so.conf.d/cuda.conf", folder);
    let shims = [0, 1, 2, 3, 4].map(|index| format!("shim {index}"));
    let reals = [0, 1, 2, 3, 4, 5].map(|index| placeholder("/.aliquot", index));
    let mut expected = vec![(&*reals[5], "")];
    for (index, (path, version)) in libraries.into_iter().enumerate() {
        expected.extend([(path, &*shims[index]), (&reals[index], version)]);
    }
    bundle.check("", &expected);
    let outside = fs::read(bundle.at(&format!("rootfs{}", libraries[0].0))).expect("read");
    assert!(outside.ends_with(b"590"), "only the container's namespace");
}

#[test]
fn mounts_compat_shims_only_over_foreign_libraries() {
    let bundle = Bundle::new();
    let replaced = "/usr/lib64/libcuda.so.580.82";
    bundle.library(&format!("rootfs{replaced}"), "580");
    bundle.write("rootfs/usr/lib64/libcuda.so.2", b"\x7fELF");
    bundle.write("rootfs/usr/lib64/libcuda.so.3", &[b'#'; 100]);
    bundle.folder("rootfs/usr/lib64/libcuda.so.4");
    bundle.link("rootfs/usr/lib64/libcuda.so.5", "nowhere");
    bundle.link("rootfs/usr/lib64/libcuda.so.6", "libcuda.so.6");
    let replaced_for_driver = "/usr/lib64/libcuda.so.590.44";
    bundle.library(&format!("rootfs{replaced_for_driver}"), "590");
    bundle.library(
        &format!("version/driver-1/{}", LIBRARIES[0].name),
        "its shim",
    );
    bundle.library("rootfs/usr/lib64/libcudart.so.13", "cudart");
    let prepare = format!(
        "mkfifo rootfs/usr/lib64/libcuda.so.7
         mount --bind version/{name} rootfs{replaced}
         mount -o remount,bind,ro rootfs{replaced}
         mount --bind version/driver-1/{name} rootfs{replaced_for_driver}
         mount -o remount,bind,ro rootfs{replaced_for_driver}",
        name = LIBRARIES[0].name
    );
    bundle.check(
        &prepare,
        &[
            (replaced, "the driver's shim"),
            (replaced_for_driver, "its shim"),
            (&placeholder("/.aliquot", 0), ""),
        ],
    );
}

#[test]
fn mounts_no_compat_shim_outside_the_image() {
    let bundle = Bundle::new();
    bundle.library("outside/libcuda.so.1", "of the host");
    let outside = bundle.at("outside").display().to_string();
    bundle.link("rootfs/usr/local/cuda-12/compat", "../../../../outside");
    bundle.link("rootfs/usr/local/cuda-13/compat", &outside);
    bundle.link(
        "rootfs/usr/lib/libcuda.so.1",
        &format!("{outside}/libcuda.so.1"),
    );
    bundle.environment("LD_LIBRARY_PATH=/../outside:../outside");
    bundle.check(
        "",
        &[
            ("/../outside/libcuda.so.1", "of the host, writable"),
            (&placeholder("/.aliquot", 0), ""),
        ],
    );
}

#[test]
fn compat_mounts_stay_in_the_container() {
    let bundle = Bundle::new();
    bundle.library("rootfs/usr/local/cuda/compat/libcuda.so.1", "590");
    // As in a container with a volume of mountPropagation Bidirectional.
    bundle.check(
        "mount --bind directory directory; mount --make-shared directory",
        &[
            (&placeholder("/.aliquot", 0), "590"),
            (&placeholder("/../directory", 0), ", writable"),
        ],
    );
}

#[test]
fn fails_with_message_when_compat_shim_cannot_be_mounted() {
    let library = "rootfs/usr/local/cuda/compat/libcuda.so.1";
    let bundle = Bundle::new();
    bundle.library(library, "590");
    bundle.check_failure(
        "mount --bind rootfs/usr rootfs/usr; mount --make-shared rootfs/usr",
        "/usr/local/cuda/compat/libcuda.so.1: mounts in its volume propagate",
    );
    let first = placeholder("/.aliquot", 0);
    let prepare = format!("rm {}", placeholder("directory", 0));
    bundle.check_failure(&prepare, &format!("cannot read {first} in the container"));
    bundle.check_failure("rm version/compat-3.so", "/version/compat-3.so");
    let bundle = Bundle::new();
    for index in 0..=COMPAT_LIBRARIES {
        bundle.library(&format!("{library}.{index}"), "590");
    }
    bundle.check_failure(
        "",
        "expected at most 8: /usr/local/cuda/compat/libcuda.so.1.0, ",
    );
    fs::remove_file(bundle.at(&format!("{library}.0"))).expect("removed");
    bundle.check(
        "",
        &[(&placeholder("/.aliquot", COMPAT_LIBRARIES - 1), "590")],
    );
}
