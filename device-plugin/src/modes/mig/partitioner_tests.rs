//! Partitioning on a driver that records every call.

use std::sync::atomic::AtomicU8;
use std::time::{Duration, Instant};

use aliquot_core::Mib;
use aliquot_core::mig::table;
use aliquot_node_state::mps::DaemonPhase;
use aliquot_nvml::{DriverInventory, GpuEvent, MigError, MigLayout, NvmlError};
use aliquot_profiles::mode::Vgpu;

use super::*;
use crate::modes::mps::directory::DaemonDirectory;
use crate::modes::mps::plan::daemon_spec;

const PATIENCE: Duration = Duration::from_mins(1);

/// GPUs of one model.
#[derive(Default)]
struct FakeGpus {
    /// Instances by GPU; a GPU without MIG mode is absent.
    layouts: Mutex<BTreeMap<String, Vec<nvml::GpuInstance>>>,
    /// How often MIG mode was switched.
    switched: AtomicU8,
    made: AtomicU8,
    /// Called while an instance is created.
    making: Mutex<Option<Box<dyn Fn() + Send>>>,
    /// Processes have the GPUs open.
    open: AtomicBool,
}

fn geometry() -> Geometry {
    table::geometry("NVIDIA A100-SXM4-40GB").expect("known")
}

impl Driver for FakeGpus {
    fn inventory(&self) -> Result<DriverInventory, NvmlError> {
        unreachable!("not called here")
    }

    fn health(&self) -> Result<Vec<nvml::DeviceHealth>, NvmlError> {
        unreachable!("not called here")
    }

    fn wait_events(&self, _: Duration) -> Result<Vec<GpuEvent>, NvmlError> {
        unreachable!("not called here")
    }

    fn mig_layout(&self, gpu: &str) -> Result<MigLayout, MigError> {
        let found = self.layouts.lock().get(gpu).cloned();
        Ok(MigLayout {
            geometry: found.is_some().then(geometry),
            instances: found.unwrap_or_default(),
        })
    }

    fn set_mig(&self, gpu: &str, on: bool) -> Result<Activation, MigError> {
        self.switched.fetch_add(1, Ordering::Relaxed);
        if self.open.load(Ordering::Relaxed) {
            return Ok(Activation::AtReset);
        }
        let mut layouts = self.layouts.lock();
        if on {
            layouts.entry(gpu.to_owned()).or_default();
        } else {
            layouts.remove(gpu);
        }
        Ok(Activation::Now)
    }

    fn create_instance(
        &self,
        gpu: &str,
        profile: &str,
        start: u8,
    ) -> Result<nvml::GpuInstance, MigError> {
        if let Some(making) = &*self.making.lock() {
            making();
        }
        let id = self.made.fetch_add(1, Ordering::Relaxed).into();
        let uuid = format!("MIG-{id}");
        let mut made = crate::testing::reported_instance(start, &uuid);
        (made.profile, made.id) = (profile.to_owned(), id);
        let mut layouts = self.layouts.lock();
        let instances = layouts.entry(gpu.to_owned()).or_default();
        instances.push(made.clone());
        Ok(made)
    }

    fn destroy_instance(&self, gpu: &str, id: u32) -> Result<(), MigError> {
        let mut layouts = self.layouts.lock();
        let instances = layouts.entry(gpu.to_owned()).or_default();
        instances.retain(|one| one.id != id);
        Ok(())
    }
}

/// A partitioner of these GPUs, with its state.
struct Fixture {
    state: tempfile::TempDir,
    gpus: Arc<FakeGpus>,
    partitioner: MigPartitioner,
}

impl Fixture {
    fn new() -> Self {
        let state = tempfile::tempdir().expect("a directory");
        let gpus = Arc::new(FakeGpus::default());
        let driver = Arc::clone(&gpus) as Arc<dyn Driver>;
        let mps = Arc::new(mps::MpsDaemons::new(state.path().join("mps")));
        let access = DriverAccess::new(state.path());
        let partitioner = MigPartitioner::new(driver, access, state.path().join("mig"), mps);
        Self {
            state,
            gpus,
            partitioner,
        }
    }

    fn daemon(&self, device: &str) -> DaemonDirectory {
        DaemonDirectory::new(&self.state.path().join("mps"), device)
    }

    fn instances(&self, gpu: &str) -> Vec<String> {
        let found = self.gpus.mig_layout(gpu).expect("reported").instances;
        let text = |one: &nvml::GpuInstance| format!("{}@{} {}", one.profile, one.start, one.id);
        found.iter().map(text).collect()
    }

    /// Of a container with an instance of profile `1g.5gb`.
    fn prepare(&self, gpu: &str) -> Result<InstanceIds, ModeError> {
        let grant = crate::testing::instance_grant(gpu, "1g.5gb", 6);
        let share = ContainerGrant {
            grant: &grant,
            device: None,
            other_instances: &[],
        };
        self.partitioner.prepare(&share, &mut ModeSetup::default())
    }

    fn enter(&self, gpu: &GpuFacts, settings: &Mig) {
        self.partitioner.enter(gpu, settings).expect("entered");
    }

    fn leave(&self, gpu: &GpuFacts, to: &Mode) {
        self.partitioner.leave(gpu, to).expect("left");
    }
}

fn facts(uuid: &str) -> GpuFacts {
    let mut facts = crate::testing::facts(&[uuid]).gpus.remove(0);
    facts.mig.capable = true;
    facts
}

fn layout(slices: &[(&str, Option<InstanceSharing>)]) -> Mig {
    let slices = slices.iter();
    let slices = slices.map(|(profile, on)| crate::testing::layout_entry(profile, 1, on.clone()));
    Mig {
        layout: slices.collect(),
        ..Mig::default()
    }
}

fn dynamic_mig(allow: &[&str]) -> Mig {
    Mig {
        dynamic: true,
        allow: allow.iter().map(|&name| name.to_owned()).collect(),
        ..Mig::default()
    }
}

fn shares() -> Mode {
    Mode::Vgpu(Vgpu::default())
}

#[test]
fn repartitions_without_toggling_mig_mode() {
    let fixture = Fixture::new();
    let gpu = facts("GPU-a");
    let check = |to: &Mig, left: &[&str], then: &[&str]| {
        fixture.leave(&gpu, &Mode::Mig(to.clone()));
        assert_eq!(fixture.instances("GPU-a"), left);
        fixture.enter(&gpu, to);
        assert_eq!(fixture.instances("GPU-a"), then);
        assert_eq!(fixture.gpus.switched.load(Ordering::Relaxed), 1);
    };
    let first = layout(&[("3g.20gb", None), ("1g.5gb", None)]);
    fixture.enter(&gpu, &first);
    let existing = ["3g.20gb@0 0", "1g.5gb@4 1"];
    assert_eq!(fixture.instances("GPU-a"), existing);
    // What is in both layouts stays.
    let second = layout(&[("3g.20gb", None), ("2g.10gb", None)]);
    check(&second, &existing, &["3g.20gb@0 0", "2g.10gb@4 2"]);
    // What pods may be given stays for them.
    let dynamic = dynamic_mig(&["2g.10gb"]);
    check(&dynamic, &["2g.10gb@4 2"], &["2g.10gb@4 2"]);
    fixture.leave(&gpu, &shares());
    assert_eq!(fixture.gpus.switched.load(Ordering::Relaxed), 2);
    assert!(fixture.instances("GPU-a").is_empty());
}

#[test]
fn waits_for_gpu_reset_to_change_mig_mode() {
    let fixture = Fixture::new();
    let gpu = facts("GPU-a");
    let mig = layout(&[("3g.20gb", None)]);
    let waits = |done: Result<(), ModeError>| {
        let error = done.expect_err("it waits");
        assert!(matches!(error, ModeError::NeedsAction(_)), "{error:?}");
        assert!(error.to_string().contains("a reset of the GPU"), "{error}");
    };
    let open = |open| fixture.gpus.open.store(open, Ordering::Relaxed);
    open(true);
    waits(fixture.partitioner.enter(&gpu, &mig));
    open(false);
    fixture.enter(&gpu, &mig);
    open(true);
    waits(fixture.partitioner.leave(&gpu, &shares()));
    open(false);
    fixture.leave(&gpu, &shares());
}

#[test]
fn signals_reread_after_instance_creation_not_during() {
    let fixture = Arc::new(Fixture::new());
    fixture.enter(&facts("GPU-a"), &dynamic_mig(&[]));
    assert!(fixture.partitioner.take_layout_changed());
    let asked = Arc::downgrade(&fixture);
    *fixture.gpus.making.lock() = Some(Box::new(move || {
        let fixture = asked.upgrade().expect("it lives");
        assert!(
            !fixture.partitioner.take_layout_changed(),
            "there is nothing to read yet"
        );
    }));
    fixture.prepare("GPU-a").expect("made");
    assert!(fixture.partitioner.take_layout_changed());
    assert!(!fixture.partitioner.take_layout_changed(), "reported once");
}

#[test]
fn creates_instances_while_waiting_for_mps_daemon() {
    let fixture = Fixture::new();
    let (one, other) = (facts("GPU-a"), facts("GPU-b"));
    fixture.enter(&other, &dynamic_mig(&[]));
    let shared = layout(&[("3g.20gb", Some(InstanceSharing::Mps(Mps::new(2))))]);
    std::thread::scope(|threads| {
        let entering = threads.spawn(|| fixture.partitioner.enter(&one, &shared));
        let deadline = Instant::now() + PATIENCE;
        let spec = loop {
            if let Some(spec) = fixture.daemon("MIG-0").spec().expect("read") {
                break spec;
            }
            assert!(Instant::now() < deadline, "no spec");
            std::thread::yield_now();
        };
        fixture.prepare("GPU-b").expect("made");
        fixture.prepare("GPU-a").expect("made");
        assert!(!entering.is_finished(), "its daemon is not running yet");
        let status = crate::testing::daemon_status(DaemonPhase::Running, Some(spec));
        let written = fixture.daemon("MIG-0").put_status(&status);
        written.expect("written");
        entering.join().expect("no panic").expect("entered");
    });
}

#[test]
fn stops_daemons_of_instances_lost_in_reboot() {
    let check = |from: Mig, to: Option<Mode>| {
        let fixture = Fixture::new();
        let gpu = facts("GPU-a");
        fixture.enter(&gpu, &from);
        let daemon = fixture.daemon("MIG-0");
        let spec = daemon_spec("MIG-0", Mib(19_968), &Mps::new(2), None);
        daemon.put_spec(&spec).expect("written");
        // Instances do not outlive a reboot; on some GPUs, MIG mode does not either.
        fixture.gpus.layouts.lock().clear();
        match &to {
            Some(to) => fixture.leave(&gpu, to),
            None => fixture.enter(&gpu, &from),
        }
        assert_eq!(daemon.spec().expect("read"), None, "{to:?}");
    };
    let mig = || layout(&[("3g.20gb", None)]);
    check(mig(), Some(shares()));
    check(mig(), Some(Mode::Mig(layout(&[("1g.5gb", None)]))));
    check(mig(), None);
}
