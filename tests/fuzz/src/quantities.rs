//! Quantities and the five resources of a container: two readings of one text never
//! contradict each other.

use aliquot_core::quantity::{self, QuantityError};
use aliquot_core::request::{Resource, Written};
use aliquot_core::{Defaults, Memory, Mib, MilliCpu};

/// Reads every line as a quantity and the first five as a container's request.
pub fn check(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else {
        return;
    };
    let lines: Vec<&str> = text.lines().take(8).collect();
    for line in &lines {
        one(line);
    }
    request(&lines);
}

/// The three readings of one text agree.
fn one(text: &str) {
    let (cpu, memory) = (quantity::milli_cpu(text), quantity::mib(text));
    match quantity::whole(text) {
        Ok(number) => {
            assert_eq!(quantity::whole(&number.to_string()), Ok(number));
            let thousandths = number.checked_mul(1000);
            if let Some(cpu) = cpu {
                assert_eq!(Some(cpu.0), thousandths, "{text:?}");
            }
            // A number far below the limits is read in every way.
            if number < 1 << 40 && text.len() < 20 {
                assert_eq!(cpu.map(|cpu| Some(cpu.0)), Some(thousandths), "{text:?}");
                assert_eq!(memory, Some(Mib(number.div_ceil(1 << 20))), "{text:?}");
            }
        }
        Err(error) => {
            assert!(error.to_string().contains(&format!("{text:?}")), "{error}");
            match error {
                QuantityError::NotANumber { .. } => assert_eq!((cpu, memory), (None, None)),
                QuantityError::Negative { .. } => {
                    assert_eq!((cpu, memory), (Some(MilliCpu(0)), Some(Mib(0))));
                }
                QuantityError::BinarySuffix { mib: Some(mib), .. } => {
                    assert!(memory.is_none_or(|memory| memory == Mib(mib)), "{text:?}");
                }
                QuantityError::Fraction { .. } => {
                    assert!(memory.is_none_or(|memory| memory.0 > 0), "{text:?}");
                }
                QuantityError::SmallSuffix { number, .. } => {
                    let thousandths = number.checked_mul(1000).map(MilliCpu);
                    assert!(cpu.is_none() || cpu == thousandths, "{text:?}");
                }
                QuantityError::BinarySuffix { mib: None, .. } | QuantityError::TooLarge { .. } => {}
            }
        }
    }
}

/// Accepted values are within their ranges, also with defaults filled in.
fn request(lines: &[&str]) {
    let value_of = |resource| {
        let at = Resource::ALL.iter().position(|one| *one == resource)?;
        lines.get(at).copied().filter(|line| !line.is_empty())
    };
    let defaults = Defaults::default();
    let written = match Written::read(value_of) {
        Ok(written) => written,
        Err(errors) => {
            assert!(!errors.is_empty());
            assert!(
                errors
                    .iter()
                    .all(|error| error.to_string().contains("expected: "))
            );
            return;
        }
    };
    for resource in Resource::ALL {
        let expected = value_of(resource).map(|text| quantity::whole(text).expect("accepted"));
        assert_eq!(written.get(resource), expected);
    }
    let request = written.request(&defaults);
    assert_eq!(request.is_some(), written.requests_gpu(&defaults));
    if let Some(request) = request {
        assert!((1..=64).contains(&request.count), "{request:?}");
        assert!(request.cores.0 <= 100, "{request:?}");
        match request.memory {
            Memory::Mib(memory) => assert!((1..=1 << 20).contains(&memory.0), "{request:?}"),
            Memory::Share(part) => assert!((1..=100).contains(&part.0), "{request:?}"),
        }
    }
}
