//! What is generated from the chart: docs/reference/values.md, and the webhook's configuration in
//! tests/e2e.
#![allow(clippy::unwrap_used, reason = "the helpers of tests fail the test")]

use std::process::{Command, Stdio};

use aliquot_chart::{one, rendered, top};
use serde_json::Value;

#[test]
fn values_reference_matches_chart() {
    let made = Command::new(top("tests/chart/values-reference.sh"))
        .stderr(Stdio::inherit())
        .output()
        .unwrap();
    assert!(made.status.success(), "{}", made.status);
    let expected = String::from_utf8(made.stdout).unwrap();
    let page = top("docs/reference/values.md");
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(&page, &expected).unwrap();
    }
    let found = std::fs::read_to_string(&page).unwrap_or_default();
    assert!(
        found == expected,
        "docs/reference/values.md is not current: make reference"
    );
}

/// tests/e2e gives the same to a webhook outside the cluster. `UPDATE=1` rewrites it.
#[test]
fn webhook_configuration_matches_chart() {
    let objects = rendered(&[]).unwrap();
    let found = one(&objects, "MutatingWebhookConfiguration", "aliquot-webhook");
    let mut found = found.0.clone();
    found["metadata"].as_object_mut().unwrap().remove("labels");
    let path = top("tests/e2e/webhook-configuration.json");
    if std::env::var_os("UPDATE").is_some() {
        let text = serde_json::to_string_pretty(&found).unwrap();
        std::fs::write(&path, text + "\n").unwrap();
    }
    let written = std::fs::read_to_string(&path).unwrap_or_default();
    let written: Value = serde_json::from_str(&written).unwrap_or_default();
    assert!(written == found, "not as the chart has it: make reference");
}
