//! The table of XIDs: NVIDIA's words, the owner's changes, and the page made from it.

use std::fmt::Write as _;
use std::path::Path;

use super::*;

fn check(changes: &str, code: u64, expected: Action) {
    let actions: Actions = changes.parse().expect("accepted");
    assert_eq!(actions.of(code), expected, "{code} with {changes:?}");
    let ignored = actions.ignored().contains(code);
    assert_eq!(ignored, expected.leaves_the_card(), "{code} {changes:?}");
}

#[test]
fn each_code_asks_for_what_nvidias_catalogue_says() {
    for (codes, expected) in [
        (&[43, 45, 63, 92, 106, 154][..], Action::Ignore),
        (&[8, 13, 31, 68, 69, 94, 142], Action::RestartApplication),
        (
            &[46, 48, 62, 64, 74, 95, 109, 119, 120, 140],
            Action::ResetGpu,
        ),
        (&[54, 79, 151], Action::DrainNode),
    ] {
        for code in codes {
            check("", *code, expected);
        }
    }
}

#[test]
fn a_code_that_nobody_knows_takes_the_card_out() {
    for code in [1, 999, 65_535] {
        check("", code, Action::ResetGpu);
        check("unknown=ignore", code, Action::Ignore);
    }
    check("unknown=ignore", 79, Action::DrainNode);
}

#[test]
fn the_owner_changes_single_codes() {
    check("79=ignore", 79, Action::Ignore);
    check(" 94 = reset-gpu , 13=drain-node,", 94, Action::ResetGpu);
    check("94=reset-gpu,13=drain-node", 13, Action::DrainNode);
    check("94=reset-gpu", 95, Action::ResetGpu);
    check(
        "unknown=restart-application,7=drain-node",
        7,
        Action::DrainNode,
    );
    check("unknown=restart-application", 7, Action::RestartApplication);
}

#[test]
fn a_change_that_cannot_be_meant_is_refused_with_what_is_accepted() {
    let refused = |text: &str, expected: &[&str]| {
        let error = text.parse::<Actions>().expect_err(text).to_string();
        for part in expected {
            assert!(error.contains(part), "{text}: {error}");
        }
    };
    refused("79", &["\"79\"", "<xid>=<action>"]);
    refused("79:ignore", &["<xid>=<action>"]);
    refused("79=explode", &["79", "\"explode\"", "reset-gpu"]);
    refused("79=", &["79", "accepted: ignore"]);
    refused("0=ignore", &["\"0\"", "1 to 65535"]);
    refused("+5=ignore", &["\"+5\"", "1 to 65535"]);
    refused("65536=ignore", &["1 to 65535"]);
    refused("all=ignore", &["\"all\"", "`unknown`"]);
    refused("79=ignore,79=drain-node", &["79", "twice"]);
    refused("unknown=ignore,unknown=ignore", &["unknown", "twice"]);
}

#[test]
fn the_catalogue_is_in_order_and_names_each_code_once() {
    let codes: Vec<u64> = CATALOGUE.iter().map(|row| row.0).collect();
    assert!(codes.is_sorted_by(|a, b| a < b), "{codes:?}");
}

/// `UPDATE=1` writes the page instead: `make reference`.
#[test]
fn the_reference_of_xids_is_made_from_the_catalogue() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/reference/xids.md");
    let kept = std::fs::read_to_string(&page).expect("the page");
    let (head, _) = kept.split_once("| XID |").expect("a table");
    let mut fresh = format!("{head}| XID | action | NVIDIA's meaning |\n|---|---|---|\n");
    for (code, action, meaning) in CATALOGUE {
        writeln!(fresh, "| {code} | `{action}` | {meaning} |").expect("text");
    }
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(&page, &fresh).expect("written");
    } else {
        assert_eq!(kept, fresh, "run `make reference`");
    }
}
