//! The workspace has only allowed dependencies, and others are reported.

use aliquot_style::arrows::{ALLOWED, Member, Use, members, violations};
use aliquot_style::documents::{section, table_rows};
use aliquot_style::tree;

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
fn rejects_other_dependencies() {
    let used = |name: &str, for_tests| Use {
        name: name.to_owned(),
        for_tests,
    };
    let member = |name: &str, is_test, uses| Member {
        name: name.to_owned(),
        is_test,
        uses,
    };
    let all = vec![
        used("aliquot-k8s", false),
        used("aliquot-gpusim", true),
        used("tokio", false),
        used("serde", false),
        used("proptest", true),
    ];
    let members = [
        member("aliquot-core", false, all),
        member("aliquot-k8s", false, vec![used("aliquot-core", false)]),
        member("aliquot-gpusim", true, vec![used("aliquot-k8s", false)]),
    ];
    let expected = [
        "aliquot-core -> aliquot-k8s: not an allowed dependency",
        "aliquot-core -> aliquot-gpusim: not an allowed dependency",
        "aliquot-core -> tokio: aliquot-core must stay pure",
    ];
    assert_eq!(violations(&members), expected);
}
