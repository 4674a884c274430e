//! Launches at the container's rate: each is charged before it is made, waits while the bucket is
//! in debt or the throttle flag says so, and is measured now and then. The limits page is read at
//! every launch, so a change of the host applies at once.
//!
//! A launch never waits longer than [`MAX_MEASURE_WAIT`] for what another process may have to
//! launch first.

use std::sync::OnceLock;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU64};

use aliquot_pacer::bucket::{Bucket, Until};
use aliquot_pacer::cost::{Costs, KernelCost, LaunchSample};
use aliquot_pacer::credit::{CHUNK, Credit};
use aliquot_pacer::rule::{HEARTBEAT_TIMEOUT, LaunchRule, LimitWords, RUN, Rate, UNLIMITED};

use crate::ffi::{Code, Handle, SUCCESS, long};
use crate::launch::LaunchWork;
use crate::marker::{ContextMarks, LaunchMeasurement, Markers, MeasuredLaunch};
use crate::process::{self, ProcessState};
use crate::{capture, clock, context};

/// Percent.
const NO_LIMIT: u32 = 100;
/// Nanoseconds for which a throttle flag that lifts the limit is trusted without checking the host:
/// the flag of a dead host stops to lift it soon after the heartbeat is too old, however few
/// launches there are.
const HOST_TRUST: u64 = 1_000_000_000;
/// Measurements to poll with each measured launch.
const MAX_POLLED: usize = 4;

/// Nanoseconds after which a wait reads the limits page again, woken or not.
const RECHECK_INTERVAL: u64 = 20_000_000;
/// Nanoseconds between polls of measurements that are waited for.
const POLL_INTERVAL: u64 = 200_000;
/// The longest that a launch waits to learn what earlier ones cost. They may not end before it
/// starts: kernels of several processes wait for each other.
const MAX_MEASURE_WAIT: u64 = 2_000_000_000;

/// Paces the launches of this process.
#[derive(Debug)]
pub(crate) struct Pace(Vec<DevicePace>);

/// The events of a context, for each device.
#[derive(Debug)]
pub(crate) struct DetachedMarks(Vec<ContextMarks>);

/// Paces the launches on one device.
#[derive(Debug, Default)]
struct DevicePace {
    credit: Credit,
    costs: OnceLock<Costs>,
    markers: Markers,
    /// The host was alive when it was last checked.
    host_alive: AtomicBool,
    /// Until when that is trusted, on the coarse clock.
    trusted_until: AtomicU64,
    /// The heartbeat that was found too old: while it stays, nobody need check again.
    stale_heartbeat: AtomicU64,
    /// Measurements were waited for in vain; no more waits until one ends.
    stalled: AtomicBool,
}

impl Pace {
    pub(crate) fn new(devices: usize) -> Self {
        Self((0..devices).map(|_| DevicePace::default()).collect())
    }

    /// Takes out the events of a context that may end now: from here on none of them is queried.
    pub(crate) fn detach(&self, context: Handle) -> DetachedMarks {
        let device_paces = self.0.iter();
        DetachedMarks(
            device_paces
                .map(|device_pace| device_pace.markers.detach(context))
                .collect(),
        )
    }

    /// The context lives on.
    pub(crate) fn put_back(&self, detached: DetachedMarks) {
        for (device_pace, marks) in self.0.iter().zip(detached.0) {
            device_pace.markers.put_back(marks);
        }
    }

    /// A context ended, or is about to: pending measurements in it will never finish.
    pub(crate) fn forget(&self, context: Handle, detached: DetachedMarks) {
        capture::forget(context);
        for (device_pace, marks) in self.0.iter().zip(detached.0) {
            for launch in marks.launches() {
                device_pace.costs().kernel(launch.key).end_measurement();
            }
        }
    }
}

/// Makes a launch when it may be made.
#[inline]
pub(crate) fn launch(work: LaunchWork, call: impl FnOnce() -> Code) -> Code {
    match paced_launch(work.stream) {
        Ok(None) => call(),
        Ok(Some(paced)) => paced.launch(work, call),
        Err(code) => code,
    }
}

/// The pacing that a launch needs, or `None`. Not inlined, so that an unpaced launch need not keep
/// its arguments anywhere.
#[inline(never)]
fn paced_launch(stream: Handle) -> Result<Option<PacedLaunch>, Code> {
    let process = process::required()?;
    if process.is_uncontrolled() {
        return Ok(None);
    }
    let (device_index, device_pace) = match process.pace.0.as_slice() {
        [device_pace] => (0, device_pace),
        device_paces => match device_index_of(process, stream)? {
            device_index if device_index < device_paces.len() => {
                (device_index, &device_paces[device_index])
            }
            _ => return Ok(None),
        },
    };
    let paced = PacedLaunch {
        process,
        device_index,
        device_pace,
        thread: thread_number(),
    };
    let is_paced = !paced.is_unlimited()
        || device_pace
            .credit
            .count_launch(paced.thread, process.limits.heartbeat());
    Ok(is_paced.then_some(paced))
}

/// A number that mostly differs between threads: where its stack is.
#[inline]
fn thread_number() -> usize {
    let here = 0_u8;
    let at = (&raw const here).addr() >> 16;
    (at ^ (at >> 4) ^ (at >> 8)) & 0xffff
}

/// Device index of the context in which work of a stream runs, whatever context the thread has.
fn device_index_of(process: &'static ProcessState, stream: Handle) -> Result<usize, Code> {
    match context::of_stream(stream) {
        // The driver will refuse the launch.
        0 => Ok(usize::MAX),
        context => context::device_index_of(process, context),
    }
}

#[inline]
fn limit_words(process: &ProcessState, device_index: usize, host_alive: bool) -> LimitWords {
    let limits = &process.limits;
    LimitWords {
        cores: limits.cores(device_index),
        policy: limits.policy(),
        throttle_flag: limits.throttle_flag(device_index).load(Relaxed),
        rate_correction: limits.rate_correction(device_index),
        tenants: limits.tenants(device_index),
        host_alive,
    }
}

impl DevicePace {
    fn costs(&self) -> &Costs {
        self.costs.get_or_init(Costs::default)
    }
}

/// A launch that may have to wait.
#[derive(Clone, Copy)]
struct PacedLaunch {
    process: &'static ProcessState,
    device_index: usize,
    device_pace: &'static DevicePace,
    thread: usize,
}

impl PacedLaunch {
    /// Whether neither a limit nor the throttle flag applies.
    #[inline]
    fn is_unlimited(self) -> bool {
        let limits = &self.process.limits;
        limits.throttle_flag(self.device_index).load(Relaxed) == RUN
            && limits.cores(self.device_index) == NO_LIMIT
    }

    /// Makes the launch at once if its thread has credit, or else when the bucket grants some.
    #[inline(never)]
    fn launch(self, work: LaunchWork, call: impl FnOnce() -> Code) -> Code {
        let Self {
            process,
            device_index,
            device_pace,
            thread,
        } = self;
        let limits = &process.limits;
        let (throttle_flag, heartbeat) = (
            limits.throttle_flag(device_index).load(Relaxed),
            limits.heartbeat(),
        );
        let host_alive = device_pace.host_alive.load(Relaxed);
        // A host that set the throttle flag is checked at once; one that was found dead only when
        // its heartbeat changes.
        let must_check_host = throttle_flag != RUN
            && !host_alive
            && heartbeat != device_pace.stale_heartbeat.load(Relaxed);
        let immediate = match limit_words(process, device_index, host_alive).rule() {
            _ if must_check_host || self.is_unlimited() => false,
            LaunchRule::Unlimited => {
                let is_trusted = throttle_flag != UNLIMITED
                    || clock::coarse() < device_pace.trusted_until.load(Relaxed);
                is_trusted && !device_pace.credit.count_launch(thread, heartbeat)
            }
            LaunchRule::Limited(_) => {
                if device_pace.credit.is_report_due(thread, heartbeat) {
                    self.report_launches();
                }
                let kernel = device_pace.costs().kernel(work.key);
                kernel.is_known()
                    && !capture::any()
                    && device_pace
                        .credit
                        .spend(thread, long(work.stream), kernel.cost())
            }
            LaunchRule::Wait => false,
        };
        if immediate {
            return call();
        }
        self.launch_through_bucket(work, call)
    }

    #[cold]
    fn launch_through_bucket(self, work: LaunchWork, call: impl FnOnce() -> Code) -> Code {
        self.report_launches();
        let kernel = self.device_pace.costs().kernel(work.key);
        if matches!(self.limit_words().rule(), LaunchRule::Unlimited) {
            return call();
        }
        let (stream, cost) = (long(work.stream), kernel.cost());
        if capture::any() {
            let captured = capture::with_relaxed_capture(|| capture::is_captured(work.stream));
            if captured
                || (kernel.is_known() && self.device_pace.credit.spend(self.thread, stream, cost))
            {
                return call();
            }
        }
        self.poll();
        self.wait_for_measurements(kernel, || {
            let markers = &self.device_pace.markers;
            let stream_full = || !kernel.is_known() && markers.is_stream_full(work.stream);
            kernel.is_at_unmeasured_limit() || markers.is_full() || stream_full()
        });
        let cost = kernel.cost();
        let chunk = self.device_pace.credit.chunk(self.thread, cost);
        let Some(rate) = self.wait_for_credit(chunk) else {
            return call();
        };
        let until = self.compute().until;
        let credit = &self.device_pace.credit;
        let overlapped = credit.begin_work(self.thread, stream, until, (clock::now(), chunk));
        // A small kernel is measured when it comes right after another one.
        let small = kernel.is_known() && cost < CHUNK / 2 && chunk > 0;
        let started = (!small).then(|| self.device_pace.markers.begin(work.stream));
        let started = started.flatten();
        let code = call();
        if code != SUCCESS {
            if let Some(started) = started {
                self.device_pace.markers.cancel(started);
            }
            self.bucket().settle(rate, chunk, 0);
            return code;
        }
        credit.grant(self.thread, chunk, cost);
        if small {
            credit.measure_next(self.thread);
        }
        if let Some(started) = started {
            kernel.begin_measurement();
            let launch = MeasuredLaunch {
                key: work.key,
                charged: cost,
                sharing: self.limit_words().sharing(),
                overlapped,
                delayed: self.delayed(),
            };
            if !self.device_pace.markers.end(started, work.stream, launch) {
                kernel.end_measurement();
            }
        }
        self.compute().busy.fetch_add(chunk, Relaxed);
        code
    }

    /// The current limits, after checking the host's heartbeat.
    fn limit_words(self) -> LimitWords {
        let heartbeat = self.process.limits.heartbeat();
        // A clock that was set back a little does not make the host's words stale, and one that was
        // set back far does not keep them valid forever.
        let age = clock::since_epoch().abs_diff(heartbeat);
        let host_alive = heartbeat != 0 && age < HEARTBEAT_TIMEOUT;
        self.device_pace.host_alive.store(host_alive, Relaxed);
        if host_alive {
            self.device_pace
                .trusted_until
                .store(clock::coarse() + HOST_TRUST, Relaxed);
        } else {
            self.device_pace.stale_heartbeat.store(heartbeat, Relaxed);
        }
        limit_words(self.process, self.device_index, host_alive)
    }

    fn compute(self) -> aliquot_region::counters::ComputeWords<'static> {
        self.process.slot.compute(self.device_index)
    }

    fn bucket(self) -> Bucket<'static> {
        Bucket(self.compute().bucket)
    }

    /// Reports the launches of this thread in the container's counters.
    #[cold]
    fn report_launches(self) {
        let (compute, heartbeat) = (self.compute(), self.process.limits.heartbeat());
        let launches = self
            .device_pace
            .credit
            .take_launches(self.thread, heartbeat);
        compute.launches.fetch_add(launches, Relaxed);
        compute.last.fetch_max(clock::now(), Relaxed);
    }

    /// Learns from finished measurements, and corrects what was charged.
    fn poll(self) {
        self.device_pace
            .markers
            .poll(MAX_POLLED, |measured| self.learn(measured));
    }

    fn learn(self, measured: LaunchMeasurement) {
        self.device_pace.stalled.store(false, Relaxed);
        let launch = measured.launch;
        let kernel: &KernelCost = self.device_pace.costs().kernel(launch.key);
        kernel.end_measurement();
        let delayed = self.delayed().wrapping_sub(launch.delayed);
        let found = measured.took.and_then(|took| {
            kernel.learn(LaunchSample {
                took,
                sharing: launch.sharing,
                overlapped: launch.overlapped,
                disturbed: measured.disturbed,
                delayed,
            })
        });
        if let (Some(found), LaunchRule::Limited(rate)) = (found, self.limit_words().rule()) {
            self.bucket().settle(rate, launch.charged, found);
            // The device was kept busy by a wait for another device of the container.
            let took = measured.took.filter(|_| delayed > 0 && launch.sharing <= 1);
            let waited = took.map_or(0, |took| took.saturating_sub(found));
            self.bucket().skip(waited);
            let more = found.wrapping_sub(launch.charged).wrapping_add(waited);
            self.compute().busy.fetch_add(more, Relaxed);
        }
    }

    /// Total nanoseconds for which launches of the container on its other devices waited.
    fn delayed(self) -> u64 {
        let others = (0..self.process.pace.0.len())
            .filter(|device_index| *device_index != self.device_index);
        let each =
            others.map(|device_index| self.process.slot.compute(device_index).waited.load(Relaxed));
        each.fold(0, u64::wrapping_add)
    }
}

impl PacedLaunch {
    /// Waits while earlier launches must be measured first.
    fn wait_for_measurements(self, kernel: &KernelCost, must_wait: impl Fn() -> bool) {
        let start = clock::now();
        let mut now = start;
        while must_wait() {
            if !self.device_pace.stalled.load(Relaxed) && now - start < MAX_MEASURE_WAIT {
                self.sleep(now + POLL_INTERVAL);
                self.poll();
                now = clock::now();
                continue;
            }
            // In vain, now or just before: other launches can be measured instead, and an unknown
            // cost is assumed to be as long as that wait.
            self.device_pace.stalled.store(true, Relaxed);
            let costs = self.device_pace.costs();
            let markers = &self.device_pace.markers;
            markers.abandon(|launch| costs.kernel(launch.key).end_measurement());
            if !kernel.is_known() {
                kernel.learn(LaunchSample {
                    took: MAX_MEASURE_WAIT,
                    sharing: 1,
                    overlapped: false,
                    disturbed: false,
                    delayed: 0,
                });
            }
            break;
        }
        if now > start {
            self.compute().waited.fetch_add(now - start, Relaxed);
        }
    }

    /// Waits until the bucket grants a chunk; the rate at which it did, or `None` if there is no
    /// limit any more.
    fn wait_for_credit(self, chunk: u64) -> Option<Rate> {
        let start = clock::now();
        let mut now = start;
        let rate = loop {
            let until = match self.limit_words().rule() {
                LaunchRule::Unlimited => break None,
                LaunchRule::Wait => now + RECHECK_INTERVAL,
                LaunchRule::Limited(rate) => match self.bucket().take(now, rate, chunk) {
                    Ok(()) => break Some(rate),
                    Err(Until(until)) => until.min(now + RECHECK_INTERVAL),
                },
            };
            self.sleep(until);
            self.poll();
            now = clock::now();
        };
        if now > start {
            self.compute().waited.fetch_add(now - start, Relaxed);
        }
        rate
    }

    /// Sleeps until a moment, or until the host changes the throttle flag or wakes us.
    fn sleep(self, until: u64) {
        let throttle_flag = self.process.limits.throttle_flag(self.device_index);
        let shown = throttle_flag.load(Relaxed);
        clock::wait(throttle_flag, shown, until);
    }
}
