//! The container runtimes: runc, and NVIDIA's in front of it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use aliquot_gpusim::STATE_VARIABLE;
use anyhow::{Context as _, Result};

use crate::bundle::{Bundle, COMPAT_LIST};
use crate::node::{Installer, Node, PATH};
use crate::programs::{runc, script};

/// The runtime's log in the folder of its configuration.
const LOG: &str = "log";

/// Runs the container of a bundle in a mount namespace, in which `/usr` of its root is this
/// machine's, with the image's own files over it: $1 the runtime, $2 the bundle, $3 the id, $4 what
/// makes the image's cache of libraries outdated. Ends when the container has started.
const RUN: &str = r#"
set -e
mount -t overlay overlay -o "lowerdir=/usr,upperdir=$2/usr,workdir=$2/work" "$2/rootfs/usr"
[ ! -e "$2/rootfs/$4" ] || ldconfig -r "$2/rootfs"
"$1" --root "$2/state" create --bundle "$2" "$3"
"$1" --root "$2/state" start "$3"
"#;

/// A container runtime.
pub struct OciRuntime {
    program: PathBuf,
    variables: Vec<(&'static str, PathBuf)>,
    log: Option<PathBuf>,
}

impl OciRuntime {
    /// The real runc.
    pub fn runc() -> Self {
        Self {
            program: runc(),
            variables: Vec::new(),
            log: None,
        }
    }

    /// NVIDIA's runtime in this mode, as `installer` configures it. Its configuration is in
    /// `folder`.
    pub fn nvidia(node: &Node, folder: &Path, mode: &str, installer: Installer) -> Result<Self> {
        let log = folder.join(LOG);
        let config = format!(
            r#"
accept-nvidia-visible-devices-envvar-when-unprivileged = true

[nvidia-container-cli]
root = "{driver}"
path = "{cli}"
ldconfig = "@/sbin/ldconfig"

[nvidia-container-runtime]
debug = "{log}"
log-level = "info"
mode = "{mode}"
runtimes = ["{low_level}"]

[nvidia-container-runtime.modes.cdi]
default-kind = "{kind}"
spec-dirs = ["{specs}"]
annotation-prefixes = ["cdi.k8s.io/"]

[nvidia-container-runtime-hook]
path = "{hook}"

[nvidia-ctk]
path = "{ctk}"
"#,
            driver = node.driver_root().display(),
            cli = script("nvidia-container-cli").display(),
            log = log.display(),
            low_level = runc().display(),
            kind = installer.default_kind(),
            specs = node.specs(installer).display(),
            hook = script("nvidia-container-runtime-hook").display(),
            ctk = node.release.program("nvidia-ctk").display(),
        );
        let own = folder.join("nvidia-container-runtime");
        fs::create_dir_all(&own)?;
        fs::write(own.join("config.toml"), config)?;
        Ok(Self {
            program: node.release.program("nvidia-container-runtime"),
            variables: vec![
                ("XDG_CONFIG_HOME", folder.to_owned()),
                ("TOOLKIT_PROGRAMS", node.release.folder()),
                (STATE_VARIABLE, node.state()),
            ],
            log: Some(log),
        })
    }

    /// Runs the container of a bundle to its end, and removes it. The output has what the runtime
    /// and the container wrote; the status is the runtime's.
    pub fn run(&self, bundle: &Bundle) -> Result<Output> {
        let mut command = self.command(Path::new("unshare"));
        command.args(["--mount", "--propagation", "private", "sh", "-c", RUN, "sh"]);
        command.arg(&self.program).arg(&bundle.folder);
        // The container has the pipes of its runtime: their end is its end.
        let output = self.output(command.arg(&bundle.id).arg(COMPAT_LIST));
        let mut delete = Command::new(runc());
        delete.arg("--root").arg(bundle.folder.join("state"));
        let deleted = delete.args(["delete", "--force", &bundle.id]).output();
        deleted.context("cannot run runc delete")?;
        output
    }

    /// What the runtime logged of its last call.
    pub fn log(&self) -> String {
        let log = self.log.as_ref().map(fs::read_to_string);
        log.and_then(Result::ok).unwrap_or_default()
    }

    fn command(&self, program: &Path) -> Command {
        let mut command = Command::new(program);
        command.env_clear().env("PATH", PATH);
        command.envs(self.variables.iter().map(|(name, value)| (name, value)));
        command
    }

    fn output(&self, command: &mut Command) -> Result<Output> {
        if let Some(log) = &self.log {
            fs::write(log, "")?;
        }
        let output = command.stdin(Stdio::null()).output();
        output.with_context(|| format!("cannot run {command:?}"))
    }
}
