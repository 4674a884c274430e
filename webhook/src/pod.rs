//! Narrow views of a raw pod: its containers and the few fields that a review reads.
//!
//! The API server has checked the fields' types; a field of another type reads as absent.

use aliquot_core::Excerpt;
use serde_json::Value;

/// A kubelet sets this on the API object of a static pod.
const MIRROR: &str = "kubernetes.io/config.mirror";

/// The three lists that hold containers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    Init,
    App,
    Ephemeral,
}

impl Kind {
    /// The list's name in `spec`.
    pub(crate) fn list(self) -> &'static str {
        match self {
            Self::Init => "initContainers",
            Self::App => "containers",
            Self::Ephemeral => "ephemeralContainers",
        }
    }
}

/// One container and its place in the pod.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Container<'a> {
    pub(crate) kind: Kind,
    pub(crate) index: usize,
    pub(crate) raw: &'a Value,
}

impl<'a> Container<'a> {
    pub(crate) fn name(&self) -> &str {
        self.raw["name"].as_str().unwrap_or_default()
    }

    /// Its name as a text shows it.
    pub(crate) fn shown(&self) -> Excerpt {
        self.name().into()
    }

    /// As users write it: `spec.containers[0]`.
    pub(crate) fn field(&self) -> String {
        format!("spec.{}[{}]", self.kind.list(), self.index)
    }

    /// Its place in the pod, by which containers are ordered.
    pub(crate) fn place(&self) -> (Kind, usize) {
        (self.kind, self.index)
    }

    /// The names of the volumes that it mounts with write access.
    pub(crate) fn written(&self) -> impl Iterator<Item = &'a str> + use<'a> {
        let raw: &'a Value = self.raw;
        let mounts = items(&raw["volumeMounts"]).iter();
        let written = mounts.filter(|mount| mount["readOnly"] != true);
        written.filter_map(|mount| mount["name"].as_str())
    }
}

/// All containers: init, app, ephemeral.
pub(crate) fn containers(pod: &Value) -> Vec<Container<'_>> {
    [Kind::Init, Kind::App, Kind::Ephemeral]
        .into_iter()
        .flat_map(|kind| {
            let list = items(&pod["spec"][kind.list()]).iter().enumerate();
            list.map(move |(index, raw)| Container { kind, index, raw })
        })
        .collect()
}

/// The items of a list that may be absent.
pub(crate) fn items(list: &Value) -> &[Value] {
    list.as_array().map_or(&[], Vec::as_slice)
}

pub(crate) fn is_mirror(pod: &Value) -> bool {
    !pod["metadata"]["annotations"][MIRROR].is_null()
}

pub(crate) fn named_node(pod: &Value) -> Option<&str> {
    let node = pod["spec"]["nodeName"].as_str();
    node.filter(|node| !node.is_empty())
}
