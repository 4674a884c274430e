//! Follows the node's profile: looks at what is wanted and what is, stores what begins, publishes
//! it, and has each card switched by itself.
//!
//! Fed by: the configuration's text, the watched Node, the node's pods, the driver's facts.
//! Must not: decide how a card changes ([`crate::transition`]); begin what is not stored; touch a
//! card that is not to change.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use aliquot_core::GpuUuid;
use aliquot_k8s::event::Notes;
use aliquot_nvml::CardFacts;
use aliquot_profiles::config::Seconds;
use aliquot_profiles::{Defaults, Mode};
use tokio::sync::{mpsc, watch};
use tokio::task::spawn_blocking;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::accepted::{Accepted, Store};
use crate::clock::steady;
use crate::fail_point::{self, Point};
use crate::health::Watch;
use crate::metrics::{Metrics, count};
use crate::node::Seen;
use crate::occupants::{self, Holders, Occupants};
use crate::pod::Phase;
use crate::prestart::PreStart;
use crate::profile_status::Hindrance;
use crate::transition::{self, Card, Situation, Todo};
use crate::wanted::Fault;
use crate::{collect, hami, host, source, units};

mod publish;
mod state;

pub use state::{Beginning, State};
use state::{Failure, close};

/// A look even without a change: the configuration is compared by its text.
const LOOK: Duration = Duration::from_secs(1);
/// The same while a card changes.
const SOON: Duration = Duration::from_millis(200);
/// How long after the API server shows that a card takes nothing new a Binding that was on its
/// way is waited for.
const SETTLED: Duration = Duration::from_secs(1);

/// What following rests on.
pub struct Follower {
    /// Where the configuration is; `None`: nothing is configured.
    pub source: Option<PathBuf>,
    /// What holds where a profile says nothing.
    pub defaults: Defaults,
    /// Where [`Standing`] is stored.
    pub path: PathBuf,
    /// Pods, shares, what is published, and the modes.
    pub prestart: Arc<PreStart>,
    /// The watch of the cards, which reads them anew after a switch.
    pub cards: Arc<Watch>,
    /// The node's name, for events.
    pub node: String,
    /// Events.
    pub notes: Notes,
    /// Counts switches.
    pub metrics: Metrics,
}

/// A step to do on a card.
struct Work {
    card: CardFacts,
    mode: Mode,
    /// The mode that is left for another: that one.
    to: Option<Mode>,
}

/// How a step ended.
type Ended = (GpuUuid, Result<(), Hindrance>);

impl Follower {
    /// Follows until `stop`.
    pub async fn run(
        self,
        mut state: State,
        mut seen: watch::Receiver<Option<Seen>>,
        stop: CancellationToken,
    ) {
        let this = Arc::new(self);
        let (ended_tx, mut ended_rx) = mpsc::channel::<Ended>(64);
        let mut pods = this.prestart.pods.subscribe();
        loop {
            let node = seen.borrow_and_update().clone();
            pods.borrow_and_update();
            let looking = Arc::clone(&this);
            let looked = spawn_blocking(move || {
                let work = looking.look(&mut state, node.as_ref());
                (state, work)
            });
            let Ok((looked, work)) = looked.await else {
                return;
            };
            state = looked;
            for work in work {
                let (this, ended_tx) = (Arc::clone(&this), ended_tx.clone());
                let uuid = GpuUuid::from(work.card.uuid.as_str());
                let done = spawn_blocking(move || this.work(&work));
                tokio::spawn(async move {
                    let done = done.await;
                    let ended =
                        |error: tokio::task::JoinError| Err(Hindrance::Failed(error.to_string()));
                    let done = done.unwrap_or_else(ended);
                    let _stopped = ended_tx.send((uuid, done)).await;
                });
            }
            let changing = state.changing() > 0;
            tokio::select! {
                () = stop.cancelled() => return,
                _ = seen.changed() => {}
                Some(ended) = ended_rx.recv() => this.ended(&mut state, ended),
                _ = pods.changed(), if changing => {}
                () = tokio::time::sleep(if changing { SOON } else { LOOK }) => {}
            }
        }
    }

    /// One look. Blocks. What is to be done is stored and published.
    fn look(&self, state: &mut State, node: Option<&Seen>) -> Vec<Work> {
        let published = self.prestart.published.get();
        state.meet(&published.facts);
        self.read(state, node, &published.facts);
        // Under the lock of the shares: who is accepted meanwhile is either seen here, or sees
        // that the card changes.
        let concerned = state.concerned();
        let store = (!concerned.is_empty()).then(|| self.prestart.store.lock());
        let occupants = store.as_ref().map_or_else(BTreeMap::new, |store| {
            self.occupants(&concerned, &published, store)
        });
        close(state, &concerned, node);
        let mut work = Vec::new();
        for facts in &published.facts.cards {
            let uuid = GpuUuid::from(facts.uuid.as_str());
            let mut card = state.standing.cards.remove(&uuid).unwrap_or_default();
            let wanted = state.standing.wanted.get(&uuid);
            if !state.busy.contains(&uuid) {
                let given_up = card.given_up.is_some();
                card = step(state, &uuid, &card, wanted, &occupants);
                if card.given_up.is_some() && !given_up {
                    count(&self.metrics.switches, "given-up");
                }
                let rests = state
                    .failures
                    .get(&uuid)
                    .is_some_and(|f| f.again > Instant::now());
                let todo = match transition::todo(&card) {
                    Todo::Nothing => None,
                    Todo::Leave(mode, to) => Some((mode.clone(), Some(to.clone()))),
                    Todo::Enter(mode) => Some((mode.clone(), None)),
                };
                if let Some((mode, to)) = todo.filter(|_| !rests) {
                    let card = facts.clone();
                    work.push(Work { card, mode, to });
                }
            }
            state.standing.cards.insert(uuid, card);
        }
        let resources = units::resources(&published);
        state.standing.offered.extend(resources.iter().cloned());
        match state.store(&self.path) {
            Ok(changed) => self.publish(state, &occupants, &resources, changed),
            Err(error) => {
                tracing::error!(%error, "nothing is changed before it is stored");
                return Vec::new();
            }
        }
        drop(store);
        let begun = work
            .iter()
            .map(|work| GpuUuid::from(work.card.uuid.as_str()));
        state.busy.extend(begun);
        work
    }

    fn read(&self, state: &mut State, node: Option<&Seen>, facts: &aliquot_nvml::Inventory) {
        let Some(path) = &self.source else {
            return state.learn(None, &BTreeMap::new(), facts, &self.defaults);
        };
        let Some(node) = node else { return };
        match source::read(path) {
            // One that was there and is gone is no wish.
            Ok(None) if state.standing.profile.is_some() => {
                state.fault = Some(Fault {
                    reason: "ConfigurationMissing",
                    text: format!("{} has no configuration", path.display()),
                });
            }
            Ok(text) => {
                state.hash = text.as_deref().map(source::hash);
                state.learn(text.as_deref(), &node.all_labels, facts, &self.defaults);
            }
            Err(text) => {
                let reason = "ConfigurationBroken";
                state.fault = Some(Fault { reason, text });
            }
        }
    }

    /// Who is on each of these cards. A card is missing while that is not known.
    fn occupants(
        &self,
        concerned: &BTreeSet<GpuUuid>,
        node: &crate::inventory::Node,
        store: &Store,
    ) -> BTreeMap<GpuUuid, Occupants> {
        let pods = self.prestart.pods.in_order();
        if !self.prestart.pods.synced() {
            return BTreeMap::new();
        }
        let shares: Vec<Arc<Accepted>> = store.shared().cloned().collect();
        let departed = collect::departed(&pods, store.known());
        let alive = host::alive(std::path::Path::new("/proc"), &departed);
        let (Ok(alive), Ok(entries)) = (alive, self.prestart.entries()) else {
            tracing::warn!("who is on the cards is not known; none changes");
            return BTreeMap::new();
        };
        // Not those that are published: housekeeping may not have looked yet.
        let foreign = collect::foreign(&entries, &pods, &node.booked_as());
        let unclear = store.damaged().keys().filter(|uid| {
            let pod = self.prestart.pods.get(uid);
            match pod.filter(|pod| pod.phase != Phase::Ended) {
                Some(pod) => pod.uses().is_none(),
                None => alive.contains(*uid),
            }
        });
        let known = Holders {
            foreign: &foreign,
            inventory: &node.inventory,
            pods: &pods,
            shares: &shares,
            unclear: unclear.count(),
            alive: &alive,
            hamis: &hami::holders(&entries, &pods),
        };
        let on = |uuid: &GpuUuid| (uuid.clone(), occupants::on(uuid, known));
        concerned.iter().map(on).collect()
    }

    /// One step on one card. Blocks.
    fn work(&self, work: &Work) -> Result<(), Hindrance> {
        let switch = self.prestart.modes.switch(&work.mode);
        let done = if let Some(to) = &work.to {
            fail_point::at(Point::BeforeLeave);
            let done = switch.leave(&work.card, &work.mode, to);
            fail_point::at(Point::AfterLeave);
            done
        } else {
            fail_point::at(Point::BeforeEnter);
            let done = switch.enter(&work.card, &work.mode);
            fail_point::at(Point::AfterEnter);
            done
        };
        if done.is_ok()
            && let Err(error) = self.cards.reread()
        {
            tracing::warn!(%error, "the cards were not read after a switch");
        }
        done.map_err(Hindrance::from)
    }

    fn ended(&self, state: &mut State, (uuid, result): Ended) {
        state.busy.remove(&uuid);
        let Some(card) = state.standing.cards.get_mut(&uuid) else {
            return;
        };
        match result {
            Ok(()) => {
                *card = transition::done(card);
                state.failures.remove(&uuid);
                if card.change.is_none() {
                    count(&self.metrics.switches, "done");
                }
            }
            Err(why) => {
                tracing::warn!(%uuid, ?why, "a card did not change");
                let waits = matches!(why, Hindrance::Waits(_));
                count(
                    &self.metrics.switches,
                    if waits { "waits" } else { "failed" },
                );
                let failure = state.failures.entry(uuid).or_insert_with(Failure::none);
                *card = failure.once_more(card, why);
            }
        }
    }
}

/// The card after this look.
fn step(
    state: &State,
    uuid: &GpuUuid,
    card: &Card,
    wanted: Option<&Mode>,
    occupants: &BTreeMap<GpuUuid, Occupants>,
) -> Card {
    let mut card = card.clone();
    loop {
        let to = card.change.as_ref().map(|change| &change.to).or(wanted);
        let free = occupants
            .get(uuid)
            .zip(to)
            .is_some_and(|(there, to)| occupants::may_stay(there, card.mode.as_ref(), to));
        let closed = state.closed.get(uuid);
        let see = Situation {
            wanted,
            known: occupants.contains_key(uuid),
            free,
            closed: closed.is_some_and(|since| since.elapsed() >= SETTLED),
            timeout: state.standing.transition.timeout.map(|Seconds(s)| s),
            now: steady(),
        };
        let next = transition::next(&card, &see);
        if next == card {
            return next;
        }
        card = next;
    }
}
