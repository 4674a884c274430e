//! The kubelet's device checkpoint (`kubelet_internal_checkpoint`): which container of which pod
//! has which device ids, which Allocate answer (thus which [`AnswerName`]) it was given, and which
//! device ids are registered. The kubelet writes it before it calls `PreStartContainer` (same
//! structure in Kubernetes 1.33 to 1.37). It is the kubelet's own file and no API: anything
//! unexpected is an error that names what was found.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use aliquot_core::PodUid;
use base64::Engine as _;
use serde::Deserialize;
use thiserror::Error;

use crate::allocate_answer;
use crate::device_id::{AnswerName, DeviceIds};

/// The file's name inside the kubelet's device-plugins directory.
pub const FILE: &str = "kubelet_internal_checkpoint";

#[derive(Debug, Error)]
pub enum CheckpointError {
    #[error("cannot read the kubelet's device checkpoint {}: {source}", path.display())]
    Read {
        path: PathBuf,
        source: std::io::Error,
    },
    #[error("cannot read the kubelet's device checkpoint {}: not the expected JSON: {source}", path.display())]
    Json {
        path: PathBuf,
        source: serde_json::Error,
    },
    #[error(
        "the kubelet's device checkpoint has an unreadable Allocate answer for container {container} of pod {pod}: {source}"
    )]
    Base64 {
        pod: PodUid,
        container: String,
        source: base64::DecodeError,
    },
    #[error(
        "the kubelet's device checkpoint has an unreadable Allocate answer for container {container} of pod {pod}: {source}"
    )]
    Answer {
        pod: PodUid,
        container: String,
        source: prost::DecodeError,
    },
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckpointEntry {
    pub pod: PodUid,
    pub container: String,
    pub resource: String,
    pub ids: DeviceIds,
    /// The name in the Allocate answer; `None` when another plugin answered (a pod that came
    /// before).
    pub name: Option<AnswerName>,
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
    #[serde(rename = "RegisteredDevices")]
    registered: Option<BTreeMap<String, Option<DeviceIds>>>,
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

/// The entries in the checkpoint at `path` whose Allocate answer is ours, and all entries of the
/// `served` resources. A missing file is an empty checkpoint: a kubelet that never allocated has
/// none.
pub fn read(
    path: &Path,
    served: &BTreeSet<String>,
) -> Result<Vec<CheckpointEntry>, CheckpointError> {
    let bytes = contents(path)?;
    bytes.map_or(Ok(Vec::new()), |bytes| parse(&bytes, path, served))
}

/// The same of the checkpoint's text; `path` is for errors. An unreadable answer for a resource
/// that is not served is ignored.
pub fn parse(
    bytes: &[u8],
    path: &Path,
    served: &BTreeSet<String>,
) -> Result<Vec<CheckpointEntry>, CheckpointError> {
    let mut found = Vec::new();
    for raw in data(bytes, path)?.entries.unwrap_or_default() {
        let ours = served.contains(&raw.resource_name);
        match entry(raw) {
            Ok(entry) if ours || entry.name.is_some() => found.push(entry),
            Err(error) if ours => return Err(error),
            Ok(_) | Err(_) => {}
        }
    }
    Ok(found)
}

/// The healthy device ids that the kubelet has of each resource, whichever plugin registered them.
/// A missing file has none.
pub fn read_registered(path: &Path) -> Result<BTreeMap<String, DeviceIds>, CheckpointError> {
    let bytes = contents(path)?;
    bytes.map_or(Ok(BTreeMap::new()), |bytes| parse_registered(&bytes, path))
}

/// The same of the checkpoint's text; `path` is for errors.
pub fn parse_registered(
    bytes: &[u8],
    path: &Path,
) -> Result<BTreeMap<String, DeviceIds>, CheckpointError> {
    let registered = data(bytes, path)?.registered.unwrap_or_default();
    let registered = registered.into_iter();
    Ok(registered
        .map(|(resource, ids)| (resource, ids.unwrap_or_default()))
        .collect())
}

fn contents(path: &Path) -> Result<Option<Vec<u8>>, CheckpointError> {
    match std::fs::read(path) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(source) if source.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(CheckpointError::Read {
            path: path.to_owned(),
            source,
        }),
    }
}

fn data(bytes: &[u8], path: &Path) -> Result<Data, CheckpointError> {
    let file: File = serde_json::from_slice(bytes).map_err(|source| CheckpointError::Json {
        path: path.to_owned(),
        source,
    })?;
    Ok(file.data)
}

/// The entries with exactly `ids` of a resource. Several, when the kubelet passed an init
/// container's devices on to a later container of the same pod.
pub fn holders<'a>(
    entries: &'a [CheckpointEntry],
    resource: &'a str,
    ids: &'a DeviceIds,
) -> impl Iterator<Item = &'a CheckpointEntry> {
    let matches = move |entry: &&CheckpointEntry| entry.resource == resource && entry.ids == *ids;
    entries.iter().filter(matches)
}

/// The names of these entries, each with its container.
pub fn names_by_container(
    entries: &[CheckpointEntry],
) -> impl Iterator<Item = (&AnswerName, &str)> {
    entries
        .iter()
        .filter_map(|entry| Some((entry.name.as_ref()?, entry.container.as_str())))
}

/// A container that was given names: one for each of its resources, in their order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedContainer<'a> {
    pub pod: &'a PodUid,
    pub container: &'a str,
    pub first: &'a AnswerName,
    pub further: Vec<&'a AnswerName>,
}

impl<'a> NamedContainer<'a> {
    pub fn names(&self) -> impl Iterator<Item = &'a AnswerName> {
        std::iter::once(self.first).chain(self.further.iter().copied())
    }
}

/// The containers of these entries that were given names.
pub fn named_containers(entries: &[CheckpointEntry]) -> Vec<NamedContainer<'_>> {
    let mut found: BTreeMap<(&PodUid, &str), BTreeSet<(&str, &AnswerName)>> = BTreeMap::new();
    for entry in entries {
        if let Some(name) = &entry.name {
            let container = (&entry.pod, entry.container.as_str());
            let names = found.entry(container).or_default();
            names.insert((entry.resource.as_str(), name));
        }
    }
    let containers = found.into_iter().filter_map(|((pod, container), names)| {
        let mut names = names.into_iter().map(|(_, name)| name);
        Some(NamedContainer {
            pod,
            container,
            first: names.next()?,
            further: names.collect(),
        })
    });
    containers.collect()
}

fn entry(raw: RawEntry) -> Result<CheckpointEntry, CheckpointError> {
    let pod = PodUid::from(raw.pod);
    let container = raw.container_name;
    let bytes = base64::engine::general_purpose::STANDARD
        .decode(raw.alloc_resp.unwrap_or_default())
        .map_err(|source| CheckpointError::Base64 {
            pod: pod.clone(),
            container: container.clone(),
            source,
        })?;
    let name = allocate_answer::name(&bytes).map_err(|source| CheckpointError::Answer {
        pod: pod.clone(),
        container: container.clone(),
        source,
    })?;
    Ok(CheckpointEntry {
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
    })
}

#[cfg(test)]
#[path = "checkpoint_tests.rs"]
mod tests;
