//! The policy of the kubelet's Topology Manager (Kubernetes, "Control Topology Management Policies
//! on a node").
//!
//! The policy comes from the flag or from the kubelet's configuration files, which are polled: the
//! kubelet reads them only at its start. The API server is not asked for it, because that needs
//! permission to the whole node API.

use std::path::{Path, PathBuf};
use std::time::Duration;

use aliquot_core::inventory::TopologyScope;
use clap::ValueEnum;
use serde::Deserialize;
use thiserror::Error;
use tokio_util::sync::CancellationToken;

use crate::gpus::inventory::NodePublisher;

const INTERVAL: Duration = Duration::from_secs(5);

/// The policy, or where to read it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum TopologyPolicy {
    /// As in the kubelet's configuration.
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

#[derive(Debug, Error)]
pub enum KubeletConfigError {
    #[error("cannot read the kubelet's configuration {}: {source}", path.display())]
    Read {
        path: PathBuf,
        source: std::io::Error,
    },
    #[error("cannot read the kubelet's configuration {}: {source}", path.display())]
    Yaml {
        path: PathBuf,
        source: Box<serde_saphyr::Error>,
    },
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Configuration {
    topology_manager_policy: Option<String>,
    topology_manager_scope: Option<String>,
}

/// The policy and scope in these files and in the drop-ins of these directories, of which a later one
/// overrides an earlier one; `none` and `container` where they are not set or nothing exists.
pub fn read_kubelet_config(
    paths: &[PathBuf],
) -> Result<(String, TopologyScope), KubeletConfigError> {
    let (mut policy, mut scope) = (none(), TopologyScope::Container);
    for path in paths {
        let files = if path.is_dir() {
            drop_ins(path)?
        } else {
            vec![path.clone()]
        };
        for file in files {
            let found = configuration(&file)?;
            if let Some(found) = found.topology_manager_policy {
                policy = if found.is_empty() { none() } else { found };
            }
            if let Some(found) = found.topology_manager_scope {
                scope = match found.as_str() {
                    "pod" => TopologyScope::Pod,
                    _ => TopologyScope::Container,
                };
            }
        }
    }
    Ok((policy, scope))
}

/// The files that the kubelet reads in a directory of drop-ins, in its order.
fn drop_ins(directory: &Path) -> Result<Vec<PathBuf>, KubeletConfigError> {
    let failed = |source| KubeletConfigError::Read {
        path: directory.to_owned(),
        source,
    };
    let mut paths = Vec::new();
    for entry in std::fs::read_dir(directory).map_err(failed)? {
        paths.push(entry.map_err(failed)?.path());
    }
    paths.sort();
    let mut files = Vec::new();
    for path in paths {
        if path.is_dir() {
            files.extend(drop_ins(&path)?);
        } else if path.extension().is_some_and(|ending| ending == "conf") {
            files.push(path);
        }
    }
    Ok(files)
}

/// What one file sets; nothing if it does not exist.
fn configuration(path: &Path) -> Result<Configuration, KubeletConfigError> {
    let text = match std::fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            return Ok(Configuration::default());
        }
        Err(source) => {
            let path = path.to_owned();
            return Err(KubeletConfigError::Read { path, source });
        }
    };
    let found: Result<Configuration, _> = serde_saphyr::from_str(&text);
    found.map_err(|source| KubeletConfigError::Yaml {
        path: path.to_owned(),
        source: Box::new(source),
    })
}

fn none() -> String {
    "none".to_owned()
}

/// Keeps the published policy up to date, until `stop`.
pub async fn run(
    policy: TopologyPolicy,
    files: Vec<PathBuf>,
    published: NodePublisher,
    stop: CancellationToken,
) {
    tracing::info!(?files, "reading the kubelet's configuration");
    while !stop.is_cancelled() {
        refresh(policy, &files, &published);
        tokio::select! {
            () = stop.cancelled() => {}
            () = tokio::time::sleep(INTERVAL) => {}
        }
    }
}

/// Polls once. A file that cannot be read changes nothing.
pub fn refresh(policy: TopologyPolicy, files: &[PathBuf], published: &NodePublisher) {
    let found = match policy {
        TopologyPolicy::Auto => read_kubelet_config(files),
        other => {
            let name = other.to_possible_value();
            let name = name.map_or_else(none, |value| value.get_name().to_owned());
            let scope =
                read_kubelet_config(files).map_or(TopologyScope::Container, |(_, scope)| scope);
            Ok((name, scope))
        }
    };
    match found {
        Ok((found, scope)) => published.set_topology(&found, scope),
        Err(error) => {
            tracing::warn!(%error, "cannot read the kubelet's topology policy; the last known one stays in effect");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kubelet::device_list::plugin_devices;
    use crate::testing::{RESOURCE, facts, layout_of, published};

    #[test]
    fn reads_policy_from_kubelet_configuration() {
        let dir = tempfile::tempdir().expect("tempdir");
        let file = dir.path().join("config.yaml");
        let files = [file.clone()];
        let nothing = ("none".to_owned(), TopologyScope::Container);
        assert_eq!(read_kubelet_config(&files).expect("absent"), nothing);
        let json = r#"{"topologyManagerPolicy": "single-numa-node"}"#;
        for (text, expected) in [
            ("kind: KubeletConfiguration\nport: 10250\n", "none"),
            ("topologyManagerPolicy: restricted\nport: 1\n", "restricted"),
            (json, "single-numa-node"),
            ("topologyManagerPolicy: \"\"\n", "none"),
            ("topologyManagerPolicy: [1]\n", "config.yaml"),
        ] {
            std::fs::write(&file, text).expect("written");
            let found = read_kubelet_config(&files).map(|(policy, _)| policy);
            let found = found.unwrap_or_else(|error| error.to_string());
            assert!(found.contains(expected), "{text:?}: {found}");
        }
    }

    /// In the kubelet's order: by name, a directory's files in its place, only `.conf`.
    #[test]
    fn merges_drop_ins_of_the_kubelet_configuration() {
        let dir = tempfile::tempdir().expect("tempdir");
        let (file, drop_ins) = (dir.path().join("config.json"), dir.path().join("drop-ins"));
        let put = |name: &str, text: &str| {
            let path = drop_ins.join(name);
            std::fs::create_dir_all(path.parent().expect("a directory")).expect("made");
            std::fs::write(path, text).expect("written");
        };
        let paths = [file.clone(), drop_ins.clone()];
        let check = |policy: &str, scope: TopologyScope| {
            let found = read_kubelet_config(&paths).expect("read");
            assert_eq!(found, (policy.to_owned(), scope));
        };
        let text = r#"{"topologyManagerPolicy": "restricted", "topologyManagerScope": "pod"}"#;
        std::fs::write(&file, text).expect("written");
        check("restricted", TopologyScope::Pod);
        put("00-defaults.conf", "topologyManagerPolicy: none\n");
        check("none", TopologyScope::Pod);
        put("40/a.conf", "topologyManagerPolicy: best-effort\n");
        put("30.conf", "topologyManagerPolicy: restricted\n");
        put("50.yaml", "topologyManagerPolicy: none\n");
        check("best-effort", TopologyScope::Pod);
        put("60.conf", "topologyManagerScope: container\n");
        check("best-effort", TopologyScope::Container);
    }

    #[test]
    fn publishes_scope_and_last_readable_policy() {
        use TopologyPolicy::{Auto, Restricted, SingleNumaNode};
        let dir = tempfile::tempdir().expect("tempdir");
        let file = dir.path().join("config.yaml");
        let published = published(&["GPU-a"]);
        let pod = "topologyManagerPolicy: single-numa-node\ntopologyManagerScope: pod\n";
        let container = "topologyManagerPolicy: restricted\ntopologyManagerScope: container\n";
        for (policy, text, scope, shown) in [
            (Auto, pod, TopologyScope::Pod, "single-numa-node"),
            (Auto, container, TopologyScope::Container, "restricted"),
            (
                Auto,
                "topologyManagerPolicy: [",
                TopologyScope::Container,
                "restricted",
            ),
            (SingleNumaNode, pod, TopologyScope::Pod, "single-numa-node"),
            (
                Restricted,
                "port: [",
                TopologyScope::Container,
                "restricted",
            ),
        ] {
            std::fs::write(&file, text).expect("written");
            refresh(policy, std::slice::from_ref(&file), &published);
            let inventory = &published.get().inventory;
            assert_eq!(inventory.topology_scope, scope, "{text}");
            assert_eq!(inventory.topology_policy, shown, "{text}");
        }
    }

    #[test]
    fn mig_16_reports_numa_node_when_kubelet_aligns() {
        let mut facts = facts(&["GPU-a", "GPU-b", "GPU-c"]);
        facts.gpus[0].numa = Some(0);
        facts.gpus[1].numa = Some(1);
        let layout = layout_of(&["GPU-a", "GPU-b", "GPU-c"]);
        let published = NodePublisher::new(facts, Vec::new(), layout);
        let check = |policy: TopologyPolicy, expected: [Option<i64>; 3]| {
            refresh(policy, &[], &published);
            let replicas = plugin_devices(&published.get(), RESOURCE);
            let replicas = replicas
                .iter()
                .filter(|replica| replica.id.ends_with("::0"));
            let numa = replicas.map(|replica| Some(replica.topology.as_ref()?.nodes[0].id));
            assert_eq!(numa.collect::<Vec<_>>(), expected, "{policy:?}");
        };
        check(TopologyPolicy::Auto, [None; 3]);
        check(TopologyPolicy::SingleNumaNode, [Some(0), Some(1), None]);
        assert_eq!(
            published.get().inventory.topology_policy,
            "single-numa-node"
        );
        check(TopologyPolicy::Restricted, [Some(0), Some(1), None]);
        check(TopologyPolicy::None, [None; 3]);
    }
}
