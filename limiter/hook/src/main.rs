//! `aliquot-hook preload FILE`: an OCI runtime runs this while it creates a container, with the
//! container's state on standard input. On failure it prints one line on stderr, and the container
//! is not created.

#![expect(clippy::print_stderr, reason = "the runtime reports it")]

use std::io;
use std::path::Path;
use std::process::ExitCode;

use aliquot_hook::run;

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [what, list] = &words[..] else {
        return usage();
    };
    if what != "preload" {
        return usage();
    }
    match run(io::stdin().lock(), Path::new(list)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("aliquot-hook: {error}");
            ExitCode::FAILURE
        }
    }
}

fn usage() -> ExitCode {
    eprintln!("usage: aliquot-hook preload FILE");
    ExitCode::from(2)
}
