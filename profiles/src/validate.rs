//! Validates what a schema cannot express and what does not depend on a node's GPUs: names that must
//! exist, keys that exclude each other, GPUs that two rules select on every node.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use crate::config::{Config, Profile, Reservation, Rule};
use crate::error::{ProfileError, child_path};
use crate::gpu_selector::{GpuSelector, SelectorEntry};
use crate::mode::{Mig, Mode, Strategy};
use crate::text_format;

/// All errors of a configuration that matches the schema.
pub(crate) fn errors(config: &Config) -> Vec<ProfileError> {
    let mut errors = Vec::new();
    let names: Vec<&str> = config.profiles.keys().map(String::as_str).collect();
    if let Some(default) = &config.default
        && !config.profiles.contains_key(default)
    {
        let value = Value::from(default.as_str());
        let expected = if names.is_empty() {
            "no default where there is not a profile".to_owned()
        } else {
            names.join(", ")
        };
        errors.push(ProfileError::new(
            "default",
            &value,
            "is not a profile",
            expected,
        ));
    }
    let mut selectors = BTreeMap::new();
    for (name, profile) in &config.profiles {
        let path = child_path("profiles", name);
        check_profile(profile, &path, &mut errors);
        let labels = &profile.node_selector;
        if labels.is_empty() {
            continue;
        }
        if let Some(first) = selectors.insert(labels, name) {
            let what = format!("is also the selector of profile {first}");
            let expected = "a selector that differs from those of other profiles";
            let path = child_path(&path, "nodeSelector");
            errors.push(ProfileError::new(path, &json!(labels), what, expected));
        }
    }
    errors
}

fn check_profile(profile: &Profile, path: &str, errors: &mut Vec<ProfileError>) {
    if profile.gpus.is_empty() && profile.rest.is_none() {
        let expected = "gpus, rest, or both";
        errors.push(ProfileError::without_value(
            path,
            "has neither gpus nor rest",
            expected,
        ));
    }
    for (index, rule) in profile.gpus.iter().enumerate() {
        let path = format!("{path}.gpus[{index}]");
        check_selector(&rule.select, &child_path(&path, "select"), errors);
        check_mig(&rule.mode, &path, errors);
        check_reservations(rule, &path, errors);
        for (earlier, other) in profile.gpus[..index].iter().enumerate() {
            if let Some((key, value)) = overlap(other, rule) {
                let what = format!("is also selected by gpus[{earlier}]");
                let expected = "each GPU in one entry; rest applies to all others";
                let path = format!("{path}.select.{key}");
                errors.push(ProfileError::new(path, &value, what, expected));
            }
        }
    }
    if let Some(rest) = &profile.rest {
        let path = child_path(path, "rest");
        check_mig(rest, &path, errors);
        let all = |rule: &Rule| rule.select.all;
        if let Some(index) = profile.gpus.iter().position(all) {
            let what = format!("has no effect: gpus[{index}] selects all GPUs");
            errors.push(ProfileError::without_value(
                path,
                what,
                "either rest or select.all",
            ));
        }
    }
}

fn check_selector(select: &GpuSelector, path: &str, errors: &mut Vec<ProfileError>) {
    let entries = select.entries();
    if !select.all && entries.is_empty() {
        let expected = "all: true, or one or more of index, uuid, pci, product";
        errors.push(ProfileError::without_value(
            path,
            "selects no GPU",
            expected,
        ));
    }
    if select.all && !entries.is_empty() {
        let what = "combines all with other keys";
        errors.push(ProfileError::without_value(
            path,
            what,
            "all: true alone, or other keys",
        ));
    }
    let mut seen = BTreeSet::new();
    for entry in &entries {
        let same = entry.written.to_string().to_ascii_lowercase();
        if !seen.insert((entry.key, same)) {
            let path = format!("{path}.{}[{}]", entry.key, entry.index);
            let expected = "each entry once";
            errors.push(ProfileError::new(
                path,
                &entry.written,
                "is a duplicate",
                expected,
            ));
        }
    }
}

/// The key and value by which both rules select the same GPU on every node.
fn overlap(one: &Rule, other: &Rule) -> Option<(&'static str, Value)> {
    if other.select.all {
        return Some(("all", Value::Bool(true)));
    }
    let (ours, theirs) = (other.select.entries(), one.select.entries());
    // With two keys, rules may select different GPUs although they share an entry.
    let single = |entries: &[SelectorEntry<'_>]| {
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
        let same = |their: &&SelectorEntry<'_>| {
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

fn check_mig(mode: &Mode, path: &str, errors: &mut Vec<ProfileError>) {
    let Mode::Mig(mig) = mode else {
        return;
    };
    match (mig.layout.is_empty(), mig.dynamic) {
        (true, false) => {
            let what = "has neither a layout nor dynamic: true";
            errors.push(ProfileError::without_value(path, what, "one of the two"));
        }
        (false, true) => {
            let what = "has both a layout and dynamic: true";
            errors.push(ProfileError::without_value(path, what, "one of the two"));
        }
        _ => {}
    }
    if !mig.dynamic && !mig.allow.is_empty() {
        let path = child_path(path, "allow");
        let what = "applies to dynamic MIG only";
        errors.push(ProfileError::new(
            path,
            &json!(mig.allow),
            what,
            "allow with dynamic: true",
        ));
    }
    let mut profiles: Vec<&str> = mig.layout.iter().map(|s| s.profile.as_str()).collect();
    let slices = mig.layout.iter();
    let compute = slices.map(|s| text_format::compute_slices(&s.profile).unwrap_or(0) * s.count);
    let compute: u32 = compute.sum();
    if compute > 7 {
        let value = Value::from(compute);
        let path = child_path(path, "layout");
        let what = "compute slices exceed those of any GPU";
        errors.push(ProfileError::new(path, &value, what, "at most 7 in total"));
    }
    profiles.dedup();
    if mig.strategy == Strategy::Single && (mig.dynamic || profiles.len() > 1) {
        let path = child_path(path, "strategy");
        let what = "requires identical instances";
        let expected = "a layout of one profile, or strategy mixed";
        errors.push(ProfileError::new(path, &json!("single"), what, expected));
    }
}

/// Errors of a rule's reservations that do not depend on the GPU.
fn check_reservations(rule: &Rule, path: &str, errors: &mut Vec<ProfileError>) {
    let path = child_path(path, "reserve");
    let all = &rule.reserve;
    let is_whole_gpu = |reservation: &Reservation| reservation.profile.is_none();
    for (index, reservation) in all.iter().enumerate() {
        let path = format!("{path}[{index}]");
        let Some(profile) = &reservation.profile else {
            if let Some(count) = reservation.count {
                let expected =
                    "count together with profile; without a profile the whole GPU is reserved";
                let path = child_path(&path, "count");
                errors.push(ProfileError::new(
                    path,
                    &json!(count),
                    "requires a profile",
                    expected,
                ));
            }
            if all.len() > 1 && all.iter().position(is_whole_gpu) == Some(index) {
                let what = "reserves the whole GPU, but another entry reserves part of it";
                errors.push(ProfileError::without_value(&path, what, "one of the two"));
            }
            continue;
        };
        let value = json!(profile);
        let path = child_path(&path, "profile");
        let Mode::Mig(mig) = &rule.mode else {
            let expected = "no profile: without MIG the whole GPU is reserved";
            errors.push(ProfileError::new(
                path,
                &value,
                "requires mode mig",
                expected,
            ));
            continue;
        };
        // Reported once for each profile, at the first entry that names it.
        if all
            .iter()
            .position(|other| other.profile == reservation.profile)
            != Some(index)
        {
            continue;
        }
        let of = all
            .iter()
            .filter(|other| other.profile == reservation.profile);
        let requested: u32 = of.map(Reservation::count).sum();
        let available = instance_count(mig, profile);
        if requested > available {
            let what = format!("is reserved {requested} times, but the GPU has {available}");
            let expected = "at most as many as the layout has, or dynamic allows";
            errors.push(ProfileError::new(path, &value, what, expected));
        }
    }
}

/// How many instances of this profile such a GPU has or could have.
fn instance_count(mig: &Mig, profile: &str) -> u32 {
    if mig.dynamic {
        let allowed = mig.allow.is_empty() || mig.allow.iter().any(|one| one == profile);
        return if allowed { 7 } else { 0 };
    }
    let same = mig.layout.iter().filter(|slice| slice.profile == profile);
    same.map(|slice| slice.count).sum()
}
