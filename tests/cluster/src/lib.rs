//! A real Kubernetes cluster as a value, for tests and the demo.
//!
//! ```no_run
//! # async fn example() -> anyhow::Result<()> {
//! let cluster = aliquot_cluster::Cluster::control_plane().start().await?;
//! let pods = cluster.kubectl(&["get", "pods", "-A"]).await?;
//! cluster.stop().await // success; otherwise the logs stay, and a message names their directory
//! # }
//! ```
//!
//! The binaries come from `build.sh` and `runc.sh` beside this crate (built once, then cached).
//! Whatever happens to the owner of a [`Cluster`], also `kill -9`, its watchdog
//! ends every process, mount, cgroup and interface of the cluster.
//!
//! Tests of one file can share a cluster in a `tokio::sync::OnceCell`: it has no
//! connection, so each test's runtime makes its own clients. Such a cluster ends
//! with the test process and its logs stay (`/tmp/alq-*/log`).

mod access;
mod binaries;
mod builder;
mod chart;
mod cluster;
mod control_plane;
mod daemons;
mod fake;
mod images;
mod layout;
mod machine;
mod members;
mod node;
mod node_files;
mod parts;
mod places;
mod pods;
mod ports;
mod process;
mod replicas;
mod rights;
mod scheduler_config;
pub mod starvation;
pub mod wait;
mod watchdog;

pub use access::Output;
pub use binaries::{crds, karpenter};
pub use builder::{Builder, NODE};
pub use cluster::Cluster;
pub use members::Member;
pub use node_files::USERS;
pub use parts::Part;
pub use replicas::Replica;
