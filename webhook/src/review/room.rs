//! Step 1 for annotations: room for the allocation that the Binding will add.
//!
//! A Binding is not size-checked by the API server, but the pod's next status
//! update is, so a pod without room could be bound and never run.
//! Fed by: the pod as it will be stored. Must not: count labels, only annotations.

use serde_json::Value;

use super::Refusal;

/// The API server's limit for all annotations of an object, keys and values.
const LIMIT: usize = 256 << 10;
/// What must stay free.
const ROOM: usize = 16 << 10;

pub(super) fn refusal(pod: &Value) -> Option<Refusal> {
    let annotations = pod["metadata"]["annotations"].as_object()?;
    let size = |(key, value): (&String, &Value)| key.len() + value.as_str().map_or(0, str::len);
    let total: usize = annotations.iter().map(size).sum();
    (total > LIMIT - ROOM).then(|| Refusal {
        field: "metadata.annotations".to_owned(),
        message: format!(
            "{total} bytes leave no room for the allocation; accepted: at most {} bytes",
            LIMIT - ROOM
        ),
    })
}
