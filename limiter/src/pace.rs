//! Launches at the container's rate: each is charged before it is made, waits while the bucket is
//! in debt or the throttle flag says so, and is measured now and then. The limits page is read at
//! every launch, so a change of the host applies at once.
//!
//! A launch never waits longer than [`MAX_MEASURE_WAIT`] for what another process may have to
//! launch first.

use std::sync::atomic::Ordering::Relaxed;

use aliquot_pacer::bucket::{Bucket, Until, gather_time};
use aliquot_pacer::cost::{KernelCost, LaunchSample, Running, Sharing};
use aliquot_pacer::credit::CHUNK;
use aliquot_pacer::queue::StreamQueue;
use aliquot_pacer::rule::{HEARTBEAT_TIMEOUT, LaunchRule, LimitWords, RUN, Rate};
use aliquot_region::counters::ComputeWords;

use crate::device_pace::{DevicePace, LaunchWork};
use crate::ffi::{Code, Handle, SUCCESS};
use crate::marker::{LaunchMeasurement, MeasuredLaunch};
use crate::process::{self, ProcessState};
use crate::{clock, reserve, stream};

const NO_LIMIT: u32 = 100;
/// Measurements to poll with each measured launch.
const MAX_POLLED: usize = 4;

/// The longest that a launch sleeps, in nanoseconds, while others are being measured: their end
/// shortens the debt, and the process no longer counts as one with work.
const MEASURING_INTERVAL: u64 = 5_000_000;
/// How long a launch waits for the end of another in its stream: this many times what one takes
/// beside all other tenants, and at least this many nanoseconds.
const MAX_QUEUE_WAIT: u64 = 20;
const MIN_QUEUE_WAIT: u64 = 100_000_000;
/// Nanoseconds for which no launch waits for the end of others after one did so in vain: a program
/// may launch much that is to run only later, at its command.
const UNQUEUED: u64 = 60_000_000_000;
const POLL_INTERVAL: u64 = 200_000;
/// The longest that a launch waits to learn what earlier ones cost. They may not end before it
/// starts: kernels of several processes wait for each other.
const MAX_MEASURE_WAIT: u64 = 2_000_000_000;

/// Makes a launch when it may be made.
#[inline]
pub(crate) fn launch(work: LaunchWork, call: impl FnOnce() -> Code) -> Code {
    match pacing_for(work.stream) {
        Ok(None) => call(),
        Ok(Some(pacing)) => pacing.launch_on_credit(work, call),
        Err(code) => code,
    }
}

/// A wait for work of the device is over: learns from all launches that are done, so that they do not
/// count as work any more.
pub(crate) fn poll_after_wait(process: &'static ProcessState) {
    for (device_index, device_pace) in process.pace.devices.iter().enumerate() {
        let pacing = Pacing {
            process,
            device_index,
            device_pace,
            thread: thread_number(),
        };
        pacing.poll(device_pace.markers.pending_of(None));
    }
}

/// The pacing that a launch needs, or `None`. Not inlined, so that an unpaced launch need not keep
/// its arguments anywhere.
#[inline(never)]
fn pacing_for(stream: Handle) -> Result<Option<Pacing>, Code> {
    let Some(process) = process::required()? else {
        return Ok(None);
    };
    let device_paces = &process.pace.devices;
    let device_index = match device_paces.len() {
        1 => 0,
        // Whatever context the thread has.
        _ => match stream::context_of(stream) {
            // The driver will refuse the launch.
            0 => return Ok(None),
            context => reserve::device_index_of(process, context)?,
        },
    };
    let Some(device_pace) = device_paces.get(device_index) else {
        return Ok(None);
    };
    let pacing = Pacing {
        process,
        device_index,
        device_pace,
        thread: thread_number(),
    };
    let is_paced = !pacing.is_unlimited()
        || device_pace
            .credit
            .count_launch(pacing.thread, process.limits.heartbeat());
    Ok(is_paced.then_some(pacing))
}

/// A number that mostly differs between threads: where its stack is.
#[inline]
fn thread_number() -> usize {
    let here = 0_u8;
    let at = (&raw const here).addr() >> 16;
    (at ^ (at >> 4) ^ (at >> 8)) & 0xffff
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

#[derive(Clone, Copy)]
struct Pacing {
    process: &'static ProcessState,
    device_index: usize,
    device_pace: &'static DevicePace,
    thread: usize,
}

impl Pacing {
    /// Whether neither a limit nor the throttle flag applies.
    #[inline]
    fn is_unlimited(self) -> bool {
        let limits = &self.process.limits;
        limits.throttle_flag(self.device_index).load(Relaxed) == RUN
            && limits.cores(self.device_index) == NO_LIMIT
    }

    /// Makes the launch at once if its thread has credit, or else when the bucket grants some.
    #[inline(never)]
    fn launch_on_credit(self, work: LaunchWork, call: impl FnOnce() -> Code) -> Code {
        let (device_pace, thread) = (self.device_pace, self.thread);
        let limits = &self.process.limits;
        let throttle_flag = limits.throttle_flag(self.device_index).load(Relaxed);
        let heartbeat = limits.heartbeat();
        let host_alive = device_pace.host_alive.load(Relaxed);
        // A host that set the throttle flag is checked at once; one that was found dead only when
        // its heartbeat changes.
        let must_check_host = throttle_flag != RUN
            && !host_alive
            && heartbeat != device_pace.stale_heartbeat.load(Relaxed);
        let immediate = match limit_words(self.process, self.device_index, host_alive).rule() {
            _ if must_check_host || self.is_unlimited() => false,
            LaunchRule::Unlimited => !device_pace.credit.count_launch(thread, heartbeat),
            LaunchRule::Limited(_) => {
                if device_pace.credit.is_report_due(thread, heartbeat) {
                    self.report_launches();
                }
                let kernel = device_pace.costs().kernel(work.key);
                kernel.is_known()
                    && !stream::any_captured()
                    && device_pace.credit.spend(thread, kernel.cost())
            }
            LaunchRule::Wait => false,
        };
        if immediate {
            return call();
        }
        self.charge_and_launch(work, call)
    }

    #[cold]
    fn charge_and_launch(self, work: LaunchWork, call: impl FnOnce() -> Code) -> Code {
        self.report_launches();
        let kernel = self.device_pace.costs().kernel(work.key);
        if matches!(self.current_limits().rule(), LaunchRule::Unlimited) {
            return call();
        }
        if stream::any_captured() {
            let captured = stream::with_relaxed_capture(|| stream::is_captured(work.stream));
            if captured
                || (kernel.is_known() && self.device_pace.credit.spend(self.thread, kernel.cost()))
            {
                return call();
            }
        }
        self.poll(MAX_POLLED);
        let estimate = || self.device_pace.scales().estimate(work.extent);
        let is_unknown = || !kernel.is_known() && estimate().is_none();
        self.wait_for_cost_or_queue((kernel, &is_unknown), work);
        let cost = if kernel.is_known() {
            kernel.cost()
        } else {
            estimate().unwrap_or_else(|| kernel.cost())
        };
        let chunk = self.device_pace.credit.chunk(self.thread, cost);
        let Some(rate) = self.wait_for_credit(chunk, cost) else {
            return call();
        };
        let until = self.compute().until;
        let credit = &self.device_pace.credit;
        let overlapped = credit.begin_work(self.thread, until, (clock::now(), chunk));
        // A small kernel is measured when it comes right after another one.
        let small = kernel.is_known() && cost < CHUNK / 2 && chunk > 0;
        let started = if small {
            None
        } else {
            self.device_pace.markers.begin(work.stream)
        };
        let code = call();
        if code != SUCCESS {
            if let Some(started) = started {
                self.device_pace.markers.cancel(started);
            }
            self.bucket().correct_charge(rate, chunk, 0);
            return code;
        }
        credit.grant(self.thread, chunk, cost);
        if small {
            credit.measure_soon(self.thread, cost);
        }
        if let Some(started) = started {
            kernel.begin_measurement();
            let launch = MeasuredLaunch {
                key: work.key,
                extent: work.extent,
                charged: cost,
                running: self.running(),
                delayed: self.delayed(),
                overlapped,
            };
            if self.device_pace.markers.end(started, work.stream, launch) {
                self.report_running();
            } else {
                kernel.end_measurement();
            }
        }
        self.compute().busy.fetch_add(chunk, Relaxed);
        code
    }

    /// The current limits, after checking the host's heartbeat.
    fn current_limits(self) -> LimitWords {
        let heartbeat = self.process.limits.heartbeat();
        // A clock that was set back a little does not make the host's words stale, and one that was
        // set back far does not keep them valid forever.
        let age = clock::since_epoch().abs_diff(heartbeat);
        let host_alive = heartbeat != 0 && age < HEARTBEAT_TIMEOUT;
        self.device_pace.host_alive.store(host_alive, Relaxed);
        if !host_alive {
            self.device_pace.stale_heartbeat.store(heartbeat, Relaxed);
        }
        limit_words(self.process, self.device_index, host_alive)
    }

    fn compute(self) -> ComputeWords<'static> {
        self.process.slot.compute(self.device_index)
    }

    fn bucket(self) -> Bucket<'static> {
        Bucket(self.compute().debt)
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

    /// Learns from finished measurements, of at most so many, and corrects what was charged.
    fn poll(self, max_polls: usize) {
        if self.device_pace.markers.pending_of(None) == 0 {
            return;
        }
        let running = self.running();
        let mut any = false;
        self.device_pace.markers.poll(max_polls, |measured| {
            any = true;
            self.learn(measured, running);
        });
        if any {
            self.report_running();
        }
    }

    fn report_running(self) {
        let slot = &self.process.slot;
        self.device_pace.report_running(slot, self.device_index);
    }

    /// What has work on the device now, this process included.
    fn running(self) -> Running {
        let (limits, device_index) = (&self.process.limits, self.device_index);
        // A silent host counts nobody, or a launch could be charged too little for ever.
        let host_alive = self.device_pace.host_alive.load(Relaxed);
        Running {
            own: u32::try_from(self.compute().running.load(Relaxed)).unwrap_or(u32::MAX),
            streams: self.device_pace.markers.streams() as u64,
            others: if host_alive {
                limits.others(device_index)
            } else {
                0
            },
            others_time: limits.others_time(device_index),
            written: limits.heartbeat(),
        }
    }

    fn learn(self, measured: LaunchMeasurement, running: Running) {
        self.device_pace.stalled.store(false, Relaxed);
        let (launch, compute) = (measured.launch, self.compute());
        let kernel = self.device_pace.costs().kernel(launch.key);
        kernel.end_measurement();
        let Some(took) = measured.took else {
            return;
        };
        let delayed = self.delayed().wrapping_sub(launch.delayed);
        let sharing = Sharing::new([launch.running, running]);
        let found = kernel.learn(LaunchSample {
            took,
            sharing,
            overlapped: launch.overlapped,
            disturbed: measured.disturbed,
            delayed,
        });
        let cost = found.unwrap_or(launch.charged);
        let waited = took.saturating_sub(cost);
        if sharing != Sharing::ALONE {
            // Of small launches one in a chunk is measured.
            let launches = (CHUNK / cost.max(1)).max(1);
            let contended = waited.saturating_mul(launches);
            compute.contended.fetch_add(contended, Relaxed);
        }
        let Some(found) = found else {
            return;
        };
        self.device_pace.scales().learn(launch.extent, found);
        if let LaunchRule::Limited(rate) = self.current_limits().rule() {
            self.bucket().correct_charge(rate, launch.charged, found);
            // The device was kept busy by a wait for another device of the container.
            let waited = if delayed > 0 { waited } else { 0 };
            self.bucket().skip(waited);
            let more = found.wrapping_sub(launch.charged).wrapping_add(waited);
            compute.busy.fetch_add(more, Relaxed);
        }
    }

    /// Total nanoseconds for which launches of the container on its other devices waited.
    fn delayed(self) -> u64 {
        let others = (0..self.process.pace.devices.len())
            .filter(|device_index| *device_index != self.device_index);
        let each =
            others.map(|device_index| self.process.slot.compute(device_index).waited.load(Relaxed));
        each.fold(0, u64::wrapping_add)
    }
}

impl Pacing {
    /// Waits while earlier launches must be measured or done first; `is_unknown`: the kernel's cost is
    /// neither known nor estimated.
    fn wait_for_cost_or_queue(
        self,
        (kernel, is_unknown): (&KernelCost, &dyn Fn() -> bool),
        work: LaunchWork,
    ) {
        let start = clock::now();
        let mut now = start;
        let markers = &self.device_pace.markers;
        let (mut left, mut progressed) = (usize::MAX, start);
        loop {
            let words = self.current_limits();
            let is_limited =
                || kernel.is_at_unmeasured_limit() || markers.is_stream_full(work.stream);
            // Without a limit nobody need know what a launch costs before it is made.
            let is_unmeasured = words.rule() != LaunchRule::Limited(Rate::UNBOUNDED)
                && (markers.is_full() || (is_unknown() && is_limited()));
            if !is_unmeasured && !self.is_queue_full(words, kernel, work.stream, now) {
                break;
            }
            let before = std::mem::replace(&mut left, markers.pending_of(Some(work.stream)));
            if left < before {
                progressed = now;
            }
            let may_wait = if is_unmeasured || !kernel.is_known() {
                now - start < MAX_MEASURE_WAIT
            } else {
                let each = kernel.cost().saturating_mul(u64::from(words.sharing()));
                let longest = each.saturating_mul(MAX_QUEUE_WAIT);
                now - progressed < longest.clamp(MIN_QUEUE_WAIT, MAX_MEASURE_WAIT)
            };
            if !self.device_pace.stalled.load(Relaxed) && may_wait {
                self.sleep(now + POLL_INTERVAL);
                self.poll(MAX_POLLED);
                now = clock::now();
                continue;
            }
            // The wait was in vain, this one or the one just before.
            self.device_pace.stalled.store(true, Relaxed);
            self.device_pace
                .unqueued_until
                .store(now + UNQUEUED, Relaxed);
            if is_unmeasured {
                self.give_up_measurements((kernel, is_unknown));
            }
            break;
        }
        if now > start {
            self.compute().waited.fetch_add(now - start, Relaxed);
        }
    }

    /// Whether so much work is in progress that a launch of this kernel has to wait for some of it.
    fn is_queue_full(
        self,
        words: LimitWords,
        kernel: &KernelCost,
        stream: Handle,
        now: u64,
    ) -> bool {
        if now < self.device_pace.unqueued_until.load(Relaxed) {
            return false;
        }
        let queue = StreamQueue {
            launches: self.device_pace.markers.pending_of(Some(stream)),
            queued: self.compute().until.load(Relaxed).saturating_sub(now),
            sharing: words.sharing(),
        };
        queue.is_full(kernel.cost())
    }

    /// Lets other launches be measured instead of those that do not end; an unknown cost is assumed
    /// to be as long as the wait for them.
    fn give_up_measurements(self, (kernel, is_unknown): (&KernelCost, &dyn Fn() -> bool)) {
        self.device_pace.markers.abandon(|launch| {
            self.device_pace
                .costs()
                .kernel(launch.key)
                .end_measurement();
        });
        self.report_running();
        if is_unknown() {
            kernel.learn(LaunchSample {
                took: MAX_MEASURE_WAIT,
                sharing: Sharing::ALONE,
                overlapped: false,
                disturbed: false,
                delayed: 0,
            });
        }
    }

    /// Waits until the bucket grants a chunk; the rate at which it did, or `None` if there is no
    /// limit any more.
    fn wait_for_credit(self, chunk: u64, cost: u64) -> Option<Rate> {
        let start = clock::now();
        let mut now = start;
        // For how long the bucket gathers credit for more than this launch after its debt.
        let mut gathered = 0;
        let rate = loop {
            let words = self.current_limits();
            let until = match words.rule() {
                LaunchRule::Unlimited => break None,
                LaunchRule::Wait => u64::MAX,
                // Paid for by credit: it is measured right behind the launches that used the rest.
                LaunchRule::Limited(rate) if chunk == 0 => break Some(rate),
                LaunchRule::Limited(rate) => {
                    let due = now.saturating_sub(gathered);
                    let Err(Until(until)) = self.bucket().take(due, rate, chunk) else {
                        break Some(rate);
                    };
                    if gathered == 0 && words.sharing() > 1 {
                        gathered = gather_time(rate, chunk);
                    }
                    until + gathered
                }
            };
            let is_measuring = self.device_pace.markers.pending_of(None) > 0;
            self.sleep(if is_measuring {
                until.min(now + cost.clamp(POLL_INTERVAL, MEASURING_INTERVAL))
            } else {
                until
            });
            self.poll(MAX_POLLED);
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
