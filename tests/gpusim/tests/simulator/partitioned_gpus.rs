//! The agent's mode mig on simulated GPUs: how a profile partitions them, what a container gets,
//! and what survives changes, restarts and reboots.

mod agent;

use std::path::Path;

use aliquot_core::mig::published::{Mig, MigPlacement};
use aliquot_core::{GpuUuid, Grant, Mib, inventory};
use aliquot_gpusim::SimulatedMachine;
use aliquot_gpusim::edit::compute_process;
use aliquot_profiles::Mode;

use crate::common::on_machine;
use agent::{Agent, expect, grant, placed};

const ONE: &str = "gpus: [{model: NVIDIA A100-SXM4-40GB, uuids: [GPU-a]}]";
const TWO: &str = "gpus: [{count: 2, model: NVIDIA A100-SXM4-40GB, uuids: [GPU-a, GPU-b]}]";

fn check(name: &str, yaml: &str, body: impl FnOnce(&SimulatedMachine, &Path)) {
    on_machine(&format!("partitioned_gpus::{name}"), yaml, |machine| {
        let state = tempfile::tempdir().unwrap();
        body(machine, state.path());
    });
}

#[test]
fn mig_1_advertises_seven_slices_and_no_whole_gpu() {
    check(
        "mig_1_advertises_seven_slices_and_no_whole_gpu",
        ONE,
        |_, state| {
            let agent = Agent::start(state);
            let layout =
                "{gpus: [{select: {all: true}, mode: mig, layout: [{profile: 1g.5gb, count: 7}]}]}";
            let devices = agent.enter(layout);
            expect(&devices, &[("nvidia.com/mig-1g.5gb", 7)]);
            assert!(
                devices
                    .iter()
                    .all(|device| device.memory == Mib(4864) && device.numa == Some(0))
            );
            // Applied again, as at every start, it changes nothing.
            let before = agent.uuids("GPU-a");
            agent.enter(layout);
            assert_eq!(agent.uuids("GPU-a"), before);
        },
    );
}

#[test]
fn mig_2_container_sees_only_its_allocated_instance() {
    let name = "mig_2_container_sees_only_its_allocated_instance";
    check(name, ONE, |_, state| {
        let agent = Agent::start(state);
        let devices = agent.enter(
            "{gpus: [{select: {all: true}, mode: mig, layout: [{profile: 1g.5gb, count: 7}]}]}",
        );
        for device in &devices {
            let grants = [grant(device.uuid.as_str(), None)];
            let seen = agent.prepare(&grants, device.mode, &[]).unwrap();
            assert_eq!(seen, [device.uuid.to_string()]);
        }
    });
}

#[test]
fn mig_3_strategy_single_advertises_instances_as_gpus() {
    let name = "mig_3_strategy_single_advertises_instances_as_gpus";
    check(name, TWO, |_, state| {
        let agent = Agent::start(state);
        let single = "{gpus: [{select: {all: true}, mode: mig, strategy: single, layout: [{profile: 2g.10gb, count: 3}]}]}";
        expect(&agent.enter(single), &[("nvidia.com/gpu", 6)]);
        let none = "{gpus: [{select: {all: true}, mode: mig, strategy: none, layout: [{profile: 2g.10gb, count: 3}]}]}";
        expect(&agent.enter(none), &[]);
    });
}

#[test]
fn mig_8_inventory_lists_uuid_and_ids_of_each_instance() {
    let name = "mig_8_inventory_lists_uuid_and_ids_of_each_instance";
    check(name, ONE, |machine, state| {
        let agent = Agent::start(state);
        let devices = agent.enter("{gpus: [{select: {all: true}, mode: mig, layout: [{profile: 3g.20gb}, {profile: 1g.5gb}]}]}");
        let shown = machine.show().unwrap();
        let shown = shown["gpus"][0]["instances"].as_array().unwrap().clone();
        assert_eq!((devices.len(), shown.len()), (2, 2));
        for device in devices {
            let Some(Mig::Fixed(part)) = &device.mig else {
                panic!("{device:?}")
            };
            let same = |one: &&serde_json::Value| one["uuid"] == device.uuid.as_str();
            let one = shown.iter().find(same).unwrap();
            assert_eq!(one["gpuInstance"], part.gi);
            assert_eq!(one["computeInstance"], part.ci);
            assert_eq!(
                (&one["profile"], &one["start"]),
                (&part.profile.clone().into(), &part.start.into())
            );
        }
    });
}

#[test]
fn mig_10_node_serves_one_whole_and_one_partitioned_gpu() {
    check(
        "mig_10_node_serves_one_whole_and_one_partitioned_gpu",
        TWO,
        |_, state| {
            let agent = Agent::start(state);
            let devices = agent.enter(
            "{gpus: [{select: {index: [1]}, mode: mig, layout: [{profile: 3g.20gb, count: 2}]}], rest: exclusive}",
        );
            expect(
                &devices,
                &[("nvidia.com/gpu", 1), ("nvidia.com/mig-3g.20gb", 2)],
            );
            let uuids: Vec<&GpuUuid> = devices.iter().map(|device| &device.uuid).collect();
            assert!(!uuids.contains(&&"GPU-b".into()), "{uuids:?}");
        },
    );
}

#[test]
fn ts_12_two_instances_with_three_replicas_make_six() {
    check(
        "ts_12_two_instances_with_three_replicas_make_six",
        ONE,
        |_, state| {
            let agent = Agent::start(state);
            let devices = agent.enter(
            "{gpus: [{select: {all: true}, mode: mig, layout: [{profile: 3g.20gb, count: 2, on: {mode: timeslice, replicas: 3}}]}]}",
        );
            expect(&devices, &[("nvidia.com/mig-3g.20gb", 6)]);
            let devices = agent.enter(
            "{gpus: [{select: {all: true}, mode: mig, layout: [{profile: 3g.20gb, count: 2, on: {mode: vgpu, split: 4, memoryScaling: 2}}]}]}",
        );
            expect(&devices, &[("nvidia.com/mig-3g.20gb", 8)]);
            assert!(
                devices
                    .iter()
                    .all(|device| device.scaled.0 == 2 * device.memory.0)
            );
        },
    );
}

const DYNAMIC: &str =
    "{gpus: [{select: {all: true}, mode: mig, dynamic: true, allow: [1g.5gb, 2g.10gb, 3g.20gb]}]}";

#[test]
fn mig_17_creates_instances_on_demand_beside_others() {
    let name = "mig_17_creates_instances_on_demand_beside_others";
    check(name, ONE, |machine, state| {
        let agent = Agent::start(state);
        let devices = agent.enter(DYNAMIC);
        let all = [
            ("nvidia.com/mig-1g.5gb", 7),
            ("nvidia.com/mig-2g.10gb", 3),
            ("nvidia.com/mig-3g.20gb", 2),
        ];
        expect(&devices, &all);
        let ask = |profile: &str, start, beside: &[MigPlacement]| {
            agent.prepare(
                &[grant("GPU-a", Some((profile, start)))],
                inventory::Mode::Mig,
                beside,
            )
        };
        let one = ask("1g.5gb", 6, &[]).unwrap();
        let neighbours = [placed("1g.5gb", 6)];
        assert_eq!(
            ask("1g.5gb", 6, &[]).unwrap(),
            one,
            "requested again at every start"
        );
        let two = ask("2g.10gb", 4, &neighbours).unwrap();
        assert_eq!(agent.uuids("GPU-a"), [two.clone(), one.clone()].concat());

        // The second pod ended. Its instance stays while its slices are not needed.
        ask("1g.5gb", 0, &neighbours).unwrap();
        assert_eq!(
            ask("2g.10gb", 4, &neighbours).unwrap(),
            two,
            "an idle instance is used as it is"
        );
        ask("1g.5gb", 5, &neighbours).unwrap();
        let now = agent.uuids("GPU-a");
        assert!(!now.contains(&two[0]) && now.contains(&one[0]), "{now:?}");

        // Allocated instances stay, and so does one that a process still uses.
        let refused = ask("3g.20gb", 4, &neighbours).unwrap_err();
        assert!(
            refused.contains("no room for 3g.20gb at slice 4"),
            "{refused}"
        );
        let mut process = compute_process(77, 10);
        (process.gpu_instance, process.compute_instance) = (7, 0);
        machine.add_process("0", process).unwrap();
        let refused = ask("2g.10gb", 0, &neighbours).unwrap_err();
        assert!(refused.contains("in use"), "{refused}");
        machine.remove_process("0", 77).unwrap();
        ask("2g.10gb", 0, &neighbours).unwrap();

        // A new agent keeps the existing instances.
        let new = Agent::start(state);
        new.enter(DYNAMIC);
        assert_eq!(new.uuids("GPU-a"), agent.uuids("GPU-a"));
    });
}

#[test]
fn retries_creation_after_compute_instance_failure() {
    let name = "retries_creation_after_compute_instance_failure";
    check(name, ONE, |machine, state| {
        let agent = Agent::start(state);
        agent.enter(DYNAMIC);
        machine.set("0", &[("cutFaults", "1")]).unwrap();
        let ask = || {
            agent.prepare(
                &[grant("GPU-a", Some(("3g.20gb", 4)))],
                inventory::Mode::Mig,
                &[],
            )
        };
        ask().unwrap_err();
        assert!(
            agent
                .driver
                .mig_layout("GPU-a")
                .unwrap()
                .instances
                .is_empty()
        );
        assert_eq!(ask().unwrap(), agent.uuids("GPU-a"));
    });
}

fn layout_of_both(second: &str) -> String {
    let first = "{select: {index: [0]}, mode: mig, layout: [{profile: 2g.10gb, count: 3}]}";
    format!("{{gpus: [{first}, {{select: {{index: [1]}}, {second}}}]}}")
}

#[test]
fn mig_18_changing_one_gpu_leaves_the_other_unchanged() {
    let name = "mig_18_changing_one_gpu_leaves_the_other_unchanged";
    check(name, TWO, |machine, state| {
        let agent = Agent::start(state);
        let partitioned = layout_of_both("mode: mig, layout: [{profile: 7g.40gb}]");
        agent.enter(&partitioned);
        let first = agent.uuids("GPU-a");
        let mut process = compute_process(5, 10);
        (process.gpu_instance, process.compute_instance) = (0, 0);
        machine.add_process("1", process).unwrap();

        // While it is in use, it stays partitioned.
        let (gpus, plans) = (agent.gpus(), agent.plans(&partitioned));
        let leave = || {
            agent
                .modes
                .switch(&plans[1].mode)
                .leave(&gpus[1], &plans[1].mode, &Mode::Unmanaged)
        };
        let error = leave().unwrap_err().to_string();
        assert!(error.contains("in use"), "{error}");
        assert_eq!(agent.uuids("GPU-b").len(), 1);
        machine.remove_process("1", 5).unwrap();
        leave().unwrap();
        leave().unwrap();
        let devices = agent.enter(&layout_of_both("mode: exclusive"));
        expect(
            &devices,
            &[("nvidia.com/mig-2g.10gb", 3), ("nvidia.com/gpu", 1)],
        );
        assert_eq!(agent.uuids("GPU-a"), first);
        assert!(!agent.gpus()[1].mig.enabled);
    });
}

#[test]
fn mig_19_reboot_restores_instances_and_stable_names() {
    let name = "mig_19_reboot_restores_instances_and_stable_names";
    let hopper = "gpus: [{model: NVIDIA H100 80GB HBM3, uuids: [GPU-a]}]";
    check(name, hopper, |machine, state| {
        let layout = "{gpus: [{select: {all: true}, mode: mig, layout: [{profile: 3g.40gb}, {profile: 1g.10gb, count: 2}]}]}";
        let agent = Agent::start(state);
        let before = agent.enter(layout);
        let first = agent.current("GPU-a");
        machine.reboot().unwrap();
        assert!(
            !agent.gpus()[0].mig.enabled,
            "a Hopper GPU forgets the mode, too"
        );

        let agent = Agent::start(state);
        let after = agent.enter(layout);
        assert_eq!(after, before, "the same devices");
        let now = agent.current("GPU-a");
        assert!(
            now.iter().all(|uuid| !first.contains(uuid)),
            "the driver has new uuids"
        );

        // A pod finds its instance again, by the driver's current UUID.
        let (allocated, part) = (&after[0], agent.driver.mig_layout("GPU-a").unwrap());
        let whole = part.instances.iter().filter_map(|one| one.device());
        let found = whole
            .into_iter()
            .find(|device| device.uuid == allocated.uuid.as_str())
            .unwrap();
        assert_ne!(found.current, found.uuid);
    });
}

#[test]
fn mig_20_container_sees_instances_of_two_profiles() {
    let name = "mig_20_container_sees_instances_of_two_profiles";
    check(name, ONE, |_, state| {
        let agent = Agent::start(state);
        let devices = agent.enter("{gpus: [{select: {all: true}, mode: mig, layout: [{profile: 3g.20gb}, {profile: 1g.5gb}]}]}");
        let grants: Vec<Grant> = devices
            .iter()
            .map(|device| grant(device.uuid.as_str(), None))
            .collect();
        let seen = agent
            .prepare(&grants, inventory::Mode::Exclusive, &[])
            .unwrap();
        assert_eq!(
            seen,
            [devices[0].uuid.to_string(), devices[1].uuid.to_string()]
        );

        let partitioned = agent.enter(DYNAMIC);
        assert_eq!(partitioned.len(), 1);
        let asked = [
            grant("GPU-a", Some(("1g.5gb", 6))),
            grant("GPU-a", Some(("2g.10gb", 4))),
        ];
        let beside = [placed("1g.5gb", 6), placed("2g.10gb", 4)];
        let seen = agent
            .prepare(&asked, inventory::Mode::Mig, &beside)
            .unwrap();
        assert_eq!(seen.len(), 2);
        assert_ne!(seen[0], seen[1]);
    });
}
