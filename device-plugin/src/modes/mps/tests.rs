//! What a GPU offers; and containers on a device whose daemon is reported as running, or not, while
//! no daemon and no supervisor runs.

use std::thread::ScopedJoinHandle;

use aliquot_core::inventory::EvenShare;

use super::*;
use crate::testing;

const GPU: &str = "GPU-a";

/// A device whose daemon is reported as running.
struct Fixture {
    root: tempfile::TempDir,
    daemons: MpsDaemons,
}

impl Fixture {
    fn new() -> Self {
        let root = tempfile::tempdir().expect("a directory");
        let daemons = MpsDaemons::new(root.path().to_owned());
        Self { root, daemons }
    }

    fn served(spec: bool) -> Self {
        let fixture = Self::new();
        if spec {
            let spec = plan::daemon_spec(GPU, Mib(40_960), &Mps::new(4), Some(GPU));
            fixture.directory().put_spec(&spec).expect("written");
            fixture.report(DaemonPhase::Running, Some(spec));
        }
        fixture
    }

    fn directory(&self) -> DaemonDirectory {
        DaemonDirectory::new(self.root.path(), GPU)
    }

    fn report(&self, phase: DaemonPhase, spec: Option<DaemonSpec>) {
        let status = testing::daemon_status(phase, spec);
        self.directory().put_status(&status).expect("written");
    }

    /// Whether a container may have this share of [`GPU`] now.
    fn ready(&self, memory: u64, cores: u32) -> Result<(), String> {
        let grant = testing::grant(GPU, memory, cores);
        self.daemons.ready(&self.directory(), &grant)
    }

    fn spec(&self) -> DaemonSpec {
        self.directory().spec().expect("read").expect("a spec")
    }
}

/// The whole GPU.
fn target() -> DaemonTarget<'static> {
    DaemonTarget {
        device: GPU,
        memory: Mib(40_960),
        capability: Some((8, 0)),
        slices: None,
    }
}

fn offered(settings: &Mps) -> Gpu {
    let mut whole = testing::gpu(GPU, 0);
    (whole.memory, whole.scaled) = (Mib(40_960), Mib(40_960));
    let facts = testing::facts(&[GPU]);
    settings.devices(whole, &facts.gpus[0]).remove(0)
}

#[test]
fn mps_1_advertises_one_device_id_per_replica() {
    let four = offered(&Mps::new(4));
    let even = EvenShare {
        memory: Mib(10_240),
        cores: Percent(25),
    };
    assert_eq!((four.replicas, four.even_share), (4, Some(even)));
    assert_eq!((&*four.resource, four.strict), ("nvidia.com/gpu", true));
}

#[test]
fn mps_2_advertises_under_renamed_resource() {
    let renamed = Mps {
        rename: Some("nvidia.com/gpu.shared".to_owned()),
        ..Mps::new(4)
    };
    assert_eq!(offered(&renamed).resource, "nvidia.com/gpu.shared");
}

#[test]
fn gives_container_its_limits_and_daemon() {
    let fixture = Fixture::new();
    let setup_for = |memory, cores| {
        let mut setup = ModeSetup::default();
        let grant = testing::grant(GPU, memory, cores);
        connect(&fixture.directory(), &grant, &mut setup);
        setup
    };
    let setup = setup_for(3000, 20);
    let variables = [
        "CUDA_MPS_PIPE_DIRECTORY=/.aliquot-mps",
        "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=3000M",
        "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=20",
    ];
    assert_eq!(setup.variables, variables);
    assert_eq!(setup.visible, [GPU]);
    let shown = (setup.shown[0].memory, setup.shown[0].cores);
    assert_eq!(shown, (Mib(3000), Percent(0)), "its daemon limits it");
    let path = |name: &str| json!(fixture.root.path().join(name));
    assert_eq!(setup.mounts[0]["hostPath"], path("GPU-a/pipe"));
    assert_eq!(setup.mounts[1]["hostPath"], path("GPU-a/shm"));
    assert_eq!(setup.mounts[1]["containerPath"], json!("/dev/shm"));
    assert!(setup.limited, "the total of its clients is libvgpu.so's");
    let free = setup_for(0, 0);
    assert_eq!(free.variables, variables[..1]);
    assert!(!free.limited);
}

#[test]
fn refuses_container_while_daemon_is_down() {
    let check = |fixture: &Fixture, expected: &str| {
        let text = fixture.ready(3000, 20).expect_err(expected);
        assert!(text.contains(expected), "{text}");
    };
    let down = Fixture::served(true);
    down.report(DaemonPhase::Down("it ended by itself".to_owned()), None);
    check(&down, "it ended by itself");
    check(&Fixture::served(false), "leaving mode mps");
    // Nothing is known of the daemon.
    let fixture = Fixture::served(true);
    let status = fixture.directory().path().join("status.json");
    std::fs::write(&status, "{").expect("written");
    check(&fixture, GPU);
    // After a restart of the node, the directory of its memory is on its disk.
    let shm = fixture.directory().shm();
    std::fs::create_dir(&shm).expect("made");
    let text = has_memory(&fixture.directory()).expect_err("refused");
    assert!(text.contains(&*shm.to_string_lossy()), "{text}");
}

#[test]
fn waits_until_daemon_allows_larger_share() {
    let fixture = Fixture::served(true);
    std::thread::scope(|threads| {
        let started = threads.spawn(|| fixture.ready(20_000, 50));
        let deadline = Instant::now() + Duration::from_mins(1);
        let raised = loop {
            let spec = fixture.spec();
            if spec.memory == Mib(20_000) {
                break spec;
            }
            assert!(Instant::now() < deadline, "never raised");
            std::thread::yield_now();
        };
        assert!(!started.is_finished(), "it waits for the supervisor");
        fixture.report(DaemonPhase::Running, Some(raised));
        started.join().expect("no panic").expect("prepared");
    });
    // Raised limits stay when the agent restarts.
    let started = fixture.daemons.start(target(), &Mps::new(4));
    started.expect("it serves");
    let spec = fixture.spec();
    assert_eq!((spec.memory, spec.threads), (Mib(20_000), Percent(50)));
}

#[test]
fn lowers_limits_when_largest_share_has_ended() {
    let fixture = Fixture::served(true);
    let started = fixture.daemons.start(target(), &Mps::new(4));
    started.expect("it serves");
    let accepted = |uid: &str, memory, cores, mode| {
        let allocation = testing::allocation(&[("main", &[testing::grant(GPU, memory, cores)])]);
        let mut accepted = testing::accepted(uid, allocation);
        accepted.modes.insert(GPU.into(), mode);
        accepted
    };
    let small = accepted("u1", 3000, 60, Shared::Mps);
    let large = accepted("u2", 20_000, 50, Shared::Mps);
    // Accepted before the GPU changed its mode.
    let other = accepted("u3", 40_000, 90, Shared::Vgpu);
    let check = |shares: &[&AcceptedAllocation], memory, threads| {
        fixture.daemons.lower(shares.iter().copied());
        let spec = fixture.spec();
        assert_eq!((spec.memory, spec.threads), (Mib(memory), Percent(threads)));
    };
    check(&[&small, &large, &other], 20_000, 60);
    check(&[&small, &other], 10_240, 60);
    check(&[], 10_240, 25);
}

#[test]
fn concurrent_shares_never_lower_daemon_limits() {
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
    let fixture = Fixture::served(true);
    std::thread::scope(|threads| {
        let fixture = &fixture;
        let start = |(memory, cores)| threads.spawn(move || fixture.ready(memory, cores));
        let started = SHARES.map(start);
        // A supervisor that serves the current spec, which never has lower limits than before.
        let mut last = fixture.spec();
        while !started.iter().all(ScopedJoinHandle::is_finished) {
            let spec = fixture.spec();
            assert!(spec.satisfies(&last), "{spec:?} after {last:?}");
            fixture.report(DaemonPhase::Running, Some(spec.clone()));
            last = spec;
            std::thread::yield_now();
        }
        for one in started {
            one.join().expect("no panic").expect("prepared");
        }
    });
    let spec = fixture.spec();
    assert_eq!((spec.memory, spec.threads), (Mib(39_000), Percent(99)));
}

#[test]
fn rejects_too_many_replicas_before_any_change() {
    let fixture = Fixture::new();
    let place = DaemonTarget {
        device: "MIG-a",
        memory: Mib(20_000),
        capability: Some((8, 0)),
        slices: Some((3, 7)),
    };
    let refused = fixture.daemons.start(place, &Mps::new(21));
    let text = refused.expect_err("too many").to_string();
    assert!(text.contains("1 to 20"), "{text}");
    let directory = DaemonDirectory::new(fixture.root.path(), "MIG-a");
    assert_eq!(directory.spec().expect("read"), None);
}
