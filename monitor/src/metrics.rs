//! Declares all of the monitor's metrics, from which `docs/reference/monitor-metrics.md` is generated.
//! The number of series is bounded by the shares, GPUs and MIG instances.

use std::collections::BTreeMap;
use std::fmt::{self, Write as _};

use prometheus_client::encoding::{DescriptorEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    Own,
    /// Those of HAMi's monitor, with `--compat-metrics`.
    Hami,
}

#[derive(Clone, Copy, Debug)]
pub struct Declared {
    /// Its full name, without `_total`.
    pub name: &'static str,
    pub kind: MetricType,
    pub family: Family,
    /// Its labels, in order, with spaces between them.
    pub labels: &'static str,
    pub help: &'static str,
}

const SHARE: &str = "node gpu uuid mode profile namespace pod container pod_uid";
const SHARE_BY: &str = "node gpu uuid mode profile namespace pod container pod_uid by";
const GPU: &str = "node gpu uuid model";
const UNMANAGED: &str = "node gpu uuid reason namespace pod";
const INSTANCE: &str = "node gpu uuid profile gi ci";
const NODE: &str = "node";
const HAMI_HOST: &str = "node device_index device_uuid device_type";
const HAMI_SHARE: &str = "namespace pod container vdevice_index device_uuid";

macro_rules! declared {
    ($($constant:ident = $kind:ident $family:ident $name:literal $labels:expr, $help:literal;)*) => {
        $(
            #[doc = $help]
            pub const $constant: Declared = Declared {
                name: $name,
                kind: MetricType::$kind,
                family: Family::$family,
                labels: $labels,
                help: $help,
            };
        )*
        pub const ALL: &[Declared] = &[$($constant),*];
    };
}

declared! {
    SHARE_LIMIT = Gauge Own "aliquot_share_memory_limit_bytes" SHARE,
        "Memory that the container may use of the device; absent for a container without limits";
    SHARE_REQUEST = Gauge Own "aliquot_share_memory_request_bytes" SHARE,
        "Memory that the container requested of the device: its limit, unless it may use more; absent for a container without limits";
    SHARE_UNCONTROLLED = Gauge Own "aliquot_share_uncontrolled" SHARE,
        "1 for a container without limits, as its own environment asks and its namespace may";
    SHARE_USED = Gauge Own "aliquot_share_memory_used_bytes" SHARE,
        "Memory that the container's processes use, by the driver; absent while not all of them are known, or where the driver does not report it";
    SHARE_LENT = Gauge Own "aliquot_share_memory_lent_bytes" SHARE,
        "Memory that the container's processes use beyond its request, which may be called back; absent where the memory used or the request is";
    SHARE_PEAK = Gauge Own "aliquot_share_memory_peak_bytes" SHARE,
        "Maximum memory used since the monitor started, or counted by the limiter within the limit";
    SHARE_TRACKED = Gauge Own "aliquot_share_memory_tracked_bytes" SHARE,
        "Memory that the limiter in the container counts";
    SHARE_OVERHEAD = Gauge Own "aliquot_share_memory_overhead_bytes" SHARE,
        "Memory that the host charges to the container in addition";
    SHARE_STALE = Gauge Own "aliquot_share_memory_stale_bytes" SHARE,
        "Memory still counted for processes that ended; the next process that needs it corrects this";
    SHARE_CORE_LIMIT = Gauge Own "aliquot_share_core_limit_ratio" SHARE,
        "Compute that the container may use of the device; 1 is all of it, and so is no limit; absent for a container without limits";
    SHARE_CORE_USED = Gauge Own "aliquot_share_core_used_ratio" SHARE,
        "Compute of the GPU that its processes used, by the driver; absent where the driver does not report it";
    SHARE_BUSY = Counter Own "aliquot_share_compute_seconds" SHARE,
        "GPU time that the limiter counted";
    SHARE_THROTTLED = Counter Own "aliquot_share_throttled_seconds" SHARE,
        "Time that launches waited for the container's share";
    SHARE_LAUNCHES = Counter Own "aliquot_share_launches" SHARE,
        "Launches that the limiter counted";
    SHARE_DENIED = Counter Own "aliquot_share_denied_allocations" SHARE,
        "Allocations that the limiter refused";
    SHARE_CLIENTS = Gauge Own "aliquot_share_clients" SHARE,
        "Processes of the container on the device";
    SHARE_LAST = Gauge Own "aliquot_share_last_kernel_seconds" SHARE,
        "Time since the last launch; absent before the first";
    SHARE_CORRUPT = Gauge Own "aliquot_share_counters_unreadable" SHARE,
        "1 while the container's counters file is corrupt, because it was truncated, replaced or overwritten";
    SHARE_ENFORCED = Gauge Own "aliquot_share_memory_enforced" SHARE_BY,
        "1 for each means that enforces the container's memory limit";
    UNMANAGED_PROCESSES = Gauge Own "aliquot_gpu_unmanaged_processes" UNMANAGED,
        "Unmanaged processes on the GPU, which belong to no share";
    UNMANAGED_BYTES = Gauge Own "aliquot_gpu_unmanaged_memory_bytes" UNMANAGED,
        "Memory that these use; absent where the driver does not report it";
    GPU_TOTAL = Gauge Own "aliquot_gpu_memory_total_bytes" GPU,
        "Memory of the GPU";
    GPU_USED = Gauge Own "aliquot_gpu_memory_used_bytes" GPU,
        "Memory in use by anybody";
    GPU_RESERVED = Gauge Own "aliquot_gpu_memory_reserved_bytes" GPU,
        "Memory that the driver reserves";
    GPU_BUSY = Gauge Own "aliquot_gpu_busy_ratio" GPU,
        "Fraction of the time in which a kernel ran";
    GPU_MEMORY_BUSY = Gauge Own "aliquot_gpu_memory_busy_ratio" GPU,
        "Fraction of the time in which memory was read or written";
    GPU_TEMPERATURE = Gauge Own "aliquot_gpu_temperature_celsius" GPU,
        "Temperature";
    GPU_POWER = Gauge Own "aliquot_gpu_power_watts" GPU,
        "Power";
    GPU_LIMITS = Gauge Own "aliquot_gpu_driver_limits" GPU,
        "1 if the driver supports cgroup memory limits, 0 if not; absent until one was to be set";
    GPU_CORRECTED = Gauge Own "aliquot_gpu_compute_corrected" GPU,
        "1 if the driver reports the utilization of processes, by which the rates of compute shares are corrected; 0: not corrected, as on a partitioned GPU";
    GPU_SHARES = Gauge Own "aliquot_gpu_shares" GPU,
        "Shares of the GPU or of its MIG instances";
    GPU_PROCESSES = Gauge Own "aliquot_gpu_processes" GPU,
        "Processes on the GPU";
    GPU_UNAVAILABLE = Gauge Own "aliquot_gpu_unavailable_processes" GPU,
        "Of these, processes whose memory the driver does not report: nothing is charged for it, and the OOM killer kills none of them";
    INSTANCE_TOTAL = Gauge Own "aliquot_instance_memory_total_bytes" INSTANCE,
        "Memory of the MIG instance";
    INSTANCE_USED = Gauge Own "aliquot_instance_memory_used_bytes" INSTANCE,
        "Memory of the MIG instance in use by anybody";
    CONTAINERS = Gauge Own "aliquot_monitor_containers" NODE,
        "Containers with a share on this node, without those of pods that have ended";
    ORPHANED = Gauge Own "aliquot_monitor_orphaned_containers" NODE,
        "Those of them whose pod is gone while its processes are alive";
    UNREADABLE = Gauge Own "aliquot_monitor_unreadable_shares" NODE,
        "Accepted allocations on disk that cannot be read";
    UNKNOWN = Gauge Own "aliquot_monitor_unknown_processes" NODE,
        "Processes on GPUs whose owner is not known yet";
    FAILURES = Counter Own "aliquot_monitor_read_failures" "node what",
        "Reads that failed";
    KILLED = Counter Own "aliquot_monitor_killed_processes" "node reason",
        "Processes that were killed";
    NOT_KILLED = Counter Own "aliquot_monitor_not_killed_processes" NODE,
        "Processes that could not be killed";
    ABOVE = Counter Own "aliquot_monitor_above_limit" NODE,
        "Times that a container was above its memory limit";
    CALL_BACKS = Counter Own "aliquot_monitor_call_backs" NODE,
        "Times that memory of a GPU beyond requests was called back";
    EVENTS_DROPPED = Counter Own "aliquot_monitor_events_dropped" NODE,
        "Events that were dropped because the queue was full";
    SAMPLE_SECONDS = Gauge Own "aliquot_monitor_sample_seconds" NODE,
        "Duration of the last sample";
    LAST_SAMPLE = Gauge Own "aliquot_monitor_last_sample_timestamp_seconds" NODE,
        "Time when the last sample completed, since 1970; stays behind the clock while the driver does not answer, and is that of its begin if the first does not complete";
    HAMI_USED = Gauge Hami "hami_host_gpu_memory_used_bytes" HAMI_HOST,
        "Memory of the GPU in use";
    HAMI_BUSY = Gauge Hami "hami_host_gpu_utilization_ratio" HAMI_HOST,
        "Percent of the time in which a kernel ran";
    HAMI_SHARE_USED = Gauge Hami "hami_vgpu_memory_used_bytes" HAMI_SHARE,
        "Memory that the container uses";
    HAMI_SHARE_LIMIT = Gauge Hami "hami_vgpu_memory_limit_bytes" HAMI_SHARE,
        "Memory limit of the container; absent for a container without limits";
    HAMI_CONTEXTS = Gauge Hami "hami_vgpu_memory_context_bytes" HAMI_SHARE,
        "Of what the limiter counts, contexts";
    HAMI_BUFFERS = Gauge Hami "hami_vgpu_memory_buffer_bytes" HAMI_SHARE,
        "The rest of it, including modules, which are not counted separately";
    HAMI_CONTAINER_BYTES = Gauge Hami "hami_container_device_memory_bytes" HAMI_SHARE,
        "Memory that the container uses, again";
    HAMI_CONTAINER_BUSY = Gauge Hami "hami_container_device_utilization_ratio" HAMI_SHARE,
        "Percent of the GPU's compute that the container used";
    HAMI_LAST = Gauge Hami "hami_container_last_kernel_elapsed_seconds" HAMI_SHARE,
        "Time since the last launch";
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Value {
    Whole(u64),
    Part(f64),
}

/// Samples by the metric's name, each with the values of its labels.
#[derive(Clone, Debug, Default)]
pub struct Samples(BTreeMap<&'static str, Vec<(Vec<String>, Value)>>);

impl Samples {
    /// Adds a sample; `labels` are the values of the metric's labels in order.
    pub fn add(&mut self, metric: &Declared, labels: &[String], value: Value) {
        let all = self.0.entry(metric.name).or_default();
        all.push((labels.to_vec(), value));
    }

    pub fn encode(&self, encoder: &mut DescriptorEncoder, hami: bool) -> Result<(), fmt::Error> {
        let shown = ALL.iter().filter(|one| hami || one.family == Family::Own);
        for metric in shown {
            let Some(samples) = self.0.get(metric.name) else {
                continue;
            };
            let mut family =
                encoder.encode_descriptor(metric.name, metric.help, None, metric.kind)?;
            for (labels, value) in samples {
                let labels: Vec<(&str, &String)> = metric.labels.split(' ').zip(labels).collect();
                let mut sample = family.encode_family(&labels)?;
                match (metric.kind, value) {
                    (MetricType::Counter, Value::Whole(value)) => {
                        sample.encode_counter::<NoLabelSet, _, u64>(value, None)?;
                    }
                    (MetricType::Counter, Value::Part(value)) => {
                        sample.encode_counter::<NoLabelSet, _, u64>(value, None)?;
                    }
                    (_, Value::Whole(value)) => sample.encode_gauge(value)?,
                    (_, Value::Part(value)) => sample.encode_gauge(value)?,
                }
            }
        }
        Ok(())
    }
}

pub fn reference() -> String {
    let mut text = String::from(
        "# Metrics of the monitor\n\n\
         Generated from `monitor/src/metrics.rs` by `make reference`; a test compares.\n\n\
         `GET /metrics` of a node's monitor returns them as OpenMetrics text, from the last sample.\n\
         The monitor takes a sample every half second.\n\
         They cover this node's pods only.\n\
         What the limiter counts of a container is absent while its counters file cannot be read.\n\n\
         A metric with the label `pod` has one series for each device of each container with a share (and each `by`), and one for each pod, GPU and reason of unmanaged processes;\n\
         one with `profile`, `gi` and `ci` has one for each MIG instance, every other one for each GPU or for the node.\n\
         Series end with the share, and no label has a value that a tenant can choose freely.\n\n\
         - `gpu` is the GPU's index, `uuid` the uuid of the GPU or the MIG instance, `pod_uid` the kubelet's uid of the pod.\n\
         - `mode` is one of: vgpu, exclusive, timeslice, mps, mig, unknown; `profile` is empty except for MIG instances.\n\
         - `reason` of unmanaged processes is one of: host, no-share, lost-share, foreign, no-container, other-container, other-gpu, no-library.\n\
         - `reason` of killed processes is one of: oom, call-back.\n\
         - `by` is one of: library, mps, driver.\n",
    );
    for (family, title) in [
        (Family::Own, "Always there"),
        (
            Family::Hami,
            "Under the names of HAMi's monitor, with `compat.dashboards: true`",
        ),
    ] {
        let _ = write!(
            text,
            "\n## {title}\n\n| metric | type | labels | meaning |\n|---|---|---|---|\n"
        );
        for metric in ALL.iter().filter(|one| one.family == family) {
            let end = match metric.kind {
                MetricType::Counter => "_total",
                _ => "",
            };
            let (kind, help) = (metric.kind.as_str(), metric.help);
            let labels = metric.labels.replace(' ', ", ");
            let _ = writeln!(
                text,
                "| `{}{end}` | {kind} | {labels} | {help} |",
                metric.name
            );
        }
    }
    text
}
