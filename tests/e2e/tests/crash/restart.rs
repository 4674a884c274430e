//! Killed with pods placed: the books come back from the pods' annotations.

use std::sync::Arc;
use std::time::Instant;

use aliquot_e2e::books::Books;
use aliquot_e2e::figures;
use aliquot_e2e::pool::{CARD, Pool, Shape};
use aliquot_e2e::stack::{Kind, Stack};
use anyhow::{Result, ensure};
use futures::future::try_join_all;

use crate::split::split;

const SHAPE: Shape = Shape {
    cards: 2,
    seats: 10,
};
/// MiB of each pod that fills what is left.
const FILL: u64 = 11_000;
/// So many more than fit.
const SPARE: u64 = 4;

/// Issue D1, 5: killed (-9) with 50 pods placed.
pub(crate) async fn fifty_pods(stack: Arc<Stack>) -> Result<()> {
    let nodes: Vec<_> = (0..5).map(|n| (format!("restart-{n}"), SHAPE)).collect();
    let pool = Pool::open(&stack, "restart", &nodes).await?;
    let names: Vec<String> = (0..50).map(|n| format!("p{n}")).collect();
    let created = names.iter().enumerate().map(async |(n, name)| {
        let memory = (1000 + 250 * n).to_string();
        let limits = [("gpu", "1"), ("gpumem", &memory), ("gpucores", "2")];
        pool.create(name, &limits).await
    });
    try_join_all(created).await?;
    try_join_all(names.iter().map(|name| pool.bound(name))).await?;
    let before = stack.books_agree().await?;
    ensure!(before.pods.len() == 50, "{} booked", before.pods.len());

    stack.kill(Kind::Scheduler).await?;
    let start = Instant::now();
    stack.start_scheduler(&[]).await?;
    figures::report("killed to ready", start.elapsed());
    // Ready means complete: the first statement already is.
    let after = stack.stated_books().await?;
    ensure!(after == before, "before {before:?}, after {after:?}");

    let fits = room(&stack, &before).await?;
    let fillers: Vec<String> = (0..fits + SPARE).map(|n| format!("fill{n}")).collect();
    let full = 50 + usize::try_from(fits)?;
    let memory = FILL.to_string();
    let limits = [("gpu", "1"), ("gpumem", memory.as_str()), ("gpucores", "1")];
    try_join_all(fillers.iter().map(|name| pool.create(name, &limits))).await?;
    split(&stack, &pool, full).await?;
    stack.books_agree().await?;

    // Freed while nobody looks, and after: pods refused earlier are woken.
    stack.kill(Kind::Scheduler).await?;
    stack.cluster.delete_pod("restart", "p48").await?;
    stack.start_scheduler(&[]).await?;
    split(&stack, &pool, full).await?;
    stack.books_agree().await?;
    stack.cluster.delete_pod("restart", "p49").await?;
    split(&stack, &pool, full).await?;
    stack.books_agree().await?;
    pool.close().await
}

/// How many fillers the books leave room for.
async fn room(stack: &Stack, books: &Books) -> Result<u64> {
    let capacity = stack.capacity().await?;
    ensure!(capacity.len() == 10, "{} cards", capacity.len());
    let room = capacity.iter().map(|(gpu, total)| {
        let used = books.cards.get(gpu).copied().unwrap_or_default();
        let memory = (CARD - used.memory) / FILL;
        memory.min(total.seats - used.seats)
    });
    Ok(room.sum())
}
