//! `nvidia-cuda-mps-server`: owns the GPUs' contexts for its clients, sends each client its limits,
//! and terminates all of them after a fatal error of one.
#![allow(clippy::print_stdout, reason = "prints on stdout that it serves")]

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use aliquot_gpusim_model::Member;
use parking_lot::Mutex;

use super::{Directories, limit_list, peer};
use crate::mig::profiles;
use crate::model::{Gpu, text};
use crate::state::State;

/// Environment variable: percent, and bytes by device as `0=1024,1=512`.
pub(super) const TERMS: &str = "GPUSIM_MPS_TERMS";

/// `CUDA_ERROR_MPS_SERVER_NOT_READY` and `_MAX_CLIENTS_REACHED`.
const NOT_READY: u32 = 807;
const TOO_MANY: u32 = 808;

/// Most clients, from compute capability 7.0 on.
const MOST: usize = 48;

struct Server {
    token: u64,
    /// Most clients.
    most: usize,
    state: Mutex<ServerState>,
}

struct ServerState {
    percent: f64,
    /// Bytes by device ordinal.
    limits: BTreeMap<u32, u64>,
    clients: Vec<Client>,
    next_id: u32,
    /// A client had a fatal error, and not all clients have gone since.
    faulted: bool,
}

struct Client {
    id: u32,
    pid: u32,
    stream: UnixStream,
}

/// Serves until it is killed.
#[must_use]
pub fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(text) => {
            println!("{text}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<(), String> {
    let folders = Directories::of_environment();
    let message = |e: &dyn std::fmt::Display| e.to_string();
    let state = std::env::var_os(crate::STATE_VARIABLE).ok_or("no driver")?;
    let state = PathBuf::from(state);
    let machine = State::open(&state).map_err(|e| message(&e))?.machine();
    let member = Member::join(&state).map_err(|e| message(&e))?;
    let chosen = std::env::var("CUDA_VISIBLE_DEVICES").ok();
    let gpu_indexes = machine.visible_gpus(None, chosen.as_deref());
    let (token, first) = (
        member.token(),
        gpu_indexes.first().ok_or("no CUDA-capable device")?,
    );
    member.join_server(token, 100);
    for gpu_index in &gpu_indexes {
        create_context(&member, *gpu_index, &machine.gpus[*gpu_index])?;
    }
    // An instance serves its part of the clients.
    let instance = chosen
        .as_deref()
        .and_then(|chosen| machine.instance(chosen));
    let all = profiles::slices_of(&profiles::of(text(&machine.gpus[*first].model)));
    let part = instance.map(|found| (found.compute.slices, all));
    let most = part.map_or(MOST, |(slices, all)| {
        let count = |number: u32| usize::try_from(number.max(1)).unwrap_or(1);
        (MOST * count(slices) / count(all)).max(1)
    });
    let terms = std::env::var(TERMS).unwrap_or_default();
    let server = Arc::new(Server {
        token,
        most,
        state: Mutex::new(ServerState::new(&terms)),
    });
    let path = folders.server(std::process::id());
    let listener = UnixListener::bind(&path).map_err(|e| message(&e))?;
    open_to_all(&path).map_err(|e| message(&e))?;
    super::exit_with_machine();
    println!("{}", super::READY);
    let _ = std::io::stdout().flush();
    for stream in listener.incoming().flatten() {
        let server = Arc::clone(&server);
        std::thread::spawn(move || server.serve(&stream));
    }
    Ok(())
}

fn open_to_all(path: &Path) -> std::io::Result<()> {
    use std::os::unix::fs::PermissionsExt as _;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o666))
}

/// Creates the shared context on a GPU, charged like any process's own.
fn create_context(member: &Member, gpu_index: usize, gpu: &Gpu) -> Result<(), String> {
    let prohibited = gpu.compute_mode == 2;
    let taken = gpu.compute_mode == 3 && member.others_have_contexts(gpu_index);
    if prohibited || taken || gpu.lost != 0 {
        return Err("CUDA-capable device(s) is/are busy or unavailable".to_owned());
    }
    let capacity = gpu
        .memory_total
        .saturating_sub(gpu.used() + gpu.memory_reserved);
    let charged = member.charge(gpu_index, gpu.context_bytes, capacity);
    charged.map_err(|_| "out of memory".to_owned())?;
    member.counters(gpu_index).contexts.fetch_add(1, Relaxed);
    Ok(())
}

impl ServerState {
    fn new(terms: &str) -> Self {
        let (percent, limits) = terms.split_once(' ').unwrap_or((terms, ""));
        let limits = limits.split(',').filter_map(|pair| {
            let (device, bytes) = pair.split_once('=')?;
            Some((device.parse().ok()?, bytes.parse().ok()?))
        });
        Self {
            percent: percent.parse().unwrap_or(100.0),
            limits: limits.collect(),
            clients: Vec::new(),
            next_id: 0,
            faulted: false,
        }
    }

    /// The line that a client gets.
    fn terms(&self, token: u64) -> String {
        let percent = (1..=100).rev().find(|p| f64::from(*p) <= self.percent);
        let percent: u32 = percent.unwrap_or(1);
        format!("terms {token} {percent} {}", limit_list(&self.limits))
    }
}

impl Server {
    fn serve(&self, stream: &UnixStream) {
        let mut lines = BufReader::new(stream).lines().map_while(Result::ok);
        let Some(first) = lines.next() else {
            return;
        };
        let Some(own) = first.strip_prefix("client ") else {
            let _ = (&*stream).write_all(self.command(&first).as_bytes());
            return;
        };
        let Some(id) = self.admit(stream, own) else {
            return;
        };
        for line in lines {
            if let Some(code) = line.strip_prefix("fault ") {
                self.end_clients_after_fault(code);
            }
        }
        let mut state = self.state.lock();
        state.clients.retain(|client| client.id != id);
        state.faulted &= !state.clients.is_empty();
    }

    fn admit(&self, mut stream: &UnixStream, own: &str) -> Option<u32> {
        let mut state = self.state.lock();
        let refused = match (state.faulted, state.clients.len() >= self.most) {
            (true, _) => Some(NOT_READY),
            (_, true) => Some(TOO_MANY),
            _ => None,
        };
        if let Some(code) = refused {
            let _ = writeln!(stream, "error {code}");
            return None;
        }
        // The pid as this process sees it; of a client that it cannot see, the one that the client
        // sent.
        let seen = peer(stream).map(|(pid, _)| pid).filter(|pid| *pid > 0);
        let pid = seen.or_else(|| own.parse().ok())?;
        let id = state.next_id;
        state.next_id += 1;
        let client = Client {
            id,
            pid,
            stream: stream.try_clone().ok()?,
        };
        state.clients.push(client);
        let terms = state.terms(self.token);
        drop(state);
        writeln!(stream, "{terms}").ok()?;
        Some(id)
    }

    /// A fatal error of one client terminates all clients.
    fn end_clients_after_fault(&self, code: &str) {
        let mut state = self.state.lock();
        state.faulted = true;
        for client in &state.clients {
            let _ = writeln!(&client.stream, "fault {code}");
        }
    }

    fn command(&self, line: &str) -> String {
        let mut state = self.state.lock();
        let words: Vec<&str> = line.split_whitespace().collect();
        let pids = state.clients.iter().map(|client| client.pid.to_string());
        match words.as_slice() {
            ["status"] => if state.faulted { "FAULT" } else { "ACTIVE" }.to_owned(),
            ["clients"] => pids.collect::<Vec<_>>().join("\n"),
            ["percent", percent] => {
                state.percent = percent.parse().unwrap_or(state.percent);
                format!("{:.1}", state.percent)
            }
            ["limit", device, bytes] => {
                if let (Ok(device), Ok(bytes)) = (device.parse(), bytes.parse()) {
                    state.limits.insert(device, bytes);
                }
                String::new()
            }
            _ => format!("Unknown command: {line}"),
        }
    }
}
