//! What the agent's Allocate answer names, read back from the kubelet's checkpoint; and the variables
//! that name a container's devices.

use prost::{DecodeError, Message};

use crate::device_id::AnswerName;

/// The variable in which NVIDIA's container runtime reads which GPUs it is to inject.
pub const NVIDIA_VISIBLE: &str = "NVIDIA_VISIBLE_DEVICES";
/// Its value for no GPU at all.
pub const VOID: &str = "void";
/// Our variable that names the container's devices by UUID.
pub const VISIBLE: &str = "ALIQUOT_VISIBLE_DEVICES";

/// The field that is read of the answer, by its number in the kubelet's device plugin API.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct ContainerAllocateResponse {
    #[prost(message, repeated, tag = "5")]
    pub(crate) cdi_devices: Vec<CdiDevice>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct CdiDevice {
    #[prost(string, tag = "1")]
    pub(crate) name: String,
}

/// Our name in an encoded answer; `None`: another plugin answered.
pub fn name(answer: &[u8]) -> Result<Option<AnswerName>, DecodeError> {
    let answer = ContainerAllocateResponse::decode(answer)?;
    let mut devices = answer.cdi_devices.iter();
    Ok(devices.find_map(|device| AnswerName::parse_qualified(&device.name)))
}
