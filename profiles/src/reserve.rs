//! What a rule keeps for some namespaces, as far as it can be meant.
//!
//! Fed by: [`check`](crate::check) with a rule, [`resolve`](crate::resolve()) with a card,
//! too. Must not: choose which instances are kept; the node's agent does.

use aliquot_core::mig::table;
use serde_json::json;

use crate::config::{Reserve, Rule};
use crate::fault::{Fault, below};
use crate::layout;
use crate::mode::{Mig, Mode, Slice};
use crate::resolve::{Card, said};

/// What is wrong with it whatever card the rule is for.
pub(crate) fn faults(rule: &Rule, path: &str, faults: &mut Vec<Fault>) {
    let path = below(path, "reserve");
    let all = &rule.reserve;
    let whole = |kept: &Reserve| kept.profile.is_none();
    for (place, kept) in all.iter().enumerate() {
        let path = format!("{path}[{place}]");
        let Some(profile) = &kept.profile else {
            if let Some(count) = kept.count {
                let accepted = "count beside a profile; without one all of the card is kept";
                let path = below(&path, "count");
                faults.push(Fault::new(path, &json!(count), "counts nothing", accepted));
            }
            if all.len() > 1 && all.iter().position(whole) == Some(place) {
                let what = "keeps all of the card, and another entry a part of it";
                faults.push(Fault::bare(&path, what, "one of the two"));
            }
            continue;
        };
        let value = json!(profile);
        let path = below(&path, "profile");
        let Mode::Mig(mig) = &rule.mode else {
            let accepted = "no profile: of a card that is not cut all is kept";
            faults.push(Fault::new(path, &value, "needs mode mig", accepted));
            continue;
        };
        // Said once for a profile, of the first that asks for it.
        if all.iter().position(|other| other.profile == kept.profile) != Some(place) {
            continue;
        }
        let of = all.iter().filter(|other| other.profile == kept.profile);
        let wanted: u32 = of.map(Reserve::count).sum();
        let there = has(mig, profile);
        if wanted > there {
            let what = format!("is kept {wanted} times, and the card has {there}");
            let accepted = "no more than the layout has, or dynamic allows";
            faults.push(Fault::new(path, &value, what, accepted));
        }
    }
}

/// How many instances of this profile such a card has or could have.
fn has(mig: &Mig, profile: &str) -> u32 {
    if mig.dynamic {
        let allowed = mig.allow.is_empty() || mig.allow.iter().any(|one| one == profile);
        return if allowed { 7 } else { 0 };
    }
    let same = mig.layout.iter().filter(|slice| slice.profile == profile);
    same.map(|slice| slice.count).sum()
}

/// On a card that is cut as pods come all that is kept needs a place of its own.
pub(crate) fn has_room(
    card: &Card,
    mode: &Mode,
    reserve: &[Reserve],
    path: &str,
    faults: &mut Vec<Fault>,
) {
    let dynamic = matches!(mode, Mode::Mig(mig) if mig.dynamic);
    let Some(geometry) = table::geometry(&card.product).filter(|_| dynamic) else {
        return;
    };
    let slice = |kept: &Reserve| {
        Some(Slice {
            profile: kept.profile.clone()?,
            count: kept.count(),
            on: None,
        })
    };
    let layout: Vec<Slice> = reserve.iter().filter_map(slice).collect();
    if layout::fits(&geometry, &layout).is_err() {
        let what = format!("has no place on card {}", said(card));
        let accepted = "profiles of the card that have a place on it together";
        faults.push(Fault::bare(below(path, "reserve"), what, accepted));
    }
}
