//! What ten viewers of the cluster page cost a scheduler with 5,000 GPUs, where pods go and come: each
//! asks every five seconds for what changed and for what is used on the nodes in its view, and on some
//! others in turn.

use std::time::Duration;

use aliquot_style::figures::Figure;
use anyhow::{Context as _, Result, ensure};
use futures::future::try_join_all;
use serde_json::Value;
use tokio::time::{Instant, interval, sleep_until};

use crate::client::{get, http};
use crate::fake_api::Scale;
use crate::scale::Api;
use crate::{cluster, cpu};

const SCALE: Scale = Scale {
    nodes: 625,
    others: 2_500,
    changes: 10,
};
const VIEWERS: usize = 10;
/// Nodes of 8 GPUs that a window shows.
const IN_VIEW: usize = 6;
/// Nodes that `page.js` asks for besides them, in turn.
const OTHERS: usize = 32;
/// Between the refreshes of `page.js`.
const REFRESH: Duration = Duration::from_secs(5);
const MEASURED: Duration = Duration::from_mins(1);

pub(crate) async fn measure() -> Result<Vec<Figure>> {
    let api = Api::serve(SCALE).await?;
    let scheduler = api.scheduler().await?;
    let mut percent = Vec::new();
    for viewers in [0, VIEWERS] {
        let end = Instant::now() + REFRESH + MEASURED;
        let views = try_join_all((0..viewers).map(|viewer| view(&scheduler.url, viewer, end)));
        let measured = async {
            // Without the first answers, which have everything.
            sleep_until(end - MEASURED).await;
            let before = cpu::spent(scheduler.pid)?;
            sleep_until(end).await;
            anyhow::Ok(cpu::spent(scheduler.pid)?.saturating_sub(before))
        };
        let (_, spent) = tokio::try_join!(views, measured)?;
        percent.push(100.0 * spent.as_secs_f64() / MEASURED.as_secs_f64());
    }
    Ok(vec![Figure {
        name: "page_percent_of_core".to_owned(),
        value: percent[1] - percent[0],
        unit: "%",
        baseline: percent[0],
        what: format!(
            "of one core that the scheduler uses more while {VIEWERS} viewers look at different nodes of the \
             cluster page, {} GPUs, {} pods a second go or come; baseline: without viewers",
            SCALE.nodes * 8,
            SCALE.changes
        ),
    }])
}

/// Does what the page does until then.
async fn view(url: &str, viewer: usize, end: Instant) -> Result<()> {
    let client = http();
    let nodes = (0..IN_VIEW).map(|at| cluster::name((viewer * IN_VIEW + at) % SCALE.nodes));
    let nodes: Vec<String> = nodes.collect();
    let mut edition = String::new();
    let mut turn = 0;
    let mut refresh = interval(REFRESH);
    while refresh.tick().await < end {
        let state = get(&client, &format!("{url}/page/state{edition}")).await?;
        let state: Value = serde_json::from_slice(&state)?;
        let known = state["edition"].as_str().context("an edition")?;
        let changed = state["nodes"].as_array().map_or(0, Vec::len);
        ensure!(
            edition.is_empty() == (changed == SCALE.nodes),
            "{changed} nodes changed"
        );
        edition = format!("?since={known}");
        let others = (turn..turn + OTHERS).map(|at| cluster::name(at % SCALE.nodes));
        turn += OTHERS;
        let asked: Vec<String> = nodes.iter().cloned().chain(others).collect();
        let usage = format!("{url}/page/usage?nodes={}", asked.join(","));
        let used = get(&client, &usage).await?;
        let used: Value = serde_json::from_slice(&used)?;
        for node in &nodes {
            ensure!(used[node]["gpus"].is_array(), "{node}: {}", used[node]);
        }
    }
    Ok(())
}
