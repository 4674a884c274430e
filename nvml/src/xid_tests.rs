//! The table of XIDs: NVIDIA's catalogue, overrides, and the page generated from it.

use std::fmt::Write as _;
use std::path::Path;

use super::*;

fn check(changes: &str, code: u64, expected: XidAction) {
    let actions: XidActions = changes.parse().expect("accepted");
    assert_eq!(actions.of(code), expected, "{code} with {changes:?}");
}

#[test]
fn maps_xids_to_catalogue_actions() {
    for (codes, expected) in [
        (&[43, 45, 63, 92, 106, 154][..], XidAction::Ignore),
        (
            &[8, 13, 31, 68, 69, 94, 109, 142],
            XidAction::RestartApplication,
        ),
        (
            &[46, 48, 62, 64, 74, 95, 119, 120, 140],
            XidAction::ResetGpu,
        ),
        (&[54, 79, 151], XidAction::DrainNode),
    ] {
        for code in codes {
            check("", *code, expected);
        }
    }
}

#[test]
fn overrides_actions_of_single_and_unknown_xids() {
    let unknown = "unknown=restart-application";
    for (changes, code, expected) in [
        ("79=ignore", 79, XidAction::Ignore),
        (" 94 = reset-gpu , 13=drain-node,", 94, XidAction::ResetGpu),
        (
            "unknown=drain-node,79=ignore",
            13,
            XidAction::RestartApplication,
        ),
        ("94=reset-gpu,13=drain-node", 13, XidAction::DrainNode),
        ("94=reset-gpu", 95, XidAction::ResetGpu),
        ("", 1, XidAction::ResetGpu),
        ("", 65_535, XidAction::ResetGpu),
        ("unknown=ignore", 999, XidAction::Ignore),
        ("unknown=ignore", 79, XidAction::DrainNode),
        (unknown, 7, XidAction::RestartApplication),
        (&format!("{unknown},7=drain-node"), 7, XidAction::DrainNode),
    ] {
        check(changes, code, expected);
    }
}

#[test]
fn rejects_invalid_override_with_expected_values() {
    let refused = |text: &str, expected: &[&str]| {
        let error = text.parse::<XidActions>().expect_err(text).to_string();
        for part in expected {
            assert!(error.contains(part), "{text}: {error}");
        }
    };
    refused("79", &["\"79\"", "<xid>=<action>"]);
    refused("79:ignore", &["<xid>=<action>"]);
    refused("79=explode", &["79", "\"explode\"", "reset-gpu"]);
    refused("79=", &["79", "expected one of ignore"]);
    refused("0=ignore", &["\"0\"", "1 to 65535"]);
    refused("+5=ignore", &["\"+5\"", "1 to 65535"]);
    refused("65536=ignore", &["1 to 65535"]);
    refused("all=ignore", &["\"all\"", "`unknown`"]);
    refused("79=ignore,79=drain-node", &["79", "twice"]);
    refused("unknown=ignore,unknown=ignore", &["unknown", "twice"]);
}

/// `UPDATE=1` writes the page instead: `make reference`.
#[test]
fn xid_reference_matches_catalogue() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/reference/xids.md");
    let stored = std::fs::read_to_string(&page).expect("the page");
    let (head, _) = stored.split_once("| action | XIDs |").expect("a table");
    let mut fresh = format!("{head}| action | XIDs |\n|---|---|\n");
    for (action, codes) in CATALOGUE {
        let codes: Vec<String> = codes.iter().map(u64::to_string).collect();
        writeln!(fresh, "| `{action}` | {} |", codes.join(", ")).expect("text");
    }
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(&page, &fresh).expect("written");
    } else {
        assert_eq!(stored, fresh, "run `make reference`");
    }
}
