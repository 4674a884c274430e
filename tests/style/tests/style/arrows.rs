//! The workspace has only allowed dependencies, and others are reported.

use aliquot_style::arrows::{ALLOWED, Member, Use, members, violations};
use aliquot_style::documents::{section, table_rows};
use aliquot_style::tree;

/// A workspace of all crates in the table, with only these dependencies
/// (`from -> to`; ` (dev)` after it for a dev-dependency).
fn workspace(arrows: &[&str]) -> Vec<Member> {
    let tests = ["aliquot-cluster", "aliquot-gpusim"];
    let product = ALLOWED.iter().map(|(name, _)| (*name, false));
    let mut all: Vec<Member> = product
        .chain(tests.map(|name| (name, true)))
        .map(|(name, is_test)| Member {
            name: name.to_owned(),
            is_test,
            uses: Vec::new(),
        })
        .collect();
    for arrow in arrows {
        let (from, to) = arrow.split_once(" -> ").expect("an arrow");
        let used = Use {
            name: to.trim_end_matches(" (dev)").to_owned(),
            for_tests: to.ends_with(" (dev)"),
        };
        match all.iter_mut().find(|member| member.name == from) {
            Some(member) => member.uses.push(used),
            None => all.push(Member {
                name: from.to_owned(),
                is_test: false,
                uses: vec![used],
            }),
        }
    }
    all
}

fn check(arrow: &str, expected: &[&str]) {
    assert_eq!(violations(&workspace(&[arrow])), expected, "{arrow}");
}

#[test]
fn workspace_has_only_allowed_dependencies() {
    let metadata = tree::metadata(&["--no-deps"]).unwrap();
    let members = members(&metadata).unwrap();
    assert!(members.iter().any(|member| member.name == "aliquot-core"));
    assert!(members.iter().any(|member| member.is_test));
    assert_eq!(violations(&members), [""; 0]);
}

#[test]
fn architecture_map_shows_allowed_dependencies() {
    let architecture = tree::read("ARCHITECTURE.md").unwrap();
    let rows = table_rows(section(&architecture, "Map"));
    for (name, allowed) in ALLOWED {
        let short_name = name.trim_start_matches("aliquot-");
        let row = rows.iter().find(|cells| {
            let cell = cells[0].trim_matches(['`', '[']);
            cell.split(']').next() == Some(short_name)
        });
        let shown = row.and_then(|cells| cells.last().copied());
        let short: Vec<_> = allowed
            .iter()
            .map(|to| to.trim_start_matches("aliquot-"))
            .collect();
        let expected = if short.is_empty() {
            "nothing".to_owned()
        } else {
            short.join(", ")
        };
        assert_eq!(
            shown,
            Some(expected.as_str()),
            "{short_name} in the map of ARCHITECTURE.md"
        );
    }
}

#[test]
fn accepts_allowed_dependencies() {
    check("aliquot-scheduler -> aliquot-core", &[]);
    check("aliquot-webhook -> aliquot-serve", &[]);
    check("aliquot-device-plugin -> aliquot-nvml", &[]);
    check("aliquot-scheduler -> axum", &[]);
    check("aliquot-core -> serde", &[]);
    check("aliquot-core -> proptest (dev)", &[]);
    check("aliquot-gpusim -> aliquot-nvml (dev)", &[]);
    check("aliquot-cluster -> aliquot-scheduler", &[]);
}

#[test]
fn rejects_other_dependencies() {
    for arrow in [
        "aliquot-core -> aliquot-k8s",
        "aliquot-core -> aliquot-serve (dev)",
        "aliquot-k8s -> aliquot-serve",
        "aliquot-serve -> aliquot-k8s",
        "aliquot-nvml -> aliquot-k8s",
        "aliquot-scheduler -> aliquot-nvml",
        "aliquot-scheduler -> aliquot-webhook",
        "aliquot-webhook -> aliquot-scheduler (dev)",
        "aliquot-device-plugin -> aliquot-scheduler",
        "aliquot-device-plugin -> aliquot-gpusim (dev)",
        "aliquot-scheduler -> aliquot-cluster (dev)",
    ] {
        let plain = arrow.trim_end_matches(" (dev)");
        check(arrow, &[&format!("{plain}: not an allowed dependency")]);
    }
    check(
        "aliquot-core -> tokio",
        &["aliquot-core -> tokio: aliquot-core must stay pure"],
    );
    check(
        "aliquot-newcomer -> aliquot-core",
        &["aliquot-newcomer: not in the table of allowed dependencies"],
    );
}
