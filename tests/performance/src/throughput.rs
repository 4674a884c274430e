//! Pods bound per second with the real kube-scheduler: pods with a share and our extender, against
//! pods with a plain extended resource and no extender.
//!
//! Shares are requested in both forms, by resources and by annotation.
//! All workloads have the same kube-scheduler (opportunistic batching off), the same nodes, pods of
//! the same size, and two events for each pod: kube-scheduler's own, and one that our scheduler
//! writes for shares and this program for the others. They run alternately, so that other load on
//! the machine affects all; our scheduler runs only for its own pods.

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
    pods: u32,
    elapsed: Duration,
}

impl Totals {
    fn rate(&self) -> f64 {
        f64::from(self.pods) / self.elapsed.as_secs_f64()
    }
}

/// The figures for a cluster of this many nodes, with this many pods in each run.
pub(crate) async fn measure(nodes: usize, pods: usize) -> Result<Vec<Figure>> {
    let cluster = BenchCluster::start(nodes).await?;
    let mut sums = WORKLOADS.map(|_| Totals::default());
    for run in 0..=RUNS {
        let pods = if run == 0 { WARM_UP } else { pods };
        for (workload, sum) in WORKLOADS.into_iter().zip(&mut sums) {
            let elapsed = run::run(&cluster, workload, run, pods).await?;
            if run > 0 {
                sum.pods += u32::try_from(pods)?;
                sum.elapsed += elapsed;
            }
        }
    }
    cluster.stop().await?;
    let [plain, shares, annotations] = sums;
    let forms = [
        ("", shares, "a share as resources"),
        ("annotation_", annotations, "a share as an annotation"),
    ];
    let figure = |(prefix, form, pods): (&str, Totals, &str)| Figure {
        name: format!("{prefix}pods_bound_per_s_{nodes}"),
        value: form.rate(),
        unit: "pods/s",
        baseline: plain.rate(),
        what: format!(
            "pods with {pods}, from the first one's creation to the last Binding, {nodes} nodes of 8 GPUs, \
             {} pods in {RUNS} runs; baseline: the same kube-scheduler, pods with one plain extended \
             resource and no extender",
            form.pods
        ),
    };
    Ok(forms.into_iter().map(figure).collect())
}
