//! Which device plugin serves our resources. The kubelet asks the one that registered a resource
//! last and does not notify the one before: its stream stays open, and each list on it still
//! replaces the registered device ids, but containers get devices from the other plugin. Another
//! plugin is only reported: two plugins that register again would take turns forever.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use aliquot_core::PodUid;
use aliquot_k8s::event::{EventNote, EventSender, PodRef};
use parking_lot::Mutex;
use tokio::task::spawn_blocking;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::allocation::node_allocations::NodeAllocations;
use crate::gpus::inventory::TakenResource;
use crate::kubelet::proto::HEALTHY;
use crate::kubelet::proto::v1beta1::Device;
use crate::metrics::{Metrics, set_count};
use crate::node_view::NodeCondition;
use aliquot_node_state::checkpoint::{self, CheckpointEntry, CheckpointError};
use aliquot_node_state::device_id::DeviceIds;

/// The condition: another device plugin serves a resource that this agent advertises.
pub const RESOURCE_TAKEN: &str = "AliquotResourceTaken";

/// Least time between two checks, however many pods change.
const GAP: Duration = Duration::from_secs(1);
/// How long the kubelet's list must be none of ours: it reads and stores ours later, a busy one much
/// later. What another plugin allocates is noticed at once.
const SETTLED_AFTER: Duration = Duration::from_mins(1);
/// How many lists are remembered: while the kubelet cannot store ours, as on a full disk, it keeps one
/// that it was sent before.
const REMEMBERED: usize = 16;

/// What the kubelet was last sent of a resource.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AdvertisedList {
    /// The number of the stream. The kubelet opens one after each registration.
    pub stream: u64,
    /// The healthy devices of each list, the newest last.
    pub sent: VecDeque<DeviceIds>,
}

/// What the kubelet was last sent of each resource. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct AdvertisedLists(Arc<Mutex<BTreeMap<String, AdvertisedList>>>);

impl AdvertisedLists {
    /// The kubelet opened a stream of a resource.
    pub fn open(&self, resource: &str) {
        let mut lists = self.0.lock();
        lists.entry(resource.to_owned()).or_default().stream += 1;
    }

    /// A list is sent on the last stream of a resource.
    pub fn record(&self, resource: &str, devices: &[Device]) {
        let healthy = devices.iter().filter(|device| device.health == HEALTHY);
        let healthy: DeviceIds = healthy.map(|device| device.id.clone()).collect();
        let mut lists = self.0.lock();
        let sent = &mut lists.entry(resource.to_owned()).or_default().sent;
        if sent.back() != Some(&healthy) {
            sent.push_back(healthy);
            if sent.len() > REMEMBERED {
                sent.pop_front();
            }
        }
    }

    /// The lists of these resources; `None` while the kubelet has not asked for each.
    pub fn all_of(&self, resources: &BTreeSet<String>) -> Option<BTreeMap<String, AdvertisedList>> {
        let lists = self.0.lock();
        let found = resources.iter().map(|resource| {
            let list = lists.get(resource)?.clone();
            Some((resource.clone(), list))
        });
        found.collect()
    }
}

type ContainerKey = (PodUid, String);

/// What was found of one resource so far.
#[derive(Debug, Default)]
struct ResourceHistory {
    /// The last stream.
    stream: u64,
    /// Since when the kubelet's list is another plugin's.
    differs: Option<Instant>,
    /// Containers with devices from another plugin; `None` before the first check.
    containers: Option<BTreeSet<ContainerKey>>,
    /// The stream before the other plugin registered, and that plugin's device ids.
    taken: Option<(u64, DeviceIds)>,
}

/// What was found of each resource so far.
#[derive(Debug, Default)]
pub struct ResourceOwners(BTreeMap<String, ResourceHistory>);

impl ResourceOwners {
    /// Finds the resources that another plugin serves, by the kubelet's checkpoint. A resource
    /// counts as taken until this agent has registered it again.
    pub fn check(
        &mut self,
        advertised: &BTreeMap<String, AdvertisedList>,
        registered: &BTreeMap<String, DeviceIds>,
        entries: &[CheckpointEntry],
        now: Instant,
    ) -> Vec<TakenResource> {
        self.0
            .retain(|resource, _| advertised.contains_key(resource));
        let mut taken = Vec::new();
        for (resource, list) in advertised {
            let history = self.0.entry(resource.clone()).or_default();
            let registered = registered.get(resource);
            let foreign = registered.filter(|ids| is_foreign(ids, &list.sent));
            let allocated = foreign_allocations(entries, resource);
            history.update(list.stream, foreign, allocated, now);
            taken.extend(history.taken.as_ref().map(|(_, ids)| TakenResource {
                resource: resource.clone(),
                ids: ids.clone(),
            }));
        }
        taken
    }
}

impl ResourceHistory {
    fn update(
        &mut self,
        stream: u64,
        foreign: Option<&DeviceIds>,
        allocated: BTreeMap<ContainerKey, &DeviceIds>,
        now: Instant,
    ) {
        if self.stream != stream {
            self.stream = stream;
            self.differs = None;
        }
        self.differs = foreign.and_then(|_| self.differs.or(Some(now)));
        let settled = |since: Instant| now - since >= SETTLED_AFTER;
        let foreign_settled = foreign.filter(|_| self.differs.is_some_and(settled));
        // Those of the first check may come from a plugin that served the node before.
        let mut new = DeviceIds::new();
        if let Some(known) = &self.containers {
            let unknown = allocated
                .iter()
                .filter(|(container, _)| !known.contains(*container));
            new.extend(unknown.flat_map(|(_, ids)| ids.iter().cloned()));
        }
        self.containers = Some(allocated.into_keys().collect());
        if let Some(ids) = foreign_settled {
            self.taken = Some((stream, ids.clone()));
        } else if !new.is_empty() {
            self.taken = Some((stream, new));
        } else if foreign.is_none() && self.taken.as_ref().is_some_and(|(on, _)| *on != stream) {
            self.taken = None;
        }
    }
}

/// Whether the kubelet's list is another plugin's: none that we sent. A list replaces the one
/// before as a whole, so ids are not compared one by one: NVIDIA's replicas may be named like ours.
/// None is registered while no plugin of the resource is connected.
fn is_foreign(registered: &DeviceIds, sent: &VecDeque<DeviceIds>) -> bool {
    !registered.is_empty() && !sent.contains(registered)
}

/// The device ids of the containers whose Allocate answer for a resource is not ours.
fn foreign_allocations<'a>(
    entries: &'a [CheckpointEntry],
    resource: &str,
) -> BTreeMap<ContainerKey, &'a DeviceIds> {
    let foreign = |entry: &&CheckpointEntry| entry.resource == resource && entry.name.is_none();
    let of_container =
        |entry: &'a CheckpointEntry| ((entry.pod.clone(), entry.container.clone()), &entry.ids);
    entries.iter().filter(foreign).map(of_container).collect()
}

/// [`RESOURCE_TAKEN`].
pub fn condition(taken: &[TakenResource]) -> NodeCondition {
    if taken.is_empty() {
        let message = "this agent serves every resource that it advertises to the kubelet";
        return NodeCondition::new(false, "Registered", message);
    }
    let each = taken.iter().map(|one| {
        let example = one.ids.first().map(String::as_str).unwrap_or_default();
        let count = one.ids.len();
        let noun = if count == 1 { "id" } else { "ids" };
        format!(
            "{} ({count} device {noun}, such as {example})",
            one.resource
        )
    });
    let message = format!(
        "another device plugin serves {} on this node, because it registered later: new containers get devices from it, without limits; expected: this agent alone; disable the other plugin here (NVIDIA's device plugin, GKE's nvidia-gpu-device-plugin or AKS's managed one), then delete this node's agent pod, so that the agent registers again",
        each.collect::<Vec<_>>().join(", ")
    );
    NodeCondition::new(true, "OtherDevicePlugin", message)
}

/// What reports resources that another device plugin serves.
pub struct ResourceOwnerMonitor {
    pub allocations: Arc<NodeAllocations>,
    pub advertised: AdvertisedLists,
    pub node: String,
    pub notes: EventSender,
    /// Shows how many device ids are another plugin's.
    pub metrics: Metrics,
}

impl ResourceOwnerMonitor {
    /// Checks until `stop`, every `interval` and after changes of the pods.
    pub async fn run(self, interval: Duration, stop: CancellationToken) {
        let mut owners = ResourceOwners::default();
        let mut changes = self.allocations.pods.subscribe();
        loop {
            if self.allocations.pods.synced() {
                changes.borrow_and_update();
                self.check(&mut owners).await;
            }
            tokio::select! {
                () = stop.cancelled() => return,
                () = tokio::time::sleep(interval) => {}
                () = async { let _ = changes.changed().await; tokio::time::sleep(GAP).await; } => {}
            }
        }
    }

    async fn check(&self, owners: &mut ResourceOwners) {
        let node = self.allocations.published.get();
        let resources = node.resources();
        let advertised = self.advertised.all_of(&resources);
        // Another plugin may follow an agent that cleans up.
        let Some(advertised) = advertised.filter(|_| !node.cleaning_up) else {
            return;
        };
        let known = Arc::clone(&self.allocations);
        let read = move || {
            let registered = checkpoint::read_registered(&known.paths.checkpoint)?;
            Ok::<_, CheckpointError>((registered, known.entries()?))
        };
        let (registered, entries) = match spawn_blocking(read).await {
            Ok(Ok(read)) => read,
            Ok(Err(error)) => {
                tracing::warn!(%error, "cannot check which device plugin serves the resources of this agent");
                return;
            }
            Err(_) => return,
        };
        let taken = owners.check(&advertised, &registered, &entries, Instant::now());
        let ids = taken.iter().map(|one| one.ids.len()).sum::<usize>();
        set_count(&self.metrics.foreign_device_ids, ids);
        if node.taken_resources.as_deref().unwrap_or_default() != taken.as_slice() {
            let event = note(&self.node, &taken);
            tracing::warn!(reason = event.reason, text = event.text);
            self.notes.send(event);
        }
        self.allocations.published.set_taken_resources(taken);
    }
}

fn note(node: &str, taken: &[TakenResource]) -> EventNote {
    EventNote {
        pod: PodRef::node(node),
        warning: !taken.is_empty(),
        reason: if taken.is_empty() {
            "ResourceServed"
        } else {
            "ResourceTaken"
        },
        action: "Registering",
        text: condition(taken).message,
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::testing::{RESOURCE, entry};
    use aliquot_node_state::checkpoint::parse_registered;

    const OURS: [&str; 2] = ["GPU-a::0", "GPU-a::1"];

    fn ids(ids: &[&str]) -> DeviceIds {
        ids.iter().map(|&id| id.to_owned()).collect()
    }

    /// An agent that advertises [`OURS`], and its checks so far.
    #[derive(Default)]
    struct Agent {
        stream: u64,
        /// The lists before [`OURS`].
        earlier: Vec<DeviceIds>,
        owners: ResourceOwners,
        entries: Vec<CheckpointEntry>,
    }

    impl Agent {
        /// Checks `seconds` after the start, when the kubelet has `registered`.
        fn check(&mut self, start: Instant, seconds: u64, registered: &[&str], expected: &[&str]) {
            let mut sent = VecDeque::from(self.earlier.clone());
            sent.push_back(ids(&OURS));
            let list = AdvertisedList {
                stream: self.stream,
                sent,
            };
            let file = serde_json::json!({"Data": {"RegisteredDevices": {RESOURCE: registered}}});
            let registered = parse_registered(file.to_string().as_bytes(), Path::new("/k/cp"));
            let now = start + Duration::from_secs(seconds);
            let found = self.owners.check(
                &[(RESOURCE.to_owned(), list)].into(),
                &registered.expect("readable"),
                &self.entries,
                now,
            );
            let expected = (!expected.is_empty()).then(|| TakenResource {
                resource: RESOURCE.to_owned(),
                ids: ids(expected),
            });
            let expected: Vec<TakenResource> = expected.into_iter().collect();
            assert_eq!(found, expected, "at {seconds} s");
        }
    }

    #[test]
    fn reports_ids_that_another_plugin_registered() {
        let start = Instant::now();
        let check = |theirs: &[&str], expected: &[&str]| {
            let mut agent = Agent::default();
            agent.check(start, 0, &OURS, &[]);
            agent.check(start, 1, theirs, &[]);
            agent.check(start, 61, theirs, expected);
        };
        for theirs in [
            // NVIDIA's, with one replica and with several; GKE's; a list that has ours, too.
            &["GPU-a"][..],
            &["GPU-a::0"],
            &["nvidia0", "nvidia1"],
            &["GPU-a::0", "GPU-a::1", "GPU-a::2"],
        ] {
            check(theirs, theirs);
        }
        check(&OURS, &[]);
        // The kubelet counts none while no plugin is connected.
        check(&[], &[]);
    }

    #[test]
    fn ignores_list_that_kubelet_has_yet_to_replace() {
        let start = Instant::now();
        let mut agent = Agent::default();
        agent.check(start, 0, &["GPU-a"], &[]);
        agent.check(start, 59, &["GPU-a"], &[]);
        agent.check(start, 63, &OURS, &[]);
        agent.check(start, 100, &["GPU-a"], &[]);
        // A new registration, of which the list is not stored yet.
        agent.stream += 1;
        agent.check(start, 200, &["GPU-a"], &[]);
        agent.check(start, 201, &OURS, &[]);
        // The kubelet cannot store our last list.
        agent.earlier.push(ids(&OURS[..1]));
        agent.check(start, 300, &OURS[..1], &[]);
        agent.check(start, 900, &OURS[..1], &[]);
    }

    #[test]
    fn resource_stays_taken_until_agent_registers_again() {
        let start = Instant::now();
        let mut agent = Agent::default();
        agent.check(start, 0, &["nvidia0"], &[]);
        agent.check(start, 60, &["nvidia0"], &["nvidia0"]);
        // A later list of ours replaces the ids, but not the plugin that allocates.
        agent.check(start, 70, &OURS, &["nvidia0"]);
        agent.check(start, 80, &[], &["nvidia0"]);
        agent.stream += 1;
        agent.check(start, 90, &["nvidia0"], &["nvidia0"]);
        agent.check(start, 91, &OURS, &[]);
    }

    #[test]
    fn reports_devices_that_another_plugin_allocated() {
        let start = Instant::now();
        let mut agent = Agent::default();
        // A pod of the plugin that served this node before.
        agent.entries.push(entry("before", None, &["GPU-a"]));
        agent.check(start, 0, &OURS, &[]);
        let own = entry("own", Some("GPU-a-0-0000000000000001"), &["GPU-a::0"]);
        agent.entries.push(own);
        agent.check(start, 1, &OURS, &[]);
        agent.entries.push(entry("other", None, &["GPU-a::1"]));
        agent.check(start, 2, &OURS, &["GPU-a::1"]);
        agent.check(start, 3, &OURS, &["GPU-a::1"]);
        agent.stream += 1;
        agent.check(start, 4, &OURS, &[]);
    }

    #[test]
    fn knows_advertised_list_after_kubelet_asked_for_it() {
        let lists = AdvertisedLists::default();
        let resources: BTreeSet<String> = [RESOURCE.to_owned()].into();
        assert_eq!(lists.all_of(&resources), None);
        let device = |id: &str, health: &str| Device {
            id: id.to_owned(),
            health: health.to_owned(),
            topology: None,
        };
        for stream in 1..=2 {
            lists.open(RESOURCE);
            let devices = [
                device(OURS[0], HEALTHY),
                device(OURS[1], crate::kubelet::proto::UNHEALTHY),
            ];
            lists.record(RESOURCE, &devices);
            let list = AdvertisedList {
                stream,
                sent: [ids(&OURS[..1])].into(),
            };
            let expected = [(RESOURCE.to_owned(), list)].into();
            assert_eq!(lists.all_of(&resources), Some(expected));
        }
        assert_eq!(lists.all_of(&BTreeSet::new()), Some(BTreeMap::new()));
        lists.record(RESOURCE, &[device(OURS[1], HEALTHY)]);
        let all = lists.all_of(&resources).expect("known");
        assert_eq!(all[RESOURCE].sent, [ids(&OURS[..1]), ids(&OURS[1..])]);
    }
}
