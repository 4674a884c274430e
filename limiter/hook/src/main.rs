//! `aliquot-hook preload FILE`: what an OCI runtime runs while it makes a container; the
//! container's state is on standard input. A failure is one line on stderr, and the container is
//! not made. Fed by: the CDI spec of a seat. Must not: know more than its argument.

#![expect(clippy::print_stderr, reason = "a runtime tells what is said there")]

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
