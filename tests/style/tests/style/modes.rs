//! docs/modes.md matches the tests, and a row that does not is reported.

use aliquot_style::documents::table_rows;
use aliquot_style::modes::{BOTH, REAL, errors, ids};
use aliquot_style::tree;

#[test]
fn every_row_of_modes_matches_its_tests() {
    let page = tree::read("docs/modes.md").unwrap();
    let files = tree::files("rs").unwrap();
    let sources: Vec<&str> = files.iter().map(|file| file.text.as_str()).collect();
    let script = |path: &str| tree::root().join(path).is_file();
    let mut rows = table_rows(&page);
    // The rows of HAMi's promises have a test of their own.
    rows.retain(|cells| !cells[0].starts_with("HAMI-"));
    let errors = errors(&rows, &sources, script);
    assert!(errors.is_empty(), "\n{}", errors.join("\n"));
}

/// Faults of a page on which the row of this id is another.
fn check(id: &str, cells: [&str; 3], expected: &[&str]) {
    let ids = ids();
    let rows = ids.iter().map(|name| {
        let others = match (REAL.contains(&name.as_str()), BOTH.contains(&name.as_str())) {
            (true, _) => ["–", "–", "no script yet"],
            (_, true) => ["not yet", "–", "no script yet"],
            _ => ["not yet", "–", "–"],
        };
        let [simulated, tests, real] = if name == id { cells } else { others };
        vec![name.as_str(), "seen", simulated, tests, real]
    });
    let rows: Vec<Vec<&str>> = rows.collect();
    let sources = [
        "fn mps_1_replicas() {}",
        "fn mps_10_more() {}",
        "\"a_node_of_mps_1_gpus\",",
    ];
    let found = errors(&rows, &sources, |path| path == "tests/gpu/mps.sh");
    assert_eq!(found, expected, "{cells:?}");
}

#[test]
fn reports_row_that_claims_more_than_tests() {
    check("MPS-1", ["not yet", "–", "–"], &[]);
    check("MPS-1", ["held", "`mps_1_replicas`", "–"], &[]);
    check("MPS-1", ["held", "`a_node_of_mps_1_gpus`", "–"], &[]);
    let other = "MPS-1: no test has the id in its name";
    check("MPS-1", ["held", "`mps_10_more`", "–"], &[other]);
    let gone = "MPS-1: there is no test mps_1_gone";
    check("MPS-1", ["held", "`mps_1_gone`", "–"], &[gone]);
    check("MPS-1", ["held", "–", "–"], &[other]);
    let state = "MPS-1: \"half\" with tests \"–\"";
    check("MPS-1", ["half", "–", "–"], &[state]);
    let script = ["–", "–", "`tests/gpu/mps.sh`: not run"];
    check("MPS-4", script, &[]);
    let wrong = "MPS-4: on a GPU: \"trust me\" names no script";
    check("MPS-4", ["–", "–", "trust me"], &[wrong]);
    let gone = "MPS-4: on a GPU: \"`tests/gpu/x.sh`\" names no script";
    check("MPS-4", ["–", "–", "`tests/gpu/x.sh`"], &[gone]);
    let none = "MPS-4: \"held\" with tests \"–\"";
    check("MPS-4", ["held", "–", "no script yet"], &[none]);
}

#[test]
fn reports_missing_row() {
    let rows = vec![vec!["MPS-1", "seen", "not yet", "–", "–"]];
    let found = errors(&rows, &[], |_| true);
    assert!(
        found.len() == 1 && found[0].contains("each id once"),
        "{found:?}"
    );
}
