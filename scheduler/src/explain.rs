//! `GET /explain/<namespace>/<pod>` and `GET /top`: the books as answers to
//! people, written node by node from a snapshot.
//!
//! Fed by: the books; a pod that does not wait is fetched.
//! Must not: judge (core does), hold a lock while it writes, or say when
//! something becomes free.

use std::collections::HashMap;
use std::sync::Arc;

use aliquot_core::answer::{self, Asked, Booked, Head, Tail};
use aliquot_core::cluster::NodeSet;
use aliquot_core::explain::NodeAnswer;
use aliquot_core::fit::Policies;
use aliquot_core::ledger::{Booking, Held};
use aliquot_core::quota::Headroom;
use aliquot_core::top::NodeTop;
use aliquot_core::{Cluster, Demand, NodeState, PodUid};
use aliquot_k8s::pod;
use aliquot_serve::{Readiness, body};
use axum::Router;
use axum::extract::{Path, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use k8s_openapi::api::core::v1::Pod;
use serde::Serialize;
use tokio::time::Instant;

use crate::bind::Binder;
use crate::books::Books;
use crate::leader::Leader;
use crate::waiting::{Told, Waiting, waiting};

/// What is asked.
#[derive(Clone)]
pub struct Explain {
    /// The books.
    pub books: Arc<Books>,
    /// Fetches pods that do not wait.
    pub binder: Arc<Binder>,
    /// Whether kube-scheduler asks this replica.
    pub leader: Leader,
    /// Whether the books can be believed.
    pub readiness: Readiness,
}

impl Books {
    /// The waiting pod of this name.
    fn waiting_as(&self, namespace: &str, name: &str) -> Option<Waiting> {
        let all = self.waits.lock();
        let named = |w: &&Waiting| w.pod.name == name && w.pod.namespace == namespace;
        all.values().find(named).cloned()
    }
}

/// Why there is no explanation.
pub(crate) type No = (StatusCode, String);

/// The routes.
pub fn router(explain: Explain) -> Router {
    Router::new()
        .route("/explain/{namespace}/{pod}", get(pod_answer))
        .route("/top", get(top))
        .with_state(explain)
}

async fn pod_answer(
    State(explain): State<Explain>,
    Path((namespace, name)): Path<(String, String)>,
) -> Result<Response, No> {
    explain.ready()?;
    let waiting = match explain.books.waiting_as(&namespace, &name) {
        Some(waiting) => waiting,
        None => match explain.fetch(&namespace, &name).await? {
            Found::Waits(waiting) => *waiting,
            Found::Bound(head) => return Ok(json(head.as_ref(), std::iter::empty())),
        },
    };
    let uid: PodUid = waiting.pod.uid.as_str().into();
    let booking = explain.books.read(|ledger| ledger.booking(&uid).cloned());
    let asks = answer::asked(&waiting.demand);
    let mut head = explain.head(&namespace, &name, &uid, asks);
    head.refused = waiting.told.as_ref().map(|told| ago(told, Instant::now()));
    if let Some(booking) = booking {
        head.booked = Some(booked(&booking));
        return Ok(json(&head, std::iter::empty()));
    }
    Ok(json(&head, Nodes::of(explain.books.clone(), &uid, waiting)))
}

async fn top(State(explain): State<Explain>) -> Result<Response, No> {
    #[derive(Serialize)]
    struct Head {
        default_cores: aliquot_core::Percent,
        leads: bool,
    }
    explain.ready()?;
    let cluster = explain.books.snapshot();
    let default_cores = explain.books.settings().defaults.cores;
    let slots = by_name(&cluster);
    let lines = slots.into_iter().filter_map(move |slot| {
        let (name, node) = cluster.named(slot)?;
        Some(Piece::Node(text(&NodeTop::of(name, node, default_cores)?)))
    });
    let leads = explain.leader.fault().is_none();
    let head = Head {
        default_cores,
        leads,
    };
    Ok(json(&head, lines))
}

enum Found {
    Waits(Box<Waiting>),
    Bound(Box<Head>),
}

impl Explain {
    pub(crate) fn ready(&self) -> Result<(), No> {
        let reasons = self.readiness.reasons();
        if reasons.is_empty() {
            return Ok(());
        }
        let why = format!("aliquot-scheduler is not ready: {}", reasons.join(", "));
        Err((StatusCode::SERVICE_UNAVAILABLE, why))
    }

    fn head(&self, namespace: &str, name: &str, uid: &PodUid, asks: Vec<Asked>) -> Head {
        Head {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            uid: uid.clone(),
            leads: self.leader.fault().is_none(),
            asks,
            refused: None,
            booked: None,
        }
    }

    /// A pod that the books do not have among those that wait.
    async fn fetch(&self, namespace: &str, name: &str) -> Result<Found, No> {
        let found = self.binder.find(namespace, name).await;
        let found = found.map_err(|error| {
            let why = format!("cannot get pod {namespace}/{name}: {error}");
            (StatusCode::BAD_GATEWAY, why)
        })?;
        let none = || {
            let why = format!("there is no pod {name} in namespace {namespace}");
            (StatusCode::NOT_FOUND, why)
        };
        self.judge(namespace, name, &found.ok_or_else(none)?)
    }

    fn judge(&self, namespace: &str, name: &str, pod: &Pod) -> Result<Found, No> {
        let conflict = |why: &str| {
            let why = format!("pod {namespace}/{name} {why}");
            Err((StatusCode::CONFLICT, why))
        };
        let demand = match pod::demand(pod, self.books.settings()) {
            Ok(demand) => demand,
            Err(error) => {
                return conflict(&format!("has a GPU request that cannot be read: {error}"));
            }
        };
        if pod::ended(pod) {
            return conflict("has ended and holds nothing");
        }
        let asks = answer::asked(&demand);
        match (pod::node(pod), pod::held(pod, self.books.settings())) {
            (None, _) if !demand.asks() => conflict("asks for no GPU"),
            (None, _) => Ok(Found::Waits(Box::new(waiting(pod, demand, false)))),
            (Some(node), Some((_, held))) => {
                let booking = Booking {
                    node,
                    namespace: namespace.into(),
                    held,
                    requests: demand.requests(),
                    confirmed: true,
                };
                let mut answer = self.head(namespace, name, &pod::uid(pod), asks);
                answer.booked = Some(booked(&booking));
                Ok(Found::Bound(Box::new(answer)))
            }
            (Some(node), None) if demand.asks() => conflict(&format!(
                "asks for a share and is on node {node} without one: Aliquot did not place it"
            )),
            (Some(node), None) => conflict(&format!("asks for no GPU; it is on node {node}")),
        }
    }
}

fn ago(told: &Told, now: Instant) -> answer::Told {
    let seconds = |then| now.saturating_duration_since(then).as_secs_f64();
    answer::Told {
        times: told.times,
        first_seconds_ago: seconds(told.first),
        last_seconds_ago: seconds(told.last),
        text: told.text.clone(),
    }
}

fn booked(booking: &Booking) -> Booked {
    let gpus = match &booking.held {
        Held::Uses(held) => Some(held.iter().map(|(gpu, used)| (gpu.clone(), (*used).into()))),
        Held::Unreadable => None,
    };
    Booked {
        node: booking.node.clone(),
        confirmed: booking.confirmed,
        gpus: gpus.map(Iterator::collect),
    }
}

fn by_name(cluster: &Cluster) -> Vec<usize> {
    let mut slots: Vec<_> = cluster.iter().map(|(slot, name, _)| (name, slot)).collect();
    slots.sort_unstable();
    slots.into_iter().map(|(_, slot)| slot).collect()
}

/// The nodes' answers, one after the other, and at last all together.
struct Nodes {
    books: Arc<Books>,
    cluster: Cluster,
    slots: std::vec::IntoIter<usize>,
    demand: Demand,
    policies: Arc<Policies>,
    offered: NodeSet,
    /// Nodes with those who are about to go there.
    crowds: HashMap<usize, NodeState>,
    /// The node on which a share is kept for this pod, without it.
    own: Option<(usize, NodeState)>,
    /// What the quotas of the pod's namespace leave.
    headroom: Option<Headroom>,
    tail: Option<Tail>,
}

impl Nodes {
    fn of(books: Arc<Books>, uid: &PodUid, waiting: Waiting) -> Self {
        let namespace = waiting.pod.namespace.as_str();
        let (cluster, own, headroom) = books.read(|ledger| {
            let headroom = ledger.headroom(namespace);
            (ledger.cluster().clone(), ledger.own(uid), headroom)
        });
        let mut crowds: HashMap<usize, NodeState> = HashMap::new();
        for note in books.claims.lock().others(uid, Instant::now()) {
            if let Some(node) = cluster.at(note.slot) {
                let crowd = crowds.entry(note.slot);
                let crowd = crowd.or_insert_with(|| (**node).clone());
                *crowd = note.on(crowd);
            }
        }
        Self {
            slots: by_name(&cluster).into_iter(),
            cluster,
            demand: waiting.demand,
            policies: books.policies(),
            books,
            offered: waiting.offered,
            crowds,
            own,
            headroom,
            tail: Some(Tail::default()),
        }
    }
}

impl Iterator for Nodes {
    type Item = Piece;

    fn next(&mut self) -> Option<Piece> {
        let Some(slot) = self.slots.next() else {
            return Some(Piece::Tail(text(&self.tail.take()?)));
        };
        let (name, node) = self.cluster.named(slot)?;
        let own = self.own.as_ref().filter(|(own, _)| *own == slot);
        let node = own.map_or(&**node, |(_, state)| state);
        let (offered, crowd) = (self.offered.contains(slot), self.crowds.get(&slot));
        let (demand, policies) = (&self.demand, &self.policies);
        let left = self.headroom.as_ref();
        let (mut answer, refusal) =
            NodeAnswer::of(name, node, demand, policies, offered, crowd, left);
        self.books.name_holders(&mut answer, demand);
        if let Some(tail) = &mut self.tail {
            tail.add(&answer, refusal.as_ref());
        }
        Some(Piece::Node(text(&answer)))
    }
}

/// JSON of a part of an answer.
enum Piece {
    Node(String),
    /// An object, whose fields follow the nodes.
    Tail(String),
}

fn text(value: &impl Serialize) -> String {
    // Plain types without maps of odd keys: cannot fail.
    serde_json::to_string(value).unwrap_or_default()
}

/// One object: the fields of `head`, `nodes`, and those of the tail.
fn json<I>(head: &impl Serialize, pieces: I) -> Response
where
    I: Iterator<Item = Piece> + Send + 'static,
{
    let head = text(head);
    let fields = head.strip_suffix('}').unwrap_or_default();
    let open = format!("{fields},\"nodes\":[");
    let mut comma = "";
    let mut tail = String::from("]}");
    let mut pieces = pieces.fuse();
    let mut ended = false;
    let pieces = std::iter::from_fn(move || match pieces.next() {
        Some(Piece::Node(node)) => Some(format!("{}{node}", std::mem::replace(&mut comma, ",\n"))),
        Some(Piece::Tail(last)) => {
            tail = format!("],{}", last.strip_prefix('{').unwrap_or("}"));
            Some(String::new())
        }
        None => (!std::mem::replace(&mut ended, true)).then(|| std::mem::take(&mut tail)),
    });
    let headers = [(header::CONTENT_TYPE, "application/json")];
    (headers, body::pieces(std::iter::once(open).chain(pieces))).into_response()
}

#[cfg(test)]
#[path = "explain_tests.rs"]
mod tests;
