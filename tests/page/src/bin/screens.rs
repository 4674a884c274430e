//! Draws the pictures of docs/screens (`make screens`): the cluster page, and what commands print, which
//! tests/chart writes there as text.

#![forbid(unsafe_code)]

use std::path::{Path, PathBuf};

use aliquot_page::browser::Browser;
use aliquot_page::cluster::{ledger, serve};
use anyhow::{Context as _, Result};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

/// The last hour of a scheduler that started now: the newest point is real, those before rise to it.
const HOUR: &str = "{ const send = fetch; window.fetch = async (url, options) => { \
    const answer = await send(url, options); if (!url.startsWith('state')) return answer; \
    const state = await answer.json(); const now = state.rest?.hour.at(-1); \
    if (now) state.rest.hour = Array.from({length: 120}, (_, at) => { \
        const part = (of, low) => ({memory: of.memory * (low + at / 600 + Math.sin(at / 9) / 50), \
            cores: of.cores * (low + at / 500 + Math.sin(at / 5) / 40)}); \
        return {used: part(now.allocated, 0.3), allocated: part(now.allocated, 0.75), \
            requested: part(now.requested, 0.78), waiting: at < 50 ? 0 : now.waiting}; }); \
    return new Response(JSON.stringify(state)); }; }";
/// Every GPU that a monitor answers for shows its temperature.
const MEASURED: &str =
    "[...document.querySelectorAll('.gpu .heat')].some(e => e.textContent !== '')";
/// Filters by the model of two nodes.
const TWO_NODES: &str = "{ const field = document.querySelector('[name=only]'); field.value = 'A100'; \
     field.dispatchEvent(new Event('input', {bubbles: true})); }";

fn screens(name: &str) -> PathBuf {
    let top = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    top.join("docs/screens").join(name)
}

async fn draw(browser: &mut Browser, name: &str) -> Result<()> {
    let picture = browser.picture().await?;
    std::fs::write(screens(name), picture).with_context(|| format!("cannot write {name}"))
}

#[tokio::main]
async fn main() -> Result<()> {
    cluster_page().await?;
    terminals().await
}

/// A browser on the page of so many nodes, once their use is shown.
async fn opened(nodes: usize, waiting: usize) -> Result<(Browser, CancellationToken)> {
    let (address, stop) = serve(ledger(nodes, 5, waiting)?).await?;
    let mut browser = Browser::start(1400, 1300).await?;
    let script = json!({"source": HOUR});
    browser
        .call("Page.addScriptToEvaluateOnNewDocument", script)
        .await?;
    browser.open(&format!("http://{address}/page/")).await?;
    browser
        .until("document.body?.dataset.ready === 'true'")
        .await?;
    browser
        .until("!document.querySelector('#totals').textContent.includes('not measured')")
        .await?;
    Ok((browser, stop))
}

async fn cluster_page() -> Result<()> {
    for (nodes, name) in [(1, "cluster-page-one.png"), (125, "cluster-page-many.png")] {
        let (mut browser, stop) = opened(nodes, nodes).await?;
        if nodes > 1 {
            browser
                .value("document.querySelectorAll('.line')[2].click()")
                .await?;
            browser.until(MEASURED).await?;
        }
        draw(&mut browser, name).await?;
        browser.stop().await?;
        stop.cancel();
    }
    let (mut browser, stop) = opened(6, 2).await?;
    browser.until(MEASURED).await?;
    draw(&mut browser, "cluster-page.png").await?;
    // README's picture: two nodes and nothing cut off, sharp on a dense screen.
    browser.value(TWO_NODES).await?;
    let size = json!({"width": 1400, "height": 740, "deviceScaleFactor": 2, "mobile": false});
    browser
        .call("Emulation.setDeviceMetricsOverride", size)
        .await?;
    let hidden = json!({"hidden": true});
    browser
        .call("Emulation.setScrollbarsHidden", hidden)
        .await?;
    browser
        .value("document.querySelector('.share').click()")
        .await?;
    browser
        .until("!document.querySelector('#share figure').hidden")
        .await?;
    draw(&mut browser, "cluster-page-share.png").await?;
    let dark = json!({"features": [{"name": "prefers-color-scheme", "value": "dark"}]});
    browser.call("Emulation.setEmulatedMedia", dark).await?;
    draw(&mut browser, "cluster-page-dark.png").await?;
    browser.stop().await?;
    stop.cancel();
    Ok(())
}

async fn terminals() -> Result<()> {
    let mut browser = Browser::start(1400, 640).await?;
    for name in ["top", "explain", "doctor"] {
        let printed = std::fs::read_to_string(screens(&format!("{name}.txt")))?;
        let quoted = Value::from(printed).to_string();
        browser.open("about:blank").await?;
        browser.until("document.readyState === 'complete'").await?;
        let shown = format!(
            "document.body.style = 'margin:0;background:#14181c;color:#dfe6ea'; \
             {{ const pre = document.createElement('pre'); pre.textContent = {quoted}; \
             pre.style = 'font:13px/1.45 monospace;margin:0;padding:18px;white-space:pre-wrap'; \
             document.body.replaceChildren(pre); pre.scrollHeight }}"
        );
        // As high as what is printed.
        let height = browser.value(&shown).await?;
        let size =
            json!({"width": 1400, "height": height, "deviceScaleFactor": 1, "mobile": false});
        browser
            .call("Emulation.setDeviceMetricsOverride", size)
            .await?;
        draw(&mut browser, &format!("{name}.png")).await?;
    }
    browser.stop().await
}
