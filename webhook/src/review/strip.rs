//! Step 2: annotations that only the scheduler writes do not come with a manifest.
//!
//! Fed by: new pods, of any scheduler; a copied manifest often carries them.
//! Must not: touch running pods.

use aliquot_core::allocation::ALLOCATION;
use aliquot_core::hami;

use super::edit::Editor;

/// Written by a scheduler alone: ours, or HAMi's, whose pods count in our books.
pub const RESERVED: [&str; 3] = [ALLOCATION, "aliquot.dev/preemption", hami::ALLOCATED];

/// Removes the reserved annotations; a warning for each that was there.
pub(super) fn strip(editor: &mut Editor) -> Vec<String> {
    RESERVED
        .into_iter()
        .filter(|name| editor.remove(&["metadata", "annotations", name]))
        .map(|name| format!("annotation {name} removed: only the scheduler writes it"))
        .collect()
}
