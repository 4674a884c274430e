//! What admitted pods look like afterwards, and what their users are told of it.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use aliquot_core::request::{BareGpu, DEFAULTED};
use aliquot_core::{Mib, Percent};

use super::*;

const MEMORY: &str = "nvidia.com/gpumem not set, defaulting to 5000 MiB (set nvidia.com/gpumem-percentage: 100 for a whole GPU)";
const WHOLE_MEMORY: &str = "nvidia.com/gpumem not set, defaulting to nvidia.com/gpumem-percentage: 100, the GPU's whole memory";
const NO_CORES: &str =
    "nvidia.com/gpucores not set, defaulting to 0 (compute is neither reserved nor limited)";

/// Limits and requests get what is `filled` in, which is recorded, and one warning consists of
/// `texts`.
fn check(settings: &Settings, limits: &str, filled: &str, texts: &[&str]) {
    let (after, _, warnings) = admit(&asking(&amounts(limits)), settings);
    let expected = amounts(&format!("{limits} {filled}"));
    let resources = &after["spec"]["containers"][0]["resources"];
    assert_eq!(resources["limits"], expected, "{limits}");
    assert_eq!(resources["requests"], expected, "{limits}");
    assert_eq!(warnings.join("\n"), texts.join("; "), "{limits}");
    assert_eq!(after["spec"]["schedulerName"], "aliquot-scheduler");
    let recorded = after["metadata"]["annotations"][DEFAULTED].as_str();
    let recorded: Option<Value> = recorded.map(|text| serde_json::from_str(text).unwrap());
    let expected = (!filled.is_empty()).then(|| json!({"main": amounts(filled)}));
    assert_eq!(recorded, expected, "{limits}");
}

#[test]
fn hami_4_memory_or_compute_alone_gets_default_gpu_count() {
    let mut settings = Settings::default();
    for (name, value) in [(MEM, "3k"), (PERCENT, "10"), (CORES, "30")] {
        let pod = asking(&json!({name: value}));
        for (default, expected) in [(1, "1"), (2, "2")] {
            settings.defaults.count = default;
            let (after, ..) = admit(&pod, &settings);
            let limits = &after["spec"]["containers"][0]["resources"]["limits"];
            assert_eq!(limits[GPU], expected, "{name}");
        }
        settings.defaults.count = 0;
        let text = format!(
            "spec.containers[0].resources.limits[{name:?}]: {value:?} requires nvidia.com/gpu of at least 1"
        );
        assert_eq!(refusals(&pod, &settings), [text]);
    }
}

#[test]
fn hami_5_omitted_memory_and_compute_get_the_defaults() {
    let mut settings = Settings::default();
    settings.defaults.memory = Mib(0);
    let filled = "gpumem-percentage=100 gpucores=0 priority=1";
    check(&settings, "gpu=1", filled, &[WHOLE_MEMORY, NO_CORES]);
    settings.defaults.count = 2;
    settings.defaults.cores = Percent(25);
    let texts = [
        "nvidia.com/gpu not set, defaulting to 2",
        "nvidia.com/gpucores not set, defaulting to 25 percent of a GPU's compute",
    ];
    let filled = "gpu=2 gpucores=25 priority=1";
    check(&settings, "gpumem=1k", filled, &texts);
}

#[test]
fn bare_gpu_is_a_whole_gpu_where_configured() {
    let mut settings = Settings::default();
    settings.defaults.bare_gpu = BareGpu::Whole;
    let alone = "nvidia.com/gpucores not set, defaulting to 100 percent (no other container shares the GPU)";
    let filled = "gpumem-percentage=100 gpucores=100 priority=1";
    check(&settings, "gpu=1", filled, &[WHOLE_MEMORY, alone]);
    let filled = "gpumem=5000 priority=1";
    check(&settings, "gpu=1 gpucores=30", filled, &[MEMORY]);
}

#[test]
fn fills_in_each_container_separately() {
    let mut before = pod(&json!([
        container("a", &json!({GPU: "1", MEM: "1k", CORES: "0"})),
        container("idle", &json!({"cpu": "1"})),
        container("zero", &json!({GPU: "0"})),
        container(
            "tiny",
            &json!({GPU: "1", MEM: "3", CORES: "0", PRIORITY: "1"})
        ),
    ]));
    let side = json!({"name": "side", "restartPolicy": "Always",
        "resources": {"limits": {CORES: "10", PRIORITY: "0", GPU: "1"}}});
    before["spec"]["initContainers"] = json!([side]);
    let (after, _, warnings) = admit(&before, &Settings::default());
    let tiny = "container tiny: nvidia.com/gpumem is 3 MiB, in which no CUDA program fits; expected: whole MiB without a suffix (3000, because Kubernetes reads 3000m as 3)";
    let side = format!("container side: {MEMORY}");
    assert_eq!(warnings, [side.as_str(), tiny]);
    let side = &after["spec"]["initContainers"][0]["resources"];
    let expected = json!({GPU: "1", MEM: "5000", CORES: "10", PRIORITY: "0"});
    assert_eq!((&side["limits"], &side["requests"]), (&expected, &expected));
    for index in [1, 2] {
        let (before, after) = (&before["spec"]["containers"], &after["spec"]["containers"]);
        let mut expected = before[index].clone();
        expected["env"] = visible("void");
        assert_eq!(expected, after[index]);
    }
    assert_eq!(
        after["metadata"]["annotations"][DEFAULTED],
        r#"{"a":{"nvidia.com/priority":"1"},"side":{"nvidia.com/gpumem":"5000"}}"#
    );
}

#[test]
fn warns_of_init_container_with_a_share_that_ends_before_the_pod() {
    let warned = |init: Value| {
        let mut pod = asking(&json!({GPU: "1"}));
        pod["spec"]["initContainers"] = json!([init]);
        let (.., warnings) = admit(&pod, &Settings::default());
        let mut warnings = warnings.iter();
        warnings.any(|line| line.starts_with("container first: once it has ended"))
    };
    let with_share = container("first", &json!({GPU: "1"}));
    assert!(warned(with_share.clone()));
    let mut sidecar = with_share;
    sidecar["restartPolicy"] = json!("Always");
    assert!(!warned(sidecar));
    assert!(!warned(container("first", &json!({"cpu": "1"}))));
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
        let text = "annotation aliquot.dev/allocation removed: only the scheduler may set it";
        assert_eq!(warnings, [text]);
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
    env["spec"]["containers"][0]["env"] = visible("none");
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
    let renamed = |name: &str| name.replace("nvidia.com/", "x/");
    let names = ResourceNames::default();
    let names = Resource::ALL.map(|resource| (resource, renamed(names.of(resource))));
    let settings = Settings {
        names: ResourceNames::with(names),
        ..Settings::default()
    };
    for (written, expected) in [
        (
            json!({"x/gpu": "1"}),
            json!({"x/gpu": "1", "x/gpumem": "5000", "x/gpucores": "0", "x/priority": "1"}),
        ),
        (
            json!({"x/gpumem-percentage": "10"}),
            json!({"x/gpu": "1", "x/gpumem-percentage": "10", "x/gpucores": "0", "x/priority": "1"}),
        ),
    ] {
        let (after, ..) = admit(&asking(&written), &settings);
        let limits = &after["spec"]["containers"][0]["resources"]["limits"];
        assert_eq!(*limits, expected);
    }
    let (_, patch, _) = admit(&asking(&json!({GPU: "1"})), &settings);
    assert!(patch.is_empty());
}

#[test]
fn admits_other_operations_unchanged() {
    let pod = asking(&json!({MEM: "16Gi"}));
    for (operation, sub_resource) in [
        (&Operation::Update, ""),
        (&Operation::Delete, ""),
        (&Operation::Update, "resize"),
        (&Operation::Create, "binding"),
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

/// Whoever may create pods decides how many containers, volumes and annotations one has. The API
/// server waits 5 seconds.
#[test]
fn reviews_thousands_of_containers_in_time() {
    const MANY: usize = 3000;
    let names = || (0..MANY).map(|index| format!("c{index}"));
    let limits = amounts("gpu=1 gpumem=3k gpucores=0 priority=1");
    let containers = names().map(|name| {
        let mut container = container(&name, &limits);
        container["volumeMounts"] = json!([{"name": name, "mountPath": "/data"}]);
        container
    });
    let mut large = pod(&containers.collect());
    let volumes = names().map(|name| json!({"name": name, "hostPath": {"path": "/data"}}));
    large["spec"]["volumes"] = volumes.collect();
    let device = json!("nvidia.com/gpu=0");
    let annotations = names().map(|name| {
        let key = format!("nvidia.cdi.k8s.io/container.{name}");
        (key, device.clone())
    });
    large["metadata"]["annotations"] = annotations.collect();
    let begun = Instant::now();
    let verdict = review(&create(&large, "default"), &Settings::default());
    let took = begun.elapsed();
    assert!(took < Duration::from_secs(5), "{took:?}");
    assert!(matches!(verdict, Verdict::Deny(_)), "{verdict:?}");
}
