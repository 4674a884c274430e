//! Traces whose pods name GPU models: those of openb with more or fewer pods pinned, drawn with a seed.

use anyhow::Result;
use fastrand::Rng;

use crate::trace::{Models, PodRow, Trace};

/// How the models of a pod that becomes pinned are drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pins {
    /// One model, as likely as it has GPUs.
    Capacity,
    /// One model, each as likely.
    Uniform,
    /// One to three models, each as likely as it has GPUs.
    Several,
    /// One model: whole GPUs rather on nodes with many GPUs, parts rather on nodes with few.
    Size,
    /// The models of a pinned pod of `gpuspec10`.
    Like,
    /// Not drawn: copies of the pods that are pinned already take the place of others.
    Copies,
}

impl Pins {
    /// All of them.
    pub const ALL: [Self; 6] = [
        Self::Capacity,
        Self::Uniform,
        Self::Several,
        Self::Size,
        Self::Like,
        Self::Copies,
    ];

    /// As it is written in the names of figures.
    pub fn name(self) -> &'static str {
        match self {
            Self::Capacity => "capacity",
            Self::Uniform => "uniform",
            Self::Several => "several",
            Self::Size => "size",
            Self::Like => "like",
            Self::Copies => "copies",
        }
    }
}

/// The percentages of GPU pods with pins that are tried.
pub const PERCENTAGES: [usize; 5] = [10, 20, 25, 33, 40];
/// The traces that get them.
pub const BASES: [&str; 5] = ["default", "cpu200", "gpushare40", "gpuspec10", "multigpu30"];

/// A trace with pins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mix {
    /// The trace.
    pub base: &'static str,
    /// How models are drawn.
    pub pins: Pins,
    /// Of its GPU pods.
    pub percent: usize,
}

impl Mix {
    /// Those with this percentage: every way to draw models, on one trace or another.
    pub fn all(percent: usize) -> Vec<Self> {
        let base = |way: usize, pins| match pins {
            Pins::Copies => "gpuspec10",
            _ => BASES[(way + percent / 7) % BASES.len()],
        };
        let mix = |(way, pins)| Self {
            base: base(way, pins),
            pins,
            percent,
        };
        Pins::ALL.into_iter().enumerate().map(mix).collect()
    }

    /// The trace itself.
    pub fn trace(self, seed: u64) -> Result<Trace> {
        let (base, natural) = (crate::trace(self.base)?, crate::trace("gpuspec10")?);
        Ok(pinned(&base, &natural, self.pins, self.percent, seed))
    }
}

/// A set of models, and how likely it is drawn.
type Weighted = (Models, u32);

/// `trace` with this percentage of its GPU pods pinned. `natural` is the trace with pins that
/// [`Pins::Like`] draws from.
pub fn pinned(trace: &Trace, natural: &Trace, pins: Pins, percent: usize, seed: u64) -> Trace {
    let mut trace = trace.clone();
    let mut rng = Rng::with_seed(seed);
    let of = |trace: &Trace, pinned: bool| -> Vec<usize> {
        let pods = trace.pods.iter().enumerate();
        let pods = pods.filter(|(_, pod)| is_gpu(pod) && is_pinned(pod) == pinned);
        pods.map(|(at, _)| at).collect()
    };
    let (mut own, mut others) = (of(&trace, true), of(&trace, false));
    rng.shuffle(&mut own);
    rng.shuffle(&mut others);
    let wanted = (own.len() + others.len()) * percent / 100;
    if pins == Pins::Copies {
        copy(&mut trace, &own, &others, wanted);
        return trace;
    }
    for &surplus in own.iter().skip(wanted) {
        trace.pods[surplus].shape.models = Models::ANY;
    }
    let weights = Weights::of(&trace, natural);
    for &at in others.iter().take(wanted.saturating_sub(own.len())) {
        trace.pods[at].shape.models = weights.draw(pins, &trace.pods[at], &mut rng);
    }
    trace
}

fn is_gpu(pod: &PodRow) -> bool {
    pod.shape.gpus > 0
}

fn is_pinned(pod: &PodRow) -> bool {
    pod.shape.models != Models::ANY
}

/// Replaces pods so that `wanted` are copies of those in `own`, and the rest of `others`.
fn copy(trace: &mut Trace, own: &[usize], others: &[usize], wanted: usize) {
    let all = own.len() + others.len();
    let before = trace.pods.clone();
    trace.pods.retain(|pod| !is_gpu(pod));
    let copies = own.iter().cycle().take(wanted);
    let rest = others.iter().cycle().take(all - wanted);
    for (number, &at) in copies.chain(rest).enumerate() {
        let mut pod = before[at].clone();
        pod.name = format!("{}-{number}", pod.name);
        trace.pods.push(pod);
    }
}

/// How likely each model is.
struct Weights {
    /// Model, number of GPUs, GPUs of its largest node.
    models: Vec<(Models, u32, u32)>,
    natural: Vec<Weighted>,
}

impl Weights {
    fn of(trace: &Trace, natural: &Trace) -> Self {
        let mut models: Vec<(Models, u32, u32)> = Vec::new();
        for node in &trace.nodes {
            match models.iter_mut().find(|(model, ..)| *model == node.model) {
                Some((_, all, most)) => (*all, *most) = (*all + node.gpus, node.gpus.max(*most)),
                None => models.push((node.model, node.gpus, node.gpus)),
            }
        }
        let pinned = natural.pods.iter().filter(|pod| is_pinned(pod));
        Self {
            models,
            natural: pinned.map(|pod| (pod.shape.models, 1)).collect(),
        }
    }

    fn draw(&self, pins: Pins, pod: &PodRow, rng: &mut Rng) -> Models {
        let by = |weight: &dyn Fn(u32, u32) -> u32| -> Vec<Weighted> {
            let models = self.models.iter();
            models
                .map(|&(model, all, most)| (model, weight(all, most)))
                .collect()
        };
        match pins {
            Pins::Capacity => one(&by(&|all, _| all), rng),
            Pins::Uniform => one(&by(&|_, _| 1), rng),
            Pins::Several => {
                let each = by(&|all, _| all);
                (0..rng.u32(0..3)).fold(one(&each, rng), |set, _| set.or(one(&each, rng)))
            }
            Pins::Size if pod.shape.is_fraction() => one(&by(&|all, most| 8 * all / most), rng),
            Pins::Size => one(&by(&|all, most| all * most), rng),
            Pins::Like | Pins::Copies => one(&self.natural, rng),
        }
    }
}

fn one(weighted: &[Weighted], rng: &mut Rng) -> Models {
    let all: u32 = weighted.iter().map(|(_, weight)| weight).sum();
    let mut drawn = rng.u32(0..all.max(1));
    let chosen = weighted.iter().find(|(_, weight)| {
        let here = drawn < *weight;
        drawn = drawn.saturating_sub(*weight);
        here
    });
    chosen.map_or(Models::ANY, |(model, _)| *model)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::figures;

    /// With one node and one pod of ten a debug build takes seconds.
    #[test]
    fn strands_less_than_fgd_with_pinned_models_in_a_small_cluster() {
        for (pins, percent) in [(Pins::Copies, 33), (Pins::Uniform, 20)] {
            let mix = Mix {
                base: "gpuspec10",
                pins,
                percent,
            };
            let mut trace = mix.trace(1).expect("the files of openb");
            trace.nodes = trace.nodes.into_iter().step_by(10).collect();
            trace.pods = trace.pods.into_iter().step_by(10).collect();
            let above = figures::above_fgd(&trace, &[42, 43]).expect("no pod is misplaced");
            assert!(above <= 0.0, "{mix:?}: {above:.3}");
        }
    }
}
