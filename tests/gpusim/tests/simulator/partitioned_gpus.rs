//! The agent's mode mig on simulated GPUs: how a profile partitions them, what a container gets,
//! and what survives changes, restarts and reboots.

mod agent;

use std::path::Path;

use aliquot_core::mig::published::{Mig, MigPlacement};
use aliquot_core::{Mib, inventory};
use aliquot_device_plugin::modes;
use aliquot_gpusim::SimulatedMachine;
use aliquot_gpusim::edit::compute_process;
use aliquot_profiles::Mode;

use crate::common::{name_of, run_test};
use agent::{Agent, expect, grant, placed};

const ONE: &str = "gpus: [{model: NVIDIA A100-SXM4-40GB, uuids: [GPU-a]}]";
const TWO: &str = "gpus: [{count: 2, model: NVIDIA A100-SXM4-40GB, uuids: [GPU-a, GPU-b]}]";

fn check<F: FnOnce(&SimulatedMachine, &Path)>(yaml: &str, body: F) {
    run_test(&name_of::<F>(), yaml, &[], |machine| {
        let state = tempfile::tempdir().unwrap();
        body(machine, state.path());
    });
}

const SEVEN: &str = "select: {all: true}, mode: mig, layout: [{profile: 1g.5gb, count: 7}]";
const TWO_PROFILES: &str =
    "select: {all: true}, mode: mig, layout: [{profile: 3g.20gb}, {profile: 1g.5gb}]";

/// A profile with this group of GPUs.
fn group(gpus: &str) -> String {
    format!("{{gpus: [{{{gpus}}}]}}")
}

#[test]
fn mig_1_mig_3_mig_10_ts_12_layout_determines_what_a_node_offers() {
    check(TWO, |_, state| {
        let agent = Agent::start(state);
        let all = |options: &str| group(&format!("select: {{all: true}}, mode: mig, {options}"));
        let halves = |on: &str| all(&format!("layout: [{{profile: 3g.20gb, count: 2{on}}}]"));
        let second = "select: {index: [1]}, mode: mig, layout: [{profile: 3g.20gb, count: 2}]";
        let beside_whole = format!("{{gpus: [{{{second}}}], rest: exclusive}}");
        let thirds = "layout: [{profile: 2g.10gb, count: 3}]";
        let (half, whole) = ("nvidia.com/mig-3g.20gb", "nvidia.com/gpu");
        for (profile, offered, scaling) in [
            (beside_whole, &[(whole, 1), (half, 2)][..], 1),
            (group(SEVEN), &[("nvidia.com/mig-1g.5gb", 2 * 7)], 1),
            (
                all(&format!("strategy: single, {thirds}")),
                &[(whole, 2 * 3)],
                1,
            ),
            (all(&format!("strategy: none, {thirds}")), &[], 1),
            (
                halves(", on: {mode: timeslice, replicas: 3}"),
                &[(half, 2 * 6)],
                1,
            ),
            (
                halves(", on: {mode: vgpu, split: 4, memoryScaling: 2}"),
                &[(half, 2 * 8)],
                2,
            ),
        ] {
            let devices = agent.enter(&profile);
            expect(&devices, offered);
            for device in &devices {
                assert_ne!(device.uuid, "GPU-b".into(), "it is partitioned");
                assert_eq!(device.scaled.0, scaling * device.memory.0);
            }
        }
    });
}

#[test]
fn mig_2_mig_8_mig_20_container_sees_its_instances_as_published() {
    check(ONE, |machine, state| {
        let agent = Agent::start(state);
        let devices = agent.enter(&group(SEVEN));
        assert!(
            devices
                .iter()
                .all(|device| device.memory == Mib(4864) && device.numa == Some(0))
        );
        // Applied again, as at every start, it changes nothing.
        assert_eq!(agent.enter(&group(SEVEN)), devices);
        for device in &devices {
            let grants = [grant(device.uuid.as_str(), None)];
            let seen = agent.prepare(&grants, device.mode, &[]).unwrap();
            assert_eq!(seen, [device.uuid.to_string()]);
        }

        let devices = agent.enter(&group(TWO_PROFILES));
        let shown = machine.show().unwrap();
        let shown = shown["gpus"][0]["instances"].as_array().unwrap().clone();
        assert_eq!((devices.len(), shown.len()), (2, 2));
        for device in &devices {
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
        let both = [0, 1].map(|index| devices[index].uuid.to_string());
        let grants = both.each_ref().map(|uuid| grant(uuid, None));
        let seen = agent.prepare(&grants, inventory::Mode::Exclusive, &[]);
        assert_eq!(seen.unwrap(), both);

        agent.enter(DYNAMIC);
        let asked = [("1g.5gb", 6), ("2g.10gb", 4)];
        let beside = asked.map(|(profile, start)| placed(profile, start));
        let grants = asked.map(|instance| grant("GPU-a", Some(instance)));
        let seen = agent.prepare(&grants, inventory::Mode::Mig, &beside);
        let seen = seen.unwrap();
        assert_eq!(seen.len(), 2);
        assert_ne!(seen[0], seen[1]);
    });
}

const DYNAMIC: &str =
    "{gpus: [{select: {all: true}, mode: mig, dynamic: true, allow: [1g.5gb, 2g.10gb, 3g.20gb]}]}";

#[test]
fn mig_17_creates_instances_on_demand_beside_others() {
    check(ONE, |machine, state| {
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

fn layout_of_both(second: &str) -> String {
    let first = "{select: {index: [0]}, mode: mig, layout: [{profile: 2g.10gb, count: 3}]}";
    format!("{{gpus: [{first}, {{select: {{index: [1]}}, {second}}}]}}")
}

#[test]
fn mig_18_changing_one_gpu_leaves_the_other_unchanged() {
    check(TWO, |machine, state| {
        let agent = Agent::start(state);
        let partitioned = layout_of_both("mode: mig, layout: [{profile: 7g.40gb}]");
        agent.enter(&partitioned);
        let first = agent.uuids("GPU-a");
        let mut process = compute_process(5, 10);
        (process.gpu_instance, process.compute_instance) = (0, 0);
        machine.add_process("1", process).unwrap();

        // While it is in use, it stays partitioned.
        let (gpus, plans) = (agent.gpus(), agent.plans(&partitioned));
        let leave = || modes::of(&plans[1].mode).leave(&agent.modes, &gpus[1], &Mode::Unmanaged);
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
    let hopper = "gpus: [{model: NVIDIA H100 80GB HBM3, uuids: [GPU-a]}]";
    check(hopper, |machine, state| {
        let layout = "{gpus: [{select: {all: true}, mode: mig, layout: [{profile: 3g.40gb}, {profile: 1g.10gb, count: 2}]}]}";
        let agent = Agent::start(state);
        let before = agent.enter(layout);
        let first = agent.uuids("GPU-a");
        machine.reboot().unwrap();
        assert!(
            !agent.gpus()[0].mig.enabled,
            "a Hopper GPU forgets the mode, too"
        );

        let agent = Agent::start(state);
        assert_eq!(agent.enter(layout), before, "the same devices");
        assert_eq!(agent.uuids("GPU-a"), first);
    });
}
