//! Random work of many processes at the limit, killed or not, against the simulator's own count of
//! each process. `ALIQUOT_CHURN=long` is the long form, `make hold`.

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use aliquot_gpusim::{Holder, SimulatedMachine, place};
use aliquot_limiter_tests::scene::{CONTEXT, FIRST, MIB, device, doubts, machine};
use aliquot_limiter_tests::{Container, Way};
use aliquot_region::limits::Container as Rules;

/// MiB: eight contexts, and not enough beside them.
const SHARE: u64 = 6000;
const PROCESSES: usize = 8;
const THREADS: usize = 4;
/// The container's name in the simulator.
const GROUP: &str = "pod";
/// Between two kills.
const PACE: Duration = Duration::from_millis(50);
/// Nothing here takes longer, on a machine that is busy with other things too.
const DEADLINE: Duration = Duration::from_mins(20);

/// Rounds of all threads together, and kills.
fn size() -> (usize, usize) {
    match std::env::var("ALIQUOT_CHURN").as_deref() {
        Ok("long") => (1_000_000, 1_000),
        _ => (40_000, 40),
    }
}

struct Room {
    folder: tempfile::TempDir,
    machine: SimulatedMachine,
    container: Container,
    program: String,
}

impl Room {
    fn new(mib: u64) -> Self {
        let (folder, machine) = machine();
        let devices = [device(FIRST, mib)];
        let container = Container::new(&machine, Way::Replacement, Rules::default(), &devices)
            .expect("a container");
        let program = folder.path().join("churn");
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("clients/churn.c");
        let driver = place::cuda_library_path().expect("the driver");
        let made = Command::new("cc")
            .args(["-O2", "-pthread", "-o"])
            .args([&program, &source, &driver])
            .status();
        assert!(made.expect("cc").success());
        let program = program.display().to_string();
        Self {
            folder,
            machine,
            container,
            program,
        }
    }

    fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Rounds that were done.
    fn rounds(&self) -> u64 {
        let bytes = std::fs::read(self.file("rounds")).unwrap_or_default();
        bytes.try_into().map_or(0, u64::from_le_bytes)
    }

    fn command(&self, words: &[&str]) -> Command {
        let mut command = self.container.command(words);
        command
            .env("GPUSIM_GROUP", GROUP)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        command
    }

    /// The most that the container ever held, of the card, contexts included.
    fn peak(&self) -> u64 {
        self.machine.group_peak(FIRST, GROUP).expect("a card")
    }

    /// What each process says in its slot is what the simulator gave it, and nothing more is
    /// charged. Everybody rests.
    fn compare(&self, processes: usize) -> u64 {
        let holders = self.machine.holders(FIRST).expect("a card");
        let mut given: Vec<_> = holders.iter().map(|one| (one.pid, one.used)).collect();
        let report = self.container.report().expect("a counters file");
        let said = report.holders.iter();
        let mut said: Vec<_> = said
            .map(|one| (one.pid.expect("a slot of its own"), one.used[0]))
            .collect();
        given.sort_unstable();
        said.sort_unstable();
        assert_eq!(said, given);
        assert_eq!(given.len(), processes);
        assert_eq!(doubts(&self.machine, &self.container, SHARE), []);
        let sum: u64 = given.iter().map(|(_, used)| used).sum();
        // What ended processes had is in the total until somebody counts anew.
        assert!(processes == 0 || report.totals[0] == sum);
        sum
    }
}

impl Room {
    /// All of the share can be had again, and no more.
    fn is_empty(&self) {
        let left = SHARE - CONTEXT;
        let all = format!("alloc,{left}");
        let said = self.container.client(&["init", "info", &all, "alloc,1"]);
        let expected = [
            "init: 0".to_owned(),
            format!("info: 0 {left} {SHARE}"),
            format!("{all}: 0"),
            "alloc,1: 2".to_owned(),
        ];
        assert_eq!(said.expect("a client"), expected);
    }
}

struct Churn(Child, BufReader<ChildStdout>);

impl Churn {
    fn hears(&mut self) -> String {
        let mut line = String::new();
        self.1.read_line(&mut line).expect("it speaks");
        line.trim_end().to_owned()
    }

    fn go_on(&mut self) {
        let input = self.0.stdin.as_mut().expect("piped");
        input.write_all(b"on\n").expect("it listens");
    }
}

#[test]
fn after_random_work_each_process_is_charged_what_the_driver_gave_it() {
    let room = Room::new(SHARE);
    let (rounds, _) = size();
    let each = (rounds / PROCESSES / THREADS).to_string();
    let count = room.file("rounds").display().to_string();
    let mut all: Vec<Churn> = (1..=PROCESSES)
        .map(|seed| {
            let threads = THREADS.to_string();
            let words = [&room.program, &threads, &each, &seed.to_string(), &count];
            let mut child = room
                .command(&words.map(String::as_str))
                .spawn()
                .expect("churn");
            let output = child.stdout.take().expect("piped");
            Churn(child, BufReader::new(output))
        })
        .collect();
    let begun = Instant::now();
    let mut together = |expected: &str| -> Vec<String> {
        let said: Vec<String> = all.iter_mut().map(Churn::hears).collect();
        assert!(said.iter().all(|one| one.starts_with(expected)), "{said:?}");
        let used = room.compare(PROCESSES);
        assert!(used <= SHARE * MIB, "{expected}: {} MiB", used / MIB);
        all.iter_mut().for_each(Churn::go_on);
        said
    };
    together("ready");
    together("half");
    together("full");
    let said = together("empty");
    for mut one in all {
        assert!(one.0.wait().expect("ends").success());
    }
    let refused: u64 = said
        .iter()
        .filter_map(|one| one.strip_prefix("empty ")?.parse::<u64>().ok())
        .sum();
    let peak = room.peak();
    println!(
        "{} rounds in {:.1} s, {refused} refused, at most {} of {SHARE} MiB (simulated)",
        room.rounds(),
        begun.elapsed().as_secs_f64(),
        peak / MIB
    );
    assert!(refused > 0, "the limit was never met");
    assert!(peak <= SHARE * MIB, "{} MiB", peak / MIB);
    assert!(peak > SHARE * MIB * 9 / 10, "{} MiB", peak / MIB);
    assert_eq!(room.compare(0), 0);
    room.is_empty();
}

#[test]
fn processes_killed_every_fifty_milliseconds_leave_nothing_behind() {
    let room = Room::new(SHARE);
    let (rounds, kills) = size();
    // Each is started anew as soon as it died, until a file says that it is enough.
    let script = r#"
        stop=$1 program=$2 count=$3; shift 3
        for seed in "$@"; do
            while [ ! -e $stop ]; do
                seed=$((seed + 8))
                yes on 2>/dev/null | $program 4 100000000 $seed $count >>$stop.said 2>&1
            done &
        done
        wait"#;
    let stop = room.file("stop").display().to_string();
    let count = room.file("rounds").display().to_string();
    let mut words = vec!["sh", "-c", script, "sh", &stop, &room.program, &count];
    words.extend(["1", "2", "3", "4", "5", "6", "7", "8"]);
    let mut loops = room.command(&words).spawn().expect("churn");
    let begun = Instant::now();
    let mut killed = 0;
    while killed < kills || room.rounds() < rounds as u64 {
        std::thread::park_timeout(PACE);
        let holders = room.machine.holders(FIRST).expect("a card");
        let victim = holders.get(killed % holders.len().max(1));
        if let Some(pid) = victim.and_then(Holder::pid_here) {
            let pid = pid.to_string();
            // It may have died by itself meanwhile: by the same signal of the round before.
            let _ = Command::new("kill").args(["-9", &pid]).status();
            killed += 1;
        }
        let late = begun.elapsed() > DEADLINE;
        assert!(!late, "{killed} kills, {} rounds", room.rounds());
    }
    std::fs::write(&stop, "").expect("a file");
    while loops.try_wait().expect("a child").is_none() {
        for one in room.machine.holders(FIRST).expect("a card") {
            let pid = one.pid_here().expect("visible").to_string();
            let _ = Command::new("kill").args(["-9", &pid]).status();
        }
        std::thread::park_timeout(PACE);
        assert!(begun.elapsed() < DEADLINE);
    }
    let peak = room.peak();
    println!(
        "{killed} kills, {} rounds in {:.1} s, at most {} of {SHARE} MiB (simulated)",
        room.rounds(),
        begun.elapsed().as_secs_f64(),
        peak / MIB
    );
    // No call was answered with anything but success or out of memory.
    let said = std::fs::read_to_string(format!("{stop}.said")).unwrap_or_default();
    assert!(
        said.lines().all(|line| line == "ready" || line == "Killed"),
        "{said}"
    );
    assert!(peak <= SHARE * MIB, "{} MiB", peak / MIB);
    room.is_empty();
}

#[test]
fn what_is_free_never_rises_without_a_free() {
    let room = Room::new(1500);
    let (rounds, _) = size();
    let rounds = (rounds / 10).to_string();
    for seed in ["1", "2"] {
        let words = [room.program.as_str(), "free", &rounds, seed];
        let output = room.command(&words).output().expect("churn");
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        assert_eq!(said, "rose 0 fell 0 refused 1\n", "{output:?}");
    }
}
