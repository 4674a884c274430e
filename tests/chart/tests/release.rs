//! The scripts of a release, as its workflow runs them, with stand-ins for what takes long to build.
#![allow(clippy::unwrap_used, reason = "the helpers of tests fail the test")]

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::{Command, Output};

use aliquot_chart::release::{self, PLATFORMS, REPOSITORY, SOURCE};
use aliquot_chart::{NAMESPACE, helm, objects, top};
use serde_json::{Value, json};

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap()
}

fn version() -> String {
    release::version().unwrap()
}

/// Runs a script with the inputs that the workflow gives it.
fn run(script: &str, arguments: &[&str]) -> Output {
    let mut script = release::script(script, arguments).unwrap();
    script.output().unwrap()
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

/// An OCI archive of an image for a machine, whose only file is its SBOM.
fn image(folder: &Path, machine: &str) {
    let script = r#"set -euo pipefail
        cd "$1" && rm -rf work && mkdir -p work/usr/share/aliquot work/oci/blobs/sha256 && cd work
        store() { local d; d=$(sha256sum "$1" | cut -d' ' -f1); mv "$1" "oci/blobs/sha256/$d"
            printf '"digest":"sha256:%s","size":%s' "$d" "$(stat -c %s "oci/blobs/sha256/$d")"; }
        echo "{\"name\":\"$2\"}" >usr/share/aliquot/sbom.spdx.json
        tar -cf - usr | gzip >layer
        layer=$(store layer)
        echo "{\"architecture\":\"$2\",\"os\":\"linux\"}" >config
        config=$(store config)
        echo "{\"schemaVersion\":2,\"config\":{$config},\"layers\":[{$layer}]}" >manifest
        type=application/vnd.oci.image.manifest.v1+json
        echo "{\"schemaVersion\":2,\"manifests\":[{\"mediaType\":\"$type\",$(store manifest)}]}" >oci/index.json
        tar -C oci -cf "../image-$2.tar" . && cd .. && rm -r work"#;
    let mut bash = Command::new("bash");
    let output = bash.args(["-c", script, "image"]).arg(folder).arg(machine);
    success(&output.output().unwrap());
}

/// The files of a release.
fn assembled() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().to_str().unwrap();
    for machine in ["amd64", "arm64"] {
        image(folder.path(), machine);
    }
    release::programs(folder.path()).unwrap();
    success(&run("release/assemble.sh", &[path]));
    folder
}

#[test]
fn released_chart_names_its_image_by_digest() {
    let folder = assembled();
    let digests = read(&folder.path().join("digests.txt"));
    let (index, rest) = digests.split_once(" index\n").unwrap();
    let layout = folder.path().join("image");
    assert_eq!(
        index,
        format!("sha256:{}", sha256(&layout.join("index.json")))
    );
    let machines: Vec<&str> = rest
        .lines()
        .filter_map(|line| line.split(' ').nth(1))
        .collect();
    assert_eq!(machines, ["linux_amd64", "linux_arm64"]);
    for machine in machines {
        let sbom = folder
            .path()
            .join(format!("aliquot_image_{machine}.spdx.json"));
        let inside = machine.trim_start_matches("linux_");
        assert_eq!(read(&sbom).trim(), format!("{{\"name\":\"{inside}\"}}"));
    }

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
    let ours = format!("{REPOSITORY}:{}@{index}", version());
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
    for field in ["home", "kubeVersion", "description"] {
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
    let folder = assembled();
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

#[test]
fn checksums_cover_every_file_of_a_release() {
    let folder = assembled();
    let sums = read(&folder.path().join("SHA256SUMS"));
    let mut named = BTreeSet::new();
    for line in sums.lines() {
        let (sum, file) = line.split_once("  ").unwrap();
        assert_eq!(sum, sha256(&folder.path().join(file)), "{file}");
        named.insert(file.to_owned());
    }
    // The images are pushed to a registry, by their digests.
    let is_file = |entry: &std::fs::DirEntry| entry.file_type().unwrap().is_file();
    let files = std::fs::read_dir(folder.path())
        .unwrap()
        .map(Result::unwrap);
    let found = files
        .filter(is_file)
        .map(|entry| entry.file_name().into_string().unwrap());
    let others = |name: &String| !name.starts_with("image-") && name != "SHA256SUMS";
    assert_eq!(named, found.filter(others).collect());
    let provenance: Value =
        serde_json::from_str(&read(&folder.path().join("provenance.json"))).unwrap();
    let materials = &provenance["buildDefinition"]["resolvedDependencies"];
    assert_eq!(materials[0]["uri"], format!("git+{SOURCE}"));
    let dockerfile = read(&top("images/Dockerfile"));
    let pinned = dockerfile.matches("@sha256:").count();
    assert_eq!(materials.as_array().unwrap().len(), 1 + pinned);
}

/// Between releases only the date is missing.
#[test]
fn version_fits_chart_and_changelog() {
    let output = run("release/check.sh", &[]);
    if output.status.success() {
        let notes = success(&output);
        assert!(notes.lines().any(|line| line.starts_with("- ")), "{notes}");
    } else {
        let error = error(&output);
        let missing = format!("\"unreleased\" as the date of {}, expected: ", version());
        assert!(error.contains(&missing), "{error}");
    }
}

/// The steps of a workflow, with its file's name.
fn steps() -> Vec<(String, Value)> {
    let mut found = Vec::new();
    for file in ["ci.yml", "release.yml"] {
        let text = read(&top(".github/workflows").join(file));
        let workflow: Value = serde_saphyr::from_str(&text).unwrap();
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
            assert!(
                is_commit && name.starts_with("actions/"),
                "{at}: {action}, expected: the commit of one of GitHub's actions"
            );
            actions += 1;
        }
    }
    assert!(actions > 0);
}
