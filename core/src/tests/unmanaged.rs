//! Memory that processes outside every share hold: no pod is promised it, and the device is the last
//! choice.

use crate::decide::{Memo, nearest_text};
use crate::explain::NodeAnswer;
use crate::inventory::{Gpu, Mode};
use crate::ledger::NotReserved;
use crate::policy::Policy;
use crate::request::{GpuRequest, Memory, WrittenAmounts};
use crate::score::Policies;
use crate::tests::{
    answer, app, demand, gpu, inventory, publication, published, query, request, reserve, uses,
};
use crate::units::{HostResources, Mib, Percent};
use crate::{Demand, Ledger, Stage};

/// Node `n`, where processes outside every share hold this much of the first device.
fn ledger(held: u64, gpus: Vec<Gpu>) -> Ledger {
    let mut made = inventory(gpus);
    made.unmanaged.insert("GPU-0".into(), Mib(held));
    let mut ledger = Ledger::default();
    ledger.publish(&"n".into(), Some(publication(made)));
    ledger
}

fn pair() -> Vec<Gpu> {
    vec![gpu(0, 81_920, 10), gpu(1, 81_920, 10)]
}

/// The devices that the pod gets, sorted, or why it gets none.
fn place(ledger: &mut Ledger, pod: &str, demand: &Demand) -> String {
    match reserve(ledger, pod, "n", demand) {
        Ok(allocation) => {
            let grants = allocation.all().flat_map(|(_, grants)| grants);
            let mut gpus: Vec<&str> = grants.map(|grant| grant.gpu.as_str()).collect();
            gpus.sort_unstable();
            gpus.join(" ")
        }
        Err(NotReserved::Refused(refusal)) => refusal.to_string(),
        Err(other) => panic!("{other:?}"),
    }
}

#[test]
fn promises_no_memory_that_is_held_outside_every_share() {
    let mut ledger = ledger(60_000, pair());
    let pod = app(1, 40_000, 10);
    assert_eq!(place(&mut ledger, "a", &pod), "GPU-1");
    assert_eq!(place(&mut ledger, "b", &pod), "GPU-1");
    assert_eq!(place(&mut ledger, "c", &pod), "2 CardInsufficientMemory");
    assert_eq!(
        nearest_text(ledger.cluster(), &pod, &["n"]),
        "; it needs 40000 MiB, and at most 21920 MiB are free on one GPU"
    );
    let (node, policies) = (ledger.cluster().node("n").unwrap(), Policies::default());
    let (explained, _) = NodeAnswer::evaluate(&"n".into(), node, &pod, &policies, true, None);
    assert_eq!(explained.gpus[0].left.memory, Mib(21_920));
    let detail = "processes outside every share hold 60000 MiB";
    assert_eq!(explained.gpus[0].detail, detail);
    assert_eq!(place(&mut ledger, "small", &app(1, 21_920, 10)), "GPU-0");
    // The process has ended.
    ledger.publish(&"n".into(), Some(published(pair())));
    assert_eq!(place(&mut ledger, "c", &pod), "GPU-0");
}

#[test]
fn no_mode_promises_memory_that_is_held_outside_every_share() {
    let all = GpuRequest::new(1, Memory::Share(Percent(100)), Percent(0));
    let nothing_written = GpuRequest {
        written: WrittenAmounts::default(),
        ..request(1, 1000, 0)
    };
    let refused = "1 CardInsufficientMemory";
    for (mode, scaled, held, asked, expected) in [
        (Mode::Vgpu, 81_920, 256, all, refused),
        (Mode::Vgpu, 81_920, 256, request(1, 81_664, 0), "GPU-0"),
        (Mode::Exclusive, 81_920, 256, request(1, 1000, 0), refused),
        // These are promised no memory, even where more is held than programs can allocate.
        (Mode::Timeslice, 81_920, 90_000, nothing_written, "GPU-0"),
        // Host memory backs the shares, as far as they may exceed the device.
        (Mode::Vgpu, 163_840, 256, all, "GPU-0"),
        (Mode::Vgpu, 90_112, 60_000, request(1, 38_304, 0), "GPU-0"),
        (Mode::Vgpu, 90_112, 60_000, request(1, 38_305, 0), refused),
        // Nobody is promised the other 8192 MiB of the device.
        (Mode::Vgpu, 73_728, 512, all, "GPU-0"),
        (Mode::Vgpu, 73_728, 60_000, request(1, 21_920, 0), "GPU-0"),
        (Mode::Vgpu, 73_728, 60_000, request(1, 21_921, 0), refused),
    ] {
        let device = Gpu {
            mode,
            scaled: Mib(scaled),
            ..gpu(0, 81_920, 1)
        };
        let mut ledger = ledger(held, vec![device]);
        let pod = demand(&[(Stage::App, Some(asked))]);
        assert_eq!(place(&mut ledger, "p", &pod), expected, "{mode:?} {scaled}");
    }
}

#[test]
fn chooses_devices_with_memory_held_outside_every_share_last() {
    // Every policy would choose the first, and its links are as good as those of the others.
    let mut gpus: Vec<Gpu> = (0..3).map(|index| gpu(index, 81_920, 10)).collect();
    for (one, other) in [(0, 1), (0, 2), (1, 2)] {
        let uuids = [one, other].map(|index: usize| gpus[index].uuid.clone());
        gpus[one].links.insert(uuids[1].clone(), 400);
        gpus[other].links.insert(uuids[0].clone(), 400);
    }
    for policy in ["binpack", "fragmentation", "topology,binpack"] {
        let check = |held: u64, gpus: &[Gpu], expected: &str| {
            let mut ledger = ledger(held, gpus.to_vec());
            let (used, host) = (uses("GPU-0", 1000, 10), HostResources::default());
            ledger.confirm(&"other".into(), &"d".into(), &"n".into(), used, host);
            let pod = Demand {
                gpu_policy: Some(policy.parse().unwrap()),
                ..app(2, 1000, 10)
            };
            assert_eq!(place(&mut ledger, "p", &pod), expected, "{policy}");
        };
        check(0, &gpus, "GPU-0 GPU-1");
        check(256, &gpus, "GPU-1 GPU-2");
        let mut backed = gpus.clone();
        backed[0].scaled = Mib(163_840);
        check(256, &backed, "GPU-1 GPU-2");
    }
}

#[test]
fn prefers_nodes_whose_devices_nobody_holds_outside_a_share() {
    let mut ledger = ledger(256, vec![gpu(0, 81_920, 10)]);
    ledger.publish(&"m".into(), Some(published(vec![gpu(0, 81_920, 10)])));
    let (used, host) = (uses("GPU-0", 30_000, 30), HostResources::default());
    ledger.confirm(&"other".into(), &"d".into(), &"n".into(), used, host);
    for node in [Policy::Binpack, Policy::Fragmentation] {
        let policies = Policies {
            node,
            ..Policies::default()
        };
        let (pod, names) = (app(1, 1000, 10), ["n", "m"]);
        let query = query(ledger.cluster(), &pod, &policies);
        assert_eq!(answer(&query, &mut Memo::default(), &names, 2), "m n");
    }
}
