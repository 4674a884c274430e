//! Dependencies follow deny.toml, and others are reported.

use aliquot_style::supply::{Package, errors, is_licensed, list, packages};
use aliquot_style::tree;

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
fn reports_banned_git_and_duplicate_packages() {
    let from = "registry+index";
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
