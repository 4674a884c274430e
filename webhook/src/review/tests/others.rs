//! MIG instances and renamed cards: nothing is filled in, and what cannot be given
//! is refused.

use serde_json::json;

use super::*;

const SHARED: &str = "nvidia.com/gpu.shared";
const PART: &str = "nvidia.com/mig-1g.5gb";

fn settings() -> Settings {
    Settings {
        extra: vec![SHARED.to_owned()],
        strict: vec![SHARED.to_owned()],
        ..Settings::default()
    }
}

#[test]
fn nothing_is_filled_in_for_instances_and_renamed_cards() {
    for limits in [
        json!({PART: "1"}),
        json!({PART: "2", "nvidia.com/mig-2g.10gb": "1"}),
        json!({SHARED: "1", "nvidia.com/gpumem": "3000"}),
    ] {
        let (after, _, warnings) = admit(&asking(&limits), &settings());
        let resources = &after["spec"]["containers"][0]["resources"];
        assert_eq!(
            (&resources["limits"], &resources["requests"]),
            (&limits, &limits)
        );
        assert_eq!(after["spec"]["schedulerName"], "aliquot-scheduler");
        assert!(warnings.is_empty(), "{warnings:?}");
    }
    // A number of usual ones beside it is filled in as always.
    let both = json!({PART: "1", "nvidia.com/gpu": "1"});
    let (after, ..) = admit(&asking(&both), &settings());
    let limits = &after["spec"]["containers"][0]["resources"]["limits"];
    assert_eq!(limits["nvidia.com/gpumem"], "5000");
    // Requests follow limits.
    let alone = pod(&json!([{"name": "main", "resources": {"limits": {PART: "1"}}}]));
    let (after, ..) = admit(&alone, &settings());
    let requests = &after["spec"]["containers"][0]["resources"]["requests"];
    assert_eq!(requests, &json!({PART: "1"}));
    // Without its name among the extra ones a renamed card is not ours.
    let (_, patch, _) = admit(&asking(&json!({SHARED: "1"})), &Settings::default());
    assert!(patch.is_empty());
}

/// Exactly one refusal with this text.
fn check_refused(limits: &serde_json::Value, name: &str, message: &str) {
    let pod = asking(limits);
    match review(&create(&pod, "default"), &settings()) {
        Verdict::Deny(refusals) => {
            let field = format!("spec.containers[0].resources.limits[{name:?}]");
            assert_eq!(refusals.len(), 1, "{refusals:?}");
            assert_eq!(refusals[0].to_string(), format!("{field}: {message}"));
        }
        Verdict::Allow { .. } => panic!("admitted: {limits}"),
    }
}

#[test]
fn mps_8_ts_15_more_than_one_strict_share_is_refused_at_admission() {
    let one = "accepted: 1, because each container may have one share of a card under this name";
    let message = format!("\"2\" shares for one container; {one}");
    check_refused(&json!({SHARED: "2"}), SHARED, &message);
    let (_, patch, _) = admit(&asking(&json!({SHARED: "1"})), &settings());
    assert!(!patch.is_empty());
}

#[test]
fn numbers_of_instances_that_cannot_be_meant_are_refused() {
    let cards = "a whole number of cards, 0 to 64";
    for (value, problem) in [
        ("65", "is out of range"),
        ("-1", "is negative"),
        ("1Ki", "has a binary suffix"),
    ] {
        let message = format!("{value:?} {problem}; accepted: {cards}");
        check_refused(&json!({PART: value}), PART, &message);
    }
}
