//! Who ends where the kubelet has too few seats.

use super::{occupant, one, published, seats};
use crate::fit::Policies;
use crate::node::{Published, Requests};
use crate::preemption::{NoPlan, Node, Question, plan};

/// The kubelet offers two seats; the card of the small pod is nobody's business.
#[test]
fn where_the_kubelet_has_too_few_seats_whoever_has_one_may_end_for_it() {
    let fixed = ("fixed#", 1, 0, &[(0, 950, 0)][..]);
    let small = ("small", 1, 0, &[(0, 10, 0)][..]);
    let check = |offered, foreign, expected| {
        let node = Node {
            name: "n".into(),
            published: Published {
                seats: Some(seats(offered)),
                ..published(2)
            },
            requested: Requests {
                seats: seats(foreign),
                ..Requests::default()
            },
            occupants: [fixed, small].iter().map(occupant).collect(),
        };
        let question = Question {
            demand: &one(1, 500, 0),
            priority: 10,
            policies: &Policies::default(),
            budgets: &[],
        };
        let found = plan(&question, [node]).map(|plan| plan.victims);
        assert_eq!(found, expected, "{offered} {foreign}");
    };
    check(3, 0, Err(NoPlan::Fits));
    check(2, 0, Ok(vec!["small".into()]));
    check(1, 0, Err(NoPlan::NotEnough));
    check(3, 1, Ok(vec!["small".into()]));
    check(0, 0, Err(NoPlan::NotEnough));
}
