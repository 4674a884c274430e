//! `seat FOLDER LIBVGPU CUDA NVML UUID MIB CORES CONTEXT`: what a container's processes find below
//! `/.aliquot`, for a machine with a card and without Kubernetes: a share of that card in MiB and
//! percent, stand-ins in `FOLDER/driver` for the two real libraries, which are linked.
//!
//! Fed by: `tests/gpu/limiter.sh`. Must not: be part of anything that is shipped.

use std::fs::{self, Permissions};
use std::io::Write as _;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::Path;

use aliquot_facade::{FOLDER, LIBRARIES, LIMITER, Machine, stand_in};
use aliquot_limiter_tests::scene::MIB;
use aliquot_region::limits::{Container, Device};
use aliquot_region::{counters, limits};
use anyhow::{Context as _, Result, bail};

fn main() -> Result<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [folder, library, cuda, nvml, uuid, mib, cores, context] = &words[..] else {
        bail!("usage: seat FOLDER LIBVGPU CUDA NVML UUID MIB CORES CONTEXT");
    };
    let folder = Path::new(folder);
    let device = Device {
        uuid,
        memory: mib.parse::<u64>().context("MIB")? * MIB,
        cores: cores.parse().context("CORES, in percent")?,
        context: context.parse::<u64>().context("CONTEXT, in MiB")? * MIB,
        ..Device::default()
    };
    for below in ["lib", "driver", "counters"] {
        fs::create_dir_all(folder.join(below))?;
    }
    let page = limits::page(Container::default(), &[device])?;
    fs::write(folder.join("limits"), page)?;
    let mut slots = fs::File::create(folder.join("counters/slots"))?;
    slots.write_all(&counters::header())?;
    slots.set_len(counters::SIZE)?;
    slots.set_permissions(Permissions::from_mode(0o666))?;
    fs::copy(library, folder.join("lib").join(LIMITER))?;
    let machine = Machine::HERE.context("no stand-in for this machine")?;
    for (one, real) in LIBRARIES.into_iter().zip([cuda, nvml]) {
        let place = folder.join("driver").join(one.name);
        fs::write(place, stand_in(one, FOLDER, machine))?;
        let link = folder.join("lib").join(one.real);
        if fs::symlink_metadata(&link).is_ok() {
            fs::remove_file(&link)?;
        }
        symlink(real, link)?;
    }
    Ok(())
}
