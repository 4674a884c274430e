//! How long containers wait for the node agent: `Allocate` and `PreStartContainer` for 64
//! containers at once, and how many requests the agent sends meanwhile.
//!
//! The real binary registers with a fake kubelet ([`kubelet`]), and watches a fake API server that
//! counts its requests ([`api`]).

mod api;
mod kubelet;

use std::path::Path;
use std::time::Duration;

use aliquot_cluster::wait::eventually;
use aliquot_device_plugin::kubelet::proto::v1beta1 as protocol;
use aliquot_gpusim::{SimulatedMachine, place, proc_folder};
use aliquot_style::figures::Figure;
use anyhow::{Context as _, Result};
use futures::future::try_join_all;
use protocol::device_plugin_client::DevicePluginClient;
use serde_json::json;
use tokio::process::Child;
use tonic::transport::Channel;

use api::Api;
use kubelet::Kubelet;

use crate::node::{self, GPUS, percentile, timed};

/// Containers that start at once.
pub(crate) const AT_ONCE: usize = 64;
/// Bursts, each with new pods, at an idle agent; the pods of earlier bursts keep their shares.
const BURSTS: usize = 4;
/// Of each GPU.
const REPLICAS: usize = AT_ONCE * BURSTS / GPUS;
const PATIENCE: Duration = Duration::from_secs(30);
const NODE: &str = "n1";
const RESOURCE: &str = "nvidia.com/gpu";

type Plugin = DevicePluginClient<Channel>;

/// One container of a pod of its own, by its number.
#[derive(Clone, Copy)]
struct Container(usize);

impl Container {
    /// The uid and the name of its pod.
    fn pod(self) -> String {
        format!("pod-{}", self.0)
    }

    fn gpu(self, gpus: &[String]) -> &str {
        &gpus[self.0 % GPUS]
    }

    fn device_id(self, gpus: &[String]) -> String {
        format!("{}::{}", self.gpu(gpus), self.0 / GPUS)
    }
}

/// Milliseconds of each call, container by container.
#[derive(Default)]
struct Times {
    allocate: Vec<f64>,
    start: Vec<f64>,
    /// Two calls without work: the options, twice.
    floor: Vec<f64>,
}

pub(crate) async fn measure() -> Result<Vec<Figure>> {
    let directory = tempfile::tempdir()?;
    let at = |name: &str| directory.path().join(name);
    for subdirectory in ["kubelet/device-plugins", "driver", "nvidia"] {
        std::fs::create_dir_all(at(subdirectory))?;
    }
    // As on a real machine: shares and container directories on disk, CDI specs in memory, as
    // /var/run is.
    let memory = Path::new("/dev/shm");
    let memory = memory.is_dir().then(|| tempfile::tempdir_in(memory));
    let memory = memory.unwrap_or_else(tempfile::tempdir)?;
    std::os::unix::fs::symlink(memory.path(), at("cdi"))?;
    let (machine, gpus) = node::machine(directory.path())?;

    let all: Vec<Container> = (0..AT_ONCE * BURSTS).map(Container).collect();
    let pods = all.iter().map(|one| api::pod(&one.pod(), one.gpu(&gpus)));
    let api = Api::start(pods.collect()).await?;
    let mut kubelet = Kubelet::start(&at("kubelet/device-plugins"))?;
    let agent = agent(directory.path(), &machine, &gpus, api.url())?;
    let plugin = kubelet.plugin(PATIENCE).await?;
    eventually(PATIENCE, "the agent to have written its node", || async {
        Ok((api.writes() > 0 && api.quiet_for(Duration::from_secs(1))).then_some(()))
    })
    .await?;

    let mut times = Times::default();
    let before = api.requests();
    for burst in all.chunks(AT_ONCE) {
        times
            .measure_burst(burst, &gpus, &plugin, &mut kubelet)
            .await?;
    }
    let on_the_path = api.requests() - before;
    drop(agent);
    times.figures(on_the_path)
}

fn agent(
    directory: &Path,
    machine: &SimulatedMachine,
    gpus: &[String],
    api: &str,
) -> Result<Child> {
    let text = |name: &str| directory.join(name).display().to_string();
    // Files of the container directories; nothing loads them here.
    for file in ["libvgpu.so", "aliquot-hook", "aliquot-hook-limit"] {
        std::fs::write(directory.join(file), b"content")?;
    }
    let library = place::link_into(&directory.join("driver"))?;
    // Any file will do: nothing loads it.
    let spec = json!({"cdiVersion": "0.5.0", "kind": "nvidia.com/gpu",
        "devices": gpus.iter().map(|uuid| json!({"name": uuid, "containerEdits": {}})).collect::<Vec<_>>(),
        "containerEdits": {"mounts": [{"hostPath": library, "containerPath": "/usr/lib/libcuda.so.1"}]}});
    let toolkit = directory.join("nvidia");
    let file = toolkit.join("spec.json");
    std::fs::write(&file, spec.to_string())?;
    place::write_toolkit(&toolkit, &file)?;
    let port = std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()?;
    let flags = [
        ("--kubeconfig", node::kubeconfig(directory, api)?),
        ("--node-name", NODE.to_owned()),
        ("--listen", port.to_string()),
        ("--kubelet-dir", text("kubelet")),
        ("--cdi-dir", text("cdi")),
        ("--toolkit", text("nvidia")),
        ("--host-root", "/".to_owned()),
        ("--state-dir", text("state")),
        ("--nvml-library", library.display().to_string()),
        (
            "--proc-devices",
            proc_folder(machine.state())
                .join("devices")
                .display()
                .to_string(),
        ),
        ("--limiter-library", text("libvgpu.so")),
        ("--device-split-count", REPLICAS.to_string()),
        // Neither runs during the measurement.
        ("--housekeeping-seconds", "3600".to_owned()),
        ("--audit-seconds", "3600".to_owned()),
    ];
    node::start("aliquot-device-plugin", &flags, directory, machine)
}

impl Times {
    /// All containers of a burst at once: `Allocate`, the checkpoint as the kubelet writes it,
    /// `PreStartContainer`.
    async fn measure_burst(
        &mut self,
        burst: &[Container],
        gpus: &[String],
        plugin: &Plugin,
        kubelet: &mut Kubelet,
    ) -> Result<()> {
        let floor = burst.iter().map(|_| {
            let mut plugin = plugin.clone();
            let twice = async move {
                plugin.get_device_plugin_options(protocol::Empty {}).await?;
                plugin.get_device_plugin_options(protocol::Empty {}).await
            };
            tokio::spawn(timed(twice))
        });
        for answer in try_join_all(floor.collect::<Vec<_>>()).await? {
            self.floor.push(answer?.1);
        }
        let calls = burst.iter().map(|one| {
            let (mut plugin, device_id) = (plugin.clone(), one.device_id(gpus));
            let request = protocol::AllocateRequest {
                container_requests: vec![protocol::ContainerAllocateRequest {
                    devices_ids: vec![device_id],
                }],
            };
            tokio::spawn(async move { timed(plugin.allocate(request)).await })
        });
        let answers = try_join_all(calls.collect::<Vec<_>>()).await?;
        for (one, answer) in burst.iter().zip(answers) {
            let (answer, took) = answer?;
            let answer = answer.into_inner().container_responses.pop();
            kubelet.record(
                &one.pod(),
                &one.device_id(gpus),
                &answer.context("a response")?,
            );
            self.allocate.push(took);
        }
        kubelet.write_checkpoint()?;
        let calls = burst.iter().map(|one| {
            let (mut plugin, device_id) = (plugin.clone(), one.device_id(gpus));
            let devices_ids = vec![device_id];
            let request = protocol::PreStartContainerRequest { devices_ids };
            tokio::spawn(async move { timed(plugin.pre_start_container(request)).await })
        });
        for answer in try_join_all(calls.collect::<Vec<_>>()).await? {
            self.start.push(answer?.1);
        }
        Ok(())
    }

    fn figures(&self, on_the_path: u64) -> Result<Vec<Figure>> {
        let both = self.allocate.iter().zip(&self.start);
        let both: Vec<f64> = both.map(|(allocate, start)| allocate + start).collect();
        Ok(vec![
            Figure {
                name: "start_p99_ms".to_owned(),
                value: percentile(&both, 99),
                unit: "ms",
                baseline: percentile(&self.floor, 99),
                what: format!(
                    "99th percentile of Allocate and PreStartContainer together for {AT_ONCE} containers of \
                     as many pods at once, {BURSTS} times at an idle agent, with the shares of earlier bursts \
                     still allocated, as measured by the kubelet; baseline: two calls without work at once"
                ),
            },
            Figure {
                name: "start_requests".to_owned(),
                value: f64::from(u32::try_from(on_the_path)?),
                unit: "requests",
                baseline: 0.0,
                what: "requests of the agent to the API server in that time".to_owned(),
            },
        ])
    }
}
