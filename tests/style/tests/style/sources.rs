//! Every Rust file follows the rules, and a file that does not is reported.

use aliquot_style::{sources, tree};

fn check(path: &str, text: &str, expected: &[&str]) {
    let found = sources::errors(path, text);
    assert_eq!(found.len(), expected.len(), "{path}: {found:?}");
    for (error, start) in found.iter().zip(expected) {
        assert!(error.starts_with(start), "{error:?}, expected {start:?}");
    }
}

#[test]
fn every_rust_file_follows_the_rules() {
    let files = tree::files("rs").unwrap();
    assert!(files.iter().any(|file| file.path == "core/src/lib.rs"));
    let errors: Vec<_> = files
        .iter()
        .filter(|file| !sources::is_exempt(&file.path))
        .flat_map(|file| sources::errors(&file.path, &file.text))
        .collect();
    assert!(errors.is_empty(), "\n{}", errors.join("\n"));
}

#[test]
fn every_member_takes_the_workspace_lints() {
    for file in tree::files("toml").unwrap() {
        if file.path.ends_with("/Cargo.toml") {
            let taken = file.text.contains("[lints]\nworkspace = true");
            assert!(taken, "{}: add [lints] workspace = true", file.path);
        }
    }
}

#[test]
fn accepts_files_that_follow_the_rules() {
    check("core/src/a.rs", "//! Holds.\nfn f() {}\n", &[]);
    check(
        "core/src/a.rs",
        "//! Holds.\n#![forbid(unsafe_code)]\n",
        &[],
    );
    check("nvml/src/raw.rs", "//! Holds.\nunsafe { call() }\n", &[]);
    let arm = "//! Waits.\n() = tokio::time::sleep(PAUSE) => {}\n";
    check("k8s/src/watch.rs", arm, &[]);
    check(
        "tests/e2e/src/pods.rs",
        arm,
        &["tests/e2e/src/pods.rs:2: sleep("],
    );
    check(
        "tests/cluster/src/wait.rs",
        "//! Polls.\nsleep(STEP).await;\n",
        &[],
    );
}

#[test]
fn reports_each_broken_rule() {
    let path = "core/src/a.rs";
    for (line, start) in [
        ("#[ignore = \"slow\"]", "#[ignore:"),
        ("tokio::time::sleep(STEP).await;", "sleep(:"),
        ("let x = unsafe { call() };", "unsafe:"),
        ("unsafe impl Send for X {}", "unsafe:"),
    ] {
        let text = format!("//! Holds.\n{line}\n");
        check(path, &text, &[&format!("core/src/a.rs:2: {start}")]);
    }
}
