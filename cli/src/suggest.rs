//! `suggest`: the peaks of each device's containers, and how many such containers fit on it, from the
//! metrics of monitors. A device without containers is left out, not shown as idle.

use std::collections::BTreeMap;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use aliquot_core::suggest::{Bound, Peak, replicas};
use aliquot_core::{Mib, Percent};
use clap::Args;
use thiserror::Error;

use crate::access::{AccessError, direct, get};
use crate::metrics::samples;
use crate::table::aligned;

/// Between two requests to a monitor.
const EVERY: Duration = Duration::from_secs(5);
/// Memory of a GPU or a MIG instance.
const TOTALS: [&str; 2] = [
    "aliquot_gpu_memory_total_bytes",
    "aliquot_instance_memory_total_bytes",
];
const MEMORY: &str = "aliquot_share_memory_peak_bytes";
const COMPUTE: &str = "aliquot_share_core_used_ratio";

/// The flags of `suggest`.
#[derive(Debug, Args)]
#[group(id = "from", required = true, multiple = true)]
pub struct Suggest {
    /// Read a node's monitor at this address, with scheme and port; repeatable, one for each node
    #[arg(long, value_name = "URL", group = "from")]
    pub monitor: Vec<http::Uri>,
    /// Read a monitor's metrics from a file; - reads standard input
    #[arg(long, value_name = "FILE", group = "from")]
    pub metrics: Vec<PathBuf>,
    /// Number of requests to each monitor, five seconds apart: compute is what is used at that moment
    #[arg(long, default_value_t = 1)]
    pub rounds: u32,
    /// Most replicas, where the sharing mode allows fewer than memory and compute
    #[arg(long, default_value_t = 1000)]
    pub most: u32,
}

/// Why nothing is suggested.
#[derive(Debug, Error)]
pub enum SuggestError {
    /// A file.
    #[error("cannot read {path}: {source}")]
    Read {
        /// Its path.
        path: String,
        /// The system's error.
        source: std::io::Error,
    },
    /// A monitor.
    #[error(transparent)]
    Access(#[from] AccessError),
    /// They have no container of any device.
    #[error("these metrics have no container with a share; expected: metrics of aliquot-monitor")]
    Nothing,
}

/// A device's memory, and the peaks of its containers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct DeviceUsage {
    memory: Mib,
    containers: BTreeMap<[String; 3], Peak>,
}

/// By node and UUID.
type UsageByDevice = BTreeMap<(String, String), DeviceUsage>;

impl Suggest {
    /// The tables.
    pub async fn run(&self) -> Result<String, SuggestError> {
        let mut all = UsageByDevice::new();
        for path in &self.metrics {
            read(&mut all, &text(path)?);
        }
        let mut ticks = tokio::time::interval(EVERY);
        for _ in 0..self.rounds {
            ticks.tick().await;
            for url in &self.monitor {
                let text = get(&direct(url)?, &format!("the monitor at {url}"), "/metrics").await?;
                read(&mut all, &text);
            }
        }
        all.retain(|_, device| !device.containers.is_empty());
        if all.is_empty() {
            return Err(SuggestError::Nothing);
        }
        Ok(shown(&all, self.most))
    }
}

fn text(path: &Path) -> Result<String, SuggestError> {
    let read = if path == Path::new("-") {
        let mut text = String::new();
        std::io::stdin().read_to_string(&mut text).map(|_| text)
    } else {
        std::fs::read_to_string(path)
    };
    read.map_err(|source| SuggestError::Read {
        path: path.display().to_string(),
        source,
    })
}

/// Adds these metrics; larger earlier peaks stay.
fn read(all: &mut UsageByDevice, metrics: &str) {
    for sample in samples(metrics) {
        let label = |name: &str| sample.label(name);
        let Some(device) = label("node").zip(label("uuid")) else {
            continue;
        };
        let value = sample.value;
        let bytes = || value.parse::<u64>().ok().map(|bytes| Mib(bytes >> 20));
        if TOTALS.contains(&sample.name) {
            let device = all.entry(device).or_default();
            device.memory = device.memory.max(bytes().unwrap_or_default());
            continue;
        }
        let container = ["namespace", "pod", "container"].map(label);
        let [Some(namespace), Some(pod), Some(container)] = container else {
            continue;
        };
        let more = match sample.name {
            MEMORY => bytes().map(|memory| Peak {
                memory,
                cores: Percent(0),
            }),
            COMPUTE => ratio(value).map(|cores| Peak {
                memory: Mib(0),
                cores,
            }),
            _ => None,
        };
        let Some(more) = more else { continue };
        let containers = &mut all.entry(device).or_default().containers;
        let known = containers.entry([namespace, pod, container]).or_default();
        known.memory = known.memory.max(more.memory);
        known.cores = known.cores.max(more.cores);
    }
}

/// Percent of a part of 1, rounded up: `0.123` is 13.
fn ratio(text: &str) -> Option<Percent> {
    let part: f64 = text.parse().ok()?;
    (0..=100_u32)
        .find(|percent| f64::from(*percent) >= part * 100.0)
        .map(Percent)
}

fn shown(all: &UsageByDevice, most: u32) -> String {
    let mut devices = Vec::new();
    let mut containers = Vec::new();
    for ((node, uuid), device) in all {
        let peaks: Vec<Peak> = device.containers.values().copied().collect();
        let found = replicas(device.memory, most, &peaks);
        let cells = found.map_or_else(
            || ["-", "-", "-", "no use measured"].map(str::to_owned),
            |found| {
                let why = match found.bound {
                    Bound::Memory => "memory",
                    Bound::Compute => "compute",
                    Bound::ModeLimit => "most",
                };
                let peak = found.peak;
                let figures = [peak.memory.0, peak.cores.0.into(), found.replicas.into()];
                let [memory, cores, replicas] = figures.map(|figure: u64| figure.to_string());
                [memory, cores, replicas, why.to_owned()]
            },
        );
        let place = [
            node.clone(),
            uuid.clone(),
            device.memory.0.to_string(),
            peaks.len().to_string(),
        ];
        devices.push([place.to_vec(), cells.to_vec()].concat());
        for (name, peak) in &device.containers {
            let figures = [peak.memory.0, peak.cores.0.into()];
            let figures = figures.map(|figure: u64| figure.to_string());
            containers.push([name.to_vec(), vec![uuid.clone()], figures.to_vec()].concat());
        }
    }
    let head = [
        "NODE",
        "UUID",
        "MIB",
        "CONTAINERS",
        "PEAK MIB",
        "PEAK %",
        "REPLICAS",
        "BOUND BY",
    ];
    let of_containers = [
        "NAMESPACE",
        "POD",
        "CONTAINER",
        "UUID",
        "PEAK MIB",
        "PEAK %",
    ];
    format!(
        "{}\n{}",
        aligned(&head, &devices),
        aligned(&of_containers, &containers)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIRST: &str = r#"
# TYPE aliquot_share_memory_peak_bytes gauge
aliquot_gpu_memory_total_bytes{node="n1",gpu="0",uuid="GPU-a",model="NVIDIA A30"} 25769803776
aliquot_share_memory_peak_bytes{node="n1",gpu="0",uuid="GPU-a",mode="mps",profile="",namespace="d",pod="p",container="main",pod_uid="u"} 3145728000
aliquot_share_core_used_ratio{node="n1",gpu="0",uuid="GPU-a",mode="mps",profile="",namespace="d",pod="p",container="main",pod_uid="u"} 0.301
aliquot_share_memory_peak_bytes{node="n1",gpu="0",uuid="GPU-a",mode="mps",profile="",namespace="d",pod="q",container="main",pod_uid="v"} 1048576000
"#;
    const SECOND: &str = r#"
aliquot_share_core_used_ratio{node="n1",gpu="0",uuid="GPU-a",mode="mps",profile="",namespace="d",pod="p",container="main",pod_uid="u"} 0.05
aliquot_share_memory_peak_bytes{node="n1",gpu="0",uuid="GPU-a",mode="mps",profile="",namespace="d",pod="q",container="main",pod_uid="v"} 5242880000
"#;

    #[test]
    fn ts_14_suggests_replicas_from_peaks() {
        let mut all = UsageByDevice::new();
        read(&mut all, FIRST);
        read(&mut all, SECOND);
        let expected = "\
NODE  UUID   MIB    CONTAINERS  PEAK MIB  PEAK %  REPLICAS  BOUND BY
n1    GPU-a  24576  2           5000      31      3         compute

NAMESPACE  POD  CONTAINER  UUID   PEAK MIB  PEAK %
d          p    main       GPU-a  3000      31
d          q    main       GPU-a  5000      0
";
        assert_eq!(shown(&all, 1000), expected);
        read(
            &mut all,
            "aliquot_share_memory_peak_bytes{broken\nnothing 1\n",
        );
        assert_eq!(shown(&all, 1000), expected);
        assert!(shown(&all, 2).contains("2         most"));
    }

    #[tokio::test]
    async fn rejects_metrics_without_containers() {
        let folder = tempfile::tempdir().expect("tempdir");
        let file = folder.path().join("metrics");
        std::fs::write(&file, "up 1\n").expect("written");
        let asked = |path: &Path| Suggest {
            monitor: Vec::new(),
            metrics: vec![path.to_owned()],
            rounds: 1,
            most: 1000,
        };
        let error = asked(&file).run().await.expect_err("nothing there");
        assert!(matches!(error, SuggestError::Nothing), "{error}");
        let error = asked(&folder.path().join("none")).run().await;
        let error = error.expect_err("no file").to_string();
        assert!(error.contains("cannot read"), "{error}");
    }
}
