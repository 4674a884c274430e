//! The control daemon's command language, one command a line.

/// Bytes in a MiB.
const MIB: u64 = 1 << 20;

/// A parsed command.
#[derive(Clone, Copy)]
pub(super) enum Command {
    Servers,
    Status(u32),
    Start {
        uid: u32,
    },
    Clients(u32),
    DefaultPercent,
    SetDefaultPercent(f64),
    SetPercent {
        server: u32,
        percent: f64,
    },
    DefaultLimit(u32),
    SetDefaultLimit {
        device: u32,
        bytes: u64,
    },
    SetLimit {
        server: u32,
        device: u32,
        bytes: u64,
    },
    Quit {
        seconds: Option<u64>,
    },
}

/// Parses a line; the error is the daemon's answer.
pub(super) fn parse(line: &str) -> Result<Command, String> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let (name, arguments) = words.split_first().ok_or("Invalid command")?;
    let usage = || format!("Invalid arguments for command {name}");
    let number = |place: usize| {
        let word = arguments.get(place).ok_or_else(usage)?;
        word.parse::<u32>().map_err(|_| usage())
    };
    let percent = |place: usize| {
        let percent = arguments.get(place).and_then(|word| word.parse().ok());
        let known = percent.filter(|percent: &f64| *percent > 0.0 && *percent <= 100.0);
        known.ok_or_else(|| "Thread percentage must be in the range (0, 100]".to_owned())
    };
    let bytes = |place: usize| {
        let text = arguments.get(place).ok_or_else(usage)?;
        size(text).ok_or_else(|| format!("Invalid memory limit {text}"))
    };
    Ok(match *name {
        "get_server_list" => Command::Servers,
        "get_server_status" => Command::Status(number(0)?),
        "start_server" if arguments.first() == Some(&"-uid") => Command::Start { uid: number(1)? },
        "get_client_list" => Command::Clients(number(0)?),
        "get_default_active_thread_percentage" => Command::DefaultPercent,
        "set_default_active_thread_percentage" => Command::SetDefaultPercent(percent(0)?),
        "set_active_thread_percentage" => Command::SetPercent {
            server: number(0)?,
            percent: percent(1)?,
        },
        "get_default_device_pinned_mem_limit" => Command::DefaultLimit(number(0)?),
        "set_default_device_pinned_mem_limit" => Command::SetDefaultLimit {
            device: number(0)?,
            bytes: bytes(1)?,
        },
        "set_device_pinned_mem_limit" => Command::SetLimit {
            server: number(0)?,
            device: number(1)?,
            bytes: bytes(2)?,
        },
        "quit" => Command::Quit {
            seconds: match arguments {
                ["-t", seconds] => Some(seconds.parse().map_err(|_| usage())?),
                _ => None,
            },
        },
        _ => return Err(format!("Unknown command: {line}")),
    })
}

/// `512M` or `5G` in bytes.
fn size(text: &str) -> Option<u64> {
    let (number, each) = match text.strip_suffix('G') {
        Some(number) => (number, 1024 * MIB),
        None => (text.strip_suffix('M')?, MIB),
    };
    number.parse::<u64>().ok()?.checked_mul(each)
}
