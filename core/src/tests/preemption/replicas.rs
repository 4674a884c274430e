//! Preemption where the kubelet has too few replicas.

use super::{occupant, published, replicas};
use crate::demand::Requests;
use crate::node::NodePublication;
use crate::preemption::{CandidateNode, NoPlan, PreemptionQuery, plan};
use crate::score::Policies;
use crate::tests::app;

/// The kubelet offers two replicas; the small pod's device is of no use by itself.
#[test]
fn preempts_any_pod_that_frees_a_replica() {
    let fixed = ("fixed#", 1, 0, &[(0, 950, 0)][..]);
    let small = ("small", 1, 0, &[(0, 10, 0)][..]);
    let check = |offered, foreign, expected| {
        let node = CandidateNode {
            name: "n".into(),
            published: NodePublication {
                replicas: Some(replicas(offered)),
                ..published(2)
            },
            requested: Requests {
                replicas: replicas(foreign),
                ..Requests::default()
            },
            occupants: [fixed, small].iter().map(occupant).collect(),
        };
        let query = PreemptionQuery {
            demand: &app(1, 500, 0),
            priority: 10,
            policies: &Policies::default(),
            budgets: &[],
        };
        let found = plan(&query, [node]).map(|plan| plan.victims);
        assert_eq!(found, expected, "{offered} {foreign}");
    };
    check(3, 0, Err(NoPlan::Fits));
    check(2, 0, Ok(vec!["small".into()]));
    check(1, 0, Err(NoPlan::NotEnough));
    check(3, 1, Ok(vec!["small".into()]));
    check(0, 0, Err(NoPlan::NotEnough));
}
