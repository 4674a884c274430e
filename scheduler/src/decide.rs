//! Filter and prioritize as functions: books and names in, answer out.
//!
//! Fed by: [`crate::routes`], under one read of the books.
//! Must not: change the books, or name a node in `FailedNodes` (kube-scheduler
//! would wake the pod with its own message; design 4.2).

use std::cmp::Reverse;
use std::collections::HashMap;

use aliquot_core::fit::Policies;
use aliquot_core::{Demand, Ledger, Refusal};

/// What filter found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    /// These can take the pod, best first.
    Fits(Vec<String>),
    /// None can.
    Refused {
        /// How many nodes were asked for.
        nodes: usize,
        /// The cards and nodes refused, by reason.
        refusal: Refusal,
    },
}

/// Every named node with its score, best first; ties by name.
fn ranked<'a, S: AsRef<str>>(
    ledger: &Ledger,
    names: &'a [S],
    demand: &Demand,
    policies: Policies,
) -> Result<Vec<(Reverse<u64>, &'a str)>, Refusal> {
    let mut refusal = Refusal::default();
    let mut fits = Vec::with_capacity(names.len());
    for name in names {
        match ledger.fit(name.as_ref(), demand, policies) {
            Ok(fit) => fits.push((Reverse(fit.score), name.as_ref())),
            Err(why) => refusal.merge(&why),
        }
    }
    if fits.is_empty() {
        return Err(refusal);
    }
    Ok(fits)
}

/// The best `most` of the named nodes that can take the pod.
pub fn filter<S: AsRef<str>>(
    ledger: &Ledger,
    names: &[S],
    demand: &Demand,
    policies: Policies,
    most: usize,
) -> Decision {
    match ranked(ledger, names, demand, policies) {
        Ok(mut fits) => {
            if fits.len() > most {
                fits.select_nth_unstable(most);
                fits.truncate(most);
            }
            fits.sort_unstable();
            Decision::Fits(fits.into_iter().map(|(_, name)| name.to_owned()).collect())
        }
        Err(refusal) => Decision::Refused {
            nodes: names.len(),
            refusal,
        },
    }
}

/// Ranks 0 to 10 for the named nodes, in their order: one 10, the others by
/// their place; 0 for nodes that no longer fit.
pub fn prioritize<S: AsRef<str>>(
    ledger: &Ledger,
    names: &[S],
    demand: &Demand,
    policies: Policies,
) -> Vec<(String, i64)> {
    let mut fits = ranked(ledger, names, demand, policies).unwrap_or_default();
    fits.sort_unstable();
    let last = fits.len().max(2) - 1;
    let rank = |place| match place {
        0 => 10,
        _ => i64::try_from(9 * (last - place) / last).unwrap_or(0),
    };
    let places = fits.iter().enumerate();
    let ranks: HashMap<&str, i64> = places.map(|(at, &(_, name))| (name, rank(at))).collect();
    let of = |name: &str| ranks.get(name).copied().unwrap_or(0);
    let names = names.iter().map(AsRef::as_ref);
    names.map(|name| (name.to_owned(), of(name))).collect()
}

/// The refusal as kube-scheduler, the event and the user read it. Its length
/// does not grow with the cluster, and equal books give equal texts.
pub fn refusal_text(nodes: usize, refusal: &Refusal) -> String {
    format!("0/{nodes} nodes can serve the GPU request: {refusal}")
}

#[cfg(test)]
#[path = "decide_tests.rs"]
mod tests;
