//! Each row of docs/modes.md that is proved names tests that exist, one of them after the row's id.

use aliquot_style::documents::{names, table_rows, unheld};
use aliquot_style::tree;

/// `mps_1_…` is named after MPS-1, `mps_10_…` is not.
fn is_named_after(name: &str, id: &str) -> bool {
    let part = format!("_{}_", id.to_lowercase().replace('-', "_"));
    format!("_{name}").contains(&part)
}

#[test]
fn every_row_of_modes_names_a_test_with_its_id() {
    let page = tree::read("docs/modes.md").unwrap();
    let files = tree::files("rs").unwrap();
    let sources: Vec<&str> = files.iter().map(|file| file.text.as_str()).collect();
    let mut errors = Vec::new();
    let rows = table_rows(&page);
    assert!(!rows.is_empty());
    for cells in rows {
        let (id, tests) = match cells[..] {
            [id, _, "held", tests, _] | [id, _, tests] => (id, tests),
            // Proved by nothing, or on a GPU alone.
            [_, _, "not yet" | "–", "–", _] => continue,
            _ => panic!("{cells:?}"),
        };
        errors.extend(unheld(&[vec![id, tests]], &sources));
        if !names(tests).iter().any(|name| is_named_after(name, id)) {
            errors.push(format!("{id}: no test has the id in its name"));
        }
    }
    assert!(errors.is_empty(), "\n{}", errors.join("\n"));
}
