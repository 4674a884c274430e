//! A block of TCP ports for one cluster, its own on this machine.
//!
//! A block is reserved by an exclusive lock on its lock file. The lock belongs to the
//! open file, so handing the file to a daemon as its standard input makes the lock
//! live exactly as long as that daemon, whoever started it.

use std::fs::File;
use std::io::Write as _;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::Path;

use anyhow::{Context as _, Result, bail};

/// Below the kernel's range for outgoing connections (32768 and up).
const FIRST: u16 = 20_000;
const BLOCK: u16 = 20;
const BLOCKS: u16 = 200;
/// The directory of the machine's locks; `down.sh` names it too.
pub(crate) const LOCKS: &str = "/tmp/aliquot-cluster";

/// Which process listens where, as an offset into the block.
#[derive(Debug, Clone, Copy)]
#[repr(u16)]
pub(crate) enum Role {
    Etcd,
    EtcdPeer,
    ApiServer,
    ControllerManager,
    Scheduler,
    Kubelet,
    KubeletHealth,
}

const ROLES: u16 = Role::KubeletHealth as u16 + 1;
/// Offset of the ports that are left to the parts under test.
const PARTS: u16 = 10;

/// A block of ports.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Ports {
    index: u16,
}

impl Ports {
    pub(crate) fn port(self, role: Role) -> u16 {
        self.base() + role as u16
    }

    /// The n-th of the ten ports reserved for the parts under test.
    pub(crate) fn part(self, n: u16) -> SocketAddr {
        assert!(
            n < BLOCK - PARTS,
            "a cluster has ports 0..10 for parts, not {n}"
        );
        SocketAddr::from((Ipv4Addr::LOCALHOST, self.base() + PARTS + n))
    }

    pub(crate) fn base(self) -> u16 {
        FIRST + BLOCK * self.index
    }

    /// Second byte of the pods' network 10.x.0.0/24.
    pub(crate) fn subnet(self) -> u16 {
        200 + self.index % 56
    }

    /// The address of the Service `kubernetes`, the first of 10.96.x.0/24.
    pub(crate) fn service(self) -> String {
        format!("10.96.{}.1", self.subnet())
    }

    fn is_free(self) -> bool {
        (0..ROLES).all(|n| TcpListener::bind((Ipv4Addr::LOCALHOST, self.base() + n)).is_ok())
    }

    /// Finds an unlocked block and locks it for `owner`.
    pub(crate) fn choose(owner: &Path) -> Result<(Self, File)> {
        for index in 0..BLOCKS {
            let ports = Self { index };
            if let Some(lock) = try_lock(&format!("ports-{}", ports.base()), owner)?
                && ports.is_free()
            {
                return Ok((ports, lock));
            }
        }
        bail!("all {BLOCKS} blocks of ports from {FIRST} on are taken")
    }
}

/// Takes the machine's lock of this name; `None` if another process has it.
pub(crate) fn try_lock(name: &str, owner: &Path) -> Result<Option<File>> {
    let mut file = open_lock(name)?;
    match file.try_lock() {
        Ok(()) => {
            file.set_len(0)?;
            writeln!(file, "{}", owner.display())?;
            Ok(Some(file))
        }
        Err(std::fs::TryLockError::WouldBlock) => Ok(None),
        Err(std::fs::TryLockError::Error(error)) => {
            Err(error).with_context(|| format!("lock {name}"))
        }
    }
}

/// Opens the machine's lock file of this name, not locked yet.
pub(crate) fn open_lock(name: &str) -> Result<File> {
    std::fs::create_dir_all(LOCKS).with_context(|| format!("make {LOCKS}"))?;
    let path = Path::new(LOCKS).join(format!("{name}.lock"));
    File::options()
        .create(true)
        .write(true)
        .truncate(false)
        .open(&path)
        .with_context(|| format!("open {}", path.display()))
}
