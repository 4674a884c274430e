//! mps: containers at once through NVIDIA's MPS. The daemons are the keeper's ([`crate::mps`]);
//! here it is told what is wished, and containers get the way to their daemon.
//!
//! Fed by: the mode's settings, a grant, the keeper's answers. Must not: start a container whose
//! daemon does not serve, nor let it have less than it was given.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use aliquot_core::inventory::{Gpu, Mode as Shared};
use aliquot_core::{GpuUuid, Grant, Mib, Percent};
use aliquot_nvml::CardFacts;
use aliquot_profiles::Mode;
use aliquot_profiles::mode::Mps;
use parking_lot::Mutex;
use serde_json::json;

use super::{ModeError, Outfit, Share, Switch};
use crate::mps::folder::{Folder, FolderError, Phase, Status, Wish};
use crate::mps::plan;

/// Where a container finds its daemon's sockets.
pub const PIPE: &str = "/.aliquot-mps";

/// Longest wait for a daemon that comes or goes.
const CHANGE: Duration = Duration::from_secs(20);
/// Longest wait for a daemon that serves to take a larger share's limits.
const RAISE: Duration = Duration::from_secs(3);
/// Between two looks at the keeper's answer.
const LOOK: Duration = Duration::from_millis(20);

/// The unit that a card, or an instance of one, is.
pub fn unit(unit: Gpu, settings: &Mps) -> Gpu {
    Gpu {
        mode: Shared::Mps,
        seats: settings.replicas,
        even: Some(plan::even(unit.memory, settings)),
        strict: settings.strict,
        resource: settings.rename.clone().unwrap_or(unit.resource),
        ..unit
    }
}

/// The unit by MPS of a container that has another one, too, in whichever order.
pub fn beside_another(
    grants: &[Grant],
    mode: impl Fn(&GpuUuid) -> Option<Shared>,
) -> Option<&GpuUuid> {
    let units = grants.iter().map(|grant| &grant.gpu);
    let mut by_mps = units.filter(|unit| mode(unit) == Some(Shared::Mps));
    by_mps.next().filter(|_| grants.len() > 1)
}

/// What a daemon is for.
#[derive(Clone, Copy, Debug)]
pub struct Place<'a> {
    /// The unit: `GPU-…` or `MIG-…`.
    pub unit: &'a str,
    /// The same as the driver calls it now.
    pub current: &'a str,
    /// Its memory.
    pub memory: Mib,
    /// Compute capability.
    pub capability: Option<(u32, u32)>,
    /// The compute slices of an instance, and those of its card; none: a whole card.
    pub part: Option<(u32, u32)>,
}

/// The daemons of this node.
pub struct Daemons {
    root: PathBuf,
    /// Who reads a wish to write it anew, or takes it back.
    wishing: Mutex<()>,
}

impl Daemons {
    /// Under this folder of the agent's. One for all that wish: it sees to it that they do so one
    /// after the other.
    pub fn new(root: PathBuf) -> Self {
        let wishing = Mutex::new(());
        Self { root, wishing }
    }

    /// Waits until a daemon serves the unit as the settings say. Blocks. A daemon that serves
    /// larger limits than these, because of a share that was given, keeps them.
    pub fn begin(&self, place: Place<'_>, settings: &Mps) -> Result<(), ModeError> {
        let replicas = settings.replicas;
        if let Some(text) = plan::refusal(replicas, place.capability, place.part) {
            return Err(ModeError::Refused(text));
        }
        let card = place.part.is_none().then_some(place.unit);
        let mut wish = plan::wish(place.current, place.memory, settings, card);
        let folder = self.folder(place.unit);
        let alone = self.wishing.lock();
        if let Some(old) = folder.wish().map_err(refused)? {
            wish = wish.raised(old.memory, old.threads);
        }
        folder.put_wish(&wish).map_err(refused)?;
        drop(alone);
        let served = wait(CHANGE, || serves(&folder, &wish));
        served.map_err(|why| {
            ModeError::Refused(format!(
                "the MPS daemon of {} does not serve after 20 s: {why}; is the container mps-keeper running on this node?",
                place.unit
            ))
        })
    }

    /// Waits until nothing of the unit's daemon is left. Blocks.
    pub fn end(&self, unit: &str) -> Result<(), ModeError> {
        let folder = self.folder(unit);
        let alone = self.wishing.lock();
        folder.drop_wish().map_err(refused)?;
        drop(alone);
        let gone = || {
            if folder.is_gone() {
                return Ok(());
            }
            Err(why_not(&folder))
        };
        wait(CHANGE, gone).map_err(|why| {
            ModeError::Refused(format!(
                "the MPS daemon of {unit} has not gone after 20 s: {why}; is the container mps-keeper running on this node?"
            ))
        })
    }

    /// A client's way to the daemon, and its caps.
    pub fn equip(&self, share: &Share<'_>, outfit: &mut Outfit) -> Result<(), ModeError> {
        let unit = share.grant.gpu.as_str();
        let (memory, threads) = (share.grant.memory, share.grant.cores);
        let folder = self.folder(unit);
        let ready = self.ready(&folder, share.card.current(), memory, threads);
        ready.map_err(|why| {
            ModeError::Refused(format!("the MPS daemon of {unit} does not serve: {why}"))
        })?;
        outfit.visible.push(unit.to_owned());
        let mut set = |name: &str, value: String| outfit.variables.push(format!("{name}={value}"));
        set("CUDA_MPS_PIPE_DIRECTORY", PIPE.to_owned());
        // 0 is no limit. By index: the daemon's one card is device 0 of its clients.
        if memory > Mib(0) {
            set(
                "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT",
                format!("0={}M", memory.0),
            );
        }
        if threads > Percent(0) {
            set("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", threads.0.to_string());
        }
        let mut mount = |from: PathBuf, to: &str| {
            let options = ["rw", "nosuid", "nodev", "bind"];
            let mount = json!({"hostPath": from, "containerPath": to, "options": options});
            outfit.mounts.push(mount);
        };
        mount(folder.pipe(), PIPE);
        // Server and clients meet there too.
        let status = folder.status().map_err(refused)?;
        if let Some(shm) = status.and_then(|status| status.shm) {
            mount(shm, "/dev/shm");
        }
        // A cap is for each client; all of a container together are held by libvgpu.so.
        outfit.limited = memory > Mib(0);
        Ok(())
    }

    /// The daemon is that of what the driver calls `current`, and lets a client have so much.
    fn ready(
        &self,
        folder: &Folder,
        current: &str,
        memory: Mib,
        threads: Percent,
    ) -> Result<(), String> {
        let alone = self.wishing.lock();
        let wish = folder.wish().map_err(|error| error.to_string())?;
        let wish = wish.ok_or("its card is leaving mode mps")?;
        if wish.unit != current {
            let was = wish.unit;
            return Err(format!(
                "it is started anew for {current}, which was {was} before the node's restart"
            ));
        }
        let raised = wish.raised(memory, threads);
        folder
            .put_wish(&raised)
            .map_err(|error| error.to_string())?;
        drop(alone);
        // What others were given meanwhile need not be served for this one.
        let enough = Wish {
            memory,
            threads,
            ..raised
        };
        let waits = || match folder.status() {
            Ok(Some(status)) => status.phase == Phase::Running,
            _ => false,
        };
        match serves(folder, &enough) {
            Err(_) if waits() => wait(RAISE, || serves(folder, &enough)),
            now => now,
        }
    }

    fn folder(&self, unit: &str) -> Folder {
        Folder::new(&self.root, unit)
    }
}

impl Switch for Daemons {
    fn enter(&self, card: &CardFacts, settings: &Mode) -> Result<(), ModeError> {
        let Mode::Mps(settings) = settings else {
            return Ok(());
        };
        let place = Place {
            unit: &card.uuid,
            current: &card.uuid,
            memory: card.memory,
            capability: card.compute_capability,
            part: None,
        };
        self.begin(place, settings)
    }

    fn leave(&self, card: &CardFacts, _: &Mode, _: &Mode) -> Result<(), ModeError> {
        self.end(&card.uuid)
    }
}

/// By this wish, or one of more that somebody raised it to since.
fn serves(folder: &Folder, wish: &Wish) -> Result<(), String> {
    match folder.status() {
        Ok(Some(Status {
            phase: Phase::Running,
            wish: Some(served),
            ..
        })) if served.allows(wish) => Ok(()),
        _ => Err(why_not(folder)),
    }
}

/// What the keeper says.
fn why_not(folder: &Folder) -> String {
    match folder.status() {
        Ok(Some(status)) => match status.phase {
            Phase::Down(why) => why,
            Phase::Running => "it has not taken its new limits yet".to_owned(),
        },
        Ok(None) => "the keeper has not answered".to_owned(),
        Err(error) => error.to_string(),
    }
}

fn wait(most: Duration, holds: impl Fn() -> Result<(), String>) -> Result<(), String> {
    let deadline = Instant::now() + most;
    loop {
        match holds() {
            Err(why) if Instant::now() > deadline => return Err(why),
            Err(_) => std::thread::park_timeout(LOOK),
            Ok(()) => return Ok(()),
        }
    }
}

fn refused(error: FolderError) -> ModeError {
    match error {
        FolderError::File(error) => ModeError::File(error),
        other => ModeError::Refused(other.to_string()),
    }
}

#[cfg(test)]
#[path = "mps_tests.rs"]
mod tests;
