//! What cards get from a profile, or which faults it gives; who chooses a profile.
//!
//! Fed by: small nodes written here. Must not: need a driver.

use std::collections::BTreeMap;

use aliquot_profiles::choose::{BUILT_IN, LABEL, NVIDIA_LABEL};
use aliquot_profiles::mode::Scaling;
use aliquot_profiles::select::{Glob, Pci};
use aliquot_profiles::{By, Card, Config, Defaults, choose, read, resolve};

const A100: &str = "NVIDIA A100-SXM4-40GB";
const A30: &str = "NVIDIA A30";
const V100: &str = "Tesla V100-SXM2-16GB";
const P100: &str = "Tesla P100-PCIE-16GB";

fn card(index: u32, product: &str) -> Card {
    let (model, capability) = match product {
        A100 => (0x20B0_10DE, (8, 0)),
        A30 => (0x20B7_10DE, (8, 0)),
        V100 => (0x1DB1_10DE, (7, 0)),
        _ => (0x15F8_10DE, (6, 0)),
    };
    Card {
        uuid: format!("GPU-0000000{index}-0000-0000-0000-00000000000{index}").into(),
        index,
        product: product.to_owned(),
        pci: Pci::parse(&format!("00000000:6{index}:00.0")),
        model: Some(Pci::Model(model)),
        capability: Some(capability),
        mig: Some(capability.0 >= 8),
    }
}

fn defaults() -> Defaults {
    Defaults {
        split: 10,
        memory_scaling: Scaling::ONE,
    }
}

fn lab(profile: &str) -> Config {
    let profile = profile.replace('\n', "\n    ");
    let text = format!("apiVersion: aliquot.dev/v1alpha1\nprofiles:\n  lab:\n    {profile}\n");
    read(&text).expect("a good configuration")
}

/// Each card's rule and mode on a node with two A100, an A30 and a V100; or the faults.
fn resolved(profile: &str, cards: &[Card]) -> Vec<String> {
    let config = lab(profile);
    match resolve("lab", &config.profiles["lab"], cards, &defaults()) {
        Ok(plans) => {
            let plan = |p: &aliquot_profiles::Plan| {
                format!(
                    "{} {}",
                    p.from,
                    serde_json::to_string(&p.mode).expect("JSON")
                )
            };
            plans.iter().map(plan).collect()
        }
        Err(faults) => faults.0.iter().map(ToString::to_string).collect(),
    }
}

fn check(profile: &str, expected: &[&str]) {
    let cards = [card(0, A100), card(1, A100), card(2, A30), card(3, V100)];
    assert_eq!(resolved(profile, &cards), expected, "\n{profile}");
}

const VGPU: &str = r#"{"mode":"vgpu","split":10,"memoryScaling":1}"#;

#[test]
fn each_card_gets_the_mode_of_the_one_rule_that_selects_it() {
    let rest = format!("rest {VGPU}");
    check("rest: vgpu", &[&rest, &rest, &rest, &rest]);
    check(
        "gpus:\n- {select: {index: 0}, mode: exclusive}\n- {select: {uuid: GPU-00000001-0000-0000-0000-000000000001}, mode: vgpu, split: 4, memoryScaling: 1.5}\n- {select: {pci: ['0000:62:00.0']}, mode: mig, dynamic: true}\n- {select: {product: 'Tesla V*'}, mode: timeslice, replicas: 3}",
        &[
            r#"gpus[0] {"mode":"exclusive"}"#,
            r#"gpus[1] {"mode":"vgpu","split":4,"memoryScaling":1.5}"#,
            r#"gpus[2] {"mode":"mig","dynamic":true,"strategy":"mixed"}"#,
            r#"gpus[3] {"mode":"timeslice","replicas":3,"strict":false,"sliceLength":"default"}"#,
        ],
    );
}

#[test]
fn ts_9_index_uuid_pci_and_product_select_exactly_theirs_and_nothing_is_an_error() {
    for (select, hit, none) in [
        ("index: 2", 2, "index: 9"),
        (
            "uuid: GPU-00000001-0000-0000-0000-000000000001",
            1,
            "uuid: GPU-00000009-0000-0000-0000-000000000009",
        ),
        ("pci: '0000:63:00.0'", 3, "pci: '0000:69:00.0'"),
        ("product: '*A30*'", 2, "product: '*H100*'"),
    ] {
        let profile = |select: &str| {
            format!("gpus:\n- {{select: {{{select}}}, mode: exclusive}}\nrest: vgpu")
        };
        let rest = format!("rest {VGPU}");
        let mut expected = [rest.as_str(); 4];
        expected[hit] = r#"gpus[0] {"mode":"exclusive"}"#;
        check(&profile(select), &expected);
        let cards = [card(0, A100), card(1, A100), card(2, A30), card(3, V100)];
        let faults = resolved(&profile(none), &cards);
        assert!(
            faults.len() == 1 && faults[0].contains("selects no card"),
            "{none}: {faults:?}"
        );
    }
}

#[test]
fn keys_of_a_selector_hold_together_and_a_rule_may_be_optional() {
    check(
        "gpus:\n- {select: {pci: '0x20B010DE', index: 1}, mode: exclusive}\n- {select: {product: '*H100*'}, optional: true, mode: mig, dynamic: true}\nrest: vgpu",
        &[
            &format!("rest {VGPU}"),
            r#"gpus[0] {"mode":"exclusive"}"#,
            &format!("rest {VGPU}"),
            &format!("rest {VGPU}"),
        ],
    );
}

#[test]
fn what_hits_nothing_is_claimed_twice_or_left_over_is_told_all_at_once() {
    check(
        "gpus:\n- {select: {index: [0, 1, 7]}, mode: exclusive}\n- {select: {product: ['*A100*', '*H100*']}, mode: vgpu}\n- {select: {pci: '0000:99:00.0'}, mode: vgpu}",
        &[
            "profiles.lab.gpus[0].select.index[2]: 7 selects no card; accepted: 0, 1, 2, 3",
            r#"profiles.lab.gpus[1].select.product[1]: "*H100*" selects no card; accepted: NVIDIA A100-SXM4-40GB, NVIDIA A30, Tesla V100-SXM2-16GB"#,
            r#"profiles.lab.gpus[2].select.pci[0]: "0000:99:00.0" selects no card; accepted: 0000:60:00.0, 0000:61:00.0, 0000:62:00.0, 0000:63:00.0"#,
            "profiles.lab: gives card 0 (NVIDIA A100-SXM4-40GB, GPU-00000000-0000-0000-0000-000000000000) to gpus[0] and gpus[1]; accepted: each card in one entry; rest is for those that are left",
            "profiles.lab: gives card 1 (NVIDIA A100-SXM4-40GB, GPU-00000001-0000-0000-0000-000000000001) to gpus[0] and gpus[1]; accepted: each card in one entry; rest is for those that are left",
            "profiles.lab: leaves card 2 (NVIDIA A30, GPU-00000002-0000-0000-0000-000000000002) over; accepted: an entry of gpus for it, or rest",
            "profiles.lab: leaves card 3 (Tesla V100-SXM2-16GB, GPU-00000003-0000-0000-0000-000000000003) over; accepted: an entry of gpus for it, or rest",
        ],
    );
    check(
        "gpus:\n- {select: {product: '*A30', index: 0}, mode: exclusive}\nrest: vgpu",
        &[
            "profiles.lab.gpus[0].select.index[0]: 0 selects no card that the other keys select; accepted: keys that select a card together, or optional: true",
            r#"profiles.lab.gpus[0].select.product[0]: "*A30" selects no card that the other keys select; accepted: keys that select a card together, or optional: true"#,
        ],
    );
    check(
        "gpus:\n- {select: {all: true}, mode: mig, dynamic: true}",
        &[
            r#"profiles.lab.gpus[0].mode: "mig" is nothing that card 3 (Tesla V100-SXM2-16GB, GPU-00000003-0000-0000-0000-000000000003) can do; accepted: vgpu, exclusive, timeslice, mps, unmanaged"#,
        ],
    );
}

#[test]
fn mig_4_cards_under_one_name_that_are_cut_unlike_are_named() {
    let cards = [card(0, A100), card(1, A100), card(2, A30)];
    let single =
        |layout: &str| format!("mode: mig, strategy: single, layout: [{{profile: {layout}}}]");
    let profile = |first: &str, second: &str, rest: &str| {
        format!(
            "gpus:\n- {{select: {{index: 0}}, {first}}}\n- {{select: {{index: 1}}, {second}}}\nrest: {rest}"
        )
    };
    let alike = single("2g.10gb, count: 3");
    assert_eq!(resolved(&profile(&alike, &alike, "vgpu"), &cards).len(), 3);
    let odd = profile(&alike, &single("1g.5gb, count: 7"), "vgpu");
    let told = "profiles.lab.gpus[1].layout: cuts card 1 (NVIDIA A100-SXM4-40GB, GPU-00000001-0000-0000-0000-000000000001) into 7 x 1g.5gb, and the others into 3 x 2g.10gb; accepted: one layout for all cards with strategy single, or strategy mixed";
    assert_eq!(resolved(&odd, &cards), [told]);
    // Cards with another strategy may be cut as they like.
    let mixed = profile(&alike, "mode: mig, layout: [{profile: 7g.40gb}]", "vgpu");
    assert_eq!(resolved(&mixed, &cards).len(), 3);
}

#[test]
fn a_cut_that_the_card_cannot_have_is_told() {
    check(
        "gpus:\n- {select: {index: 0}, mode: mig, layout: [{profile: 4g.20gb}, {profile: 3g.20gb}]}\nrest: vgpu",
        &[
            r#"gpus[0] {"mode":"mig","layout":[{"profile":"4g.20gb","count":1},{"profile":"3g.20gb","count":1}],"strategy":"mixed"}"#,
            &format!("rest {VGPU}"),
            &format!("rest {VGPU}"),
            &format!("rest {VGPU}"),
        ],
    );
    check(
        "gpus:\n- {select: {index: 0}, mode: mig, layout: [{profile: 3g.20gb, count: 2}, {profile: 1g.5gb}]}\nrest: vgpu",
        &[
            "profiles.lab.gpus[0].layout: does not fit on card 0 (NVIDIA A100-SXM4-40GB, GPU-00000000-0000-0000-0000-000000000000); accepted: instances whose memory and compute slices have a place together",
        ],
    );
    check(
        "gpus:\n- {select: {index: 2}, mode: mig, layout: [{profile: 1g.5gb}]}\nrest: vgpu",
        &[
            r#"profiles.lab.gpus[0].layout[0].profile: "1g.5gb" is no profile of card 2 (NVIDIA A30, GPU-00000002-0000-0000-0000-000000000002); accepted: 1g.6gb, 1g.6gb+me, 2g.12gb, 4g.24gb"#,
        ],
    );
    check(
        "gpus:\n- {select: {index: 2}, mode: mig, dynamic: true, allow: [1g.6gb, 3g.20gb]}\nrest: vgpu",
        &[
            r#"profiles.lab.gpus[0].allow[1]: "3g.20gb" is no profile of card 2 (NVIDIA A30, GPU-00000002-0000-0000-0000-000000000002); accepted: 1g.6gb, 1g.6gb+me, 2g.12gb, 4g.24gb"#,
        ],
    );
    check(
        "gpus:\n- {select: {index: 3}, mode: mig, dynamic: true}\nrest: vgpu",
        &[
            r#"profiles.lab.gpus[0].mode: "mig" is nothing that card 3 (Tesla V100-SXM2-16GB, GPU-00000003-0000-0000-0000-000000000003) can do; accepted: vgpu, exclusive, timeslice, mps, unmanaged"#,
        ],
    );
}

#[test]
fn old_cards_have_fewer_mps_clients() {
    let profile = "rest: {mode: mps, replicas: 17}";
    assert_eq!(resolved(profile, &[card(0, V100)]).len(), 1);
    assert_eq!(
        resolved(profile, &[card(0, P100)]),
        [
            "profiles.lab.rest.replicas: 17 is too many for card 0 (Tesla P100-PCIE-16GB, GPU-00000000-0000-0000-0000-000000000000); accepted: 1 to 16 before compute capability 7.0"
        ]
    );
}

const POOLS: &str = "apiVersion: aliquot.dev/v1alpha1
default: other
profiles:
  lab: {nodeSelector: {pool: lab}, rest: exclusive}
  big: {nodeSelector: {size: big}, rest: exclusive}
  other: {rest: vgpu}
";

fn chosen(config: Option<&str>, labels: &[(&str, &str)]) -> Result<(String, By), String> {
    let config = config.map(|text| read(text).expect("a good configuration"));
    let labels = labels
        .iter()
        .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()));
    let labels: BTreeMap<String, String> = labels.collect();
    match choose(config.as_ref(), &labels) {
        Ok(chosen) => Ok((chosen.name.to_owned(), chosen.by)),
        Err(fault) => Err(fault.to_string()),
    }
}

#[test]
fn a_node_has_the_profile_of_its_label_then_its_selector_then_the_default() {
    let none = || Ok((BUILT_IN.to_owned(), By::Nothing));
    let table = [
        (&[][..], Ok(("other".to_owned(), By::Default))),
        (&[("pool", "lab")], Ok(("lab".to_owned(), By::NodeSelector))),
        (&[("pool", "lab"), (NVIDIA_LABEL, "big")], Ok(("big".to_owned(), By::Label(NVIDIA_LABEL)))),
        (&[(LABEL, "lab"), (NVIDIA_LABEL, "big")], Ok(("lab".to_owned(), By::Label(LABEL)))),
        (&[(LABEL, ""), ("pool", "lab")], Ok(("lab".to_owned(), By::NodeSelector))),
        (
            &[(LABEL, "lap")],
            Err("metadata.labels[\"aliquot.dev/profile\"]: \"lap\" is no profile; accepted: big, lab, other".to_owned()),
        ),
        (
            &[("pool", "lab"), ("size", "big")],
            Err("metadata.labels: are selected by 2 profiles: big, lab; accepted: one; the label aliquot.dev/profile settles it".to_owned()),
        ),
    ];
    for (labels, expected) in table {
        assert_eq!(chosen(Some(POOLS), labels), expected, "{labels:?}");
        assert_eq!(chosen(None, labels), none(), "{labels:?}");
    }
    let without_default = POOLS.replace("default: other\n", "");
    assert_eq!(chosen(Some(&without_default), &[]), none());
}

#[test]
fn without_configuration_all_cards_are_vgpu_and_the_effective_profile_reads_back() {
    let chosen = choose(None, &BTreeMap::new()).expect("built in");
    let cards = [card(0, A100), card(1, V100)];
    let plans = resolve(chosen.name, &chosen.profile, &cards, &defaults()).expect("plans");
    let effective = Config::of(chosen.name, chosen.profile.filled(&defaults()));
    let text = effective.to_yaml().expect("YAML");
    let read_back = read(&text).expect("its own text");
    assert_eq!(read_back, effective, "\n{text}");
    let again = &read_back.profiles[BUILT_IN];
    assert_eq!(resolve(BUILT_IN, again, &cards, &defaults()), Ok(plans));
    assert!(text.contains("split: 10"), "{text}");
    assert!(resolve(chosen.name, &chosen.profile, &[], &defaults()).is_ok());
}

#[test]
fn globs_match_whole_names() {
    let table = [
        ("*A100*", A100, true),
        ("*A10*", A100, true),
        ("NVIDIA A10?-*", A100, true),
        ("NVIDIA A10", A100, false),
        ("A100*", A100, false),
        ("*", "", true),
        ("?", "", false),
        ("*40GB", A100, true),
        ("**4?GB", A100, true),
    ];
    for (glob, text, expected) in table {
        assert_eq!(Glob(glob.to_owned()).hits(text), expected, "{glob} {text}");
    }
}

#[test]
fn mig_15_what_is_kept_needs_a_place_on_the_card() {
    let dynamic = |reserve: &str| {
        format!(
            "gpus:\n- {{select: {{index: 0}}, mode: mig, dynamic: true, reserve: [{reserve}]}}\nrest: vgpu"
        )
    };
    let cards = [card(0, A100), card(1, A100)];
    let good = dynamic("{profile: 3g.20gb, count: 2, namespaces: [a]}");
    let config = lab(&good);
    let plans = resolve("lab", &config.profiles["lab"], &cards, &defaults()).expect("good");
    let kept = serde_json::to_string(&plans[0].reserve).expect("JSON");
    assert_eq!(
        kept,
        r#"[{"profile":"3g.20gb","count":2,"namespaces":["a"]}]"#
    );
    assert!(plans[1].reserve.is_empty());
    for reserve in [
        "{profile: 3g.20gb, count: 3, namespaces: [a]}",
        "{profile: 1g.6gb, namespaces: [a]}",
    ] {
        assert_eq!(
            resolved(&dynamic(reserve), &cards),
            [
                "profiles.lab.gpus[0].reserve: has no place on card 0 (NVIDIA A100-SXM4-40GB, GPU-00000000-0000-0000-0000-000000000000); accepted: profiles of the card that have a place on it together"
            ]
        );
    }
}
