//! The processes that have the simulated driver open, as `fuser /dev/nvidia*` lists those of a real
//! one. The state file stands for the device nodes: NVML keeps it open from its initialization to its
//! shutdown, at a position that shows the GPUs that the process may use.

use std::fmt;
use std::fs::{self, File};
use std::io::{self, Seek as _, SeekFrom};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

/// In the position: NVML has the file open, and not a reader of the state.
const OPEN: u64 = 1 << 40;

/// A process that has the driver open.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    /// Its pid, as this process sees it.
    pub pid: u32,
    /// The name of its program.
    pub command: String,
    /// One bit for each GPU that it has open.
    gpus: u64,
}

impl Holder {
    pub(crate) fn new(pid: u32, gpus: impl IntoIterator<Item = usize>) -> Self {
        let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
        Self {
            pid,
            command: name.trim_end().to_owned(),
            gpus: bits(gpus),
        }
    }

    /// Whether it has this GPU open.
    #[must_use]
    pub fn has(&self, gpu_index: usize) -> bool {
        self.gpus & bits([gpu_index]) != 0
    }
}

/// One holder for each process.
pub(crate) fn merged(mut holders: Vec<Holder>) -> Vec<Holder> {
    holders.sort_by_key(|one| one.pid);
    holders.dedup_by(|next, first| {
        let same = next.pid == first.pid;
        if same {
            first.gpus |= next.gpus;
        }
        same
    });
    holders
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (pid {})", self.command, self.pid)
    }
}

/// The driver opened by this process; closed when dropped.
pub(crate) struct OpenDriver {
    _file: File,
}

/// Opens the driver of a state file with these GPUs.
pub(crate) fn open(state: &Path, gpus: &[usize]) -> io::Result<OpenDriver> {
    let mut file = File::open(state)?;
    file.seek(SeekFrom::Start(OPEN | bits(gpus.iter().copied())))?;
    Ok(OpenDriver { _file: file })
}

/// The processes, as far as this one sees them, that have the driver of a state file open by NVML.
pub(crate) fn of_nvml(state: &Path) -> io::Result<Vec<Holder>> {
    let file = fs::metadata(state)?;
    let file = (file.dev(), file.ino());
    let pids = fs::read_dir("/proc")?.flatten();
    let pids = pids.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let mut holders = Vec::new();
    for pid in pids {
        // It may have ended meanwhile.
        let Ok(files) = fs::read_dir(format!("/proc/{pid}/fd")) else {
            continue;
        };
        for number in files.flatten().map(|entry| entry.file_name()) {
            let folder = Path::new("/proc").join(pid.to_string());
            let found = fs::metadata(folder.join("fd").join(&number));
            if found.is_ok_and(|found| (found.dev(), found.ino()) == file)
                && let Some(gpus) = gpus_of(&folder.join("fdinfo").join(&number))
            {
                holders.push(Holder {
                    gpus,
                    ..Holder::new(pid, [])
                });
            }
        }
    }
    Ok(merged(holders))
}

/// The GPUs of an open file, unless a reader of the state has it open.
fn gpus_of(info: &Path) -> Option<u64> {
    let text = fs::read_to_string(info).ok()?;
    let position = text.lines().find_map(|line| line.strip_prefix("pos:"))?;
    let position: u64 = position.trim().parse().ok()?;
    (position & OPEN != 0).then_some(position & !OPEN)
}

fn bits(gpus: impl IntoIterator<Item = usize>) -> u64 {
    gpus.into_iter().fold(0, |bits, gpu| bits | 1 << gpu)
}
