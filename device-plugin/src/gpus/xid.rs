//! The action for each XID: NVIDIA's catalogue with the administrator's changes from
//! `--xid-actions`.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use aliquot_nvml::IgnoredXids;
use thiserror::Error;

use XidAction::{DrainNode, Ignore, ResetGpu, RestartApplication};

/// The recovery that an error requires.
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
    /// All actions with their names.
    pub const ALL: [(Self, &'static str); 4] = [
        (Self::Ignore, "ignore"),
        (Self::RestartApplication, "restart-application"),
        (Self::ResetGpu, "reset-gpu"),
        (Self::DrainNode, "drain-node"),
    ];

    /// Its name in flags and messages.
    pub fn name(self) -> &'static str {
        let found = Self::ALL.iter().find(|(action, _)| *action == self);
        found.map_or("", |(_, name)| name)
    }

    /// Whether the GPU stays in service.
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
            listed: CATALOGUE.iter().map(|row| (row.0, row.1)).collect(),
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
    /// The action for this code.
    pub fn of(&self, code: u64) -> XidAction {
        self.listed.get(&code).copied().unwrap_or(self.unknown)
    }

    /// The codes that leave a GPU in service, as the driver side asks for them.
    pub fn ignored(&self) -> IgnoredXids {
        let those = |leaving: bool| {
            let listed = self.listed.iter();
            let found = listed.filter(|(_, action)| action.keeps_gpu_in_service() == leaving);
            found.map(|(code, _)| *code).collect()
        };
        if self.unknown.keeps_gpu_in_service() {
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

/// NVIDIA's catalogue of XIDs: code, immediate action and meaning, by code. The action is that of the
/// column "Immediate Action" for Ampere and later; its workflows (45, 48, 74, 144 to 150, 154, 159)
/// are represented by their most frequent outcome.
///
/// One row differs: 109 is reset-gpu there. It is one of [`aliquot_nvml::APPLICATION_XIDS`], with
/// which the application of one pod could take a shared GPU from the others.
///
/// Codes without an action in the catalogue are left out: they are unknown.
const CATALOGUE: [(u64, XidAction, &str); 97] = [
    (8, RestartApplication, "GPU stopped processing"),
    (11, RestartApplication, "invalid push buffer stream"),
    (13, RestartApplication, "graphics engine exception"),
    (25, RestartApplication, "illegal push buffer stream"),
    (31, RestartApplication, "GPU memory page fault"),
    (32, RestartApplication, "corrupted push buffer stream"),
    (37, Ignore, "driver firmware error"),
    (38, Ignore, "driver firmware watchdog"),
    (39, RestartApplication, "copy engine exception"),
    (40, RestartApplication, "copy engine exception"),
    (41, RestartApplication, "copy engine exception"),
    (43, Ignore, "a channel was reset"),
    (44, Ignore, "fault during context switch"),
    (45, Ignore, "cleanup after earlier errors"),
    (46, ResetGpu, "GPU stopped processing"),
    (48, ResetGpu, "double bit ECC error"),
    (54, DrainNode, "auxiliary power is not connected"),
    (60, RestartApplication, "security processor exception"),
    (62, ResetGpu, "power controller halted"),
    (63, Ignore, "memory row remapped"),
    (64, ResetGpu, "memory row could not be remapped"),
    (66, Ignore, "illegal access by driver"),
    (67, Ignore, "illegal access by driver"),
    (68, RestartApplication, "video decoder exception"),
    (69, RestartApplication, "graphics engine class error"),
    (70, RestartApplication, "copy engine error"),
    (71, RestartApplication, "copy engine error"),
    (72, RestartApplication, "copy engine error"),
    (74, ResetGpu, "NVLink error"),
    (75, RestartApplication, "copy engine error"),
    (76, RestartApplication, "copy engine error"),
    (77, RestartApplication, "copy engine error"),
    (79, DrainNode, "GPU has fallen off the bus"),
    (80, RestartApplication, "corrupted data sent to GPU"),
    (82, RestartApplication, "JPEG engine error"),
    (83, RestartApplication, "video decoder error"),
    (84, RestartApplication, "video decoder error"),
    (85, RestartApplication, "copy engine error"),
    (86, RestartApplication, "optical flow exception"),
    (88, RestartApplication, "video decoder error"),
    (89, RestartApplication, "video decoder error"),
    (92, Ignore, "high rate of corrected ECC errors"),
    (93, Ignore, "InfoROM wear limit"),
    (94, RestartApplication, "contained memory error"),
    (95, ResetGpu, "uncontained memory error"),
    (96, RestartApplication, "video decoder error"),
    (97, RestartApplication, "video decoder error"),
    (98, RestartApplication, "video decoder error"),
    (99, RestartApplication, "JPEG engine error"),
    (100, RestartApplication, "JPEG engine error"),
    (101, RestartApplication, "JPEG engine error"),
    (102, RestartApplication, "JPEG engine error"),
    (103, RestartApplication, "JPEG engine error"),
    (104, RestartApplication, "JPEG engine error"),
    (105, RestartApplication, "JPEG engine error"),
    (106, Ignore, "test message"),
    (107, Ignore, "silent test message"),
    (108, Ignore, "NVLink remote translation error"),
    (109, RestartApplication, "context switch timeout"),
    (110, ResetGpu, "security fault"),
    (119, ResetGpu, "GSP does not answer"),
    (120, ResetGpu, "GSP error"),
    (121, Ignore, "C2C link error"),
    (126, RestartApplication, "copy engine error"),
    (127, RestartApplication, "copy engine error"),
    (128, RestartApplication, "copy engine error"),
    (129, RestartApplication, "copy engine error"),
    (130, RestartApplication, "copy engine error"),
    (131, RestartApplication, "copy engine error"),
    (132, RestartApplication, "copy engine error"),
    (133, RestartApplication, "copy engine error"),
    (134, RestartApplication, "copy engine error"),
    (135, RestartApplication, "copy engine error"),
    (136, ResetGpu, "link training failed"),
    (137, Ignore, "NVLink privilege error"),
    (139, RestartApplication, "optical flow error"),
    (140, ResetGpu, "unrecovered ECC error"),
    (141, Ignore, "CUDA fast path error"),
    (142, RestartApplication, "video encoder error"),
    (143, ResetGpu, "GPU initialisation error"),
    (144, ResetGpu, "NVLink SAW error"),
    (145, ResetGpu, "NVLink RLW error"),
    (146, ResetGpu, "NVLink TLW error"),
    (147, Ignore, "NVLink TREX error"),
    (148, Ignore, "NVLink control error"),
    (149, ResetGpu, "NVLink NETIR error"),
    (150, ResetGpu, "NVLink MSE error"),
    (151, DrainNode, "key rotation error"),
    (154, Ignore, "the recovery that the driver asks for changed"),
    (155, ResetGpu, "NVLink error defined by software"),
    (156, ResetGpu, "resource retired"),
    (157, Ignore, "resource could not be retired"),
    (158, ResetGpu, "fatal timeout"),
    (159, ResetGpu, "CHI error without data"),
    (160, Ignore, "memory channel retired"),
    (161, Ignore, "memory channel could not be retired"),
    (162, Ignore, "power smoothing is on again"),
];

#[cfg(test)]
#[path = "xid_tests.rs"]
mod tests;
