//! `doctor`: what is wrong with a cluster or a node, and what to do about it.
//!
//! [`gather`] asks, [`cluster`], [`node`] and [`probe`] judge what is known, [`finding`] shows it.
//! Fed by: the command line. Must not: call well what was not looked at, or leave anything behind.

mod admission;
pub mod books;
mod class;
pub mod cluster;
#[cfg(test)]
mod cluster_tests;
pub mod finding;
pub mod gather;
pub mod known;
pub mod look;
pub mod node;
mod others;
pub mod probe;
mod visit;

use clap::{Args, Subcommand};
use k8s_openapi::api::core::v1::Pod;

use crate::live::{Access, LiveError};
use crate::measured::Agents;
use crate::migrate::Migrate;
use crate::output::Output;
use finding::{About, Fact, Report};
use gather::{Ask, fact};
use known::{Known, containers, flag, is_ours, names};
use look::Look;
use probe::Probe;
use visit::Seen;

/// The flags of `doctor`.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct Doctor {
    /// One node, or what changes when coming from another system; the whole cluster without
    #[command(subcommand)]
    pub what: Option<What>,
    /// What all of them have
    #[command(flatten)]
    pub common: Common,
}

/// What is looked at besides the cluster.
#[derive(Debug, Subcommand)]
pub enum What {
    /// Look at one node, also from inside: two short-lived pods see what a container there gets
    Node(OneNode),
    /// Say which workloads would change meaning when coming from HAMi or NVIDIA's plugin
    Migrate(Migrate),
    /// Print what a process here sees of its share, as JSON: what the probe pods run
    Look,
}

/// The flags that `doctor` and `doctor node` share.
#[derive(Debug, Args)]
pub struct Common {
    /// Namespace of the trial pod, which is never stored, and of the probe pods
    #[arg(short, long, default_value = "default")]
    pub namespace: String,
    /// What is printed; wide shows what is well, too
    #[arg(short, long, value_enum, default_value = "table")]
    pub output: Output,
    /// How to reach the cluster
    #[command(flatten)]
    pub access: Access,
    /// How to reach the agents
    #[command(flatten)]
    pub agents: Agents,
}

/// The flags of `doctor node`.
#[derive(Debug, Args)]
pub struct OneNode {
    /// The node
    pub node: String,
    /// Start no pods: what only a process on the node can see is then not checked
    #[arg(long)]
    pub no_probe: bool,
    /// Image of the probe pods, with kubectl-aliquot in it; that of the node's agent when absent
    #[arg(long)]
    pub probe_image: Option<String>,
    /// What all of them have
    #[command(flatten)]
    pub common: Common,
}

impl Doctor {
    /// The report of the cluster.
    pub async fn run(&self) -> Result<Report, LiveError> {
        let known = self.common.known(None).await?;
        let mut found = cluster::checks(&known);
        found.extend(node::checks(&known, None));
        Ok(Report::of(found))
    }
}

impl Common {
    async fn known(&self, node: Option<&str>) -> Result<Known, LiveError> {
        let client = self.access.client().await?;
        let ask = Ask {
            access: &self.access,
            agents: &self.agents,
            namespace: &self.namespace,
            node,
        };
        Ok(ask.known(&client).await)
    }
}

impl OneNode {
    /// The report of the node.
    pub async fn run(&self) -> Result<Report, LiveError> {
        let known = self.common.known(Some(&self.node)).await?;
        let mut found = node::checks(&known, Some(&self.node));
        let pods = known.pods.as_deref().unwrap_or_default();
        let here = |pod: &&Pod| {
            let node = aliquot_k8s::pod::node(pod);
            is_ours(pod, "device-plugin") && node.is_some_and(|node| node.as_str() == self.node)
        };
        let agent = pods.iter().find(here);
        let limited: Fact<bool> = match agent {
            Some(agent) => Ok(flag(agent, "--limiter-library").is_some()),
            None => Err("the agent has no pod here that says whether it has the library".into()),
        };
        let scheduler = admission::is_off(pods).then(|| admission::scheduler(&known));
        let (share, past) = self.look(agent, pods, scheduler.as_deref()).await;
        let about = About(self.node.clone());
        let ran = share.as_ref().map(|seen| seen.class.clone());
        found.extend(class::ran(&known, &about, &ran.map_err(Clone::clone)));
        let look = |seen: Fact<Seen>| seen.map(|seen| seen.look);
        found.extend(probe::checks(&about, &look(share), &look(past), limited));
        Ok(Report::of(found))
    }

    /// What the two probes see; the first names a scheduler where no webhook would.
    async fn look(
        &self,
        agent: Option<&Pod>,
        pods: &[Pod],
        scheduler: Option<&str>,
    ) -> (Fact<Seen>, Fact<Seen>) {
        let none = |why: &str| (Err(why.to_owned()), Err(why.to_owned()));
        if self.no_probe {
            return none("no probe pod was wanted (--no-probe)");
        }
        let image = agent.and_then(|agent| containers(agent).next()?.image.clone());
        let Some(image) = self.probe_image.clone().or(image) else {
            return none(
                "no image for a probe: the agent has no pod here; --probe-image names one",
            );
        };
        let client = match self.common.access.client().await {
            Ok(client) => client,
            Err(error) => return none(&error.to_string()),
        };
        let called = pods.iter().find(|pod| is_ours(pod, "scheduler"));
        let called = called.map(names).unwrap_or_default();
        let pods = kube::Api::namespaced(client, &self.common.namespace);
        let of = |probe: Probe| probe.pod(&self.node, &image, &called, scheduler);
        tokio::join!(
            visit::look(&pods, of(Probe::Share)),
            visit::look(&pods, of(Probe::Past))
        )
    }
}

/// What a process here sees, as JSON.
pub fn look_here() -> Fact<String> {
    fact(serde_json::to_string(&Look::here()))
}
