//! The match conditions, in CEL: which pods the API server sends to the webhook.
//!
//! An evaluation error with `failurePolicy: Fail` would stop every pod of the cluster, so each
//! access is guarded by `has()`. The chart renders the same text, from its
//! `files/mentions-gpu.cel`, which a test here writes.

use aliquot_core::mig;
use aliquot_core::request::Resource;
use aliquot_core::request_annotation::REQUEST;
use serde_json::json;

use super::Scope;
use crate::review::{CDI_KEYS, CDI_VENDORS, MOUNT_FOLDER_NAME, RESERVED};

/// CEL: the pod mentions a resource of ours, a reserved annotation or a request as an annotation,
/// or one of its containers could get GPUs otherwise: by a variable or a mount of NVIDIA's, by a
/// CDI device in an annotation, or because the pod is in one of these runtime `classes`. Privileged
/// containers do not count; they reach every GPU anyway. An `envFrom` alone is no sign of a GPU.
pub(super) fn mentions_gpu(scope: &Scope) -> String {
    let five = Resource::ALL.map(|resource| scope.names.of(resource));
    let extra = scope.extra.iter().map(String::as_str);
    let all: Vec<&str> = five.into_iter().chain(extra).collect();
    let classes = json!(scope.nvidia_runtime_classes).to_string();
    expression(&json!(all).to_string(), &classes)
}

/// The same with the resources and the classes as CEL lists.
fn expression(resources: &str, classes: &str) -> String {
    let keys: Vec<&str> = RESERVED.into_iter().chain([REQUEST]).collect();
    let keys = json!(keys);
    let any = |what: &str| {
        let lists = ["containers", "initContainers", "ephemeralContainers"].map(|field| {
            format!("(has(object.spec.{field}) && object.spec.{field}.exists(c, {what}))")
        });
        lists.join(" || ")
    };
    let annotated = format!("({HAS_ANNOTATIONS} && {keys}.exists(a, a in {ANNOTATIONS}))");
    let requested = any(&format!("{REQUESTS} || ({UNPRIVILEGED} && {NAMES_GPUS})"))
        .replace("FOLDER", &json!(MOUNT_FOLDER_NAME).to_string())
        .replace("RESOURCES", resources)
        .replace("INSTANCES", mig::RESOURCES);
    let unprivileged = any(UNPRIVILEGED);
    let keys = CDI_KEYS.map(|key| format!("a.startsWith({})", json!(key)));
    let vendors = CDI_VENDORS.map(|vendor| format!("{ANNOTATIONS}[a].contains({})", json!(vendor)));
    let devices = format!(
        "({HAS_ANNOTATIONS} && {ANNOTATIONS}.exists(a, ({}) && ({})) && ({unprivileged}))",
        keys.join(" || "),
        vendors.join(" || "),
    );
    let in_class = format!(
        "(has(object.spec.runtimeClassName) && object.spec.runtimeClassName in {classes} && \
         ({unprivileged}))"
    );
    format!("{annotated} || (has(object.spec) && ({requested} || {devices} || {in_class}))")
}

const ANNOTATIONS: &str = "object.metadata.annotations";
const HAS_ANNOTATIONS: &str = "has(object.metadata) && has(object.metadata.annotations)";

const REQUESTS: &str = "\
    (has(c.resources) && (\
    (has(c.resources.limits) && (RESOURCES.exists(r, r in c.resources.limits) || \
    c.resources.limits.exists(r, r.startsWith(\"INSTANCES\")))) || \
    (has(c.resources.requests) && (RESOURCES.exists(r, r in c.resources.requests) || \
    c.resources.requests.exists(r, r.startsWith(\"INSTANCES\"))))))";

const NAMES_GPUS: &str = "\
    ((has(c.env) && c.env.exists(e, has(e.name) && e.name == \"NVIDIA_VISIBLE_DEVICES\")) || \
    (has(c.volumeMounts) && c.volumeMounts.exists(m, has(m.mountPath) && m.mountPath.contains(FOLDER))))";

const UNPRIVILEGED: &str = "\
    !(has(c.securityContext) && has(c.securityContext.privileged) && c.securityContext.privileged)";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn match_conditions_name_resources_and_classes() {
        let expression = expression(r#"["example.com/vgpu"]"#, r#"["of\"nvidia"]"#);
        for place in ["RESOURCES", "INSTANCES", "FOLDER"] {
            assert!(!expression.contains(place), "{place}: {expression}");
        }
        for part in [
            r#"["example.com/vgpu"].exists(r, r in c.resources.limits)"#,
            r#"r.startsWith("nvidia.com/mig-")"#,
            r#"m.mountPath.contains("nvidia-container-devices")"#,
            r#"a.startsWith("nvidia.cdi.k8s.io")"#,
            r#"object.spec.runtimeClassName in ["of\"nvidia"]"#,
        ] {
            assert!(expression.contains(part), "{part}: {expression}");
        }
    }

    #[test]
    fn chart_has_current_match_condition() {
        let expected = expression("RESOURCES", "CLASSES") + "\n";
        let file = concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/../charts/aliquot/files/mentions-gpu.cel"
        );
        if std::env::var_os("UPDATE").is_some() {
            std::fs::write(file, &expected).unwrap();
        }
        let found = std::fs::read_to_string(file).unwrap_or_default();
        assert!(found == expected, "{file} is not current: make reference");
    }
}
