//! NVIDIA's programs on the host, which the agent runs with the host's root.

use std::process::{Command, Output};

use aliquot_device_plugin::container_edits::driver_spec::CHROOT;

fn run(root: &str, program: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_aliquot-device-plugin"));
    command.args([CHROOT, root]).args(program);
    command.output().expect("started")
}

#[test]
fn host_program_runs_with_the_host_root() {
    let shell = ["/bin/sh", "-c", "pwd; exit 3"];
    let output = run("/", &shell);
    assert_eq!(output.stdout, b"/\n", "{output:?}");
    assert_eq!(output.status.code(), Some(3));
    // A folder without a shell in it.
    let root = tempfile::tempdir().expect("tempdir");
    let output = run(root.path().to_str().expect("text"), &shell);
    assert!(output.stdout.is_empty() && !output.status.success());
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(text.contains("No such file"), "{text}");
}
