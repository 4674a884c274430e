//! One unit's daemon: brought up, looked at, started again, taken down, each step from what is on
//! disk and in `/proc`, so that a kill at any point of it changes nothing.
//!
//! Fed by: the unit's wish. Must not: end a daemon that serves what is wished.

use std::time::{Duration, Instant};

use aliquot_nvml::{ComputeMode, ComputeModes, NvmlError};
use thiserror::Error;

use super::control::{Control, ControlError};
use super::folder::{Before, Folder, FolderError, Phase, Server, Status, VERSION, Wish};
use super::processes;
use crate::clock::now;

/// Between two looks at a daemon's servers and clients.
const SERVERS: Duration = Duration::from_secs(1);
/// Between two starts of a daemon that does not last, at first and at most.
const PAUSE: (Duration, Duration) = (Duration::from_secs(1), Duration::from_mins(1));
/// A daemon that lasted so long is started again at once.
const LASTED: Duration = Duration::from_mins(1);
/// So many missing answers in a row end a daemon.
const MOST_SILENT: u32 = 3;
/// Seconds that servers get to end when a daemon is taken down.
const QUIT: &str = "quit -t 2";

/// Why a step failed; it is tried again.
#[derive(Debug, Error)]
pub(super) enum UnitError {
    /// The daemon.
    #[error(transparent)]
    Control(#[from] ControlError),
    /// A file.
    #[error(transparent)]
    Folder(#[from] FolderError),
    /// The driver.
    #[error(transparent)]
    Driver(#[from] NvmlError),
    /// A daemon that started is not there.
    #[error("the MPS daemon started and ended; see control.log in {0}")]
    Ended(String),
}

/// A unit that is tended.
pub(super) struct Unit<'a> {
    pub(super) folder: Folder,
    pub(super) control: &'a Control,
    pub(super) driver: &'a dyn ComputeModes,
    status: Status,
    looked: Option<Instant>,
    /// No start before this moment.
    retry: Option<Instant>,
    pause: Duration,
    /// Answers missing in a row.
    silent: u32,
}

impl<'a> Unit<'a> {
    /// Goes on with what an earlier keeper left.
    pub(super) fn new(folder: Folder, control: &'a Control, driver: &'a dyn ComputeModes) -> Self {
        let known = folder.status().ok().flatten();
        let status = known.unwrap_or_else(|| Status {
            v: VERSION,
            phase: Phase::Down("it has not started yet".to_owned()),
            wish: None,
            daemon: None,
            since: 0,
            restarts: 0,
            losses: 0,
            faults: 0,
            servers: Vec::new(),
            shm: None,
            one_user: false,
        });
        let status = Status {
            shm: control.shm.clone(),
            ..status
        };
        Self {
            folder,
            control,
            driver,
            status,
            looked: None,
            retry: None,
            pause: PAUSE.0,
            silent: 0,
        }
    }

    /// One step. True: the unit has nothing of MPS any more.
    pub(super) fn step(&mut self) -> bool {
        let done = match self.folder.wish() {
            Ok(Some(wish)) => self.serve(&wish).map(|()| false),
            Ok(None) => self.take_down().map(|()| true),
            Err(error) => Err(error.into()),
        };
        match done {
            Ok(gone) => gone,
            Err(error) => {
                if self.hangs(&error) {
                    // The next step finds it gone and starts another.
                    processes::end_all(&self.folder.pipe());
                }
                self.fail(&error.to_string());
                false
            }
        }
    }

    /// So many answers were missing in a row; counted anew from here on.
    fn hangs(&mut self, error: &UnitError) -> bool {
        self.silent = match error {
            UnitError::Control(ControlError::Silent(_)) => self.silent + 1,
            _ => 0,
        };
        let hangs = self.silent >= MOST_SILENT;
        if hangs {
            self.silent = 0;
        }
        hangs
    }

    fn serve(&mut self, wish: &Wish) -> Result<(), UnitError> {
        let daemon = self.daemon();
        let starts = daemon.is_none() || self.is_for_another(wish);
        match daemon {
            None if self.status.daemon.is_some() => self.bury(),
            _ if starts && self.retry.is_some_and(|retry| Instant::now() < retry) => self.tell(),
            _ if starts => self.bring_up(wish),
            Some(pid) if self.status.daemon != Some(pid) || self.is_news(wish) => {
                // Also a daemon that an earlier keeper started and did not come to tell of.
                self.set_mode(wish)?;
                // A server that begins from here on has them; those that are there are told.
                self.control.apply(&self.folder, wish, &[])?;
                self.looked = None;
                self.look()?;
                let servers: Vec<u32> = self.status.servers.iter().map(|s| s.pid).collect();
                self.control.apply(&self.folder, wish, &servers)?;
                self.served(pid, wish)
            }
            _ => self.look(),
        }
    }

    fn daemon(&self) -> Option<u32> {
        processes::daemon(&self.folder.pipe(), self.status.daemon)
    }

    fn is_news(&self, wish: &Wish) -> bool {
        self.status.wish.as_ref() != Some(wish) || self.status.phase != Phase::Running
    }

    /// The driver calls the unit something else since the daemon was started.
    fn is_for_another(&self, wish: &Wish) -> bool {
        let served = self.status.wish.as_ref();
        served.is_some_and(|served| served.unit != wish.unit)
    }

    fn bring_up(&mut self, wish: &Wish) -> Result<(), UnitError> {
        // A pause follows unless all goes well.
        self.retry = Some(Instant::now() + self.pause);
        self.pause = (self.pause * 2).min(PAUSE.1);
        processes::end_all(&self.folder.pipe());
        self.tell()?;
        self.set_mode(wish)?;
        self.folder.make()?;
        self.status.one_user = !self.control.start(&self.folder, &wish.unit)?;
        if self.status.one_user {
            let unit = &wish.unit;
            tracing::warn!(
                unit,
                "this MPS daemon serves one user at a time: others wait"
            );
        }
        let log = || self.folder.log().display().to_string();
        let pid = self.daemon().ok_or_else(|| UnitError::Ended(log()))?;
        self.control.apply(&self.folder, wish, &[])?;
        self.status.since = now();
        self.status.servers.clear();
        self.served(pid, wish)?;
        tracing::info!(unit = wish.unit, pid, "an MPS daemon serves");
        Ok(())
    }

    fn served(&mut self, pid: u32, wish: &Wish) -> Result<(), UnitError> {
        self.status.phase = Phase::Running;
        self.status.daemon = Some(pid);
        self.status.wish = Some(wish.clone());
        self.tell()
    }

    /// The daemon ended by itself: its servers cannot be used by the next one, and hold the card.
    fn bury(&mut self) -> Result<(), UnitError> {
        let left = processes::end_all(&self.folder.pipe());
        let lasted = now().saturating_sub(self.status.since);
        if lasted >= LASTED.as_secs() {
            (self.retry, self.pause) = (None, PAUSE.0);
        }
        let status = &mut self.status;
        tracing::warn!(unit = ?self.folder.path(), pid = status.daemon, left, "an MPS daemon ended by itself");
        status.phase = Phase::Down("it ended by itself and is started again".to_owned());
        status.daemon = None;
        status.restarts += 1;
        status.losses += 1;
        status.servers.clear();
        self.tell()
    }

    /// Looks at the daemon's servers, now and then.
    fn look(&mut self) -> Result<(), UnitError> {
        if self.looked.is_some_and(|looked| looked.elapsed() < SERVERS) {
            return Ok(());
        }
        self.looked = Some(Instant::now());
        let servers = self.control.servers(&self.folder)?;
        self.silent = 0;
        let old = std::mem::take(&mut self.status.servers);
        // Such a daemon ends its server when another user comes.
        let lost = !self.status.one_user && lost_clients(&old, &servers);
        self.status.losses += u64::from(lost);
        self.status.faults += u64::from(faulted(&old, &servers));
        self.status.servers = servers;
        self.tell()
    }

    fn tell(&self) -> Result<(), UnitError> {
        Ok(self.folder.put_status(&self.status)?)
    }

    fn fail(&mut self, why: &str) {
        tracing::warn!(unit = ?self.folder.path(), why, "an MPS daemon does not serve");
        self.status.phase = Phase::Down(why.to_owned());
        if let Err(error) = self.tell() {
            tracing::warn!(%error, "the status of an MPS daemon is not written");
        }
    }

    /// Makes the card exclusive to the daemon, or puts back what was there.
    fn set_mode(&self, wish: &Wish) -> Result<(), UnitError> {
        let before = self.folder.before()?;
        let Some(card) = &wish.exclusive else {
            return self.restore_mode();
        };
        let mode = self.driver.compute_mode(card)?;
        if before.is_none() {
            // On disk before the first change, and never changed after.
            self.folder.put_before(&Before {
                card: card.clone(),
                mode: mode.to_string(),
            })?;
        }
        if mode != ComputeMode::ExclusiveProcess {
            self.driver
                .set_compute_mode(card, ComputeMode::ExclusiveProcess)?;
        }
        Ok(())
    }

    fn restore_mode(&self) -> Result<(), UnitError> {
        if let Some(before) = self.folder.before()? {
            let mode = ComputeMode::parse(&before.mode).unwrap_or(ComputeMode::Default);
            self.driver.set_compute_mode(&before.card, mode)?;
            self.folder.drop_before()?;
        }
        Ok(())
    }

    fn take_down(&mut self) -> Result<(), UnitError> {
        // First of all, so that nobody takes what is left of the status for a daemon.
        self.status.phase = Phase::Down("it is taken down".to_owned());
        self.tell()?;
        if let Some(pid) = self.daemon() {
            tracing::info!(unit = ?self.folder.path(), pid, "an MPS daemon is taken down");
            if let Err(error) = self.control.tell(&self.folder, QUIT) {
                tracing::warn!(%error, "an MPS daemon does not quit; it is killed");
            }
        }
        processes::end_all(&self.folder.pipe());
        self.restore_mode()?;
        Ok(self.folder.remove()?)
    }
}

/// Servers with clients are gone.
fn lost_clients(old: &[Server], new: &[Server]) -> bool {
    let lives = |server: &Server| new.iter().any(|other| other.pid == server.pid);
    old.iter()
        .any(|server| !server.clients.is_empty() && !lives(server))
}

/// A server fell into a fault.
fn faulted(old: &[Server], new: &[Server]) -> bool {
    let known = |server: &Server| {
        old.iter()
            .any(|other| other.pid == server.pid && other.fault)
    };
    new.iter().any(|server| server.fault && !known(server))
}

#[cfg(test)]
#[path = "unit_tests.rs"]
mod tests;
