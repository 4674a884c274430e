//! The golden files of the wire types are still what the Go types write.

use std::path::Path;
use std::process::Command;

/// The crates with copies.
const CRATES: [&str; 2] = ["k8s", "device-plugin"];

#[test]
fn golden_files_match_what_go_types_write() {
    let crate_dir = Path::new(env!("CARGO_MANIFEST_DIR"));
    let build = Command::new(crate_dir.join("build.sh")).output().unwrap();
    assert!(build.status.success(), "{build:?}");
    let binaries = String::from_utf8(build.stdout).unwrap();
    let fresh = tempfile::tempdir().unwrap();
    let written = Command::new(Path::new(binaries.trim()).join("clustertool"))
        .arg("golden")
        .arg("-dir")
        .arg(fresh.path())
        .status()
        .unwrap();
    assert!(written.success());

    let mut compared = 0;
    for directory in CRATES {
        let golden = crate_dir.join("../..").join(directory).join("tests/golden");
        for file in std::fs::read_dir(&golden).unwrap() {
            let golden_file = file.unwrap().path();
            let name = golden_file.file_name().unwrap();
            let go = std::fs::read_to_string(fresh.path().join(name)).unwrap();
            let ours = std::fs::read_to_string(&golden_file).unwrap();
            assert_eq!(ours, go, "{}", golden_file.display());
            compared += 1;
        }
    }
    let all = std::fs::read_dir(fresh.path()).unwrap().count();
    assert_eq!(compared, all, "a file that is not compared");
}
