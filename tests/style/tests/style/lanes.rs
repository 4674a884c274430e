//! Every test binary is in a lane of the Makefile.

use std::collections::BTreeSet;

use aliquot_style::tree;

/// The names that the Makefile gives to `cargo test`: those of `$(call named,…)` and behind `--test`.
/// A package of which it runs all tests is there as `-p NAME`.
fn lanes(makefile: &str) -> BTreeSet<String> {
    let text = makefile.replace("\\\n", " ");
    // `make reference` and `make screens` are no lanes.
    let lines = text.lines().filter(|line| !line.contains("UPDATE=1"));
    let text = lines.collect::<Vec<_>>().join("\n");
    let lists = text.split("$(call named,").skip(1);
    let listed = lists.flat_map(|rest| rest.split(')').next().unwrap_or(rest).split_whitespace());
    let words: Vec<&str> = text.split_whitespace().collect();
    let single = words
        .windows(2)
        .filter(|pair| pair[0] == "--test")
        .map(|pair| pair[1]);
    let whole = text.lines().filter(|line| line.contains("cargo test"));
    let whole = whole.filter(|line| !line.contains("--lib") && !line.contains("--test "));
    let packages = whole.filter_map(|line| line.split("-p ").nth(1));
    let packages = packages.map(|rest| format!("-p {}", rest.trim()));
    listed
        .chain(single)
        .map(|name| name.trim_end_matches('\'').to_owned())
        .chain(packages)
        .collect()
}

#[test]
fn every_test_binary_is_in_a_lane() {
    let lanes = lanes(&tree::read("Makefile").unwrap());
    let metadata = tree::metadata(&["--no-deps"]).unwrap();
    let mut known = 0;
    for package in metadata["packages"].as_array().unwrap() {
        let whole = format!("-p {}", package["name"].as_str().unwrap());
        for target in package["targets"].as_array().unwrap() {
            if target["kind"][0] == "test" {
                let name = target["name"].as_str().unwrap();
                let is_run = lanes.contains(name) || lanes.contains(&whole);
                assert!(is_run, "no lane of the Makefile runs the tests of {name}");
                known += 1;
            }
        }
    }
    assert!(known > 0);
}
