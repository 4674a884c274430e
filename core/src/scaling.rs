//! `deviceMemoryScaling`: memory that may be allocated, as a multiple of a device's
//! physical memory. Every accepted text is exact to a thousandth.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};
use thiserror::Error;

use crate::excerpt::Excerpt;
use crate::units::Mib;

/// A multiple of a device's memory, exact to a thousandth.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Scaling(u32);

#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{0:?} is not a memory scaling; expected: {expected}", expected = Scaling::EXPECTED)]
pub struct ScalingError(Excerpt);

impl Scaling {
    /// Exactly the physical memory.
    pub const ONE: Self = Self(1000);
    /// The expected form.
    pub const EXPECTED: &'static str = "0.1 to 16, with at most three decimals";

    /// Reads `1`, `1.5` or `0.125`.
    pub fn parse(text: &str) -> Option<Self> {
        let (whole, decimals) = text.split_once('.').unwrap_or((text, "0"));
        let digits = |part: &str| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit());
        let good = digits(whole) && digits(decimals) && whole.len() <= 2 && decimals.len() <= 3;
        let value: u32 = format!("{whole}{decimals:0<3}").parse().ok()?;
        (good && (100..=16_000).contains(&value)).then_some(Self(value))
    }

    /// The nearest scaling that gives `scaled` for `memory`, if there is one.
    pub fn between(memory: Mib, scaled: Mib) -> Option<Self> {
        let nearest = scaled.0.checked_mul(1000)?.div_ceil(memory.0.max(1));
        let value = u32::try_from(nearest).ok()?;
        (100..=16_000).contains(&value).then_some(Self(value))
    }

    /// This multiple of `memory`, rounded down.
    pub fn of(self, memory: Mib) -> Mib {
        Mib(memory.0.saturating_mul(self.0.into()) / 1000)
    }
}

impl FromStr for Scaling {
    type Err = ScalingError;

    fn from_str(text: &str) -> Result<Self, ScalingError> {
        Self::parse(text).ok_or_else(|| ScalingError(text.into()))
    }
}

impl fmt::Display for Scaling {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:03}", self.0 / 1000, self.0 % 1000)
    }
}

impl Serialize for Scaling {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if self.0.is_multiple_of(1000) {
            return serializer.serialize_u32(self.0 / 1000);
        }
        serializer.serialize_f64(f64::from(self.0) / 1000.0)
    }
}

impl<'de> Deserialize<'de> for Scaling {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let number = f64::deserialize(deserializer)?;
        Self::parse(&number.to_string()).ok_or_else(|| D::Error::custom(Self::EXPECTED))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_scaling_exactly_within_bounds() {
        let check = |text: &str, expected: Option<u64>| {
            let scaled = text.parse::<Scaling>().ok().map(|s| s.of(Mib(81_920)).0);
            assert_eq!(scaled, expected, "{text}");
        };
        check("1", Some(81_920));
        check("1.0", Some(81_920));
        check("1.8", Some(147_456));
        check("0.125", Some(10_240));
        check("16", Some(1_310_720));
        for bad in [
            "0", "0.05", "16.1", "1.0001", "-1", "1e1", "NaN", "", "1.", ".5",
        ] {
            check(bad, None);
        }
    }

    #[test]
    fn derives_the_scaling_that_produced_a_memory_size() {
        for text in ["0.1", "0.333", "1", "1.5", "16"] {
            let scaling = Scaling::parse(text).expect(text);
            let memory = Mib(40_960);
            let found = Scaling::between(memory, scaling.of(memory)).expect(text);
            assert_eq!(found, scaling);
        }
    }
}
