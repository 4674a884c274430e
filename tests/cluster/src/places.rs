//! The files, directories and addresses of a cluster. Pure.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use crate::cluster::Cluster;
use crate::control_plane;

impl Cluster {
    /// The kubeconfig file with all rights.
    pub fn kubeconfig(&self) -> PathBuf {
        self.layout.at("pki/admin.kubeconfig")
    }

    /// `https://127.0.0.1:PORT`, or the Service's address (see [`crate::Builder::serve_pods`]).
    pub fn api_url(&self) -> String {
        control_plane::api_url(self.ports, self.options.serves_pods)
    }

    /// The n-th (0..10) of this cluster's own ports for parts under test; the first
    /// is the extender's.
    pub fn part_address(&self, n: u16) -> SocketAddr {
        self.ports.part(n)
    }

    /// Where the extender must listen after [`crate::Builder::extender`].
    pub fn extender_address(&self) -> SocketAddr {
        self.part_address(0)
    }

    /// The directory of the binaries: `kubebox`, `ctr` and the others.
    pub fn binaries(&self) -> &Path {
        &self.binaries
    }

    /// The directory with everything of this cluster.
    pub fn state_dir(&self) -> &Path {
        self.layout.root()
    }

    /// The directory of the logs, one file for each process; pods' logs in `pods/`.
    pub fn log_dir(&self) -> PathBuf {
        self.layout.at("log")
    }

    /// The socket of the node's containerd.
    pub fn containerd_socket(&self) -> PathBuf {
        self.layout.at("containerd/c.sock")
    }

    /// The kubelet's directory as seen from outside its mount namespace; it contains
    /// `device-plugins/` and `pod-resources/`.
    pub fn kubelet_dir(&self) -> PathBuf {
        self.layout.at("kubelet")
    }

    /// containerd's configuration file.
    pub fn containerd_config(&self) -> PathBuf {
        self.layout.at("containerd/config.toml")
    }

    /// The only directory in which containerd looks for CDI specifications.
    pub fn cdi_dir(&self) -> PathBuf {
        self.layout.at("cdi")
    }

    /// The directory of static pods.
    pub fn manifests_dir(&self) -> PathBuf {
        self.layout.at("manifests")
    }
}
