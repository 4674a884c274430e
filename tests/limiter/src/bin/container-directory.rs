//! `container-directory FOLDER LIBVGPU CUDA NVML UUID MIB CORES CONTEXT`: creates what a
//! container's processes find in `/.aliquot`, for a machine with a GPU and without Kubernetes: a
//! share of that GPU in MiB and percent, and shim libraries in `FOLDER/driver` for the two real
//! libraries, which are linked. `tests/gpu/limiter.sh` uses it; it is not shipped.

use std::fs::{self, Permissions};
use std::io::Write as _;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::Path;

use aliquot_limiter_tests::scene::MIB;
use aliquot_region::limits::{ContainerLimits, DeviceLimits};
use aliquot_region::{counters, limits};
use aliquot_shim::{Architecture, FOLDER, LIBRARIES, LIMITER, build_shim};
use anyhow::{Context as _, Result, bail};

fn main() -> Result<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [folder, library, cuda, nvml, uuid, mib, cores, context] = &words[..] else {
        bail!("usage: container-directory FOLDER LIBVGPU CUDA NVML UUID MIB CORES CONTEXT");
    };
    let folder = Path::new(folder);
    let device = DeviceLimits {
        uuid,
        memory: mib.parse::<u64>().context("MIB")? * MIB,
        cores: cores.parse().context("CORES, in percent")?,
        context: context.parse::<u64>().context("CONTEXT, in MiB")? * MIB,
        ..DeviceLimits::default()
    };
    for below in ["lib", "driver", "counters"] {
        fs::create_dir_all(folder.join(below))?;
    }
    let page = limits::page(ContainerLimits::default(), &[device])?;
    fs::write(folder.join("limits"), page)?;
    let mut slots = fs::File::create(folder.join("counters/slots"))?;
    slots.write_all(&counters::header())?;
    slots.set_len(counters::SIZE)?;
    slots.set_permissions(Permissions::from_mode(0o666))?;
    fs::copy(library, folder.join("lib").join(LIMITER))?;
    let machine = Architecture::HERE.context("no shim library for this architecture")?;
    for (one, real) in LIBRARIES.into_iter().zip([cuda, nvml]) {
        let place = folder.join("driver").join(one.name);
        fs::write(place, build_shim(one, FOLDER, machine))?;
        let link = folder.join("lib").join(one.real);
        if fs::symlink_metadata(&link).is_ok() {
            fs::remove_file(&link)?;
        }
        symlink(real, link)?;
    }
    Ok(())
}
