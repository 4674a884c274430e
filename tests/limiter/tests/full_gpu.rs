//! A GPU whose memory is allocated to the last byte: every tenant gets all of its share, whatever the
//! driver reserves, and once contexts are measured also whatever they take.

use std::os::unix::fs::FileExt as _;
use std::sync::Arc;

use aliquot_core::inventory::Mode;
use aliquot_core::{Mib, Percent};
use aliquot_gpusim::SimulatedMachine;
use aliquot_limiter_tests::host::container_record;
use aliquot_limiter_tests::scene::{FIRST, MIB};
use aliquot_limiter_tests::{InjectionMethod, RunningClient, TestContainer};
use aliquot_monitor::context_size::ContextMeter;
use aliquot_monitor::devices::GpuSample;
use aliquot_monitor::evaluation::Evaluation;
use aliquot_monitor::managed_containers::{ContainerDevice, ManagedContainer, ManagedContainers};
use aliquot_monitor::node_sample::NodeSample;
use aliquot_node_state::context_sizes::{ContextKind, ContextSizes, starting_size};
use aliquot_node_state::state::StateDirectory;
use aliquot_region::limits::{ContainerLimits, DeviceLimits};

/// A GPU as the catalogue of models has it.
struct GpuModel {
    name: &'static str,
    capability: (u32, u32),
    /// MiB in all, and what the driver reserves of them.
    memory: u64,
    reserved: u64,
}

const T4: GpuModel = GpuModel {
    name: "Tesla T4",
    capability: (7, 5),
    memory: 15_360,
    reserved: 450,
};
const A100: GpuModel = GpuModel {
    name: "NVIDIA A100-SXM4-80GB",
    capability: (8, 0),
    memory: 81_920,
    reserved: 634,
};

impl GpuModel {
    /// The size of a context in MiB while nothing is measured.
    fn starting(&self) -> u64 {
        starting_size(Some(self.capability)).0
    }

    /// What the agent promises of it, in MiB.
    fn promised(&self) -> u64 {
        self.memory - self.reserved
    }

    /// A machine with one of it, with these settings.
    fn machine(&self, settings: &str) -> (tempfile::TempDir, SimulatedMachine) {
        let temp = tempfile::tempdir().expect("a folder");
        let (name, memory, reserved) = (self.name, self.memory, self.reserved);
        let yaml = format!(
            "gpus: [{{model: {name}, uuids: [{FIRST}], memoryMib: {memory}, reservedMib: {reserved}, set: {{{settings}}}}}]"
        );
        let machine = SimulatedMachine::create(&temp.path().join("state"), &yaml);
        (temp, machine.expect("a machine"))
    }
}

/// A container with a share, and with this charge for a context, in MiB.
fn container(machine: &SimulatedMachine, mib: u64, context: u64) -> TestContainer {
    let device = DeviceLimits {
        uuid: FIRST,
        memory: mib * MIB,
        context: context * MIB,
        ..DeviceLimits::default()
    };
    let limits = ContainerLimits::default();
    TestContainer::new(machine, InjectionMethod::Replacement, limits, &[device])
        .expect("a container")
}

/// Starts a client with these commands in each container at the same time.
fn start_all(containers: &[TestContainer], commands: &[&str]) -> Vec<RunningClient> {
    std::thread::scope(|scope| {
        let started: Vec<_> = containers
            .iter()
            .map(|one| scope.spawn(|| one.start(commands).expect("a client")))
            .collect();
        let all = started.into_iter();
        all.map(|one| one.join().expect("it answers")).collect()
    })
}

/// Allocates a whole GPU to so many tenants, each of which fills its share to the last byte. Every
/// context takes `context` MiB and is charged for that.
fn fill(gpu: &GpuModel, machine: &SimulatedMachine, tenants: u64, context: u64) {
    let promised = gpu.promised();
    let share = promised / tenants;
    let shares = (1..=tenants).map(|tenant| {
        // The last one gets the rest.
        if tenant == tenants {
            promised - share * (tenants - 1)
        } else {
            share
        }
    });
    let shares: Vec<u64> = shares.collect();
    let containers: Vec<TestContainer> = shares
        .iter()
        .map(|mib| container(machine, *mib, context))
        .collect();
    let running = start_all(&containers, &["init", "run,k_us_5", "everything"]);
    for (one, mib) in running.iter().zip(&shares) {
        // In whole blocks.
        let all = (mib - context) / 2 * 2;
        let expected = [
            "init: 0".to_owned(),
            "run,k_us_5: 0".to_owned(),
            format!("everything: 0 2 {all}"),
        ];
        assert_eq!(one.answers, expected, "{}: {mib} MiB", gpu.name);
    }
    let processes = machine.process_usage(FIRST).expect("a GPU");
    assert_eq!(processes.len() as u64, tenants);
    let used = processes.iter().map(|one| one.used).sum::<u64>() / MIB;
    let blocks = 2 * tenants;
    assert!((promised - blocks..=promised).contains(&used), "{used}");
}

#[test]
fn fills_t4_and_a100_with_every_share_in_full() {
    for (gpu, tenants) in [(&T4, 1), (&T4, 3), (&A100, 7)] {
        let context = gpu.starting();
        let (_temp, machine) = gpu.machine(&format!("contextMib: {context}"));
        fill(gpu, &machine, tenants, context);
    }
}

/// What the monitor knows of a container that has one process.
fn managed(id: &str) -> ManagedContainer {
    ManagedContainer {
        devices: vec![ContainerDevice {
            uuid: FIRST.into(),
            memory: Mib(4000),
            cores: Percent(0),
            mode: Mode::Vgpu,
            profile: None,
        }],
        ..container_record(id.into())
    }
}

/// Lets the monitor measure these containers until it is sure, and returns what the agent charges
/// for a context then, in MiB.
fn measure(gpu: &GpuModel, machine: &SimulatedMachine, containers: &[TestContainer]) -> u64 {
    let state = tempfile::tempdir().expect("a folder");
    let processes = machine.process_usage(FIRST).expect("a GPU");
    let snapshots = containers.iter().map(TestContainer::counters_snapshot);
    let snapshots: Vec<_> = snapshots.map(|one| one.expect("counters")).collect();
    let lists = snapshots.iter().map(|snapshot| {
        let pid = snapshot.processes[0].pid.expect("a slot of its own");
        let own = processes.iter().find(|one| one.pid == pid);
        Some(vec![(pid, 0, Some(own.expect("on the GPU").used))])
    });
    let evaluation = Evaluation {
        process_lists: lists.collect(),
        ..Evaluation::default()
    };
    let ids = 0..containers.len();
    let sample = NodeSample {
        containers: Arc::new(ManagedContainers {
            all: ids.map(|id| managed(&format!("c{id}"))).collect(),
            ..ManagedContainers::default()
        }),
        counters: snapshots
            .into_iter()
            .map(|snapshot| Some(Ok((snapshot.clone(), snapshot))))
            .collect(),
        ..NodeSample::default()
    };
    let gpus = [GpuSample {
        uuid: FIRST.to_owned(),
        model: gpu.name.to_owned(),
        driver_version: "580.82.07".to_owned(),
        ..GpuSample::default()
    }];
    std::fs::create_dir(StateDirectory(state.path()).accepted()).expect("as the agent does");
    let mut meter = ContextMeter::new(state.path());
    for _ in 0..20 {
        let charge = gpu.starting() * MIB;
        meter.update(&sample, &evaluation, &gpus, |_, _| Some(charge));
    }
    let text =
        std::fs::read(StateDirectory(state.path()).context_sizes()).expect("what the agent reads");
    let sizes: ContextSizes = serde_json::from_slice(&text).expect("valid");
    let kind = ContextKind::new(gpu.name, "580.82.07", None, false);
    sizes.size(&kind, Mib(gpu.starting())).0
}

#[test]
fn fills_gpu_whose_contexts_were_measured() {
    // Larger than the starting value of the T4 and growing at the first launch; smaller than that of
    // the A100.
    for (gpu, settings, expected) in [
        (&T4, "contextMib: 300, contextGrowthMib: 200", 500),
        (&A100, "contextMib: 120", 120),
    ] {
        let (_temp, machine) = gpu.machine(settings);
        let containers: Vec<TestContainer> = (0..2)
            .map(|_| container(&machine, 4000, gpu.starting()))
            .collect();
        for one in &containers {
            // A host's heartbeat, at which the limiter reports its launches.
            let page = one.directory().join("limits");
            let page = std::fs::OpenOptions::new().write(true).open(page);
            let page = page.expect("the limits page");
            page.write_all_at(&1_u64.to_le_bytes(), 24)
                .expect("written");
        }
        let running = start_all(&containers, &["init", "run,k_us_5", "alloc,1000"]);
        let measured = measure(gpu, &machine, &containers);
        assert_eq!(measured, expected, "{}", gpu.name);
        drop(running);
        fill(gpu, &machine, 3, measured);
    }
}
