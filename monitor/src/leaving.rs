//! Processes on their way out, which are left alone for a while: what they hold goes with them.
//!
//! Fed by: the processes of each look. Must not: leave one alone for ever, for a program may end
//! and leave its memory to another that shares it.

use std::collections::BTreeMap;

use crate::attribute::OnCard;
use crate::processes::Life;

/// Looks after which one that leaves is as any other: to give back tens of gigabytes takes the
/// driver seconds.
const LOOKS: u32 = 20;

/// Who leaves, and since how many looks.
#[derive(Clone, Debug, Default)]
pub struct Leaving(BTreeMap<Life, u32>);

impl Leaving {
    /// One more look: those that have left for too long do not leave.
    pub fn after(&mut self, on_cards: &mut [OnCard]) {
        let mut next = BTreeMap::new();
        for one in on_cards.iter_mut().filter(|one| one.process.going) {
            let life = one.process.life;
            let looks = self.0.get(&life).map_or(1, |looks| looks + 1);
            next.insert(life, looks);
            one.process.going = looks <= LOOKS;
        }
        self.0 = next;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{on_card, process};

    #[test]
    fn a_program_that_left_its_memory_to_another_was_on_its_way_out_for_ever() {
        let mut leaving = Leaving::default();
        let mut look = |pids: &[u32]| {
            let mut all: Vec<OnCard> = pids
                .iter()
                .flat_map(|pid| {
                    let mut one = process(*pid, Some("u1"), "c");
                    one.going = *pid != 9;
                    // On two cards.
                    ["GPU-a", "GPU-b"].map(|card| on_card(card, one.clone(), 1))
                })
                .collect();
            leaving.after(&mut all);
            let going = all.iter().filter(|one| one.process.going);
            going.map(|one| one.process.life.pid).collect::<Vec<_>>()
        };
        for _ in 0..LOOKS {
            assert_eq!(look(&[7, 9]), [7, 7]);
        }
        assert_eq!(look(&[7, 8, 9]), [8, 8]);
        assert_eq!(look(&[8]), [8, 8]);
        assert_eq!(look(&[7]), [7, 7], "another with that id, or it came back");
    }
}
