//! Watches the driver and the node's pods, and publishes what follows from both.
//!
//! Fed by: driver events and readings, changes of the node's pods. A card's error is heard
//! once and published for all its seats. Must not: decide ([`crate::sick`] does); hold
//! its lock across an await.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use aliquot_core::{GpuUuid, inventory};
use aliquot_k8s::event::Notes;
use aliquot_nvml::{self as nvml, CardHealth, Driver, Event, NvmlError};
use parking_lot::Mutex;
use tokio::task::spawn_blocking;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::accepted::Accepted;
use crate::answered::answered;
use crate::last_good;
use crate::metrics::Metrics;
use crate::prestart::PreStart;
use crate::sick::{self, SickPods, Sickness, Told};
use crate::units::Held;
use crate::xid::{Action, Actions};

/// Longest wait for driver events; health is looked at after each.
const EVENTS: Duration = Duration::from_secs(2);
/// Rounds of events between two full readings of the driver.
const READ_EVERY: u32 = 15;
/// An application's error on a card is told to its pods once in this time.
const QUIET: Duration = Duration::from_mins(1);

/// What is done about errors.
#[derive(Clone, Debug)]
pub struct Care {
    /// What each XID asks for.
    pub actions: Actions,
    /// What becomes of the pods on a card that is out of service.
    pub pods: SickPods,
}

/// The watch of this node's cards.
pub struct Watch {
    driver: Arc<dyn Driver>,
    prestart: Arc<PreStart>,
    care: Care,
    notes: Notes,
    metrics: Metrics,
    state: Mutex<State>,
}

/// The last readings. Whoever publishes holds it, so that nothing older is published.
struct State {
    facts: nvml::Inventory,
    health: Vec<CardHealth>,
    held: Held,
    told: Told,
    /// Cards of which the driver did not tell how they are cut: the last answer stands.
    unread: BTreeSet<String>,
    errors: HashMap<(String, u64), Instant>,
}

impl Watch {
    /// Starts with these readings and publishes what follows from them. Blocks.
    pub fn new(
        driver: Arc<dyn Driver>,
        prestart: Arc<PreStart>,
        care: Care,
        notes: Notes,
        metrics: Metrics,
        (mut facts, health): (nvml::Inventory, Vec<CardHealth>),
    ) -> Arc<Self> {
        let unread = last_good::keep(&mut facts, &prestart.published.get().facts);
        let state = Mutex::new(State {
            facts,
            health,
            held: Held::new(),
            told: Told::default(),
            unread,
            errors: HashMap::new(),
        });
        let watch = Arc::new(Self {
            driver,
            prestart,
            care,
            notes,
            metrics,
            state,
        });
        watch.refresh(|_| {});
        watch
    }

    /// Reads the driver after its events, and now and then without, until `stop`. `tell` hears
    /// while it does not answer.
    pub async fn cards(
        self: Arc<Self>,
        tell: impl Fn(Option<String>) + Send + Sync,
        stop: CancellationToken,
    ) {
        let mut round = 0;
        while !stop.is_cancelled() {
            let (this, full) = (Arc::clone(&self), round % READ_EVERY == 0);
            round += 1;
            let round = spawn_blocking(move || this.round(full));
            match answered(round, &tell, &stop).await {
                None | Some(Err(_)) => return,
                Some(Ok(Ok(()))) => {}
                Some(Ok(Err(error))) => {
                    tracing::warn!(%error, "the driver did not answer; what it did not tell stays");
                    tokio::select! {
                        () = stop.cancelled() => {}
                        () = tokio::time::sleep(EVENTS) => {}
                    }
                }
            }
        }
    }

    /// Publishes again when pods change while seats are shown for them alone, until `stop`.
    pub async fn pods(self: Arc<Self>, stop: CancellationToken) {
        let mut changes = self.prestart.pods.subscribe();
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                told = changes.changed() => if told.is_err() { return },
            }
            changes.borrow_and_update();
            if self.prestart.published.get().has_kept_seats() {
                let this = Arc::clone(&self);
                if spawn_blocking(move || this.refresh(|_| {})).await.is_err() {
                    return;
                }
            }
        }
    }

    /// One wait and what it brought. Health comes first: it must not wait for a full
    /// reading, nor be missed because events cannot be had.
    fn round(&self, full: bool) -> Result<(), NvmlError> {
        let events = self.driver.wait_events(EVENTS);
        let health = self.driver.health()?;
        let heard = events.as_deref().unwrap_or_default();
        self.refresh(|state| state.health = health);
        for event in heard {
            self.tell(event);
        }
        let unread = !self.state.lock().unread.is_empty();
        if full || unread || !heard.is_empty() || self.prestart.modes.cut_since() {
            self.reread()?;
        }
        events.map(drop)
    }

    /// Reads the cards anew, and publishes them. Blocks.
    pub fn reread(&self) -> Result<(), NvmlError> {
        let mut facts = self.driver.inventory()?;
        let health = self.driver.health()?;
        self.refresh(|state| {
            let unread = last_good::keep(&mut facts, &state.facts);
            if unread != state.unread {
                tracing::warn!(cards = ?unread, "how these cards are cut was not told; the last answer stands");
            }
            (state.facts, state.health, state.unread) = (facts, health, unread);
        });
        Ok(())
    }

    /// The owner says that these cards are well. Blocks.
    pub fn clear(&self, uuids: &[String]) -> Result<(), NvmlError> {
        for uuid in uuids {
            tracing::warn!(uuid, "the owner says that this card is well");
            self.driver.clear(uuid);
        }
        let health = self.driver.health()?;
        self.refresh(|state| state.health = health);
        Ok(())
    }

    /// Publishes the state after `change`, and says what is new of it.
    fn refresh(&self, change: impl FnOnce(&mut State)) {
        let mut state = self.state.lock();
        change(&mut state);
        let diagnosis = |card| sick::diagnosis(card, &self.care.actions);
        let mut cards: Vec<_> = state.health.iter().filter_map(diagnosis).collect();
        for sick in &mut cards {
            sick.gpu = self.booked(&sick.gpu, &state.facts);
        }
        self.metrics
            .sick_cards
            .set(i64::try_from(cards.len()).unwrap_or(i64::MAX));
        let pods = self.prestart.pods.in_order();
        let shares = if cards.is_empty() {
            Vec::new()
        } else {
            self.shares()
        };
        let synced = self.prestart.pods.synced();
        match self.prestart.entries() {
            Ok(entries) => state.held = sick::held(&entries, &pods, synced),
            Err(error) => {
                tracing::warn!(%error, "who holds which seats is not known anew");
            }
        }
        let node = self.prestart.published.get();
        let touched = sick::touched(&cards, &node.inventory.gpus, self.care.pods);
        let concerned = sick::concerned(&touched, &shares, &pods);
        let evict = match self.care.pods {
            SickPods::Keep => Vec::new(),
            SickPods::Evict | SickPods::Drain => sick::evict(&concerned),
        };
        let drained = sick::drained(&cards, self.care.pods);
        let drained =
            drained.map(|sick| format!("the node is drained: {}: {}", sick.gpu, sick.why));
        let sickness = Sickness {
            cards,
            evict,
            drained,
        };
        let published = &self.prestart.published;
        published.cards(&state.facts, &state.health, sickness, state.held.clone());
        for note in state.told.news(&concerned, &pods, self.care.pods) {
            tracing::warn!(pod = note.pod.name, reason = note.reason, text = note.text);
            self.notes.send(note);
        }
    }

    /// A card's or instance's name in the books.
    fn booked(&self, uuid: &GpuUuid, facts: &nvml::Inventory) -> GpuUuid {
        let published = self.prestart.published.get();
        let unit = published.inventory.gpu(uuid).is_some();
        let made = sick::as_booked(uuid, facts).filter(|_| !unit);
        made.unwrap_or_else(|| uuid.clone())
    }

    fn shares(&self) -> Vec<Accepted> {
        self.prestart.store.lock().all().cloned().collect()
    }

    /// Logs and counts an event, and tells the pods of an error that leaves their card in
    /// service; of a sick card they are told by [`Self::refresh`].
    fn tell(&self, event: &Event) {
        tracing::warn!(?event, "driver event");
        let Event::Xid { uuid, code, .. } = event else {
            return;
        };
        let action = self.care.actions.of(*code);
        self.metrics.count_xid(uuid, *code, action.name());
        if action != Action::RestartApplication {
            return;
        }
        let now = Instant::now();
        let mut state = self.state.lock();
        state.errors.retain(|_, told| now - *told < QUIET);
        if state.errors.contains_key(&(uuid.clone(), *code)) {
            return;
        }
        state.errors.insert((uuid.clone(), *code), now);
        drop(state);
        let node = self.prestart.published.get();
        let gpu = self.booked(&uuid.as_str().into(), &node.facts);
        let by_mps = |card: &inventory::Gpu| card.uuid == gpu && card.mode == inventory::Mode::Mps;
        let shared = node.inventory.gpus.iter().any(by_mps);
        for pod in sick::on_card(&gpu, &self.shares(), &self.prestart.pods.in_order()) {
            self.notes
                .send(sick::application_error(&pod, &gpu, *code, shared));
        }
    }
}
