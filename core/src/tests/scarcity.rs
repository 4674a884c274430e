//! What a GPU model costs the pods that accept others, and where they go.

use std::sync::Arc;

use crate::node::NodePublication;
use crate::rules::Model;
use crate::scarcity::ModelBalance;
use crate::score::Policies;
use crate::tests::{self, app, gpu, uses};
use crate::{Census, Demand, Ledger, ModelRules, Policy, Requests};

fn accepting(models: &[&str]) -> Option<Arc<ModelRules>> {
    let models = models.iter().map(|model| Model::Is((*model).to_owned()));
    ModelRules::new(models.collect(), Vec::new())
}

/// What the pods of each set of models ask for; no models for any.
fn balance(free: &[(&str, u64)], asked: &[(&[&str], u64)]) -> ModelBalance {
    let mut balance = ModelBalance::default();
    for (model, thousandths) in free {
        balance.offer(model, *thousandths);
    }
    for (models, thousandths) in asked {
        balance.ask(accepting(models).as_ref(), *thousandths);
    }
    balance
}

fn check(free: &[(&str, u64)], asked: &[(&[&str], u64)], expected: &[(&str, u64)]) {
    let found = balance(free, asked).prices();
    let close = |((a, price), (b, other)): (&(String, u64), &(&str, u64))| {
        a == b && price.abs_diff(*other) <= 10
    };
    let equal = found.len() == expected.len() && found.iter().zip(expected).all(close);
    assert!(equal, "{found:?}");
}

#[test]
fn prices_a_model_by_what_pinned_pods_will_ask_of_it() {
    let free = [("A", 64_000), ("B", 576_000)];
    check(&free, &[(&[], 1000)], &[]);
    check(&free, &[(&[], 960), (&["A"], 40)], &[]);
    check(&free, &[(&[], 925), (&["A"], 75)], &[("A", 500)]);
    check(&free, &[(&[], 800), (&["A"], 200)], &[("A", 1000)]);
    // The more of it is taken, the dearer.
    let less = [("A", 32_000), ("B", 576_000)];
    check(&less, &[(&[], 960), (&["A"], 40)], &[("A", 520)]);
    // What cannot be avoided costs nothing.
    let full = [("A", 64_000), ("B", 0)];
    check(&full, &[(&[], 800), (&["A"], 200)], &[]);
    check(&free, &[(&["A"], 100), (&["B"], 900)], &[]);
    check(&free, &[(&["A", "B"], 1000)], &[]);
}

#[test]
fn spreads_pods_that_accept_several_models_to_the_least_pressed() {
    let free = [("A", 64_000), ("B", 64_000), ("C", 512_000)];
    check(
        &free,
        &[(&[], 850), (&["A", "B"], 150)],
        &[("A", 500), ("B", 500)],
    );
    let asked: [(&[&str], u64); 3] = [(&[], 700), (&["A"], 100), (&["A", "C"], 200)];
    check(&free, &asked, &[("A", 1000)]);
}

/// A node of two devices of this model with 10 000 MiB each.
fn published(model: &str) -> NodePublication {
    let mut gpus = vec![gpu(0, 10_000, 100), gpu(1, 10_000, 100)];
    for gpu in &mut gpus {
        model.clone_into(&mut gpu.model);
    }
    tests::published(gpus)
}

/// Nodes `a` and `b` of models A and B; on `b` are 60 pods of 100 MiB each that accept these.
fn ledger(models: &[&str]) -> Ledger {
    let mut ledger = Ledger::default();
    ledger.publish(&"a".into(), Some(published("A")));
    ledger.publish(&"b".into(), Some(published("B")));
    for pod in 0..60 {
        let requests = Requests {
            models: accepting(models),
            ..Requests::default()
        };
        let uid = format!("p{pod}").as_str().into();
        let used = uses("GPU-0", 100, 1);
        ledger.confirm(&uid, &"d".into(), &"b".into(), used, requests);
    }
    ledger
}

/// The node with the higher score for this pod.
fn better(ledger: &Ledger, demand: &Demand) -> &'static str {
    let mut census = Census::default();
    for name in ["a", "b"] {
        ledger.count_pods(&name.into(), &mut census);
    }
    let policies = Policies {
        node: Policy::Fragmentation,
        gpu: Policy::Fragmentation.into(),
        typical: Arc::new(census.typical()),
    };
    let score = |name: &&str| {
        let node = ledger.cluster().node(name).expect("known");
        crate::fit::fit(node, demand, &policies).map_or(0, |fit| fit.score)
    };
    ["a", "b"].into_iter().max_by_key(score).expect("two nodes")
}

#[test]
fn keeps_scarce_model_free_for_pods_that_accept_no_other() {
    let any = app(1, 1000, 10);
    // The fuller node, as long as nobody needs its model.
    assert_eq!(better(&ledger(&[]), &any), "b");
    assert_eq!(better(&ledger(&["A", "B"]), &any), "b");
    assert_eq!(better(&ledger(&["B"]), &any), "a");
    let mut pinned = any;
    pinned.rules.use_models = vec![Model::Is("B".to_owned())];
    assert_eq!(better(&ledger(&["B"]), &pinned), "b");
}
