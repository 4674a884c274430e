//! docs/modes.md tells the truth, and a row that does not is noticed.

use aliquot_style::documents::table_rows;
use aliquot_style::modes::{BOTH, REAL, faults, ids};
use aliquot_style::tree;

#[test]
fn every_row_of_the_modes_says_what_is_proved() {
    let page = tree::read("docs/modes.md").unwrap();
    let files = tree::files("rs").unwrap();
    let sources: Vec<&str> = files.iter().map(|file| file.text.as_str()).collect();
    let script = |path: &str| tree::root().join(path).is_file();
    let faults = faults(&table_rows(&page), &sources, script);
    assert!(faults.is_empty(), "\n{}", faults.join("\n"));
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
        let [simulated, tests, card] = if name == id { cells } else { others };
        vec![name.as_str(), "seen", simulated, tests, card]
    });
    let rows: Vec<Vec<&str>> = rows.collect();
    let sources = [
        "fn mps_1_seats() {}",
        "fn mps_10_more() {}",
        "\"a_node_of_mps_1_cards\",",
    ];
    let found = faults(&rows, &sources, |path| path == "tests/gpu/mps.sh");
    assert_eq!(found, expected, "{cells:?}");
}

#[test]
fn a_row_that_says_more_than_is_proved_is_noticed() {
    check("MPS-1", ["not yet", "–", "–"], &[]);
    check("MPS-1", ["held", "`mps_1_seats`", "–"], &[]);
    check("MPS-1", ["held", "`a_node_of_mps_1_cards`", "–"], &[]);
    let other = "MPS-1: no test has the id in its name";
    check("MPS-1", ["held", "`mps_10_more`", "–"], &[other]);
    let gone = "MPS-1: there is no test mps_1_gone";
    check("MPS-1", ["held", "`mps_1_gone`", "–"], &[gone]);
    check("MPS-1", ["held", "–", "–"], &[other]);
    let state = "MPS-1: \"half\" with tests \"–\"";
    check("MPS-1", ["half", "–", "–"], &[state]);
    let card = ["–", "–", "`tests/gpu/mps.sh`: not run"];
    check("MPS-4", card, &[]);
    let wrong = "MPS-4: on a GPU: \"trust me\" names no script";
    check("MPS-4", ["–", "–", "trust me"], &[wrong]);
    let gone = "MPS-4: on a GPU: \"`tests/gpu/x.sh`\" names no script";
    check("MPS-4", ["–", "–", "`tests/gpu/x.sh`"], &[gone]);
    let none = "MPS-4: \"held\" with tests \"–\"";
    check("MPS-4", ["held", "–", "no script yet"], &[none]);
}

#[test]
fn a_row_that_is_missing_is_noticed() {
    let rows = vec![vec!["MPS-1", "seen", "not yet", "–", "–"]];
    let found = faults(&rows, &[], |_| true);
    assert!(
        found.len() == 1 && found[0].contains("each id once"),
        "{found:?}"
    );
}
