//! Kubernetes quantities (`3k`, `1e3`, `0.5`, `16Gi`) read as whole numbers.
//!
//! Fed by: resource limits as the API server encodes them; it writes 3000 as
//! `3k` and 80000 as `80k`, so a decimal suffix with a whole result is fine.
//! Must not: round; a value that is not a whole number is an error.
//! Source: k8s.io/apimachinery/pkg/api/resource, the grammar in its doc comment.

use thiserror::Error;

/// Why a quantity is not a whole number that we accept.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum QuantityError {
    /// Not in the grammar at all.
    #[error("{value:?} is not a number")]
    NotANumber {
        /// The text as it came.
        value: String,
    },
    /// Ki, Mi, Gi and the like: the unit is already MiB or percent.
    #[error("{value:?} has a binary suffix")]
    BinarySuffix {
        /// The text as it came.
        value: String,
        /// The same amount in MiB, where it is a whole number of them.
        mib: Option<u64>,
    },
    /// Below zero.
    #[error("{value:?} is negative")]
    Negative {
        /// The text as it came.
        value: String,
    },
    /// Not whole, such as `500m` or `1.5`.
    #[error("{value:?} is not a whole number")]
    Fraction {
        /// The text as it came.
        value: String,
    },
    /// Beyond 64 bits.
    #[error("{value:?} is too large")]
    TooLarge {
        /// The text as it came.
        value: String,
    },
}

enum Scale {
    Decimal(i32),
    Binary(u32),
}

/// Reads a Kubernetes quantity that must be a whole, non-negative number.
pub fn whole(text: &str) -> Result<u64, QuantityError> {
    let value = || text.to_owned();
    let not_a_number = || QuantityError::NotANumber { value: value() };
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
        return Err(not_a_number());
    }
    let scale = scale(suffix).ok_or_else(not_a_number)?;

    let fraction = fraction.trim_end_matches('0');
    let digits = format!("{integer}{fraction}");
    let significant = digits.trim_start_matches('0');
    if significant.is_empty() {
        return Ok(0);
    }
    if negative {
        return Err(QuantityError::Negative { value: value() });
    }
    let too_large = || QuantityError::TooLarge { value: value() };
    let mantissa: u128 = significant.parse().map_err(|_| too_large())?;
    let fraction_digits = i32::try_from(fraction.len()).map_err(|_| too_large())?;
    match scale {
        Scale::Binary(power) => Err(QuantityError::BinarySuffix {
            value: value(),
            mib: whole_mib(mantissa, fraction_digits, power),
        }),
        Scale::Decimal(exponent) => {
            match scaled(mantissa, exponent.saturating_sub(fraction_digits)) {
                Scaled::Whole(whole) => u64::try_from(whole).map_err(|_| too_large()),
                Scaled::Fraction => Err(QuantityError::Fraction { value: value() }),
                Scaled::Overflow => Err(too_large()),
            }
        }
    }
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
            ("3000m", "3"),
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
    fn refuses_what_is_not_a_whole_number() {
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
}
