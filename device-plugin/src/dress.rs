//! The files of one container: what its accepted share and the modes of its units make of it.
//!
//! Fed by: an accepted share and the names that the kubelet was given for it. Must not: judge,
//! or give a container that has several resources two sets of mounts.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use aliquot_core::inventory::Mode;
use aliquot_core::mig::published::Placed;
use aliquot_core::{GpuUuid, Grant, Percent, PodUid};

use crate::accepted::Accepted;
use crate::capabilities::Allowed;
use crate::cdi::{self, Spec};
use crate::checkpoint::{CheckpointError, Entry};
use crate::fail_point::{self, Point};
use crate::inventory::Node;
use crate::judge::Refusal;
use crate::modes::{Outfit, Share, mps};
use crate::prestart::{PreStart, PreStartError};
use crate::seat::Name;
use crate::way_in::Installed;
use crate::{by_env, environment, files, host, host_memory, limits, way_in};

impl PreStart {
    /// Brings the files of every accepted share in the checkpoint up to date
    /// (NVIDIA's own spec may have changed). What fails for one entry is logged:
    /// its container says the same at its next start. Returns how many it served.
    pub fn refresh(&self) -> Result<usize, CheckpointError> {
        let entries = self.entries()?;
        let node = self.published.get();
        let mut served = 0;
        for holders in containers(&entries) {
            let _alone = self.kept.lane(&holders[0].pod);
            let Some(accepted) = self.store.lock().get(&holders[0].pod).cloned() else {
                continue;
            };
            let mut names = holders.iter().filter_map(|holder| holder.name.as_ref());
            if !names.all(|name| accepted.names.contains(name.as_str())) {
                continue;
            }
            let container = &holders[0].container;
            let names = named(holders.iter().copied());
            if let Err(error) = self.store.lock().note_names(&accepted.pod, names) {
                tracing::warn!(%error, "whose files these are is not stored");
            }
            // An instance is not made again for who has ended.
            let mut grants = accepted.allocation.all().flat_map(|(_, grants)| grants);
            if grants.any(|grant| grant.mig.is_some()) && !self.lives(&accepted.pod) {
                continue;
            }
            let others = self.beside(&accepted, &self.store.lock());
            match self.write(&accepted, &others, &holders, &node) {
                Ok(()) => served += 1,
                Err(error) => {
                    let pod = &accepted.pod_name;
                    tracing::warn!(pod, container, %error, "a share is not up to date");
                }
            }
        }
        Ok(served)
    }

    /// Writes the files of one container, whose names are those of `holders`, in the order of
    /// their resources: limits page, counters file and CDI spec of the first, and for each
    /// further one a CDI spec with the same variables. What `others` hold is left alone.
    pub(crate) fn write(
        &self,
        accepted: &Accepted,
        others: &[Arc<Accepted>],
        holders: &[&Entry],
        node: &Node,
    ) -> Result<(), PreStartError> {
        let container = holders[0].container.as_str();
        let grants = accepted.allocation.grants(container);
        let effective = accepted.effective(container);
        let mut names = holders.iter().filter_map(|holder| holder.name.as_ref());
        let (Some(name), Some(grants), Some(effective)) = (names.next(), grants, effective) else {
            let refusal = Refusal::NoShare(container.to_owned());
            return Err(PreStartError::Refused(refusal));
        };
        let shared = |unit: &GpuUuid| Some(accepted.mode(unit));
        if let Some(unit) = mps::beside_another(grants, shared) {
            let refusal = Refusal::BesideMps(container.to_owned(), unit.clone());
            return Err(PreStartError::Refused(refusal));
        }
        let mut cards = Vec::with_capacity(grants.len());
        let mut shown = grants.to_vec();
        let mut outfit = Outfit::default();
        for (place, grant) in grants.iter().enumerate() {
            let card = node.cards.get(&grant.gpu).cloned();
            let mut card = card.ok_or_else(|| PreStartError::CardGone {
                pod: accepted.pod.clone(),
                gpu: grant.gpu.clone(),
            })?;
            let beside = beside(accepted, others, &grant.gpu);
            let share = Share {
                pod: &accepted.pod,
                container,
                grant,
                place,
                mode: accepted.mode(&grant.gpu),
                card: &card,
                beside: &beside,
            };
            let mode = share.mode;
            // Making an instance, or a larger share at a daemon, takes seconds.
            if matches!(mode, Mode::Mig | Mode::Mps) {
                let equip = || self.modes.equip(&share, &mut outfit);
                self.kept.turns.aside(equip)?;
            } else {
                self.modes.equip(&share, &mut outfit)?;
            }
            if let Some(part) = outfit.part.take() {
                card.part = Some(part);
            }
            if let Some(part) = &card.part {
                log_instance(accepted, container, part);
            }
            if mode == Mode::Timeslice {
                // Nothing is promised of it, and nothing but its end limits it.
                let unit = node.inventory.gpu(&grant.gpu);
                shown[place].memory = unit.map_or(grant.memory, |unit| unit.memory);
            }
            if mode == Mode::Mps {
                // The daemon holds it, by space and not by time.
                shown[place].cores = Percent(0);
            }
            cards.push(card);
        }
        // The driver may have another uuid for an instance than the one that we know it by.
        for card in &cards {
            let Some(part) = &card.part else { continue };
            let known = outfit.visible.iter_mut();
            let known = known.filter(|name| *name == card.uuid.as_str());
            known.for_each(|name| name.clone_from(&part.current));
        }
        let priority = accepted.allocation.priority;
        let names_now: Vec<&str> = cards.iter().map(host::Card::current).collect();
        let page = limits::page(
            &shown,
            &names_now,
            priority,
            effective,
            self.context,
            |gpu| {
                let unit = node.inventory.gpu(gpu)?;
                // What was promised when the pod was accepted, whatever is now.
                let usable = host_memory::usable(unit, &node.facts);
                Some((usable, *accepted.promised.get(gpu)?))
            },
        );
        let page = page.map_err(|source| PreStartError::Page {
            container: container.to_owned(),
            source,
        })?;
        let seat = self.paths.seats.join(name.as_str());
        let holds = outfit.limited && !effective.uncontrolled;
        let limiter = self.limiter.as_ref().filter(|_| holds);
        self.furnish(&seat, &page, limiter)?;
        fail_point::at(Point::SeatWritten);
        if let Some(named) = &holders[0].by_env {
            return Ok(by_env::settle(&seat, named)?);
        }
        let mut driver = self.driver(&cards, grants, node, &mut outfit);
        let seat_name = seat.display().to_string();
        if let Some(limiter) = limiter {
            way_in::stand_before(&mut driver.edits, &seat_name, limiter);
        }
        let variables = environment::variables(&outfit, &shown, priority, effective);
        driver.edits.mounts.append(&mut outfit.mounts);
        let (own, trees) = (variables.clone(), host::mounts_whole_trees());
        self.put(name, &cdi::spec(name, own, &seat_name, &driver, trees))?;
        fail_point::at(Point::SpecWritten);
        for name in names {
            self.put(name, &cdi::variables_only(name, variables.clone()))?;
        }
        Ok(())
    }

    /// How the driver gets to these cards, without what their profiles do not allow.
    fn driver(
        &self,
        cards: &[host::Card],
        grants: &[Grant],
        node: &Node,
        outfit: &mut Outfit,
    ) -> cdi::Driver {
        let specs = self.kept.specs(&self.paths.nvidia_cdi);
        let (root, nodes) = (self.paths.driver_root.as_ref(), &self.paths.capabilities);
        let mut driver = host::driver(&specs, root, nodes, cards);
        let units = grants.iter().filter_map(|g| node.inventory.gpu(&g.gpu));
        if let Some(allowed) = Allowed::of_all(units, &node.arrangement) {
            allowed.keep(&mut driver.edits);
            outfit.variables.push(allowed.variable());
        }
        driver
    }

    /// A seat's folder: one made ahead, or a new one.
    fn furnish(
        &self,
        seat: &Path,
        page: &[u8; aliquot_region::limits::SIZE],
        limiter: Option<&Installed>,
    ) -> Result<(), PreStartError> {
        if self.spares.take(seat, limiter) {
            files::fill(seat, page)?;
            return Ok(());
        }
        files::seat(seat, page)?;
        if let Some(limiter) = limiter {
            way_in::equip(seat, limiter)?;
        }
        Ok(())
    }

    fn put(&self, name: &Name, spec: &Spec) -> Result<(), PreStartError> {
        let text = serde_json::to_vec_pretty(spec).map_err(|source| PreStartError::Encode {
            name: name.clone(),
            source,
        })?;
        files::put(&self.paths.cdi.join(cdi::file_name(name.as_str())), &text)?;
        Ok(())
    }
}

fn log_instance(accepted: &Accepted, container: &str, part: &host::Part) {
    tracing::info!(
        namespace = accepted.namespace,
        pod = accepted.pod_name,
        container,
        uuid = part.current,
        gpu_instance = part.gpu_instance,
        compute_instance = part.compute_instance,
        "a container gets a MIG instance"
    );
}

/// The instances of a card that is cut as pods come which are held, by these pods together.
fn beside(accepted: &Accepted, others: &[Arc<Accepted>], gpu: &GpuUuid) -> Vec<Placed> {
    let all = others.iter().map(|other| &**other).chain([accepted]);
    let grants = all.flat_map(|one| one.allocation.all().flat_map(|(_, grants)| grants));
    let here = grants.filter(|grant| grant.gpu == *gpu);
    here.filter_map(|grant| grant.mig.clone()).collect()
}

/// The names of ours among these entries, each with its container.
pub(crate) fn named<'a>(
    entries: impl IntoIterator<Item = &'a Entry, IntoIter: Clone>,
) -> impl Iterator<Item = (&'a Name, &'a str)> + Clone {
    let both = |entry: &'a Entry| Some((entry.name.as_ref()?, entry.container.as_str()));
    entries.into_iter().filter_map(both)
}

/// The entries with a name of ours, container by container, each in the order of the resources.
pub(crate) fn containers(entries: &[Entry]) -> Vec<Vec<&Entry>> {
    let mut found: BTreeMap<(&PodUid, &str), Vec<&Entry>> = BTreeMap::new();
    for entry in entries.iter().filter(|entry| entry.name.is_some()) {
        let key = (&entry.pod, entry.container.as_str());
        found.entry(key).or_default().push(entry);
    }
    let mut found: Vec<Vec<&Entry>> = found.into_values().collect();
    for entries in &mut found {
        entries.sort_by(|a, b| a.resource.cmp(&b.resource));
        entries.dedup();
    }
    found
}
