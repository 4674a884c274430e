//! What can fail when a card is cut: one variant for each step.

use aliquot_core::mig::GeometryError;
use nvml_wrapper::error::NvmlError as Cause;

/// A failed step; the cause is NVML's own.
#[derive(Debug, thiserror::Error)]
pub enum MigError {
    /// The card does not answer.
    #[error("cannot reach card {card}: {source}")]
    Card {
        /// Its uuid.
        card: String,
        /// The reason.
        source: Cause,
    },
    /// The mode is not changed.
    #[error("cannot switch MIG {} on card {card}: {source}", if *on { "on" } else { "off" })]
    Switch {
        /// Its uuid.
        card: String,
        /// The wanted mode.
        on: bool,
        /// The reason.
        source: Cause,
    },
    /// What the card can be cut into is not told.
    #[error("cannot read the MIG profiles of card {card}: {source}")]
    Profiles {
        /// Its uuid.
        card: String,
        /// The reason.
        source: Cause,
    },
    /// What was told makes no sense.
    #[error("the MIG profiles of card {card} are not usable: {source}")]
    Geometry {
        /// Its uuid.
        card: String,
        /// What is wrong.
        source: GeometryError,
    },
    /// How it is cut now is not told.
    #[error("cannot read the MIG instances of card {card}: {source}")]
    Instances {
        /// Its uuid.
        card: String,
        /// The reason.
        source: Cause,
    },
    /// The card has no such profile.
    #[error("card {card} has no MIG profile {profile:?}; it has {}", .known.join(", "))]
    NoProfile {
        /// Its uuid.
        card: String,
        /// What was asked for.
        profile: String,
        /// What there is.
        known: Vec<String>,
    },
    /// The slices are taken.
    #[error(
        "no room for a {profile} at slice {start} of card {card}: its memory slices or the card's compute slices are taken"
    )]
    NoRoom {
        /// Its uuid.
        card: String,
        /// The profile.
        profile: String,
        /// The first memory slice.
        start: u8,
    },
    /// No GPU instance was made.
    #[error("cannot make a {profile} at slice {start} of card {card}: {source}")]
    Create {
        /// Its uuid.
        card: String,
        /// The profile.
        profile: String,
        /// The first memory slice.
        start: u8,
        /// The reason.
        source: Cause,
    },
    /// No compute instance was made in it, and the GPU instance is gone again, unless `left`.
    #[error("cannot make the compute instance of a {profile} at slice {start} of card {card}: {source}{}", if .left.is_some() { "; its GPU instance is left" } else { "" })]
    Compute {
        /// Its uuid.
        card: String,
        /// The profile.
        profile: String,
        /// The first memory slice.
        start: u8,
        /// The reason.
        source: Cause,
        /// Why the GPU instance could not be ended.
        left: Option<Box<Cause>>,
    },
    /// The card has no such instance.
    #[error("card {card} has no GPU instance {id}")]
    NoInstance {
        /// Its uuid.
        card: String,
        /// The driver's id.
        id: u32,
    },
    /// A compute instance is not ended.
    #[error("cannot end the compute instances of GPU instance {inside} of card {card}: {source}")]
    EndCompute {
        /// Its uuid.
        card: String,
        /// The GPU instance.
        inside: u32,
        /// The reason.
        source: Cause,
    },
    /// A GPU instance is not ended.
    #[error("cannot end GPU instance {id} of card {card}: {source}")]
    End {
        /// Its uuid.
        card: String,
        /// The driver's id.
        id: u32,
        /// The reason.
        source: Cause,
    },
}

impl MigError {
    /// What a driver without MIG answers.
    pub(crate) fn none(card: &str) -> Self {
        let card = card.to_owned();
        let source = Cause::NotSupported;
        Self::Card { card, source }
    }

    /// A process still uses what should change.
    #[must_use]
    pub fn is_in_use(&self) -> bool {
        matches!(
            self,
            Self::Switch {
                source: Cause::InUse,
                ..
            } | Self::EndCompute {
                source: Cause::InUse,
                ..
            } | Self::End {
                source: Cause::InUse,
                ..
            }
        )
    }
}
