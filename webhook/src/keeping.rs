//! When the keeper makes a pass: on a timer, and when one of its objects changes.
//!
//! Fed by: watches of the Secret and of the configuration, by name.
//! Must not: decide what a pass does.

use std::future::{Ready, ready};
use std::pin::pin;
use std::time::Duration;

use futures::{Stream, StreamExt, stream};
use jiff::Timestamp;
use k8s_openapi::api::admissionregistration::v1::MutatingWebhookConfiguration;
use k8s_openapi::api::core::v1::Secret;
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Client};
use tokio_util::sync::CancellationToken;

use crate::certificates::Lifetimes;
use crate::configuration::NAME;
use crate::keeper::{Keeper, SECRET};

/// Longest time between two passes, whatever the watches say.
const LONGEST: Duration = Duration::from_secs(30);
/// After a pass that failed.
const RETRY: Duration = Duration::from_secs(2);
/// A burst of changes is answered by one pass.
const SETTLE: Duration = Duration::from_millis(50);

/// Passes in one certificate's life, so that renewal is never late.
const PASSES_A_LIFE: u32 = 24;

/// Makes passes until `stop` is cancelled.
pub async fn keep(
    mut keeper: Keeper,
    client: Client,
    namespace: &str,
    lifetimes: &Lifetimes,
    stop: CancellationToken,
) {
    let interval = interval(lifetimes);
    let mut changes = pin!(changes(client, namespace));
    loop {
        let wait = match keeper.pass(Timestamp::now()).await {
            Ok(()) => interval,
            Err(error) => {
                let cause = std::error::Error::source(&error).map(ToString::to_string);
                tracing::warn!(%error, cause, "certificates or configuration not kept");
                interval.min(RETRY)
            }
        };
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep(wait) => {}
            () = async {
                changes.next().await;
                tokio::time::sleep(SETTLE).await;
            } => {}
        }
    }
}

fn interval(lifetimes: &Lifetimes) -> Duration {
    let shortest = lifetimes.authority.min(lifetimes.leaf).unsigned_abs();
    (shortest / PASSES_A_LIFE).min(LONGEST)
}

/// One item for each change of either object. Never ends: a watch that breaks
/// is begun again with back-off.
fn changes(client: Client, namespace: &str) -> impl Stream<Item = ()> + use<> {
    let secrets = Api::<Secret>::namespaced(client.clone(), namespace);
    let configurations = Api::<MutatingWebhookConfiguration>::all(client);
    let secret = watcher::watch_object(secrets, SECRET).default_backoff();
    let configuration = watcher::watch_object(configurations, NAME).default_backoff();
    stream::select(
        secret.filter_map(|seen| heard(SECRET, seen.as_ref().err())),
        configuration.filter_map(|seen| heard(NAME, seen.as_ref().err())),
    )
}

fn heard(object: &'static str, error: Option<&watcher::Error>) -> Ready<Option<()>> {
    let heard = error.is_none();
    if let Some(error) = error {
        tracing::debug!(object, %error, "watch interrupted");
    }
    ready(heard.then_some(()))
}

#[cfg(test)]
mod tests {
    use jiff::SignedDuration;

    use super::*;

    #[test]
    fn passes_are_frequent_enough_for_the_shortest_life() {
        for (authority, leaf, expected) in [
            (8760 * 3600, 720 * 3600, LONGEST),
            (600, 48, Duration::from_secs(2)),
            (24, 600, Duration::from_secs(1)),
        ] {
            let lifetimes = Lifetimes {
                authority: SignedDuration::from_secs(authority),
                leaf: SignedDuration::from_secs(leaf),
            };
            assert_eq!(interval(&lifetimes), expected);
        }
    }
}
