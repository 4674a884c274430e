//! Kubernetes quantities (`3k`, `1e3`, `0.5`, `16Gi`): whole numbers for GPU resources; CPU
//! and host memory rounded up as kube-scheduler does.
//!
//! The API server writes 3000 as `3k` and 80000 as `80k`, so a decimal suffix is accepted
//! if the result is whole. Source: k8s.io/apimachinery/pkg/api/resource, the grammar in its
//! doc comment.

use thiserror::Error;

use crate::excerpt::Excerpt;
use crate::units::{Mib, MilliCpu};

/// Why a quantity is not an accepted whole number.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum QuantityError {
    #[error("{value:?} is not a number")]
    NotANumber { value: Excerpt },
    #[error("{value:?} has a binary suffix")]
    BinarySuffix { value: Excerpt, mib: Option<u64> },
    #[error("{value:?} is negative")]
    Negative { value: Excerpt },
    #[error("{value:?} is not a whole number")]
    Fraction { value: Excerpt },
    #[error("{value:?} has a suffix that divides it and means {number}")]
    SmallSuffix { value: Excerpt, number: u64 },
    #[error("{value:?} is too large")]
    TooLarge { value: Excerpt },
}

/// A parsed quantity: `mantissa * 2^power * 10^exponent`.
struct Number {
    negative: bool,
    /// `None`: more digits than fit in 128 bits.
    mantissa: Option<u128>,
    power: u32,
    exponent: i32,
}

impl Number {
    /// The number times `times / over`, rounded up, and whether that is exact; `None` if it does
    /// not fit.
    fn ratio(&self, times: u128, over: u128) -> Option<(u64, bool)> {
        let mantissa = self.mantissa?.checked_mul(times << self.power)?;
        if mantissa == 0 {
            return Some((0, true));
        }
        let ten = 10u128.checked_pow(self.exponent.unsigned_abs());
        let (mantissa, over) = if self.exponent >= 0 {
            (mantissa.checked_mul(ten?)?, over)
        } else {
            // Too small to count.
            let Some(over) = ten.and_then(|ten| over.checked_mul(ten)) else {
                return Some((1, false));
            };
            (mantissa, over)
        };
        let rounded = u64::try_from(mantissa.div_ceil(over)).ok()?;
        Some((rounded, mantissa.is_multiple_of(over)))
    }
}

fn number(text: &str) -> Option<Number> {
    let negative = text.starts_with('-');
    let unsigned = text.strip_prefix(['-', '+']).unwrap_or(text);
    let digits_end = unsigned
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(unsigned.len());
    let (number, suffix) = unsigned.split_at(digits_end);
    let (integer, fraction) = number.split_once('.').unwrap_or((number, ""));
    if integer.len() + fraction.len() == 0 || fraction.contains('.') {
        return None;
    }
    let (power, exponent) = scale(suffix)?;
    let fraction = fraction.trim_end_matches('0');
    let digits = format!("{integer}{fraction}");
    let mantissa = match digits.trim_start_matches('0') {
        "" => Some(0),
        significant => significant.parse().ok(),
    };
    Some(Number {
        negative,
        mantissa,
        power,
        exponent: exponent.saturating_sub(i32::try_from(fraction.len()).ok()?),
    })
}

/// Parses a Kubernetes quantity that must be a whole, non-negative number.
pub fn whole(text: &str) -> Result<u64, QuantityError> {
    let value = || Excerpt::from(text);
    let number = number(text).ok_or_else(|| QuantityError::NotANumber { value: value() })?;
    if number.mantissa == Some(0) {
        return Ok(0);
    }
    if number.negative {
        return Err(QuantityError::Negative { value: value() });
    }
    if number.power > 0 {
        let mib = number.ratio(1, 1 << 20).filter(|(_, exact)| *exact);
        let (value, mib) = (value(), mib.map(|(mib, _)| mib));
        return Err(QuantityError::BinarySuffix { value, mib });
    }
    match number.ratio(1, 1) {
        Some((number, true)) if text.ends_with(['n', 'u', 'm']) => {
            let value = value();
            Err(QuantityError::SmallSuffix { value, number })
        }
        Some((number, true)) => Ok(number),
        Some((_, false)) => Err(QuantityError::Fraction { value: value() }),
        None => Err(QuantityError::TooLarge { value: value() }),
    }
}

/// A quantity of CPU in thousandths, rounded up as kube-scheduler does; `None` for a text
/// that is not a quantity or does not fit.
pub fn milli_cpu(text: &str) -> Option<MilliCpu> {
    rounded_up(text, 1000, 1).map(MilliCpu)
}

/// A quantity of bytes in MiB, rounded up; `None` for a text that is not a quantity or does
/// not fit.
pub fn mib(text: &str) -> Option<Mib> {
    rounded_up(text, 1, 1 << 20).map(Mib)
}

/// The quantity times `times / over`; 0 for a negative one.
fn rounded_up(text: &str, times: u128, over: u128) -> Option<u64> {
    let number = number(text)?;
    if number.negative {
        return Some(0);
    }
    number.ratio(times, over).map(|(rounded, _)| rounded)
}

/// The powers of two and of ten that a suffix means.
fn scale(suffix: &str) -> Option<(u32, i32)> {
    Some(match suffix {
        "" => (0, 0),
        "n" => (0, -9),
        "u" => (0, -6),
        "m" => (0, -3),
        "k" => (0, 3),
        "M" => (0, 6),
        "G" => (0, 9),
        "T" => (0, 12),
        "P" => (0, 15),
        "E" => (0, 18),
        "Ki" => (10, 0),
        "Mi" => (20, 0),
        "Gi" => (30, 0),
        "Ti" => (40, 0),
        "Pi" => (50, 0),
        "Ei" => (60, 0),
        exponent => (0, exponent.strip_prefix(['e', 'E'])?.parse().ok()?),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str, expected: &str) {
        let shown = match whole(text) {
            Ok(number) => number.to_string(),
            Err(QuantityError::BinarySuffix { mib: Some(mib), .. }) => format!("binary {mib}"),
            Err(QuantityError::BinarySuffix { mib: None, .. }) => "binary".to_owned(),
            Err(QuantityError::NotANumber { .. }) => "not a number".to_owned(),
            Err(QuantityError::Negative { .. }) => "negative".to_owned(),
            Err(QuantityError::Fraction { .. }) => "fraction".to_owned(),
            Err(QuantityError::SmallSuffix { number, .. }) => format!("small {number}"),
            Err(QuantityError::TooLarge { .. }) => "too large".to_owned(),
        };
        assert_eq!(shown, expected, "{text:?}");
    }

    #[test]
    fn reads_what_the_api_server_writes() {
        for (text, expected) in [
            ("0", "0"),
            ("3k", "3000"),
            ("80k", "80000"),
            ("16384", "16384"),
            ("+5", "5"),
            ("1e3", "1000"),
            ("1E3", "1000"),
            ("1.5k", "1500"),
            ("0.003M", "3000"),
            ("5000e-3", "5"),
            ("007", "7"),
            ("-0", "0"),
            (".0", "0"),
            ("2.", "2"),
            ("18446744073709551615", "18446744073709551615"),
        ] {
            check(text, expected);
        }
    }

    #[test]
    fn rejects_quantities_that_are_not_whole_numbers() {
        for (text, expected) in [
            ("", "not a number"),
            (".", "not a number"),
            ("-", "not a number"),
            ("1.2.3", "not a number"),
            ("5GB", "not a number"),
            ("1e", "not a number"),
            ("1e1.5", "not a number"),
            ("lots", "not a number"),
            ("3 k", "not a number"),
            ("-1", "negative"),
            ("-3k", "negative"),
            ("1.5", "fraction"),
            ("500m", "fraction"),
            ("1u", "fraction"),
            ("1e-50", "fraction"),
            ("3000m", "small 3"),
            ("5000000u", "small 5"),
            ("16Gi", "binary 16384"),
            ("1.5Gi", "binary 1536"),
            ("512Mi", "binary 512"),
            ("1Ki", "binary"),
            ("18446744073709551616", "too large"),
            ("1e40", "too large"),
            ("99E", "too large"),
        ] {
            check(text, expected);
        }
    }

    #[test]
    fn rounds_cpu_and_memory_up() {
        for (text, cpu) in [
            ("1", 1000),
            ("250m", 250),
            ("1.5", 1500),
            ("100u", 1),
            ("2k", 2_000_000),
            ("1e-30", 1),
            ("-3", 0),
            ("0E51", 0),
        ] {
            assert_eq!(milli_cpu(text), Some(MilliCpu(cpu)), "{text}");
        }
        for (text, memory) in [
            ("1Gi", 1024),
            ("1", 1),
            ("0", 0),
            ("1.5Mi", 2),
            ("128974848", 123),
        ] {
            assert_eq!(mib(text), Some(Mib(memory)), "{text}");
        }
        for text in ["", "x", "1.2.3", "9Ei9", "99999999999999999999Ei"] {
            assert_eq!((milli_cpu(text), mib(text)), (None, None), "{text}");
        }
    }
}
