//! One device's daemon, a child of this process: started, checked, restarted and stopped. Of a
//! supervisor that was killed before, everything is ended first. A daemon that serves the current
//! spec is never stopped.

use std::process::Child;
use std::time::{Duration, Instant};

use aliquot_node_state::mps::{DaemonPhase, DaemonSpec, DaemonStatus, MpsServer, VERSION};
use aliquot_nvml::{ComputeMode, ComputeModes, NvmlError};
use thiserror::Error;

use super::control::{ControlError, MpsControl};
use super::directory::{DaemonDirectory, DaemonDirectoryError, SavedComputeMode};
use super::processes;
use super::shm::{self, ShmError};
use crate::clock::now;

/// The interval at which a daemon's servers and clients are polled.
const SERVERS: Duration = Duration::from_secs(1);
/// The pause before a daemon that keeps exiting is restarted, first and longest.
const PAUSE: (Duration, Duration) = (Duration::from_secs(1), Duration::from_mins(1));
/// A daemon that ran for so long is restarted at once.
const LASTED: Duration = Duration::from_mins(1);
/// After this many consecutive missing answers, each of 5 s, a daemon counts as hung: while it
/// starts a server, it answers nothing.
const MAX_SILENT: u32 = 12;
/// The command that stops a daemon; its servers get 2 seconds to exit.
const QUIT: &str = "quit -t 2";

#[derive(Debug, Error)]
pub(super) enum SupervisionError {
    #[error(transparent)]
    Control(#[from] ControlError),
    #[error(transparent)]
    Directory(#[from] DaemonDirectoryError),
    #[error(transparent)]
    Driver(#[from] NvmlError),
    #[error(transparent)]
    Shm(#[from] ShmError),
}

pub(super) struct SupervisedDaemon<'a> {
    pub(super) directory: DaemonDirectory,
    pub(super) control: &'a MpsControl,
    pub(super) driver: &'a dyn ComputeModes,
    status: DaemonStatus,
    child: Option<Child>,
    last_poll: Option<Instant>,
    /// No restart before this time.
    retry: Option<Instant>,
    pause: Duration,
    /// Consecutive missing answers.
    silent: u32,
}

impl<'a> SupervisedDaemon<'a> {
    /// Continues the counts of an earlier supervisor.
    pub(super) fn new(
        directory: DaemonDirectory,
        control: &'a MpsControl,
        driver: &'a dyn ComputeModes,
    ) -> Self {
        let known = directory.status().ok().flatten();
        let status = known.unwrap_or_else(|| DaemonStatus {
            v: VERSION,
            phase: DaemonPhase::Down("it has not been started yet".to_owned()),
            spec: None,
            daemon: None,
            since: 0,
            restarts: 0,
            losses: 0,
            faults: 0,
            servers: Vec::new(),
            one_user: false,
        });
        Self {
            directory,
            control,
            driver,
            status,
            child: None,
            last_poll: None,
            retry: None,
            pause: PAUSE.0,
            silent: 0,
        }
    }

    /// One step. Returns true once nothing of MPS is left for the device.
    pub(super) fn step(&mut self) -> bool {
        let done = match self.directory.spec() {
            Ok(Some(spec)) => self.serve(&spec).map(|()| false),
            Ok(None) => self.stop_daemon().map(|()| true),
            Err(error) => Err(error.into()),
        };
        match done {
            Ok(gone) => gone,
            Err(error) => {
                if self.hangs(&error) {
                    // The next step finds it gone and starts a new one.
                    self.kill();
                } else if self.is_slow() && self.write_status().is_ok() {
                    // What it serves goes on.
                    return false;
                }
                self.fail(&error.to_string());
                false
            }
        }
    }

    /// Whether a daemon has missed too many consecutive answers and has no clients, which would end
    /// with it; then the count starts anew. Its clients are those of its last answer that still
    /// run.
    fn hangs(&mut self, error: &SupervisionError) -> bool {
        self.silent = match error {
            SupervisionError::Control(ControlError::Silent(_)) => self.silent.saturating_add(1),
            _ => 0,
        };
        let mut clients = self.status.servers.iter().flat_map(|one| &one.clients);
        let has_clients = clients.any(|pid| processes::is_alive(*pid));
        let hangs = self.silent >= MAX_SILENT && !has_clients;
        if hangs {
            self.silent = 0;
        }
        hangs
    }

    /// Whether a daemon that runs has not answered for a short time only.
    fn is_slow(&self) -> bool {
        (1..MAX_SILENT).contains(&self.silent) && self.status.phase == DaemonPhase::Running
    }

    fn serve(&mut self, spec: &DaemonSpec) -> Result<(), SupervisionError> {
        match self.daemon() {
            None if self.status.daemon.is_some() => self.record_exit(),
            None if self.retry.is_some_and(|retry| Instant::now() < retry) => self.write_status(),
            None => self.start_daemon(spec),
            Some(pid) if self.status.daemon != Some(pid) || self.is_changed(spec) => {
                self.set_mode(spec)?;
                // New servers get the limits from the daemon; existing servers are set after that.
                self.control.apply(&self.directory, spec, &[])?;
                self.last_poll = None;
                self.poll_servers(pid)?;
                let servers: Vec<u32> = self.status.servers.iter().map(|s| s.pid).collect();
                self.control.apply(&self.directory, spec, &servers)?;
                self.record_running(pid, spec)
            }
            Some(pid) => self.poll_servers(pid),
        }
    }

    /// Its process id, while it runs.
    fn daemon(&mut self) -> Option<u32> {
        let child = self.child.as_mut()?;
        matches!(child.try_wait(), Ok(None)).then(|| child.id())
    }

    /// Kills the daemon with its servers, and what is left of an earlier one; returns how many
    /// processes that were.
    fn kill(&mut self) -> usize {
        let left = processes::kill_all(&self.directory.pipe());
        if let Some(mut child) = self.child.take() {
            // It may have ended.
            let _ = child.kill();
            let _ = child.wait();
        }
        left
    }

    fn is_changed(&self, spec: &DaemonSpec) -> bool {
        self.status.spec.as_ref() != Some(spec) || self.status.phase != DaemonPhase::Running
    }

    fn start_daemon(&mut self, spec: &DaemonSpec) -> Result<(), SupervisionError> {
        // A pause follows unless everything succeeds.
        self.retry = Some(Instant::now() + self.pause);
        self.pause = (self.pause * 2).min(PAUSE.1);
        self.kill();
        let memory = self.directory.shm();
        self.write_status()?;
        self.set_mode(spec)?;
        self.directory.make()?;
        shm::mount_pipe(&self.directory.pipe())?;
        shm::mount(&memory, self.control.shm_size)?;
        let (control, directory) = (self.control, &self.directory);
        let started = shm::with_dev_shm(&memory, || control.start(directory, &spec.device))?;
        let (child, all_users) = started?;
        let pid = child.id();
        self.child = Some(child);
        self.status.one_user = !all_users;
        if self.status.one_user {
            let device = &spec.device;
            tracing::warn!(
                device,
                "this MPS daemon serves one user at a time: clients of other users wait"
            );
        }
        self.control.apply(&self.directory, spec, &[])?;
        self.status.since = now();
        self.status.servers.clear();
        self.record_running(pid, spec)?;
        tracing::info!(device = spec.device, pid, "started an MPS daemon");
        Ok(())
    }

    fn record_running(&mut self, pid: u32, spec: &DaemonSpec) -> Result<(), SupervisionError> {
        self.status.phase = DaemonPhase::Running;
        self.status.daemon = Some(pid);
        self.status.spec = Some(spec.clone());
        self.write_status()
    }

    /// The daemon exited, or its supervisor: its servers occupy the GPU, and the next daemon cannot
    /// use them.
    fn record_exit(&mut self) -> Result<(), SupervisionError> {
        let left = self.kill();
        let lasted = now().saturating_sub(self.status.since);
        if lasted >= LASTED.as_secs() {
            (self.retry, self.pause) = (None, PAUSE.0);
        }
        let status = &mut self.status;
        tracing::warn!(device = ?self.directory.path(), pid = status.daemon, left, "an MPS daemon exited unexpectedly");
        status.phase =
            DaemonPhase::Down("it exited unexpectedly and is being restarted".to_owned());
        status.daemon = None;
        status.restarts += 1;
        status.losses += 1;
        status.servers.clear();
        self.write_status()
    }

    /// Polls the daemon's servers at an interval.
    fn poll_servers(&mut self, daemon: u32) -> Result<(), SupervisionError> {
        if self.last_poll.is_some_and(|last| last.elapsed() < SERVERS) {
            return Ok(());
        }
        self.last_poll = Some(Instant::now());
        let servers = self.control.servers(&self.directory, daemon)?;
        self.silent = 0;
        let old = std::mem::take(&mut self.status.servers);
        // Such a daemon stops its server when another user comes.
        let lost = !self.status.one_user && lost_clients(&old, &servers);
        self.status.losses += u64::from(lost);
        self.status.faults += u64::from(faulted(&old, &servers));
        self.status.servers = servers;
        self.write_status()
    }

    fn write_status(&self) -> Result<(), SupervisionError> {
        Ok(self.directory.put_status(&self.status)?)
    }

    fn fail(&mut self, why: &str) {
        tracing::warn!(device = ?self.directory.path(), why, "an MPS daemon is not running");
        self.status.phase = DaemonPhase::Down(why.to_owned());
        if let Err(error) = self.write_status() {
            tracing::warn!(%error, "cannot write the status of an MPS daemon");
        }
    }

    /// Makes the GPU exclusive to the daemon, or restores its compute mode.
    fn set_mode(&self, spec: &DaemonSpec) -> Result<(), SupervisionError> {
        let Some(gpu) = &spec.exclusive else {
            return self.restore_mode();
        };
        let mode = self.driver.compute_mode(gpu)?;
        if self.directory.saved_mode()?.is_none() {
            // Written before the first change, and never overwritten.
            self.directory.put_saved_mode(&SavedComputeMode {
                gpu: gpu.clone(),
                mode: mode.to_string(),
            })?;
        }
        if mode != ComputeMode::ExclusiveProcess {
            self.driver
                .set_compute_mode(gpu, ComputeMode::ExclusiveProcess)?;
        }
        Ok(())
    }

    fn restore_mode(&self) -> Result<(), SupervisionError> {
        if let Some(before) = self.directory.saved_mode()? {
            let mode = ComputeMode::parse(&before.mode).unwrap_or(ComputeMode::Default);
            self.driver.set_compute_mode(&before.gpu, mode)?;
            self.directory.remove_saved_mode()?;
        }
        Ok(())
    }

    fn stop_daemon(&mut self) -> Result<(), SupervisionError> {
        // First of all, so that nobody takes the old status for a running daemon.
        self.status.phase = DaemonPhase::Down("it is being stopped".to_owned());
        self.write_status()?;
        if let Some(pid) = self.daemon() {
            tracing::info!(device = ?self.directory.path(), pid, "stopping an MPS daemon");
            if let Err(error) = self.control.send(&self.directory, QUIT) {
                tracing::warn!(%error, "an MPS daemon does not quit; killing it");
            }
        }
        self.kill();
        self.restore_mode()?;
        shm::unmount(&self.directory.shm())?;
        shm::unmount(&self.directory.pipe())?;
        Ok(self.directory.remove()?)
    }
}

/// Whether a server that had clients is gone.
fn lost_clients(old: &[MpsServer], new: &[MpsServer]) -> bool {
    let lives = |server: &MpsServer| new.iter().any(|other| other.pid == server.pid);
    old.iter()
        .any(|server| !server.clients.is_empty() && !lives(server))
}

fn faulted(old: &[MpsServer], new: &[MpsServer]) -> bool {
    let known = |server: &MpsServer| {
        old.iter()
            .any(|other| other.pid == server.pid && other.fault)
    };
    new.iter().any(|server| server.fault && !known(server))
}

#[cfg(test)]
#[path = "daemon_tests.rs"]
mod tests;
