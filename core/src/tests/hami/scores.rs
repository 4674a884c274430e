//! HAMi 4.7: how full a device or a node is.

use super::*;
use crate::fit::fit;
use crate::policy::{Policy, Weights};
use crate::score::{self, Load, Policies};
use crate::tests::request;

#[test]
fn device_score_is_the_weighted_sum_of_used_parts() {
    let load = Load {
        replicas: (2, 10),
        cores: (30, 100),
        memory: (500, 1000),
    };
    let check_score = |rule: &str, weights, expected| {
        let found = score::score(Policy::Binpack, load, weights);
        assert_eq!(found, expected, "rule {rule}");
    };
    check_score("4.7.1", Weights::default(), 1_000_000);
    let memory = Weights {
        replicas: 1,
        cores: 0,
        memory: 3,
    };
    check_score("4.7.3", memory, 1_700_000);
    let nothing = Load {
        memory: (0, 0),
        ..load
    };
    let found = score::score(Policy::Binpack, nothing, Weights::default());
    assert_eq!(found, 500_000, "rule 4.7.1");
}

#[test]
fn pod_weights_change_which_device_is_fullest() {
    let used: &[&[(u64, u32)]] = &[&[(700, 0)], &[(100, 70)]];
    let taken = |weights: &str| {
        let key = "hami.io/device-scoring-weights";
        let policy = ("hami.io/gpu-scheduler-policy", "binpack");
        requests(request(1, 1, 1), &[policy, (key, weights)])
    };
    check(
        "4.7.3",
        &node(used),
        &taken("slot=1,core=1,memory=3"),
        "c0:0",
    );
    check(
        "4.7.3",
        &node(used),
        &taken("memory=0, core=1, slot=0"),
        "c0:1",
    );
}

#[test]
fn scores_node_over_all_devices_by_the_pods_policy() {
    let full = node(&[&[(900, 90)], &[]]);
    let half = node(&[&[(400, 40)], &[(300, 30)]]);
    let best = |annotations: &[Annotation<'_>]| {
        let demand = requests(request(1, 1, 0), annotations);
        let score = |node| fit(node, &demand, &Policies::default()).unwrap().score;
        score(&full) > score(&half)
    };
    assert!(best(&[]), "rule 4.7.4");
    assert!(
        !best(&[("hami.io/node-scheduler-policy", "spread")]),
        "rule 4.7.5"
    );
    let both = [
        ("hami.io/node-scheduler-policy", "spread"),
        ("aliquot.dev/node-scheduler-policy", "binpack"),
    ];
    assert!(best(&both), "rule 4.7.5");
}
