//! How long the scheduler takes from its start to ready, and how much memory it then has, with
//! 5,000 nodes and 100,000 pods: the real binary against [`crate::fake_api`].

use std::process::Stdio;
use std::sync::Arc;
use std::time::{Duration, Instant};

use aliquot_cluster::wait::OrNotYet as _;
use aliquot_serve::http::{self, Limits};
use aliquot_style::figures::Figure;
use anyhow::{Context as _, Result};
use tempfile::TempDir;
use tokio::process::{Child, Command};
use tokio::task::AbortHandle;
use tokio_util::sync::CancellationToken;

use crate::cpu::memory;
use crate::fake_api::{self, PAGE, Pages, Scale};
use crate::node;

const SCALE: Scale = Scale {
    nodes: 5_000,
    others: 20_000,
    changes: 0,
};
const NAMESPACE: &str = "aliquot-system";
const PATIENCE: Duration = Duration::from_mins(1);

pub(crate) async fn measure() -> Result<Vec<Figure>> {
    let api = Api::serve(SCALE).await?;
    let floor = floor(&api.url).await?;
    let scheduler = api.scheduler().await?;
    let pid = scheduler.pid;
    let (peak, resident) = (memory(pid, "VmHWM")?, memory(pid, "VmRSS")?);
    let pods = SCALE.pods();
    let what = format!(
        "{} nodes of 8 GPUs and {pods} pods of about 4 KB",
        SCALE.nodes
    );
    Ok(vec![
        Figure {
            name: "list_to_ready_s".to_owned(),
            value: scheduler.ready.as_secs_f64(),
            unit: "s",
            baseline: floor,
            what: format!(
                "start of the process to ready, {what}; baseline: the same pages fetched and discarded"
            ),
        },
        Figure {
            name: "resident_mib".to_owned(),
            value: resident,
            unit: "MiB",
            baseline: peak,
            what: format!(
                "resident memory once ready, {what}; baseline: its highest value until then"
            ),
        },
    ])
}

/// A served [`crate::fake_api`].
pub(crate) struct Api {
    url: String,
    served: AbortHandle,
}

impl Drop for Api {
    fn drop(&mut self) {
        self.served.abort();
    }
}

/// A scheduler that runs until this is dropped.
pub(crate) struct Scheduler {
    pub pid: u32,
    /// Of what it serves, without a slash at the end.
    pub url: String,
    /// From its start.
    ready: Duration,
    _process: Child,
    _files: TempDir,
}

impl Api {
    pub(crate) async fn serve(scale: Scale) -> Result<Self> {
        let listener = http::bind(([127, 0, 0, 1], 0).into()).await?;
        let url = format!("http://{}", listener.local_addr()?);
        let router = fake_api::router(Arc::new(Pages::of(scale)?));
        let stop = CancellationToken::new();
        let limits = Limits::new(1 << 20);
        let served = tokio::spawn(http::serve(listener, None, router, limits, stop));
        let served = served.abort_handle();
        Ok(Self { url, served })
    }

    /// Starts the scheduler and waits until it is ready.
    pub(crate) async fn scheduler(&self) -> Result<Scheduler> {
        let binary = std::env::current_exe()?.with_file_name("aliquot-scheduler");
        let files = tempfile::tempdir()?;
        let kubeconfig = node::kubeconfig(files.path(), &self.url)?;
        let port = std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()?;
        let start = Instant::now();
        let process = Command::new(&binary)
            .arg("--kubeconfig")
            .arg(&kubeconfig)
            .args(["--listen", &port.to_string(), "--namespace", NAMESPACE])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .with_context(|| format!("{}", binary.display()))?;
        let (client, url) = (crate::client::http(), format!("http://{port}"));
        aliquot_cluster::wait::eventually(PATIENCE, "the scheduler to be ready", || async {
            let ready = crate::client::get(&client, &format!("{url}/readyz")).await;
            ready.or_not_yet().map(Some)
        })
        .await?;
        Ok(Scheduler {
            ready: start.elapsed(),
            pid: process.id().context("the scheduler runs")?,
            url,
            _process: process,
            _files: files,
        })
    }
}

/// Seconds to fetch all pages, one after the other.
async fn floor(api: &str) -> Result<f64> {
    use http_body_util::BodyExt as _;
    let client = crate::client::http();
    let start = Instant::now();
    for (kind, total) in [("nodes", SCALE.nodes), ("pods", SCALE.pods())] {
        for from in (0..total).step_by(PAGE) {
            let page = format!("{api}/api/v1/{kind}?limit={PAGE}&continue={from}");
            let answer = client.get(page.parse()?).await?;
            answer.into_body().collect().await?;
        }
    }
    Ok(start.elapsed().as_secs_f64())
}
