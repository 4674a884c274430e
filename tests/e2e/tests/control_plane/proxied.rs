//! A scheduler that reaches the API server through the test's proxy, until its scenario ends.

use aliquot_e2e::proxy::Proxy;
use aliquot_e2e::stack::{Kind, Stack};
use anyhow::Result;

/// Runs `body` with a scheduler behind a proxy, and the plain one afterwards.
pub(crate) async fn with_proxy(
    stack: &Stack,
    body: impl AsyncFnOnce(&Proxy) -> Result<()>,
) -> Result<()> {
    let kubeconfig = stack.kubeconfig(Kind::Scheduler).await?;
    let proxy = Proxy::start(&kubeconfig).await?;
    stack.kill(Kind::Scheduler).await?;
    let outcome = match start(stack, &proxy).await {
        Ok(()) => body(&proxy).await,
        Err(error) => Err(error),
    };
    // Of a failed body one cannot know whether it had killed its scheduler.
    let killed = stack.kill(Kind::Scheduler).await;
    stack.start_scheduler(&[]).await?;
    outcome.and(killed)
}

/// Starts the scheduler behind the proxy.
pub(crate) async fn start(stack: &Stack, proxy: &Proxy) -> Result<()> {
    stack.start_scheduler_with(proxy.kubeconfig(), &[]).await
}

/// Kills the scheduler and starts it again, behind the proxy as before.
pub(crate) async fn restart(stack: &Stack, proxy: &Proxy) -> Result<()> {
    stack.kill(Kind::Scheduler).await?;
    start(stack, proxy).await
}
