//! A shell that waits for the owner's end and then runs `down.sh`.
//!
//! It reads a pipe whose other end only the owner has. One line says what to do with the logs; the
//! pipe of an owner that was killed closes as well.

use std::io::Write as _;
use std::process::{Child, Command, Stdio};

use anyhow::{Context as _, Result, ensure};

use crate::layout::Layout;

/// The one teardown, for the watchdog, for [`Cluster::stop_at`](crate::Cluster::stop_at) and for users.
pub(crate) const DOWN: &str = include_str!("../scripts/down.sh");

const WAIT: &str = r#"trap '' HUP INT TERM
cd / && { read -r how || how=keep; }
exec bash "$1/down.sh" "$1" "$how" >"$1/log/down.log" 2>&1"#;

/// What becomes of the logs.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Logs {
    Remove,
    Keep,
}

impl Logs {
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Remove => "remove",
            Self::Keep => "keep",
        }
    }
}

/// The running watchdog of one cluster.
#[derive(Debug)]
pub(crate) struct Watchdog(Child);

impl Watchdog {
    pub(crate) fn start(layout: &Layout) -> Result<Self> {
        std::fs::write(layout.at("down.sh"), DOWN).context("write down.sh")?;
        Command::new("setsid")
            .args(["bash", "-c", WAIT, "aliquot-cluster-watchdog"])
            .arg(layout.root())
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .map(Self)
            .context("start the watchdog")
    }

    /// Takes the cluster down and waits for it; `down.sh` bounds each of its steps.
    pub(crate) fn finish(mut self, logs: Logs) -> Result<()> {
        if let Some(mut pipe) = self.0.stdin.take() {
            writeln!(pipe, "{}", logs.word()).context("the watchdog is gone")?;
        }
        let status = self.0.wait().context("wait for the watchdog")?;
        ensure!(
            status.success(),
            "something of the cluster is left (see down.log)"
        );
        Ok(())
    }
}
