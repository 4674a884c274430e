//! Draws the pictures of docs/screens (`make screens`): the cluster page, and what commands print, which
//! tests/chart writes there as text.

#![forbid(unsafe_code)]

use std::path::{Path, PathBuf};

use aliquot_page::browser::Browser;
use aliquot_page::cluster::{ledger, serve};
use anyhow::{Context as _, Result};
use serde_json::{Value, json};

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

async fn cluster_page() -> Result<()> {
    let (address, stop) = serve(ledger(6, 5, 2)?).await?;
    let mut browser = Browser::start(1400, 900).await?;
    browser.open(&format!("http://{address}/page/")).await?;
    browser
        .until("document.body?.dataset.ready === 'true'")
        .await?;
    browser
        .until("document.querySelector('.now').textContent !== ''")
        .await?;
    draw(&mut browser, "cluster-page.png").await?;
    // README's picture: two nodes and nothing cut off, sharp on a dense screen.
    browser.value(TWO_NODES).await?;
    let size = json!({"width": 1400, "height": 670, "deviceScaleFactor": 2, "mobile": false});
    browser
        .call("Emulation.setDeviceMetricsOverride", size)
        .await?;
    let hidden = json!({"hidden": true});
    browser
        .call("Emulation.setScrollbarsHidden", hidden)
        .await?;
    browser
        .until("[...document.querySelectorAll('.now')].every(e => e.textContent !== '')")
        .await?;
    browser
        .value("document.querySelector('#nodes button').click()")
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
