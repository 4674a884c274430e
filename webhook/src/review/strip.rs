//! Step 2: annotations that only the scheduler writes do not come with a manifest.
//!
//! Fed by: new pods, of any scheduler; a copied manifest often carries them.
//! Must not: touch running pods.

use aliquot_core::allocation::ALLOCATION;

use super::edit::Editor;

/// Written by the scheduler alone.
pub const RESERVED: [&str; 2] = [ALLOCATION, "aliquot.dev/preemption"];

/// Removes the reserved annotations; a warning for each that was there.
pub(super) fn strip(editor: &mut Editor) -> Vec<String> {
    RESERVED
        .into_iter()
        .filter(|name| editor.remove(&["metadata", "annotations", name]))
        .map(|name| format!("annotation {name} removed: only the scheduler writes it"))
        .collect()
}
