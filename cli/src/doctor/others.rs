//! Which pods of a node bring another device plugin.
//!
//! Fed by: pods' images, commands and names. Must not: take what comes in the same image and
//! registers nothing (feature discovery, HAMi's scheduler) for a plugin.

use aliquot_k8s::pod;
use k8s_openapi::api::core::v1::{Container, Pod};

use super::finding::{About, Finding};
use super::known::{containers, is_ours, name};

/// Who it is, by a part of an image's name, and the programs in that image that register nothing.
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
        "HAMi's device plugin",
        &["scheduler", "vGPUmonitor", "kube-webhook-certgen"],
    ),
    ("gpushare-device-plugin", "gpushare's device plugin", &[]),
    (
        "volcano-vgpu-device-plugin",
        "Volcano's device plugin",
        &["volcano-vgpu-monitor"],
    ),
];

/// Who it is, by its program, whatever the image.
const PROGRAMS: [(&str, &str); 1] = [("nvidia-device-plugin", "NVIDIA's device plugin")];

/// No other device plugin runs here.
pub(super) fn others(pods: &[&Pod], about: &About) -> Vec<Finding> {
    let check = "other-plugin";
    let foreign = pods.iter().filter(|pod| !is_ours(pod, "device-plugin"));
    let known = foreign.filter_map(|pod| {
        let who = containers(pod).find_map(plugin)?;
        let name = format!("{}/{}", pod::namespace(pod), name(pod));
        Some(about.problem(
            check,
            format!("{who} runs here ({name}): who registers nvidia.com/gpu last serves it"),
            "keep one of the two off this node: devicePlugin.enabled=false in GPU Operator, or its node label",
        ))
    });
    let mut found: Vec<Finding> = known.collect();
    if found.is_empty() {
        found.push(about.ok(check, "no other device plugin that is known runs here"));
    }
    found
}

/// Whose device plugin a container is.
fn plugin(container: &Container) -> Option<&'static str> {
    let image = container.image.as_deref().unwrap_or_default();
    let command = [&container.command, &container.args];
    let mut words = command.into_iter().flatten().flatten().map(String::as_str);
    let program = words.next().unwrap_or_default();
    let program = program.rsplit('/').next().unwrap_or(program);
    if let Some((_, who, harmless)) = IMAGES.iter().find(|(part, ..)| image.contains(part)) {
        return (!harmless.contains(&program)).then_some(*who);
    }
    let known = PROGRAMS.iter().find(|(own, _)| *own == program);
    known.map(|(_, who)| *who)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn what_shares_a_plugins_image_and_registers_nothing_is_no_plugin() {
        let check = |image: &str, command: &[&str], expected: Option<&str>| {
            let container = json!({"name": "c", "image": image, "command": command});
            let container: Container = serde_json::from_value(container).unwrap();
            assert_eq!(plugin(&container), expected, "{image} {command:?}");
        };
        let nvidia = "nvcr.io/nvidia/k8s-device-plugin:v0.17";
        let named = Some("NVIDIA's device plugin");
        check(nvidia, &[], named);
        check(nvidia, &["nvidia-device-plugin"], named);
        check("own/build:1", &["/usr/bin/nvidia-device-plugin"], named);
        check(nvidia, &["gpu-feature-discovery"], None);
        check(nvidia, &["config-manager"], None);
        let hami = "docker.io/projecthami/hami:v2.6";
        check(
            hami,
            &["nvidia-device-plugin"],
            Some("HAMi's device plugin"),
        );
        check(hami, &["scheduler"], None);
        check(hami, &["vGPUmonitor"], None);
        check(
            "gke.gcr.io/nvidia-gpu-device-plugin@sha256:1",
            &["/usr/bin/nvidia-gpu-device-plugin"],
            Some("Google's device plugin for NVIDIA GPUs"),
        );
        check("nginx", &["nginx"], None);
    }
}
