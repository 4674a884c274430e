//! Annotations that cannot be meant: the name, the value and what is accepted.

use crate::wishes::{KEYS, Wishes};

fn check_refused(key: &str, value: &str, expected: &str) {
    let faults = Wishes::read(|asked| (asked == key).then_some(value)).unwrap_err();
    let texts: Vec<_> = faults.iter().map(ToString::to_string).collect();
    assert_eq!(texts, [format!("annotation {key}: {expected}")]);
}

#[test]
fn bad_values_are_refused_with_what_is_accepted() {
    for key in ["aliquot.dev/numa-bind", "nvidia.com/numa-bind"] {
        check_refused(
            key,
            "yes",
            "\"yes\" is not a truth value; accepted: true, false",
        );
    }
    let accepted =
        "accepted: vgpu, exclusive, timeslice, mps, mig, or some of them with commas between";
    let why = format!("\"hami-core\" is not a mode; {accepted}");
    check_refused("aliquot.dev/vgpu-mode", "hami-core", &why);
    let why = "\"vgpu\" names no mode; accepted: hami-core, mig, mps";
    check_refused("nvidia.com/vgpu-mode", "vgpu", why);
    let why = "\"topology\" is not a policy; accepted: ";
    let faults = Wishes::read(|key| (key == "hami.io/node-scheduler-policy").then_some("topology"));
    assert!(faults.unwrap_err()[0].why.starts_with(why));
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
            "{weights:?} are not weights; accepted: slot=N,core=N,memory=N, each a whole number of at most 1000, not all 0"
        );
        check_refused("hami.io/device-scoring-weights", weights, &why);
    }
}

#[test]
fn all_faults_are_reported_and_ours_hides_hamis() {
    let faults =
        Wishes::read(|key| (!key.contains("uuid") && !key.contains("type")).then_some("?"));
    let faults = faults.unwrap_err();
    assert_eq!(faults.len(), 7);
    assert!(
        faults
            .iter()
            .all(|fault| fault.key.starts_with("aliquot.dev/"))
    );
    assert_eq!(Wishes::read(|_| None), Ok(Wishes::default()));
    assert!(KEYS.iter().all(|key| key.ours.starts_with("aliquot.dev/")));
}
