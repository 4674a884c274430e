//! Shares that come and go, and the nodes that Karpenter adds and removes for them.

use std::sync::Arc;
use std::time::Duration;

use aliquot_cluster::until;
use aliquot_cluster::wait::{PATIENCE, eventually};
use aliquot_core::scale_up::NodeType;
use aliquot_core::score::Policies;
use aliquot_core::{
    ContainerDemand, Demand, DeviceRules, GpuRequest, HostResources, Memory, Mib, MilliCpu,
    NodeState, Percent, Stage, fit,
};
use aliquot_e2e::figures::print_line;
use aliquot_e2e::pool::{GPU_MEMORY, node_of};
use aliquot_e2e::stack::Stack;
use anyhow::{Result, ensure};
use k8s_openapi::api::core::v1::{Event, Pod};
use kube::Api;
use kube::api::ListParams;

use crate::fleet::{Fleet, SHAPE};

/// The sizes of a hundred shares, in MiB: they repeat.
const SIZES: [u64; 5] = [10_000, 20_000, 27_000, 41_000, 46_000];
const SHARES: usize = 100;
/// Nodes of the warm pool.
const WARM: usize = 2;
/// After which Karpenter considers a node again that was too new when it considered the others.
const AGAIN: Duration = Duration::from_mins(5);

fn sizes() -> Vec<u64> {
    SIZES.iter().copied().cycle().take(SHARES).collect()
}

/// The oracle: the fewest nodes of the instance type on which our own packing places all of these
/// shares, the largest first, each on the first node that takes it.
fn nodes_needed(sizes: &[u64]) -> usize {
    let demand = |memory: u64| Demand {
        namespace: "".into(),
        resources: vec!["nvidia.com/gpu".into()],
        containers: vec![ContainerDemand {
            name: "main".to_owned(),
            stage: Stage::App,
            requests: vec![GpuRequest::new(1, Memory::Mib(Mib(memory)), Percent(0))],
        }],
        host: HostResources::default(),
        priority: 1,
        node_policy: None,
        gpu_policy: None,
        rules: DeviceRules::default(),
    };
    let node_type = NodeType {
        gpus: SHAPE.gpus,
        model: "NVIDIA A100-SXM4-80GB".to_owned(),
        memory: Mib(GPU_MEMORY),
        replicas: SHAPE.replicas,
        resource: "nvidia.com/gpu".to_owned(),
        host: HostResources {
            cpu: MilliCpu(63_000),
            memory: Mib(500 << 10),
        },
    };
    let mut sizes = sizes.to_vec();
    sizes.sort_unstable_by(|a, b| b.cmp(a));
    let mut nodes: Vec<NodeState> = Vec::new();
    for demand in sizes.into_iter().map(demand) {
        let with = |node: &NodeState| {
            let fit = fit::fit(node, &demand, &Policies::default()).ok()?;
            Some(node.with(&fit.uses, &fit.instances, &demand.replicas()))
        };
        let mut taken = nodes.iter().enumerate();
        let taken = taken.find_map(|(at, node)| Some((at, with(node)?)));
        match taken {
            Some((at, node)) => nodes[at] = node,
            None => nodes.extend(with(&node_type.node(SHAPE.gpus))),
        }
    }
    nodes.len()
}

/// One share on an empty pool: one node, which leaves with the share.
pub(crate) async fn one_share(stack: Arc<Stack>) -> Result<()> {
    let fleet = Fleet::open(stack, "scale-one").await?;
    fleet.create("one", &[10_000]).await?;
    fleet.wait_bound(1).await?;
    fleet.wait_satisfied().await?;
    let added = fleet.added.clone();
    fleet.close().await?;
    ensure!(added.lock().len() == 1, "{added:?}");
    Ok(())
}

/// A hundred shares on an empty pool.
pub(crate) async fn from_zero(stack: Arc<Stack>) -> Result<()> {
    let fleet = Fleet::open(stack, "scale-zero").await?;
    let sizes = sizes();
    fleet.create("share", &sizes).await?;
    fleet.wait_bound(SHARES).await?;
    fleet.wait_satisfied().await?;
    compare("from zero", fleet.added_count(), nodes_needed(&sizes))?;
    fleet.close().await
}

/// A hundred shares where the first nodes are there already, outside the pool.
pub(crate) async fn from_warm_pool(stack: Arc<Stack>) -> Result<()> {
    let fleet = Fleet::open(stack, "scale-warm").await?;
    let warm: Vec<String> = (0..WARM).map(|number| format!("warm-{number}")).collect();
    for node in &warm {
        fleet.stack.gpu_node("warm", node, SHAPE).await?;
    }
    let sizes = sizes();
    fleet.create("share", &sizes).await?;
    fleet.wait_bound(SHARES).await?;
    fleet.wait_satisfied().await?;
    compare(
        "beside a warm pool",
        fleet.added_count() + WARM,
        nodes_needed(&sizes),
    )?;
    let stack = fleet.stack.clone();
    fleet.close().await?;
    for node in &warm {
        stack.delete_node(node).await?;
    }
    Ok(())
}

fn compare(how: &str, nodes: usize, oracle: usize) -> Result<()> {
    print_line(&format!(
        "{SHARES} shares {how}: {nodes} nodes, the oracle needs {oracle}"
    ));
    ensure!(
        nodes * 10 <= oracle * 11,
        "{nodes} nodes, at most 10 % more than {oracle}"
    );
    Ok(())
}

/// Shares of more than half a GPU, one on each GPU: by the count of replicas that Karpenter sees,
/// one node could take them all.
pub(crate) async fn consolidated(stack: Arc<Stack>) -> Result<()> {
    let fleet = Fleet::open(stack, "scale-less").await?;
    let count = 3 * usize::try_from(SHAPE.gpus)?;
    fleet.create("large", &vec![45_000; count]).await?;
    let shares = fleet.wait_bound(count).await?;
    fleet.wait_satisfied().await?;
    let nodes: Vec<String> = names(&fleet).await?;
    ensure!(nodes.len() == 3, "{nodes:?}");
    let events: Api<Event> = Api::all(fleet.stack.cluster.admin()?);
    let refused = ListParams::default().fields("reason=Unconsolidatable");
    eventually(
        AGAIN + PATIENCE,
        "Karpenter to have considered every node",
        || async {
            let events = events.list(&refused).await?.items;
            for node in &nodes {
                let about = |event: &&Event| event.involved_object.name.as_ref() == Some(node);
                let found = events.iter().find(about);
                until!(found.is_some(), "no event about {node}");
            }
            Ok(Some(()))
        },
    )
    .await?;
    none_leaves(&fleet.shares().await?)?;
    // One node becomes empty: it leaves, and the shares on the others stay.
    let on_first = |pod: &Pod| node_of(pod) == Some(nodes[0].as_str());
    fleet.delete(shares.into_iter().filter(on_first)).await?;
    fleet.wait_for_nodes(2).await?;
    let left = names(&fleet).await?;
    ensure!(
        left.iter().all(|name| nodes[1..].contains(name)),
        "{left:?}"
    );
    let shares = fleet.shares().await?;
    ensure!(shares.len() == count - 4, "{} shares", shares.len());
    none_leaves(&shares)?;
    let added = fleet.added_count();
    ensure!(added == 3, "{added} nodes added");
    fleet.close().await
}

fn none_leaves(shares: &[Pod]) -> Result<()> {
    for pod in shares {
        let meta = &pod.metadata;
        ensure!(meta.deletion_timestamp.is_none(), "{:?}", meta.name);
    }
    Ok(())
}

async fn names(fleet: &Fleet) -> Result<Vec<String>> {
    let nodes = fleet.nodes().await?.into_iter();
    Ok(nodes.filter_map(|node| node.metadata.name).collect())
}
