//! `make bench`: one JSON line for each figure that SPECIFICATION.md promises.
//! Arguments name the groups to measure (`filter`, `scale`, `packing`, `mig`, `seats`,
//! `monitor`, `throughput`); none means all.
//!
//! Fed by: nothing, but a trace for `packing`. For `filter` it starts itself again
//! as a server of a made-up cluster ([`server`]) and asks it over HTTP on loopback
//! ([`client`]), so that the server's CPU time is its own. For `scale` and
//! `throughput` it starts our scheduler, for `seats` our node agent, for `monitor` our monitor, whose binaries
//! lie beside its own.
//! Must not: print anything else to stdout.

#![forbid(unsafe_code)]
#![allow(clippy::print_stdout, reason = "the figures are its output")]

mod client;
mod cluster;
mod cpu;
mod fake_api;
mod mig;
mod monitor;
mod packing;
mod scale;
mod seats;
mod server;
mod throughput;

use anyhow::{Context as _, Result, ensure};

/// Numbers of nodes, of 8 GPUs with 16 pods each, and how many of them a call names.
const SIZES: [(usize, usize); 4] = [(100, 100), (1_000, 1_000), (5_000, 500), (5_000, 5_000)];
const GROUPS: [&str; 7] = [
    "filter",
    "scale",
    "packing",
    "mig",
    "seats",
    "monitor",
    "throughput",
];

#[tokio::main]
async fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [verb, nodes] = arguments.as_slice()
        && verb == "serve"
    {
        return server::serve(nodes.parse().context("a number of nodes")?).await;
    }
    let unknown = arguments
        .iter()
        .find(|name| !GROUPS.contains(&name.as_str()));
    ensure!(unknown.is_none(), "{unknown:?}; accepted: {GROUPS:?}");
    let asked = |group: &str| arguments.is_empty() || arguments.iter().any(|name| name == group);
    if asked("filter") {
        for (nodes, names) in SIZES {
            print(client::measure(nodes, names).await?)?;
        }
    }
    if asked("scale") {
        print(scale::measure().await?)?;
    }
    if asked("packing") {
        print(packing::measure()?)?;
    }
    if asked("mig") {
        print(mig::measure()?)?;
    }
    if asked("seats") {
        print(seats::measure().await?)?;
    }
    if asked("monitor") {
        print(monitor::measure().await?)?;
    }
    if asked("throughput") {
        for (nodes, pods) in throughput::SIZES {
            print(Box::pin(throughput::measure(nodes, pods)).await?)?;
        }
    }
    Ok(())
}

fn print(figures: Vec<client::Figure>) -> Result<()> {
    for figure in figures {
        println!("{}", serde_json::to_string(&figure)?);
    }
    Ok(())
}
