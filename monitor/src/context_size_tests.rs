//! Which contexts are measured, and when.

use std::sync::Arc;

use aliquot_core::Mib;
use aliquot_region::host::ComputeUsage;

use super::*;
use crate::managed_containers::ManagedContainers;
use crate::testing::{container, process, process_sample};

const MIB: u64 = 1 << 20;
/// What the limits page has for a context.
const CHARGE: u64 = 420 * MIB;
/// The starting value.
const START: Mib = Mib(420);
const PID: u32 = 7;

/// One process that uses a whole GPU.
fn figures(measured: u64, counted: u64) -> ProcessFigures {
    ProcessFigures {
        measured: measured * MIB,
        counted: counted * MIB,
        contexts: CHARGE,
        managed: 0,
        charge: CHARGE,
    }
}

fn snapshot(figures: ProcessFigures, launches: u64) -> CountersSnapshot {
    CountersSnapshot {
        processes: vec![ProcessUsage {
            slot: 0,
            pid: Some(PID),
            used: vec![figures.counted],
            contexts: vec![figures.contexts],
            managed: vec![figures.managed],
            refused: vec![0],
        }],
        compute: vec![ComputeUsage {
            launches,
            ..ComputeUsage::default()
        }],
        ..CountersSnapshot::default()
    }
}

/// A sample in which these containers have one process each, with these figures.
fn sample(all: &[(&str, ProcessFigures)], launches: u64) -> (NodeSample, Evaluation) {
    let containers = all.iter();
    let containers = containers.map(|(name, _)| container(name, name, "main", &["GPU-a"]));
    let counters = all.iter().map(|(_, figures)| {
        let snapshot = snapshot(*figures, launches);
        Some(Ok((snapshot.clone(), snapshot)))
    });
    let lists = all
        .iter()
        .map(|(_, figures)| Some(vec![(PID, 0, Some(figures.measured))]));
    let sample = NodeSample {
        containers: Arc::new(ManagedContainers {
            all: containers.collect(),
            ..ManagedContainers::default()
        }),
        counters: counters.collect(),
        ..NodeSample::default()
    };
    let evaluation = Evaluation {
        process_lists: lists.collect(),
        ..Evaluation::default()
    };
    (sample, evaluation)
}

/// Meters contexts on one A100.
struct Metered {
    meter: ContextMeter,
    state: tempfile::TempDir,
}

impl Metered {
    fn new() -> Self {
        let state = crate::testing::state_directory();
        let meter = ContextMeter::new(state.path());
        Self { meter, state }
    }

    fn update(&mut self, number: u32, all: &[(&str, ProcessFigures)], launches: u64) {
        self.update_with(number, &sample(all, launches));
    }

    fn update_with(&mut self, number: u32, (sample, evaluation): &(NodeSample, Evaluation)) {
        let gpus = [GpuSample {
            uuid: "GPU-a".to_owned(),
            model: "NVIDIA A100".to_owned(),
            driver_version: "580.82.07".to_owned(),
            ..GpuSample::default()
        }];
        for _ in 0..number {
            let meter = &mut self.meter;
            meter.update(sample, evaluation, &gpus, |_, _| Some(CHARGE));
        }
    }

    /// The size that the agent reads, in MiB.
    fn size(&self) -> u64 {
        let kind = ContextKind::new("NVIDIA A100", "580", None, false);
        let read = std::fs::read(StateDirectory(self.state.path()).context_sizes()).ok();
        let sizes = read.map_or_else(ContextSizes::default, |text| {
            serde_json::from_slice(&text).expect("valid")
        });
        sizes.size(&kind, START).0
    }
}

#[test]
fn measures_only_processes_with_exactly_one_context() {
    let plain = figures(1300, 1420);
    let with_contexts = |contexts| ProcessFigures { contexts, ..plain };
    let managed = ProcessFigures {
        managed: 2 * MIB,
        ..plain
    };
    for (figures, expected) in [
        (plain, Some(300)),
        (figures(1700, 1420), Some(700)),
        (figures(900, 1420), None),
        (with_contexts(2 * CHARGE), None),
        (with_contexts(0), None),
        // Local memory, a module, a heap.
        (with_contexts(CHARGE + 2 * MIB), None),
        (managed, None),
    ] {
        let expected = expected.map(|mib| mib * MIB);
        assert_eq!(figures.context(), expected, "{figures:?}");
    }
}

#[test]
fn measures_context_after_first_launch_settled() {
    let mut metered = Metered::new();
    let (small, grown) = (figures(1200, 1420), figures(1300, 1420));
    metered.update(SETTLED * 2, &[("s0", small)], 0);
    assert_eq!(metered.size(), 420, "it launched nothing");
    metered.update(1, &[("s0", small)], 1);
    metered.update(SETTLED - 1, &[("s0", grown)], 1);
    assert_eq!(metered.size(), 420, "it may still grow");
    metered.update(1, &[("s0", grown)], 1);
    assert_eq!(metered.size(), 300);
    // Code that is loaded later belongs to this program.
    metered.update(SETTLED * 2, &[("s0", figures(1350, 1420))], 1);
    assert_eq!(metered.size(), 300);
}

#[test]
fn learns_larger_context_from_several_containers() {
    let mut metered = Metered::new();
    let large = figures(1500, 1420);
    metered.update(SETTLED, &[("s0", large)], 1);
    assert_eq!(metered.size(), 420, "one container may forge its counters");
    // The sizes stay when the monitor restarts.
    metered.meter = ContextMeter::new(metered.state.path());
    metered.update(SETTLED, &[("s1", large)], 1);
    assert_eq!(metered.size(), 500);
}

#[test]
fn does_not_measure_contexts_where_other_memory_counts() {
    let check = |change: fn(&mut NodeSample, &mut ManagedContainer)| {
        let mut metered = Metered::new();
        let (mut sample, evaluation) = sample(&[("s0", figures(1300, 1420))], 1);
        let mut containers = ManagedContainers::clone(&sample.containers);
        change(&mut sample, &mut containers.all[0]);
        sample.containers = Arc::new(containers);
        metered.update_with(SETTLED * 2, &(sample, evaluation));
        let file = StateDirectory(metered.state.path()).context_sizes();
        assert!(!file.exists());
    };
    check(|_, container| container.limited = false);
    check(|_, container| container.effective.uncontrolled = true);
    check(|_, container| container.effective.oversubscribe = true);
    // Imported memory.
    check(|sample, _| {
        let exporter = process_sample("GPU-a", process(PID, Some("s0"), "s0"), 1420 * MIB);
        sample.processes.push(exporter);
        sample.in_use.insert("GPU-a".to_owned(), 1418 * MIB);
    });
}
