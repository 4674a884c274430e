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
    SmallSuffix { value: Excerpt, number: u128 },
    #[error("{value:?} is too large")]
    TooLarge { value: Excerpt },
}

enum Scale {
    Decimal(i32),
    Binary(u32),
}

/// A parsed quantity: `mantissa / 10^fraction_digits`, scaled.
struct Number {
    negative: bool,
    /// `None`: more digits than fit in 128 bits.
    mantissa: Option<u128>,
    fraction_digits: i32,
    scale: Scale,
}

fn number(text: &str) -> Option<Number> {
    let (negative, unsigned) = match text.as_bytes().first() {
        Some(b'-') => (true, &text[1..]),
        Some(b'+') => (false, &text[1..]),
        _ => (false, text),
    };
    let digits_end = unsigned
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(unsigned.len());
    let (number, suffix) = unsigned.split_at(digits_end);
    let (integer, fraction) = number.split_once('.').unwrap_or((number, ""));
    if integer.len() + fraction.len() == 0 || fraction.contains('.') {
        return None;
    }
    let scale = scale(suffix)?;
    let fraction = fraction.trim_end_matches('0');
    let digits = format!("{integer}{fraction}");
    let significant = digits.trim_start_matches('0');
    let mantissa = match significant {
        "" => Some(0),
        significant => significant.parse().ok(),
    };
    Some(Number {
        negative,
        mantissa,
        fraction_digits: i32::try_from(fraction.len()).ok()?,
        scale,
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
    let too_large = || QuantityError::TooLarge { value: value() };
    let mantissa = number.mantissa.ok_or_else(too_large)?;
    match number.scale {
        Scale::Binary(power) => Err(QuantityError::BinarySuffix {
            value: value(),
            mib: whole_mib(mantissa, number.fraction_digits, power),
        }),
        Scale::Decimal(exponent) => {
            match scaled(mantissa, exponent.saturating_sub(number.fraction_digits)) {
                Scaled::Whole(number) if text.ends_with(['n', 'u', 'm']) => {
                    let value = value();
                    Err(QuantityError::SmallSuffix { value, number })
                }
                Scaled::Whole(whole) => u64::try_from(whole).map_err(|_| too_large()),
                Scaled::Fraction => Err(QuantityError::Fraction { value: value() }),
                Scaled::Overflow => Err(too_large()),
            }
        }
    }
}

/// A quantity of CPU in thousandths, rounded up as kube-scheduler does; `None` for a text
/// that is not a quantity or does not fit.
pub fn milli_cpu(text: &str) -> Option<MilliCpu> {
    ratio(text, 1000, 1).map(MilliCpu)
}

/// A quantity of bytes in MiB, rounded up; `None` for a text that is not a quantity or does
/// not fit.
pub fn mib(text: &str) -> Option<Mib> {
    ratio(text, 1, 1 << 20).map(Mib)
}

/// The quantity times `times / over`, rounded up; 0 for a negative one.
fn ratio(text: &str, times: u128, over: u128) -> Option<u64> {
    let number = number(text)?;
    if number.negative || number.mantissa == Some(0) {
        return Some(0);
    }
    let mantissa = number.mantissa?.checked_mul(times)?;
    let (power, exponent) = match number.scale {
        Scale::Binary(power) => (power, -number.fraction_digits),
        Scale::Decimal(exponent) => (0, exponent.checked_sub(number.fraction_digits)?),
    };
    let mantissa = mantissa.checked_mul(1 << power)?;
    let ten = 10u128.checked_pow(exponent.unsigned_abs());
    let (mantissa, over) = if exponent >= 0 {
        (mantissa.checked_mul(ten?)?, over)
    } else {
        // Too small to count.
        let Some(over) = ten.and_then(|ten| over.checked_mul(ten)) else {
            return Some(u64::from(mantissa > 0));
        };
        (mantissa, over)
    };
    u64::try_from(mantissa.div_ceil(over)).ok()
}

fn scale(suffix: &str) -> Option<Scale> {
    Some(match suffix {
        "" => Scale::Decimal(0),
        "n" => Scale::Decimal(-9),
        "u" => Scale::Decimal(-6),
        "m" => Scale::Decimal(-3),
        "k" => Scale::Decimal(3),
        "M" => Scale::Decimal(6),
        "G" => Scale::Decimal(9),
        "T" => Scale::Decimal(12),
        "P" => Scale::Decimal(15),
        "E" => Scale::Decimal(18),
        "Ki" => Scale::Binary(10),
        "Mi" => Scale::Binary(20),
        "Gi" => Scale::Binary(30),
        "Ti" => Scale::Binary(40),
        "Pi" => Scale::Binary(50),
        "Ei" => Scale::Binary(60),
        exponent => {
            let digits = exponent.strip_prefix(['e', 'E'])?;
            Scale::Decimal(digits.parse().ok()?)
        }
    })
}

enum Scaled {
    Whole(u128),
    Fraction,
    Overflow,
}

/// `mantissa * 10^exponent`.
fn scaled(mantissa: u128, exponent: i32) -> Scaled {
    let power = 10u128.checked_pow(exponent.unsigned_abs());
    match (exponent >= 0, power) {
        (true, Some(power)) => mantissa
            .checked_mul(power)
            .map_or(Scaled::Overflow, Scaled::Whole),
        (true, None) => Scaled::Overflow,
        (false, Some(power)) if mantissa.is_multiple_of(power) => Scaled::Whole(mantissa / power),
        (false, _) => Scaled::Fraction,
    }
}

/// `mantissa * 10^-fraction_digits * 2^power` bytes in MiB, if whole.
fn whole_mib(mantissa: u128, fraction_digits: i32, power: u32) -> Option<u64> {
    let bytes = mantissa.checked_mul(1 << power)?;
    let Scaled::Whole(bytes) = scaled(bytes, -fraction_digits) else {
        return None;
    };
    bytes
        .is_multiple_of(1 << 20)
        .then(|| u64::try_from(bytes >> 20).ok())
        .flatten()
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
