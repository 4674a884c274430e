//! What a unit makes of its daemon's answers; no daemon runs.

use super::*;

fn servers(text: &str) -> Vec<Server> {
    serde_json::from_str(text).expect("servers")
}

#[test]
fn a_server_that_goes_with_clients_is_a_loss_and_one_without_is_none() {
    let check = |old: &str, new: &str, expected: bool| {
        let found = lost_clients(&servers(old), &servers(new));
        assert_eq!(found, expected, "{old} -> {new}");
    };
    let (idle, used) = (
        r#"[{"pid":7,"clients":[]}]"#,
        r#"[{"pid":7,"clients":[9]}]"#,
    );
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

/// Answers missing weeks apart ended a daemon that served, and after that one that hung was
/// never ended.
#[test]
fn a_daemon_that_answered_in_between_was_taken_for_one_that_hangs() {
    let root = tempfile::tempdir().expect("a folder");
    let control = Control {
        program: "/bin/true".into(),
        arguments: Vec::new(),
        shm: None,
    };
    let folder = Folder::new(root.path(), "GPU-a");
    folder.make().expect("made");
    let mut unit = Unit::new(folder, &control, &NoDriver);
    let silent = || UnitError::Control(ControlError::Silent("get_server_list".to_owned()));
    let check = |unit: &mut Unit<'_>, expected: [bool; 3]| {
        assert_eq!(expected.map(|_| unit.hangs(&silent())), expected);
    };
    check(&mut unit, [false, false, true]);
    check(&mut unit, [false, false, true]);
    assert!(!unit.hangs(&silent()));
    assert!(!unit.hangs(&silent()));
    unit.look().expect("it answers");
    check(&mut unit, [false, false, true]);
}

#[test]
fn a_fault_is_told_once() {
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
