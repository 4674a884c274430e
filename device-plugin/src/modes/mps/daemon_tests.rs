//! What a supervisor concludes from its daemon's answers; no daemon runs.

use std::path::Path;

use super::*;
use crate::modes::mps::program::ProgramSearch;

fn servers(text: &str) -> Vec<MpsServer> {
    serde_json::from_str(text).expect("servers")
}

#[test]
fn counts_loss_only_for_server_with_clients() {
    let check = |old: &str, new: &str, expected: bool| {
        let found = lost_clients(&servers(old), &servers(new));
        assert_eq!(found, expected, "{old} -> {new}");
    };
    let idle = r#"[{"pid":7,"clients":[]}]"#;
    let used = r#"[{"pid":7,"clients":[9]}]"#;
    check(idle, "[]", false);
    check(used, "[]", true);
    check(used, idle, false);
    check(used, r#"[{"pid":8,"clients":[]}]"#, true);
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
        arguments: Vec::new(),
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
    let check = |daemon: &mut SupervisedDaemon<'_>, expected: [bool; 3]| {
        assert_eq!(expected.map(|_| daemon.hangs(&silent())), expected);
    };
    check(&mut daemon, [false, false, true]);
    check(&mut daemon, [false, false, true]);
    assert!(!daemon.hangs(&silent()));
    assert!(!daemon.hangs(&silent()));
    daemon.poll_servers().expect("it answers");
    check(&mut daemon, [false, false, true]);
}

/// Its clients have that memory, too. An earlier release had one memory for all daemons.
#[test]
fn adopted_daemon_retains_its_shared_memory() {
    let root = tempfile::tempdir().expect("a directory");
    let control = silent_control(root.path());
    let directory = DaemonDirectory::new(root.path(), "GPU-a");
    let supervised = || SupervisedDaemon::new(directory.clone(), &control, &NoDriver);
    let mut first = supervised();
    assert_eq!(first.status.shm, Some(directory.shm()));
    first.status.shm = Some("/run/aliquot/shm".into());
    first.write_status().expect("written");
    assert_eq!(supervised().status.shm, first.status.shm);
}

#[test]
fn reports_fault_once() {
    let check = |old: &str, new: &str, expected: bool| {
        assert_eq!(faulted(&servers(old), &servers(new)), expected);
    };
    let well = r#"[{"pid":7,"clients":[9]}]"#;
    let fault = r#"[{"pid":7,"clients":[9],"fault":true}]"#;
    check(well, fault, true);
    check(fault, fault, false);
    check(fault, well, false);
    check("[]", fault, true);
}
