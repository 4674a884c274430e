//! The experiment on traces small enough to follow by hand.

use crate::aliquot::{Aliquot, CpuOnly, GpuChoice, Manner, TypicalSource};
use crate::experiment::{self, Choice, Placer, Run};
use crate::fgd::{Fgd, Typical};
use crate::trace::{Models, NodeRow, PodRow, Shape, Trace};
use crate::workload::{Node, Pod, Workload};

fn shape(cpu: u32, gpus: u32, milli: u32) -> Shape {
    Shape {
        cpu,
        milli,
        gpus,
        models: Models::ANY,
    }
}

/// Nodes of two GPUs, and pods of these shapes.
fn trace(nodes: u32, shapes: &[Shape]) -> Trace {
    let row = |n| NodeRow {
        name: format!("n{n}"),
        cpu: 10_000,
        memory: 1000,
        gpus: 2,
        model: Models::ANY,
    };
    let pod = |(at, shape): (usize, &Shape)| PodRow {
        name: format!("p{at:03}"),
        memory: 1,
        shape: *shape,
    };
    Trace {
        nodes: (0..nodes).map(row).collect(),
        pods: shapes.iter().enumerate().map(pod).collect(),
        models: vec![],
    }
}

#[test]
fn typical_pods_cover_95_percent_and_are_weighted() {
    let mut shapes = vec![shape(1, 1, 500); 60];
    shapes.extend(vec![shape(1, 0, 0); 36]);
    shapes.extend([1, 2, 3, 4].map(|cpu| shape(cpu, 1, 1000)));
    let typical = Typical::of(&trace(1, &shapes).pods);
    assert_eq!(typical.0.len(), 2);
    let node = Workload::of(&trace(1, &shapes), 1, 1).nodes.remove(0);
    // 300 are lost to the half-GPU pods (62.5 %), all to those without a GPU.
    let f = typical.fragmentation(&node, 1000, &[300, 700]);
    assert!((f - (0.625 * 300.0 + 0.375 * 1000.0)).abs() < 1e-9, "{f}");
    let f = typical.fragmentation(&node, 0, &[300, 700]);
    assert!((f - 1000.0).abs() < 1e-9, "without CPU all is lost: {f}");
}

/// Puts everything on the first GPU of the first node.
struct Careless;

impl Placer for Careless {
    fn choose(&mut self, _: &[Node], _: &Pod) -> Option<Choice> {
        Some(Choice {
            node: 0,
            gpus: vec![0],
        })
    }
}

fn run(trace: &Trace, placer: &mut dyn Placer) -> Result<Run, experiment::Misplaced> {
    experiment::run(trace, Workload::of(trace, 1, 100), placer, 100)
}

#[test]
fn detects_policy_that_overcommits_gpu() {
    let error = run(&trace(1, &[shape(1, 1, 600); 3]), &mut Careless).unwrap_err();
    assert_eq!(error.pod, 1);
    assert!(error.to_string().contains("1 x 600 of a GPU"), "{error}");
}

#[test]
fn counts_arriving_pods_and_drops_those_without_fit() {
    // Four GPUs; four pods of half a GPU and one of two whole ones.
    let mut shapes = vec![shape(1, 1, 500); 4];
    shapes.push(shape(1, 2, 1000));
    let trace = trace(2, &shapes);
    let typical = Typical::of(&trace.pods);
    let run = run(&trace, &mut Fgd::new(typical)).unwrap();
    assert_eq!((run.offered, run.dropped), (5, 0));
    assert_eq!(run.allocated[100], Some(100.0));
}

#[test]
fn dra_allocator_takes_first_or_fullest_gpu_that_fits() {
    // In the order of their CPU.
    let shapes = [
        shape(1, 1, 300),
        shape(2, 1, 800),
        shape(3, 1, 100),
        shape(4, 1, 300),
    ];
    let trace = trace(1, &shapes);
    let mut workload = Workload::of(&trace, 1, 75);
    workload.pods.sort_by_key(|pod| pod.shape.cpu);
    let check = |gpus, expected: [usize; 4]| {
        let manner = Manner {
            cpu_only: CpuOnly::Ranked,
            typical: TypicalSource::Trace,
            gpus,
        };
        let mut placer = Aliquot::new(&trace, &workload.nodes, manner, 1);
        let choose = |pod: &Pod| {
            placer
                .choose(&workload.nodes, pod)
                .map(|choice| choice.gpus)
        };
        let found: Vec<_> = workload.pods.iter().map(choose).collect();
        assert_eq!(found, expected.map(|gpu| Some(vec![gpu])), "{gpus:?}");
    };
    check(GpuChoice::FirstFit, [0, 1, 0, 0]);
    check(GpuChoice::FullestFirst, [0, 1, 1, 0]);
}
