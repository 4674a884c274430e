//! The action for each XID: NVIDIA's catalogue with the administrator's changes.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use thiserror::Error;

use XidAction::{DrainNode, Ignore, ResetGpu, RestartApplication};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum XidAction {
    Ignore,
    /// The affected application must restart; the GPU stays in service.
    RestartApplication,
    /// The GPU is out of service until it is reset.
    ResetGpu,
    /// The GPU is out of service until the node is drained and restarted.
    DrainNode,
}

impl XidAction {
    pub const ALL: [(Self, &'static str); 4] = [
        (Self::Ignore, "ignore"),
        (Self::RestartApplication, "restart-application"),
        (Self::ResetGpu, "reset-gpu"),
        (Self::DrainNode, "drain-node"),
    ];

    pub fn name(self) -> &'static str {
        let found = Self::ALL.iter().find(|(action, _)| *action == self);
        found.map_or("", |(_, name)| name)
    }

    pub fn keeps_gpu_in_service(self) -> bool {
        matches!(self, Self::Ignore | Self::RestartApplication)
    }
}

impl fmt::Display for XidAction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The action for every code: the catalogue's, unless overridden. An override is `code=action,…`,
/// where the code `unknown` stands for all codes that are not listed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct XidActions {
    listed: BTreeMap<u64, XidAction>,
    unknown: XidAction,
}

impl Default for XidActions {
    /// The catalogue. A code that is not in it takes the GPU out of service, as with NVIDIA's
    /// plugin.
    fn default() -> Self {
        Self {
            listed: CATALOGUE
                .iter()
                .flat_map(|(action, codes)| codes.iter().map(move |code| (*code, *action)))
                .collect(),
            unknown: XidAction::ResetGpu,
        }
    }
}

#[derive(Debug, PartialEq, Eq, Error)]
pub enum XidActionsError {
    #[error("{0:?} is malformed, expected <xid>=<action>, such as 94=ignore or unknown=drain-node")]
    Form(String),
    #[error("{0:?} is not an XID, expected a number from 1 to 65535 or `unknown`")]
    Code(String),
    #[error(
        "XID {code}: {given:?} is not an action, expected one of ignore, restart-application, reset-gpu, drain-node"
    )]
    Action { code: String, given: String },
    #[error("XID {0} is named twice, expected each once")]
    Twice(String),
}

impl FromStr for XidActions {
    type Err = XidActionsError;

    fn from_str(text: &str) -> Result<Self, XidActionsError> {
        let mut actions = Self::default();
        let mut named = Vec::new();
        for item in text.split(',').map(str::trim).filter(|i| !i.is_empty()) {
            let (code, given) = item
                .split_once('=')
                .ok_or_else(|| XidActionsError::Form(item.to_owned()))?;
            let (code, given) = (code.trim(), given.trim());
            let found = XidAction::ALL.iter().find(|(_, name)| *name == given);
            let action = found.map(|(action, _)| *action);
            let action = action.ok_or_else(|| XidActionsError::Action {
                code: code.to_owned(),
                given: given.to_owned(),
            })?;
            let number = match code {
                "unknown" => None,
                _ => Some(number(code).ok_or_else(|| XidActionsError::Code(code.to_owned()))?),
            };
            if named.contains(&number) {
                return Err(XidActionsError::Twice(code.to_owned()));
            }
            named.push(number);
            match number {
                Some(number) => drop(actions.listed.insert(number, action)),
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

impl XidActions {
    pub fn of(&self, code: u64) -> XidAction {
        self.listed.get(&code).copied().unwrap_or(self.unknown)
    }
}

/// NVIDIA's catalogue of XIDs (<https://docs.nvidia.com/deploy/xid-errors/>): the codes of each
/// immediate action. It is that of the column "Immediate Action" for Ampere and later; its workflows
/// (45, 48, 74, 144 to 150, 154, 159) are represented by their most frequent outcome.
///
/// One code differs: 109 is reset-gpu there. Like 13, 31, 43, 45 and 68, which NVIDIA's device plugin
/// ignores too, it is an error of an application, which could take a shared GPU from other pods.
///
/// Codes without an action in the catalogue are left out: they are unknown.
const CATALOGUE: [(XidAction, &[u64]); 4] = [
    (Ignore, IGNORED),
    (RestartApplication, APPLICATION),
    (ResetGpu, RESET),
    (DrainNode, DRAIN),
];
const IGNORED: &[u64] = &[
    37, 38, 43, 44, 45, 63, 66, 67, 92, 93, 106, 107, 108, 121, 137, 141, 147, 148, 154, 157, 160,
    161, 162,
];
const APPLICATION: &[u64] = &[
    8, 11, 13, 25, 31, 32, 39, 40, 41, 60, 68, 69, 70, 71, 72, 75, 76, 77, 80, 82, 83, 84, 85, 86,
    88, 89, 94, 96, 97, 98, 99, 100, 101, 102, 103, 104, 105, 109, 126, 127, 128, 129, 130, 131,
    132, 133, 134, 135, 139, 142,
];
const RESET: &[u64] = &[
    46, 48, 62, 64, 74, 95, 110, 119, 120, 136, 140, 143, 144, 145, 146, 149, 150, 155, 156, 158,
    159,
];
const DRAIN: &[u64] = &[54, 79, 151];

#[cfg(test)]
#[path = "xid_tests.rs"]
mod tests;
