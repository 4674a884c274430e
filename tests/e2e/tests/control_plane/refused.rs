//! Bad input through the real API server, in the form in which it hands it on.

use std::sync::Arc;

use aliquot_e2e::pods::simple;
use aliquot_e2e::stack::Stack;
use anyhow::{Context as _, Result, bail, ensure};
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::{ListParams, Patch, PatchParams};
use serde_json::{Value, json};

const NAMESPACE: &str = "refused";
const MIB: &str = "a whole number of MiB, 1 to 1048576";
const GPUS: &str = "a whole number of GPUs, 0 to 64";
const PERCENT: &str = "a whole percentage of the GPU's memory, 1 to 100";
const CORES: &str = "a whole percentage of the GPU's compute, 0 to 100";
const LEVEL: &str = "0 (high) or 1 (low)";
const CAPABILITIES: &str =
    "none of ALL, SYS_ADMIN, SYS_PTRACE, SYS_RAWIO, SYS_MODULE, DAC_READ_SEARCH, BPF";

/// A pod and the one refusal that it must get.
struct RefusedPod {
    pod: Value,
    refusal: String,
}

/// Each with field, value and expected form.
pub(crate) async fn pods(stack: Arc<Stack>) -> Result<()> {
    stack.cluster.namespace(NAMESPACE).await?;
    let all: Vec<_> = [quantities(), contradictions(), escapes(), host_paths()]
        .into_iter()
        .flatten()
        .collect();
    ensure!(all.len() >= 30, "{} cases", all.len());
    let mut wrong = Vec::new();
    for RefusedPod { pod, refusal } in all {
        let expected =
            format!("admission webhook \"pods.aliquot.dev\" denied the request: {refusal}");
        let found = stack.refusal(pod).await?;
        if found.as_deref() != Some(&expected) {
            wrong.push(format!("expected {expected}\n   found {found:?}"));
        }
    }
    ensure!(wrong.is_empty(), "{}", wrong.join("\n"));
    let pods: Api<Pod> = Api::namespaced(stack.cluster.admin()?, NAMESPACE);
    let left = pods.list(&ListParams::default()).await?.items.len();
    ensure!(left == 0, "{left} pods were created");
    Ok(())
}

/// A pod that is fine, with one container `main`.
fn asking(limits: &Value) -> Value {
    let mut pod = simple(NAMESPACE, "bad", &[]);
    pod["spec"]["containers"][0]["resources"] = json!({"limits": limits});
    pod
}

fn limit(resource: &str) -> String {
    format!("spec.containers[0].resources.limits[\"nvidia.com/{resource}\"]")
}

/// As users write them; the text in the refusal is the API server's own form.
fn quantities() -> Vec<RefusedPod> {
    let binary =
        |mib: u32| format!("has a binary suffix; expected: {MIB} (write {mib}, the unit is MiB)");
    let negative = |accepted| format!("is negative; expected: {accepted}");
    let fraction = |accepted| format!("is not a whole number; expected: {accepted}");
    let range = |accepted| format!("is out of range; expected: {accepted}");
    let suffix = |accepted| format!("has a binary suffix; expected: {accepted}");
    [
        ("gpumem", json!("16Gi"), "16Gi", binary(16384)),
        ("gpumem", json!("0.5Gi"), "512Mi", binary(512)),
        ("gpumem", json!("2048Ki"), "2Mi", binary(2)),
        ("gpumem", json!("1Ki"), "1Ki", suffix(MIB)),
        ("gpumem", json!(-1), "-1", negative(MIB)),
        ("gpumem", json!(-3000), "-3k", negative(MIB)),
        ("gpumem", json!(1500.5), "1500500m", fraction(MIB)),
        ("gpumem", json!("100u"), "1m", fraction(MIB)),
        ("gpumem", json!(0), "0", range(MIB)),
        ("gpumem", json!(1_048_577), "1048577", range(MIB)),
        ("gpumem", json!(2_000_000), "2M", range(MIB)),
        ("gpumem", json!("1e7"), "10e6", range(MIB)),
        (
            "gpumem",
            json!("1e30"),
            "1e30",
            format!("is too large; expected: {MIB}"),
        ),
        ("gpumem-percentage", json!(0), "0", range(PERCENT)),
        ("gpumem-percentage", json!(101), "101", range(PERCENT)),
        ("gpumem-percentage", json!(1000), "1k", range(PERCENT)),
        (
            "gpumem-percentage",
            json!("500m"),
            "500m",
            fraction(PERCENT),
        ),
        (
            "gpumem-percentage",
            json!(33.3),
            "33300m",
            fraction(PERCENT),
        ),
        ("gpumem-percentage", json!(-5), "-5", negative(PERCENT)),
        ("gpucores", json!(101), "101", range(CORES)),
        ("gpucores", json!(-1), "-1", negative(CORES)),
        ("gpucores", json!(2.5), "2500m", fraction(CORES)),
        ("gpucores", json!("1Ki"), "1Ki", suffix(CORES)),
        ("priority", json!(2), "2", range(LEVEL)),
        ("priority", json!(-1), "-1", negative(LEVEL)),
        ("priority", json!(0.5), "500m", fraction(LEVEL)),
        ("gpu", json!(65), "65", range(GPUS)),
        ("gpu", json!(1_000_000), "1M", range(GPUS)),
        ("gpu", json!(-1), "-1", negative(GPUS)),
        ("gpu", json!(0.5), "500m", fraction(GPUS)),
        ("gpu", json!("1Gi"), "1Gi", suffix(GPUS)),
    ]
    .into_iter()
    .map(|(resource, written, stored, problem)| {
        let mut limits = json!({"nvidia.com/gpu": 1});
        limits[format!("nvidia.com/{resource}")] = written;
        let refusal = format!("{}: \"{stored}\" {problem}", limit(resource));
        let pod = asking(&limits);
        RefusedPod { pod, refusal }
    })
    .collect()
}

fn contradictions() -> Vec<RefusedPod> {
    let limits = |limits, resource: &str, message: &str| RefusedPod {
        pod: asking(&limits),
        refusal: format!("{}: {message}", limit(resource)),
    };
    let with = |set: &dyn Fn(&mut Value), refusal: &str| {
        let mut pod = asking(&json!({"nvidia.com/gpu": 1, "nvidia.com/gpumem": 3000}));
        set(&mut pod);
        let refusal = refusal.to_owned();
        RefusedPod { pod, refusal }
    };
    vec![
        limits(
            json!({"nvidia.com/gpumem": 3000, "nvidia.com/gpumem-percentage": 50}),
            "gpumem-percentage",
            "\"50\" cannot be combined with nvidia.com/gpumem; expected: only one of the two",
        ),
        limits(
            json!({"nvidia.com/gpu": 0, "nvidia.com/gpumem": 3000}),
            "gpu",
            "a count of 0 with memory or compute; expected: 1 to 64 GPUs, or no other GPU resource",
        ),
        limits(
            json!({"nvidia.com/priority": 0}),
            "priority",
            "\"0\" requires nvidia.com/gpu of at least 1",
        ),
        with(
            &|pod| {
                pod["spec"]["containers"][0]["resources"]["requests"] =
                    json!({"nvidia.com/gpumem": 2000});
            },
            "spec.containers[0].resources.requests[\"nvidia.com/gpumem\"]: \"2k\" differs from the \
             limit; expected: \"3k\", or no request",
        ),
        with(
            &|pod| {
                let side = json!({"name": "side", "image": "i", "restartPolicy": "Always",
                    "resources": {"limits": {"nvidia.com/gpumem": "1024Mi"}}});
                pod["spec"]["initContainers"] = json!([{"name": "plain", "image": "i"}, side]);
            },
            "spec.initContainers[1].resources.limits[\"nvidia.com/gpumem\"]: \"1Gi\" has a binary \
             suffix; expected: a whole number of MiB, 1 to 1048576 (write 1024, the unit is MiB)",
        ),
        with(
            &|pod| pod["spec"]["nodeName"] = json!("n1"),
            "spec.nodeName: \"n1\" bypasses scheduler aliquot-scheduler, which allocates the pod's GPU \
             share; expected: no nodeName (use nodeSelector or affinity to choose nodes)",
        ),
        with(
            &|pod| pod["metadata"]["annotations"] = json!({"notes": "x".repeat(250_000)}),
            &format!(
                "metadata.annotations: {} bytes leave no space for the allocation; expected: at most \
                 245760 bytes",
                250_000 + "notes".len() + DEFAULTED.len()
            ),
        ),
    ]
}

/// What the webhook itself adds to the annotations of such a pod.
const DEFAULTED: &str = "aliquot.dev/defaulted\
                         {\"main\":{\"nvidia.com/gpucores\":\"0\",\"nvidia.com/priority\":\"1\"}}";

fn around(value: &str, accepted: &str) -> String {
    format!(
        "{value} would let the pod bypass its GPU share; expected: {accepted}, or a namespace where \
         the administrator allows it"
    )
}

fn escapes() -> Vec<RefusedPod> {
    let context = "spec.containers[0].securityContext";
    let added = |name: &str| {
        let field = "capabilities.add[1]";
        let context = json!({"capabilities": {"add": ["NET_ADMIN", name]}});
        (context, field, around(&format!("{name:?}"), CAPABILITIES))
    };
    let mut all: Vec<_> = [
        (
            json!({"privileged": true}),
            "privileged",
            around("true", "false"),
        ),
        (
            json!({"procMount": "Unmasked"}),
            "procMount",
            around("\"Unmasked\"", "\"Default\""),
        ),
        added("SYS_ADMIN"),
        added("CAP_SYS_PTRACE"),
        added("SYS_RAWIO"),
        added("SYS_MODULE"),
        added("CAP_DAC_READ_SEARCH"),
        added("BPF"),
        added("ALL"),
    ]
    .into_iter()
    .map(|(security, field, message)| {
        let mut pod = asking(&json!({"nvidia.com/gpu": 1}));
        pod["spec"]["containers"][0]["securityContext"] = security;
        let refusal = format!("{context}.{field}: {message}");
        RefusedPod { pod, refusal }
    })
    .collect();
    let mut pod = asking(&json!({"nvidia.com/gpu": 1}));
    pod["spec"]["hostPID"] = json!(true);
    let refusal = format!("spec.hostPID: {}", around("true", "false"));
    all.push(RefusedPod { pod, refusal });
    all
}

fn host_paths() -> Vec<RefusedPod> {
    let volume = |source: Value, refusal: String| {
        let mut pod = asking(&json!({"nvidia.com/gpu": 1}));
        pod["spec"]["volumes"] = json!([{"name": "h", "hostPath": source}]);
        RefusedPod { pod, refusal }
    };
    let apart = |path: &str, closed: &str| {
        let accepted = format!("a path that is neither inside {closed} nor one of its parents");
        around(&format!("{path:?}"), &accepted)
    };
    let path = |path: &str, closed: &str| {
        let refusal = format!("spec.volumes[0].hostPath.path: {}", apart(path, closed));
        volume(json!({"path": path}), refusal)
    };
    let mount = |at: &str, ours: &str| {
        let mut pod = asking(&json!({"nvidia.com/gpu": 1}));
        pod["spec"]["volumes"] = json!([{"name": "v", "emptyDir": {}}]);
        pod["spec"]["containers"][0]["volumeMounts"] = json!([{"name": "v", "mountPath": at}]);
        let field = "spec.containers[0].volumeMounts[0].mountPath";
        let refusal = format!("{field}: {}", apart(at, ours));
        RefusedPod { pod, refusal }
    };
    vec![
        path("/", "/dev"),
        path("/dev/nvidia0", "/dev"),
        path("/etc/cdi", "/etc/cdi"),
        path("/var/run/cdi", "/run/cdi"),
        path("/var/lib/kubelet/pods", "/var/lib/kubelet"),
        path("/run/containerd/containerd.sock", "/run/containerd"),
        path("/etc/containerd", "/etc/containerd"),
        path("/etc/systemd/system", "/etc/systemd"),
        path("/proc/sys/kernel", "/proc"),
        path("/var/lib/aliquot", "/var/lib/aliquot"),
        volume(
            json!({"path": "/opt/disk", "type": "BlockDevice"}),
            format!(
                "spec.volumes[0].hostPath.type: {}",
                around("\"BlockDevice\"", "a type that is not a device")
            ),
        ),
        mount("/.aliquot", "/.aliquot"),
        mount("/etc", "/etc/ld.so.preload"),
    ]
}

/// The other door, UPDATE of pods/ephemeralcontainers.
pub(crate) async fn ephemeral_containers(stack: Arc<Stack>) -> Result<()> {
    stack.cluster.namespace("ephemeral").await?;
    let pods: Api<Pod> = Api::namespaced(stack.cluster.admin()?, "ephemeral");
    let pod = simple("ephemeral", "shared", &[("gpu", "1")]);
    stack.cluster.create_pod(pod).await?;
    let add = async |container: Value| {
        let mut debug = json!({"name": "debug", "image": "i"});
        let fields = container.as_object().context("an object")?.clone();
        debug.as_object_mut().context("an object")?.extend(fields);
        let patch = Patch::Strategic(json!({"spec": {"ephemeralContainers": [debug]}}));
        let params = PatchParams::default();
        match pods
            .patch_ephemeral_containers("shared", &params, &patch)
            .await
        {
            Err(kube::Error::Api(status)) => Ok(status.message),
            Err(error) => Err(error.into()),
            Ok(_) => bail!("{container} was admitted"),
        }
    };
    let field = "spec.ephemeralContainers[0]";
    let message =
        add(json!({"securityContext": {"capabilities": {"add": ["SYS_PTRACE"]}}})).await?;
    let debug = format!("{CAPABILITIES} (use kubectl debug --profile=baseline)");
    let escape = format!(
        "{field}.securityContext.capabilities.add[0]: {}",
        around("\"SYS_PTRACE\"", &debug)
    );
    ensure!(message.ends_with(&escape), "{message}");
    let message = add(json!({"resources": {"limits": {"nvidia.com/gpumem": "3k"}}})).await?;
    let request = format!(
        "{field}.resources.limits[\"nvidia.com/gpumem\"]: \"3k\" in an ephemeral container, which \
         cannot get GPUs; expected: no nvidia.com/gpumem"
    );
    ensure!(message.ends_with(&request), "{message}");
    stack.cluster.delete_pod("ephemeral", "shared").await
}
