//! Pods of one namespace on one node, against its quotas.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;
use crate::ledger::NotReserved;
use crate::request::{GpuRequest, Memory};
use crate::score::Policies;
use crate::tests::{self, demand, gpu, request};
use crate::units::HostResources;
use crate::{Demand, Ledger, Stage};

fn quota(name: &str, limits: &[(LimitedResource, &str)]) -> Quota {
    let limit = |&(on, most): &(LimitedResource, &str)| {
        let key = match on {
            LimitedResource::Memory => "limits.nvidia.com/gpumem",
            LimitedResource::Cores => "limits.nvidia.com/gpucores",
        };
        let most = most.parse().map(LimitValue::Number);
        let most = most.unwrap_or_else(|_| LimitValue::Unreadable("16Gi".into()));
        let key = key.into();
        Limit {
            on,
            key,
            most,
            counted: None,
        }
    };
    Quota {
        name: name.into(),
        limits: limits.iter().map(limit).collect(),
    }
}

/// A node of four devices of 4000 MiB.
fn ledger(quotas: Vec<Quota>) -> Ledger {
    let mut ledger = tests::ledger((0..4).map(|index| gpu(index, 4000, 9)).collect());
    ledger.set_quotas(BTreeMap::from([("team".into(), quotas)]));
    ledger
}

fn reserve(ledger: &mut Ledger, namespace: &str, pod: &str, demand: &Demand) -> String {
    let (pod, namespace) = (pod.into(), namespace.into());
    match ledger.reserve(&pod, &namespace, &"n".into(), demand, &Policies::default()) {
        Ok(_) => "fits".to_owned(),
        Err(NotReserved::Refused(refusal)) => refusal.to_string(),
        Err(NotReserved::AlreadyAllocated(node)) => format!("allocated on {node}"),
    }
}

fn half() -> GpuRequest {
    GpuRequest::new(1, Memory::Share(Percent(50)), Percent(0))
}

/// The containers of a pod, and the answer.
type Case<'a> = (&'a [(Stage, Option<GpuRequest>)], &'a str);

/// One pod after the other under `quotas`; `rule` is HAMi's.
fn check(rule: &str, quotas: &[Quota], pods: &[Case<'_>]) {
    let mut ledger = ledger(quotas.to_vec());
    for (number, (containers, expected)) in pods.iter().enumerate() {
        let pod = format!("p{number}");
        let text = reserve(&mut ledger, "team", &pod, &demand(containers));
        let over = text.strip_prefix("1 ResourceQuotaNotFit (namespace team: limits.nvidia.com/");
        let answer = over.map_or("fits", |over| over.trim_end_matches(')'));
        assert_eq!(
            answer, *expected,
            "rule {rule}, pod {number} of {pods:?} under {quotas:?}"
        );
    }
}

#[test]
fn charges_quota_count_times_memory_and_count_times_cores() {
    use LimitedResource::{Cores, Memory};
    use Stage::App;
    check(
        "4.9.2",
        &[quota("q", &[(Memory, "3000"), (Cores, "100")])],
        &[
            (&[(App, Some(request(2, 1000, 20)))], "fits"),
            (
                &[(App, Some(request(2, 501, 0)))],
                "gpumem used 2000, asked 1002, limit 3000 of quota q",
            ),
            (
                &[(App, Some(request(3, 1, 21)))],
                "gpucores used 40, asked 63, limit 100 of quota q",
            ),
            (&[(App, Some(request(2, 500, 30)))], "fits"),
            (
                &[(App, Some(request(1, 1, 0)))],
                "gpumem used 3000, asked 1, limit 3000 of quota q",
            ),
        ],
    );
}

#[test]
fn quota_limits_no_count() {
    let app = (Stage::App, Some(request(4, 1, 0)));
    let quotas = [quota("q", &[(LimitedResource::Memory, "4")])];
    check("4.9.3", &quotas, &[(&[app], "fits")]);
}

#[test]
fn charges_quota_larger_of_init_peak_and_app_sum() {
    use Stage::{App, Init, Sidecar};
    // W9: two app containers of half a device each, with and without two init containers
    // before them.
    let quotas = [quota("q", &[(LimitedResource::Memory, "3000")])];
    let refused = "gpumem used 0, asked 4000, limit 3000 of quota q";
    let half = Some(half());
    check("", &quotas, &[(&[(App, half), (App, half)], refused)]);
    check(
        "",
        &quotas,
        &[
            (
                &[(Init, half), (Init, half), (App, half), (App, half)],
                refused,
            ),
            (
                &[(Init, None), (Init, None), (App, half), (App, half)],
                refused,
            ),
            (
                &[(Init, half), (Init, half), (App, Some(request(1, 1000, 0)))],
                "fits",
            ),
        ],
    );
    let (small, large) = (Some(request(1, 500, 0)), Some(request(1, 2000, 0)));
    check(
        "",
        &quotas,
        &[
            (&[(Sidecar, small), (Init, large), (App, small)], "fits"),
            (
                &[(App, Some(request(1, 501, 0)))],
                "gpumem used 2500, asked 501, limit 3000 of quota q",
            ),
        ],
    );
}

#[test]
fn enforces_every_quota_of_the_namespace() {
    use LimitedResource::{Cores, Memory};
    let app = |memory, cores| [(Stage::App, Some(request(1, memory, cores)))];
    check(
        "4.9.1",
        &[
            quota("wide", &[(Memory, "2000"), (Cores, "10")]),
            quota("tight", &[(Memory, "1000")]),
        ],
        &[
            (&app(900, 0), "fits"),
            (
                &app(200, 0),
                "gpumem used 900, asked 200, limit 1000 of quota tight",
            ),
            (
                &app(2000, 0),
                "gpumem used 900, asked 2000, limit 1000 of quota tight",
            ),
            (
                &app(100, 11),
                "gpucores used 0, asked 11, limit 10 of quota wide",
            ),
            (&app(100, 10), "fits"),
        ],
    );
}

#[test]
fn zero_and_unreadable_limits_allow_nothing() {
    use LimitedResource::{Cores, Memory};
    let app = |memory, cores| [(Stage::App, Some(request(1, memory, cores)))];
    check(
        "4.9.2",
        &[quota("q", &[(Memory, "0")])],
        &[(&app(1, 0), "gpumem used 0, asked 1, limit 0 of quota q")],
    );
    check(
        "",
        &[quota("q", &[(Cores, "16Gi")])],
        &[
            (&app(1, 0), "fits"),
            (
                &app(1, 1),
                "gpucores used 0, asked 1, limit \"16Gi\" of quota q is unreadable, expected: a whole number",
            ),
        ],
    );
}

#[test]
fn unreadable_allocation_exhausts_its_namespace_quota() {
    let mut ledger = ledger(vec![quota("q", &[(LimitedResource::Memory, "9000")])]);
    let app = demand(&[(Stage::App, Some(request(1, 100, 0)))]);
    let broken = |ledger: &mut Ledger| {
        ledger.confirm(
            &"broken".into(),
            &"team".into(),
            &"elsewhere".into(),
            AllocatedUse::Unreadable,
            HostResources::default(),
        );
    };
    broken(&mut ledger);
    assert_eq!(
        reserve(&mut ledger, "team", "a", &app),
        "1 ResourceQuotaNotFit (namespace team: limits.nvidia.com/gpumem used unknown, \
         an allocation cannot be read, asked 100, limit 9000 of quota q)"
    );
    assert_eq!(reserve(&mut ledger, "other", "b", &app), "fits");
    ledger.release(&"broken".into());
    assert_eq!(reserve(&mut ledger, "team", "a", &app), "fits");
}

proptest! {
    #[test]
    fn allows_and_excess_agree_after_other_pods_take_some(
        limits in proptest::collection::vec((any::<bool>(), 0u64..300), 0..4),
        pods in proptest::collection::vec((0u64..120, 0u32..=100), 1..9),
    ) {
        let quotas: Vec<Quota> = limits.iter().enumerate().map(|(number, (memory, most))| {
            let on = if *memory { LimitedResource::Memory } else { LimitedResource::Cores };
            quota(&number.to_string(), &[(on, &most.to_string())])
        }).collect();
        let mut headroom = Headroom::new("team".into(), NamespaceUsage::default(), quotas.into());
        let mut sum = [0, 0];
        for (memory, cores) in pods {
            let asked = QuotaAmount { memory: Mib(memory), cores: Percent(cores) };
            let requests = [memory, u64::from(cores)];
            let allowed = limits.iter().all(|(on, most)| {
                let on = usize::from(!on);
                requests[on] == 0 || sum[on] + requests[on] <= *most
            });
            prop_assert_eq!(headroom.allows(asked), allowed);
            prop_assert_eq!(headroom.excess(asked).is_none(), allowed);
            headroom.take(asked);
            sum = [sum[0] + requests[0], sum[1] + requests[1]];
        }
    }
}
