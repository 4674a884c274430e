//! Random work of many processes at the limit, killed or not, against the simulator's own count for
//! each process. `ALIQUOT_CHURN=long` runs the long form, `make hold`.

use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use aliquot_gpusim::{ProcessUsage, SimulatedMachine, place};
use aliquot_limiter_tests::scene::{
    CONTEXT, FIRST, MIB, compile, container, inconsistencies, machine,
};
use aliquot_limiter_tests::{InjectionMethod, TalkingProgram, TestContainer};

/// MiB: eight contexts, and not enough memory beside them.
const SHARE: u64 = 6000;
const PROCESSES: usize = 8;
const THREADS: usize = 4;
/// The container's name in the simulator.
const GROUP: &str = "pod";
const KILL_INTERVAL: Duration = Duration::from_millis(50);
/// Deadline of the tests, even on a busy machine.
const DEADLINE: Duration = Duration::from_mins(20);

/// Rounds of all threads together, and number of kills.
fn rounds_and_kills() -> (usize, usize) {
    match std::env::var("ALIQUOT_CHURN").as_deref() {
        Ok("long") => (1_000_000, 1_000),
        _ => (40_000, 40),
    }
}

struct ChurnSetup {
    folder: tempfile::TempDir,
    machine: SimulatedMachine,
    container: TestContainer,
    program: String,
}

impl ChurnSetup {
    fn new(mib: u64) -> Self {
        let (folder, machine) = machine();
        let container = container(&machine, InjectionMethod::Replacement, mib);
        let driver = place::cuda_library_path().expect("the driver");
        let arguments = ["-pthread", driver.to_str().expect("text")];
        let program = compile(folder.path(), "churn.c", "churn", &arguments).expect("churn");
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

    /// Completed rounds.
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

    /// The most that the container ever had of the GPU, contexts included.
    fn peak(&self) -> u64 {
        self.machine.group_peak(FIRST, GROUP).expect("a GPU")
    }

    /// Checks that each process's slot has what the simulator gave it, and that nothing more is
    /// charged. No process works meanwhile.
    fn compare(&self, processes: usize) -> u64 {
        let holders = self.machine.process_usage(FIRST).expect("a GPU");
        let mut simulated: Vec<_> = holders.iter().map(|one| (one.pid, one.used)).collect();
        let snapshot = self.container.counters_snapshot().expect("a counters file");
        let lines = snapshot.processes.iter();
        let mut lines: Vec<_> = lines
            .map(|one| (one.pid.expect("a slot of its own"), one.device(0).used))
            .collect();
        simulated.sort_unstable();
        lines.sort_unstable();
        assert_eq!(lines, simulated);
        assert_eq!(simulated.len(), processes);
        assert_eq!(inconsistencies(&self.machine, &self.container, SHARE), []);
        let sum: u64 = simulated.iter().map(|(_, used)| used).sum();
        // Memory of ended processes stays in the total until it is corrected.
        assert!(processes == 0 || snapshot.device(0).total == sum);
        sum
    }

    /// Checks that all of the share can be allocated again, and no more.
    fn assert_all_free(&self) {
        let left = SHARE - CONTEXT;
        self.container.check(&format!(
            "init: 0; info: 0 {left} {SHARE}; alloc,{left}: 0; alloc,1: 2"
        ));
    }
}

#[test]
fn charges_each_process_exactly_after_random_work() {
    let setup = ChurnSetup::new(SHARE);
    let (rounds, _) = rounds_and_kills();
    let each = (rounds / PROCESSES / THREADS).to_string();
    let count = setup.file("rounds").display().to_string();
    let mut all: Vec<TalkingProgram> = (1..=PROCESSES)
        .map(|seed| {
            let threads = THREADS.to_string();
            let words = [&setup.program, &threads, &each, &seed.to_string(), &count];
            let mut command = setup.command(&words.map(String::as_str));
            TalkingProgram::start(&mut command).expect("churn")
        })
        .collect();
    let begun = Instant::now();
    let mut together = |expected: &str| -> Vec<String> {
        let lines = all.iter_mut().map(TalkingProgram::read_line);
        let lines: Vec<String> = lines.collect::<Result<_, _>>().expect("they speak");
        assert!(
            lines.iter().all(|one| one.starts_with(expected)),
            "{lines:?}"
        );
        let used = setup.compare(PROCESSES);
        assert!(used <= SHARE * MIB, "{expected}: {} MiB", used / MIB);
        for one in &mut all {
            one.write_line("on").expect("it listens");
        }
        lines
    };
    together("ready");
    together("half");
    together("full");
    let lines = together("empty");
    for mut one in all {
        one.end().expect("an end");
    }
    let refused: u64 = lines
        .iter()
        .filter_map(|one| one.strip_prefix("empty ")?.parse::<u64>().ok())
        .sum();
    let peak = setup.peak();
    println!(
        "{} rounds in {:.1} s, {refused} refused, at most {} of {SHARE} MiB (simulated)",
        setup.rounds(),
        begun.elapsed().as_secs_f64(),
        peak / MIB
    );
    assert!(refused > 0, "the limit was never met");
    assert!(peak <= SHARE * MIB, "{} MiB", peak / MIB);
    assert!(peak > SHARE * MIB * 9 / 10, "{} MiB", peak / MIB);
    assert_eq!(setup.compare(0), 0);
    setup.assert_all_free();
}

#[test]
fn reclaims_everything_of_constantly_killed_processes() {
    let setup = ChurnSetup::new(SHARE);
    let (rounds, kills) = rounds_and_kills();
    // Each is restarted as soon as it dies, until a file stops the loops.
    let script = r#"
        stop=$1 program=$2 count=$3; shift 3
        for seed in "$@"; do
            while [ ! -e $stop ]; do
                seed=$((seed + 8))
                yes on 2>/dev/null | $program 4 100000000 $seed $count >>$stop.said 2>&1
            done &
        done
        wait"#;
    let stop = setup.file("stop").display().to_string();
    let count = setup.file("rounds").display().to_string();
    let mut words = vec!["sh", "-c", script, "sh", &stop, &setup.program, &count];
    words.extend(["1", "2", "3", "4", "5", "6", "7", "8"]);
    let mut loops = setup.command(&words).spawn().expect("churn");
    let begun = Instant::now();
    let (mut killed, mut tried) = (0, 0);
    while killed < kills || setup.rounds() < rounds as u64 {
        std::thread::park_timeout(KILL_INTERVAL);
        let holders = setup.machine.process_usage(FIRST).expect("a GPU");
        let victim = holders.get(tried % holders.len().max(1));
        if let Some(pid) = victim.and_then(ProcessUsage::pid_here) {
            let pid = pid.to_string();
            // One that has died already, by the signal of the previous round, does not count.
            let signal = Command::new("kill").args(["-9", &pid]).status();
            killed += usize::from(signal.expect("kill").success());
            tried += 1;
        }
        let late = begun.elapsed() > DEADLINE;
        assert!(!late, "{killed} kills, {} rounds", setup.rounds());
    }
    std::fs::write(&stop, "").expect("a file");
    while loops.try_wait().expect("a child").is_none() {
        for one in setup.machine.process_usage(FIRST).expect("a GPU") {
            let pid = one.pid_here().expect("visible").to_string();
            let _ = Command::new("kill").args(["-9", &pid]).status();
        }
        std::thread::park_timeout(KILL_INTERVAL);
        assert!(begun.elapsed() < DEADLINE);
    }
    let peak = setup.peak();
    println!(
        "{killed} kills, {} rounds in {:.1} s, at most {} of {SHARE} MiB (simulated)",
        setup.rounds(),
        begun.elapsed().as_secs_f64(),
        peak / MIB
    );
    // No call returned anything but success or out of memory.
    let lines = std::fs::read_to_string(format!("{stop}.said")).expect("what they said");
    assert!(
        lines
            .lines()
            .all(|line| line == "ready" || line == "Killed"),
        "{lines}"
    );
    assert!(peak <= SHARE * MIB, "{} MiB", peak / MIB);
    setup.assert_all_free();
}

#[test]
fn never_raises_free_memory_without_a_free() {
    let setup = ChurnSetup::new(1500);
    let (rounds, _) = rounds_and_kills();
    let rounds = (rounds / 10).to_string();
    for seed in ["1", "2"] {
        let words = [setup.program.as_str(), "free", &rounds, seed];
        let output = setup.command(&words).output().expect("churn");
        let lines = String::from_utf8_lossy(&output.stdout).into_owned();
        assert_eq!(lines, "rose 0 fell 0 refused 1\n", "{output:?}");
    }
}
