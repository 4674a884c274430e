//! What an XID asks for: NVIDIA's catalogue with the owner's changes, as a value.
//!
//! Fed by: [`crate::xid_catalogue`] and the flag `--xid-actions`.
//! Must not: know cards or pods.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use aliquot_nvml::IgnoredXids;
use thiserror::Error;

use crate::xid_catalogue::CATALOGUE;

/// What is to be done after an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Action {
    /// Nothing.
    Ignore,
    /// The application that it hit must start again; the card stays in service.
    RestartApplication,
    /// The card is out of service until it was reset.
    ResetGpu,
    /// The card is out of service until the node was drained and started again.
    DrainNode,
}

impl Action {
    /// All, with their names.
    pub const ALL: [(Self, &'static str); 4] = [
        (Self::Ignore, "ignore"),
        (Self::RestartApplication, "restart-application"),
        (Self::ResetGpu, "reset-gpu"),
        (Self::DrainNode, "drain-node"),
    ];

    /// Its name in flags and texts.
    pub fn name(self) -> &'static str {
        let found = Self::ALL.iter().find(|(action, _)| *action == self);
        found.map_or("", |(_, name)| name)
    }

    /// The card can be used as before.
    pub fn leaves_the_card(self) -> bool {
        matches!(self, Self::Ignore | Self::RestartApplication)
    }
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The action for every code: the catalogue's, unless changed. The text that changes it
/// is `code=action,…`, where the code `unknown` stands for all that are not listed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Actions {
    known: BTreeMap<u64, Action>,
    unknown: Action,
}

impl Default for Actions {
    /// The catalogue. A code that is not in it takes the card out of service, as with
    /// NVIDIA's plugin.
    fn default() -> Self {
        Self {
            known: CATALOGUE.iter().map(|row| (row.0, row.1)).collect(),
            unknown: Action::ResetGpu,
        }
    }
}

/// A change of the table that is not accepted.
#[derive(Debug, PartialEq, Eq, Error)]
pub enum ActionsError {
    /// Not of the form.
    #[error("{0:?} is not of the form <xid>=<action>, such as 94=ignore or unknown=drain-node")]
    Form(String),
    /// Not a code.
    #[error("{0:?} is not an XID; accepted: a number from 1 to 65535, or `unknown`")]
    Code(String),
    /// Not an action.
    #[error(
        "XID {code}: {given:?} is not an action; accepted: ignore, restart-application, reset-gpu, drain-node"
    )]
    Action {
        /// The code, as given.
        code: String,
        /// The action, as given.
        given: String,
    },
    /// Said twice.
    #[error("XID {0} is named twice; name each once")]
    Twice(String),
}

impl FromStr for Actions {
    type Err = ActionsError;

    fn from_str(text: &str) -> Result<Self, ActionsError> {
        let mut actions = Self::default();
        let mut named = Vec::new();
        for item in text.split(',').map(str::trim).filter(|i| !i.is_empty()) {
            let (code, given) = item
                .split_once('=')
                .ok_or_else(|| ActionsError::Form(item.to_owned()))?;
            let (code, given) = (code.trim(), given.trim());
            let found = Action::ALL.iter().find(|(_, name)| *name == given);
            let action = found.map(|(action, _)| *action);
            let action = action.ok_or_else(|| ActionsError::Action {
                code: code.to_owned(),
                given: given.to_owned(),
            })?;
            let number = match code {
                "unknown" => None,
                _ => Some(number(code).ok_or_else(|| ActionsError::Code(code.to_owned()))?),
            };
            if named.contains(&number) {
                return Err(ActionsError::Twice(code.to_owned()));
            }
            named.push(number);
            match number {
                Some(number) => drop(actions.known.insert(number, action)),
                None => actions.unknown = action,
            }
        }
        Ok(actions)
    }
}

fn number(code: &str) -> Option<u64> {
    let digits = code.bytes().all(|b| b.is_ascii_digit());
    let number = code.parse().ok().filter(|_| digits)?;
    (1..=u64::from(u16::MAX))
        .contains(&number)
        .then_some(number)
}

impl Actions {
    /// What this code asks for.
    pub fn of(&self, code: u64) -> Action {
        self.known.get(&code).copied().unwrap_or(self.unknown)
    }

    /// The codes that leave a card in service, as the driver's side asks for them.
    pub fn ignored(&self) -> IgnoredXids {
        let those = |leaving: bool| {
            let known = self.known.iter();
            let found = known.filter(|(_, action)| action.leaves_the_card() == leaving);
            found.map(|(code, _)| *code).collect()
        };
        if self.unknown.leaves_the_card() {
            IgnoredXids::AllBut(those(false))
        } else {
            IgnoredXids::These(those(true))
        }
    }
}

/// NVIDIA's meaning of a code.
pub fn meaning(code: u64) -> &'static str {
    let found = CATALOGUE.iter().find(|row| row.0 == code);
    found.map_or("not in NVIDIA's catalogue", |row| row.2)
}

#[cfg(test)]
#[path = "xid_tests.rs"]
mod tests;
