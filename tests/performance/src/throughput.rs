//! Pods bound per second with the real kube-scheduler: pods with a share and our extender, against
//! pods with a plain extended resource and no extender.
//!
//! Shares are requested in both forms, by resources and by annotation.
//! All workloads have the same kube-scheduler (opportunistic batching off), the same nodes, pods of
//! the same size, and two events for each pod: kube-scheduler's own, and one that our scheduler
//! writes for shares and this program for the others. They run alternately, so that other load on
//! the machine affects all; our scheduler runs only for its own pods. The CPU time of this program
//! is not counted.

mod cluster;
pub(crate) mod node_added;
mod run;

use std::time::Duration;

use aliquot_style::figures::Figure;
use anyhow::Result;

use cluster::BenchCluster;
use run::WORKLOADS;

/// Numbers of nodes with 8 GPUs, and pods of a run: kube-scheduler evaluates every node for every
/// pod, so a run takes about as long in both.
pub(crate) const SIZES: [(usize, usize); 2] = [(1_000, 1_000), (5_000, 400)];
/// Runs of each workload, after a shorter one that is not counted.
const RUNS: usize = 5;
/// Pods of the uncounted run.
const WARM_UP: usize = 200;

/// The totals of all runs of one workload.
#[derive(Debug, Default)]
struct Totals {
    pods: usize,
    elapsed: Duration,
    /// CPU time of kube-scheduler, the API server, and our scheduler.
    cpu: [Duration; 3],
}

impl Totals {
    fn rate(&self) -> f64 {
        self.pods() / self.elapsed.as_secs_f64()
    }

    fn cpu_ms(&self, of: usize) -> f64 {
        self.cpu[of].as_secs_f64() * 1000.0 / self.pods()
    }

    fn pods(&self) -> f64 {
        u32::try_from(self.pods).map_or(f64::NAN, f64::from)
    }
}

/// The figures for a cluster of this many nodes, with this many pods in each run.
pub(crate) async fn measure(nodes: usize, pods: usize) -> Result<Vec<Figure>> {
    let cluster = BenchCluster::start(nodes).await?;
    let mut sums = WORKLOADS.map(|_| Totals::default());
    for run in 0..=RUNS {
        let pods = if run == 0 { WARM_UP } else { pods };
        for (workload, sum) in WORKLOADS.into_iter().zip(&mut sums) {
            let result = run::run(&cluster, workload, run, pods).await?;
            if run > 0 {
                sum.pods += pods;
                sum.elapsed += result.elapsed;
                for (sum, cpu) in sum.cpu.iter_mut().zip(result.cpu) {
                    *sum += cpu;
                }
            }
        }
    }
    cluster.stop().await?;
    Ok(figures(nodes, &sums))
}

/// Each figure of both forms of a share with two baselines: pods that request one plain resource,
/// and pods that request as many plain resources as a share has. kube-scheduler matches the name of
/// each one against a pattern for every node, and that is its largest single cost.
fn figures(nodes: usize, [one, three, shares, annotations]: &[Totals; 4]) -> Vec<Figure> {
    let forms = [
        ("", shares, "a share as resources"),
        ("annotation_", annotations, "a share as an annotation"),
    ];
    let baselines = [
        ("", one, "one plain extended resource"),
        ("_3", three, "three plain extended resources"),
    ];
    let pairs = forms
        .into_iter()
        .flat_map(|form| baselines.map(|plain| (form, plain)));
    let against = |((prefix, form, pods), (suffix, plain, what)): (Form<'_>, Form<'_>)| {
        let figure = |name: &str, value: f64, unit, baseline: f64, of: &str| Figure {
            name: format!("{prefix}{name}_{nodes}{suffix}"),
            value,
            unit,
            baseline,
            what: format!(
                "{of}, {nodes} nodes of 8 GPUs, {} pods in {RUNS} runs; baseline: the same \
                 kube-scheduler, pods with {what} and no extender",
                form.pods
            ),
        };
        let cpu = |name: &str, of: usize| {
            let key = format!("pod_cpu_ms_{name}");
            let of_ = format!("CPU time of {name} a pod with {pods}");
            figure(&key, form.cpu_ms(of), "ms", plain.cpu_ms(of), &of_)
        };
        [
            figure(
                "pods_bound_per_s",
                form.rate(),
                "pods/s",
                plain.rate(),
                &format!("pods with {pods}, from the first one's creation to the last Binding"),
            ),
            cpu("kube_scheduler", 0),
            cpu("apiserver", 1),
            cpu("aliquot_scheduler", 2),
        ]
    };
    pairs.flat_map(against).collect()
}

/// A part of the figures' names, what was measured, and a part of their description.
type Form<'a> = (&'static str, &'a Totals, &'static str);
