//! Pods of a node that bring another device plugin.

use aliquot_k8s::pod;
use k8s_openapi::api::core::v1::{Container, Pod};

use crate::components::{containers, is_ours, name};
use crate::doctor::finding::{About, Finding, problem};

/// How a finding names HAMi's.
pub(super) const HAMI: &str = "HAMi's device plugin";
/// Other device plugins: a part of the image's name, the plugin's name, and programs of the same image
/// that register nothing with the kubelet.
const IMAGES: [(&str, &str, &[&str]); 5] = [
    (
        "k8s-device-plugin",
        "NVIDIA's device plugin",
        &[
            "gpu-feature-discovery",
            "config-manager",
            "mps-control-daemon",
        ],
    ),
    (
        "nvidia-gpu-device-plugin",
        "Google's device plugin for NVIDIA GPUs",
        &[],
    ),
    (
        "projecthami/hami",
        HAMI,
        &["scheduler", "vGPUmonitor", "kube-webhook-certgen"],
    ),
    ("gpushare-device-plugin", "gpushare's device plugin", &[]),
    (
        "volcano-vgpu-device-plugin",
        "Volcano's device plugin",
        &["volcano-vgpu-monitor"],
    ),
];

/// Parts of the names of images that look like theirs: HAMi's web interface, and AMD's device plugin.
const OTHER_IMAGES: [&str; 2] = ["projecthami/hami-", "rocm/k8s-device-plugin"];

/// Other device plugins by the name of the program, whatever the image.
const PROGRAMS: [(&str, &str); 1] = [("nvidia-device-plugin", "NVIDIA's device plugin")];

/// The other device plugins that run on a node beside the agent.
pub(super) fn other_plugins(pods: &[&Pod], about: &About) -> Vec<Finding> {
    let beside = plugins(pods).map(|(who, name)| {
        let beside = problem(
            format!("{who} runs on this node (pod {name}): the kubelet uses the plugin that registered nvidia.com/gpu last"),
            "remove one of the two from this node: devicePlugin.enabled=false in GPU Operator, or the plugin's node label",
        );
        about.finding("other-plugin", beside)
    });
    beside.collect()
}

/// The other device plugins among these pods, each with its pod.
pub(super) fn plugins<'a>(pods: &'a [&Pod]) -> impl Iterator<Item = (&'static str, String)> + 'a {
    let foreign = pods.iter().filter(|pod| !is_ours(pod, "device-plugin"));
    foreign.filter_map(|pod| {
        let who = containers(pod).find_map(plugin)?;
        Some((who, format!("{}/{}", pod::namespace(pod), name(pod))))
    })
}

/// The name of the device plugin that a container runs.
fn plugin(container: &Container) -> Option<&'static str> {
    let image = container.image.as_deref().unwrap_or_default();
    if OTHER_IMAGES.iter().any(|part| image.contains(part)) {
        return None;
    }
    let command = [&container.command, &container.args];
    let mut words = command.into_iter().flatten().flatten().map(String::as_str);
    let path = words.next().unwrap_or_default();
    let program = path.rsplit('/').next().unwrap_or(path);
    if let Some((_, who, harmless)) = IMAGES.iter().find(|(part, ..)| image.contains(part)) {
        // GPU Operator runs a script, in a container with the program's name.
        let names = [program, container.name.as_str()];
        return (!names.iter().any(|name| harmless.contains(name))).then_some(*who);
    }
    let known = PROGRAMS.iter().find(|(own, _)| *own == program);
    known.map(|(_, who)| *who)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn ignores_other_programs_in_device_plugin_image() {
        let check_named = |name: &str, image: &str, command: &[&str], expected: Option<&str>| {
            let container = json!({"name": name, "image": image, "command": command});
            let container: Container = serde_json::from_value(container).unwrap();
            assert_eq!(plugin(&container), expected, "{name} {image} {command:?}");
        };
        let check = |image: &str, command: &[&str], expected: Option<&str>| {
            check_named("c", image, command, expected);
        };
        let nvidia = "nvcr.io/nvidia/k8s-device-plugin:v0.17";
        let named = Some("NVIDIA's device plugin");
        check(nvidia, &[], named);
        check(nvidia, &["nvidia-device-plugin"], named);
        check("own/build:1", &["/usr/bin/nvidia-device-plugin"], named);
        check(nvidia, &["gpu-feature-discovery"], None);
        check(nvidia, &["config-manager"], None);
        let script = ["/bin/bash", "-c", "/bin/entrypoint.sh"];
        check_named("gpu-feature-discovery", nvidia, &script, None);
        check_named("nvidia-device-plugin", nvidia, &script, named);
        let hami = "docker.io/projecthami/hami:v2.6";
        check(hami, &["nvidia-device-plugin"], Some(HAMI));
        check(hami, &["scheduler"], None);
        check(hami, &["vGPUmonitor"], None);
        check(
            "gke.gcr.io/nvidia-gpu-device-plugin@sha256:1",
            &["/usr/bin/nvidia-gpu-device-plugin"],
            Some("Google's device plugin for NVIDIA GPUs"),
        );
        check("projecthami/hami-webui-be-oss:v1.3.0", &[], None);
        check("docker.io/rocm/k8s-device-plugin:latest", &[], None);
        check("nginx", &["nginx"], None);
    }
}
