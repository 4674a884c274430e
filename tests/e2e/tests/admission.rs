//! Two replicas of the webhook behind a Service: one of them is killed or terminated again and
//! again, at random, certificates rotate, and pods are created all the time.
//!
//! `ALIQUOT_ADMISSION=long` is the form of docs/SPECIFICATION.md (`make admission`), for
//! `ALIQUOT_SECONDS` if that is set.

#[path = "admission/figures.rs"]
mod figures;
#[path = "admission/load.rs"]
mod load;
#[path = "admission/replicas.rs"]
mod replicas;

use std::sync::Arc;
use std::time::{Duration, Instant};

use aliquot_e2e::figures::print_line;
use aliquot_e2e::stack::{Kind, Stack};
use anyhow::{Context as _, Result, ensure};
use figures::{ApiServer, Reviews};
use load::{Load, PodKind};
use replicas::{ReplicaEnd, Replicas};

/// How much, how long, and how soon things change.
struct AdmissionLoad {
    /// Pods with a share created each second; of others a tenth of it.
    rate: u32,
    time: Duration,
    /// Lifetimes of the serving certificate and the CA; the next is issued after two thirds.
    lifetimes: [&'static str; 2],
    /// Serving certificates that both have issued at least in the end.
    certificates: f64,
    /// Replicas that end at least, however slow the machine is.
    kills: usize,
    /// Creations that may fail with each replica that is killed.
    failed: usize,
    /// Webhooks as they are shipped.
    release: bool,
}

const LONG: AdmissionLoad = AdmissionLoad {
    rate: 200,
    time: Duration::from_mins(10),
    lifetimes: ["90s", "270s"],
    certificates: 8.0,
    kills: 6,
    failed: 10,
    release: true,
};
const SHORT: AdmissionLoad = AdmissionLoad {
    rate: 40,
    time: Duration::from_secs(40),
    lifetimes: ["12s", "36s"],
    certificates: 5.0,
    kills: 3,
    failed: 20,
    release: false,
};

/// The specified time of a review, in seconds.
const PROMISED: f64 = 0.005;
/// What nothing may pass: then the API server gives up.
const GIVES_UP: Duration = Duration::from_secs(5);

async fn run(stack: &Stack, shape: &AdmissionLoad) -> Result<()> {
    let seed = std::env::var("ALIQUOT_SEED")
        .ok()
        .map_or(Ok(7), |seed| seed.parse())?;
    print_line(&format!("seed {seed} (ALIQUOT_SEED)"));
    stack.terminate(Kind::Webhook).await?;
    let mut replicas = Replicas::start(stack, shape.release, &shape.lifetimes).await?;
    let before = ApiServer::read(&stack.cluster).await?;

    let time = std::env::var("ALIQUOT_SECONDS").ok();
    let time = time.map_or(Ok(shape.time), |text| text.parse().map(Duration::from_secs))?;
    let load = Load::start(stack.cluster.admin()?, shape.rate);
    let (began, mut random) = (Instant::now(), fastrand::Rng::with_seed(seed));
    while began.elapsed() < time || load.ends() < shape.kills {
        let pause = u64::from(shape.rate) * random.u64(3..7);
        load.after(pause).await?;
        // One of each in any case.
        let how = match load.ends() {
            0 => ReplicaEnd::Killed,
            1 => ReplicaEnd::Terminated,
            _ if random.bool() => ReplicaEnd::Terminated,
            _ => ReplicaEnd::Killed,
        };
        load.charge_to(how);
        replicas.end_one(how, random.usize(0..2)).await?;
        load.after(u64::from(shape.rate)).await?;
        replicas.start_again().await?;
    }
    let load = load.finish().await?;
    let reviews = replicas.finish().await?;
    let server = ApiServer::read(&stack.cluster).await?.since(&before);
    print_figures(&load, &reviews, &server);
    check(shape, &load, &reviews, &server)
}

fn print_figures(load: &load::LoadResult, reviews: &Reviews, server: &ApiServer) {
    let (gpu, other) = (load.of(PodKind::Share), load.of(PodKind::Nothing));
    print_line(&format!(
        "{} pods with a share and {} others in {:.0} s, {} replicas terminated, {} killed with -9, {} serving certificates issued",
        gpu.count,
        other.count,
        load.took.as_secs_f64(),
        load.ended(ReplicaEnd::Terminated),
        load.ended(ReplicaEnd::Killed),
        reviews.certificates,
    ));
    print_line(&format!(
        "review in the webhook: p50 {:.2} ms, p99 {:.2} ms or less; {} reviews, those of a replica's last seconds not counted",
        reviews.at(0.5) * 1000.0,
        reviews.at(0.99) * 1000.0,
        reviews.count,
    ));
    print_line(&format!(
        "call of the webhook by the API server's own figures: mean {:.2} ms, {:.3} % within {:.0} ms; {} calls",
        server.mean() * 1000.0,
        server.within(PROMISED) * 100.0,
        PROMISED * 1000.0,
        server.count,
    ));
    for (what, one) in [("with a share", gpu), ("without", other)] {
        print_line(&format!(
            "creation of a pod {what}, as the client sees it: p50 {:.1} ms, p99 {:.1} ms, longest {:.0} ms",
            one.at(50),
            one.at(99),
            one.at(100),
        ));
    }
    for (how, word) in [
        (ReplicaEnd::Terminated, "terminated"),
        (ReplicaEnd::Killed, "killed with -9"),
    ] {
        print_line(&format!(
            "creations that had to be retried after a replica was {word}: {}",
            load.again(how)
        ));
    }
    print_line(&format!("refused for good: {}", load.refused.len()));
}

fn check(
    shape: &AdmissionLoad,
    load: &load::LoadResult,
    reviews: &Reviews,
    server: &ApiServer,
) -> Result<()> {
    let (gpu, other) = (load.of(PodKind::Share), load.of(PodKind::Nothing));
    ensure!(load.refused.is_empty(), "refused: {:?}", load.refused);
    ensure!(load.strange.is_empty(), "{:?}", load.strange);
    ensure!(
        load.again(ReplicaEnd::Terminated) == 0,
        "{} creations failed at a replica that was terminated cleanly: {:?}",
        load.again(ReplicaEnd::Terminated),
        load.texts
    );
    // A process that is killed takes the calls with it that it has not answered.
    let kills = load.ended(ReplicaEnd::Killed);
    ensure!(
        load.again(ReplicaEnd::Killed) <= shape.failed * kills.max(1),
        "{} creations failed in {kills} kills: {:?}",
        load.again(ReplicaEnd::Killed),
        load.texts
    );
    ensure!(
        reviews.certificates >= shape.certificates,
        "only {} serving certificates",
        reviews.certificates
    );
    // Others never come to the webhook: more calls than pods with a share there are not.
    let expected = gpu.count + load.tries;
    ensure!(
        reviews.count <= expected && server.count <= expected + load.again(ReplicaEnd::Killed),
        "{} reviews and {} calls for {expected} creations",
        reviews.count,
        server.count
    );
    let longest = Duration::from_secs_f64(other.at(100) / 1000.0);
    ensure!(longest < GIVES_UP, "another pod waited {longest:?}");
    ensure!(
        server.within(2.5) >= 0.99,
        "only {} of the calls were answered within 2.5 s",
        server.within(2.5)
    );
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn admits_all_pods_while_replicas_die_and_certificates_rotate() {
    let long = std::env::var("ALIQUOT_ADMISSION").is_ok_and(|form| form == "long");
    let shape = if long { LONG } else { SHORT };
    let stack = Arc::new(Box::pin(Stack::control_plane()).await.expect("a stack"));
    let ended = Box::pin(run(&stack, &shape)).await;
    ended.expect("the webhook under load");
    let stack = Arc::into_inner(stack).context("one owner").expect("one");
    stack.stop().await.expect("an orderly end");
}
