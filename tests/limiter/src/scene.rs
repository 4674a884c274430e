//! The scene of most tests: two cards, contexts of a known size, and a container with a share.
//!
//! Fed by: tests. Must not: judge more than that answers are as expected.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use aliquot_gpusim::SimulatedMachine;
use aliquot_region::host::{Doubt, Known};
use aliquot_region::limits::{Container as Rules, Device};

use crate::{Container, WAYS, Way};

/// The first card.
pub const FIRST: &str = "GPU-11111111-1111-1111-1111-111111111111";
/// The second card.
pub const SECOND: &str = "GPU-22222222-2222-2222-2222-222222222222";
/// Bytes.
pub const MIB: u64 = 1 << 20;
/// Policy default, priority high.
pub const RULES: Rules = Rules {
    priority: 0,
    policy: 0,
    flags: 0,
};
/// MiB that a context takes on these machines, and that the limits page says of it.
pub const CONTEXT: u64 = 480;

/// A machine with two cards; it lives as long as its folder.
pub fn machine() -> (tempfile::TempDir, SimulatedMachine) {
    let room = tempfile::tempdir().expect("a folder");
    let yaml = format!(
        "gpus:\n- count: 2\n  model: NVIDIA A100-SXM4-80GB\n  uuids: [{FIRST}, {SECOND}]\n  set: {{contextMib: {CONTEXT}}}\n"
    );
    let state = room.path().join("state");
    let machine = SimulatedMachine::create(&state, &yaml).expect("a machine");
    open_to_all(room.path());
    (room, machine)
}

/// A device node is every user's; the simulated machine is a folder of files.
fn open_to_all(folder: &Path) {
    let open = |path: &Path, mode| {
        let mode = Permissions::from_mode(mode);
        std::fs::set_permissions(path, mode).expect("a mode");
    };
    open(folder, 0o777);
    for file in std::fs::read_dir(folder).expect("a folder") {
        open(&file.expect("a file").path(), 0o666);
    }
}

/// A share of a card, in MiB.
pub fn device(uuid: &str, mib: u64) -> Device<'_> {
    Device {
        uuid,
        memory: mib * MIB,
        context: CONTEXT * MIB,
        ..Device::default()
    }
}

/// A container with a share of the first card.
pub fn container(machine: &SimulatedMachine, way: Way, mib: u64) -> Container {
    let devices = [device(FIRST, mib)];
    Container::new(machine, way, Rules::default(), &devices).expect("a container")
}

/// What the host doubts of a container with `mib` of the first card, on which nobody else is: the
/// simulator says what its processes use, as the driver would.
pub fn doubts(machine: &SimulatedMachine, container: &Container, mib: u64) -> Vec<Doubt> {
    let holders = machine.holders(FIRST).expect("a card");
    let known = Known {
        limit: mib * MIB,
        measured: holders.iter().map(|holder| holder.used).sum(),
        slack: 0,
    };
    let report = container.report().expect("a counters file");
    report.doubts(&[known])
}

/// Runs the client in a container with `mib` of the first card, in each way in: what it answers,
/// and that nothing is left on the card after it, and never was more than the share.
pub fn check(mib: u64, script: &[(&str, &str)]) {
    for way in WAYS {
        let (_room, machine) = machine();
        let container = container(&machine, way, mib);
        let commands: Vec<&str> = script.iter().map(|(command, _)| *command).collect();
        let mut running = container.start(&commands).expect("the client");
        let expected: Vec<String> = script
            .iter()
            .map(|(command, answer)| format!("{command}: {answer}"))
            .collect();
        assert_eq!(running.answers, expected, "{way:?}");
        let holders = machine.holders(FIRST).expect("a card");
        let most = holders.iter().map(|holder| holder.peak).max();
        assert!(most.unwrap_or(0) <= mib * MIB, "{way:?}: {most:?}");
        running.end().expect("it ends well");
        assert_eq!(machine.holders(FIRST).expect("a card"), [], "{way:?}");
        let after = container.client(&["init", "info"]);
        let free = mib.checked_sub(CONTEXT).map(|free| free / 2 * 2);
        if let Some(free) = free {
            let expected = format!("info: 0 {free} {mib}");
            assert_eq!(
                after.expect("a client")[1],
                expected,
                "{way:?}: something is left"
            );
        }
    }
}
