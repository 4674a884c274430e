//! HAMi 4.6: may one card take the pod, and the first reason why not.

use std::sync::Arc;

use super::*;
use crate::inventory::{Health, Mode};
use crate::node::{Compute, Published};
use crate::request::Memory;
use crate::tests::ask;
use crate::units::Percent;

const FREE: &[(u64, u32)] = &[];

fn model(name: &'static str) -> impl Fn(usize, &mut Gpu) {
    move |_, card| name.clone_into(&mut card.model)
}

#[test]
fn a_card_is_refused_for_the_first_rule_that_it_breaks() {
    let small = asks(ask(1, 100, 0), &[]);
    let sick = |_: usize, card: &mut Gpu| card.health = Health::Sick("xid 79".to_owned());
    let check_one = |rule, used: &[(u64, u32)], ask, expected| {
        check(rule, &node(&[used]), &asks(ask, &[]), expected);
    };
    check("4.6.1", &node_of(&[FREE], sick), &small, "1 CardNotHealth");
    let out = Published {
        inventory: Some(Arc::new(cards(2, |_, _| {}))),
        cordoned: vec!["GPU-0".into()],
        ..Published::default()
    };
    let cordoned = NodeState::of(&out, &[], Compute::default());
    check("4.6.2", &cordoned, &small, "c0:1");
    let two = asks(ask(2, 100, 0), &[]);
    let why = "1 CardCordoned, 1 AllocatedCardsInsufficientRequest";
    check("4.6.2", &cordoned, &two, why);
    check_one(
        "4.6.6",
        &[(1, 0); 4],
        ask(1, 1, 0),
        "1 CardTimeSlicingExhausted",
    );
    check_one(
        "4.6.11",
        &[(901, 0)],
        ask(1, 100, 0),
        "1 CardInsufficientMemory",
    );
    check_one("4.6.11", &[(900, 0)], ask(1, 100, 0), "c0:0");
    check_one(
        "4.6.12",
        &[(1, 61)],
        ask(1, 1, 40),
        "1 CardInsufficientCore",
    );
    check_one(
        "4.6.13",
        &[(1, 0)],
        ask(1, 1, 100),
        "1 ExclusiveDeviceAllocateConflict",
    );
    check_one(
        "4.6.14",
        &[(1, 60), (1, 40)],
        ask(1, 1, 0),
        "1 CardComputeUnitsExhausted",
    );
    // The order: seats, memory, compute, alone.
    check_one(
        "4.6.6",
        &[(300, 30); 4],
        ask(1, 999, 99),
        "1 CardTimeSlicingExhausted",
    );
    check_one(
        "4.6.11",
        &[(300, 30)],
        ask(1, 999, 99),
        "1 CardInsufficientMemory",
    );
    check_one(
        "4.6.12",
        &[(300, 30)],
        ask(1, 1, 100),
        "1 CardInsufficientCore",
    );
}

#[test]
fn a_whole_card_keeps_everybody_out_and_no_compute_keeps_nobody_out() {
    let why = "1 CardInsufficientCore";
    check(
        "4.6.22",
        &node(&[&[(1, 100)]]),
        &asks(ask(1, 1, 1), &[]),
        why,
    );
    let why = "1 CardComputeUnitsExhausted";
    check(
        "4.6.22",
        &node(&[&[(1, 100)]]),
        &asks(ask(1, 1, 0), &[]),
        why,
    );
    let free = node(&[&[(1, 0), (1, 0), (1, 99)]]);
    check("4.6.22", &free, &asks(ask(1, 1, 1), &[]), "c0:0");
    check("4.6.22", &free, &asks(ask(1, 1, 0), &[]), "c0:0");
}

#[test]
fn a_percentage_is_of_the_cards_memory_rounded_down() {
    let third = Ask {
        memory: Memory::Share(Percent(33)),
        ..ask(1, 0, 0)
    };
    let odd = |used| node_of(&[used], |_, card| card.scaled = crate::Mib(999));
    check("4.6.9", &odd(&[(670, 0)]), &asks(third, &[]), "c0:0");
    let why = "1 CardInsufficientMemory";
    check("4.6.9", &odd(&[(671, 0)]), &asks(third, &[]), why);
}

#[test]
fn models_are_matched_by_part_under_hamis_names_and_whole_under_ours() {
    let check_model = |rule, name, key, value, fits| {
        let expected = if fits { "c0:0" } else { "1 CardTypeMismatch" };
        let demand = asks(ask(1, 1, 0), &[(key, value)]);
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
    // HAMi puts the vendor before models that lack it.
    check_model("4.6.18", v100, yes, "NVIDIA-Tesla", true);
    let both = [(yes, "A100"), (no, "SXM4")];
    let demand = asks(ask(1, 1, 0), &both);
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
fn uuids_are_matched_whole_and_nouse_wins() {
    let check_uuid = |rule, annotations: &[Annotation<'_>], expected| {
        check(
            rule,
            &node(&[FREE, FREE]),
            &asks(ask(1, 1, 0), annotations),
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
    // The model comes before the card (HAMi's order).
    let both = [("nvidia.com/use-gputype", "H100"), (yes, "GPU-9")];
    check_uuid("4.6.3", &both, "2 CardTypeMismatch");
}

#[test]
fn modes_are_named_as_hami_names_them_or_as_we_do() {
    let check_mode = |key, value, fits| {
        let expected = if fits { "c0:0" } else { "1 CardTypeMismatch" };
        let demand = asks(ask(1, 1, 0), &[(key, value)]);
        check("4.6.20", &node(&[FREE]), &demand, expected);
    };
    check_mode("nvidia.com/vgpu-mode", "hami-core", true);
    check_mode("nvidia.com/vgpu-mode", "mig|hami-core", true);
    check_mode("nvidia.com/vgpu-mode", "mig", false);
    check_mode("nvidia.com/vgpu-mode", "", true);
    check_mode("aliquot.dev/vgpu-mode", "vgpu, mig", true);
    check_mode("aliquot.dev/vgpu-mode", "exclusive", false);
    let mig = node_of(&[FREE], |_, card| card.mode = Mode::Mig);
    check(
        "4.6.3",
        &mig,
        &asks(ask(1, 1, 0), &[]),
        "1 CardTypeMismatch",
    );
}

#[test]
fn fewer_cards_than_asked_for_are_counted_once() {
    let demand = asks(ask(2, 600, 0), &[]);
    let used: &[&[(u64, u32)]] = &[&[(500, 0)], FREE, &[(500, 0)]];
    let why = "2 CardInsufficientMemory, 1 AllocatedCardsInsufficientRequest";
    check("4.6.16", &node(used), &demand, why);
    let used: &[&[(u64, u32)]] = &[&[(500, 0)], FREE, FREE];
    check("4.6.16", &node(used), &demand, "c0:1+2");
}
