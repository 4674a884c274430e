//! States the need of GPUs to an autoscaler, in whole GPUs: for pods with shares that fit no node,
//! [`missing_gpus`] counts the GPUs that have to be added, and a placeholder stands for each of
//! them. Autoscalers read a placeholder like any pod; they do not count shares.
//!
//! A placeholder avoids nodes with the label `aliquot.dev/counted`. A node gets the label after the
//! placeholders that its GPUs make superfluous were deleted, never before: otherwise an autoscaler
//! would add another node for them. Where new nodes are copies of running ones, label included,
//! placeholders avoid the nodes by their host names instead, and are made again for each new one.

mod placeholder;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use aliquot_core::cluster::NodeSet;
use aliquot_core::request::Resource;
use aliquot_core::scale_up::{MissingGpus, NodeType, Supply, UnschedulablePod, missing_gpus};
use aliquot_core::{Cluster, NodeName, PodUid};
use aliquot_k8s::disruption;
use aliquot_k8s::node::COUNTED;
use k8s_openapi::api::core::v1::{Node, Pod};
use k8s_openapi::jiff::Timestamp;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, Client};
use serde_json::{Value, json};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use crate::leader::Leader;
use crate::ledger_cache::LedgerCache;
use crate::ledger_cache::pending_pods::{PendingPod, RecordedPlan};
use crate::node_types::{NodeTypeSpec, NodeTypes};
use crate::pod_client::{CallError, DEADLINE, PodClient};
use crate::ticks::Ticks;
pub use placeholder::Owner;
use placeholder::{Constraints, PLACEHOLDER};

/// Interval of counting. A need that lasts for two counts is stated.
const INTERVAL: Duration = Duration::from_secs(1);
/// Pods that are considered at a time, those of the highest priority first.
const MOST_PODS: usize = 1000;

/// States the need of one cluster.
pub struct ScaleUp {
    cache: Arc<LedgerCache>,
    client: Client,
    pods: PodClient,
    leader: Leader,
    types: Vec<NodeTypeSpec>,
    owner: Owner,
    resource: String,
    /// For each unschedulable pod, the nodes that joined since it was first seen as such.
    joined: HashMap<PodUid, NodeSet>,
    constraints: HashMap<PodUid, Constraints>,
    /// How many placeholders of each key the last count asked for.
    before: BTreeMap<String, usize>,
}

/// The placeholders that are needed, by key.
type Wanted = BTreeMap<String, Vec<Value>>;
/// Those that there are, by key.
type Existing = BTreeMap<String, Vec<Placeholder>>;

struct Placeholder {
    name: String,
    /// It has the status by which an autoscaler recognizes it.
    is_reported: bool,
}

impl ScaleUp {
    /// With placeholders beside the scheduler. Only the leader states a need.
    pub fn new(
        cache: Arc<LedgerCache>,
        client: Client,
        leader: Leader,
        types: NodeTypes,
        owner: Owner,
    ) -> Self {
        let resource = cache.settings().names.of(Resource::Gpu).to_owned();
        Self {
            pods: PodClient::new(client.clone()),
            leader,
            cache,
            client,
            types: types.0,
            owner,
            resource,
            joined: HashMap::new(),
            constraints: HashMap::new(),
            before: BTreeMap::new(),
        }
    }

    /// Runs until `stop`.
    pub async fn run(mut self, stop: CancellationToken) {
        let mut ticks = Ticks::every(INTERVAL, &stop);
        loop {
            let done = tokio::select! {
                goes_on = self.leader.next_tick(&mut ticks) => {
                    if !goes_on {
                        return;
                    }
                    self.reconcile().await
                }
                // Once shares fill the GPUs that an autoscaler knows of a new node, it would add
                // another one for the placeholders that are left.
                () = self.cache.node_joined(), if self.leader.leads() => self.count().await.map(drop),
            };
            if let Err(error) = done {
                tracing::warn!(%error, "cannot state the need of GPUs to the autoscaler");
            }
        }
    }

    /// Counts once, and adjusts the placeholders to it.
    async fn reconcile(&mut self) -> Result<(), CallError> {
        let Some((wanted, existing)) = self.count().await? else {
            return Ok(());
        };
        let counts = wanted.iter().map(|(key, all)| (key.clone(), all.len()));
        let before = std::mem::replace(&mut self.before, counts.collect());
        self.create_missing(wanted, &before, existing).await
    }

    /// Counts, deletes the placeholders that are superfluous, and labels the nodes that it counted. `None`
    /// if another replica leads since.
    async fn count(&mut self) -> Result<Option<(Wanted, Existing)>, CallError> {
        let cluster = self.cache.snapshot();
        let unschedulable = self.unschedulable_pods(&cluster);
        self.read_constraints(&unschedulable).await?;
        let wanted = self.wanted(&cluster, &unschedulable);
        let mut existing = self.placeholders().await?;
        // The reads took time, as the labels do.
        if !self.leader.leads() {
            return Ok(None);
        }
        self.delete_superfluous(&wanted, &mut existing).await?;
        self.label_counted(&cluster).await?;
        Ok(self.leader.leads().then_some((wanted, existing)))
    }

    /// The pods that kube-scheduler reports as unschedulable, of the highest priority.
    fn unschedulable_pods(&mut self, cluster: &Cluster) -> Vec<(PodUid, Arc<PendingPod>)> {
        let mut found: Vec<_> = {
            let pending = &self.cache.lock().pending;
            let needs = |pod: &PendingPod| {
                let preemption = &pod.preemption;
                let preempts = matches!(preemption.plan, Some(RecordedPlan::Open(_)));
                preemption.unschedulable && preemption.nominated.is_none() && !preempts
            };
            let needing = pending.iter().filter(|(_, pod)| needs(pod));
            needing
                .map(|(uid, pod)| (uid.clone(), pod.clone()))
                .collect()
        };
        // A Binding of it is under way.
        let has_entry = |uid: &PodUid| self.cache.read(|ledger| ledger.pod_entry(uid).is_some());
        found.retain(|(uid, _)| !has_entry(uid));
        found.sort_by(|(a, x), (b, y)| y.priority.cmp(&x.priority).then_with(|| a.cmp(b)));
        found.truncate(MOST_PODS);
        let uids: HashSet<&PodUid> = found.iter().map(|(uid, _)| uid).collect();
        self.joined.retain(|uid, _| uids.contains(uid));
        self.constraints.retain(|uid, _| uids.contains(uid));
        let from_now_on = cluster.set::<&str>(&[]);
        for uid in uids {
            let joined = self.joined.entry(uid.clone());
            joined.or_insert_with(|| from_now_on.clone());
        }
        found
    }

    /// Reads from the API server which nodes the pods allow: what the watch shows of it is kept only
    /// where it is short.
    async fn read_constraints(
        &mut self,
        pods: &[(PodUid, Arc<PendingPod>)],
    ) -> Result<(), CallError> {
        for (uid, pending) in pods {
            if self.constraints.contains_key(uid) {
                continue;
            }
            if let Some(pod) = self.pods.get(&pending.pod).await? {
                self.constraints
                    .insert(uid.clone(), Constraints::read(&pod));
            }
        }
        Ok(())
    }

    /// The placeholders for the GPUs that these pods miss.
    fn wanted(&self, cluster: &Cluster, pods: &[(PodUid, Arc<PendingPod>)]) -> Wanted {
        let mut groups: Vec<&Constraints> = Vec::new();
        let mut unschedulable = Vec::with_capacity(pods.len());
        for (uid, pending) in pods {
            let (Some(constraints), Some(joined)) =
                (self.constraints.get(uid), self.joined.get(uid))
            else {
                continue;
            };
            let group = groups.iter().position(|other| *other == constraints);
            let group = group.unwrap_or_else(|| {
                groups.push(constraints);
                groups.len() - 1
            });
            unschedulable.push(UnschedulablePod {
                demand: &pending.demand,
                priority: pending.priority,
                group,
                offered: pending.refusals.as_ref().map(|_| &pending.offered),
                joined,
            });
        }
        let types: Vec<NodeType> = self
            .types
            .iter()
            .map(|one| one.node_type(&self.resource))
            .collect();
        let permitted = |group: &&Constraints| -> Vec<usize> {
            let types = self.types.iter().enumerate();
            let permitted = types.filter(|(_, one)| group.permit(one));
            permitted.map(|(index, _)| index).collect()
        };
        let namespaces = pods
            .iter()
            .map(|(_, pending)| pending.pod.namespace.as_str());
        let headrooms = self.cache.read(|ledger| {
            namespaces
                .filter_map(|name| Some((name, ledger.headroom(name)?)))
                .collect()
        });
        let supply = Supply {
            cluster,
            types: &types,
            groups: &groups.iter().map(permitted).collect::<Vec<_>>(),
            headrooms,
            policies: &self.cache.policies(),
        };
        let with_gpus = cluster.iter().filter(|(.., node)| node.inventory.is_some());
        let mut counted: Vec<&str> = with_gpus.map(|(_, name, _)| name.as_str()).collect();
        counted.sort_unstable();
        let mut wanted = Wanted::new();
        for missing in missing_gpus(&unschedulable, supply) {
            let (key, pod) = self.placeholder(&missing, groups[missing.group], &counted);
            wanted.entry(key).or_default().push(pod);
        }
        wanted
    }

    fn placeholder(
        &self,
        missing: &MissingGpus,
        constraints: &Constraints,
        counted: &[&str],
    ) -> (String, Value) {
        let node_type = &self.types[missing.node_type];
        let uncounted = placeholder::uncounted(node_type, counted);
        let key = placeholder::key(constraints, node_type, missing.gpus, &uncounted);
        let (resource, owner) = (&self.resource, &self.owner);
        let pod =
            placeholder::placeholder(missing, constraints, node_type, resource, owner, &uncounted);
        (key, pod)
    }

    fn api(&self) -> Api<Pod> {
        self.pods.api(&self.owner.namespace)
    }

    async fn placeholders(&self) -> Result<Existing, CallError> {
        let params = ListParams::default().labels(PLACEHOLDER);
        let mut existing = Existing::new();
        let api = self.pods.views(&self.owner.namespace);
        for pod in timeout(DEADLINE, api.list(&params)).await??.items {
            let key = pod.labels().and_then(|labels| labels.get(PLACEHOLDER));
            if let (Some(key), Some(name)) = (key, pod.name()) {
                let all = existing.entry(key.clone()).or_default();
                all.push(Placeholder {
                    name: name.to_owned(),
                    is_reported: disruption::unschedulable(&pod),
                });
            }
        }
        Ok(existing)
    }

    /// Deletes those that are no longer needed.
    async fn delete_superfluous(
        &self,
        wanted: &Wanted,
        existing: &mut Existing,
    ) -> Result<(), CallError> {
        let (api, at_once) = (self.api(), DeleteParams::default().grace_period(0));
        for (key, all) in existing {
            let needed = wanted.get(key).map_or(0, Vec::len);
            for Placeholder { name, .. } in all.split_off(needed.min(all.len())) {
                match timeout(DEADLINE, api.delete(&name, &at_once)).await? {
                    Ok(_) => tracing::info!(placeholder = name, "its GPUs are no longer missing"),
                    Err(kube::Error::Api(status)) if status.code == 404 => {}
                    Err(error) => return Err(error.into()),
                }
            }
        }
        Ok(())
    }

    /// Labels the nodes of this snapshot whose GPUs were counted for the first time.
    async fn label_counted(&self, cluster: &Cluster) -> Result<(), CallError> {
        let nodes: Api<Node> = Api::all(self.client.clone());
        let patch = Patch::Merge(json!({"metadata": {"labels": {COUNTED: "true"}}}));
        for node in self.uncounted(cluster) {
            let params = PatchParams::default();
            let call = nodes.patch_metadata(node.as_str(), &params, &patch);
            match timeout(DEADLINE, call).await? {
                Ok(_) => tracing::info!(%node, "counted the GPUs of the node"),
                Err(kube::Error::Api(status)) if status.code == 404 => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Nodes of this snapshot with an inventory and without the label.
    fn uncounted(&self, cluster: &Cluster) -> Vec<NodeName> {
        self.cache.read(|ledger| {
            let names = cluster.iter().map(|(_, name, _)| name);
            let uncounted = names.filter(|name| {
                let published = ledger.published(name.as_str());
                published.is_some_and(|one| one.inventory.is_some() && !one.counted)
            });
            uncounted.cloned().collect()
        })
    }

    /// Creates the placeholders that both this count and the one before asked for. All exist before
    /// the first one is reported as unschedulable, so that the autoscaler sees the whole need at
    /// once.
    async fn create_missing(
        &self,
        wanted: Wanted,
        before: &BTreeMap<String, usize>,
        existing: Existing,
    ) -> Result<(), CallError> {
        let (api, params) = (self.api(), PostParams::default());
        let present: BTreeMap<_, _> = existing.iter().map(|(key, all)| (key, all.len())).collect();
        let mut created = Vec::new();
        for (key, pods) in wanted {
            let lasting = before.get(&key).copied().unwrap_or_default();
            let present = present.get(&key).copied().unwrap_or_default();
            for pod in pods.into_iter().take(lasting).skip(present) {
                let pod: Pod = serde_json::from_value(pod).map_err(kube::Error::SerdeError)?;
                let made = match timeout(DEADLINE, api.create(&params, &pod)).await? {
                    Ok(made) => made,
                    // It has constraints of others' pods; those of other keys may be accepted.
                    Err(kube::Error::Api(status))
                        if matches!(status.code, 400 | 403 | 413 | 422) =>
                    {
                        let why = &status.message;
                        tracing::warn!(%why, "a placeholder is refused, so no GPU is added for its pods");
                        break;
                    }
                    Err(error) => return Err(error.into()),
                };
                created.extend(made.metadata.name);
            }
        }
        if !created.is_empty() {
            tracing::info!(
                placeholders = created.len(),
                "GPUs are missing for pending pods"
            );
        }
        let unreported = existing
            .into_values()
            .flatten()
            .filter(|one| !one.is_reported);
        let status = Patch::Strategic(placeholder::unschedulable(Timestamp::now()));
        for name in unreported.map(|one| one.name).chain(created) {
            let params = PatchParams::default();
            timeout(DEADLINE, api.patch_status(&name, &params, &status)).await??;
        }
        Ok(())
    }
}

#[cfg(test)]
#[path = "scale_up_tests.rs"]
mod tests;
