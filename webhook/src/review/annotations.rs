//! The pod's annotations: reserved ones are removed, preferences have to be valid, and space for
//! the allocation has to be left.

use aliquot_core::Preferences;
use aliquot_core::allocation::ALLOCATION;
use aliquot_core::hami;
use serde_json::Value;

use super::Refusal;
use super::patch::PodEditor;

/// Written by a scheduler alone: ours, or HAMi's.
pub const RESERVED: [&str; 9] = {
    let [a, b, c, d, e, f, g] = hami::WRITTEN;
    [ALLOCATION, "aliquot.dev/preemption", a, b, c, d, e, f, g]
};

/// The API server's limit for all annotations of an object, keys and values, in bytes.
const MAX_BYTES: usize = 256 << 10;
/// Bytes that must stay free for the allocation.
const ALLOCATION_BYTES: usize = 16 << 10;

/// Removes the reserved annotations of a new pod, whatever its scheduler; a warning for each.
/// Copied manifests often have them.
pub(super) fn remove_reserved(editor: &mut PodEditor) -> Vec<String> {
    RESERVED
        .into_iter()
        .filter(|name| editor.remove(&["metadata", "annotations", name]))
        .map(|name| format!("annotation {name} removed: only the scheduler may set it"))
        .collect()
}

/// Preferences that the scheduler would not understand: it reads them with the same function.
pub(super) fn invalid_preferences(pod: &Value) -> Vec<Refusal> {
    let annotations = &pod["metadata"]["annotations"];
    let errors = Preferences::read(|key| annotations[key].as_str()).err();
    let errors = errors.into_iter().flatten();
    errors
        .map(|error| Refusal {
            field: format!("metadata.annotations[{:?}]", error.key),
            message: error.why,
        })
        .collect()
}

/// The API server does not check the size of annotations that a Binding adds, but it does at the
/// pod's next status update: without space the pod could be bound and never run.
pub(super) fn too_large(pod: &Value) -> Option<Refusal> {
    let annotations = pod["metadata"]["annotations"].as_object()?;
    let size = |(key, value): (&String, &Value)| key.len() + value.as_str().map_or(0, str::len);
    let total: usize = annotations.iter().map(size).sum();
    let most = MAX_BYTES - ALLOCATION_BYTES;
    (total > most).then(|| Refusal {
        field: "metadata.annotations".to_owned(),
        message: format!(
            "{total} bytes leave no space for the allocation; expected: at most {most} bytes"
        ),
    })
}
