//! docs/reference/cli.md is what the program says of itself.
//!
//! Fed by: the command line's description. Must not: be edited to pass; `make reference` writes it.

use std::path::Path;

use aliquot_cli::reference::page;

#[test]
fn the_reference_of_the_command_line_is_made_from_its_help() {
    let wanted = page();
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/reference/cli.md");
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(&path, &wanted).expect("written");
    }
    let found = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        found == wanted,
        "docs/reference/cli.md is not current: make reference"
    );
    for command in [
        "top",
        "explain",
        "doctor node",
        "doctor migrate",
        "config show",
    ] {
        let heading = format!("\n## kubectl aliquot {command}\n");
        assert!(wanted.contains(&heading), "{command}");
    }
}
