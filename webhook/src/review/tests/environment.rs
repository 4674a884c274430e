//! What a pod sets for NVIDIA's libraries, and what the review makes of it.

use serde_json::{Value, json};

use super::*;
use crate::settings::VisibleDevices;

const UUID: &str = "GPU-5a2e6a4e-95b9-1f7c-0d23-7b6a9c0d1e2f";
const PART: &str = "MIG-5a2e6a4e-95b9-1f7c-0d23-7b6a9c0d1e2f";

fn with_env(limits: &Value, name: &str, value: &str) -> Value {
    let mut pod = asking(limits);
    let env = json!([{"name": "A", "value": "b"}, {"name": name, "value": value}]);
    pod["spec"]["containers"][0]["env"] = env;
    pod
}

/// The environment afterwards, the pin, and the last warning.
fn check(limits: &Value, value: &str, env: &Value, pin: &Value, warning: &str) {
    let pod = with_env(limits, "NVIDIA_VISIBLE_DEVICES", value);
    let (after, _, warnings) = admit(&pod, &Settings::default());
    assert_eq!(&after["spec"]["containers"][0]["env"], env, "{value}");
    let annotation = &after["metadata"]["annotations"]["aliquot.dev/use-gpu"];
    assert_eq!(annotation, pin, "{value}");
    let found: Vec<_> = warnings.iter().filter(|w| w.contains("VISIBLE")).collect();
    match warning {
        "" => assert!(found.is_empty(), "{found:?}"),
        part => assert!(found.len() == 1 && found[0].contains(part), "{found:?}"),
    }
    let (_, again, _) = admit(&after, &Settings::default());
    assert!(again.is_empty(), "{again}");
}

#[test]
fn mig_6_turns_visible_devices_into_a_pin() {
    let rest = json!([{"name": "A", "value": "b"}]);
    let void =
        json!([{"name": "A", "value": "b"}, {"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"}]);
    let gpu = json!({"nvidia.com/gpu": "1"});
    let part = json!({"nvidia.com/mig-1g.5gb": "1"});
    let none = json!({"cpu": "1"});
    check(&gpu, UUID, &rest, &json!(UUID), "replaced by annotation");
    check(&part, PART, &rest, &json!(PART), "replaced by annotation");
    check(
        &gpu,
        "all",
        &rest,
        &Value::Null,
        "sees the GPUs allocated to it",
    );
    check(&none, "all", &void, &Value::Null, "and sees none");
    check(
        &none,
        UUID,
        &void,
        &Value::Null,
        "aliquot.dev/use-gpu: GPU-5a2e",
    );
    let harmless =
        json!([{"name": "A", "value": "b"}, {"name": "NVIDIA_VISIBLE_DEVICES", "value": "none"}]);
    check(&gpu, "none", &harmless, &Value::Null, "");
}

#[test]
fn overrides_every_duplicate_of_visible_devices() {
    let mut pod = with_env(&json!({"cpu": "1"}), "NVIDIA_VISIBLE_DEVICES", "void");
    let all = json!({"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"});
    let env = &mut pod["spec"]["containers"][0]["env"];
    env.as_array_mut().unwrap().push(all);
    let (after, _, _) = admit(&pod, &Settings::default());
    let void =
        json!([{"name": "A", "value": "b"}, {"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"}]);
    assert_eq!(after["spec"]["containers"][0]["env"], void);
}

#[test]
fn mig_6_rejects_malformed_uuids() {
    let gpu = json!({"nvidia.com/gpu": "1"});
    for value in ["0", "GPU-5a2e6a4e", "MIG-GPU-e88cb44c", "0:4", "GPU-x,all"] {
        let pod = with_env(&gpu, "NVIDIA_VISIBLE_DEVICES", value);
        let [refusal] = &*refusals(&pod, &Settings::default()) else {
            panic!("{value}: not one refusal");
        };
        let expected = format!("spec.containers[0].env[1]: NVIDIA_VISIBLE_DEVICES {value:?}");
        assert!(refusal.starts_with(&expected), "{refusal}");
    }
}

#[test]
fn mig_6_denies_or_allows_visible_devices_by_policy() {
    let mut pod = with_env(&json!({"cpu": "1"}), "NVIDIA_VISIBLE_DEVICES", UUID);
    pod["spec"]["runtimeClassName"] = json!("nvidia");
    let policy = |visible_devices| Settings {
        visible_devices,
        ..Settings::default()
    };
    let (_, patch, _) = admit(&pod, &policy(VisibleDevices::Allow));
    assert!(patch.is_empty());
    let denied = refusals(&pod, &policy(VisibleDevices::Deny));
    assert!(denied[0].contains("bypass the scheduler"), "{denied:?}");
    let mut settings = Settings::default();
    settings.escape_allowed.insert("default".to_owned());
    assert!(admit(&pod, &settings).1.is_empty());
}

/// The warning about a variable that is left as it is.
fn check_warning(limits: &Value, name: &str, value: &str, part: &str) {
    let (after, _, warnings) = admit(&with_env(limits, name, value), &Settings::default());
    let env = &after["spec"]["containers"][0]["env"][1];
    assert_eq!(env, &json!({"name": name, "value": value}));
    let found: Vec<_> = warnings.iter().filter(|w| w.starts_with(name)).collect();
    match part {
        "" => assert!(found.is_empty(), "{value}: {found:?}"),
        part => assert!(
            found.len() == 1 && found[0].contains(part),
            "{value}: {found:?}"
        ),
    }
}

#[test]
fn mig_7_warns_of_cuda_visible_devices_without_a_device() {
    let two = json!({"nvidia.com/gpu": "2"});
    let check = |value, part| check_warning(&two, "CUDA_VISIBLE_DEVICES", value, part);
    check("0", "");
    check("1,0", "");
    check("2", "\"2\" is not one of the container's devices");
    check(UUID, "use annotation aliquot.dev/use-gpu");
    let part = json!({"nvidia.com/mig-1g.5gb": "1"});
    check_warning(&part, "CUDA_VISIBLE_DEVICES", "0", "");
    check_warning(&part, "CUDA_VISIBLE_DEVICES", "1", "(count: 1)");
}

#[test]
fn mps_5_warns_of_malformed_mps_memory_limit() {
    let gpu = json!({"nvidia.com/gpu": "1"});
    let name = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT";
    for good in ["0=5G", "0=1G,1=512M"] {
        check_warning(&gpu, name, good, "");
    }
    check_warning(&gpu, name, "5GB", "such as 0=5G");
    check_warning(&gpu, name, "512M", "such as 0=512M");
    for bad in ["0=5", "0:5G", "G", "0=5GB"] {
        check_warning(&gpu, name, bad, "such as 0=5G");
    }
}

const OTHER: &str = "GPU-00000000-95b9-1f7c-0d23-7b6a9c0d1e2f";

/// A pod of two containers that request a GPU and select these in their environment.
fn two(first: &str, second: &str) -> Value {
    let container = |name: &str, value: &str| {
        let mut container = container(name, &json!({"nvidia.com/gpu": "1"}));
        container["env"] = json!([{"name": "NVIDIA_VISIBLE_DEVICES", "value": value}]);
        container
    };
    pod(&json!([
        container("main", first),
        container("side", second)
    ]))
}

#[test]
fn same_visible_devices_in_two_containers_become_one_pin() {
    let (after, _, _) = admit(&two(UUID, UUID), &Settings::default());
    let pin = &after["metadata"]["annotations"]["aliquot.dev/use-gpu"];
    assert_eq!(pin, UUID);
    let mut chosen = two(UUID, OTHER);
    let both = json!(format!("{OTHER},{UUID}"));
    chosen["metadata"]["annotations"] = json!({"aliquot.dev/use-gpu": both});
    let (after, _, _) = admit(&chosen, &Settings::default());
    let pin = &after["metadata"]["annotations"]["aliquot.dev/use-gpu"];
    assert_eq!(pin, &both);
}

#[test]
fn admits_visible_devices_index_without_gpu_request() {
    let void =
        json!([{"name": "A", "value": "b"}, {"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"}]);
    let none = json!({"cpu": "1"});
    for value in ["0", "0,1", "GPU-5a2e6a4e", "0:4"] {
        let warning = format!("aliquot.dev/use-gpu: {value}");
        check(&none, value, &void, &Value::Null, &warning);
    }
}

#[test]
fn overrides_visible_devices_of_ephemeral_containers() {
    let check = |pod: &Value, namespace: &str, env: &Value, expected: &Value, warning: &str| {
        let added = json!({"name": "d", "env": env});
        let Verdict::Allow { patch, warnings } = super::refused::debug(pod, namespace, added)
        else {
            panic!("refused");
        };
        let mut after = json!({"spec": {"ephemeralContainers": [{}, {"env": env}]}});
        json_patch::patch(&mut after, &patch).unwrap();
        let found = &after["spec"]["ephemeralContainers"][1]["env"];
        assert_eq!(found, expected, "{namespace}: {env}");
        assert!(warnings.join("\n").contains(warning), "{warnings:?}");
    };
    let shared = asking(&json!({"nvidia.com/gpu": "1"}));
    let plain = asking(&json!({"cpu": "1"}));
    let sets = |value: &str| json!([{"name": "NVIDIA_VISIBLE_DEVICES", "value": value}]);
    let void = sets("void");
    let given = "an ephemeral container cannot get GPUs";
    check(&shared, "default", &sets("all"), &void, "and sees none");
    check(&shared, "default", &sets(UUID), &void, given);
    check(&plain, "default", &sets("0"), &void, given);
    // What the image sets counts, too.
    check(&shared, "default", &json!([]), &void, "");
    check(&plain, "default", &json!([]), &json!([]), "");
    check(&plain, "trusted", &sets("all"), &sets("all"), "");
    let mut foreign = plain;
    foreign["spec"]["schedulerName"] = json!("x");
    check(&foreign, "default", &json!([]), &json!([]), "");
    check(&foreign, "default", &sets("all"), &void, "and sees none");
    foreign["spec"]["runtimeClassName"] = json!("nvidia");
    check(&foreign, "default", &json!([]), &void, "");
}
