//! HAMi 4.9: what the quotas of a namespace leave.

use std::sync::Arc;

use super::*;
use crate::Ledger;
use crate::fit::Policies;
use crate::ledger::NotReserved;
use crate::node::Published;
use crate::quota::{Limit, Limited, Most, Quota};
use crate::reason::Reason;
use crate::tests::ask;

/// Whether the last of these pods comes under these limits, one quota for each.
fn check_quota(rule: &str, limits: &[(Limited, u64)], pods: &[Ask], fits: bool) {
    let quota = |&(on, most): &(Limited, u64)| Quota {
        name: format!("{on:?} {most}").as_str().into(),
        limits: vec![Limit {
            on,
            key: "limits.nvidia.com/gpumem".into(),
            most: Most::Whole(most),
        }],
    };
    let mut ledger = Ledger::default();
    let published = Published {
        inventory: Some(Arc::new(cards(4, |_, _| {}))),
        ..Published::default()
    };
    ledger.publish(&"n".into(), Some(published));
    ledger.set_quotas([("team".into(), limits.iter().map(quota).collect())].into());
    let answers = pods.iter().enumerate().map(|(number, ask)| {
        let (pod, demand) = (format!("p{number}").as_str().into(), asks(*ask, &[]));
        ledger.reserve(
            &pod,
            &"team".into(),
            &"n".into(),
            &demand,
            &Policies::default(),
        )
    });
    match answers.last() {
        Some(Ok(_)) => assert!(fits, "rule {rule}"),
        Some(Err(NotReserved::Refused(why))) => {
            let quota = why.count(Reason::ResourceQuotaNotFit) > 0;
            assert!(quota && !fits, "rule {rule}: {why}");
        }
        other => panic!("rule {rule}: {other:?}"),
    }
}

#[test]
fn used_and_asked_together_stay_within_the_limit_and_cards_are_not_counted() {
    use Limited::{Cores, Memory};
    check_quota("4.9.1", &[(Memory, 500)], &[ask(1, 501, 0)], false);
    check_quota("4.9.1", &[(Cores, 50)], &[ask(1, 1, 51)], false);
    let two = [ask(1, 300, 20), ask(1, 200, 30)];
    check_quota("4.9.2", &[(Memory, 500)], &two, true);
    check_quota("4.9.2", &[(Memory, 499)], &two, false);
    check_quota("4.9.2", &[(Cores, 49)], &two, false);
    check_quota("4.9.2", &[(Memory, 0)], &[ask(1, 1, 0)], false);
    check_quota("4.9.2", &[], &two, true);
    check_quota("4.9.2", &[(Memory, 399)], &[ask(2, 200, 0)], false);
    check_quota("4.9.3", &[(Memory, 4)], &[ask(4, 1, 0)], true);
    // HAMi keeps the quota that changed last.
    check_quota("4.9.4", &[(Memory, 400), (Memory, 900)], &two, false);
}
