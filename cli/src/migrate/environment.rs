//! Workloads that see GPUs without asking for one, by NVIDIA's runtime, and what becomes of that.
//!
//! Fed by: [`super::rules`], one pod or template each. Must not: name one that the webhook leaves alone.

use aliquot_core::escape::{self, AGENT_PATHS, ROOT};
use aliquot_k8s::pod;
use k8s_openapi::api::core::v1::{Container, Pod};

use super::around::writes;
use super::rules::Settings;
use crate::doctor::finding::{About, Finding};

/// The variable by which NVIDIA's runtime opens GPUs.
pub(super) const VISIBLE: &str = "NVIDIA_VISIBLE_DEVICES";

/// It opens GPUs by its environment, or may do so by its image's.
pub(super) fn opened(object: &Pod, settings: &Settings, about: &About) -> Option<Finding> {
    let check = "gpus-by-environment";
    let todo = "ask for nvidia.com/gpu instead; for a part of NVIDIA's or an exporter label its namespace aliquot.dev/webhook: ignore, or name it in webhook.escapeAllowNamespaces";
    let containers = || pod::containers(object).map(|(container, _)| container);
    let open = || containers().filter(|container| !is_above(object, container));
    let value = open().find_map(|container| {
        let all = container.env.as_deref().unwrap_or_default().iter();
        all.filter(|one| one.name == VISIBLE)
            .find_map(|one| one.value.clone())
    });
    if let Some(value) = value {
        if ["", "none", "void"].contains(&value.as_str()) {
            return None;
        }
        let what = format!(
            "{VISIBLE}={value} opens GPUs today; then a uuid is booked like `aliquot.dev/use-gpu`, and `all` is dropped"
        );
        return Some(about.warning(check, what, todo));
    }
    let class = object.spec.as_ref()?.runtime_class_name.as_deref()?;
    let mut theirs = settings.nvidia_runtime_classes.iter();
    if !theirs.any(|one| one == class) || containers().any(asks) || open().next().is_none() {
        return None;
    }
    let what = format!(
        "asks for no GPU, and the runtime class {class} opens all of them to an image that sets {VISIBLE}; then none"
    );
    Some(about.warning(check, what, todo))
}

/// It reaches every GPU anyway.
fn is_above(object: &Pod, container: &Container) -> bool {
    let context = container.security_context.as_ref();
    let added = context.and_then(|context| context.capabilities.as_ref()?.add.as_deref());
    let mut added = added.unwrap_or_default().iter();
    let volumes = object
        .spec
        .as_ref()
        .and_then(|spec| spec.volumes.as_deref());
    let mut volumes = volumes.unwrap_or_default().iter();
    context.is_some_and(|context| context.privileged == Some(true))
        || added.any(|name| escape::is_one_of(&ROOT, name))
        || volumes.any(|volume| {
            let source = volume.host_path.as_ref();
            let agent = AGENT_PATHS.into_iter();
            writes(container, volume)
                && source.is_some_and(|source| escape::is_roots(&source.path, agent))
        })
}

/// For some GPU, of whoever.
fn asks(container: &Container) -> bool {
    let limits = container.resources.as_ref();
    let mut limits = limits
        .and_then(|all| all.limits.as_ref())
        .into_iter()
        .flatten();
    limits.any(|(name, _)| {
        name.contains('/') && name.contains("gpu") || name.starts_with("nvidia.com/")
    })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::super::From;
    use super::*;

    #[expect(
        clippy::needless_pass_by_value,
        reason = "what is judged is written where it is judged"
    )]
    fn check(spec: Value, container: Value, named: bool) {
        let mut pod = json!({"spec": spec});
        pod["spec"]["containers"] = json!([container]);
        let object: Pod = serde_json::from_value(pod).unwrap();
        let settings = Settings {
            from: From::Nvidia,
            pods: pod::Settings::default(),
            replaced: Vec::new(),
            nvidia_runtime_classes: vec!["nvidia".to_owned(), "mine".to_owned()],
        };
        let found = opened(&object, &settings, &About("w".to_owned()));
        assert_eq!(found.is_some(), named, "{found:?}");
    }

    #[test]
    fn nvidias_own_pods_were_told_to_ask_for_a_gpu() {
        let all = json!([{"name": VISIBLE, "value": "all"}]);
        let with = |security: Value| json!({"name": "m", "env": all, "securityContext": security});
        check(json!({}), with(json!({})), true);
        check(json!({}), with(json!({"privileged": true})), false);
        let adds = json!({"capabilities": {"add": ["CAP_SYS_ADMIN"]}});
        check(json!({}), with(adds), false);
        // As NVIDIA's chart has its plugin without MIG.
        let at = |path: &str| json!({"volumes": [{"name": "p", "hostPath": {"path": path}}]});
        let mounts = |only_reads: bool| {
            let mount = json!({"name": "p", "mountPath": "/p", "readOnly": only_reads});
            json!({"name": "m", "env": all, "volumeMounts": [mount]})
        };
        let plugins = "/var/lib/kubelet/device-plugins";
        check(at(plugins), mounts(false), false);
        check(at(plugins), mounts(true), true);
        check(at("/data"), mounts(false), true);
    }

    #[test]
    fn what_an_image_opens_in_a_runtime_class_was_not_foretold() {
        let class = |name: &str| json!({"runtimeClassName": name});
        check(class("nvidia"), json!({"name": "m"}), true);
        check(class("kata"), json!({"name": "m"}), false);
        // As webhook.nvidiaRuntimeClasses says, and not by how a name begins.
        check(class("mine"), json!({"name": "m"}), true);
        check(class("nvidia-like"), json!({"name": "m"}), false);
        let gpu = json!({"name": "m", "resources": {"limits": {"nvidia.com/gpu": "1"}}});
        check(class("nvidia"), gpu, false);
        let void = json!({"name": "m", "env": [{"name": VISIBLE, "value": "void"}]});
        check(class("nvidia"), void, false);
        let above = json!({"name": "m", "securityContext": {"privileged": true}});
        check(class("nvidia"), above, false);
    }
}
