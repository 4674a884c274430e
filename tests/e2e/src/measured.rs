//! Waits for the monitor's figures of shares on the real node.

use std::time::Duration;

use aliquot_cluster::until;
use aliquot_cluster::wait::eventually;
use anyhow::Result;

use crate::http;
use crate::stack::{Kind, Stack};

/// Longest wait for a figure.
const PATIENCE: Duration = Duration::from_mins(1);

/// Waits until a figure of the monitor, of all samples with these labels together, is within a
/// percent of this.
pub async fn becomes(stack: &Stack, name: &str, labels: &[String], expected: f64) -> Result<()> {
    let labels: Vec<&str> = labels.iter().map(String::as_str).collect();
    let what = format!("{name} of {labels:?} to be {expected}");
    eventually(PATIENCE, &what, || async {
        let found = http::metric(stack.address(Kind::Monitor), name, &labels).await?;
        until!(
            (found - expected).abs() <= expected / 100.0,
            "it is {found}"
        );
        Ok(Some(()))
    })
    .await
}
