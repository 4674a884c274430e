//! How cards are cut, where the driver did not tell it this time.
//!
//! Fed by: two readings of the driver. Must not: keep what the driver told anew; keep a card that
//! it does not tell any more (the driver's own part decides that).

use std::collections::BTreeSet;

use aliquot_nvml::Inventory;

/// The questions whose answers say how a card is cut.
const CALLS: [&str; 2] = ["nvmlDeviceGetMigMode", "nvmlDeviceGetGpuInstances"];

/// Takes over from `last` how those cards are cut of which `now` has no answer: an empty cut would
/// take every instance from the books. The cards.
pub(crate) fn keep(now: &mut Inventory, last: &Inventory) -> BTreeSet<String> {
    let unanswered = now.notes.iter().filter(|note| CALLS.contains(&note.call));
    let cards: BTreeSet<String> = unanswered.filter_map(|note| note.card.clone()).collect();
    for card in now.cards.iter_mut().filter(|one| cards.contains(&one.uuid)) {
        if let Some(known) = last.cards.iter().find(|one| one.uuid == card.uuid) {
            card.mig = known.mig;
            card.cut.clone_from(&known.cut);
        }
    }
    cards
}

#[cfg(test)]
mod tests {
    use aliquot_nvml::{Cut, Instance, Mig, Note};

    use super::*;
    use crate::testing::facts;

    fn cut() -> Inventory {
        let mut facts = facts(&["GPU-a", "GPU-b"]);
        for card in &mut facts.cards {
            card.mig = Mig {
                capable: true,
                enabled: true,
                pending: true,
            };
            let instance = Instance {
                profile: "1g.5gb".to_owned(),
                start: 6,
                size: 1,
                memory: aliquot_core::Mib(4864),
                id: 13,
                devices: Vec::new(),
            };
            card.cut.instances = vec![instance];
        }
        facts
    }

    #[test]
    fn one_reading_of_mig_that_failed_emptied_a_cards_cut() {
        let check = |call: &'static str, kept: bool| {
            let mut now = cut();
            now.cards[0].cut = Cut::default();
            now.cards[1].cut = Cut::default();
            now.notes.push(Note {
                card: Some("GPU-a".to_owned()),
                call,
                problem: "Unknown".to_owned(),
            });
            let asked_again = keep(&mut now, &cut());
            let left: Vec<usize> = now.cards.iter().map(|c| c.cut.instances.len()).collect();
            assert_eq!(left, [usize::from(kept), 0], "{call}");
            assert_eq!(asked_again.contains("GPU-a"), kept);
        };
        check("nvmlDeviceGetGpuInstances", true);
        check("nvmlDeviceGetMigMode", true);
        check("nvmlDeviceGetMinorNumber", false);
    }
}
