//! What no shape can say: names that must exist, keys that exclude each other, cards
//! that two rules claim whatever the node has.
//!
//! Fed by: a configuration whose shape is right. Must not: need a node's cards; that
//! is [`resolve`](crate::resolve()).

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use crate::config::{Config, Profile, Rule};
use crate::fault::{Fault, below};
use crate::form;
use crate::mode::{Mig, Mode, Strategy};
use crate::reserve;
use crate::select::Select;

/// Everything that is wrong with it.
pub(crate) fn faults(config: &Config) -> Vec<Fault> {
    let mut faults = Vec::new();
    let names: Vec<&str> = config.profiles.keys().map(String::as_str).collect();
    if let Some(default) = &config.default
        && !config.profiles.contains_key(default)
    {
        let value = Value::from(default.as_str());
        let accepted = if names.is_empty() {
            "no default where there is no profile".to_owned()
        } else {
            names.join(", ")
        };
        faults.push(Fault::new(
            "default",
            &value,
            "is no profile here",
            accepted,
        ));
    }
    let mut selectors = BTreeMap::new();
    for (name, profile) in &config.profiles {
        let path = below("profiles", name);
        of_profile(profile, &path, &mut faults);
        let labels = &profile.node_selector;
        if labels.is_empty() {
            continue;
        }
        if let Some(first) = selectors.insert(labels, name) {
            let what = format!("is the selector of profile {first}, too");
            let accepted = "labels that no node has together with another profile's";
            let path = below(&path, "nodeSelector");
            faults.push(Fault::new(path, &json!(labels), what, accepted));
        }
    }
    faults
}

fn of_profile(profile: &Profile, path: &str, faults: &mut Vec<Fault>) {
    if profile.gpus.is_empty() && profile.rest.is_none() {
        let accepted = "gpus, rest, or both";
        faults.push(Fault::bare(path, "says nothing of any card", accepted));
    }
    for (place, rule) in profile.gpus.iter().enumerate() {
        let path = format!("{path}.gpus[{place}]");
        of_select(&rule.select, &below(&path, "select"), faults);
        of_mode(&rule.mode, &path, faults);
        reserve::faults(rule, &path, faults);
        for (earlier, other) in profile.gpus[..place].iter().enumerate() {
            if let Some((key, value)) = both_claim(other, rule) {
                let what = format!("is selected by gpus[{earlier}], too");
                let accepted = "each card in one entry; rest is for those that are left";
                let path = format!("{path}.select.{key}");
                faults.push(Fault::new(path, &value, what, accepted));
            }
        }
    }
    if let Some(rest) = &profile.rest {
        let path = below(path, "rest");
        of_mode(rest, &path, faults);
        let all = |rule: &Rule| rule.select.all;
        if let Some(place) = profile.gpus.iter().position(all) {
            let what = format!("is for no card: gpus[{place}] selects all");
            faults.push(Fault::bare(path, what, "rest, or select.all, not both"));
        }
    }
}

fn of_select(select: &Select, path: &str, faults: &mut Vec<Fault>) {
    let entries = select.entries();
    if !select.all && entries.is_empty() {
        let accepted = "all: true, or one or more of index, uuid, pci, product";
        faults.push(Fault::bare(path, "selects no card", accepted));
    }
    if select.all && !entries.is_empty() {
        let what = "selects all cards and names some";
        faults.push(Fault::bare(path, what, "all: true alone, or the others"));
    }
    let mut seen = BTreeSet::new();
    for entry in &entries {
        let same = entry.written.to_string().to_ascii_lowercase();
        if !seen.insert((entry.key, same)) {
            let path = format!("{path}.{}[{}]", entry.key, entry.place);
            let accepted = "each entry once";
            faults.push(Fault::new(path, &entry.written, "is there twice", accepted));
        }
    }
}

/// A card that both rules mean, whatever the node has: under which key, and which.
fn both_claim(one: &Rule, other: &Rule) -> Option<(&'static str, Value)> {
    if other.select.all {
        return Some(("all", Value::Bool(true)));
    }
    let (ours, theirs) = (other.select.entries(), one.select.entries());
    // Two keys together may mean different cards although they share an entry.
    let single = |entries: &[crate::select::Entry<'_>]| {
        entries.iter().map(|e| e.key).collect::<BTreeSet<_>>().len() == 1
    };
    let first = ours.first()?;
    if one.select.all {
        return Some((first.key, first.written.clone()));
    }
    if !single(&ours) || !single(&theirs) || (one.optional && other.optional) {
        return None;
    }
    let shared = ours.iter().find(|our| {
        let same = |their: &&crate::select::Entry<'_>| {
            let (our, their) = (our.written.to_string(), their.written.to_string());
            our.eq_ignore_ascii_case(&their)
        };
        theirs
            .iter()
            .filter(|their| their.key == our.key)
            .any(|their| same(&their))
    })?;
    Some((shared.key, shared.written.clone()))
}

fn of_mode(mode: &Mode, path: &str, faults: &mut Vec<Fault>) {
    if let Mode::Mig(mig) = mode {
        of_mig(mig, path, faults);
    }
}

fn of_mig(mig: &Mig, path: &str, faults: &mut Vec<Fault>) {
    match (mig.layout.is_empty(), mig.dynamic) {
        (true, false) => {
            let what = "has neither a layout nor dynamic: true";
            faults.push(Fault::bare(path, what, "one of the two"));
        }
        (false, true) => {
            let what = "has both a layout and dynamic: true";
            faults.push(Fault::bare(path, what, "one of the two"));
        }
        _ => {}
    }
    if !mig.dynamic && !mig.allow.is_empty() {
        let path = below(path, "allow");
        let what = "holds only for instances that are made when needed";
        faults.push(Fault::new(
            path,
            &json!(mig.allow),
            what,
            "allow with dynamic: true",
        ));
    }
    let mut profiles: Vec<&str> = mig.layout.iter().map(|s| s.profile.as_str()).collect();
    let slices = mig.layout.iter();
    let compute = slices.map(|s| form::compute_slices(&s.profile).unwrap_or(0) * s.count);
    let compute: u32 = compute.sum();
    if compute > 7 {
        let value = Value::from(compute);
        let path = below(path, "layout");
        let what = "compute slices are more than any card has";
        faults.push(Fault::new(path, &value, what, "7 or fewer together"));
    }
    profiles.dedup();
    if mig.strategy == Strategy::Single && (mig.dynamic || profiles.len() > 1) {
        let path = below(path, "strategy");
        let what = "needs instances that are all alike";
        let accepted = "a layout of one profile, or strategy mixed";
        faults.push(Fault::new(path, &json!("single"), what, accepted));
    }
}
