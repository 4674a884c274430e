//! The figures of the last look, as samples of the declared metrics, made when somebody asks:
//! looks are many and scrapes few.
//!
//! Fed by: what was seen of cards and shares, what was done. Must not: read anything.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use aliquot_core::PodUid;
use parking_lot::Mutex;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;

use crate::act::Done;
use crate::cards::{CardNow, InstanceNow};
use crate::enforce::Held;
use crate::judge::{Look, Outcome, Use};
use crate::metrics::{self as all, Declared, Family, Samples, Value};
use crate::pods::Pod;
use crate::seats::{Device, Seat};

mod node;

/// Where the last look is for who scrapes.
#[derive(Clone, Debug, Default)]
pub struct Shown(Arc<Mutex<Option<Arc<Told>>>>);

impl Shown {
    /// This holds from now on.
    pub fn set(&self, told: Told) {
        *self.0.lock() = Some(Arc::new(told));
    }
}

/// Writes them in these families at a scrape.
#[derive(Debug)]
pub struct Exporter {
    /// What is shown.
    pub shown: Shown,
    /// Under which names.
    pub families: Vec<Family>,
}

impl Collector for Exporter {
    fn encode(&self, mut encoder: DescriptorEncoder) -> Result<(), fmt::Error> {
        let told = self.shown.0.lock().clone();
        let samples = told.map(|told| samples(&told)).unwrap_or_default();
        samples.encode(&mut encoder, &self.families)
    }
}

/// All that figures are made of.
#[derive(Debug)]
pub struct Told {
    /// The node's name.
    pub node: String,
    /// What was seen.
    pub look: Look,
    /// Of each card.
    pub cards: Vec<CardNow>,
    /// What it means.
    pub outcome: Outcome,
    /// By what each share is held.
    pub held: Held,
    /// Whether the driver has limits of its own, by card.
    pub driver_limits: BTreeMap<String, bool>,
    /// This node's pods.
    pub pods: BTreeMap<PodUid, Arc<Pod>>,
    /// These are all of them.
    pub listed: bool,
    /// What was done so far.
    pub done: Done,
    /// Reads that failed so far.
    pub failures: BTreeMap<&'static str, u64>,
    /// Events that found no room.
    pub dropped: u64,
    /// How long the look took.
    pub took: Duration,
    /// The monotonic clock's nanoseconds.
    pub now: u64,
    /// The time of day at its end.
    pub ended: SystemTime,
}

/// The samples of one look.
pub fn samples(told: &Told) -> Samples {
    let mut samples = Samples::default();
    for card in &told.cards {
        of_card(&mut samples, told, card);
    }
    for (at, seat) in told.look.seats.all.iter().enumerate() {
        for (place, device) in seat.devices.iter().enumerate() {
            of_share(&mut samples, told, (at, seat), (place, device));
        }
    }
    node::of_strays(&mut samples, told);
    node::of_monitor(&mut samples, told);
    samples
}

fn of_card(samples: &mut Samples, told: &Told, card: &CardNow) {
    let labels = [
        told.node.clone(),
        card.index.to_string(),
        card.uuid.clone(),
        card.model.clone(),
    ];
    let kind = format!("NVIDIA-{}", card.model);
    let [node, index, uuid, model] = labels.clone();
    let hami = [node.clone(), index.clone(), uuid.clone(), kind];
    let device = format!("nvidia{index}");
    let dcgm = [index, uuid, card.bus.clone(), device, model, node];
    let mut put = |metric: &Declared, value: Option<Value>| {
        if let Some(value) = value {
            let labels: &[String] = match metric.family {
                Family::Own => &labels,
                Family::Hami => &hami,
                Family::Dcgm => &dcgm,
            };
            samples.add(metric, labels, value);
        }
    };
    let whole = |value: Option<u32>| value.map(|value| Value::Whole(value.into()));
    let ratio = |value: Option<u32>| value.map(|value| Value::Part(f64::from(value) / 100.0));
    let bytes = card.bytes;
    let mib = |value: u64| Value::Whole(value >> 20);
    let load = card.load;
    let limits = told.driver_limits.get(&card.uuid);
    put(
        &all::GPU_LIMITS,
        limits.map(|has| Value::Whole((*has).into())),
    );
    put(&all::GPU_TOTAL, bytes.map(|of| Value::Whole(of.total)));
    put(&all::GPU_USED, bytes.map(|of| Value::Whole(of.used)));
    put(
        &all::GPU_RESERVED,
        bytes.map(|of| Value::Whole(of.reserved)),
    );
    put(&all::GPU_BUSY, ratio(load.busy));
    put(&all::GPU_MEMORY_BUSY, ratio(load.memory_busy));
    put(&all::GPU_TEMPERATURE, whole(load.temperature));
    let watts = load
        .power
        .map(|milliwatts| Value::Part(f64::from(milliwatts) / 1000.0));
    put(&all::GPU_POWER, watts);
    let seats = told.look.seats.all.iter().enumerate();
    let shares = seats.flat_map(|(at, seat)| (0..seat.devices.len()).map(move |i| (at, i)));
    let shares = shares.filter(|(at, i)| told.look.card(*at, *i) == card.uuid);
    put(&all::GPU_SHARES, Some(number(shares.count())));
    let processes = told
        .look
        .on_cards
        .iter()
        .filter(|one| one.card == card.uuid);
    put(&all::GPU_PROCESSES, Some(number(processes.count())));
    put(&all::HAMI_USED, bytes.map(|of| Value::Whole(of.used)));
    put(&all::HAMI_BUSY, whole(load.busy));
    put(&all::DCGM_BUSY, whole(load.busy));
    put(&all::DCGM_MEMORY_BUSY, whole(load.memory_busy));
    put(&all::DCGM_USED, bytes.map(|of| mib(of.used)));
    let free = bytes.map(|of| of.total.saturating_sub(of.used).saturating_sub(of.reserved));
    put(&all::DCGM_FREE, free.map(mib));
    put(&all::DCGM_TEMPERATURE, whole(load.temperature));
    put(&all::DCGM_POWER, watts);
    put(&all::DCGM_ENERGY, load.energy.map(Value::Whole));
    put(&all::DCGM_SM_CLOCK, whole(load.sm_clock));
    put(&all::DCGM_MEMORY_CLOCK, whole(load.memory_clock));
    put(&all::DCGM_ENCODER, whole(load.encoder));
    put(&all::DCGM_DECODER, whole(load.decoder));
    for one in &card.instances {
        of_instance(samples, &told.node, card, one);
    }
}

fn of_instance(samples: &mut Samples, node: &str, card: &CardNow, one: &InstanceNow) {
    let labels = [
        node.to_owned(),
        card.index.to_string(),
        one.uuid.clone(),
        one.profile.clone(),
        one.numbers.0.to_string(),
        one.numbers.1.to_string(),
    ];
    if let Some(bytes) = one.bytes {
        samples.add(&all::INSTANCE_TOTAL, &labels, Value::Whole(bytes.total));
        samples.add(&all::INSTANCE_USED, &labels, Value::Whole(bytes.used));
    }
}

fn of_share(
    samples: &mut Samples,
    told: &Told,
    (at, seat): (usize, &Seat),
    (place, device): (usize, &Device),
) {
    let found = told.outcome.uses.get(at).and_then(|uses| uses.get(place));
    let Use {
        limit,
        measured,
        tracked,
        contexts,
        peak,
        overhead,
        stale,
        processes,
        busy,
        work,
        refused,
        blind,
    } = found.copied().unwrap_or_default();
    let uuid = told.look.called(at, place).to_owned();
    let hami = [
        seat.namespace.clone(),
        seat.pod_name.clone(),
        seat.container.clone(),
        place.to_string(),
        uuid,
    ];
    let labels = share_labels(told, (at, seat), (place, device));
    let mut put = |metric: &Declared, value: Value| {
        let labels: &[String] = match metric.family {
            Family::Hami => &hami,
            _ => &labels,
        };
        samples.add(metric, labels, value);
    };
    let seconds = |nanoseconds: u64| Value::Part(Duration::from_nanos(nanoseconds).as_secs_f64());
    let core_limit = match device.cores.0 {
        0 => 1.0,
        percent => f64::from(percent) / 100.0,
    };
    put(&all::SHARE_LIMIT, Value::Whole(limit));
    // Nothing is better than too little.
    if !blind {
        put(&all::SHARE_USED, Value::Whole(measured));
        put(&all::SHARE_CLIENTS, Value::Whole(processes));
        put(&all::SHARE_CORE_USED, Value::Part(f64::from(busy) / 100.0));
        put(&all::HAMI_SHARE_USED, Value::Whole(measured));
        put(&all::HAMI_CONTAINER_BYTES, Value::Whole(measured));
        put(&all::HAMI_CONTAINER_BUSY, Value::Whole(busy.into()));
    }
    put(&all::SHARE_PEAK, Value::Whole(peak));
    put(&all::SHARE_TRACKED, Value::Whole(tracked));
    put(&all::SHARE_OVERHEAD, Value::Whole(overhead));
    put(&all::SHARE_STALE, Value::Whole(stale));
    put(&all::SHARE_CORE_LIMIT, Value::Part(core_limit));
    put(&all::SHARE_BUSY, seconds(work.busy));
    put(&all::SHARE_THROTTLED, seconds(work.waited));
    put(&all::SHARE_LAUNCHES, Value::Whole(work.launches));
    put(&all::SHARE_DENIED, Value::Whole(refused));
    if work.last > 0 {
        let since = seconds(told.now.saturating_sub(work.last));
        put(&all::SHARE_LAST, since);
        put(&all::HAMI_LAST, since);
    }
    let spoiled = told.outcome.spoiled.iter().any(|(seat, _)| *seat == at);
    put(&all::SHARE_SPOILED, Value::Whole(spoiled.into()));
    put(&all::HAMI_SHARE_LIMIT, Value::Whole(limit));
    put(&all::HAMI_CONTEXTS, Value::Whole(contexts));
    let rest = tracked.saturating_sub(contexts);
    put(&all::HAMI_BUFFERS, Value::Whole(rest));
    let held = told.held.get(at).and_then(|seat| seat.get(place));
    for by in held.into_iter().flatten() {
        let labels: Vec<String> = labels.iter().cloned().chain([(*by).to_owned()]).collect();
        samples.add(&all::SHARE_ENFORCED, &labels, Value::Whole(1));
    }
}

/// Node, gpu, uuid, mode, profile, namespace, pod, container, pod uid.
fn share_labels(
    told: &Told,
    (at, seat): (usize, &Seat),
    (place, device): (usize, &Device),
) -> [String; 9] {
    let uuid = told.look.called(at, place);
    let parent = told.look.card(at, place);
    let card = told.cards.iter().find(|card| card.uuid == parent);
    let index = card.map_or_else(String::new, |card| card.index.to_string());
    let instances = card.into_iter().flat_map(|card| &card.instances);
    let own = instances
        .filter(|one| one.uuid == uuid)
        .map(|one| one.profile.clone())
        .next();
    [
        told.node.clone(),
        index,
        uuid.to_owned(),
        device.mode.name().to_owned(),
        device.profile.clone().or(own).unwrap_or_default(),
        seat.namespace.clone(),
        seat.pod_name.clone(),
        seat.container.clone(),
        seat.pod.to_string(),
    ]
}

fn number(of: usize) -> Value {
    Value::Whole(u64::try_from(of).unwrap_or(u64::MAX))
}

#[cfg(test)]
#[path = "figures_tests.rs"]
mod tests;
