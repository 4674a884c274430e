//! A request without its count: the content of the pod annotation `aliquot.dev/request`.
//!
//! The webhook may move the amounts of a pod there, so that its containers name only resources
//! that nodes publish. A container's own resources take precedence over the annotation.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::allocation::{self, CodecError};
use crate::excerpt::Excerpt;
use crate::request::{RequestError, Resource, Written};

/// The pod annotation that carries a [`RequestAnnotation`].
pub const REQUEST: &str = "aliquot.dev/request";
/// The version that this release writes.
pub const VERSION: u32 = 1;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Amounts {
    /// MiB on each device.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<u64>,
    /// The same in percent of the device.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub percentage: Option<u64>,
    /// Percent of each device's compute.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cores: Option<u64>,
}

/// The amounts of a pod's containers, and its priority.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RequestAnnotation {
    pub v: u32,
    /// The containers that requested an amount or a priority, by name, of every kind.
    #[serde(default)]
    pub containers: BTreeMap<String, Amounts>,
    /// 0 is high, 1 is low; of the pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub priority: Option<u64>,
}

impl Default for RequestAnnotation {
    fn default() -> Self {
        Self {
            v: VERSION,
            containers: BTreeMap::new(),
            priority: None,
        }
    }
}

#[derive(Debug, Error)]
pub enum AnnotationError {
    #[error(transparent)]
    Codec(CodecError),
    #[error("priority: {0}")]
    Priority(RequestError),
    #[error("container {container:?}, {}: {source}", field(.source.resource()))]
    Amount {
        container: Excerpt,
        source: RequestError,
    },
}

/// The resource's field in the annotation.
fn field(resource: Resource) -> &'static str {
    match resource {
        Resource::Gpu => "count",
        Resource::Memory => "memory",
        Resource::MemoryPercentage => "percentage",
        Resource::Cores => "cores",
        Resource::Priority => "priority",
    }
}

impl RequestAnnotation {
    /// The annotation's text. Equal requests give equal texts.
    pub fn encode(&self) -> Result<String, CodecError> {
        serde_json::to_string(self).map_err(|source| CodecError::Encode { source })
    }

    /// Reads the annotation's text, ignoring unknown fields. Every number is in its range.
    pub fn decode(text: &str) -> Result<Self, AnnotationError> {
        let read = allocation::decode(text, VERSION, |read: &Self| read.v)
            .map_err(AnnotationError::Codec)?;
        let priority =
            |resource: Resource| read.priority.filter(|_| resource == Resource::Priority);
        Written::of_numbers(priority)
            .map_err(|mut errors| AnnotationError::Priority(errors.swap_remove(0)))?;
        for container in read.containers.keys() {
            read.validated(container)
                .map_err(|mut errors| AnnotationError::Amount {
                    container: container.as_str().into(),
                    source: errors.swap_remove(0),
                })?;
        }
        Ok(read)
    }

    /// What it says of a container; nothing where it does not name the container.
    pub fn of(&self, container: &str) -> Written {
        // Decoded ones are valid.
        self.validated(container).unwrap_or_default()
    }

    fn validated(&self, container: &str) -> Result<Written, Vec<RequestError>> {
        let Some(amounts) = self.containers.get(container) else {
            return Ok(Written::default());
        };
        Written::of_numbers(|resource| match resource {
            Resource::Gpu => None,
            Resource::Memory => amounts.memory,
            Resource::MemoryPercentage => amounts.percentage,
            Resource::Cores => amounts.cores,
            Resource::Priority => self.priority,
        })
    }

    /// Adds what a container requests, its count excepted. The highest priority is the pod's.
    pub fn add(&mut self, container: &str, written: &Written) {
        let amounts = Amounts {
            memory: written.get(Resource::Memory),
            percentage: written.get(Resource::MemoryPercentage),
            cores: written.get(Resource::Cores),
        };
        let priority = written.get(Resource::Priority);
        if amounts != Amounts::default() || priority.is_some() {
            self.containers.insert(container.to_owned(), amounts);
        }
        self.priority = self.priority.into_iter().chain(priority).min();
    }
}
