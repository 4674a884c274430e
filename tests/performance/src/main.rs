//! `make bench`: one JSON line for each figure that SPECIFICATION.md promises.
//!
//! Fed by: nothing. It starts itself again as a server of a made-up cluster
//! ([`server`]) and asks it over HTTP on loopback ([`client`]), so that the
//! server's CPU time is its own.
//! Must not: print anything else to stdout.

#![forbid(unsafe_code)]
#![allow(clippy::print_stdout, reason = "the figures are its output")]

mod client;
mod cluster;
mod server;

use anyhow::{Context as _, Result};

/// Numbers of nodes, of 8 GPUs with 16 pods each.
const SIZES: [usize; 3] = [100, 1_000, 5_000];

#[tokio::main]
async fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().collect();
    if let [_, verb, nodes] = arguments.as_slice()
        && verb == "serve"
    {
        return server::serve(nodes.parse().context("a number of nodes")?).await;
    }
    for nodes in SIZES {
        for figure in client::measure(nodes).await? {
            println!("{}", serde_json::to_string(&figure)?);
        }
    }
    Ok(())
}
