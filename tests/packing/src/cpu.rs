//! The default trace with more or fewer pods that ask for no GPU, drawn with a seed.

use anyhow::{Result, ensure};
use fastrand::Rng;

use crate::trace::Trace;

/// How many of a thousand pods ask for no GPU, as in the names of openb's traces.
pub const PARTS: [usize; 7] = [0, 72, 150, 200, 235, 250, 300];

/// The trace where so many of a thousand pods ask for no GPU.
pub fn mix(part: usize, seed: u64) -> Result<Trace> {
    ensure!(part < 1000, "cpu pods: {part}; expected: less than 1000");
    let mut trace = crate::trace("default")?;
    let all = std::mem::take(&mut trace.pods).into_iter();
    let (gpu, others): (Vec<_>, Vec<_>) = all.partition(|pod| pod.shape.gpus > 0);
    let count = gpu.len() * part / (1000 - part);
    trace.pods = gpu;
    let mut rng = Rng::with_seed(seed);
    for number in 0..count {
        let mut pod = others[rng.usize(..others.len())].clone();
        pod.name = format!("{}-{number}", pod.name);
        trace.pods.push(pod);
    }
    Ok(trace)
}
