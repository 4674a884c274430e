//! Fixed MIG instances, and those that are created when a pod needs them.

use super::*;
use crate::explain::NodeAnswer;
use crate::inventory::{Health, OrphanedShare};
use crate::node::LedgerDevices;
use crate::preemption::{self, PreemptionQuery};
use crate::tests::{candidate, uses};
use crate::usage::{AllocatedUse, DeviceUse};
use crate::{PodUid, Reason};

#[test]
fn mig_1_allocates_fixed_instances_by_their_own_resource() {
    let devices = vec![
        fixed_instance(0, "3g.20gb", 0),
        fixed_instance(0, "3g.20gb", 4),
        gpu(1, 40_000, 2),
    ];
    let one = || instances(&["3g.20gb"]);
    check(
        devices,
        &[
            (one(), "c0 MIG-0-0:19968/100"),
            (
                app(&[("nvidia.com/mig-3g.20gb", 1), ("mem", 20_000)]),
                "1 CardTypeMismatch, 2 CardInsufficientMemory",
            ),
            (one(), "c0 MIG-0-4:19968/100"),
            (
                one(),
                "1 CardTypeMismatch, 2 ExclusiveDeviceAllocateConflict",
            ),
            (
                instances(&["1g.5gb"]),
                "1 CardTypeMismatch, 2 MigProfileMismatch",
            ),
            (app(ONE), "c0 GPU-1:5000/0"),
        ],
    );
}

#[test]
fn mig_17_places_instances_where_they_cost_least() {
    let devices = vec![
        dynamic_gpu(0, &a100(), vec![]),
        dynamic_gpu(1, &a100(), vec![]),
    ];
    let one = |name| instances(&[name]);
    check(
        devices,
        &[
            (one("1g.5gb"), "c0 GPU-0/1g.5gb@6:5120/14"),
            (one("3g.20gb"), "c0 GPU-0/3g.20gb@0:20480/42"),
            (one("4g.20gb"), "c0 GPU-1/4g.20gb@0:20480/57"),
            (one("7g.40gb"), "2 CardInsufficientMemory"),
            (one("3g.20gb"), "c0 GPU-1/3g.20gb@4:20480/42"),
            (one("8g.1gb"), "2 MigProfileMismatch"),
            (app(ONE), "2 GpuModeMismatch"),
        ],
    );
}

#[test]
fn mig_20_gives_one_container_instances_of_two_profiles() {
    let both = instances(&["1g.5gb", "2g.10gb"]);
    let given = "c0 GPU-0/1g.5gb@6:5120/14+GPU-0/2g.10gb@4:10240/28";
    check(vec![dynamic_gpu(0, &a100(), vec![])], &[(both, given)]);
    let three = app(&[("nvidia.com/mig-1g.5gb", 3)]);
    let given = "c0 GPU-0/1g.5gb@6:5120/14+GPU-0/1g.5gb@5:5120/14+GPU-0/1g.5gb@4:5120/14";
    check(vec![dynamic_gpu(0, &a100(), vec![])], &[(three, given)]);
}

#[test]
fn mig_5_allocates_pinned_device_and_refuses_the_next_pod() {
    let made = |start| CreatedInstance {
        profile: "1g.5gb".to_owned(),
        start,
        uuid: format!("MIG-{UUID}").into(),
        gi: 9,
        ci: 0,
    };
    let devices = || {
        vec![
            dynamic_gpu(0, &a100(), vec![made(2)]),
            fixed_instance(1, "1g.5gb", 4),
        ]
    };
    let one: &[(&str, u32)] = &[("nvidia.com/mig-1g.5gb", 1)];
    let pin = |place: &str| app_with(one, ("aliquot.dev/use-gpu", place));
    let uuid = format!("MIG-{UUID}");
    check(
        devices(),
        &[
            (pin(&uuid), "c0 GPU-0/1g.5gb@2:5120/14"),
            (pin(&uuid), "1 CardUuidMismatch, 1 GpuPinned"),
            (pin("0:2:1g.5gb"), "1 CardUuidMismatch, 1 GpuPinned"),
            (pin("0:3:2g.10gb"), "2 CardUuidMismatch"),
            (pin("1:4"), "c0 MIG-1-4:19968/100"),
            (pin("1:4"), "1 CardUuidMismatch, 1 GpuPinned"),
            (app(one), "c0 GPU-0/1g.5gb@3:5120/14"),
        ],
    );
    let whole = || vec![shared(0, Mode::Exclusive, 1, GPU)];
    let elsewhere = format!("GPU-{UUID}");
    let named = app_with(ONE, ("aliquot.dev/use-gpu", &elsewhere));
    check(whole(), &[(named, "1 CardUuidMismatch")]);
}

#[test]
fn init_container_reuses_instance_of_its_app_container() {
    let one: &[(&str, u32)] = &[("nvidia.com/mig-3g.20gb", 1)];
    let both = pod(&[(Stage::Init, one), (Stage::App, one)], &[]);
    let beside = pod(&[(Stage::Sidecar, one), (Stage::App, one)], &[]);
    let given = "c1 GPU-0/3g.20gb@4:20480/42, c0 GPU-0/3g.20gb@4:20480/42";
    check(vec![dynamic_gpu(0, &a100(), vec![])], &[(both, given)]);
    let given = "c1 GPU-0/3g.20gb@0:20480/42, c0 GPU-0/3g.20gb@4:20480/42";
    check(vec![dynamic_gpu(0, &a100(), vec![])], &[(beside, given)]);
}

#[test]
fn refuses_init_container_more_memory_than_its_instance_has() {
    let init: &[(&str, u32)] = &[("nvidia.com/mig-1g.5gb", 1), ("mem", 10_000)];
    let app: &[(&str, u32)] = &[("nvidia.com/mig-1g.5gb", 1)];
    let both = pod(&[(Stage::Init, init), (Stage::App, app)], &[]);
    check(
        vec![dynamic_gpu(0, &a100(), vec![])],
        &[(both, "1 CardInsufficientMemory")],
    );
}

#[test]
fn ignores_pending_instance_outside_the_geometry() {
    let published = published(vec![dynamic_gpu(0, &a100(), vec![])]);
    let node = crate::node::NodeState::new(&published, &[], crate::HostResources::default());
    let used = DeviceUse::new(Mib(1), Percent(1));
    for (profile, start) in [(99, 0), (0, 77)] {
        let instance = crate::mig::Instance::busy(profile, start);
        let with = node.with(&[(0, used)], &[(0, instance)], &crate::Replicas::default());
        assert_eq!(with.dynamic_mig, node.dynamic_mig);
    }
}

#[test]
fn unknown_allocation_on_dynamic_mig_gpu_closes_it() {
    let mut ledger = ledger(vec![dynamic_gpu(0, &a100(), vec![])]);
    let fits = |ledger: &Ledger| {
        let node = ledger.cluster().node("n").unwrap();
        let found = crate::fit::fit(node, &instances(&["1g.5gb"]), &Policies::default());
        found.map_err(|refusal| refusal.to_string()).err()
    };
    assert_eq!(fits(&ledger), None);
    for key in ["GPU-0", "GPU-0/9g.9gb@0", "GPU-0/2g.10gb@1"] {
        let (used, host) = (uses(key, 1, 0), crate::HostResources::default());
        ledger.confirm(&"p".into(), &"d".into(), &"n".into(), used, host);
        let why = Some("1 ExclusiveDeviceAllocateConflict".to_owned());
        assert_eq!(fits(&ledger), why, "{key}");
    }
}

/// After a forced deletion the scheduler may allocate an instance whose programs still run, and two
/// leaders may choose the same one.
#[test]
fn refuses_instance_that_another_pod_or_its_programs_have() {
    let made = CreatedInstance {
        profile: "1g.5gb".to_owned(),
        start: 6,
        uuid: "MIG-0".into(),
        gi: 7,
        ci: 0,
    };
    let mut known = inventory(vec![dynamic_gpu(0, &a100(), vec![made])]);
    let refusal = |known: &Inventory, others: &[(&PodUid, &AllocatedUse)], key: &str| {
        let devices = LedgerDevices::new(known, &[], others);
        let asked = DeviceUse::new(Mib(5120), Percent(14));
        devices.refusal_of(known, &key.into(), &asked).unwrap().1
    };
    let (other, its_use) = (PodUid::from("other"), uses("GPU-0/1g.5gb@6", 5120, 14));
    let others = [(&other, &its_use)];
    let taken = Some(Reason::MigNoPlacement);
    assert_eq!(refusal(&known, &[], "GPU-0/1g.5gb@6"), None, "it is idle");
    assert_eq!(refusal(&known, &others, "GPU-0/1g.5gb@6"), taken);
    assert_eq!(refusal(&known, &others, "GPU-0/1g.5gb@5"), None);
    known.orphaned.push(OrphanedShare {
        pod: "gone".into(),
        gpu: "GPU-0/1g.5gb@6".into(),
        memory: Mib(5120),
        cores: Percent(14),
        replicas: 1,
    });
    assert_eq!(refusal(&known, &[], "GPU-0/1g.5gb@6"), taken);
}

/// The explanation of the first device for this pod, after those before it are placed.
fn explained(gpus: Vec<Gpu>, before: &[Demand], pod: &Demand) -> (String, String) {
    let mut ledger = ledger(gpus);
    for (number, demand) in before.iter().enumerate() {
        reserve(&mut ledger, &format!("p{number}"), "n", demand).unwrap();
    }
    let (node, policies) = (ledger.cluster().node("n").unwrap(), Policies::default());
    let (answer, _) = NodeAnswer::evaluate(&"n".into(), node, pod, &policies, true, None);
    let device = &answer.gpus[0];
    (device.answer.clone(), device.detail.clone())
}

#[test]
fn mig_12_explains_free_slices_and_legal_starts() {
    let pin = |place| {
        app_with(
            &[("nvidia.com/mig-1g.5gb", 1)],
            ("aliquot.dev/use-gpu", place),
        )
    };
    let device = || dynamic_gpu(0, &a100(), vec![]);
    let check = |gpus, before: &[Demand], pod: &Demand, answer: &str, detail: &str| {
        let found = explained(gpus, before, pod);
        assert_eq!((&*found.0, &*found.1), (answer, detail));
    };
    let big = instances(&["3g.20gb"]);
    check(
        vec![device()],
        &[pin("0:1"), pin("0:5")],
        &big,
        "MigNoPlacement",
        "free slices: 0, 2, 3, 4, 6, 7; 3g.20gb needs 4 adjacent, starting at 0, 4",
    );
    let full = instances(&["7g.40gb"]);
    let detail = "no slice is free; 3g.20gb needs 4 adjacent, starting at 0, 4";
    check(
        vec![device()],
        &[full],
        &big,
        "CardInsufficientMemory",
        detail,
    );
    check(vec![device()], &[pin("0:1")], &pin("0:1"), "GpuPinned", "");
    check(
        vec![device()],
        &[],
        &instances(&["9g.1gb"]),
        "MigProfileMismatch",
        "",
    );
    let mut sick = device();
    sick.health = Health::Unhealthy("xid 79".to_owned());
    check(vec![sick], &[], &big, "CardNotHealth", "xid 79");
    let mut leaving = device();
    leaving.cordon = Some("changes from mig to vgpu".to_owned());
    let why = "changes from mig to vgpu";
    check(vec![leaving], &[], &big, "CardCordoned", why);
}

/// The pods that a request of higher priority evicts, of those that use these devices.
fn victims(used: &[(&str, &str)], wanted: &str) -> Vec<PodUid> {
    let query = PreemptionQuery {
        demand: &instances(&[wanted]),
        priority: 1,
        policies: &Policies::default(),
        budgets: &[],
    };
    let node = candidate(vec![dynamic_gpu(0, &a100(), vec![])], used);
    preemption::plan(&query, [node]).expect("a plan").victims
}

#[test]
fn preempts_only_pods_on_the_needed_slices() {
    let check = |used: &[(&str, &str)], wanted: &str, expected: &[&str]| {
        let expected: Vec<PodUid> = expected.iter().map(|&uid| uid.into()).collect();
        assert_eq!(victims(used, wanted), expected, "{wanted} {used:?}");
    };
    let by_start = [
        ("a", "GPU-0/1g.5gb@1"),
        ("b", "GPU-0/1g.5gb@5"),
        ("c", "GPU-0/1g.5gb@6"),
    ];
    check(&by_start, "3g.20gb", &["a"]);
    check(&by_start, "7g.40gb", &["a", "b", "c"]);
    check(&[("a", "GPU-0/7g.40gb@0")], "1g.5gb", &["a"]);
    // Unknown instances, and the whole GPU.
    let unknown = [("a", "GPU-0/9g.9gb@0"), ("b", "GPU-0/7g.40gb@0")];
    check(&unknown, "1g.5gb", &["a", "b"]);
    check(&[("a", "GPU-0"), ("b", "GPU-0/1g.5gb@6")], "1g.5gb", &["a"]);
}
