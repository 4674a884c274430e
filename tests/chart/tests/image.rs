//! The image that images/build.sh builds from binaries; dockerfile.rs runs images/Dockerfile.
#![allow(clippy::unwrap_used, reason = "the helpers of tests fail the test")]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use aliquot_chart::image::{Image, LIMITER, PROGRAMS, TOOLKIT};
use aliquot_chart::top;
use serde_json::Value;

/// A Go program of this machine, of which there is one wherever there is Go.
fn go_program() -> PathBuf {
    let root = Command::new("go").args(["env", "GOROOT"]).output().unwrap();
    let root = String::from_utf8(root.stdout).unwrap();
    Path::new(root.trim()).join("bin/gofmt")
}

/// The result of build.sh for programs of this machine, in place of Aliquot's.
fn made() -> Image {
    let room = tempfile::tempdir().unwrap();
    let folder = room.path().join("release");
    std::fs::create_dir(&folder).unwrap();
    for program in PROGRAMS.iter().chain(&LIMITER) {
        std::fs::copy("/bin/true", folder.join(program)).unwrap();
    }
    for program in TOOLKIT {
        std::fs::copy(go_program(), folder.join(program)).unwrap();
    }
    let archive = room.path().join("image.tar");
    let output = Command::new(top("images/build.sh"))
        .args([&folder, &archive])
        .env("LIMITER", &folder)
        .env("TOOLKIT", &folder)
        .env("NEWEST_GLIBC", "9.9")
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    Image::open(&archive, room.path()).unwrap()
}

/// Aliquot's programs use a glibc that has them in libc, NVIDIA's libraries an older one.
#[test]
fn image_has_libraries_that_nvidia_libraries_need() {
    let made = made();
    let at = |name: &str| {
        let mut found = made.files.iter().filter(|path| path.ends_with(name));
        let path = found.next().unwrap_or_else(|| panic!("no {name}"));
        assert!(found.next().is_none(), "{name} twice");
        path.trim_end_matches(name).to_owned()
    };
    let libc = at("/libc.so.6");
    for name in [
        "/libdl.so.2",
        "/libpthread.so.0",
        "/librt.so.1",
        "/libm.so.6",
    ] {
        assert_eq!(at(name), libc, "{name}");
    }
}

#[test]
fn base_images_are_pinned_by_digest() {
    let text = std::fs::read_to_string(top("images/Dockerfile")).unwrap();
    let froms = text.lines().filter(|line| line.starts_with("FROM "));
    let images: Vec<&str> = { froms.flat_map(|line| line.split(' ')) }
        .filter(|word| word.contains(':'))
        .collect();
    assert!(!images.is_empty());
    for image in images {
        let digest = image
            .split_once("@sha256:")
            .map_or("", |(_, digest)| digest);
        let is_hex = digest.bytes().all(|byte| byte.is_ascii_hexdigit());
        assert!(
            digest.len() == 64 && is_hex,
            "{image}, expected: @sha256: and its digest"
        );
    }
}

/// The packages of the SBOM for this machine's image or other crates, by name; their versions.
fn sbom(modules: &str, crates: &[&str]) -> BTreeMap<String, Value> {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("modules");
    std::fs::write(&file, modules).unwrap();
    let mut script = Command::new(top("images/sbom.sh"));
    let output = script
        .arg("1.2.3")
        .arg(&file)
        .args(crates)
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    let sbom: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(sbom["spdxVersion"], "SPDX-2.3");
    assert_eq!(sbom["name"], "aliquot-1.2.3");
    let packages = sbom["packages"].as_array().unwrap().iter();
    let named = |one: &Value| (one["name"].as_str().unwrap().to_owned(), one.clone());
    packages.map(named).collect()
}

#[test]
fn sbom_lists_what_is_linked_and_nothing_else() {
    let modules = "/a/nvidia-ctk: go1.26.8\n\tpath\texample.org/main/cmd/ctk\n\tmod\texample.org/main\tv1.2.0\t\n\
        \tdep\texample.org/linked\tv0.3.0\th1:a=\n\tdep\texample.org/old\tv0.1.0\th1:b=\n\
        \t=>\texample.org/new\tv0.2.0\th1:c=\n\tbuild\t-trimpath=true\n";
    let image = sbom(modules, &[]);
    assert_eq!(image["serde"]["checksums"][0]["algorithm"], "SHA256");
    for linked in [
        "aliquot-scheduler",
        "aliquot-limiter",
        "ring",
        "kube",
        "rust-std",
    ] {
        assert!(image.contains_key(linked), "{linked}");
    }
    for other in ["proptest", "serde_derive", "aliquot-gpusim"] {
        assert!(!image.contains_key(other), "{other}");
    }
    let version = |name: &str| image[name]["versionInfo"].as_str().unwrap();
    assert_eq!(version("example.org/main"), "v1.2.0");
    assert_eq!(version("example.org/linked"), "v0.3.0");
    assert_eq!(version("example.org/new"), "v0.2.0");
    assert_eq!(version("stdlib"), "v1.26.8");
    assert!(!image.contains_key("example.org/old"));
    let cli = sbom("", &["x86_64-unknown-linux-gnu", "aliquot-cli"]);
    assert!(cli.contains_key("aliquot-cli") && cli.contains_key("rust-std"));
    for other in ["aliquot-scheduler", "stdlib"] {
        assert!(!cli.contains_key(other), "{other}");
    }
}
