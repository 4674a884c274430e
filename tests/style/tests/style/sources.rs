//! Every Rust file follows the rules.

use aliquot_style::{sources, tree};

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
