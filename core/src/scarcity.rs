//! How scarce each GPU model is for the pods that can use no other.
//!
//! If the pods to come are like those counted, the ones that accept only some models will ask for a
//! part of what is free of these. Once that part nears the whole, every other pod that goes there
//! displaces one of them later, and should go elsewhere while it can. Up to half of the whole, a
//! model costs nothing, and what fits best decides alone.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::rules::ModelRules;

/// The most distinguished sets of models; pods of others count as accepting all.
const RULES: usize = 256;
/// In how many steps the pods of one set are spread over its models.
const STEPS: u64 = 64;
/// The part of what is free, in thousandths, from which a model costs something, and at
/// which it costs all that is taken of it.
const PRESSURE: (u64, u64) = (500, 1000);

/// What pods ask of a cluster's GPUs, and what is free of each model, in thousandths of a
/// GPU.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ModelBalance {
    /// By all pods.
    asked: u64,
    /// By those that accept only some models.
    pinned: BTreeMap<Arc<ModelRules>, u64>,
    pub free: BTreeMap<String, u64>,
}

impl ModelBalance {
    /// Counts a pod that accepts these models, or any, and asks for this much.
    pub fn ask(&mut self, models: Option<&Arc<ModelRules>>, thousandths: u64) {
        self.asked += thousandths;
        if let Some(models) = models
            && (self.pinned.len() < RULES || self.pinned.contains_key(models))
        {
            *self.pinned.entry(models.clone()).or_default() += thousandths;
        }
    }

    /// Counts what is free of a GPU of this model. A model with nothing free has no price.
    pub fn offer(&mut self, model: &str, thousandths: u64) {
        if thousandths == 0 {
            return;
        }
        if let Some(free) = self.free.get_mut(model) {
            *free += thousandths;
        } else {
            self.free.insert(model.to_owned(), thousandths);
        }
    }

    /// What a GPU of each model costs, in thousandths of a GPU; empty if all cost the same.
    pub fn prices(&self) -> Vec<(String, u64)> {
        let price = |((model, free), load): ((&String, &u64), u64)| {
            let pressure = pressure(load, *free).clamp(PRESSURE.0, PRESSURE.1);
            let price = (pressure - PRESSURE.0) * 1000 / (PRESSURE.1 - PRESSURE.0);
            (model.clone(), price)
        };
        let mut prices: Vec<_> = self.free.iter().zip(self.loads()).map(price).collect();
        let least = prices.iter().map(|(_, price)| *price).min().unwrap_or(0);
        for (_, price) in &mut prices {
            *price -= least;
        }
        prices.retain(|(_, price)| *price > 0);
        prices
    }

    /// What pinned pods will ask of each model if all that is free is asked for in the
    /// proportions counted. Of the models that a pod accepts, it takes the least pressed.
    fn loads(&self) -> Vec<u64> {
        let free: Vec<u64> = self.free.values().copied().collect();
        let accepted = |rules: &ModelRules| -> Vec<usize> {
            let models = self.free.keys().enumerate();
            let accepted = models.filter(|(_, model)| rules.accept(model));
            accepted.map(|(at, _)| at).collect()
        };
        let mut sets: Vec<_> = self
            .pinned
            .iter()
            .map(|(rules, asked)| (accepted(rules), *asked))
            .filter(|(some, _)| some.len() < free.len())
            .collect();
        // Those with the least choice first.
        sets.sort_by_key(|(accepted, _)| accepted.len());
        let all = free.iter().sum::<u64>();
        let mut loads = vec![0; free.len()];
        for (accepted, asked) in sets {
            let demand = u128::from(asked) * u128::from(all) / u128::from(self.asked.max(1));
            let step = u64::try_from(demand).unwrap_or(u64::MAX) / STEPS;
            for _ in 0..STEPS {
                let pressed = |at: &usize| pressure(loads[*at] + step, free[*at]);
                if let Some(least) = accepted.iter().copied().min_by_key(pressed) {
                    loads[least] += step;
                }
            }
        }
        loads
    }
}

/// Which part of what is free this load is, in thousandths.
fn pressure(load: u64, free: u64) -> u64 {
    match load {
        0 => 0,
        load => load
            .saturating_mul(1000)
            .checked_div(free)
            .unwrap_or(u64::MAX),
    }
}
