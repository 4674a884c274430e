//! Starts a process that a pid file names from its first instruction on.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context as _, Result};

use crate::layout::Layout;

/// Writes its own pid and start time, then becomes the program, unless the cluster
/// is being taken down. `down.sh` first makes `.down` and then reads the pid files;
/// this writes its pid file and then checks for `.down`: whenever the owner dies,
/// the process is either found there or ends here.
const WRITE_PID: &str = r#"echo "$$ $(cut -d' ' -f22 /proc/$$/stat)" >"$1" && [ ! -e "$2" ] &&
shift 2 && exec "$@""#;

#[derive(Debug, Default)]
pub(crate) struct Program {
    pub(crate) path: PathBuf,
    pub(crate) args: Vec<String>,
    pub(crate) env: Vec<(String, String)>,
    /// A lock that shall live as long as the process.
    pub(crate) lock: Option<File>,
}

impl Program {
    pub(crate) fn new(
        path: impl AsRef<Path>,
        args: impl IntoIterator<Item = impl Into<String>>,
    ) -> Self {
        Self {
            path: path.as_ref().to_owned(),
            args: args.into_iter().map(Into::into).collect(),
            ..Self::default()
        }
    }
}

/// Starts `program` in a session of its own; its output goes to the end of its log.
pub(crate) fn spawn(layout: &Layout, name: &str, program: Program) -> Result<Child> {
    let log = File::options()
        .create(true)
        .append(true)
        .open(layout.log(name))
        .with_context(|| format!("open the log of {name}"))?;
    Command::new("setsid")
        .args(["sh", "-c", WRITE_PID, "sh"])
        .arg(layout.pid_file(name))
        .arg(layout.at(".down"))
        .arg(&program.path)
        .args(&program.args)
        .envs(program.env)
        .stdin(program.lock.map_or_else(Stdio::null, Stdio::from))
        .stdout(log.try_clone()?)
        .stderr(log)
        .spawn()
        .with_context(|| format!("start {name}"))
}

pub(crate) fn tail(layout: &Layout, name: &str) -> String {
    let text = std::fs::read(layout.log(name)).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(20)..].join("\n")
}
