//! What the agent's Allocate answer names, read back from the kubelet's checkpoint: a CDI device, or
//! without CDI the devices themselves, in a variable for NVIDIA's container runtime.

use std::collections::{BTreeSet, HashMap};
use std::path::Path;

use prost::{DecodeError, Message};

use crate::container_directory::{IN_CONTAINER, PRELOAD_IN_CONTAINER};
use crate::device_id::AnswerName;

/// The variable in which NVIDIA's container runtime reads which GPUs it is to inject.
pub const NVIDIA_VISIBLE: &str = "NVIDIA_VISIBLE_DEVICES";
/// Its value for no GPU at all.
pub const VOID: &str = "void";
/// Our variable that names the container's devices by UUID.
pub const VISIBLE: &str = "ALIQUOT_VISIBLE_DEVICES";

/// The fields that are read of the answer, by the numbers of the kubelet's device plugin API.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct ContainerAllocateResponse {
    #[prost(map = "string, string", tag = "1")]
    pub(crate) envs: HashMap<String, String>,
    #[prost(message, repeated, tag = "2")]
    pub(crate) mounts: Vec<Mount>,
    #[prost(message, repeated, tag = "5")]
    pub(crate) cdi_devices: Vec<CdiDevice>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Mount {
    #[prost(string, tag = "1")]
    pub(crate) container_path: String,
    #[prost(string, tag = "2")]
    pub(crate) host_path: String,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct CdiDevice {
    #[prost(string, tag = "1")]
    pub(crate) name: String,
}

/// The devices that an answer without CDI named.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NonCdiAnswer {
    /// The devices, by the UUIDs that they had then.
    pub visible: BTreeSet<String>,
    /// The answer mounts a preload list with the limiter.
    pub preloads: bool,
}

/// Our name in an encoded answer, and what it named without CDI. No name: another plugin answered.
pub fn read(answer: &[u8]) -> Result<(Option<AnswerName>, Option<NonCdiAnswer>), DecodeError> {
    let answer = ContainerAllocateResponse::decode(answer)?;
    let mut devices = answer.cdi_devices.iter();
    let by_cdi = devices.find_map(|device| AnswerName::parse_qualified(&device.name));
    Ok(match (by_cdi, non_cdi(&answer)) {
        (None, Some((name, named))) => (Some(name), Some(named)),
        (by_cdi, _) => (by_cdi, None),
    })
}

fn non_cdi(answer: &ContainerAllocateResponse) -> Option<(AnswerName, NonCdiAnswer)> {
    let at = |path: &str| answer.mounts.iter().find(|one| one.container_path == path);
    let directory = Path::new(&at(IN_CONTAINER)?.host_path);
    let name = AnswerName::parse(directory.file_name()?.to_str()?)?;
    let listed = answer.envs.get(NVIDIA_VISIBLE).map_or("", String::as_str);
    let named = NonCdiAnswer {
        visible: listed.split(',').map(str::to_owned).collect(),
        preloads: at(PRELOAD_IN_CONTAINER).is_some(),
    };
    Some((name, named))
}
