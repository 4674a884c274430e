//! Which mode each card should have: the configuration, the node's labels and its cards, put
//! together.
//!
//! Fed by: all three as values. Must not: guess where one of them is wrong; whoever asks keeps
//! what he had.

use std::collections::BTreeMap;

use aliquot_core::GpuUuid;
use aliquot_nvml as nvml;
use aliquot_profiles::config::Transition;
use aliquot_profiles::select::Pci;
use aliquot_profiles::{By, Card, Defaults, Mode, Reserve, choose, read, resolve};

/// What a node should be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// The profile and what chose it, for people.
    pub profile: String,
    /// What happens to the pods of a card whose mode changes.
    pub transition: Transition,
    /// The mode of each card, nothing left open.
    pub cards: BTreeMap<GpuUuid, Mode>,
    /// What of each card only some namespaces are given; cards of which nothing is kept
    /// are not here.
    pub reserve: BTreeMap<GpuUuid, Vec<Reserve>>,
}

/// Why nothing is wanted anew.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// One word for the node's condition.
    pub reason: &'static str,
    /// What is wrong, a line for each fault.
    pub text: String,
}

/// What these labels and this configuration ask of these cards; `text` is `None` where nothing
/// is configured.
pub fn wanted(
    text: Option<&str>,
    labels: &BTreeMap<String, String>,
    facts: &nvml::Inventory,
    defaults: &Defaults,
) -> Result<Wanted, Fault> {
    let fault = |reason, text: String| Fault { reason, text };
    let config = text.map(read).transpose();
    let config = config.map_err(|faults| fault("ConfigurationBroken", faults.to_string()))?;
    let chosen = choose(config.as_ref(), labels);
    let chosen = chosen.map_err(|one| fault("ProfileUnknown", one.to_string()))?;
    let cards: Vec<Card> = facts.cards.iter().map(card).collect();
    let plans = resolve(chosen.name, &chosen.profile, &cards, defaults);
    let plans = plans.map_err(|faults| fault("ProfileDoesNotFit", faults.to_string()))?;
    let by = match chosen.by {
        By::Label(key) => format!(", by the node's label {key}"),
        By::NodeSelector => ", by its nodeSelector".to_owned(),
        By::Default => ", the default".to_owned(),
        By::Nothing => String::new(),
    };
    Ok(Wanted {
        profile: format!("{}{by}", chosen.name),
        transition: chosen.profile.transition,
        reserve: plans
            .iter()
            .filter(|plan| !plan.reserve.is_empty())
            .map(|plan| (plan.uuid.clone(), plan.reserve.clone()))
            .collect(),
        cards: plans
            .into_iter()
            .map(|plan| (plan.uuid, plan.mode))
            .collect(),
    })
}

fn card(facts: &nvml::CardFacts) -> Card {
    Card {
        uuid: facts.uuid.as_str().into(),
        index: facts.index,
        product: facts.model.clone(),
        pci: facts.pci_bus_id.as_deref().and_then(Pci::parse),
        model: facts.pci_device_id.map(Pci::Model),
        capability: facts.compute_capability,
        mig: Some(facts.mig.capable),
    }
}

#[cfg(test)]
mod tests {
    use aliquot_core::Scaling;

    use super::*;
    use crate::testing::facts;

    const CONFIG: &str = "
apiVersion: aliquot.dev/v1alpha1
default: shared
profiles:
  shared: {rest: vgpu}
  lab:
    gpus:
    - {select: {index: 0}, mode: exclusive}
    - {select: {pci: '0000:07:00.0'}, mode: timeslice, replicas: 3}
    transition: {policy: evict, timeout: 5m}
  third: {gpus: [{select: {index: 7}, mode: exclusive}], rest: vgpu}
";

    /// `expected`: the modes in order, or the reason and a part of the text.
    fn check(text: Option<&str>, label: Option<&str>, expected: Result<&[&str], (&str, &str)>) {
        let labels = label.map(|value| ("aliquot.dev/profile".to_owned(), value.to_owned()));
        let mut facts = facts(&["GPU-a", "GPU-b"]);
        facts.cards[1].pci_bus_id = Some("00000000:07:00.0".to_owned());
        let defaults = Defaults {
            split: 4,
            memory_scaling: Scaling::ONE,
        };
        let found = wanted(text, &labels.into_iter().collect(), &facts, &defaults);
        match (found, expected) {
            (Ok(found), Ok(expected)) => {
                let said = found.cards.values().map(|mode| format!("{mode:?}"));
                let said: Vec<String> = said.map(|m| m.chars().take(7).collect()).collect();
                assert_eq!(said, expected, "{label:?}");
            }
            (Err(fault), Err((reason, part))) => {
                assert_eq!(fault.reason, reason);
                assert!(fault.text.contains(part), "{}", fault.text);
            }
            (found, expected) => panic!("{found:?}, expected {expected:?}"),
        }
    }

    #[test]
    fn configuration_labels_and_cards_together_say_the_mode_of_each_card() {
        check(None, None, Ok(&["Vgpu(Vg", "Vgpu(Vg"]));
        check(None, Some("lab"), Ok(&["Vgpu(Vg", "Vgpu(Vg"]));
        check(Some(CONFIG), None, Ok(&["Vgpu(Vg", "Vgpu(Vg"]));
        check(Some(CONFIG), Some("lab"), Ok(&["Exclusi", "Timesli"]));
        check(
            Some("profiles: ["),
            None,
            Err(("ConfigurationBroken", "line 1")),
        );
        check(
            Some(CONFIG),
            Some("labb"),
            Err(("ProfileUnknown", "\"labb\" is no profile")),
        );
        check(
            Some(CONFIG),
            Some("third"),
            Err(("ProfileDoesNotFit", "7 selects no card")),
        );
    }

    #[test]
    fn ts_9_a_card_is_meant_by_index_uuid_pci_address_or_product_and_nothing_by_silence() {
        let uuid = |n: u32| format!("GPU-{n:08x}-0000-0000-0000-000000000000");
        let (a, b) = (uuid(1), uuid(2));
        let mut facts = facts(&[&a, &b]);
        facts.cards[1].pci_bus_id = Some("00000000:07:00.0".to_owned());
        facts.cards[1].pci_device_id = Some(0x20B7_10DE);
        facts.cards[1].model = "NVIDIA A30".to_owned();
        let defaults = Defaults {
            split: 4,
            memory_scaling: Scaling::ONE,
        };
        let ask = |select: &str| {
            let head = "apiVersion: aliquot.dev/v1alpha1\ndefault: p\nprofiles:\n  p:";
            let text = format!(
                "{head}\n    gpus: [{{select: {{{select}}}, mode: exclusive}}]\n    rest: vgpu\n"
            );
            let found = wanted(Some(&text), &BTreeMap::new(), &facts, &defaults)?;
            let whole = found.cards.into_iter();
            let whole = whole.filter(|(_, mode)| matches!(mode, Mode::Exclusive(_)));
            Ok::<_, Fault>(whole.map(|(uuid, _)| uuid.to_string()).collect::<Vec<_>>())
        };
        for select in [
            "index: 1",
            &format!("uuid: {b}"),
            "pci: '0000:07:00.0'",
            "pci: '0x20b710de'",
            "product: '*A30'",
        ] {
            assert_eq!(ask(select), Ok(vec![b.clone()]), "{select}");
        }
        let fault = ask("product: '*H100*'").expect_err("hits nothing");
        assert!(fault.text.contains("selects no card"), "{}", fault.text);
    }

    #[test]
    fn ts_11_without_a_configuration_all_cards_are_vgpu_and_the_profile_can_be_read_back() {
        let facts = facts(&["GPU-a", "GPU-b"]);
        let defaults = Defaults {
            split: 4,
            memory_scaling: Scaling::ONE,
        };
        let found = wanted(None, &BTreeMap::new(), &facts, &defaults).expect("built in");
        let open = |(uuid, mode)| (uuid, crate::units::Stand::open(mode));
        let arrangement = crate::units::Arrangement {
            usual: crate::testing::RESOURCE.to_owned(),
            cards: found.cards.into_iter().map(open).collect(),
        };
        let published = crate::inventory::Published::new(facts, Vec::new(), arrangement);
        let inventory = &published.get().inventory;
        let config = aliquot_profiles::shown::effective("n1", inventory).expect("can be shown");
        let yaml = config.to_yaml().expect("yaml");
        assert_eq!(read(&yaml).expect("good"), config);
        assert!(yaml.contains("vgpu") && yaml.contains("split: 4"), "{yaml}");
    }
}
