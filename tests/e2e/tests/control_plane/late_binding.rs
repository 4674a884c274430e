//! A Binding that is still on its way when its scheduler dies.

use std::sync::Arc;

use aliquot_e2e::pool::{Pool, Shape};
use aliquot_e2e::proxy::Traffic;
use aliquot_e2e::stack::Stack;
use anyhow::{Result, ensure};

use crate::proxied::{restart, with_proxy};

/// It arrives when the next scheduler has bound the pod: the API server refuses it.
pub(crate) async fn of_a_killed_scheduler(stack: Arc<Stack>) -> Result<()> {
    stack.ledger_is_empty().await?;
    let nodes = [("late-1".to_owned(), Shape::of_gpus(1))];
    let pool = Pool::open(&stack, "late", &nodes).await?;
    with_proxy(&stack, async |proxy| {
        let mut trap = proxy.trap(Traffic::Binding);
        pool.create("a", &[("gpu", "1"), ("gpumem", "60000")])
            .await?;
        let first = trap.next().await?;
        restart(&stack, proxy).await?;
        let second = trap.next().await?.forward().await?;
        ensure!(second.status() == 201, "{}", second.status());
        // On a slow machine its sender no longer waits: it asks again, and finds the pod bound.
        let _unheard = second.pass();
        drop(trap);
        pool.bound("a").await?;
        let before = stack.ledger_agrees().await?;
        let first = first.forward().await?;
        ensure!(first.status() == 409, "{}", first.status());
        let after = stack.ledger_agrees().await?;
        ensure!(before == after, "before {before:?}, after {after:?}");
        Ok(())
    })
    .await?;
    pool.close().await
}
