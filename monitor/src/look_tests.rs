//! Looks at a state directory, a `/proc` and a driver of the test's own.

use std::fs;
use std::time::Duration;

use aliquot_core::Mib;
use aliquot_k8s::watch::Index as _;
use aliquot_nvml::{
    Bytes, CardFacts, CardHealth, Driver, Event, Inventory, LimitError, Load, MemoryLimit,
    MemoryLimits, Nvml, NvmlError, Options, Process, Share, Usage,
};
use aliquot_region::limits::{Container, Device, page};
use parking_lot::Mutex;
use serde_json::json;

use super::*;

/// As the device plugin of this release writes it.
const WRITTEN: &str = include_str!("../../device-plugin/src/accepted.golden.json");
const POD: &str = "0123456789abcdef0123456789abcdef";
const SEAT: &str = "GPU-a-1-2";

/// A driver with these cards, if it answers, and one process on each, if there is one.
#[derive(Default)]
struct Scripted {
    cards: Mutex<Option<Vec<&'static str>>>,
    process: Mutex<Option<u32>>,
}

fn no_answer() -> NvmlError {
    let library = "/nonexistent/libnvidia-ml.so.1".into();
    let opened = Nvml::open(Options {
        library,
        ..Options::default()
    });
    opened.err().expect("there is no such library")
}

impl Driver for Scripted {
    fn inventory(&self) -> Result<Inventory, NvmlError> {
        let card = |(index, uuid): (u32, &&str)| CardFacts {
            uuid: (*uuid).to_owned(),
            index,
            minor: None,
            pci_bus_id: None,
            pci_device_id: None,
            model: "card".to_owned(),
            memory: Mib(10_000),
            reserved: None,
            compute_capability: None,
            numa: None,
            mig: aliquot_nvml::Mig::default(),
            cut: aliquot_nvml::Cut::default(),
            links: BTreeMap::new(),
        };
        let cards = self.cards.lock().clone().ok_or_else(no_answer)?;
        Ok(Inventory {
            driver_version: "580".to_owned(),
            cuda_version: None,
            cards: (0..).zip(&cards).map(card).collect(),
            notes: Vec::new(),
        })
    }

    fn health(&self) -> Result<Vec<CardHealth>, NvmlError> {
        Ok(Vec::new())
    }

    fn wait_events(&self, _timeout: Duration) -> Result<Vec<Event>, NvmlError> {
        Ok(Vec::new())
    }
}

impl Usage for Scripted {
    fn processes(&self, _card: &str) -> Result<Vec<Process>, NvmlError> {
        let of = |pid| Process {
            pid,
            bytes: Some(7),
            instance: None,
        };
        Ok(self.process.lock().map(of).into_iter().collect())
    }

    fn load(&self, _card: &str) -> Result<Load, NvmlError> {
        Ok(Load::default())
    }

    fn bytes(&self, _uuid: &str) -> Result<Bytes, NvmlError> {
        Ok(Bytes::default())
    }

    fn shares(&self, _card: &str, _since: u64) -> Result<Vec<Share>, NvmlError> {
        Ok(Vec::new())
    }
}

impl MemoryLimits for Scripted {
    fn limit_memory(&self, card: &str, _cgroup: &Path, _hard: u64) -> Result<(), LimitError> {
        Err(LimitError::NotOffered(card.to_owned()))
    }

    fn memory_limit(&self, card: &str, _cgroup: &Path) -> Result<MemoryLimit, LimitError> {
        Err(LimitError::NotOffered(card.to_owned()))
    }
}

struct Node {
    room: tempfile::TempDir,
    driver: Arc<Scripted>,
    pods: Pods,
}

/// A node with one share of GPU-a, and process 7 of its container.
fn node() -> Node {
    let room = tempfile::tempdir().expect("tempdir");
    let put = |path: &str, content: &[u8]| {
        let path = room.path().join(path);
        fs::create_dir_all(path.parent().expect("in a folder")).expect("made");
        fs::write(path, content).expect("written");
    };
    let share = WRITTEN.replace("\"u1\"", &format!("\"{POD}\""));
    put(&format!("state/accepted/{POD}.json"), share.as_bytes());
    let device = Device {
        uuid: "GPU-a",
        memory: 100,
        ..Device::default()
    };
    let limits = page(Container::default(), &[device]).expect("a page");
    put(&format!("state/seats/{SEAT}/limits"), &limits);
    let id = "a".repeat(64);
    let cgroup = format!("0::/kubepods/pod{POD}/{id}\n");
    put("proc/7/cgroup", cgroup.as_bytes());
    let stat = "7 (x) S 1 7 7 0 -1 4194304 1 2 3 4 5 6 7 8 20 0 1 0 4711 99 1";
    put("proc/7/stat", stat.as_bytes());
    put("proc/7/status", b"NSpid:\t7\t1\n");
    Node {
        room,
        driver: Arc::new(Scripted {
            cards: Mutex::new(Some(vec!["GPU-a"])),
            process: Mutex::default(),
        }),
        pods: Pods::default(),
    }
}

impl Node {
    fn looker(&self) -> Looker {
        let driver = Arc::clone(&self.driver);
        let processes = Processes::at(&self.room.path().join("proc"));
        let state = self.room.path().join("state");
        Looker::new(driver, &state, processes, self.pods.clone())
    }

    fn pod_is(&self, phase: &str) {
        let pod = json!({
            "metadata": {"uid": POD, "name": "train", "namespace": "default"},
            "spec": {"containers": []},
            "status": {"phase": phase},
        });
        self.pods.apply(serde_json::from_value(pod).expect("a pod"));
    }
}

#[test]
fn shares_of_a_card_that_was_left_out_were_charged_nothing() {
    let node = node();
    *node.driver.cards.lock() = Some(Vec::new());
    let mut looker = node.looker();
    let (look, _) = looker.look();
    assert_eq!(look.seats.all.len(), 1);
    assert!(look.blind.contains("GPU-a"), "it is not in the list");
    *node.driver.cards.lock() = Some(vec!["GPU-a"]);
    let begun = Instant::now();
    while looker.look().0.blind.contains("GPU-a") {
        assert!(begun.elapsed() < Duration::from_secs(30), "not asked again");
    }
}

#[test]
fn shares_were_charged_nothing_while_the_cards_could_not_be_asked_what_they_are() {
    let node = node();
    *node.driver.cards.lock() = None;
    let mut looker = node.looker();
    assert!(looker.look().0.blind.contains("GPU-a"));
    assert_eq!(looker.failures["inventory"], 1);
    *node.driver.cards.lock() = Some(vec!["GPU-a"]);
    assert!(looker.look().0.blind.is_empty());
    // A new instance is to be read, and the driver does not answer: what is known stays.
    *node.driver.cards.lock() = None;
    looker.cards.renew();
    let (look, cards) = looker.look();
    assert!(look.blind.is_empty());
    assert_eq!(cards.len(), 1);
    assert_eq!(looker.failures["inventory"], 2);
}

#[test]
fn a_pod_that_was_over_had_a_share_for_as_long_as_its_object() {
    let node = node();
    let mut looker = node.looker();
    let mut seats = |phase: &str, process: Option<u32>| {
        node.pod_is(phase);
        *node.driver.process.lock() = process;
        // Who is on a card is known after a look.
        looker.look();
        let look = looker.look().0;
        assert!(look.beside.accepted.contains(&PodUid::from(POD)));
        look.seats.all.len()
    };
    assert_eq!(seats("Pending", None), 1);
    assert_eq!(seats("Running", Some(7)), 1);
    assert_eq!(seats("Succeeded", Some(7)), 1, "its process lives on");
    assert_eq!(seats("Succeeded", None), 0);
    assert_eq!(seats("Failed", None), 0);
    assert_eq!(seats("Failed", Some(7)), 1, "it came back");
}

#[test]
fn what_the_driver_calls_a_device_is_read_from_its_page() {
    let node = node();
    let (look, _) = node.looker().look();
    assert_eq!(look.beside.called, [["GPU-a"]]);
    let page = node.room.path().join(format!("state/seats/{SEAT}/limits"));
    fs::remove_file(page).expect("removed");
    let mut looker = node.looker();
    let (look, _) = looker.look();
    assert_eq!(look.beside.called, [[""; 0]]);
    assert_eq!(look.called(0, 0), "GPU-a", "as it was booked");
    assert_eq!(looker.failures["limits"], 1);
}
