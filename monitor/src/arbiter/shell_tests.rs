//! The arbiter on real files: seats come and go, and tenants spoil theirs.

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use aliquot_region::counters;
use aliquot_region::limits::{Container, Device, page};

use super::*;
use crate::seats::Effective;

const SECOND: u64 = 1_000_000_000;
/// Where words are, as the layouts say.
const GATE: u64 = 64 + 52;
const LAUNCHES: u64 = 4096 + 96;

/// A seat on disk.
fn seat(room: &Path, name: &str, priority: u32, cores: u32) -> Seat {
    let folder = room.join(name);
    fs::create_dir_all(folder.join("counters")).unwrap();
    let container = Container {
        priority,
        ..Container::default()
    };
    let device = Device {
        uuid: "GPU-a",
        memory: 1 << 30,
        cores,
        ..Device::default()
    };
    fs::write(folder.join("limits"), page(container, &[device]).unwrap()).unwrap();
    let mut file = fs::File::create(folder.join("counters/slots")).unwrap();
    file.write_all(&counters::header()).unwrap();
    file.set_len(counters::SIZE).unwrap();
    Seat {
        name: name.to_owned(),
        pod: "pod".into(),
        namespace: "default".to_owned(),
        pod_name: name.to_owned(),
        container: "main".to_owned(),
        devices: Vec::new(),
        priority: 0,
        effective: Effective::default(),
        limited: true,
        folder,
    }
}

fn write(path: &Path, at: u64, bytes: &[u8]) {
    let file = fs::OpenOptions::new().write(true).open(path).unwrap();
    file.write_all_at(bytes, at).unwrap();
}

fn gate(seat: &Seat) -> u8 {
    fs::read(seat.limits()).unwrap()[usize::try_from(GATE).unwrap()]
}

struct Node {
    arbiter: Arbiter,
    now: u64,
}

impl Node {
    fn keep(&mut self, all: &[&Seat]) {
        self.arbiter.keep(&Seats {
            all: all.iter().copied().cloned().collect(),
            ..Seats::default()
        });
    }

    /// Lets the first of these seats launch, and 20 ms pass; the gates of all.
    fn tick(&mut self, seats: &[&Seat]) -> Vec<u8> {
        self.now += 20_000_000;
        write(&seats[0].counters(), LAUNCHES, &self.now.to_le_bytes());
        self.rest(seats)
    }

    fn rest(&mut self, seats: &[&Seat]) -> Vec<u8> {
        let now = Now {
            monotonic: self.now,
            epoch: self.now,
        };
        self.arbiter.tick(now);
        seats.iter().map(|seat| gate(seat)).collect()
    }
}

fn node() -> Node {
    Node {
        arbiter: Arbiter::default(),
        now: 1_000 * SECOND,
    }
}

#[test]
fn words_are_on_the_pages_and_seats_come_and_go() {
    let room = tempfile::tempdir().unwrap();
    let (high, low) = (seat(room.path(), "h", 0, 30), seat(room.path(), "l", 1, 30));
    let mut node = node();
    node.keep(&[&high]);
    node.tick(&[&high]);
    assert_eq!(node.tick(&[&high]), [2], "alone");
    node.keep(&[&high, &low]);
    node.tick(&[&high, &low]);
    assert_eq!(node.tick(&[&high, &low]), [2, 1], "the low one waits");
    let bytes = fs::read(low.limits()).unwrap();
    assert_eq!(bytes[24..32], node.now.to_le_bytes(), "a sign of life");
    node.keep(&[&low]);
    assert_eq!(node.rest(&[&low]), [2], "the high one is gone");
    assert_eq!(node.arbiter.held.len(), 1);
    node.arbiter.leave();
    let bytes = fs::read(low.limits()).unwrap();
    assert_eq!((gate(&low), &bytes[24..32]), (0, &[0; 8][..]));
}

#[test]
fn what_the_device_plugin_wrote_back_is_put_right_at_the_next_look() {
    let room = tempfile::tempdir().unwrap();
    let (high, low) = (seat(room.path(), "h", 0, 30), seat(room.path(), "l", 1, 30));
    let both = [&high, &low];
    let mut node = node();
    node.keep(&both);
    node.tick(&both);
    assert_eq!(node.tick(&both)[1], 1);
    write(&low.limits(), GATE, &[2, 0, 0, 0]);
    assert_eq!(node.tick(&both)[1], 1);
}

#[test]
fn a_file_that_its_tenant_spoils_concerns_nobody_else() {
    let spoil: [fn(&Path); 5] = [
        |path| fs::File::create(path).map(drop).unwrap(),
        |path| fs::remove_file(path).unwrap(),
        |path| {
            let file = fs::OpenOptions::new().write(true).open(path).unwrap();
            file.set_len(1 << 40).unwrap();
        },
        |path| {
            fs::remove_file(path).unwrap();
            std::os::unix::fs::symlink("/dev/zero", path).unwrap();
        },
        |path| fs::write(path, vec![0xa5; 1 << 20]).unwrap(),
    ];
    for spoil in spoil {
        let room = tempfile::tempdir().unwrap();
        let (high, low) = (seat(room.path(), "h", 0, 30), seat(room.path(), "l", 1, 30));
        let other = seat(room.path(), "o", 1, 30);
        let all = [&high, &low, &other];
        let mut node = node();
        node.keep(&all);
        node.tick(&all);
        spoil(&low.counters());
        for _ in 0..100 {
            assert_eq!(node.tick(&all)[1..], [1, 1]);
        }
    }
}

#[test]
fn a_seat_without_a_page_is_taken_up_when_it_has_one() {
    let room = tempfile::tempdir().unwrap();
    let late = seat(room.path(), "late", 1, 30);
    let page = fs::read(late.limits()).unwrap();
    fs::remove_file(late.limits()).unwrap();
    let mut node = node();
    node.keep(&[&late]);
    assert_eq!(node.arbiter.held.len(), 0);
    fs::write(late.limits(), page).unwrap();
    node.keep(&[&late]);
    node.tick(&[&late]);
    assert_eq!(node.tick(&[&late]), [2]);
}
