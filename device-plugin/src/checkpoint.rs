//! The kubelet's device checkpoint: which container of which pod holds which
//! ids, and which Allocate answer (thus which [`Name`]) it was given.
//!
//! Fed by: the bytes of `kubelet_internal_checkpoint`, which the kubelet writes
//! before it calls `PreStartContainer` (same structure in Kubernetes 1.33 to 1.36).
//! Must not: guess. It is the kubelet's own file and no API; anything unexpected
//! is an error that says what was found.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use aliquot_core::PodUid;
use base64::Engine as _;
use prost::Message as _;
use serde::Deserialize;
use thiserror::Error;

use crate::by_env::{self, Named};
use crate::proto::v1beta1::ContainerAllocateResponse;
use crate::seat::{Ids, Name};

/// The file's name inside the kubelet's device-plugins directory.
pub const FILE: &str = "kubelet_internal_checkpoint";

/// Why the checkpoint tells us nothing.
#[derive(Debug, Error)]
pub enum CheckpointError {
    /// The file cannot be read.
    #[error("cannot read the kubelet's device checkpoint {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// Not the JSON that kubelets write.
    #[error("cannot read the kubelet's device checkpoint {}: it is not the expected JSON: {source}", path.display())]
    Json {
        /// The file.
        path: PathBuf,
        /// What serde found.
        source: serde_json::Error,
    },
    /// An Allocate answer in it is not base64 text.
    #[error(
        "the kubelet's device checkpoint holds an unreadable Allocate answer for container {container} of pod {pod}: {source}"
    )]
    Base64 {
        /// The pod.
        pod: PodUid,
        /// The container.
        container: String,
        /// What the decoder found.
        source: base64::DecodeError,
    },
    /// An Allocate answer in it is not the protocol's message.
    #[error(
        "the kubelet's device checkpoint holds an unreadable Allocate answer for container {container} of pod {pod}: {source}"
    )]
    Answer {
        /// The pod.
        pod: PodUid,
        /// The container.
        container: String,
        /// What the decoder found.
        source: prost::DecodeError,
    },
}

/// What one container holds of one resource.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The pod.
    pub pod: PodUid,
    /// The container's name.
    pub container: String,
    /// The resource.
    pub resource: String,
    /// The device ids.
    pub ids: Ids,
    /// The name in the Allocate answer; `None` when the answer is not ours
    /// (a pod of an earlier plugin).
    pub name: Option<Name>,
    /// What the answer named without CDI; `None` where the name is that of a CDI device.
    pub by_env: Option<Named>,
}

#[derive(Deserialize)]
struct File {
    #[serde(rename = "Data")]
    data: Data,
}

#[derive(Deserialize)]
struct Data {
    // Go writes an empty list as null.
    #[serde(rename = "PodDeviceEntries")]
    entries: Option<Vec<RawEntry>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct RawEntry {
    #[serde(rename = "PodUID")]
    pod: String,
    container_name: String,
    resource_name: String,
    #[serde(rename = "DeviceIDs")]
    ids: Option<BTreeMap<String, Vec<String>>>,
    alloc_resp: Option<String>,
}

/// The entries in the checkpoint at `path` whose Allocate answer is ours, and all of the
/// `served` resources. A missing file is an empty checkpoint: a kubelet that never allocated has
/// none.
pub fn read(path: &Path, served: &BTreeSet<String>) -> Result<Vec<Entry>, CheckpointError> {
    match std::fs::read(path) {
        Ok(bytes) => parse(&bytes, path, served),
        Err(source) if source.kind() == std::io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(source) => Err(CheckpointError::Read {
            path: path.to_owned(),
            source,
        }),
    }
}

/// The same of the checkpoint's text; `path` is for errors. What the answers of other plugins
/// hold is their matter, so long as the resource is theirs too.
pub fn parse(
    bytes: &[u8],
    path: &Path,
    served: &BTreeSet<String>,
) -> Result<Vec<Entry>, CheckpointError> {
    let file: File = serde_json::from_slice(bytes).map_err(|source| CheckpointError::Json {
        path: path.to_owned(),
        source,
    })?;
    let mut found = Vec::new();
    for raw in file.data.entries.unwrap_or_default() {
        let ours = served.contains(&raw.resource_name);
        match entry(raw) {
            Ok(entry) if ours || entry.name.is_some() => found.push(entry),
            Err(error) if ours => return Err(error),
            Ok(_) | Err(_) => {}
        }
    }
    Ok(found)
}

/// The entries that hold exactly `ids` of a resource. Several, when the kubelet handed an init
/// container's seats on to a later container of the same pod.
pub fn holders<'a>(
    entries: &'a [Entry],
    resource: &'a str,
    ids: &'a Ids,
) -> impl Iterator<Item = &'a Entry> {
    let held = move |entry: &&Entry| entry.resource == resource && entry.ids == *ids;
    entries.iter().filter(held)
}

fn entry(raw: RawEntry) -> Result<Entry, CheckpointError> {
    let pod = PodUid::from(raw.pod);
    let container = raw.container_name;
    let bytes = base64::engine::general_purpose::STANDARD
        .decode(raw.alloc_resp.unwrap_or_default())
        .map_err(|source| CheckpointError::Base64 {
            pod: pod.clone(),
            container: container.clone(),
            source,
        })?;
    let answer = ContainerAllocateResponse::decode(bytes.as_slice()).map_err(|source| {
        CheckpointError::Answer {
            pod: pod.clone(),
            container: container.clone(),
            source,
        }
    })?;
    let mut devices = answer.cdi_devices.iter();
    let by_cdi = devices.find_map(|device| Name::parse_qualified(&device.name));
    let (name, by_env) = match (by_cdi, by_env::read(&answer)) {
        (None, Some((name, named))) => (Some(name), Some(named)),
        (by_cdi, _) => (by_cdi, None),
    };
    Ok(Entry {
        pod,
        container,
        resource: raw.resource_name,
        ids: raw
            .ids
            .unwrap_or_default()
            .into_values()
            .flatten()
            .collect(),
        name,
        by_env,
    })
}

#[cfg(test)]
#[path = "checkpoint_tests.rs"]
mod tests;
