//! One machine in many processes: no change is lost, none is seen half done.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use aliquot_gpusim::edit::EditError;
use aliquot_gpusim::state::{State, StateError, update};
use aliquot_gpusim::{PROFILE_VARIABLE, STATE_VARIABLE, SimulatedMachine};

use crate::common::TWO_A100;

fn gpusim(machine: &SimulatedMachine, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_gpusim"));
    command.args(arguments).env(STATE_VARIABLE, machine.state());
    command
}

fn finish(children: Vec<Child>) {
    for child in children {
        let output = child.wait_with_output().unwrap();
        assert!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
    }
}

fn create(folder: &Path) -> SimulatedMachine {
    SimulatedMachine::create(&folder.join("state"), TWO_A100).unwrap()
}

#[test]
fn applies_concurrent_changes_of_many_processes() {
    let folder = tempfile::tempdir().unwrap();
    let machine = create(folder.path());
    let children = (1..=40).map(|pid: u32| {
        let pid = pid.to_string();
        let mut command = gpusim(&machine, &["process", "add", "0", &pid, "10"]);
        command.stderr(Stdio::piped()).spawn().unwrap()
    });
    finish(children.collect());
    let shown = machine.show().unwrap();
    assert_eq!(shown["gpus"][0]["processes"].as_array().unwrap().len(), 40);
    assert_eq!(shown["gpus"][0]["memoryUsed"], 400);
}

#[test]
fn readers_never_see_a_partial_change() {
    const ROUNDS: u32 = 500;
    let folder = tempfile::tempdir().unwrap();
    let machine = create(folder.path());
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                for _ in 0..ROUNDS {
                    update(machine.state(), |model| {
                        // The first and the last field of a GPU, which lie far apart.
                        model.gpus[1].memory_used += 1;
                        let next = model.gpus[1].memory_used;
                        model.gpus[1].processes[127].memory = next;
                        Ok::<_, StateError>(())
                    })
                    .unwrap();
                }
            });
        }
        let state = State::open(machine.state()).unwrap();
        let deadline = Instant::now() + Duration::from_mins(1);
        let last = u64::from(2 * ROUNDS);
        let mut seen = 0;
        while seen < last {
            let gpu = state.gpu(1);
            assert_eq!(gpu.memory_used, gpu.processes[127].memory);
            assert!(gpu.memory_used >= seen, "time goes back");
            seen = gpu.memory_used;
            assert!(Instant::now() < deadline, "stuck at {seen}");
        }
    });
    assert_eq!(
        State::open(machine.state()).unwrap().generation(),
        2 * ROUNDS
    );
}

#[test]
fn rejected_change_or_dead_writer_leaves_state_unchanged() {
    let folder = tempfile::tempdir().unwrap();
    let machine = create(folder.path());
    machine
        .set("0", &[("utilisation", "40"), ("heat", "1")])
        .unwrap_err();
    assert_eq!(machine.show().unwrap()["gpus"][0]["utilisation"], 0);

    let dies = std::panic::catch_unwind(|| {
        update(machine.state(), |model| -> Result<(), EditError> {
            model.gpus[0].utilisation = 99;
            panic!("a writer dies");
        })
    });
    assert!(dies.is_err());
    assert_eq!(machine.show().unwrap()["gpus"][0]["utilisation"], 0);
    machine.set("0", &[("utilisation", "40")]).unwrap();
    assert_eq!(machine.show().unwrap()["gpus"][0]["utilisation"], 40);
}

#[test]
fn command_creates_changes_and_shows_a_machine() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("machine.yaml");
    std::fs::write(&file, TWO_A100).unwrap();
    let machine = SimulatedMachine::at(&folder.path().join("made"));
    let run = |arguments: &[&str]| {
        let output = gpusim(&machine, arguments).output().unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        (
            output.status.success(),
            text(output.stdout),
            text(output.stderr),
        )
    };
    let check = |arguments: &[&str]| assert!(run(arguments).0, "{arguments:?}");
    check(&["create", "--file", file.to_str().unwrap()]);
    let uuid = machine.show().unwrap()["gpus"][1]["uuid"]
        .as_str()
        .unwrap()
        .to_owned();
    check(&["set", &uuid, "health=lost", "temperature=80"]);
    check(&["xid", "0", "31"]);
    check(&["process", "add", "0", "77", "3000", "--utilisation", "30"]);
    check(&["process", "add", "0", "78", "1000"]);
    check(&["process", "remove", "0", "78"]);

    let (_, shown, _) = run(&["show"]);
    let shown: serde_json::Value = serde_json::from_str(&shown).unwrap();
    assert_eq!(shown["gpus"][1]["health"], "lost");
    assert_eq!(shown["gpus"][1]["temperature"], 80);
    assert_eq!(shown["gpus"][0]["processes"][0]["pid"], 77);
    assert_eq!(shown["gpus"][0]["memoryUsed"], 3000);
    assert_eq!(shown["xids"][0]["code"], 31);

    for (arguments, reason) in [
        (
            &["set", "2", "health=ok"][..],
            "\"2\" is neither an index below 2",
        ),
        (&["set", "0", "health"], "key=value"),
        (&["set", "0", "health=sick"], "ok | lost"),
        (&["process", "remove", "0", "78"], "no process 78"),
        (
            &["process", "add", "0", "1", "1", "--utilisation", "101"],
            "101",
        ),
        (&["show", "--state", "/nowhere"], "/nowhere"),
    ] {
        let (well, _, errors) = run(arguments);
        assert!(!well && errors.contains(reason), "{arguments:?}: {errors}");
    }
}

#[test]
fn variable_gives_the_gpus_of_a_new_machine_a_profile() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("machine.yaml");
    std::fs::write(&file, TWO_A100).unwrap();
    for (profile, switch) in [(None, 0), (Some("harsh"), 200)] {
        let machine = SimulatedMachine::at(&folder.path().join("made"));
        let mut command = gpusim(&machine, &["create", "--file", file.to_str().unwrap()]);
        command
            .env_remove(PROFILE_VARIABLE)
            .envs(profile.map(|name| (PROFILE_VARIABLE, name)));
        assert!(command.status().unwrap().success());
        let settings = &machine.show().unwrap()["gpus"][0]["settings"];
        assert_eq!(settings["switchUs"], switch, "{profile:?}");
    }
}
