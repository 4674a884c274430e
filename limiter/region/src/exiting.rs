//! Detects processes that are exiting: their mappings, and with them their locks, are gone, but the
//! kernel has not closed their files yet, so the driver still has their memory. Reads `/proc` with
//! process ids of our own namespace.

use std::{fs, io};

const PF_EXITING: u64 = 4;

/// Whether all threads of the process are exiting and at least one has not ended. False if unknown; an
/// error if no descriptor is left to find out.
pub(crate) fn is_exiting(pid: u64) -> io::Result<bool> {
    let Some(threads) = found(fs::read_dir(format!("/proc/{pid}/task")))? else {
        return Ok(false);
    };
    let mut exits = false;
    for thread in threads.flatten() {
        let stat = found(fs::read(thread.path().join("stat")))?;
        // The thread's name may be any bytes.
        let stat = stat.map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
        match stat.as_deref().and_then(thread_is_exiting) {
            Some(true) => exits = true,
            // It still has its mapping: it belongs to another process that reused the number.
            Some(false) => return Ok(false),
            None => {}
        }
    }
    Ok(exits)
}

fn found<T>(result: io::Result<T>) -> io::Result<Option<T>> {
    match result {
        Err(error) if error.raw_os_error() == Some(libc::EMFILE) => Err(error),
        other => Ok(other.ok()),
    }
}

/// Whether `/proc/<pid>/task/<tid>/stat` says that the thread is exiting; `None` for a thread that
/// has ended: a zombie has closed its files.
fn thread_is_exiting(stat: &str) -> Option<bool> {
    // A program's name may contain anything; the fields after its closing bracket are plain.
    let (_, fields) = stat.rsplit_once(')')?;
    let mut fields = fields.split_whitespace();
    let state = fields.next().filter(|state| !matches!(*state, "Z" | "X"));
    let flags: u64 = fields.nth(5)?.parse().ok()?;
    state.map(|_| flags & PF_EXITING != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_exiting_flag_of_thread() {
        let check = |stat: &str, expected| assert_eq!(thread_is_exiting(stat), expected, "{stat}");
        check("7 (a) R 1 7 7 0 -1 4194304 0 0", Some(false));
        check("7 (a) R 1 7 7 0 -1 4194308 0 0", Some(true));
        check("7 (a) D 1 7 7 0 -1 4 0 0", Some(true));
        check("7 (a) Z 1 7 7 0 -1 4194316 0 0", None);
        check("7 (a) X 1 7 7 0 -1 4194316 0 0", None);
        check("7 (x) R 1 4 4) S 1 7 7 0 -1 4194304 0 0", Some(false));
        check("7 (a", None);
        check("", None);
    }
}
