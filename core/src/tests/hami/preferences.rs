//! Invalid annotations: the name, the value and what is expected.

use crate::excerpt::CHARACTERS;
use crate::preferences::{KEYS, MAX_BYTES, MAX_ITEMS, Preferences};

fn check_refused(key: &str, value: &str, expected: &str) {
    let errors = Preferences::read(|asked| (asked == key).then_some(value)).unwrap_err();
    let texts: Vec<_> = errors.iter().map(ToString::to_string).collect();
    assert_eq!(texts, [format!("annotation {key}: {expected}")]);
}

#[test]
fn rejects_invalid_annotations_with_expected_values() {
    for key in ["aliquot.dev/numa-bind", "nvidia.com/numa-bind"] {
        check_refused(
            key,
            "yes",
            "\"yes\" is not a boolean; expected: true, false",
        );
    }
    let expected = "expected: vgpu, exclusive, timeslice, mps, mig, or several, comma-separated";
    let why = format!("\"hami-core\" is not a sharing mode; {expected}");
    check_refused("aliquot.dev/vgpu-mode", "hami-core", &why);
    let why = "\"vgpu\" names no sharing mode; expected: hami-core, mig, mps";
    check_refused("nvidia.com/vgpu-mode", "vgpu", why);
    let why = "\"topology\" is not a policy; expected: ";
    let errors =
        Preferences::read(|key| (key == "hami.io/node-scheduler-policy").then_some("topology"));
    assert!(errors.unwrap_err()[0].why.starts_with(why));
    for weights in [
        "",
        "slot=1",
        "slot=1,core=1,memory=-3",
        "slot=0,core=0,memory=0",
        "slot=1,slot=1,memory=1",
        "slot=1,core=1,memory=1,core=1",
        "slot=1,core=1,memory=1001",
    ] {
        let why = format!(
            "{weights:?} are not weights; expected: slot=N,core=N,memory=N, each a whole number of at most 1000, not all 0"
        );
        check_refused("hami.io/device-scoring-weights", weights, &why);
    }
}

#[test]
fn lists_of_all_annotations_together_have_a_bound() {
    let read = |types: &str, uuids: &str| {
        let (types, uuids) = (types.to_owned(), uuids.to_owned());
        let value_of = |key| match key {
            "aliquot.dev/use-gputype" => Some(types.as_str()),
            "nvidia.com/nouse-gpuuuid" => Some(uuids.as_str()),
            _ => None,
        };
        let read = Preferences::read(value_of);
        read.map(drop).map_err(|errors| errors[0].clone())
    };
    let items = |count| vec!["a"; count].join(",");
    assert_eq!(read(&items(1), &items(MAX_ITEMS - 1)), Ok(()));
    let many = read(&items(1), &items(MAX_ITEMS)).unwrap_err();
    assert_eq!(many.key, "nvidia.com/nouse-gpuuuid");
    let expected = "expected: at most 64 items and 4096 bytes in all annotations that choose GPUs";
    assert!(many.why.ends_with(expected), "{}", many.why);
    assert_eq!(read(&"a".repeat(MAX_BYTES), ""), Ok(()));
    let long = read(&"a".repeat(MAX_BYTES), "b").unwrap_err();
    assert_eq!(long.key, "nvidia.com/nouse-gpuuuid");
    let huge = read(&"a,".repeat(120_000), "").unwrap_err();
    assert_eq!(huge.key, "aliquot.dev/use-gputype");
    let value = format!(
        "\"{}…\" (240000 characters) is",
        "a,".repeat(CHARACTERS / 2)
    );
    assert!(huge.why.starts_with(&value), "{}", huge.why);
}

#[test]
fn reports_all_errors_and_prefers_aliquot_names() {
    let errors =
        Preferences::read(|key| (!key.contains("uuid") && !key.contains("type")).then_some("?"));
    let errors = errors.unwrap_err();
    assert_eq!(errors.len(), 10);
    assert!(
        errors
            .iter()
            .all(|error| error.key.starts_with("aliquot.dev/"))
    );
    assert_eq!(Preferences::read(|_| None), Ok(Preferences::default()));
    assert!(
        KEYS.iter()
            .all(|key| key.aliquot.starts_with("aliquot.dev/"))
    );
}
