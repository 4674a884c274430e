//! All nodes at one moment: an immutable snapshot that is cheap to take.
//!
//! Nodes are stored in slots, and slots in chunks that snapshots share; a change copies one
//! chunk of pointers. A slot belongs to one node name forever, so that a [`NodeSet`] stays
//! valid, and has a version that is new after every change, so that verdicts about a node
//! can be cached until then ([`crate::decide`]).

use std::sync::Arc;

use fixedbitset::FixedBitSet;
use hashbrown::HashMap;

use crate::id::{Namespace, NodeName};
use crate::node::NodeState;
use crate::units::HostResources;

/// Slots in a chunk: a change of one node among 5,000 copies this many pointers, and a
/// snapshot a hundredth as many.
const CHUNK: usize = 64;

#[derive(Clone, Debug)]
struct Slot {
    version: u64,
    /// The version at the last change of anything but CPU and memory.
    devices_version: u64,
    /// [`NodeState::kind`].
    kind: Option<u64>,
    name: NodeName,
    /// A copy: in the states, the CPU and memory of 5,000 nodes are far from each other in memory.
    free: HostResources,
    /// `None` for a removed node.
    state: Option<Arc<NodeState>>,
}

/// The nodes. A clone is a snapshot.
#[derive(Clone, Debug, Default)]
pub struct Cluster {
    /// The slot of each name that there ever was.
    slots: Arc<HashMap<NodeName, usize>>,
    chunks: Vec<Arc<Vec<Slot>>>,
    version: u64,
    /// For each namespace, the number of nodes with a reservation for it.
    reserved: Arc<HashMap<Namespace, usize>>,
}

/// A set of nodes of one [`Cluster`] and its later snapshots. Nodes that were added after it was made
/// count as members, and so do nodes that were removed at the time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeSet(FixedBitSet);

impl NodeSet {
    /// Whether the node in this slot is in the set, or was added after it was made.
    pub fn contains(&self, slot: usize) -> bool {
        slot >= self.0.len() || self.0.contains(slot)
    }

    /// The slots of the nodes that were named when the set was made, in order.
    pub fn named(&self) -> impl Iterator<Item = usize> {
        self.0.ones()
    }
}

impl Cluster {
    /// The slot of a known node.
    pub fn slot(&self, name: &str) -> Option<usize> {
        let slot = *self.slots.get(name)?;
        self.at(slot).map(|_| slot)
    }

    /// The slot of a known node, looked for in this slot first: callers name nodes mostly in the
    /// order in which they were added.
    pub fn slot_near(&self, name: &str, guess: usize) -> Option<usize> {
        match self.raw(guess) {
            Some(slot) if slot.name.as_str() == name => slot.state.as_ref().map(|_| guess),
            _ => self.slot(name),
        }
    }

    pub fn at(&self, slot: usize) -> Option<&Arc<NodeState>> {
        self.raw(slot)?.state.as_ref()
    }

    pub fn named(&self, slot: usize) -> Option<(&NodeName, &Arc<NodeState>)> {
        let slot = self.raw(slot)?;
        Some((&slot.name, slot.state.as_ref()?))
    }

    /// A number that is new whenever the node in this slot changes.
    pub fn version(&self, slot: usize) -> u64 {
        self.raw(slot).map_or(0, |slot| slot.version)
    }

    /// [`Self::version`] at the last change of anything but CPU and memory of the node in this slot.
    pub(crate) fn devices_version(&self, slot: usize) -> u64 {
        self.raw(slot).map_or(0, |slot| slot.devices_version)
    }

    /// The free CPU and memory of the node in a slot.
    pub(crate) fn free(&self, slot: usize) -> HostResources {
        self.raw(slot)
            .map_or_else(HostResources::default, |slot| slot.free)
    }

    /// [`NodeState::kind`] of the node in a slot.
    pub fn kind(&self, slot: usize) -> Option<u64> {
        self.raw(slot)?.kind
    }

    pub fn node(&self, name: &str) -> Option<&Arc<NodeState>> {
        self.at(*self.slots.get(name)?)
    }

    /// Whether any node has a reservation for pods of this namespace.
    pub fn reserves_for(&self, namespace: &Namespace) -> bool {
        self.reserved.contains_key(namespace)
    }

    /// The number of slots, including those of removed nodes.
    pub fn slots(&self) -> usize {
        self.slots.len()
    }

    pub fn iter(&self) -> impl Iterator<Item = (usize, &NodeName, &Arc<NodeState>)> {
        let slots = self.chunks.iter().flat_map(|chunk| chunk.iter());
        let numbered = slots.enumerate();
        numbered.filter_map(|(at, slot)| Some((at, &slot.name, slot.state.as_ref()?)))
    }

    /// The set of those named nodes that are known. A removed node that comes back counts
    /// as a member, like a new one.
    pub fn set<S: AsRef<str>>(&self, names: &[S]) -> NodeSet {
        let mut set = FixedBitSet::with_capacity(self.slots());
        let gone = (0..self.slots()).filter(|slot| self.at(*slot).is_none());
        let offered = names.iter().filter_map(|name| self.slot(name.as_ref()));
        set.extend(offered.chain(gone));
        NodeSet(set)
    }

    /// Replaces the state of a node; `None` when it is removed.
    pub fn put(&mut self, name: &NodeName, state: Option<NodeState>) {
        let slot = match self.slots.get(name) {
            Some(slot) => *slot,
            None if state.is_none() => return,
            None => {
                let slot = self.slots.len();
                Arc::make_mut(&mut self.slots).insert(name.clone(), slot);
                slot
            }
        };
        self.version += 1;
        self.count_reserved(slot, state.as_ref());
        let unchanged = self.raw(slot).filter(|old| match (&old.state, &state) {
            (Some(old), Some(new)) => old.but_host() == new.but_host(),
            _ => false,
        });
        let (devices_version, kind) = match unchanged {
            Some(old) => (old.devices_version, old.kind),
            None => (self.version, state.as_ref().and_then(NodeState::kind)),
        };
        let new = Slot {
            version: self.version,
            devices_version,
            kind,
            name: name.clone(),
            free: state
                .as_ref()
                .map_or_else(HostResources::default, |node| node.host.free()),
            state: state.map(Arc::new),
        };
        if slot / CHUNK == self.chunks.len() {
            self.chunks.push(Arc::new(Vec::with_capacity(CHUNK)));
        }
        let chunk = Arc::make_mut(&mut self.chunks[slot / CHUNK]);
        match chunk.get_mut(slot % CHUNK) {
            Some(old) => *old = new,
            None => chunk.push(new),
        }
    }

    /// Updates the reservations when the node in this slot changes.
    fn count_reserved(&mut self, slot: usize, new: Option<&NodeState>) {
        let old = self.at(slot).map_or(&[][..], |old| &old.reserved_for);
        let new = new.map_or(&[][..], |new| &new.reserved_for);
        if old == new {
            return;
        }
        let old = old.to_vec();
        let reserved = Arc::make_mut(&mut self.reserved);
        for namespace in new {
            *reserved.entry(namespace.clone()).or_default() += 1;
        }
        for namespace in old {
            if let Some(nodes) = reserved.get_mut(&namespace) {
                *nodes -= 1;
            }
        }
        reserved.retain(|_, nodes| *nodes > 0);
    }

    fn raw(&self, slot: usize) -> Option<&Slot> {
        self.chunks.get(slot / CHUNK)?.get(slot % CHUNK)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::NodePublication;
    use crate::tests::{gpu, published};
    use crate::units::MilliCpu;

    fn state() -> NodeState {
        NodeState::new(&NodePublication::default(), &[], HostResources::default())
    }

    #[test]
    fn keeps_snapshots_unchanged_and_slot_names_stable() {
        let mut cluster = Cluster::default();
        for number in 0..200 {
            cluster.put(&format!("n{number}").as_str().into(), Some(state()));
        }
        let before = cluster.clone();
        let set = cluster.set(&["n7", "n130", "unknown"]);
        cluster.put(&"n7".into(), None);
        cluster.put(&"new".into(), Some(state()));
        assert_eq!((before.slot("n7"), cluster.slot("n7")), (Some(7), None));
        for guess in [0, 6, 7, 199, 900] {
            assert_eq!(before.slot_near("n7", guess), Some(7), "{guess}");
            assert_eq!(cluster.slot_near("n7", guess), None, "{guess}");
        }
        assert_eq!((before.slot("new"), cluster.slot("new")), (None, Some(200)));
        assert_eq!(before.iter().count(), 200);
        let inside = |slot| set.contains(slot);
        assert!(inside(7) && inside(130) && !inside(8) && inside(200));
        assert_eq!(set.named().collect::<Vec<_>>(), [7, 130]);
        let without = cluster.set(&["n8"]);
        assert!(!without.contains(9));
        assert!(without.contains(7), "n7 will come back");
        cluster.put(&"n7".into(), Some(state()));
        assert_eq!(cluster.slot("n7"), Some(7));
        assert_ne!(before.version(7), cluster.version(7));
        assert_eq!(before.version(8), cluster.version(8));
    }

    #[test]
    fn tells_changes_of_cpu_from_others() {
        let mut cluster = Cluster::default();
        let mut put = |cpu, published: &NodePublication| {
            let host = HostResources {
                cpu: MilliCpu(cpu),
                ..HostResources::default()
            };
            cluster.put(&"n".into(), Some(NodeState::new(published, &[], host)));
            (cluster.version(0), cluster.devices_version(0))
        };
        let other = published(vec![gpu(0, 1000, 9)]);
        let versions = [
            put(1, &NodePublication::default()),
            put(2, &NodePublication::default()),
            put(2, &other),
            put(3, &other),
        ];
        assert_eq!(versions, [(1, 1), (2, 1), (3, 3), (4, 3)]);
    }
}
