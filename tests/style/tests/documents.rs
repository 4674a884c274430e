//! The documents tell the truth about the repository, and a lie is noticed.

use aliquot_style::documents::{MOST_README_LINES, broken_links, outside_fences};
use aliquot_style::documents::{rights_without_reason, unheld, unproved};
use aliquot_style::documents::{section, table_rows};
use aliquot_style::tree::{self, File};

fn none(faults: &[String]) {
    assert!(faults.is_empty(), "\n{}", faults.join("\n"));
}

#[test]
fn every_relative_link_leads_somewhere() {
    let exists = |path: &str| tree::root().join(path).exists();
    let faults: Vec<_> = tree::files("md")
        .unwrap()
        .iter()
        .flat_map(|File { path, text }| broken_links(path, text, exists))
        .collect();
    none(&faults);
}

#[test]
fn every_room_has_a_short_readme() {
    let mut faults = Vec::new();
    for manifest in tree::files("toml").unwrap() {
        let Some(room) = manifest.path.strip_suffix("/Cargo.toml") else {
            continue;
        };
        match tree::read(&format!("{room}/README.md")) {
            Err(_) => faults.push(format!("{room}: no README.md")),
            Ok(text) => {
                let lines = outside_fences(&text)
                    .filter(|(_, line)| !line.is_empty())
                    .count();
                if lines > MOST_README_LINES {
                    faults.push(format!(
                        "{room}/README.md: {lines} lines; a title and three sentences"
                    ));
                }
            }
        }
    }
    none(&faults);
}

#[test]
fn every_promised_number_names_a_command() {
    let specification = tree::read("docs/SPECIFICATION.md").unwrap();
    let makefile = tree::read("Makefile").unwrap();
    assert!(!table_rows(&specification).is_empty());
    none(&unproved(&specification, &makefile));
}

#[test]
fn every_invariant_names_a_test_that_exists() {
    let architecture = tree::read("ARCHITECTURE.md").unwrap();
    let rows = table_rows(section(&architecture, "Invariants"));
    assert!(!rows.is_empty());
    let files = tree::files("rs").unwrap();
    let sources: Vec<&str> = files.iter().map(|file| file.text.as_str()).collect();
    none(&unheld(&rows, &sources));
}

#[test]
fn every_attack_and_every_call_of_the_limiter_names_a_test_that_exists() {
    let files = tree::files("rs").unwrap();
    let sources: Vec<&str> = files.iter().map(|file| file.text.as_str()).collect();
    let attacks = tree::read("docs/threat-model.md").unwrap();
    let calls = tree::read("docs/limiter.md").unwrap();
    for (page, least) in [(&attacks, 24), (&calls, 10)] {
        let mut rows = table_rows(page);
        // The page of calls has other tables too.
        rows.retain(|row| page != &calls || row[0].starts_with('`'));
        assert!(rows.len() >= least, "{} rows", rows.len());
        none(&unheld(&rows, &sources));
    }
    let results = [
        "prevented",
        "seen",
        "refused at once",
        "the host asks",
        "not covered",
    ];
    for row in table_rows(&attacks) {
        let known = results.iter().any(|result| row[1].starts_with(result));
        assert!(known, "{}: {}", row[0], row[1]);
    }
}

#[test]
fn every_right_has_its_reason() {
    let path = "charts/aliquot/templates/rbac.yaml";
    let text = tree::read(path).unwrap();
    assert!(text.contains("- apiGroups:"));
    none(&rights_without_reason(path, &text));
}

#[test]
fn a_link_that_leads_nowhere_is_noticed() {
    let exists = |path: &str| ["docs/a.md", "README.md"].contains(&path);
    let check = |text: &str, faults: usize| {
        assert_eq!(
            broken_links("docs/b.md", text, exists).len(),
            faults,
            "{text}"
        );
    };
    check("[a](a.md) and [top](../README.md#state)", 0);
    check("[out](https://example.org/x) [here](#part)", 0);
    check("```\n[no link](nowhere.md)\n```", 0);
    check("[b](gone.md)", 1);
    check("[a](a.md) [b](gone.md) [c](../gone.md)", 2);
    check("[outside](../../elsewhere.md)", 1);
    check("[absolute](/etc/passwd)", 1);
}

#[test]
fn a_promise_without_a_command_is_noticed() {
    let head = "| promise | command |\n|---|---|\n";
    let makefile = "bench:\n\tcargo run\n";
    let check = |row: &str, faults: usize| {
        let text = format!("{head}{row}\n");
        assert_eq!(unproved(&text, makefile).len(), faults, "{row}");
    };
    check("| fast | `make bench` |", 0);
    check("| fast | `make magic` |", 1);
    check("| fast | trust me |", 1);
    check("| fast | |", 1);
}

#[test]
fn an_invariant_without_a_test_is_noticed() {
    let sources = ["fn sums_stay_small() {}", "fn other() {}"];
    let check = |row: &str, faults: usize| {
        let text = format!("| always | held by |\n|---|---|\n{row}\n");
        assert_eq!(unheld(&table_rows(&text), &sources).len(), faults, "{row}");
    };
    check("| small | `sums_stay_small` |", 0);
    check("| small | `sums_stay_small`, `other` |", 0);
    check("| small | `sums_stay_small`, `gone` |", 1);
    check("| small | hope |", 1);
}

#[test]
fn a_right_without_a_reason_is_noticed() {
    let check = |text: &str, faults: usize| {
        assert_eq!(
            rights_without_reason("a.yaml", text).len(),
            faults,
            "{text}"
        );
    };
    check("rules:\n  # Reads them.\n  - apiGroups: [a]\n", 0);
    check("rules:\n  - apiGroups: [a]\n", 1);
    check("# One.\n- apiGroups: [a]\n- apiGroups: [b]\n", 1);
}
