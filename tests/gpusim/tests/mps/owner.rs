//! What the owner of a daemon meets: starting, commands, texts, ends.

use aliquot_gpusim::SimulatedMachine;

use crate::common::{TWO_A100, until};
use crate::daemon::{Daemon, kill, runs};

fn on(yaml: &str, body: impl FnOnce(&SimulatedMachine)) {
    let folder = tempfile::tempdir().unwrap();
    body(&SimulatedMachine::create(&folder.path().join("state"), yaml).unwrap());
}

#[test]
fn a_daemon_keeps_its_folders_and_a_second_one_is_refused() {
    on(TWO_A100, |machine| {
        let daemon = Daemon::new(machine, "a", "0");
        let missing = "Cannot find MPS control daemon process".to_owned();
        assert_eq!(daemon.tell("get_server_list"), (missing.clone(), false));
        assert_eq!(daemon.start(), (String::new(), true));
        for file in ["control", "control_privileged", "control_lock"] {
            assert!(daemon.pipe.join(file).exists(), "{file}");
        }
        assert!(daemon.log.join("control.log").exists());
        let twice = "An instance of this daemon is already running".to_owned();
        assert_eq!(daemon.start(), (twice, false));
        let other = Daemon::started(machine, "b", "1");
        assert_ne!(other.pid(), daemon.pid());
        let pid = daemon.pid();
        assert_eq!(daemon.answer("quit"), "");
        until("it ends", || !runs(pid));
        assert!(!daemon.pipe.join("nvidia-cuda-mps-control.pid").exists());
        assert_eq!(daemon.tell("quit"), (missing, false));
    });
}

#[test]
fn a_killed_daemon_leaves_files_that_the_next_one_takes_over() {
    on(TWO_A100, |machine| {
        let daemon = Daemon::started(machine, "a", "0");
        let first = daemon.pid();
        kill(first);
        until("it is gone", || !runs(first));
        assert!(!daemon.tell("get_server_list").1);
        assert_eq!(daemon.start(), (String::new(), true));
        assert_ne!(daemon.pid(), first);
        assert_eq!(daemon.answer("get_server_list"), "");
    });
}

#[test]
fn commands_are_answered_in_the_daemons_words() {
    on(TWO_A100, |machine| {
        let daemon = Daemon::started(machine, "a", "0");
        let check = |commands: &str, expected: &str| {
            assert_eq!(daemon.answer(commands), expected, "{commands}");
        };
        check("get_default_active_thread_percentage", "100.0");
        check("set_default_active_thread_percentage 25", "25.0");
        check("get_default_device_pinned_mem_limit 0", "");
        check(
            "set_default_device_pinned_mem_limit 0 10240M\nget_default_device_pinned_mem_limit 0",
            "10240M",
        );
        check(
            "set_default_device_pinned_mem_limit 0 5GB",
            "Invalid memory limit 5GB",
        );
        check("get_client_list 1", "Server 1 does not exist");
        check("dance", "Unknown command: dance");
        assert_eq!(daemon.answer("start_server -uid 0"), "");
        let server: u32 = daemon.answer("get_server_list").parse().unwrap();
        check(&format!("get_server_status {server}"), "ACTIVE");
        check(&format!("get_client_list {server}"), "");
        assert_eq!(machine.holders("0").unwrap()[0].pid, server);
        assert!(machine.holders("1").unwrap().is_empty());
        check(&format!("shutdown_server {server}"), "");
        check("get_server_list", "");
        assert!(machine.holders("0").unwrap().is_empty());
    });
}

#[test]
fn a_server_does_not_start_on_a_card_that_another_process_has_for_itself() {
    on(TWO_A100, |machine| {
        machine.set("0", &[("computeMode", "prohibited")]).unwrap();
        let daemon = Daemon::started(machine, "a", "0");
        assert_eq!(
            daemon.answer("start_server -uid 0"),
            "Failed to start a server"
        );
    });
}
