//! Starts and kills the cluster's own processes, and checks whether one died. Their arguments and
//! order are in other modules.

use std::collections::BTreeMap;
use std::process::Child;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use parking_lot::Mutex;

use crate::layout::Layout;
use crate::process::{self, Program};
use crate::wait::eventually;

/// A process of the cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Daemon {
    Etcd,
    ApiServer,
    ControllerManager,
    Scheduler,
    /// Holds the machine's shared lock on having nodes, until all else of the node is gone.
    NodeLock,
    /// Holds the node's mount namespace.
    Mounts,
    Containerd,
    Kubelet,
}

impl Daemon {
    /// The name of its log and pid file; `down.sh` knows it too.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Etcd => "etcd",
            Self::ApiServer => "apiserver",
            Self::ControllerManager => "controller-manager",
            Self::Scheduler => "scheduler",
            Self::NodeLock => "node-lock",
            Self::Mounts => "mounts",
            Self::Containerd => "containerd",
            Self::Kubelet => "kubelet",
        }
    }
}

/// The running processes of one cluster.
#[derive(Debug)]
pub(crate) struct Daemons {
    layout: Layout,
    running: Mutex<BTreeMap<Daemon, Child>>,
}

impl Daemons {
    pub(crate) fn new(layout: Layout) -> Self {
        Self {
            layout,
            running: Mutex::default(),
        }
    }

    pub(crate) fn start(&self, daemon: Daemon, program: Program) -> Result<()> {
        let mut running = self.running.lock();
        ensure!(
            !running.contains_key(&daemon),
            "{} is running already",
            daemon.name()
        );
        running.insert(
            daemon,
            process::spawn(&self.layout, daemon.name(), program)?,
        );
        Ok(())
    }

    /// Kills (-9) and waits for the end.
    pub(crate) async fn kill(&self, daemon: Daemon) -> Result<()> {
        let child = self.running.lock().remove(&daemon);
        let mut child = child.with_context(|| format!("{} is not running", daemon.name()))?;
        end(&mut child, daemon.name()).await
    }

    /// Fails when a process started here has ended by itself.
    pub(crate) fn check(&self, daemon: Daemon) -> Result<()> {
        let mut running = self.running.lock();
        let Some(child) = running.get_mut(&daemon) else {
            return Ok(());
        };
        match child.try_wait()? {
            None => Ok(()),
            Some(status) => bail!(
                "{} ended with {status}; its log ends:\n{}",
                daemon.name(),
                process::tail(&self.layout, daemon.name())
            ),
        }
    }

    /// Whether it runs; one that ended by itself is forgotten.
    pub(crate) fn runs(&self, daemon: Daemon) -> Result<bool> {
        let mut running = self.running.lock();
        let Some(child) = running.get_mut(&daemon) else {
            return Ok(false);
        };
        let runs = child.try_wait()?.is_none();
        if !runs {
            running.remove(&daemon);
        }
        Ok(runs)
    }

    pub(crate) fn pid(&self, name: &str) -> Result<u32> {
        let running = self.running.lock();
        let child = running.iter().find(|(daemon, _)| daemon.name() == name);
        let (_, child) = child.with_context(|| format!("{name} is not running"))?;
        Ok(child.id())
    }

    /// Collects what has ended, so that the owner keeps no zombies.
    pub(crate) fn reap(&self) {
        self.running
            .lock()
            .retain(|_, child| matches!(child.try_wait(), Ok(None)));
    }
}

/// Kills a child and waits until it has ended.
pub(crate) async fn end(child: &mut Child, name: &str) -> Result<()> {
    child.kill().with_context(|| format!("kill {name}"))?;
    let child = Mutex::new(child);
    eventually(
        Duration::from_mins(1),
        &format!("the end of {name}"),
        || async { Ok(child.lock().try_wait()?) },
    )
    .await?;
    Ok(())
}
