//! Calls a server of the made-up cluster and measures it.
//!
//! [`crate::server`] runs in a process of its own and measures the times from the arrival of a
//! call's head to its response. Its CPU time is read from `/proc`.

use std::process::Stdio;
use std::time::Duration;

use aliquot_style::figures::Figure;
use anyhow::{Context as _, Result, ensure};
use http_body_util::{BodyExt as _, Full};
use hyper::Request;
use hyper::body::Bytes;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::{Child, Command};

use crate::{cluster, cpu};

/// Calls measured, after the first one of each shape.
const CALLS: usize = 500;
/// Shapes of pods, used in turn: as many as the scheduler adopts as typical at most. They request
/// one step of MiB to this many.
const SHAPES: u64 = 64;
const STEP: u64 = 700;
/// Longest wait for the server to be ready.
const START: Duration = Duration::from_mins(2);

/// A client with persistent connections.
pub(crate) type Http = Client<HttpConnector, Full<Bytes>>;

pub(crate) fn http() -> Http {
    Client::builder(TokioExecutor::new()).build_http()
}

/// The body of a successful answer.
pub(crate) async fn get(client: &Http, address: &str) -> Result<Bytes> {
    let answer = client.get(address.parse()?).await?;
    let status = answer.status();
    let body = answer.into_body().collect().await?.to_bytes();
    ensure!(
        status.is_success(),
        "{address}: {status} {}",
        String::from_utf8_lossy(&body)
    );
    Ok(body)
}

struct Server {
    child: Child,
    address: String,
    client: Http,
}

/// Latencies in milliseconds, sorted, and CPU milliseconds for each call.
struct Sample {
    latencies: Vec<f64>,
    cpu: f64,
}

/// The figures for a cluster of this many nodes.
pub(crate) async fn measure(nodes: usize, names: usize) -> Result<Vec<Figure>> {
    let server = Server::start(nodes).await?;
    // Spread over the cluster, not all in sequence.
    let listed: Vec<_> = (0..names)
        .map(|n| cluster::name(n * nodes / names))
        .collect();
    let shapes = (1..=SHAPES).map(|times| {
        let pod = cluster::pod(&format!("shape-{times}"), times * STEP);
        Bytes::from(json!({"Pod": pod, "Nodes": null, "NodeNames": listed}).to_string())
    });
    let shapes: Vec<_> = shapes.collect();
    let first = server.sample("/filter", &shapes, shapes.len()).await?;
    let filter = server.sample("/filter", &shapes, CALLS).await?;
    let floor = server.sample("/floor", &shapes, CALLS).await?;
    drop(server);

    let what = |detail: &str| {
        format!(
            "{detail} of /filter in the server, from the call's head to the response, {nodes} nodes with 8 GPUs \
             and 16 pods each, {names} names in and the best one out, pods of {} shapes, and after each \
             call one pod allocated and one released; baseline: the same calls decoded and answered without a decision \
             (of latencies the median)",
            shapes.len()
        )
    };
    let figure = |kind: &str, value: f64, baseline: f64, detail: &str| Figure {
        name: format!("filter_{kind}_ms_{names}_of_{nodes}"),
        value,
        unit: "ms",
        baseline,
        what: what(detail),
    };
    Ok(vec![
        figure("p50", filter.at(50), floor.at(50), "median latency"),
        figure(
            "p99",
            filter.at(99),
            floor.at(50),
            "99th percentile of the latency",
        ),
        figure(
            "cpu",
            filter.cpu,
            floor.cpu,
            "CPU time of the server for each call",
        ),
        figure(
            "first_p50",
            first.at(50),
            floor.at(50),
            "median latency of the first call of a shape, which evaluates every node,",
        ),
    ])
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
            address: address.context("the server exited early")?,
            client: http(),
        })
    }

    async fn sample(&self, path: &str, bodies: &[Bytes], calls: usize) -> Result<Sample> {
        self.times().await?;
        let before = self.cpu()?;
        for body in bodies.iter().cycle().take(calls) {
            self.call(path, body).await?;
        }
        let mut latencies = self.times().await?;
        let spent = self.cpu()?.saturating_sub(before);
        latencies.sort_by(f64::total_cmp);
        let calls = u32::try_from(calls)?;
        let cpu = spent.as_secs_f64() * 1000.0 / f64::from(calls);
        Ok(Sample { latencies, cpu })
    }

    /// The server's own times since the last call of this, in milliseconds.
    async fn times(&self) -> Result<Vec<f64>> {
        let address = format!("http://{}/times", self.address);
        Ok(serde_json::from_slice(&get(&self.client, &address).await?)?)
    }

    async fn call(&self, path: &str, body: &Bytes) -> Result<()> {
        let request = Request::post(format!("http://{}{path}", self.address))
            .header("content-type", "application/json")
            .body(Full::new(body.clone()))?;
        let answer = self.client.request(request).await?;
        let status = answer.status();
        let answer = answer.into_body().collect().await?.to_bytes();
        ensure!(status.is_success(), "{path}: {status}");
        let answer: Value = serde_json::from_slice(&answer)?;
        let names = answer["NodeNames"].as_array().map_or(0, Vec::len);
        ensure!(names == 1, "{path}: {names} names: {}", answer["Error"]);
        Ok(())
    }

    fn cpu(&self) -> Result<Duration> {
        cpu::spent(self.child.id().context("the server runs")?)
    }
}
