//! The CDI edits of containers: the driver's files and device nodes, the limiter before them, and the
//! specs that the container runtime reads. [`ContainerEdits`] is the way in.

mod capabilities;
pub mod cdi;
pub mod device_nodes;
pub mod driver_spec;
pub mod injection;

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use aliquot_node_state::device_id::AnswerName;
use aliquot_serve::fail_point;
use parking_lot::Mutex;
use thiserror::Error;

use crate::files::{self, FileError};
use crate::host_device::HostDevice;
use crate::modes::{Capabilities, ModeSetup};
use crate::paths::Paths;
use cdi::{DriverEdits, Spec};
use device_nodes::{DeviceNodes, Majors, MissingNode};
use driver_spec::SpecError;
use injection::{InstalledLimiter, KnownShims};

/// NVIDIA's spec is read again after this: a driver update changes it.
const SPEC_MAX_AGE: Duration = Duration::from_millis(200);

#[derive(Debug, Error)]
pub enum EditsError {
    #[error(transparent)]
    File(#[from] FileError),
    /// Nothing would bring the CUDA driver's library into the container, or hold it to its limits.
    #[error(
        "container {container} would start without libcuda.so.1: the CDI spec of the driver that the agent generates is not used: {source}; the node's condition AliquotRuntimeIncomplete says what is missing; the kubelet retries"
    )]
    NoDriver {
        container: String,
        source: Arc<SpecError>,
    },
    /// The driver's programs in the container could not open a device node that they need.
    #[error("container {container} would start without {source}; the kubelet retries")]
    NoDeviceNode {
        container: String,
        source: MissingNode,
    },
    #[error("cannot encode the CDI spec {name}: {source}")]
    Encode {
        name: AnswerName,
        source: serde_json::Error,
    },
}

type StoredSpec = Result<Arc<Spec>, Arc<SpecError>>;

#[derive(PartialEq)]
pub(crate) struct EditInputs {
    spec: Option<Arc<Spec>>,
    majors: Majors,
}

pub struct ContainerEdits {
    paths: Paths,
    limiter: Option<InstalledLimiter>,
    spec: Mutex<Option<(Instant, StoredSpec)>>,
    shims: KnownShims,
}

impl ContainerEdits {
    /// `limiter`: the installed one, if this node has one.
    pub fn new(paths: &Paths, limiter: Option<InstalledLimiter>) -> Self {
        Self {
            paths: paths.clone(),
            limiter,
            spec: Mutex::default(),
            shims: KnownShims::default(),
        }
    }

    pub fn limiter(&self) -> Option<&InstalledLimiter> {
        self.limiter.as_ref()
    }

    /// The edits that bring the driver into a container with these devices, with the numbers of
    /// their device nodes and without what is not `allowed`. Fails where the container would have no
    /// driver.
    pub fn driver(
        &self,
        container: &str,
        devices: &[HostDevice],
        allowed: Option<Capabilities>,
    ) -> Result<DriverEdits, EditsError> {
        let spec = self.driver_spec().map_err(|source| EditsError::NoDriver {
            container: container.to_owned(),
            source,
        })?;
        let mut driver = spec.driver(devices);
        let completed = DeviceNodes::new(self.paths.driver_root.as_ref()).complete(
            &mut driver.edits,
            &device_nodes::required(devices, &self.paths.capabilities),
            &self.paths.proc_devices,
        );
        completed.map_err(|source| EditsError::NoDeviceNode {
            container: container.to_owned(),
            source,
        })?;
        if let Some(allowed) = allowed {
            allowed.filter_edits(&mut driver.edits);
        }
        injection::set_hook_environment(&mut driver.edits);
        Ok(driver)
    }

    /// Does what `setup` says of limits, if a limiter is installed: puts it, with its files in the
    /// container's `directory`, before the driver, and has a driver that can limit memory, too.
    /// Returns what is wrong although the container can start.
    pub fn limit(
        &self,
        driver: &mut DriverEdits,
        directory: &Path,
        setup: &ModeSetup,
        by_driver: bool,
    ) -> Result<Vec<String>, EditsError> {
        let Some(limiter) = &self.limiter else {
            return Ok(Vec::new());
        };
        let (edits, path) = (&mut driver.edits, directory.display().to_string());
        if by_driver {
            let gpus = setup.limited_by_driver.iter().map(String::as_str);
            let gpus: Vec<&str> = gpus.collect();
            injection::limit_by_driver(edits, &path, limiter, &gpus);
        }
        if !setup.limited {
            return Ok(Vec::new());
        }
        injection::add_to_directory(directory, limiter)?;
        let (shims, problems) =
            limiter.install_driver_shims(edits, &self.paths.host_root, &self.shims)?;
        injection::inject(edits, &path, limiter, &shims);
        Ok(problems)
    }

    /// Writes the spec of a container's first name, and for each further one a spec with the same
    /// `variables` (`NAME=value`).
    pub fn write<'a>(
        &self,
        first: &AnswerName,
        further: impl Iterator<Item = &'a AnswerName>,
        variables: &[String],
        directory: &Path,
        driver: &DriverEdits,
    ) -> Result<(), EditsError> {
        let directory = directory.display().to_string();
        let trees = cdi::mounts_whole_trees();
        let spec = cdi::spec(first, variables.to_vec(), &directory, driver, trees);
        self.write_spec(first, &spec)?;
        fail_point::at("SpecWritten");
        for name in further {
            self.write_spec(name, &cdi::variables_only(name, variables.to_vec()))?;
        }
        Ok(())
    }

    fn write_spec(&self, name: &AnswerName, spec: &Spec) -> Result<(), EditsError> {
        let text = serde_json::to_vec_pretty(spec).map_err(|source| EditsError::Encode {
            name: name.clone(),
            source,
        })?;
        files::put(&self.paths.cdi.join(cdi::file_name(name.as_str())), &text)?;
        Ok(())
    }

    /// What the edits of every container follow from, beside its devices.
    pub(crate) fn inputs(&self) -> EditInputs {
        EditInputs {
            spec: self.driver_spec().ok(),
            majors: Majors::read(&self.paths.proc_devices),
        }
    }

    /// The names that have a spec.
    pub(crate) fn names(paths: &Paths) -> Result<Vec<String>, FileError> {
        let files = files::names(&paths.cdi)?;
        let names = files.iter().filter_map(|file| cdi::name_of(file));
        Ok(names.map(str::to_owned).collect())
    }

    pub(crate) fn remove(paths: &Paths, name: &str) -> Result<(), FileError> {
        files::remove(&paths.cdi.join(cdi::file_name(name)))
    }

    /// Removes the libraries and the programs of versions of the limiter that are neither installed
    /// nor used by a container. Returns what could not be removed.
    pub(crate) fn remove_old_limiters(&self) -> Vec<String> {
        let mut problems = Vec::new();
        let Some(limiter) = &self.limiter else {
            return problems;
        };
        let programs = limiter.hook.parent();
        let programs = programs.map(|folder| (&self.paths.programs, folder));
        let libraries = (&self.paths.limiter, &*limiter.folder);
        for (root, installed) in programs.into_iter().chain([libraries]) {
            match injection::collect(root, installed, &self.paths.cdi) {
                Ok(0) => {}
                Ok(removed) => tracing::info!(
                    removed,
                    "removed versions of the limiter that no container uses"
                ),
                Err(error) => {
                    problems.push(format!(
                        "cannot remove old versions of the limiter: {error}"
                    ));
                }
            }
        }
        problems
    }

    /// [`driver_spec::stored`], read again after [`SPEC_MAX_AGE`].
    fn driver_spec(&self) -> StoredSpec {
        let mut cached = self.spec.lock();
        if let Some((read, spec)) = &*cached
            && read.elapsed() < SPEC_MAX_AGE
        {
            return spec.clone();
        }
        let spec = driver_spec::stored(&self.paths.driver_spec, &self.paths.host_root);
        let spec = spec.map(Arc::new).map_err(Arc::new);
        *cached = Some((Instant::now(), spec.clone()));
        spec
    }
}
