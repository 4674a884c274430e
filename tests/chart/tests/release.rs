//! The scripts of a release, as its workflow runs them, with stand-ins for what takes long to build.
#![allow(clippy::unwrap_used, reason = "the helpers of tests fail the test")]

use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Command, Output};

use aliquot_chart::release::{self, DIGEST, PLATFORMS, REPOSITORY, SOURCE};
use aliquot_chart::{NAMESPACE, helm, objects, top};
use serde_json::{Value, json};

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap()
}

fn version() -> String {
    release::version().unwrap()
}

/// Runs a script with other inputs on top of those that the workflow gives it.
fn run(script: &str, arguments: &[&str], inputs: &[(&str, &str)]) -> Output {
    let mut script = release::script(script, arguments).unwrap();
    script.envs(inputs.iter().copied()).output().unwrap()
}

fn success(output: &Output) -> String {
    let err = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{err}");
    String::from_utf8(output.stdout.clone()).unwrap()
}

/// A script's one line of an error.
fn error(output: &Output) -> String {
    assert!(!output.status.success(), "{output:?}");
    let err = String::from_utf8(output.stderr.clone()).unwrap();
    assert_eq!(err.trim_end().lines().count(), 1, "{err}");
    err
}

fn sha256(file: &Path) -> String {
    let output = Command::new("sha256sum").arg(file).output().unwrap();
    let line = success(&output);
    line.split(' ').next().unwrap().to_owned()
}

#[test]
fn released_chart_names_its_image_by_digest() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().to_str().unwrap();
    success(&run("release/chart.sh", &[path], &[]));
    let package = folder.path().join(format!("aliquot-{}.tgz", version()));
    let package = package.to_str().unwrap();
    let all = [
        "template",
        "aliquot",
        package,
        "-n",
        NAMESPACE,
        "--set=devicePlugin.mps.enabled=true",
    ];
    let objects = objects(&helm(&all).unwrap().success().unwrap()).unwrap();
    let containers = objects.iter().flat_map(|object| object.containers());
    let images: Vec<&str> = containers.filter_map(|one| one["image"].as_str()).collect();
    let ours = format!("{REPOSITORY}:{}@{DIGEST}", version());
    let (own, others): (Vec<&str>, Vec<&str>) = images.iter().partition(|image| **image == ours);
    assert!(own.len() >= 6, "{images:?}");
    assert!(
        others
            .iter()
            .all(|image| image.contains("/kube-scheduler:")),
        "{others:?}"
    );

    let metadata = helm(&["show", "chart", package])
        .unwrap()
        .success()
        .unwrap();
    let metadata: Value = serde_saphyr::from_str(&metadata).unwrap();
    assert_eq!(metadata["sources"], json!([SOURCE]));
    for field in ["kubeVersion", "description"] {
        assert!(metadata[field].is_string(), "{field}");
    }
    assert!(metadata["maintainers"][0]["name"].is_string());
    let annotations = metadata["annotations"].as_object().unwrap();
    let images = annotations["artifacthub.io/images"].as_str().unwrap();
    let images: Value = serde_saphyr::from_str(images).unwrap();
    assert_eq!(images[0]["image"], ours);
    for file in ["aliquot/Chart.yaml", "aliquot/values.yaml"] {
        let checkout = top("charts").join(file);
        assert!(!read(&checkout).contains(REPOSITORY), "{file}");
    }
}

/// The rules of krew's own validation of a plugin.
#[test]
fn krew_manifest_names_each_archive_and_its_checksum() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().to_str().unwrap();
    release::programs(folder.path()).unwrap();
    success(&run("release/krew.sh", &[path], &[]));
    let manifest: Value =
        serde_saphyr::from_str(&read(&folder.path().join("aliquot.yaml"))).unwrap();
    assert_eq!(
        manifest["apiVersion"],
        "krew.googlecontainertools.github.com/v1alpha2"
    );
    assert_eq!(manifest["kind"], "Plugin");
    assert_eq!(manifest["metadata"]["name"], "aliquot");
    let (spec, version) = (&manifest["spec"], version());
    assert_eq!(spec["version"], format!("v{version}"));
    assert_eq!(spec["homepage"], SOURCE);
    assert!(!spec["shortDescription"].as_str().unwrap().contains('\n'));
    let mut platforms = BTreeMap::new();
    for platform in spec["platforms"].as_array().unwrap() {
        let labels = &platform["selector"]["matchLabels"];
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        let name = format!("{}_{}", text(&labels["os"]), text(&labels["arch"]));
        assert_eq!(platform["bin"], "kubectl-aliquot");
        platforms.insert(name, (text(&platform["uri"]), text(&platform["sha256"])));
    }
    assert_eq!(platforms.len(), PLATFORMS.len());
    for platform in PLATFORMS {
        let file = format!("kubectl-aliquot_{version}_{platform}.tar.gz");
        let (uri, sum) = &platforms[platform];
        assert_eq!(
            *uri,
            format!("{SOURCE}/releases/download/v{version}/{file}")
        );
        let archive = folder.path().join(file);
        assert_eq!(*sum, sha256(&archive));
        let list = Command::new("tar").arg("-tzf").arg(&archive).output();
        assert_eq!(success(&list.unwrap()), "LICENSE\nkubectl-aliquot\n");
    }
}

/// A script and its arguments, one of its inputs, and a part of the error.
const WRONG_INPUTS: &str = r#"
check.sh | TAG=v9.9.9 | TAG is "v9.9.9", expected: v
chart.sh | TAG= | FOLDER is "", expected: the folder
chart.sh FOLDER | DIGEST=sha256:00 | DIGEST is "sha256:00", expected: sha256:
chart.sh FOLDER | REPOSITORY=aliquot | REPOSITORY is "aliquot", expected: where
chart.sh FOLDER | SOURCE= | SOURCE is "", expected: the address
krew.sh FOLDER | DOWNLOADS=ftp://a | DOWNLOADS is "ftp://a", expected:
krew.sh FOLDER | DOWNLOADS=https://a.example.com | no kubectl-aliquot_
kubectl-aliquot.sh mips | TAG= | TARGET is "mips", expected: x86_64-
"#;

#[test]
fn release_scripts_name_a_wrong_input_and_what_is_expected() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().to_str().unwrap();
    for row in WRONG_INPUTS.trim().lines() {
        let [line, input, expected] = *row.split(" | ").collect::<Vec<_>>() else {
            panic!("{row}");
        };
        let mut words = line
            .split(' ')
            .map(|word| if word == "FOLDER" { path } else { word });
        let script = words.next().unwrap();
        let arguments: Vec<&str> = words.collect();
        let input = input.split_once('=').unwrap();
        let error = error(&run(&format!("release/{script}"), &arguments, &[input]));
        assert!(error.starts_with(&format!("{script}: ")), "{error}");
        assert!(error.contains(expected), "{script}: {error}");
    }
}

/// Between releases only the date is missing.
#[test]
fn version_fits_chart_and_changelog() {
    let output = run("release/check.sh", &[], &[]);
    if output.status.success() {
        let notes = success(&output);
        assert!(notes.lines().any(|line| line.starts_with("- ")), "{notes}");
    } else {
        let error = error(&output);
        let missing = format!("\"unreleased\" as the date of {}, expected: ", version());
        assert!(error.contains(&missing), "{error}");
    }
}

/// The steps of all workflows, each with its file's name.
fn steps() -> Vec<(String, Value)> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(top(".github/workflows")).unwrap() {
        let path = entry.unwrap().path();
        let file = path.file_name().unwrap().to_string_lossy();
        let workflow: Value = serde_saphyr::from_str(&read(&path)).unwrap();
        assert_eq!(
            workflow["permissions"],
            json!({"contents": "read"}),
            "{file}"
        );
        for (name, job) in workflow["jobs"].as_object().unwrap() {
            let steps = job["steps"].as_array().unwrap();
            found.extend(
                steps
                    .iter()
                    .map(|step| (format!("{file} {name}"), step.clone())),
            );
        }
    }
    found
}

/// Nobody else can change what a workflow uses.
#[test]
fn workflows_use_pinned_actions() {
    let mut actions = 0;
    for (at, step) in steps() {
        if let Some(action) = step["uses"].as_str() {
            let (name, commit) = action.split_once('@').unwrap();
            let is_commit = commit.len() == 40 && commit.bytes().all(|one| one.is_ascii_hexdigit());
            let owner = name.split('/').next().unwrap_or_default();
            assert!(
                is_commit && ["actions", "docker", "sigstore"].contains(&owner),
                "{at}: {action}, expected: the commit of an action of GitHub, Docker or Sigstore"
            );
            actions += 1;
        }
    }
    assert!(actions > 0);
}
