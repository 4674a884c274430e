//! Containers on a unit whose daemon is said to serve, or not to; no daemon and no keeper runs.

use aliquot_core::PodUid;
use std::thread::ScopedJoinHandle;

use aliquot_core::inventory::{self, Even};

use super::*;
use crate::host::{Card, Part};

const GPU: &str = "GPU-a";

/// A unit whose daemon is said to serve.
struct Scene {
    root: tempfile::TempDir,
    daemons: Daemons,
}

impl Scene {
    fn new() -> Self {
        let root = tempfile::tempdir().expect("a folder");
        let daemons = Daemons::new(root.path().to_owned());
        Self { root, daemons }
    }

    fn served(wish: bool) -> Self {
        let scene = Self::new();
        if wish {
            let wish = plan::wish(GPU, Mib(40_960), &Mps::new(4), Some(GPU));
            scene.folder().put_wish(&wish).expect("written");
            scene.say(Phase::Running, Some(wish));
        }
        scene
    }

    fn folder(&self) -> Folder {
        Folder::new(self.root.path(), GPU)
    }

    fn say(&self, phase: Phase, wish: Option<Wish>) {
        let status = Status {
            v: 1,
            phase,
            wish,
            daemon: Some(7),
            since: 0,
            restarts: 0,
            losses: 0,
            faults: 0,
            servers: Vec::new(),
            shm: Some("/run/shm-of-mps".into()),
            one_user: false,
        };
        self.folder().put_status(&status).expect("written");
    }

    fn equip(&self, gpu: &str, memory: u64, cores: u32, outfit: &mut Outfit) -> Result<(), String> {
        self.equip_part(None, gpu, memory, cores, outfit)
    }

    /// The same on a unit that is an instance.
    fn equip_part(
        &self,
        part: Option<Part>,
        gpu: &str,
        memory: u64,
        cores: u32,
        outfit: &mut Outfit,
    ) -> Result<(), String> {
        let grant = Grant {
            resource: "nvidia.com/gpu".to_owned(),
            gpu: gpu.into(),
            memory: Mib(memory),
            cores: Percent(cores),
            seats: 1,
            mig: None,
        };
        let share = Share {
            pod: &PodUid::from("u1"),
            container: "main",
            grant: &grant,
            place: 0,
            mode: inventory::Mode::Mps,
            card: &Card {
                uuid: gpu.into(),
                index: 0,
                minor: Some(0),
                part,
            },
            beside: &[],
        };
        let equipped = self.daemons.equip(&share, outfit);
        equipped.map_err(|error| error.to_string())
    }
}

#[test]
fn a_container_gets_its_own_caps_and_its_own_daemon() {
    let scene = Scene::served(true);
    let mut outfit = Outfit::default();
    scene.equip(GPU, 3000, 20, &mut outfit).expect("equipped");
    assert_eq!(
        outfit.variables,
        [
            "CUDA_MPS_PIPE_DIRECTORY=/.aliquot-mps",
            "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=3000M",
            "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=20",
        ]
    );
    assert_eq!(outfit.visible, [GPU]);
    let pipe = scene.root.path().join("GPU-a/pipe");
    assert_eq!(outfit.mounts[0]["hostPath"], json!(pipe));
    assert_eq!(outfit.mounts[1]["hostPath"], json!("/run/shm-of-mps"));
    assert_eq!(outfit.mounts[1]["containerPath"], json!("/dev/shm"));
    assert!(outfit.limited, "the total of its clients is libvgpu.so's");
}

#[test]
fn no_cap_is_no_variable() {
    let scene = Scene::served(true);
    let mut free = Outfit::default();
    scene.equip(GPU, 0, 0, &mut free).expect("equipped");
    assert_eq!(free.variables, ["CUDA_MPS_PIPE_DIRECTORY=/.aliquot-mps"]);
    assert!(!free.limited);
}

#[test]
fn a_container_starts_only_beside_a_daemon_that_serves() {
    let down = Scene::served(true);
    down.say(Phase::Down("it ended by itself".to_owned()), None);
    let check = |scene: &Scene, gpu: &str, outfit: &mut Outfit, expected: &str| {
        let text = scene.equip(gpu, 3000, 20, outfit).expect_err(expected);
        assert!(text.contains(expected), "{text}");
    };
    check(&down, GPU, &mut Outfit::default(), "it ended by itself");
    let none = Scene::served(false);
    check(&none, GPU, &mut Outfit::default(), "leaving mode mps");
}

#[test]
fn a_container_was_given_the_daemon_of_an_instance_that_a_reboot_took() {
    let scene = Scene::served(true);
    let part = |current: &str| {
        Some(Part {
            current: current.to_owned(),
            gpu_instance: 1,
            compute_instance: 0,
        })
    };
    let equip = |current| scene.equip_part(part(current), GPU, 3000, 20, &mut Outfit::default());
    let text = equip("MIG-new").expect_err("another daemon");
    assert!(text.contains("it is started anew for MIG-new"), "{text}");
    equip(GPU).expect("its own daemon");
}

#[test]
fn a_status_that_cannot_be_read_started_a_container_without_shared_memory() {
    let scene = Scene::served(true);
    let status = scene.folder().path().join("status.json");
    std::fs::write(&status, "{").expect("written");
    let refused = scene.equip(GPU, 3000, 20, &mut Outfit::default());
    refused.expect_err("nothing is known of the daemon");
}

#[test]
fn a_unit_by_mps_was_refused_after_another_unit_and_not_before_one() {
    let grants = |units: &[&str]| -> Vec<Grant> {
        let grant = |unit: &&str| crate::testing::grant(unit, 1000, 10);
        units.iter().map(grant).collect()
    };
    let mode = |unit: &GpuUuid| match unit.as_str() {
        GPU => Some(Shared::Mps),
        "GPU-b" => Some(Shared::Exclusive),
        _ => None,
    };
    let check = |units: &[&str], expected: Option<&str>| {
        let grants = grants(units);
        let found = beside_another(&grants, mode);
        assert_eq!(found.map(GpuUuid::as_str), expected, "{units:?}");
    };
    check(&[GPU], None);
    check(&["GPU-b", "GPU-c"], None);
    check(&[GPU, "GPU-b"], Some(GPU));
    check(&["GPU-b", GPU], Some(GPU));
    check(&[GPU, GPU], Some(GPU));
}

#[test]
fn a_share_above_the_even_part_waits_until_the_daemon_allows_it() {
    let scene = Scene::served(true);
    let folder = scene.folder();
    std::thread::scope(|threads| {
        let started = threads.spawn(|| scene.equip(GPU, 20_000, 50, &mut Outfit::default()));
        let deadline = Instant::now() + Duration::from_mins(1);
        let raised = loop {
            let wish = folder.wish().expect("read").expect("a wish");
            if wish.memory == Mib(20_000) {
                break wish;
            }
            assert!(Instant::now() < deadline, "never raised");
            std::thread::yield_now();
        };
        assert!(!started.is_finished(), "it waits for the keeper");
        scene.say(Phase::Running, Some(raised));
        started.join().expect("no panic").expect("equipped");
    });
    // What was raised stays so when the agent starts again.
    let place = Place {
        unit: GPU,
        current: GPU,
        memory: Mib(40_960),
        capability: Some((8, 0)),
        part: None,
    };
    scene.daemons.begin(place, &Mps::new(4)).expect("it serves");
    let wish = folder.wish().expect("read").expect("a wish");
    assert_eq!((wish.memory, wish.threads), (Mib(20_000), Percent(50)));
}

#[test]
fn shares_that_came_together_took_back_what_the_other_had_raised() {
    const SHARES: [(u64, u32); 8] = [
        (12_000, 30),
        (20_000, 10),
        (15_000, 90),
        (11_000, 70),
        (39_000, 26),
        (14_000, 60),
        (10_500, 99),
        (30_000, 40),
    ];
    let scene = Scene::served(true);
    let folder = scene.folder();
    std::thread::scope(|threads| {
        let scene = &scene;
        let started = SHARES.map(|(memory, cores)| {
            threads.spawn(move || scene.equip(GPU, memory, cores, &mut Outfit::default()))
        });
        // A keeper that serves the wish of the moment, which is never less than before.
        let mut last = folder.wish().expect("read").expect("a wish");
        while !started.iter().all(ScopedJoinHandle::is_finished) {
            let wish = folder.wish().expect("read").expect("a wish");
            assert!(wish.allows(&last), "{wish:?} after {last:?}");
            scene.say(Phase::Running, Some(wish.clone()));
            last = wish;
            std::thread::yield_now();
        }
        for one in started {
            one.join().expect("no panic").expect("equipped");
        }
    });
    let wish = folder.wish().expect("read").expect("a wish");
    assert_eq!((wish.memory, wish.threads), (Mib(39_000), Percent(99)));
}

#[test]
fn more_replicas_than_a_daemon_serves_are_refused_before_anything_is_done() {
    let scene = Scene::new();
    let place = Place {
        unit: "MIG-a",
        current: "MIG-a",
        memory: Mib(20_000),
        capability: Some((8, 0)),
        part: Some((3, 7)),
    };
    let refused = scene.daemons.begin(place, &Mps::new(21));
    let text = refused.expect_err("too many").to_string();
    assert!(text.contains("1 to 20"), "{text}");
    assert!(
        Folder::new(scene.root.path(), "MIG-a")
            .wish()
            .expect("read")
            .is_none()
    );
}

fn card(settings: &Mps) -> Gpu {
    let whole: Gpu = serde_json::from_value(json!({
        "uuid": GPU, "index": 0, "model": "A100", "memory": 40_960, "scaled": 40_960,
        "cores": 100, "seats": 0, "mode": "vgpu", "resource": "nvidia.com/gpu", "health": "ok",
    }))
    .expect("a card");
    unit(whole, settings)
}

#[test]
fn mps_1_a_card_has_a_seat_for_each_replica_and_eight_cards_have_thirty_two() {
    let four = card(&Mps::new(4));
    let even = Even {
        memory: Mib(10_240),
        cores: Percent(25),
    };
    assert_eq!((four.seats, four.even), (4, Some(even)));
    assert_eq!(
        (four.resource.as_str(), four.strict),
        ("nvidia.com/gpu", true)
    );
    for (cards, seats) in [(1, 4), (4, 16), (8, 32)] {
        let sum: u32 = (0..cards).map(|_| card(&Mps::new(4)).seats).sum();
        assert_eq!(sum, seats, "{cards} cards");
    }
}

#[test]
fn mps_2_seats_have_the_name_that_the_profile_gives_them() {
    let renamed = Mps {
        rename: Some("nvidia.com/gpu.shared".to_owned()),
        ..Mps::new(4)
    };
    assert_eq!(card(&renamed).resource, "nvidia.com/gpu.shared");
}
