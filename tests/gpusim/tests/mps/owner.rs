//! A daemon as its owner sees it: start, commands, answers, exit.
//!
//! Facts of: Multi-Process Service, Appendix: Tools and Interface Reference.

use std::io::Write as _;
use std::os::unix::net::UnixStream;

use aliquot_gpusim::SimulatedMachine;

use crate::common::{TWO_A100, until};
use crate::daemon::{Daemon, runs};

fn on(yaml: &str, body: impl FnOnce(&SimulatedMachine)) {
    let folder = tempfile::tempdir().unwrap();
    body(&SimulatedMachine::create(&folder.path().join("state"), yaml).unwrap());
}

#[test]
fn rejects_second_daemon_in_the_same_directories() {
    on(TWO_A100, |machine| {
        let daemon = Daemon::new(machine, "a", "0");
        let missing = "Cannot find MPS control daemon process".to_owned();
        assert_eq!(
            daemon.command_output("get_server_list"),
            (missing.clone(), false)
        );
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
        assert_eq!(daemon.command_output("quit"), (missing, false));
    });
}

#[test]
fn answers_commands_like_the_real_daemon() {
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
        check(
            "set_default_active_thread_percentage 101",
            "Thread percentage must be in the range (0, 100]",
        );
        check("get_client_list 1", "Server 1 does not exist");
        check("dance", "Unknown command: dance");
        assert_eq!(daemon.answer("start_server -uid 0"), "");
        let server: u32 = daemon.answer("get_server_list").parse().unwrap();
        check(&format!("get_server_status {server}"), "ACTIVE");
        check(&format!("get_client_list {server}"), "");
        assert_eq!(machine.process_usage("0").unwrap()[0].pid, server);
        assert!(machine.process_usage("1").unwrap().is_empty());
    });
}

#[test]
fn mps_16_other_users_wait_unless_daemon_is_multiuser() {
    on(TWO_A100, |machine| {
        for (name, more, waits) in [
            ("one", &[][..], true),
            ("all", &["-multiuser-server"], false),
        ] {
            let daemon = Daemon::new(machine, name, "0");
            assert_eq!(daemon.start_with(more), (String::new(), true));
            assert_eq!(daemon.answer("start_server -uid 1000"), "");
            let first = daemon.answer("get_server_list");
            let server = daemon.pipe.join(format!("server_{first}"));
            let mut client = UnixStream::connect(server).unwrap();
            writeln!(client, "client 7").unwrap();
            until("the client is in", || {
                !daemon
                    .answer(&format!("get_client_list {first}"))
                    .is_empty()
            });
            let other = || daemon.answer("start_server -uid 2000\nget_server_list");
            std::thread::scope(|threads| {
                let asked = threads.spawn(other);
                if waits {
                    // As long as the first user's client is there.
                    let clients = daemon.answer(&format!("get_client_list {first}"));
                    assert!(!clients.is_empty() && !asked.is_finished());
                    drop(client);
                    assert_ne!(asked.join().unwrap(), first, "a server of its own");
                } else {
                    assert_eq!(asked.join().unwrap(), first, "one server for all");
                    drop(client);
                }
            });
            daemon.answer("quit -t 0");
        }
        let daemon = Daemon::new(machine, "odd", "0");
        let unknown = "Unknown option -odd".to_owned();
        assert_eq!(daemon.start_with(&["-odd"]), (unknown, false));
    });
}

#[test]
fn server_does_not_start_on_an_unavailable_gpu() {
    on(TWO_A100, |machine| {
        machine.set("0", &[("computeMode", "prohibited")]).unwrap();
        let daemon = Daemon::started(machine, "a", "0");
        assert_eq!(
            daemon.answer("start_server -uid 0"),
            "Failed to start a server"
        );
    });
}
