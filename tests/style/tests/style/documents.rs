//! The documents match the repository, and a difference is reported.

use aliquot_style::documents::{rights_without_reason, section, table_rows, unheld, unproved};
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

/// The numbers in a table's cell.
fn numbers(cell: &str) -> Vec<&str> {
    let parts = cell.split(|c: char| !c.is_ascii_digit() && c != '.');
    parts.filter(|part| !part.is_empty()).collect()
}

#[test]
fn benchmarks_have_the_figures_of_the_specification() {
    let specification = tree::read("docs/SPECIFICATION.md").unwrap();
    let measured = table_rows(&specification);
    let page = tree::read("docs/guides/benchmarks.md").unwrap();
    let rows = table_rows(&page);
    assert!(!rows.is_empty());
    let mut errors = Vec::new();
    for row in rows {
        let same = |cells: &&Vec<&str>| {
            let of_row = numbers(cells[cells.len() - 2]);
            cells[1].contains(row[1]) && numbers(row[2]).iter().all(|one| of_row.contains(one))
        };
        if !measured.iter().any(|cells| same(&cells)) {
            errors.push(format!("{} {}: not in the specification", row[1], row[2]));
        }
    }
    none(&errors);
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
fn every_attack_and_limiter_call_names_existing_tests() {
    let files = tree::files("rs").unwrap();
    let sources: Vec<&str> = files.iter().map(|file| file.text.as_str()).collect();
    let attacks = tree::read("docs/threat-model.md").unwrap();
    let calls = tree::read("docs/limiter.md").unwrap();
    for page in [&attacks, &calls] {
        let mut rows = table_rows(page);
        // The page of driver calls has other tables too.
        rows.retain(|row| page != &calls || row[0].starts_with('`'));
        assert!(!rows.is_empty());
        none(&unheld(&rows, &sources));
    }
    let results = ["prevented", "seen", "not covered"];
    for row in table_rows(&attacks) {
        let known = results.iter().any(|result| row[1].starts_with(result));
        assert!(known, "{}: {}", row[0], row[1]);
    }
}

/// docs/contributing/walks.md tells ways of values through the code, function by function.
#[test]
fn walks_follow_functions_that_exist() {
    let page = tree::read("docs/contributing/walks.md").unwrap();
    let mut steps = 0;
    for line in page.lines() {
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

#[test]
fn reports_promise_without_command() {
    let head = "| promise | command |\n|---|---|\n";
    let makefile = "bench:\n\tcargo run\n";
    let check = |row: &str, errors: usize| {
        let text = format!("{head}{row}\n");
        assert_eq!(unproved(&text, makefile).len(), errors, "{row}");
    };
    check("| fast | `make bench` |", 0);
    check("| fast | `make magic` |", 1);
    check("| fast | trust me |", 1);
    check("| fast | |", 1);
}

#[test]
fn reports_invariant_without_test() {
    let sources = ["fn sums_stay_small() {}", "fn other() {}"];
    let check = |row: &str, errors: usize| {
        let text = format!("| always | held by |\n|---|---|\n{row}\n");
        assert_eq!(unheld(&table_rows(&text), &sources).len(), errors, "{row}");
    };
    check("| small | `sums_stay_small` |", 0);
    check("| small | `sums_stay_small`, `other` |", 0);
    check("| small | `sums_stay_small`, `gone` |", 1);
    check("| small | hope |", 1);
}

#[test]
fn reports_rbac_rule_without_reason() {
    let check = |text: &str, errors: usize| {
        assert_eq!(
            rights_without_reason("a.yaml", text).len(),
            errors,
            "{text}"
        );
    };
    check("rules:\n  # Reads them.\n  - apiGroups: [a]\n", 0);
    check("rules:\n  - apiGroups: [a]\n", 1);
    check("# One.\n- apiGroups: [a]\n- apiGroups: [b]\n", 1);
}
