//! Filter and prioritize on small clusters of one-card nodes.

use std::sync::Arc;

use aliquot_core::request::{Ask, Memory};
use aliquot_core::{ContainerDemand, Inventory, Mib, Percent, Stage};

use super::*;

/// Nodes `n0`, `n1`, … with one card of 1000 MiB each, so much of it taken.
pub(crate) fn cluster(taken: &[u64]) -> Ledger {
    let mut ledger = Ledger::default();
    for (number, &memory) in taken.iter().enumerate() {
        let text = format!(
            r#"{{"v":1,"reads":[1],"gpus":[{{"uuid":"GPU-{number}","index":0,"model":"m","memory":1000,
            "scaled":1000,"cores":100,"seats":9,"mode":"vgpu","resource":"nvidia.com/gpu","health":"ok"}}]}}"#
        );
        let inventory = Inventory::decode(&text).unwrap();
        let name = format!("n{number}").into();
        ledger.set_inventory(&name, Some(Arc::new(inventory)));
        if memory > 0 {
            let pod = format!("taken-{number}").into();
            ledger
                .reserve(&pod, &name, &asks(memory), Policies::default())
                .unwrap();
        }
    }
    ledger
}

pub(crate) fn asks(memory: u64) -> Demand {
    Demand {
        resource: "nvidia.com/gpu".into(),
        containers: vec![ContainerDemand {
            name: "main".to_owned(),
            stage: Stage::App,
            ask: Some(Ask {
                count: 1,
                memory: Memory::Mib(Mib(memory)),
                cores: Percent(0),
            }),
        }],
        priority: 1,
        node_policy: None,
        gpu_policy: None,
    }
}

fn check(taken: &[u64], memory: u64, most: usize, expected: &str) {
    let names: Vec<_> = (0..taken.len()).map(|n| format!("n{n}")).collect();
    let shown = match filter(
        &cluster(taken),
        &names,
        &asks(memory),
        Policies::default(),
        most,
    ) {
        Decision::Fits(names) => names.join(" "),
        Decision::Refused { nodes, refusal } => refusal_text(nodes, &refusal),
    };
    assert_eq!(shown, expected, "{taken:?}");
}

#[test]
fn filter_answers_the_best_nodes_first_and_no_more_than_the_shortlist() {
    check(&[0, 500, 300], 100, 64, "n1 n2 n0");
    check(&[0, 500, 300], 100, 2, "n1 n2");
    check(&[0, 950, 300], 100, 64, "n2 n0");
    check(&[0, 0, 0], 100, 2, "n0 n1");
}

#[test]
fn a_refusal_has_counts_and_a_length_that_does_not_grow() {
    check(
        &[950, 950],
        100,
        64,
        "0/2 nodes can serve the GPU request: 2 CardInsufficientMemory",
    );
    let names = ["elsewhere"];
    let decision = filter(&cluster(&[]), &names, &asks(1), Policies::default(), 64);
    let Decision::Refused { refusal, .. } = decision else {
        panic!("no node is known");
    };
    assert_eq!(refusal.to_string(), "1 NodeNotRegistered");
}

#[test]
fn prioritize_gives_one_ten_and_falls_with_the_place() {
    let ledger = cluster(&[0, 500, 300, 1000]);
    let ranks = |names: &[&str]| {
        let ranks = prioritize(&ledger, names, &asks(100), Policies::default());
        ranks.into_iter().map(|(_, rank)| rank).collect::<Vec<_>>()
    };
    assert_eq!(ranks(&["n0", "n1", "n2", "n3"]), [0, 10, 4, 0]);
    assert_eq!(ranks(&["n0"]), [10]);
    assert_eq!(ranks(&["n3"]), [0]);
    assert_eq!(ranks(&[]), [0; 0]);
}
