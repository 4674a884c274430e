//! One device plugin for each resource that this node has. A plugin ends only when the kubelet
//! counts no device of its resource.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::watch;
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::kubelet::plugin::CallHandlers;
use crate::kubelet::register::keep_registered;
use crate::node_view::NodeView;

/// Why each resource is not registered; `None`: it is registered.
type RegistrationErrors = Arc<Mutex<BTreeMap<String, Option<String>>>>;

/// Registers a plugin for each resource until `stop`. Calls `state` with `None` when all are
/// registered, and with the reason when one is not.
pub async fn register_all<F>(
    directory: PathBuf,
    handlers: Arc<CallHandlers>,
    mut node_view: watch::Receiver<Option<NodeView>>,
    state: F,
    stop: CancellationToken,
) where
    F: Fn(Option<String>) + Send + Sync + 'static,
{
    let state = Arc::new(state);
    let errors = RegistrationErrors::default();
    let mut plugins: BTreeMap<String, DropGuard> = BTreeMap::new();
    let mut changes = handlers.starter.allocations.published.subscribe();
    loop {
        let resources = changes.borrow_and_update().resources();
        // A resource that vanished advertises an empty list until the kubelet counts none of it:
        // the kubelet keeps the last list of a plugin that ended for minutes.
        let node = node_view.borrow_and_update().clone();
        let is_unused = |resource: &str| {
            node.as_ref()
                .is_none_or(|node| node.counts_none_of(resource))
        };
        plugins.retain(|resource, _| resources.contains(resource) || !is_unused(resource));
        let (before, error) = {
            let mut errors = errors.lock();
            let before = errors.len();
            errors.retain(|resource, _| resources.contains(resource));
            (before - errors.len(), first_error(&errors))
        };
        if before > 0 {
            state(error);
        }
        for resource in resources {
            if plugins.contains_key(&resource) {
                continue;
            }
            let stop = stop.child_token();
            let (name, errors, state) = (resource.clone(), Arc::clone(&errors), Arc::clone(&state));
            let report = move |error: Option<String>| state(record(&errors, &name, error));
            tokio::spawn(keep_registered(
                directory.clone(),
                resource.clone(),
                Arc::clone(&handlers),
                report,
                stop.clone(),
            ));
            plugins.insert(resource, stop.drop_guard());
        }
        if plugins.is_empty() {
            state(None);
        }
        tokio::select! {
            () = stop.cancelled() => return,
            sent = changes.changed() => if sent.is_err() { return },
            Ok(()) = node_view.changed() => {}
        }
    }
}

/// Records the state of a resource. Returns the first error of all resources.
fn record(errors: &RegistrationErrors, resource: &str, error: Option<String>) -> Option<String> {
    let mut errors = errors.lock();
    errors.insert(resource.to_owned(), error);
    first_error(&errors)
}

fn first_error(errors: &BTreeMap<String, Option<String>>) -> Option<String> {
    let mut errors = errors.iter();
    errors.find_map(|(resource, error)| Some(format!("{resource}: {}", error.as_ref()?)))
}
