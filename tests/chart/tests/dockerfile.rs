//! The image that images/Dockerfile builds, on base images of Debian's packages (dockerfile.sh).
#![allow(clippy::unwrap_used, reason = "the helpers of tests fail the test")]

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use aliquot_chart::image::{Image, PROGRAMS, SBOM, TOOLKIT, USER, own_files};
use aliquot_chart::{release, top};

/// What a command printed; it must succeed and report nothing.
fn printed(command: &mut Command) -> String {
    let output = command.output().unwrap();
    let err = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success() && err.is_empty(),
        "{command:?}: {err}"
    );
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

/// A program of the image, in the image, as the user of the image.
fn inside(image: &Image, program: &str) -> Command {
    let user = image.config["config"]["User"].as_str().unwrap();
    let mut command = Command::new("/usr/sbin/chroot");
    command.arg(format!("--userspec={user}"));
    command.arg(&image.root).arg(program).env_clear();
    command
}

/// The release of NVIDIA's container toolkit that go.mod names.
fn toolkit_version() -> String {
    let go_mod = std::fs::read_to_string(top("hack/toolkit/go.mod")).unwrap();
    let mut words = go_mod.split_whitespace();
    words.find(|word| *word == "github.com/NVIDIA/nvidia-container-toolkit");
    let mut rest = words.skip_while(|word| !word.starts_with('v'));
    rest.next().unwrap().trim_start_matches('v').to_owned()
}

fn check_files(image: &Image) {
    let ours = |path: &&String| path.starts_with("/usr/local/") || path.as_str() == SBOM;
    let found: BTreeSet<String> = image.files.iter().filter(ours).cloned().collect();
    assert_eq!(found, own_files());
    let shells = ["sh", "bash", "dash", "busybox", "apt", "apt-get", "dpkg"];
    for path in &image.files {
        let name = Path::new(path).file_name().unwrap().to_str().unwrap();
        assert!(!shells.contains(&name), "{path}");
    }
}

fn check_config(image: &Image) {
    let name = &image.annotations["org.opencontainers.image.ref.name"];
    let version = release::version().unwrap();
    assert_eq!(*name, format!("localhost/aliquot:{version}"));
    let config = &image.config["config"];
    assert_eq!(config["User"], USER);
    let mut git = Command::new("git");
    let head = printed(git.args(["rev-parse", "HEAD"]).current_dir(top(".")));
    for (label, value) in [
        ("title", "aliquot"),
        ("version", &version),
        ("revision", &head),
    ] {
        let label = format!("org.opencontainers.image.{label}");
        assert_eq!(config["Labels"][&label], value, "{label}");
    }
}

fn check_programs(image: &Image) {
    let version = release::version().unwrap();
    for program in PROGRAMS {
        let path = format!("/usr/local/bin/{program}");
        let line = printed(inside(image, &path).arg("--version"));
        assert_eq!(line, format!("{program} {version}"));
    }
    let toolkit = toolkit_version();
    for program in TOOLKIT {
        let path = format!("/usr/local/lib/aliquot/{program}");
        let lines = printed(inside(image, &path).arg("--version"));
        assert!(lines.contains(&format!("version {toolkit}")), "{lines}");
    }
    // The loader reports a library that it cannot preload.
    let mut loaders = image
        .files
        .iter()
        .filter(|path| path.contains("/ld-linux-"));
    let mut preloaded = inside(image, loaders.next().unwrap());
    preloaded.args(["--preload", "/usr/local/lib/aliquot/libvgpu.so"]);
    printed(preloaded.args(["/usr/local/bin/aliquot-scheduler", "--version"]));
    let hook = inside(image, "/usr/local/lib/aliquot/aliquot-hook").output();
    let usage = String::from_utf8(hook.unwrap().stderr).unwrap();
    assert!(usage.starts_with("usage: aliquot-hook"), "{usage}");
}

fn check_sbom(image: &Image) {
    let packages = image.sbom["packages"].as_array().unwrap();
    let version = |name: &str| {
        let mut found = packages.iter().filter(|package| package["name"] == name);
        found.next().unwrap()["versionInfo"].as_str().unwrap()
    };
    let toolkit = version("github.com/NVIDIA/nvidia-container-toolkit");
    assert_eq!(toolkit, format!("v{}", toolkit_version()));
    for program in ["aliquot-scheduler", "aliquot-limiter", "aliquot-hook"] {
        assert_eq!(version(program), release::version().unwrap());
    }
    assert!(version("stdlib").starts_with("v1."));
}

#[test]
fn dockerfile_builds_image_whose_programs_run() {
    let folder = tempfile::tempdir().unwrap();
    let archive = folder.path().join("image.tar");
    let script = top("tests/chart/dockerfile.sh");
    let mut build = Command::new(script);
    let status = build.arg(&archive).status().unwrap();
    assert!(status.success(), "{status}");
    let image = Image::open(&archive, folder.path()).unwrap();
    check_files(&image);
    check_config(&image);
    check_programs(&image);
    check_sbom(&image);
}
