//! The bytes of the page, and what a reader makes of them.

use std::fs;
use std::os::unix::fs::FileExt as _;

use super::*;

const CONTAINER: ContainerLimits = ContainerLimits {
    priority: 1,
    policy: 1,
    flags: OOM_KILLER,
};

fn device(uuid: &str) -> DeviceLimits<'_> {
    DeviceLimits {
        uuid,
        memory: 3000 << 20,
        cores: 30,
        context: 7,
        physical: 9,
        request: 2000 << 20,
        cores_limit: 60,
    }
}

#[test]
fn rejects_too_many_devices_and_long_uuids() {
    let many = vec![device("GPU-a"); MAX_DEVICES + 1];
    assert!(page(CONTAINER, &many[1..]).is_ok());
    assert_eq!(page(CONTAINER, &many), Err(PageError::TooMany(34)));
    let long = "G".repeat(41);
    assert_eq!(
        page(CONTAINER, &[device(&long)]),
        Err(PageError::Uuid(long.clone()))
    );
}

#[test]
fn keeps_host_measurements_across_page_update() {
    let fields = [24..32, 116..136, 152..160, 168..176, 180..184];
    let one = page(CONTAINER, &[device("GPU-a")]).unwrap();
    let mut measured = one;
    for field in fields.clone().into_iter().chain([SEQUENCE]) {
        measured[field].fill(7);
    }
    assert!(same_limits(&one, &measured));
    let more = DeviceLimits {
        cores: 31,
        ..device("GPU-a")
    };
    let mut next = page(CONTAINER, &[more]).unwrap();
    assert!(!same_limits(&measured, &next));
    copy_measurements(&measured, &mut next);
    for field in fields {
        assert!(next[field].iter().all(|byte| *byte == 7));
    }
    assert_eq!(next[112..116], [31, 0, 0, 0]);
}

#[test]
fn reads_limits_page_that_changes_in_place() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("limits");
    let mut written = page(CONTAINER, &[device("GPU-b"), device("GPU-a")]).unwrap();
    set_counters(&mut written, 5);
    fs::write(&path, written).unwrap();
    let limits = LimitsPage::open(&path).unwrap();
    assert_eq!((limits.devices(), limits.counters()), (2, Some(5)));
    let (uuid, length) = limits.uuid(1);
    assert_eq!(&uuid[..length], b"GPU-a");
    assert_eq!((limits.memory(1), limits.physical(1)), (3000 << 20, 9));
    assert_eq!((limits.request(1), limits.context(1)), (2000 << 20, 7));
    assert_eq!((limits.cores(1), limits.cores_limit(1)), (30, 60));
    assert_eq!(
        (limits.priority(), limits.policy(), limits.flags()),
        (1, 1, 2)
    );
    let file = fs::OpenOptions::new().write(true).open(&path).unwrap();
    file.write_all_at(&(1_u64 << 20).to_le_bytes(), 64 + 40)
        .unwrap();
    assert_eq!(limits.memory(0), 1 << 20);
    // A host that died while it wrote does not block the reader.
    file.write_all_at(&[1], 16).unwrap();
    assert_eq!(limits.memory(0), 1 << 20);
}

#[test]
fn guarantees_all_of_limit_that_is_device_memory() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("limits");
    for (physical, request, expected) in [
        (100, 100, 100),
        // With memory scaling.
        (40, 100, 40),
        (200, 100, 100),
        // Where the part is not known, 0 would let the driver evict everything.
        (0, 100, 100),
        // The driver may evict what is lent.
        (0, 70, 70),
        (100, 0, 100),
    ] {
        let device = DeviceLimits {
            memory: 100,
            physical,
            request,
            ..device("GPU-a")
        };
        fs::write(&path, page(CONTAINER, &[device]).unwrap()).unwrap();
        let limits = LimitsPage::open(&path).unwrap();
        assert_eq!(limits.guaranteed(0), expected, "{physical} {request}");
    }
}

#[test]
fn rejects_file_that_is_no_limits_page() {
    let folder = tempfile::tempdir().unwrap();
    let check = |bytes: &[u8], expected: &str| {
        let path = folder.path().join("limits");
        fs::write(&path, bytes).unwrap();
        let error = LimitsPage::open(&path).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    };
    let mut newer = page(CONTAINER, &[]).unwrap();
    newer[8] = 2;
    check(&newer, "layout version 2");
    check(&[0; SIZE], "does not begin");
    check(&[0; 100], "found 100");
    assert!(LimitsPage::open("/nonexistent".as_ref()).is_err());
}
