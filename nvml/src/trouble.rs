//! What is remembered of an error, and when it is over. Pure; fed by what the driver asks for and
//! whether the card answered.

use crate::facts::Health;

/// A critical error of a card or of an instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Trouble {
    pub(crate) code: u64,
    /// The driver asked for a reset or reboot since.
    pub(crate) asked: bool,
    /// The card was away from the bus since: it was reset, or taken out and put back.
    pub(crate) away: bool,
}

/// The health of a card that answers, whose driver asks for `action` (0 nothing, `None`: it does
/// not say). Trouble that is over is forgotten.
pub(crate) fn settle(action: Option<u64>, known: &mut Option<Trouble>) -> Health {
    match (action, *known) {
        (Some(0) | None, None) => Health::Ok,
        (Some(0), Some(Trouble { asked: true, .. }))
        | (Some(0) | None, Some(Trouble { away: true, .. })) => {
            *known = None;
            Health::Ok
        }
        (Some(0) | None, Some(Trouble { code, .. })) => Health::Xid(code),
        (Some(action), None) => Health::RecoveryAsked(action),
        (Some(_), Some(trouble)) => {
            *known = Some(Trouble {
                asked: true,
                ..trouble
            });
            Health::Xid(trouble.code)
        }
    }
}
