//! The monitor's loop: sample, evaluate, act, export. A sample that does not end is reported, since the
//! driver may never answer.

use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use aliquot_k8s::event::EventSender;
use aliquot_k8s::watch::Freshness;
use aliquot_nvml::ReleasableNvml;
use tokio::sync::watch;
use tokio::task::spawn_blocking;
use tokio::time::{MissedTickBehavior, timeout};
use tokio_util::sync::CancellationToken;

use crate::actions::ActionRunner;
use crate::agent_reports::{GpuListReport, UnmanagedReport};
use crate::arbiter::measurements::{Measurements, measurements};
use crate::arbiter::runner::Clocks;
use crate::devices::GpuSample;
use crate::enforce::{DriverLimits, Enforcement};
use crate::evaluation::{Evaluator, Rules};
use crate::exporter::{LatestSnapshot, Snapshot};
use crate::lending::{GpuLending, Lending, LentShare};
use crate::managed_containers::ManagedContainers;
use crate::node_sample::NodeSample;
use crate::sampler::Sampler;
use crate::usage_routes::UsageRecord;

/// Time between two samples: an unmanaged process is reported in the second, within two seconds.
pub const SAMPLE_INTERVAL: Duration = Duration::from_millis(500);

/// A sample that takes longer is reported; driver calls have no deadline.
const OVERDUE: Duration = Duration::from_secs(30);

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SampleStatus {
    Completed,
    /// It has not completed for half a minute, or another half.
    Overdue,
    /// It is left out while the driver is closed, for this reason.
    DriverClosed(String),
}

pub struct SamplingLoop {
    pub node: String,
    /// Bytes that each process may use beyond what the limiter counts for it.
    pub tolerance: u64,
    /// The driver that the sampler and the limits use.
    pub driver: Arc<ReleasableNvml>,
    pub sampler: Sampler,
    pub evaluator: Evaluator,
    pub limits: DriverLimits,
    pub lending: Lending,
    pub actions: ActionRunner,
    pub uncorrected: GpuListReport,
    pub unmeasured: GpuListReport,
    pub unmanaged: UnmanagedReport,
    pub freshness: Freshness,
    pub notes: EventSender,
    pub shown: LatestSnapshot,
    pub usage: UsageRecord,
    pub containers_tx: watch::Sender<Arc<ManagedContainers>>,
    pub measurements_tx: watch::Sender<Arc<Measurements>>,
}

impl SamplingLoop {
    /// Samples until `stop`; calls `report` with each status.
    pub async fn run(self, report: impl Fn(SampleStatus), stop: CancellationToken) {
        let mut ticks = tokio::time::interval(SAMPLE_INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut sampling = self;
        let (node, shown) = (sampling.node.clone(), sampling.shown.clone());
        let mut closed: Option<String> = None;
        loop {
            tokio::select! {
                () = stop.cancelled() => {
                    // There may be no monitor after this one.
                    sampling.sampler.end_call_backs();
                    return;
                }
                _ = ticks.tick() => {}
            }
            let begun = SystemTime::now();
            let task = spawn_blocking(move || {
                let open = sampling.driver.open_or_release();
                if open.is_ok() {
                    sampling.sample_once();
                }
                (sampling, open.err().map(|reason| reason.to_string()))
            });
            let on_overdue = || {
                shown.set_overdue(&node, begun);
                report(SampleStatus::Overdue);
            };
            let Ok((same, reason)) = await_reporting_overdue(task, on_overdue).await else {
                tracing::error!("sampling panicked; the monitor exits");
                stop.cancel();
                return;
            };
            sampling = same;
            if reason != closed {
                if let Some(reason) = &reason {
                    tracing::warn!(reason, "the driver is closed; nothing is sampled");
                } else {
                    tracing::info!("the driver is open");
                }
                closed.clone_from(&reason);
            }
            report(reason.map_or(SampleStatus::Completed, SampleStatus::DriverClosed));
        }
    }

    /// Takes one sample and acts on it. Blocks.
    pub fn sample_once(&mut self) {
        let begun = Instant::now();
        let (sample, gpus) = self.sampler.sample();
        self.containers_tx
            .send_replace(Arc::clone(&sample.containers));
        let rules = Rules {
            tolerance: self.tolerance,
            fresh: self.freshness.error(tokio::time::Instant::now()).is_none(),
        };
        let evaluation = self.evaluator.evaluate(&sample, &rules);
        let measured = measurements(&sample, &evaluation, Clocks::read().monotonic);
        self.measurements_tx.send_replace(Arc::new(measured));
        for (at, problem) in &evaluation.corrupt_counters {
            let container = &sample.containers.all[*at];
            tracing::debug!(
                pod = container.pod_name,
                problem,
                "a counters file is corrupt"
            );
        }
        self.sampler
            .write_charges(&sample.containers.all, &evaluation.charges);
        let free = |gpu: &str| free_memory(&gpus, &sample, gpu);
        let lent = self
            .lending
            .evaluate(&sample, &evaluation, rules.tolerance, free);
        write_lending(&mut self.sampler, &sample, &lent);
        self.actions.carry_out(&sample, &evaluation);
        self.actions.call_back(&sample, &evaluation, &lent);
        let unknown = &sample.blind | &sample.unsampled;
        self.uncorrected.write(&sample.uncorrected, &unknown);
        let (unmeasured, unknown) = sample.unmeasured(gpus.iter().map(|gpu| gpu.uuid.as_str()));
        self.unmeasured.write(&unmeasured, &unknown);
        let unmanaged = evaluation.unmanaged_memory();
        self.unmanaged
            .write(&unmanaged, &sample.blind, sample.taken_at);
        let Enforcement { by, late } = self.limits.enforce(&sample);
        self.actions.report_late_limits(&sample, &late);
        let snapshot = Snapshot {
            node: self.node.clone(),
            sample,
            gpus,
            evaluation,
            enforced_by: by,
            driver_limits: self.limits.offered(),
            listed: self.freshness.listed().is_some(),
            action_counts: self.actions.counts.clone(),
            failures: self.sampler.failures.clone(),
            dropped: self.notes.dropped(),
            took: begun.elapsed(),
            now: Clocks::read().monotonic,
            completed_at: SystemTime::now(),
        };
        self.usage.add(&snapshot);
        self.shown.set(snapshot);
    }
}

/// Writes to the limits pages what is lent on each GPU.
fn write_lending(
    sampler: &mut Sampler,
    sample: &NodeSample,
    lent: &[(Vec<LentShare>, GpuLending)],
) {
    for (shares, decision) in lent {
        for share in shares {
            let (at, device) = share.at;
            if let Some(page) = sampler.page(&sample.containers.all[at])
                && device < page.page().devices()
            {
                page.set_called_back(device, decision.called_back);
                page.set_max_wait_ms(device, decision.max_wait_ms);
            }
        }
    }
}

/// Bytes that are free on a GPU or a MIG instance; `None` if that is unknown.
fn free_memory(gpus: &[GpuSample], sample: &NodeSample, device: &str) -> Option<u64> {
    let mut instances = gpus.iter().flat_map(|gpu| &gpu.instances);
    let memory = match gpus.iter().find(|gpu| gpu.uuid == device) {
        Some(gpu) => gpu.bytes?,
        None => instances.find(|one| one.uuid == device)?.bytes?,
    };
    // Of GPUs, what this sample read.
    let used = sample.in_use.get(device).copied().unwrap_or(memory.used);
    let available = memory.total.saturating_sub(memory.reserved);
    Some(available.saturating_sub(used))
}

/// Awaits a sample; calls `on_overdue` each time that it has not completed for another [`OVERDUE`].
async fn await_reporting_overdue<T>(sample: impl Future<Output = T>, on_overdue: impl Fn()) -> T {
    let mut sample = pin!(sample);
    loop {
        if let Ok(found) = timeout(OVERDUE, &mut sample).await {
            return found;
        }
        tracing::error!("a sample does not complete: the driver does not answer");
        on_overdue();
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn reports_overdue_sample_when_driver_does_not_answer() {
        let check = async |expected: u32| {
            let (answer, answered) = tokio::sync::oneshot::channel();
            let (answer, late) = (Cell::new(Some(answer)), Cell::new(0));
            let begun = tokio::time::Instant::now();
            let on_overdue = || {
                late.set(late.get() + 1);
                if late.get() == expected {
                    let answer = answer.take().expect("first time");
                    answer.send(()).expect("it waits");
                }
            };
            let found = await_reporting_overdue(answered, on_overdue).await;
            found.expect("answered");
            assert_eq!(late.get(), expected);
            assert_eq!(begun.elapsed(), expected * OVERDUE);
        };
        check(1).await;
        check(100).await;
        let report =
            await_reporting_overdue(std::future::ready(7), || panic!("it is in time")).await;
        assert_eq!(report, 7);
    }
}
