//! This process as a client of MPS: the daemon of `CUDA_MPS_PIPE_DIRECTORY` names a server, the
//! server sends its limits, and when it dies, or another client has a fatal error, our contexts
//! fail. `aliquot_gpusim::mps` is the other end of both sockets.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use aliquot_gpusim_model::Member;
use parking_lot::Mutex;

use crate::codes::{
    ERROR_ASSERT, ERROR_ECC_UNCORRECTABLE, ERROR_ILLEGAL_ADDRESS, ERROR_LAUNCH_FAILED,
    ERROR_MPS_CONNECTION_FAILED, ERROR_MPS_RPC_FAILURE, ERROR_MPS_SERVER_NOT_READY,
};
use crate::driver::Driver;
use crate::ffi::Answer;

/// A context of a client takes so much less of the GPU than one of its own: the server's is shared.
pub(crate) const CONTEXT_PART: u64 = 8;

const PIPE: &str = "CUDA_MPS_PIPE_DIRECTORY";
const DEFAULT_PIPE: &str = "/tmp/nvidia-mps";
const LIMIT: &str = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT";
const PERCENT: &str = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE";

/// A connection to a server.
pub(crate) struct Client {
    stream: Mutex<UnixStream>,
    /// The code with which all calls fail; 0: none.
    broken: AtomicU32,
}

/// The limits that the server sends.
struct Terms {
    token: u64,
    percent: u32,
    /// Bytes by the server's device ordinal.
    limits: BTreeMap<usize, u64>,
}

/// Joins the daemon's server; `None`: no daemon answers, and the process goes on without.
pub(crate) fn connect(member: &mut Member, gpu_indexes: &[usize]) -> Answer<Option<Client>> {
    let pipe = std::env::var_os(PIPE).map_or_else(|| DEFAULT_PIPE.into(), PathBuf::from);
    let Ok(control) = UnixStream::connect(pipe.join("control")) else {
        return Ok(None);
    };
    let (word, rest) = ask(control, "client")?.0;
    let server = match word.as_str() {
        "server" => rest,
        _ => return Err(rest.parse().unwrap_or(ERROR_MPS_CONNECTION_FAILED)),
    };
    let stream = open(&pipe, &server)?;
    let ((word, rest), stream) = ask(stream, &format!("client {}", std::process::id()))?;
    if word != "terms" {
        return Err(rest.parse().unwrap_or(ERROR_MPS_CONNECTION_FAILED));
    }
    let terms = Terms::read(&rest).ok_or(ERROR_MPS_CONNECTION_FAILED)?;
    let own = |name| std::env::var(name).ok();
    member.join_server(terms.token, percent(terms.percent, own(PERCENT).as_deref()));
    let limits = lowered(&terms.limits, own(LIMIT).as_deref());
    for (ordinal, bytes) in limits {
        if let Some(gpu_index) = gpu_indexes.get(ordinal) {
            let most = member
                .capped(*gpu_index)
                .map_or(bytes, |own| own.min(bytes));
            member.cap(*gpu_index, most);
        }
    }
    stream
        .set_nonblocking(true)
        .map_err(|_| ERROR_MPS_CONNECTION_FAILED)?;
    Ok(Some(Client {
        stream: Mutex::new(stream),
        broken: AtomicU32::new(0),
    }))
}

fn open(pipe: &Path, server: &str) -> Answer<UnixStream> {
    UnixStream::connect(pipe.join(format!("server_{server}")))
        .map_err(|_| ERROR_MPS_SERVER_NOT_READY)
}

/// Sends a line; gives the answer's first word, the rest, and the connection.
fn ask(mut stream: UnixStream, line: &str) -> Answer<((String, String), UnixStream)> {
    let mut answer = String::new();
    let mut talk = || {
        writeln!(stream, "{line}")?;
        BufReader::new(&stream).read_line(&mut answer)
    };
    talk().map_err(|_| ERROR_MPS_CONNECTION_FAILED)?;
    let answer = answer.trim();
    let (word, rest) = answer.split_once(' ').unwrap_or((answer, ""));
    Ok(((word.to_owned(), rest.to_owned()), stream))
}

impl Terms {
    /// `<token> <percent> <ordinal>=<bytes>,…`
    fn read(text: &str) -> Option<Self> {
        let mut words = text.split_whitespace();
        Some(Self {
            token: words.next()?.parse().ok()?,
            percent: words.next()?.parse().ok()?,
            limits: pairs(words.next().unwrap_or(""), |size| size.parse().ok()),
        })
    }
}

fn pairs(text: &str, size: impl Fn(&str) -> Option<u64>) -> BTreeMap<usize, u64> {
    let each = text.split(',').filter_map(|pair| {
        let (ordinal, bytes) = pair.trim().split_once('=')?;
        Some((ordinal.parse().ok()?, size(bytes)?))
    });
    each.collect()
}

/// The server's limits, lowered by `0=5G,1=512M`. What has another form is passed over.
fn lowered(server: &BTreeMap<usize, u64>, own: Option<&str>) -> BTreeMap<usize, u64> {
    let mut limits = pairs(own.unwrap_or(""), bytes);
    for (ordinal, bytes) in server {
        let limit = limits.entry(*ordinal).or_insert(*bytes);
        *limit = (*limit).min(*bytes);
    }
    limits
}

/// `5G` or `512M` in bytes.
fn bytes(text: &str) -> Option<u64> {
    let (number, shift) = match text.strip_suffix(['G', 'g']) {
        Some(number) => (number, 30),
        None => (text.strip_suffix(['M', 'm'])?, 20),
    };
    number.parse::<u64>().ok()?.checked_mul(1 << shift)
}

fn percent(server: u32, own: Option<&str>) -> u32 {
    let own = own.and_then(|own| own.parse::<f64>().ok());
    let own = own.map_or(server, |own| {
        (1..=100).rev().find(|p| f64::from(*p) <= own).unwrap_or(1)
    });
    own.min(server)
}

impl Client {
    /// Fails with the code that the server sent, from then on.
    pub(crate) fn check(&self) -> Answer {
        if self.broken.load(Relaxed) == 0 {
            let mut line = [0; 64];
            let code = match self.stream.lock().read(&mut line) {
                Ok(0) => ERROR_MPS_RPC_FAILURE,
                Ok(length) => {
                    let text = String::from_utf8_lossy(&line[..length]).into_owned();
                    let code = text
                        .split_whitespace()
                        .nth(1)
                        .and_then(|code| code.parse().ok());
                    code.unwrap_or(ERROR_MPS_RPC_FAILURE)
                }
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => 0,
                Err(_) => ERROR_MPS_RPC_FAILURE,
            };
            if code != 0 {
                self.broken.store(code, Relaxed);
            }
        }
        match self.broken.load(Relaxed) {
            0 => Ok(()),
            code => Err(code),
        }
    }
}

/// Reports a call's error to the server if it is fatal: it terminates all clients.
pub(crate) fn report_fatal_error(driver: &Driver, code: u32) {
    let fatal = [
        ERROR_ASSERT,
        ERROR_ECC_UNCORRECTABLE,
        ERROR_ILLEGAL_ADDRESS,
        ERROR_LAUNCH_FAILED,
    ];
    if let Some(client) = driver.mps().filter(|_| fatal.contains(&code)) {
        // A server that is gone needs no report.
        let _ = writeln!(client.stream.lock(), "fault {code}");
    }
}
