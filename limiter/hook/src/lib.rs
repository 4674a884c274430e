//! What has to be known of an image or a cgroup before its container starts, and is known only when
//! the container is created (docs/limiter.md). An OCI runtime runs [`preload`] and [`limit`] as
//! `createRuntime` hooks and [`compat`] as a `createContainer` hook. If a step of any but [`limit`]
//! fails, the container is not created. Links of the image are never followed out of its root.

#![allow(missing_docs, reason = "the names say what most parts are")]

use std::fs::{self, File};
use std::io::{self, Read};
use std::iter;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

use aliquot_shim::COMPAT_LIBRARIES;
use rustix::fs::{Mode, OFlags, ResolveFlags, openat2};
use rustix::io::Errno;
use serde_json::Value;
use thiserror::Error;

pub mod compat;
pub mod limit;
pub mod preload;

/// The longest list or configuration in a container that is accepted, in bytes.
pub const MAX_LENGTH: u64 = 64 << 10;

/// How a path in a container is opened before its type is known: opening a device may have effects,
/// and opening a FIFO blocks.
const AS_PATH: OFlags = OFlags::PATH.union(OFlags::CLOEXEC);
const AS_FOLDER: OFlags = OFlags::RDONLY
    .union(OFlags::DIRECTORY)
    .union(OFlags::CLOEXEC);
/// The kernel gives up on `..` in a link when anything on the node was renamed or mounted meanwhile.
const ATTEMPTS: usize = 128;

/// Why a container could not be prepared. It is not created then.
#[derive(Debug, Error)]
pub enum HookError {
    #[error("cannot read the container state from standard input: {0}")]
    State(#[source] serde_json::Error),
    #[error("the container state has no bundle")]
    NoBundle,
    #[error("cannot read {}: {source}", path.display())]
    Host { path: PathBuf, source: io::Error },
    /// The bundle's configuration is not JSON, or names no root.
    #[error("{} has no root.path", .0.display())]
    Root(PathBuf),
    #[error("cannot read {} in the container: {source}", path.display())]
    Container { path: PathBuf, source: io::Error },
    #[error("{} in the container is longer than {MAX_LENGTH} bytes", .0.display())]
    TooLong(PathBuf),
    #[error("cannot write {}: {source}", path.display())]
    Write { path: PathBuf, source: io::Error },
    #[error(
        "the container has too many CUDA driver libraries of its own, expected at most {COMPAT_LIBRARIES}: {}",
        listed(.0)
    )]
    TooMany(Vec<PathBuf>),
    /// A shim library would appear on the host, too.
    #[error(
        "cannot put a shim library in the place of {}: mounts in its volume propagate to the host; expected a volume without mountPropagation: Bidirectional",
        .0.display()
    )]
    Shared(PathBuf),
    #[error("cannot mount {} on {} in the container: {source}", file.display(), place.display())]
    Mount {
        /// The file, on the host or in the container.
        file: PathBuf,
        place: PathBuf,
        source: io::Error,
    },
    /// Mounts in our directory would appear on the host, too.
    #[error("cannot stop mounts in {} of the container from propagating: {source}", path.display())]
    Propagation { path: PathBuf, source: io::Error },
}

fn listed(paths: &[PathBuf]) -> String {
    let names = paths.iter().map(|path| path.display().to_string());
    names.collect::<Vec<_>>().join(", ")
}

/// Whether a kernel of this release (`5.15.0-91-generic`) resolves paths inside a root and tells
/// mounts apart, which both hooks need: Linux 5.8.
pub fn is_supported_kernel(release: &str) -> bool {
    let mut numbers = release.split(['.', '-']).map(str::parse::<u32>);
    match (numbers.next(), numbers.next()) {
        (Some(Ok(major)), Some(Ok(minor))) => (major, minor) >= (5, 8),
        _ => true,
    }
}

struct Bundle {
    folder: PathBuf,
    /// Its `config.json`; null if that is not JSON.
    config: Value,
}

impl Bundle {
    fn read(state: impl Read) -> Result<Self, HookError> {
        let state: Value = serde_json::from_reader(state).map_err(HookError::State)?;
        let bundle = state["bundle"].as_str().ok_or(HookError::NoBundle)?;
        let folder = PathBuf::from(bundle);
        let path = folder.join("config.json");
        let config = fs::read(&path).map_err(|source| HookError::Host { path, source })?;
        Ok(Self {
            folder,
            config: serde_json::from_slice(&config).unwrap_or_default(),
        })
    }

    fn no_root(&self) -> HookError {
        HookError::Root(self.folder.join("config.json"))
    }
}

/// Opens a path in the container whose root is open at `root`.
fn open_in(root: &OwnedFd, path: &Path, flags: OFlags) -> Result<OwnedFd, Errno> {
    let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
    let open = || openat2(root, path, flags, Mode::empty(), resolve);
    let mut attempts = iter::repeat_with(open).take(ATTEMPTS);
    let opened = attempts.find(|opened| !matches!(opened, Err(Errno::AGAIN)));
    opened.unwrap_or(Err(Errno::AGAIN))
}

/// A path on the host to what is open, for calls that take no descriptor.
fn by_descriptor(file: &impl AsRawFd) -> String {
    format!("/proc/self/fd/{}", file.as_raw_fd())
}

fn unreadable<E: Into<io::Error>>(path: &Path) -> impl Fn(E) -> HookError {
    move |source| HookError::Container {
        path: path.to_owned(),
        source: source.into(),
    }
}

/// The content of a file that was opened at `path` in the container with [`AS_PATH`]; empty if it is no
/// regular file.
fn content(file: OwnedFd, path: &Path) -> Result<Vec<u8>, HookError> {
    let found = File::from(file);
    if !found.metadata().map_err(unreadable(path))?.is_file() {
        return Ok(Vec::new());
    }
    let file = File::open(by_descriptor(&found)).map_err(unreadable(path))?;
    let mut content = Vec::new();
    let mut start = file.take(MAX_LENGTH + 1);
    start.read_to_end(&mut content).map_err(unreadable(path))?;
    if content.len() as u64 > MAX_LENGTH {
        return Err(HookError::TooLong(path.to_owned()));
    }
    Ok(content)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hooks_need_linux_5_8() {
        for (release, expected) in [
            ("4.18.0-553.el8_10.x86_64", false),
            ("5.4.0-1103-aws", false),
            ("5.8.0", true),
            ("6.1", true),
            ("unknown", true),
        ] {
            assert_eq!(is_supported_kernel(release), expected, "{release}");
        }
    }
}
