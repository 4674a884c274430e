//! Step 5: pods with a share go to our scheduler, and to the runtime class in use.
//!
//! Fed by: `spec.schedulerName`, which the API server has already filled in.
//! Must not: take a pod from a scheduler that the settings do not name.

use serde_json::Value;

use super::edit::Editor;
use super::share::text;
use crate::settings::Settings;

/// The pod names no scheduler, ours, or one that ours replaces.
pub(super) fn is_ours(pod: &Value, settings: &Settings) -> bool {
    let name = pod["spec"]["schedulerName"].as_str().unwrap_or_default();
    name.is_empty()
        || name == settings.scheduler_name
        || settings.replaced_schedulers.contains(name)
}

/// Sets the scheduler, and the runtime class where the pod names none.
pub(super) fn set(editor: &mut Editor, settings: &Settings) {
    editor.set(&["spec", "schedulerName"], text(&settings.scheduler_name));
    if let Some(class) = &settings.runtime_class
        && editor.pod()["spec"]["runtimeClassName"].is_null()
    {
        editor.set(&["spec", "runtimeClassName"], text(class));
    }
}
