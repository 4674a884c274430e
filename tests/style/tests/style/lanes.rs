//! Every test is in a lane of the Makefile, and every lane is run.

use std::collections::BTreeSet;

use aliquot_style::tree;

/// Long scenarios are marked so.
const LONG: &str = concat!(".long", "()");

/// The Makefile, with each command on one line.
fn makefile() -> String {
    let text = tree::read("Makefile").expect("the Makefile");
    text.replace("\\\n", " ")
}

/// The names that the Makefile gives to `cargo test`: those of `$(call named,…)` and behind `--test`.
/// A package of which it runs all tests is there as `-p NAME`.
fn lanes(makefile: &str) -> BTreeSet<String> {
    // `make reference` and `make screens` are no lanes.
    let lines = makefile.lines().filter(|line| !line.contains("UPDATE=1"));
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
    let lanes = lanes(&makefile());
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

/// The names of tests that the Makefile selects, at the end of a command, or leaves out.
fn filters(makefile: &str) -> BTreeSet<&str> {
    let words: Vec<&str> = makefile.split_whitespace().collect();
    let skipped = words.windows(2).filter(|pair| pair[0] == "--skip");
    let commands = makefile.lines().filter(|line| line.contains("cargo test"));
    let selected = commands.filter_map(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [.., option, last] = words[..] else {
            return None;
        };
        let is_filter = !last.starts_with('-') && !["--test", "-p"].contains(&option);
        is_filter.then_some(last)
    });
    selected.chain(skipped.map(|pair| pair[1])).collect()
}

/// `cargo test` succeeds where a filter selects nothing.
#[test]
fn every_filter_of_the_makefile_names_a_test() {
    let (makefile, sources) = (makefile(), tree::files("rs").unwrap());
    let filters = filters(&makefile);
    assert!(!filters.is_empty());
    for filter in filters {
        // In the line of a function, or of a scenario's name.
        let names = |line: &str| {
            let is_name = line.contains("fn ") || line.contains('"');
            is_name && line.contains(filter)
        };
        let is_there = |file: &tree::File| file.text.lines().any(names);
        assert!(sources.iter().any(is_there), "no test is called {filter}");
    }
}

#[test]
fn every_long_scenario_is_in_a_lane() {
    let makefile = makefile();
    let lanes = makefile.lines().filter(|line| line.contains("--ignored"));
    let words = lanes.flat_map(|line| line.split([' ', ',', ')']));
    let run: BTreeSet<&str> = words.collect();
    let mut known = 0;
    for file in tree::files("rs").unwrap() {
        // The scenarios of a test binary are in the folder of its name.
        if let Some((_, inside)) = file.path.split_once("/tests/")
            && file.text.contains(LONG)
        {
            let binary = inside.split('/').next().unwrap_or(inside);
            assert!(run.contains(binary), "no lane runs long {binary}");
            known += 1;
        }
    }
    assert!(known > 0);
}

/// The words of a list of the Makefile.
fn list<'a>(makefile: &'a str, name: &str) -> Vec<&'a str> {
    let mut lines = makefile.lines();
    let words = lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(" := "));
    let words = words.expect("a list of the Makefile");
    words.split_whitespace().collect()
}

#[test]
fn test_all_and_the_nightly_run_have_every_lane() {
    let makefile = makefile();
    let mut rules = BTreeSet::new();
    for line in makefile.lines() {
        if let Some(rest) = line.strip_prefix("$(addprefix lane-,") {
            let names = rest.split(')').next().unwrap_or(rest);
            rules.extend(names.split_whitespace());
        } else if let Some(rest) = line.strip_prefix("lane-") {
            rules.extend(rest.split(':').next());
        }
    }
    let mut run = BTreeSet::new();
    for name in ["LANES", "LONG_LANES", "ALONE"] {
        run.extend(list(&makefile, name));
    }
    assert_eq!(run, rules);
    let nightly = tree::read(".github/workflows/nightly.yml").unwrap();
    let (_, matrix) = nightly.split_once("lane: [").unwrap();
    let (matrix, _) = matrix.split_once(']').unwrap();
    let matrix: BTreeSet<&str> = matrix.split(',').map(str::trim).collect();
    assert_eq!(matrix, run);
}
