//! What is used of GPUs and shares now, from `GET /metrics` of the nodes' monitors. What is not measured
//! is unknown, never 0.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use aliquot_core::{GpuUuid, Mib, NodeName, Percent};
use serde::Serialize;

use crate::agents::MetricsPages;
use crate::metrics::{Sample, samples, sum};
use crate::table::counted;

/// When the monitor completed its last sample, in seconds since 1970.
const SAMPLED: &str = "aliquot_monitor_last_look_timestamp_seconds";
/// How many nodes a note names.
const NAMED: usize = 3;

/// A GPU or a MIG instance.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct GpuUsage {
    /// Memory in use by anybody.
    pub memory: Option<Mib>,
    /// How much of the time a kernel ran.
    pub sm: Option<Percent>,
    /// Degrees Celsius.
    pub temperature: Option<u32>,
    /// Watts.
    pub power: Option<u32>,
}

/// What a container uses of a device, or several containers together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ShareUsage {
    /// Memory of its processes.
    pub memory: Option<Mib>,
    /// Compute of the GPU that they used.
    pub sm: Option<Percent>,
    /// How much of the time launches waited for the share, between two samples; more than 100 where
    /// several threads wait.
    pub throttled: Option<Percent>,
}

impl ShareUsage {
    /// Both together; unknown as soon as one of them is.
    pub(crate) fn plus(self, other: Self) -> Self {
        let both = |a: Option<Percent>, b: Option<Percent>| Some(a? + b?);
        Self {
            memory: self.memory.zip(other.memory).map(|(a, b)| a + b),
            sm: both(self.sm, other.sm),
            throttled: both(self.throttled, other.throttled),
        }
    }

    /// Whether launches wait.
    pub(crate) fn is_throttled(self) -> bool {
        self.throttled.is_some_and(|part| part > Percent(0))
    }
}

/// A container's share of a device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ContainerShare {
    /// The node.
    pub node: NodeName,
    /// The GPU or the MIG instance.
    pub gpu: GpuUuid,
    /// The pod's namespace.
    pub namespace: String,
    /// The pod.
    pub pod: String,
    /// The container.
    pub container: String,
    /// What it uses.
    #[serde(flatten)]
    pub usage: ShareUsage,
}

/// What is used on all nodes that answered.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Usage {
    /// By the UUID of the GPU or the MIG instance.
    pub gpus: BTreeMap<GpuUuid, GpuUsage>,
    /// By node, device, pod and container.
    pub shares: Vec<ContainerShare>,
    /// Why a node is missing.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub missing: BTreeMap<NodeName, String>,
}

/// A container's share, and the seconds that its launches have waited.
type Waited = BTreeMap<[String; 4], f64>;

/// One sample of all nodes.
#[derive(Clone, Debug, Default)]
pub(crate) struct UsageSample {
    usage: Usage,
    /// When each node's monitor took it, and what its shares had waited then.
    waited: BTreeMap<NodeName, (f64, Waited)>,
}

impl UsageSample {
    /// Reads the metrics of monitors.
    pub(crate) fn of(answers: MetricsPages) -> Self {
        let mut sample = Self::default();
        for (node, page) in &answers.pages {
            sample.read(node, page);
        }
        sample.usage.missing = answers.missing;
        sample
    }

    fn read(&mut self, node: &NodeName, page: &str) {
        let mut shares: BTreeMap<[String; 4], ShareUsage> = BTreeMap::new();
        let mut waited = Waited::new();
        for sample in samples(page) {
            let Some(gpu) = sample.label("uuid") else {
                continue;
            };
            let key = ["namespace", "pod", "container"].map(|name| sample.label(name));
            if let [Some(namespace), Some(pod), Some(container)] = key {
                let key = [gpu, namespace, pod, container];
                match sample.name {
                    "aliquot_share_memory_used_bytes" => {
                        shares.entry(key).or_default().memory = mib(sample);
                    }
                    "aliquot_share_core_used_ratio" => {
                        shares.entry(key).or_default().sm = percent(sample.value);
                    }
                    // Every share has this one.
                    "aliquot_share_throttled_seconds_total" => {
                        shares.entry(key.clone()).or_default();
                        waited.extend(sample.value.parse().ok().map(|seconds| (key, seconds)));
                    }
                    _ => {}
                }
                continue;
            }
            let gpu = self.usage.gpus.entry(gpu.as_str().into()).or_default();
            match sample.name {
                "aliquot_gpu_memory_used_bytes" | "aliquot_instance_memory_used_bytes" => {
                    gpu.memory = mib(sample);
                }
                "aliquot_gpu_busy_ratio" => gpu.sm = percent(sample.value),
                "aliquot_gpu_temperature_celsius" => gpu.temperature = whole(sample.value),
                "aliquot_gpu_power_watts" => gpu.power = whole(sample.value),
                _ => {}
            }
        }
        let shares = shares.into_iter();
        self.usage.shares.extend(shares.map(|(key, usage)| {
            let [gpu, namespace, pod, container] = key;
            ContainerShare {
                node: node.clone(),
                gpu: gpu.as_str().into(),
                namespace,
                pod,
                container,
                usage,
            }
        }));
        if let Some(at) = sum(page, SAMPLED) {
            self.waited.insert(node.clone(), (at, waited));
        }
    }

    /// What is used now, and how much launches waited since the sample before.
    pub(crate) fn since(&self, before: &Self) -> Usage {
        let mut usage = self.usage.clone();
        for share in &mut usage.shares {
            let key = [
                share.gpu.as_str(),
                &share.namespace,
                &share.pod,
                &share.container,
            ];
            let key = key.map(str::to_owned);
            let at = |sample: &Self| {
                let (at, waited) = sample.waited.get(&share.node)?;
                Some((*at, *waited.get(&key)?))
            };
            let (Some((then, had)), Some((now, has))) = (at(before), at(self)) else {
                continue;
            };
            // A counter that decreased belongs to a new container of the same name.
            if now > then && has >= had {
                let part = ((has - had) / (now - then)).to_string();
                share.usage.throttled = percent(&part);
            }
        }
        usage
    }
}

impl Usage {
    /// The shares of these devices.
    pub(crate) fn on<'a>(
        &'a self,
        devices: &'a BTreeSet<&GpuUuid>,
    ) -> impl Iterator<Item = &'a ContainerShare> {
        let shares = self.shares.iter();
        shares.filter(move |share| devices.contains(&share.gpu))
    }

    /// What a pod uses of a device.
    pub(crate) fn of_pod(&self, namespace: &str, pod: &str, gpu: &GpuUuid) -> Option<ShareUsage> {
        let shares = self.shares.iter();
        let own = shares
            .filter(|share| (&*share.namespace, &*share.pod, &share.gpu) == (namespace, pod, gpu));
        own.map(|share| share.usage).reduce(ShareUsage::plus)
    }

    /// A line for each reason why nodes are missing.
    pub(crate) fn notes(&self) -> String {
        let mut reasons: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        for (node, why) in &self.missing {
            // Two nodes have the same reason although each names itself in it.
            let why = why.split_once(": ").map_or(why.as_str(), |(_, why)| why);
            reasons.entry(why).or_default().push(node.as_str());
        }
        let mut text = String::new();
        for (why, nodes) in reasons {
            let count = counted(nodes.len(), "node", "nodes");
            let mut named = nodes[..nodes.len().min(NAMED)].join(", ");
            if nodes.len() > NAMED {
                named.push_str(", …");
            }
            let _ = writeln!(text, "what is used is unknown on {count} ({named}): {why}");
        }
        text
    }
}

fn mib(sample: Sample<'_>) -> Option<Mib> {
    let bytes: u64 = sample.value.parse().ok()?;
    Some(Mib(bytes >> 20))
}

/// A part of 1 as percent, rounded.
fn percent(part: &str) -> Option<Percent> {
    let part: f64 = part.parse().ok()?;
    whole(&(part * 100.0).to_string()).map(Percent)
}

/// A number that is not negative, rounded.
fn whole(number: &str) -> Option<u32> {
    let number: f64 = number.parse().ok()?;
    format!("{number:.0}").parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The page of a node with one GPU and two shares, of which `q` has waited for so long.
    fn page(at: f64, waited: f64) -> String {
        let gpu = r#"node="n1",gpu="0",uuid="GPU-a""#;
        let share = |pod: &str| {
            format!(
                r#"{gpu},mode="vgpu",profile="",namespace="d",pod="{pod}",container="main",pod_uid="u""#
            )
        };
        let (p, q) = (share("p"), share("q"));
        format!(
            r#"aliquot_gpu_memory_used_bytes{{{gpu},model="A"}} 4194304
aliquot_gpu_busy_ratio{{{gpu},model="A"}} 0.436
aliquot_gpu_temperature_celsius{{{gpu},model="A"}} 41
aliquot_gpu_power_watts{{{gpu},model="A"}} 71.5
aliquot_share_throttled_seconds_total{{{p}}} 0
aliquot_share_memory_used_bytes{{{q}}} 3145728
aliquot_share_core_used_ratio{{{q}}} 0.3
aliquot_share_throttled_seconds_total{{{q}}} {waited}
aliquot_monitor_last_look_timestamp_seconds{{node="n1"}} {at}
"#
        )
    }

    fn sample(page: String) -> UsageSample {
        UsageSample::of(MetricsPages {
            pages: vec![("n1".into(), page)],
            missing: [].into(),
        })
    }

    fn of_pod(usage: &Usage, pod: &str) -> ShareUsage {
        usage.of_pod("d", pod, &"GPU-a".into()).unwrap()
    }

    #[test]
    fn reads_used_memory_compute_and_throttling() {
        let first = sample(page(100.0, 7.0));
        let usage = sample(page(102.0, 7.5)).since(&first);
        let gpu = GpuUsage {
            memory: Some(Mib(4)),
            sm: Some(Percent(44)),
            temperature: Some(41),
            power: Some(72),
        };
        assert_eq!(usage.gpus, [("GPU-a".into(), gpu)].into());
        let busy = ShareUsage {
            memory: Some(Mib(3)),
            sm: Some(Percent(30)),
            throttled: Some(Percent(25)),
        };
        assert_eq!(of_pod(&usage, "q"), busy);
        // What the monitor leaves out is unknown.
        let unknown = ShareUsage {
            throttled: Some(Percent(0)),
            ..ShareUsage::default()
        };
        assert_eq!(of_pod(&usage, "p"), unknown);
        assert_eq!(usage.of_pod("d", "r", &"GPU-a".into()), None);
    }

    #[test]
    fn knows_no_throttling_without_two_samples() {
        let check = |before: UsageSample, after: String| {
            let usage = sample(after).since(&before);
            assert_eq!(of_pod(&usage, "q").throttled, None);
        };
        check(UsageSample::default(), page(100.0, 7.0));
        // The monitor took no new sample.
        check(sample(page(100.0, 7.0)), page(100.0, 7.0));
        // The container is another one.
        check(sample(page(100.0, 7.0)), page(102.0, 1.0));
    }

    #[test]
    fn names_nodes_of_same_reason_together() {
        let why = |node: &str| format!("cannot reach the monitor of {node}: connection refused");
        let names = ["n1", "n2", "n3", "n4"].map(|name| (name.into(), why(name)));
        let usage = Usage {
            missing: names.into(),
            ..Usage::default()
        };
        assert_eq!(
            usage.notes(),
            "what is used is unknown on 4 nodes (n1, n2, n3, …): connection refused\n"
        );
        assert_eq!(Usage::default().notes(), "");
    }
}
