//! What admitted pods look like afterwards, and how many warnings their users get. The texts of
//! the warnings are in `texts.rs`.

use serde_json::{Value, json};

use aliquot_core::request::{BareGpu, DEFAULTED};
use aliquot_core::{Mib, Percent};

use super::*;

const GPU: &str = "nvidia.com/gpu";
const MEM: &str = "nvidia.com/gpumem";
const PERCENT: &str = "nvidia.com/gpumem-percentage";
const CORES: &str = "nvidia.com/gpucores";
const PRIORITY: &str = "nvidia.com/priority";

/// Limits and requests become `expected`; one warning names each of `warned`.
fn check(settings: &Settings, limits: &Value, expected: &Value, warned: &[&str]) {
    let before = asking(limits);
    let (after, _, warnings) = admit(&before, settings);
    let resources = &after["spec"]["containers"][0]["resources"];
    assert_eq!(&resources["limits"], expected, "{limits}");
    assert_eq!(&resources["requests"], expected, "{limits}");
    let lines: Vec<&str> = warnings.iter().flat_map(|line| line.split("; ")).collect();
    assert!(warnings.len() <= 1, "{limits}: {warnings:?}");
    assert_eq!(lines.len(), warned.len(), "{limits}: {warnings:?}");
    for (line, name) in lines.iter().zip(warned) {
        assert!(line.starts_with(&format!("{name} not set")), "{line}");
    }
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

#[test]
fn fills_in_missing_values_and_warns() {
    let settings = Settings::default();
    check(
        &settings,
        &json!({MEM: "3k"}),
        &json!({GPU: "1", MEM: "3k", CORES: "0", PRIORITY: "1"}),
        &[GPU, CORES],
    );
    check(
        &settings,
        &json!({PERCENT: "50"}),
        &json!({GPU: "1", PERCENT: "50", CORES: "0", PRIORITY: "1"}),
        &[GPU, CORES],
    );
    check(
        &settings,
        &json!({CORES: "30"}),
        &json!({GPU: "1", MEM: "5000", CORES: "30", PRIORITY: "1"}),
        &[GPU, MEM],
    );
    for count in ["1", "2"] {
        check(
            &settings,
            &json!({GPU: count}),
            &json!({GPU: count, MEM: "5000", CORES: "0", PRIORITY: "1"}),
            &[MEM, CORES],
        );
    }
    let full = json!({GPU: "1", MEM: "3k", CORES: "30", PRIORITY: "0"});
    check(&settings, &full, &full, &[]);
}

#[test]
fn hami_4_memory_or_compute_alone_gets_default_gpu_count() {
    let mut settings = Settings::default();
    for written in [
        json!({MEM: "3k"}),
        json!({PERCENT: "10"}),
        json!({CORES: "30"}),
    ] {
        for (default, expected) in [(1, "1"), (2, "2")] {
            settings.defaults.count = default;
            let (after, ..) = admit(&asking(&written), &settings);
            let limits = &after["spec"]["containers"][0]["resources"]["limits"];
            assert_eq!(limits[GPU], expected, "{written}");
        }
        settings.defaults.count = 0;
        let refused = refusals(&asking(&written), &settings);
        let words = "requires nvidia.com/gpu of at least 1";
        assert!(refused[0].contains(words), "{written}: {refused:?}");
    }
}

#[test]
fn hami_5_omitted_memory_and_compute_get_the_defaults() {
    let mut settings = Settings::default();
    settings.defaults.memory = Mib(0);
    check(
        &settings,
        &json!({GPU: "1"}),
        &json!({GPU: "1", PERCENT: "100", CORES: "0", PRIORITY: "1"}),
        &[MEM, CORES],
    );
    settings.defaults.count = 2;
    settings.defaults.cores = Percent(25);
    check(
        &settings,
        &json!({MEM: "1k"}),
        &json!({GPU: "2", MEM: "1k", CORES: "25", PRIORITY: "1"}),
        &[GPU, CORES],
    );
}

#[test]
fn bare_gpu_is_a_whole_gpu_where_configured() {
    let mut settings = Settings::default();
    settings.defaults.bare_gpu = BareGpu::Whole;
    check(
        &settings,
        &json!({GPU: "1"}),
        &json!({GPU: "1", PERCENT: "100", CORES: "100", PRIORITY: "1"}),
        &[MEM, CORES],
    );
    check(
        &settings,
        &json!({GPU: "1", CORES: "30"}),
        &json!({GPU: "1", MEM: "5000", CORES: "30", PRIORITY: "1"}),
        &[MEM],
    );
}

#[test]
fn fills_in_each_container_separately() {
    let mut before = pod(&json!([
        container("a", &json!({GPU: "1", MEM: "1k", CORES: "0"})),
        container("idle", &json!({"cpu": "1"})),
        container("zero", &json!({GPU: "0"})),
    ]));
    let side = json!({"name": "side", "restartPolicy": "Always",
        "resources": {"limits": {CORES: "10", PRIORITY: "0", GPU: "1"}}});
    before["spec"]["initContainers"] = json!([side]);
    let (after, _, warnings) = admit(&before, &Settings::default());
    assert_eq!(warnings.len(), 1, "{warnings:?}");
    assert!(warnings[0].starts_with(&format!("container side: {MEM} not set")));
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
fn records_defaults_of_container_added_later() {
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
fn copies_limits_to_requests_and_back() {
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
fn removes_reserved_annotations_with_a_warning() {
    for scheduler in ["default-scheduler", "volcano"] {
        let mut copied = asking(&json!({"cpu": "1"}));
        copied["spec"]["schedulerName"] = json!(scheduler);
        copied["metadata"]["annotations"] = json!({"aliquot.dev/allocation": "{}", "keep": "me"});
        let (after, _, warnings) = admit(&copied, &Settings::default());
        assert_eq!(after["metadata"]["annotations"], json!({"keep": "me"}));
        assert_eq!(after["spec"], copied["spec"]);
        assert_eq!(warnings.len(), 1, "{warnings:?}");
    }
}

/// Admitted without any change.
fn check_untouched(pod: &Value) {
    let (_, patch, warnings) = admit(pod, &Settings::default());
    assert_eq!((patch.len(), warnings.len()), (0, 0), "{pod}");
}

#[test]
fn leaves_unrelated_pods_unchanged() {
    check_untouched(&asking(&json!({"cpu": "1"})));
    check_untouched(&asking(&json!({GPU: "0"})));
    let mut env = asking(&json!({}));
    env["spec"]["containers"][0]["env"] =
        json!([{"name": "NVIDIA_VISIBLE_DEVICES", "value": "none"}]);
    env["spec"]["hostPID"] = json!(true);
    check_untouched(&env);
    let mut foreign = asking(&json!({MEM: "16Gi"}));
    foreign["spec"]["schedulerName"] = json!("volcano");
    let (_, patch, warnings) = admit(&foreign, &Settings::default());
    assert_eq!((patch.len(), warnings.len()), (0, 1), "{warnings:?}");
    let mut mirror = asking(&json!({GPU: "1"}));
    mirror["metadata"]["annotations"] = json!({"kubernetes.io/config.mirror": "0123"});
    mirror["spec"]["nodeName"] = json!("n1");
    check_untouched(&mirror);
}

#[test]
fn takes_over_pods_of_replaced_schedulers() {
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
fn sets_runtime_class_where_pod_names_none() {
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
fn allows_escape_in_configured_namespaces() {
    let mut pod = asking(&json!({GPU: "1"}));
    pod["spec"]["hostPID"] = json!(true);
    let mut settings = Settings::default();
    settings.escape_allowed.insert("default".to_owned());
    admit(&pod, &settings);
}

#[test]
fn accepts_harmless_host_paths_and_mounts() {
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
fn hami_11_all_five_resources_have_other_names_at_once() {
    use aliquot_core::request::{Resource, ResourceNames};
    let names = [
        (Resource::Gpu, "x/gpu"),
        (Resource::Memory, "x/mem"),
        (Resource::MemoryPercentage, "x/pct"),
        (Resource::Cores, "x/cores"),
        (Resource::Priority, "x/prio"),
    ];
    let settings = Settings {
        names: ResourceNames::with(names.map(|(resource, name)| (resource, name.to_owned()))),
        ..Settings::default()
    };
    for (written, expected) in [
        (
            json!({"x/gpu": "1"}),
            json!({"x/gpu": "1", "x/mem": "5000", "x/cores": "0", "x/prio": "1"}),
        ),
        (
            json!({"x/pct": "10"}),
            json!({"x/gpu": "1", "x/pct": "10", "x/cores": "0", "x/prio": "1"}),
        ),
    ] {
        let (after, ..) = admit(&asking(&written), &settings);
        assert_eq!(
            after["spec"]["containers"][0]["resources"]["limits"],
            expected
        );
    }
    let (_, patch, _) = admit(&asking(&json!({GPU: "1"})), &settings);
    assert!(patch.is_empty());
}

#[test]
fn admits_other_operations_unchanged() {
    let pod = asking(&json!({MEM: "16Gi"}));
    for (operation, sub_resource) in [
        ("UPDATE", ""),
        ("DELETE", ""),
        ("UPDATE", "resize"),
        ("CREATE", "binding"),
    ] {
        let request = PodReview {
            operation,
            sub_resource,
            ..create(&pod, "default")
        };
        let verdict = review(&request, &Settings::default());
        assert!(matches!(verdict, Verdict::Allow { patch, .. } if patch.is_empty()));
    }
}
