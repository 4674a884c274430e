//! The response to a Binding and the pod's deletion, in every order.
//!
//! The GPU of each scenario has space for one pod: another one fits only if nothing leaked.

use std::sync::Arc;
use std::time::{Duration, Instant};

use aliquot_cluster::until;
use aliquot_cluster::wait::eventually;
use aliquot_e2e::figures;
use aliquot_e2e::pool::{GPU_MEMORY, Pool, Shape};
use aliquot_e2e::proxy::{Proxy, StoppedRequest, Traffic, in_time};
use aliquot_e2e::stack::Stack;
use anyhow::{Result, ensure};
use hyper::StatusCode;

use super::proxied::with_proxy;

const ONE: Shape = Shape {
    gpus: 1,
    replicas: 10,
};
/// Less than the audit needs, which would hide an allocation that was left.
const PATIENCE: Duration = Duration::from_secs(15);
/// The audit checks every 10 s for allocations that are overdue for 10 s, and kube-scheduler pauses
/// up to 10 s.
const AUDITED: Duration = Duration::from_mins(1);

async fn check(
    stack: &Stack,
    name: &'static str,
    play: impl AsyncFn(&Proxy, &Pool<'_>) -> Result<()>,
) -> Result<()> {
    in_time(name, |name| once(stack, name, &play)).await
}

async fn once(
    stack: &Stack,
    name: &'static str,
    play: impl AsyncFn(&Proxy, &Pool<'_>) -> Result<()>,
) -> Result<()> {
    stack.ledger_is_empty().await?;
    let pool = Pool::open(stack, name, &[(name.to_owned(), ONE)]).await?;
    let outcome = with_proxy(stack, async |proxy| {
        play(proxy, &pool).await?;
        let start = Instant::now();
        create(&pool, "b").await?;
        pool.bound("b").await?;
        figures::report("deleted to used again", start.elapsed());
        ensure!(start.elapsed() < AUDITED, "after {:?}", start.elapsed());
        let ledger = stack.ledger_agrees_within(PATIENCE).await?;
        ensure!(ledger.pods.len() == 1, "{ledger:?}");
        Ok(())
    })
    .await;
    let closed = pool.close().await;
    outcome.and(closed)
}

async fn create(pool: &Pool<'_>, name: &str) -> Result<()> {
    let whole = GPU_MEMORY.to_string();
    let limits = [("gpu", "1"), ("gpumem", whole.as_str())];
    pool.create(name, &limits).await.map(drop)
}

/// Waits until the scheduler ledger this many pods, so many of them not yet seen.
async fn wait_ledger(stack: &Stack, pods: usize, reserved: usize) -> Result<()> {
    let what = format!("{pods} allocated pods, {reserved} of them unconfirmed");
    eventually(PATIENCE, &what, || async {
        let ledger = stack.scheduler_ledger().await?;
        let as_expected = ledger.pods.len() == pods && ledger.reserved.len() == reserved;
        until!(as_expected, "{ledger:?}");
        Ok(Some(()))
    })
    .await
}

/// The watch shows the pod bound and gone while the 201 is on its way.
pub(crate) async fn seen_before_the_answer(stack: Arc<Stack>) -> Result<()> {
    check(&stack, "seen-before", async |proxy, pool| {
        let mut trap = proxy.trap(&[Traffic::Binding]);
        create(pool, "a").await?;
        let answered = trap.next().await?.forward().await?;
        wait_ledger(&stack, 1, 0).await?;
        stack.cluster.delete_pod(pool.name, "a").await?;
        wait_ledger(&stack, 0, 0).await?;
        answered.pass()
    })
    .await
}

/// Pod `a` is bound and deleted while the scheduler sees no pods; returns the watch that it
/// requests meanwhile.
async fn deleted_unseen(stack: &Stack, proxy: &Proxy, pool: &Pool<'_>) -> Result<StoppedRequest> {
    let mut trap = proxy.trap(&[Traffic::Watch("pods")]);
    proxy.break_watches();
    let stopped = trap.next().await?;
    create(pool, "a").await?;
    pool.bound("a").await?;
    // The 201 is processed when kube-scheduler has its answer.
    let calls = || async {
        let address = stack.address(aliquot_e2e::stack::Kind::Scheduler);
        let labels = ["verb=\"bind\"", "outcome=\"ok\""];
        let name = "aliquot_scheduler_calls_total";
        let calls = aliquot_e2e::http::metric(address, name, &labels).await?;
        Ok((calls >= 1.0).then_some(()))
    };
    eventually(PATIENCE, "the bind call's end", calls).await?;
    stack.cluster.delete_pod(pool.name, "a").await?;
    wait_ledger(stack, 1, 1).await?;
    Ok(stopped)
}

/// The watch resumes where it was broken: it shows the pod bound, then gone.
pub(crate) async fn seen_by_the_resumed_watch(stack: Arc<Stack>) -> Result<()> {
    check(&stack, "seen-resumed", async |proxy, pool| {
        let stopped = deleted_unseen(&stack, proxy, pool).await?;
        stopped.answer(StatusCode::SERVICE_UNAVAILABLE)?;
        wait_ledger(&stack, 0, 0).await
    })
    .await
}

/// The resource version is expired: the next list does not have the pod, and no event ever shows
/// it.
pub(crate) async fn seen_by_a_list_only(stack: Arc<Stack>) -> Result<()> {
    check(&stack, "seen-listed", async |proxy, pool| {
        let stopped = deleted_unseen(&stack, proxy, pool).await?;
        let mut lists = proxy.trap(&[Traffic::List("pods")]);
        stopped.answer_expired()?;
        let list = lists.next().await?;
        list.forward().await?.pass()
    })
    .await
}
