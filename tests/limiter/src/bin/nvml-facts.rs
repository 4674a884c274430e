//! `nvml-facts`: what the calls of the node agent and the monitor find on this machine's GPUs, one
//! JSON line for each question, with the error where NVML refuses. It creates no context and changes
//! nothing. `tests/gpu/facts.sh` runs it beside busy processes; it is not shipped.

#![allow(clippy::print_stdout, reason = "the facts are its output")]

use std::collections::BTreeMap;
use std::fmt::Display;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::park_timeout;
use std::time::{Duration, Instant};

use aliquot_monitor::node_sample::NodeSample;
use aliquot_monitor::pods::Pods;
use aliquot_monitor::sampler::Sampler;
use aliquot_monitor::sampling_loop::SAMPLE_INTERVAL;
use aliquot_node_state::processes::Processes;
use aliquot_nvml::{
    Driver, GpuFacts, GpuProcess, MemoryLimits, Nvml, Options, ProcessUtilization, Usage,
};
use anyhow::Result;
use serde_json::{Value, json};

/// Samples of the monitor.
const SAMPLES: usize = 8;
/// Time to wait for an event.
const EVENTS: Duration = Duration::from_secs(1);

fn main() -> Result<()> {
    let driver = Arc::new(Nvml::open(Options::default())?);
    let inventory = driver.inventory()?;
    let gpus: Vec<&str> = inventory.gpus.iter().map(|gpu| &*gpu.uuid).collect();
    let of_each = |name: &str, answer: &dyn Fn(&str) -> Value| {
        let all: BTreeMap<&str, Value> = gpus.iter().map(|gpu| (*gpu, answer(gpu))).collect();
        report(name, &json!(all));
    };
    report("driver_version", &json!(inventory.driver_version));
    let notes = inventory.notes.iter().map(|note| format!("{note:?}"));
    report("refused", &json!(notes.collect::<Vec<_>>()));
    let facts = inventory.gpus.iter().map(gpu);
    report("inventory", &json!(facts.collect::<Vec<_>>()));
    let health = answer(driver.health(), |all| json!(format!("{all:?}")));
    report("health", &health);
    of_each("mig_layout", &|gpu| {
        answer(driver.mig_layout(gpu), |layout| {
            json!(format!("{layout:?}"))
        })
    });
    let cgroup = own_cgroup()?;
    report("cgroup", &json!(cgroup));
    of_each("memory_limit_of_cgroup", &|gpu| {
        answer(driver.memory_limit(gpu, &cgroup), |limit| {
            json!(format!("{limit:?}"))
        })
    });
    of_each("memory", &|gpu| {
        answer(
            driver.memory(gpu),
            |found| json!({"total": found.total, "used": found.used, "reserved": found.reserved}),
        )
    });
    of_each("utilization", &|gpu| {
        answer(driver.utilization(gpu), |found| json!(format!("{found:?}")))
    });
    of_each("processes", &|gpu| {
        answer(driver.processes(gpu), |all| {
            json!(all.into_iter().map(process).collect::<Vec<_>>())
        })
    });
    of_each("mps_clients", &|gpu| {
        answer(driver.mps_clients(gpu), |all| json!(all))
    });
    let begun = Instant::now();
    let events = answer(driver.wait_events(EVENTS), |all| json!(format!("{all:?}")));
    let waited = begun.elapsed().as_secs_f64();
    report(
        "events",
        &json!({"found": events, "waited_seconds": waited}),
    );
    of_each("process_utilization", &|gpu| {
        answer(driver.process_utilization(gpu, 0), |all| {
            json!(all.map(|all| all.into_iter().map(utilization).collect::<Vec<_>>()))
        })
    });
    samples(driver)
}

/// What the monitor measures on a node without shares.
fn samples(driver: Arc<Nvml>) -> Result<()> {
    let state = tempfile::tempdir()?;
    let mut sampler = Sampler::new(driver, state.path(), Processes::default(), Pods::default());
    let mut found = Vec::new();
    for _ in 0..SAMPLES {
        let begun = Instant::now();
        let (taken, _) = sampler.sample();
        found.push(sample(&taken, begun.elapsed()));
        while let Some(left) = SAMPLE_INTERVAL.checked_sub(begun.elapsed()) {
            park_timeout(left);
        }
    }
    report("monitor_samples", &json!(found));
    report("monitor_failures", &json!(sampler.failures));
    Ok(())
}

fn sample(sample: &NodeSample, took: Duration) -> Value {
    let processes = sample.processes.iter().map(|one| {
        json!({
            "gpu": one.gpu,
            "pid": one.process.identity.pid,
            "bytes": one.bytes,
            "exiting": one.process.exiting,
        })
    });
    let busy = sample.busy.iter();
    let busy = busy.map(|((gpu, pid), busy)| json!({"gpu": gpu, "pid": pid, "busy": busy.percent}));
    json!({
        "seconds": took.as_secs_f64(),
        "processes": processes.collect::<Vec<_>>(),
        "busy": busy.collect::<Vec<_>>(),
        "in_use": sample.in_use,
        "unreadable": sample.blind,
        "newly_sampled": sample.newly_sampled,
        "without_utilization": sample.uncorrected,
    })
}

fn gpu(facts: &GpuFacts) -> Value {
    json!({
        "uuid": facts.uuid,
        "index": facts.index,
        "minor": facts.minor,
        "pci_bus_id": facts.pci_bus_id,
        "pci_device_id": facts.pci_device_id,
        "model": facts.model,
        "memory_mib": facts.memory.0,
        "reserved_mib": facts.reserved.map(|reserved| reserved.0),
        "compute_capability": facts.compute_capability,
        "numa": facts.numa,
        "mig": format!("{:?}", facts.mig),
        "links": facts.links,
    })
}

fn process(found: GpuProcess) -> Value {
    json!({"pid": found.pid, "bytes": found.bytes, "instance": found.instance})
}

fn utilization(found: ProcessUtilization) -> Value {
    json!({"pid": found.pid, "busy": found.busy, "at": found.at})
}

/// What was found, or the error.
fn answer<T>(found: Result<T, impl Display>, shown: impl FnOnce(T) -> Value) -> Value {
    match found {
        Ok(found) => shown(found),
        Err(error) => json!({"error": error.to_string()}),
    }
}

fn report(name: &str, value: &Value) {
    println!("{}", json!({ (name): value }));
}

/// The directory of this process's cgroup, of version 2.
fn own_cgroup() -> Result<PathBuf> {
    let text = std::fs::read_to_string("/proc/self/cgroup")?;
    let path = text.lines().find_map(|line| line.strip_prefix("0::/"));
    Ok(PathBuf::from("/sys/fs/cgroup").join(path.unwrap_or_default()))
}
