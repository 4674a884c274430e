//! What the node's cards are and on which way they are, on disk: the last good profile, and every
//! change that has begun.
//!
//! Fed by: [`crate::follow`]. Must not: be behind what was begun.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use aliquot_core::GpuUuid;
use aliquot_profiles::config::Transition;
use aliquot_profiles::{Mode, Reserve};
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::files::{self, FileError};
use crate::transition::{Card, Step, alike};
use crate::units::{Arrangement, Stand};

/// The version that this release writes and reads.
const VERSION: u32 = 1;

/// The stored value.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Standing {
    /// Version of this text.
    pub v: u32,
    /// The last good profile and what chose it, for people.
    #[serde(default)]
    pub profile: Option<String>,
    /// Its rule for the pods of a card whose mode changes.
    #[serde(default)]
    pub transition: Transition,
    /// The mode that it wants for each card.
    #[serde(default)]
    pub wanted: BTreeMap<GpuUuid, Mode>,
    /// What of each card it keeps for some namespaces.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub reserve: BTreeMap<GpuUuid, Vec<Reserve>>,
    /// What each card is.
    #[serde(default)]
    pub cards: BTreeMap<GpuUuid, Card>,
    /// Every resource that was ever offered here: one that is not offered any more goes from
    /// the Node.
    #[serde(default)]
    pub offered: BTreeSet<String>,
}

impl Default for Standing {
    fn default() -> Self {
        Self {
            v: VERSION,
            profile: None,
            transition: Transition::default(),
            wanted: BTreeMap::new(),
            reserve: BTreeMap::new(),
            cards: BTreeMap::new(),
            offered: BTreeSet::new(),
        }
    }
}

/// Why the stored value cannot be used.
#[derive(Debug, Error)]
pub enum StandingError {
    /// A file operation failed.
    #[error(transparent)]
    File(#[from] FileError),
    /// It is not what we wrote.
    #[error("cannot read the modes of the cards, {}: {source}; put the file back, or remove it when no pod with a share runs on this node: without it every card starts anew", path.display())]
    Decode {
        /// The file.
        path: PathBuf,
        /// What serde found.
        source: serde_json::Error,
    },
    /// A file of another release.
    #[error("the modes of the cards, {}, have version {found}, this release reads {VERSION}; go back to the release that wrote it, or remove the file when no pod with a share runs on this node: without it every card starts anew", path.display())]
    Version {
        /// The file.
        path: PathBuf,
        /// The version in it.
        found: u32,
    },
    /// It cannot be written as JSON.
    #[error("cannot encode the modes of the cards: {0}")]
    Encode(serde_json::Error),
}

impl Standing {
    /// What is stored at `path`; `None`: nothing yet.
    pub fn load(path: &Path) -> Result<Option<Self>, StandingError> {
        let bytes = match std::fs::read(path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(files::failed("read", path)(error).into()),
        };
        let standing: Self =
            serde_json::from_slice(&bytes).map_err(|source| StandingError::Decode {
                path: path.to_owned(),
                source,
            })?;
        if standing.v != VERSION {
            return Err(StandingError::Version {
                path: path.to_owned(),
                found: standing.v,
            });
        }
        Ok(Some(standing))
    }

    /// Stores it, durable on return.
    pub fn store(&self, path: &Path) -> Result<(), StandingError> {
        let text = serde_json::to_vec(self).map_err(StandingError::Encode)?;
        files::replace(path, &text)?;
        Ok(())
    }

    /// How the cards are shared now.
    pub fn arrangement(&self, usual: &str) -> Arrangement {
        let stand = |(uuid, card): (&GpuUuid, &Card)| {
            let mode = card.mode.clone()?;
            let cordon = cordon(card);
            let switching = card
                .change
                .as_ref()
                .is_some_and(|change| change.step != Step::Draining && !alike(&mode, &change.to));
            let stand = Stand {
                mode,
                cordon,
                switching,
                reserve: self.reserve.get(uuid).cloned().unwrap_or_default(),
            };
            Some((uuid.clone(), stand))
        };
        Arrangement {
            usual: usual.to_owned(),
            cards: self.cards.iter().filter_map(stand).collect(),
        }
    }
}

/// The name of a mode.
pub fn name(mode: &Mode) -> &'static str {
    match mode {
        Mode::Vgpu(_) => "vgpu",
        Mode::Exclusive(_) => "exclusive",
        Mode::Timeslice(_) => "timeslice",
        Mode::Mps(_) => "mps",
        Mode::Mig(_) => "mig",
        Mode::Unmanaged => "unmanaged",
    }
}

/// Why a card takes nothing new.
fn cordon(card: &Card) -> Option<String> {
    let to = &card.change.as_ref()?.to;
    let from = card.mode.as_ref().map_or("nothing", name);
    Some(match &card.mode {
        Some(mode) if mode == to => format!("is being set up as {from}"),
        Some(mode) if alike(mode, to) => format!("gets new numbers of {from}"),
        _ => format!("changes from {from} to {}", name(to)),
    })
}

#[cfg(test)]
mod tests {
    use aliquot_profiles::mode::{Exclusive, Vgpu};

    use super::*;
    use crate::transition::Change;

    #[test]
    fn what_was_stored_is_read_back() {
        let room = tempfile::tempdir().expect("tempdir");
        let path = room.path().join("cards.json");
        assert_eq!(Standing::load(&path).expect("none"), None);
        let mut standing = Standing::default();
        let change = Change {
            to: Mode::Exclusive(Exclusive::default()),
            step: Step::Leaving,
            since: 7,
        };
        let card = Card {
            mode: Some(Mode::Vgpu(Vgpu::default())),
            change: Some(change),
            given_up: None,
        };
        standing.cards.insert("GPU-a".into(), card);
        standing.store(&path).expect("stored");
        assert_eq!(Standing::load(&path).expect("read"), Some(standing.clone()));
        let stand = &standing.arrangement("nvidia.com/gpu").cards["GPU-a"];
        assert_eq!(
            stand.cordon.as_deref(),
            Some("changes from vgpu to exclusive")
        );
        assert!(stand.switching);
    }

    /// Whoever takes a card for a new one may switch it under the pods that run there: none is
    /// served until somebody says what is to be done.
    #[test]
    fn modes_that_cannot_be_read_are_refused_with_what_to_do() {
        let room = tempfile::tempdir().expect("tempdir");
        let path = room.path().join("cards.json");
        let whole = serde_json::to_string(&Standing::default()).expect("json");
        let newer = whole.replace("\"v\":1", "\"v\":9");
        for (text, part) in [
            ("", "EOF"),
            ("\0\0\0", "expected value"),
            (&whole[..whole.len() / 2], "EOF"),
            (newer.as_str(), "version 9, this release reads 1"),
        ] {
            std::fs::write(&path, text).expect("written");
            let error = Standing::load(&path).expect_err(text).to_string();
            let told = [part, "cards.json", "when no pod with a share runs"];
            assert!(told.iter().all(|part| error.contains(part)), "{error}");
            let kept = std::fs::read_to_string(&path).expect("still there");
            assert_eq!(kept, text, "for whoever looks at it");
        }
    }
}
