//! `container-directory FOLDER LIBVGPU CUDA NVML UUID MIB CORES CONTEXT`: creates what a
//! container's processes find in `/.aliquot`, for a machine with a GPU and without Kubernetes: a
//! share of that GPU in MiB and percent, with low priority, and shim libraries in `FOLDER/driver`
//! for the two real libraries, which are linked. `GPU_CORE_UTILIZATION_POLICY` in its environment
//! counts as in a pod's. `tests/gpu/limited.sh` and `headline.sh` use it; it is not shipped.

use std::fs::{self, Permissions};
use std::io::Write as _;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::Path;

use aliquot_limiter_tests::scene::MIB;
use aliquot_node_state::limits::UtilizationPolicy;
use aliquot_region::limits::{ContainerLimits, DeviceLimits};
use aliquot_region::{counters, limits};
use aliquot_shim::{
    Architecture, ExportsError, FOLDER, LIBRARIES, LIMITER, build_driver_shim, build_shim,
    exported_calls,
};
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
    let policy = std::env::var("GPU_CORE_UTILIZATION_POLICY").unwrap_or_default();
    // Containers of high priority have no compute limit among themselves.
    let container = ContainerLimits {
        priority: 1,
        policy: UtilizationPolicy::parse(&policy).word(),
        ..ContainerLimits::default()
    };
    let page = limits::page(container, &[device])?;
    fs::write(folder.join("limits"), page)?;
    let mut slots = fs::File::create(folder.join("counters/slots"))?;
    slots.write_all(&counters::header())?;
    slots.set_len(counters::SIZE)?;
    slots.set_permissions(Permissions::from_mode(0o666))?;
    fs::copy(library, folder.join("lib").join(LIMITER))?;
    let machine = Architecture::HERE.context("no shim library for this architecture")?;
    for (one, real) in LIBRARIES.into_iter().zip([cuda, nvml]) {
        let place = folder.join("driver").join(one.name);
        let calls = fs::File::open(real).map_err(ExportsError::from);
        let calls = calls.and_then(|mut file| exported_calls(one, &mut file));
        // As the node agent does.
        let shim = calls.map_or_else(
            |_| build_shim(one, FOLDER, machine),
            |calls| build_driver_shim(one, &calls, machine),
        );
        fs::write(place, shim)?;
        let link = folder.join("lib").join(one.real);
        if fs::symlink_metadata(&link).is_ok() {
            fs::remove_file(&link)?;
        }
        symlink(real, link)?;
    }
    Ok(())
}
