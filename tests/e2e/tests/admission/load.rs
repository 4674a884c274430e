//! Pods created at a fixed rate: those with a share, which the webhook reviews, and a tenth as many
//! without. All are dry runs, which are reviewed alike.
//!
//! A creation counts as refused only if it is never admitted, and as admitted only if it was
//! reviewed.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use aliquot_cluster::until;
use aliquot_cluster::wait::{OrNotYet as _, eventually, give_up};
use aliquot_e2e::pods::simple;
use anyhow::{Context as _, Result, bail};
use k8s_openapi::api::core::v1::Pod;
use kube::api::PostParams;
use kube::{Api, Client};
use parking_lot::Mutex;
use tokio::sync::Semaphore;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{MissedTickBehavior, interval};

use crate::replicas::ReplicaEnd;

const PATIENCE: Duration = Duration::from_mins(2);
/// How long a creation is retried, as a controller does.
const AGAIN: Duration = Duration::from_secs(20);
/// Open at a time; more than this means that nothing is answered.
const OPEN: usize = 512;
/// Number of error texts that are retained.
const TEXTS: usize = 5;

/// What a pod requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PodKind {
    Share,
    Nothing,
}

/// Creations of one kind: milliseconds of those that were admitted at once, sorted at the end.
#[derive(Debug, Default)]
pub(crate) struct Created {
    pub(crate) count: usize,
    took: Vec<f64>,
}

impl Created {
    pub(crate) fn at(&self, percent: usize) -> f64 {
        let last = self.took.len().saturating_sub(1);
        self.took
            .get(last * percent / 100)
            .copied()
            .unwrap_or(f64::INFINITY)
    }
}

#[derive(Debug, Default)]
pub(crate) struct LoadResult {
    kinds: [Created; 2],
    /// Ends of replicas, in their order.
    ends: Vec<ReplicaEnd>,
    /// Failed creations by the preceding end.
    failed: Vec<ReplicaEnd>,
    /// Further tries of those.
    pub(crate) tries: usize,
    pub(crate) texts: Vec<String>,
    /// Never admitted.
    pub(crate) refused: Vec<String>,
    /// Failures of another kind.
    pub(crate) strange: Vec<String>,
    pub(crate) took: Duration,
}

impl LoadResult {
    pub(crate) fn of(&self, kind: PodKind) -> &Created {
        &self.kinds[usize::from(kind == PodKind::Nothing)]
    }

    pub(crate) fn ended(&self, how: ReplicaEnd) -> usize {
        self.ends.iter().filter(|end| **end == how).count()
    }

    pub(crate) fn again(&self, how: ReplicaEnd) -> usize {
        self.failed.iter().filter(|end| **end == how).count()
    }
}

/// Shared by all creations.
struct Shared {
    pods: Api<Pod>,
    done: Mutex<LoadResult>,
    made: AtomicU64,
    open: Semaphore,
}

pub(crate) struct Load {
    shared: Arc<Shared>,
    began: Instant,
    streams: Vec<JoinHandle<JoinSet<()>>>,
    stop: tokio::sync::watch::Sender<bool>,
}

impl Load {
    /// `rate` pods with a share each second.
    pub(crate) fn start(client: Client, rate: u32) -> Self {
        let shared = Arc::new(Shared {
            pods: Api::namespaced(client, "default"),
            done: Mutex::default(),
            made: AtomicU64::new(0),
            open: Semaphore::new(OPEN),
        });
        let (stop, stopped) = tokio::sync::watch::channel(false);
        let second = Duration::from_secs(1);
        let streams = [
            (PodKind::Share, second / rate),
            (PodKind::Nothing, second * 10 / rate),
        ];
        let streams = streams.map(|(kind, every)| {
            let (shared, mut stopped) = (shared.clone(), stopped.clone());
            tokio::spawn(async move {
                let mut ticks = interval(every);
                ticks.set_missed_tick_behavior(MissedTickBehavior::Burst);
                let mut running = JoinSet::new();
                loop {
                    tokio::select! {
                        _ = stopped.changed() => return running,
                        _ = ticks.tick() => {}
                    }
                    running.spawn(create(shared.clone(), kind));
                    while running.try_join_next().is_some() {}
                }
            })
        });
        Self {
            shared,
            began: Instant::now(),
            streams: streams.into(),
            stop,
        }
    }

    /// Waits until so many further pods with a share were created.
    pub(crate) async fn after(&self, further: u64) -> Result<()> {
        let goal = self.shared.made.load(Ordering::Relaxed) + further;
        eventually(PATIENCE, "pods to be created", || async {
            let made = self.shared.made.load(Ordering::Relaxed);
            until!(made >= goal, "{made} of {goal}");
            Ok(Some(()))
        })
        .await
    }

    /// A replica ends now: later failures count for it.
    pub(crate) fn charge_to(&self, how: ReplicaEnd) {
        self.shared.done.lock().ends.push(how);
    }

    /// How many replicas have ended.
    pub(crate) fn ends(&self) -> usize {
        self.shared.done.lock().ends.len()
    }

    /// Ends it, and waits for the last answers.
    pub(crate) async fn finish(self) -> Result<LoadResult> {
        self.stop.send(true)?;
        for stream in self.streams {
            let mut running = stream.await?;
            while let Some(ended) = running.join_next().await {
                ended?;
            }
        }
        let mut done = std::mem::take(&mut *self.shared.done.lock());
        done.took = self.began.elapsed();
        for kind in &mut done.kinds {
            kind.took.sort_by(f64::total_cmp);
        }
        Ok(done)
    }
}

/// One pod, retried until it is admitted.
async fn create(shared: Arc<Shared>, kind: PodKind) {
    let Ok(_one) = shared.open.acquire().await else {
        return;
    };
    let began = Instant::now();
    let first = post(&shared.pods, kind).await;
    let took = began.elapsed().as_secs_f64() * 1000.0;
    {
        let mut done = shared.done.lock();
        let created = &mut done.kinds[usize::from(kind == PodKind::Nothing)];
        created.count += 1;
        if first.is_ok() {
            created.took.push(took);
        }
        if kind == PodKind::Share {
            shared.made.fetch_add(1, Ordering::Relaxed);
        }
    }
    let Err(error) = first else {
        return;
    };
    let text = format!("{error:#}");
    let unanswered = text.contains("failed calling webhook");
    {
        let mut done = shared.done.lock();
        if !unanswered || kind == PodKind::Nothing {
            done.strange.push(format!("{kind:?}: {text}"));
            return;
        }
        // Before the first end both are ready: nothing may fail then.
        let end = done.ends.last().copied().unwrap_or(ReplicaEnd::Terminated);
        done.failed.push(end);
        if done.texts.len() < TEXTS {
            done.texts.push(text);
        }
    }
    let admitted = eventually(AGAIN, "the pod to be admitted", || async {
        shared.done.lock().tries += 1;
        match post(&shared.pods, kind).await {
            Err(error) if !format!("{error:#}").contains("failed calling webhook") => {
                Err(give_up(format!("{error:#}")))
            }
            other => other.or_not_yet().map(Some),
        }
    });
    if let Err(error) = admitted.await {
        shared.done.lock().refused.push(format!("{error:#}"));
    }
}

/// Creates it as a dry run, and checks which scheduler would place it.
async fn post(pods: &Api<Pod>, kind: PodKind) -> Result<()> {
    let (limits, scheduler): (&[_], _) = match kind {
        PodKind::Share => (&[("gpu", "1"), ("gpumem", "3000")], "aliquot-scheduler"),
        PodKind::Nothing => (&[], "default-scheduler"),
    };
    let mut pod = simple("default", "trial", limits);
    if let Some(metadata) = pod["metadata"].as_object_mut() {
        metadata.remove("name");
        metadata.insert("generateName".to_owned(), "trial-".into());
    }
    let pod = serde_json::from_value(pod)?;
    let dry_run = PostParams {
        dry_run: true,
        ..PostParams::default()
    };
    let made = pods.create(&dry_run, &pod).await?;
    let given = made.spec.context("a spec")?.scheduler_name;
    if given.as_deref() != Some(scheduler) {
        bail!("its scheduler is {given:?}, not {scheduler}");
    }
    Ok(())
}
