//! Cards that are cut, on a driver of which every call is seen.

use std::sync::atomic::AtomicU8;
use std::time::{Duration, Instant};

use aliquot_core::mig::table;
use aliquot_core::{Grant, Mib, Percent, PodUid, inventory};
use aliquot_nvml::{Cut, Event, Inventory, MigError, NvmlError};
use aliquot_profiles::mode::Vgpu;

use super::*;
use crate::host::Card;
use crate::modes::mig::names::Named;
use crate::mps::folder::Folder;
use crate::mps::plan::wish;

const PATIENCE: Duration = Duration::from_mins(1);

/// Cards of one model.
#[derive(Default)]
struct Cards {
    /// Instances by card; a card without MIG is not in it.
    cut: Mutex<BTreeMap<String, Vec<nvml::Instance>>>,
    /// How often MIG was switched, on or off.
    switched: AtomicU8,
    made: AtomicU8,
    /// While an instance is made.
    making: Mutex<Option<Box<dyn Fn() + Send>>>,
    /// Processes have the cards open.
    open: AtomicBool,
}

fn geometry() -> Geometry {
    table::geometry("NVIDIA A100-SXM4-40GB").expect("known")
}

impl Driver for Cards {
    fn inventory(&self) -> Result<Inventory, NvmlError> {
        unreachable!("nobody asks here")
    }

    fn health(&self) -> Result<Vec<nvml::CardHealth>, NvmlError> {
        unreachable!("nobody asks here")
    }

    fn wait_events(&self, _: Duration) -> Result<Vec<Event>, NvmlError> {
        unreachable!("nobody asks here")
    }

    fn cut(&self, card: &str) -> Result<Cut, MigError> {
        let found = self.cut.lock().get(card).cloned();
        Ok(Cut {
            geometry: found.is_some().then(geometry),
            instances: found.unwrap_or_default(),
        })
    }

    fn set_mig(&self, card: &str, on: bool) -> Result<Activation, MigError> {
        self.switched.fetch_add(1, Ordering::Relaxed);
        if self.open.load(Ordering::Relaxed) {
            return Ok(Activation::AtReset);
        }
        let mut cut = self.cut.lock();
        if on {
            cut.entry(card.to_owned()).or_default();
        } else {
            cut.remove(card);
        }
        Ok(Activation::Now)
    }

    fn create_instance(
        &self,
        card: &str,
        profile: &str,
        start: u8,
    ) -> Result<nvml::Instance, MigError> {
        if let Some(making) = &*self.making.lock() {
            making();
        }
        let id = self.made.fetch_add(1, Ordering::Relaxed).into();
        let uuid = format!("MIG-{id}");
        let made = nvml::Instance {
            profile: profile.to_owned(),
            start,
            size: 1,
            memory: Mib(4864),
            id,
            devices: vec![nvml::Device {
                current: uuid.clone(),
                uuid,
                id: 0,
                whole: true,
            }],
        };
        let mut cut = self.cut.lock();
        cut.entry(card.to_owned()).or_default().push(made.clone());
        Ok(made)
    }

    fn destroy_instance(&self, card: &str, id: u32) -> Result<(), MigError> {
        let mut cut = self.cut.lock();
        cut.entry(card.to_owned())
            .or_default()
            .retain(|one| one.id != id);
        Ok(())
    }
}

/// A cutter of these cards, with its state.
struct Scene {
    state: tempfile::TempDir,
    cards: Arc<Cards>,
    cutter: Cutter,
}

impl Scene {
    fn new() -> Self {
        let state = tempfile::tempdir().expect("a folder");
        let cards = Arc::new(Cards::default());
        let names = state.path().join("mig");
        let driver = Named::new(Arc::clone(&cards) as Arc<dyn Driver>, names.clone());
        let mps = Arc::new(mps::Daemons::new(state.path().join("mps")));
        let cutter = Cutter::new(Arc::new(driver), names, mps);
        Self {
            state,
            cards,
            cutter,
        }
    }

    fn daemon(&self, unit: &str) -> Folder {
        Folder::new(&self.state.path().join("mps"), unit)
    }

    fn instances(&self, card: &str) -> Vec<String> {
        let found = self.cards.cut(card).expect("told").instances;
        let said = |one: &nvml::Instance| format!("{}@{} {}", one.profile, one.start, one.id);
        found.iter().map(said).collect()
    }

    fn equip(&self, card: &str, profile: &str, start: u8) -> Result<(), ModeError> {
        let placed = Placed {
            profile: profile.to_owned(),
            start,
        };
        let grant = Grant {
            resource: "nvidia.com/mig".to_owned(),
            gpu: card.into(),
            memory: Mib(1),
            cores: Percent(100),
            seats: 1,
            mig: Some(placed),
        };
        let share = Share {
            pod: &PodUid::from("u1"),
            container: "main",
            grant: &grant,
            place: 0,
            mode: inventory::Mode::Mig,
            card: &Card {
                uuid: card.into(),
                index: 0,
                minor: Some(0),
                part: None,
            },
            beside: &[],
        };
        self.cutter.equip(&share, &mut Outfit::default())
    }
}

fn facts(uuid: &str) -> CardFacts {
    let mut facts = crate::testing::facts(&[uuid]).cards.remove(0);
    facts.mig.capable = true;
    facts
}

fn layout(slices: &[(&str, Option<On>)]) -> Mode {
    let slice = |(profile, on): &(&str, Option<On>)| Slice {
        profile: (*profile).to_owned(),
        count: 1,
        on: on.clone(),
    };
    Mode::Mig(Mig {
        layout: slices.iter().map(slice).collect(),
        ..Mig::default()
    })
}

fn as_they_come(allow: &[&str]) -> Mode {
    Mode::Mig(Mig {
        dynamic: true,
        allow: allow.iter().map(|&name| name.to_owned()).collect(),
        ..Mig::default()
    })
}

fn shares() -> Mode {
    Mode::Vgpu(Vgpu::default())
}

#[test]
fn a_card_that_is_cut_otherwise_was_switched_off_and_on() {
    let scene = Scene::new();
    let card = facts("GPU-a");
    let check = |from: &Mode, to: &Mode, left: &[&str], then: &[&str]| {
        scene.cutter.leave(&card, from, to).expect("left");
        assert_eq!(scene.instances("GPU-a"), left);
        scene.cutter.enter(&card, to).expect("entered");
        assert_eq!(scene.instances("GPU-a"), then);
        assert_eq!(scene.cards.switched.load(Ordering::Relaxed), 1);
    };
    let first = layout(&[("3g.20gb", None), ("1g.5gb", None)]);
    scene.cutter.enter(&card, &first).expect("entered");
    let there = ["3g.20gb@0 0", "1g.5gb@4 1"];
    assert_eq!(scene.instances("GPU-a"), there);
    // What is in both layouts stays.
    let second = layout(&[("3g.20gb", None), ("2g.10gb", None)]);
    check(&first, &second, &there, &["3g.20gb@0 0", "2g.10gb@4 2"]);
    // What may be made for pods is there for them.
    let dynamic = as_they_come(&["2g.10gb"]);
    check(&second, &dynamic, &["2g.10gb@4 2"], &["2g.10gb@4 2"]);
    scene
        .cutter
        .leave(&card, &dynamic, &shares())
        .expect("left");
    assert_eq!(scene.cards.switched.load(Ordering::Relaxed), 2);
    assert!(scene.instances("GPU-a").is_empty());
}

#[test]
fn a_mode_that_holds_after_a_reset_only_is_waited_for() {
    let scene = Scene::new();
    let card = facts("GPU-a");
    let cut = layout(&[("3g.20gb", None)]);
    let waits = |done: Result<(), ModeError>| {
        let error = done.expect_err("it waits");
        assert!(matches!(error, ModeError::Waits(_)), "{error:?}");
        assert!(error.to_string().contains("a reset of the GPU"), "{error}");
    };
    let open = |open| scene.cards.open.store(open, Ordering::Relaxed);
    open(true);
    waits(scene.cutter.enter(&card, &cut));
    open(false);
    scene.cutter.enter(&card, &cut).expect("entered");
    open(true);
    waits(scene.cutter.leave(&card, &cut, &shares()));
    open(false);
    scene.cutter.leave(&card, &cut, &shares()).expect("left");
}

#[test]
fn cards_were_read_while_an_instance_was_being_made_and_not_after() {
    let scene = Arc::new(Scene::new());
    scene
        .cutter
        .enter(&facts("GPU-a"), &as_they_come(&[]))
        .expect("entered");
    assert!(scene.cutter.cut_since());
    let asked = Arc::downgrade(&scene);
    *scene.cards.making.lock() = Some(Box::new(move || {
        let scene = asked.upgrade().expect("it lives");
        assert!(!scene.cutter.cut_since(), "there is nothing to read yet");
    }));
    scene.equip("GPU-a", "1g.5gb", 6).expect("made");
    assert!(scene.cutter.cut_since());
    assert!(!scene.cutter.cut_since(), "told once");
}

#[test]
fn a_daemon_that_is_waited_for_held_up_instances_of_all_cards() {
    let scene = Scene::new();
    let (one, other) = (facts("GPU-a"), facts("GPU-b"));
    scene
        .cutter
        .enter(&other, &as_they_come(&[]))
        .expect("entered");
    let shared = layout(&[("3g.20gb", Some(On::Mps(Mps::new(2))))]);
    std::thread::scope(|threads| {
        let entering = threads.spawn(|| scene.cutter.enter(&one, &shared));
        let deadline = Instant::now() + PATIENCE;
        let wish = loop {
            if let Some(wish) = scene.daemon("MIG-0").wish().expect("read") {
                break wish;
            }
            assert!(Instant::now() < deadline, "no wish");
            std::thread::yield_now();
        };
        scene.equip("GPU-b", "1g.5gb", 6).expect("made");
        scene.equip("GPU-a", "1g.5gb", 6).expect("made");
        assert!(!entering.is_finished(), "its daemon does not serve yet");
        let status = crate::testing::served(wish);
        scene.daemon("MIG-0").put_status(&status).expect("written");
        entering.join().expect("no panic").expect("entered");
    });
}

#[test]
fn daemons_of_instances_that_a_reboot_took_were_wished_for_ever() {
    let check = |from: Mode, to: Option<Mode>| {
        let scene = Scene::new();
        let card = facts("GPU-a");
        scene.cutter.enter(&card, &from).expect("entered");
        let daemon = scene.daemon("MIG-0");
        let wish = wish("MIG-0", Mib(19_968), &Mps::new(2), None);
        daemon.put_wish(&wish).expect("written");
        // Instances do not outlive a reboot, and on some cards the mode neither.
        scene.cards.cut.lock().clear();
        match &to {
            Some(to) => scene.cutter.leave(&card, &from, to).expect("left"),
            None => scene.cutter.enter(&card, &from).expect("entered"),
        }
        assert_eq!(daemon.wish().expect("read"), None, "{to:?}");
    };
    let cut = || layout(&[("3g.20gb", None)]);
    check(cut(), Some(shares()));
    check(cut(), Some(layout(&[("1g.5gb", None)])));
    check(cut(), None);
}
