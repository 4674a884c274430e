//! Every rule of HAMi's scheduler is a table row in core's tests, or a line of
//! docs/migrating-from-hami.md with the difference.

use std::collections::BTreeSet;

use aliquot_style::documents::table_rows;
use aliquot_style::tree::{self, File};

/// HAMi's rules by section of its description (requests, filter, nodes, GPUs, scores, MIG, quota, sums
/// and simulation), and how many each has.
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
/// HAMi's bugs: W1 to W20.
const WRONGS: usize = 20;

fn all_rules() -> BTreeSet<String> {
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
        .filter(|file| file.path.starts_with("core/src/"));
    let words = tables.flat_map(|file| file.text.split('"'));
    let rules = words.map(|word| word.trim_start_matches("rule "));
    let numbered = rules.filter(|word| is_rule(word));
    numbered.map(str::to_owned).collect()
}

/// The numbers in the first column of the document's tables.
fn documented(text: &str) -> BTreeSet<String> {
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
fn every_hami_rule_is_tested_or_documented() {
    let files = tree::files("rs").unwrap();
    let text = tree::read("docs/migrating-from-hami.md").unwrap();
    let (tested, documented) = (tested(&files), documented(&text));
    assert!(tested.len() > 20 && documented.len() > 20);
    let found: BTreeSet<String> = tested.union(&documented).cloned().collect();
    let expected = all_rules();
    let missing: Vec<_> = expected.difference(&found).collect();
    let unknown: Vec<_> = found.difference(&expected).collect();
    assert!(
        missing.is_empty(),
        "neither tested nor documented: {missing:?}"
    );
    assert!(unknown.is_empty(), "no such rule: {unknown:?}");
}
