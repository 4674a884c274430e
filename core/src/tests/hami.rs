//! HAMi's rules as tables: a row begins with the number of its rule, as in
//! docs/migrating-from-hami.md. A rule that is not here differs, and that page
//! says how.

mod cards;
mod choice;
mod codec;
mod pods;
mod quota;
mod requests;
mod scores;
mod wishes;

use crate::inventory::{Gpu, Inventory};
use crate::node::NodeState;
use crate::request::Ask;
use crate::tests::{demand, fit, gpu, inventory};
use crate::wishes::Wishes;
use crate::{Demand, Stage};

/// An annotation's name and value.
type Annotation<'a> = (&'a str, &'a str);

/// A pod of these containers with these annotations.
fn pod(containers: &[(Stage, Ask)], annotations: &[Annotation<'_>]) -> Demand {
    let containers: Vec<_> = containers.iter().map(|(s, ask)| (*s, Some(*ask))).collect();
    let value_of = |key: &str| annotations.iter().find(|(k, _)| *k == key).map(|(_, v)| *v);
    let wishes = Wishes::read(value_of).unwrap();
    Demand {
        node_policy: wishes.node_policy,
        gpu_policy: wishes.gpu_policy,
        rules: wishes.rules,
        ..demand(&containers)
    }
}

/// One app container.
fn asks(ask: Ask, annotations: &[Annotation<'_>]) -> Demand {
    pod(&[(Stage::App, ask)], annotations)
}

/// A node of so many cards of 1000 MiB and 4 seats, each changed by `change`,
/// with what pods hold of each: MiB and percent.
fn node_of(used: &[&[(u64, u32)]], change: impl Fn(usize, &mut Gpu)) -> NodeState {
    fit::state(cards(used.len(), change), used)
}

fn cards(count: usize, change: impl Fn(usize, &mut Gpu)) -> Inventory {
    let cards = (0..).take(count).enumerate().map(|(place, index)| {
        let mut card = gpu(index, 1000, 4);
        change(place, &mut card);
        card
    });
    inventory(cards.collect())
}

fn node(used: &[&[(u64, u32)]]) -> NodeState {
    node_of(used, |_, _| {})
}

/// Cards of two NUMA nodes: so many on the first, the others on the second.
fn halves(used: &[&[(u64, u32)]], first: usize) -> NodeState {
    node_of(used, |place, card| {
        card.numa = Some(u32::from(place >= first));
    })
}

/// Which cards each container gets by this rule, or why the pod does not fit.
fn check(rule: &str, node: &NodeState, demand: &Demand, expected: &str) {
    assert_eq!(fit::shown(node, demand), expected, "rule {rule}");
}
