//! Validates every object of the chart against the schema of each Kubernetes version, without unknown
//! fields.
#![allow(clippy::unwrap_used, reason = "the helpers of tests fail the test")]

use std::collections::BTreeSet;
use std::process::Command;

use aliquot_chart::{IMAGE, NAMESPACE, chart, helm, top};
use anyhow::{Context as _, Result, ensure};

/// Ways of installing that render other objects.
fn ways() -> Vec<Vec<String>> {
    let hami = top("tests/chart/values/hami.yaml");
    let ways: [&[&str]; 5] = [
        &[],
        &["-f", &hami.to_string_lossy()],
        &[
            "--set=devicePlugin.mps.enabled=true,devicePlugin.nvidiaDriverRoot=/run/nvidia/driver",
            "--set=devicePlugin.profiles.default=shared,devicePlugin.profiles.profiles.shared.rest=vgpu",
            "--set=devicePlugin.runtimeClassName=nvidia,devicePlugin.createRuntimeClass=true",
            "--set=apiServer.host=10.0.0.1,global.imagePullSecrets={pull}",
            "--set=devicePlugin.runtimeConfig=/etc/containerd/config.toml",
            "--set-json=devicePlugin.pod.securityContext={\"seLinuxOptions\":{\"type\":\"spc_t\"}}",
        ],
        &[
            "--set=monitoring.enabled=true,monitoring.dashboards=true",
            "--set=webhook.certManager.enabled=true",
        ],
        &[
            "--set=scheduler.kubeScheduler.enabled=false,scheduler.replicas=1",
            "--set=scheduler.extender.tlsSecret=pair",
        ],
    ];
    let owned = |way: &&[&str]| way.iter().map(|&word| word.to_owned()).collect();
    ways.iter().map(owned).collect()
}

fn validator() -> Result<String> {
    let output = Command::new(top("tests/chart/schemas.sh")).output()?;
    ensure!(output.status.success(), "schemas.sh: {}", output.status);
    Ok(String::from_utf8(output.stdout)?.trim().to_owned())
}

/// The validator's errors for this text as objects of Kubernetes 1.`minor`, if any.
fn validation_errors(validator: &str, minor: u32, text: &str) -> Result<Option<String>> {
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("objects.yaml");
    std::fs::write(&file, text)?;
    // Kinds of other projects are skipped.
    let output = Command::new(validator)
        .args(["--strict", "--quiet", "--no-warn", "-k"])
        .arg(format!("1.{minor}"))
        .arg(&file)
        .output()
        .context("run the validator")?;
    let errors = String::from_utf8(output.stdout)? + &String::from_utf8(output.stderr)?;
    Ok((!output.status.success() || !errors.is_empty()).then_some(errors))
}

#[test]
fn objects_match_schemas_of_each_kubernetes_version() {
    let (validator, chart) = (validator().unwrap(), chart());
    let mut seen = 0;
    for minor in 30..=37 {
        let version = format!("1.{minor}.0");
        // The ways have most objects in common; the validator reads all schemas for each object.
        let mut objects = BTreeSet::new();
        for way in ways() {
            let mut line = vec!["template", "aliquot", &chart, "-n", NAMESPACE, IMAGE];
            line.extend(["--kube-version", &version]);
            line.extend(way.iter().map(String::as_str));
            let text = helm(&line).unwrap().success().unwrap();
            seen += text.matches("\nkind: ").count();
            objects.extend(text.split("\n---\n").map(str::to_owned));
        }
        let objects: Vec<String> = objects.into_iter().collect();
        let text = objects.join("\n---\n");
        let errors = validation_errors(&validator, minor, &text).unwrap();
        assert_eq!(errors, None, "{version}");
    }
    assert!(seen > 8 * 5 * 20, "{seen} objects");
    let wrong = "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: a}\nspec: {replica: 1}\n";
    let errors = validation_errors(&validator, 37, wrong).unwrap().unwrap();
    assert!(errors.contains("selector"), "{errors}");
}
