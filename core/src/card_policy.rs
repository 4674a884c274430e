//! Which cards of a node are better: sort keys in the order in which they were
//! written, and two rules beside them (HAMi 4.7, "GPU policy").
//!
//! Fed by: a flag and a pod's annotation, as text.
//! Must not: look at cards; that is [`crate::choose`].

use std::str::FromStr;

use thiserror::Error;

use crate::score::{NAMES, Policy};

/// More keys than there are different ones make no sense.
pub const MOST_KEYS: usize = 3;

/// One way to compare two cards.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CardKey {
    /// By what is used of them.
    Load(Policy),
    /// By their NUMA node: one that can hold the whole request first.
    Numa,
}

/// How the cards of a node are chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CardPolicy {
    /// The first key decides, the next among equals; the lowest index last.
    pub keys: [Option<CardKey>; MOST_KEYS],
    /// `mutex`: only cards that carry nothing.
    pub idle: bool,
    /// `topology`: by the links between them, before the keys.
    pub links: bool,
}

/// A card policy that is not known.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error(
    "{value:?} is not a GPU policy; accepted: one of {NAMES}, or numa, mutex, topology, or several with commas between"
)]
pub struct UnknownCardPolicy {
    /// The text as it came.
    pub value: String,
}

impl From<Policy> for CardPolicy {
    fn from(policy: Policy) -> Self {
        Self {
            keys: [Some(CardKey::Load(policy)), None, None],
            idle: false,
            links: false,
        }
    }
}

impl CardPolicy {
    /// The same rules with the cards in another order.
    pub fn ordered_by(self, policy: Policy) -> Self {
        Self {
            keys: Self::from(policy).keys,
            ..self
        }
    }

    /// The place of the `numa` key, if it is one of the keys.
    pub fn numa_key(&self) -> Option<usize> {
        self.keys.iter().position(|key| *key == Some(CardKey::Numa))
    }
}

impl FromStr for CardPolicy {
    type Err = UnknownCardPolicy;

    fn from_str(text: &str) -> Result<Self, UnknownCardPolicy> {
        let unknown = || UnknownCardPolicy {
            value: text.to_owned(),
        };
        let mut policy = Self {
            keys: [None; MOST_KEYS],
            idle: false,
            links: false,
        };
        let mut loads = 0;
        let mut at = 0;
        for name in text.split(',').map(str::trim) {
            let key = match name {
                "mutex" if !policy.idle => {
                    policy.idle = true;
                    continue;
                }
                "topology" | "topology-aware" if !policy.links => {
                    policy.links = true;
                    continue;
                }
                "numa" if policy.numa_key().is_none() => CardKey::Numa,
                name if loads == 0 => {
                    loads += 1;
                    CardKey::Load(name.parse().map_err(|_| unknown())?)
                }
                _ => return Err(unknown()),
            };
            policy.keys[at] = Some(key);
            at += 1;
        }
        // HAMi: an empty chain of keys orders as `spread` does.
        if loads == 0 {
            policy.keys[at] = Some(CardKey::Load(Policy::Spread));
        }
        Ok(policy)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str, keys: &[CardKey], idle: bool, links: bool) {
        let policy: CardPolicy = text.parse().unwrap();
        let found: Vec<_> = policy.keys.into_iter().flatten().collect();
        assert_eq!((&*found, policy.idle, policy.links), (keys, idle, links));
    }

    #[test]
    fn names_stand_alone_or_in_chains() {
        use CardKey::{Load, Numa};
        let (fullest, emptiest) = (Load(Policy::Binpack), Load(Policy::Spread));
        check("binpack", &[fullest], false, false);
        check("numa,binpack", &[Numa, fullest], false, false);
        check("spread, numa", &[emptiest, Numa], false, false);
        check("numa", &[Numa, emptiest], false, false);
        check("mutex", &[emptiest], true, false);
        check("topology-aware", &[emptiest], false, true);
        check("mutex,topology,numa,binpack", &[Numa, fullest], true, true);
    }

    #[test]
    fn what_cannot_be_meant_is_refused_with_what_can() {
        for text in [
            "",
            "fullest",
            "binpack,",
            "binpack,spread",
            "numa,numa",
            "mutex,mutex",
        ] {
            let error = text.parse::<CardPolicy>().unwrap_err().to_string();
            let named = format!("{text:?} is not a GPU policy; accepted: one of binpack,");
            assert!(error.starts_with(&named), "{error}");
        }
    }
}
