//! HAMI-1: what a node offers.

use std::sync::Arc;

use aliquot_e2e::stack::{NodeOptions, Stack};
use anyhow::Result;

use super::world::{other_machine, usual_machine};

/// GPUs of a machine, `deviceSplitCount`, replicas.
const CASES: [(u32, u32, &str); 3] = [(1, 10, "10"), (4, 10, "40"), (4, 3, "12")];

pub(crate) async fn split(stack: Arc<Stack>) -> Result<()> {
    let stack = &*stack;
    for (gpus, split, replicas) in CASES {
        let machine = format!(
            "name: split-{gpus}-{split}\ngpus: [{{count: {gpus}, model: NVIDIA A100-SXM4-80GB}}]\n"
        );
        let options = NodeOptions {
            limited: true,
            split,
            ..NodeOptions::default()
        };
        other_machine(stack, &machine, &options, replicas).await?;
    }
    usual_machine(stack).await
}
