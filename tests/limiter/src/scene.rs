//! The scene of most tests: two cards, contexts of a known size, and a container with a share.
//!
//! Fed by: tests. Must not: judge more than that answers are as expected.

use aliquot_gpusim::SimulatedMachine;
use aliquot_region::limits::{Container as Rules, Device};

use crate::{Container, WAYS, Way};

/// The first card.
pub const FIRST: &str = "GPU-11111111-1111-1111-1111-111111111111";
/// The second card.
pub const SECOND: &str = "GPU-22222222-2222-2222-2222-222222222222";
/// Bytes.
pub const MIB: u64 = 1 << 20;
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
    (room, machine)
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
