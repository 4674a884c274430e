//! Tables of pods and the decisions about them, and properties of the patches.

mod admitted;
mod device_injection;
mod environment;
mod gpu_visibility;
mod isolation;
mod other_resources;
mod properties;
mod refused;
mod request_form;
mod texts;

use json_patch::Patch;
use serde_json::{Value, json};

use super::*;
use crate::settings::VisibleDevices;
use crate::verdict::Refusal;

const GPU: &str = "nvidia.com/gpu";
const MEM: &str = "nvidia.com/gpumem";
const PERCENT: &str = "nvidia.com/gpumem-percentage";
const CORES: &str = "nvidia.com/gpucores";
const PRIORITY: &str = "nvidia.com/priority";
const SHARED: &str = "nvidia.com/gpu.shared";
const VISIBLE: &str = "NVIDIA_VISIBLE_DEVICES";

fn create<'a>(pod: &'a Value, namespace: &'a str) -> PodReview<'a> {
    PodReview {
        operation: &Operation::Create,
        sub_resource: "",
        namespace,
        pod,
        old_pod: &Value::Null,
    }
}

/// A pod as the API server sends it, with the defaults of Kubernetes.
fn pod(containers: &Value) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "p", "namespace": "default"},
        "spec": {
            "containers": containers,
            "schedulerName": "default-scheduler",
            "restartPolicy": "Always",
        },
    })
}

/// One container; requests follow limits, as the API server defaults them.
fn container(name: &str, limits: &Value) -> Value {
    json!({"name": name, "image": "i", "resources": {"limits": limits, "requests": limits}})
}

/// `gpu=1 gpumem=3k`: amounts of resources of nvidia.com.
fn amounts(text: &str) -> Value {
    let pairs = text.split_whitespace().map(|pair| {
        let (name, value) = pair.split_once('=').unwrap();
        (format!("nvidia.com/{name}"), json!(value))
    });
    Value::Object(pairs.collect())
}

fn asking(limits: &Value) -> Value {
    pod(&json!([container("main", limits)]))
}

fn with_policy(visible_devices: VisibleDevices) -> Settings {
    Settings {
        visible_devices,
        ..Settings::default()
    }
}

/// An environment with the variable.
fn visible(value: &str) -> Value {
    json!([{"name": VISIBLE, "value": value}])
}

/// The patched pod and the warnings of an admitted pod.
fn admit(pod: &Value, settings: &Settings) -> (Value, Patch, Vec<String>) {
    match review(&create(pod, "default"), settings) {
        Verdict::Allow { patch, warnings } => {
            let mut patched = pod.clone();
            json_patch::patch(&mut patched, &patch).unwrap();
            (patched, patch, warnings)
        }
        Verdict::Deny(refusals) => panic!("denied: {refusals:?}"),
    }
}

/// The refusals of a pod, as users see them.
fn refusals(pod: &Value, settings: &Settings) -> Vec<String> {
    match review(&create(pod, "default"), settings) {
        Verdict::Deny(refusals) => refusals.iter().map(Refusal::to_string).collect(),
        Verdict::Allow { .. } => panic!("admitted: {pod}"),
    }
}

/// A pod that requests a GPU, with one field set.
fn with(pointer: &str, value: &Value) -> Value {
    let pod = pod(&json!([
        container("main", &json!({"nvidia.com/gpu": "1"})),
        container("side", &json!({}))
    ]));
    let tokens: Vec<&str> = pointer.split('.').collect();
    let mut findings = Findings::new(&pod);
    findings.editor.set(&tokens, value.clone());
    findings.editor.pod().clone()
}
