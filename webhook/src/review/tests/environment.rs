//! What a pod sets for NVIDIA's libraries, and what the review makes of it.

use aliquot_core::mig;
use aliquot_core::request_annotation::REQUEST;
use serde_json::{Value, json};

use super::*;
use crate::review::environment::{CDI_KEYS, CDI_VENDORS, MOUNT_FOLDER};
use crate::review::request::RESERVED;

const UUID: &str = "GPU-5a2e6a4e-95b9-1f7c-0d23-7b6a9c0d1e2f";
const OTHER: &str = "GPU-00000000-95b9-1f7c-0d23-7b6a9c0d1e2f";
const PART: &str = "MIG-5a2e6a4e-95b9-1f7c-0d23-7b6a9c0d1e2f";
const PIN: &str = "aliquot.dev/use-gpu";
const REMOVED: &str =
    "container main: NVIDIA_VISIBLE_DEVICES removed: the container sees the GPUs allocated to it";
const VOID: &str = "container main: NVIDIA_VISIBLE_DEVICES set to void: the container requests no GPU and sees none";

fn with_env(limits: &Value, env: &Value) -> Value {
    let mut pod = asking(limits);
    pod["spec"]["containers"][0]["env"] = env.clone();
    pod
}

fn about(name: &str, warnings: Vec<String>) -> Vec<String> {
    let all = warnings.into_iter();
    all.filter(|line| line.contains(name)).collect()
}

#[test]
fn mig_6_turns_visible_devices_into_a_pin() {
    let gpu = json!({GPU: "1"});
    let part = json!({"nvidia.com/mig-1g.5gb": "1"});
    let cpu = json!({"cpu": "1"});
    let replaced = |uuid: &str| {
        format!(
            "NVIDIA_VISIBLE_DEVICES replaced by annotation {PIN}: {uuid}, so that the scheduler allocates these GPUs"
        )
    };
    let void = visible("void");
    for (limits, value, after, pin, warnings) in [
        (
            &gpu,
            UUID,
            &json!([]),
            json!(UUID),
            vec![REMOVED.to_owned(), replaced(UUID)],
        ),
        (
            &part,
            PART,
            &json!([]),
            json!(PART),
            vec![REMOVED.to_owned(), replaced(PART)],
        ),
        (
            &gpu,
            "all",
            &json!([]),
            Value::Null,
            vec![REMOVED.to_owned()],
        ),
        (&gpu, "none", &visible("none"), Value::Null, Vec::new()),
        (&cpu, "all", &void, Value::Null, vec![VOID.to_owned()]),
        (&cpu, UUID, &void, Value::Null, vec![VOID.to_owned()]),
        (&cpu, "0,1", &void, Value::Null, vec![VOID.to_owned()]),
    ] {
        let (pod, _, found) = admit(&with_env(limits, &visible(value)), &Settings::default());
        assert_eq!(&pod["spec"]["containers"][0]["env"], after, "{value}");
        assert_eq!(pod["metadata"]["annotations"][PIN], pin, "{value}");
        assert_eq!(about("VISIBLE", found), warnings);
        let (_, again, _) = admit(&pod, &Settings::default());
        assert!(again.is_empty(), "{again}");
    }
}

#[test]
fn overrides_every_duplicate_of_visible_devices() {
    let other = json!({"name": "A", "value": "b"});
    let set = |value: &str| json!({"name": "NVIDIA_VISIBLE_DEVICES", "value": value});
    let env = json!([set("void"), other, set("all")]);
    let (after, _, _) = admit(&with_env(&json!({"cpu": "1"}), &env), &Settings::default());
    let found = &after["spec"]["containers"][0]["env"];
    assert_eq!(found, &json!([other, set("void")]));
}

#[test]
fn mig_6_rejects_malformed_uuids() {
    for value in ["0", "GPU-5a2e6a4e", "MIG-GPU-e88cb44c", "0:4", "GPU-x,all"] {
        let pod = with_env(&json!({GPU: "1"}), &visible(value));
        let text = format!(
            "spec.containers[0].env[0]: NVIDIA_VISIBLE_DEVICES {value:?} does not name a GPU; expected: GPU-<uuid> or MIG-<uuid> as `nvidia-smi -L` prints them, or several, comma-separated, or no NVIDIA_VISIBLE_DEVICES"
        );
        assert_eq!(refusals(&pod, &Settings::default()), [text]);
    }
}

#[test]
fn mig_6_denies_or_allows_visible_devices_by_policy() {
    let deny = with_policy(VisibleDevices::Deny);
    let allow = with_policy(VisibleDevices::Allow);
    let reference =
        json!([{"name": "NVIDIA_VISIBLE_DEVICES", "valueFrom": {"fieldRef": {"fieldPath": "x"}}}]);
    for (env, shown) in [
        (visible("all"), r#""all""#),
        (visible("0"), r#""0""#),
        (reference, "by reference"),
    ] {
        let mut pod = with_env(&json!({"cpu": "1"}), &env);
        pod["spec"]["runtimeClassName"] = json!("nvidia");
        let text = format!(
            "spec.containers[0].env[0]: NVIDIA_VISIBLE_DEVICES {shown} would bypass the scheduler; expected: no NVIDIA_VISIBLE_DEVICES (use annotation {PIN} to choose a GPU)"
        );
        assert_eq!(refusals(&pod, &deny), [text]);
        assert!(admit(&pod, &allow).1.is_empty());
        let mut trusted = Settings::default();
        trusted.escape_allowed.insert("default".to_owned());
        assert!(admit(&pod, &trusted).1.is_empty());
    }
}

/// A variable that is left as it is, and the warning about it.
fn check_left(limits: &Value, name: &str, value: &str, warning: Option<&str>) {
    let env = json!([{"name": name, "value": value}]);
    let (after, _, warnings) = admit(&with_env(limits, &env), &Settings::default());
    assert_eq!(after["spec"]["containers"][0]["env"], env);
    let expected: Vec<String> = warning.map(str::to_owned).into_iter().collect();
    assert_eq!(about(name, warnings), expected, "{value}");
}

#[test]
fn mig_7_warns_of_cuda_visible_devices_without_a_device() {
    let name = "CUDA_VISIBLE_DEVICES";
    let warning = |device: &str, count: u32| {
        format!(
            "{name}: {device:?} is not one of the container's devices (count: {count}); it can only select among these, use annotation {PIN} to choose a GPU"
        )
    };
    let (two, part) = (json!({GPU: "2"}), json!({"nvidia.com/mig-1g.5gb": "1"}));
    check_left(&two, name, "1,0", None);
    check_left(&two, name, "0,2", Some(&warning("2", 2)));
    check_left(&two, name, UUID, Some(&warning(UUID, 2)));
    check_left(&part, name, "0", None);
    check_left(&part, name, "1", Some(&warning("1", 1)));
}

#[test]
fn mps_5_warns_of_malformed_mps_memory_limit() {
    let name = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT";
    let gpu = json!({GPU: "1"});
    for good in ["0=5G", "0=1G,1=512M"] {
        check_left(&gpu, name, good, None);
    }
    for bad in ["5GB", "512M", "0=5", "0:5G", "G", "0=5GB"] {
        let warning = format!(
            "{name}: {bad:?} is not a limit that MPS can read; expected: a device ordinal and a size in M or G such as 0=5G, several separated by commas"
        );
        check_left(&gpu, name, bad, Some(&warning));
    }
}

#[test]
fn warns_of_parts_of_the_driver_that_a_share_lacks() {
    let name = "NVIDIA_DRIVER_CAPABILITIES";
    let (gpu, none) = (json!({GPU: "1"}), json!({"cpu": "1"}));
    for (value, lacks, key) in [
        ("compute, video", "video", "video"),
        ("graphics,utility", "graphics", "graphics"),
        ("all", "graphics and video", "graphics"),
    ] {
        let warning = format!(
            "{name}: a share of a GPU in mode vgpu comes without {lacks}; expected: a GPU whose profile allows it, such as {key}: true"
        );
        check_left(&gpu, name, value, Some(&warning));
        check_left(&none, name, value, None);
    }
    check_left(&gpu, name, "compute,utility", None);
}

#[test]
fn same_visible_devices_in_two_containers_become_one_pin() {
    let two = |second: &Value| {
        let mut containers = ["main", "side"].map(|name| container(name, &json!({GPU: "1"})));
        containers[0]["env"] = visible(UUID);
        containers[1]["env"] = second.clone();
        pod(&json!(containers))
    };
    let pin = |pod: &Value| {
        let (after, ..) = admit(pod, &Settings::default());
        after["metadata"]["annotations"][PIN].clone()
    };
    assert_eq!(pin(&two(&visible(UUID))), UUID);
    for second in [visible(OTHER), json!([])] {
        let mut pod = two(&second);
        let text = format!(
            r#"spec.containers[0]: NVIDIA_VISIBLE_DEVICES "{UUID}" would apply to every container that requests a GPU; expected: the same value in each of them, or annotation {PIN} with all GPUs that the pod may use"#
        );
        assert_eq!(refusals(&pod, &Settings::default()), [text]);
        let both = json!(format!("{OTHER},{UUID}"));
        pod["metadata"]["annotations"] = json!({PIN: both});
        assert_eq!(pin(&pod), both);
    }
}

#[test]
fn overrides_visible_devices_of_ephemeral_containers() {
    let check = |pod: &Value, namespace: &str, env: &Value, expected: &Value| {
        let added = json!({"name": "main", "env": env});
        let Verdict::Allow { patch, warnings } = super::refused::debug(pod, namespace, added)
        else {
            panic!("refused");
        };
        let mut after = json!({"spec": {"ephemeralContainers": [{}, {"env": env}]}});
        json_patch::patch(&mut after, &patch).unwrap();
        let found = &after["spec"]["ephemeralContainers"][1]["env"];
        assert_eq!(found, expected, "{namespace}: {env}");
        assert!(warnings.iter().all(|line| line == VOID), "{warnings:?}");
        assert_eq!(warnings.is_empty(), env == expected || env == &json!([]));
    };
    let shared = asking(&json!({GPU: "1"}));
    let plain = asking(&json!({"cpu": "1"}));
    let (none, all, void) = (json!([]), visible("all"), visible("void"));
    check(&shared, "default", &all, &void);
    check(&plain, "default", &visible("0"), &void);
    // What the image sets counts, too.
    check(&shared, "default", &none, &void);
    check(&plain, "default", &none, &none);
    check(&plain, "trusted", &all, &all);
    let mut foreign = plain;
    foreign["spec"]["schedulerName"] = json!("x");
    check(&foreign, "default", &none, &none);
    check(&foreign, "default", &all, &void);
}

/// Otherwise the API server would not send the pod for review.
#[test]
fn match_condition_names_what_a_review_looks_for() {
    let template = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../charts/aliquot/templates/webhook-configuration.yaml"
    );
    let template = std::fs::read_to_string(template).unwrap();
    let folder = MOUNT_FOLDER.rsplit('/').next().unwrap();
    let others = [REQUEST, mig::RESOURCES, VISIBLE, folder];
    let names = [&RESERVED[..], &CDI_KEYS, &CDI_VENDORS, &others].concat();
    for name in names {
        assert!(template.contains(&format!("{name:?}")), "{name}");
    }
}
