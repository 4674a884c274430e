//! Every tenant gets what it was promised and no more: its memory on a GPU that is allocated to the
//! last byte, whatever the driver reserves, and its part of the time.

use aliquot_gpusim::SimulatedMachine;
use aliquot_limiter_tests::scene::{FIRST, MIB, container_of, device};
use aliquot_limiter_tests::share::{ShareScenario, Verdict, run, shares_hold_unless_starved};
use aliquot_limiter_tests::workers::tenant;
use aliquot_limiter_tests::{InjectionMethod, TestContainer, start_all};
use aliquot_region::limits::DeviceLimits;

/// A GPU as the catalogue of models has it.
struct GpuModel {
    name: &'static str,
    /// What a context takes and is charged, in MiB.
    context: u64,
    /// MiB in all, and what the driver reserves of them.
    memory: u64,
    reserved: u64,
}

const T4: GpuModel = GpuModel {
    name: "Tesla T4",
    context: 105,
    memory: 15_360,
    reserved: 450,
};
const A100: GpuModel = GpuModel {
    name: "NVIDIA A100-SXM4-80GB",
    context: 420,
    memory: 81_920,
    reserved: 634,
};

impl GpuModel {
    /// What the agent promises of it, in MiB.
    fn promised(&self) -> u64 {
        self.memory - self.reserved
    }

    /// A machine with one of it.
    fn machine(&self) -> (tempfile::TempDir, SimulatedMachine) {
        let temp = tempfile::tempdir().expect("a folder");
        let Self {
            name,
            context,
            memory,
            reserved,
        } = self;
        let yaml = format!(
            "gpus: [{{model: {name}, uuids: [{FIRST}], memoryMib: {memory}, reservedMib: {reserved}, set: {{contextMib: {context}}}}}]"
        );
        let machine = SimulatedMachine::create(&temp.path().join("state"), &yaml);
        (temp, machine.expect("a machine"))
    }
}

/// A container with a share, and with this charge for a context, in MiB.
fn container(machine: &SimulatedMachine, mib: u64, context: u64) -> TestContainer {
    let device = DeviceLimits {
        context: context * MIB,
        ..device(FIRST, mib)
    };
    container_of(machine, InjectionMethod::Replacement, &[device])
}

/// Allocates a whole GPU to so many tenants, each of which fills its share to the last byte.
fn fill(gpu: &GpuModel, tenants: u64) {
    let (_temp, machine) = gpu.machine();
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
        .map(|mib| container(&machine, *mib, gpu.context))
        .collect();
    let running = start_all(&containers, &["init", "run,k_us_5", "everything"]);
    for (one, mib) in running.iter().zip(&shares) {
        // In whole blocks.
        let all = (mib - gpu.context) / 2 * 2;
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
        fill(gpu, tenants);
    }
}

/// One row of what `compute_share` and `make bench` measure on a quiet machine. On a busy one, a
/// bucket that is full when a window begins brings 1.5 points more. Too much is never excused.
#[test]
fn gives_30_percent_of_the_time() {
    // An unknown kernel is charged half of what this one takes.
    let scene = ShareScenario::seconds(3, vec![tenant(30, "plain k_ms_2")]);
    shares_hold_unless_starved(
        "30 % of the time",
        || run(&scene).expect("every call of every process succeeds"),
        |got| Verdict::within([(got[0].deviation(30.0), [-5.0, 3.0])]),
    );
}
