//! The match conditions, in CEL: which pods the API server sends to the webhook.
//!
//! An evaluation error with `failurePolicy: Fail` would stop every pod of the cluster, so each
//! access is guarded by `has()`. The chart renders the same text, from its
//! `files/mentions-gpu.cel`, which a test here writes.

use aliquot_core::mig;
use aliquot_core::request::Resource;
use aliquot_core::request_annotation::REQUEST;
use serde_json::json;

use super::Names;
use crate::review::{CDI_KEYS, CDI_VENDORS, MOUNT_FOLDER_NAME, RESERVED};

/// CEL: the update changes the pod template. Controllers update these objects often.
pub(super) const TEMPLATE_CHANGED: &str = "has(object.spec) && has(object.spec.template) && \
    (oldObject == null || !has(oldObject.spec) || !has(oldObject.spec.template) || \
    object.spec.template != oldObject.spec.template)";

/// CEL: the pod at this path mentions a resource of ours, a reserved annotation or a request as an
/// annotation, or one of its containers could get GPUs otherwise: by a variable or a mount of NVIDIA's, by a CDI device in an
/// annotation, or because the pod is in one of these runtime `classes`. Privileged containers do
/// not count; they reach every GPU anyway. An `envFrom` alone is no sign of a GPU.
pub(super) fn mentions_gpu(pod: &str, (names, extra): Names<'_>, classes: &[String]) -> String {
    let five = Resource::ALL.map(|resource| names.of(resource));
    let all: Vec<&str> = five
        .into_iter()
        .chain(extra.iter().map(String::as_str))
        .collect();
    expression(pod, &json!(all).to_string(), &json!(classes).to_string())
}

/// The same with the resources and the classes as CEL lists.
fn expression(pod: &str, resources: &str, classes: &str) -> String {
    let keys: Vec<&str> = RESERVED.into_iter().chain([REQUEST]).collect();
    let keys = json!(keys);
    let any = |what: &str| {
        let lists = ["containers", "initContainers", "ephemeralContainers"].map(|field| {
            format!("(has({pod}.spec.{field}) && {pod}.spec.{field}.exists(c, {what}))")
        });
        lists.join(" || ")
    };
    let annotated = format!(
        "(has({pod}.metadata) && has({pod}.metadata.annotations) && \
         {keys}.exists(a, a in {pod}.metadata.annotations))"
    );
    let requested = any(&format!("{REQUESTS} || ({UNPRIVILEGED} && {NAMES_GPUS})"));
    let requested = requested.replace("FOLDER", &json!(MOUNT_FOLDER_NAME).to_string());
    let requested = requested.replace("RESOURCES", resources);
    let requested = requested.replace("INSTANCES", mig::RESOURCES);
    let unprivileged = any(UNPRIVILEGED);
    let all_of = |terms: Vec<String>| terms.join(" || ");
    let keys = CDI_KEYS.map(|key| format!("a.startsWith({})", json!(key)));
    let annotations = format!("{pod}.metadata.annotations");
    let vendors = CDI_VENDORS.map(|vendor| format!("{annotations}[a].contains({})", json!(vendor)));
    let devices = format!(
        "(has({pod}.metadata) && has({annotations}) && {annotations}.exists(a, ({}) && ({})) && \
         ({unprivileged}))",
        all_of(keys.into()),
        all_of(vendors.into()),
    );
    let in_class = format!(
        "(has({pod}.spec.runtimeClassName) && {pod}.spec.runtimeClassName in {classes} && \
         ({unprivileged}))"
    );
    let terms = all_of(vec![requested, devices, in_class]);
    format!("{annotated} || (has({pod}.spec) && ({terms}))")
}

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
    use aliquot_core::request::ResourceNames;

    use super::*;

    #[test]
    fn match_conditions_name_renamed_resources() {
        let names = ResourceNames::with([(Resource::Gpu, "example.com/vgpu".to_owned())]);
        let extra = ["nvidia.com/gpu.shared".to_owned()];
        let expression = mentions_gpu("object", (&names, &extra), &["of\"nvidia".to_owned()]);
        assert!(
            expression.contains(r#"["example.com/vgpu","nvidia.com/gpumem","#),
            "{expression}"
        );
        assert!(expression.contains(r#""nvidia.com/priority","nvidia.com/gpu.shared"]"#));
        assert!(expression.contains(r#"r.startsWith("nvidia.com/mig-")"#));
        for place in ["RESOURCES", "INSTANCES", "FOLDER"] {
            assert!(!expression.contains(place), "{place}: {expression}");
        }
        assert!(expression.contains(r#"m.mountPath.contains("nvidia-container-devices")"#));
        assert!(expression.contains(r#"a.startsWith("nvidia.cdi.k8s.io")"#));
        assert!(expression.contains(r#"object.spec.runtimeClassName in ["of\"nvidia"]"#));
        let none = mentions_gpu("object", (&names, &extra), &[]);
        assert!(
            none.contains("object.spec.runtimeClassName in []"),
            "{none}"
        );
    }

    #[test]
    fn chart_has_current_match_condition() {
        let expected = expression("POD", "RESOURCES", "CLASSES") + "\n";
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
