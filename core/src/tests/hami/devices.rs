//! HAMi 4.6: whether one device can take the pod, and the first reason why not.

use super::*;
use crate::inventory::{Health, Mode};
use crate::node::NodePublication;
use crate::request::Memory;
use crate::tests::{publication, request};
use crate::units::{HostResources, Percent};

const FREE: &[(u64, u32)] = &[];

fn model(name: &'static str) -> impl Fn(usize, &mut Gpu) {
    move |_, device| name.clone_into(&mut device.model)
}

#[test]
fn refuses_device_for_the_first_rule_it_breaks() {
    let small = requests(request(1, 100, 0), &[]);
    let sick = |_: usize, device: &mut Gpu| device.health = Health::Unhealthy("xid 79".to_owned());
    let check_one = |rule, used: &[(u64, u32)], request, expected| {
        check(rule, &node(&[used]), &requests(request, &[]), expected);
    };
    check("4.6.1", &node_of(&[FREE], sick), &small, "1 CardNotHealth");
    let out = NodePublication {
        cordoned: vec!["GPU-0".into()],
        ..publication(devices(2, |_, _| {}))
    };
    let cordoned = NodeState::new(&out, &[], HostResources::default());
    check("4.6.2", &cordoned, &small, "c0:1");
    let two = requests(request(2, 100, 0), &[]);
    let why = "1 CardCordoned, 1 AllocatedCardsInsufficientRequest";
    check("4.6.2", &cordoned, &two, why);
    check_one(
        "4.6.6",
        &[(1, 0); 4],
        request(1, 1, 0),
        "1 CardTimeSlicingExhausted",
    );
    check_one(
        "4.6.11",
        &[(901, 0)],
        request(1, 100, 0),
        "1 CardInsufficientMemory",
    );
    check_one("4.6.11", &[(900, 0)], request(1, 100, 0), "c0:0");
    check_one(
        "4.6.12",
        &[(1, 61)],
        request(1, 1, 40),
        "1 CardInsufficientCore",
    );
    check_one(
        "4.6.13",
        &[(1, 0)],
        request(1, 1, 100),
        "1 ExclusiveDeviceAllocateConflict",
    );
    check_one(
        "4.6.14",
        &[(1, 60), (1, 40)],
        request(1, 1, 0),
        "1 CardComputeUnitsExhausted",
    );
    // The order: replicas, memory, compute, exclusive use.
    check_one(
        "4.6.6",
        &[(300, 30); 4],
        request(1, 999, 99),
        "1 CardTimeSlicingExhausted",
    );
    check_one(
        "4.6.11",
        &[(300, 30)],
        request(1, 999, 99),
        "1 CardInsufficientMemory",
    );
    check_one(
        "4.6.12",
        &[(300, 30)],
        request(1, 1, 100),
        "1 CardInsufficientCore",
    );
}

#[test]
fn full_compute_share_excludes_all_and_zero_excludes_none() {
    let why = "1 CardInsufficientCore";
    check(
        "4.6.22",
        &node(&[&[(1, 100)]]),
        &requests(request(1, 1, 1), &[]),
        why,
    );
    let why = "1 CardComputeUnitsExhausted";
    check(
        "4.6.22",
        &node(&[&[(1, 100)]]),
        &requests(request(1, 1, 0), &[]),
        why,
    );
    let free = node(&[&[(1, 0), (1, 0), (1, 99)]]);
    check("4.6.22", &free, &requests(request(1, 1, 1), &[]), "c0:0");
    check("4.6.22", &free, &requests(request(1, 1, 0), &[]), "c0:0");
}

#[test]
fn hami_3_fifty_percent_is_half_of_the_chosen_gpu() {
    let half = GpuRequest {
        memory: Memory::Share(Percent(50)),
        ..request(1, 0, 0)
    };
    // The first GPU is smaller, and has a half of its own left, or one MiB less.
    let small = |used| {
        node_of(&[&[(used, 0)], &[(501, 0)]], |at, device| {
            device.scaled = crate::Mib(if at == 0 { 400 } else { 1000 });
        })
    };
    check("4.6.9", &small(200), &requests(half, &[]), "c0:0");
    let why = "2 CardInsufficientMemory";
    check("4.6.9", &small(201), &requests(half, &[]), why);
}

#[test]
fn hami_10_memory_and_compute_go_in_steps_of_one_percent() {
    let share = |percent| GpuRequest {
        memory: Memory::Share(Percent(percent)),
        ..request(1, 0, percent)
    };
    let used = |memory, cores| {
        node_of(&[&[(memory, cores)]], |_, device| {
            device.scaled = crate::Mib(1000);
        })
    };
    let check = |node: &NodeState, percent, expected: &str| {
        check("4.6.9", node, &requests(share(percent), &[]), expected);
    };
    check(&used(990, 99), 1, "c0:0");
    check(&used(990, 99), 2, "1 CardInsufficientMemory");
    check(&used(991, 99), 1, "1 CardInsufficientMemory");
    check(&used(980, 99), 2, "1 CardInsufficientCore");
    check(&used(980, 98), 2, "c0:0");
}

#[test]
fn matches_models_partly_for_hami_and_exactly_for_aliquot() {
    let check_model = |rule, name, key, value, fits| {
        let expected = if fits { "c0:0" } else { "1 CardTypeMismatch" };
        let demand = requests(request(1, 1, 0), &[(key, value)]);
        check(rule, &node_of(&[FREE], model(name)), &demand, expected);
    };
    let (a100, v100) = ("NVIDIA A100-SXM4-80GB", "Tesla V100-SXM2-32GB");
    let (yes, no) = ("nvidia.com/use-gputype", "nvidia.com/nouse-gputype");
    check_model("4.6.3", a100, yes, "V100", false);
    check_model("4.6.18", a100, yes, "A10", true);
    check_model("4.6.18", a100, yes, "v100, a100", true);
    check_model("4.6.18", a100, yes, "", true);
    check_model("4.6.18", a100, no, "a10", false);
    check_model("4.6.18", a100, no, "", true);
    // HAMi adds the vendor to models that lack it.
    check_model("4.6.18", v100, yes, "NVIDIA-Tesla", true);
    let both = [(yes, "A100"), (no, "SXM4")];
    let demand = requests(request(1, 1, 0), &both);
    let why = "1 CardTypeMismatch";
    check("4.6.18", &node_of(&[FREE], model(a100)), &demand, why);

    let (yes, no) = ("aliquot.dev/use-gputype", "aliquot.dev/nouse-gputype");
    check_model("4.6.18", a100, yes, "NVIDIA A10", false);
    check_model(
        "4.6.18",
        a100,
        yes,
        "NVIDIA A10, nvidia a100-sxm4-80gb",
        true,
    );
    check_model("4.6.18", a100, no, "NVIDIA A100", true);
    check_model("4.6.18", a100, no, "NVIDIA A100-SXM4-80GB", false);
}

#[test]
fn matches_whole_uuids_and_nouse_wins() {
    let check_uuid = |rule, annotations: &[Annotation<'_>], expected| {
        check(
            rule,
            &node(&[FREE, FREE]),
            &requests(request(1, 1, 0), annotations),
            expected,
        );
    };
    let (yes, no) = ("nvidia.com/use-gpuuuid", "nvidia.com/nouse-gpuuuid");
    check_uuid("4.6.5", &[(yes, "GPU-")], "2 CardUuidMismatch");
    check_uuid("4.6.19", &[(yes, "GPU-7, GPU-1")], "c0:1");
    check_uuid("4.6.19", &[(no, "GPU-0")], "c0:1");
    check_uuid(
        "4.6.19",
        &[(yes, "GPU-0"), (no, "GPU-0")],
        "2 CardUuidMismatch",
    );
    check_uuid("4.6.19", &[(yes, "")], "c0:0");
    check_uuid(
        "4.6.19",
        &[("aliquot.dev/use-gpuuuid", "GPU-1"), (yes, "GPU-0")],
        "c0:1",
    );
    // The model comes before the device (HAMi's order).
    let both = [("nvidia.com/use-gputype", "H100"), (yes, "GPU-9")];
    check_uuid("4.6.3", &both, "2 CardTypeMismatch");
}

#[test]
fn accepts_mode_names_of_hami_and_aliquot() {
    let check_mode = |key, value, fits| {
        let expected = if fits { "c0:0" } else { "1 CardTypeMismatch" };
        let demand = requests(request(1, 1, 0), &[(key, value)]);
        check("4.6.20", &node(&[FREE]), &demand, expected);
    };
    check_mode("nvidia.com/vgpu-mode", "hami-core", true);
    check_mode("nvidia.com/vgpu-mode", "mig|hami-core", true);
    check_mode("nvidia.com/vgpu-mode", "mig", false);
    check_mode("nvidia.com/vgpu-mode", "", true);
    check_mode("aliquot.dev/vgpu-mode", "vgpu, mig", true);
    check_mode("aliquot.dev/vgpu-mode", "exclusive", false);
    let mig = node_of(&[FREE], |_, device| device.mode = Mode::Mig);
    check(
        "4.6.3",
        &mig,
        &requests(request(1, 1, 0), &[]),
        "1 CardTypeMismatch",
    );
}

#[test]
fn counts_too_few_devices_once() {
    let demand = requests(request(2, 600, 0), &[]);
    let used: &[&[(u64, u32)]] = &[&[(500, 0)], FREE, &[(500, 0)]];
    let why = "2 CardInsufficientMemory, 1 AllocatedCardsInsufficientRequest";
    check("4.6.16", &node(used), &demand, why);
    let used: &[&[(u64, u32)]] = &[&[(500, 0)], FREE, FREE];
    check("4.6.16", &node(used), &demand, "c0:1+2");
}
