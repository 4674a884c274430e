//! The two probe pods of `doctor node`, and the checks of what they report: one requests a share, the
//! other requests none and tries to get GPUs by its environment. Both meet the restricted Pod Security
//! Standard and are deleted afterwards.

use std::time::Duration;

use aliquot_core::request::{Resource, ResourceNames};
use k8s_openapi::api::core::v1::{LocalObjectReference, Pod};
use kube::Api;
use kube::api::{DeleteParams, LogParams, PostParams};
use serde_json::{Value, json};
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::{Instant, interval};

use super::container_view::ContainerView;
use super::facts::{Fact, fact};
use super::finding::{About, Checked, Finding, ok, problem, warning};
use crate::components::unready;
use crate::output::with_causes;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Probe {
    /// Requests a share.
    Share,
    /// Requests none; its environment asks NVIDIA's runtime for all GPUs.
    WithoutShare,
}

impl Probe {
    /// The last part of the pod's name.
    pub fn word(self) -> &'static str {
        match self {
            Self::Share => "share",
            Self::WithoutShare => "past",
        }
    }

    /// The pod for this node, from an image that contains kubectl-aliquot, pulled with these Secrets
    /// where its namespace has them. `scheduler` is set where no webhook sets schedulerName.
    pub fn pod(
        self,
        node: &str,
        image: &str,
        secrets: &[LocalObjectReference],
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
                "imagePullSecrets": secrets,
                "tolerations": [{"operator": "Exists"}],
                "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {
                    "nodeSelectorTerms": [{"matchFields": [on_node]}],
                }}},
                "securityContext": {"runAsNonRoot": true, "runAsUser": 65532, "runAsGroup": 65532,
                    "seccompProfile": {"type": "RuntimeDefault"}},
                "containers": [{
                    "name": CONTAINER,
                    "image": image,
                    "imagePullPolicy": "IfNotPresent",
                    "command": ["kubectl-aliquot", "doctor", "container-view"],
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
            Self::WithoutShare => {
                pod["spec"]["containers"][0]["env"] = json!([
                    {"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"},
                    {"name": "NVIDIA_DRIVER_CAPABILITIES", "value": "all"},
                ]);
            }
        }
        pod
    }
}

/// The probe's own container.
const CONTAINER: &str = "container-view";

/// Why a probe pod did not succeed, by its status.
fn why_not_ended(pod: &Pod) -> String {
    let status = pod.status.as_ref();
    let phase = status.and_then(|status| status.phase.as_deref());
    let conditions = status.and_then(|status| status.conditions.as_deref());
    let mut refused = conditions.unwrap_or_default().iter();
    let message = refused.find_map(|one| one.message.clone().filter(|_| one.status == "False"));
    // Of a pod that the kubelet refuses or ends.
    let by_kubelet = status.and_then(|status| status.message.clone());
    let why = by_kubelet.or_else(|| unready(pod)).or(message);
    let why = why.unwrap_or_default();
    format!(
        "the probe pod is in phase {}: {why}",
        phase.unwrap_or("unknown")
    )
}

/// Longest wait for a probe pod: its image may have to be pulled.
const TIMEOUT: Duration = Duration::from_mins(1);
const POLL_INTERVAL: Duration = Duration::from_millis(300);

/// Creates the pod, waits for its end, reads its output, and deletes it, also after Ctrl-C.
pub(super) async fn run(pods: &Api<Pod>, pod: Value) -> Fact<ContainerView> {
    let pod: Pod = fact(serde_json::from_value(pod))?;
    // Before the pod is there: from now on, Ctrl-C does not end this program.
    let mut interrupts = fact(signal(SignalKind::interrupt()))?;
    let made = pods
        .create(&PostParams::default(), &pod)
        .await
        .map_err(|error| format!("cannot create the probe pod: {}", with_causes(&error)))?;
    let name = made.metadata.name.unwrap_or_default();
    let result = tokio::select! {
        result = wait_for_end(pods, &name) => result,
        _ = interrupts.recv() => Err("interrupted".to_owned()),
    };
    let now = DeleteParams::default().grace_period(0);
    match pods.delete(&name, &now).await {
        Ok(_) => result,
        Err(error) => Err(format!(
            "cannot delete the probe pod {name}: {}",
            with_causes(&error)
        )),
    }
}

/// Waits for the pod's end and parses its log.
async fn wait_for_end(pods: &Api<Pod>, name: &str) -> Fact<ContainerView> {
    let until = Instant::now() + TIMEOUT;
    let mut ticks = interval(POLL_INTERVAL);
    loop {
        ticks.tick().await;
        let pod = fact(pods.get(name).await)?;
        match end(&pod) {
            Some(true) => break,
            Some(false) => return Err(why_not_ended(&pod)),
            None if Instant::now() > until => {
                let seconds = TIMEOUT.as_secs();
                return Err(format!(
                    "timed out after {seconds} s: {}",
                    why_not_ended(&pod)
                ));
            }
            None => {}
        }
    }
    let own = LogParams {
        container: Some(CONTAINER.to_owned()),
        ..LogParams::default()
    };
    view_in(&fact(pods.logs(name, &own).await)?)
}

/// Whether the probe has succeeded, once it has ended. The sidecar of a service mesh runs on.
fn end(pod: &Pod) -> Option<bool> {
    let status = pod.status.as_ref()?;
    match status.phase.as_deref() {
        Some("Succeeded") => return Some(true),
        Some("Failed") => return Some(false),
        _ => {}
    }
    let mut containers = status.container_statuses.iter().flatten();
    let own = containers.find(|one| one.name == CONTAINER)?;
    let ended = own.state.as_ref()?.terminated.as_ref()?;
    Some(ended.exit_code == 0)
}

/// The view that the probe has printed. Its log also has what the loader says on stderr, as of a library that it
/// cannot load.
fn view_in(log: &str) -> Fact<ContainerView> {
    let mut lines = log.lines();
    let json = lines.rfind(|line| line.starts_with('{')).unwrap_or(log);
    let read = |error| format!("cannot parse the probe pod's output: {error}");
    serde_json::from_str(json).map_err(read)
}

/// The findings from both probes; `limited` says whether the agent injects the limiter.
pub fn checks(
    about: &About,
    share: &Fact<ContainerView>,
    without_share: &Fact<ContainerView>,
    limited: Fact<bool>,
) -> Vec<Finding> {
    let seen = |by: &Fact<ContainerView>, check: fn(&ContainerView) -> Checked| -> Checked {
        check(by.as_ref()?)
    };
    about.each([
        ("library", library(share, limited)),
        ("share", seen(share, share_is_applied)),
        ("gpus-by-environment", seen(without_share, by_environment)),
        ("selinux", seen(share, selinux)),
        ("overlay-redirect-dir", seen(share, overlay)),
        ("fork-detection", seen(share, fork_detection)),
    ])
}

/// The limiter is loaded in the process.
fn library(share: &Fact<ContainerView>, limited: Fact<bool>) -> Checked {
    let view = share.as_ref()?;
    if !limited? {
        return warning(
            "the agent runs without --limiter-library: shares are allocated, but nothing enforces their limits",
            "set devicePlugin.limiter=true",
        );
    }
    if !view.loaded.is_empty() {
        let loaded = view.loaded.join(", ");
        return ok(format!("{loaded} is preloaded in every process"));
    }
    // With injection by replacement it is loaded together with the driver's library, which the
    // probe does not load.
    if view.has_page && !view.shims.is_empty() {
        let shims = view.shims.join(", ");
        return ok(format!("the limiter is injected by replacement of {shims}"));
    }
    problem(
        "libvgpu.so is neither preloaded nor in place of the driver's libraries: nothing enforces the limits of a share",
        "check the pod's runtime class, the check selinux, and the node's condition AliquotRuntimeIncomplete; sandboxed runtimes and musl images are not supported",
    )
}

/// The container has the device and the limits of its share.
fn share_is_applied(view: &ContainerView) -> Checked {
    let variable = |name: &str| view.environment.get(name).map(String::as_str);
    let device = variable("ALIQUOT_VISIBLE_DEVICES").unwrap_or_default();
    if device.starts_with("GPU-") || device.starts_with("MIG-") {
        let limit = variable("CUDA_DEVICE_MEMORY_LIMIT_0").unwrap_or("no memory limit");
        return ok(format!("a container gets {device} with {limit}"));
    }
    problem(
        format!(
            "a container with a share started with ALIQUOT_VISIBLE_DEVICES={device}, expected the UUID of its device: the runtime did not apply the CDI specification"
        ),
        "enable CDI in the container runtime: docs/guides/container-runtime.md",
    )
}

/// A pod without a share gets no GPU by its environment from the node's default runtime.
fn by_environment(view: &ContainerView) -> Checked {
    if !view.gpu_nodes.is_empty() {
        let nodes = view.gpu_nodes.join(", ");
        return problem(
            format!(
                "the default runtime gives {nodes} without an allocation to an image that sets NVIDIA_VISIBLE_DEVICES"
            ),
            "set accept-nvidia-visible-devices-envvar-when-unprivileged = false in NVIDIA's runtime configuration, or use another default runtime",
        );
    }
    let variable = view.environment.get("NVIDIA_VISIBLE_DEVICES");
    if variable.is_some_and(|value| value == "void") {
        return Err("a webhook set NVIDIA_VISIBLE_DEVICES of the probe pod to void, although it is in the namespace of Aliquot, which aliquot-webhook does not review".to_owned());
    }
    ok("the default runtime gives no GPU to an image that sets NVIDIA_VISIBLE_DEVICES")
}

/// A container can read its limits.
fn selinux(view: &ContainerView) -> Checked {
    let todo = "run semanage fcontext and restorecon as in docs/guides/install.md";
    // USER:ROLE:TYPE:LEVEL; with AppArmor, the name of a profile stands in its place.
    let label = view.label.as_deref();
    let label = label.filter(|label| label.matches(':').count() >= 3);
    let is_applied = view.environment.contains_key("ALIQUOT_VISIBLE_DEVICES");
    match (view.selinux.as_deref(), label) {
        (Some("1"), _) if !view.has_page => problem(
            "SELinux is enforcing, and the container cannot read /.aliquot",
            todo,
        ),
        (Some("1"), _) => ok("SELinux is enforcing, and the container can read its limits"),
        (Some(_), _) => ok("SELinux is permissive"),
        // Most runtimes hide the mode from containers.
        (None, Some(label)) if !view.has_page && is_applied => problem(
            format!("a container with the SELinux label {label} cannot read /.aliquot"),
            todo,
        ),
        (None, Some(label)) => ok(format!(
            "the SELinux mode is not visible in a container; its label is {label}"
        )),
        (None, None) => ok("SELinux is off"),
    }
}

/// A container cannot rename a directory of its image together with what is mounted below it.
fn overlay(view: &ContainerView) -> Checked {
    let mut options = view.root.split(',');
    let option = options.find_map(|one| one.strip_prefix("redirect_dir="));
    match (option, view.redirect_dir.as_deref()) {
        (Some("on"), _) | (None, Some("Y")) => warning(
            "redirect_dir is on: root in a container can rename a directory of its image together with what is mounted below it, so that processes started later run without the limiter (the monitor detects them)",
            "set options overlay redirect_dir=off in modprobe.d, then restart the pods",
        ),
        (Some(value), _) => ok(format!("redirect_dir is {value}")),
        (None, Some("N")) => ok("redirect_dir is off"),
        (None, _) => Err(
            "redirect_dir is neither visible in the container nor in the mount options".to_owned(),
        ),
    }
}

/// The first kernel that wipes memory in forked children (`MADV_WIPEONFORK`).
const FIRST_WIPING: (u32, u32) = (4, 14);

/// Whether the kernel of this release wipes memory in forked children; `None`: unknown.
fn wipes_on_fork(release: &str) -> Option<bool> {
    let mut numbers = release.split(['.', '-']).map(str::parse::<u32>);
    let version = (numbers.next()?.ok()?, numbers.next()?.ok()?);
    Some(version >= FIRST_WIPING && !release.to_lowercase().contains("gvisor"))
}

/// The limiter recognizes every forked child.
fn fork_detection(view: &ContainerView) -> Checked {
    let release = view
        .kernel
        .as_deref()
        .ok_or("the kernel's release is not visible in a container")?;
    match wipes_on_fork(release) {
        None => Err(format!("cannot parse the kernel's release {release}")),
        Some(true) => ok(format!(
            "kernel {release} wipes the limiter's flag in forked children"
        )),
        Some(false) => warning(
            format!(
                "kernel {release} of pods with a share has no MADV_WIPEONFORK, as gVisor's has not: children of fork have process slots of their own, but a child of a raw clone is counted in its parent's slot, and under gVisor the monitor cannot see which container a process is in"
            ),
            "give pods with a share a runtime class without a sandbox, or a kernel of 4.14 or newer",
        ),
    }
}

#[cfg(test)]
#[path = "probe_tests.rs"]
mod tests;
