//! Headless Chromium, driven over a pipe by the Chrome `DevTools` Protocol (CDP).

use std::path::{Path, PathBuf};
use std::process::{Command as Blocking, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::time::timeout;

const PATIENCE: Duration = Duration::from_mins(4);
/// Chromium fetches only what the page requests.
const FLAGS: [&str; 12] = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-extensions",
    "--disable-dev-shm-usage",
    "--remote-debugging-pipe",
    "about:blank",
];
/// The pipes of CDP are 3 and 4.
const START: &str = "exec \"$0\" \"$@\" 3<&0 4>&1 1>&2 2>/dev/null";

/// A running browser with one page.
pub struct Browser {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    next: u64,
    session: Option<String>,
    _profile: TempDir,
}

fn program() -> Result<PathBuf> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("chromium.sh");
    let output = Blocking::new(script).stderr(Stdio::inherit()).output()?;
    ensure!(output.status.success(), "no Chromium");
    Ok(String::from_utf8(output.stdout)?.trim().into())
}

impl Browser {
    /// Starts it, with a window of this size.
    pub async fn start(width: u32, height: u32) -> Result<Self> {
        let profile = tempfile::tempdir()?;
        let mut child = Command::new("sh")
            .args(["-c", START])
            .arg(program()?)
            .arg(format!("--user-data-dir={}", profile.path().display()))
            .arg(format!("--window-size={width},{height}"))
            .args(FLAGS)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .kill_on_drop(true)
            .spawn()?;
        let input = child.stdin.take().context("a pipe")?;
        let output = BufReader::new(child.stdout.take().context("a pipe")?);
        let mut browser = Self {
            child,
            input,
            output,
            next: 0,
            session: None,
            _profile: profile,
        };
        let blank = json!({"url": "about:blank"});
        let made = browser.call("Target.createTarget", blank).await?;
        let attach = json!({"targetId": made["targetId"], "flatten": true});
        let attached = browser.call("Target.attachToTarget", attach).await?;
        browser.session = attached["sessionId"].as_str().map(str::to_owned);
        browser.call("Page.enable", json!({})).await?;
        let size =
            json!({"width": width, "height": height, "deviceScaleFactor": 1, "mobile": false});
        browser
            .call("Emulation.setDeviceMetricsOverride", size)
            .await?;
        Ok(browser)
    }

    /// One call of CDP, and its answer.
    pub async fn call(&mut self, method: &str, params: Value) -> Result<Value> {
        self.next += 1;
        let id = self.next;
        let mut message = json!({"id": id, "method": method, "params": params});
        if let Some(session) = &self.session {
            message["sessionId"] = json!(session);
        }
        let mut bytes = message.to_string().into_bytes();
        bytes.push(0);
        self.input.write_all(&bytes).await?;
        loop {
            let mut answer = Vec::new();
            let read = self.output.read_until(0, &mut answer);
            let read = timeout(PATIENCE, read)
                .await
                .with_context(|| method.to_owned())??;
            ensure!(read > 0, "the browser ended: {:?}", self.child.try_wait());
            answer.pop();
            let answer: Value = serde_json::from_slice(&answer)?;
            if answer["id"] == id {
                ensure!(answer["error"].is_null(), "{method}: {}", answer["error"]);
                return Ok(answer["result"].clone());
            }
        }
    }

    /// The value of an expression; promises are awaited.
    pub async fn value(&mut self, expression: &str) -> Result<Value> {
        let params = json!({"expression": expression, "awaitPromise": true, "returnByValue": true});
        let answer = self.call("Runtime.evaluate", params).await?;
        if !answer["exceptionDetails"].is_null() {
            bail!("{expression}: {}", answer["exceptionDetails"]);
        }
        Ok(answer["result"]["value"].clone())
    }

    /// Waits until an expression is true.
    pub async fn until(&mut self, condition: &str) -> Result<()> {
        let wait = format!(
            "new Promise((done, give) => {{ const began = Date.now(); const look = () => {{ \
             if ({condition}) done(true); else if (Date.now() - began > 30000) give(new Error('never')); \
             else setTimeout(look, 20); }}; look(); }})"
        );
        self.value(&wait)
            .await
            .with_context(|| condition.to_owned())
            .map(drop)
    }

    /// Opens a page.
    pub async fn open(&mut self, url: &str) -> Result<()> {
        let answer = self.call("Page.navigate", json!({"url": url})).await?;
        ensure!(answer["errorText"].is_null(), "{url}: {answer}");
        Ok(())
    }

    /// Presses a key, as a person does.
    pub async fn press(&mut self, key: &str) -> Result<()> {
        let code = match key {
            "Enter" => 13,
            "Escape" => 27,
            "ArrowLeft" => 37,
            "ArrowUp" => 38,
            "ArrowRight" => 39,
            "ArrowDown" => 40,
            "Home" => 36,
            "Tab" => 9,
            other => bail!("key {other}"),
        };
        let text = if key == "Enter" { "\r" } else { "" };
        for kind in ["keyDown", "keyUp"] {
            let params = json!({"type": kind, "key": key, "code": key, "text": text,
                "windowsVirtualKeyCode": code});
            self.call("Input.dispatchKeyEvent", params).await?;
        }
        Ok(())
    }

    /// A screenshot, as PNG.
    pub async fn picture(&mut self) -> Result<Vec<u8>> {
        let shot = self
            .call("Page.captureScreenshot", json!({"format": "png"}))
            .await?;
        let data = shot["data"].as_str().context("a picture")?;
        Ok(STANDARD.decode(data)?)
    }

    /// What a screen reader reads: role and name of every node that is not ignored.
    pub async fn accessibility_tree(&mut self) -> Result<Vec<(String, String)>> {
        let tree = self.call("Accessibility.getFullAXTree", json!({})).await?;
        let nodes = tree["nodes"].as_array().context("nodes")?;
        let text = |value: &Value| value["value"].as_str().unwrap_or_default().to_owned();
        let seen = nodes.iter().filter(|node| node["ignored"] != true);
        Ok(seen
            .map(|node| (text(&node["role"]), text(&node["name"])))
            .collect())
    }

    /// Stops the browser.
    pub async fn stop(mut self) -> Result<()> {
        self.session = None;
        self.call("Browser.close", json!({})).await?;
        timeout(PATIENCE, self.child.wait()).await??;
        Ok(())
    }
}
