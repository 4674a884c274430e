//! GPUs injected by mounts and by CDI devices in annotations.

use serde_json::{Value, json};

use super::*;

const FOLDER: &str = "/var/run/nvidia-container-devices";

fn annotated(key: &str, value: &str, container: &Value) -> Value {
    let mut pod = asking(&json!({"cpu": "1"}));
    pod["metadata"]["annotations"] = json!({key: value, "mine": "1"});
    let main = pod["spec"]["containers"][0].as_object_mut().unwrap();
    main.extend(container.as_object().unwrap().clone());
    pod
}

/// Whether the annotation is there afterwards, whoever places the pod.
fn check(key: &str, value: &str, container: &Value, left: bool) {
    for scheduler in ["default-scheduler", "x"] {
        let mut pod = annotated(key, value, container);
        pod["spec"]["schedulerName"] = json!(scheduler);
        let (after, patch, warnings) = admit(&pod, &Settings::default());
        let annotations = &after["metadata"]["annotations"];
        assert_eq!(annotations.get(key).is_some(), left, "{key} {value}");
        assert_eq!(annotations["mine"], "1");
        assert_eq!((patch.is_empty(), warnings.is_empty()), (left, left));
        let (_, again, warnings) = admit(&after, &Settings::default());
        assert!(again.is_empty() && warnings.is_empty(), "{again}");
    }
}

#[test]
fn removes_annotations_that_name_cdi_gpu_devices() {
    let plain = json!({});
    for key in [
        "cdi.k8s.io/x",
        "nvidia.cdi.k8s.io",
        "nvidia.cdi.k8s.io/pod",
        "nvidia.cdi.k8s.io/container.main",
        "nvidia.cdi.k8s.io/container.later",
    ] {
        for value in [
            "nvidia.com/gpu=all",
            "vendor.com/nic=a, runtime.nvidia.com/gpu=0",
            "management.nvidia.com/gpu=all",
            // Another pod's share.
            "aliquot.dev/vgpu=GPU-a-0-1",
        ] {
            check(key, value, &plain, false);
        }
        check(key, "vendor.com/nic=a", &plain, true);
        check(key, "nvidia.community.org/nic=a", &plain, true);
    }
    check("example.com/gpu", "nvidia.com/gpu=all", &plain, true);
}

#[test]
fn keeps_cdi_annotations_of_exempt_pods() {
    let (all, own) = ("management.nvidia.com/gpu=all", "nvidia.cdi.k8s.io");
    let privileged = json!({"securityContext": {"privileged": true}});
    for key in [own, "nvidia.cdi.k8s.io/container.main", "cdi.k8s.io/x"] {
        check(key, all, &privileged, true);
    }
    // No container of that name exists yet that could be exempt.
    check("nvidia.cdi.k8s.io/container.later", all, &privileged, false);
    let pod = annotated(own, all, &json!({}));
    let (_, patch, _) = admit(&pod, &with_policy(VisibleDevices::Allow));
    assert!(patch.is_empty());
    let text = r#"metadata.annotations["nvidia.cdi.k8s.io"]: CDI devices "management.nvidia.com/gpu=all" would bypass the scheduler; expected: no device of nvidia.com or aliquot.dev (use annotation aliquot.dev/use-gpu to choose a GPU)"#;
    let refused = refusals(&pod, &with_policy(VisibleDevices::Deny));
    assert_eq!(refused, [text]);
}

#[test]
fn rejects_mounts_that_name_gpus_to_nvidia_runtime() {
    let mounts = |at: &str| json!({"volumeMounts": [{"name": "n", "mountPath": at}]});
    let made = |limits: &Value, scheduler: &str, at: &str| {
        let mut pod = asking(limits);
        pod["spec"]["schedulerName"] = json!(scheduler);
        let main = pod["spec"]["containers"][0].as_object_mut().unwrap();
        main.extend(mounts(at).as_object().unwrap().clone());
        pod
    };
    for limits in [json!({"cpu": "1"}), json!({"nvidia.com/gpu": "1"})] {
        for scheduler in ["default-scheduler", "x"] {
            for (at, refused) in [
                (format!("{FOLDER}/all"), true),
                ("/run/./nvidia-container-devices/0".to_owned(), true),
                (FOLDER.to_owned(), true),
                ("/var/run".to_owned(), false),
            ] {
                let pod = made(&limits, scheduler, &at);
                if !refused {
                    admit(&pod, &Settings::default());
                    continue;
                }
                let text = format!(
                    "spec.containers[0].volumeMounts[0].mountPath: {at:?} would inject GPUs and bypass the scheduler; expected: a path outside {FOLDER}"
                );
                assert_eq!(refusals(&pod, &Settings::default()), [text]);
            }
        }
    }
    let at = format!("{FOLDER}/all");
    let mut debug = mounts(&at);
    debug["name"] = json!("d");
    let bare = asking(&json!({"cpu": "1"}));
    let verdict = super::refused::debug(&bare, "default", debug);
    assert!(matches!(verdict, Verdict::Deny(_)), "{verdict:?}");
    // It reaches every GPU anyway.
    let mut plugin = made(&json!({"cpu": "1"}), "x", &at);
    plugin["spec"]["containers"][0]["securityContext"] = json!({"privileged": true});
    assert!(admit(&plugin, &Settings::default()).1.is_empty());
}
