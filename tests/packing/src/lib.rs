//! The public trace openb, what was published about it, and how policies place its pods: [`runs`] has each policy
//! place them, [`experiment`] checks and measures, [`report`] shows the results.

#![forbid(unsafe_code)]

pub mod aliquot;
pub mod cpu;
pub mod experiment;
pub mod fgd;
pub mod figures;
pub mod hami;
pub mod pins;
pub mod report;
pub mod runs;
pub mod trace;
pub mod workload;

use std::process::Command;

use anyhow::{Context as _, Result, ensure};

use crate::trace::Trace;

/// FGD's published means of ten seeds on the default trace: unallocated percent at 95, 100, 120 and 130 % of
/// load.
pub const FGD: [f64; 4] = [5.09, 4.77, 4.65, 4.61];
/// Traces besides the default one, and what FGD published for them at 100 % of load.
pub const OTHERS: [(&str, f64); 4] = [
    ("cpu200", 5.18),
    ("gpushare40", 6.04),
    ("gpuspec10", 5.34),
    ("multigpu30", 3.64),
];
/// Seeds of the published experiment.
pub const SEEDS: std::ops::RangeInclusive<u64> = 42..=51;
/// The load that it reaches, in percent.
pub const LOAD: u32 = 130;

/// One of the traces in `traces`, by its name: `default`, or one of [`OTHERS`].
pub fn trace(name: &str) -> Result<Trace> {
    let nodes = unpacked("openb_node_list_gpu_node.csv")?;
    let pods = unpacked(&format!("openb_pod_list_{name}.csv"))?;
    Trace::parse(&nodes, &pods)
}

fn unpacked(file: &str) -> Result<String> {
    let packed = format!("{}/traces/{file}.gz", env!("CARGO_MANIFEST_DIR"));
    let unpacking = Command::new("gzip")
        .args(["-dc", &packed])
        .output()
        .context("cannot run gzip")?;
    let error = String::from_utf8_lossy(&unpacking.stderr);
    ensure!(
        unpacking.status.success(),
        "cannot unpack {packed}: {error}"
    );
    Ok(String::from_utf8(unpacking.stdout)?)
}
