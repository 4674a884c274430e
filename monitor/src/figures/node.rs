//! Samples of the node: processes that nobody accounts for, and the monitor itself.
//!
//! Fed by: what was seen and done. Must not: read anything.

use std::collections::BTreeMap;
use std::time::UNIX_EPOCH;

use super::{Told, number};
use crate::judge::Use;
use crate::metrics::{self as all, Declared, Samples, Value};
use crate::pods::Pod;
use crate::seats::Seat;

pub(super) fn of_strays(samples: &mut Samples, told: &Told) {
    let mut sums: BTreeMap<[String; 6], (u64, u64)> = BTreeMap::new();
    for stray in &told.outcome.strays {
        let pod = stray.pod.as_ref().and_then(|uid| told.pods.get(uid));
        let named = |of: fn(&Pod) -> &String| pod.map_or_else(String::new, |pod| of(pod).clone());
        let card = told.cards.iter().find(|card| card.uuid == stray.card);
        let labels = [
            told.node.clone(),
            card.map_or_else(String::new, |card| card.index.to_string()),
            stray.card.clone(),
            stray.reason.name().to_owned(),
            named(|pod| &pod.named.namespace),
            named(|pod| &pod.named.name),
        ];
        let sum = sums.entry(labels).or_default();
        sum.0 += 1;
        sum.1 = sum.1.saturating_add(stray.bytes);
    }
    for (labels, (number, bytes)) in sums {
        samples.add(&all::STRAYS, &labels, Value::Whole(number));
        samples.add(&all::STRAY_BYTES, &labels, Value::Whole(bytes));
    }
}

pub(super) fn of_monitor(samples: &mut Samples, told: &Told) {
    let node = [told.node.clone()];
    let mut put = |metric: &Declared, value: Value| samples.add(metric, &node, value);
    let seats = &told.look.seats;
    put(&all::SEATS, number(seats.all.len()));
    let lingers = |(seat, uses): &(&Seat, &Vec<Use>)| {
        let lives = uses.iter().any(|one| one.processes > 0);
        let pod = told.pods.get(&seat.pod);
        lives && told.listed && pod.is_none_or(|pod| pod.said.ended)
    };
    let lingering = seats.all.iter().zip(&told.outcome.uses).filter(lingers);
    put(&all::LINGERING, number(lingering.count()));
    put(&all::UNREADABLE, number(seats.faults.len()));
    put(&all::UNKNOWN, Value::Whole(told.outcome.unknown));
    put(&all::NOT_KILLED, Value::Whole(told.done.spared));
    put(&all::ABOVE, Value::Whole(told.done.above));
    put(&all::EVICTIONS, Value::Whole(told.done.evictions));
    put(&all::EVENTS_DROPPED, Value::Whole(told.dropped));
    put(&all::LOOK, Value::Part(told.took.as_secs_f64()));
    let ended = told.ended.duration_since(UNIX_EPOCH).unwrap_or_default();
    put(&all::LAST_LOOK, Value::Part(ended.as_secs_f64()));
    // From 0 on, so that the first is a change.
    for what in ["counters", "inventory", "limits", "names", "processes"] {
        let labels = [told.node.clone(), what.to_owned()];
        let times = told.failures.get(what).copied().unwrap_or(0);
        samples.add(&all::FAILURES, &labels, Value::Whole(times));
    }
    for reason in ["unmanaged", "oom"] {
        let labels = [told.node.clone(), reason.to_owned()];
        let times = told.done.killed.get(reason).copied().unwrap_or(0);
        samples.add(&all::KILLED, &labels, Value::Whole(times));
    }
}
