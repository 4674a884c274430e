//! The quotas of the model: sums recomputed over its list of entries.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::LedgerTest;
use crate::Namespace;
use crate::quota::{Limit, LimitValue, LimitedResource, Quota};
use crate::usage::{DeviceUse, DeviceUses};

/// The namespace of pods and quotas with this number.
pub(super) fn namespace(number: u8) -> Namespace {
    format!("team-{}", number % 2).as_str().into()
}

fn quota(name: u8, limits: &[Option<LimitValue>; 2]) -> Quota {
    let kinds = [LimitedResource::Memory, LimitedResource::Cores]
        .into_iter()
        .zip(limits);
    let limits = kinds.filter_map(|(on, most)| {
        let most = most.clone()?;
        let key = format!("limits.{on:?}").into();
        Some(Limit {
            on,
            key,
            most,
            counted: None,
        })
    });
    Quota {
        name: format!("q{name}").into(),
        limits: limits.collect(),
    }
}

pub(super) fn limit(most: u64) -> impl Strategy<Value = Option<LimitValue>> {
    let limit = prop_oneof![
        9 => (0..most).prop_map(LimitValue::Number),
        1 => Just(LimitValue::Unreadable("1Gi".into())),
    ];
    proptest::option::weighted(0.7, limit)
}

pub(super) fn sum(uses: impl Iterator<Item = DeviceUse>) -> [u64; 2] {
    uses.fold([0, 0], |[memory, cores], used| {
        [memory + used.memory.0, cores + u64::from(used.cores.0)]
    })
}

pub(super) fn amount(uses: &DeviceUses) -> [u64; 2] {
    sum(uses.values().copied())
}

impl LedgerTest {
    /// The watch shows a quota with these limits, or its removal if there are none.
    pub(super) fn set_quota(&mut self, of: u8, name: u8, limits: [Option<LimitValue>; 2]) {
        let made = limits.iter().any(Option::is_some);
        let made = made.then(|| quota(name, &limits));
        let text = format!("q{name}");
        self.ledger.set_quota(&namespace(of), &text, made);
        self.quotas.insert((of, name), limits);
    }

    /// A list shows one quota, on memory.
    pub(super) fn list_quota(&mut self, of: u8, memory: u64) {
        let limits = [Some(LimitValue::Number(memory)), None];
        let all = BTreeMap::from([(namespace(of), vec![quota(0, &limits)])]);
        self.ledger.set_quotas(all);
        self.quotas = BTreeMap::from([((of, 0), limits)]);
    }

    /// The sums of memory and compute of a namespace's pods, and of what is reserved for its gangs'
    /// members except this one; `None` while one of them is unreadable.
    fn used(&self, namespace: u8, except: Option<u8>) -> Option<[u64; 2]> {
        let mut all = Vec::new();
        for (_, (_, allocated, _)) in self.model.iter().filter(|(pod, _)| *pod % 2 == namespace) {
            all.push(allocated.uses()?);
        }
        let gangs = self.waiting().filter(|(_, own)| own.gang);
        let gangs = gangs.filter(|(pod, _)| pod % 2 == namespace && Some(*pod) != except);
        all.extend(gangs.map(|(_, own)| &own.uses));
        Some(sum(all.into_iter().flat_map(|uses| uses.values().copied())))
    }

    /// Whether this much more, for this pod, exceeds no limit of its namespace.
    pub(super) fn allowed(&self, pod: u8, asked: [u64; 2]) -> bool {
        let namespace = pod % 2;
        let mut quotas = self.quotas.iter().filter(|((of, _), _)| *of == namespace);
        quotas.all(|(_, limits)| {
            (0..2).all(|on| match (&limits[on], self.used(namespace, Some(pod))) {
                (None, _) => true,
                (Some(LimitValue::Number(most)), Some(used)) => {
                    asked[on] == 0 || used[on] + asked[on] <= *most
                }
                (Some(_), _) => asked[on] == 0,
            })
        })
    }

    /// What each namespace uses is the sum of its pods and its gangs' reservations.
    pub(super) fn check_quotas(&self) {
        for of in 0..2 {
            let limited = |((namespace_number, _), limits): (&(u8, u8), &[Option<_>; 2])| {
                *namespace_number == of && limits.iter().any(Option::is_some)
            };
            let namespaces = self.ledger.namespaces().quotas();
            let Some((used, _)) = namespaces.get(&namespace(of)) else {
                assert!(!self.quotas.iter().any(limited));
                continue;
            };
            assert!(self.quotas.iter().any(limited));
            for (on, what) in [LimitedResource::Memory, LimitedResource::Cores]
                .into_iter()
                .enumerate()
            {
                let sum = self.used(of, None).map(|sum| u128::from(sum[on]));
                assert_eq!(used.on(what), sum);
            }
        }
    }
}
