//! For tests: where cargo put the shared libraries, links to them under the drivers' file names, and
//! programs in the place of NVIDIA's toolkit.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

/// The name under which NVML clients look for their library.
pub const LIBRARY_NAME: &str = "libnvidia-ml.so.1";

/// The name under which CUDA clients look for the driver.
pub const CUDA_LIBRARY_NAME: &str = "libcuda.so.1";

const BUILT_NAME: &str = "libaliquot_gpusim.so";
const CUDA_BUILT_NAME: &str = "libaliquot_gpusim_cuda.so";

/// Why the library cannot be found or linked.
#[derive(Debug, thiserror::Error)]
pub enum PlaceError {
    /// This program's own path is not known.
    #[error("cannot determine the path of this program: {0}")]
    OwnPath(std::io::Error),
    /// No library beside this program.
    #[error("{name} is in none of {folders:?}; build it with: cargo build -p {package}")]
    NotBuilt {
        /// The file.
        name: &'static str,
        /// The package that makes it.
        package: &'static str,
        /// The folders that were searched.
        folders: Vec<PathBuf>,
    },
    /// The link cannot be created.
    #[error("cannot link {name} in {folder}: {source}")]
    Link {
        /// The link's name.
        name: &'static str,
        /// The folder.
        folder: PathBuf,
        /// The reason.
        source: std::io::Error,
    },
}

/// The built NVML library. Cargo writes it to `deps/` whenever this crate is compiled, also as
/// a dependency of tests, and copies it one folder up only when this crate itself is built;
/// so the one in `deps/` is never older.
pub fn library_path() -> Result<PathBuf, PlaceError> {
    built(BUILT_NAME, "aliquot-gpusim")
}

/// The built CUDA driver, of the package aliquot-gpusim-cuda.
pub fn cuda_library_path() -> Result<PathBuf, PlaceError> {
    built(CUDA_BUILT_NAME, "aliquot-gpusim-cuda")
}

fn built(name: &'static str, package: &'static str) -> Result<PathBuf, PlaceError> {
    let program = std::env::current_exe().map_err(PlaceError::OwnPath)?;
    let folders: Vec<PathBuf> = program
        .ancestors()
        .skip(1)
        .take(2)
        .flat_map(|folder| [folder.join("deps"), folder.to_owned()])
        .collect();
    let found = folders
        .iter()
        .map(|folder| folder.join(name))
        .find(|file| file.is_file());
    found.ok_or(PlaceError::NotBuilt {
        name,
        package,
        folders,
    })
}

/// Links the NVML library into `folder` under its real name and returns the link; an older link
/// of that name is replaced.
pub fn link_into(folder: &Path) -> Result<PathBuf, PlaceError> {
    link(&library_path()?, folder, LIBRARY_NAME)
}

/// Links the CUDA driver into `folder` under its real name and returns the link; an older link
/// of that name is replaced.
pub fn link_cuda_into(folder: &Path) -> Result<PathBuf, PlaceError> {
    link(&cuda_library_path()?, folder, CUDA_LIBRARY_NAME)
}

/// Writes programs with the names of NVIDIA's toolkit into `folder`: its `nvidia-ctk` prints the CDI
/// spec that is in the file `spec` then, whatever it is asked for.
pub fn write_toolkit(folder: &Path, spec: &Path) -> std::io::Result<()> {
    let generator = format!("#!/bin/sh\nexec cat '{}'\n", spec.display());
    for (name, text) in [
        ("nvidia-ctk", generator.as_str()),
        ("nvidia-cdi-hook", "#!/bin/sh\n"),
    ] {
        let program = folder.join(name);
        std::fs::write(&program, text)?;
        std::fs::set_permissions(&program, Permissions::from_mode(0o755))?;
    }
    Ok(())
}

fn link(target: &Path, folder: &Path, name: &'static str) -> Result<PathBuf, PlaceError> {
    let link = folder.join(name);
    let make = || {
        match std::fs::remove_file(&link) {
            Err(e) if e.kind() != std::io::ErrorKind::NotFound => return Err(e),
            _ => {}
        }
        std::os::unix::fs::symlink(target, &link)
    };
    make().map_err(|source| PlaceError::Link {
        name,
        folder: folder.to_owned(),
        source,
    })?;
    Ok(link)
}
