//! Whether the host can run the OCI hook, as its container runtime does for each container with a limit.

use std::path::Path;
use std::process::{Command, Stdio};

use crate::container_edits::driver_spec::command_line;
use crate::gpus::inventory::RuntimeProblem;

/// How the hook's own words begin.
const OWN_WORDS: [&str; 2] = ["usage: aliquot-hook", "aliquot-hook: "];

/// Why the host cannot run this program.
pub fn problem(host_root: &Path, hook: &Path) -> Option<RuntimeProblem> {
    let (program, arguments) = command_line(host_root, hook, Vec::new());
    let mut command = Command::new(program);
    command.args(arguments).env_clear().stdin(Stdio::null());
    let why = match command.output() {
        Ok(output) => String::from_utf8_lossy(&output.stderr).trim().to_owned(),
        Err(error) => error.to_string(),
    };
    if OWN_WORDS.iter().any(|own| why.starts_with(own)) {
        return None;
    }
    Some(RuntimeProblem {
        reason: "HookNotExecutable",
        blocks: true,
        text: format!(
            "the host cannot run {}: {why}; no container with a limit is created: set devicePlugin.execDir to a directory of the host that is not mounted noexec",
            hook.display()
        ),
    })
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;
    use crate::testing::{CHILD, run_child};

    fn put(folder: &Path, content: &str) -> std::path::PathBuf {
        let hook = folder.join("aliquot-hook");
        fs::write(&hook, content).expect("written");
        fs::set_permissions(&hook, Permissions::from_mode(0o755)).expect("made to run");
        hook
    }

    #[test]
    fn hook_runs_or_the_reason_is_named() {
        let folder = tempfile::tempdir().expect("tempdir");
        let usage = "#!/bin/sh\necho 'usage: aliquot-hook preload FILE' >&2\nexit 2\n";
        let check = |content: &str, expected: Option<&str>| {
            let hook = put(folder.path(), content);
            let found = problem(Path::new("/"), &hook).map(|problem| problem.text);
            let as_expected = match expected {
                None => found.is_none(),
                Some(part) => found.as_ref().is_some_and(|text| text.contains(part)),
            };
            assert!(as_expected, "{found:?}");
        };
        check(usage, None);
        check(
            "#!/lib/of/another/libc\n",
            Some("No such file or directory"),
        );
    }

    /// Runs [`child_runs_hook_on_noexec_mount`] in a mount namespace of its own.
    #[test]
    fn names_noexec_mount_under_the_hook() {
        let folder = tempfile::tempdir().expect("tempdir");
        let mounts = r#"mount -t tmpfs -o noexec none "$1""#;
        let child = "runtime::hook::tests::child_runs_hook_on_noexec_mount";
        run_child(child, mounts, folder.path(), folder.path().as_os_str());
    }

    #[test]
    fn child_runs_hook_on_noexec_mount() {
        let Some(folder) = std::env::var_os(CHILD) else {
            return;
        };
        let hook = put(Path::new(&folder), "#!/bin/sh\nexit 0\n");
        let found = problem(Path::new("/"), &hook).expect("a problem");
        assert_eq!(found.reason, "HookNotExecutable");
        for part in ["Permission denied", "devicePlugin.execDir"] {
            assert!(found.text.contains(part), "{}", found.text);
        }
        println!("CHILD");
    }
}
