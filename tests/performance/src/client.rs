//! Asks a server of the made-up cluster and measures it.
//!
//! Must not: count its own CPU time; that of the server is read from `/proc`.

use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use http_body_util::{BodyExt as _, Full};
use hyper::Request;
use hyper::body::Bytes;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use serde::Serialize;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::{Child, Command};

use crate::cluster;

/// Calls measured, after a tenth as many that are not.
const CALLS: usize = 500;
/// Longest wait for the server to have made its cluster.
const START: Duration = Duration::from_mins(2);

struct Server {
    child: Child,
    address: String,
    client: Client<HttpConnector, Full<Bytes>>,
}

/// Latencies in milliseconds, sorted, and CPU milliseconds a call.
struct Sample {
    latencies: Vec<f64>,
    cpu: f64,
}

/// One figure, as `make bench` prints it.
#[derive(Debug, Serialize)]
pub(crate) struct Figure {
    name: String,
    value: f64,
    unit: &'static str,
    baseline: f64,
    what: String,
}

/// The figures for a cluster of this many nodes.
pub(crate) async fn measure(nodes: usize) -> Result<Vec<Figure>> {
    let server = Server::start(nodes).await?;
    let names: Vec<_> = (0..nodes).map(cluster::name).collect();
    let pod = cluster::pod("asks", 10_000);
    let body = Bytes::from(json!({"Pod": pod, "Nodes": null, "NodeNames": names}).to_string());
    let filter = server.sample("/filter", &body).await?;
    let floor = server.sample("/floor", &body).await?;
    drop(server);

    let what = |detail: &str| {
        format!(
            "{detail} of /filter over HTTP on loopback, {nodes} nodes of 8 GPUs with 16 pods a node booked, \
             {nodes} names in and at most 64 out; baseline: the same call decoded and answered without a decision"
        )
    };
    let figure = |kind: &str, value: f64, baseline: f64, detail: &str| Figure {
        name: format!("filter_{kind}_ms_{nodes}"),
        value: round(value),
        unit: "ms",
        baseline: round(baseline),
        what: what(detail),
    };
    Ok(vec![
        figure("p50", filter.at(50), floor.at(50), "median latency"),
        figure(
            "p99",
            filter.at(99),
            floor.at(99),
            "99th percentile of the latency",
        ),
        figure(
            "cpu",
            filter.cpu,
            floor.cpu,
            "CPU time of the server a call",
        ),
    ])
}

fn round(value: f64) -> f64 {
    (value * 1000.0).round() / 1000.0
}

impl Sample {
    fn at(&self, percent: usize) -> f64 {
        self.latencies[(self.latencies.len() - 1) * percent / 100]
    }
}

impl Server {
    async fn start(nodes: usize) -> Result<Self> {
        let mut child = Command::new(std::env::current_exe()?)
            .args(["serve", &nodes.to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()?;
        let stdout = child.stdout.take().context("stdout is piped")?;
        let mut lines = BufReader::new(stdout).lines();
        let line = tokio::time::timeout(START, lines.next_line()).await;
        let address = line.context("the server did not start")??;
        Ok(Self {
            child,
            address: address.context("the server ended early")?,
            client: Client::builder(TokioExecutor::new()).build_http(),
        })
    }

    async fn sample(&self, path: &str, body: &Bytes) -> Result<Sample> {
        for _ in 0..CALLS / 10 {
            self.call(path, body).await?;
        }
        let before = self.cpu()?;
        let mut latencies = Vec::with_capacity(CALLS);
        for _ in 0..CALLS {
            latencies.push(self.call(path, body).await?.as_secs_f64() * 1000.0);
        }
        let spent = self.cpu()?.saturating_sub(before);
        latencies.sort_by(f64::total_cmp);
        let calls = u32::try_from(CALLS)?;
        let cpu = spent.as_secs_f64() * 1000.0 / f64::from(calls);
        Ok(Sample { latencies, cpu })
    }

    async fn call(&self, path: &str, body: &Bytes) -> Result<Duration> {
        let request = Request::post(format!("http://{}{path}", self.address))
            .header("content-type", "application/json")
            .body(Full::new(body.clone()))?;
        let start = Instant::now();
        let answer = self.client.request(request).await?;
        let status = answer.status();
        let answer = answer.into_body().collect().await?.to_bytes();
        let took = start.elapsed();
        ensure!(status.is_success(), "{path}: {status}");
        let answer: Value = serde_json::from_slice(&answer)?;
        let names = answer["NodeNames"].as_array().map_or(0, Vec::len);
        ensure!(
            names > 0 && names <= 64,
            "{path}: {names} names: {}",
            answer["Error"]
        );
        Ok(took)
    }

    /// Time on a CPU of all threads of the server so far (`/proc/PID/task/*/schedstat`, ns).
    fn cpu(&self) -> Result<Duration> {
        let pid = self.child.id().context("the server runs")?;
        let mut sum = Duration::ZERO;
        for thread in std::fs::read_dir(format!("/proc/{pid}/task"))? {
            let text = std::fs::read_to_string(thread?.path().join("schedstat"))?;
            let nanos = text
                .split_whitespace()
                .next()
                .context("schedstat has three numbers")?;
            sum += Duration::from_nanos(nanos.parse()?);
        }
        Ok(sum)
    }
}
