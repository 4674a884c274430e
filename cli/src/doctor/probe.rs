//! The two probe pods of `doctor node`: one that asks for a share, and one that asks for none and
//! tries to get GPUs by its environment; and what follows from what they saw.
//!
//! Fed by: [`Look`], as each of them printed it. Must not: leave a pod behind, or run with a right
//! that restricted Pod Security refuses.

use aliquot_core::request::{Resource, ResourceNames};
use k8s_openapi::api::core::v1::Pod;
use serde_json::{Value, json};

use super::finding::{About, Fact, Finding};
use super::look::Look;

/// What the variable says where GPUs are named by mounts (`devicePlugin.deviceList`).
const BY_MOUNTS: &str = "/var/run/nvidia-container-devices";

/// Which of the two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Probe {
    /// Has a share.
    Share,
    /// Has none, and an environment that asks NVIDIA's runtime for all GPUs.
    Past,
}

impl Probe {
    /// The end of its pod's name.
    pub fn word(self) -> &'static str {
        match self {
            Self::Share => "share",
            Self::Past => "past",
        }
    }

    /// The pod: on this node, from this image, which has this program. `scheduler` is ours, where
    /// nobody gives it to pods with a share.
    pub fn pod(
        self,
        node: &str,
        image: &str,
        names: &ResourceNames,
        scheduler: Option<&str>,
    ) -> Value {
        let on_node = json!({"key": "metadata.name", "operator": "In", "values": [node]});
        let mut pod = json!({
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "generateName": format!("aliquot-doctor-{}-", self.word()),
                "labels": {"app.kubernetes.io/name": "aliquot-doctor"},
            },
            "spec": {
                "restartPolicy": "Never",
                "activeDeadlineSeconds": 120,
                "terminationGracePeriodSeconds": 1,
                "automountServiceAccountToken": false,
                "tolerations": [{"operator": "Exists"}],
                "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {
                    "nodeSelectorTerms": [{"matchFields": [on_node]}],
                }}},
                "securityContext": {"runAsNonRoot": true, "runAsUser": 65532, "runAsGroup": 65532,
                    "seccompProfile": {"type": "RuntimeDefault"}},
                "containers": [{
                    "name": "look",
                    "image": image,
                    "imagePullPolicy": "IfNotPresent",
                    "command": ["kubectl-aliquot", "doctor", "look"],
                    "securityContext": {"allowPrivilegeEscalation": false,
                        "readOnlyRootFilesystem": true, "capabilities": {"drop": ["ALL"]}},
                }],
            },
        });
        match self {
            Self::Share => {
                let limits =
                    json!({names.of(Resource::Gpu): "1", names.of(Resource::Memory): "1024"});
                pod["spec"]["containers"][0]["resources"] = json!({"limits": limits});
                if let Some(scheduler) = scheduler {
                    pod["spec"]["schedulerName"] = json!(scheduler);
                }
            }
            Self::Past => {
                pod["metadata"]["labels"]["aliquot.dev/webhook"] = json!("ignore");
                pod["spec"]["containers"][0]["env"] = json!([
                    {"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"},
                    {"name": "NVIDIA_DRIVER_CAPABILITIES", "value": "all"},
                ]);
            }
        }
        pod
    }
}

/// Why a probe did not end well, as far as its status says.
pub fn waits(pod: &Pod) -> String {
    let status = pod.status.as_ref();
    let phase = status
        .and_then(|status| status.phase.as_deref())
        .unwrap_or("no phase");
    let conditions = status.and_then(|status| status.conditions.as_deref());
    let conditions = conditions.unwrap_or_default().iter();
    let mut told = conditions.filter(|one| one.status == "False");
    let told = told.find_map(|one| one.message.as_deref());
    let containers = status.and_then(|status| status.container_statuses.as_deref());
    let waiting = containers.unwrap_or_default().iter().find_map(|one| {
        let waiting = one.state.as_ref()?.waiting.as_ref()?;
        let (reason, message) = (waiting.reason.as_deref()?, waiting.message.as_deref());
        Some(format!("{reason} {}", message.unwrap_or_default()))
    });
    let why = waiting
        .or_else(|| told.map(str::to_owned))
        .unwrap_or_default();
    format!("the probe pod is {phase}: {why}")
        .trim_end_matches([' ', ':'])
        .to_owned()
}

/// What both saw; `limited` where the agent has a library to give.
pub fn checks(
    about: &About,
    share: &Fact<Look>,
    past: &Fact<Look>,
    limited: Fact<bool>,
) -> Vec<Finding> {
    vec![
        library(about, share, limited),
        given(about, share),
        by_environment(about, past),
        selinux(about, share),
        overlay(about, share),
    ]
}

/// libvgpu.so is in the process.
fn library(about: &About, share: &Fact<Look>, limited: Fact<bool>) -> Finding {
    let check = "library";
    match (share, limited) {
        (Err(why), _) => about.unknown(check, why),
        (_, Err(why)) => about.unknown(check, why),
        (_, Ok(false)) => about.warning(
            check,
            "the agent is started without --limiter-library: shares are booked, and nothing holds a process to its own",
            "devicePlugin.limiter=true",
        ),
        (Ok(look), Ok(true)) if !look.loaded.is_empty() => {
            about.ok(check, format!("{} is loaded in every process", look.loaded.join(", ")))
        }
        // By replacement it comes with the driver's library, which the probe does not load.
        (Ok(look), Ok(true)) if look.has_page && !look.standing_in.is_empty() => about.ok(
            check,
            format!("it stands before {}", look.standing_in.join(", ")),
        ),
        (Ok(_), Ok(true)) => about.problem(
            check,
            "neither loaded in the probe nor in the place of the driver's libraries: nothing holds a process to its share",
            "the pod's runtime class, SELinux below, and the node's condition AliquotRuntimeIncomplete; sandboxed runtimes and images with musl are not served",
        ),
    }
}

/// It was told its share, and has a card.
fn given(about: &About, share: &Fact<Look>) -> Finding {
    let check = "share";
    match share {
        Err(why) => about.unknown(check, why),
        Ok(look) => match look.told.get("NVIDIA_VISIBLE_DEVICES") {
            Some(uuid) if uuid.starts_with("GPU-") || uuid.starts_with("MIG-") => {
                let limit = look.told.get("CUDA_DEVICE_MEMORY_LIMIT_0");
                let limit = limit.map_or("no limit of memory", String::as_str);
                about.ok(check, format!("a pod gets {uuid} with {limit}"))
            }
            Some(mounts) if mounts == BY_MOUNTS && !look.cards.is_empty() => {
                about.ok(check, format!("a pod gets {} by mounts", look.cards.join(", ")))
            }
            other => about.problem(
                check,
                format!("a container with a share started with NVIDIA_VISIBLE_DEVICES={}: the runtime did not apply its CDI file", other.map_or("", String::as_str)),
                "switch CDI on in the container runtime: docs/guides/container-runtime.md",
            ),
        },
    }
}

/// A pod without a share gets no GPU by its environment from the runtime that no pod names.
fn by_environment(about: &About, past: &Fact<Look>) -> Finding {
    let check = "gpus-by-environment";
    match past {
        Err(why) => about.unknown(check, why),
        Ok(look) if look.cards.is_empty() => {
            let variable = look.told.get("NVIDIA_VISIBLE_DEVICES");
            if variable.is_some_and(|value| value == "void") {
                let why = "the webhook closed the probe, too: no pod may pass it by (webhook.podsMayIgnore)";
                return about.unknown(check, why);
            }
            about.ok(check, "the default runtime gives an image that sets NVIDIA_VISIBLE_DEVICES no GPU")
        }
        Ok(look) => about.problem(
            check,
            format!("the default runtime opens {} past the books to an image that sets NVIDIA_VISIBLE_DEVICES", look.cards.join(", ")),
            "accept-nvidia-visible-devices-envvar-when-unprivileged = false in NVIDIA's runtime configuration, or another default runtime",
        ),
    }
}

fn selinux(about: &About, share: &Fact<Look>) -> Finding {
    let check = "selinux";
    match share {
        Err(why) => about.unknown(check, why),
        Ok(look) if look.selinux.as_deref() == Some("1") && !look.has_page => about.problem(
            check,
            "SELinux enforces, and the container cannot read /.aliquot",
            "semanage fcontext and restorecon as in docs/guides/install.md",
        ),
        Ok(look) => match look.selinux.as_deref() {
            Some("1") => about.ok(check, "enforces, and a container reads its limits"),
            Some(_) => about.ok(check, "logs only"),
            None if look.label.is_none() => about.ok(check, "off"),
            None => about.ok(
                check,
                format!(
                    "not shown in a container; its label is {}",
                    look.label.as_deref().unwrap_or_default()
                ),
            ),
        },
    }
}

/// A tenant cannot move what is mounted away with a directory of its image.
fn overlay(about: &About, share: &Fact<Look>) -> Finding {
    let check = "overlay-redirect-dir";
    let look = match share {
        Err(why) => return about.unknown(check, why),
        Ok(look) => look,
    };
    let option = look
        .root
        .split(',')
        .find_map(|one| one.strip_prefix("redirect_dir="));
    match (option, look.redirect_dir.as_deref()) {
        (Some("on"), _) | (None, Some("Y")) => about.warning(
            check,
            "on: root in a container can rename a directory of its image, and what is mounted below goes with it; processes that start later may then be without the library (the monitor sees them)",
            "redirect_dir=off: options overlay redirect_dir=off in modprobe.d, then restart the pods",
        ),
        (Some(value), _) => about.ok(check, value),
        (None, Some("N")) => about.ok(check, "off"),
        (None, _) => about.unknown(check, "the kernel does not show it in a container, and the mount does not say it"),
    }
}

#[cfg(test)]
#[path = "probe_tests.rs"]
mod tests;
