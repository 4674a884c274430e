//! What could give GPUs to a pod besides its requests: environment variables, mounts and
//! annotations of NVIDIA's runtime.
//!
//! `NVIDIA_VISIBLE_DEVICES` would give access to GPUs without an allocation: it is taken out, and
//! UUIDs in it become a pin that the scheduler allocates. Mounts below one folder name GPUs to
//! NVIDIA's runtime. Annotations name CDI devices: NVIDIA's NRI plugin reads them off the pod, and
//! CRI-O copies a pod's annotations to its containers, where NVIDIA's runtime reads them. Devices
//! of other vendors are left alone, and so are other variables, with a warning where they do not do
//! what their author expects.

use std::collections::{BTreeMap, BTreeSet};

use aliquot_core::Excerpt;
use aliquot_core::escape::{self, ROOT_CAPABILITIES, is_one_of};
use aliquot_core::preferences::{MAX_BYTES, PIN};
use aliquot_core::request;
use aliquot_core::rules::{PIN_UUIDS, Pin};
use serde_json::{Value, json};

use super::request::{DeviceRequest, PodRequest, ResourceTexts, counts_devices, is_amount};
use crate::pod::{self, Container, Kind, items};
use crate::settings::{Settings, VisibleDevices};
use crate::verdict::{Findings, PodEditor, Refusal};

/// Where NVIDIA's runtime looks for GPUs that mounts name.
pub(super) const MOUNT_FOLDER: &str = "/var/run/nvidia-container-devices";
/// Prefixes of the keys of annotations that name CDI devices.
pub(super) const CDI_KEYS: [&str; 2] = ["cdi.k8s.io/", "nvidia.cdi.k8s.io"];
/// Vendors in the values whose devices may be GPUs: NVIDIA, and our own shares.
pub(super) const CDI_VENDORS: [&str; 2] = ["nvidia.com", "aliquot.dev"];

const VISIBLE_DEVICES: &str = "NVIDIA_VISIBLE_DEVICES";
const CUDA_VISIBLE_DEVICES: &str = "CUDA_VISIBLE_DEVICES";
const MPS_MEMORY_LIMIT: &str = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT";
const DRIVER_CAPABILITIES: &str = "NVIDIA_DRIVER_CAPABILITIES";
/// Values that give access to no GPU.
const NO_DEVICES: [&str; 3] = ["", "none", "void"];

/// What applies to all containers of one pod.
pub(super) struct PodContext<'a> {
    pod: &'a Value,
    settings: &'a Settings,
    policy: VisibleDevices,
    /// Containers of it request a share of ours.
    requests_share: bool,
    /// Its volumes that open the node's root to whoever may write them.
    root_volumes: BTreeSet<&'a str>,
}

impl<'a> PodContext<'a> {
    pub(super) fn new(
        pod: &'a Value,
        namespace: &str,
        settings: &'a Settings,
        requests_share: bool,
    ) -> Self {
        let policy = if settings.escape_allowed.contains(namespace) {
            VisibleDevices::Allow
        } else {
            settings.visible_devices
        };
        let volumes = items(&pod["spec"]["volumes"]).iter();
        let root_volumes = volumes.filter(|volume| {
            let path = volume["hostPath"]["path"].as_str();
            let agent = settings.agent_paths.iter().map(String::as_str);
            path.is_some_and(|path| escape::grants_root(path, agent))
        });
        Self {
            pod,
            settings,
            policy,
            requests_share,
            root_volumes: root_volumes
                .filter_map(|volume| volume["name"].as_str())
                .collect(),
        }
    }

    /// Whether what this container sets is left alone: because the administrator allows it, or
    /// because a container without a share reaches every GPU anyway, as NVIDIA's own plugin does.
    fn is_exempt(&self, container: &Container<'_>) -> bool {
        self.policy == VisibleDevices::Allow
            || (!self.requests_share && self.is_root_equivalent(container))
    }

    /// Whether the container is as good as root on its node, and so reaches every GPU whatever its
    /// environment says: it is privileged, has a capability of root's outside a user namespace, or may
    /// write what root of the node reads, as device plugins may. Mounts of devices below `/dev` do not
    /// count: a mount alone gives no access to a device.
    fn is_root_equivalent(&self, container: &Container<'_>) -> bool {
        let context = &container.raw["securityContext"];
        let mut added = items(&context["capabilities"]["add"]).iter();
        let is_roots = |name: &str| is_one_of(&ROOT_CAPABILITIES, name);
        context["privileged"] == true
            || (self.pod["spec"]["hostUsers"] != false
                && added.any(|name| name.as_str().is_some_and(is_roots)))
            || container
                .written()
                .any(|name| self.root_volumes.contains(name))
    }

    /// Whether NVIDIA's runtime could give GPUs to a container that requests none, because of what its
    /// image or an `envFrom` sets.
    fn needs_void(&self) -> bool {
        self.requests_share || self.nvidia_runtime_class().is_some()
    }

    /// The pod's runtime class, where it is one of NVIDIA's runtime.
    fn nvidia_runtime_class(&self) -> Option<&str> {
        let class = self.pod["spec"]["runtimeClassName"].as_str()?;
        let known = &self.settings.nvidia_runtime_classes;
        known.iter().any(|one| one == class).then_some(class)
    }

    /// Whether the container requests GPUs of another device plugin, which names them by that
    /// variable, and a scheduler checks that the node has them. Nobody checks this for a pod that
    /// names its node: the kubelet drops a request for what no plugin offers there. A pod with a share
    /// runs where ours is the only plugin.
    fn gets_devices_of_other_plugin(&self, container: &Container<'_>) -> bool {
        let limits = container.raw["resources"]["limits"].as_object();
        let mut names = limits.into_iter().flat_map(|limits| limits.keys());
        !self.requests_share
            && pod::named_node(self.pod).is_none()
            && names.any(|name| {
                let text = ResourceTexts::named(container, name).limit;
                request::is_gpu(name)
                    && !is_amount(name, self.settings)
                    && request::count(text.unwrap_or_default()).is_ok_and(|count| count > 0)
            })
    }
}

/// Checks what a new pod sets, container by container, and its annotations.
pub(super) fn check(
    containers: &[Container<'_>],
    request: &PodRequest<'_>,
    context: &PodContext<'_>,
    findings: &mut Findings,
) {
    let lasting = || containers.iter().filter(|c| c.kind != Kind::Ephemeral);
    let mut selections: Vec<Selection> = Vec::new();
    for container in lasting() {
        let gets_devices = request.of(container).is_some();
        let variables = override_variables(container, gets_devices, context, findings);
        if gets_devices {
            selections.push(Selection {
                field: container.field(),
                uuids: uuids(&variables, &mut findings.refusals),
            });
        }
    }
    pin(&selections, findings);
    for container in lasting() {
        warn_of_cuda_variables(container, request.of(container), findings);
    }
    check_injection(containers, context, findings);
}

/// The same for an ephemeral container that is added to a pod: it cannot get a GPU.
pub(super) fn check_ephemeral(
    container: &Container<'_>,
    context: &PodContext<'_>,
    findings: &mut Findings,
) {
    override_variables(container, false, context, findings);
    warn_of_cuda_variables(container, None, findings);
    findings
        .refusals
        .extend(injecting_mounts(container, context));
}

/// The same for a pod of another scheduler: nothing of it becomes a pin.
pub(super) fn check_of_other_scheduler(
    containers: &[Container<'_>],
    context: &PodContext<'_>,
    findings: &mut Findings,
) {
    for container in containers.iter().filter(|c| c.kind != Kind::Ephemeral) {
        // Nothing is filled in here: a container that asks for memory alone gets no device.
        let gets_devices = counts_devices(container, context.settings);
        override_variables(container, gets_devices, context, findings);
    }
    check_injection(containers, context, findings);
}

/// A variable of a container that would open GPUs.
struct Variable<'a> {
    field: String,
    /// `None` for a reference, whose value only the kubelet knows.
    value: Option<&'a str>,
}

impl<'a> Variable<'a> {
    /// Such variables in the container's own list.
    fn opening(container: &Container<'a>) -> Vec<Self> {
        let raw: &'a Value = container.raw;
        let all = items(&raw["env"]).iter().enumerate();
        let own = all.filter(|(_, env)| env["name"] == VISIBLE_DEVICES);
        let variables = own.map(|(index, env)| Self {
            field: format!("{}.env[{index}]", container.field()),
            value: env["value"].as_str(),
        });
        let opens = |one: &Self| one.value.is_none_or(|v| !NO_DEVICES.contains(&v.trim()));
        variables.filter(opens).collect()
    }

    fn denied(&self) -> Refusal {
        let value = self.value.map_or_else(
            || "by reference".to_owned(),
            |value| format!("{:?}", Excerpt::from(value)),
        );
        Refusal {
            field: self.field.clone(),
            message: format!(
                "{VISIBLE_DEVICES} {value} would bypass the scheduler; expected: no \
                 {VISIBLE_DEVICES} (use annotation {} to choose a GPU)",
                PIN.aliquot
            ),
        }
    }
}

/// Removes the variable from a container that gets devices, and sets it to `void` in one that gets
/// none: that takes precedence over what the image and an `envFrom` set. Returns every variable of
/// this name that would have opened a GPU.
fn override_variables<'a>(
    container: &Container<'a>,
    gets_devices: bool,
    context: &PodContext<'_>,
    findings: &mut Findings,
) -> Vec<Variable<'a>> {
    if context.is_exempt(container) {
        return Vec::new();
    }
    let gets_devices = gets_devices || context.gets_devices_of_other_plugin(container);
    let opening = Variable::opening(container);
    if context.policy == VisibleDevices::Deny && !opening.is_empty() {
        let denied = opening.iter().map(Variable::denied);
        findings.refusals.extend(denied);
        return Vec::new();
    }
    let before = items(&container.raw["env"]);
    let is_set = before.iter().any(|env| env["name"] == VISIBLE_DEVICES);
    if opening.is_empty() && (is_set || gets_devices || !context.needs_void()) {
        return opening;
    }
    let name = container.shown();
    if gets_devices {
        findings.warnings.push(format!(
            "container {name}: {VISIBLE_DEVICES} removed: the container sees the GPUs allocated to it"
        ));
    } else if is_set || !context.requests_share {
        findings.warnings.push(format!(
            "container {name}: {VISIBLE_DEVICES} set to void: the container requests no GPU and sees none"
        ));
    }
    let others = before.iter().filter(|env| env["name"] != VISIBLE_DEVICES);
    let mut after: Vec<Value> = others.cloned().collect();
    if !gets_devices {
        after.push(json!({"name": VISIBLE_DEVICES, "value": "void"}));
    }
    let index = container.index.to_string();
    let path = ["spec", container.kind.list(), &index, "env"];
    findings.editor.set(&path, Value::Array(after));
    opening
}

/// The GPUs that a container which requests devices names in its environment.
struct Selection {
    field: String,
    uuids: BTreeSet<String>,
}

/// The UUIDs in these variables; a refusal for each other value but `all`.
fn uuids(variables: &[Variable<'_>], refusals: &mut Vec<Refusal>) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for Variable { field, value } in variables {
        let Some(value) = value.filter(|value| value.trim() != "all") else {
            continue;
        };
        let uuids = value.split(',').map(|one| match one.trim().parse() {
            Ok(Pin::Uuid(uuid)) => Some(uuid.to_string()),
            Ok(Pin::Place { .. }) | Err(_) => None,
        });
        match uuids.collect::<Option<Vec<String>>>() {
            Some(uuids) => found.extend(uuids),
            None => refusals.push(Refusal {
                field: field.clone(),
                message: format!(
                    "{VISIBLE_DEVICES} {:?} does not name a GPU; expected: {PIN_UUIDS}, or no \
                     {VISIBLE_DEVICES}",
                    Excerpt::from(value)
                ),
            }),
        }
    }
    found
}

/// What the containers selected becomes the pod's pin, unless it has one. A pin is for all of
/// them, so they have to select the same GPUs.
fn pin(selections: &[Selection], findings: &mut Findings) {
    let path = ["metadata", "annotations", PIN.aliquot];
    let pinned = findings.editor.pod()["metadata"]["annotations"][PIN.aliquot].is_string();
    let first = selections.iter().find(|one| !one.uuids.is_empty());
    let Some(Selection { field, uuids }) = first.filter(|_| !pinned) else {
        return;
    };
    let wanted: Vec<&str> = uuids.iter().map(String::as_str).collect();
    let list = wanted.join(",");
    let shown = Excerpt::from(list.as_str());
    if selections.iter().any(|one| one.uuids != *uuids) {
        findings.refusals.push(Refusal {
            field: field.clone(),
            message: format!(
                "{VISIBLE_DEVICES} {shown:?} would apply to every container that requests a GPU; \
                 expected: the same value in each of them, or annotation {} with all GPUs that \
                 the pod may use",
                PIN.aliquot
            ),
        });
        return;
    }
    findings.warnings.push(format!(
        "{VISIBLE_DEVICES} replaced by annotation {}: {shown}, so that the scheduler allocates \
         these GPUs",
        PIN.aliquot
    ));
    findings.editor.set(&path, Value::String(list));
}

/// Warns of variables that are left as they are, and do not do what their author expects.
fn warn_of_cuda_variables(
    container: &Container<'_>,
    request: Option<&DeviceRequest<'_>>,
    findings: &mut Findings,
) {
    let Findings {
        editor, warnings, ..
    } = findings;
    for env in items(&container.raw["env"]) {
        warnings.extend(match env["name"].as_str() {
            Some(CUDA_VISIBLE_DEVICES) => cuda_visible_devices(editor, env, request),
            Some(MPS_MEMORY_LIMIT) => mps_memory_limit(env),
            Some(DRIVER_CAPABILITIES) if request.is_some() => driver_capabilities(env),
            _ => None,
        });
    }
}

/// A warning about a device that the container will not have: an index beyond its count, or a
/// UUID that is not its pin.
fn cuda_visible_devices(
    editor: &PodEditor,
    env: &Value,
    request: Option<&DeviceRequest<'_>>,
) -> Option<String> {
    let value = env["value"].as_str()?;
    let pins = editor.pod()["metadata"]["annotations"][PIN.aliquot].as_str();
    // A longer pin is refused.
    let pins = pins.filter(|pins| pins.len() <= MAX_BYTES);
    let count = request.map_or(0, DeviceRequest::device_count);
    let is_unknown = |one: &str| match one.trim().parse::<u64>() {
        Ok(index) => index >= count,
        Err(_) => !one.trim().is_empty() && !pins.unwrap_or_default().contains(one.trim()),
    };
    let first = Excerpt::from(value.split(',').find(|one| is_unknown(one))?);
    Some(format!(
        "{CUDA_VISIBLE_DEVICES}: {first:?} is not one of the container's devices (count: {count}); \
         it can only select among these, use annotation {} to choose a GPU",
        PIN.aliquot
    ))
}

/// A warning about a value that is no list of `ordinal=size` with M or G.
fn mps_memory_limit(env: &Value) -> Option<String> {
    let value = env["value"].as_str()?;
    let is_size = |size: &str| {
        let number = size.strip_suffix(['M', 'G']).unwrap_or_default();
        !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit())
    };
    let is_entry = |entry: &str| {
        let (device, size) = entry.split_once('=').unwrap_or_default();
        !device.is_empty() && device.bytes().all(|b| b.is_ascii_digit()) && is_size(size)
    };
    if value.split(',').all(|entry| is_entry(entry.trim())) {
        return None;
    }
    let shown = Excerpt::from(value);
    Some(format!(
        "{MPS_MEMORY_LIMIT}: {shown:?} is not a limit that MPS can read; expected: a device ordinal \
         and a size in M or G such as 0=5G, several separated by commas"
    ))
}

/// A warning about parts of the driver that a share has only where its GPU's profile says so.
fn driver_capabilities(env: &Value) -> Option<String> {
    let value = env["value"].as_str()?;
    let asks_for = |names: &[&str]| {
        let mut parts = value.split(',').map(str::trim);
        parts.any(|one| one == "all" || names.contains(&one))
    };
    let keys = [
        ("graphics", &["graphics", "display"][..]),
        ("video", &["video"]),
    ];
    let asked: Vec<&str> = keys
        .into_iter()
        .filter(|(_, names)| asks_for(names))
        .map(|(key, _)| key)
        .collect();
    let first = asked.first()?;
    Some(format!(
        "{DRIVER_CAPABILITIES}: a share of a GPU in mode vgpu comes without {}; expected: a GPU \
         whose profile allows it, such as {first}: true",
        asked.join(" and ")
    ))
}

/// Removes annotations that name CDI devices of GPUs from a new pod, and refuses mounts that name
/// GPUs.
fn check_injection(
    containers: &[Container<'_>],
    context: &PodContext<'_>,
    findings: &mut Findings,
) {
    let mut exempt: BTreeMap<&str, bool> = BTreeMap::new();
    for container in containers {
        findings
            .refusals
            .extend(injecting_mounts(container, context));
        *exempt.entry(container.name()).or_insert(true) &= context.is_exempt(container);
    }
    let all_exempt = !exempt.is_empty() && exempt.values().all(|one| *one);
    let annotations = context.pod["metadata"]["annotations"].as_object();
    for (key, value) in annotations.into_iter().flatten() {
        let value = value.as_str().unwrap_or_default();
        // One for a name that no container has is not exempt: an ephemeral container of that name
        // may come later.
        let is_exempt = match key.strip_prefix("nvidia.cdi.k8s.io/container.") {
            Some(name) => exempt.get(name) == Some(&true),
            None => all_exempt,
        };
        if !names_gpu(key, value) || is_exempt || context.policy == VisibleDevices::Allow {
            continue;
        }
        let (shown, value) = (Excerpt::from(key.as_str()), Excerpt::from(value));
        let what = format!("CDI devices {value:?} would bypass the scheduler");
        if context.policy == VisibleDevices::Deny {
            findings.refusals.push(Refusal {
                field: format!("metadata.annotations[{shown:?}]"),
                message: format!(
                    "{what}; expected: no device of {} (use annotation {} to choose a GPU)",
                    CDI_VENDORS.join(" or "),
                    PIN.aliquot
                ),
            });
        } else if findings.editor.remove(&["metadata", "annotations", key]) {
            findings.warnings.push(format!(
                "annotation {shown} removed: {what}; request a GPU in resources.limits instead"
            ));
        }
    }
}

fn injecting_mounts(container: &Container<'_>, context: &PodContext<'_>) -> Vec<Refusal> {
    if context.is_exempt(container) {
        return Vec::new();
    }
    let mounts = items(&container.raw["volumeMounts"]).iter().enumerate();
    let refused = mounts.filter_map(|(index, mount)| {
        let mount_path = mount["mountPath"].as_str()?;
        escape::is_within(mount_path, MOUNT_FOLDER).then(|| Refusal {
            field: format!("{}.volumeMounts[{index}].mountPath", container.field()),
            message: format!(
                "{:?} would inject GPUs and bypass the scheduler; expected: a path outside \
                 {MOUNT_FOLDER}",
                Excerpt::from(mount_path)
            ),
        })
    });
    refused.collect()
}

/// The annotation names a device that may be a GPU.
fn names_gpu(key: &str, value: &str) -> bool {
    let mut vendors = value.split(',').filter_map(|device| {
        let (vendor, _) = device.trim().split_once('/')?;
        Some(vendor)
    });
    CDI_KEYS.iter().any(|prefix| key.starts_with(prefix))
        && vendors.any(|vendor| {
            let mut known = CDI_VENDORS.iter();
            known.any(|one| vendor == *one || vendor.ends_with(&format!(".{one}")))
        })
}
