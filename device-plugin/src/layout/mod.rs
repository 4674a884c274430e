//! Reconciles the node's GPUs with the profile that the administrator wants.

pub mod desired_layout;
pub mod device_users;
pub mod profile_status;
pub mod reconciler;
pub mod stored_layout;
pub mod transition;
