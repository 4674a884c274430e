//! Memory that processes share, by descriptors and by IPC handles, whoever lets go first or dies: each
//! process that has it is charged, and a container once. The driver is as unkind as a real one: the
//! memory lives until its last descriptor, import and mapping are gone, and all descriptors are files of
//! one node.

use aliquot_gpusim::SimulatedMachine;
use aliquot_limiter_tests::scene::{CONTEXT, FIRST, MIB, container, machine};
use aliquot_limiter_tests::{InjectionMethod, TalkingProgram, TestContainer, client};

const SHARE: u64 = 4000;
/// MiB of a shared block.
const BLOCK: u64 = 64;

/// A process of `sharer.py`.
struct Sharer {
    program: TalkingProgram,
    pid: String,
}

impl Sharer {
    fn start(container: &TestContainer) -> Self {
        let client = client().replace("client.py", "sharer.py");
        let mut command = container.command(&["python3", &client]);
        let mut program = TalkingProgram::start(&mut command).expect("a program");
        let line = program.read_line().expect("it answers");
        let pid = line.strip_prefix("ready ").expect("ready").to_owned();
        Self { program, pid }
    }

    fn ask(&mut self, line: &str) -> String {
        self.program.write_line(line).expect("it listens");
        self.program.read_line().expect("it answers")
    }

    /// A command that must succeed.
    #[track_caller]
    fn run(&mut self, line: &str) {
        assert_eq!(self.ask(line), "0", "{line}");
    }

    /// MiB that are free in its container.
    fn free(&mut self) -> u64 {
        self.ask("info").parse().expect("a number")
    }

    /// Exports a block; where its descriptor is: process and number.
    fn export(&mut self, name: &str) -> String {
        let number = self.ask(&format!("export {name}"));
        format!("{} {number}", self.pid)
    }

    fn kill(mut self) {
        self.program.child.kill().expect("a kill");
        self.program.child.wait().expect("its end");
    }
}

/// A machine, and a container with three processes that have contexts.
struct Scene {
    _temp: tempfile::TempDir,
    machine: SimulatedMachine,
    container: TestContainer,
    exporter: Sharer,
    importer: Sharer,
    neighbour: Sharer,
    /// Blocks that the neighbour has.
    count: u64,
}

impl Scene {
    fn new() -> Self {
        let (temp, machine) = machine();
        let container = container(&machine, InjectionMethod::Replacement, SHARE);
        let [exporter, importer, neighbour] = [(); 3].map(|()| Sharer::start(&container));
        Self {
            _temp: temp,
            machine,
            container,
            exporter,
            importer,
            neighbour,
            count: 0,
        }
    }

    /// Kills the exporter; another takes its place.
    fn kill_exporter(&mut self) {
        let next = Sharer::start(&self.container);
        std::mem::replace(&mut self.exporter, next).kill();
    }

    /// Checks that these many MiB are counted beside contexts, while a neighbour allocates and frees.
    #[track_caller]
    fn check(&mut self, expected: u64, what: &str) {
        self.count += 1;
        let name = self.count;
        self.neighbour.run(&format!("alloc {name} 6"));
        if name > 3 {
            self.neighbour.run(&format!("free {}", name - 3));
        }
        let others = 6 * name.min(3);
        let expected = SHARE - 3 * CONTEXT - others - expected;
        assert_eq!(self.neighbour.free(), expected, "{what}");
        let held = self
            .container
            .counters_snapshot()
            .expect("counters")
            .held(0);
        assert_eq!(held / MIB, SHARE - expected, "{what}, by the host");
    }
}

/// What the two processes may still do with a block, and what of it exists.
#[derive(Clone, Copy, Debug, Default)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "any combination of them may exist"
)]
struct Model {
    creator_has: bool,
    creator_file: bool,
    importer_file: bool,
    importer_has: bool,
    importer_maps: bool,
}

impl Model {
    fn exists(self) -> bool {
        self.creator_has
            || self.creator_file
            || self.importer_file
            || self.importer_has
            || self.importer_maps
    }
}

#[test]
fn shared_block_is_counted_once_in_every_order() {
    let mut scene = Scene::new();
    let mut dice: u64 = 0x1234_5678_9abc_def1;
    let mut roll = |sides: u64| {
        dice ^= dice << 13;
        dice ^= dice >> 7;
        dice ^= dice << 17;
        dice % sides
    };
    let mut deaths = 0;
    for round in 0..60 {
        scene.exporter.run("create a 64");
        let place = scene.exporter.export("a");
        let mut model = Model {
            creator_has: true,
            creator_file: true,
            ..Model::default()
        };
        let mut steps = Vec::new();
        while model.exists() {
            let step = roll(9);
            match step {
                0 if model.creator_has => {
                    scene.exporter.run("release a");
                    model.creator_has = false;
                }
                1 if model.creator_file => {
                    scene.exporter.run("drop a");
                    model.creator_file = false;
                }
                2 | 3 if model.creator_file && !model.importer_file => {
                    scene.importer.run(&format!("take a {place}"));
                    model.importer_file = true;
                }
                4 if model.importer_file && !model.importer_has && !model.importer_maps => {
                    scene.importer.run("own a");
                    model.importer_has = true;
                }
                5 if model.importer_has && !model.importer_maps => {
                    scene.importer.run("map a 64");
                    model.importer_maps = true;
                }
                6 if model.importer_file => {
                    scene.importer.run("drop a");
                    model.importer_file = false;
                }
                7 if model.importer_has => {
                    scene.importer.run("release a");
                    model.importer_has = false;
                }
                8 if model.importer_maps => {
                    scene.importer.run("unmap a");
                    model.importer_maps = false;
                }
                _ => continue,
            }
            steps.push(step);
            // Now and then one of them dies in between.
            if roll(12) == 0 {
                deaths += 1;
                if roll(2) == 0 {
                    scene.kill_exporter();
                    (model.creator_has, model.creator_file) = (false, false);
                    steps.push(100);
                } else {
                    let next = Sharer::start(&scene.container);
                    std::mem::replace(&mut scene.importer, next).kill();
                    model.importer_file = false;
                    (model.importer_has, model.importer_maps) = (false, false);
                    steps.push(101);
                }
            }
            let expected = if model.exists() { BLOCK } else { 0 };
            scene.check(expected, &format!("round {round}, {steps:?}, {model:?}"));
        }
    }
    assert!(deaths > 5, "{deaths} deaths");
}

#[test]
fn opened_allocations_leave_nothing_behind_in_100_rounds() {
    let mut scene = Scene::new();
    for round in 0..100 {
        scene.exporter.run("alloc a 64");
        let words = scene.exporter.ask("ipc a");
        scene.importer.run(&format!("open a {words}"));
        scene.check(BLOCK, "opened");
        if round % 2 == 0 {
            scene.exporter.run("free a");
            scene.check(BLOCK, "freed by its owner");
            scene.importer.run("close a");
        } else {
            scene.importer.run("close a");
            scene.check(BLOCK, "closed");
            scene.exporter.run("free a");
        }
    }
    scene.check(0, "after 100 rounds");
    // Its owner dies.
    scene.exporter.run("alloc a 64");
    let words = scene.exporter.ask("ipc a");
    scene.importer.run(&format!("open a {words}"));
    scene.kill_exporter();
    scene.check(BLOCK, "its owner is dead");
    scene.importer.run("close a");
    scene.check(0, "closed");
}

#[test]
fn each_container_pays_for_memory_of_another() {
    let mut scene = Scene::new();
    let other = container(&scene.machine, InjectionMethod::Replacement, 600);
    let mut stranger = Sharer::start(&other);
    let before = stranger.free();
    scene.exporter.run("create a 64");
    let place = scene.exporter.export("a");
    stranger.run(&format!("take a {place}"));
    stranger.run("own a");
    // No call tells its size before it is mapped.
    assert_eq!(stranger.free(), before);
    stranger.run("map a 64");
    assert_eq!(stranger.free(), before - 64);
    scene.check(BLOCK, "imported elsewhere");
    stranger.run("drop a");
    scene.exporter.run("drop a");
    scene.exporter.run("release a");
    scene.check(0, "released");
    stranger.run("release a");
    assert_eq!(stranger.free(), before - 64);
    stranger.run("unmap a");
    assert_eq!(stranger.free(), before);
    scene.exporter.run("alloc b 512");
    let words = scene.exporter.ask("ipc b");
    let refused = stranger.ask(&format!("open b {words}"));
    assert_eq!(refused, "2", "beyond its own share");
    assert_eq!(stranger.free(), before);
    let used: u64 = scene
        .machine
        .process_usage(FIRST)
        .expect("a GPU")
        .iter()
        .map(|one| one.imported)
        .sum();
    assert_eq!(used, 0, "it was closed again");
}

#[test]
fn memory_of_shared_pool_outlives_its_creator() {
    let mut scene = Scene::new();
    let share = |scene: &mut Scene| {
        scene.exporter.run("pool a 64");
        let words = scene.exporter.ask("sharepool a");
        let open = format!("openpool a {} {words}", scene.exporter.pid);
        scene.importer.run(&open);
        scene.check(BLOCK, "opened");
    };
    share(&mut scene);
    // As the driver demands: first the others.
    scene.importer.run("free a");
    scene.check(BLOCK, "freed by the other");
    scene.exporter.run("free a");
    scene.check(BLOCK, "reserved by the pool");
    scene.kill_exporter();
    scene.check(0, "its creator is dead");
    share(&mut scene);
    scene.kill_exporter();
    scene.check(BLOCK, "the other has it");
    scene.importer.run("free a");
    scene.check(0, "freed");
}
