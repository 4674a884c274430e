//! The image that images/build.sh builds from binaries, and the instructions of images/Dockerfile, which
//! must build the same; dockerfile.rs runs them.
#![allow(clippy::unwrap_used, reason = "the helpers of tests fail the test")]

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use aliquot_chart::image::{Image, LIMITER, PROGRAMS, TOOLKIT};
use aliquot_chart::top;
use serde_json::Value;

fn read(path: &str) -> String {
    std::fs::read_to_string(top(path)).unwrap()
}

/// The value of a field of Cargo.toml that applies to all crates.
fn version() -> String {
    let text = read("Cargo.toml");
    let mut lines = text.lines();
    let version = lines.find_map(|line| line.strip_prefix("version = "));
    version.unwrap().trim_matches('"').to_owned()
}

/// An instruction of the Dockerfile and its words, lines joined and comments left out.
fn instructions() -> Vec<(String, Vec<String>)> {
    let text = read("images/Dockerfile");
    let lines = text.lines().filter(|line| !line.trim().starts_with('#'));
    let text = lines.collect::<Vec<_>>().join("\n").replace("\\\n", " ");
    let lines = text.lines().filter(|line| !line.trim().is_empty());
    lines
        .map(|line| {
            let mut words = line.split_whitespace().map(str::to_owned);
            (words.next().unwrap(), words.collect())
        })
        .collect()
}

/// The destinations of the Dockerfile's last stage.
fn copied() -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    let mut all = instructions();
    let last = all.iter().rposition(|(one, _)| one == "FROM").unwrap();
    for (instruction, words) in all.split_off(last) {
        let stages = ["--from=build", "--from=toolkit"];
        if instruction != "COPY" || !stages.contains(&words[0].as_str()) {
            continue;
        }
        let (folder, sources) = words[1..].split_last().unwrap();
        assert!(folder.ends_with('/'), "{folder}: several files, one folder");
        for source in sources {
            let name = Path::new(source).file_name().unwrap().to_str().unwrap();
            found.insert(format!("{folder}{name}"), source.clone());
        }
    }
    found
}

/// A Go program of this machine, of which there is one wherever there is Go.
fn go_program() -> PathBuf {
    let root = Command::new("go").args(["env", "GOROOT"]).output().unwrap();
    let root = String::from_utf8(root.stdout).unwrap();
    Path::new(root.trim()).join("bin/gofmt")
}

/// The result of build.sh for programs of this machine, in place of Aliquot's.
fn made(name: &[&str]) -> Image {
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
        .args(name)
        .env("LIMITER", &folder)
        .env("TOOLKIT", &folder)
        .env("NEWEST_GLIBC", "9.9")
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    Image::open(&archive, room.path()).unwrap()
}

#[test]
fn both_image_builds_contain_the_same_files() {
    let made = made(&[]);
    let ours = |path: &&String| path.starts_with("/usr/local/") || path.starts_with("/usr/share/");
    let by_script: Vec<&String> = made.files.iter().filter(ours).collect();
    let copied = copied();
    assert_eq!(by_script, copied.keys().collect::<Vec<_>>());
    let programs = PROGRAMS.len() + LIMITER.len() + TOOLKIT.len();
    assert_eq!(copied.len(), programs + 1, "with the SBOM");
    // Nothing but their libraries.
    let others = made.files.iter().filter(|path| !ours(path));
    for path in others {
        let library = path.contains(".so") && path.contains("/lib");
        assert!(library || path == "/etc/passwd", "{path}");
    }
}

/// Aliquot's programs use a glibc that has them in libc, NVIDIA's libraries an older one.
#[test]
fn image_has_libraries_that_nvidia_libraries_need() {
    let made = made(&[]);
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
    // The other image is built on a base that has them all.
    let mut bases = instructions().into_iter().filter(|(one, _)| one == "FROM");
    let base = bases.next_back().unwrap().1.join(" ");
    assert!(base.starts_with("gcr.io/distroless/cc-"), "{base}");
}

#[test]
fn dockerfile_builds_what_it_copies() {
    let all = instructions();
    let runs: Vec<String> = all
        .iter()
        .filter(|(instruction, _)| instruction == "RUN")
        .map(|(_, words)| words.join(" "))
        .collect();
    let run_with = |text: &str| runs.iter().find(|run| run.contains(text)).unwrap();
    let builds = run_with("cargo build");
    let mut made: BTreeSet<String> = LIMITER.map(|file| format!("/limiter/{file}")).into();
    made.insert("/sbom.spdx.json".to_owned());
    made.extend(TOOLKIT.map(|file| format!("/toolkit/{file}")));
    let words: Vec<&str> = builds.split(' ').collect();
    for pair in words.windows(2).filter(|pair| pair[0] == "-p") {
        let room = pair[1].trim_start_matches("aliquot-");
        let manifest = read(&format!("{room}/Cargo.toml"));
        assert!(
            manifest.contains(&format!("name = \"{}\"", pair[1])),
            "{room}"
        );
        let program = match room {
            "cli" => "kubectl-aliquot",
            _ => pair[1],
        };
        let named = manifest.contains(&format!("name = \"{program}\""));
        assert!(named && top(&format!("{room}/src/main.rs")).exists());
        made.insert(format!("/src/target/release/{program}"));
    }
    let copied: BTreeSet<String> = copied().into_values().collect();
    assert_eq!(copied, made);
    assert!(builds.contains(" /modules >/sbom.spdx.json"), "{builds}");
    run_with("cp libvgpu.so aliquot-hook /limiter/");
    let module = "github.com/NVIDIA/nvidia-container-toolkit";
    let built = run_with(&format!("module={module} "));
    assert!(built.contains(">/modules"), "{built}");
    for program in TOOLKIT {
        assert!(built.contains(&format!("$module/cmd/{program}")), "{built}");
        assert!(built.contains(&format!(" /toolkit/{program} ")), "{built}");
        let tool = format!("{module}/cmd/{program}\n");
        assert!(
            read("tests/toolkit/newest/go.mod").contains(&tool),
            "{program}"
        );
    }
    // Scripts that it runs exist, are executable, and are in the build context.
    let ignored = read("images/Dockerfile.dockerignore");
    for script in ["images/sbom.sh", "limiter/build.sh"] {
        assert!(runs.iter().any(|run| run.contains(script)), "{script}");
        let rights = std::fs::metadata(top(script)).unwrap().permissions().mode();
        assert_eq!(rights & 0o111, 0o111, "{script}");
        assert!(
            !ignored.lines().any(|line| script.starts_with(line)),
            "{script}"
        );
    }
    let toolchain = read("rust-toolchain.toml");
    let bases = all.iter().filter(|(one, _)| one == "FROM");
    let mut rust = bases.filter_map(|(_, words)| words[0].strip_prefix("rust:"));
    let (rust, _) = rust.next_back().unwrap().split_once("-bookworm").unwrap();
    assert!(
        toolchain.contains(&format!("channel = \"{rust}")),
        "{rust}: {toolchain}"
    );
}

/// The images that instructions name: all but the stages of the Dockerfile.
fn named_images(instructions: &[(String, Vec<String>)]) -> Vec<String> {
    let (mut images, mut stages) = (Vec::new(), Vec::new());
    for (instruction, words) in instructions {
        let image = if instruction == "FROM" {
            words.iter().find(|word| !word.starts_with("--")).cloned()
        } else {
            let mut froms = words.iter().filter_map(|word| word.strip_prefix("--from="));
            froms.next().map(str::to_owned)
        };
        images.extend(image.filter(|image| !stages.contains(image)));
        if let [.., keyword, stage] = words.as_slice()
            && instruction == "FROM"
            && keyword == "AS"
        {
            stages.push(stage.clone());
        }
    }
    images
}

#[test]
fn base_images_are_pinned_by_digest() {
    let images = named_images(&instructions());
    let names = ["almalinux:", "golang:", "rust:", "gcr.io/distroless/cc-"];
    assert_eq!(images.len(), names.len(), "{images:?}");
    for (image, name) in images.iter().zip(names) {
        let digest = image.split_once("@sha256:").map(|(_, digest)| digest);
        let is_hex = |digest: &str| {
            digest.len() == 64 && digest.bytes().all(|byte| byte.is_ascii_hexdigit())
        };
        assert!(
            image.starts_with(name) && digest.is_some_and(is_hex),
            "{image}, expected: {name}…@sha256: and its digest"
        );
    }
}

#[test]
fn images_have_labels_and_run_as_nonroot() {
    let made = made(&[]);
    let config = &made.config["config"];
    let all = instructions();
    let of = |name: &str| {
        let mut found = all.iter().filter(|(one, _)| one == name);
        found.next_back().unwrap().1.clone()
    };
    assert_eq!(of("USER"), [config["User"].as_str().unwrap()]);
    let labels = of("LABEL");
    let labels: BTreeSet<&str> = labels.iter().filter_map(|l| l.split('=').next()).collect();
    let theirs = config["Labels"].as_object().unwrap();
    assert_eq!(labels, theirs.keys().map(String::as_str).collect());
    let version = version();
    assert_eq!(theirs["org.opencontainers.image.version"], *version);
    let argument = (String::from("ARG"), vec![format!("VERSION={version}")]);
    assert!(all.contains(&argument));
    // The SBOM is that of what is linked.
    let packages = made.sbom["packages"].as_array().unwrap();
    for linked in ["aliquot-scheduler", "aliquot-limiter", "stdlib"] {
        assert!(packages.iter().any(|one| one["name"] == linked), "{linked}");
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

/// A name without a registry would be one at docker.io that somebody else could own.
#[test]
fn imported_image_has_default_name() {
    let version = version();
    for (name, expected) in [
        (&[][..], format!("localhost/aliquot:{version}")),
        (&["aliquot:1"], "docker.io/library/aliquot:1".to_owned()),
        (
            &["localhost/aliquot:test"],
            "localhost/aliquot:test".to_owned(),
        ),
        (&["registry:5000/a/b:1"], "registry:5000/a/b:1".to_owned()),
    ] {
        let annotations = made(name).annotations;
        assert_eq!(
            annotations["io.containerd.image.name"], expected,
            "{name:?}"
        );
    }
}
