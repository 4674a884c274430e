//! The quick start where the cluster's network enforces policies, by kube-router, whose code k3s has too.
//! A node's own addresses pass all of them, so commands go to a second API server, at a pod's address:
//! a control plane on another machine does not have the node's either.

use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;

use aliquot_chart::release::{script, success};
use aliquot_chart::{NAMESPACE, top};
use aliquot_cluster::wait::{OrNotYet as _, eventually};
use aliquot_cluster::{Cluster, Part, until};
use aliquot_e2e::http;
use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

use super::quick_start::{Reader, commands};
use super::world::{NODE, PATIENCE, World};
use super::{applied, kubectl, removed};
use crate::ChartCluster;

/// Where Prometheus' pod runs, and the second API server's.
const MONITORING: &str = "monitoring";
const CONTROL_PLANE: &str = "control-plane";
const API_PORT: u16 = 6443;
/// A token that nobody issued.
const MADE_UP: &str = "made-up";
/// What `top` says of figures that no scheduler gave.
const COMPUTED: &str = "computed from the nodes' inventories";
/// kube-router's rules would hold for the next pods with these addresses.
const UNDO: &str =
    "iptables-save -t filter | grep -vE 'KUBE-(ROUTER|POD-FW|NWPLCY)-' | iptables-restore -T filter
ipset list -n | grep -E '^KUBE-(SRC|DST)-' | xargs -rn1 ipset destroy
";

/// A pod that does nothing; programs of this machine run at its address.
struct Place {
    address: Ipv4Addr,
    process: String,
}

impl Place {
    async fn new(world: &World, namespace: &str) -> Result<Self> {
        let cluster = &world.cluster;
        let exempt = json!({"aliquot.dev/webhook": "ignore"});
        cluster.namespace_with(namespace, &exempt).await?;
        let pod = json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "place", "namespace": namespace},
            "spec": {"terminationGracePeriodSeconds": 0, "nodeName": NODE, "containers": [{
                "name": "main", "image": "localhost/busybox:1", "command": ["sleep", "100000"],
            }]},
        });
        applied(world, &pod).await?;
        let status = cluster.wait_running(namespace, "place").await?.status;
        let status = status.unwrap_or_default();
        let containers = status.container_statuses.unwrap_or_default();
        let id = containers
            .first()
            .and_then(|one| one.container_id.as_deref());
        let id = id.and_then(|id| id.strip_prefix("containerd://"));
        let id = id.context("no container")?;
        let tasks = cluster.ctr(&["tasks", "ls"]).await?.success()?;
        let mut tasks = tasks.lines().map(str::split_whitespace);
        let process = tasks.find_map(|mut task| (task.next() == Some(id)).then(|| task.next()));
        Ok(Self {
            address: status.pod_ip.context("no address")?.parse()?,
            process: process.flatten().context("no process")?.to_owned(),
        })
    }

    /// The arguments with which `nsenter` runs a program in its network.
    fn enter<'a>(&'a self, program: &'a str) -> Vec<&'a str> {
        vec!["-t", &self.process, "-n", "--", program]
    }

    /// Scrapes a port of a pod from here.
    fn scrape(&self, cluster: &Cluster, port: &str, token: &str) -> Result<Scrape> {
        let kubectl = cluster.binaries().join("kubebox");
        let output = Command::new("nsenter")
            .args(self.enter(&kubectl.to_string_lossy()))
            .args(["kubectl", "--server", &format!("https://{port}")])
            .args(["--insecure-skip-tls-verify", "--kubeconfig=/dev/null"])
            .args(["--token", token, "get", "--raw", "/metrics"])
            .output()?;
        if output.status.success() {
            return Ok(Scrape::Metrics(String::from_utf8(output.stdout)?));
        }
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        let closed = error.contains("was refused");
        Ok(if closed {
            Scrape::Closed
        } else {
            Scrape::Answer(error)
        })
    }
}

/// What a scrape got.
#[derive(Debug)]
enum Scrape {
    Metrics(String),
    /// Of the program, as HTTP.
    Answer(String),
    /// kube-router refuses connections.
    Closed,
}

/// An API server of the same cluster at a pod's address.
struct Away<'a> {
    cluster: &'a Cluster,
    address: Ipv4Addr,
    kubeconfig: PathBuf,
    /// nsenter's.
    arguments: Vec<String>,
    server: Option<Part>,
    _etcd: Forwarder,
}

/// Forwards connections to another address.
struct Forwarder(JoinHandle<()>);

impl Forwarder {
    fn start(listener: TcpListener, to: String) -> Self {
        Self(tokio::spawn(async move {
            while let Ok((mut from, _)) = listener.accept().await {
                let to = to.clone();
                tokio::spawn(async move {
                    if let Ok(mut to) = TcpStream::connect(to).await {
                        let _ended = tokio::io::copy_bidirectional(&mut from, &mut to).await;
                    }
                });
            }
        }))
    }
}

impl Drop for Forwarder {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl<'a> Away<'a> {
    async fn start(world: &'a World) -> Result<Self> {
        let cluster = &world.cluster;
        let place = Place::new(world, CONTROL_PLANE).await?;
        let first = std::fs::read(format!("/proc/{}/cmdline", cluster.pid("apiserver")?))?;
        let first = String::from_utf8(first)?;
        let first: Vec<&str> = first.split_terminator('\0').collect();
        let (program, first) = first.split_first().context("no arguments")?;
        let mut etcd = first
            .iter()
            .map(|one| one.strip_prefix("--etcd-servers=http://"));
        let etcd = etcd.find_map(|one| one).context("it names no etcd")?;
        // The node's side of the pod's link.
        let [a, b, c, _] = place.address.octets();
        let listener = TcpListener::bind((Ipv4Addr::new(a, b, c, 1), 0)).await?;
        let own = [
            format!("--bind-address={}", place.address),
            format!("--secure-port={API_PORT}"),
            format!("--etcd-servers=http://{}", listener.local_addr()?),
        ];
        let mut arguments = place.enter(program);
        arguments.extend(first);
        // The last one of a flag counts.
        arguments.extend(own.iter().map(String::as_str));

        let admin = std::fs::read_to_string(cluster.kubeconfig())?;
        let here = cluster.api_url();
        // Its certificate is the first one's.
        let there = format!(
            "https://{}:{API_PORT}\", tls-server-name: \"localhost",
            place.address
        );
        let config = admin.replace(&here, &there);
        ensure!(
            config != admin,
            "the administrator's kubeconfig has no {here}"
        );
        let kubeconfig = cluster.state_dir().join("away.kubeconfig");
        std::fs::write(&kubeconfig, config)?;
        let mut away = Self {
            cluster,
            address: place.address,
            kubeconfig,
            arguments: arguments.into_iter().map(str::to_owned).collect(),
            server: None,
            _etcd: Forwarder::start(listener, etcd.to_owned()),
        };
        away.restart().await?;
        Ok(away)
    }

    /// Ends its connections to pods, which outlive the policies that allowed them.
    async fn restart(&mut self) -> Result<()> {
        drop(self.server.take());
        let arguments: Vec<&str> = self.arguments.iter().map(String::as_str).collect();
        let server = Path::new("nsenter");
        let server = self
            .cluster
            .start_part("apiserver-away", server, &arguments, &[])?;
        let config = format!("--kubeconfig={}", self.kubeconfig.display());
        eventually(PATIENCE, "the second API server to be ready", || async {
            server.check()?;
            let ready = ["get", "--raw", "/readyz", &config];
            let ready = self.cluster.kubectl(&ready).await?;
            Ok(Some(ready.success().or_not_yet()?))
        })
        .await?;
        self.server = Some(server);
        Ok(())
    }
}

/// kube-router, and what it leaves on the machine.
struct Enforcer {
    part: Option<Part>,
    undo: PathBuf,
}

impl Enforcer {
    fn start(cluster: &Cluster) -> Result<Self> {
        let program = success(&mut script("tests/cluster/kube-router.sh", &[])?)?;
        let undo = cluster.state_dir().join("run/undo-kube-router");
        std::fs::write(&undo, UNDO)?;
        let arguments = [
            "--run-firewall=true",
            "--run-router=false",
            "--run-service-proxy=false",
            &format!("--kubeconfig={}", cluster.kubeconfig().display()),
            &format!("--hostname-override={NODE}"),
            "--service-cluster-ip-range=10.96.0.0/16",
            "--health-port=0",
            "--metrics-port=0",
        ];
        let part = cluster.start_part("kube-router", program.trim().as_ref(), &arguments, &[])?;
        Ok(Self {
            part: Some(part),
            undo,
        })
    }
}

impl Drop for Enforcer {
    fn drop(&mut self) {
        drop(self.part.take());
        let done = Command::new("sh").arg(&self.undo).status();
        if done.is_ok_and(|done| done.success()) {
            let _gone = std::fs::remove_file(&self.undo);
        }
    }
}

pub(crate) async fn runs(chart: Arc<ChartCluster>) -> Result<()> {
    let world = World::on(chart.cluster.clone()).await?;
    let enforcer = Enforcer::start(&world.cluster)?;
    let walked = Box::pin(walk(&world)).await;
    let log = enforcer.part.as_ref().map(Part::log_tail);
    let walked = walked.context(log.unwrap_or_default());
    world.reported(walked).await
}

/// The quick start's installation, then one policy after the other.
async fn walk(world: &World) -> Result<()> {
    let cluster = &world.cluster;
    let prometheus = Place::new(world, MONITORING).await?;
    let mut away = Away::start(world).await?;
    // The reader creates it.
    kubectl(world, &format!("delete namespace {NAMESPACE} --wait")).await?;
    let reader = Reader::new(world, &away.kubeconfig)?;
    for line in commands("## On k3s")? {
        reader.sh(&line)?;
    }
    let reached = Reached::new(world, &reader, &prometheus).await?;

    // The policies hold: this port of the scheduler's pod is none of those that they open.
    let closed = reached.scheduler(10259);
    TcpStream::connect(&closed)
        .await
        .context("the node's own address passes")?;
    let what = "a port that no policy opens to be closed";
    eventually(PATIENCE, what, || async {
        let answer = prometheus.scrape(cluster, &closed, MADE_UP)?;
        Ok(matches!(answer, Scrape::Closed).then_some(()))
    })
    .await?;
    reached
        .ways(&mut away, true, true)
        .await
        .context("by default")?;
    dashboard(&reader).await?;
    // Its webhook is called from the same address.
    let example = top("examples/gpu-pod.yaml");
    reader.sh(&format!("kubectl apply -f {}", example.display()))?;
    reader.sh("kubectl wait --for=condition=Ready pod/gpu-pod --timeout=90s")?;
    ensure!(
        reader.sh("kubectl aliquot top pods")?.contains("gpu-pod"),
        "top pods"
    );
    // Who reaches the port has nothing of it.
    let refused = prometheus.scrape(cluster, &reached.scheduler(9395), MADE_UP)?;
    ensure!(
        matches!(&refused, Scrape::Answer(answer) if answer.contains("must be logged in")),
        "with a token that is made up: {refused:?}"
    );

    let upgrade = "helm upgrade aliquot charts/aliquot -n aliquot-system --reset-then-reuse-values";
    let monitoring = format!(
        "{upgrade} --set 'networkPolicy.scrapers[0].namespaceSelector.matchLabels.kubernetes\\.io/metadata\\.name={MONITORING}'"
    );
    let notes = reader.sh(&monitoring)?;
    ensure!(notes.contains("networkPolicy.scrapers is set"), "{notes}");
    reached
        .ways(&mut away, false, true)
        .await
        .context("only Prometheus")?;
    let api_server = format!("networkPolicy.scrapers[0].ipBlock.cidr={}/32", away.address);
    reader.sh(&format!(
        "{upgrade} --set-json networkPolicy.scrapers=[] --set '{api_server}'"
    ))?;
    reached
        .ways(&mut away, true, false)
        .await
        .context("only the API server")?;

    cluster.delete_pod("default", "gpu-pod").await?;
    removed(world).await?;
    drop(away);
    let places = format!("delete namespace {MONITORING} {CONTROL_PLANE}");
    kubectl(world, &places).await?;
    kubectl(world, "delete clusterrolebinding scrapes").await?;
    Ok(())
}

/// The served ports of the installation, from the two places.
struct Reached<'a> {
    world: &'a World,
    reader: &'a Reader,
    prometheus: &'a Place,
    scheduler: String,
    agent: String,
    monitor: String,
    token: String,
}

impl<'a> Reached<'a> {
    async fn new(world: &'a World, reader: &'a Reader, prometheus: &'a Place) -> Result<Self> {
        let pods = world.json(&["get", "pods", "-n", NAMESPACE]).await?;
        let pods = pods["items"].as_array().context("no pods")?;
        let address = |part: &str| {
            let label =
                |pod: &&Value| pod["metadata"]["labels"]["app.kubernetes.io/component"] == part;
            let pod = pods
                .iter()
                .find(label)
                .with_context(|| format!("no {part}"))?;
            let address = pod["status"]["podIP"].as_str();
            anyhow::Ok(address.context("no address")?.to_owned())
        };
        let (scheduler, agent) = (address("scheduler")?, address("device-plugin")?);
        let monitor = address("monitor")?;
        reader.sh(&format!(
            "kubectl create clusterrolebinding scrapes --clusterrole=aliquot-metrics-reader --serviceaccount={MONITORING}:default"
        ))?;
        let token = reader.sh(&format!("kubectl create token default -n {MONITORING}"))?;
        Ok(Self {
            world,
            reader,
            prometheus,
            scheduler,
            agent,
            monitor,
            token: token.trim().to_owned(),
        })
    }

    fn scheduler(&self, port: u16) -> String {
        format!("{}:{port}", self.scheduler)
    }

    /// Waits until `kubectl aliquot` reaches the scheduler and the node's parts through the API server,
    /// or not, and Prometheus its targets, or not.
    async fn ways(&self, away: &mut Away<'_>, api_server: bool, prometheus: bool) -> Result<()> {
        away.restart().await?;
        let targets = [
            (self.scheduler(9395), "aliquot_scheduler_"),
            (format!("{}:9394", self.agent), "aliquot_"),
            (format!("{}:9396", self.monitor), "aliquot_"),
        ];
        eventually(PATIENCE, "the policies to be in effect", || async {
            for command in ["top gpus", "top nodes"] {
                let printed = self.reader.sh(&format!("kubectl aliquot {command} 2>&1"))?;
                until!(
                    printed.contains(COMPUTED) != api_server,
                    "{command}: {printed}"
                );
            }
            for (port, metric) in &targets {
                let answer = self
                    .prometheus
                    .scrape(&self.world.cluster, port, &self.token)?;
                let expected = match &answer {
                    Scrape::Metrics(text) => prometheus && text.contains(metric),
                    Scrape::Answer(_) => false,
                    Scrape::Closed => !prometheus,
                };
                until!(expected, "{port}: {answer:?}");
            }
            Ok(Some(()))
        })
        .await
    }
}

/// The page's data at the address that `dashboard` prints.
async fn dashboard(reader: &Reader) -> Result<()> {
    let mut command = tokio::process::Command::from(
        reader.command("exec kubectl aliquot dashboard --no-browser")?,
    );
    let mut program = command.stdout(Stdio::piped()).kill_on_drop(true).spawn()?;
    let lines = program.stdout.take().context("its output")?;
    let mut lines = BufReader::new(lines).lines();
    let url = tokio::time::timeout(PATIENCE, lines.next_line()).await??;
    let url = url.context("an address")?;
    let parts = url
        .strip_prefix("http://")
        .and_then(|url| url.split_once('/'));
    let (address, path) = parts.context(url.clone())?;
    let state = http::get(address.parse()?, &format!("/{path}state")).await?;
    ensure!(state.contains(NODE), "{state}");
    Ok(program.kill().await?)
}
