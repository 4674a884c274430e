//! The arbiter on real files: containers come and go, and tenants corrupt their files.

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use aliquot_node_state::container_directory::ContainerDirectory;
use aliquot_region::counters;
use aliquot_region::limits::{ContainerLimits, DeviceLimits, page};

use super::*;
use crate::testing;

const SECOND: u64 = 1_000_000_000;
const THROTTLE: u64 = 64 + 52;
const LAUNCHES: u64 = 4096 + 96;

fn container(dir: &Path, name: &str, priority: u32, cores: u32) -> ManagedContainer {
    let folder = dir.join(name);
    fs::create_dir_all(folder.join("counters")).unwrap();
    let container = ContainerLimits {
        priority,
        ..ContainerLimits::default()
    };
    let device = DeviceLimits {
        uuid: "GPU-a",
        memory: 1 << 30,
        cores,
        ..DeviceLimits::default()
    };
    fs::write(folder.join("limits"), page(container, &[device]).unwrap()).unwrap();
    let mut file = fs::File::create(folder.join("counters/slots")).unwrap();
    file.write_all(&counters::header()).unwrap();
    file.set_len(counters::SIZE).unwrap();
    ManagedContainer {
        directory: ContainerDirectory::new(folder),
        ..testing::container(name, "pod", "main", &[])
    }
}

fn write(path: &Path, at: u64, bytes: &[u8]) {
    let file = fs::OpenOptions::new().write(true).open(path).unwrap();
    file.write_all_at(bytes, at).unwrap();
}

fn throttle(container: &ManagedContainer) -> u8 {
    fs::read(container.directory.limits()).unwrap()[usize::try_from(THROTTLE).unwrap()]
}

struct Node {
    arbiter: Arbiter,
    now: u64,
}

impl Node {
    fn set_containers(&mut self, all: &[&ManagedContainer]) {
        self.arbiter.set_containers(&ManagedContainers {
            all: all.iter().copied().cloned().collect(),
            ..ManagedContainers::default()
        });
    }

    /// Lets the first of these containers launch, and 20 ms pass; returns all throttle flags.
    fn tick(&mut self, containers: &[&ManagedContainer]) -> Vec<u8> {
        self.now += 20_000_000;
        write(
            &containers[0].directory.counters(),
            LAUNCHES,
            &self.now.to_le_bytes(),
        );
        self.rest(containers)
    }

    fn rest(&mut self, containers: &[&ManagedContainer]) -> Vec<u8> {
        let now = Clocks {
            monotonic: self.now,
            epoch: self.now,
        };
        self.arbiter.tick(now);
        containers.iter().map(|one| throttle(one)).collect()
    }
}

fn node() -> Node {
    Node {
        arbiter: Arbiter::default(),
        now: 1_000 * SECOND,
    }
}

/// Containers of high and of low priority.
fn pair(dir: &tempfile::TempDir) -> [ManagedContainer; 2] {
    [("h", 0), ("l", 1)].map(|(name, priority)| container(dir.path(), name, priority, 30))
}

#[test]
fn writes_pages_as_containers_come_and_go() {
    let dir = tempfile::tempdir().unwrap();
    let [high, low] = pair(&dir);
    let mut node = node();
    node.set_containers(&[&high]);
    node.tick(&[&high]);
    assert_eq!(node.tick(&[&high]), [2], "alone");
    node.set_containers(&[&high, &low]);
    node.tick(&[&high, &low]);
    assert_eq!(node.tick(&[&high, &low]), [2, 1], "the low one waits");
    let bytes = fs::read(low.directory.limits()).unwrap();
    assert_eq!(bytes[24..32], node.now.to_le_bytes(), "a sign of life");
    write(&low.directory.limits(), THROTTLE, &[2, 0, 0, 0]);
    assert_eq!(
        node.tick(&[&high, &low])[1],
        1,
        "overwritten flags do not last"
    );
    node.set_containers(&[&low]);
    assert_eq!(node.rest(&[&low]), [2], "the high one is gone");
    assert_eq!(node.arbiter.containers.len(), 1);
    node.arbiter.release();
    let bytes = fs::read(low.directory.limits()).unwrap();
    assert_eq!((throttle(&low), &bytes[24..32]), (0, &[0; 8][..]));
}

/// The driver measures once a second, and the monitor asks it twice.
#[test]
fn low_priority_yields_between_rare_measurements() {
    let dir = tempfile::tempdir().unwrap();
    let [high, low] = pair(&dir);
    let mut node = node();
    node.set_containers(&[&high, &low]);
    fs::remove_file(high.directory.counters()).unwrap();
    let flag_after = |node: &mut Node, used: Option<u64>| {
        let measurement = used.map(|used| Measurement {
            used,
            at: node.now,
            is_late: false,
            processes: 1,
        });
        let measurements = [("h".to_owned(), vec![measurement])].into();
        node.arbiter.set_measurements(&measurements);
        let flags = [0; 25].map(|_: u8| node.tick(&[&low, &high])[0]);
        flags[24]
    };
    for _ in 0..3 {
        assert_eq!(flag_after(&mut node, Some(900_000)), 1);
        assert_eq!(flag_after(&mut node, None), 1);
    }
    assert_eq!(flag_after(&mut node, Some(0)), 2, "the other is idle");
    flag_after(&mut node, Some(900_000));
    let flags = [0; 5].map(|_: u8| flag_after(&mut node, None));
    assert_eq!((flags[0], flags[4]), (1, 2), "nobody works any more");
}

#[test]
fn isolates_tenants_from_corrupt_counters_of_one() {
    let corrupt: [fn(&Path); 3] = [
        |path| fs::File::create(path).map(drop).unwrap(),
        |path| fs::remove_file(path).unwrap(),
        |path| fs::write(path, vec![0xa5; 1 << 20]).unwrap(),
    ];
    for corrupt in corrupt {
        let dir = tempfile::tempdir().unwrap();
        let [high, low] = pair(&dir);
        let other = container(dir.path(), "o", 1, 30);
        let all = [&high, &low, &other];
        let mut node = node();
        node.set_containers(&all);
        node.tick(&all);
        corrupt(&low.directory.counters());
        for _ in 0..100 {
            assert_eq!(node.tick(&all)[1..], [1, 1]);
        }
    }
}
