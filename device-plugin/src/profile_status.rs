//! What the node's owner reads of the profile: the node's condition `AliquotProfile`.
//!
//! Fed by: what is wanted, what stands, who is waited for. Must not: call a profile applied while
//! a card is not what it says.

use std::collections::{BTreeMap, BTreeSet};

use aliquot_core::GpuUuid;
use aliquot_k8s::event::{Note, PodRef};

use crate::modes::ModeError;
use crate::occupants::Occupants;
use crate::standing::{Standing, name};
use crate::transition::{Card, Step};
use crate::wanted::Fault;

/// The condition: the node's profile holds on every card.
pub const PROFILE: &str = "AliquotProfile";

/// The longest message.
const LONGEST: usize = 2000;

/// Why a step of a change is not done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Hindrance {
    /// It failed, and is tried again.
    Failed(String),
    /// It waits for something that only the card's owner does.
    Waits(String),
}

impl From<ModeError> for Hindrance {
    fn from(error: ModeError) -> Self {
        match error {
            ModeError::Waits(text) => Self::Waits(text),
            other => Self::Failed(other.to_string()),
        }
    }
}

/// Status, reason and message; of cards that are `here`, for of others nothing is to be waited for.
pub fn condition(
    standing: &Standing,
    here: &BTreeSet<GpuUuid>,
    fault: Option<&Fault>,
    waiting: &BTreeMap<GpuUuid, Occupants>,
    failures: &BTreeMap<GpuUuid, Hindrance>,
) -> [String; 3] {
    let profile = standing.profile.as_deref();
    let (reason, lines) = if let Some(fault) = fault {
        let kept = profile.map(|good| format!("the last good profile stays: {good}"));
        let lines = fault.text.lines().map(str::to_owned).chain(kept);
        (fault.reason, lines.collect())
    } else {
        let cards = standing
            .cards
            .iter()
            .filter(|(uuid, _)| here.contains(*uuid));
        let kept: Vec<String> = cards.clone().filter_map(given_up).collect();
        let changing = cards.filter_map(|(uuid, card)| changing(uuid, card, waiting, failures));
        let changing: Vec<String> = changing.collect();
        if !changing.is_empty() {
            ("Changing", [changing, kept].concat())
        } else if !kept.is_empty() {
            ("GivenUp", kept)
        } else if let Some(profile) = profile {
            let message = format!("profile {profile}");
            return ["True".to_owned(), "Applied".to_owned(), message];
        } else {
            ("Unknown", vec!["no profile was read yet".to_owned()])
        }
    };
    let mut message = lines.join("; ");
    if let Some((end, _)) = message.char_indices().nth(LONGEST) {
        message.truncate(end);
    }
    ["False".to_owned(), reason.to_owned(), message]
}

/// The node's event of it.
pub fn note(node: &str, [status, reason, message]: &[String; 3]) -> Note {
    let applied = status == "True";
    Note {
        pod: PodRef::node(node),
        warning: !applied,
        reason: if applied {
            "ProfileApplied"
        } else {
            "ProfileNotApplied"
        },
        action: "Sharing",
        text: format!("{reason}: {message}"),
    }
}

fn changing(
    uuid: &GpuUuid,
    card: &Card,
    waiting: &BTreeMap<GpuUuid, Occupants>,
    failures: &BTreeMap<GpuUuid, Hindrance>,
) -> Option<String> {
    let change = card.change.as_ref()?;
    let from = card.mode.as_ref().map_or("nothing", name);
    let what = format!("{uuid} goes from {from} to {}", name(&change.to));
    let why = match (change.step, failures.get(uuid), waiting.get(uuid)) {
        (_, Some(Hindrance::Failed(why)), _) => {
            format!(", which failed and is tried again: {why}")
        }
        (_, Some(Hindrance::Waits(why)), _) => format!(" and is waited for: {why}"),
        (Step::Draining, None, Some(there)) if !there.none() => {
            let pods = there.pods.iter().map(|pod| pod.full_name());
            let mut who: Vec<String> = pods.take(8).collect();
            let more = there.pods.len() - who.len() + there.others;
            if more > 0 {
                who.push(format!("{more} more"));
            }
            format!(" and waits for {}", who.join(", "))
        }
        _ => String::new(),
    };
    Some(what + &why)
}

fn given_up((uuid, card): (&GpuUuid, &Card)) -> Option<String> {
    let given = card.given_up.as_ref().filter(|_| card.change.is_none())?;
    let mode = card.mode.as_ref().map_or("nothing", name);
    let to = name(&given.to);
    let why = given.refused.as_ref().map_or_else(
        || "it was not free in time".to_owned(),
        |text| format!("it refuses: {text}"),
    );
    Some(format!(
        "{uuid} stays {mode} and does not become {to}: {why}"
    ))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use aliquot_profiles::Mode;
    use aliquot_profiles::mode::{Exclusive, Vgpu};

    use super::*;
    use crate::testing::pod;
    use crate::transition::{Change, GivenUp};

    /// A node whose card `GPU-a` is on this way, with pod `p` on it.
    fn check(card: Card, fault: Option<&str>, failure: Option<Hindrance>, expected: [&str; 3]) {
        let mut standing = Standing {
            profile: Some("lab".to_owned()),
            ..Standing::default()
        };
        standing.cards.insert("GPU-a".into(), card);
        let there = Occupants {
            pods: vec![Arc::new(pod("p"))],
            ..Occupants::default()
        };
        let fault = fault.map(|text| Fault {
            reason: "ProfileUnknown",
            text: text.to_owned(),
        });
        let waiting = [("GPU-a".into(), there)].into();
        let failures = failure.map(|why| ("GPU-a".into(), why));
        let failures = failures.into_iter().collect();
        // A card that was taken out in the middle of its change is not waited for.
        let away = Card {
            change: Some(Change {
                to: Mode::Exclusive(Exclusive::default()),
                step: Step::Leaving,
                since: 0,
            }),
            ..Card::default()
        };
        standing.cards.insert("GPU-away".into(), away);
        let here = ["GPU-a".into()].into();
        let found = condition(&standing, &here, fault.as_ref(), &waiting, &failures);
        assert_eq!(found, expected.map(str::to_owned));
    }

    #[test]
    fn the_condition_says_what_holds_and_why_it_is_not_the_profile() {
        let mode = Some(Mode::Vgpu(Vgpu::default()));
        let to = Mode::Exclusive(Exclusive::default());
        let here = Card {
            mode,
            ..Card::default()
        };
        let changing = |step| Card {
            change: Some(Change {
                to: to.clone(),
                step,
                since: 0,
            }),
            ..here.clone()
        };
        let kept = |refused: Option<&str>| Card {
            given_up: Some(GivenUp {
                to: to.clone(),
                since: 0,
                refused: refused.map(str::to_owned),
            }),
            ..here.clone()
        };
        check(here.clone(), None, None, ["True", "Applied", "profile lab"]);
        let message = "\"x\" is no profile; the last good profile stays: lab";
        let fault = Some("\"x\" is no profile");
        check(
            here.clone(),
            fault,
            None,
            ["False", "ProfileUnknown", message],
        );
        let message = "GPU-a goes from vgpu to exclusive and waits for default/p";
        check(
            changing(Step::Draining),
            None,
            None,
            ["False", "Changing", message],
        );
        let message = "GPU-a goes from vgpu to exclusive, which failed and is tried again: no";
        check(
            changing(Step::Entering),
            None,
            Some(Hindrance::Failed("no".to_owned())),
            ["False", "Changing", message],
        );
        let message = "GPU-a goes from vgpu to exclusive and is waited for: reset it";
        check(
            changing(Step::Entering),
            None,
            Some(Hindrance::Waits("reset it".to_owned())),
            ["False", "Changing", message],
        );
        let message = "GPU-a stays vgpu and does not become exclusive: it was not free in time";
        check(kept(None), None, None, ["False", "GivenUp", message]);
        let message = "GPU-a stays vgpu and does not become exclusive: it refuses: no";
        check(kept(Some("no")), None, None, ["False", "GivenUp", message]);
    }
}
