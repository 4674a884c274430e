//! Many pods at once on a control plane with made-up nodes: as many pods as
//! shares, then pods that come as others go.

use std::process::ExitCode;

use aliquot_cluster::Cluster;
use aliquot_e2e::scenario::{self, scenario};
use aliquot_e2e::stack::Stack;
use anyhow::Result;

#[path = "burst/cycles.rs"]
mod cycles;
#[path = "burst/fill.rs"]
mod fill;
#[path = "burst/record.rs"]
mod record;

fn main() -> ExitCode {
    scenario::main(
        without_webhook,
        vec![
            scenario(
                "two_thousand_pods_at_once_fill_two_thousand_shares",
                fill::exactly,
            ),
            scenario("freed_shares_are_used_at_once", cycles::on_a_full_cluster),
        ],
    )
}

/// The pods here are complete; a webhook would only take time from the rest.
async fn without_webhook() -> Result<Stack> {
    let stack = Stack::on(Box::pin(Cluster::control_plane().extender().start()).await?).await?;
    stack.start_scheduler(&["--log", "warn"]).await?;
    Ok(stack)
}
