//! What a supervisor concludes from its daemon's answers; no daemon runs.

use std::path::Path;

use super::*;
use crate::modes::mps::program::ProgramSearch;

fn servers(text: &str) -> Vec<MpsServer> {
    serde_json::from_str(text).expect("servers")
}

#[test]
fn counts_losses_and_faults_of_servers_with_clients_once() {
    let idle = r#"[{"pid":7,"clients":[]}]"#;
    let used = r#"[{"pid":7,"clients":[9]}]"#;
    let other = r#"[{"pid":8,"clients":[]}]"#;
    let fault = r#"[{"pid":7,"clients":[9],"fault":true}]"#;
    for (old, new, lost, is_fault) in [
        (idle, "[]", false, false),
        (used, "[]", true, false),
        (used, idle, false, false),
        (used, other, true, false),
        (used, fault, false, true),
        (fault, fault, false, false),
        (fault, used, false, false),
        ("[]", fault, false, true),
    ] {
        let (before, after) = (servers(old), servers(new));
        let found = (lost_clients(&before, &after), faulted(&before, &after));
        assert_eq!(found, (lost, is_fault), "{old} -> {new}");
    }
}

struct NoDriver;

impl ComputeModes for NoDriver {
    fn compute_mode(&self, _: &str) -> Result<ComputeMode, NvmlError> {
        Ok(ComputeMode::Default)
    }

    fn set_compute_mode(&self, _: &str, _: ComputeMode) -> Result<(), NvmlError> {
        Ok(())
    }
}

/// A control program that answers nothing.
fn silent_control(root: &Path) -> MpsControl {
    MpsControl {
        program: ProgramSearch {
            program: "/bin/true".into(),
            path: Vec::new(),
            roots: Vec::new(),
            libraries: root.join("driver"),
        },
        shm_size: None,
    }
}

/// Missing answers weeks apart once killed a healthy daemon, and a daemon that hung after that was
/// never killed.
#[test]
fn counts_only_consecutive_missing_answers() {
    let root = tempfile::tempdir().expect("a directory");
    let control = silent_control(root.path());
    let directory = DaemonDirectory::new(root.path(), "GPU-a");
    directory.make().expect("made");
    let mut daemon = SupervisedDaemon::new(directory, &control, &NoDriver);
    let silent = || SupervisionError::Control(ControlError::Silent("get_server_list".to_owned()));
    let almost = |daemon: &mut SupervisedDaemon<'_>| {
        for _ in 1..MAX_SILENT {
            assert!(!daemon.hangs(&silent()));
        }
    };
    for _ in 0..2 {
        almost(&mut daemon);
        assert!(daemon.hangs(&silent()));
    }
    almost(&mut daemon);
    daemon.poll_servers(std::process::id()).expect("it answers");
    almost(&mut daemon);
    assert!(daemon.hangs(&silent()));
}

#[test]
fn slow_daemon_serves_on_and_none_with_clients_is_killed() {
    let root = tempfile::tempdir().expect("a directory");
    let control = silent_control(root.path());
    let directory = DaemonDirectory::new(root.path(), "GPU-a");
    let mut daemon = SupervisedDaemon::new(directory, &control, &NoDriver);
    let silent = || SupervisionError::Control(ControlError::Silent("get_server_list".to_owned()));
    assert!(!daemon.hangs(&silent()) && !daemon.is_slow(), "it starts");
    daemon.status.phase = DaemonPhase::Running;
    let own = std::process::id();
    daemon.status.servers = servers(&format!(r#"[{{"pid":7,"clients":[{own}]}}]"#));
    assert!(!daemon.hangs(&silent()) && daemon.is_slow());
    for _ in 0..MAX_SILENT {
        assert!(!daemon.hangs(&silent()));
    }
    assert!(!daemon.is_slow(), "it takes no new clients");
    let ended = SupervisionError::Control(ControlError::Exited {
        output: String::new(),
        log: root.path().to_owned(),
    });
    assert!(!daemon.hangs(&ended) && !daemon.is_slow());
    // Nobody lists the clients of a daemon that hangs: they have ended all the same.
    daemon.status.servers = servers(r#"[{"pid":7,"clients":[4294967295]}]"#);
    assert!((0..MAX_SILENT).any(|_| daemon.hangs(&silent())));
}
