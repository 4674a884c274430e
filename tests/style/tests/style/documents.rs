//! The documents match the repository.

use aliquot_style::documents::{
    names, rights_without_reason, section, table_rows, unheld, unproved,
};
use aliquot_style::tree;

fn none(errors: &[String]) {
    assert!(errors.is_empty(), "\n{}", errors.join("\n"));
}

#[test]
fn every_promised_figure_names_a_command() {
    let specification = tree::read("docs/SPECIFICATION.md").unwrap();
    let makefile = tree::read("Makefile").unwrap();
    assert!(!table_rows(&specification).is_empty());
    none(&unproved(&specification, &makefile));
}

#[test]
fn benchmarks_repeat_measured_figures() {
    let specification = tree::read("docs/SPECIFICATION.md").unwrap();
    let benchmarks = tree::read("docs/guides/benchmarks.md").unwrap();
    let promised = table_rows(&specification);
    let mut named = 0;
    for row in table_rows(&benchmarks) {
        let &[_, name, figure, ..] = row.as_slice() else {
            continue;
        };
        let number = figure.trim_end_matches(|last: char| !last.is_ascii_digit());
        for name in names(name) {
            let is_measured = |cells: &Vec<&str>| {
                matches!(cells[..], [_, of, _, measured, _]
                    if names(of).contains(&name) && measured.contains(number))
            };
            assert!(promised.iter().any(is_measured), "{name}: {figure}");
            named += 1;
        }
    }
    assert!(named > 0);
}

#[test]
fn every_invariant_and_feature_names_existing_tests() {
    let files = tree::files("rs").unwrap();
    let sources: Vec<&str> = files.iter().map(|file| file.text.as_str()).collect();
    let architecture = tree::read("ARCHITECTURE.md").unwrap();
    assert!(!table_rows(section(&architecture, "Invariants")).is_empty());
    let state = tree::read("docs/guides/support-matrix.md").unwrap();
    assert!(!table_rows(section(&state, "State")).is_empty());
    for page in tree::files("md").unwrap() {
        for title in ["Invariants", "State"] {
            none(&unheld(&table_rows(section(&page.text, title)), &sources));
        }
    }
}

#[test]
fn every_attack_and_statement_on_the_limiter_names_existing_tests() {
    let files = tree::files("rs").unwrap();
    let sources: Vec<&str> = files.iter().map(|file| file.text.as_str()).collect();
    let attacks = tree::read("docs/threat-model.md").unwrap();
    let limiter = tree::read("docs/limiter.md").unwrap();
    let mut calls = table_rows(&limiter);
    // That page has other tables too.
    calls.retain(|row| row[0].starts_with('`'));
    let statements = table_rows(section(&limiter, "Tests of other statements"));
    for rows in [table_rows(&attacks), calls, statements] {
        assert!(!rows.is_empty());
        none(&unheld(&rows, &sources));
    }
}

/// docs/contributing/walks.md tells ways of values through the code, function by function.
#[test]
fn walks_follow_functions_that_exist() {
    let page = tree::read("docs/contributing/walks.md").unwrap();
    let (mut steps, mut files) = (0, Vec::new());
    for line in page.lines() {
        if line.starts_with("## ") {
            (steps, files) = (0, Vec::new());
        }
        let Some((_, step)) = line.split_once(". [`") else {
            continue;
        };
        let (name, rest) = step.split_once("`](../../").expect(line);
        let (file, _) = rest.split_once(')').expect(line);
        let function = name.rsplit("::").next().unwrap_or(name);
        let text = tree::read(file).unwrap();
        let is_there = ["(", "<"]
            .iter()
            .any(|end| text.contains(&format!("fn {function}{end}")));
        assert!(is_there, "{file} has no function {function}");
        steps += 1;
        if files.last() != Some(&file) {
            assert!(!files.contains(&file), "the walk comes back: {line}");
            files.push(file);
        }
        assert!(steps <= 12 && files.len() <= 8, "too long: {line}");
    }
    assert!(steps > 0);
}

#[test]
fn every_rbac_rule_has_a_reason() {
    let path = "charts/aliquot/templates/rbac.yaml";
    let text = tree::read(path).unwrap();
    assert!(text.contains("- apiGroups:"));
    none(&rights_without_reason(path, &text));
}
