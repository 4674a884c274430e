//! Pods that try to bypass the scheduler, with the real API server deciding which of them the
//! webhook reviews.

use std::sync::Arc;

use aliquot_e2e::pods::{container, pod, simple};
use aliquot_e2e::stack::Stack;
use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::node::v1::RuntimeClass;
use kube::Api;
use kube::api::{Patch, PatchParams, PostParams};
use serde_json::{Value, json};

use crate::harmless::reviews;

const NAMESPACE: &str = "past";
const VISIBLE: &str = "NVIDIA_VISIBLE_DEVICES";

/// A pod, and what becomes of it.
struct Case {
    name: &'static str,
    spec: Value,
    container: Value,
    /// The value of the variable afterwards; `None` if the pod is not reviewed.
    expected: Option<&'static str>,
}

fn cases() -> Vec<Case> {
    let case = |name, spec, container, expected| Case {
        name,
        spec,
        container,
        expected,
    };
    let all = json!({"env": [{"name": VISIBLE, "value": "all"}]});
    let from = json!({"envFrom": [{"configMapRef": {"name": "all", "optional": true}}]});
    let mut own = all.clone();
    own["securityContext"] = json!({"privileged": true});
    let class = json!({"runtimeClassName": "nvidia"});
    vec![
        case(
            "a scheduler and a node of its own",
            json!({"schedulerName": "x", "nodeName": "n1", "runtimeClassName": "nvidia"}),
            all.clone(),
            Some("void"),
        ),
        case(
            "a scheduler of its own",
            json!({"schedulerName": "x"}),
            all,
            Some("void"),
        ),
        case(
            "what the image sets, in NVIDIA's runtime class",
            class.clone(),
            json!({}),
            Some("void"),
        ),
        case(
            "an envFrom in NVIDIA's runtime class",
            class.clone(),
            from.clone(),
            Some("void"),
        ),
        case("an envFrom", json!({}), from, None),
        case(
            "another runtime class",
            json!({"runtimeClassName": "sandbox"}),
            json!({}),
            None,
        ),
        case("NVIDIA's plugin", json!({}), own.clone(), None),
        case("NVIDIA's plugin in its runtime class", class, own, None),
    ]
}

/// `changes` over one container without a resource.
fn made(case: &Case) -> Result<Value> {
    let mut main = container("main", &[]);
    let fields = case.container.as_object().context("an object")?;
    main.as_object_mut()
        .context("an object")?
        .extend(fields.clone());
    let mut pod = pod(NAMESPACE, "tried", &[main]);
    let spec = pod["spec"].as_object_mut().context("an object")?;
    spec.extend(case.spec.as_object().context("an object")?.clone());
    Ok(pod)
}

/// Which pods get no GPU, and which are not even reviewed.
pub(crate) async fn closed(stack: Arc<Stack>) -> Result<()> {
    stack.cluster.namespace(NAMESPACE).await?;
    let classes: Api<RuntimeClass> = Api::all(stack.cluster.admin()?);
    for name in ["nvidia", "sandbox"] {
        let class = json!({"metadata": {"name": name}, "handler": name});
        let class = serde_json::from_value(class)?;
        let made = classes.create(&PostParams::default(), &class).await;
        made.with_context(|| format!("creating the runtime class {name}"))?;
    }
    for case in cases() {
        check(&stack, &case).await.context(case.name)?;
    }
    let mut placed = simple(NAMESPACE, "replica", &[("gpu", "1")]);
    placed["spec"]["schedulerName"] = json!("x");
    placed["spec"]["nodeName"] = json!("n1");
    let refusal = stack.refusal(placed).await?.context("it was admitted")?;
    ensure!(
        refusal.contains("spec.nodeName: \"n1\" bypasses scheduler x"),
        "{refusal}"
    );
    ephemeral(&stack).await.context("an ephemeral container")?;
    words(&stack).await
}

async fn check(stack: &Stack, case: &Case) -> Result<()> {
    let before = reviews(stack).await?;
    let made = made(case)?;
    let stored = stack.trial(made.clone()).await?;
    let stored = serde_json::to_value(stored)?;
    let env = &stored["spec"]["containers"][0]["env"];
    let reviewed = reviews(stack).await? > before;
    let expected = case.expected.map_or_else(
        || made["spec"]["containers"][0]["env"].clone(),
        |value| json!([{"name": VISIBLE, "value": value}]),
    );
    ensure!(
        reviewed == case.expected.is_some() && *env == expected,
        "reviewed: {reviewed}, stored {env}"
    );
    Ok(())
}

/// `kubectl debug` of a pod with a scheduler of its own.
async fn ephemeral(stack: &Stack) -> Result<()> {
    let mut pod = simple(NAMESPACE, "debugged", &[]);
    pod["spec"]["schedulerName"] = json!("x");
    stack.cluster.create_pod(pod).await?;
    let pods: Api<Pod> = Api::namespaced(stack.cluster.admin()?, NAMESPACE);
    let all = json!([{"name": VISIBLE, "value": "all"}]);
    let added = json!({"name": "debug", "image": "i", "env": all});
    let patch = Patch::Strategic(json!({"spec": {"ephemeralContainers": [added]}}));
    let stored = pods
        .patch_ephemeral_containers("debugged", &PatchParams::default(), &patch)
        .await?;
    let stored = serde_json::to_value(stored)?;
    let env = &stored["spec"]["ephemeralContainers"][0]["env"];
    ensure!(*env == json!([{"name": VISIBLE, "value": "void"}]), "{env}");
    stack.cluster.delete_pod(NAMESPACE, "debugged").await
}

/// Other ways to a GPU than the variable: CDI devices in an annotation, and a mount.
async fn words(stack: &Stack) -> Result<()> {
    let key = "nvidia.cdi.k8s.io/container.main";
    for (value, reviewed) in [("nvidia.com/gpu=all", true), ("vendor.com/nic=a", false)] {
        let mut pod = simple(NAMESPACE, "words", &[]);
        pod["metadata"]["annotations"] = json!({key: value});
        let before = reviews(stack).await?;
        let stored = stack.trial(pod).await?;
        let annotations = stored.metadata.annotations.unwrap_or_default();
        let expected = (reviewed, !reviewed);
        let found = (
            reviews(stack).await? > before,
            annotations.contains_key(key),
        );
        ensure!(
            found == expected,
            "{value}: reviewed and annotated are {found:?}"
        );
    }
    let mut pod = simple(NAMESPACE, "words", &[]);
    pod["spec"]["volumes"] = json!([{"name": "n", "hostPath": {"path": "/dev/null"}}]);
    pod["spec"]["containers"][0]["volumeMounts"] =
        json!([{"name": "n", "mountPath": "/var/run/nvidia-container-devices/all"}]);
    let refusal = stack.refusal(pod).await?.context("it was admitted")?;
    ensure!(refusal.contains("bypass the scheduler"), "{refusal}");
    Ok(())
}
