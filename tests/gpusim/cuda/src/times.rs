//! The duration of a kernel, by its name: `k_us_500` is 500 microseconds (also `ns`, `ms`), and
//! `k_us_500_sd_30` lognormal about that median with a sigma of 0.30. With `_touch` in the name,
//! its first two arguments are the address and the bytes of managed memory that it uses.

use std::cell::Cell;

/// Nanoseconds of a kernel whose name gives no duration.
const OTHERWISE: u64 = 10_000;
/// Nanoseconds of the swing of the GPU's speed.
const SWING: u64 = 10_000_000_000;

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct KernelTime {
    /// Nanoseconds.
    pub(crate) median: u64,
    /// Of the logarithm, in hundredths.
    pub(crate) sigma: u32,
    /// It uses managed memory.
    pub(crate) touches: bool,
}

impl KernelTime {
    pub(crate) fn of(name: &str) -> Self {
        let words: Vec<&str> = name.split('_').collect();
        let after = |word: &str| {
            let place = words.iter().position(|known| *known == word)?;
            words.get(place + 1)?.parse::<u64>().ok()
        };
        let units = [("ns", 1), ("us", 1000), ("ms", 1_000_000)];
        let median = units
            .iter()
            .find_map(|(unit, each)| Some(after(unit)? * each));
        let sigma = after("sd").and_then(|sigma| u32::try_from(sigma).ok());
        Self {
            median: median.unwrap_or(OTHERWISE),
            sigma: sigma.unwrap_or(0),
            touches: words.contains(&"touch"),
        }
    }

    /// The time of one run that starts about `now`, on a GPU whose speed swings by `swing` percent.
    pub(crate) fn draw(self, now: u64, swing: u32) -> u64 {
        if self.sigma == 0 && swing == 0 {
            return self.median;
        }
        let phase = std::f64::consts::TAU * fraction(now % SWING, SWING);
        let speed = 1.0 + f64::from(swing) / 100.0 * phase.sin();
        let spread = (f64::from(self.sigma) / 100.0 * normal()).exp();
        scaled(self.median, speed * spread)
    }
}

fn fraction(part: u64, whole: u64) -> f64 {
    #[expect(
        clippy::cast_precision_loss,
        reason = "both are far below 2^53 nanoseconds"
    )]
    let (part, whole) = (part as f64, whole as f64);
    part / whole
}

pub(crate) fn scaled(nanoseconds: u64, factor: f64) -> u64 {
    #[expect(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "times far below 2^53 nanoseconds, factors above 0"
    )]
    let result = (nanoseconds as f64 * factor).max(0.0) as u64;
    result
}

thread_local! {
    static SEED: Cell<u64> = const { Cell::new(0) };
}

/// A number between 0 and 1, neither included (splitmix64).
fn uniform() -> f64 {
    let seed = match SEED.get() {
        0 => aliquot_gpusim_model::clock() ^ (u64::from(std::process::id()) << 40),
        seed => seed,
    };
    let next = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
    SEED.set(next.max(1));
    let mixed = (next ^ (next >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    fraction(((mixed ^ (mixed >> 31)) >> 12) + 1, (1 << 52) + 2)
}

/// A standard normal number (Box and Muller).
fn normal() -> f64 {
    (-2.0 * uniform().ln()).sqrt() * (std::f64::consts::TAU * uniform()).cos()
}
