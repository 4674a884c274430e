//! `doctor`: what is wrong with a cluster or a node, and what to do about it.
//!
//! [`gather`] reads the [`facts`]. Each check is a function from facts to a verdict, in the file of what it
//! checks; [`finding`] prints the result. What could not be read is reported as not checked, never as ok.

mod admission;
#[cfg(test)]
mod cluster_tests;
pub mod container_view;
pub(crate) mod device_class;
pub mod facts;
pub mod finding;
pub mod gather;
pub mod node;
pub mod probe;
mod refused_writes;
pub(crate) mod request_form;
mod scheduler;
mod security;
pub mod wait;

use std::time::Duration;

use clap::{Args, Subcommand};
use k8s_openapi::api::core::v1::Pod;

use crate::access::{Access, AccessError};
use crate::components::{containers, flag, is_ours};
use crate::output::Output;
use container_view::ContainerView;
use facts::{ClusterFacts, Fact, fact};
use finding::{About, Finding, Report};
use probe::Probe;

/// The flags of `doctor`.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct Doctor {
    /// Check one node; without a subcommand, check the whole cluster
    #[command(subcommand)]
    pub what: Option<DoctorCommand>,
    /// List only what is open to tenants, with the value of the chart that closes it
    #[arg(long)]
    pub security: bool,
    /// Ask again until there are no problems and every check was made; what is missing is printed to standard error
    #[arg(long, conflicts_with = "security")]
    pub wait: bool,
    /// Maximum number of seconds to wait
    #[arg(long, value_name = "SECONDS", default_value_t = 300)]
    pub timeout: u64,
    #[command(flatten)]
    pub common: Common,
}

/// What `doctor` can check besides the cluster.
#[derive(Debug, Subcommand)]
pub enum DoctorCommand {
    /// Check one node, also from inside: two short-lived pods report what a container gets there
    Node(Box<OneNode>),
    /// Print what a process in this container sees of its share, as JSON; the probe pods run this
    #[command(hide = true)]
    ContainerView,
}

/// The flags that `doctor` and `doctor node` share.
#[derive(Debug, Args)]
pub struct Common {
    /// Namespace of the dry-run pod, which is never stored, and of the probe pods; defaults to that of the context
    #[arg(short, long)]
    pub namespace: Option<String>,
    /// Output format; wide also lists the checks that passed
    #[arg(short, long, value_enum, default_value = "table")]
    pub output: Output,
    #[command(flatten)]
    pub access: Access,
}

/// The flags of `doctor node`.
#[derive(Debug, Args)]
pub struct OneNode {
    /// Name of the node
    pub node: String,
    /// Start no probe pods; what only a process on the node can see is then not checked
    #[arg(long)]
    pub no_probe: bool,
    /// Image of the probe pods, with kubectl-aliquot in it; defaults to the image of the node's agent
    #[arg(long)]
    pub probe_image: Option<String>,
    #[command(flatten)]
    pub common: Common,
}

impl Doctor {
    /// The report of the cluster, and the exit code. `note` gets what it waits for.
    pub async fn run(&self, note: impl Fn(&str)) -> Result<(Report, u8), AccessError> {
        if self.wait {
            let deadline = Duration::from_secs(self.timeout);
            return wait::until_well(deadline, async || self.report().await, note).await;
        }
        let report = self.report().await?;
        let code = report.code();
        Ok((report, code))
    }

    async fn report(&self) -> Result<Report, AccessError> {
        let facts = self.common.facts(None).await?;
        if self.security {
            return Ok(Report::new(security::checks(&facts)));
        }
        let mut found = cluster_checks(&facts);
        found.extend(node::checks(&facts, None));
        Ok(Report::new(found))
    }
}

/// The checks of the cluster as a whole.
fn cluster_checks(facts: &ClusterFacts) -> Vec<Finding> {
    let about = About::cluster();
    let mut found = scheduler::checks(facts, &about);
    found.extend(admission::checks(facts, &about));
    let pods = facts.pods.as_deref().map_err(Clone::clone);
    let device_classes = pods.and_then(|pods| device_class::check(&facts.device_classes, pods));
    found.push(about.finding("device-classes", device_classes));
    let form = request_form::check(facts);
    found.extend(form.map(|checked| about.finding("request-form", checked)));
    found.push(about.finding("limits", security::limits(facts)));
    found
}

impl Common {
    async fn facts(&self, node: Option<&str>) -> Result<ClusterFacts, AccessError> {
        let namespace = self.access.namespace(self.namespace.as_deref()).await?;
        gather::facts(&self.access, &namespace, node).await
    }
}

impl OneNode {
    pub async fn run(&self) -> Result<Report, AccessError> {
        let facts = self.common.facts(Some(&self.node)).await?;
        let mut found = node::checks(&facts, Some(&self.node));
        let pods = facts.pods.as_deref().unwrap_or_default();
        let here = |pod: &&Pod| {
            let node = aliquot_k8s::pod::node(pod);
            is_ours(pod, "device-plugin") && node.is_some_and(|node| node.as_str() == self.node)
        };
        let agent = pods.iter().find(here);
        let limited: Fact<bool> = match agent {
            Some(agent) => Ok(flag(agent, "--limiter-library").is_some()),
            None => Err(
                "no agent pod runs on this node, so its flag --limiter-library is unknown".into(),
            ),
        };
        let scheduler = admission::is_off(pods).then(|| facts.settings().scheduler_name);
        let probes = self.run_probes(agent, scheduler.as_deref(), &facts).await;
        let unmade = |why: String| (Err(why.clone()), Err(why));
        let (share, without_share) = probes.unwrap_or_else(unmade);
        let about = About(self.node.clone());
        found.extend(probe::checks(&about, &share, &without_share, limited));
        Ok(Report::new(found))
    }

    /// The results of both probes, or why none was started. `scheduler` is set on the first one where the webhook is
    /// disabled; the second one runs in the namespace of Aliquot, which the webhook does not review.
    async fn run_probes(
        &self,
        agent: Option<&Pod>,
        scheduler: Option<&str>,
        facts: &ClusterFacts,
    ) -> Fact<(Fact<ContainerView>, Fact<ContainerView>)> {
        if self.no_probe {
            return Err("no probe pod was started because of --no-probe".to_owned());
        }
        let of_agent = agent.and_then(|agent| containers(agent).next()?.image.clone());
        let image = self.probe_image.clone().or(of_agent).ok_or(
            "no image for the probe pods, because no agent pod runs on this node; set --probe-image",
        )?;
        let client = fact(self.common.access.client().await)?;
        let names = facts.settings().names;
        let usual = kube::Api::namespaced(client.clone(), &facts.trial_namespace);
        let unreviewed = kube::Api::namespaced(client, &facts.namespace);
        let secrets = agent.and_then(|agent| agent.spec.as_ref()?.image_pull_secrets.clone());
        let secrets = secrets.unwrap_or_default();
        let of = |probe: Probe| probe.pod(&self.node, &image, &secrets, &names, scheduler);
        let share = async {
            match admission::unreviewed(facts) {
                Some(why) if scheduler.is_none() => Err(why),
                _ => probe::run(&usual, of(Probe::Share)).await,
            }
        };
        let without_share = probe::run(&unreviewed, of(Probe::WithoutShare));
        Ok(tokio::join!(share, without_share))
    }
}

/// What a process in this container sees, as JSON.
pub fn container_view_json() -> Fact<String> {
    fact(serde_json::to_string(&ContainerView::read()))
}
