//! Every rule of HAMi's scheduler is a table row in core's tests, or a line of
//! docs/migrating-from-hami.md that says what differs.

use std::collections::BTreeSet;

use aliquot_style::documents::table_rows;
use aliquot_style::tree::{self, File};

/// HAMi's rules by section of its description: requests, filter, nodes, cards,
/// scores, MIG, quota, sums and simulation; how many each has.
const RULES: [(&str, usize); 8] = [
    ("4.3", 10),
    ("4.4", 8),
    ("4.5", 5),
    ("4.6", 27),
    ("4.7", 15),
    ("4.8", 4),
    ("4.9", 6),
    ("4.10", 5),
];
/// What HAMi does wrong: W1 to W20.
const WRONGS: usize = 20;

fn wanted() -> BTreeSet<String> {
    let rules = RULES.iter().flat_map(|(section, count)| {
        let numbers = 1..=*count;
        numbers.map(move |number| format!("{section}.{number}"))
    });
    let wrongs = (1..=WRONGS).map(|number| format!("W{number}"));
    rules.chain(wrongs).collect()
}

/// The numbers in quotes in core's tables.
fn tested(files: &[File]) -> BTreeSet<String> {
    let tables = files
        .iter()
        .filter(|file| file.path.starts_with("core/src/tests/hami/"));
    let words = tables.flat_map(|file| file.text.split('"'));
    let rules = words.map(|word| word.trim_start_matches("rule "));
    let numbered = rules.filter(|word| is_rule(word));
    numbered.map(str::to_owned).collect()
}

/// The numbers in the first column of the document's tables.
fn told(text: &str) -> BTreeSet<String> {
    let rows = table_rows(text);
    let full = rows.iter().filter(|cells| cells.len() >= 3);
    full.map(|cells| cells[0].to_owned()).collect()
}

fn is_rule(word: &str) -> bool {
    let parts: Vec<&str> = word.split('.').collect();
    let number = |part: &&str| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit());
    parts.len() == 3 && parts.iter().all(number) && parts[0] == "4"
}

#[test]
fn every_rule_of_hami_is_a_test_or_a_line_that_says_what_differs() {
    let files = tree::files("rs").unwrap();
    let text = tree::read("docs/migrating-from-hami.md").unwrap();
    let (tested, told) = (tested(&files), told(&text));
    assert!(tested.len() > 20 && told.len() > 20);
    let found: BTreeSet<String> = tested.union(&told).cloned().collect();
    let wanted = wanted();
    let missing: Vec<_> = wanted.difference(&found).collect();
    let unknown: Vec<_> = found.difference(&wanted).collect();
    assert!(missing.is_empty(), "neither tested nor told: {missing:?}");
    assert!(unknown.is_empty(), "no such rule: {unknown:?}");
}
