//! What admitted pods look like afterwards, and what their users are told.

use serde_json::{Value, json};

use aliquot_core::request::BareGpu;
use aliquot_core::{Mib, Percent};

use super::*;

const GPU: &str = "nvidia.com/gpu";
const MEM: &str = "nvidia.com/gpumem";
const PERCENT: &str = "nvidia.com/gpumem-percentage";
const CORES: &str = "nvidia.com/gpucores";
const PRIORITY: &str = "nvidia.com/priority";

/// Limits and requests become `expected`; each warning is one of `warnings`.
fn check(settings: &Settings, limits: &Value, expected: &Value, warnings: &[&str]) {
    let before = asking(limits);
    let (after, _, warned) = admit(&before, settings);
    let resources = &after["spec"]["containers"][0]["resources"];
    assert_eq!(&resources["limits"], expected, "{limits}");
    assert_eq!(&resources["requests"], expected, "{limits}");
    assert_eq!(warned, warnings, "{limits}");
    assert_eq!(after["spec"]["schedulerName"], "aliquot-scheduler");

    let defaulted = after["metadata"]["annotations"][DEFAULTED]
        .as_str()
        .unwrap_or("{}");
    let defaulted: Value = serde_json::from_str(defaulted).unwrap();
    let mut rest = expected.as_object().unwrap().clone();
    rest.retain(|name, _| limits.get(name).is_none());
    let filled = if rest.is_empty() {
        json!({})
    } else {
        json!({"main": rest})
    };
    assert_eq!(defaulted, filled, "{limits}");
}

const COUNT_SET: &str = "nvidia.com/gpu not set: 1";
const MEM_SET: &str = "nvidia.com/gpumem not set: 5000 MiB; ask for nvidia.com/gpumem-percentage: 100 for a whole card";
const MEM_WHOLE: &str =
    "nvidia.com/gpumem not set: nvidia.com/gpumem-percentage: 100, the whole memory of a card";
const CORES_SET: &str =
    "nvidia.com/gpucores not set: 0, no part of the compute is set aside or capped";
const PRIORITY_SET: &str = "nvidia.com/priority not set: 1 (low)";

#[test]
fn fills_in_what_is_missing_and_says_so() {
    let settings = Settings::default();
    check(
        &settings,
        &json!({MEM: "3k"}),
        &json!({GPU: "1", MEM: "3k", CORES: "0", PRIORITY: "1"}),
        &[COUNT_SET, CORES_SET, PRIORITY_SET],
    );
    check(
        &settings,
        &json!({PERCENT: "50"}),
        &json!({GPU: "1", PERCENT: "50", CORES: "0", PRIORITY: "1"}),
        &[COUNT_SET, CORES_SET, PRIORITY_SET],
    );
    check(
        &settings,
        &json!({CORES: "30"}),
        &json!({GPU: "1", MEM: "5000", CORES: "30", PRIORITY: "1"}),
        &[COUNT_SET, MEM_SET, PRIORITY_SET],
    );
    for count in ["1", "2"] {
        check(
            &settings,
            &json!({GPU: count}),
            &json!({GPU: count, MEM: "5000", CORES: "0", PRIORITY: "1"}),
            &[MEM_SET, CORES_SET, PRIORITY_SET],
        );
    }
    let full = json!({GPU: "1", MEM: "3k", CORES: "30", PRIORITY: "0"});
    check(&settings, &full, &full, &[]);
}

#[test]
fn decimal_forms_of_kubernetes_are_taken() {
    for value in ["3k", "80k", "1e3", "3000", "0.003M", "5000e-3"] {
        let full = json!({GPU: "1", MEM: value, CORES: "0", PRIORITY: "1"});
        check(&Settings::default(), &full, &full, &[]);
    }
}

#[test]
fn the_defaults_of_the_cluster_are_what_is_filled_in() {
    let mut settings = Settings::default();
    settings.defaults.memory = Mib(0);
    check(
        &settings,
        &json!({GPU: "1"}),
        &json!({GPU: "1", PERCENT: "100", CORES: "0", PRIORITY: "1"}),
        &[MEM_WHOLE, CORES_SET, PRIORITY_SET],
    );
    settings.defaults.count = 2;
    settings.defaults.cores = Percent(25);
    check(
        &settings,
        &json!({MEM: "1k"}),
        &json!({GPU: "2", MEM: "1k", CORES: "25", PRIORITY: "1"}),
        &[
            "nvidia.com/gpu not set: 2",
            "nvidia.com/gpucores not set: 25 percent of a card's compute",
            PRIORITY_SET,
        ],
    );
}

#[test]
fn a_bare_gpu_is_a_whole_card_where_that_is_configured() {
    let mut settings = Settings::default();
    settings.defaults.bare_gpu = BareGpu::Whole;
    let alone = "nvidia.com/gpucores not set: 100 percent, alone on the card";
    check(
        &settings,
        &json!({GPU: "1"}),
        &json!({GPU: "1", PERCENT: "100", CORES: "100", PRIORITY: "1"}),
        &[MEM_WHOLE, alone, PRIORITY_SET],
    );
    check(
        &settings,
        &json!({GPU: "1", CORES: "30"}),
        &json!({GPU: "1", MEM: "5000", CORES: "30", PRIORITY: "1"}),
        &[MEM_SET, PRIORITY_SET],
    );
}

#[test]
fn each_container_is_filled_in_on_its_own_and_named() {
    let mut before = pod(&json!([
        container("a", &json!({GPU: "1", MEM: "1k", CORES: "0"})),
        container("idle", &json!({"cpu": "1"})),
        container("zero", &json!({GPU: "0"})),
    ]));
    let side = json!({"name": "side", "restartPolicy": "Always",
        "resources": {"limits": {CORES: "10", PRIORITY: "0", GPU: "1"}}});
    before["spec"]["initContainers"] = json!([side]);
    let (after, _, warnings) = admit(&before, &Settings::default());
    assert_eq!(
        warnings,
        [
            format!("container side: {MEM_SET}"),
            format!("container a: {PRIORITY_SET}"),
        ]
    );
    let side = &after["spec"]["initContainers"][0]["resources"];
    let expected = json!({GPU: "1", MEM: "5000", CORES: "10", PRIORITY: "0"});
    assert_eq!((&side["limits"], &side["requests"]), (&expected, &expected));
    for index in [1, 2] {
        let (before, after) = (&before["spec"]["containers"], &after["spec"]["containers"]);
        let mut expected = before[index].clone();
        expected["env"] = json!([{"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"}]);
        assert_eq!(expected, after[index]);
    }
    assert_eq!(
        after["metadata"]["annotations"][DEFAULTED],
        r#"{"a":{"nvidia.com/priority":"1"},"side":{"nvidia.com/gpumem":"5000"}}"#
    );
}

#[test]
fn a_container_added_after_the_first_review_joins_the_record() {
    let (mut after, ..) = admit(&asking(&json!({CORES: "1"})), &Settings::default());
    let late = container("late", &json!({GPU: "1", MEM: "1k", CORES: "1"}));
    after["spec"]["containers"]
        .as_array_mut()
        .unwrap()
        .push(late);
    let (twice, ..) = admit(&after, &Settings::default());
    assert_eq!(
        twice["metadata"]["annotations"][DEFAULTED],
        r#"{"late":{"nvidia.com/priority":"1"},"main":{"nvidia.com/gpu":"1","nvidia.com/gpumem":"5000","nvidia.com/priority":"1"}}"#
    );
}

#[test]
fn limits_and_requests_follow_each_other() {
    let full = json!({GPU: "1", MEM: "3k", CORES: "0", PRIORITY: "1"});
    for resources in [json!({"limits": full}), json!({"requests": full})] {
        let before = pod(&json!([{"name": "main", "resources": resources}]));
        let (after, _, warnings) = admit(&before, &Settings::default());
        let resources = &after["spec"]["containers"][0]["resources"];
        assert_eq!(
            (&resources["limits"], &resources["requests"]),
            (&full, &full)
        );
        assert!(warnings.is_empty());
    }
    // The same amount in two notations is the same amount.
    let resources = json!({"limits": full, "requests": {MEM: "3000"}});
    admit(
        &pod(&json!([{"name": "main", "resources": resources}])),
        &Settings::default(),
    );
}

#[test]
fn reserved_annotations_are_stripped_with_a_warning() {
    for scheduler in ["default-scheduler", "volcano"] {
        let mut copied = asking(&json!({"cpu": "1"}));
        copied["spec"]["schedulerName"] = json!(scheduler);
        copied["metadata"]["annotations"] = json!({"aliquot.dev/allocation": "{}", "keep": "me"});
        let (after, _, warnings) = admit(&copied, &Settings::default());
        assert_eq!(after["metadata"]["annotations"], json!({"keep": "me"}));
        assert_eq!(after["spec"], copied["spec"]);
        let expected = "annotation aliquot.dev/allocation removed: only the scheduler writes it";
        assert_eq!(warnings, [expected]);
    }
}

/// Admitted without any change.
fn check_untouched(pod: &Value) {
    let (_, patch, warnings) = admit(pod, &Settings::default());
    assert_eq!((patch.len(), warnings.len()), (0, 0), "{pod}");
}

#[test]
fn pods_that_are_not_ours_pass_untouched() {
    check_untouched(&asking(&json!({"cpu": "1"})));
    check_untouched(&asking(&json!({GPU: "0"})));
    let mut env = asking(&json!({}));
    env["spec"]["containers"][0]["env"] =
        json!([{"name": "NVIDIA_VISIBLE_DEVICES", "value": "none"}]);
    env["spec"]["hostPID"] = json!(true);
    check_untouched(&env);
    let mut foreign = asking(&json!({MEM: "16Gi"}));
    foreign["spec"]["schedulerName"] = json!("volcano");
    check_untouched(&foreign);
    let mut mirror = asking(&json!({GPU: "1"}));
    mirror["metadata"]["annotations"] = json!({"kubernetes.io/config.mirror": "0123"});
    mirror["spec"]["nodeName"] = json!("n1");
    check_untouched(&mirror);
}

#[test]
fn pods_of_replaced_schedulers_become_ours() {
    let full = json!({GPU: "1", MEM: "1k", CORES: "1", PRIORITY: "1"});
    for (before, changes) in [
        ("", 1),
        ("default-scheduler", 1),
        ("hami-scheduler", 1),
        ("aliquot-scheduler", 0),
    ] {
        let mut pod = asking(&full);
        pod["spec"]["schedulerName"] = json!(before);
        let (after, patch, _) = admit(&pod, &Settings::default());
        assert_eq!(after["spec"]["schedulerName"], "aliquot-scheduler");
        assert_eq!(patch.len(), changes, "{before}");
    }
}

#[test]
fn the_runtime_class_is_set_where_the_pod_names_none() {
    let settings = Settings {
        runtime_class: Some("nvidia".to_owned()),
        ..Settings::default()
    };
    for (before, after) in [(Value::Null, "nvidia"), (json!("kata"), "kata")] {
        let mut pod = asking(&json!({GPU: "1"}));
        pod["spec"]["runtimeClassName"] = before;
        assert_eq!(admit(&pod, &settings).0["spec"]["runtimeClassName"], after);
    }
}

#[test]
fn escape_is_allowed_where_the_administrator_says_so() {
    let mut pod = asking(&json!({GPU: "1"}));
    pod["spec"]["hostPID"] = json!(true);
    let mut settings = Settings::default();
    settings.escape_allowed.insert("default".to_owned());
    admit(&pod, &settings);
}

#[test]
fn harmless_host_paths_and_mounts_are_taken() {
    let mut pod = asking(&json!({GPU: "1"}));
    pod["spec"]["volumes"] = json!([
        {"name": "a", "hostPath": {"path": "/dev/shm"}},
        {"name": "b", "hostPath": {"path": "/data/models", "type": "Directory"}},
        {"name": "c", "hostPath": {"path": "/var/log"}},
        {"name": "d", "emptyDir": {"medium": "Memory"}},
    ]);
    pod["spec"]["containers"][0]["volumeMounts"] = json!([
        {"name": "d", "mountPath": "/dev/shm"},
        {"name": "b", "mountPath": "/etc/models"},
    ]);
    // Over our paths, but in a container that has none of our files.
    let side = json!({"name": "side", "volumeMounts": [{"name": "d", "mountPath": "/etc"}]});
    pod["spec"]["containers"].as_array_mut().unwrap().push(side);
    admit(&pod, &Settings::default());
}

#[test]
fn renamed_resources_are_the_ones_that_count() {
    use aliquot_core::request::{Resource, ResourceNames};
    let names = ResourceNames::with([(Resource::Gpu, "example.com/vgpu".to_owned())]);
    let settings = Settings {
        names,
        ..Settings::default()
    };
    let (after, ..) = admit(&asking(&json!({"example.com/vgpu": "1"})), &settings);
    assert_eq!(
        after["spec"]["containers"][0]["resources"]["limits"][MEM],
        "5000"
    );
    let (_, patch, _) = admit(&asking(&json!({GPU: "1"})), &settings);
    assert!(patch.is_empty());
}

#[test]
fn other_operations_pass() {
    let pod = asking(&json!({MEM: "16Gi"}));
    for (operation, sub_resource) in [
        ("UPDATE", ""),
        ("DELETE", ""),
        ("UPDATE", "resize"),
        ("CREATE", "binding"),
    ] {
        let question = Question {
            operation,
            sub_resource,
            ..create(&pod, "default")
        };
        let verdict = review(&question, &Settings::default());
        assert!(matches!(verdict, Verdict::Allow { patch, .. } if patch.is_empty()));
    }
}
