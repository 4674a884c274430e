//! The cluster page as people use it: visually, by keyboard, by screen reader, and with 1,000 GPUs.
#![allow(clippy::print_stdout, reason = "measured times")]

use std::time::{Duration, Instant};

use aliquot_cluster::starvation::{Attempts, Measurement};
use aliquot_page::browser::Browser;
use aliquot_page::cluster::{ledger, serve};
use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

/// Longest time from a key or a choice to what is shown, on a machine that does other work, too.
const AT_ONCE: Duration = Duration::from_millis(250);
const SOON: Duration = Duration::from_secs(3);
const READY: &str = "document.body?.dataset.ready === 'true'";
const FOCUSED: &str = "document.activeElement.getAttribute('aria-label')";
const FIRST_GPU: &str = "document.querySelector('.node:first-child .gpu')";
/// The first node's monitor has answered.
const MEASURED: &str = "document.querySelector('.heat:not(.head *)').textContent !== ''";

/// A browser on the page of such a ledger.
async fn page(nodes: usize, shares: usize, waiting: usize) -> Result<(Browser, CancellationToken)> {
    let (address, stop) = serve(ledger(nodes, shares, waiting)?).await?;
    let mut browser = Browser::start(1400, 900).await?;
    browser.open(&format!("http://{address}/page/")).await?;
    browser.until(READY).await?;
    Ok((browser, stop))
}

async fn count(browser: &mut Browser, selector: &str) -> Result<u64> {
    let counted = browser
        .value(&format!("document.querySelectorAll('{selector}').length"))
        .await?;
    counted.as_u64().context("a number")
}

async fn text(browser: &mut Browser, expression: &str) -> Result<String> {
    let value = browser.value(expression).await?;
    Ok(value.as_str().unwrap_or_default().to_owned())
}

#[tokio::test]
async fn shows_finds_and_opens_every_share() -> Result<()> {
    let (mut browser, stop) = page(6, 5, 2).await?;
    // Five nodes have all their shares but for two on a GPU with MIG, one has two on each GPU.
    ensure!(count(&mut browser, ".share").await? == 5 * 8 * 5 - 3 + 8 * 2);
    ensure!(count(&mut browser, "#nodes .gpu").await? == 48);
    let line = text(&mut browser, "document.querySelector('#sums').textContent").await?;
    ensure!(
        line.starts_with("6 nodes, 48 GPUs, 1 closed, ") && line.ends_with("2 pods pending"),
        "{line}"
    );
    let sick = texts(&mut browser, "#nodes .gpu.sick .why").await?;
    ensure!(
        sick == "sick · xid 79 · no new pods, 5 still on it",
        "{sick}"
    );
    let pending = text(
        &mut browser,
        "document.querySelector('#waiting tbody').textContent",
    )
    .await?;
    ensure!(
        pending.contains("ranking/large-0 … large-1 · 2 pods") && pending.contains("87.8 GiB"),
        "{pending}"
    );

    // A click opens the pod.
    browser
        .value("document.querySelector('.share').click()")
        .await?;
    let opened = text(&mut browser, "document.querySelector('#share').textContent").await?;
    ensure!(
        opened.contains("gpu-000") && opened.contains("kubectl aliquot explain job-0-0-"),
        "{opened}"
    );
    browser.press("Escape").await?;
    ensure!(
        browser
            .value("document.querySelector('#share').hidden")
            .await?
            == true
    );

    // Other colours, and a filter.
    let before = text(
        &mut browser,
        "document.querySelector('#legend').textContent",
    )
    .await?;
    let mode = "document.querySelector('[name=colour][value=mode]').click()";
    browser.value(mode).await?;
    let after = text(
        &mut browser,
        "document.querySelector('#legend').textContent",
    )
    .await?;
    ensure!(
        before.contains("vision") && after.contains("timeslice"),
        "{before} then {after}"
    );
    filter(&mut browser, "gpu-003").await?;
    ensure!(count(&mut browser, "#nodes .node").await? == 1);
    // A tag has the GPUs of that state only.
    browser
        .value("document.querySelector('.tag.sick').click()")
        .await?;
    ensure!(count(&mut browser, "#nodes .gpu").await? == 1);
    browser.stop().await?;
    stop.cancel();
    Ok(())
}

/// The text of these elements, one on each line.
async fn texts(browser: &mut Browser, selector: &str) -> Result<String> {
    let all =
        format!("[...document.querySelectorAll('{selector}')].map(e => e.textContent).join('\\n')");
    text(browser, &all).await
}

/// What would help a pod that asks for a percentage of a GPU's memory.
async fn helps_in_percent(browser: &mut Browser) -> Result<()> {
    for (memory, cores, expected) in [
        (
            "90 %",
            0,
            "Ask for at most 86 % of a GPU's memory (gpumem-percentage: 86) now, on GPU ",
        ),
        ("86 %", 0, "Memory is free on GPU "),
        (
            "100 %",
            100,
            "No GPU has 100 % of compute and a replica free",
        ),
    ] {
        let ask = json!([{"stage": "app", "memory": memory, "cores": cores}]);
        let help = format!(
            "Promise.all([import('./model.js'), fetch('state').then(answer => answer.json())]).then(([model, state]) => \
             model.help({{requests: {ask}, text: 'refused'}}, state.nodes))"
        );
        let help = text(browser, &help).await?;
        ensure!(help.starts_with(expected), "{memory}: {help}");
    }
    Ok(())
}

#[tokio::test]
async fn shows_what_is_used_beside_what_is_allocated() -> Result<()> {
    let (mut browser, stop) = page(6, 5, 2).await?;
    browser.until(MEASURED).await?;
    for (column, expected) in [
        ("mem", "22/43.9/80 GiB\n38.5/43.9/80 GiB\n"),
        ("cores", "50/50 %\n45/50 %\n"),
        ("replicas", "5/10\n5/10\n"),
        ("heat", "40° 111 W\n41° 107 W\n"),
    ] {
        let now = texts(&mut browser, &format!(".node:first-child .gpu .{column}")).await?;
        ensure!(now.starts_with(expected), "{column}: {now}");
    }
    let used = format!(
        "[...{FIRST_GPU}.querySelectorAll('.share')].map(e => e.style.getPropertyValue('--part')).join(' ')"
    );
    let used = text(&mut browser, &used).await?;
    ensure!(used == "50 50 50 50 50", "{used}");
    let why = texts(&mut browser, ".node:nth-child(2) .unknown").await?;
    ensure!(
        why.contains("503 Service Unavailable: dial tcp: connection refused"),
        "{why}"
    );

    // A share that uses more than it requests is at the right; an idle MIG instance has its profile.
    ensure!(count(&mut browser, ".node:nth-child(3) .lent:not([hidden])").await? == 1);
    let idle = texts(&mut browser, ".node:nth-child(3) .idle").await?;
    ensure!(idle == "1g.10gb", "{idle}");

    // The opened share has its last hour.
    browser
        .value("document.querySelector('.share').click()")
        .await?;
    browser
        .until("!document.querySelector('#share figure').hidden")
        .await?;
    let opened = texts(&mut browser, "#share dd").await?;
    ensure!(
        opened.contains(" MiB, 10 % SM, throttled 5 % of the time"),
        "{opened}"
    );
    let path = "document.querySelector('#share path.memory').getAttribute('d')";
    let path = text(&mut browser, path).await?;
    ensure!(
        path.split('L').count() == 120 && path.ends_with("360.0,30.0"),
        "{path}"
    );
    let label = "document.querySelector('#share svg').getAttribute('aria-label')";
    let label = text(&mut browser, label).await?;
    ensure!(label.ends_with(" MiB, 10 % SM"), "{label}");

    // What would help, and the quota.
    let help = texts(&mut browser, "#waiting td:nth-child(5)").await?;
    ensure!(
        help.starts_with("Ask for at most 36 GiB (gpumem: 36920) now, on GPU ")
            && help.ends_with(", or 80 GiB when a GPU is empty."),
        "{help}"
    );
    helps_in_percent(&mut browser).await?;
    let quota = texts(&mut browser, "#quotas li").await?;
    ensure!(
        quota.contains("vision team") && quota.contains("of 3.81 TiB"),
        "{quota}"
    );
    // The totals: two of the pods wait, and the five measured nodes use something.
    let totals = texts(&mut browser, "#totals .figures div, #totals .big").await?;
    ensure!(
        totals.contains("used")
            && !totals.contains("not measured")
            && totals.contains("\n2\n36 GiB"),
        "{totals}"
    );

    // Colours differ.
    let colours =
        "[...new Set([...document.querySelectorAll('#legend i')].map(e => e.className))].length";
    ensure!(browser.value(colours).await? == 6);
    // A name is whole or not there.
    filter(&mut browser, "gpu-000").await?;
    let cut = "[...document.querySelectorAll('.bar .label')].filter(e => { \
        const [own, bar] = [e, e.parentElement].map(one => one.getBoundingClientRect()); \
        return own.top < bar.bottom && own.right > bar.right + 1; }).length";
    ensure!(browser.value(cut).await? == 0, "a name is cut");
    let names = "[...document.querySelectorAll('.bar .label')].filter(e => \
        e.textContent.startsWith('job-') && e.getBoundingClientRect().top < e.parentElement.getBoundingClientRect().bottom).length";
    let names = browser.value(names).await?;
    ensure!(names.as_u64().is_some_and(|shown| shown > 0), "{names}");
    filter(&mut browser, "").await?;
    ensure!(browser.value(cut).await? == 0, "a name is cut");
    // Every bar has all the width; on a common scale, that of its memory.
    ensure!((ratio(&mut browser).await? - 1.0).abs() < 0.02);
    browser
        .value("document.querySelector('[name=common]').click()")
        .await?;
    ensure!((ratio(&mut browser).await? - 24576.0 / 81920.0).abs() < 0.02);

    // In the dark, text stands out from what is behind it.
    let dark = json!({"features": [{"name": "prefers-color-scheme", "value": "dark"}]});
    browser.call("Emulation.setEmulatedMedia", dark).await?;
    let luminance = "(c => { const [r, g, b] = c.match(/[0-9.]+/g).slice(0, 3).map(v => { v /= 255; \
        return v <= 0.04 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4; }); return 0.2126 * r + 0.7152 * g + 0.0722 * b; })";
    let contrast = format!(
        "{{ const of = {luminance}; const behind = of(getComputedStyle(document.querySelector('.node')).backgroundColor); \
         Math.min(...['h1', '.heat', '.head', '.why', '.unknown', 'td', '.name'].map(s => (of(getComputedStyle(document.querySelector(s)).color) \
         + 0.05) / (behind + 0.05))) }}"
    );
    let contrast = browser.value(&contrast).await?;
    ensure!(
        contrast.as_f64().is_some_and(|ratio| ratio >= 4.5),
        "{contrast}"
    );
    browser.stop().await?;
    stop.cancel();
    Ok(())
}

/// How wide the bars of the second node are beside those of the first.
async fn ratio(browser: &mut Browser) -> Result<f64> {
    let widths = "['first-child', 'nth-child(2)'].map(at => \
        document.querySelector(`.node:${at} .bar`).getBoundingClientRect().width)";
    let ratio = browser
        .value(&format!("{{ const w = {widths}; w[1] / w[0] }}"))
        .await?;
    ratio.as_f64().context("widths")
}

async fn filter(browser: &mut Browser, value: &str) -> Result<()> {
    let script = format!(
        "{{ const field = document.querySelector('[name=only]'); field.value = '{value}'; \
         field.dispatchEvent(new Event('input', {{bubbles: true}})); }}"
    );
    browser.value(&script).await.map(drop)
}

#[tokio::test]
async fn page_works_with_keyboard_and_screen_reader() -> Result<()> {
    let (mut browser, stop) = page(3, 4, 1).await?;
    // One share is in the tab order, however many there are.
    ensure!(count(&mut browser, "#nodes button[tabindex=\"0\"]").await? == 1);
    // What is used is read, too.
    browser.until(MEASURED).await?;
    browser
        .value("document.querySelector('#nodes button[tabindex=\"0\"]').focus()")
        .await?;
    let first = text(&mut browser, FOCUSED).await?;
    ensure!(
        first.contains("on GPU 0 of gpu-000")
            && first.contains("of 81920 MiB")
            && !first.contains("not measured"),
        "{first}"
    );
    for (key, expected) in [
        ("ArrowRight", "on GPU 0 of gpu-000"),
        ("ArrowDown", "on GPU 1 of gpu-000"),
        ("ArrowUp", "on GPU 0 of gpu-000"),
        ("Home", "on GPU 0 of gpu-000"),
    ] {
        let before = text(&mut browser, FOCUSED).await?;
        browser.press(key).await?;
        let now = text(&mut browser, FOCUSED).await?;
        ensure!(
            now != before && now.contains(expected),
            "{key}: {before} then {now}"
        );
    }
    ensure!(text(&mut browser, FOCUSED).await? == first);
    browser.press("Enter").await?;
    let on = text(&mut browser, FOCUSED).await?;
    ensure!(
        on == "Close",
        "Enter opens the share and moves the focus there: {on}"
    );
    browser.press("Escape").await?;
    ensure!(text(&mut browser, FOCUSED).await? == first, "and back");

    let tree = browser.accessibility_tree().await?;
    let has = |role: &str, name: &str| tree.iter().any(|(r, n)| r == role && n.contains(name));
    for (role, name) in [
        ("heading", "GPUs of this cluster"),
        ("grid", "Nodes"),
        ("rowgroup", "node gpu-000"),
        ("row", "GPU 2, NVIDIA L4, vgpu, closed: CardNotHealth"),
        ("gridcell", "of 100 % of compute"),
        ("status", ""),
        ("radio", "Namespace"),
        ("searchbox", "Filter"),
        ("columnheader", "Why"),
    ] {
        ensure!(
            has(role, name),
            "the accessibility tree has no {role} {name:?}: {tree:?}"
        );
    }
    browser.stop().await?;
    stop.cancel();
    Ok(())
}

/// The first request is never answered.
const FIRST_HANGS: &str = "{ const send = fetch; let first = true; window.fetch = (url, options) => { \
    if (!first) return send(url, options); first = false; \
    return new Promise((_, give) => options.signal?.addEventListener('abort', () => give(options.signal.reason))); } }";

#[tokio::test]
async fn page_asks_again_when_its_first_request_hangs() -> Result<()> {
    let (address, stop) = serve(ledger(3, 4, 1)?).await?;
    let mut browser = Browser::start(1400, 900).await?;
    let script = json!({"source": FIRST_HANGS});
    browser
        .call("Page.addScriptToEvaluateOnNewDocument", script)
        .await?;
    browser.open(&format!("http://{address}/page/")).await?;
    browser.until(READY).await?;
    ensure!(count(&mut browser, "#nodes .node").await? == 3);
    browser.stop().await?;
    stop.cancel();
    Ok(())
}

#[tokio::test]
async fn scrolls_a_thousand_gpus_without_lag() -> Result<()> {
    let (mut browser, stop) = page(125, 6, 500).await?;
    ensure!(count(&mut browser, "#nodes .cell").await? == 1000);
    // From the choice to the next picture.
    let drawn = "new Promise(done => { const began = performance.now(); \
        document.querySelector('[name=by]:not(:checked)').click(); \
        requestAnimationFrame(() => setTimeout(() => done(performance.now() - began))); })";
    let mut attempts = Attempts::new("1,000 GPUs drawn anew");
    loop {
        let measured = Measurement::of_machine();
        let took = milliseconds(&browser.value(drawn).await?)?;
        println!("1,000 GPUs drawn anew in {took:?}");
        if took < SOON {
            break;
        }
        let missed = format!("{took:?}, allowed {SOON:?}");
        attempts.again(missed, measured.starved())?;
    }

    browser
        .value("document.querySelector('#nodes button[tabindex=\"0\"]').focus()")
        .await?;
    let mut attempts = Attempts::new("a key that moves the focus");
    loop {
        let measured = Measurement::of_machine();
        let mut keys = Vec::new();
        for _ in 0..30 {
            let began = Instant::now();
            browser.press("ArrowDown").await?;
            keys.push(began.elapsed());
        }
        keys.sort();
        let (median, most) = (keys[keys.len() / 2], keys[keys.len() - 1]);
        println!("a key moves the focus in {median:?} (median), {most:?} at most");
        if median < AT_ONCE {
            break;
        }
        let missed = format!("{median:?}, allowed {AT_ONCE:?}");
        attempts.again(missed, measured.starved())?;
    }

    // A line opens to a card, and closes.
    let opened = "(() => { const line = () => document.querySelector('.line'); line().click(); \
        const gpus = document.querySelectorAll('.line + .node .gpu').length; line().click(); \
        return gpus - document.querySelectorAll('.node').length; })()";
    ensure!(browser.value(opened).await? == 8);
    // Unchanged nodes are not drawn again: at the second answer, the first one has been drawn.
    let same = "(async () => { const first = document.querySelector('.line'); \
        const asked = (entry) => entry.name.includes('state?since='); \
        const answers = () => performance.getEntriesByType('resource').filter(asked).length; \
        const second = answers() + 2; \
        while (answers() < second) await new Promise(done => setTimeout(done, 100)); \
        return first.isConnected && first === document.querySelector('.line'); })()";
    ensure!(
        browser.value(same).await? == true,
        "an answer without a change drew the nodes again"
    );
    browser.stop().await?;
    stop.cancel();
    Ok(())
}

fn milliseconds(value: &Value) -> Result<Duration> {
    Ok(Duration::from_secs_f64(
        value.as_f64().context("a number")? / 1000.0,
    ))
}
