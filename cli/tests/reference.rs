//! docs/reference/cli.md matches the program's help; `make reference` writes it.

use std::path::Path;

use aliquot_cli::reference::page;

#[test]
fn cli_reference_matches_help() {
    let expected = page();
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/reference/cli.md");
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(&path, &expected).expect("written");
    }
    let found = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        found == expected,
        "docs/reference/cli.md is not current: make reference"
    );
}
