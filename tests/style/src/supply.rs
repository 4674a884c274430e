//! Checks of dependencies: the part of deny.toml that can be checked without cargo-deny. The lists are
//! only in deny.toml.

use std::collections::BTreeMap;

use serde_json::Value;

/// The source of packages in Cargo.lock that come from crates.io, the only one that deny.toml allows.
const CRATES_IO: &str = "registry+https://github.com/rust-lang/crates.io-index";

/// A package of Cargo.lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Package {
    /// Its name.
    pub name: String,
    /// Its version.
    pub version: String,
    /// Where it comes from; empty for members of the workspace.
    pub source: String,
}

/// Reads Cargo.lock: one `[[package]]` after the other, one field a line.
pub fn packages(lock: &str) -> Vec<Package> {
    lock.split("[[package]]\n")
        .skip(1)
        .map(|block| Package {
            name: field(block, "name"),
            version: field(block, "version"),
            source: field(block, "source"),
        })
        .collect()
}

fn field(block: &str, name: &str) -> String {
    let start = format!("{name} = \"");
    let line = block.lines().find_map(|line| line.strip_prefix(&start));
    line.unwrap_or_default().trim_end_matches('"').to_owned()
}

/// The texts of one list of deny.toml: `name = [`, an entry a line, `]`. Of an
/// entry `{ crate = "a", reason = "b" }` it is `a`.
pub fn list<'a>(deny: &'a str, name: &str) -> Vec<&'a str> {
    let start = format!("\n{name} = [\n");
    let block = deny.split_once(&start).map_or("", |(_, rest)| rest);
    block
        .lines()
        .take_while(|line| !line.starts_with(']'))
        .filter(|line| !line.trim_start().starts_with('#'))
        .filter_map(|line| line.split('"').nth(1))
        .collect()
}

/// Banned packages, other sources than crates.io, and versions beside each
/// other that deny.toml gives no reason for.
pub fn errors(packages: &[Package], deny: &str) -> Vec<String> {
    let mut found = Vec::new();
    let banned = list(deny, "deny");
    let skipped = list(deny, "skip");
    let mut versions: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for package in packages {
        let Package {
            name,
            version,
            source,
        } = package;
        if banned.contains(&name.as_str()) {
            found.push(format!("{name} {version}: banned in deny.toml"));
        }
        if !source.is_empty() && source != CRATES_IO {
            found.push(format!(
                "{name} {version}: comes from {source}, expected: crates.io"
            ));
        }
        versions.entry(name).or_default().push(version);
    }
    for (name, versions) in versions {
        let unexplained = versions.iter().filter(|version| {
            let exact = format!("{name}@{version}");
            !skipped.contains(&exact.as_str())
        });
        // One version of each package needs no reason.
        if unexplained.count() > 1 {
            found.push(format!(
                "{name}: {versions:?} beside each other, no reason in deny.toml"
            ));
        }
    }
    found
}

/// May software under this SPDX expression be used, given the accepted licences:
/// each part joined by AND has one accepted way of those joined by OR.
pub fn is_licensed(expression: &str, accepted: &[&str]) -> bool {
    let expression = expression.replace('/', " OR ");
    expression.split(" AND ").all(|part| {
        let part = part.trim_matches(['(', ')', ' ']);
        part.split(" OR ").any(|one| accepted.contains(&one.trim()))
    })
}

/// Dependencies of `cargo metadata`'s packages without a version, which only paths may have.
pub fn wildcards(metadata: &Value) -> Vec<String> {
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let mut found = Vec::new();
    for package in list(&metadata["packages"]) {
        for dependency in list(&package["dependencies"]) {
            if dependency["req"] == "*" && dependency["path"].is_null() {
                found.push(format!(
                    "{}: any version of {}",
                    package["name"], dependency["name"]
                ));
            }
        }
    }
    found
}

/// The file of a package in cargo's copy of an index.
pub fn index_file(name: &str) -> String {
    let name = name.to_lowercase();
    match name.len() {
        1 | 2 => format!("{}/{name}", name.len()),
        3 => format!("3/{}/{name}", &name[..1]),
        _ => format!("{}/{}/{name}", &name[..2], &name[2..4]),
    }
}

/// Whether the registry has withdrawn a version, by the package's file in cargo's copy of the index: an
/// object for each version, between zero bytes. `None`: the file does not have the version.
pub fn is_yanked(index: &[u8], version: &str) -> Option<bool> {
    let mut versions = index
        .split(|byte| *byte == 0)
        .filter_map(|part| serde_json::from_slice::<Value>(part).ok());
    let entry = versions.find(|entry| entry["vers"] == version)?;
    Some(entry["yanked"] == true)
}
