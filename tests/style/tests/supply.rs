//! Dependencies follow deny.toml, and others are reported.

use aliquot_style::supply::{
    Package, errors, index_file, is_licensed, is_yanked, list, packages, wildcards,
};
use aliquot_style::tree;
use serde_json::json;

#[test]
fn lock_file_follows_deny_toml() {
    let deny = tree::read("deny.toml").unwrap();
    for banned in [
        "aws-lc-rs",
        "aws-lc-sys",
        "openssl",
        "openssl-sys",
        "native-tls",
    ] {
        assert!(list(&deny, "deny").contains(&banned), "{banned}");
    }
    let packages = packages(&tree::read("Cargo.lock").unwrap());
    assert!(packages.iter().any(|package| package.name == "ring"));
    let errors = errors(&packages, &deny);
    assert!(errors.is_empty(), "\n{}", errors.join("\n"));
}

#[test]
fn every_allowed_duplicate_version_is_in_use() {
    let packages = packages(&tree::read("Cargo.lock").unwrap());
    for skipped in list(&tree::read("deny.toml").unwrap(), "skip") {
        let locked = |package: &Package| format!("{}@{}", package.name, package.version) == skipped;
        assert!(
            packages.iter().any(locked),
            "deny.toml skips {skipped}, which is gone"
        );
    }
}

#[test]
fn every_licence_is_allowed() {
    let deny = tree::read("deny.toml").unwrap();
    let accepted = list(&deny, "allow");
    let metadata = tree::metadata(&["--filter-platform", "x86_64-unknown-linux-gnu"]).unwrap();
    let used = metadata["resolve"]["nodes"].as_array().unwrap();
    for package in metadata["packages"].as_array().unwrap() {
        if used.iter().any(|node| node["id"] == package["id"]) {
            let licence = package["license"].as_str().unwrap_or("none");
            assert!(
                is_licensed(licence, &accepted),
                "{}: {licence}",
                package["name"]
            );
        }
    }
}

#[test]
fn every_dependency_names_a_version() {
    let metadata = tree::metadata(&["--no-deps"]).unwrap();
    let found = wildcards(&metadata);
    assert!(found.is_empty(), "\n{}", found.join("\n"));
    assert!(!metadata["packages"].as_array().unwrap().is_empty());
}

/// As of the last time that cargo asked the registry.
#[test]
fn no_locked_version_is_yanked() {
    let indexes = tree::registry_indexes().unwrap();
    let mut known = 0;
    for package in packages(&tree::read("Cargo.lock").unwrap()) {
        let Package { name, version, .. } = &package;
        let entries = indexes
            .iter()
            .filter_map(|index| std::fs::read(index.join(index_file(name))).ok());
        for yanked in entries.filter_map(|entry| is_yanked(&entry, version)) {
            assert!(!yanked, "{name} {version}: yanked from the registry");
            known += 1;
        }
    }
    assert!(known > 0, "no package of Cargo.lock is in {indexes:?}");
}

const DENY: &str = r#"
deny = [
    { crate = "openssl", reason = "one TLS provider" },
]
skip = [
    { crate = "syn@2.0.1", reason = "older macros" },
]
"#;

fn check(lock: &[(&str, &str, &str)], expected: &[&str]) {
    let mut text = String::new();
    for (name, version, source) in lock {
        text.push_str("[[package]]\n");
        for (field, value) in [("name", name), ("version", version), ("source", source)] {
            text.push_str(&[field, " = \"", value, "\"\n"].concat());
        }
    }
    let found = errors(&packages(&text), DENY);
    assert_eq!(found.len(), expected.len(), "{lock:?}: {found:?}");
    for (error, start) in found.iter().zip(expected) {
        assert!(error.starts_with(start), "{error:?}, expected {start:?}");
    }
}

#[test]
fn reports_banned_foreign_and_duplicate_packages() {
    let from = "registry+https://github.com/rust-lang/crates.io-index";
    check(
        &[("syn", "3.0.0", from), ("aliquot-core", "0.1.0", "")],
        &[],
    );
    check(&[("syn", "2.0.1", from), ("syn", "3.0.0", from)], &[]);
    check(&[("openssl", "0.10.0", from)], &["openssl 0.10.0: banned"]);
    check(
        &[("kube", "5.0.0", "git+https://example.org/kube")],
        &["kube 5.0.0: comes from git"],
    );
    check(
        &[("kube", "5.0.0", "registry+https://example.org/index")],
        &["kube 5.0.0: comes from registry+https://example.org"],
    );
    check(
        &[("syn", "1.0.0", from), ("syn", "3.0.0", from)],
        &["syn: "],
    );
}

#[test]
fn evaluates_licence_expressions() {
    let accepted = ["MIT", "Apache-2.0", "ISC"];
    for (expression, licensed) in [
        ("MIT", true),
        ("MIT OR GPL-3.0", true),
        ("MIT/GPL-3.0", true),
        ("(MIT OR GPL-3.0) AND ISC", true),
        ("Apache-2.0 AND ISC", true),
        ("GPL-3.0", false),
        ("MIT AND GPL-3.0", false),
        ("none", false),
    ] {
        assert_eq!(is_licensed(expression, &accepted), licensed, "{expression}");
    }
}

#[test]
fn reads_yanked_versions_from_index() {
    for (name, file) in [
        ("a", "1/a"),
        ("cc", "2/cc"),
        ("syn", "3/s/syn"),
        ("serde", "se/rd/serde"),
        ("Inflector", "in/fl/inflector"),
    ] {
        assert_eq!(index_file(name), file);
    }
    let index = b"\x03\x02\0\0\0etag\x001.0.0\0{\"vers\":\"1.0.0\",\"yanked\":true}\0\
        1.0.1\0{\"vers\":\"1.0.1\",\"yanked\":false}\0";
    for (version, yanked) in [
        ("1.0.0", Some(true)),
        ("1.0.1", Some(false)),
        ("1.0.2", None),
    ] {
        assert_eq!(is_yanked(index, version), yanked, "{version}");
    }
}

#[test]
fn reports_dependencies_without_a_version() {
    let dependencies = json!([
        {"name": "serde", "req": "^1", "path": null},
        {"name": "kube", "req": "*", "path": null},
        {"name": "aliquot-core", "req": "*", "path": "/core"},
    ]);
    let metadata = json!({"packages": [{"name": "a", "dependencies": dependencies}]});
    let found = wildcards(&metadata);
    assert_eq!(found, ["\"a\": any version of \"kube\""]);
}
