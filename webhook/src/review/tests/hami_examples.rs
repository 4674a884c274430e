//! The example pods of HAMi's repository for NVIDIA, by name: each is admitted, and what it then
//! asks for is what docs/migrating-from-hami.md says.

use aliquot_core::request::BareGpu;
use serde_json::{Value, json};

use super::*;

const PAGE: &str = include_str!("../../../../docs/migrating-from-hami.md");

/// Count, memory, percentage and cores that an admitted container has.
fn asked(after: &Value) -> [Option<&str>; 4] {
    let limits = &after["spec"]["containers"][0]["resources"]["limits"];
    ["gpu", "gpumem", "gpumem-percentage", "gpucores"]
        .map(|name| limits[format!("nvidia.com/{name}")].as_str())
}

fn check(
    example: &str,
    limits: &Value,
    annotations: &Value,
    whole: bool,
    expected: [Option<&str>; 4],
) {
    assert!(
        PAGE.contains(&format!("`{example}`")),
        "{example} is not on the page"
    );
    let mut pod = asking(limits);
    pod["metadata"]["annotations"] = annotations.clone();
    let mut settings = Settings::default();
    if whole {
        settings.defaults.bare_gpu = BareGpu::Whole;
    }
    let (after, _, _) = admit(&pod, &settings);
    assert_eq!(asked(&after), expected, "{example}");
    assert_eq!(
        after["spec"]["schedulerName"], "aliquot-scheduler",
        "{example}"
    );
    for (key, value) in annotations.as_object().into_iter().flatten() {
        assert_eq!(after["metadata"]["annotations"][key], *value, "{example}");
    }
}

#[test]
fn hami_examples_match_migration_page() {
    let limits = |gpu: &str, mem: Option<&str>, percent: Option<&str>, cores: Option<&str>| {
        let all = [
            ("gpu", Some(gpu)),
            ("gpumem", mem),
            ("gpumem-percentage", percent),
            ("gpucores", cores),
        ];
        let set = all
            .into_iter()
            .filter_map(|(name, value)| Some((format!("nvidia.com/{name}"), json!(value?))));
        Value::Object(set.collect())
    };
    let none = json!({});
    let share = limits("1", Some("3k"), None, Some("30"));
    let shared = [Some("1"), Some("3k"), None, Some("30")];
    check("default_use", &share, &none, false, shared);
    check("example", &share, &none, false, shared);
    // Two whole cards in HAMi.
    let legacy = limits("2", None, None, None);
    check(
        "default_use_legacy",
        &legacy,
        &none,
        false,
        [Some("2"), Some("5000"), None, Some("0")],
    );
    check(
        "default_use_legacy",
        &legacy,
        &none,
        true,
        [Some("2"), None, Some("100"), Some("100")],
    );
    // Of which two do not share a card in HAMi.
    let normal = limits("1", None, None, None);
    check(
        "use_as_normal",
        &normal,
        &none,
        false,
        [Some("1"), Some("5000"), None, Some("0")],
    );
    check(
        "use_as_normal",
        &normal,
        &none,
        true,
        [Some("1"), None, Some("100"), Some("100")],
    );
    for (percent, cores) in [("40", "60"), ("60", "40")] {
        let half = limits("1", None, Some(percent), Some(cores));
        let expected = [Some("1"), None, Some(percent), Some(cores)];
        check("use_sharing_card", &half, &none, false, expected);
    }
    let fraction = limits("2", None, Some("50"), Some("30"));
    check(
        "use_memory_fraction",
        &fraction,
        &none,
        false,
        [Some("2"), None, Some("50"), Some("30")],
    );
    let exclusive = limits("2", None, Some("100"), Some("100"));
    let expected = [Some("2"), None, Some("100"), Some("100")];
    check("use_exclusive_card", &exclusive, &none, false, expected);
    let third = limits("2", None, Some("30"), Some("30"));
    check(
        "vllm_cross_vgpu",
        &third,
        &none,
        false,
        [Some("2"), None, Some("30"), Some("30")],
    );
    for (example, annotations) in [
        (
            "specify_card_type_to_use",
            json!({"nvidia.com/use-gputype": "A100,V100"}),
        ),
        (
            "specify_card_type_not_use",
            json!({"nvidia.com/nouse-gputype": "1080,2080"}),
        ),
        (
            "specify_uuid_to_use",
            json!({"nvidia.com/use-gpuuuid": "GPU-123456"}),
        ),
        (
            "specify_uuid_not_use",
            json!({"nvidia.com/nouse-gpuuuid": "GPU-123456"}),
        ),
        (
            "specify_scheduling_policy",
            json!({
                "hami.io/node-scheduler-policy": "spread", "hami.io/gpu-scheduler-policy": "binpack",
            }),
        ),
    ] {
        check(example, &share, &annotations, false, shared);
    }
}

#[test]
fn hami_mig_examples_match_migration_page() {
    let fixed = asking(&json!({"nvidia.com/mig-3g.20gb": "1"}));
    let (after, _, _) = admit(&fixed, &Settings::default());
    assert_eq!(after["spec"]["schedulerName"], "aliquot-scheduler");
    assert!(PAGE.contains("`mig_example`"));
    let mut dynamic = asking(&json!({"nvidia.com/gpu": "2", "nvidia.com/gpumem": "8k"}));
    dynamic["metadata"]["annotations"] = json!({"nvidia.com/vgpu-mode": "mig"});
    let (after, _, _) = admit(&dynamic, &Settings::default());
    assert_eq!(asked(&after)[..2], [Some("2"), Some("8k")]);
    assert!(PAGE.contains("`dynamic_mig_example`"));
}
