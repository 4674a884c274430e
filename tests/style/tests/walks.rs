//! docs/contributing/walks.md tells ways that the code has, and short ones.

use std::collections::BTreeSet;

use aliquot_style::tree;
use aliquot_style::walks::{Step, errors, walks};

fn walk<'a>(walks: &'a [(String, Vec<Step>)], title: &str) -> &'a [Step] {
    let found = walks.iter().find(|(name, _)| name.starts_with(title));
    &found.unwrap_or_else(|| panic!("no walk {title}")).1
}

#[test]
fn walks_follow_functions_that_exist_and_return_to_no_file() {
    let page = tree::read("docs/contributing/walks.md").unwrap();
    for (title, steps) in walks(&page) {
        assert!(steps.len() > 3, "{title}: {} steps", steps.len());
        assert_eq!(errors(&steps, tree::read).unwrap(), [""; 0], "{title}");
    }
}

#[test]
fn walks_are_short() {
    let page = tree::read("docs/contributing/walks.md").unwrap();
    let walks = walks(&page);
    for title in [
        "A device id in Allocate",
        "A device id in PreStartContainer",
    ] {
        let steps = walk(&walks, title).len();
        assert!(steps <= 10, "{title}: {steps} functions");
    }
    let core = walk(&walks, "A pod in filter")
        .iter()
        .filter(|step| step.file.starts_with("core/"));
    let files: BTreeSet<&str> = core.map(|step| step.file.as_str()).collect();
    assert!(files.len() <= 8, "{files:?}");
}

#[test]
fn reports_steps_that_the_code_does_not_have() {
    let file = |path: &str| {
        Ok(match path {
            "a.rs" => "impl Plugin { fn allocate() { validate(); } } fn last() {}",
            _ => "fn validate() { vec![last()] }",
        }
        .to_owned())
    };
    let check = |lines: &str, expected: &[&str]| {
        let walks = walks(&format!("# Walks\n\n## One\n\n{lines}"));
        assert_eq!(errors(&walks[0].1, file).unwrap(), expected, "{lines}");
    };
    let allocate = "1. [`Plugin::allocate`](../../a.rs) asks\n";
    let validate = "2. [`validate`](../../b.rs), which is pure\n";
    check(&format!("{allocate}{validate}"), &[]);
    check(
        &format!("{validate}{allocate}"),
        &["a.rs: allocate: no earlier function of the walk names it"],
    );
    check(
        "1. [`allocate`](../../a.rs)\n",
        &["a.rs: allocate: no such function"],
    );
    let again = format!("{allocate}{validate}3. [`last`](../../a.rs)\n");
    check(&again, &["a.rs: last: the walk left this file before"]);
}
