//! When the node's conditions are written.

use super::*;
use crate::xid::Action;

fn seen(status: Option<&str>) -> Seen {
    Seen {
        lost: status.map(|status| (status.to_owned(), String::new())),
        ..Seen::default()
    }
}

#[test]
fn the_condition_is_written_when_it_becomes_true_and_taken_back_when_healed() {
    let check = |lost: &[&str], status: Option<&str>, expected: Option<&str>| {
        let lost = lost.iter().map(|&uid| uid.into()).collect();
        let wanted = wanted_condition(&lost, &seen(status));
        let status = wanted.as_ref().map(|[status, ..]| status.as_str());
        assert_eq!(status, expected, "{lost:?}");
    };
    check(&[], None, None);
    check(&["u1"], None, Some("True"));
    check(&["u1"], Some("False"), Some("True"));
    check(&[], Some("True"), Some("False"));
}

#[test]
fn a_condition_that_says_it_already_is_not_written_again() {
    let lost = ["u1".into()].into();
    let [status, _, message] = wanted_condition(&lost, &seen(None)).expect("written");
    let right = Seen {
        lost: Some((status, message)),
        ..Seen::default()
    };
    assert_eq!(wanted_condition(&lost, &right), None);
}

#[test]
fn a_sick_card_is_a_condition_until_it_is_well_and_a_node_that_never_had_one_has_none() {
    let sick = |why: &str, action| Sick {
        gpu: "GPU-a".into(),
        why: why.to_owned(),
        action,
    };
    let mut seen = Seen::default();
    let mut check = |cards: &[Sick], expected: Option<[&str; 2]>| {
        let wanted = wanted_sick(cards, &seen);
        let found = wanted.as_ref().map(|w| [w[0].as_str(), w[1].as_str()]);
        assert_eq!(found, expected, "{cards:?}");
        if let Some([status, _, message]) = wanted {
            seen.sick = Some((status, message));
        }
    };
    let both = [
        sick("XID 48", Action::ResetGpu),
        sick("XID 79", Action::DrainNode),
    ];
    check(&[], None);
    check(&both[..1], Some(["True", "ResetNeeded"]));
    check(&both[..1], None);
    check(&both, Some(["True", "DrainNeeded"]));
    check(&[], Some(["False", "GpusWell"]));
    check(&[], None);
}

#[test]
fn reads_annotation_and_condition_of_the_node() {
    let node: api::Node = serde_json::from_value(json!({
        "metadata": {"name": "n1", "annotations": {INVENTORY: "x"}},
        "status": {"conditions": [
            {"type": "Ready", "status": "True"},
            {"type": CHECKPOINT_LOST, "status": "True", "message": "m"}]},
    }))
    .expect("a node");
    let found = Seen::read(&node);
    assert_eq!(found.inventory.as_deref(), Some("x"));
    assert_eq!(found.lost, Some(("True".to_owned(), "m".to_owned())));
}
