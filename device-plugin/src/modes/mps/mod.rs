//! mps: containers share a device at the same time through NVIDIA's MPS. Each device has one control
//! daemon: its clients would see the GPUs of others. The daemons are run by a supervisor in a pod of
//! its own, so that a rollout of the agent ends no client; agent and supervisor talk through files.
//! This file is the agent's side: it writes what each daemon should be, and connects containers to it.
//!
//! No container starts while its daemon is down, or with less than its share.

pub mod control;
mod daemon;
pub mod directory;
pub mod plan;
mod processes;
pub mod program;
mod shm;
pub mod supervisor;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use aliquot_core::inventory::{Gpu, Mode as Shared};
use aliquot_core::{Grant, Mib, Percent};
use aliquot_node_state::accepted::AcceptedAllocation;
use aliquot_node_state::mps::{DaemonPhase, DaemonSpec, DaemonStatus};
use aliquot_nvml::GpuFacts;
use aliquot_profiles::Mode;
use aliquot_profiles::mode::Mps;
use parking_lot::Mutex;
use serde_json::json;

use super::{ContainerGrant, ModeError, ModeSetup, RequestedGrant, SharingMode, SharingModes};
use crate::host_device::InstanceIds;
use directory::DaemonDirectory;

/// Where a container finds its daemon's sockets.
pub const PIPE: &str = "/.aliquot-mps";

/// The longest wait for a daemon to start or stop.
const CHANGE_TIMEOUT: Duration = Duration::from_secs(20);
/// The longest wait for a running daemon to take the limits of a larger share.
const RAISE_TIMEOUT: Duration = Duration::from_secs(3);
const POLL: Duration = Duration::from_millis(20);

pub(super) static ANY: Mps = Mps::new(1);

#[derive(Clone, Copy, Debug)]
pub struct DaemonTarget<'a> {
    /// The device: `GPU-…` or `MIG-…`.
    pub device: &'a str,
    pub memory: Mib,
    pub capability: Option<(u32, u32)>,
    /// The compute slices of an instance and of its GPU; `None` for a whole GPU.
    pub slices: Option<(u32, u32)>,
}

pub struct MpsDaemons {
    root: PathBuf,
    /// The spec of each device by its profile alone. Locked while a spec is read and rewritten, or
    /// removed.
    base_specs: Mutex<BTreeMap<String, DaemonSpec>>,
}

impl MpsDaemons {
    /// The daemons below this directory of the agent. Share one value: its lock serializes all
    /// changes of the specs.
    pub fn new(root: PathBuf) -> Self {
        let base_specs = Mutex::default();
        Self { root, base_specs }
    }

    /// Writes the spec and waits until a daemon serves the device by it. A daemon with higher
    /// limits, raised for an accepted share, keeps them until [`Self::lower`]. Blocks.
    pub fn start(&self, target: DaemonTarget<'_>, settings: &Mps) -> Result<(), ModeError> {
        let replicas = settings.replicas;
        if let Some(text) = plan::refusal(replicas, target.capability, target.slices) {
            return Err(ModeError::Failed(text));
        }
        let gpu = target.slices.is_none().then_some(target.device);
        let mut spec = plan::daemon_spec(target.device, target.memory, settings, gpu);
        let directory = self.directory(target.device);
        let mut base_specs = self.base_specs.lock();
        base_specs.insert(target.device.to_owned(), spec.clone());
        if let Some(old) = directory.spec()? {
            spec = spec.with_at_least(old.memory, old.threads);
        }
        directory.put_spec(&spec)?;
        drop(base_specs);
        let served = wait(CHANGE_TIMEOUT, || serves(&directory, &spec));
        served.map_err(|why| {
            ModeError::Failed(format!(
                "the MPS daemon of {} is not running after 20 s: {why}; check that the pod of DaemonSet aliquot-mps (devicePlugin.mps.enabled) is running on this node",
                target.device
            ))
        })
    }

    /// Waits until nothing is left of the device's daemon. Blocks.
    pub fn stop(&self, device: &str) -> Result<(), ModeError> {
        let directory = self.directory(device);
        let mut base_specs = self.base_specs.lock();
        base_specs.remove(device);
        directory.remove_spec()?;
        drop(base_specs);
        let gone = || {
            if directory.is_gone() {
                return Ok(());
            }
            Err(why_not(&directory))
        };
        wait(CHANGE_TIMEOUT, gone).map_err(|why| {
            ModeError::Failed(format!(
                "the MPS daemon of {device} has not stopped after 20 s: {why}; check that the pod of DaemonSet aliquot-mps (devicePlugin.mps.enabled) is running on this node"
            ))
        })
    }

    /// Lowers the limits of each daemon to what the largest share on its device needs: they may have
    /// been raised for one that has ended. Clients that run keep theirs. `accepted` is every accepted
    /// share; none is added until this returns. Logs errors; the next call tries again. Blocks.
    pub fn lower<'a>(&self, accepted: impl Iterator<Item = &'a AcceptedAllocation>) {
        let base_specs = self.base_specs.lock();
        let mut specs = base_specs.clone();
        for pod in accepted {
            let grants = pod.allocation.all().flat_map(|(_, grants)| grants);
            for grant in grants.filter(|grant| pod.mode(&grant.gpu) == Shared::Mps) {
                if let Some(spec) = specs.get_mut(grant.gpu.as_str()) {
                    *spec = spec.with_at_least(grant.memory, grant.cores);
                }
            }
        }
        for (device, spec) in &specs {
            match self.directory(device).put_spec(spec) {
                Ok(false) => {}
                Ok(true) => tracing::info!(
                    device,
                    memory = spec.memory.0,
                    threads = spec.threads.0,
                    "set the limits of an MPS daemon to those of the largest share on its device"
                ),
                Err(error) => {
                    tracing::warn!(device, %error, "cannot lower the limits of an MPS daemon");
                }
            }
        }
    }

    /// Whether the daemon serves the device and allows a client this much.
    fn ready(&self, directory: &DaemonDirectory, grant: &Grant) -> Result<(), String> {
        let (memory, threads) = (grant.memory, grant.cores);
        let base_specs = self.base_specs.lock();
        let spec = directory.spec().map_err(|error| error.to_string())?;
        let spec = spec.ok_or("its GPU is leaving mode mps")?;
        let raised = spec.with_at_least(memory, threads);
        directory
            .put_spec(&raised)
            .map_err(|error| error.to_string())?;
        drop(base_specs);
        // Higher limits that others need meanwhile are not waited for.
        let enough = DaemonSpec {
            memory,
            threads,
            ..raised
        };
        let waits = || match directory.status() {
            Ok(Some(status)) => status.phase == DaemonPhase::Running,
            _ => false,
        };
        match serves(directory, &enough) {
            Err(_) if waits() => wait(RAISE_TIMEOUT, || serves(directory, &enough)),
            now => now,
        }
    }

    fn directory(&self, device: &str) -> DaemonDirectory {
        DaemonDirectory::new(&self.root, device)
    }
}

impl SharingMode for Mps {
    fn devices(&self, whole: Gpu, _: &GpuFacts) -> Vec<Gpu> {
        vec![Gpu {
            mode: Shared::Mps,
            replicas: self.replicas,
            even_share: Some(plan::even_share(whole.memory, self)),
            strict: self.strict,
            resource: self.rename.clone().unwrap_or(whole.resource),
            ..whole
        }]
    }

    fn setup(&self) -> Option<Mode> {
        Some(Mode::Mps(Self {
            rename: None,
            strict: true,
            ..self.clone()
        }))
    }

    fn needs_mps_supervisor(&self) -> bool {
        true
    }

    fn enter(&self, modes: &SharingModes, gpu: &GpuFacts) -> Result<(), ModeError> {
        let target = DaemonTarget {
            device: &gpu.uuid,
            memory: gpu.usable(),
            capability: gpu.compute_capability,
            slices: None,
        };
        modes.mps.start(target, self)
    }

    fn leave(&self, modes: &SharingModes, gpu: &GpuFacts, _: &Mode) -> Result<(), ModeError> {
        modes.mps.stop(&gpu.uuid)
    }

    fn validate(&self, asked: &RequestedGrant<'_>) -> Result<(), String> {
        let container = &asked.container.name;
        if !asked.alone {
            return Err(format!(
                "container {container} has {}, which is shared by MPS, and another GPU in its allocation, but an MPS client sees only the GPU of its daemon: request each GPU in a container of its own",
                asked.grant.gpu
            ));
        }
        if asked.container.mounts_shm {
            return Err(format!(
                "container {container} mounts a volume at /dev/shm, where an MPS client has the memory that it shares with its daemon: remove the mount, or ask for another sharing mode (annotation aliquot.dev/vgpu-mode)"
            ));
        }
        asked.require_amounts()
    }

    fn prepare(
        &self,
        modes: &SharingModes,
        share: &ContainerGrant<'_>,
        setup: &mut ModeSetup,
    ) -> Result<Option<InstanceIds>, ModeError> {
        let (grant, device) = (share.grant, share.grant.gpu.as_str());
        let directory = modes.mps.directory(device);
        let ready = modes.mps.ready(&directory, grant);
        let ready = ready.and_then(|()| has_memory(&directory));
        ready.map_err(|why| {
            ModeError::Failed(format!("the MPS daemon of {device} is not ready: {why}"))
        })?;
        connect(&directory, grant, setup);
        Ok(None)
    }
}

/// By this spec, or by one that was raised meanwhile.
fn serves(directory: &DaemonDirectory, spec: &DaemonSpec) -> Result<(), String> {
    match directory.status() {
        Ok(Some(DaemonStatus {
            phase: DaemonPhase::Running,
            spec: Some(served),
            ..
        })) if served.satisfies(spec) => Ok(()),
        _ => Err(why_not(directory)),
    }
}

/// Whether the memory of the device's daemon is mounted. A restart of the node ends that and leaves
/// status and directory, through which clients would write to the host's disk.
fn has_memory(directory: &DaemonDirectory) -> Result<(), String> {
    let shm = directory.shm();
    if crate::tmpfs::is_mounted(&shm).unwrap_or(false) {
        return Ok(());
    }
    Err(format!(
        "no memory is mounted at {} for /dev/shm of MPS clients; check that the pod of DaemonSet aliquot-mps (devicePlugin.mps.enabled) is running on this node",
        shm.display()
    ))
}

/// Connects a client to the daemon and sets its limits.
fn connect(directory: &DaemonDirectory, grant: &Grant, setup: &mut ModeSetup) {
    let (memory, threads) = (grant.memory, grant.cores);
    // The daemon limits the compute, by share of the SMs and not of time.
    let shown = Grant {
        cores: Percent(0),
        ..grant.clone()
    };
    setup.show(grant.gpu.as_str(), shown);
    let mut set = |name: &str, value: String| setup.variables.push(format!("{name}={value}"));
    set("CUDA_MPS_PIPE_DIRECTORY", PIPE.to_owned());
    // 0 is no limit. By index: the daemon's only device is device 0 of its clients.
    if memory > Mib(0) {
        let limit = format!("0={}M", memory.0);
        set("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", limit);
    }
    if threads > Percent(0) {
        set("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", threads.0.to_string());
    }
    // The server and its clients share memory at /dev/shm.
    for (from, to) in [(directory.pipe(), PIPE), (directory.shm(), "/dev/shm")] {
        let options = ["rw", "nosuid", "nodev", "bind"];
        let mount = json!({"hostPath": from, "containerPath": to, "options": options});
        setup.mounts.push(mount);
    }
    // MPS limits each client; libvgpu.so limits all clients of a container together.
    setup.limited = memory > Mib(0);
    setup.limit_by_driver(&grant.gpu);
}

fn why_not(directory: &DaemonDirectory) -> String {
    match directory.status() {
        Ok(Some(status)) => match status.phase {
            DaemonPhase::Down(why) => why,
            DaemonPhase::Running => "it has not applied its new limits yet".to_owned(),
        },
        Ok(None) => "the MPS supervisor (DaemonSet aliquot-mps) has not answered".to_owned(),
        Err(error) => error.to_string(),
    }
}

fn wait(most: Duration, check: impl Fn() -> Result<(), String>) -> Result<(), String> {
    let deadline = Instant::now() + most;
    loop {
        match check() {
            Err(why) if Instant::now() > deadline => return Err(why),
            Err(_) => std::thread::park_timeout(POLL),
            Ok(()) => return Ok(()),
        }
    }
}

#[cfg(test)]
mod tests;
