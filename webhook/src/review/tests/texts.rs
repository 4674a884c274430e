//! Every text of admission: each refusal and each warning, with a manifest that gets it.
//!
//! A text is what the user reads after `admission webhook "pods.aliquot.dev" denied the request:`
//! or after `Warning:`.

use aliquot_core::request::BareGpu;
use aliquot_core::{Mib, Percent};
use serde_json::{Value, json};

use super::refused::debug;
use super::*;
use crate::settings::VisibleDevices;

const GPU: &str = "nvidia.com/gpu";
const MEM: &str = "nvidia.com/gpumem";
const PERCENT: &str = "nvidia.com/gpumem-percentage";
const CORES: &str = "nvidia.com/gpucores";
const PRIORITY: &str = "nvidia.com/priority";
const SHARED: &str = "nvidia.com/gpu.shared";
const VISIBLE: &str = "NVIDIA_VISIBLE_DEVICES";
const UUID: &str = "GPU-5a2e6a4e-95b9-1f7c-0d23-7b6a9c0d1e2f";
const OTHER: &str = "GPU-00000000-95b9-1f7c-0d23-7b6a9c0d1e2f";

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

/// A pod with these limits, annotations and `env`.
fn manifest(limits: &Value, annotations: &Value, env: &Value) -> Value {
    let mut pod = asking(limits);
    pod["metadata"]["annotations"] = annotations.clone();
    pod["spec"]["containers"][0]["env"] = env.clone();
    pod
}

fn visible(value: &str) -> Value {
    json!([{"name": VISIBLE, "value": value}])
}

/// Which values are invalid is tested in core. A resource of nvidia.com, and the text for its value.
const QUANTITIES: &str = r#"
gpu = "65" is out of range; expected: a whole number of GPUs, 0 to 64
gpu = "-1" is negative; expected: a whole number of GPUs, 0 to 64
gpumem = "16Gi" has a binary suffix; expected: a whole number of MiB, 1 to 1048576 (write 16384, the unit is MiB)
gpumem = "1Ki" has a binary suffix; expected: a whole number of MiB, 1 to 1048576
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
    let strict = Settings {
        extra: vec![SHARED.to_owned()],
        strict: vec![SHARED.to_owned()],
        ..Settings::default()
    };
    let mut no_default = Settings::default();
    no_default.defaults.count = 0;
    let usual = Settings::default();
    for (settings, limits, text) in [
        (
            &usual,
            json!({GPU: "1", MEM: "3k", PERCENT: "50"}),
            r#"spec.containers[0].resources.limits["nvidia.com/gpumem-percentage"]: "50" cannot be combined with nvidia.com/gpumem; expected: only one of the two"#,
        ),
        (
            &usual,
            json!({GPU: "0", MEM: "3k"}),
            r#"spec.containers[0].resources.limits["nvidia.com/gpu"]: a count of 0 with memory or compute; expected: 1 to 64 GPUs, or no other GPU resource"#,
        ),
        (
            &usual,
            json!({PRIORITY: "0"}),
            r#"spec.containers[0].resources.limits["nvidia.com/priority"]: "0" requires nvidia.com/gpu of at least 1"#,
        ),
        (
            &usual,
            json!({GPU: "0", PRIORITY: "0"}),
            r#"spec.containers[0].resources.limits["nvidia.com/priority"]: "0" requires nvidia.com/gpu of at least 1"#,
        ),
        (
            &no_default,
            json!({MEM: "3k"}),
            r#"spec.containers[0].resources.limits["nvidia.com/gpumem"]: "3k" requires nvidia.com/gpu of at least 1"#,
        ),
        (
            &strict,
            json!({SHARED: "2"}),
            r#"spec.containers[0].resources.limits["nvidia.com/gpu.shared"]: "2" exceeds the limit of one share per container; expected: 1"#,
        ),
    ] {
        check_refusal(settings, &asking(&limits), text);
    }
    let differing = json!({"limits": {MEM: "3k"}, "requests": {MEM: "2k"}});
    check_refusal(
        &usual,
        &pod(&json!([{"name": "main", "resources": differing}])),
        r#"spec.containers[0].resources.requests["nvidia.com/gpumem"]: "2k" differs from the limit; expected: "3k", or no request"#,
    );
}

#[test]
fn explains_invalid_annotations() {
    for (key, value, text) in [
        (
            "aliquot.dev/numa-bind",
            "1",
            r#""1" is not a boolean; expected: true, false"#,
        ),
        (
            "aliquot.dev/seats",
            "many",
            r#""many" is invalid; expected: same (replicas of one GPU), distinct (one replica each of several GPUs)"#,
        ),
        (
            "aliquot.dev/node-scheduler-policy",
            "best",
            r#""best" is not a policy; expected: binpack, spread, fragmentation"#,
        ),
        (
            "aliquot.dev/gpu-scheduler-policy",
            "best",
            r#""best" is not a GPU policy; expected: at most one of binpack, spread, fragmentation, and each of numa, mutex, topology at most once, comma-separated"#,
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
    let deny = Settings {
        visible_devices: VisibleDevices::Deny,
        ..Settings::default()
    };
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
    let usual = Settings::default();
    let deny = Settings {
        visible_devices: VisibleDevices::Deny,
        ..Settings::default()
    };
    let mut other_scheduler = with("spec.nodeName", &json!("n1"));
    other_scheduler["spec"]["schedulerName"] = json!("volcano");
    let mounts = json!([{"name": "n", "mountPath": "/var/run/nvidia-container-devices/all"}]);
    let mut two = pod(&json!([
        container("main", &complete()),
        container("side", &complete())
    ]));
    two["spec"]["containers"][0]["env"] = visible(UUID);
    let mut two_different = two.clone();
    two_different["spec"]["containers"][1]["env"] = visible(OTHER);
    let reference = json!([{"name": VISIBLE, "valueFrom": {"fieldRef": {"fieldPath": "x"}}}]);
    let cpu = json!({"cpu": "1"});
    let none = Value::Null;
    let all_devices = json!({"nvidia.cdi.k8s.io": "nvidia.com/gpu=all"});
    for (settings, pod, text) in [
        (
            &usual,
            with("spec.nodeName", &json!("n1")),
            r#"spec.nodeName: "n1" bypasses scheduler aliquot-scheduler, which allocates the pod's GPU share; expected: no nodeName (use nodeSelector or affinity to choose nodes)"#.to_owned(),
        ),
        (
            &usual,
            other_scheduler,
            r#"spec.nodeName: "n1" bypasses scheduler volcano, which allocates the pod's GPU share; expected: no nodeName (use nodeSelector or affinity to choose nodes)"#.to_owned(),
        ),
        (
            &usual,
            with("spec.containers.0.volumeMounts", &mounts),
            r#"spec.containers[0].volumeMounts[0].mountPath: "/var/run/nvidia-container-devices/all" would inject GPUs and bypass the scheduler; expected: a path outside /var/run/nvidia-container-devices"#.to_owned(),
        ),
        (
            &deny,
            manifest(&cpu, &all_devices, &none),
            r#"metadata.annotations["nvidia.cdi.k8s.io"]: CDI devices "nvidia.com/gpu=all" would bypass the scheduler; expected: no device of nvidia.com or aliquot.dev (use annotation aliquot.dev/use-gpu to choose a GPU)"#.to_owned(),
        ),
        (
            &deny,
            manifest(&cpu, &none, &visible("all")),
            r#"spec.containers[0].env[0]: NVIDIA_VISIBLE_DEVICES "all" would bypass the scheduler; expected: no NVIDIA_VISIBLE_DEVICES (use annotation aliquot.dev/use-gpu to choose a GPU)"#.to_owned(),
        ),
        (
            &deny,
            manifest(&cpu, &none, &reference),
            "spec.containers[0].env[0]: NVIDIA_VISIBLE_DEVICES by reference would bypass the scheduler; expected: no NVIDIA_VISIBLE_DEVICES (use annotation aliquot.dev/use-gpu to choose a GPU)".to_owned(),
        ),
        (
            &usual,
            manifest(&complete(), &none, &visible("0")),
            r#"spec.containers[0].env[0]: NVIDIA_VISIBLE_DEVICES "0" does not name a GPU; expected: GPU-<uuid> or MIG-<uuid> as `nvidia-smi -L` prints them, or several, comma-separated, or no NVIDIA_VISIBLE_DEVICES"#.to_owned(),
        ),
        (
            &usual,
            two,
            format!(
                r#"spec.containers[0]: NVIDIA_VISIBLE_DEVICES "{UUID}" would apply to every container that requests a GPU, but container side selects no GPU; expected: the same value in each of them, or annotation aliquot.dev/use-gpu with all GPUs that the pod may use"#
            ),
        ),
        (
            &usual,
            two_different,
            format!(
                r#"spec.containers[0]: NVIDIA_VISIBLE_DEVICES "{UUID}" would apply to every container that requests a GPU, but container side selects {OTHER}; expected: the same value in each of them, or annotation aliquot.dev/use-gpu with all GPUs that the pod may use"#
            ),
        ),
    ] {
        check_refusal(settings, &pod, &text);
    }
}

#[test]
fn explains_ephemeral_container_refusals() {
    let check = |added: Value, refused: &[&str], warned: &[&str]| {
        let verdict = debug(&asking(&complete()), "default", added);
        match verdict {
            Verdict::Deny(refusals) => {
                let texts: Vec<String> = refusals.iter().map(Refusal::to_string).collect();
                assert_eq!(texts, refused);
            }
            Verdict::Allow { warnings, .. } => assert_eq!(warnings, warned),
        }
    };
    let limits = json!({"limits": {GPU: "1"}});
    check(
        json!({"name": "d", "resources": limits}),
        &[
            r#"spec.ephemeralContainers[1].resources.limits["nvidia.com/gpu"]: "1" in an ephemeral container, which cannot get GPUs; expected: no nvidia.com/gpu"#,
        ],
        &[],
    );
    let ptrace = json!({"capabilities": {"add": ["SYS_PTRACE"]}});
    check(
        json!({"name": "d", "securityContext": ptrace}),
        &[
            r#"spec.ephemeralContainers[1].securityContext.capabilities.add[0]: "SYS_PTRACE" would let the pod bypass its GPU share; expected: none of ALL, SYS_ADMIN, SYS_PTRACE, SYS_RAWIO, SYS_MODULE, DAC_READ_SEARCH, BPF (use kubectl debug --profile=baseline), or a namespace where the administrator allows it"#,
        ],
        &[],
    );
    check(
        json!({"name": "d", "env": visible(UUID)}),
        &[],
        &[
            "container d: NVIDIA_VISIBLE_DEVICES set to void: an ephemeral container cannot get GPUs",
        ],
    );
}

#[test]
fn explains_defaults() {
    let usual = Settings::default();
    let mut whole_memory = Settings::default();
    whole_memory.defaults.memory = Mib(0);
    whole_memory.defaults.cores = Percent(25);
    let mut whole_gpu = Settings::default();
    whole_gpu.defaults.bare_gpu = BareGpu::Whole;
    let percentage = "nvidia.com/gpumem not set, defaulting to nvidia.com/gpumem-percentage: 100, the GPU's whole memory";
    for (settings, limits, texts) in [
        (
            &usual,
            json!({CORES: "30"}),
            [
                "nvidia.com/gpu not set, defaulting to 1",
                "nvidia.com/gpumem not set, defaulting to 5000 MiB (set nvidia.com/gpumem-percentage: 100 for a whole GPU)",
            ],
        ),
        (
            &usual,
            json!({MEM: "3k"}),
            [
                "nvidia.com/gpu not set, defaulting to 1",
                "nvidia.com/gpucores not set, defaulting to 0 (compute is neither reserved nor limited)",
            ],
        ),
        (
            &whole_memory,
            json!({GPU: "1"}),
            [
                percentage,
                "nvidia.com/gpucores not set, defaulting to 25 percent of a GPU's compute",
            ],
        ),
        (
            &whole_gpu,
            json!({GPU: "1"}),
            [
                percentage,
                "nvidia.com/gpucores not set, defaulting to 100 percent (no other container shares the GPU)",
            ],
        ),
    ] {
        check_warnings(settings, &asking(&limits), &[&texts.join("; ")]);
    }
    let two = pod(&json!([
        container("main", &complete()),
        container("side", &json!({GPU: "1", MEM: "1k"})),
        container("tiny", &json!({GPU: "1", MEM: "3", CORES: "0"})),
    ]));
    check_warnings(
        &usual,
        &two,
        &[
            "container side: nvidia.com/gpucores not set, defaulting to 0 (compute is neither reserved nor limited)",
            "container tiny: nvidia.com/gpumem is 3 MiB, in which no CUDA program fits; expected: whole MiB without a suffix (3000, because Kubernetes reads 3000m as 3)",
        ],
    );
}

#[test]
fn explains_that_another_scheduler_gives_no_share() {
    let mut pod = asking(&complete());
    pod["spec"]["schedulerName"] = json!("volcano");
    let text = r#"spec.schedulerName is "volcano": the pod gets no share, and nodes that Aliquot serves refuse it; expected: "aliquot-scheduler", or a node with another device plugin"#;
    check_warnings(&Settings::default(), &pod, &[text]);
}

#[test]
fn explains_changed_annotations_and_environment() {
    let cpu = json!({"cpu": "1"});
    let none = Value::Null;
    let pinned = json!({"aliquot.dev/use-gpu": OTHER});
    let env = |name: &str, value: &str| json!([{"name": name, "value": value}]);
    let mut in_class = asking(&cpu);
    in_class["spec"]["runtimeClassName"] = json!("nvidia");
    for (pod, text) in [
        (
            manifest(&cpu, &json!({"aliquot.dev/allocation": "{}"}), &none),
            "annotation aliquot.dev/allocation removed: only the scheduler may set it".to_owned(),
        ),
        (
            manifest(&cpu, &json!({"cdi.k8s.io/x": "nvidia.com/gpu=0"}), &none),
            r#"annotation cdi.k8s.io/x removed: CDI devices "nvidia.com/gpu=0" would bypass the scheduler; request a GPU in resources.limits instead"#.to_owned(),
        ),
        (
            manifest(&complete(), &none, &visible("all")),
            "container main: NVIDIA_VISIBLE_DEVICES removed: the container sees the GPUs allocated to it".to_owned(),
        ),
        (
            manifest(&cpu, &none, &visible("all")),
            "container main: NVIDIA_VISIBLE_DEVICES set to void: the container requests no GPU and sees none".to_owned(),
        ),
        (
            manifest(&cpu, &none, &visible("0")),
            "container main: NVIDIA_VISIBLE_DEVICES set to void: the container requests no GPU; request a GPU or a MIG instance in resources.limits and choose it with annotation aliquot.dev/use-gpu: 0".to_owned(),
        ),
        (
            in_class,
            "container main: NVIDIA_VISIBLE_DEVICES set to void: the container requests no GPU, and runtime class nvidia could expose all GPUs to it".to_owned(),
        ),
        (
            manifest(&complete(), &none, &visible(UUID)),
            format!("NVIDIA_VISIBLE_DEVICES replaced by annotation aliquot.dev/use-gpu: {UUID}, so that the scheduler allocates these GPUs"),
        ),
        (
            manifest(&complete(), &pinned, &visible(UUID)),
            format!("NVIDIA_VISIBLE_DEVICES removed: annotation aliquot.dev/use-gpu: {OTHER} takes precedence"),
        ),
        (
            manifest(&complete(), &none, &env("CUDA_VISIBLE_DEVICES", "1")),
            r#"CUDA_VISIBLE_DEVICES: "1" is not one of the container's devices (count: 1); it can only select among these, use annotation aliquot.dev/use-gpu to choose a GPU"#.to_owned(),
        ),
        (
            manifest(&complete(), &none, &env("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "512MiB")),
            r#"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT: "512MiB" is not a limit that MPS can read; expected: a device ordinal and a size in M or G such as 0=512M, several separated by commas"#.to_owned(),
        ),
    ] {
        check_warnings(&Settings::default(), &pod, &[&text]);
    }
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
            "3000",
            "cannot read the annotation: invalid type: integer `3000`, expected struct RequestAnnotation at line 1 column 4",
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
        let mut pod =
            asking(&json!({GPU: "1", "nvidia.com/gpumem": "3k", "nvidia.com/gpucores": "30"}));
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
    check("aliquot.dev/burst", "yield", "");
    check(
        "aliquot.dev/burst",
        "stay",
        "\"stay\" is invalid; expected: yield",
    );
    let binary = "\"12Gi\" has a binary suffix; expected: a whole number of MiB, 1 to 1048576 (write 12288, the unit is MiB)";
    check(memory, "12Gi", binary);
}
