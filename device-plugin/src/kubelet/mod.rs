//! The kubelet's side: registration and the device plugin service.

mod device_list;
pub mod plugin;
pub mod plugins;
pub mod preferred_allocation;
pub mod proto;
pub mod register;
pub mod resource_owner;
pub mod topology;
