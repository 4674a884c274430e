//! One device plugin for each resource that this node has.
//!
//! Fed by: the published inventory. Must not: end a plugin whose seats somebody holds.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::watch;
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::metrics::Metrics;
use crate::node::Seen;
use crate::plugin::Plugin;
use crate::prestart::PreStart;
use crate::register::keep_registered;
use crate::{units, vanished};

/// Why each resource is not registered; `None`: it is.
type Faults = Arc<Mutex<BTreeMap<String, Option<String>>>>;

/// Keeps a plugin registered for each resource until `stop`. `state` is told `None` when all
/// are, and why one is not.
pub async fn keep_all<F>(
    directory: PathBuf,
    prestart: Arc<PreStart>,
    metrics: Metrics,
    mut seen: watch::Receiver<Option<Seen>>,
    state: F,
    stop: CancellationToken,
) where
    F: Fn(Option<String>) + Send + Sync + 'static,
{
    let state = Arc::new(state);
    let faults = Faults::default();
    let mut plugins: BTreeMap<String, DropGuard> = BTreeMap::new();
    let mut changes = prestart.published.subscribe();
    loop {
        let wanted = units::resources(&changes.borrow_and_update());
        // One that vanished shows an empty list, until the kubelet counts none of it: it would
        // remember the last list of a plugin that ends for minutes.
        let node = seen.borrow_and_update().clone();
        let shown = node.map(|node| node.resources).unwrap_or_default();
        plugins.retain(|resource, _| {
            wanted.contains(resource) || !vanished::is_none_left(&shown, resource)
        });
        let (before, fault) = {
            let mut faults = faults.lock();
            let before = faults.len();
            faults.retain(|resource, _| wanted.contains(resource));
            (before - faults.len(), wrong(&faults))
        };
        if before > 0 {
            state(fault);
        }
        for resource in wanted {
            if plugins.contains_key(&resource) {
                continue;
            }
            let stop = stop.child_token();
            let serving = Arc::clone(&prestart);
            let (name, counted) = (resource.clone(), metrics.clone());
            let plugin =
                move |stop| Plugin::new(&name, Arc::clone(&serving), counted.clone(), stop);
            let (name, faults, state) = (resource.clone(), Arc::clone(&faults), Arc::clone(&state));
            let told = move |fault: Option<String>| state(learn(&faults, &name, fault));
            tokio::spawn(keep_registered(
                directory.clone(),
                resource.clone(),
                plugin,
                metrics.clone(),
                told,
                stop.clone(),
            ));
            plugins.insert(resource, stop.drop_guard());
        }
        if plugins.is_empty() {
            state(None);
        }
        tokio::select! {
            () = stop.cancelled() => return,
            told = changes.changed() => if told.is_err() { return },
            Ok(()) = seen.changed() => {}
        }
    }
}

/// What is wrong now that this resource's state is this; `None`: nothing.
fn learn(faults: &Faults, resource: &str, fault: Option<String>) -> Option<String> {
    let mut faults = faults.lock();
    faults.insert(resource.to_owned(), fault);
    wrong(&faults)
}

fn wrong(faults: &BTreeMap<String, Option<String>>) -> Option<String> {
    let mut faults = faults.iter();
    faults.find_map(|(resource, fault)| Some(format!("{resource}: {}", fault.as_ref()?)))
}
