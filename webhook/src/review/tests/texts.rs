//! Texts of admission with a manifest that gets them, unless another file here shows them: what
//! the user reads after `admission webhook "pods.aliquot.dev" denied the request:` or after
//! `Warning:`.

use serde_json::{Value, json};

use super::*;

const UUID: &str = "GPU-5a2e6a4e-95b9-1f7c-0d23-7b6a9c0d1e2f";

/// The pod gets exactly this refusal.
fn check_refusal(settings: &Settings, pod: &Value, text: &str) {
    assert_eq!(refusals(pod, settings), [text]);
}

/// The pod gets exactly these warnings.
fn check_warnings(settings: &Settings, pod: &Value, texts: &[&str]) {
    assert_eq!(admit(pod, settings).2, texts, "{pod}");
}

/// A request to which nothing is added.
fn complete() -> Value {
    json!({GPU: "1", MEM: "3k", CORES: "30", PRIORITY: "1"})
}

fn manifest(limits: &Value, annotations: &Value, env: &Value) -> Value {
    let mut pod = asking(limits);
    pod["metadata"]["annotations"] = annotations.clone();
    pod["spec"]["containers"][0]["env"] = env.clone();
    pod
}

/// Which values are invalid is tested in core. A resource of nvidia.com, and the text for its value.
const QUANTITIES: &str = r#"
gpu = "-1" is negative; expected: a whole number of GPUs, 0 to 64
gpumem = "16Gi" has a binary suffix; expected: a whole number of MiB, 1 to 1048576 (write 16384, the unit is MiB)
gpumem = "3000m" has a suffix that divides it and means 3; expected: a whole number of MiB, 1 to 1048576 (write 3000, without a suffix)
gpumem = "1e30" is too large; expected: a whole number of MiB, 1 to 1048576
gpumem = "5GB" is not a number; expected: a whole number of MiB, 1 to 1048576
gpumem-percentage = "500m" is not a whole number; expected: a whole percentage of the GPU's memory, 1 to 100
gpucores = "101" is out of range; expected: a whole percentage of the GPU's compute, 0 to 100
priority = "2" is out of range; expected: 0 (high) or 1 (low)
"#;

#[test]
fn explains_invalid_quantities() {
    for row in QUANTITIES.trim().lines() {
        let (resource, text) = row.split_once(" = ").unwrap();
        let resource = format!("nvidia.com/{resource}");
        let value = text.split('"').nth(1).unwrap();
        let mut limits = json!({GPU: "1"});
        limits[&resource] = json!(value);
        let field = format!("spec.containers[0].resources.limits[{resource:?}]");
        let refusal = format!("{field}: {text}");
        check_refusal(&Settings::default(), &asking(&limits), &refusal);
    }
}

#[test]
fn explains_instances_that_the_scheduler_does_not_know() {
    let refusal = r#"spec.containers[0].resources.limits["nvidia.com/mig-9g.99gb"]: "1" instances of a profile that the scheduler does not know; expected: nvidia.com/mig-PROFILE of a GPU model in NVIDIA's MIG user guide, as `nvidia-smi mig -lgip` prints it with '.' for '+', such as nvidia.com/mig-1g.10gb"#;
    let asks = |count| asking(&json!({"nvidia.com/mig-9g.99gb": count}));
    check_refusal(&Settings::default(), &asks("1"), refusal);
    admit(&asks("0"), &Settings::default());
    let known = asking(&json!({"nvidia.com/mig-1g.10gb.me": "1"}));
    admit(&known, &Settings::default());
}

#[test]
fn explains_contradicting_resources() {
    for (limits, text) in [
        (
            json!({GPU: "1", MEM: "3k", PERCENT: "50"}),
            r#"spec.containers[0].resources.limits["nvidia.com/gpumem-percentage"]: "50" cannot be combined with nvidia.com/gpumem; expected: only one of the two"#,
        ),
        (
            json!({PRIORITY: "0"}),
            r#"spec.containers[0].resources.limits["nvidia.com/priority"]: "0" requires nvidia.com/gpu of at least 1"#,
        ),
        (
            json!({GPU: "0", PRIORITY: "0"}),
            r#"spec.containers[0].resources.limits["nvidia.com/priority"]: "0" requires nvidia.com/gpu of at least 1"#,
        ),
    ] {
        check_refusal(&Settings::default(), &asking(&limits), text);
    }
    let differing = json!({"limits": {MEM: "3k"}, "requests": {MEM: "2k"}});
    check_refusal(
        &Settings::default(),
        &pod(&json!([{"name": "main", "resources": differing}])),
        r#"spec.containers[0].resources.requests["nvidia.com/gpumem"]: "2k" differs from the limit; expected: "3k", or no request"#,
    );
}

#[test]
fn explains_too_many_containers_with_shares() {
    let of = |count: usize| {
        let containers = (0..count).map(|index| container(&format!("c{index}"), &complete()));
        pod(&containers.collect())
    };
    admit(&of(64), &Settings::default());
    let text = r#"spec.containers[64]: "c64" is one of 66 containers that request GPUs; expected: at most 64 in a pod"#;
    check_refusal(&Settings::default(), &of(66), text);
    let beside = |count: usize| {
        let others = (0..count).map(|index| container(&format!("c{index}"), &json!({})));
        let all = others.chain([container("main", &complete())]);
        pod(&all.collect())
    };
    admit(&beside(255), &Settings::default());
    let text = r#"spec.containers[256]: "main" is one of 257 containers; expected: at most 256 in a pod that requests GPUs"#;
    check_refusal(&Settings::default(), &beside(256), text);
}

/// The values that core's own tests do not show, and a pin.
#[test]
fn explains_invalid_annotations() {
    for (key, value, text) in [
        (
            "aliquot.dev/replicas",
            "many",
            r#""many" is invalid; expected: same (replicas of one GPU), distinct (one replica each of several GPUs)"#,
        ),
        (
            "aliquot.dev/burst",
            "stay",
            r#""stay" is invalid; expected: yield"#,
        ),
        (
            "aliquot.dev/use-gpu",
            "GPU-5a2e6a4e",
            r#""GPU-5a2e6a4e" names no GPU; expected: GPU-<uuid> or MIG-<uuid> as `nvidia-smi -L` prints them, <index>:<start> or <index>:<start>:<profile> for a MIG instance, such as 1:4:3g.20gb, or several, comma-separated"#,
        ),
    ] {
        let pod = manifest(&complete(), &json!({key: value}), &Value::Null);
        let text = format!("metadata.annotations[{key:?}]: {text}");
        check_refusal(&Settings::default(), &pod, &text);
    }
    let uuids = vec![UUID; 65].join(",");
    for (annotations, env) in [
        (json!({"aliquot.dev/use-gpu": uuids}), Value::Null),
        (Value::Null, visible(&many_uuids())),
    ] {
        let pod = manifest(&complete(), &annotations, &env);
        let refused = refusals(&pod, &Settings::default());
        let field = r#"metadata.annotations["aliquot.dev/use-gpu"]: "GPU-"#;
        let end = "characters) is too long; expected: at most 64 items and 4096 bytes in all annotations that choose GPUs";
        let [text] = &refused[..] else {
            panic!("{refused:?}")
        };
        assert!(text.starts_with(field) && text.ends_with(end), "{text}");
    }
    let pod = manifest(
        &complete(),
        &json!({"notes": "x".repeat(245_756)}),
        &Value::Null,
    );
    check_refusal(
        &Settings::default(),
        &pod,
        "metadata.annotations: 245761 bytes leave no space for the allocation; expected: at most 245760 bytes",
    );
}

/// Of 65 GPUs.
fn many_uuids() -> String {
    let uuid = |number| format!("GPU-{number:08}-95b9-1f7c-0d23-7b6a9c0d1e2f");
    let uuids: Vec<String> = (0..65).map(uuid).collect();
    uuids.join(",")
}

#[test]
fn repeats_no_value_that_is_longer_than_256_characters() {
    let long = "9".repeat(1 << 20);
    let name = format!("nvidia.com/mig-1g.5gb{long}");
    let mut bad = manifest(
        &json!({GPU: long, MEM: "1", (name): long}),
        &json!({"aliquot.dev/numa-bind": long, "aliquot.dev/request": format!("{{\"v\":\"{long}\"}}"),
            "nvidia.cdi.k8s.io": format!("nvidia.com/gpu={long}"), (format!("cdi.k8s.io/{long}")): "nvidia.com/gpu=0"}),
        &json!([
            {"name": VISIBLE, "value": long},
            {"name": "CUDA_VISIBLE_DEVICES", "value": long},
            {"name": "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "value": long},
        ]),
    );
    let mut container = bad["spec"]["containers"][0].clone();
    container["name"] = json!(long);
    container["resources"]["requests"] = json!({GPU: format!("{long}1"), PERCENT: long});
    container["securityContext"] = json!({"capabilities": {"add": [format!("SYS_ADMIN{long}")]}});
    container["volumeMounts"] = json!([
        {"name": "v", "mountPath": format!("/var/run/nvidia-container-devices/{long}")},
        {"name": "v", "mountPath": format!("/dev/{long}")},
    ]);
    bad["spec"]["containers"] = json!([container, bad["spec"]["containers"][0]]);
    bad["spec"]["nodeName"] = json!(long);
    bad["spec"]["volumes"] = json!([{"name": "v", "hostPath": {"path": format!("/dev/{long}")}}]);
    let deny = with_policy(VisibleDevices::Deny);
    let mut other = bad.clone();
    other["spec"]["schedulerName"] = json!(long);
    for (settings, pod) in [
        (&Settings::default(), &bad),
        (&deny, &bad),
        (&Settings::default(), &other),
        (&deny, &other),
    ] {
        for text in refusals(pod, settings) {
            assert!(text.len() < 2_000, "{} bytes: {text:.300}", text.len());
        }
    }
    // What is warned of, within the size of a pod's annotations.
    let long = "9".repeat(50_000);
    let mut fine = manifest(
        &json!({GPU: "1", MEM: "1"}),
        &json!({"nvidia.cdi.k8s.io": format!("nvidia.com/gpu={long}"), "aliquot.dev/request":
            format!("{{\"v\":1,\"containers\":{{\"{long}x\":{{\"memory\":1}}}}}}")}),
        &json!([
            {"name": "CUDA_VISIBLE_DEVICES", "value": long},
            {"name": "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "value": long},
        ]),
    );
    let mut idle = fine["spec"]["containers"][0].clone();
    idle["name"] = json!(long);
    idle["resources"] = json!({});
    idle["env"] = visible(&long);
    fine["spec"]["containers"] = json!([fine["spec"]["containers"][0], idle]);
    for text in admit(&fine, &Settings::default()).2 {
        assert!(text.len() < 2_000, "{} bytes: {text:.300}", text.len());
    }
}

#[test]
fn explains_scheduler_bypass() {
    for (own, placed_by) in [("", "aliquot-scheduler"), ("volcano", "volcano")] {
        let mut pod = with("spec.nodeName", &json!("n1"));
        pod["spec"]["schedulerName"] = json!(own);
        let text = format!(
            r#"spec.nodeName: "n1" bypasses scheduler {placed_by}, which allocates the pod's GPU share; expected: no nodeName (use nodeSelector or affinity to choose nodes)"#
        );
        check_refusal(&Settings::default(), &pod, &text);
    }
}

#[test]
fn explains_that_another_scheduler_gives_no_share() {
    let mut pod = asking(&complete());
    pod["spec"]["schedulerName"] = json!("volcano");
    let text = r#"spec.schedulerName is "volcano": the pod gets no share, and nodes that Aliquot serves refuse it; expected: "aliquot-scheduler", or a node with another device plugin"#;
    check_warnings(&Settings::default(), &pod, &[text]);
}

#[test]
fn explains_removed_cdi_annotation() {
    let annotations = json!({"cdi.k8s.io/x": "nvidia.com/gpu=0"});
    let text = r#"annotation cdi.k8s.io/x removed: CDI devices "nvidia.com/gpu=0" would bypass the scheduler; request a GPU in resources.limits instead"#;
    let pod = manifest(&json!({"cpu": "1"}), &annotations, &Value::Null);
    check_warnings(&Settings::default(), &pod, &[text]);
}

#[test]
fn explains_invalid_request_annotation() {
    let field = r#"metadata.annotations["aliquot.dev/request"]"#;
    let request = |text: &str| {
        let annotations = json!({"aliquot.dev/request": text});
        manifest(&json!({GPU: "1"}), &annotations, &json!([]))
    };
    let wanted = "; expected: no such annotation, or one that Aliquot wrote";
    for (text, why, rest) in [
        (
            r#"{"v":7}"#,
            "the annotation has version 7, this release reads 1",
            wanted,
        ),
        (
            r#"{"v":1,"containers":{"main":{"cores":101}}}"#,
            r#"container "main", cores: "101" is out of range; expected: a whole percentage of the GPU's compute, 0 to 100"#,
            "",
        ),
    ] {
        let refusal = format!("{field}: {why}{rest}");
        check_refusal(&Settings::default(), &request(text), &refusal);
    }
    let mut no_count = Settings::default();
    no_count.defaults.count = 0;
    let alone = json!({"aliquot.dev/request": r#"{"v":1,"containers":{"main":{"cores":1}}}"#});
    check_refusal(
        &no_count,
        &manifest(&json!({}), &alone, &json!([])),
        &format!(r#"{field}.containers["main"]: an amount requires nvidia.com/gpu of at least 1"#),
    );
    check_warnings(
        &Settings::default(),
        &request(r#"{"v":1,"containers":{"main":{"memory":3000,"cores":0},"old":{"cores":1}}}"#),
        &[
            r#"annotation aliquot.dev/request: "old" removed: no container of that name requests a GPU"#,
        ],
    );
}

#[test]
fn rejects_limit_below_the_request() {
    let check = |annotation: &str, limit: &str, expected: &str| {
        let mut pod = asking(&json!({GPU: "1", MEM: "3k", CORES: "30"}));
        pod["metadata"]["annotations"] = json!({annotation: limit});
        if expected.is_empty() {
            admit(&pod, &Settings::default());
        } else {
            let found = refusals(&pod, &Settings::default());
            assert_eq!(
                found,
                [format!("metadata.annotations[{annotation:?}]: {expected}")]
            );
        }
    };
    let (memory, cores) = ("aliquot.dev/gpumem-limit", "aliquot.dev/gpucores-limit");
    check(memory, "3000", "");
    check(memory, "12000", "");
    let below =
        "\"2999\" is below the nvidia.com/gpumem of container main; expected: at least 3000 MiB";
    check(memory, "2999", below);
    check(cores, "30", "");
    let below =
        "\"29\" is below the nvidia.com/gpucores of container main; expected: at least 30 percent";
    check(cores, "29", below);
}
