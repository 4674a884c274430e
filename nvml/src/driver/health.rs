//! What is remembered of cards' errors, and what follows for their health and their instances'.
//! Fed by NVML and by events; what that means for pods is decided elsewhere.

use nvml_wrapper::enums::device::SampleValue;
use nvml_wrapper::error::NvmlError as Cause;
use nvml_wrapper::structs::device::FieldId;
use nvml_wrapper_sys::bindings::field_id::NVML_FI_DEV_GET_GPU_RECOVERY_ACTION;

use super::{Card, Nvml};
use crate::Driver as _;
use crate::events;
use crate::facts::{CardHealth, Event, Health};
use crate::mig::Cut;
use crate::trouble::{Trouble, settle};

impl Nvml {
    /// Whether the card answers.
    pub(super) fn answers(&self, uuid: &str) -> Result<(), Cause> {
        self.library.device_by_uuid(uuid)?.uuid().map(drop)
    }

    /// What the driver asks for after an error; `None` where it does not say. 0 is nothing.
    fn recovery_action(&self, uuid: &str) -> Option<u64> {
        let device = self.library.device_by_uuid(uuid).ok()?;
        let ids = [FieldId(NVML_FI_DEV_GET_GPU_RECOVERY_ACTION)];
        let sample = device.field_values_for(&ids).ok()?.pop()?.ok()?;
        match sample.value.ok()? {
            SampleValue::U32(action) => Some(action.into()),
            SampleValue::U64(action) => Some(action),
            _ => None,
        }
    }

    /// Brings what is remembered of a card up to date and tells its health and that of its
    /// instances: what the card has, all of them have.
    pub(super) fn examine(&self, uuid: &str, known: &mut Card) -> Vec<CardHealth> {
        let (action, lost) = match self.answers(uuid) {
            Ok(()) => (self.recovery_action(uuid), None),
            Err(e) => (None, Some(Health::Lost(e.to_string()))),
        };
        if lost.is_some() {
            let all = known.xid.iter_mut().chain(known.of_instances.values_mut());
            all.for_each(|trouble| trouble.away = true);
        }
        let card = lost.clone();
        let card = card.unwrap_or_else(|| settle(action, &mut known.xid));
        let devices = known
            .facts
            .cut
            .instances
            .iter()
            .flat_map(|one| &one.devices);
        let devices: Vec<&String> = devices.map(|device| &device.uuid).collect();
        known.of_instances.retain(|uuid, _| devices.contains(&uuid));
        let mut found = Vec::new();
        for device in devices {
            let mut own = known.of_instances.remove(device);
            let health = match (&card, &lost) {
                (Health::Xid(_), _) | (_, Some(_)) => card.clone(),
                _ => settle(action, &mut own),
            };
            known
                .of_instances
                .extend(own.map(|own| (device.clone(), own)));
            let uuid = device.clone();
            found.push(CardHealth { uuid, health });
        }
        let uuid = uuid.to_owned();
        found.insert(0, CardHealth { uuid, health: card });
        found
    }

    /// Remembers an XID and turns it into an event. One of an instance that is not known is its
    /// card's.
    pub(super) fn note_xid(&self, heard: events::Heard) -> Event {
        let events::Heard {
            card,
            instance,
            code,
        } = heard;
        let ignored = self.ignored.contains(code);
        let asked = self
            .recovery_action(&card)
            .is_some_and(|action| action != 0);
        let mut uuid = card.clone();
        if let Some(known) = self.cards.lock().get_mut(&card) {
            if let Some(instance) = instance {
                uuid = self.device_of(known, instance).unwrap_or(uuid);
            }
            let away = false;
            let trouble = Trouble { code, asked, away };
            match ignored {
                true => {}
                false if uuid == card => known.xid = Some(trouble),
                false => drop(known.of_instances.insert(uuid.clone(), trouble)),
            }
        }
        Event::Xid {
            uuid,
            code,
            ignored,
        }
    }

    /// The device of these ids. The card may have been cut since it was last read.
    fn device_of(&self, known: &mut Card, (outer, inner): (u32, u32)) -> Option<String> {
        let find = |cut: &Cut| {
            let outer = cut.instances.iter().find(|one| one.id == outer)?;
            let inner = outer.devices.iter().find(|one| one.id == inner)?;
            Some(inner.uuid.clone())
        };
        find(&known.facts.cut).or_else(|| {
            known.facts.cut = self.cut(&known.facts.uuid).ok()?;
            find(&known.facts.cut)
        })
    }
}
