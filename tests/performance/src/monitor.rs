//! The cost of the monitor on a node with 100 shares on 8 GPUs and no process: scrape time, CPU,
//! memory. Runs the real binary on shares that are written as the agent writes them.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use aliquot_cluster::wait::{OrNotYet as _, eventually};
use aliquot_core::usage::Stage;
use aliquot_core::{Allocation, Mib};
use aliquot_device_plugin::allocation::accepted::Store;
use aliquot_device_plugin::allocation::container_directory;
use aliquot_device_plugin::allocation::environment::NodeRules;
use aliquot_device_plugin::allocation::limits;
use aliquot_gpusim::{SimulatedMachine, place};
use aliquot_node_state::accepted::{AcceptedAllocation, AcceptedContainer};
use aliquot_node_state::device_id::AnswerName;
use aliquot_style::figures::Figure;
use anyhow::{Context as _, Result, ensure};
use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::process::Child;

use crate::cpu;
use crate::node::{self, GPUS, percentile, timed};

const SHARES: usize = 100;
const SCRAPES: usize = 200;
const REST: Duration = Duration::from_secs(20);
const PATIENCE: Duration = Duration::from_secs(30);

pub(crate) async fn measure() -> Result<Vec<Figure>> {
    let directory = tempfile::tempdir()?;
    let (machine, gpus) = node::machine(directory.path())?;
    write_shares(&directory.path().join("state"), &gpus)?;
    let (monitor, address) = start(directory.path(), &machine)?;
    let pid = monitor.id().context("it runs")?;
    eventually(PATIENCE, "the monitor's first sample", || async {
        Ok(get(address, "/readyz")
            .await
            .or_not_yet()?
            .starts_with("HTTP/1.1 200")
            .then_some(()))
    })
    .await?;
    let (mut scrapes, mut floor) = (Vec::new(), Vec::new());
    for _ in 0..SCRAPES {
        let (text, took) = timed(get(address, "/metrics")).await?;
        let series = text.matches("aliquot_share_memory_used_bytes{").count();
        ensure!(series == SHARES, "{series} shares");
        scrapes.push(took);
        floor.push(timed(get(address, "/healthz")).await?.1);
    }
    let mut rest = tokio::time::interval(REST);
    rest.tick().await;
    let before = cpu::spent(pid)?;
    rest.tick().await;
    let spent = cpu::spent(pid)?.saturating_sub(before);
    let what =
        format!("the monitor of a node with {SHARES} shares on {GPUS} GPUs, no process on them");
    let figure = |name: &str, value: f64, unit, baseline: f64, words: &str| Figure {
        name: name.to_owned(),
        value,
        unit,
        baseline,
        what: format!("{words}; {what}"),
    };
    let of_core = spent.as_secs_f64() / REST.as_secs_f64() * 100.0;
    Ok(vec![
        figure(
            "monitor_scrape_p99_ms",
            percentile(&scrapes, 99),
            "ms",
            percentile(&floor, 99),
            "99th percentile of the scrape time; baseline: /healthz",
        ),
        figure(
            "monitor_core_percent",
            of_core,
            "%",
            0.0,
            "CPU use when idle",
        ),
        figure(
            "monitor_resident_mib",
            cpu::memory(pid, "VmRSS")?,
            "MiB",
            0.0,
            "resident memory",
        ),
    ])
}

fn write_shares(state: &Path, gpus: &[String]) -> Result<()> {
    let mut store = Store::open(state.join("accepted"))?;
    let rules = NodeRules::new(true);
    let effective = rules.effective_limits(&BTreeMap::new(), false);
    for share in 0..SHARES {
        let gpu = &gpus[share % GPUS];
        let grant = json!({"resource": "nvidia.com/gpu", "gpu": gpu, "memory": 3000, "cores": 7});
        let allocation = json!({"v": 1, "node": "n1", "containers": {"main": [grant]}, "init": {}, "priority": 1});
        let allocation = Allocation::decode(&allocation.to_string())?;
        let grants = allocation.grants("main").context("a share")?.to_vec();
        let name = AnswerName::parse(&format!("{gpu}-{share}-0")).context("a name")?;
        let container = AcceptedContainer {
            name: "main".to_owned(),
            stage: Stage::App,
            effective,
        };
        let pod = format!("00000000-0000-4000-8000-{share:012}");
        let pod_name = format!("pod-{share}");
        let mut accepted = AcceptedAllocation::new(
            pod.as_str().into(),
            "default".to_owned(),
            pod_name,
            allocation,
            vec![container],
        );
        accepted.record_name(&name, "main");
        store.put(accepted)?;
        let container_directory = state.join("containers").join(name.as_str());
        let names: Vec<&str> = grants.iter().map(|grant| grant.gpu.as_str()).collect();
        let page = limits::page(&grants, &names, 1, effective, &[Mib(512)], |_| None)?;
        container_directory::create(&container_directory, &page)?;
        std::fs::create_dir_all(container_directory.join("lib"))?;
    }
    Ok(())
}

fn start(directory: &Path, machine: &SimulatedMachine) -> Result<(Child, SocketAddr)> {
    let text = |name: &str| directory.join(name).display().to_string();
    // No API server is needed for the figures.
    let kubeconfig = node::kubeconfig(directory, "http://127.0.0.1:1")?;
    let driver = directory.join("driver");
    std::fs::create_dir_all(&driver)?;
    let library = place::link_into(&driver)?;
    let address = std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()?;
    let flags = [
        ("--kubeconfig", kubeconfig),
        ("--node-name", "n1".to_owned()),
        ("--listen", address.to_string()),
        ("--state-dir", text("state")),
        ("--nvml-library", library.display().to_string()),
    ];
    let child = node::start("aliquot-monitor", &flags, directory, machine)?;
    Ok((child, address))
}

/// Head and body of a response.
async fn get(address: SocketAddr, path: &str) -> Result<String> {
    let mut stream = TcpStream::connect(address).await?;
    let request = format!("GET {path} HTTP/1.1\r\nhost: monitor\r\nconnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await?;
    let mut text = String::new();
    stream.read_to_string(&mut text).await?;
    Ok(text)
}
