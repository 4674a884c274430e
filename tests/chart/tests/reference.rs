//! docs/reference/values.md is generated from values.yaml: its keys, defaults and comments.
#![allow(clippy::unwrap_used, reason = "the helpers of tests fail the test")]

use aliquot_chart::{one, rendered, top};
use serde_json::Value;
use std::fmt::Write as _;

const HEAD: &str = "# Values of the chart

Generated from [values.yaml](../../charts/aliquot/values.yaml) by `make reference`.
Keys that are not listed here are rejected, unless they are [HAMi's](../../charts/aliquot/files/hami.yaml).

| value | default | meaning |
|---|---|---|
";

/// Kubernetes' own structures are one value.
const WHOLE: [&str; 7] = [
    "burstGraceSeconds",
    "resources",
    "requests",
    "nvidiaNodeSelector",
    "pod",
    "tolerations",
    "updateStrategy",
];

#[test]
fn values_reference_matches_chart() {
    let text = std::fs::read_to_string(top("charts/aliquot/values.yaml")).unwrap();
    let expected = format!("{HEAD}{}", rows(&text));
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

/// A row for each key: its path, its default, and the comment above it.
fn rows(text: &str) -> String {
    let values: Value = serde_saphyr::from_str(text).unwrap();
    let (mut rows, mut comment) = (String::new(), Vec::new());
    let mut path: Vec<&str> = Vec::new();
    for line in text.lines() {
        let bare = line.trim();
        let depth = (line.len() - line.trim_start().len()) / 2;
        if let Some(words) = bare.strip_prefix('#') {
            comment.push(words.trim());
            continue;
        }
        let whole =
            bare.starts_with("- ") || path.iter().take(depth).any(|key| WHOLE.contains(key));
        let Some((key, _)) = bare.split_once(':').filter(|_| !whole) else {
            // The comment at the top belongs to no key.
            comment.clear();
            continue;
        };
        path.truncate(depth);
        path.push(key);
        let value = values.pointer(&format!("/{}", path.join("/"))).unwrap();
        let inner = value.as_object().is_some_and(|inside| !inside.is_empty());
        let words = std::mem::take(&mut comment).join(" ").replace('|', "\\|");
        if !inner || WHOLE.contains(&key) {
            writeln!(rows, "| `{}` | `{value}` | {words} |", path.join(".")).unwrap();
        } else if !words.is_empty() {
            writeln!(rows, "| `{}` | | {words} |", path.join(".")).unwrap();
        }
    }
    rows
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
