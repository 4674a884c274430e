//! The public trace openb, and what was published about it.

#![forbid(unsafe_code)]
#![allow(clippy::print_stderr, reason = "its absence is reported")]

pub mod figures;
pub mod pins;

use std::path::PathBuf;

use aliquot_cli::simulate::runs::Policy;
use aliquot_cli::simulate::trace::{Trace, TraceError};

/// Published means of ten seeds on the default trace: unallocated percent at 95, 100, 120 and 130 % of
/// load.
pub const PUBLISHED: [(Policy, [f64; 4]); 6] = [
    (Policy::Random, [14.28, 13.70, 12.72, 12.53]),
    (Policy::Dotprod, [9.42, 9.38, 9.23, 9.15]),
    (Policy::Clustering, [8.39, 8.35, 8.20, 8.12]),
    (Policy::Packing, [8.26, 8.22, 8.08, 8.00]),
    (Policy::Bestfit, [7.18, 7.14, 7.00, 6.92]),
    (Policy::Fgd, FGD),
];
/// Those of FGD.
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

/// The folder of the traces.
#[derive(Clone, Debug)]
pub struct Openb(PathBuf);

impl Openb {
    /// The folder that `OPENB_DIR` names; `None`, with a message, where it is absent.
    pub fn find() -> Option<Self> {
        let usual = || concat!(env!("CARGO_MANIFEST_DIR"), "/../../../shared/data/openb").into();
        let folder: PathBuf = std::env::var_os("OPENB_DIR").map_or_else(usual, PathBuf::from);
        if folder.is_dir() {
            return Some(Self(folder));
        }
        eprintln!(
            "nothing is simulated: directory {} of OPENB_DIR not found",
            folder.display()
        );
        None
    }

    /// One of the traces, by its name.
    pub fn trace(&self, name: &str) -> Result<Trace, TraceError> {
        let nodes = self.0.join("openb_node_list_gpu_node.csv");
        Trace::read(&nodes, &self.0.join(format!("openb_pod_list_{name}.csv")))
    }
}
