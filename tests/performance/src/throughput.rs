//! Pods a second, from created to bound, with the real kube-scheduler: pods with
//! a share and our extender against pods with a plain extended resource that no
//! extender is asked about.
//!
//! Both sides have the same kube-scheduler (opportunistic batching off), the same
//! nodes, pods of the same size, and two events a pod: kube-scheduler's own, and
//! one that our scheduler writes for the one side and this program for the
//! other. They take turns, so that whatever else the machine does hits both; our
//! scheduler runs in its own turns only.
//! Must not: count what this program itself takes.

mod rig;
mod turn;

use std::time::Duration;

use anyhow::Result;

use crate::client::{Figure, round};
use rig::Rig;
use turn::SIDES;

/// Numbers of nodes of 8 GPUs, and pods of a turn: kube-scheduler looks at every
/// node for every pod, so a turn takes about as long in both.
pub(crate) const SIZES: [(usize, usize); 2] = [(1_000, 1_000), (5_000, 400)];
/// Turns of each side, after a shorter one that is not counted.
const TURNS: usize = 5;
/// Pods of that one.
const WARM: usize = 200;

/// What the turns of one side took together.
#[derive(Debug, Default)]
struct Sum {
    pods: usize,
    took: Duration,
    /// CPU time of kube-scheduler, the API server, and our scheduler.
    cpu: [Duration; 3],
}

impl Sum {
    fn rate(&self) -> f64 {
        self.pods() / self.took.as_secs_f64()
    }

    fn cpu_ms(&self, of: usize) -> f64 {
        self.cpu[of].as_secs_f64() * 1000.0 / self.pods()
    }

    fn pods(&self) -> f64 {
        u32::try_from(self.pods).map_or(f64::NAN, f64::from)
    }
}

/// The figures for a cluster of this many nodes, with this many pods a turn.
pub(crate) async fn measure(nodes: usize, pods: usize) -> Result<Vec<Figure>> {
    let rig = Rig::start(nodes).await?;
    let mut sums = SIDES.map(|_| Sum::default());
    for turn in 0..=TURNS {
        let pods = if turn == 0 { WARM } else { pods };
        for (side, sum) in SIDES.into_iter().zip(&mut sums) {
            let took = turn::take(&rig, side, turn, pods).await?;
            if turn > 0 {
                sum.pods += pods;
                sum.took += took.took;
                for (sum, cpu) in sum.cpu.iter_mut().zip(took.cpu) {
                    *sum += cpu;
                }
            }
        }
    }
    rig.stop().await?;
    Ok(figures(nodes, &sums))
}

/// Each figure beside that of pods which ask for one plain resource, and again
/// beside that of pods which ask for as many plain resources as a share has:
/// kube-scheduler matches the name of each one against a pattern, anew for every
/// node, and that is its largest single cost.
fn figures(nodes: usize, [one, three, shares]: &[Sum; 3]) -> Vec<Figure> {
    let sides = [
        ("", one, "one plain extended resource"),
        ("_3", three, "three plain extended resources"),
    ];
    let against = |(suffix, plain, what): (&str, &Sum, &str)| {
        let figure = |name: &str, value: f64, unit, baseline: f64, of: &str| Figure {
            name: format!("{name}_{nodes}{suffix}"),
            value: round(value),
            unit,
            baseline: round(baseline),
            what: format!(
                "{of}, {nodes} nodes of 8 GPUs, {} pods in {TURNS} turns; baseline: the same \
                 kube-scheduler, pods with {what} and no extender",
                shares.pods
            ),
        };
        let cpu = |name: &str, of: usize| {
            let key = format!("pod_cpu_ms_{name}");
            let of_ = format!("CPU time of {name} a pod");
            figure(&key, shares.cpu_ms(of), "ms", plain.cpu_ms(of), &of_)
        };
        [
            figure(
                "pods_bound_per_s",
                shares.rate(),
                "pods/s",
                plain.rate(),
                "pods with a share, from the first one's creation to the last Binding",
            ),
            cpu("kube_scheduler", 0),
            cpu("apiserver", 1),
            cpu("aliquot_scheduler", 2),
        ]
    };
    sides.into_iter().flat_map(against).collect()
}
