//! MIG instances and renamed GPUs: nothing is filled in, and more than one strict share is refused.

use serde_json::json;

use super::*;

const PART: &str = "nvidia.com/mig-1g.5gb";

fn settings() -> Settings {
    Settings {
        extra: vec![SHARED.to_owned()],
        strict: vec![SHARED.to_owned()],
        ..Settings::default()
    }
}

#[test]
fn fills_in_nothing_for_mig_and_renamed_resources() {
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
    // Usual resources beside it are filled in as always.
    let both = json!({PART: "1", "nvidia.com/gpu": "1"});
    let (after, ..) = admit(&asking(&both), &settings());
    let limits = &after["spec"]["containers"][0]["resources"]["limits"];
    assert_eq!(limits["nvidia.com/gpumem"], "5000");
    // Requests follow limits.
    let alone = pod(&json!([{"name": "main", "resources": {"limits": {PART: "1"}}}]));
    let (after, ..) = admit(&alone, &settings());
    let requests = &after["spec"]["containers"][0]["resources"]["requests"];
    assert_eq!(requests, &json!({PART: "1"}));
    // Without its name among the extra ones a renamed GPU is not ours.
    let (_, patch, _) = admit(&asking(&json!({SHARED: "1"})), &Settings::default());
    assert!(patch.is_empty());
}

#[test]
fn mps_8_ts_15_rejects_more_than_one_strict_share() {
    let text = r#"spec.containers[0].resources.limits["nvidia.com/gpu.shared"]: "2" exceeds the limit of one share per container; expected: 1"#;
    let refused = refusals(&asking(&json!({SHARED: "2"})), &settings());
    assert_eq!(refused, [text]);
    let (_, patch, _) = admit(&asking(&json!({SHARED: "1"})), &settings());
    assert!(!patch.is_empty());
}
