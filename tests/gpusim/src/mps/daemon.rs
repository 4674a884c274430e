//! The control daemon, one for each pipe directory. It starts a server for the first client, and
//! executes the owner's commands.
#![allow(clippy::print_stdout, reason = "prints on stdout that it serves")]

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::{UnixListener, UnixStream};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::server::TERMS;
use super::{
    CONTROL, Directories, LOCK, PID, PRIVILEGED, READY, ask, first_line, limit_list, peer,
    status_line,
};

/// `CUDA_ERROR_MPS_SERVER_NOT_READY`.
const NOT_READY: u32 = 807;

struct Daemon {
    folders: Directories,
    /// One server for the clients of all users; else for those of one user at a time.
    all_users: bool,
    state: Mutex<DaemonState>,
}

/// The settings for new servers, and the running servers.
struct DaemonState {
    percent: f64,
    /// Bytes by device ordinal.
    limits: BTreeMap<u32, u64>,
    servers: Vec<Server>,
}

struct Server {
    process: Child,
    /// Whose clients it serves.
    user: u32,
}

/// Serves until `quit`.
pub(super) fn run(folders: Directories, all_users: bool) -> Result<(), String> {
    let made = |e: std::io::Error| format!("Cannot use {}: {e}", folders.pipe.display());
    fs::create_dir_all(&folders.pipe).map_err(made)?;
    fs::create_dir_all(&folders.log).map_err(made)?;
    let lock = File::create(folders.pipe.join(LOCK)).map_err(made)?;
    if lock.try_lock().is_err() {
        return Err("An instance of this daemon is already running".to_owned());
    }
    let bound = |name| {
        let path = folders.pipe.join(name);
        let _ = fs::remove_file(&path);
        let listener = UnixListener::bind(&path)?;
        fs::set_permissions(&path, fs::Permissions::from_mode(0o666))?;
        Ok(listener)
    };
    // The real daemon prints this too for a path too long for a socket.
    let unbound = |_: std::io::Error| "Cannot find MPS control daemon process".to_owned();
    let clients = bound(CONTROL).map_err(unbound)?;
    let commands = bound(PRIVILEGED).map_err(unbound)?;
    let pid = std::process::id().to_string();
    fs::write(folders.pipe.join(PID), pid).map_err(made)?;
    super::exit_with_machine();
    let daemon = Arc::new(Daemon {
        folders,
        all_users,
        state: Mutex::new(DaemonState {
            percent: 100.0,
            limits: BTreeMap::new(),
            servers: Vec::new(),
        }),
    });
    daemon.log(&format!(
        "Starting control daemon using socket {}",
        daemon.folders.pipe.join(CONTROL).display()
    ));
    println!("{READY}");
    let _ = std::io::stdout().flush();
    let asked = Arc::clone(&daemon);
    std::thread::spawn(move || {
        for stream in clients.incoming().flatten() {
            let daemon = Arc::clone(&asked);
            std::thread::spawn(move || daemon.assign_server(&stream));
        }
    });
    for stream in commands.incoming().flatten() {
        let daemon = Arc::clone(&daemon);
        std::thread::spawn(move || serve(&stream, |line| daemon.answer(line)));
    }
    Ok(())
}

/// Answers the commands of one connection by `answer`, until it closes.
fn serve(stream: &UnixStream, answer: impl Fn(&str) -> String) {
    let mut reader = BufReader::new(stream);
    let mut line = String::new();
    while matches!(reader.read_line(&mut line), Ok(1..)) {
        let text = answer(line.trim());
        let sent = write!(&*stream, "{}\n{text}", text.len());
        if sent.is_err() {
            return;
        }
        line.clear();
    }
}

impl Daemon {
    fn log(&self, text: &str) {
        let file = self.folders.log.join("control.log");
        if let Ok(mut file) = File::options().create(true).append(true).open(file) {
            // It may be lost.
            let _ = writeln!(file, "[Control {}] {text}", std::process::id());
        }
    }

    /// Sends a client the server to connect to.
    fn assign_server(&self, mut stream: &UnixStream) {
        self.log("Accepting connection...");
        if first_line(stream).is_err() {
            return;
        }
        let user = peer(stream).map_or(0, |(_, user)| user);
        let answer = match self.server(user) {
            Ok(pid) => format!("server {pid}"),
            Err(_) => format!("error {NOT_READY}"),
        };
        let _ = writeln!(stream, "{answer}");
    }

    /// The server for a user's clients, started if there is none. A server of another user must
    /// lose its clients first; the call waits for that.
    fn server(&self, user: u32) -> Result<u32, String> {
        let mut state = loop {
            let mut state = self.state.lock();
            state.reap();
            let Some(server) = state.servers.first() else {
                break state;
            };
            let id = server.process.id();
            if self.all_users || server.user == user {
                return Ok(id);
            }
            drop(state);
            self.wait_until_idle(&[id], None);
            // Another call may have stopped it.
            let _ = self.end(id);
        };
        let terms = format!("{} {}", state.percent, limit_list(&state.limits));
        let log = self.folders.log.join("server.log");
        let log = File::options().create(true).append(true).open(log);
        // As the real daemon finds it: on its PATH, wherever it itself is.
        let mut server = Command::new("nvidia-cuda-mps-server")
            .env(TERMS, terms)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(log.map_or_else(|_| Stdio::null(), Stdio::from))
            .spawn()
            .map_err(|e| e.to_string())?;
        let pid = server.id();
        self.log(&format!("Starting new server {pid} for user {user}"));
        if status_line(&mut server) != READY {
            let _ = server.wait();
            self.log(&format!("Server {pid} exited with status 1"));
            return Err("Failed to start a server".to_owned());
        }
        self.log(&format!("NEW SERVER {pid}: Ready"));
        state.servers.push(Server {
            process: server,
            user,
        });
        Ok(pid)
    }

    fn answer(&self, line: &str) -> String {
        self.execute(line).unwrap_or_else(|text| text)
    }

    fn execute(&self, line: &str) -> Result<String, String> {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words.as_slice() {
            ["get_server_list"] => {
                let pids: Vec<String> = self.servers().iter().map(u32::to_string).collect();
                Ok(pids.join("\n"))
            }
            ["get_server_status", server] => self.ask(number(server)?, "status"),
            ["start_server", "-uid", user] => self.server(number(user)?).map(|_| String::new()),
            ["get_client_list", server] => self.ask(number(server)?, "clients"),
            ["get_default_active_thread_percentage"] => {
                Ok(format!("{:.1}", self.state.lock().percent))
            }
            ["set_default_active_thread_percentage", percent] => {
                let percent = percentage(percent)?;
                self.state.lock().percent = percent;
                Ok(format!("{percent:.1}"))
            }
            ["set_active_thread_percentage", server, percent] => {
                let command = format!("percent {}", percentage(percent)?);
                self.ask(number(server)?, &command)
            }
            ["get_default_device_pinned_mem_limit", device] => {
                let device = number(device)?;
                let known = self.state.lock().limits.get(&device).copied();
                Ok(known.map_or_else(String::new, |bytes| format!("{}M", bytes >> 20)))
            }
            ["set_default_device_pinned_mem_limit", device, limit] => {
                let (device, limit) = (number(device)?, bytes(limit)?);
                self.state.lock().limits.insert(device, limit);
                Ok(String::new())
            }
            ["set_device_pinned_mem_limit", server, device, limit] => {
                let command = format!("limit {} {}", number(device)?, bytes(limit)?);
                self.ask(number(server)?, &command)
            }
            ["quit"] => self.quit(None),
            ["quit", "-t", seconds] => {
                let seconds = number(seconds)?.into();
                self.quit(Some(Duration::from_secs(seconds)))
            }
            _ => Err(format!("Unknown command: {line}")),
        }
    }

    fn servers(&self) -> Vec<u32> {
        let mut state = self.state.lock();
        state.reap();
        let servers = state.servers.iter();
        servers.map(|server| server.process.id()).collect()
    }

    fn ask(&self, server: u32, line: &str) -> Result<String, String> {
        let known = self.servers().contains(&server);
        let asked = known.then(|| ask(&self.folders.server(server), line).ok());
        let answer = asked.flatten();
        answer.ok_or_else(|| format!("Server {server} does not exist"))
    }

    /// Waits until the clients exit, at most so long.
    fn wait_until_idle(&self, servers: &[u32], most: Option<Duration>) {
        let start = Instant::now();
        let busy = |server: &u32| {
            self.ask(*server, "clients")
                .is_ok_and(|list| !list.is_empty())
        };
        while servers.iter().any(busy) && most.is_none_or(|most| start.elapsed() < most) {
            std::thread::park_timeout(Duration::from_millis(50));
        }
    }

    fn end(&self, server: u32) -> Result<(), String> {
        let mut state = self.state.lock();
        let place = state
            .servers
            .iter()
            .position(|one| one.process.id() == server);
        let place = place.ok_or_else(|| format!("Server {server} does not exist"))?;
        let mut gone = state.servers.remove(place);
        let _ = gone.process.kill();
        let _ = gone.process.wait();
        let _ = fs::remove_file(self.folders.server(server));
        Ok(())
    }

    fn quit(&self, most: Option<Duration>) -> Result<String, String> {
        let servers = self.servers();
        self.wait_until_idle(&servers, most);
        for server in self.servers() {
            self.end(server)?;
        }
        self.log("Exit");
        let _ = fs::remove_file(self.folders.pipe.join(PID));
        // The answer goes out first.
        std::thread::spawn(|| {
            std::thread::park_timeout(Duration::from_millis(20));
            std::process::exit(0);
        });
        Ok(String::new())
    }
}

impl DaemonState {
    /// Reaps servers that exited.
    fn reap(&mut self) {
        self.servers
            .retain_mut(|server| matches!(server.process.try_wait(), Ok(None)));
    }
}

fn number(word: &str) -> Result<u32, String> {
    word.parse().map_err(|_| format!("Invalid number {word}"))
}

fn percentage(word: &str) -> Result<f64, String> {
    let percent = word.parse::<f64>().ok();
    let percent = percent.filter(|percent| *percent > 0.0 && *percent <= 100.0);
    percent.ok_or_else(|| "Thread percentage must be in the range (0, 100]".to_owned())
}

/// `512M` or `5G` in bytes.
fn bytes(word: &str) -> Result<u64, String> {
    let size = || {
        let (number, shift) = match word.strip_suffix('G') {
            Some(number) => (number, 30),
            None => (word.strip_suffix('M')?, 20),
        };
        number.parse::<u64>().ok()?.checked_mul(1 << shift)
    };
    size().ok_or_else(|| format!("Invalid memory limit {word}"))
}
