//! A program without any library of the driver: it uses the simulated GPU directly, as a program
//! that calls `/dev/nvidia*` uses a real one. It accepts those commands of `clients/client.py` that
//! allocate memory, `init` and `alloc,MIB`, and `ready` and `hold`. A test uses it as an attack
//! that no library can prevent.

#![expect(clippy::print_stdout, reason = "its answers are its purpose")]

use std::io::stdin;

use aliquot_gpusim::STATE_VARIABLE;
use aliquot_gpusim_model::Member;
use aliquot_limiter_tests::scene::{CONTEXT, MIB};
use anyhow::{Context as _, Result, bail};

fn main() -> Result<()> {
    let state = std::env::var(STATE_VARIABLE).context("the machine")?;
    let member = Member::join(state.as_ref())?;
    for command in std::env::args().skip(1) {
        let mib = match command.split_once(',') {
            Some(("alloc", mib)) => mib.parse()?,
            None if command == "init" => CONTEXT,
            None if command == "ready" => 0,
            None if command == "hold" => {
                stdin().read_line(&mut String::new())?;
                0
            }
            _ => bail!("no command {command}"),
        };
        let answer = if member.charge(0, mib * MIB, u64::MAX).is_ok() {
            0
        } else {
            2
        };
        println!("{command}: {answer}");
    }
    Ok(())
}
