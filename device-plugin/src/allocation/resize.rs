//! Resizes the shares of running pods, as the scheduler granted in `aliquot.dev/resize-status`
//! ([`aliquot_core::resize`]), and reports in the inventory which of them are enforced.
//!
//! A new share is validated like that of a new pod, stored, and written to the limits pages. One that
//! is smaller than what its container uses waits: a page is never below what is in use, except for
//! the moment in which that is found out. A kill leaves the old share or the new one stored, and the
//! pages follow the store at the next start; nothing is reported that is not on the pages.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use aliquot_core::inventory::ResizeReport;
use aliquot_core::resize::{self, PendingResize, ResizeStatus};
use aliquot_core::{Allocation, GpuUuid, Mib, PodUid};
use aliquot_node_state::accepted::AcceptedAllocation;
use aliquot_node_state::checkpoint::{self, CheckpointEntry};
use aliquot_node_state::container_directory::ContainerDirectory;
use aliquot_region::host;
use aliquot_region::limits::HostLimitsPage;
use aliquot_serve::fail_point;
use tokio::task::spawn_blocking;
use tokio_util::sync::CancellationToken;

use crate::allocation::start::ContainerStarter;
use crate::allocation::validation::ValidationInput;
use crate::modes;
use crate::pods::pod::{Phase, Pod};

/// Interval of trying again what waits.
const RETRY: Duration = Duration::from_millis(250);
/// Interval without any.
const IDLE: Duration = Duration::from_mins(1);

/// Messages round what would fit down to multiples of this, so that not every allocation changes
/// them.
const FITS: Mib = Mib(256);

#[derive(Clone, Debug, PartialEq, Eq)]
enum NotEnforced {
    /// It is tried again.
    Waits(String),
    /// It is not.
    Refused(String),
}

/// Resizes until `stop`, at every change of the pods.
pub async fn run(starter: Arc<ContainerStarter>, stop: CancellationToken) {
    let mut changes = starter.allocations.pods.subscribe();
    let mut enforced = BTreeMap::new();
    loop {
        changes.borrow_and_update();
        let (this, before) = (Arc::clone(&starter), std::mem::take(&mut enforced));
        let Ok((reports, now)) = spawn_blocking(move || resize_all(&this, &before)).await else {
            return;
        };
        let pause = if reports.iter().any(|report| report.waits.is_some()) {
            RETRY
        } else {
            IDLE
        };
        starter.allocations.published.set_resizes(reports);
        enforced = now;
        tokio::select! {
            () = stop.cancelled() => return,
            _ = changes.changed() => {}
            () = tokio::time::sleep(pause) => {}
        }
    }
}

/// Resizes every pod that needs it, except those that this process has finished. Returns the
/// reports and the numbers of what is enforced.
fn resize_all(
    starter: &ContainerStarter,
    enforced: &BTreeMap<PodUid, u64>,
) -> (Vec<ResizeReport>, BTreeMap<PodUid, u64>) {
    let (mut reports, mut now) = (Vec::new(), BTreeMap::new());
    for pod in starter.allocations.pods.in_order() {
        let Some(text) = pod.resize.as_deref().filter(|_| pod.phase != Phase::Ended) else {
            continue;
        };
        let status = match ResizeStatus::decode(text) {
            Ok(status) => status,
            Err(error) => {
                tracing::warn!(pod = pod.name, %error, "cannot read how the pod is to be resized");
                continue;
            }
        };
        let Some(pending) = &status.pending else {
            continue;
        };
        let generation = status.generation;
        let result = if enforced.get(&pod.uid) == Some(&generation) {
            Ok(())
        } else {
            enforce(starter, &pod, generation, pending)
        };
        let mut report = ResizeReport {
            pod: pod.uid.clone(),
            generation,
            waits: None,
            refused: None,
        };
        match result {
            Ok(()) => drop(now.insert(pod.uid.clone(), generation)),
            Err(NotEnforced::Waits(why)) => report.waits = Some(why),
            Err(NotEnforced::Refused(why)) => report.refused = Some(why),
        }
        reports.push(report);
    }
    reports.sort_by(|a, b| a.pod.cmp(&b.pod));
    (reports, now)
}

fn enforce(
    starter: &ContainerStarter,
    pod: &Pod,
    generation: u64,
    pending: &PendingResize,
) -> Result<(), NotEnforced> {
    let waits = |error: String| NotEnforced::Waits(error);
    let known = &*starter.allocations;
    let entries = known.entries().map_err(|error| waits(error.to_string()))?;
    let own: Vec<CheckpointEntry> = entries
        .iter()
        .filter(|entry| entry.pod == pod.kubelet_uid && entry.name.is_some())
        .cloned()
        .collect();
    let _locked = starter.preparer.lock_pod(&pod.kubelet_uid);
    let stored = known.store.lock().get(&pod.kubelet_uid).cloned();
    let stored = stored.ok_or_else(|| waits("the pod has not started on its node".to_owned()))?;
    if stored.resize == Some(generation) {
        // A process that was killed stored it, or could not take it back.
        write_pages(starter, &stored, &own)?;
        return check_use(starter, None, &stored);
    }
    if stored.resize.is_some_and(|last| last > generation) {
        return Err(waits("a later one is enforced".to_owned()));
    }
    let to = validated(starter, pod, &stored, &own, pending)?;
    let next = stored.resized(to, generation);
    let before = Some(&*stored);
    check_use(starter, before, &next)?;
    let store = |accepted: AcceptedAllocation| {
        let stored = known.store.lock().put(accepted);
        stored.map_err(|error| waits(error.to_string()))
    };
    store(next.clone())?;
    fail_point::at("ResizeStored");
    let written = write_pages(starter, &next, &own);
    fail_point::at("ResizeWritten");
    // What was allocated before the page was written.
    let result = written.and_then(|()| check_use(starter, before, &next));
    if result.is_err() {
        store(AcceptedAllocation::clone(&stored))?;
        write_pages(starter, &stored, &own)?;
    }
    result
}

/// The new share, if this node would accept a new pod with it.
fn validated(
    starter: &ContainerStarter,
    pod: &Pod,
    stored: &AcceptedAllocation,
    own: &[CheckpointEntry],
    pending: &PendingResize,
) -> Result<Allocation, NotEnforced> {
    let refused = |why: String| NotEnforced::Refused(why);
    let known = &*starter.allocations;
    let allocation = pod.allocation.as_deref().map(Allocation::decode);
    let Some(Ok(allocation)) = allocation else {
        return Err(refused(
            "annotation aliquot.dev/allocation cannot be read".to_owned(),
        ));
    };
    if let Some(why) = resize::unproven(&stored.allocation, &pending.to, &allocation) {
        return Err(refused(why.to_owned()));
    }
    for (container, grants) in pending.to.all() {
        let before = stored.allocation.grants(container).unwrap_or_default();
        let mut changed = grants
            .iter()
            .zip(before)
            .filter(|(to, before)| to != before);
        let fixed = changed.find(|(grant, _)| {
            let mode = modes::of_device(stored.mode(&grant.gpu));
            !mode.is_resizable()
        });
        if let Some((grant, _)) = fixed {
            let (gpu, mode) = (&grant.gpu, stored.mode(&grant.gpu).name());
            let why = format!("{gpu} is shared in mode {mode}, whose shares cannot be resized");
            return Err(refused(why));
        }
    }
    let text = pending
        .to
        .encode()
        .map_err(|error| refused(error.to_string()))?;
    let as_new = Pod {
        allocation: Some(text),
        ..pod.clone()
    };
    let node = known.published.get();
    let store = known.store.lock();
    let others = known.others(&pod.kubelet_uid, &store);
    let input = ValidationInput {
        inventory: &node.inventory,
        layout: &node.layout,
        uid: &pod.kubelet_uid,
        pod: Some(&as_new),
        holders: own,
        others: &others,
        damaged: &known.damaged(&pod.kubelet_uid, &store),
    };
    let accepted = starter.validator.validate(input);
    let accepted = accepted.map_err(|refusal| refused(refusal.to_string()))?;
    Ok(accepted.allocation)
}

fn write_pages(
    starter: &ContainerStarter,
    accepted: &AcceptedAllocation,
    own: &[CheckpointEntry],
) -> Result<(), NotEnforced> {
    let node = starter.allocations.published.get();
    for named in checkpoint::named_containers(own) {
        if named.names().all(|name| accepted.has_name(name)) {
            let written = starter.preparer.prepare(accepted, &named, &node);
            written.map_err(|error| NotEnforced::Waits(error.to_string()))?;
        }
    }
    Ok(())
}

/// Waits while more is in use than a smaller share allows, by the limiter's count and the
/// monitor's. The text does not change with every allocation. Where the share `before` is not
/// known, all counts.
fn check_use(
    starter: &ContainerStarter,
    before: Option<&AcceptedAllocation>,
    after: &AcceptedAllocation,
) -> Result<(), NotEnforced> {
    let directories = &starter.allocations.paths.container_directories;
    for (container, (_, directory)) in after.running_directories(directories) {
        if after
            .effective(container)
            .is_none_or(|effective| effective.uncontrolled)
        {
            continue;
        }
        let grants = |accepted: &AcceptedAllocation| {
            let grants = accepted.allocation.grants(container).unwrap_or_default();
            grants
                .iter()
                .map(|grant| (grant.gpu.clone(), grant.memory_limit()))
                .collect::<Vec<_>>()
        };
        let old = before.map(grants);
        let is_smaller = |(index, (gpu, limit)): &(usize, (GpuUuid, Mib))| match &old {
            Some(old) => old.get(*index).is_some_and(|(_, old)| limit < old),
            None => modes::of_device(after.mode(gpu)).is_resizable(),
        };
        let limits = grants(after).into_iter().enumerate();
        let smaller: Vec<_> = limits.filter(is_smaller).collect();
        // Without a limiter, nothing is refused and nothing is counted.
        if smaller.is_empty() || !directory.has_limiter() {
            continue;
        }
        let used = used(&directory, grants(after).len()).map_err(|error| {
            NotEnforced::Waits(format!(
                "what container {container} uses is unknown: {error}"
            ))
        })?;
        for (index, (gpu, limit)) in smaller {
            let used = used.get(index).copied().unwrap_or(u64::MAX);
            if used > limit.bytes() {
                let fits = Mib(used.div_ceil(FITS.bytes()).saturating_mul(FITS.0));
                let old = old.as_ref().and_then(|old| old.get(index));
                let fits = old.map_or(fits, |(_, old)| fits.min(*old));
                return Err(NotEnforced::Waits(format!(
                    "container {container} uses more than {limit} of {gpu}; what would fit: {fits}"
                )));
            }
        }
    }
    Ok(())
}

/// The bytes of each device that count against a container's limit.
fn used(directory: &ContainerDirectory, devices: usize) -> Result<Vec<u64>, String> {
    let counters = host::read(&directory.counters(), devices).map_err(|error| error.to_string())?;
    let page = HostLimitsPage::open(&directory.limits()).map_err(|error| error.to_string())?;
    let all = 0..devices;
    Ok(all
        .map(|index| {
            counters
                .used(index)
                .saturating_add(page.page().overhead(index))
        })
        .collect())
}
