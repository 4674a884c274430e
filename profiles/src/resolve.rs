//! What each card of a node becomes.
//!
//! Fed by: a profile that [`read`](crate::read()) accepted, and the node's cards.
//! Must not: give a mode while anything is unclear: a selector that hits nothing, a
//! card that two claim, one that is left over, a cut that the card cannot have.

use aliquot_core::GpuUuid;
use aliquot_core::mig::table;
use serde_json::{Value, json};

use crate::config::{Profile, Reserve, Rule};
use crate::fault::{Fault, Faults, below};
use crate::layout::{self, Refusal};
use crate::mode::{Defaults, MOST_CLIENTS_BEFORE_VOLTA, Mig, Mode, Slice, Strategy};
use crate::reserve;
use crate::select::Pci;

/// A physical card, as the driver tells of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Card {
    /// Its uuid.
    pub uuid: GpuUuid,
    /// NVML's index.
    pub index: u32,
    /// NVML's product name.
    pub product: String,
    /// [`Pci::Address`], where the driver knows it.
    pub pci: Option<Pci>,
    /// [`Pci::Model`], where the driver knows it.
    pub model: Option<Pci>,
    /// Compute capability, major and minor, where the driver knows it.
    pub capability: Option<(u32, u32)>,
    /// It can be cut into instances; `None`: unknown.
    pub mig: Option<bool>,
}

/// What a card becomes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// The card.
    pub uuid: GpuUuid,
    /// What says so, such as `gpus[1]` or `rest`.
    pub from: String,
    /// Its mode, nothing left open.
    pub mode: Mode,
    /// What of it only some namespaces are given.
    pub reserve: Vec<Reserve>,
}

/// A plan for each card in the order of the cards, or all that is wrong. Paths
/// begin at the profile: `profiles.<name>`.
pub fn resolve(
    name: &str,
    profile: &Profile,
    cards: &[Card],
    defaults: &Defaults,
) -> Result<Vec<Plan>, Faults> {
    let top = below("profiles", name);
    let mut faults = Vec::new();
    for (place, rule) in profile.gpus.iter().enumerate() {
        hits_something(
            rule,
            cards,
            &format!("{top}.gpus[{place}].select"),
            &mut faults,
        );
    }
    let mut plans = Vec::new();
    for card in cards {
        let rules = profile.gpus.iter().enumerate();
        let claims: Vec<(usize, &Rule)> = rules.filter(|(_, r)| r.select.hits(card)).collect();
        let (from, mode, reserve) = match (&claims[..], &profile.rest) {
            ([(place, rule)], _) => (format!("gpus[{place}]"), &rule.mode, &rule.reserve[..]),
            ([], Some(rest)) => ("rest".to_owned(), rest, &[][..]),
            ([], None) => {
                let accepted = "an entry of gpus for it, or rest";
                let what = format!("leaves card {} over", said(card));
                faults.push(Fault::bare(&top, what, accepted));
                continue;
            }
            (claims, _) => {
                let places: Vec<String> =
                    claims.iter().map(|(p, _)| format!("gpus[{p}]")).collect();
                let what = format!("gives card {} to {}", said(card), places.join(" and "));
                let accepted = "each card in one entry; rest is for those that are left";
                faults.push(Fault::bare(&top, what, accepted));
                continue;
            }
        };
        let path = format!("{top}.{from}");
        can_have(card, mode, &path, &mut faults);
        reserve::has_room(card, mode, reserve, &path, &mut faults);
        plans.push(Plan {
            uuid: card.uuid.clone(),
            from,
            mode: mode.filled(defaults),
            reserve: reserve.to_vec(),
        });
    }
    cut_alike(&plans, cards, &top, &mut faults);
    if faults.is_empty() {
        Ok(plans)
    } else {
        Err(Faults(faults))
    }
}

/// Under one name only instances that are alike can be offered: names the cards that are cut
/// otherwise than most.
fn cut_alike(plans: &[Plan], cards: &[Card], top: &str, faults: &mut Vec<Fault>) {
    let single = plans.iter().filter_map(|plan| match &plan.mode {
        Mode::Mig(mig) if mig.strategy == Strategy::Single => Some((plan, &mig.layout)),
        _ => None,
    });
    let single: Vec<(&Plan, &Vec<Slice>)> = single.collect();
    let alike = |layout: &Vec<Slice>| single.iter().filter(|(_, other)| *other == layout).count();
    // The first of those that most cards have.
    let usual = single.iter().rev().max_by_key(|(_, layout)| alike(layout));
    let Some((_, usual)) = usual else { return };
    for (plan, layout) in single.iter().filter(|(_, layout)| layout != usual) {
        let card = cards.iter().find(|card| card.uuid == plan.uuid);
        let card = card.map(said).unwrap_or_default();
        let names = |layout: &[Slice]| {
            let names = layout
                .iter()
                .map(|s| format!("{} x {}", s.count, s.profile));
            names.collect::<Vec<_>>().join(", ")
        };
        let (own, most) = (names(layout), names(usual));
        let what = format!("cuts card {card} into {own}, and the others into {most}");
        let accepted = "one layout for all cards with strategy single, or strategy mixed";
        let path = format!("{top}.{}.layout", plan.from);
        faults.push(Fault::bare(path, what, accepted));
    }
}

/// Such as `2 (NVIDIA A30, GPU-…)`.
pub(crate) fn said(card: &Card) -> String {
    format!("{} ({}, {})", card.index, card.product, card.uuid)
}

fn hits_something(rule: &Rule, cards: &[Card], path: &str, faults: &mut Vec<Fault>) {
    if rule.optional {
        return;
    }
    let what_there_is = |key: &str| {
        let mut all: Vec<String> = cards.iter().filter_map(|card| named(card, key)).collect();
        all.dedup();
        if all.is_empty() {
            "nothing of this node; optional: true where that is right".to_owned()
        } else {
            all.join(", ")
        }
    };
    if rule.select.all && cards.is_empty() {
        let value = Value::Bool(true);
        let path = below(path, "all");
        faults.push(Fault::new(
            path,
            &value,
            "selects no card",
            what_there_is("index"),
        ));
    }
    for entry in rule.select.entries() {
        let hit = |card: &Card| (entry.hits)(card) && rule.select.hits(card);
        if cards.iter().any(hit) {
            continue;
        }
        let path = format!("{path}.{}[{}]", entry.key, entry.place);
        let (what, accepted) = if cards.iter().any(|card| (entry.hits)(card)) {
            let accepted = "keys that select a card together, or optional: true";
            (
                "selects no card that the other keys select",
                accepted.to_owned(),
            )
        } else {
            ("selects no card", what_there_is(entry.key))
        };
        faults.push(Fault::new(path, &entry.written, what, accepted));
    }
}

/// What would have selected this card under a key.
fn named(card: &Card, key: &str) -> Option<String> {
    match key {
        "uuid" => Some(card.uuid.to_string()),
        "pci" => Some(card.pci?.to_string()),
        "product" => Some(card.product.clone()),
        _ => Some(card.index.to_string()),
    }
}

fn can_have(card: &Card, mode: &Mode, path: &str, faults: &mut Vec<Fault>) {
    match mode {
        Mode::Mps(mps) => {
            let old = card
                .capability
                .is_some_and(|capability| capability < (7, 0));
            if old && mps.replicas > MOST_CLIENTS_BEFORE_VOLTA {
                let what = format!("is too many for card {}", said(card));
                let accepted =
                    format!("1 to {MOST_CLIENTS_BEFORE_VOLTA} before compute capability 7.0");
                let path = below(path, "replicas");
                faults.push(Fault::new(path, &json!(mps.replicas), what, accepted));
            }
        }
        Mode::Mig(mig) => can_be_cut(card, mig, path, faults),
        Mode::Vgpu(_) | Mode::Exclusive(_) | Mode::Timeslice(_) | Mode::Unmanaged => {}
    }
}

fn can_be_cut(card: &Card, mig: &Mig, path: &str, faults: &mut Vec<Fault>) {
    if card.mig == Some(false) {
        let what = format!("is nothing that card {} can do", said(card));
        let accepted = "vgpu, exclusive, timeslice, mps, unmanaged";
        faults.push(Fault::new(
            below(path, "mode"),
            &json!("mig"),
            what,
            accepted,
        ));
        return;
    }
    let Some(geometry) = table::geometry(&card.product) else {
        return;
    };
    let names = || {
        let names: Vec<&str> = geometry
            .profiles()
            .iter()
            .map(|p| p.name.as_str())
            .collect();
        names.join(", ")
    };
    let mut unknown = |path: String, profile: &str| {
        let what = format!("is no profile of card {}", said(card));
        faults.push(Fault::new(path, &json!(profile), what, names()));
    };
    for (place, profile) in mig.allow.iter().enumerate() {
        if geometry.find(profile).is_none() {
            unknown(format!("{path}.allow[{place}]"), profile);
        }
    }
    match layout::fits(&geometry, &mig.layout) {
        Ok(()) => {}
        Err(Refusal::Unknown(place)) => {
            unknown(
                format!("{path}.layout[{place}].profile"),
                &mig.layout[place].profile,
            );
        }
        Err(Refusal::TooMuch) => {
            let what = format!("does not fit on card {}", said(card));
            let accepted = "instances whose memory and compute slices have a place together";
            faults.push(Fault::bare(below(path, "layout"), what, accepted));
        }
    }
}
