//! The Binding, interrupted at every point.
//!
//! Each scenario has one GPU with space for pods `a` and `b`, or `b` and `c`, but never for all
//! three, so that a leaked or doubled share shows.

use std::sync::Arc;
use std::time::Duration;

use aliquot_e2e::pods::allocation;
use aliquot_e2e::pool::{Pool, Shape, node_of};
use aliquot_e2e::proxy::{PendingResponse, Proxy, StoppedRequest, Traffic, Trap, in_time};
use aliquot_e2e::stack::{Kind, Stack};
use anyhow::{Result, ensure};
use hyper::StatusCode;
use k8s_openapi::api::core::v1::Pod;
use kube::Api;

use super::proxied::{restart, start, with_proxy};

const ONE: Shape = Shape {
    gpus: 1,
    replicas: 10,
};
/// Less than the audit needs, which would hide a reservation that was left.
const SOON: Duration = Duration::from_secs(15);
const A: [(&str, &str); 2] = [("gpu", "1"), ("gpumem", "60000")];
const B_AND_C: [(&str, &str); 2] = [("gpu", "1"), ("gpumem", "20000")];

/// What a scenario works with: pod `a` was created, and its Binding stopped.
struct Scene<'a> {
    stack: &'a Stack,
    proxy: &'a Proxy,
    pool: &'a Pool<'a>,
    trap: Trap,
}

impl Scene<'_> {
    /// Pod `a` as the API server has it: unbound and without an allocation, or
    /// bound with one.
    async fn is_bound(&self) -> Result<bool> {
        let pods: Api<Pod> = Api::namespaced(self.stack.cluster.admin()?, self.pool.name);
        let pod = pods.get("a").await?;
        let bound = node_of(&pod).is_some();
        ensure!(bound == allocation(&pod).is_ok(), "half a state: {pod:?}");
        Ok(bound)
    }

    async fn forward(&self, stopped: StoppedRequest, expected: u16) -> Result<PendingResponse> {
        let answered = stopped.forward().await?;
        ensure!(answered.status() == expected, "{}", answered.status());
        Ok(answered)
    }

    async fn reservations(&self) -> Result<usize> {
        Ok(self.stack.scheduler_ledger().await?.reserved.len())
    }

    /// The scheduler runs again, and Bindings pass.
    async fn come_back(self) -> Result<()> {
        start(self.stack, self.proxy).await
    }
}

/// Stops the Binding of pod `a`, lets `play` do its worst, and checks that
/// nothing leaked, nothing was given twice and what is freed can be used.
async fn check(
    stack: &Stack,
    name: &'static str,
    play: impl AsyncFn(Scene<'_>, StoppedRequest) -> Result<()>,
) -> Result<()> {
    in_time(name, |name| once(stack, name, &play)).await
}

async fn once(
    stack: &Stack,
    name: &'static str,
    play: impl AsyncFn(Scene<'_>, StoppedRequest) -> Result<()>,
) -> Result<()> {
    stack.ledger_is_empty().await?;
    let pool = Pool::open(stack, name, &[(name.to_owned(), ONE)]).await?;
    let outcome = with_proxy(stack, async |proxy| {
        let mut trap = proxy.trap(&[Traffic::Binding]);
        pool.create("a", &A).await?;
        let stopped = trap.next().await?;
        let scene = Scene {
            stack,
            proxy,
            pool: &pool,
            trap,
        };
        ensure!(!scene.is_bound().await?, "bound before its Binding");
        ensure!(scene.reservations().await? == 1, "nothing is reserved");
        play(scene, stopped).await?;

        pool.bound("a").await?;
        stack.ledger_agrees_within(SOON).await?;
        pool.create("b", &B_AND_C).await?;
        pool.bound("b").await?;
        pool.create("c", &B_AND_C).await?;
        pool.event("c", "Refused: ").await?;
        stack.ledger_agrees_within(SOON).await?;
        stack.cluster.delete_pod(name, "a").await?;
        pool.bound("c").await?;
        let before = stack.ledger_agrees_within(SOON).await?;
        restart(stack, proxy).await?;
        let after = stack.scheduler_ledger().await?;
        ensure!(after == before, "before {before:?}, after {after:?}");
        Ok(())
    })
    .await;
    let closed = pool.close().await;
    outcome.and(closed)
}

/// The Binding never left: nothing may be left of the reservation.
pub(crate) async fn killed_before(stack: Arc<Stack>) -> Result<()> {
    check(&stack, "killed-before", async |scene, stopped| {
        stack.kill(Kind::Scheduler).await?;
        drop(stopped);
        ensure!(!scene.is_bound().await?, "bound without a Binding");
        scene.come_back().await
    })
    .await
}

/// The Binding is still on its way when the scheduler dies, and arrives when the
/// next one has bound the pod.
pub(crate) async fn killed_and_late(stack: Arc<Stack>) -> Result<()> {
    check(&stack, "killed-late", async |mut scene, first| {
        restart(scene.stack, scene.proxy).await?;
        let second = scene.trap.next().await?;
        let answered = scene.forward(second, 201).await?;
        answered.pass()?;
        let before = stack.ledger_agrees_within(SOON).await?;
        drop(scene.forward(first, 409).await?);
        let after = stack.ledger_agrees_within(SOON).await?;
        ensure!(before == after, "before {before:?}, after {after:?}");
        Ok(())
    })
    .await
}

/// The Binding is committed and its sender dead.
pub(crate) async fn killed_after(stack: Arc<Stack>) -> Result<()> {
    check(&stack, "killed-after", async |scene, stopped| {
        let answered = scene.forward(stopped, 201).await?;
        stack.kill(Kind::Scheduler).await?;
        drop(answered);
        ensure!(scene.is_bound().await?, "201, and not bound");
        scene.come_back().await
    })
    .await
}

/// The connection ends after the commit.
pub(crate) async fn lost_answer(stack: Arc<Stack>) -> Result<()> {
    check(&stack, "lost-answer", async |mut scene, stopped| {
        drop(scene.forward(stopped, 201).await?);
        let repeated = scene.trap.next().await?;
        ensure!(scene.is_bound().await?, "201, and not bound");
        scene.forward(repeated, 409).await?.pass()
    })
    .await
}

/// The API server commits and answers with an error.
pub(crate) async fn server_error(stack: Arc<Stack>) -> Result<()> {
    check(&stack, "server-error", async |mut scene, stopped| {
        let answered = scene.forward(stopped, 201).await?;
        answered.replace(StatusCode::INTERNAL_SERVER_ERROR)?;
        let repeated = scene.trap.next().await?;
        scene.forward(repeated, 409).await?.pass()
    })
    .await
}

/// The first POST is given up after 3 s, its retry fails, and then the first is committed: a GET in
/// between would have found the pod unbound.
pub(crate) async fn late_commit(stack: Arc<Stack>) -> Result<()> {
    check(&stack, "late-commit", async |mut scene, first| {
        let second = scene.trap.next().await?;
        ensure!(!scene.is_bound().await?, "already bound");
        second.answer(StatusCode::SERVICE_UNAVAILABLE)?;
        let third = scene.trap.next().await?;
        ensure!(
            scene.reservations().await? == 1,
            "freed on an unknown outcome"
        );
        drop(scene.forward(first, 201).await?);
        scene.forward(third, 409).await?.pass()
    })
    .await
}

/// The repetition is committed, and the first POST arrives after it.
pub(crate) async fn late_duplicate(stack: Arc<Stack>) -> Result<()> {
    check(&stack, "late-duplicate", async |mut scene, first| {
        let second = scene.trap.next().await?;
        scene.forward(second, 201).await?.pass()?;
        drop(scene.forward(first, 409).await?);
        Ok(())
    })
    .await
}
