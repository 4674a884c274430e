//! How long containers wait for the node agent: `Allocate` and `PreStartContainer` for
//! 64 containers at once, and whom the agent asks meanwhile.
//!
//! Fed by: the real binary, which registers with a kubelet of our own ([`kubelet`]),
//! watches an API server that counts what it is asked ([`api`]), and finds a
//! `PodResources` socket that counts too. Must not: link the agent's decisions; only its
//! copy of the kubelet's protocol is used.

mod api;
mod kubelet;

use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use aliquot_cluster::wait::eventually;
use aliquot_device_plugin::proto::v1beta1 as protocol;
use aliquot_gpusim::{STATE_VARIABLE, SimulatedMachine, place};
use anyhow::{Context as _, Result, ensure};
use futures::future::try_join_all;
use protocol::device_plugin_client::DevicePluginClient;
use serde_json::json;
use tokio::process::{Child, Command};
use tonic::transport::Channel;

use crate::client::{Figure, round};
use api::Api;
use kubelet::Kubelet;

/// Containers that start at once.
pub(crate) const AT_ONCE: usize = 64;
/// Rounds, each with new pods, at an agent at rest; those of the rounds before keep their shares.
const ROUNDS: usize = 4;
/// Cards, and the seats of each.
const CARDS: usize = 8;
const SEATS: usize = AT_ONCE * ROUNDS / CARDS;
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

    fn card(self, cards: &[String]) -> &str {
        &cards[self.0 % CARDS]
    }

    fn seat(self, cards: &[String]) -> String {
        format!("{}::{}", self.card(cards), self.0 / CARDS)
    }
}

/// Milliseconds of each call, container by container.
#[derive(Default)]
struct Times {
    allocate: Vec<f64>,
    start: Vec<f64>,
    /// The same calls without work: the options are asked for twice.
    floor: Vec<f64>,
}

/// The figures.
pub(crate) async fn measure() -> Result<Vec<Figure>> {
    let room = tempfile::tempdir()?;
    let at = |name: &str| room.path().join(name);
    for folder in ["kubelet/device-plugins", "kubelet/pod-resources", "driver"] {
        std::fs::create_dir_all(at(folder))?;
    }
    // As on a real machine: shares and seats on disk, CDI specs in memory, as /var/run is.
    let memory = Path::new("/dev/shm");
    let memory = memory.is_dir().then(|| tempfile::tempdir_in(memory));
    let memory = memory.unwrap_or_else(tempfile::tempdir)?;
    std::os::unix::fs::symlink(memory.path(), at("cdi"))?;
    let yaml =
        format!("name: bench\ngpus:\n  - count: {CARDS}\n    model: NVIDIA A100-SXM4-80GB\n");
    let machine = SimulatedMachine::create(&at("gpusim.state"), &yaml)?;
    let shown = machine.show()?;
    let cards = shown["gpus"].as_array().context("cards")?;
    let cards = cards.iter().filter_map(|card| card["uuid"].as_str());
    let cards: Vec<String> = cards.map(str::to_owned).collect();
    ensure!(cards.len() == CARDS, "{shown}");

    let all: Vec<Container> = (0..AT_ONCE * ROUNDS).map(Container).collect();
    let pods = all.iter().map(|one| api::pod(&one.pod(), one.card(&cards)));
    let api = Api::start(pods.collect()).await?;
    let asked = kubelet::count_connections(&at("kubelet/pod-resources/kubelet.sock"))?;
    let mut kubelet = Kubelet::start(&at("kubelet/device-plugins"))?;
    let agent = agent(room.path(), &machine, api.url())?;
    let plugin = kubelet.plugin(PATIENCE).await?;
    eventually(PATIENCE, "the agent to have written its node", || async {
        Ok((api.writes() > 0 && api.quiet_for(Duration::from_secs(1))).then_some(()))
    })
    .await?;

    let mut times = Times::default();
    let (api_before, pods_before) = (api.requests(), asked.get());
    for round in all.chunks(AT_ONCE) {
        // It makes seats ahead when nobody has taken one for a while.
        eventually(PATIENCE, "as many seats made ahead", || async {
            // And a file for the share of each.
            let ready = std::fs::read_dir(at("state/spare"))?.count();
            Ok((ready >= 2 * AT_ONCE).then_some(()))
        })
        .await?;
        times.of_round(round, &cards, &plugin, &mut kubelet).await?;
    }
    let on_the_path = (api.requests() - api_before) + (asked.get() - pods_before);
    drop(agent);
    times.figures(on_the_path)
}

fn agent(room: &Path, machine: &SimulatedMachine, api: &str) -> Result<Child> {
    let text = |name: &str| room.join(name).display().to_string();
    let config = json!({"apiVersion": "v1", "kind": "Config", "current-context": "c",
        "clusters": [{"name": "c", "cluster": {"server": api}}], "users": [{"name": "u", "user": {}}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}]});
    std::fs::write(room.join("kubeconfig"), config.to_string())?;
    // What lies in the seats; nobody loads it here.
    for file in ["libvgpu.so", "aliquot-hook"] {
        std::fs::write(room.join(file), b"content")?;
    }
    let library = place::link_into(&room.join("driver"))?;
    let port = std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()?;
    let binary = std::env::current_exe()?.with_file_name("aliquot-device-plugin");
    let flags = [
        ("--kubeconfig", text("kubeconfig")),
        ("--node-name", NODE.to_owned()),
        ("--listen", port.to_string()),
        ("--kubelet-dir", text("kubelet")),
        ("--cdi-dir", text("cdi")),
        ("--nvidia-cdi-dirs", text("none")),
        ("--state-dir", text("state")),
        ("--nvml-library", library.display().to_string()),
        ("--limiter-library", text("libvgpu.so")),
        ("--device-split-count", SEATS.to_string()),
        // Neither falls into what is measured.
        ("--housekeeping-seconds", "3600".to_owned()),
        ("--audit-seconds", "3600".to_owned()),
    ];
    let log = std::fs::File::create(room.join("log"))?;
    Command::new(&binary)
        .args(flags.iter().flat_map(|(flag, value)| [*flag, value]))
        .env(STATE_VARIABLE, machine.state())
        .stdout(Stdio::from(log.try_clone()?))
        .stderr(Stdio::from(log))
        .kill_on_drop(true)
        .spawn()
        .with_context(|| format!("{}", binary.display()))
}

/// Milliseconds that a call took.
async fn timed<T>(call: impl Future<Output = Result<T, tonic::Status>>) -> Result<(T, f64)> {
    let start = Instant::now();
    let answer = call.await?;
    Ok((answer, start.elapsed().as_secs_f64() * 1000.0))
}

impl Times {
    /// All containers of a round at once: `Allocate`, the checkpoint as the kubelet
    /// writes it, `PreStartContainer`.
    async fn of_round(
        &mut self,
        round: &[Container],
        cards: &[String],
        plugin: &Plugin,
        kubelet: &mut Kubelet,
    ) -> Result<()> {
        let floor = round.iter().map(|_| {
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
        let calls = round.iter().map(|one| {
            let (mut plugin, seat) = (plugin.clone(), one.seat(cards));
            let request = protocol::AllocateRequest {
                container_requests: vec![protocol::ContainerAllocateRequest {
                    devices_ids: vec![seat],
                }],
            };
            tokio::spawn(async move { timed(plugin.allocate(request)).await })
        });
        let answers = try_join_all(calls.collect::<Vec<_>>()).await?;
        for (one, answer) in round.iter().zip(answers) {
            let (answer, took) = answer?;
            let answer = answer.into_inner().container_responses.pop();
            kubelet.note(&one.pod(), &one.seat(cards), &answer.context("an answer")?);
            self.allocate.push(took);
        }
        kubelet.write_checkpoint()?;
        let calls = round.iter().map(|one| {
            let (mut plugin, seat) = (plugin.clone(), one.seat(cards));
            let devices_ids = vec![seat];
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
        let at = |times: &[f64], percent: usize| {
            let mut sorted = times.to_vec();
            sorted.sort_by(f64::total_cmp);
            round(sorted[(sorted.len() - 1) * percent / 100])
        };
        let what = |words: &str| {
            format!(
                "{words} for {AT_ONCE} containers of as many pods at once, {ROUNDS} times at an agent at rest, the shares of the rounds \
                 before still held, as the kubelet's side of the socket sees it; baseline: two calls without work at once"
            )
        };
        let figure = |name: &str, times: &[f64], percent, words: &str| Figure {
            name: name.to_owned(),
            value: at(times, percent),
            unit: "ms",
            baseline: at(&self.floor, percent),
            what: what(words),
        };
        Ok(vec![
            figure(
                "start_p50_ms",
                &both,
                50,
                "half of Allocate and PreStartContainer together",
            ),
            figure(
                "start_p99_ms",
                &both,
                99,
                "99 of 100 of Allocate and PreStartContainer together",
            ),
            figure(
                "start_allocate_p99_ms",
                &self.allocate,
                99,
                "99 of 100 of Allocate",
            ),
            figure(
                "start_prestart_p99_ms",
                &self.start,
                99,
                "99 of 100 of PreStartContainer",
            ),
            Figure {
                name: "start_requests".to_owned(),
                value: f64::from(u32::try_from(on_the_path)?),
                unit: "requests",
                baseline: 0.0,
                what: "requests of the agent to the API server and to PodResources in that time"
                    .to_owned(),
            },
        ])
    }
}
