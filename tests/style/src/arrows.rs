//! Which crate of the workspace may depend on which, as in the map of ARCHITECTURE.md; dependencies of
//! all kinds count alike.

use anyhow::{Context, Result};
use serde_json::Value;

/// The workspace crates that each product crate may depend on. Crates under `tests/` may use anything; a
/// product crate uses none of those, not even for its tests.
pub const ALLOWED: &[(&str, &[&str])] = &[
    ("aliquot-core", &[]),
    ("aliquot-k8s", &["aliquot-core"]),
    ("aliquot-serve", &["aliquot-core"]),
    ("aliquot-nvml", &["aliquot-core"]),
    ("aliquot-node-state", &["aliquot-core", "aliquot-region"]),
    (
        "aliquot-scheduler",
        &["aliquot-core", "aliquot-k8s", "aliquot-serve"],
    ),
    (
        "aliquot-webhook",
        &["aliquot-core", "aliquot-k8s", "aliquot-serve"],
    ),
    (
        "aliquot-cli",
        &[
            "aliquot-core",
            "aliquot-k8s",
            "aliquot-profiles",
            "aliquot-webhook",
        ],
    ),
    ("aliquot-profiles", &["aliquot-core"]),
    (
        "aliquot-device-plugin",
        &[
            "aliquot-core",
            "aliquot-k8s",
            "aliquot-serve",
            "aliquot-node-state",
            "aliquot-nvml",
            "aliquot-profiles",
            "aliquot-shim",
            "aliquot-region",
        ],
    ),
    (
        "aliquot-monitor",
        &[
            "aliquot-core",
            "aliquot-k8s",
            "aliquot-serve",
            "aliquot-node-state",
            "aliquot-nvml",
            "aliquot-region",
        ],
    ),
    ("aliquot-shim", &[]),
    (
        "aliquot-hook",
        &[
            "aliquot-node-state",
            "aliquot-nvml",
            "aliquot-region",
            "aliquot-shim",
        ],
    ),
    ("aliquot-limiter", &["aliquot-region", "aliquot-pacer"]),
    ("aliquot-pacer", &[]),
    ("aliquot-region", &[]),
];

/// The external crates that pure crates may depend on, except for tests.
pub const PURE: &[(&str, &[&str])] = &[
    (
        "aliquot-core",
        &[
            "fixedbitset",
            "hashbrown",
            "serde",
            "serde_json",
            "thiserror",
        ],
    ),
    // They are loaded into every process of a container.
    ("aliquot-limiter", &["libc"]),
    ("aliquot-pacer", &[]),
    ("aliquot-region", &["libc", "thiserror"]),
];

/// One member of the workspace.
#[derive(Clone, Debug)]
pub struct Member {
    /// The package's name.
    pub name: String,
    /// Whether it is under `tests/`.
    pub is_test: bool,
    /// The dependencies of every kind in its manifest.
    pub uses: Vec<Use>,
}

/// One dependency in a manifest.
#[derive(Clone, Debug)]
pub struct Use {
    /// The package's name.
    pub name: String,
    /// A dev-dependency.
    pub for_tests: bool,
}

/// Reads the members from the output of `cargo metadata --no-deps`.
pub fn members(metadata: &Value) -> Result<Vec<Member>> {
    let top = metadata["workspace_root"]
        .as_str()
        .context("no workspace_root")?;
    let packages = metadata["packages"].as_array().context("no packages")?;
    packages
        .iter()
        .map(|package| {
            let manifest = package["manifest_path"]
                .as_str()
                .context("no manifest_path")?;
            let uses = package["dependencies"]
                .as_array()
                .context("no dependencies")?;
            Ok(Member {
                name: text(package, "name")?,
                is_test: manifest.starts_with(&format!("{top}/tests/")),
                uses: uses
                    .iter()
                    .map(|one| {
                        Ok(Use {
                            name: text(one, "name")?,
                            for_tests: one["kind"] == "dev",
                        })
                    })
                    .collect::<Result<_>>()?,
            })
        })
        .collect()
}

fn text(object: &Value, field: &str) -> Result<String> {
    let value = object[field].as_str();
    Ok(value.with_context(|| format!("no {field}"))?.to_owned())
}

/// Every dependency that is not allowed, in the order of the members.
pub fn violations(members: &[Member]) -> Vec<String> {
    let mut found = Vec::new();
    for member in members.iter().filter(|member| !member.is_test) {
        let name = member.name.as_str();
        let Some(allowed) = row(ALLOWED, name) else {
            found.push(format!("{name}: not in the table of allowed dependencies"));
            continue;
        };
        for used in &member.uses {
            let inside = members.iter().any(|other| other.name == used.name);
            if inside && !allowed.contains(&used.name.as_str()) {
                found.push(format!(
                    "{name} -> {}: not an allowed dependency",
                    used.name
                ));
            }
            let pure = row(PURE, name).filter(|_| !inside && !used.for_tests);
            if pure.is_some_and(|known| !known.contains(&used.name.as_str())) {
                found.push(format!("{name} -> {}: {name} must stay pure", used.name));
            }
        }
    }
    found
}

fn row(table: &[(&str, &'static [&'static str])], name: &str) -> Option<&'static [&'static str]> {
    table
        .iter()
        .find(|(from, _)| *from == name)
        .map(|(_, to)| *to)
}
