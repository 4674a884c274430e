//! Two gangs of kube-scheduler's own gang scheduling compete for room for one and a half of them,
//! round after round; in some rounds the leading replica is killed. A gang must be bound whole or
//! not at all.

use std::sync::Arc;
use std::time::{Duration, Instant};

use aliquot_cluster::Cluster;
use aliquot_cluster::until;
use aliquot_cluster::wait::{OrNotYet as _, PATIENCE, eventually, give_up};
use aliquot_e2e::figures::print_line;
use aliquot_e2e::ledger::reported_ledger;
use aliquot_e2e::pods::simple;
use aliquot_e2e::pool::{Shape, node_of};
use aliquot_e2e::stack::Stack;
use anyhow::{Context as _, Result};
use fastrand::Rng;
use futures::future::try_join_all;
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::{
    ApiResource, DeleteParams, DynamicObject, GroupVersionKind, ListParams, PostParams,
};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use crate::places::{PLACES, Place, Victims};
use crate::replicas::{Pair, Replicas};
use crate::run::on_stack;

/// Turns gangs on in kube-apiserver and kube-scheduler.
const GATES: &str = "--feature-gates=GenericWorkload=true";
/// Of the API group `scheduling.k8s.io`.
const VERSION: &str = "v1beta1";
const NAMESPACE: &str = "gangs";
const NODES: [&str; 3] = ["gangs-1", "gangs-2", "gangs-3"];
const SHAPE: Shape = Shape::of_gpus(8);
/// Members for which the nodes have room.
const ROOM: usize = 24;
/// Members of each gang.
const MEMBERS: usize = 16;
/// Places that a gang passes between its first filter call and its last Binding.
const KILLED_AT: [&str; 6] = [
    "FilterFits",
    "BeforeReserve",
    "AfterReserve",
    "BeforePost",
    "AfterPost",
    "AfterCreated",
];
/// From the last member's creation until a gang is bound.
const PROMISED: Duration = Duration::from_secs(2);
/// How long nothing more may be bound, by the clock, until one gang has all and the other nothing.
const AFTER: Duration = Duration::from_millis(500);
/// The same until a gang counts as bound in part.
const QUIET: Duration = Duration::from_secs(2);
/// The same after a kill: the lease changes hands within seconds.
const QUIET_AFTER_KILL: Duration = Duration::from_secs(45);

/// What was counted.
#[derive(Clone, Debug, Default)]
pub struct Tally {
    /// Gangs that were bound in part.
    pub in_part: usize,
    /// Kills.
    pub kills: usize,
    /// In rounds without a kill: from the last member's creation to the last one's Binding.
    pub times: Vec<Duration>,
}

/// How much of it.
#[derive(Clone, Copy, Debug)]
pub struct Size {
    /// Rounds.
    pub rounds: usize,
    /// In one round of so many the leading replica is killed; in none for 0.
    pub kill_every: usize,
    /// Draws the kills.
    pub seed: u64,
}

/// Runs on a cluster of its own.
pub async fn run(size: Size) -> Result<Tally> {
    let cluster = Cluster::control_plane()
        .without_scheduler()
        .apiserver_arg(GATES)
        .apiserver_arg(&format!(
            "--runtime-config=scheduling.k8s.io/{VERSION}=true"
        ));
    let stack = Stack::on(Box::pin(cluster.start()).await?).await?;
    let mut tally = Tally::default();
    let body = async |stack, stop| Box::pin(on(stack, stop, size, &mut tally)).await;
    on_stack(stack, body).await?;
    Ok(tally)
}

async fn on(
    stack: Arc<Stack>,
    stop: CancellationToken,
    size: Size,
    tally: &mut Tally,
) -> Result<()> {
    stack.cluster.namespace(NAMESPACE).await?;
    for node in NODES {
        stack.gpu_node(NAMESPACE, node, SHAPE).await?;
    }
    let replicas = Replicas::start(stack.clone(), stop, &[GATES]).await?;
    let scene = Scene::new(&stack, &replicas)?;
    let mut rng = Rng::with_seed(size.seed);
    for number in 0..size.rounds {
        replicas.whole().await?;
        let leader = replicas.leader().await?;
        let kill = (number + 1).checked_rem(size.kill_every) == Some(0);
        let kill = kill.then(|| Kill::draw(&mut rng));
        scene.round(number, leader, kill, tally).await?;
    }
    Ok(())
}

/// Kills some processes of the leading replica at a passage of a place.
#[derive(Clone, Copy, Debug)]
struct Kill {
    place: Place,
    passage: u32,
    victims: Victims,
}

impl Kill {
    fn draw(rng: &mut Rng) -> Self {
        let places: Vec<_> = PLACES
            .iter()
            .filter(|p| KILLED_AT.contains(&p.name))
            .collect();
        Self {
            place: *places[rng.usize(..places.len())],
            passage: rng.u32(1..=14),
            victims: Victims::DRAWN[rng.usize(..Victims::DRAWN.len())],
        }
    }
}

struct Scene<'a> {
    replicas: &'a Replicas,
    groups: Api<DynamicObject>,
    members: Api<DynamicObject>,
    pods: Api<Pod>,
}

impl<'a> Scene<'a> {
    fn new(stack: &Stack, replicas: &'a Replicas) -> Result<Self> {
        let admin = stack.cluster.admin()?;
        let kind = GroupVersionKind::gvk("scheduling.k8s.io", VERSION, "PodGroup");
        let groups = ApiResource::from_gvk_with_plural(&kind, "podgroups");
        let members = ApiResource::erase::<Pod>(&());
        Ok(Self {
            replicas,
            groups: Api::namespaced_with(admin.clone(), NAMESPACE, &groups),
            members: Api::namespaced_with(admin.clone(), NAMESPACE, &members),
            pods: Api::namespaced(admin, NAMESPACE),
        })
    }

    async fn round(
        &self,
        number: usize,
        leader: &Pair,
        kill: Option<Kill>,
        tally: &mut Tally,
    ) -> Result<()> {
        let gangs = [format!("r{number}-a"), format!("r{number}-b")];
        for gang in &gangs {
            let group = json!({"apiVersion": format!("scheduling.k8s.io/{VERSION}"),
                "kind": "PodGroup", "metadata": {"name": gang},
                "spec": {"schedulingPolicy": {"gang": {"minCount": MEMBERS}}}});
            create(&self.groups, group).await?;
        }
        let arm = |kill: Kill| leader.arm(kill.place, kill.passage, kill.victims);
        let armed = kill.map(arm).transpose()?;
        let pods = (0..MEMBERS).flat_map(|n| gangs.iter().map(move |gang| member(gang, n)));
        try_join_all(pods.map(|pod| create(&self.members, pod))).await?;
        let created = Instant::now();
        let quiet = if armed.is_some() {
            QUIET_AFTER_KILL
        } else {
            QUIET
        };
        let (bound, last) = self.ended(&gangs, quiet).await?;
        let took = last.saturating_duration_since(created);
        let in_part = bound.iter().filter(|n| !matches!(**n, 0 | MEMBERS)).count();
        tally.in_part += in_part;
        match (armed, kill) {
            (Some(armed), Some(kill)) => {
                let fired = leader.fired(armed) || !leader.disarm();
                tally.kills += usize::from(fired);
                print_line(&format!(
                    "round {number}: {:?} at {} {}: fired {fired}, bound {bound:?} after {:.1} s",
                    kill.victims,
                    kill.place.name,
                    kill.passage,
                    took.as_secs_f64()
                ));
            }
            _ if in_part == 0 => tally.times.push(took),
            _ => {}
        }
        if in_part > 0 || took > PROMISED {
            let took = took.as_secs_f64();
            print_line(&format!(
                "round {number}: bound {bound:?} after {took:.1} s"
            ));
        }
        self.clear().await
    }

    /// How many members of each gang are bound in the end, and when the last one was seen to be.
    async fn ended(&self, gangs: &[String; 2], quiet: Duration) -> Result<([usize; 2], Instant)> {
        let last = Mutex::new(([0, 0], Instant::now()));
        eventually(PATIENCE, "a gang to be bound", || async {
            let bound = self.bound(gangs).await?;
            if bound.iter().sum::<usize>() > ROOM {
                return Err(give_up(format!("overcommitted: {bound:?}")));
            }
            let mut last = last.lock();
            if bound != last.0 {
                *last = (bound, Instant::now());
            }
            let pause = last.1.elapsed();
            let whole = matches!(bound, [MEMBERS, 0] | [0, MEMBERS]) && pause > AFTER;
            let over = bound != [0, 0] && pause > quiet;
            Ok((whole || over).then_some(*last))
        })
        .await
    }

    async fn bound(&self, gangs: &[String; 2]) -> Result<[usize; 2]> {
        let pods = self.pods.list(&ListParams::default()).await?.items;
        Ok(gangs.each_ref().map(|gang| {
            let bound = pods.iter().filter(|pod| node_of(pod).is_some());
            bound
                .filter(|pod| {
                    let name = pod.metadata.name.as_deref().unwrap_or_default();
                    name.starts_with(gang.as_str())
                })
                .count()
        }))
    }

    /// Deletes all pods, and waits until they are gone and the leader's ledger is empty.
    async fn clear(&self) -> Result<()> {
        let at_once = DeleteParams::default().grace_period(0);
        let all = ListParams::default();
        self.pods.delete_collection(&at_once, &all).await?;
        eventually(PATIENCE, "the gangs to be gone", || async {
            let left = self.pods.list_metadata(&all).await?.items;
            until!(left.is_empty(), "{} left", left.len());
            let leader = self.replicas.leader().await?;
            let ledger = reported_ledger(leader.address).await.or_not_yet()?;
            let left = ledger.pods.len() + ledger.reserved.len();
            until!(left == 0, "{left} left in the ledger");
            Ok(Some(()))
        })
        .await
    }
}

fn member(gang: &str, number: usize) -> Value {
    let name = format!("{gang}-{number}");
    let mut pod = simple(NAMESPACE, &name, &[("gpu", "1"), ("gpumem", "60000")]);
    pod["spec"]["schedulerName"] = json!("aliquot-scheduler");
    pod["spec"]["schedulingGroup"] = json!({"podGroupName": gang});
    pod
}

async fn create(api: &Api<DynamicObject>, object: Value) -> Result<DynamicObject> {
    let object: DynamicObject = serde_json::from_value(object)?;
    let name = object.metadata.name.clone();
    let created = api.create(&PostParams::default(), &object).await;
    created.with_context(|| format!("create {name:?}"))
}
