//! Narrow views of a raw pod: its containers and the few fields that a review reads.
//!
//! The API server has checked the fields' types; a field of another type reads as absent.

use aliquot_core::Excerpt;
use serde_json::Value;

/// A kubelet sets this on the API object of a static pod.
const MIRROR: &str = "kubernetes.io/config.mirror";

/// The three lists that hold containers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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

impl Container<'_> {
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

    /// It mounts this volume of its pod with write access.
    pub(crate) fn writes_to(&self, volume: &Value) -> bool {
        let mut mounts = items(&self.raw["volumeMounts"]).iter();
        mounts.any(|mount| mount["name"] == volume["name"] && mount["readOnly"] != true)
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
