//! `make bench`: one JSON line on stdout for each figure that SPECIFICATION.md promises, with a verdict;
//! an error at the end if one is not met.
//! Arguments name the groups to measure (`filter`, `scale`, `page`, `packing`, `start`, `monitor`,
//! `node-added`, `throughput`); none means all.
//!
//! For `filter` the program starts itself again as a server of a made-up cluster ([`server`]) and
//! calls it over HTTP on loopback ([`client`]), so that the server's CPU time is separate. For
//! `scale`, `page`, `node-added` and `throughput` it starts the scheduler, for `start` the node agent and for `monitor`
//! the monitor, from the binaries beside its own.

#![forbid(unsafe_code)]
#![allow(clippy::print_stdout, reason = "the figures are its output")]

mod client;
mod cluster;
mod cpu;
mod fake_api;
mod monitor;
mod node;
mod page;
mod scale;
mod server;
mod start;
mod throughput;

use aliquot_packing::figures as packing;
use aliquot_style::figures::{Figure, LIMITER, Report};
use anyhow::{Context as _, Result, ensure};

/// Numbers of nodes, with 8 GPUs and 16 pods each, and how many of them a call names.
const SIZES: [(usize, usize); 3] = [(100, 100), (5_000, 500), (5_000, 5_000)];
const GROUPS: [&str; 8] = [
    "filter",
    "scale",
    "page",
    "packing",
    "start",
    "monitor",
    "node-added",
    "throughput",
];

#[tokio::main]
async fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [verb, nodes] = arguments.as_slice()
        && verb == "serve"
    {
        return server::serve(nodes.parse().context("expected a number of nodes")?).await;
    }
    let unknown = arguments
        .iter()
        .find(|name| !GROUPS.contains(&name.as_str()));
    ensure!(
        unknown.is_none(),
        "unknown group {unknown:?}; expected: {GROUPS:?}"
    );
    let is_selected =
        |group: &str| arguments.is_empty() || arguments.iter().any(|name| name == group);
    let mut report = Report::new(|title| title != LIMITER)?;
    let mut print = |figures: Vec<Figure>| {
        figures.into_iter().try_for_each(|figure| {
            println!("{}", report.line(figure)?);
            anyhow::Ok(())
        })
    };
    if is_selected("filter") {
        for (nodes, names) in SIZES {
            print(client::measure(nodes, names).await?)?;
        }
    }
    if is_selected("scale") {
        print(scale::measure().await?)?;
    }
    if is_selected("page") {
        print(page::measure().await?)?;
    }
    if is_selected("packing") {
        print(packing::ours()?)?;
        print(packing::others()?)?;
    }
    if is_selected("start") {
        print(start::measure().await?)?;
    }
    if is_selected("monitor") {
        print(monitor::measure().await?)?;
    }
    if is_selected("node-added") {
        print(Box::pin(throughput::node_added::measure()).await?)?;
    }
    if is_selected("throughput") {
        for (nodes, pods) in throughput::SIZES {
            print(Box::pin(throughput::measure(nodes, pods)).await?)?;
        }
    }
    report.end(arguments.is_empty())
}
