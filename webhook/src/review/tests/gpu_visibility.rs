//! From whom the review hides GPUs that no scheduler allocated, and whom it leaves alone.

use serde_json::{Value, json};

use super::*;

/// One container without a resource, and these fields of `spec` and of the container.
fn bare(spec: &Value, container: &Value) -> Value {
    let mut pod = asking(&json!({}));
    for (at, fields) in [("/spec", spec), ("/spec/containers/0", container)] {
        let at = pod.pointer_mut(at).unwrap().as_object_mut().unwrap();
        at.extend(fields.as_object().unwrap().clone());
    }
    pod
}

/// The warnings without the one about a scheduler that allocates nothing of ours.
fn about_environment(mut warnings: Vec<String>) -> Vec<String> {
    warnings.retain(|line| !line.starts_with("spec.schedulerName"));
    warnings
}

/// The container's environment afterwards, in how many warnings, and that it stays so.
fn check(pod: &Value, env: &Value, warned: usize) {
    let (after, _, warnings) = admit(pod, &Settings::default());
    let warnings = about_environment(warnings);
    let found = &after["spec"]["containers"][0]["env"];
    assert_eq!((found, warnings.len()), (env, warned), "{pod} {warnings:?}");
    let mut rest = after.clone();
    rest["spec"]["containers"][0]["env"] = pod["spec"]["containers"][0]["env"].clone();
    if env.is_null() || pod["spec"]["containers"][0]["env"].is_null() {
        let container = rest["spec"]["containers"][0].as_object_mut().unwrap();
        container.remove("env");
    }
    assert_eq!(&rest, pod, "more than the environment");
    let (_, again, warnings) = admit(&after, &Settings::default());
    assert!(
        again.is_empty() && about_environment(warnings).is_empty(),
        "{again}"
    );
}

#[test]
fn overrides_visible_devices_whatever_the_scheduler() {
    let void = visible("void");
    for spec in [
        json!({"schedulerName": "x", "nodeName": "gpu-1", "runtimeClassName": "nvidia"}),
        json!({"schedulerName": "x", "nodeName": "gpu-1"}),
        json!({"schedulerName": "volcano"}),
        json!({"nodeName": "gpu-1"}),
    ] {
        for value in ["all", "0", "GPU-5a2e6a4e-95b9-1f7c-0d23-7b6a9c0d1e2f"] {
            check(&bare(&spec, &json!({"env": visible(value)})), &void, 1);
        }
        // A value by reference is known to the kubelet alone.
        let reference = json!({"name": VISIBLE, "valueFrom": {"fieldRef": {"fieldPath": "x"}}});
        let pod = bare(&spec, &json!({"env": [reference]}));
        check(&pod, &void, 1);
        check(
            &bare(&spec, &json!({"env": visible("none")})),
            &visible("none"),
            0,
        );
    }
}

#[test]
fn leaves_device_plugins_variable_of_other_schedulers() {
    let mut pod = asking(&json!({GPU: "1"}));
    pod["spec"]["schedulerName"] = json!("volcano");
    check(&pod, &Value::Null, 0);
    // Its plugin selects the GPUs, not the pod.
    let mut all = pod.clone();
    all["spec"]["containers"][0]["env"] = visible("all");
    check(&all, &json!([]), 1);
}

/// Nothing is filled in for other schedulers' pods, so no plugin allocates devices for these.
#[test]
fn hides_gpus_from_other_schedulers_pods_without_count() {
    let spec = json!({"schedulerName": "x", "runtimeClassName": "nvidia"});
    for (limits, closed) in [
        (json!({"nvidia.com/gpucores": "0"}), true),
        (json!({"nvidia.com/gpumem-percentage": "0"}), true),
        (json!({GPU: "0"}), true),
        (json!({"nvidia.com/mig-1g.5gb": "0"}), true),
        // With nodeCapacity a node publishes these, and no plugin hands them out.
        (json!({"nvidia.com/gpumem": "50"}), true),
        (json!({"nvidia.com/priority": "1"}), true),
        (json!({GPU: "no number"}), true),
        (json!({GPU: "1", "nvidia.com/gpumem": "50"}), false),
        (json!({"nvidia.com/mig-1g.5gb": "1"}), false),
    ] {
        let resources = json!({"limits": limits, "requests": limits});
        let pod = bare(&spec, &json!({"resources": resources}));
        let void = visible("void");
        let expected = if closed { &void } else { &Value::Null };
        check(&pod, expected, usize::from(closed));
        // Its own variable is made void, too, and not only taken out.
        let own = json!({"resources": resources, "env": visible("all")});
        let expected = if closed { void } else { json!([]) };
        check(&bare(&spec, &own), &expected, 1);
    }
}

#[test]
fn hides_gpus_set_by_image_or_env_from_in_runtime_class() {
    let from = json!({"envFrom": [{"configMapRef": {"name": "all"}}]});
    for container in [json!({}), from] {
        for class in ["nvidia", "nvidia-cdi", "nvidia-legacy"] {
            let spec = json!({"runtimeClassName": class});
            check(&bare(&spec, &container), &visible("void"), 1);
        }
        // Of others nothing is known, and nothing is touched.
        let spec = json!({"runtimeClassName": "kata"});
        check(&bare(&spec, &container), &Value::Null, 0);
        check(&bare(&json!({}), &container), &Value::Null, 0);
    }
    // One that requests GPUs gets them by CDI, which takes precedence.
    let mut asks = asking(&json!({GPU: "1", "nvidia.com/gpumem": "1k",
        "nvidia.com/gpucores": "0", "nvidia.com/priority": "1"}));
    asks["spec"]["runtimeClassName"] = json!("nvidia");
    asks["spec"]["schedulerName"] = json!("aliquot-scheduler");
    check(&asks, &Value::Null, 0);
    let deny = with_policy(VisibleDevices::Deny);
    let pod = bare(&json!({"runtimeClassName": "nvidia"}), &json!({}));
    let (after, ..) = admit(&pod, &deny);
    assert_eq!(after["spec"]["containers"][0]["env"], visible("void"));
}

#[test]
fn leaves_gpus_to_containers_of_other_plugins() {
    let check = |resource: &str, amount: &str, node: Value, left: bool| {
        let mut pod = asking(&json!({resource: amount}));
        pod["spec"]["runtimeClassName"] = json!("nvidia");
        pod["spec"]["nodeName"] = node;
        let (after, ..) = admit(&pod, &Settings::default());
        let env = &after["spec"]["containers"][0]["env"];
        assert_eq!(env.is_null(), left, "{pod}");
        // Its own variable would take precedence over the plugin's.
        pod["spec"]["containers"][0]["env"] = visible("all");
        let (after, ..) = admit(&pod, &Settings::default());
        let expected = if left { json!([]) } else { visible("void") };
        assert_eq!(after["spec"]["containers"][0]["env"], expected, "{pod}");
    };
    check("nvidia.com/gpu.shared", "1", Value::Null, true);
    check("volcano.sh/vgpu-number", "2", Value::Null, true);
    // These give no GPU, or are no GPUs.
    check("nvidia.com/gpu.shared", "0", Value::Null, false);
    check("rdma/hca", "1", Value::Null, false);
    check("nvidia.com/hostdev", "1", Value::Null, false);
    // No scheduler checks that the node has any, and its kubelet does not.
    check("nvidia.com/gpu.shared", "1", json!("gpu-1"), false);
}

#[test]
fn leaves_root_equivalent_containers_unchanged() {
    let class = json!({"runtimeClassName": "nvidia"});
    let plugins = "/var/lib/kubelet/device-plugins";
    let privileged = |is: bool| json!({"securityContext": {"privileged": is}});
    let adds = |name: &str| json!({"securityContext": {"capabilities": {"add": [name]}}});
    let mounts = |read_only: bool| {
        let mount = json!({"name": "h", "mountPath": "/h", "readOnly": read_only});
        json!({"volumeMounts": [mount]})
    };
    for (container, path, left) in [
        (privileged(true), "/data", true),
        (adds("SYS_ADMIN"), "/data", true),
        (adds("CAP_ALL"), "/data", true),
        // As NVIDIA's chart has it without MIG.
        (mounts(false), plugins, true),
        (mounts(true), plugins, false),
        (json!({}), plugins, false),
        (mounts(false), "/dev", false),
        (mounts(false), "/dev/shm", false),
        (mounts(false), "/data", false),
        (adds("SYS_PTRACE"), "/data", false),
        (privileged(false), "/data", false),
    ] {
        let volumes = json!([{"name": "h", "hostPath": {"path": path}}]);
        let mut own = container.clone();
        own["env"] = visible("all");
        for (spec, container) in [(&class, &container), (&json!({}), &own)] {
            let mut pod = bare(spec, container);
            pod["spec"]["volumes"] = volumes.clone();
            let env = if left {
                &container["env"]
            } else {
                &visible("void")
            };
            check(&pod, env, usize::from(!left));
        }
    }
    // In a user namespace, a capability gives nothing of the node; privileged still opens devices.
    for (mut own, left) in [(adds("SYS_ADMIN"), false), (privileged(true), true)] {
        own["env"] = visible("all");
        let env = if left { "all" } else { "void" };
        let pod = bare(&json!({"hostUsers": false}), &own);
        check(&pod, &visible(env), usize::from(!left));
    }
    // Beside a share it is refused, and not left alone.
    let mut shared = pod(&json!([
        container("main", &json!({GPU: "1"})),
        {"name": "side", "env": visible("all"), "securityContext": {"privileged": true}},
    ]));
    shared["spec"]["runtimeClassName"] = json!("nvidia");
    assert!(matches!(
        review(&create(&shared, "default"), &Settings::default()),
        Verdict::Deny(_)
    ));
}
