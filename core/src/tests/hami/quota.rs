//! HAMi 4.9: what the quotas of a namespace leave.

use std::sync::Arc;

use super::*;
use crate::Ledger;
use crate::ledger::NotReserved;
use crate::node::NodePublication;
use crate::quota::{Limit, LimitValue, LimitedResource, Quota};
use crate::refusal::Reason;
use crate::score::Policies;
use crate::tests::request;

/// Whether the last of these pods fits under these limits, one quota for each.
fn check_quota(rule: &str, limits: &[(LimitedResource, u64)], pods: &[GpuRequest], fits: bool) {
    let quota = |&(on, most): &(LimitedResource, u64)| Quota {
        name: format!("{on:?} {most}").as_str().into(),
        limits: vec![Limit {
            on,
            key: "limits.nvidia.com/gpumem".into(),
            most: LimitValue::Number(most),
        }],
    };
    let mut ledger = Ledger::default();
    let published = NodePublication {
        inventory: Some(Arc::new(devices(4, |_, _| {}))),
        ..NodePublication::default()
    };
    ledger.publish(&"n".into(), Some(published));
    ledger.set_quotas([("team".into(), limits.iter().map(quota).collect())].into());
    let answers = pods.iter().enumerate().map(|(number, request)| {
        let (pod, demand) = (
            format!("p{number}").as_str().into(),
            requests(*request, &[]),
        );
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
fn quota_limits_used_plus_requested_but_not_device_count() {
    use LimitedResource::{Cores, Memory};
    check_quota("4.9.1", &[(Memory, 500)], &[request(1, 501, 0)], false);
    check_quota("4.9.1", &[(Cores, 50)], &[request(1, 1, 51)], false);
    let two = [request(1, 300, 20), request(1, 200, 30)];
    check_quota("4.9.2", &[(Memory, 500)], &two, true);
    check_quota("4.9.2", &[(Memory, 499)], &two, false);
    check_quota("4.9.2", &[(Cores, 49)], &two, false);
    check_quota("4.9.2", &[(Memory, 0)], &[request(1, 1, 0)], false);
    check_quota("4.9.2", &[], &two, true);
    check_quota("4.9.2", &[(Memory, 399)], &[request(2, 200, 0)], false);
    check_quota("4.9.3", &[(Memory, 4)], &[request(4, 1, 0)], true);
    // HAMi applies only the quota that changed last.
    check_quota("4.9.4", &[(Memory, 400), (Memory, 900)], &two, false);
}
