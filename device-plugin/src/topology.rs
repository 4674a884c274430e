//! The kubelet's Topology Manager: which policy it has, and what seats carry for it.
//!
//! Source: Kubernetes, "Control Topology Management Policies on a node".
//! Fed by: the flag, or the kubelet's configuration file, which is looked at again and
//! again: the kubelet reads it only at its start, and its next start may be tomorrow.
//! Must not: ask the API server for the kubelet's configuration; that needs a right to
//! all of the node's API.

use std::path::{Path, PathBuf};
use std::time::Duration;

use aliquot_core::inventory::{Gpu, Scope};
use clap::ValueEnum;
use serde::Deserialize;
use thiserror::Error;
use tokio_util::sync::CancellationToken;

use crate::inventory::Published;
use crate::proto::v1beta1::{NumaNode, TopologyInfo};

/// A look at the configuration.
const EVERY: Duration = Duration::from_secs(5);

/// The policy, or where it is read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Policy {
    /// As the kubelet's configuration says.
    #[default]
    Auto,
    /// No alignment.
    None,
    /// Aligned where that is possible.
    BestEffort,
    /// Refused where it is not.
    Restricted,
    /// Refused unless all is on one NUMA node.
    SingleNumaNode,
}

/// Why the configuration tells nothing.
#[derive(Debug, Error)]
pub enum PolicyError {
    /// It cannot be read.
    #[error("cannot read the kubelet's configuration {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// It is no configuration.
    #[error("cannot read the kubelet's configuration {}: {source}", path.display())]
    Yaml {
        /// The file.
        path: PathBuf,
        /// What the reader found.
        source: Box<serde_saphyr::Error>,
    },
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Configuration {
    topology_manager_policy: Option<String>,
    topology_manager_scope: Option<String>,
}

/// What the file says; `none`, container by container, where it says nothing or is
/// not there.
pub fn configured(path: &Path) -> Result<(String, Scope), PolicyError> {
    let text = match std::fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            return Ok((none(), Scope::Container));
        }
        Err(source) => {
            let path = path.to_owned();
            return Err(PolicyError::Read { path, source });
        }
    };
    let found: Result<Configuration, _> = serde_saphyr::from_str(&text);
    let found = found.map_err(|source| PolicyError::Yaml {
        path: path.to_owned(),
        source: Box::new(source),
    })?;
    let policy = found.topology_manager_policy;
    let policy = policy.filter(|policy| !policy.is_empty());
    let scope = match found.topology_manager_scope.as_deref() {
        Some("pod") => Scope::Pod,
        _ => Scope::Container,
    };
    Ok((policy.unwrap_or_else(none), scope))
}

fn none() -> String {
    "none".to_owned()
}

/// Keeps the published policy at what the kubelet has, until `stop`.
pub async fn keep(policy: Policy, file: PathBuf, published: Published, stop: CancellationToken) {
    let mut said = String::new();
    while !stop.is_cancelled() {
        look(policy, &file, &published, &mut said);
        tokio::select! {
            () = stop.cancelled() => {}
            () = tokio::time::sleep(EVERY) => {}
        }
    }
}

/// One look. What cannot be read changes nothing, and is told once.
pub fn look(policy: Policy, file: &Path, published: &Published, said: &mut String) {
    let found = match policy {
        Policy::Auto => configured(file),
        other => {
            let name = other.to_possible_value();
            let name = name.map_or_else(none, |value| value.get_name().to_owned());
            let scope = configured(file).map_or(Scope::Container, |(_, scope)| scope);
            Ok((name, scope))
        }
    };
    match found {
        Ok((found, scope)) => {
            said.clear();
            published.topology(&found, scope);
        }
        Err(error) => {
            let error = error.to_string();
            if *said != error {
                tracing::warn!(error, "the kubelet's topology policy stays as it was known");
                *said = error;
            }
        }
    }
}

/// What the unit's seats carry: its NUMA node where the kubelet aligns by it, nothing
/// where it does not; the kubelet would else prefer seats of other cards than the
/// scheduler booked.
pub fn of_seat(unit: &Gpu, policy: &str) -> Option<TopologyInfo> {
    let aligns = matches!(policy, "best-effort" | "restricted" | "single-numa-node");
    let id = i64::from(unit.numa.filter(|_| aligns)?);
    let nodes = vec![NumaNode { id }];
    Some(TopologyInfo { nodes })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{RESOURCE, arrangement, facts};
    use crate::units::seats;

    #[test]
    fn the_policy_is_what_the_kubelets_configuration_says() {
        let room = tempfile::tempdir().expect("tempdir");
        let file = room.path().join("config.yaml");
        let check = |text: &str, expected: &str| {
            std::fs::write(&file, text).expect("written");
            let found = configured(&file).map(|(policy, _)| policy);
            let found = found.unwrap_or_else(|error| error.to_string());
            assert!(found.contains(expected), "{text:?}: {found}");
        };
        let nothing = ("none".to_owned(), Scope::Container);
        assert_eq!(configured(&file).expect("absent"), nothing);
        check("kind: KubeletConfiguration\nport: 10250\n", "none");
        check("topologyManagerPolicy: restricted\nport: 1\n", "restricted");
        check(
            r#"{"topologyManagerPolicy": "single-numa-node"}"#,
            "single-numa-node",
        );
        check("topologyManagerPolicy: \"\"\n", "none");
        check("topologyManagerPolicy: [1]\n", "config.yaml");
    }

    #[test]
    fn the_scope_of_the_topology_manager_was_not_read() {
        let room = tempfile::tempdir().expect("tempdir");
        let file = room.path().join("config.yaml");
        let published = Published::new(facts(&["GPU-a"]), Vec::new(), arrangement(&["GPU-a"]));
        let check = |policy: Policy, text: &str, scope: Scope| {
            std::fs::write(&file, text).expect("written");
            look(policy, &file, &published, &mut String::new());
            assert_eq!(published.get().inventory.topology_scope, scope, "{text}");
        };
        let pod = "topologyManagerPolicy: single-numa-node\ntopologyManagerScope: pod\n";
        check(Policy::Auto, pod, Scope::Pod);
        check(
            Policy::Auto,
            "topologyManagerScope: container\n",
            Scope::Container,
        );
        check(Policy::Restricted, pod, Scope::Pod);
        check(Policy::Restricted, "port: [", Scope::Container);
    }

    #[test]
    fn mig_16_every_seat_carries_its_numa_node_where_the_kubelet_aligns() {
        let mut facts = facts(&["GPU-a", "GPU-b", "GPU-c"]);
        facts.cards[0].numa = Some(0);
        facts.cards[1].numa = Some(1);
        let arrangement = arrangement(&["GPU-a", "GPU-b", "GPU-c"]);
        let published = Published::new(facts, Vec::new(), arrangement);
        let check = |policy: Policy, expected: [Option<i64>; 3]| {
            look(
                policy,
                Path::new("/nonexistent"),
                &published,
                &mut String::new(),
            );
            let seats = seats(&published.get(), RESOURCE);
            let seats = seats.iter().filter(|seat| seat.id.ends_with("::0"));
            let numa = seats.map(|seat| Some(seat.topology.as_ref()?.nodes[0].id));
            assert_eq!(numa.collect::<Vec<_>>(), expected, "{policy:?}");
        };
        check(Policy::Auto, [None; 3]);
        check(Policy::SingleNumaNode, [Some(0), Some(1), None]);
        assert_eq!(
            published.get().inventory.topology_policy,
            "single-numa-node"
        );
        check(Policy::Restricted, [Some(0), Some(1), None]);
        check(Policy::None, [None; 3]);
    }

    #[test]
    fn a_configuration_that_cannot_be_read_keeps_the_policy() {
        let room = tempfile::tempdir().expect("tempdir");
        let file = room.path().join("config.yaml");
        let published = Published::new(facts(&["GPU-a"]), Vec::new(), arrangement(&["GPU-a"]));
        let mut said = String::new();
        std::fs::write(&file, "topologyManagerPolicy: restricted\n").expect("written");
        look(Policy::Auto, &file, &published, &mut said);
        std::fs::write(&file, "topologyManagerPolicy: [").expect("written");
        look(Policy::Auto, &file, &published, &mut said);
        assert_eq!(published.get().inventory.topology_policy, "restricted");
        assert!(said.contains("config.yaml"), "{said}");
    }
}
