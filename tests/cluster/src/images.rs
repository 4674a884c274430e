//! The node's images: made of local files, no registry.

use std::path::Path;

use anyhow::{Context as _, Result};

use crate::access::Output;
use crate::cluster::Cluster;
use crate::node_files::{BUSYBOX_IMAGE, PAUSE_IMAGE};

/// Where Debian puts the static busybox.
const BUSYBOX: &str = "/bin/busybox";

impl Cluster {
    /// One static binary serves as the sandboxes' pause and as the user space.
    pub(crate) async fn import_busybox(&self) -> Result<()> {
        let list = self.tool(BUSYBOX.as_ref(), &["--list"]).await?.success()?;
        let links: Vec<String> = list
            .lines()
            .filter(|command| *command != "busybox")
            .map(|command| format!("/bin/{command}={BUSYBOX}"))
            .collect();
        let links = links.join(",");
        let file = [(Path::new(BUSYBOX), BUSYBOX)];
        self.import(PAUSE_IMAGE, "/bin/busybox sleep 2147483647", "", &file)
            .await?;
        self.import(BUSYBOX_IMAGE, "/bin/sh", &links, &file).await
    }

    /// Makes an image of local files, each given as (file here, path in the image),
    /// and hands it to the node. `command` is split at blanks.
    ///
    /// # Errors
    /// A file cannot be read, or containerd refuses the image.
    pub async fn import_image(
        &self,
        name: &str,
        command: &str,
        files: &[(&Path, &str)],
    ) -> Result<()> {
        self.import(name, command, "", files).await
    }

    async fn import(
        &self,
        name: &str,
        command: &str,
        links: &str,
        files: &[(&Path, &str)],
    ) -> Result<()> {
        let archive = self.archive(name);
        let files: Vec<String> = files
            .iter()
            .map(|(from, to)| format!("{}={to}", from.display()))
            .collect();
        let mut args = vec!["mkimage", "-name", name, "-cmd", command, "-links", links];
        args.extend(["-out", &archive]);
        args.extend(files.iter().map(String::as_str));
        self.tool(&self.binaries.join("clustertool"), &args)
            .await?
            .success()?;
        self.ctr(&["images", "import", &archive]).await?.success()?;
        Ok(())
    }

    /// The OCI archive of an image that was imported by this name.
    pub fn archive(&self, name: &str) -> String {
        let file = format!("images/{}.tar", name.replace(['/', ':'], "-"));
        self.layout.text(&file)
    }

    /// Sends a container's processes a signal past the kubelet, as `SIGKILL`; `id` as a pod's
    /// status has it.
    ///
    /// # Errors
    /// The id is not containerd's, or there is no such container, or it has ended.
    pub async fn signal_container(&self, id: &str, signal: &str) -> Result<()> {
        let id = id.strip_prefix("containerd://");
        let id = id.context("an id that does not begin with containerd://")?;
        let args = ["tasks", "kill", "--signal", signal, id];
        self.ctr(&args).await?.success().map(drop)
    }

    /// containerd's own client, in the kubelet's namespace `k8s.io`.
    ///
    /// # Errors
    /// It cannot be run, or takes too long.
    pub async fn ctr(&self, args: &[&str]) -> Result<Output> {
        let socket = self.layout.text("containerd/c.sock");
        let mut all = vec!["-a", &socket, "-n", "k8s.io"];
        all.extend_from_slice(args);
        self.tool(&self.binaries.join("ctr"), &all).await
    }
}
