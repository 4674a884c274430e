//! Each row of docs/modes.md has a test with its id in the name, and every example pod of HAMi's is
//! documented in docs/migrating-from-hami.md.

use aliquot_style::documents::{names, section, table_rows, unheld};
use aliquot_style::modes::is_named_after;
use aliquot_style::tree;

/// HAMI-1 to HAMI-14.
const ROWS: usize = 14;
const FIXTURES: &str = "tests/e2e/tests/sharing/hami/examples";
/// The changed form of an example that docs/migrating-from-hami.md changes.
const CHANGED: [&str; 1] = ["dynamic_mig_changed"];

/// Faults of the rows: id, what a user sees, tests.
fn errors(rows: &[Vec<&str>], sources: &[&str]) -> Vec<String> {
    let ids: Vec<String> = (1..=ROWS).map(|number| format!("HAMI-{number}")).collect();
    let found: Vec<&str> = rows.iter().map(|cells| cells[0]).collect();
    let mut errors = unheld(rows, sources);
    if found != ids {
        errors.push(format!("rows are {found:?}; each id once and in order"));
    }
    for cells in rows {
        let tests = names(cells.last().map_or("", |cell| cell));
        if !tests.iter().any(|name| is_named_after(name, cells[0])) {
            errors.push(format!("{}: no test has the id in its name", cells[0]));
        }
    }
    errors
}

#[test]
fn every_hami_row_has_a_test_with_its_id() {
    let page = tree::read("docs/modes.md").unwrap();
    let files = tree::files("rs").unwrap();
    let sources: Vec<&str> = files.iter().map(|file| file.text.as_str()).collect();
    let errors = errors(&table_rows(section(&page, "HAMi's promises")), &sources);
    assert!(errors.is_empty(), "\n{}", errors.join("\n"));
}

#[test]
fn reports_hami_row_without_test() {
    let sources = ["fn hami_1_counts() {}", "fn other() {}"];
    let ids: Vec<String> = (1..=ROWS).map(|number| format!("HAMI-{number}")).collect();
    let with = |cell: &'static str| -> Vec<String> {
        let rows = ids.iter().map(|id| vec![id.as_str(), "seen", cell]);
        let rows: Vec<Vec<&str>> = rows.collect();
        errors(&rows, &sources)
    };
    let named = with("`hami_1_counts`");
    assert_eq!(named.len(), ROWS - 1, "all but the first: {named:?}");
    assert_eq!(with("`other`").len(), ROWS);
    assert_eq!(with("`gone`").len(), 2 * ROWS);
    let rows = vec![vec!["HAMI-1", "seen", "`hami_1_counts`"]];
    assert_eq!(errors(&rows, &sources).len(), 1, "the others are missing");
}

#[test]
fn every_hami_example_is_run_and_documented() {
    let page = tree::read("docs/migrating-from-hami.md").unwrap();
    let rows = table_rows(section(&page, "HAMi's example pods"));
    // A cell may have the examples' requests beside their names.
    let is_name = |name: &&str| name.bytes().all(|b| b.is_ascii_lowercase() || b == b'_');
    let listed = rows.iter().flat_map(|cells| names(cells[0]));
    let mut listed: Vec<String> = listed.filter(is_name).map(str::to_owned).collect();
    let files = std::fs::read_dir(tree::root().join(FIXTURES)).unwrap();
    let files = files.map(|file| file.unwrap().path());
    let stems = files.map(|path| path.file_stem().unwrap().to_string_lossy().into_owned());
    let mut run: Vec<String> = stems.filter(|one| !CHANGED.contains(&&**one)).collect();
    let source = tree::read("tests/e2e/tests/sharing/hami/examples.rs").unwrap();
    for example in run.iter().map(String::as_str).chain(CHANGED) {
        let used = source.contains(&format!("\"{example}\""));
        assert!(used, "nothing runs {example}");
    }
    listed.sort();
    run.sort();
    assert_eq!(listed, run, "on the page, and in {FIXTURES}");
}
