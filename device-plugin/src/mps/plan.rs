//! MPS as arithmetic: equal parts, how many clients there may be, what a daemon is told.
//!
//! Fed by: a profile's settings, a card's facts. Must not: talk to a daemon.

use aliquot_core::{Mib, Percent};
use aliquot_profiles::mode::{ComputeMode, Mps};

use super::folder::Wish;

pub use aliquot_profiles::mps::{even, most_clients};

/// Why so many replicas cannot be; the text is for the node's owner.
pub fn refusal(
    replicas: u32,
    capability: Option<(u32, u32)>,
    part: Option<(u32, u32)>,
) -> Option<String> {
    let most = most_clients(capability, part);
    (u64::from(replicas) > most).then(|| {
        format!(
            "replicas: {replicas} is not accepted; one MPS daemon here serves 1 to {most} clients"
        )
    })
}

/// The daemon that a unit needs. `card`: the card whose compute mode follows, none for an
/// instance.
pub fn wish(unit: &str, memory: Mib, settings: &Mps, card: Option<&str>) -> Wish {
    let part = even(memory, settings);
    Wish {
        v: super::folder::VERSION,
        unit: unit.to_owned(),
        exclusive: card
            .filter(|_| settings.compute_mode == ComputeMode::ExclusiveProcess)
            .map(str::to_owned),
        memory: if part.memory == Mib(0) {
            memory
        } else {
            part.memory
        },
        threads: if part.cores == Percent(0) {
            Percent::WHOLE
        } else {
            part.cores
        },
    }
}

impl Wish {
    /// The same daemon with limits that let a client have so much: a client may only lower
    /// them. 0 asks for no more than there is.
    #[must_use]
    pub fn raised(&self, memory: Mib, threads: Percent) -> Self {
        Self {
            memory: self.memory.max(memory),
            threads: self.threads.max(threads),
            ..self.clone()
        }
    }

    /// A daemon that serves by this lets clients have what another wish asks for.
    pub fn allows(&self, other: &Self) -> bool {
        (&self.unit, &self.exclusive) == (&other.unit, &other.exclusive)
            && self.raised(other.memory, other.threads) == *self
    }

    /// What a new daemon is told, and what its running servers are told.
    pub fn commands(&self, servers: &[u32]) -> Vec<String> {
        let (memory, threads) = (self.memory.0, self.threads.0);
        // By index: a daemon passes over uuids, and its one card is device 0.
        let mut commands = vec![
            format!("set_default_device_pinned_mem_limit 0 {memory}M"),
            format!("set_default_active_thread_percentage {threads}"),
        ];
        for server in servers {
            commands.push(format!("set_device_pinned_mem_limit {server} 0 {memory}M"));
            commands.push(format!("set_active_thread_percentage {server} {threads}"));
        }
        commands
    }
}

#[cfg(test)]
mod tests {
    use aliquot_profiles::mode::Part;

    use super::*;

    #[test]
    fn mps_3_the_daemon_is_told_the_even_part_of_the_cards_memory_and_threads() {
        let check = |memory: u64, replicas: u32, expected: [&str; 2]| {
            let wish = wish("GPU-a", Mib(memory), &Mps::new(replicas), Some("GPU-a"));
            assert_eq!(wish.commands(&[]), expected, "{memory} MiB by {replicas}");
        };
        check(
            40_960,
            4,
            [
                "set_default_device_pinned_mem_limit 0 10240M",
                "set_default_active_thread_percentage 25",
            ],
        );
        check(
            40_537,
            3,
            [
                "set_default_device_pinned_mem_limit 0 13512M",
                "set_default_active_thread_percentage 33",
            ],
        );
        check(
            40_960,
            1,
            [
                "set_default_device_pinned_mem_limit 0 40960M",
                "set_default_active_thread_percentage 100",
            ],
        );
    }

    #[test]
    fn a_share_above_the_even_part_raises_the_limits_of_daemon_and_servers() {
        let wish = wish("GPU-a", Mib(40_960), &Mps::new(4), None);
        assert_eq!(wish.raised(Mib(5000), Percent(10)), wish);
        assert_eq!(
            wish.raised(Mib(20_000), Percent(50)).commands(&[7]),
            [
                "set_default_device_pinned_mem_limit 0 20000M",
                "set_default_active_thread_percentage 50",
                "set_device_pinned_mem_limit 7 0 20000M",
                "set_active_thread_percentage 7 50",
            ]
        );
    }

    #[test]
    fn full_parts_are_no_limits() {
        let full = Mps {
            memory: Part::Full,
            threads: Part::Full,
            ..Mps::new(4)
        };
        let part = even(Mib(40_960), &full);
        assert_eq!((part.memory, part.cores), (Mib(0), Percent(0)));
        let wish = wish("GPU-a", Mib(40_960), &full, Some("GPU-a"));
        assert_eq!((wish.memory, wish.threads), (Mib(40_960), Percent(100)));
    }

    #[test]
    fn an_instance_of_a_card_of_four_slices_was_counted_in_sevenths() {
        let a30 = Some((8, 0));
        let of = |slices| most_clients(a30, Some((slices, 4)));
        assert_eq!([1, 2, 4].map(of), [12, 24, 48]);
    }

    #[test]
    fn a_daemon_that_allows_more_than_was_wished_was_waited_for() {
        let wish = wish("GPU-a", Mib(40_960), &Mps::new(4), Some("GPU-a"));
        let check = |served: &Wish, expected: bool| assert_eq!(served.allows(&wish), expected);
        check(&wish, true);
        check(&wish.raised(Mib(20_000), Percent(50)), true);
        let less = |memory, threads| Wish {
            memory: Mib(memory),
            threads: Percent(threads),
            ..wish.clone()
        };
        check(&less(10_239, 50), false);
        check(&less(20_000, 24), false);
        let other = |unit: &str| Wish {
            unit: unit.to_owned(),
            ..wish.clone()
        };
        check(&other("GPU-b"), false);
        let open = Wish {
            exclusive: None,
            ..wish.clone()
        };
        check(&open, false);
    }

    #[test]
    fn mps_15_forty_eight_clients_sixteen_before_volta_and_fewer_on_an_instance() {
        let check = |capability, part, most| {
            assert_eq!(
                most_clients(capability, part),
                most,
                "{capability:?} {part:?}"
            );
        };
        check(None, None, 48);
        check(Some((9, 0)), None, 48);
        // V100, which NVIDIA's plugin takes for an old card.
        check(Some((7, 0)), None, 48);
        check(Some((6, 1)), None, 16);
        check(Some((8, 0)), Some((3, 7)), 20);
        check(Some((8, 0)), Some((1, 7)), 6);
        assert_eq!(refusal(48, None, None), None);
        let text = refusal(17, Some((6, 0)), None).expect("refused");
        assert!(text.contains("17") && text.contains("1 to 16"), "{text}");
    }
}
