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
mod fake_api;
mod scale;
mod server;

use anyhow::{Context as _, Result};

/// Numbers of nodes, of 8 GPUs with 16 pods each, and how many of them a call names.
const SIZES: [(usize, usize); 4] = [(100, 100), (1_000, 1_000), (5_000, 500), (5_000, 5_000)];

#[tokio::main]
async fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().collect();
    if let [_, verb, nodes] = arguments.as_slice()
        && verb == "serve"
    {
        return server::serve(nodes.parse().context("a number of nodes")?).await;
    }
    for (nodes, names) in SIZES {
        print(client::measure(nodes, names).await?)?;
    }
    print(scale::measure().await?)
}

fn print(figures: Vec<client::Figure>) -> Result<()> {
    for figure in figures {
        println!("{}", serde_json::to_string(&figure)?);
    }
    Ok(())
}
